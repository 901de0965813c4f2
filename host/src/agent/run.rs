//! What next? The loop without I/O: it is told what happened and says what to do. Limits, stop reasons and
//! the shape of the history are decided here and nowhere else.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::{
    agent::{
        RunError, RunResult,
        call::TracedCall,
        result::{UNKNOWN_TOOL, tool_result},
    },
    ids::ToolUseId,
    provider::{ModelReply, ProviderErrorKind},
    tool::{Canceller, ToolOutcome},
    transcript::{
        ContentBlock, Message, ResultContent, Role, StopReason, ToolInput, ToolUse, Usage,
    },
};

/// The bounds of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLimits {
    /// Model requests, continuations and repeated ones included.
    pub max_iterations: u32,
    /// Output tokens of one reply.
    pub max_tokens: u32,
    /// How far `max_tokens` may be doubled when replies are cut.
    pub max_tokens_ceiling: u32,
    /// Calls, whatever became of them.
    pub max_tool_calls: Option<u32>,
    /// All tokens of all requests; checked between turns.
    pub max_total_tokens: Option<u64>,
    pub repeats: RepeatLimits,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            max_iterations: 10,
            max_tokens: 4096,
            max_tokens_ceiling: 64_000,
            max_tool_calls: None,
            max_total_tokens: None,
            repeats: RepeatLimits::default(),
        }
    }
}

/// In how many turns in a row the same call (same tool, same arguments) may be asked for, and how many turns
/// in a row may consist of calls of unknown tools only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepeatLimits {
    /// From this turn on the result carries a warning.
    pub warn: u32,
    /// From this turn on the call is refused.
    pub refuse: u32,
    /// At this turn the run ends.
    pub stop: u32,
}

impl Default for RepeatLimits {
    fn default() -> Self {
        Self {
            warn: 3,
            refuse: 5,
            stop: 8,
        }
    }
}

/// What the driver has to do.
#[derive(Debug, PartialEq)]
pub enum Next<'a> {
    AskModel {
        messages: &'a [Message],
        max_tokens: u32,
    },
    /// Carry out these calls of one turn, then report with [`Run::calls_ended`].
    RunCalls(&'a [PlannedCall]),
    Ended(&'a RunStatus),
}

/// A call, and what the run itself has to say about it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCall {
    pub tool_use: ToolUse,
    /// Set: the call is not carried out, and this is how it ended.
    pub refused: Option<ToolOutcome>,
    /// Set: the result carries this sentence as well.
    pub warning: Option<String>,
}

/// Why a run ended. Only `Completed` is a success; with every status the history is valid and the run can
/// be continued from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RunStatus {
    Completed,
    /// Replies were cut even with the highest `max_tokens`.
    Truncated {
        max_tokens: u32,
    },
    /// The model declined; `details` is what the endpoint says of it.
    Refused {
        details: Option<String>,
    },
    ContextFull,
    IterationLimit {
        max_iterations: u32,
    },
    ToolCallLimit {
        max_tool_calls: u32,
    },
    TokenLimit {
        max_total_tokens: u64,
    },
    TimeLimit,
    Cancelled,
    /// The same call, or calls of unknown tools, in too many turns in a row.
    Repeating {
        tool: String,
    },
    /// The reply's stop reason was `tool_use`, and there was no call in it.
    NoCall,
    /// A stop reason that we do not know.
    UnknownStopReason {
        stop_reason: String,
    },
    /// The run could not go on; see [`RunError`](crate::agent::RunError).
    Failed {
        error: String,
        /// What went wrong with the model's endpoint, if that was it.
        #[serde(skip)]
        provider: Option<ProviderErrorKind>,
    },
}

impl RunStatus {
    pub fn is_success(&self) -> bool {
        *self == Self::Completed
    }

