//! Plain functions as tools: what is offered, how values travel, and that nothing is laxer than elsewhere.

use std::{fs, time::Duration};

use agentloop_host::{
    capability::{
        Access, Capability, EnvironmentGrant, FolderGrant, Grants, HttpGrant, OriginPattern, Reach,
    },
    sandbox::{Component, FileKind, inspect},
    tool::{Content, Effects, ToolDefinition, ToolOutcome},
};
use agentloop_tests::{
    guests::{self, Guest},
    servers::{Reply, Server},
};
use serde_json::{Value, json};

async fn guest() -> Guest {
    Guest::load(&guests::sandbox(), guests::PLAIN).await
}

fn definition<'a>(component: &'a Component, tool: &str) -> &'a ToolDefinition {
    let tools = component.definitions();
    tools
        .iter()
        .find(|definition| definition.name.as_str() == tool)
        .unwrap_or_else(|| panic!("{tool} is not offered"))
}

#[tokio::test]
async fn every_function_is_a_tool_and_resources_are_refused_by_name() {
    let guest = guest().await;
    let names: Vec<_> = guest
        .component
        .definitions()
        .iter()
        .map(|tool| tool.name.as_str())
        .collect();
    for name in [
        "echo",
        "read-file",
        "unsigned",
        "find",
        "how-many",
        "shapes_echo",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let aside: Vec<_> = guest
        .component
        .set_aside()
        .iter()
        .map(|aside| format!("{}: {}", aside.what, aside.why))
        .collect();
    assert_eq!(aside.len(), 4, "{aside:?}");
    for (function, why) in [
        ("tests:plain/things@0.1.0.make", "the resource `counter`"),
        ("tests:plain/things@0.1.0.take", "`value`"),
        ("things@0.1.0.[constructor]counter", "a resource"),
        ("things@0.1.0.[method]counter.next", "a resource"),
    ] {
        assert!(
            aside
                .iter()
                .any(|a| a.contains(function) && a.contains(why)),
            "{function}: {aside:?}"
        );
    }
}

#[tokio::test]
async fn reading_a_file_tells_the_same_as_loading_it() {
    let inspection = inspect(guests::PLAIN);
    assert_eq!(inspection.file, FileKind::Functions);
    inspection.check().unwrap();
    let read = inspection.metadata.unwrap().unwrap();
    let guest = guest().await;
    assert_eq!(read.tools, guest.component.definitions());
    assert_eq!(read.set_aside, guest.component.set_aside());
}

/// What it imports is what it could use; nothing of that is granted by asking.
#[tokio::test]
async fn requests_follow_from_imports() {
    let guest = guest().await;
    let echo = definition(&guest.component, "echo");
    let asked: Vec<_> = echo
        .requests
        .iter()
        .map(|request| request.capability.to_string())
        .collect();
    assert_eq!(
        asked,
        [
            "write granted folders",
            "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS at granted web origins",
            "granted environment variables",
        ]
    );
    assert!(!echo.annotations.read_only, "it could write");
    let reach = Reach::new(&echo.requests, &Grants::default());
    assert!(reach.folders.is_empty() && reach.http.is_empty() && reach.environment.is_empty());
}

#[tokio::test]
async fn schemas_come_from_types() {
    let guest = guest().await;
    let input = |tool: &str| definition(&guest.component, tool).input_schema.clone();
    assert_eq!(
        input("echo"),
        json!({
            "type": "object",
            "properties": { "text": { "type": "string" } },
            "required": ["text"],
            "additionalProperties": false,
        })
    );
    assert_eq!(
        input("unsigned")["properties"]["value"],
        json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX })
    );
    assert_eq!(
        input("place")["properties"]["value"]["required"],
        json!(["x", "y"])
    );
    assert_eq!(
        input("paint")["properties"]["value"]["enum"],
        json!(["red", "green", "dark-blue"])
    );
    assert_eq!(
        input("nested")["required"],
        json!([]),
        "an option may be left out"
    );
    let find = definition(&guest.component, "find");
    assert_eq!(
        find.output_schema.as_ref().unwrap()["properties"]["x"],
        json!({ "type": "integer", "minimum": i32::MIN, "maximum": i32::MAX })
    );
    assert_eq!(
        definition(&guest.component, "signed").output_schema,
        None,
        "structured output is an object"
    );
    assert_eq!(
        find.description,
        "tests:plain/shapes@0.1.0.find: func(name: string) -> \
         result<record { x: s32, y: s32, label: option<string> }, variant>"
    );
}

