//! The components in `tests/guests`, and what it takes to call them.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use agentloop_host::{
    capability::{Grants, Limits, Reach},
    config::permissions::{Mode, Permissions},
    event::LogLevel,
    ids::{PluginName, ToolName, ToolUseId},
    policy::{self, Authorized, Decision},
    sandbox::{
        Beside, Component, Ending, Executor, GuestCall, GuestListener, Sandbox, SandboxSettings,
        compiler::Compiler,
    },
    tool::{Content, ToolCall, ToolOutcome},
};
use serde_json::Value;

include!(concat!(env!("OUT_DIR"), "/guests.rs"));

/// Calls that live at once in [`settings`].
pub const MAX_LIVE_CALLS: usize = 64;

/// With compiled code kept between tests and runs, since compiling takes most of a test's time.
pub fn settings() -> SandboxSettings {
    SandboxSettings {
        cache_dir: Some(PathBuf::from(concat!(env!("OUT_DIR"), "/compiled"))),
        max_live_calls: MAX_LIVE_CALLS,
        pool: true,
        extra_ca_files: Vec::new(),
        compiler: Compiler::InProcess,
    }
}

pub fn sandbox() -> Sandbox {
    Sandbox::new(settings()).unwrap()
}

/// A loaded component with what its calls get. The plugin's name is `guest`.
#[derive(Clone)]
pub struct Guest {
    pub sandbox: Sandbox,
    pub component: Component,
    pub grants: Grants,
    pub limits: Limits,
    pub executor: Executor,
    pub heard: Arc<Heard>,
}

impl Guest {
    pub async fn load(sandbox: &Sandbox, wasm: &[u8]) -> Self {
        Self::of(sandbox, sandbox.load(wasm.into()).await.unwrap())
    }

    pub async fn load_with(sandbox: &Sandbox, wasm: &[u8], beside: Beside) -> Self {
        let component = sandbox.load_with(wasm.into(), Some(beside)).await;
        Self::of(sandbox, component.unwrap())
    }

    fn of(sandbox: &Sandbox, component: Component) -> Self {
        Self {
            sandbox: sandbox.clone(),
            component,
            grants: Grants::default(),
            limits: Limits::default(),
            executor: Executor::Guests,
            heard: Arc::default(),
        }
    }

    /// Calls a tool once a slot is free.
    pub async fn call(&self, tool: &str, input: Value) -> Ending {
        let slot = self.sandbox.slot().await;
        let requests = self
            .component
            .definitions()
            .iter()
            .find(|definition| definition.name.as_str() == tool)
            .map_or(&[][..], |definition| &definition.requests);
        let reach = Reach::new(requests, &self.grants);
        let guest_call = GuestCall {
            component: &self.component,
            tool: &ToolName::parse(tool).unwrap(),
            plugin: &PluginName::parse("guest").unwrap(),
            reach: &reach,
            limits: &self.limits,
        };
        let call = authorized(tool, input);
        let heard = self.heard.clone();
        self.sandbox
            .call(slot, guest_call, call, self.executor, heard)
            .await
    }

    /// The text that a call answers with; panics where it does not.
    pub async fn text(&self, tool: &str, input: Value) -> String {
        text(&self.call(tool, input).await.outcome)
    }
}

/// The one text of an answer.
pub fn text(outcome: &ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Answered(content) => match content.as_slice() {
            [Content::Text(text)] => text.clone(),
            other => panic!("not one text: {other:?}"),
        },
        other => panic!("not an answer: {other:?}"),
    }
}

/// A call that policy has let through.
pub fn authorized(tool: &str, input: Value) -> Authorized {
    let mut permissions = Permissions::default();
    permissions.mode = Mode::Auto;
    let Value::Object(input) = input else {
        panic!("arguments are an object")
    };
    let call = ToolCall {
        id: ToolUseId::parse("call").unwrap(),
        tool: ToolName::parse(tool).unwrap(),
        input,
    };
    match policy::decide(&permissions, "guest.tool", None, call, None) {
        Decision::Allow(authorized) => authorized,
        other @ (Decision::Ask(_) | Decision::Deny { .. }) => panic!("{other:?}"),
    }
}

/// Done, of how much, and the message.
pub type Report = (f64, Option<f64>, Option<String>);

/// Keeps what guests say.
#[derive(Debug, Default)]
pub struct Heard {
    lines: Mutex<Vec<(LogLevel, String)>>,
    reports: Mutex<Vec<Report>>,
}

impl Heard {
    pub fn lines(&self) -> Vec<(LogLevel, String)> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn reports(&self) -> Vec<Report> {
        self.reports
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl GuestListener for Heard {
    fn logged(&self, level: LogLevel, text: String) {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((level, text));
    }

    fn progressed(&self, done: f64, total: Option<f64>, message: Option<String>) {
        self.reports
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((done, total, message));
    }
}
