//! Calls that are begun while the reply that asks for them still streams.

use std::{sync::Arc, time::Duration};

use agentloop_host::{
    agent::{ToolLoop, run::RunStatus},
    capability::{Access, FolderGrant, Grants, OperatorLimits, TimeoutSetting},
    config::permissions::Rule,
    event::RunEvent,
    ids::{PluginName, ToolUseId},
    provider::{
        ModelReply, ModelRequest, Phase, Provider, ProviderError, ProviderErrorKind, Watch,
    },
    registry::{Plugin, Registry},
    sandbox::{Sandbox, SandboxSettings},
    transcript::{ContentBlock, Message, StopReason, ToolUse, Usage},
};
use agentloop_tests::{
    agent::{Events, agent_with, run, scripted},
    guests,
};
use async_trait::async_trait;
use futures_util::FutureExt as _;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// Nothing takes so long, on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the streamed reply goes on after its first call.
#[derive(Debug, Clone, Copy)]
enum Then {
    Ends(fn() -> StopReason),
    Fails,
    IsAskedForAgain,
}

/// A model whose first reply asks for calls, streams on until the guests run, and then ends in some way; whose
/// second one says that it is done.
struct Streaming {
    calls: Vec<ToolUse>,
    /// Waited for while the reply streams, once all its calls were told.
    until: Box<dyn Fn() -> bool + Send + Sync>,
    then: Then,
    asked: Mutex<usize>,
}

fn fault() -> ProviderError {
    ProviderError {
        kind: ProviderErrorKind::Network,
        phase: Phase::Reading,
        message: "the stream broke".into(),
        endpoint: "test".into(),
        hint: None,
        attempts: 1,
        status: None,
        request_id: None,
        retry_after: None,
        usage: Usage::default(),
    }
}

#[async_trait]
impl Provider for Streaming {
    fn name(&self) -> &str {
        "streaming"
    }

    async fn ask(
        &self,
        _: &ModelRequest<'_>,
        watch: &mut dyn Watch,
    ) -> Result<ModelReply, ProviderError> {
        let mut asked = self.asked.lock().await;
        *asked += 1;
        let reply = |content, stop_reason| ModelReply {
            content,
            stop_reason,
            stop_details: None,
            usage: Usage::default(),
            request_id: None,
        };
        if *asked > 1 {
            return Ok(reply(vec![ContentBlock::text("done")], StopReason::EndTurn));
        }
        for call in &self.calls {
            watch.tool_use(&call.name, &call.input);
        }
        let running = async {
            while !(self.until)() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, running)
            .await
            .expect("the guests run while the reply streams");
        let calls: Vec<ContentBlock> = self.calls.iter().cloned().map(Into::into).collect();
        match self.then {
            Then::Ends(reason) => Ok(reply(calls, reason())),
            Then::Fails => Err(fault()),
            Then::IsAskedForAgain => {
                watch.retrying(1, Duration::ZERO, &fault());
                Ok(reply(vec![ContentBlock::text("done")], StopReason::EndTurn))
            }
        }
    }
}

fn sandbox(max_live_calls: usize) -> Sandbox {
    let settings = SandboxSettings {
        max_live_calls,
        ..guests::settings()
    };
    Sandbox::new(settings).unwrap()
}

async fn registry(sandbox: &Sandbox, grants: Grants) -> Registry {
    let mut plugins = Vec::new();
    for (name, wasm) in [("helpful", guests::HELPFUL), ("hostile", guests::HOSTILE)] {
        plugins.push(Plugin {
            name: PluginName::parse(name).unwrap(),
            file: format!("{name}.wasm"),
            component: sandbox.load(wasm.into()).await.unwrap(),
            grants: grants.clone(),
            limits: OperatorLimits {
                timeout: TimeoutSetting::Never,
                ..OperatorLimits::default()
            },
        });
    }
    Registry::with_plugins([], plugins, Some(sandbox), Vec::new()).unwrap()
}

fn tool_use(id: &str, name: &str, input: Value) -> ToolUse {
    ToolUse::new(id, name, input).unwrap()
}

