//! The loop and the life of a call, with tools of the test's own; components have their tests in `sandbox`.

use std::{
    io::ErrorKind,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use agentloop_host::{
    agent::{ApprovalHook, ToolLoop, allow_all, record::Journal, run::RunStatus, stop::Stopper},
    approvals::{Answer, ApprovalRequest, Approver, ApproverFailed},
    capability::{Grants, OperatorLimits, TimeoutSetting},
    config::permissions::{Permissions, Rule},
    event::RunEvent,
    ids::PluginName,
    registry::{Plugin, Registry, native::NativeTool},
    tool::Canceller,
    transcript::{Message, ToolInput},
};
use agentloop_tests::{
    agent::{Events, agent, agent_with, assert_paired, calls, results, run, says, scripted},
    guests,
};
use async_trait::async_trait;
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, ready},
};
use serde_json::{Map, Value, json};
use tokio::sync::{Barrier, Notify};

fn any() -> Value {
    json!({"type": "object"})
}

fn echo() -> NativeTool {
    let schema = json!({
        "type": "object",
        "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}},
    });
    NativeTool::new(
        "echo",
        "Says it again.",
        schema,
        |input: Map<String, Value>| Ok::<_, String>(Value::Object(input)),
    )
    .unwrap()
}

/// Waits until `n` calls of it run at once.
fn meet(n: usize) -> NativeTool {
    let barrier = Arc::new(Barrier::new(n));
    NativeTool::from_async("meet", "Waits for others.", any(), move |_| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok::<_, String>("met".to_owned())
        }
    })
    .unwrap()
}

/// Never answers; tells when it has begun.
fn hang(begun: &Arc<Notify>) -> NativeTool {
    let begun = Arc::clone(begun);
    NativeTool::from_async("hang", "Never answers.", any(), move |_| {
        begun.notify_one();
        std::future::pending::<Result<String, String>>()
    })
    .unwrap()
}

fn panics() -> NativeTool {
    NativeTool::new("panics", "Panics.", any(), |_| -> Result<String, String> {
        panic!("boom 7")
    })
    .unwrap()
}

#[tokio::test]
async fn every_call_of_a_batch_has_its_result_in_call_order_whatever_it_did() {
    let fails = NativeTool::new("fails", "Fails.", any(), |_| {
        Err::<String, _>("no such city")
    })
    .unwrap();
    let secret =
        NativeTool::new("secret", "Is denied.", any(), |_| Ok::<_, String>("never")).unwrap();
    let model = scripted(json!([
        calls(&[
            ("a", "meet", json!({})),
            ("b", "panics", json!({})),
            ("c", "secret", json!({})),
            ("d", "fails", json!({})),
            ("e", "nowhere", json!({})),
            ("f", "echo", json!({"limit": "five"})),
            ("g", "echo", json!("{\"text\":")),
            ("h", "meet", json!({})),
        ]),
        says("done"),
    ]));
    let mut agent = agent(&model, [meet(2), panics(), fails, secret, echo()]);
    agent
        .deps
        .permissions
        .deny
        .push(Rule::parse("host.secret").unwrap());

    let result = run(&agent, "go").await;

    assert_eq!(result.status, RunStatus::Completed, "{result:#?}");
    assert_paired(&result.messages);
    let texts: Vec<_> = results(&result.messages[2])
        .iter()
        .map(|r| (r.text(), r.is_error))
        .collect();
    assert_eq!(texts[0], ("met".into(), false));
    assert_eq!(texts[1], ("Error: panics failed: boom 7".into(), true));
    assert!(
        texts[2].0.starts_with("Denied: ") && texts[2].0.contains("host.secret"),
        "{}",
        texts[2].0
    );
    assert_eq!(texts[3], ("Error: no such city".into(), true));
    assert!(
        texts[4]
            .0
            .starts_with("Unknown tool 'nowhere'. Available: ["),
        "{}",
        texts[4].0
    );
    assert!(
        texts[5]
            .0
            .starts_with("Invalid arguments for echo: limit: "),
        "{}",
        texts[5].0
    );
    assert!(
        texts[6]
            .0
            .starts_with("Could not parse arguments as JSON ("),
        "{}",
        texts[6].0
    );
    assert_eq!(texts[7], ("met".into(), false));
    assert!(texts[1..7].iter().all(|(_, is_error)| *is_error));
    let replayed: Vec<_> = result.messages[1]
        .tool_uses()
        .map(|t| t.input.replayed())
        .collect();
    assert!(
        replayed[6].is_empty(),
        "malformed arguments are replayed as an object"
    );
}

