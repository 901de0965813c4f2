//! Which files are plugins, and what is said of those that are not.

use agentloop_host::{
    ids::ComponentDigest,
    sandbox::{FileKind, LoadError, MAX_COMPONENT_BYTES, inspect},
};
use agentloop_tests::{crafted::Crafted, guests};
use serde_json::json;

async fn error(wasm: &[u8]) -> LoadError {
    match guests::sandbox().load(wasm.into()).await {
        Err(error) => error,
        Ok(_) => panic!("it was loaded"),
    }
}

#[tokio::test]
async fn definitions_come_from_the_section() {
    let component = guests::sandbox()
        .load(guests::HELPFUL.into())
        .await
        .unwrap();
    assert_eq!(component.digest(), ComponentDigest::of(guests::HELPFUL));
    assert_eq!(component.set_aside(), []);
    let names: Vec<_> = component
        .definitions()
        .iter()
        .map(|t| t.name.as_str())
        .collect();
    assert_eq!(names[..3], ["echo", "add", "sleep"]);
}

/// The function `list` says the same as the section, and is asked where there is none.
#[tokio::test]
async fn definitions_come_from_list_where_there_is_no_section() {
    let sandbox = guests::sandbox();
    for wasm in [guests::HELPFUL, guests::HOSTILE] {
        let with = sandbox.load(wasm.into()).await.unwrap();
        let without = sandbox
            .load(renamed(wasm, b"agentloop-tools", b"something-other").into())
            .await
            .unwrap();
        assert_eq!(with.definitions(), without.definitions());
        assert_ne!(with.digest(), without.digest());
    }
}

/// The same bytes with another name of the same length.
fn renamed(wasm: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut wasm = wasm.to_vec();
    let at = wasm
        .windows(from.len())
        .position(|bytes| bytes == from)
        .expect("the name is there");
    wasm[at..at + from.len()].copy_from_slice(to);
    wasm
}

#[tokio::test]
async fn list_is_run_under_limits() {
    const LOOP: &str = "(loop $again (br $again)) unreachable";
    let start = format!(
        "(func $start {}) (start $start)",
        LOOP.replace("unreachable", "")
    );
    for (what, crafted, says) in [
        (
            "list",
            Crafted {
                list: LOOP,
                ..Crafted::default()
            },
            "does not end within 100 ms",
        ),
        (
            "start",
            Crafted {
                fields: &start,
                ..Crafted::default()
            },
            "does not end within 100 ms",
        ),
        (
            "trap",
            Crafted {
                list: "unreachable",
                ..Crafted::default()
            },
            "failed",
        ),
        (
            "memory",
            Crafted {
                list: "(drop (memory.grow (i32.const 60000))) unreachable",
                ..Crafted::default()
            },
            "needs more than",
        ),
    ] {
        let crafted = Crafted {
            section: None,
            ..crafted
        };
        let error = error(&crafted.component()).await.to_string();
        assert!(
            error.contains("`list`") && error.contains(says),
            "{what}: {error}"
        );
    }
}

/// B28, P1, P2.
#[tokio::test]
async fn what_is_no_component_is_named() {
    for (bytes, says) in [
        (&b""[..], "an empty file"),
        (b"\x7fELF\x02\x01\x01", "an ELF file"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\0asm\x01\0\0\0", "wasm32-wasip2"),
        (b"\0as", "cut off"),
        (b"hello", "unknown kind"),
        (b"\0asm\x0d\0\x01\0\xff\xff", "at byte"),
    ] {
        let error = error(bytes).await.to_string();
        assert!(error.contains(says), "{error}");
    }
    let core = wat::parse_str(r#"(module (func (export "run")))"#).unwrap();
    assert!(matches!(error(&core).await, LoadError::CoreModule));
    let large = vec![0x20; MAX_COMPONENT_BYTES + 1];
    assert!(matches!(error(&large).await, LoadError::TooLarge { .. }));
}

/// P1: a component cut or damaged anywhere is refused or loads; the host lives.
#[tokio::test]
async fn damage_anywhere_is_survived() {
    let sandbox = guests::sandbox();
    let whole = Crafted::default().component();
    let mut loaded = 0;
    for end in 0..whole.len() {
        match sandbox.load(whole[..end].into()).await {
            Err(error) => assert!(!error.to_string().is_empty()),
            // Without a section at its end that only has names, it is whole.
            Ok(component) => {
                assert_eq!(component.definitions().len(), 1, "{end} bytes");
                loaded += 1;
            }
        }
    }
    assert!(loaded <= 3, "{loaded}");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..300 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut damaged = whole.clone();
        let at = random as usize % damaged.len();
        damaged[at] ^= (random >> 32) as u8 | 1;
        inspect(&damaged);
        let _ = sandbox.load(damaged.into()).await;
    }
}

/// B31, P3.
#[tokio::test]
async fn another_version_says_which_side_to_update() {
    for (version, says) in [
        ("0.2.0", "update agentloop-host"),
        ("1.0.0", "update agentloop-host"),
        ("0.0.9", "agentloop-sdk"),
    ] {
        let wasm = Crafted {
            version,
            ..Crafted::default()
        }
        .component();
        assert_eq!(
            inspect(&wasm).file,
            FileKind::Tool {
                version: Some(version.to_owned())
            }
        );
        let error = error(&wasm).await.to_string();
        assert!(
            error.contains(version) && error.contains("0.1") && error.contains(says),
            "{error}"
        );
    }
    // Later versions of 0.1 only add imports.
    let newer = Crafted {
        version: "0.1.9",
        ..Crafted::default()
    }
    .component();
    guests::sandbox().load(newer.into()).await.unwrap();
}

#[tokio::test]
async fn other_components_are_told_what_they_are() {
    let command = wat::parse_str(
        r#"(component
            (component $run (core module $m (func (export "run") (result i32) i32.const 0))
                (core instance $i (instantiate $m))
                (func $run (result (result)) (canon lift (core func $i "run")))
                (export "run" (func $run)))
            (instance $i (instantiate $run))
            (export "wasi:cli/run@0.2.0" (instance $i)))"#,
    )
    .unwrap();
    assert!(matches!(error(&command).await, LoadError::Command));

    let other = wat::parse_str(
        r#"(component (component $c) (instance $i (instantiate $c)) (export "acme:things/stuff@1.0.0" (instance $i)))"#,
    )
    .unwrap();
    let said = error(&other).await.to_string();
    assert!(
        said.contains("acme:things/stuff@1.0.0") && said.contains("agentloop:tool/tools"),
        "{said}"
    );

    let nothing = wat::parse_str("(component)").unwrap();
    assert!(
        error(&nothing)
            .await
            .to_string()
            .contains("exports nothing")
    );
}