/// As `wit-docs-inject` writes them: a section at the end of the component.
#[tokio::test]
async fn doc_comments_become_descriptions() {
    let docs = json!({
        "worlds": { "plain": { "func_exports": { "echo": { "docs": "Give the text back.\n" } } } },
        "interfaces": { "shapes": {
            "funcs": { "place": { "docs": "The same point." } },
            "types": {
                "point": { "docs": "A place.", "items": { "x": "To the right." } },
                "color": { "items": { "green": "As grass." } },
            },
        } },
    });
    let wasm = with_section(guests::PLAIN, "package-docs", &format!("\x01{docs}"));
    let guest = Guest::load(&guests::sandbox(), &wasm).await;
    let of = |tool: &str| definition(&guest.component, tool);
    assert_eq!(of("echo").description, "Give the text back.");
    assert_eq!(of("place").description, "The same point.");
    let point = &of("place").input_schema["properties"]["value"];
    assert_eq!(point["description"], "A place.");
    assert_eq!(point["properties"]["x"]["description"], "To the right.");
    let color = &of("paint").input_schema["properties"]["value"];
    assert_eq!(color["description"], "green: As grass.");
    assert_eq!(guest.text("echo", json!({ "text": "hi" })).await, "hi");
}

/// Docs that do not fit the component cost nothing but themselves.
#[tokio::test]
async fn odd_docs_are_as_none() {
    for docs in [
        "\x01{\"worlds\":{\"another\":{\"funcs\":{\"nope\":{}}}}}",
        "\x07",
        "",
    ] {
        let wasm = with_section(guests::PLAIN, "package-docs", docs);
        let inspection = inspect(&wasm);
        inspection.check().unwrap();
        assert_eq!(
            inspection.metadata.unwrap().unwrap(),
            inspect(guests::PLAIN).metadata.unwrap().unwrap()
        );
    }
}

fn with_section(wasm: &[u8], name: &str, content: &str) -> Vec<u8> {
    fn leb(mut n: usize, out: &mut Vec<u8>) {
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
    }
    let mut body = Vec::new();
    leb(name.len(), &mut body);
    body.extend(name.as_bytes());
    body.extend(content.as_bytes());
    let mut wasm = wasm.to_vec();
    wasm.push(0);
    leb(body.len(), &mut wasm);
    wasm.extend(body);
    wasm
}

fn answer(outcome: &ToolOutcome) -> Value {
    match outcome {
        ToolOutcome::Answered(content) => match content.as_slice() {
            [] => Value::Null,
            [Content::Json(value)] => value.clone(),
            [Content::Text(text)] => serde_json::from_str(text).unwrap_or(json!(text)),
            other => panic!("{other:?}"),
        },
        other => panic!("not an answer: {other:?}"),
    }
}

