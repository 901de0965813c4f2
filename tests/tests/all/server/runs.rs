//! Runs over HTTP: begun, watched, asked about, stopped, continued.

use std::sync::{Arc, Mutex};

use agentloop_host::{
    agent::{Deps, ToolLoop},
    approvals::ApprovalRequest,
    config::permissions::Rule,
    registry::Registry,
    server::{Bounds, NewAgent, Parts, Server, access::Access, listen::Patience},
    storage::sqlite::SqliteStore,
};
use agentloop_tests::{
    agent::{Stateless, calls, says, scripted},
    http_client::{Answer, EventStream, Request, ServerEvent},
    storage,
};
use serde_json::{Value, json};

use super::{Serving, Signals, own_tools, problem, serving_of, waiting};

/// Each run hears this script from its beginning.
fn each(replies: Value, registry: Registry, deps: Deps) -> NewAgent {
    let registry = Arc::new(registry);
    Arc::new(move || {
        let mut agent = ToolLoop::new(scripted(replies.clone()), "scripted", registry.clone());
        agent.deps = deps.clone();
        Ok(agent)
    })
}

fn server(agents: NewAgent, bounds: Bounds) -> Server {
    Server::new(Parts {
        registry: Arc::new(own_tools()).into(),
        deps: Deps::default(),
        access: Access::open(),
        bounds,
        store: storage::fresh(),
        scope: "test".to_owned(),
        agents,
        remember: None,
    })
}

/// Asks before the tools of the test's own.
fn asking() -> Deps {
    let mut deps = Deps::default();
    deps.permissions.ask = vec![Rule::parse("host.echo").unwrap()];
    deps
}

impl Serving {
    async fn begin(&self, request: Value) -> String {
        let answer = self.send(Request::post("/v1/runs", &request)).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let run = answer.json();
        let id = run["id"].as_str().unwrap().to_owned();
        assert_eq!(answer.header("location"), Some(&*format!("/v1/runs/{id}")));
        assert_eq!(id.len(), 32);
        id
    }

    async fn watch(&self, id: &str) -> EventStream {
        let request = Request::get(&format!("/v1/runs/{id}/events"));
        EventStream::open(self.address, &request).await
    }

    /// All events of a run, once it has ended.
    async fn to_the_end(&self, id: &str) -> Vec<ServerEvent> {
        self.watch(id).await.rest().await
    }

    async fn run(&self, id: &str) -> Value {
        self.send(Request::get(&format!("/v1/runs/{id}")))
            .await
            .json()
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Request::post(path, &body)).await
    }
}

fn kinds(events: &[ServerEvent]) -> Vec<&str> {
    events.iter().map(|event| event.event.as_str()).collect()
}

fn ended(events: &[ServerEvent]) -> Vec<&Value> {
    let ended = events.iter().filter(|event| event.event == "call_ended");
    ended.map(|event| &event.data).collect()
}

fn echo_then(text: &str) -> Value {
    json!([calls(&[("a", "echo", json!({"text": "hi"}))]), says(text),])
}