#[tokio::test]
async fn a_reply_without_arguments_runs_the_tool_with_none() {
    let batch = calls(&[("a", "echo", json!("")), ("b", "echo", json!(" \n"))]);
    let model = scripted(json!([batch, says("done")]));
    let result = run(&agent(&model, [echo()]), "go").await;
    for answer in results(&result.messages[2]) {
        assert_eq!((answer.text().as_str(), answer.is_error), ("{}", false));
    }
    assert!(
        result.messages[1]
            .tool_uses()
            .all(|t| t.input == ToolInput::Object(Map::new()))
    );
}

#[tokio::test]
async fn numbers_that_arrive_as_strings_are_converted_before_anybody_sees_them() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let model = scripted(json!([
        calls(&[("a", "echo", json!({"limit": "5", "text": "7"}))]),
        says("done")
    ]));
    let mut agent = agent(&model, [echo()]);
    agent.deps.before_tool = Some({
        let seen = Arc::clone(&seen);
        Arc::new(move |call| {
            seen.lock().unwrap().push(Value::Object(call.input.clone()));
            Ok(None)
        })
    });
    let result = run(&agent, "go").await;
    assert_eq!(
        results(&result.messages[2])[0].text(),
        r#"{"limit":5,"text":"7"}"#
    );
    assert_eq!(*seen.lock().unwrap(), [json!({"limit": 5, "text": "7"})]);
}

#[tokio::test]
async fn at_most_the_allowed_number_of_calls_run_at_once() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counting = {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        // Eight have to be there at once for any of them to end, so fewer would hang and more would be seen.
        let barrier = Arc::new(Barrier::new(8));
        NativeTool::from_async("count", "Counts.", any(), move |_| {
            let (running, most, barrier) = (
                Arc::clone(&running),
                Arc::clone(&most),
                Arc::clone(&barrier),
            );
            async move {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                barrier.wait().await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, String>("ok")
            }
        })
        .unwrap()
    };
    let ids: Vec<String> = (0..24).map(|n| format!("c{n}")).collect();
    let batch: Vec<_> = ids
        .iter()
        .map(|id| (id.as_str(), "count", json!({})))
        .collect();
    let model = scripted(json!([calls(&batch), says("done")]));
    let result = run(&agent(&model, [counting]), "go").await;
    assert_eq!(results(&result.messages[2]).len(), 24);
    assert_eq!(most.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn one_tool_that_is_not_parallel_safe_puts_the_whole_batch_in_order() {
    for parallel in [true, false] {
        let log = Arc::new(Mutex::new(Vec::new()));
        let tool = |name: &'static str| {
            let log = Arc::clone(&log);
            NativeTool::from_async(name, "Logs.", any(), move |_| {
                let log = Arc::clone(&log);
                async move {
                    log.lock().unwrap().push(format!("{name} begins"));
                    tokio::task::yield_now().await;
                    log.lock().unwrap().push(format!("{name} ends"));
                    Ok::<_, String>(name)
                }
            })
            .unwrap()
        };
        let (a, b) = (tool("a"), tool("b"));
        let batch = calls(&[
            ("1", "a", json!({})),
            ("2", "b", json!({})),
            ("3", "a", json!({})),
        ]);
        let model = scripted(json!([batch, says("done")]));
        let mut agent = agent(&model, [a, if parallel { b.serial() } else { b }]);
        agent.deps.parallel = parallel;
        run(&agent, "go").await;
        let in_order = [
            "a begins", "a ends", "b begins", "b ends", "a begins", "a ends",
        ];
        assert_eq!(*log.lock().unwrap(), in_order, "parallel = {parallel}");
    }
}

