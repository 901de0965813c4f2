//! Tools of the embedding program: Rust closures beside components. They run with the program's own
//! rights, outside any sandbox.

use std::{fmt, future::Future, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{
    ids::{InvalidName, ToolName},
    policy::Authorized,
    sandbox::Ending,
    tool::{Content, Effects, ToolDefinition, ToolOutcome},
};

type Handled = Result<Vec<Content>, String>;

type Handling = Pin<Box<dyn Future<Output = Handled> + Send>>;

enum Handler {
    Blocking(Arc<dyn Fn(Map<String, Value>) -> Handled + Send + Sync>),
    Async(Box<dyn Fn(Map<String, Value>) -> Handling + Send + Sync>),
}

/// A closure with the definition that the model sees.
pub struct NativeTool {
    definition: ToolDefinition,
    handler: Handler,
}

/// What a closure may return: a text, JSON, or content blocks.
pub trait IntoContent {
    fn into_content(self) -> Vec<Content>;
}

impl IntoContent for String {
    fn into_content(self) -> Vec<Content> {
        vec![Content::Text(self)]
    }
}

impl IntoContent for &str {
    fn into_content(self) -> Vec<Content> {
        vec![Content::Text(self.to_owned())]
    }
}

impl IntoContent for Value {
    fn into_content(self) -> Vec<Content> {
        vec![Content::Json(self)]
    }
}

impl IntoContent for Vec<Content> {
    fn into_content(self) -> Vec<Content> {
        self
    }
}

impl NativeTool {
    /// A closure that may block; it gets a thread of its own, which can't be stopped when its time is up.
    ///
    /// `input_schema` is a JSON Schema; the closure is called only with arguments that fit it.
    pub fn new<C: IntoContent, E: fmt::Display>(
        name: &str,
        description: impl Into<String>,
        input_schema: Value,
        handler: impl Fn(Map<String, Value>) -> Result<C, E> + Send + Sync + 'static,
    ) -> Result<Self, InvalidName> {
        let definition = ToolDefinition::new(ToolName::parse(name)?, description, input_schema);
        let handler = move |input| {
            handler(input)
                .map(C::into_content)
                .map_err(|error| error.to_string())
        };
        Ok(Self {
            definition,
            handler: Handler::Blocking(Arc::new(handler)),
        })
    }

    /// A closure that gives a future; the future is dropped when its time is up.
    pub fn from_async<C, E, F>(
        name: &str,
        description: impl Into<String>,
        input_schema: Value,
        handler: impl Fn(Map<String, Value>) -> F + Send + Sync + 'static,
    ) -> Result<Self, InvalidName>
    where
        C: IntoContent,
        E: fmt::Display,
        F: Future<Output = Result<C, E>> + Send + 'static,
    {
        let definition = ToolDefinition::new(ToolName::parse(name)?, description, input_schema);
        let handler = move |input| -> Handling {
            let future = handler(input);
            Box::pin(async move {
                future
                    .await
                    .map(C::into_content)
                    .map_err(|error| error.to_string())
            })
        };
        Ok(Self {
            definition,
            handler: Handler::Async(Box::new(handler)),
        })
    }

    /// Sets that a turn which calls this tool runs its calls one after another.
    #[must_use]
    pub fn serial(mut self) -> Self {
        self.definition.parallel_safe = false;
        self
    }

    /// Sets how long a call may take; without it, for ever.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.definition.timeout = Some(timeout);
        self
    }

    pub fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    pub(crate) async fn run(&self, call: Authorized, timeout: Option<Duration>) -> Ending {
        let started = Instant::now();
        let input = call.into_call().input;
        let outcome = match &self.handler {
            Handler::Blocking(handler) => {
                let handler = Arc::clone(handler);
                let task = tokio::task::spawn_blocking(move || handler(input));
                match within(timeout, task).await {
                    Ok(Ok(handled)) => handled.into(),
                    Ok(Err(error)) if error.is_panic() => trapped(error.into_panic().as_ref()),
                    Ok(Err(error)) => ToolOutcome::Internal {
                        why: error.to_string(),
                    },
                    Err(after) => ToolOutcome::Abandoned { after },
                }
            }
            Handler::Async(handler) => {
                let future = AssertUnwindSafe(async { handler(input).await }).catch_unwind();
                match within(timeout, future).await {
                    Ok(Ok(handled)) => handled.into(),
                    Ok(Err(panic)) => trapped(panic.as_ref()),
                    Err(after) => {
                        let effects = Effects::Unknown {
                            folders: Vec::new(),
                            sent: Vec::new(),
                        };
                        ToolOutcome::TimedOut { after, effects }
                    }
                }
            }
        };
        Ending {
            outcome,
            ran: started.elapsed(),
            peak_memory_bytes: 0,
            fuel_used: None,
        }
    }
}

async fn within<T>(
    timeout: Option<Duration>,
    future: impl Future<Output = T>,
) -> Result<T, Duration> {
    match timeout {
        None => Ok(future.await),
        Some(timeout) => tokio::time::timeout(timeout, future)
            .await
            .map_err(|_| timeout),
    }
}

impl From<Handled> for ToolOutcome {
    fn from(handled: Handled) -> Self {
        match handled {
            Ok(content) => Self::Answered(content),
            Err(message) => Self::Failed { message },
        }
    }
}

fn trapped(panic: &(dyn std::any::Any + Send)) -> ToolOutcome {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    ToolOutcome::Trapped {
        message: text.unwrap_or_else(|| "it panicked".into()),
    }
}