async fn streaming(
    sandbox: &Sandbox,
    calls: Vec<ToolUse>,
    until: impl Fn() -> bool + Send + Sync + 'static,
    then: Then,
) -> ToolLoop {
    let model = Streaming {
        calls,
        until: Box::new(until),
        then,
        asked: Mutex::default(),
    };
    let registry = registry(sandbox, Grants::default()).await;
    ToolLoop::new(Arc::new(model), "test", Arc::new(registry))
}

/// Whether all places for guests are taken.
fn is_full(sandbox: &Sandbox) -> bool {
    sandbox.slot().now_or_never().is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_can_change_nothing_runs_while_the_reply_streams() {
    let sandbox = sandbox(1);
    let watched = sandbox.clone();
    let narrate = tool_use("a", "sleep", json!({"ms": 100}));
    let until = move || is_full(&watched);
    let mut agent = streaming(
        &sandbox,
        vec![narrate],
        until,
        Then::Ends(|| StopReason::ToolUse),
    )
    .await;
    let events = Arc::new(Events::default());
    agent.deps.observers = vec![Arc::clone(&events) as _];
    let result = run(&agent, "go").await;
    assert_eq!(result.status, RunStatus::Completed);
    assert_eq!(
        agentloop_tests::agent::results(&result.messages[2])[0].text(),
        "slept 100 ms"
    );
    // It is told of as if it had begun when its turn came.
    let kinds = events.kinds();
    let at = |kind: &str| kinds.iter().position(|k| k == kind).unwrap();
    assert!(at("turn_ended") < at("call_requested"), "{kinds:?}");
    assert!(at("call_requested") < at("call_started"), "{kinds:?}");
}

/// However the reply ends, if it is not a good turn the guest is gone, and nothing of it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_bad_turn_asked_for_is_killed() {
    for then in [
        Then::Ends(|| StopReason::MaxTokens),
        Then::Ends(|| StopReason::Refusal),
        Then::Ends(|| StopReason::ModelContextWindowExceeded),
        Then::Fails,
        Then::IsAskedForAgain,
    ] {
        let sandbox = sandbox(1);
        let watched = sandbox.clone();
        let spin = tool_use("a", "spin", json!({}));
        let until = move || is_full(&watched);
        let mut agent = streaming(&sandbox, vec![spin], until, then).await;
        let events = Arc::new(Events::default());
        agent.deps.observers = vec![Arc::clone(&events) as _];
        run(&agent, "go").await;
        let free = tokio::time::timeout(PATIENCE, sandbox.slot()).await;
        assert!(free.is_ok(), "{then:?}: the guest still spins");
        assert!(
            !events.kinds().iter().any(|kind| kind.starts_with("call_")),
            "{then:?}"
        );
    }
}

/// What may not be begun is not: with two places, one is left when the call that may be begun runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_be_noticed_is_not_begun_early() {
    type Prepare = fn(&mut ToolLoop);
    let nothing: Prepare = |_| {};
    let sleep = || tool_use("z", "sleep", json!({"ms": 50}));
    for (first, prepare) in [
        // No such tool, or not with these arguments.
        (tool_use("a", "nobody", json!({})), nothing),
        (tool_use("a", "add", json!({"a": "x"})), nothing),
        // A person or a rule has a say.
        (tool_use("a", "spin", json!({})), |agent: &mut ToolLoop| {
            agent.deps.permissions.ask = vec![Rule::parse("hostile.spin").unwrap()];
        }),
        (tool_use("a", "spin", json!({})), |agent: &mut ToolLoop| {
            agent.deps.permissions.deny = vec![Rule::parse("hostile.spin").unwrap()];
        }),
    ] {
        let sandbox = sandbox(2);
        let watched = sandbox.clone();
        // One is taken, and the other is not.
        let until = move || {
            let one = watched.slot().now_or_never();
            one.is_some() && is_full(&watched)
        };
        let calls = vec![first, sleep()];
        let mut agent = streaming(&sandbox, calls, until, Then::Ends(|| StopReason::ToolUse)).await;
        prepare(&mut agent);
        let result = run(&agent, "go").await;
        assert_eq!(result.status, RunStatus::Completed);
        let results = agentloop_tests::agent::results(&result.messages[2]);
        assert!(results[0].is_error, "{results:?}");
        assert_eq!(results[1].text(), "slept 50 ms");
    }
}

