//! `inspect FILE` says of any file what it is, what it wants of a host, what of that this host has, and what would
//! have to be granted.

use std::fs;

use agentloop_tests::{binary, guests};
use serde_json::{Value, json};

struct Inspected {
    code: i32,
    text: String,
    json: Value,
}

fn inspect(name: &str, wasm: &[u8], manifest: Option<&str>, settings: &str) -> Inspected {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(name), wasm).unwrap();
    fs::write(dir.path().join("agentloop.toml"), settings).unwrap();
    if let Some(manifest) = manifest {
        let file = dir.path().join(name).with_extension("toml");
        fs::write(file, manifest).unwrap();
    }
    let run = |args: &[&str]| {
        let program = env!("CARGO_BIN_EXE_program");
        let mut command = binary::command(program, dir.path(), &dir.path().join("home"));
        binary::run(command.arg("inspect").args(args).args([name, "--trust"]))
    };
    let ran = run(&[]);
    let json = run(&["--json"]);
    assert_eq!(ran.code, json.code);
    Inspected {
        code: ran.code,
        text: format!("{}{}", ran.stdout, ran.stderr),
        json: serde_json::from_str(&json.stdout).unwrap(),
    }
}

#[test]
fn plain_functions_are_listed_with_what_they_could_use() {
    let found = inspect("plain.wasm", guests::PLAIN, None, "");
    assert_eq!(found.code, 0, "{}", found.text);
    assert_eq!(found.json["kind"], "functions");
    assert_eq!(found.json["usable"], true);
    assert_eq!(found.json["imports_missing"], json!([]));
    let could: Vec<_> = found.json["could_use"]
        .as_array()
        .unwrap()
        .iter()
        .map(|asked| (asked["capability"].to_string(), asked["granted"].clone()))
        .collect();
    assert_eq!(could.len(), 3, "{could:?}");
    assert!(could.iter().all(|(_, granted)| granted == "not"));
    for part in [
        "plain functions",
        "read-file",
        "the tool `tests:plain/things@0.1.0.make` can't be offered",
        "[grants.plain]",
        "only granted folders",
        "always refused",
    ] {
        assert!(found.text.contains(part), "{part}: {}", found.text);
    }
}

#[test]
fn what_is_granted_is_told() {
    let settings = "[grants.plain]\nhttp = [\"https://api.example.org\"]\n";
    let found = inspect("plain.wasm", guests::PLAIN, None, settings);
    let http = &found.json["could_use"][1];
    assert_ne!(http["granted"], "not", "{http}");
    assert!(
        http["by"][0]
            .as_str()
            .unwrap()
            .contains("https://api.example.org"),
        "{http}"
    );
}

#[test]
fn programs_are_tools_with_a_manifest() {
    let alone = inspect("prog.wasm", guests::PROGRAM, None, "");
    assert_eq!((alone.code, &alone.json["kind"]), (7, &json!("command")));
    assert!(alone.text.contains("`.toml` beside it"), "{}", alone.text);
    assert!(
        !alone.json["could_use"].as_array().unwrap().is_empty(),
        "what would have to be granted is told all the same"
    );
    let manifest = "description = \"Shout\"\nargv = [\"upper\"]\nstdin = \"{text}\"\n\
                    [input_schema]\nproperties.text.type = \"string\"\n";
    let with = inspect("prog.wasm", guests::PROGRAM, Some(manifest), "");
    assert_eq!(with.code, 0, "{}", with.text);
    assert_eq!(with.json["tools"][0]["name"], "prog");
    assert_eq!(with.json["tools"][0]["description"], "Shout");
}

#[test]
fn servers_and_foreign_kinds_are_named() {
    let server = inspect("server.wasm", guests::SERVER, None, "");
    assert_eq!((server.code, &server.json["kind"]), (0, &json!("http")));
    let instance = "(component $c) (instance $i (instantiate $c))";
    let act = wat::parse_str(format!(
        r#"(component {instance} (export "act:tools/tool-provider@0.2.0" (instance $i)))"#
    ))
    .unwrap();
    let act = inspect("act.wasm", &act, None, "");
    assert_eq!((act.code, &act.json["kind"]), (7, &json!("act")));
    assert!(act.text.contains("ACT"), "{}", act.text);
    assert!(act.text.contains("[mcp.NAME]"), "{}", act.text);
    let missing = wat::parse_str(
        r#"(component
            (import "wasi:keyvalue/store@0.2.0-draft" (instance))
            (core module $m (func (export "f")))
            (core instance $i (instantiate $m))
            (func (export "f") (canon lift (core func $i "f"))))"#,
    )
    .unwrap();
    let missing = inspect("missing.wasm", &missing, None, "");
    assert_eq!(missing.code, 7);
    assert_eq!(
        missing.json["imports_missing"],
        json!(["wasi:keyvalue/store@0.2.0-draft"])
    );
    assert!(
        missing.text.contains("this host does not have it"),
        "{}",
        missing.text
    );
    let core = wat::parse_str(
        r#"(module
            (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_read" (func (param i32 i32 i32 i32) (result i32))))"#,
    )
    .unwrap();
    let core = inspect("core.wasm", &core, None, "");
    assert_eq!(core.json["kind"], "core module");
    assert_eq!(core.json["imports"], json!(["wasi_snapshot_preview1"]));
}