#[tokio::test]
async fn values_of_every_type_travel_both_ways() {
    let guest = guest().await;
    let point = json!({ "x": -3, "y": 4, "label": "a" });
    for (tool, value) in [
        ("signed", json!(i64::MIN)),
        ("signed", json!(i64::MAX)),
        ("unsigned", json!(u64::MAX)),
        ("unsigned", json!(9_007_199_254_740_993_u64)),
        ("letter", json!("ü")),
        ("letter", json!("🦀")),
        ("truth", json!(true)),
        ("bytes", json!("AP+A")),
        ("texts", json!(["", "b\n", "ü"])),
        ("place", point.clone()),
        ("place", json!({ "x": 0, "y": 0, "label": null })),
        ("draw", json!({ "tag": "nothing" })),
        ("draw", json!({ "tag": "dot", "val": point })),
        ("draw", json!({ "tag": "circle", "val": [point, 0.5] })),
        ("draw", json!({ "tag": "polygon", "val": [point, point] })),
        ("paint", json!("dark-blue")),
        ("allow", json!(["read", "execute"])),
        ("allow", json!([])),
        ("nested", json!(null)),
        ("nested", json!({ "some": null })),
        ("nested", json!({ "some": 5 })),
    ] {
        let ending = guest.call(tool, json!({ "value": value })).await;
        assert_eq!(answer(&ending.outcome), value, "{tool}");
    }
    for value in [json!({ "ok": 5 }), json!({ "err": "no" })] {
        let ending = guest.call("outcome", json!({ "value": value })).await;
        assert_eq!(answer(&ending.outcome), json!([value]));
    }
    let small =
        json!({ "a": -128, "b": 255, "c": -32768, "d": 65535, "e": i32::MIN, "f": u32::MAX });
    assert_eq!(
        guest.text("small", small).await,
        "-128 255 -32768 65535 -2147483648 4294967295"
    );
    let floats = guest.call("floats", json!({ "a": 0.1, "b": 1e300 })).await;
    assert_eq!(answer(&floats.outcome), json!([0.1, 1e300]));
    let floats = guest.call("floats", json!({ "a": 1, "b": 0 })).await;
    assert_eq!(answer(&floats.outcome), json!([1.0, "NaN"]));
    let left_out = guest
        .call("place", json!({ "value": { "x": 1, "y": 2 } }))
        .await;
    assert_eq!(
        answer(&left_out.outcome),
        json!({ "x": 1, "y": 2, "label": null })
    );
}

#[tokio::test]
async fn each_function_answers_for_itself() {
    let guest = guest().await;
    assert_eq!(guest.text("echo", json!({ "text": "a" })).await, "a");
    assert_eq!(
        guest.text("shapes_echo", json!({ "text": "a" })).await,
        "not the root's: a"
    );
    assert_eq!(guest.text("how-many", json!({})).await, "7");
    for tool in ["nothing", "only-err", "bare-result"] {
        let ending = guest.call(tool, json!({ "fail": false })).await;
        assert_eq!(ending.outcome, ToolOutcome::Answered(vec![]), "{tool}");
    }
}

#[tokio::test]
async fn an_error_is_the_tools_error() {
    let guest = guest().await;
    let failed = |message: &str| ToolOutcome::Failed {
        message: message.to_owned(),
    };
    for (tool, input, message) in [
        ("only-err", json!({ "fail": true }), "it failed"),
        ("bare-result", json!({ "fail": true }), ""),
        (
            "find",
            json!({ "name": "x" }),
            r#"{"tag":"not-found","val":"x"}"#,
        ),
    ] {
        assert_eq!(guest.call(tool, input).await.outcome, failed(message));
    }
}