#[tokio::test]
async fn calls_fail_alone() {
    let model = scripted(json!([
        calls(&[
            ("1", "echo", json!({})),
            ("2", "panics", json!({})),
            ("3", "slow", json!({})),
            ("4", "echo", json!({})),
            ("5", "echo", json!({})),
        ]),
        says("done"),
    ]));
    let never = |_| std::future::pending::<Result<String, String>>();
    let slow = NativeTool::from_async("slow", "Never answers.", any(), never).unwrap();
    let slow = slow.timeout(Duration::from_millis(20));
    let result = run(&agent(&model, [echo(), panics(), slow]), "go").await;
    let failed: Vec<bool> = results(&result.messages[2])
        .iter()
        .map(|r| r.is_error)
        .collect();
    assert_eq!(failed, [false, true, true, false, false]);
    assert!(
        results(&result.messages[2])[2]
            .text()
            .starts_with("Error: slow timed out after ")
    );
}

#[tokio::test]
async fn a_stop_ends_open_calls_says_who_stopped_and_leaves_a_history_that_can_be_continued() {
    for (by, who, word) in [
        (Canceller::User, "user", "cancelled"),
        (Canceller::RunLimit, "limit", "time_limit"),
    ] {
        let begun = Arc::new(Notify::new());
        let batch = calls(&[("a", "hang", json!({})), ("b", "hang", json!({}))]);
        let model = scripted(json!([batch, says("welcome back")]));
        let agent = Arc::new(agent(&model, [hang(&begun)]));
        let (stopper, signal) = Stopper::new();
        let running = tokio::spawn({
            let (agent, stopper) = (Arc::clone(&agent), stopper.clone());
            async move {
                agent
                    .run_until(vec![Message::user("go")], stopper, signal, None)
                    .await
            }
        });
        begun.notified().await;
        stopper.stop(by);
        stopper.stop(Canceller::User);
        let stopped = running.await.unwrap();
        assert_eq!(stopped.status.word(), word);
        assert_paired(&stopped.messages);
        let texts: Vec<_> = results(&stopped.messages[2])
            .iter()
            .map(|r| r.text())
            .collect();
        assert!(
            texts[0].starts_with("Cancelled: ") && texts[1] == texts[0],
            "{texts:?}"
        );
        assert!(texts[0].contains(who), "{texts:?}");

        let mut messages = stopped.messages;
        messages.push(Message::user("and now?"));
        let continued = agent.run(messages).await;
        assert_eq!(continued.final_text(), Some("welcome back"));
        let asked = model.asked();
        let last = asked.last().unwrap().messages.last().unwrap();
        assert_eq!(results(last).len(), 2);
        assert_eq!(
            last.last_text(),
            Some("and now?"),
            "the new text follows the results in one message"
        );
    }
}

#[tokio::test]
async fn a_run_out_of_time_ends_with_its_own_status() {
    let model = scripted(json!([calls(&[("a", "hang", json!({}))])]));
    let mut agent = agent(&model, [hang(&Arc::new(Notify::new()))]);
    agent.wall_time = Some(Duration::from_millis(30));
    let result = run(&agent, "go").await;
    assert_eq!(result.status, RunStatus::TimeLimit);
    assert_paired(&result.messages);
}