#[tokio::test]
async fn a_run_is_begun_watched_and_read() {
    let serving = serving_of(each(echo_then("Done."), own_tools(), Deps::default())).await;
    let id = serving.begin(json!({"prompt": "  Say\nhi "})).await;
    let events = serving.to_the_end(&id).await;
    let ids: Vec<u64> = events.iter().map(|event| event.id).collect();
    assert_eq!(ids, (0..events.len() as u64).collect::<Vec<_>>());
    for event in &events {
        assert_eq!(event.data["v"], 1);
        assert_eq!(event.data["run"], id);
        assert_eq!(event.data["seq"], event.id);
        assert_eq!(event.data["type"], event.event);
        assert!(event.data["ts"].is_u64());
    }
    let mut kinds = kinds(&events);
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "run_started",
            "turn_started",
            "tool_use_streamed",
            "turn_ended",
            "call_requested",
            "call_started",
            "call_ended",
            "turn_started",
            "text_streamed",
            "turn_ended",
            "run_ended",
        ]
    );

    let run = serving.run(&id).await;
    assert_eq!(run["state"], "completed");
    assert_eq!(run["title"], "Say hi");
    assert_eq!(run["text"], "Done.");
    assert_eq!(run["turns"], 2);
    assert_eq!(run["calls"], 1);
    assert_eq!(run["last_seq"], events.len() as u64 - 1);
    assert_eq!(run["messages"].as_array().unwrap().len(), 4);
    assert!(run["ended_ms"].as_u64() >= run["created_ms"].as_u64());

    let lines = serving
        .send(Request::get(&format!("/v1/runs/{id}/trace.jsonl")))
        .await;
    let lines: Vec<Value> = lines
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let data: Vec<Value> = events.iter().map(|event| event.data.clone()).collect();
    assert_eq!(lines, data);
    let markdown = serving
        .send(Request::get(&format!("/v1/runs/{id}/trace.md")))
        .await;
    assert!(markdown.text().contains("## Step 0 stop_reason=tool_use"));
    assert!(
        markdown
            .header("content-type")
            .unwrap()
            .starts_with("text/markdown")
    );

    // What it came to begins another one.
    let more = json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "Again"}]},
    ]});
    let other = serving.begin(more).await;
    serving.to_the_end(&other).await;
    assert_ne!(other, id);
    assert!(
        serving
            .figure("agentloop_runs_total{status=\"completed\"} 2")
            .await
    );
    assert!(serving.figure("agentloop_runs_live 0").await);
    assert!(serving.figure("agentloop_turns_total 4").await);
}

#[tokio::test]
async fn a_reader_that_comes_back_misses_nothing() {
    let serving = serving_of(each(echo_then("Done."), own_tools(), Deps::default())).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    let all = serving.to_the_end(&id).await;
    let path = format!("/v1/runs/{id}/events");
    for last in [0, 3, all.len() - 2] {
        let by_header = Request::get(&path).header("last-event-id", &last.to_string());
        let by_query = Request::get(&format!("{path}?after={last}"));
        // The header is newer than the address.
        let both =
            Request::get(&format!("{path}?after=0")).header("last-event-id", &last.to_string());
        for request in [by_header, by_query, both] {
            let rest = EventStream::open(serving.address, &request)
                .await
                .rest()
                .await;
            assert_eq!(rest, all[last + 1..]);
        }
    }
    for beyond in [all.len() - 1, 1000] {
        let answer = serving
            .send(Request::get(&format!("{path}?after={beyond}")))
            .await;
        assert_eq!(answer.status, 204);
    }
    let wrong = Request::get(&path).header("last-event-id", "x");
    problem(&serving.send(wrong).await, 400, "last_event_id");
    for query in ["after=-1", "after=x", "before=1"] {
        let answer = serving.send(Request::get(&format!("{path}?{query}"))).await;
        problem(&answer, 400, "query");
    }
    for path in ["", "/events", "/trace.md", "/trace.jsonl"] {
        let answer = serving
            .send(Request::get(&format!("/v1/runs/nope{path}")))
            .await;
        problem(&answer, 404, "unknown_run");
    }
}

#[tokio::test]
async fn one_key_begins_one_run() {
    let serving = serving_of(each(json!([says("hi")]), own_tools(), Deps::default())).await;
    let request = |prompt: &str, key: &str| {
        let request = Request::post("/v1/runs", &json!({ "prompt": prompt }));
        serving.send(request.header("idempotency-key", key))
    };
    let first = request("one", "k1").await;
    assert_eq!(first.status, 201);
    let id = first.json()["id"].clone();
    let again = request("one", "k1").await;
    assert_eq!(again.status, 200);
    assert_eq!(again.json()["id"], id);
    problem(&request("two", "k1").await, 409, "idempotency_key_reused");
    let other = request("one", "k2").await;
    assert_eq!(other.status, 201);
    assert_ne!(other.json()["id"], id);
    for key in ["", "a b", &"x".repeat(256)] {
        problem(&request("one", key).await, 400, "idempotency_key");
    }
}