/// The agent checks them against the schema first; the sandbox does not rely on that.
#[tokio::test]
async fn arguments_that_do_not_fit_are_named() {
    let guest = guest().await;
    for (tool, value, place) in [
        ("signed", json!(u64::MAX), "`value`"),
        ("unsigned", json!(-1), "`value`"),
        ("unsigned", json!("1"), "`value`"),
        ("letter", json!("ab"), "`value`"),
        ("bytes", json!("?"), "`value`"),
        ("texts", json!(["a", 1]), "`value.1`"),
        ("place", json!({ "x": 1 }), "`value.y`"),
        ("place", json!({ "x": 1, "y": 2, "z": 3 }), "`z`"),
        ("draw", json!({ "tag": "square" }), "`tag`"),
        (
            "draw",
            json!({ "tag": "dot", "val": { "x": 1.5, "y": 0 } }),
            "`value.val.x`",
        ),
        ("paint", json!("blue"), "`value`"),
        ("allow", json!(["read", "fly"]), "`value`"),
        ("nested", json!(5), "`value`"),
        ("outcome", json!({ "ok": 1, "err": "" }), "`ok`"),
    ] {
        let ending = guest.call(tool, json!({ "value": value })).await;
        match &ending.outcome {
            ToolOutcome::InvalidArguments { faults } => {
                assert!(faults[0].contains(place), "{tool}: {faults:?}");
            }
            other => panic!("{tool} {value}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn each_call_has_a_fresh_instance() {
    let guest = guest().await;
    for _ in 0..3 {
        assert_eq!(guest.text("count", json!({})).await, "1");
    }
}

#[tokio::test]
async fn limits_hold_as_for_any_tool() {
    let mut guest = guest().await;
    guest.limits.timeout = Some(Duration::from_millis(100));
    for (tool, input) in [("spin", json!({})), ("nap", json!({ "ms": 60_000 }))] {
        let ending = guest.call(tool, input).await;
        assert_eq!(
            ending.outcome,
            ToolOutcome::TimedOut {
                after: Duration::from_millis(100),
                effects: Effects::None,
            },
            "{tool}"
        );
    }
    guest.limits.timeout = Some(Duration::from_secs(30));
    guest.limits.memory_bytes = 16 << 20;
    assert_eq!(
        guest.call("alloc", json!({ "mib": 64 })).await.outcome,
        ToolOutcome::OutOfMemory {
            limit_bytes: 16 << 20
        }
    );
    guest.limits.output_bytes = 64 << 10;
    assert_eq!(
        guest.call("blob", json!({ "kib": 65 })).await.outcome,
        ToolOutcome::OutputTooLarge {
            limit_bytes: 64 << 10
        }
    );
    let ending = guest.call("boom", json!({})).await;
    assert_eq!(
        ending.outcome,
        ToolOutcome::Trapped {
            message: "boom from the guest".to_owned()
        }
    );
    guest.limits.fuel = Some(1_000_000);
    let ending = guest.call("spin", json!({})).await;
    assert_eq!(ending.outcome, ToolOutcome::OutOfFuel { budget: 1_000_000 });
    let ending = guest.call("echo", json!({ "text": "metered" })).await;
    assert_eq!(guests::text(&ending.outcome), "metered");
    assert!(ending.fuel_used.is_some());
}

#[tokio::test]
async fn what_it_prints_goes_to_the_operator() {
    let guest = guest().await;
    guest.call("print", json!({ "text": "hello\nyou" })).await;
    let lines: Vec<_> = guest.heard.lines().into_iter().map(|(_, t)| t).collect();
    assert_eq!(lines, ["hello", "you"]);
}

#[tokio::test]
async fn without_a_grant_there_is_nothing() {
    let guest = guest().await;
    let ending = guest
        .call("read-file", json!({ "path": "/etc/passwd" }))
        .await;
    match &ending.outcome {
        ToolOutcome::CapabilityRefused { refusals, .. } => {
            assert!(
                refusals[0].remedy.contains("[grants.guest]"),
                "{refusals:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    // Set in every test's process.
    for key in ["PATH", "HOME", "CARGO_MANIFEST_DIR"] {
        let ending = guest.call("get-env", json!({ "key": key })).await;
        assert!(
            matches!(ending.outcome, ToolOutcome::Failed { .. }),
            "{key}: {ending:?}"
        );
    }
    let all = guest.call("all-config", json!({})).await;
    assert_eq!(answer(&all.outcome), json!([]));
    let ending = guest
        .call("dial", json!({ "address": "127.0.0.1:1" }))
        .await;
    assert!(
        !matches!(ending.outcome, ToolOutcome::Answered(_)),
        "{ending:?}"
    );
}

#[tokio::test]
async fn a_request_without_a_grant_does_not_leave() {
    let server = Server::start(|_| Reply::text("hi")).await;
    let guest = guest().await;
    let authority = server.address().to_string();
    let input = json!({ "authority": authority, "path": "/" });
    let ending = guest.call("get", input).await;
    assert!(
        matches!(&ending.outcome, ToolOutcome::CapabilityRefused { refusals, .. }
            if refusals[0].remedy.contains(&server.origin())),
        "{ending:?}"
    );
    assert_eq!(server.connections(), 0);
}

/// Only what the operator names, and only so far: the requests are as wide as they can be.
#[tokio::test]
async fn grants_open_what_they_name() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "content").unwrap();
    let server = Server::start(|_| Reply::text("hi")).await;
    let mut guest = guest().await;
    guest.grants.folders.push(FolderGrant {
        host_path: dir.path().canonicalize().unwrap(),
        guest_path: "/notes".into(),
        access: Access::Read,
    });
    guest.grants.http.push(HttpGrant {
        origin: OriginPattern::parse(&server.origin()).unwrap(),
        methods: vec![],
    });
    guest.grants.environment.push(EnvironmentGrant {
        name: "GREETING".into(),
        value: "hello".into(),
    });
    assert_eq!(
        guest.text("read-file", json!({ "path": "/notes/a" })).await,
        "content"
    );
    let write = json!({ "path": "/notes/a", "text": "changed" });
    let ending = guest.call("write-file", write).await;
    assert!(
        !matches!(ending.outcome, ToolOutcome::Answered(_)),
        "{ending:?}"
    );
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "content");
    assert_eq!(
        guest.text("get-env", json!({ "key": "GREETING" })).await,
        "hello"
    );
    let ending = guest.call("get-env", json!({ "key": "PATH" })).await;
    assert!(matches!(ending.outcome, ToolOutcome::Failed { .. }));
    // The same in the place where components of other hosts look.
    for (key, value) in [("GREETING", json!("hello")), ("PATH", json!(null))] {
        let got = guest.call("get-config", json!({ "key": key })).await;
        assert_eq!(answer(&got.outcome), value, "{key}");
    }
    let all = guest.call("all-config", json!({})).await;
    assert_eq!(answer(&all.outcome), json!([["GREETING", "hello"]]));
    let authority = server.address().to_string();
    let get = json!({ "authority": authority, "path": "/x" });
    assert_eq!(guest.text("get", get).await, "status 200");
    let post = json!({ "authority": authority, "method": "POST" });
    let ending = guest.call("send", post).await;
    assert!(
        matches!(&ending.outcome, ToolOutcome::CapabilityRefused { refusals, .. }
            if matches!(&refusals[0].missing, Capability::Http { methods, .. } if methods == &["POST"])),
        "{ending:?}"
    );
    assert_eq!(server.requests().len(), 1, "the GET alone");
}

#[tokio::test]
async fn an_import_that_nobody_has_is_named() {
    let component = r#"(component
        (import "acme:db/query@1.0.0" (instance (export "run" (func))))
        (core module $m (func (export "f")))
        (core instance $i (instantiate $m))
        (func (export "f") (canon lift (core func $i "f"))))"#;
    let wasm = wat::parse_str(component).unwrap();
    let error = inspect(&wasm).check().unwrap_err().to_string();
    assert!(error.contains("`acme:db/query@1.0.0`"), "{error}");
}

/// Types that are small in the file and huge when written out cost one function, not the host.
#[tokio::test]
async fn types_are_bounded() {
    let mut types = String::from("(type $t0 (tuple u8 u8))\n");
    for n in 1..18 {
        let before = n - 1;
        types.push_str(&format!("(type $t{n} (tuple $t{before} $t{before}))\n"));
    }
    let component = format!(
        r#"(component
        (core module $m
            (memory (export "memory") 1)
            (func (export "f") (param i32))
            (func (export "g"))
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 0))
        (core instance $i (instantiate $m))
        {types}
        (func (export "f") (param "t" $t17)
            (canon lift (core func $i "f") (memory $i "memory") (realloc (func $i "realloc"))))
        (func (export "g") (canon lift (core func $i "g"))))"#
    );
    let wasm = wat::parse_str(&component).unwrap();
    let definitions = inspect(&wasm).metadata.unwrap().unwrap();
    assert_eq!(definitions.tools.len(), 1);
    assert!(
        definitions.set_aside[0].why.contains("parts"),
        "{:?}",
        definitions.set_aside
    );
    let guest = Guest::load(&guests::sandbox(), &wasm).await;
    assert_eq!(
        guest.call("g", json!({})).await.outcome,
        ToolOutcome::Answered(vec![])
    );
    // Nothing to reach out with, so nothing that it could change.
    assert!(definitions.tools[0].annotations.read_only);
}

