//! MCP servers as tools: what is taken of them, how calls end, and that they are never taken for sandboxed.

use std::{fs, path::Path, process::Command, sync::Arc, time::Duration};

use agentloop_host::{
    agent::{Deps, run_calls},
    config::permissions::{Mode, Rule},
    http::ClientSettings,
    ids::PluginName,
    peers::{Peer, PeerAt, PeerSettings},
    registry::Registry,
    tool::{Content, ToolOutcome},
    transcript::ToolUse,
};
use agentloop_tests::binary;
use serde_json::{Value, json};

fn settings(tools: &[&str]) -> PeerSettings {
    PeerSettings {
        name: PluginName::parse("peer").unwrap(),
        at: PeerAt::Command {
            argv: vec![env!("CARGO_BIN_EXE_peer").to_owned()],
            environment: Vec::new(),
        },
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        timeout: Some(Duration::from_secs(20)),
    }
}

async fn registry(settings: PeerSettings) -> Registry {
    let offer = Peer::connect(settings, ClientSettings::default()).await;
    Registry::default().with_peers(&[offer.unwrap()])
}

fn deps(mode: Mode) -> Deps {
    let mut deps = Deps::default();
    deps.permissions.mode = mode;
    deps
}

async fn call(registry: &Registry, tool: &str, input: Value, deps: &Deps) -> ToolOutcome {
    let call = ToolUse::new("call", tool, input).unwrap();
    let mut records = run_calls(&[call.into()], registry, deps).await;
    records.remove(0).outcome
}