#[tokio::test]
async fn what_is_asked_wrongly_is_said() {
    let serving = serving_of(each(json!([says("hi")]), own_tools(), Deps::default())).await;
    for body in [
        json!({}),
        json!({"prompt": " "}),
        json!({"prompt": "a", "messages": []}),
        json!({"messages": []}),
        json!({"messages": [{"role": "assistant", "content": []}]}),
        json!({"messages": [{"role": "system", "content": []}]}),
        json!({"prompt": "a", "model": ""}),
        json!({"prompt": "a", "tools": ["a b"]}),
        json!({"prompt": "a", "limits": {"max_iterations": 0}}),
        json!({"prompt": "a", "limits": {"max_iterations": -1}}),
        json!({"prompt": "a", "limits": {"turns": 1}}),
        json!({"prompt": "a", "temperature": 1}),
    ] {
        let answer = serving.post("/v1/runs", body.clone()).await;
        assert_eq!(answer.status, 422, "{body}");
        problem(&answer, 422, "unfit_body");
    }
    let no_model = Arc::new(|| Err("no model is named".to_owned()));
    let serving = serving_of(no_model).await;
    let answer = serving.post("/v1/runs", json!({"prompt": "a"})).await;
    assert_eq!(
        problem(&answer, 503, "no_model")["detail"],
        "no model is named"
    );
}

#[tokio::test]
async fn a_request_only_narrows_what_the_operator_allows() {
    let serving = serving_of(each(echo_then("Done."), own_tools(), Deps::default())).await;
    let id = serving
        .begin(json!({
            "prompt": "a",
            "model": "another",
            "tools": ["host.f*"],
            "limits": {"max_iterations": 1000, "max_tokens": 10, "wall_time_ms": 600_000},
        }))
        .await;
    let events = serving.to_the_end(&id).await;
    assert_eq!(events[0].data["model"], "another");
    assert_eq!(events[0].data["tools"], json!(["fail"]));
    assert_eq!(ended(&events)[0]["outcome"], "unknown_tool");

    let once = serving
        .begin(json!({"prompt": "a", "limits": {"max_iterations": 1}}))
        .await;
    serving.to_the_end(&once).await;
    assert_eq!(serving.run(&once).await["state"], "iteration_limit");
    // Not the thousand of the request.
    let many: Vec<Value> = (0..20)
        .map(|n| calls(&[("", "echo", json!({ "text": n.to_string() }))]))
        .collect();
    let serving = serving_of(each(many.into(), own_tools(), Deps::default())).await;
    let id = serving
        .begin(json!({"prompt": "a", "limits": {"max_iterations": 1000}}))
        .await;
    serving.to_the_end(&id).await;
    let run = serving.run(&id).await;
    assert_eq!(
        (&run["state"], &run["turns"]),
        (&json!("iteration_limit"), &json!(10))
    );
}

