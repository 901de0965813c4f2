//! From a folder of files to the tools that a run sees, and their calls beside each other.

use std::fs;

use agentloop_host::{
    agent::{Deps, run_calls},
    capability::{Access, FolderGrant, Grants, OperatorLimits},
    config::permissions::Rule,
    ids::PluginName,
    registry::{Plugin, Registry, RegistryError, folder, native::NativeTool},
    tool::ToolOutcome,
    transcript::{ContentBlock, ToolUse},
};
use agentloop_tests::guests;
use serde_json::{Value, json};
use tempfile::TempDir;

fn own(name: &str) -> NativeTool {
    let schema = json!({"type": "object"});
    NativeTool::new(name, "Does nothing.", schema, |_| {
        Ok::<_, String>(String::new())
    })
    .unwrap()
}

/// A folder with these files, and the tools that come of it beside the program's `own`.
async fn registry(
    files: &[(&str, &[u8])],
    own: impl IntoIterator<Item = NativeTool>,
) -> (TempDir, Registry) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let sandbox = guests::sandbox();
    let nothing = |_: &PluginName| (Grants::default(), OperatorLimits::default());
    let loaded = folder::load(&[dir.path().to_owned()], &sandbox, nothing).await;
    let registry =
        Registry::with_plugins(own, loaded.plugins, Some(&sandbox), loaded.set_aside).unwrap();
    (dir, registry)
}

fn names(registry: &Registry) -> Vec<String> {
    registry.names().iter().map(ToString::to_string).collect()
}

fn call(id: &str, tool: &str, input: Value) -> ContentBlock {
    ToolUse::new(id, tool, input).unwrap().into()
}

#[test]
fn names_are_sorted_schemas_stand_in_order_and_a_double_is_refused() {
    let registry = Registry::new([own("b"), own("c"), own("a")]).unwrap();
    assert_eq!(names(&registry), ["a", "b", "c"]);
    let shown = |registry: &Registry| -> Vec<String> {
        let schemas = registry.schemas().iter();
        schemas.map(|schema| schema.name.to_string()).collect()
    };
    assert_eq!(shown(&registry), ["b", "c", "a"]);
    assert!(registry.get("c").is_some() && registry.get("d").is_none());
    let filtered = registry.filtered(|tool| tool.rule_name != "host.c");
    assert_eq!(shown(&filtered), ["b", "a"]);
    assert!(filtered.get("c").is_none());

    let double = Registry::new([own("a"), own("a")]);
    assert!(matches!(double, Err(RegistryError::DuplicateName(name)) if name.as_str() == "a"));
}

/// B30: the answer is the same whichever file comes first, nobody shadows anybody, and both are told.
#[tokio::test]
async fn tools_of_one_name_are_told_apart_whatever_the_order_of_their_files() {
    for files in [["a.wasm", "z.wasm"], ["z.wasm", "a.wasm"]] {
        let files = files.map(|file| (file, guests::ECHO));
        let (_dir, registry) = registry(&files, []).await;
        assert_eq!(names(&registry), ["a__echo", "z__echo"]);
        let told: Vec<_> = registry.set_aside().iter().collect();
        assert_eq!(told.len(), 2, "{told:?}");
        for (one, other) in [("a", "z"), ("z", "a")] {
            let why = told.iter().find(|told| told.what == format!("{one}.echo"));
            let why = &why.unwrap().why;
            for word in [
                format!("{one}.wasm"),
                format!("{other}.wasm"),
                format!("{one}__echo"),
            ] {
                assert!(why.contains(&word), "no `{word}` in {why}");
            }
        }
        let calls = [
            call("1", "a__echo", json!({"text": "from a"})),
            call("2", "z__echo", json!({"text": "from z"})),
        ];
        let records = run_calls(&calls, &registry, &Deps::default()).await;
        let texts: Vec<_> = records
            .iter()
            .map(|record| record.traced.result.text())
            .collect();
        assert_eq!(texts, ["from a", "from z"]);
    }
}

#[tokio::test]
async fn a_plugin_cannot_shadow_a_tool_of_the_program() {
    let (_dir, registry) = registry(&[("echo.wasm", guests::ECHO)], [own("echo")]).await;
    assert_eq!(names(&registry), ["echo", "echo__echo"]);
    assert_eq!(registry.get("echo").unwrap().rule_name, "host.echo");
    assert_eq!(registry.get("echo__echo").unwrap().rule_name, "echo.echo");
    let told = &registry.set_aside()[0].why;
    assert!(told.contains("this program's own tools"), "{told}");
}

#[tokio::test]
async fn a_file_that_is_no_plugin_is_named_with_its_cause_while_the_others_serve() {
    let core_module = b"\0asm\x01\0\0\0";
    let files: [(&str, &[u8]); 4] = [
        ("core.wasm", core_module),
        ("cut.wasm", &guests::ECHO[..guests::ECHO.len() / 2]),
        ("echo.wasm", guests::ECHO),
        ("text.wasm", b"not wasm at all"),
    ];
    let (dir, registry) = registry(&files, []).await;
    assert_eq!(names(&registry), ["echo"]);
    let told: Vec<_> = registry.set_aside().iter().collect();
    let expected = [
        ("core.wasm", "core WebAssembly module"),
        ("cut.wasm", "cut off or damaged"),
        ("text.wasm", "not WebAssembly"),
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for ((file, why), told) in expected.iter().zip(told) {
        assert_eq!(told.what, dir.path().join(file).display().to_string());
        assert!(told.why.contains(why), "{told:?}");
    }
}

/// Calls that may write what others touch keep their order, and the wait is on nobody's clock.
#[tokio::test]
async fn calls_on_one_folder_keep_their_order() {
    let shared = tempfile::tempdir().unwrap();
    let sandbox = guests::sandbox();
    let component = sandbox.load(guests::HELPFUL.into()).await.unwrap();
    let grant = FolderGrant {
        host_path: shared.path().to_owned(),
        guest_path: "/shared".into(),
        access: Access::Write,
    };
    let plugin = Plugin {
        name: PluginName::parse("helpful").unwrap(),
        file: "helpful.wasm".into(),
        component,
        grants: Grants {
            folders: vec![grant],
            ..Grants::default()
        },
        limits: OperatorLimits::default(),
    };
    let registry = Registry::with_plugins([], [plugin], Some(&sandbox), Vec::new()).unwrap();
    let mut deps = Deps::default();
    deps.permissions.allow = vec![Rule::parse("helpful.*").unwrap()];
    let mut calls = Vec::new();
    for n in 0..10 {
        let write = json!({"path": "/shared/note", "text": format!("{n}")});
        calls.push(call(&format!("w{n}"), "write", write));
        calls.push(call(
            &format!("r{n}"),
            "read",
            json!({"path": "/shared/note"}),
        ));
    }
    let records = run_calls(&calls, &registry, &deps).await;
    for (n, pair) in records.chunks(2).enumerate() {
        assert!(
            matches!(pair[0].outcome, ToolOutcome::Answered(_)),
            "{pair:?}"
        );
        assert_eq!(pair[1].traced.result.text(), n.to_string());
    }
}
