//! Programs as tools: a manifest beside the file, no shell, and the endings that every tool has.

use std::{fs, path::Path, time::Duration};

use agentloop_host::{
    capability::{Access, FolderGrant, Grants, OperatorLimits},
    registry::folder,
    sandbox::{Beside, FileKind, LoadError, inspect, inspect_with},
    tool::{Content, ToolOutcome},
};
use agentloop_tests::guests::{self, Guest};
use serde_json::{Value, json};

const MANIFEST: &str = r#"
description = "Do what the command says"
argv = ["{command}", "{words}"]
stdin = "{text}"
timeout_ms = 20000

[annotations]
read_only = true

[input_schema]
type = "object"
required = ["command"]
properties.command.type = "string"
properties.words = { type = "array", items = { type = "string" } }
properties.text.type = "string"
"#;

fn beside(manifest: &str) -> Beside {
    Beside {
        program: "program".to_owned(),
        manifest: manifest.to_owned(),
    }
}

async fn program(manifest: &str) -> Guest {
    Guest::load_with(&guests::sandbox(), guests::PROGRAM, beside(manifest)).await
}

async fn run(guest: &Guest, command: &str, more: Value) -> ToolOutcome {
    let mut input = json!({ "command": command });
    for (name, value) in more.as_object().unwrap() {
        input[name] = value.clone();
    }
    guest.call("program", input).await.outcome
}

#[tokio::test]
async fn arguments_and_stdin_come_from_the_manifest() {
    let program = program(MANIFEST).await;
    let tool = &program.component.definitions()[0];
    assert_eq!(tool.name.as_str(), "program");
    assert_eq!(tool.description, "Do what the command says");
    assert_eq!(tool.timeout, Some(Duration::from_secs(20)));
    assert!(tool.annotations.read_only);
    let words = json!({ "words": ["a b", "$(rm -rf /)", "; x", "*"] });
    assert_eq!(
        guests::text(&run(&program, "arguments", words).await),
        "[\"program\", \"arguments\", \"a b\", \"$(rm -rf /)\", \"; x\", \"*\"]\n"
    );
    let text = json!({ "text": "grüße\nan alle" });
    assert_eq!(
        guests::text(&run(&program, "upper", text).await),
        "GRÜSSE\nAN ALLE"
    );
    assert_eq!(
        run(&program, "upper", json!({})).await,
        ToolOutcome::Answered(vec![])
    );
}

#[tokio::test]
async fn a_value_is_never_an_option() {
    let program = program(MANIFEST).await;
    let outcome = run(&program, "arguments", json!({ "words": ["--help"] })).await;
    assert!(
        matches!(&outcome, ToolOutcome::InvalidArguments { faults } if faults[0].contains("`words`")),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn the_exit_status_and_stderr_become_the_error() {
    let program = program(MANIFEST).await;
    let failed = |message: &str| ToolOutcome::Failed {
        message: message.to_owned(),
    };
    assert_eq!(
        run(&program, "fail", json!({})).await,
        failed("program: it can't be done\n(it exited with status 1)"),
        "WASI 0.2 knows no other status"
    );
    assert_eq!(
        run(&program, "quiet", json!({})).await,
        failed("it exited with status 1")
    );
    assert_eq!(
        run(&program, "panic", json!({})).await,
        ToolOutcome::Trapped {
            message: "boom in the program".to_owned()
        }
    );
    assert_eq!(
        guests::text(&run(&program, "warn", json!({})).await),
        "done\n"
    );
    let lines: Vec<_> = program.heard.lines().into_iter().map(|(_, t)| t).collect();
    assert!(lines.contains(&"careful".to_owned()), "{lines:?}");
    assert!(!lines.contains(&"done".to_owned()), "that is the answer");
}

#[tokio::test]
async fn limits_hold_as_for_any_tool() {
    let mut program = program(MANIFEST).await;
    program.limits.output_bytes = 64 << 10;
    assert_eq!(
        run(&program, "flood", json!({})).await,
        ToolOutcome::OutputTooLarge {
            limit_bytes: 64 << 10
        }
    );
    program.limits.timeout = Some(Duration::from_millis(100));
    assert!(matches!(
        run(&program, "spin", json!({})).await,
        ToolOutcome::TimedOut { .. }
    ));
}

#[tokio::test]
async fn it_reaches_what_is_granted_and_nothing_else() {
    let mut program = program(MANIFEST).await;
    let outcome = run(&program, "read", json!({ "words": ["/etc/passwd"] })).await;
    assert!(
        matches!(outcome, ToolOutcome::CapabilityRefused { .. }),
        "{outcome:?}"
    );
    assert_eq!(
        guests::text(&run(&program, "variables", json!({})).await),
        "0\n"
    );
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "content").unwrap();
    program.grants.folders.push(FolderGrant {
        host_path: dir.path().canonicalize().unwrap(),
        guest_path: "/notes".into(),
        access: Access::Read,
    });
    let outcome = run(&program, "read", json!({ "words": ["/notes/a"] })).await;
    assert_eq!(guests::text(&outcome), "content");
}

#[tokio::test]
async fn json_output_is_structured() {
    let program = program(&format!("output = \"json\"\n{MANIFEST}")).await;
    let outcome = run(&program, "json", json!({ "words": ["a", "b"] })).await;
    assert_eq!(
        outcome,
        ToolOutcome::Answered(vec![Content::Json(json!({ "sum": 2 }))])
    );
    let outcome = run(&program, "warn", json!({})).await;
    assert!(
        matches!(outcome, ToolOutcome::BadOutput { .. }),
        "{outcome:?}"
    );
}

/// Whoever agreed to a program with one manifest has not agreed to it with another.
#[tokio::test]
async fn the_manifest_is_part_of_what_a_program_is() {
    let one = program(MANIFEST).await.component.digest();
    let other = program(&MANIFEST.replace("{words}", "-x")).await;
    assert_ne!(one, other.component.digest());
    assert_eq!(one, program(MANIFEST).await.component.digest());
}

#[tokio::test]
async fn without_a_manifest_it_says_what_to_write() {
    let inspection = inspect(guests::PROGRAM);
    assert_eq!(inspection.file, FileKind::Command);
    let error = inspection.check().unwrap_err();
    assert!(error.to_string().contains("`.toml` beside it"), "{error}");
    let error = inspect_with(guests::PROGRAM, Some(&beside("argv = 5"))).check();
    assert!(matches!(error, Err(LoadError::Manifest(_))), "{error:?}");
}

#[tokio::test]
async fn a_folder_has_both_files() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, content: &[u8]| fs::write(dir.path().join(name), content).unwrap();
    put("shout.wasm", guests::PROGRAM);
    put("shout.toml", MANIFEST.as_bytes());
    put("alone.wasm", guests::PROGRAM);
    put("broken.wasm", guests::PROGRAM);
    put("broken.toml", b"description = 5");
    let sandbox = guests::sandbox();
    let loaded = folder::load(&[dir.path().to_owned()], &sandbox, |_| {
        (Grants::default(), OperatorLimits::default())
    })
    .await;
    let names: Vec<_> = loaded
        .plugins
        .iter()
        .map(|plugin| plugin.component.definitions()[0].name.as_str())
        .collect();
    assert_eq!(names, ["shout"]);
    let aside = |file: &str| {
        let what = |what: &str| Path::new(what).ends_with(file);
        let found = loaded.set_aside.iter().find(|aside| what(&aside.what));
        found.unwrap().why.clone()
    };
    assert!(aside("alone.wasm").contains("`.toml` beside it"));
    assert!(aside("broken.wasm").contains("description"));
}