/// No compiler makes them yet that is at hand here.
#[tokio::test]
async fn maps_travel_both_ways() {
    let wasm = wat::parse_str(
        r#"(component
        (core module $m
            (memory (export "memory") 1)
            (data (i32.const 16) "\20\00\00\00\02\00\00\00")
            (data (i32.const 32) "\01\0a\02\14")
            (data (i32.const 48) "\40\00\00\00\01\00\00\00")
            (data (i32.const 64) "\60\00\00\00\01\00\00\00\07\00\00\00")
            (data (i32.const 96) "k")
            (func (export "give") (result i32) i32.const 16)
            (func (export "named") (result i32) i32.const 48)
            (func (export "take") (param i32 i32) (result i32) local.get 1)
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 1024))
        (core instance $i (instantiate $m))
        (type $numbers (map u8 u8))
        (type $named (map string u32))
        (func (export "give") (result $numbers)
            (canon lift (core func $i "give") (memory $i "memory")))
        (func (export "named") (result $named)
            (canon lift (core func $i "named") (memory $i "memory")))
        (func (export "take") (param "value" $named) (result u32)
            (canon lift (core func $i "take") (memory $i "memory") (realloc (func $i "realloc")))))"#,
    )
    .unwrap();
    let guest = Guest::load(&guests::sandbox(), &wasm).await;
    let got = async |tool: &str, input: Value| answer(&guest.call(tool, input).await.outcome);
    assert_eq!(got("give", json!({})).await, json!([[1, 10], [2, 20]]));
    assert_eq!(got("named", json!({})).await, json!({ "k": 7 }));
    let three = json!({ "value": { "a": 1, "b": 2, "c": 3 } });
    assert_eq!(got("take", three).await, json!(3));
    assert_eq!(
        definition(&guest.component, "take").input_schema["properties"]["value"],
        json!({
            "type": "object",
            "additionalProperties": { "type": "integer", "minimum": 0, "maximum": u32::MAX },
        })
    );
}