    /// A stable word for scripts.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated { .. } => "truncated",
            Self::Refused { .. } => "refused",
            Self::ContextFull => "context_full",
            Self::IterationLimit { .. } => "iteration_limit",
            Self::ToolCallLimit { .. } => "tool_call_limit",
            Self::TokenLimit { .. } => "token_limit",
            Self::TimeLimit => "time_limit",
            Self::Cancelled => "cancelled",
            Self::Repeating { .. } => "repeating",
            Self::NoCall => "no_call",
            Self::UnknownStopReason { .. } => "unknown_stop_reason",
            Self::Failed { .. } => "failed",
        }
    }

    /// What happened and what to do next, for a person.
    pub fn sentence(&self) -> String {
        match self {
            Self::Completed => "the run is complete".into(),
            Self::Truncated { max_tokens } => format!(
                "the model's reply was cut at {max_tokens} output tokens; raise `limits.max_tokens_ceiling`"
            ),
            Self::Refused { details: None } => "the model declined to answer; rephrase the task".into(),
            Self::Refused { details: Some(details) } => {
                format!("the model declined to answer ({details}); rephrase the task")
            }
            Self::ContextFull => {
                "the conversation no longer fits the model's context; start a new run with what matters".into()
            }
            Self::IterationLimit { max_iterations } => format!(
                "stopped after {max_iterations} model requests; raise it with `--max-iterations`, or continue the run"
            ),
            Self::ToolCallLimit { max_tool_calls } => {
                format!("stopped after {max_tool_calls} tool calls (`limits.max_tool_calls`)")
            }
            Self::TokenLimit { max_total_tokens } => {
                format!("stopped: {max_total_tokens} tokens are used up (`limits.max_total_tokens`)")
            }
            Self::TimeLimit => "stopped: the run's time is used up (`limits.wall_time`)".into(),
            Self::Cancelled => "stopped by the user".into(),
            Self::Repeating { tool } => {
                format!("stopped: the model asked for the same call of `{tool}` over and over")
            }
            Self::NoCall => "the model's reply announced a tool call and had none in it; ask again".into(),
            Self::UnknownStopReason { stop_reason } if stop_reason.is_empty() => {
                "the model's reply had no stop reason, so it may not be whole".into()
            }
            Self::UnknownStopReason { stop_reason } => format!(
                "the model stopped for a reason this host does not know: `{}`",
                stop_reason.escape_debug()
            ),
            Self::Failed { error, .. } => error.clone(),
        }
    }
}

/// One turn: a reply and what became of its calls.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnRecord {
    pub turn: u32,
    pub stop_reason: StopReason,
    /// What the model said, for people; the messages hold the whole.
    pub text: String,
    pub calls: Vec<TracedCall>,
    pub usage: Usage,
    /// True: the reply was not kept (cut, refused).
    pub dropped: bool,
}

/// The state of a run. Everything in it follows from what it was told.
#[derive(Debug)]
pub struct Run {
    limits: RunLimits,
    messages: Vec<Message>,
    trace: Vec<TurnRecord>,
    usage: Usage,
    lost: Usage,
    iterations: u32,
    n_calls: u32,
    /// What was used up before the user said more; limits count from there.
    before: UsedUp,
    max_tokens: u32,
    phase: Phase,
    stop_reason: Option<StopReason>,
    used_ids: HashSet<ToolUseId>,
    /// How many turns in a row, up to the last, asked for this call.
    streaks: HashMap<String, u32>,
    unknown_streak: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct UsedUp {
    iterations: u32,
    n_calls: u32,
    tokens: u64,
}

/// A reply whose calls have ids that no other call of the run has. [`Run::identified`] makes it.
#[derive(Debug)]
pub struct IdentifiedReply(ModelReply);

impl std::ops::Deref for IdentifiedReply {
    type Target = ModelReply;

    fn deref(&self) -> &ModelReply {
        &self.0
    }
}

#[derive(Debug)]
enum Phase {
    Asking,
    Calling(Vec<PlannedCall>),
    Ended(RunStatus),
}

impl Run {
    /// Begins with a valid history; [`crate::transcript::repair`] makes one of any.
    pub fn new(limits: RunLimits, messages: Vec<Message>) -> Self {
        let used_ids = messages
            .iter()
            .flat_map(Message::tool_uses)
            .map(|t| t.id.clone())
            .collect();
        Self {
            limits,
            messages,
            trace: Vec::new(),
            usage: Usage::default(),
            lost: Usage::default(),
            iterations: 0,
            n_calls: 0,
            before: UsedUp::default(),
            max_tokens: limits.max_tokens,
            phase: Phase::Asking,
            stop_reason: None,
            used_ids,
            streaks: HashMap::new(),
            unknown_streak: 0,
        }
    }

    pub fn what_next(&mut self) -> Next<'_> {
        if let Phase::Asking = self.phase
            && let Some(status) = self.limit_reached()
        {
            self.phase = Phase::Ended(status);
        }
        match &self.phase {
            Phase::Asking => Next::AskModel {
                messages: &self.messages,
                max_tokens: self.max_tokens,
            },
            Phase::Calling(calls) => Next::RunCalls(calls),
            Phase::Ended(status) => Next::Ended(status),
        }
    }

    /// The conversation so far.
    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The turn that runs now, counted from 0.
    pub fn turn(&self) -> u32 {
        self.iterations
    }