fn text(outcome: &ToolOutcome) -> &str {
    match outcome {
        ToolOutcome::Answered(content) => match content.as_slice() {
            [Content::Text(text)] => text,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn names(registry: &Registry) -> Vec<String> {
    registry.names().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn only_listed_tools_are_taken_and_the_others_are_named() {
    let some = registry(settings(&["echo", "odd.name", "missing"])).await;
    assert_eq!(names(&some), ["peer__echo", "peer__odd_name"]);
    let why: Vec<_> = some.set_aside().iter().map(|a| a.why.clone()).collect();
    assert!(why.iter().any(|why| why.contains("unlisted")), "{why:?}");
    assert!(why.iter().any(|why| why.contains("`missing`")), "{why:?}");
    let none = registry(settings(&[])).await;
    assert!(none.tools().is_empty());
    let all = registry(settings(&["*"])).await;
    assert_eq!(all.tools().len(), 11);
    assert!(all.set_aside().is_empty());
}

/// Nobody here knows what it touches: no mode but `auto` and no rule but `allow` lets it run unasked.
#[tokio::test]
async fn calls_are_asked_about() {
    let registry = registry(settings(&["echo"])).await;
    let tool = registry.get("peer__echo").unwrap();
    assert_eq!(tool.rule_name, "peer.echo");
    assert!(tool.reach.as_ref().unwrap().is_outside());
    let input = || json!({ "text": "hi" });
    for mode in [Mode::Ask, Mode::Deny] {
        let outcome = call(&registry, "peer__echo", input(), &deps(mode)).await;
        assert!(
            matches!(&outcome, ToolOutcome::Denied { reason } if reason.contains("outside the sandbox")),
            "{outcome:?}"
        );
    }
    let outcome = call(&registry, "peer__echo", input(), &deps(Mode::Auto)).await;
    assert_eq!(text(&outcome), "hi");
    let mut allowed = Deps::default();
    let rule = Rule::parse("peer.echo").unwrap();
    allowed.permissions.allow.push(rule);
    let outcome = call(&registry, "peer__echo", input(), &allowed).await;
    assert_eq!(text(&outcome), "hi");
}

#[tokio::test]
async fn answers_of_every_kind_arrive() {
    let registry = registry(settings(&["*"])).await;
    let deps = deps(Mode::Auto);
    let outcome = call(&registry, "peer__fail", json!({ "text": "no" }), &deps).await;
    assert_eq!(
        outcome,
        ToolOutcome::Failed {
            message: "no".to_owned()
        }
    );
    let outcome = call(&registry, "peer__picture", json!({}), &deps).await;
    let picture = Content::Image {
        media_type: "image/png".to_owned(),
        data: vec![0, 255, 128],
    };
    assert_eq!(outcome, ToolOutcome::Answered(vec![picture]));
    let outcome = call(&registry, "peer__structured", json!({}), &deps).await;
    let structured = Content::Json(json!({ "a": 1 }));
    assert_eq!(outcome, ToolOutcome::Answered(vec![structured]));
    let outcome = call(&registry, "peer__echo", json!({}), &deps).await;
    assert!(
        matches!(outcome, ToolOutcome::InvalidArguments { .. }),
        "checked here before the server sees them: {outcome:?}"
    );
}

#[tokio::test]
async fn a_server_sees_few_variables() {
    let mut settings = settings(&["variables"]);
    if let PeerAt::Command { environment, .. } = &mut settings.at {
        environment.push(agentloop_host::capability::EnvironmentGrant {
            name: "GRANTED".to_owned(),
            value: "1".to_owned(),
        });
    }
    let registry = registry(settings).await;
    let outcome = call(&registry, "peer__variables", json!({}), &deps(Mode::Auto)).await;
    let seen = text(&outcome);
    assert!(seen.contains("GRANTED") && seen.contains("PATH"), "{seen}");
    // Set for every test.
    assert!(!seen.contains("CARGO"), "{seen}");
}

#[tokio::test]
async fn a_server_that_dies_is_started_again() {
    let registry = registry(settings(&["*"])).await;
    let deps = deps(Mode::Auto);
    let count = async || text(&call(&registry, "peer__count", json!({}), &deps).await).to_owned();
    assert_eq!((count().await, count().await), ("1".into(), "2".into()));
    let outcome = call(&registry, "peer__die", json!({}), &deps).await;
    assert!(matches!(outcome, ToolOutcome::Failed { .. }), "{outcome:?}");
    assert_eq!(count().await, "1");
}

#[tokio::test]
async fn a_reply_without_end_is_no_answer() {
    let mut settings = settings(&["flood", "count"]);
    // Its end comes at once, and waits for no deadline.
    settings.timeout = None;
    let registry = registry(settings).await;
    let deps = deps(Mode::Auto);
    let counted = call(&registry, "peer__count", json!({}), &deps).await;
    assert_eq!(text(&counted), "1");
    let outcome = call(&registry, "peer__flood", json!({}), &deps).await;
    assert!(
        matches!(&outcome, ToolOutcome::Failed { message } if message.contains("16777216 bytes")),
        "{outcome:?}"
    );
    // The server was ended, and the next call starts it anew.
    let counted = call(&registry, "peer__count", json!({}), &deps).await;
    assert_eq!(text(&counted), "1");
}

fn is_alive(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat"));
    // A zombie has ended.
    status.is_ok_and(|stat| !stat.contains(") Z"))
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_deadline_ends_the_server_and_all_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let mut settings = settings(&["hang", "echo"]);
    settings.timeout = Some(Duration::from_millis(500));
    let registry = registry(settings).await;
    let deps = deps(Mode::Auto);
    let input = json!({ "text": file });
    let outcome = call(&registry, "peer__hang", input, &deps).await;
    assert!(
        matches!(outcome, ToolOutcome::TimedOut { .. }),
        "{outcome:?}"
    );
    let child = fs::read_to_string(&file).unwrap();
    while is_alive(&child) {
        tokio::task::yield_now().await;
    }
    let outcome = call(&registry, "peer__echo", json!({ "text": "again" }), &deps).await;
    assert_eq!(text(&outcome), "again");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_cancelled_call_ends_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let registry = Arc::new(registry(settings(&["hang"])).await);
    let input = json!({ "text": file });
    let calling = tokio::spawn({
        let registry = registry.clone();
        async move { call(&registry, "peer__hang", input, &deps(Mode::Auto)).await }
    });
    let child = loop {
        match fs::read_to_string(&file) {
            Ok(pid) if !pid.is_empty() => break pid,
            _ => tokio::task::yield_now().await,
        }
    };
    assert!(is_alive(&child));
    calling.abort();
    while is_alive(&child) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_no_server_is_told() {
    for (argv, says) in [
        (vec!["/no/such/program"], "can't be started"),
        (vec!["true"], "MCP server"),
        (vec![], "no command"),
    ] {
        let mut settings = settings(&["*"]);
        settings.at = PeerAt::Command {
            argv: argv.into_iter().map(str::to_owned).collect(),
            environment: Vec::new(),
        };
        let error = match Peer::connect(settings, ClientSettings::default()).await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{says}"),
        };
        assert!(error.contains(says), "{error}");
    }
}

/// From settings to a call, as a person sees it; and an untrusted project's file starts nothing.
#[test]
fn the_program_uses_servers_of_its_settings() {
    let dir = tempfile::tempdir().unwrap();
    let command = json!([env!("CARGO_BIN_EXE_peer")]);
    let file = format!("[mcp.peer]\ncommand = {command}\ntools = [\"echo\"]\n");
    fs::write(dir.path().join("agentloop.toml"), file).unwrap();
    let run = |args: &[&str]| {
        let program = env!("CARGO_BIN_EXE_program");
        let home = dir.path().join("home");
        binary::run(binary::command(program, dir.path(), &home).args(args))
    };
    let listed = run(&["tools", "--trust"]);
    assert!(
        listed.stdout.contains("peer__echo") && listed.stdout.contains("outside the sandbox"),
        "{listed:?}"
    );
    let json = run(&["tools", "--trust", "--json"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["tools"][0]["sandboxed"], false);
    let denied = run(&["call", "peer__echo", r#"{"text":"hi"}"#, "--trust"]);
    assert_ne!(denied.code, 0, "nobody is there to be asked: {denied:?}");
    let called = run(&[
        "call",
        "peer__echo",
        r#"{"text":"hi"}"#,
        "--trust",
        "--set",
        "permissions.mode=auto",
    ]);
    assert!(called.stdout.contains("hi"), "{called:?}");
    let untrusted = run(&["tools"]);
    assert!(!untrusted.stdout.contains("peer__echo"), "{untrusted:?}");
    fs::write(
        dir.path().join("agentloop.toml"),
        "[mcp.peer]\ntools = [\"echo\"]\n",
    )
    .unwrap();
    let neither = run(&["tools", "--trust"]);
    assert!(
        neither.stderr.contains("neither `command` nor `url`"),
        "{neither:?}"
    );
}

/// The servers that everybody has, from npm: `cargo nextest run --workspace --run-ignored only -E 'test(/npm/)'`.
#[tokio::test]
#[ignore = "fetches the servers from npm"]
async fn servers_from_npm() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm-servers");
    fs::create_dir_all(&target).unwrap();
    let installed = Command::new("npm")
        .args(["install", "--silent", "--no-fund", "--no-audit", "--prefix"])
        .arg(&target)
        .arg("@modelcontextprotocol/server-everything@2026.8.31")
        .arg("@modelcontextprotocol/server-filesystem@2026.8.31")
        .output()
        .expect("node and npm are needed");
    assert!(installed.status.success(), "{installed:?}");
    let server = |package: &str, arguments: &[&str]| {
        let script = target.join(format!(
            "node_modules/@modelcontextprotocol/{package}/dist/index.js"
        ));
        let mut settings = settings(&["*"]);
        let mut argv = vec!["node".to_owned(), script.to_str().unwrap().to_owned()];
        argv.extend(arguments.iter().map(|a| (*a).to_owned()));
        settings.at = PeerAt::Command {
            argv,
            environment: Vec::new(),
        };
        settings
    };
    let deps = deps(Mode::Auto);
    let everything = registry(server("server-everything", &[])).await;
    let outcome = call(&everything, "peer__echo", json!({ "message": "hi" }), &deps).await;
    assert!(text(&outcome).contains("hi"), "{outcome:?}");

    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    fs::write(root.join("a.txt"), "content").unwrap();
    let files = registry(server("server-filesystem", &[root.to_str().unwrap()])).await;
    let input = json!({ "path": root.join("a.txt") });
    let outcome = call(&files, "peer__read_text_file", input, &deps).await;
    match &outcome {
        ToolOutcome::Answered(content) => {
            assert!(format!("{content:?}").contains("content"), "{outcome:?}");
        }
        other => panic!("{other:?}"),
    }
}
