//! Calls that are begun while the reply that asks for them still streams.
//!
//! Only what nobody could tell from a call that was never made is begun so early: the tool is a component that
//! reaches nothing it could change and no network, no rule asks about the call, its arguments fit, and no earlier
//! call of the reply touches what it reads. Its result waits until the reply has ended well and the life of the
//! call has come to it; if the reply ends in any other way the guest is killed, and nothing of it is told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::task::AbortOnDropHandle;

use crate::{
    agent::{
        Deps,
        schedule::{Footprint, predecessors},
    },
    capability::Reach,
    event::LogLevel,
    ids::ToolUseId,
    policy::{self, Decision},
    registry::Registry,
    sandbox::{Ending, Executor, GuestListener},
    tool::ToolCall,
    transcript::ToolInput,
};

/// What was begun for one reply.
pub(crate) struct Eager<'a> {
    registry: &'a Registry,
    deps: &'a Deps,
    /// The tools of the calls so far, in call order.
    asked: Vec<Option<Footprint<'a>>>,
    begun: Vec<Begun>,
}

/// A call that runs, or has run.
pub(crate) struct Begun {
    name: String,
    input: ToolInput,
    /// Killed when it is dropped.
    ending: AbortOnDropHandle<Ending>,
    said: Arc<Held>,
}

impl<'a> Eager<'a> {
    pub(crate) fn new(registry: &'a Registry, deps: &'a Deps) -> Self {
        Self {
            registry,
            deps,
            asked: Vec::new(),
            begun: Vec::new(),
        }
    }

    /// The reply asks for this call, and goes on.
    pub(crate) fn asked_for(&mut self, name: &str, input: &ToolInput) {
        let tool = self.registry.get(name);
        self.asked.push(tool.map(|tool| Footprint {
            reach: tool.reach.as_ref(),
            parallel_safe: tool.definition.parallel_safe,
        }));
        let is_wanted = self.deps.eager
            && self.deps.parallel
            // It may do anything, and hears of calls in order.
            && self.deps.before_tool.is_none()
            && self.begun.len() < self.deps.max_parallel_tools;
        let Some(tool) = tool.filter(|_| is_wanted) else {
            return;
        };
        let is_pure = tool.reach.as_ref().is_some_and(Reach::is_pure);
        let waits_for_none = predecessors(&self.asked, true)
            .last()
            .is_some_and(Vec::is_empty);
        let ToolInput::Object(arguments) = input else {
            return;
        };
        if !is_pure || !waits_for_none {
            return;
        }
        let (Ok(arguments), Ok(id)) = (
            tool.check_arguments(arguments.clone()),
            ToolUseId::parse("eager"),
        ) else {
            return;
        };
        let call = ToolCall {
            id,
            tool: tool.name.clone(),
            input: arguments,
        };
        let decision = policy::decide(
            &self.deps.permissions,
            &tool.rule_name,
            tool.reach.as_ref(),
            call,
            // It can change nothing.
            None,
        );
        let Decision::Allow(authorized) = decision else {
            return;
        };
        let said = Arc::new(Held::default());
        let running = {
            let (tool, said) = (Arc::clone(tool), Arc::clone(&said));
            async move {
                let slot = tool.slot().await;
                tool.run(slot, authorized, Executor::Guests, said).await
            }
        };
        self.begun.push(Begun {
            name: name.to_owned(),
            input: input.clone(),
            ending: AbortOnDropHandle::new(tokio::spawn(running)),
            said,
        });
    }

    /// Kills what runs: the reply is asked for again, or came to no good.
    pub(crate) fn clear(&mut self) {
        self.asked.clear();
        self.begun.clear();
    }

    /// What was begun, for those who carry out the reply's calls.
    pub(crate) fn into_begun(self) -> Early {
        Early(Mutex::new(self.begun))
    }
}

/// Calls of a turn that were begun before it.
#[derive(Default)]
pub(crate) struct Early(Mutex<Vec<Begun>>);

impl Early {
    /// The same call, if it was begun. Pure calls that are equal can stand for each other.
    pub(crate) fn take(&self, name: &str, input: &ToolInput) -> Option<Begun> {
        let mut begun = lock(&self.0);
        let at = begun
            .iter()
            .position(|begun| begun.name == name && begun.input == *input)?;
        Some(begun.remove(at))
    }
}

impl Begun {
    /// Its ending; what it said, and will say, goes to `listener`.
    pub(crate) async fn ending(self, listener: Arc<dyn GuestListener>) -> Ending {
        self.said.pass_on(listener);
        match self.ending.await {
            Ok(ending) => ending,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Only when the runtime shuts down, and then nobody waits any more.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Keeps what a guest says until it may be told; how much that can be is bounded by the sandbox.
#[derive(Default)]
struct Held(Mutex<Telling>);

enum Telling {
    Later(Vec<Said>),
    Now(Arc<dyn GuestListener>),
}

enum Said {
    Line(LogLevel, String),
    Progress(f64, Option<f64>, Option<String>),
}

impl Default for Telling {
    fn default() -> Self {
        Self::Later(Vec::new())
    }
}

impl Held {
    fn pass_on(&self, listener: Arc<dyn GuestListener>) {
        let mut telling = lock(&self.0);
        if let Telling::Later(said) = &mut *telling {
            for said in std::mem::take(said) {
                said.tell(&*listener);
            }
            *telling = Telling::Now(listener);
        }
    }

    fn say(&self, said: Said) {
        match &mut *lock(&self.0) {
            Telling::Later(held) => held.push(said),
            Telling::Now(listener) => said.tell(&**listener),
        }
    }
}

impl Said {
    fn tell(self, listener: &dyn GuestListener) {
        match self {
            Self::Line(level, text) => listener.logged(level, text),
            Self::Progress(done, total, message) => listener.progressed(done, total, message),
        }
    }
}

impl GuestListener for Held {
    fn logged(&self, level: LogLevel, text: String) {
        self.say(Said::Line(level, text));
    }

    fn progressed(&self, done: f64, total: Option<f64>, message: Option<String>) {
        self.say(Said::Progress(done, total, message));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