    /// Two calls must not carry one id, in a reply or over the whole run: the endpoint would refuse the
    /// history for ever. The later one gets a new id.
    pub fn identified(&mut self, mut reply: ModelReply) -> IdentifiedReply {
        let (turn, mut n) = (self.messages.len(), 0);
        for block in &mut reply.content {
            let ContentBlock::ToolUse(tool_use) = block else {
                continue;
            };
            while !self.used_ids.insert(tool_use.id.clone()) {
                let before = tool_use.id.as_str().to_owned();
                tool_use.provider_id.get_or_insert(before);
                tool_use.id = ToolUseId::minted(turn, n);
                n += 1;
            }
        }
        IdentifiedReply(reply)
    }

    /// The model answered.
    pub fn model_replied(&mut self, IdentifiedReply(reply): IdentifiedReply) {
        let turn = self.iterations;
        self.iterations += 1;
        self.usage = self.usage.plus(reply.usage);
        self.stop_reason = Some(reply.stop_reason.clone());
        let content = reply.content;
        let calls: Vec<ToolUse> = content
            .iter()
            .filter_map(ContentBlock::as_tool_use)
            .cloned()
            .collect();
        let text = text_of(&content);
        let mut record = TurnRecord {
            turn,
            stop_reason: reply.stop_reason.clone(),
            text,
            calls: Vec::new(),
            usage: reply.usage,
            dropped: false,
        };

        // Calls of a reply that was cut, declined or ended in a way we don't understand never run.
        let ended = match reply.stop_reason {
            StopReason::MaxTokens if self.max_tokens < self.limits.max_tokens_ceiling => {
                self.max_tokens = self
                    .max_tokens
                    .saturating_mul(2)
                    .min(self.limits.max_tokens_ceiling);
                record.dropped = true;
                self.trace.push(record);
                return;
            }
            StopReason::MaxTokens => Some(RunStatus::Truncated {
                max_tokens: self.max_tokens,
            }),
            StopReason::Refusal => Some(RunStatus::Refused {
                details: reply.stop_details,
            }),
            StopReason::ModelContextWindowExceeded => Some(RunStatus::ContextFull),
            StopReason::Unknown(ref word) if !word.is_empty() || calls.is_empty() => {
                Some(RunStatus::UnknownStopReason {
                    stop_reason: word.clone(),
                })
            }
            StopReason::EndTurn | StopReason::StopSequence if calls.is_empty() => {
                Some(RunStatus::Completed)
            }
            StopReason::ToolUse if calls.is_empty() => Some(RunStatus::NoCall),
            StopReason::EndTurn
            | StopReason::StopSequence
            | StopReason::ToolUse
            | StopReason::PauseTurn
            | StopReason::Unknown(_) => None,
        };
        self.max_tokens = self.limits.max_tokens;
        let Some(status) = ended else {
            self.append(Role::Assistant, content);
            self.trace.push(record);
            // A paused turn without calls goes back as it is, and the model continues it.
            if !calls.is_empty() {
                self.phase = Phase::Calling(self.plan(calls));
            }
            return;
        };
        match status {
            RunStatus::Refused { .. } => record.dropped = true,
            // What was said stays; half a call or a seal without what it belongs to would not be accepted.
            RunStatus::Truncated { .. }
            | RunStatus::ContextFull
            | RunStatus::UnknownStopReason { .. } => {
                let texts = content
                    .into_iter()
                    .filter(|b| matches!(b, ContentBlock::Text { .. }));
                self.append(Role::Assistant, texts.collect());
            }
            RunStatus::Completed
            | RunStatus::NoCall
            | RunStatus::IterationLimit { .. }
            | RunStatus::ToolCallLimit { .. }
            | RunStatus::TokenLimit { .. }
            | RunStatus::TimeLimit
            | RunStatus::Cancelled
            | RunStatus::Repeating { .. }
            | RunStatus::Failed { .. } => self.append(Role::Assistant, content),
        }
        self.trace.push(record);
        self.phase = Phase::Ended(status);
    }

