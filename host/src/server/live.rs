//! The runs of one server: begun, watched, stopped, continued. They live as long as the server does.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::{
    inbox::{Inbox, InboxApprover},
    log::{RunLog, now_ms},
    metrics::{CallWatch, Metrics},
};
use crate::{
    agent::{RunResult, ToolLoop, stop::Stopper},
    event::{Observer, RunEvent},
    ids::RunId,
    tool::Canceller,
    transcript::{Message, Usage},
};

/// Makes the agent of one run, as the settings say; or says why there is none.
pub type NewAgent = Arc<dyn Fn() -> Result<ToolLoop, String> + Send + Sync>;

/// How long runs that were stopped may take to end.
const WIND_UP: Duration = Duration::from_secs(5);
/// Of what a run is about, in characters.
const MAX_TITLE_CHARS: usize = 200;

/// One run.
pub(super) struct Run {
    pub(super) id: String,
    /// Runs are numbered from 0 in the order in which they came.
    pub(super) number: u64,
    /// The beginning of its first request.
    pub(super) title: String,
    pub(super) model: String,
    /// Milliseconds since 1970.
    pub(super) created_ms: u64,
    pub(super) log: RunLog,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    figures: Figures,
}

#[derive(Clone)]
enum Phase {
    Live { stopper: Stopper },
    Ended { end: Arc<End> },
}

/// How a run ended.
pub(super) struct End {
    pub(super) result: RunResult,
    /// Milliseconds since 1970.
    pub(super) at_ms: u64,
}

/// What is known of a run while it goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub(super) turns: u32,
    pub(super) calls: u32,
    /// Calls that wait for a person.
    pub(super) asked: u32,
    pub(super) usage: Usage,
}

impl Run {
    pub(super) fn end(&self) -> Option<Arc<End>> {
        match &self.state().phase {
            Phase::Live { .. } => None,
            Phase::Ended { end } => Some(Arc::clone(end)),
        }
    }

    pub(super) fn figures(&self) -> Figures {
        self.state().figures
    }

