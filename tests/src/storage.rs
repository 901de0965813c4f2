//! Runs that are kept, and what tests need around them.

use std::sync::Arc;

use agentloop_host::{
    approvals::ApprovalRequest,
    event::RunEvent,
    ids::{RunId, ToolName, ToolUseId},
    storage::{Lease, NewRun, Question, RunKind, RunStore, Submitted, now_ms, sqlite::SqliteStore},
    tool::ToolCall,
    transcript::{StopReason, Usage},
};
use serde_json::{Map, json};

/// A store that is gone with its last handle.
pub fn fresh() -> Arc<dyn RunStore> {
    Arc::new(SqliteStore::temporary().unwrap())
}

pub fn new_run(kind: RunKind) -> NewRun {
    NewRun {
        id: RunId::random().unwrap(),
        kind,
        scope: "here".into(),
        key: None,
        title: "a run".into(),
        model: "m".into(),
        spec: json!({"any": "thing"}),
    }
}

/// A new run, driven by the caller.
pub async fn begun(store: &dyn RunStore) -> Lease {
    match store.submit(new_run(RunKind::Served)).await.unwrap() {
        Submitted::New(lease) => lease,
        other => panic!("{other:?}"),
    }
}

pub fn noted(text: &str) -> RunEvent {
    RunEvent::Noted { text: text.into() }
}

pub fn turn_ended() -> RunEvent {
    RunEvent::TurnEnded {
        turn: 0,
        stop_reason: StopReason::EndTurn,
        stop_details: None,
        usage: Usage {
            input: Some(3),
            ..Usage::default()
        },
        content: Vec::new(),
    }
}

pub fn run_ended() -> RunEvent {
    RunEvent::RunEnded {
        status: "completed".into(),
        text: "it is complete".into(),
        usage: Usage::default(),
    }
}

/// A question about this call.
pub fn question(run: Option<RunId>, call: &str) -> Question {
    let mut fingerprint = [0; 32];
    fingerprint[..call.len()].copy_from_slice(call.as_bytes());
    Question {
        id: RunId::random().unwrap().to_string(),
        run,
        scope: "here".into(),
        fingerprint,
        request: ApprovalRequest {
            call: ToolCall {
                id: ToolUseId::parse(call).unwrap(),
                tool: ToolName::parse("write").unwrap(),
                input: Map::new(),
            },
            rule_name: "files.write".into(),
            digest: None,
            may_touch: Vec::new(),
            why: "it writes".into(),
        },
        asked_ms: now_ms(),
        expires_ms: now_ms() + 3_600_000,
    }
}