    /// The calls of the turn ended: one record per call of [`Next::RunCalls`], in its order.
    ///
    /// # Panics
    /// If the records are not those of the planned calls: that would break the history.
    pub fn calls_ended(&mut self, records: Vec<TracedCall>) {
        let Phase::Calling(planned) = std::mem::replace(&mut self.phase, Phase::Asking) else {
            panic!("no calls were planned");
        };
        assert!(
            planned.len() == records.len()
                && planned
                    .iter()
                    .zip(&records)
                    .all(|(p, r)| p.tool_use.id == r.result.tool_use_id),
            "one result per call, in call order"
        );
        let mut content: Vec<ContentBlock> = Vec::with_capacity(records.len());
        for (planned, record) in planned.iter().zip(&records) {
            let mut result = record.result.clone();
            if let Some(warning) = &planned.warning {
                result.content.push(ResultContent::Text {
                    text: warning.clone(),
                });
            }
            content.push(ContentBlock::ToolResult(result));
        }
        self.messages.push(Message {
            role: Role::User,
            content,
        });

        let all_unknown = records.iter().all(|record| record.outcome == UNKNOWN_TOOL);
        self.unknown_streak = if all_unknown {
            self.unknown_streak + 1
        } else {
            0
        };
        let repeating = if self.unknown_streak >= self.limits.repeats.stop {
            records.first().map(|r| r.tool.clone())
        } else {
            planned
                .iter()
                .find(|p| {
                    self.streaks
                        .get(&key(&p.tool_use))
                        .is_some_and(|n| *n >= self.limits.repeats.stop)
                })
                .map(|p| p.tool_use.name.clone())
        };
        if let Some(turn) = self.trace.last_mut() {
            turn.calls = records;
        }
        if let Some(tool) = repeating {
            self.phase = Phase::Ended(RunStatus::Repeating { tool });
        }
    }

    /// The user says more in a run that has ended. What was used up so far no longer counts against the limits.
    pub fn continued(&mut self, text: &str) {
        debug_assert!(matches!(self.phase, Phase::Ended(_)), "it has not ended");
        self.append(Role::User, vec![ContentBlock::text(text)]);
        self.before = UsedUp {
            iterations: self.iterations,
            n_calls: self.n_calls,
            tokens: self.usage.total(),
        };
        self.max_tokens = self.limits.max_tokens;
        self.streaks.clear();
        self.unknown_streak = 0;
        self.phase = Phase::Asking;
    }

    /// Ends the run from outside. Calls that are planned must have been reported first, so that each has
    /// its result.
    pub fn stopped(&mut self, by: Canceller) {
        self.end(match by {
            Canceller::User => RunStatus::Cancelled,
            Canceller::RunLimit => RunStatus::TimeLimit,
        });
    }

    /// An attempt to ask the model broke off after these tokens had been counted.
    pub fn attempt_lost(&mut self, partial: Usage) {
        self.lost = self.lost.plus(partial);
    }

    /// The run cannot go on.
    pub fn failed(&mut self, error: &RunError) {
        self.give_up_calls();
        let provider = match error {
            RunError::Provider(error) => Some(error.kind),
            RunError::NotRecorded(_) => None,
        };
        self.end(RunStatus::Failed {
            error: error.to_string(),
            provider,
        });
    }

    /// Takes an ending over from the run's record. What the run finds by itself it finds again.
    pub(crate) fn ended_as(&mut self, word: &str, text: &str) {
        if let Next::Ended(_) = self.what_next() {
            return;
        }
        if let Phase::Calling(_) = self.phase {
            self.give_up_calls();
        }
        self.end(match word {
            "cancelled" => RunStatus::Cancelled,
            "time_limit" => RunStatus::TimeLimit,
            _ => RunStatus::Failed {
                error: text.to_owned(),
                provider: None,
            },
        });
    }

    /// Nobody knows what became of the calls of this turn.
    fn give_up_calls(&mut self) {
        if let Phase::Calling(planned) = std::mem::replace(&mut self.phase, Phase::Asking) {
            let results = planned.iter().map(|p| {
                let outcome = ToolOutcome::OutcomeUnknown;
                ContentBlock::ToolResult(tool_result(&p.tool_use.id, &p.tool_use.name, &outcome))
            });
            let content = results.collect();
            self.messages.push(Message {
                role: Role::User,
                content,
            });
        }
    }

    /// What the run came to. One that is taken apart before its end counts as cancelled.
    pub fn into_result(self) -> RunResult {
        let status = match self.phase {
            Phase::Ended(status) => status,
            Phase::Asking | Phase::Calling(_) => RunStatus::Cancelled,
        };
        RunResult {
            status,
            stop_reason: self.stop_reason,
            messages: self.messages,
            trace: self.trace,
            tokens: self.usage,
            lost_tokens: self.lost,
        }
    }

    fn end(&mut self, status: RunStatus) {
        debug_assert!(
            !matches!(self.phase, Phase::Calling(_)),
            "open calls need their results first"
        );
        if !matches!(self.phase, Phase::Ended(_)) {
            self.phase = Phase::Ended(status);
        }
    }