#[tokio::test]
async fn imports_that_the_host_lacks_are_named() {
    let with_import = |import: &str| {
        let empty = r#"(component $c) (instance $i (instantiate $c))"#;
        wat::parse_str(format!(
            r#"(component (import "{import}" (instance)) {empty} (export "agentloop:tool/tools@0.1.0" (instance $i)))"#
        ))
        .unwrap()
    };
    for (import, says) in [
        ("wasi:keyvalue/store@0.2.0", "WASI 0.2"),
        ("wasi:cli/environment@0.3.0", "WASI 0.2"),
        ("agentloop:tool/teleport@0.2.0", "update agentloop-host"),
        ("acme:db/query@1.0.0", "wac"),
    ] {
        let said = error(&with_import(import)).await.to_string();
        assert!(said.contains(import) && said.contains(says), "{said}");
    }
    // The right name with other contents.
    let said = error(&with_import("wasi:io/poll@0.2.0")).await.to_string();
    assert!(said.contains("interfaces"), "{said}");
}

#[tokio::test]
async fn a_bad_section_is_told_and_a_bad_tool_costs_itself() {
    let sandbox = guests::sandbox();
    let error = error(
        &Crafted {
            section: Some("{"),
            ..Crafted::default()
        }
        .component(),
    )
    .await;
    assert!(error.to_string().contains("`agentloop-tools`"), "{error}");

    let tool = |name: &str| json!({ "name": name, "description": "d", "input_schema": { "type": "object" } });
    let mut bad = tool("bad");
    bad["input_schema"] = json!("text");
    let section =
        json!({ "package": "agentloop:tool@0.1.0", "tools": [tool("a"), bad, tool("b")] })
            .to_string();
    let wasm = Crafted {
        section: Some(&section),
        ..Crafted::default()
    }
    .component();
    let component = sandbox.load(wasm.into()).await.unwrap();
    assert_eq!(component.definitions().len(), 2);
    let [aside] = component.set_aside() else {
        panic!()
    };
    assert_eq!(aside.what, "bad");
    assert!(aside.why.contains("`input_schema`"), "{}", aside.why);
}

#[test]
fn inspecting_runs_nothing() {
    let inspection = inspect(guests::HELPFUL);
    assert_eq!(
        inspection.file,
        FileKind::Tool {
            version: Some("0.1.0".to_owned())
        }
    );
    assert_eq!(inspection.digest, ComponentDigest::of(guests::HELPFUL));
    assert_eq!(inspection.size_bytes, guests::HELPFUL.len());
    assert!(
        inspection
            .imports
            .iter()
            .any(|import| import.starts_with("wasi:http/"))
    );
    let definitions = inspection.metadata.unwrap().unwrap();
    assert_eq!(definitions.tools[0].name.as_str(), "echo");
    // `start` would loop.
    let crafted = Crafted {
        fields: "(func $start (loop $again (br $again))) (start $start)",
        ..Crafted::default()
    };
    let inspection = inspect(&crafted.component());
    assert_eq!(inspection.metadata.unwrap().unwrap().tools.len(), 1);
}

/// Long-term support ends with the newest patch: a lock file below it, or with two of them, is a fault.
#[test]
fn the_engine_is_one_and_new_enough() {
    let lock = include_str!("../../../../Cargo.lock");
    for package in ["wasmtime", "wasmtime-wasi", "wasmtime-wasi-http"] {
        let name = format!("name = \"{package}\"\nversion = \"");
        let versions: Vec<_> = lock
            .match_indices(&name)
            .map(|(at, _)| lock[at + name.len()..].split('"').next().unwrap())
            .collect();
        let [version] = versions[..] else {
            panic!("{package}: {versions:?}")
        };
        let patch: u32 = version
            .strip_prefix("48.0.")
            .expect(version)
            .parse()
            .unwrap();
        assert!(patch >= 8, "{package} {version}");
    }
}