#[tokio::test]
async fn parallel_calls_are_asked_about_and_each_gets_its_own_answer() {
    let two = json!([
        calls(&[
            ("a", "echo", json!({"text": "first"})),
            ("b", "echo", json!({"text": "second"})),
        ]),
        says("Done."),
    ]);
    let serving = serving_of(each(two, own_tools(), asking())).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    let questions = serving.questions(2).await;
    assert_eq!(questions.len(), 2);
    for (question, (call, text)) in questions.iter().zip([("a", "first"), ("b", "second")]) {
        assert_eq!(question["run"], id);
        assert_eq!(question["call"], call);
        assert_eq!(question["rule_name"], "host.echo");
        assert_eq!(question["arguments"], json!({ "text": text }));
        assert!(question["why"].as_str().unwrap().contains("host.echo"));
    }
    assert_eq!(serving.run(&id).await["state"], "waiting");
    assert!(serving.figure("agentloop_approvals_pending 2").await);

    // The second is answered first.
    let denied = serving
        .answer(
            &questions[1],
            json!({"verdict": "deny", "reason": "one is enough"}),
        )
        .await;
    assert_eq!(denied.status, 200);
    let late = serving
        .answer(&questions[1], json!({"verdict": "once"}))
        .await;
    problem(&late, 409, "already_answered");
    assert_eq!(serving.questions(1).await.len(), 1);
    assert_eq!(
        serving
            .answer(&questions[0], json!({"verdict": "once"}))
            .await
            .status,
        200
    );

    let events = serving.to_the_end(&id).await;
    let ended = ended(&events);
    let of = |call: &str| *ended.iter().find(|ended| ended["id"] == call).unwrap();
    assert_eq!(of("a")["outcome"], "ok");
    assert_eq!(of("b")["outcome"], "denied");
    assert!(of("b")["result"].to_string().contains("one is enough"));
    assert_eq!(serving.run(&id).await["state"], "completed");

    let unknown = serving
        .answer(&json!({"id": "0"}), json!({"verdict": "once"}))
        .await;
    problem(&unknown, 404, "unknown_approval");
    for wrong in [
        json!({"verdict": "yes"}),
        json!({"verdict": "once", "reason": "why"}),
        json!({"verdict": "deny", "reason": "x".repeat(5000)}),
        json!({}),
    ] {
        problem(
            &serving.answer(&questions[0], wrong).await,
            422,
            "unfit_body",
        );
    }
}

#[tokio::test]
async fn an_answer_can_hold_for_the_run_or_for_good() {
    let twice = json!([
        calls(&[("a", "echo", json!({"text": "1"}))]),
        calls(&[("b", "echo", json!({"text": "2"}))]),
        says("Done."),
    ]);
    let written = Arc::new(Mutex::new(Vec::new()));
    let server = Server::new(Parts {
        registry: Arc::new(own_tools()).into(),
        deps: asking(),
        access: Access::open(),
        bounds: Bounds::default(),
        store: storage::fresh(),
        scope: "test".to_owned(),
        agents: each(twice, own_tools(), asking()),
        remember: Some(Arc::new({
            let written = Arc::clone(&written);
            move |request: &ApprovalRequest| {
                written.lock().unwrap().push(request.rule_name.clone());
                Ok("it is in the file".to_owned())
            }
        })),
    });
    let serving = Serving::start(server, Patience::default()).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    let question = serving.question().await;
    serving.answer(&question, json!({"verdict": "run"})).await;
    let events = serving.to_the_end(&id).await;
    assert_eq!(ended(&events).len(), 2);
    assert!(written.lock().unwrap().is_empty());

    // Another run asks again.
    let id = serving.begin(json!({"prompt": "hi"})).await;
    let question = serving.question().await;
    let answer = serving
        .answer(&question, json!({"verdict": "always"}))
        .await;
    assert_eq!(answer.json()["remembered"], "it is in the file");
    assert_eq!(*written.lock().unwrap(), ["host.echo"]);
    serving.to_the_end(&id).await;
    // And no further one does, nor does a client's own call.
    let id = serving.begin(json!({"prompt": "hi"})).await;
    serving.to_the_end(&id).await;
    let call = serving
        .post("/v1/tools/echo/call", json!({"arguments": {"text": "x"}}))
        .await;
    assert_eq!(call.json()["outcome"], "ok");
}