    fn limit_reached(&self) -> Option<RunStatus> {
        let RunLimits {
            max_iterations,
            max_tool_calls,
            max_total_tokens,
            ..
        } = self.limits;
        let UsedUp {
            iterations,
            n_calls,
            tokens,
        } = self.before;
        if let Some(max_tool_calls) = max_tool_calls.filter(|max| self.n_calls - n_calls > *max) {
            return Some(RunStatus::ToolCallLimit { max_tool_calls });
        }
        if let Some(max_total_tokens) =
            max_total_tokens.filter(|max| self.usage.total() - tokens >= *max)
        {
            return Some(RunStatus::TokenLimit { max_total_tokens });
        }
        (self.iterations - iterations >= max_iterations)
            .then_some(RunStatus::IterationLimit { max_iterations })
    }

    fn plan(&mut self, calls: Vec<ToolUse>) -> Vec<PlannedCall> {
        let before = std::mem::take(&mut self.streaks);
        let RepeatLimits { warn, refuse, .. } = self.limits.repeats;
        let mut planned = Vec::with_capacity(calls.len());
        for tool_use in calls {
            self.n_calls += 1;
            let key = key(&tool_use);
            let streak = before.get(&key).copied().unwrap_or(0) + 1;
            self.streaks.insert(key, streak);
            let over_budget = self
                .limits
                .max_tool_calls
                .is_some_and(|max| self.n_calls - self.before.n_calls > max);
            let refused = if over_budget {
                Some(ToolOutcome::Cancelled {
                    by: Canceller::RunLimit,
                })
            } else if streak >= refuse {
                Some(ToolOutcome::Denied {
                    reason: format!(
                        "this very call was asked for in {streak} turns in a row; its result will not change. \
                         Do something else, or answer with what you have"
                    ),
                })
            } else {
                None
            };
            let warning = (refused.is_none() && streak >= warn).then(|| {
                format!(
                    "Note: this very call was asked for in {streak} turns in a row. It will be refused soon; \
                     use its result or try something else."
                )
            });
            planned.push(PlannedCall {
                tool_use,
                refused,
                warning,
            });
        }
        planned
    }

    /// Appends to the history, merging with the last message where the roles are the same, so that the
    /// roles alternate; a message without content is none.
    fn append(&mut self, role: Role, content: Vec<ContentBlock>) {
        if content.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            Some(last) if last.role == role => last.content.extend(content),
            Some(_) | None => self.messages.push(Message { role, content }),
        }
    }
}

fn text_of(content: &[ContentBlock]) -> String {
    let texts: Vec<&str> = content
        .iter()
        .filter_map(ContentBlock::as_text)
        .filter(|text| !text.trim().is_empty())
        .collect();
    texts.join("\n")
}