#[tokio::test]
async fn reused_and_missing_ids_reach_the_model_as_distinct_ones() {
    let model = scripted(json!([
        calls(&[
            ("call_1", "echo", json!({"text": "a"})),
            ("call_1", "echo", json!({"text": "b"}))
        ]),
        calls(&[
            ("call_1", "echo", json!({"text": "c"})),
            ("", "echo", json!({"text": "d"}))
        ]),
        says("done"),
    ]));
    let result = run(&agent(&model, [echo()]), "go").await;
    assert_paired(&result.messages);
    let mut ids: Vec<_> = result
        .messages
        .iter()
        .flat_map(Message::tool_uses)
        .map(|t| t.id.clone())
        .collect();
    let texts: Vec<_> = [2, 4]
        .iter()
        .flat_map(|i| results(&result.messages[*i]))
        .map(|r| r.text())
        .collect();
    assert_eq!(
        texts,
        [
            r#"{"text":"a"}"#,
            r#"{"text":"b"}"#,
            r#"{"text":"c"}"#,
            r#"{"text":"d"}"#
        ]
    );
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn a_failing_hook_never_allows() {
    let hooks: [(ApprovalHook, &str); 3] = [
        (
            Arc::new(|_| Ok(Some("not on a Friday".into()))),
            "Denied: not on a Friday",
        ),
        (
            Arc::new(|_| Err("the list is gone".into())),
            "Error: the approval hook failed: the list is gone",
        ),
        (
            Arc::new(|_| panic!("oh")),
            "Error: the approval hook failed: it panicked",
        ),
    ];
    for (hook, text) in hooks {
        let model = scripted(json!([calls(&[("a", "echo", json!({}))]), says("done")]));
        let mut agent = agent(&model, [echo()]);
        agent.deps.before_tool = Some(hook);
        let result = run(&agent, "go").await;
        let answer = results(&result.messages[2])[0];
        assert_eq!((answer.text().as_str(), answer.is_error), (text, true));
    }
}

#[tokio::test]
async fn nobody_is_asked_about_a_call_that_cannot_run() {
    let asked = Arc::new(AtomicUsize::new(0));
    let batch = [
        ("a", "echo", json!({"limit": "x"})),
        ("b", "nowhere", json!({})),
        ("c", "echo", json!("{")),
    ];
    let model = scripted(json!([calls(&batch), says("done")]));
    let mut agent = agent(&model, [echo()]);
    agent.deps.before_tool = Some({
        let asked = Arc::clone(&asked);
        Arc::new(move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            Ok(None)
        })
    });
    run(&agent, "go").await;
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// Gives these answers in turn; who asks more often than that waits for ever.
struct Answers {
    answers: Mutex<Vec<Answer>>,
    asked: Mutex<Vec<ApprovalRequest>>,
}

impl Answers {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Arc<Self> {
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        Arc::new(Self {
            answers: Mutex::new(answers),
            asked: Mutex::default(),
        })
    }
}

#[async_trait]
impl Approver for Answers {
    async fn approve(&self, request: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        self.asked.lock().unwrap().push(request.clone());
        let answer = self.answers.lock().unwrap().pop();
        match answer {
            Some(answer) => Ok(answer),
            None => std::future::pending().await,
        }
    }
}

fn asking(agent: &mut ToolLoop, approver: Option<Arc<Answers>>) {
    agent.deps.permissions = Permissions::default();
    agent.deps.permissions.ask = vec![Rule::parse("host.echo").unwrap()];
    agent.deps.approver = approver.map(|approver| approver as _);
}

/// Answers the first question only after the second.
#[derive(Default)]
struct Backwards {
    asked: AtomicUsize,
    second_answered: Notify,
}

#[async_trait]
impl Approver for Backwards {
    async fn approve(&self, request: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        let text = &request.call.input["text"];
        if self.asked.fetch_add(1, Ordering::Relaxed) == 0 {
            self.second_answered.notified().await;
            return Ok(Answer::Deny {
                reason: Some(format!("not {text}")),
            });
        }
        self.second_answered.notify_one();
        Ok(Answer::Once)
    }
}

#[tokio::test]
async fn questions_of_a_batch_are_answered_in_any_order() {
    let model = scripted(json!([
        calls(&[
            ("a", "echo", json!({"text": "1"})),
            ("b", "echo", json!({"text": "2"})),
        ]),
        says("done"),
    ]));
    let mut agent = agent(&model, [echo()]);
    asking(&mut agent, None);
    agent.deps.approver = Some(Arc::new(Backwards::default()));
    let result = run(&agent, "go").await;
    let [first, second] = results(&result.messages[2])[..] else {
        panic!("{result:?}");
    };
    assert!(first.text().contains("not \"1\""), "{first:?}");
    assert!(
        second.text().contains('2') && !second.is_error,
        "{second:?}"
    );
}

#[tokio::test]
async fn a_run_that_hit_its_limit_can_be_continued() {
    let model = scripted(json!([
        calls(&[("a", "echo", json!({"text": "1"}))]),
        says("done"),
    ]));
    let mut agent = agent(&model, [echo()]);
    agent.limits.max_iterations = 1;
    let stopped = run(&agent, "go").await;
    assert!(
        matches!(stopped.status, RunStatus::IterationLimit { .. }),
        "{stopped:?}"
    );
    assert_paired(&stopped.messages);
    let continued = agent.run(stopped.messages).await;
    assert_eq!(continued.status, RunStatus::Completed);
    assert_eq!(continued.final_text(), Some("done"));
}

/// Says yes once more time has passed than a call may take.
struct Slow(Duration);

#[async_trait]
impl Approver for Slow {
    async fn approve(&self, _: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        tokio::time::sleep(self.0).await;
        Ok(Answer::Once)
    }
}

#[tokio::test]
async fn waiting_for_a_person_is_not_charged_to_the_call() {
    let timeout = Duration::from_millis(500);
    let sandbox = guests::sandbox();
    let plugin = Plugin {
        name: PluginName::parse("helpful").unwrap(),
        file: "helpful.wasm".to_owned(),
        component: sandbox.load(guests::HELPFUL.into()).await.unwrap(),
        grants: Grants::default(),
        limits: OperatorLimits {
            timeout: TimeoutSetting::After(timeout),
            ..OperatorLimits::default()
        },
    };
    let registry = Registry::with_plugins([], [plugin], Some(&sandbox), Vec::new()).unwrap();
    let model = scripted(json!([
        calls(&[("a", "echo", json!({"text": "still here"}))]),
        says("done"),
    ]));
    let mut agent = agent_with(&model, registry);
    agent.deps.permissions.ask = vec![Rule::parse("helpful.echo").unwrap()];
    agent.deps.approver = Some(Arc::new(Slow(timeout * 2)));
    let result = run(&agent, "go").await;
    assert_eq!(results(&result.messages[2])[0].text(), "still here");
}

#[tokio::test]
async fn each_answer_of_a_person_does_what_it_says() {
    let turns = json!([
        calls(&[("a", "echo", json!({"text": "1"}))]),
        calls(&[("b", "echo", json!({"text": "2"}))]),
        says("done"),
    ]);
    let refused = "Denied: the user refused this call";
    let no = || Answer::Deny { reason: None };
    let no_because = || Answer::Deny {
        reason: Some("use b".into()),
    };
    for (answers, ok, n_asked, text) in [
        (vec![Answer::Once, Answer::Once], [true, true], 2, None),
        (vec![Answer::ForThisRun], [true, true], 1, None),
        (vec![Answer::Always], [true, true], 1, None),
        (
            vec![no(), Answer::Once],
            [false, true],
            2,
            Some(refused.to_owned()),
        ),
        (
            vec![no_because(), Answer::Once],
            [false, true],
            2,
            Some(format!("{refused}: use b")),
        ),
    ] {
        let model = scripted(turns.clone());
        let mut agent = agent(&model, [echo()]);
        let approver = Answers::new(answers.clone());
        asking(&mut agent, Some(Arc::clone(&approver)));
        let result = run(&agent, "go").await;
        let got: Vec<bool> = [2, 4]
            .iter()
            .map(|i| !results(&result.messages[*i])[0].is_error)
            .collect();
        assert_eq!(got, ok, "{answers:?}");
        assert_eq!(approver.asked.lock().unwrap().len(), n_asked, "{answers:?}");
        if let Some(text) = text {
            assert_eq!(results(&result.messages[2])[0].text(), text);
        }
    }
}

#[tokio::test]
async fn a_sticky_answer_reaches_siblings_that_wait_already() {
    let batch = [
        ("a", "echo", json!({})),
        ("b", "echo", json!({})),
        ("c", "echo", json!({})),
    ];
    let model = scripted(json!([calls(&batch), says("done")]));
    let mut agent = agent(&model, [echo()]);
    asking(&mut agent, Some(Answers::new([Answer::ForThisRun])));
    let result = run(&agent, "go").await;
    assert!(results(&result.messages[2]).iter().all(|r| !r.is_error));
}

#[tokio::test]
async fn stopping_at_the_prompt_stops_the_run() {
    let model = scripted(json!([calls(&[
        ("a", "echo", json!({})),
        ("b", "echo", json!({}))
    ])]));
    let mut agent = agent(&model, [echo()]);
    asking(&mut agent, Some(Answers::new([Answer::Stop])));
    let result = run(&agent, "go").await;
    assert_eq!(result.status, RunStatus::Cancelled);
    assert_paired(&result.messages);
}

#[tokio::test]
async fn without_anybody_to_ask_a_question_is_a_refusal_that_says_how_to_allow_it() {
    let turns = json!([calls(&[("a", "echo", json!({}))]), says("done")]);
    let mut agent = agent(&scripted(turns.clone()), [echo()]);
    asking(&mut agent, None);
    let result = run(&agent, "go").await;
    let text = results(&result.messages[2])[0].text();
    for part in [
        "Denied: ",
        "`host.echo`",
        "--allow 'host.echo'",
        "[permissions]",
        "--yes",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }

    agent.provider = scripted(turns);
    agent.deps.before_tool = Some(allow_all());
    let result = run(&agent, "go").await;
    assert!(
        !results(&result.messages[2])[0].is_error,
        "an embedder's hook is somebody to ask"
    );
}

#[tokio::test]
async fn an_observer_that_panics_hurts_nobody() {
    let events = Arc::new(Events::default());
    let model = scripted(json!([calls(&[("a", "echo", json!({}))]), says("done")]));
    let mut agent = agent(&model, [echo()]);
    agent.deps.observers = vec![
        Arc::new(|_: &RunEvent| panic!("not me")),
        Arc::clone(&events) as _,
    ];
    let result = run(&agent, "go").await;
    assert_eq!(result.status, RunStatus::Completed);
    let kinds = events.kinds();
    let milestones: Vec<_> = kinds
        .iter()
        .filter(|kind| !kind.ends_with("_streamed"))
        .collect();
    let turn = ["turn_started", "turn_ended"];
    let call = ["call_requested", "call_started", "call_ended"];
    let expected: Vec<_> = ["run_started"]
        .into_iter()
        .chain(turn)
        .chain(call)
        .chain(turn)
        .chain(["run_ended"])
        .collect();
    assert_eq!(milestones, expected.iter().collect::<Vec<_>>());
}

/// Takes so many events, then the disk is full.
struct FullAfter(AtomicUsize);

impl Journal for FullAfter {
    fn append(&self, _: &RunEvent) -> BoxFuture<'static, std::io::Result<()>> {
        let room = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |room| {
                room.checked_sub(1)
            });
        let kept = room.map(|_| ()).map_err(|_| ErrorKind::StorageFull.into());
        ready(kept).boxed()
    }
}