#[tokio::test]
async fn a_run_is_cancelled_with_its_calls_and_its_questions() {
    let signals = Signals::default();
    let tool = waiting(&signals.started, &signals.go_on, &signals.dropped);
    let registry = Registry::new([tool]).unwrap();
    let wait = json!([calls(&[("a", "wait", json!({}))]), says("Done.")]);
    let serving = serving_of(each(wait, registry, Deps::default())).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    signals.started.notified().await;
    assert_eq!(serving.run(&id).await["state"], "running");
    let markdown = Request::get(&format!("/v1/runs/{id}/trace.md"));
    let so_far = serving.send(markdown).await;
    assert!(so_far.text().contains("## Step 0 stop_reason=tool_use"));
    let more = serving
        .post(&format!("/v1/runs/{id}/messages"), json!({"text": "more"}))
        .await;
    problem(&more, 409, "run_is_live");
    let cancelled = serving
        .send(Request::new("POST", &format!("/v1/runs/{id}/cancel")))
        .await;
    assert_eq!(cancelled.status, 202);
    signals.dropped.notified().await;
    serving.to_the_end(&id).await;
    assert_eq!(serving.run(&id).await["state"], "cancelled");
    // Once more changes nothing.
    let again = serving
        .send(Request::new("POST", &format!("/v1/runs/{id}/cancel")))
        .await;
    assert_eq!(again.json()["state"], "cancelled");

    let serving = serving_of(each(echo_then("Done."), own_tools(), asking())).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    let question = serving.question().await;
    serving
        .send(Request::new("POST", &format!("/v1/runs/{id}/cancel")))
        .await;
    serving.to_the_end(&id).await;
    let late = serving.answer(&question, json!({"verdict": "once"})).await;
    problem(&late, 409, "no_longer_asked");
    assert!(serving.figure("agentloop_approvals_pending 0").await);
}

