//! One call: running it, what it says meanwhile, what it asks of the client.
#![expect(deprecated, reason = "log lines are for the revisions that have them")]

use std::{pin::Pin, sync::Arc};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequestParams, CallToolResponse, InputRequiredResult, LoggingLevel,
        LoggingMessageNotificationParam, ProgressNotificationParam,
    },
    service::RequestContext,
};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::{
    Handler,
    ask::{Asked, ClientApprover, in_session, shows_forms},
    is_stateless, rank, render,
    suspended::{NotSuspended, WAIT},
};
use crate::{
    agent::{call::CallRecord, run_call},
    approvals::Approver,
    event::{LogLevel, Observer, RunEvent},
    tool::ToolOutcome,
    transcript::{ToolInput, ToolUse},
};

/// What a call has said and nobody has passed on yet. A call that is faster than its client loses lines, never
/// memory; the sandbox's own bounds on what one call says are lower than this.
const MAX_SAID: usize = 4096;

/// A call that runs for as long as somebody polls it. Dropping it ends its guest.
pub(super) struct Call {
    running: Pin<Box<dyn Future<Output = CallRecord> + Send>>,
    asks: mpsc::Receiver<Asked>,
    says: mpsc::Receiver<Said>,
    /// Of the last report that went out; a client is promised that progress grows.
    progress: f64,
}

/// What a guest said.
enum Said {
    Line {
        level: LogLevel,
        text: String,
    },
    Progress {
        done: f64,
        total: Option<f64>,
        message: Option<String>,
    },
}

enum Step {
    Said(Said),
    Asked(Asked),
    Ended(Box<CallRecord>),
}

impl Call {
    fn start(
        handler: &Handler,
        tool: &str,
        arguments: Map<String, Value>,
        wants: Wants,
    ) -> Result<Self, ErrorData> {
        let registry = Arc::clone(&handler.shared.offer.borrow().registry);
        let shared = Arc::clone(&handler.shared);
        let mut tool_use = ToolUse::new("call_0_0", tool, Value::Null)
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        tool_use.input = ToolInput::Object(arguments);
        let (asks, asked) = mpsc::channel(1);
        // A standing yes of the operator's, or whoever this program asks by itself, comes before the client.
        let approver = shared.deps.approver.clone().or_else(|| {
            wants
                .can_ask
                .then(|| Arc::new(ClientApprover { asks }) as Arc<dyn Approver>)
        });
        let (says, said) = mpsc::channel(MAX_SAID);
        let observers: Vec<Arc<dyn Observer>> = if wants.hears {
            vec![Arc::new(move |event: &RunEvent| hear(&says, event))]
        } else {
            Vec::new()
        };
        let running = Box::pin(async move {
            run_call(&tool_use, &registry, &shared.deps, approver, &observers).await
        });
        Ok(Self {
            running,
            asks: asked,
            says: said,
            progress: f64::NEG_INFINITY,
        })
    }

    /// The next thing that happens. What was said comes before what it led to.
    async fn step(&mut self) -> Step {
        tokio::select! {
            biased;
            Some(said) = self.says.recv() => Step::Said(said),
            Some(asked) = self.asks.recv() => Step::Asked(asked),
            record = &mut self.running => Step::Ended(Box::new(record)),
        }
    }

    /// What was said until the end and not passed on yet.
    fn last_words(&mut self) -> Option<Said> {
        self.says.try_recv().ok()
    }
}

/// What the client of a call is able to do.
struct Wants {
    can_ask: bool,
    hears: bool,
}

fn hear(says: &mpsc::Sender<Said>, event: &RunEvent) {
    let said = match event {
        RunEvent::CallLogged { level, text, .. } => Said::Line {
            level: *level,
            text: text.clone(),
        },
        RunEvent::CallProgressed {
            done,
            total,
            message,
            ..
        } => Said::Progress {
            done: *done,
            total: *total,
            message: message.clone(),
        },
        RunEvent::RunStarted { .. }
        | RunEvent::TurnStarted { .. }
        | RunEvent::TextStreamed { .. }
        | RunEvent::ReasoningStreamed { .. }
        | RunEvent::ToolUseStreamed { .. }
        | RunEvent::ModelRetried { .. }
        | RunEvent::TurnEnded { .. }
        | RunEvent::CallRequested { .. }
        | RunEvent::ApprovalRequested { .. }
        | RunEvent::ApprovalAnswered { .. }
        | RunEvent::CallQueued { .. }
        | RunEvent::CallStarted { .. }
        | RunEvent::CallEnded { .. }
        | RunEvent::OutputCut { .. }
        | RunEvent::Noted { .. }
        | RunEvent::RunEnded { .. }
        | RunEvent::RunContinued { .. } => return,
    };
    // When the queue is full the client is too slow for lines that nothing depends on.
    let _ = says.try_send(said);
}