#[tokio::test]
async fn a_call_that_cannot_be_recorded_is_not_started() {
    for room in 0..10 {
        let ran = Arc::new(AtomicUsize::new(0));
        let counting = {
            let ran = Arc::clone(&ran);
            let count = move |_| {
                ran.fetch_add(1, Ordering::SeqCst);
                Ok::<_, String>("ran")
            };
            NativeTool::new("echo", "Counts.", any(), count).unwrap()
        };
        let model = scripted(json!([calls(&[("a", "echo", json!({}))]), says("done")]));
        let agent = agent(&model, [counting]);
        let (stopper, signal) = Stopper::new();
        let journal = Arc::new(FullAfter(AtomicUsize::new(room)));
        let result = agent
            .run_until(vec![Message::user("go")], stopper, signal, Some(journal))
            .await;
        // Run and turn started, turn ended, call requested, call started; call ended, turn started and ended.
        assert_eq!(
            ran.load(Ordering::SeqCst),
            usize::from(room >= 5),
            "room for {room} events"
        );
        assert_eq!(
            result.status == RunStatus::Completed,
            room >= 8,
            "room for {room}: {:?}",
            result.status
        );
        assert_paired(&result.messages);
    }
}

#[tokio::test]
async fn a_dead_model_ends_the_run_with_a_valid_history() {
    let dead = json!({"error": {"kind": "server", "message": "out of order"}});
    let model = scripted(json!([calls(&[("a", "echo", json!({}))]), dead]));
    let result = run(&agent(&model, [echo()]), "go").await;
    let RunStatus::Failed { error, .. } = &result.status else {
        panic!("{:?}", result.status)
    };
    assert!(error.contains("out of order"), "{error}");
    assert_paired(&result.messages);
}

