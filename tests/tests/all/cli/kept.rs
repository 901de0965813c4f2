//! Runs that are kept: looked at, gone on with, asked about from elsewhere, and what is left when a host is killed.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use agentloop_tests::{
    endpoint::n_replies,
    http_client::{EventStream, Request},
    servers::{self, Reply},
};
use tokio::sync::Notify;

use super::*;

impl Person {
    fn runs(&self) -> Vec<Value> {
        let listed = self.run(&["runs", "--json"]).is(0).json();
        listed["runs"].as_array().unwrap().clone()
    }

    fn approvals(&self) -> Vec<Value> {
        let listed = self.run(&["approvals", "--json"]).is(0).json();
        listed["approvals"].as_array().unwrap().clone()
    }

    /// Lets `fetch` send to this server, without being asked.
    fn may_send_to(&self, server: &servers::Server) {
        let settings = format!(
            "[permissions]\nallow = [\"fetch.fetch\"]\n[grants.fetch]\nhttp = [{{ origin = \"{}\", methods = [\"POST\"] }}]\n",
            server.origin()
        );
        self.write("agentloop.toml", settings);
        self.run(&["config", "trust", "--yes"]).is(0);
    }
}

fn post(id: &str, url: &str) -> Value {
    tool_use(
        id,
        "fetch",
        json!({"url": url, "method": "POST", "body": "pay"}),
    )
}

#[test]
fn a_run_is_kept_shown_gone_on_with_and_forked() {
    let person = Person::with_tools();
    let replies = json!([
        calls(&[tool_use("a", "echo", json!({"text": "hi"}))]),
        text("One.")
    ]);
    person
        .run_scripted(&replies, &["Say hi", "-q"])
        .is(0)
        .prints("One.\n");
    let runs = person.runs();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0]["title"], "Say hi");
    assert_eq!(runs[0]["state"], "completed");
    assert_eq!(
        (&runs[0]["turns"], &runs[0]["calls"]),
        (&json!(2), &json!(1))
    );
    let id = runs[0]["id"].as_str().unwrap();
    let short = &id[..8];
    let list = person.run(&["runs"]).is(0).stdout;
    assert!(list.contains(short) && list.contains("Say hi"), "{list}");
    let shown = person.run(&["runs", "show", short]).is(0).stdout;
    for words in [id, "completed", "echo", "ok", "One."] {
        assert!(shown.contains(words), "no `{words}` in {shown}");
    }
    let whole = person.run(&["runs", "show", id, "--json"]).is(0).json();
    assert_eq!(whole["final_text"], "One.");
    assert_eq!(whole["run"]["id"], id);
    assert_paired(&whole["messages"]);
    let markdown = person.run(&["runs", "show", "last", "--markdown"]).is(0);
    assert!(markdown.stdout.contains("## Step 0 stop_reason=tool_use"));
    let events = lines(
        &person
            .run(&["runs", "show", short, "--events"])
            .is(0)
            .stdout,
    );
    for (n, event) in events.iter().enumerate() {
        assert_eq!((&event["seq"], &event["run"]), (&json!(n), &json!(id)));
    }

    // The next task goes into the same run, with all that was said.
    let more = json!([{
        "expect": {"messages": 5, "text": "And now?"},
        "content": [{"type": "text", "text": "Two."}],
    }]);
    person
        .run_scripted(&more, &["And now?", "--resume", short])
        .is(0)
        .prints("Two.\n");
    assert_eq!(person.runs().len(), 1);
    person
        .run_scripted(&more, &["And now?", "--fork", "last"])
        .is(5)
        .says(&["7 messages"]);
    let fork = json!([{"expect": {"messages": 7}, "content": [{"type": "text", "text": "Fork."}]}]);
    person
        .run_scripted(&fork, &["And now?", "--fork", short])
        .is(0)
        .prints("Fork.\n");
    assert_eq!(person.runs().len(), 3);

    person
        .run_scripted(&json!([text("x")]), &["go", "--ephemeral"])
        .is(0);
    assert_eq!(person.runs().len(), 3);
    person
        .run(&["run", "--resume", "zzzz", "go"])
        .is(2)
        .says(&["`agentloop-host runs`"]);
    person
        .run(&["runs", "show", "a"])
        .is(2)
        .says(&["four digits"]);

    person.run(&["check"]).is(0);
    let copy = person.path("copy.db");
    person.run(&["backup", copy.to_str().unwrap()]).is(0);
    assert!(fs::metadata(&copy).unwrap().len() > 0);
    person.run(&["backup", copy.to_str().unwrap()]).is(1);
}