/// "The same call": the tool's name and the arguments, whatever the order of their keys.
fn key(tool_use: &ToolUse) -> String {
    match &tool_use.input {
        ToolInput::Object(map) => {
            let mut value = serde_json::Value::Object(map.clone());
            value.sort_all_objects();
            format!("{} {value}", tool_use.name)
        }
        ToolInput::Malformed { malformed, .. } => format!("{} {malformed}", tool_use.name),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agent::result::outcome_word;
    use crate::transcript::{Seal, ToolResult};

    fn reply(stop_reason: StopReason, content: Vec<ContentBlock>) -> ModelReply {
        let usage = Usage {
            input: Some(10),
            output: Some(1),
            ..Usage::default()
        };
        ModelReply {
            content,
            stop_details: Some("policy".into()),
            stop_reason,
            usage,
            request_id: None,
        }
    }

    fn call(id: &str, name: &str, input: Value) -> ContentBlock {
        ToolUse::new(id, name, input).unwrap().into()
    }

    fn echo(id: &str) -> ContentBlock {
        call(id, "echo", json!({"text": "a"}))
    }

    impl Run {
        fn hears(&mut self, reply: ModelReply) {
            let reply = self.identified(reply);
            self.model_replied(reply);
        }
    }

    fn begin(limits: RunLimits) -> Run {
        Run::new(limits, vec![Message::user("go")])
    }

    fn record(planned: &PlannedCall, outcome: ToolOutcome) -> TracedCall {
        let result = tool_result(&planned.tool_use.id, &planned.tool_use.name, &outcome);
        TracedCall::new(&planned.tool_use, outcome_word(&outcome), result, None)
    }

    /// Ends the planned calls: refused ones as the run says, others with `ok`.
    fn end_calls(run: &mut Run) {
        let Next::RunCalls(calls) = run.what_next() else {
            panic!("no calls are planned")
        };
        let ok = || ToolOutcome::Answered(vec![crate::tool::Content::Text("ok".into())]);
        let records: Vec<_> = calls
            .iter()
            .map(|call| record(call, call.refused.clone().unwrap_or_else(ok)))
            .collect();
        run.calls_ended(records);
    }

    fn results(message: &Message) -> Vec<&ToolResult> {
        message
            .content
            .iter()
            .map_while(|block| match block {
                ContentBlock::ToolResult(result) => Some(result),
                _ => None,
            })
            .collect()
    }

    fn status(run: &mut Run) -> RunStatus {
        match run.what_next() {
            Next::Ended(status) => status.clone(),
            other => panic!("the run goes on: {other:?}"),
        }
    }

    #[test]
    fn a_run_goes_from_task_to_answer_with_every_turn_in_its_history() {
        let mut run = begin(RunLimits::default());
        assert!(
            matches!(run.what_next(), Next::AskModel { max_tokens: 4096, messages } if messages.len() == 1)
        );
        run.hears(reply(
            StopReason::ToolUse,
            vec![ContentBlock::text("I look."), echo("a"), echo("b")],
        ));
        end_calls(&mut run);
        let Next::AskModel { messages, .. } = run.what_next() else {
            panic!("the model is not asked again")
        };
        assert_eq!(messages.len(), 3);
        assert_eq!(messages[1].content.len(), 3);
        let ids: Vec<_> = results(&messages[2])
            .iter()
            .map(|r| r.tool_use_id.as_str().to_owned())
            .collect();
        assert_eq!(ids, ["a", "b"], "results stand first and in call order");
        run.hears(reply(StopReason::EndTurn, vec![ContentBlock::text("done")]));
        assert_eq!(status(&mut run), RunStatus::Completed);
        let RunResult {
            messages,
            trace,
            tokens: usage,
            stop_reason,
            ..
        } = run.into_result();
        assert_eq!(messages[3], Message::assistant("done"));
        assert_eq!(trace.len(), 2);
        assert_eq!(usage.input, Some(20));
        assert_eq!(
            usage.cache_read, None,
            "what nobody said is unknown, not zero"
        );
        assert_eq!(stop_reason, Some(StopReason::EndTurn));
    }

    #[test]
    fn which_replies_run_their_calls_and_how_each_ends() {
        use StopReason as S;
        let unknown = |word: &str| S::Unknown(word.into());
        let ends = |stop_reason: StopReason, content: Vec<ContentBlock>| {
            let mut run = begin(RunLimits {
                max_tokens_ceiling: 4096,
                ..RunLimits::default()
            });
            run.hears(reply(stop_reason, content));
            match run.what_next() {
                Next::Ended(status) => status.word(),
                Next::RunCalls(_) => "calls",
                Next::AskModel { .. } => "asks",
            }
        };
        let text = || vec![ContentBlock::text("hi")];
        let with_call = || vec![ContentBlock::text(""), echo("a")];
        for (stop_reason, without, with) in [
            (S::EndTurn, "completed", "calls"),
            (S::StopSequence, "completed", "calls"),
            (S::ToolUse, "no_call", "calls"),
            (unknown(""), "unknown_stop_reason", "calls"),
            (
                unknown("new_thing"),
                "unknown_stop_reason",
                "unknown_stop_reason",
            ),
            (S::PauseTurn, "asks", "calls"),
            (S::MaxTokens, "truncated", "truncated"),
            (S::Refusal, "refused", "refused"),
            (
                S::ModelContextWindowExceeded,
                "context_full",
                "context_full",
            ),
        ] {
            assert_eq!(
                ends(stop_reason.clone(), text()),
                without,
                "{stop_reason:?} without a call"
            );
            assert_eq!(
                ends(stop_reason.clone(), with_call()),
                with,
                "{stop_reason:?} with a call"
            );
        }
    }

    #[test]
    fn a_cut_reply_is_dropped_and_asked_again_with_twice_the_room() {
        let mut run = begin(RunLimits {
            max_tokens_ceiling: 10_000,
            ..RunLimits::default()
        });
        for wanted in [4096, 8192, 10_000] {
            let Next::AskModel {
                messages,
                max_tokens,
            } = run.what_next()
            else {
                panic!("not asked with {wanted}")
            };
            assert_eq!((messages.len(), max_tokens), (1, wanted));
            run.hears(reply(
                StopReason::MaxTokens,
                vec![ContentBlock::text("ha"), echo("a")],
            ));
        }
        assert_eq!(
            status(&mut run),
            RunStatus::Truncated { max_tokens: 10_000 }
        );
        let RunResult {
            messages,
            trace,
            tokens: usage,
            ..
        } = run.into_result();
        assert_eq!(
            messages.last(),
            Some(&Message::assistant("ha")),
            "its call is not in the history"
        );
        assert_eq!(
            trace.iter().map(|t| t.dropped).collect::<Vec<_>>(),
            [true, true, false]
        );
        assert_eq!(usage.input, Some(30), "dropped replies were paid for");
    }

    #[test]
    fn a_paused_turn_goes_back_unchanged_and_is_continued_in_place() {
        let mut run = begin(RunLimits::default());
        let seal = Seal {
            provider: "p".into(),
            model: "m".into(),
            raw: "{\"type\":\"server_tool_use\"}".into(),
        };
        let paused = vec![ContentBlock::text("part 1"), ContentBlock::Foreign(seal)];
        run.hears(reply(StopReason::PauseTurn, paused.clone()));
        let Next::AskModel { messages, .. } = run.what_next() else {
            panic!("a paused turn ended the run")
        };
        assert_eq!(messages.last().unwrap().content, paused);
        run.hears(reply(
            StopReason::EndTurn,
            vec![ContentBlock::text("part 2")],
        ));
        let RunResult {
            messages, trace, ..
        } = run.into_result();
        assert_eq!(
            messages.len(),
            2,
            "the continuation is part of the same message"
        );
        assert_eq!(messages[1].content.len(), 3);
        assert_eq!(trace.len(), 2, "the continuation counts as an iteration");
    }

    #[test]
    fn a_refusal_leaves_the_history_usable() {
        let mut run = begin(RunLimits::default());
        run.hears(reply(StopReason::Refusal, vec![]));
        assert_eq!(
            status(&mut run),
            RunStatus::Refused {
                details: Some("policy".into())
            }
        );
        let messages = run.into_result().messages;
        assert_eq!(messages, [Message::user("go")]);
    }

    #[test]
    fn an_empty_final_reply_adds_no_empty_message() {
        let mut run = begin(RunLimits::default());
        run.hears(reply(StopReason::EndTurn, vec![]));
        assert_eq!(status(&mut run), RunStatus::Completed);
        assert_eq!(run.into_result().messages.len(), 1);
    }

    #[test]
    fn ids_are_unique_over_the_whole_run() {
        let mut run = begin(RunLimits::default());
        run.hears(reply(
            StopReason::ToolUse,
            vec![echo("call_1"), echo("call_1")],
        ));
        end_calls(&mut run);
        run.hears(reply(StopReason::ToolUse, vec![echo("call_1")]));
        end_calls(&mut run);
        let messages = run.into_result().messages;
        let uses: Vec<&ToolUse> = messages.iter().flat_map(Message::tool_uses).collect();
        let ids: HashSet<&str> = uses.iter().map(|t| t.id.as_str()).collect();
        assert_eq!(ids.len(), 3);
        assert_eq!(uses[0].provider_id, None);
        assert_eq!(uses[1].provider_id.as_deref(), Some("call_1"));
        for (uses, answered) in [(&messages[1], &messages[2]), (&messages[3], &messages[4])] {
            let uses: Vec<_> = uses.tool_uses().map(|t| &t.id).collect();
            let answered: Vec<_> = results(answered).iter().map(|r| &r.tool_use_id).collect();
            assert_eq!(uses, answered);
        }
    }

    #[test]
    fn limits_end_a_run_between_turns() {
        let turn = |run: &mut Run, n: u32| {
            run.hears(reply(
                StopReason::ToolUse,
                vec![call(&format!("c{n}"), "echo", json!({"n": n}))],
            ));
            end_calls(run);
        };
        let mut run = begin(RunLimits {
            max_iterations: 2,
            ..RunLimits::default()
        });
        turn(&mut run, 0);
        turn(&mut run, 1);
        assert_eq!(
            status(&mut run),
            RunStatus::IterationLimit { max_iterations: 2 }
        );
        assert_eq!(
            run.into_result().messages.len(),
            5,
            "the last calls have their results"
        );

        let mut run = begin(RunLimits {
            max_total_tokens: Some(20),
            ..RunLimits::default()
        });
        turn(&mut run, 0);
        assert!(matches!(run.what_next(), Next::AskModel { .. }));
        turn(&mut run, 1);
        assert_eq!(
            status(&mut run),
            RunStatus::TokenLimit {
                max_total_tokens: 20
            }
        );

        let mut run = begin(RunLimits {
            max_tool_calls: Some(1),
            ..RunLimits::default()
        });
        run.hears(reply(StopReason::ToolUse, vec![echo("a"), echo("b")]));
        let Next::RunCalls(calls) = run.what_next() else {
            panic!("no calls are planned")
        };
        assert_eq!(calls[0].refused, None);
        assert_eq!(
            calls[1].refused,
            Some(ToolOutcome::Cancelled {
                by: Canceller::RunLimit
            })
        );
        end_calls(&mut run);
        assert_eq!(
            status(&mut run),
            RunStatus::ToolCallLimit { max_tool_calls: 1 }
        );
    }

    #[test]
    fn repeats_are_warned_of_then_refused_then_end_the_run() {
        let mut run = begin(RunLimits {
            max_iterations: 100,
            ..RunLimits::default()
        });
        let mut seen = Vec::new();
        for n in 0..8 {
            // Two equal calls of one turn are no repetition, and the order of keys makes no difference.
            let input = if n % 2 == 0 {
                json!({"a": 1, "b": 2})
            } else {
                json!({"b": 2, "a": 1})
            };
            let calls = (0..2)
                .map(|k| call(&format!("c{n}_{k}"), "poll", input.clone()))
                .collect();
            run.hears(reply(StopReason::ToolUse, calls));
            let Next::RunCalls(calls) = run.what_next() else {
                panic!("no calls are planned")
            };
            seen.push((calls[1].warning.is_some(), calls[1].refused.is_some()));
            end_calls(&mut run);
        }
        let (silent, warned, refused) = ((false, false), (true, false), (false, true));
        assert_eq!(
            seen,
            [
                silent, silent, warned, warned, refused, refused, refused, refused
            ]
        );
        assert_eq!(
            status(&mut run),
            RunStatus::Repeating {
                tool: "poll".into()
            }
        );
        let messages = run.into_result().messages;
        let third = results(&messages[6])[0].text();
        assert!(third.contains("3 turns in a row"), "{third}");
    }

    #[test]
    fn another_call_in_between_ends_a_streak() {
        let mut run = begin(RunLimits {
            max_iterations: 100,
            ..RunLimits::default()
        });
        for n in 0..20 {
            let name = if n % 3 == 2 { "other" } else { "poll" };
            run.hears(reply(
                StopReason::ToolUse,
                vec![call(&format!("c{n}"), name, json!({}))],
            ));
            end_calls(&mut run);
        }
        assert!(matches!(run.what_next(), Next::AskModel { .. }));
    }

    #[test]
    fn turns_of_unknown_tools_only_end_the_run() {
        let mut run = begin(RunLimits {
            max_iterations: 100,
            ..RunLimits::default()
        });
        for n in 0..8 {
            run.hears(reply(
                StopReason::ToolUse,
                vec![call(&format!("c{n}"), &format!("tool_{n}"), json!({}))],
            ));
            let Next::RunCalls(calls) = run.what_next() else {
                panic!("no calls are planned")
            };
            let name = calls[0].tool_use.name.clone();
            let records = vec![record(
                &calls[0],
                ToolOutcome::UnknownTool {
                    name,
                    available: vec![],
                },
            )];
            run.calls_ended(records);
        }
        assert_eq!(
            status(&mut run),
            RunStatus::Repeating {
                tool: "tool_7".into()
            }
        );
    }

    #[test]
    fn a_stop_ends_the_run_with_its_own_word() {
        for (by, word) in [
            (Canceller::User, "cancelled"),
            (Canceller::RunLimit, "time_limit"),
        ] {
            let mut run = begin(RunLimits::default());
            run.stopped(by);
            assert_eq!(status(&mut run).word(), word);
        }
    }

    #[test]
    fn a_record_that_cannot_be_written_leaves_no_call_without_a_result() {
        let mut run = begin(RunLimits::default());
        run.hears(reply(StopReason::ToolUse, vec![echo("a")]));
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        run.failed(&RunError::NotRecorded(crate::agent::record::NotRecorded(
            full,
        )));
        assert_eq!(status(&mut run).word(), "failed");
        let messages = run.into_result().messages;
        assert!(results(&messages[2])[0].is_error);
    }

    #[test]
    #[should_panic(expected = "one result per call")]
    fn results_of_other_calls_are_not_taken() {
        let mut run = begin(RunLimits::default());
        run.hears(reply(StopReason::ToolUse, vec![echo("a"), echo("b")]));
        let Next::RunCalls(calls) = run.what_next() else {
            panic!("no calls are planned")
        };
        let mut records: Vec<_> = calls
            .iter()
            .map(|call| record(call, ToolOutcome::OutcomeUnknown))
            .collect();
        records.swap(0, 1);
        run.calls_ended(records);
    }
}