#[tokio::test]
async fn a_broken_history_is_repaired_before_the_model_sees_it() {
    let broken: Vec<Message> = serde_json::from_value(json!([
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "echo", "input": {}},
            {"type": "tool_use", "id": "b", "name": "echo", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "text", "text": "hello?"},
            {"type": "tool_result", "tool_use_id": "b", "content": [], "is_error": false},
            {"type": "tool_result", "tool_use_id": "z", "content": [], "is_error": false},
        ]},
    ]))
    .unwrap();
    let model = scripted(json!([says("here")]));
    let result = agent(&model, [echo()]).run(broken).await;
    assert_eq!(result.final_text(), Some("here"));
    assert_paired(&model.asked()[0].messages);
}

#[tokio::test]
async fn the_markdown_trace_reads_like_the_seed_says() {
    let sunny = |_| Ok::<_, String>("Sunny, 72°F");
    let weather = NativeTool::new("get_weather", "Weather.", any(), sunny).unwrap();
    let mut first = calls(&[("a", "get_weather", json!({"city": "Chicago"}))]);
    first["usage"] = json!({"input": 312, "output": 48});
    let mut second = says("It's sunny and 72°F in Chicago right now.");
    second["usage"] = json!({"input": 374, "output": 21, "cache_read": 0, "cache_write": 0});
    let model = scripted(json!([first, second]));
    let result = run(&agent(&model, [weather]), "What's the weather in Chicago?").await;
    let expected = "\
## Step 0 stop_reason=tool_use
- `get_weather({\"city\": \"Chicago\"})` → [ok] Sunny, 72°F
*tokens: 312 in / 48 out*

## Step 1 stop_reason=end_turn
> It's sunny and 72°F in Chicago right now.
*tokens: 374 in / 21 out*

## Total tokens — input: 686 output: 69 cache_read: 0 cache_write: 0
";
    assert_eq!(result.to_markdown(), expected);
    assert_eq!(
        result.final_text(),
        Some("It's sunny and 72°F in Chicago right now.")
    );
    assert_eq!(result.stop_reason.unwrap().as_str(), "end_turn");
}