#[test]
fn a_call_is_answered_from_another_terminal_days_later() {
    let person = Person::with_tools();
    let replies = json!([calls(&[
        tool_use("a", "echo", json!({"text": "first \u{1b}[31m"})),
        tool_use("b", "echo", json!({"text": "second"})),
    ])]);
    let ask = ["--set", "permissions.ask=helpful.echo"];
    let waits = person
        .run_scripted(&replies, &[&["go", "--unattended"][..], &ask].concat())
        .is(9)
        .says(&["run --resume"]);
    assert_eq!(waits.stdout, "");
    assert_eq!(person.runs()[0]["state"], "waiting");
    let open = person.approvals();
    assert_eq!(open.len(), 2);
    assert_eq!(open[0]["arguments"], json!({"text": "first \u{1b}[31m"}));
    let listed = person.run(&["approvals"]).is(0).stdout;
    assert!(
        listed.contains("second") && !listed.contains('\u{1b}'),
        "{listed}"
    );

    let id = |n: usize| open[n]["id"].as_str().unwrap();
    person.run(&["approve", &id(1)[..8]]).is(0);
    person
        .run(&["approve", &id(1)[..8]])
        .is(1)
        .says(&["takes no answer"]);
    person.run(&["approve", id(1)]).is(1).says(&["answered"]);
    person.run(&["deny", id(0), "one is enough"]).is(0);
    assert!(person.approvals().is_empty());
    // The answers were for this very call: the model is not asked before they are used.
    let end = json!([{"expect": {"messages": 3}, "content": [{"type": "text", "text": "Done."}]}]);
    person
        .run_scripted(&end, &[&["--resume", "last"][..], &ask].concat())
        .is(0)
        .prints("Done.\n");
    let whole = person.run(&["runs", "show", "last", "--json"]).is(0).json();
    let calls = whole["trace"][0]["calls"].as_array().unwrap().clone();
    assert_eq!(calls[0]["outcome"], "denied");
    assert!(calls[0]["result"].to_string().contains("one is enough"));
    assert_eq!(calls[1]["outcome"], "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_program_is_killed_in_a_call_does_not_make_it_again() {
    let arrived = Arc::new(Notify::new());
    let server = servers::Server::start({
        let arrived = Arc::clone(&arrived);
        move |_| {
            arrived.notify_one();
            Reply::silent()
        }
    })
    .await;
    let pay = Answer::reply(json!([post("toolu_1", &server.url("/pay"))]));
    let model = Endpoint::stateless(move |body| match n_replies(body) {
        0 => Some(pay.clone()),
        _ => Some(Answer::text("Done.")),
    });
    let person = Person::initialised();
    person.may_send_to(&server);
    let mut child = person.ask(&model, &["pay"]).spawn().unwrap();
    arrived.notified().await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(person.runs()[0]["state"], "running");
    let resumed = person
        .ask(&model, &["--resume", "last", "--json"])
        .spawn()
        .unwrap();
    let resumed = finish(resumed).is(0).json();
    assert_eq!(resumed["final_text"], "Done.");
    let call = &resumed["trace"][0]["calls"][0];
    assert_eq!(call["outcome"], "outcome_unknown");
    assert_paired(&resumed["messages"]);
    assert_eq!(server.requests().len(), 1, "it was sent once");
}

/// `serve` in a person's folder.
struct Serving {
    child: Child,
    address: SocketAddr,
}

impl Serving {
    fn start(person: &Person, model: &Endpoint) -> Self {
        let mut command = person.command(&["serve", "--listen", "127.0.0.1:0"]);
        let mut child = command
            .args(["--provider", "anthropic", "--model", "m"])
            .args(["--base-url", &model.base_url()])
            .env("ANTHROPIC_API_KEY", "test-key")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("http://")
            .unwrap()
            .parse()
            .unwrap();
        Self { child, address }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_again_and_again_loses_nothing_and_pays_once() {
    const RUNS: usize = 24;
    const KILLS: usize = 6;
    let paid: Arc<[AtomicUsize]> = (0..2 * RUNS).map(|_| AtomicUsize::new(0)).collect();
    let news = Arc::new(Notify::new());
    let server = servers::Server::start({
        let (paid, news) = (Arc::clone(&paid), Arc::clone(&news));
        move |request| {
            let n: usize = request.target.trim_start_matches('/').parse().unwrap();
            paid[n].fetch_add(1, Ordering::SeqCst);
            news.notify_one();
            Reply::text("paid")
        }
    })
    .await;
    // What a run pays follows from its task, which the model sees.
    let origin = server.origin();
    let model = Endpoint::stateless(move |body| {
        let task = body["messages"][0]["content"].to_string();
        let digits: String = task.chars().filter(char::is_ascii_digit).collect();
        let task: usize = digits.parse().unwrap();
        let url = |which: usize| format!("{origin}/{}", 2 * task + which);
        Some(match n_replies(body) {
            0 => Answer::reply(json!([
                post("toolu_1", &url(0)),
                tool_use("toolu_2", "now", json!({}))
            ])),
            1 => Answer::reply(json!([post("toolu_3", &url(1))])),
            _ => Answer::text("Done."),
        })
    });
    let person = Person::initialised();
    person.may_send_to(&server);

    let mut serving = Serving::start(&person, &model);
    let mut ids = Vec::new();
    for n in 0..RUNS {
        let body = json!({ "prompt": format!("task {n}") });
        let answer = Request::post("/v1/runs", &body).send(serving.address).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        ids.push(answer.json()["id"].as_str().unwrap().to_owned());
    }
    for _ in 0..KILLS {
        // Some way into the work.
        for _ in 0..3 {
            tokio::select! {
                () = news.notified() => {}
                () = tokio::time::sleep(Duration::from_millis(300)) => break,
            }
        }
        serving.kill();
        serving = Serving::start(&person, &model);
    }
    let mut n_unknown = 0;
    for id in &ids {
        let request = Request::get(&format!("/v1/runs/{id}/events"));
        let events = EventStream::open(serving.address, &request)
            .await
            .rest()
            .await;
        let seqs: Vec<u64> = events.iter().map(|event| event.id).collect();
        assert_eq!(seqs, (0..events.len() as u64).collect::<Vec<_>>());
        let run = Request::get(&format!("/v1/runs/{id}"))
            .send(serving.address)
            .await
            .json();
        assert_eq!(run["state"], "completed", "{run}");
        assert_eq!(run["text"], "Done.");
        assert_paired(&run["messages"]);
        let ended = events.iter().filter(|event| event.event == "call_ended");
        let outcomes: Vec<_> = ended.map(|event| event.data["outcome"].clone()).collect();
        assert_eq!(outcomes.len(), 3, "{outcomes:?}");
        n_unknown += outcomes
            .iter()
            .filter(|outcome| *outcome == "outcome_unknown")
            .count();
    }
    serving.kill();
    let paid: Vec<usize> = paid
        .iter()
        .map(|paid| paid.load(Ordering::SeqCst))
        .collect();
    assert!(paid.iter().all(|paid| *paid <= 1), "{paid:?}");
    let n_paid: usize = paid.iter().sum();
    assert!(
        n_paid + n_unknown >= 2 * RUNS,
        "{n_paid} paid, {n_unknown} unknown"
    );
    person.run(&["check"]).is(0);
}