#[tokio::test]
async fn a_run_goes_on_with_what_it_has() {
    let model = scripted(json!([
        says("One."),
        {"expect": {"messages": 3, "text": "And?"}, "content": [{"type": "text", "text": "Two."}]},
    ]));
    let agents: NewAgent = Arc::new(move || {
        let registry = Arc::new(own_tools());
        Ok(ToolLoop::new(model.clone(), "scripted", registry))
    });
    let serving = serving_of(agents).await;
    let id = serving.begin(json!({"prompt": "Well?"})).await;
    let first = serving.to_the_end(&id).await;
    let path = format!("/v1/runs/{id}/messages");
    problem(
        &serving.post(&path, json!({"text": ""})).await,
        422,
        "unfit_body",
    );
    let on = serving.post(&path, json!({"text": "And?"})).await;
    assert_eq!(on.status, 202);
    let last = first.last().unwrap().id;
    let request = Request::get(&format!("/v1/runs/{id}/events?after={last}"));
    let second = EventStream::open(serving.address, &request)
        .await
        .rest()
        .await;
    assert_eq!(second[0].id, last + 1);
    assert_eq!(second.last().unwrap().event, "run_ended");
    let run = serving.run(&id).await;
    assert_eq!(run["text"], "Two.");
    assert_eq!(run["messages"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn a_full_server_takes_no_further_run() {
    let bounds = Bounds {
        live_runs: 1,
        ended_runs: 2,
        ..Bounds::default()
    };
    let agents = each(echo_then("Done."), own_tools(), asking());
    let serving = Serving::start(server(agents, bounds), Patience::default()).await;
    let first = serving.begin(json!({"prompt": "0"})).await;
    let full = serving.post("/v1/runs", json!({"prompt": "x"})).await;
    problem(&full, 429, "busy");
    assert_eq!(full.header("retry-after"), Some("5"));
    let keyed = Request::post("/v1/runs", &json!({"prompt": "x"})).header("idempotency-key", "k");
    problem(&serving.send(keyed).await, 429, "busy");
    let mut ids = vec![first];
    for n in 1..4 {
        let question = serving.question().await;
        serving.answer(&question, json!({"verdict": "once"})).await;
        serving.to_the_end(ids.last().unwrap()).await;
        ids.push(serving.begin(json!({"prompt": n.to_string()})).await);
    }
    // Two that ended are kept, and the live one; newest first.
    let listed = |query: &str| serving.send(Request::get(&format!("/v1/runs{query}")));
    let of = |answer: &Answer| -> Vec<String> {
        let runs = answer.json()["runs"].as_array().unwrap().clone();
        runs.iter()
            .map(|run| run["id"].as_str().unwrap().to_owned())
            .collect()
    };
    serving.question().await;
    let all = listed("").await;
    assert_eq!(of(&all), [&*ids[3], &*ids[2], &*ids[1]]);
    assert_eq!(all.json()["next"], Value::Null);
    let page = listed("?limit=2").await;
    assert_eq!(of(&page), [&*ids[3], &*ids[2]]);
    let next = page.json()["next"].as_u64().unwrap();
    assert_eq!(
        of(&listed(&format!("?limit=2&before={next}")).await),
        [&*ids[1]]
    );
    assert_eq!(of(&listed("?state=waiting").await), [&*ids[3]]);
    assert_eq!(of(&listed("?state=completed&limit=1").await), [&*ids[2]]);
    for query in ["?limit=0", "?limit=501", "?limit=x", "?order=up"] {
        problem(&listed(query).await, 400, "query");
    }
    let gone = serving
        .send(Request::get(&format!("/v1/runs/{}", ids[0])))
        .await;
    problem(&gone, 404, "unknown_run");
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_up_nobody() {
    let text = "word ".repeat(200_000);
    let serving = serving_of(each(json!([says(&text)]), own_tools(), Deps::default())).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    let idle = serving.watch(&id).await;
    let mut readers = Vec::new();
    for _ in 0..5 {
        let reader = serving.watch(&id).await;
        readers.push(tokio::spawn(reader.rest()));
    }
    let mut n_events = Vec::new();
    for reader in readers {
        n_events.push(reader.await.unwrap().len());
    }
    assert_eq!(serving.run(&id).await["state"], "completed");
    let all = idle.rest().await;
    assert_eq!(n_events, [all.len(); 5]);
}

#[tokio::test]
async fn stopping_ends_runs_that_wait_and_their_streams() {
    let agents = each(echo_then("Done."), own_tools(), asking());
    let serving = serving_of(agents).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    serving.question().await;
    let reader = serving.watch(&id).await;
    serving.stop.cancel();
    reader.rest().await;
    serving.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_at_once_each_seen_to_its_end() {
    const RUNS: usize = 300;
    let serving = serving_of(each(echo_then("Done."), own_tools(), Deps::default())).await;
    let serving = Arc::new(serving);
    let mut watching = Vec::new();
    for n in 0..RUNS {
        let serving = Arc::clone(&serving);
        watching.push(tokio::spawn(async move {
            let id = serving.begin(json!({ "prompt": n.to_string() })).await;
            serving.to_the_end(&id).await
        }));
    }
    for events in watching {
        let events = events.await.unwrap();
        let ids: Vec<u64> = events.iter().map(|event| event.id).collect();
        assert_eq!(ids, (0..events.len() as u64).collect::<Vec<_>>());
        assert_eq!(events.last().unwrap().data["status"], "completed");
    }
    let done = format!("agentloop_runs_total{{status=\"completed\"}} {RUNS}");
    assert!(serving.figure(&done).await);
}

#[tokio::test]
async fn a_full_disk_puts_runs_away_and_room_lets_them_go_on() {
    let store = Arc::new(SqliteStore::temporary().unwrap());
    let signals = Signals::default();
    let tool = waiting(&signals.started, &signals.go_on, &signals.dropped);
    let registry = Arc::new(Registry::new([tool]).unwrap());
    let big = "x".repeat(200_000);
    let model = Stateless::new(json!([
        calls(&[("a", "wait", json!({}))]),
        calls(&[("b", "nothing", json!({ "text": big }))]),
        says("Done."),
    ]));
    let agents: NewAgent =
        Arc::new(move || Ok(ToolLoop::new(model.clone(), "stateless", registry.clone())));
    let server = Server::new(Parts {
        registry: Arc::new(own_tools()).into(),
        deps: Deps::default(),
        access: Access::open(),
        bounds: Bounds::default(),
        store: store.clone(),
        scope: "test".to_owned(),
        agents,
        remember: None,
    });
    let serving = Serving::start(server, Patience::default()).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    signals.started.notified().await;
    store.set_max_bytes(1).await.unwrap();
    signals.go_on.notify_one();
    // The second turn needs room.
    loop {
        let full = serving
            .post("/v1/runs", json!({ "prompt": "y".repeat(200_000) }))
            .await;
        if full.status == 503 {
            problem(&full, 503, "storage_unavailable");
            assert!(full.header("retry-after").is_some());
            assert!(full.text().contains("is full"), "{}", full.text());
            break;
        }
    }
    serving.wait_for_figure("agentloop_runs_live 0").await;
    assert_eq!(serving.run(&id).await["state"], "running");
    store.set_max_bytes(1 << 30).await.unwrap();
    let events = serving.to_the_end(&id).await;
    let run = serving.run(&id).await;
    assert_eq!(
        (&run["state"], &run["text"]),
        (&json!("completed"), &json!("Done."))
    );
    assert_eq!(ended(&events).len(), 2);
    assert!(store.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_server_shows_answers_and_drives_its_own_scope_only() {
    let store = storage::fresh();
    let in_scope = |scope: &str| {
        let server = Server::new(Parts {
            registry: Arc::new(own_tools()).into(),
            deps: Deps::default(),
            access: Access::open(),
            bounds: Bounds::default(),
            store: Arc::clone(&store),
            scope: scope.to_owned(),
            agents: each(echo_then("Done."), own_tools(), asking()),
            remember: None,
        });
        Serving::start(server, Patience::default())
    };
    let (ours, theirs) = (in_scope("ours").await, in_scope("theirs").await);
    let id = ours.begin(json!({"prompt": "hi"})).await;
    let question = ours.question().await;
    let unknown = theirs.send(Request::get(&format!("/v1/runs/{id}"))).await;
    problem(&unknown, 404, "unknown_run");
    let listed = theirs.send(Request::get("/v1/runs")).await.json();
    assert_eq!(listed["runs"], json!([]));
    let open = theirs.send(Request::get("/v1/approvals")).await.json();
    assert_eq!(open["approvals"], json!([]));
    let answer = theirs.answer(&question, json!({"verdict": "once"})).await;
    problem(&answer, 404, "unknown_approval");
    let cancelled = Request::new("POST", &format!("/v1/runs/{id}/cancel"));
    problem(&theirs.send(cancelled).await, 404, "unknown_run");
    let answer = ours.answer(&question, json!({"verdict": "once"})).await;
    assert_eq!(answer.status, 200);
    ours.to_the_end(&id).await;
    assert_eq!(ours.run(&id).await["state"], "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_readers_each_see_everything() {
    let signals = Signals::default();
    let tool = waiting(&signals.started, &signals.go_on, &signals.dropped);
    let registry = Registry::new([tool]).unwrap();
    let replies = json!([
        calls(&[("a", "wait", json!({}))]),
        says("word ".repeat(200).as_str())
    ]);
    let serving = serving_of(each(replies, registry, Deps::default())).await;
    let id = serving.begin(json!({"prompt": "hi"})).await;
    signals.started.notified().await;
    let mut readers = Vec::new();
    for _ in 0..500 {
        let reader = serving.watch(&id).await;
        readers.push(tokio::spawn(reader.rest()));
    }
    signals.go_on.notify_one();
    let all = serving.to_the_end(&id).await;
    for reader in readers {
        assert_eq!(reader.await.unwrap(), all);
    }
}