/// Settings and hooks that keep calls in their place: nothing runs before the reply has ended.
#[tokio::test]
async fn it_can_be_switched_off() {
    for prepare in [
        (|agent| agent.deps.eager = false) as fn(&mut ToolLoop),
        |agent| agent.deps.parallel = false,
        |agent| agent.deps.before_tool = Some(agentloop_host::agent::allow_all()),
    ] {
        let sandbox = sandbox(1);
        let watched = sandbox.clone();
        let looked = std::sync::atomic::AtomicUsize::new(0);
        // On a runtime of one thread whatever was spawned has its turn with each yield.
        let until = move || {
            assert!(!is_full(&watched), "something runs");
            looked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 100
        };
        let sleep = tool_use("a", "sleep", json!({"ms": 50}));
        let mut agent = streaming(
            &sandbox,
            vec![sleep],
            until,
            Then::Ends(|| StopReason::ToolUse),
        )
        .await;
        prepare(&mut agent);
        assert_eq!(run(&agent, "go").await.status, RunStatus::Completed);
    }
}

/// What a call did, as the record of the run has it.
fn of_call(events: &Events, id: &ToolUseId) -> Vec<Value> {
    let about = |event: &RunEvent| {
        let mut event = serde_json::to_value(event).unwrap();
        let is_his = event["id"] == id.as_str() && event["type"] != "call_queued";
        event.as_object_mut().unwrap().remove("ran_ms");
        is_his.then_some(event)
    };
    events.all().iter().filter_map(about).collect()
}

fn call_of(kind: usize, n: i64) -> (&'static str, Value) {
    match kind {
        0 => ("echo", json!({"text": format!("text {n}")})),
        1 => ("add", json!({"a": n, "b": "2"})),
        2 => ("fail", json!({"message": "no"})),
        3 => ("narrate", json!({"lines": n})),
        4 => (
            "write",
            json!({"path": "/shared/f", "text": format!("{n}")}),
        ),
        5 => ("read", json!({"path": "/shared/f"})),
        6 => ("panic", json!({"message": "boom"})),
        _ => ("nobody", json!({})),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Results, order and what is told of each call are the same with it and without it.
    #[test]
    fn nobody_can_tell_the_difference(
        turns in prop::collection::vec(prop::collection::vec((0..8_usize, 0..4_i64), 1..6), 1..4),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let replies: Vec<Value> = turns
            .iter()
            .enumerate()
            .map(|(t, calls)| {
                let blocks: Vec<Value> = calls
                    .iter()
                    .enumerate()
                    .map(|(c, (kind, n))| {
                        let (name, input) = call_of(*kind, *n);
                        json!({"type": "tool_use", "id": format!("t{t}c{c}"), "name": name, "input": input})
                    })
                    .collect();
                json!({"content": blocks})
            })
            .chain([json!({"content": [{"type": "text", "text": "done"}]})])
            .collect();
        let mut seen = Vec::new();
        for eager in [false, true] {
            let replies = json!(replies.clone());
            seen.push(runtime.block_on(async move {
                let dir = tempfile::tempdir().unwrap();
                std::fs::write(dir.path().join("f"), "at first").unwrap();
                let grants = Grants {
                    folders: vec![FolderGrant {
                        host_path: dir.path().to_owned(),
                        guest_path: "/shared".into(),
                        access: Access::Write,
                    }],
                    ..Grants::default()
                };
                let sandbox = guests::sandbox();
                let mut agent = agent_with(&scripted(replies), registry(&sandbox, grants).await);
                agent.deps.permissions.allow = vec![Rule::parse("helpful.*").unwrap()];
                agent.deps.eager = eager;
                let events = Arc::new(Events::default());
                agent.deps.observers = vec![Arc::clone(&events) as _];
                let result = run(&agent, "go").await;
                let told: Vec<Vec<Value>> = result
                    .messages
                    .iter()
                    .flat_map(Message::tool_uses)
                    .map(|call| of_call(&events, &call.id))
                    .collect();
                (result.messages, told)
            }));
        }
        prop_assert_eq!(&seen[0], &seen[1]);
    }
}