/// The whole way of a call: the names and schemas are ones that the registry takes.
#[tokio::test]
async fn every_schema_can_be_offered() {
    use agentloop_host::{
        capability::OperatorLimits,
        ids::PluginName,
        registry::{Plugin, Registry},
    };
    let guest = guest().await;
    let plugin = Plugin {
        name: PluginName::parse("plain").unwrap(),
        file: "plain.wasm".to_owned(),
        component: guest.component.clone(),
        grants: Grants::default(),
        limits: OperatorLimits::default(),
    };
    let registry = Registry::with_plugins([], [plugin], Some(&guest.sandbox), Vec::new()).unwrap();
    assert_eq!(registry.set_aside(), []);
    assert_eq!(registry.tools().len(), guest.component.definitions().len());
    let draw = registry.get("draw").unwrap();
    let fits = |value: Value| {
        let Value::Object(input) = json!({ "value": value }) else {
            unreachable!()
        };
        draw.check_arguments(input)
    };
    assert!(fits(json!({ "tag": "nothing" })).is_ok());
    assert!(fits(json!({ "tag": "dot", "val": { "x": 1, "y": 2 } })).is_ok());
    assert!(fits(json!({ "tag": "dot" })).is_err());
    assert!(fits(json!({ "tag": "square" })).is_err());
}