    /// One word: `running`, `waiting` for a person, or how it ended.
    pub(super) fn state_word(&self) -> &'static str {
        let state = self.state();
        match &state.phase {
            Phase::Live { .. } if state.figures.asked > 0 => "waiting",
            Phase::Live { .. } => "running",
            Phase::Ended { end } => end.result.status.word(),
        }
    }

    /// A run that has ended stays as it is.
    pub(super) fn stop(&self) {
        if let Phase::Live { stopper } = &self.state().phase {
            stopper.stop(Canceller::User);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Appends to the log what happens, and counts it.
struct Writes(Arc<Run>);

impl Observer for Writes {
    fn observe(&self, event: &RunEvent) {
        {
            let figures = &mut self.0.state().figures;
            match event {
                RunEvent::TurnEnded { usage, .. } => {
                    figures.turns += 1;
                    figures.usage = figures.usage.plus(*usage);
                }
                RunEvent::CallRequested { .. } => figures.calls += 1,
                RunEvent::ApprovalRequested { .. } => figures.asked += 1,
                RunEvent::ApprovalAnswered { .. } => {
                    figures.asked = figures.asked.saturating_sub(1);
                }
                // Appended once the result can be read as well; see `Runs::go`.
                RunEvent::RunEnded { .. } => return,
                RunEvent::RunStarted { .. }
                | RunEvent::TurnStarted { .. }
                | RunEvent::TextStreamed { .. }
                | RunEvent::ReasoningStreamed { .. }
                | RunEvent::ToolUseStreamed { .. }
                | RunEvent::ModelRetried { .. }
                | RunEvent::CallQueued { .. }
                | RunEvent::CallStarted { .. }
                | RunEvent::CallProgressed { .. }
                | RunEvent::CallLogged { .. }
                | RunEvent::CallEnded { .. }
                | RunEvent::OutputCut { .. }
                | RunEvent::Noted { .. } => {}
            }
        }
        self.0.log.append(event);
    }
}

/// Why a run was not begun or continued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotBegun {
    /// As many are live as may be.
    Full,
    /// The same key came with another request.
    OtherRequest,
    /// It has not ended.
    IsLive,
    NoRandomness,
}

/// A client's word for "this request, however often it arrives".
#[derive(Debug, Clone)]
pub(super) struct IdempotencyKey {
    pub(super) key: String,
    /// SHA-256 of the request.
    pub(super) request: [u8; 32],
}

pub(super) struct Runs {
    book: Mutex<Book>,
    tasks: TaskTracker,
    inbox: Arc<Inbox>,
    metrics: Metrics,
    max_live: usize,
    max_ended: usize,
}

#[derive(Default)]
struct Book {
    next: u64,
    runs: BTreeMap<u64, Arc<Run>>,
    numbers: HashMap<String, u64>,
    keys: HashMap<String, ([u8; 32], u64)>,
    n_live: usize,
    /// In the order in which they ended, with their keys.
    ended: VecDeque<u64>,
}

impl Runs {
    pub(super) fn new(
        inbox: Arc<Inbox>,
        metrics: Metrics,
        max_live: usize,
        max_ended: usize,
    ) -> Self {
        Self {
            book: Mutex::default(),
            tasks: TaskTracker::new(),
            inbox,
            metrics,
            max_live,
            max_ended,
        }
    }

    /// Begins a run; or finds the one that the same key began. The flag says which.
    pub(super) fn begin(
        self: &Arc<Self>,
        agent: ToolLoop,
        messages: Vec<Message>,
        key: Option<IdempotencyKey>,
    ) -> Result<(Arc<Run>, bool), NotBegun> {
        let id = RunId::random().map_err(|_| NotBegun::NoRandomness)?;
        let (stopper, signal) = Stopper::new();
        let run = {
            let mut book = self.book();
            if let Some(key) = &key
                && let Some((request, number)) = book.keys.get(&key.key)
            {
                if *request != key.request {
                    return Err(NotBegun::OtherRequest);
                }
                if let Some(run) = book.runs.get(number) {
                    return Ok((Arc::clone(run), false));
                }
            }
            if book.n_live >= self.max_live {
                return Err(NotBegun::Full);
            }
            let number = book.next;
            let run = Arc::new(Run {
                id: id.to_string(),
                number,
                title: title(&messages),
                model: agent.model.clone(),
                created_ms: now_ms(),
                log: RunLog::new(),
                state: Mutex::new(State {
                    phase: Phase::Live {
                        stopper: stopper.clone(),
                    },
                    figures: Figures::default(),
                }),
            });
            book.next += 1;
            book.n_live += 1;
            book.numbers.insert(run.id.clone(), number);
            book.runs.insert(number, Arc::clone(&run));
            if let Some(key) = key {
                book.keys.insert(key.key, (key.request, number));
            }
            run
        };
        self.go(&run, agent, messages, stopper, signal);
        Ok((run, true))
    }

    /// Goes on from where a run has ended, with more messages.
    pub(super) fn go_on(
        self: &Arc<Self>,
        run: &Arc<Run>,
        agent: ToolLoop,
        more: Vec<Message>,
    ) -> Result<(), NotBegun> {
        let (stopper, signal) = Stopper::new();
        let messages = {
            let mut book = self.book();
            if book.n_live >= self.max_live {
                return Err(NotBegun::Full);
            }
            let mut state = run.state();
            let Phase::Ended { end } = &state.phase else {
                return Err(NotBegun::IsLive);
            };
            let mut messages = end.result.messages.clone();
            messages.extend(more);
            state.phase = Phase::Live {
                stopper: stopper.clone(),
            };
            book.n_live += 1;
            book.ended.retain(|number| *number != run.number);
            messages
        };
        self.go(run, agent, messages, stopper, signal);
        Ok(())
    }

    fn go(
        self: &Arc<Self>,
        run: &Arc<Run>,
        mut agent: ToolLoop,
        messages: Vec<Message>,
        stopper: Stopper,
        signal: crate::agent::stop::StopSignal,
    ) {
        if agent.deps.approver.is_none() {
            agent.deps.approver = Some(Arc::new(InboxApprover {
                inbox: Arc::clone(&self.inbox),
                run: Some(run.id.clone()),
            }));
        }
        agent.deps.observers.push(Arc::new(Writes(Arc::clone(run))));
        agent
            .deps
            .observers
            .push(Arc::new(CallWatch::new(&self.metrics)));
        let span = tracing::info_span!(
            "invoke_agent",
            otel.name = "invoke_agent agentloop",
            gen_ai.operation.name = "invoke_agent",
            gen_ai.conversation.id = %run.id,
            gen_ai.request.model = %agent.model,
            gen_ai.provider.name = agent.provider.name(),
            gen_ai.usage.input_tokens = tracing::field::Empty,
            gen_ai.usage.output_tokens = tracing::field::Empty,
            error.r#type = tracing::field::Empty,
        );
        let (runs, run) = (Arc::clone(self), Arc::clone(run));
        let going = async move {
            let kept = messages.clone();
            let running = agent.run_until(messages, stopper, signal, None);
            let result = match AssertUnwindSafe(running).catch_unwind().await {
                Ok(result) => result,
                Err(_) => broken(kept),
            };
            let span = tracing::Span::current();
            span.record("gen_ai.usage.input_tokens", result.tokens.input);
            span.record("gen_ai.usage.output_tokens", result.tokens.output);
            if !result.status.is_success() {
                span.record("error.type", result.status.word());
            }
            runs.ended(&run, result);
        };
        self.metrics.run_began();
        self.tasks.spawn(going.instrument(span));
    }

    fn ended(&self, run: &Arc<Run>, result: RunResult) {
        self.metrics.run_ended(result.status.word());
        let event = RunEvent::RunEnded {
            status: result.status.word(),
            text: result.status.sentence(),
            usage: result.tokens,
        };
        let mut book = self.book();
        {
            let mut state = run.state();
            state.figures.asked = 0;
            state.phase = Phase::Ended {
                end: Arc::new(End {
                    result,
                    at_ms: now_ms(),
                }),
            };
        }
        run.log.append(&event);
        book.n_live -= 1;
        book.ended.push_back(run.number);
        while book.ended.len() > self.max_ended {
            let Some(number) = book.ended.pop_front() else {
                break;
            };
            if let Some(run) = book.runs.remove(&number) {
                book.numbers.remove(&run.id);
            }
            book.keys.retain(|_, (_, of)| *of != number);
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Run>> {
        let book = self.book();
        let number = book.numbers.get(id)?;
        book.runs.get(number).cloned()
    }

    /// The newest first, from the one before number `before` on; at most `limit` that `wanted` takes.
    pub(super) fn list(
        &self,
        before: Option<u64>,
        limit: usize,
        wanted: impl Fn(&Run) -> bool,
    ) -> Vec<Arc<Run>> {
        let all: Vec<Arc<Run>> = {
            let book = self.book();
            let below = ..before.unwrap_or(u64::MAX);
            book.runs
                .range(below)
                .rev()
                .map(|(_, run)| Arc::clone(run))
                .collect()
        };
        let wanted = all.into_iter().filter(|run| wanted(run));
        wanted.take(limit).collect()
    }

    /// Waits for live runs, but only for as long as `patience`, and not for those that wait for a person; then
    /// stops them.
    pub(super) async fn finish(&self, patience: Duration) {
        self.tasks.close();
        let waiting = |run: &Run| run.state_word() == "waiting";
        for run in self.list(None, usize::MAX, waiting) {
            run.stop();
        }
        if tokio::time::timeout(patience, self.tasks.wait())
            .await
            .is_ok()
        {
            return;
        }
        for run in self.list(None, usize::MAX, |run| run.end().is_none()) {
            run.stop();
        }
        let _ = tokio::time::timeout(WIND_UP, self.tasks.wait()).await;
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is left of a run that hit a fault of ours.
fn broken(messages: Vec<Message>) -> RunResult {
    RunResult {
        status: crate::agent::run::RunStatus::Failed {
            error: "this host has a fault; its log has the details".into(),
            provider: None,
        },
        stop_reason: None,
        messages,
        trace: Vec::new(),
        tokens: Usage::default(),
        lost_tokens: Usage::default(),
    }
}

fn title(messages: &[Message]) -> String {
    let text = messages.iter().rev().find_map(Message::last_text);
    let line = text.unwrap_or_default().split_whitespace();
    let mut title = String::new();
    for word in line {
        if !title.is_empty() {
            title.push(' ');
        }
        title.push_str(word);
        if title.chars().count() > MAX_TITLE_CHARS {
            return title.chars().take(MAX_TITLE_CHARS).chain(['…']).collect();
        }
    }
    title
}
