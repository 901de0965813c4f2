//! What is counted. Labels are names that this host knows: never an id, an argument or a path.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};

use crate::{
    event::{Observer, RunEvent},
    ids::ToolUseId,
    transcript::Usage,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    tool: String,
    outcome: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ran {
    gen_ai_tool_name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Why {
    why: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RunEnd {
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TokenType {
    gen_ai_token_type: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The figures of one server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Metrics {
    registry: Arc<Registry>,
    calls: Family<Ended, Counter>,
    kills: Family<Why, Counter>,
    running: Gauge,
    asked: Gauge,
    ran: Histograms<Ran>,
    waited: Histogram,
    refused: Family<Why, Counter>,
    live_runs: Gauge,
    runs: Family<RunEnd, Counter>,
    turns: Counter,
    tokens: Histograms<TokenType>,
}

/// OpenTelemetry's for the time of tools.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 2.0, 14))
}

/// OpenTelemetry's for tokens.
fn tokens() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 4.0, 14))
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let calls = Family::<Ended, Counter>::default();
        let kills = Family::<Why, Counter>::default();
        let running = Gauge::default();
        let asked = Gauge::default();
        let ran: Histograms<Ran> = Family::new_with_constructor(seconds);
        let waited = Histogram::new(exponential_buckets(0.001, 4.0, 10));
        let refused = Family::<Why, Counter>::default();
        registry.register("agentloop_calls", "Calls that ended", calls.clone());
        registry.register(
            "agentloop_kills",
            "Guests that the sandbox ended",
            kills.clone(),
        );
        registry.register(
            "agentloop_calls_running",
            "Calls whose guest runs now",
            running.clone(),
        );
        registry.register(
            "agentloop_approvals_pending",
            "Calls that wait for a person",
            asked.clone(),
        );
        registry.register_with_unit(
            "gen_ai_execute_tool_duration",
            "Time that tools ran",
            Unit::Seconds,
            ran.clone(),
        );
        registry.register_with_unit(
            "agentloop_call_wait",
            "Time that calls waited for their turn",
            Unit::Seconds,
            waited.clone(),
        );
        registry.register(
            "agentloop_http_refused",
            "Requests that did not come through the door",
            refused.clone(),
        );
        let live_runs = Gauge::default();
        let runs = Family::<RunEnd, Counter>::default();
        let turns = Counter::default();
        let tokens: Histograms<TokenType> = Family::new_with_constructor(tokens);
        registry.register(
            "agentloop_runs_live",
            "Runs that have not ended",
            live_runs.clone(),
        );
        registry.register("agentloop_runs", "Runs that ended", runs.clone());
        registry.register("agentloop_turns", "Replies of models", turns.clone());
        registry.register(
            "gen_ai_client_token_usage",
            "Tokens of one reply",
            tokens.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("agentloop_build", "This program", build);
        Self {
            registry: Arc::new(registry),
            calls,
            kills,
            running,
            asked,
            ran,
            waited,
            refused,
            live_runs,
            runs,
            turns,
            tokens,
        }
    }

    pub(super) fn run_began(&self) {
        self.live_runs.inc();
    }

    /// It goes on later, here or elsewhere.
    pub(super) fn run_left(&self) {
        self.live_runs.dec();
    }

    pub(super) fn questions(&self, open: usize) {
        self.asked.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    pub(super) fn run_ended(&self, status: &'static str) {
        self.live_runs.dec();
        self.runs.get_or_create(&RunEnd { status }).inc();
    }

    fn turn_ended(&self, usage: Usage) {
        self.turns.inc();
        let sides = [
            (
                "input",
                usage.input.map(|input| {
                    input
                        + usage.cache_read.unwrap_or_default()
                        + usage.cache_write.unwrap_or_default()
                }),
            ),
            ("output", usage.output),
        ];
        for (gen_ai_token_type, count) in sides {
            if let Some(count) = count {
                let label = TokenType { gen_ai_token_type };
                self.tokens.get_or_create(&label).observe(count as f64);
            }
        }
    }

    pub(super) fn refused(&self, why: &'static str) {
        self.refused.get_or_create(&Why { why }).inc();
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

/// Counts the calls that it observes: those of one run, or one alone. What has not ended when it is dropped is
/// over.
pub(super) struct CallWatch {
    metrics: Metrics,
    open: Mutex<HashMap<ToolUseId, Open>>,
}

#[derive(Clone, Copy)]
enum Open {
    Queued(Instant),
    Running,
}

impl CallWatch {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            metrics: metrics.clone(),
            open: Mutex::default(),
        }
    }

    fn now(&self, id: &ToolUseId, state: Option<Open>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match state {
            Some(state) => open.insert(id.clone(), state),
            None => open.remove(id),
        };
        self.left(before);
        match state {
            Some(Open::Running) => {
                self.metrics.running.inc();
            }
            Some(Open::Queued(_)) | None => {}
        }
    }

    fn left(&self, state: Option<Open>) {
        match state {
            Some(Open::Queued(since)) => {
                self.metrics.waited.observe(since.elapsed().as_secs_f64());
            }
            Some(Open::Running) => {
                self.metrics.running.dec();
            }
            None => {}
        }
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        let open = std::mem::take(self.open.get_mut().unwrap_or_else(PoisonError::into_inner));
        for state in open.into_values() {
            self.left(Some(state));
        }
    }
}

impl Observer for CallWatch {
    fn observe(&self, event: &RunEvent) {
        match event {
            RunEvent::CallQueued { id } => self.now(id, Some(Open::Queued(Instant::now()))),
            RunEvent::CallStarted { id, .. } => self.now(id, Some(Open::Running)),
            RunEvent::CallEnded {
                id,
                tool,
                outcome,
                ran_ms,
                ..
            } => {
                self.now(id, None);
                // A name that no tool has is the model's invention.
                let tool = match &**outcome {
                    "unknown_tool" => "unknown",
                    _ => tool.as_str(),
                };
                let ended = Ended {
                    tool: tool.to_owned(),
                    outcome: outcome.to_string(),
                };
                self.metrics.calls.get_or_create(&ended).inc();
                let kills = ["timeout", "memory", "fuel", "output_too_large"];
                if let Some(why) = kills.into_iter().find(|why| outcome == why) {
                    self.metrics.kills.get_or_create(&Why { why }).inc();
                }
                if let Some(ran) = ran_ms {
                    let label = Ran {
                        gen_ai_tool_name: tool.to_owned(),
                    };
                    self.metrics
                        .ran
                        .get_or_create(&label)
                        .observe(ran.as_secs_f64());
                }
            }
            RunEvent::TurnEnded { usage, .. } => self.metrics.turn_ended(*usage),
            RunEvent::RunStarted { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::TextStreamed { .. }
            | RunEvent::ReasoningStreamed { .. }
            | RunEvent::ToolUseStreamed { .. }
            | RunEvent::ModelRetried { .. }
            | RunEvent::CallRequested { .. }
            | RunEvent::ApprovalRequested { .. }
            | RunEvent::ApprovalAnswered { .. }
            | RunEvent::CallProgressed { .. }
            | RunEvent::CallLogged { .. }
            | RunEvent::OutputCut { .. }
            | RunEvent::Noted { .. }
            | RunEvent::RunEnded { .. }
            | RunEvent::RunContinued { .. } => {}
        }
    }
}