/// An ACT component declares what it uses in a section of its own; it is told, and what a grant would be.
#[test]
fn declarations_of_act_are_told() {
    let instance = "(component $c) (instance $i (instantiate $c))";
    let mut wasm = wat::parse_str(format!(
        r#"(component {instance} (export "act:tools/tool-provider@0.2.0" (instance $i)))"#
    ))
    .unwrap();
    // {"std": {"name": "notes", "capabilities": {"wasi:http": {"constraints": [{"host": "a.example.org"}]},
    // "wasi:sockets": {}}}}, as CBOR.
    let text = |text: &str| [&[0x60 + u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let host = [vec![0x81, 0xa1], text("host"), text("a.example.org")].concat();
    let http = [vec![0xa1], text("constraints"), host].concat();
    let capabilities = [
        vec![0xa2],
        text("wasi:http"),
        http,
        text("wasi:sockets"),
        vec![0xa0],
    ]
    .concat();
    let cbor = [
        vec![0xa1],
        text("std"),
        vec![0xa2],
        text("name"),
        text("notes"),
        text("capabilities"),
        capabilities,
    ]
    .concat();
    let name = b"act:component";
    let length = |bytes: usize| {
        let bytes = u8::try_from(bytes).unwrap();
        assert!(bytes < 0x80);
        bytes
    };
    wasm.extend([0, length(1 + name.len() + cbor.len()), length(name.len())]);
    wasm.extend(name);
    wasm.extend(cbor);
    let act = inspect(
        "act.wasm",
        &wasm,
        None,
        "[grants.act]\nhttp = [{ origin = \"https://a.example.org\" }]\n",
    );
    assert_eq!((act.code, &act.json["kind"]), (7, &json!("act")));
    assert_eq!(act.json["act"]["name"], "notes");
    let not_taken = act.json["act"]["not_taken"][0].as_str().unwrap();
    assert!(not_taken.contains("wasi:sockets"), "{not_taken}");
    let could = act.json["could_use"].as_array().unwrap();
    assert_eq!(could.len(), 1, "{could:?}");
    assert_eq!(could[0]["granted"], "partly", "{could:?}");
    for part in ["notes", "it declares that it uses", "https://a.example.org"] {
        assert!(act.text.contains(part), "{part}: {}", act.text);
    }
}

/// What `import-policy` prints is what the settings take, and opens what the policy opened.
#[test]
fn a_policy_becomes_grants() {
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().canonicalize().unwrap().join("notes");
    fs::create_dir(&notes).unwrap();
    let policy = format!(
        "version: \"1.0\"\ndescription: \"for a test\"\npermissions:\n  storage:\n    allow:\n    - uri: \"fs://{}/**\"\n      access: [\"read\"]\n  network:\n    allow:\n    - host: \"api.example.org\"\n    - cidr: \"10.0.0.0/8\"\n",
        notes.display()
    );
    fs::write(dir.path().join("plain.policy.yaml"), policy).unwrap();
    let program = env!("CARGO_BIN_EXE_program");
    let mut command = binary::command(program, dir.path(), &dir.path().join("home"));
    let ran = binary::run(command.args(["import-policy", "plain.policy.yaml"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("10.0.0.0/8"), "{}", ran.stderr);
    let found = inspect("plain.wasm", guests::PLAIN, None, &ran.stdout);
    assert_eq!(found.code, 0, "{}", found.text);
    let could = &found.json["could_use"];
    let by = could[0]["by"][0].as_str().unwrap();
    assert!(by.starts_with("read") && by.contains("notes"), "{by}");
    assert_eq!(could[1]["granted"], "whole", "{could}");
    assert_eq!(could[2]["granted"], "not", "{could}");
}