/// Answers one `tools/call`: a first one, or one that brings what an earlier round asked for.
pub(super) async fn answer(
    handler: &Handler,
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let shared = &handler.shared;
    let tool = request.name;
    let arguments = request.arguments.unwrap_or_default();
    let log_level = handler.wanted_level(&context);
    let mut call = match &request.request_state {
        None => {
            let can_ask = context
                .client_capabilities()
                .is_some_and(|client| shows_forms(&client));
            let hears = log_level.is_some() || context.meta.get_progress_token().is_some();
            Call::start(handler, &tool, arguments.clone(), Wants { can_ask, hears })?
        }
        Some(state) => {
            let (call, asked) = shared
                .suspended
                .take(state, &tool, &arguments)
                .ok_or_else(unknown_state)?;
            let mut given = request.input_responses.unwrap_or_default();
            given.retain(|key, _| asked.requests.contains_key(key));
            if given.len() < asked.requests.len() {
                return suspend(handler, call, asked, &tool, &arguments);
            }
            // The call may have ended by itself since; then its result is next.
            let _ = asked.answer.send(Ok(given));
            call
        }
    };
    let ends = async {
        loop {
            match call.step().await {
                Step::Said(said) => {
                    call.progress = tell(&context, log_level, said, call.progress).await
                }
                Step::Asked(asked) if is_stateless(&context) => return Err(asked),
                Step::Asked(asked) => {
                    let answers =
                        tokio::time::timeout(WAIT, in_session(&context.peer, &asked.requests))
                            .await
                            .unwrap_or_else(|_| {
                                Err(format!(
                                    "nobody answered within {} minutes",
                                    WAIT.as_secs() / 60
                                ))
                            });
                    let _ = asked.answer.send(answers);
                }
                Step::Ended(record) => return Ok(record),
            }
        }
    };
    let record = tokio::select! {
        biased;
        () = context.ct.cancelled() => return Err(ended("the client cancelled this call")),
        () = handler.ended.cancelled() => return Err(ended("this server is ending")),
        record = ends => record,
    };
    match record {
        Ok(record) => {
            while let Some(said) = call.last_words() {
                call.progress = tell(&context, log_level, said, call.progress).await;
            }
            finish(*record)
        }
        Err(asked) => suspend(handler, call, asked, &tool, &arguments),
    }
}

fn finish(record: CallRecord) -> Result<CallToolResponse, ErrorData> {
    if let ToolOutcome::UnknownTool { .. } = &record.outcome {
        let text = record.traced.result.text();
        return Err(ErrorData::invalid_params(text, None));
    }
    Ok(render::result(record).into())
}

/// Hands what the call asks to the client, which comes back with the answers.
fn suspend(
    handler: &Handler,
    call: Call,
    asked: Asked,
    tool: &str,
    arguments: &Map<String, Value>,
) -> Result<CallToolResponse, ErrorData> {
    let requests = asked.requests.clone();
    match handler.shared.suspended.keep(call, asked, tool, arguments) {
        Ok(state) => Ok(InputRequiredResult::new(Some(requests), Some(state)).into()),
        Err(NotSuspended::Full) => Err(ErrorData::internal_error(
            "too many calls wait for their clients' answers; answer those, or try again later",
            None,
        )),
        Err(NotSuspended::NoRandomness) => Err(ErrorData::internal_error(
            "this system gives no randomness to name a waiting call",
            None,
        )),
    }
}

fn unknown_state() -> ErrorData {
    ErrorData::invalid_params(
        "this request state was not issued here, belongs to another call, was used already or is too old; \
         call the tool again without it",
        None,
    )
}

/// Nobody reads it where the client has gone.
fn ended(why: &'static str) -> ErrorData {
    ErrorData::internal_error(why, None)
}

/// Passes on what a guest said, to whom it concerns; gives the progress that the client knows of afterwards.
async fn tell(
    context: &RequestContext<RoleServer>,
    log_level: Option<u8>,
    said: Said,
    known: f64,
) -> f64 {
    match said {
        Said::Line { level, text } => {
            let level = match level {
                LogLevel::Debug => LoggingLevel::Debug,
                LogLevel::Info => LoggingLevel::Info,
                LogLevel::Warn => LoggingLevel::Warning,
                LogLevel::Error => LoggingLevel::Error,
            };
            if log_level.is_some_and(|wanted| rank(level) >= wanted) {
                let line = LoggingMessageNotificationParam::new(level, json!(text));
                let _ = context.peer.notify_logging_message(line).await;
            }
            known
        }
        Said::Progress {
            done,
            total,
            message,
        } => {
            let Some(token) = context.meta.get_progress_token() else {
                return known;
            };
            if !done.is_finite() || done <= known {
                return known;
            }
            let mut report = ProgressNotificationParam::new(token, done);
            report.total = total.filter(|total| total.is_finite());
            report.message = message;
            let _ = context.peer.notify_progress(report).await;
            done
        }
    }
}
