//! What must not be there, so that the map in `host/src/lib.rs` stays true.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn host_sources() -> Vec<(String, String)> {
    fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    assert!(files.len() > 30, "the sources are not where they were");
    files
        .into_iter()
        .map(|path| {
            let name = path
                .strip_prefix(&root)
                .unwrap()
                .to_str()
                .unwrap()
                .replace('\\', "/");
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// The part of a file before its unit tests, without comments.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn module(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap_or(file)
}

#[test]
fn only_the_sandbox_names_wasmtime_and_one_place_makes_a_store() {
    let mut stores = Vec::new();
    for (file, text) in host_sources() {
        let code = code(&text);
        if module(&file) != "sandbox" {
            assert!(
                !code.contains("wasmtime"),
                "{file} names wasmtime; only sandbox may"
            );
        }
        let n_stores = code.matches("Store::new(").count()
            - code.matches("TrustStore::new(").count()
            - code.matches("CertStore::new(").count();
        stores.extend(std::iter::repeat_n(file, n_stores));
    }
    assert_eq!(
        stores,
        ["sandbox/store.rs"],
        "a Store is made with its limits, in one place"
    );
}

#[test]
fn nothing_but_policy_makes_an_authorised_call_and_nothing_but_the_agent_consents() {
    for (file, text) in host_sources() {
        let code = code(&text);
        if module(&file) != "policy" {
            assert!(
                !code.contains("Authorized("),
                "{file} makes an authorised call"
            );
        }
        if !["agent/consent.rs", "agent/dispatch.rs", "policy.rs"].contains(&file.as_str()) {
            assert!(
                !code.contains("given_by_person"),
                "{file} gives consent in a person's place"
            );
        }
    }
}

#[test]
fn values_do_no_io_and_read_no_clock() {
    let values = [
        "capability",
        "event",
        "harmless",
        "ids",
        "tool",
        "transcript",
    ];
    let absent = [
        "std::fs",
        "std::net",
        "std::env",
        "tokio",
        "SystemTime",
        "Instant",
        "reqwest",
        "wasmtime",
    ];
    for (file, text) in host_sources() {
        if values.contains(&module(&file)) {
            for word in absent {
                assert!(!code(&text).contains(word), "{file} uses {word}");
            }
        }
    }
}

/// What a module may use, besides values and itself; the map's order, from the bottom.
const MAY_USE: [(&str, &[&str]); 16] = [
    ("approvals", &[]),
    ("http", &[]),
    ("provider", &["http"]),
    ("policy", &["config"]),
    ("sandbox", &["policy", "http"]),
    ("peers", &["policy", "sandbox", "http"]),
    ("storage", &["approvals"]),
    // Settings end in the values that mechanisms are set up with.
    ("config", &["provider", "sandbox", "peers"]),
    ("registry", &["sandbox", "policy", "provider", "peers"]),
    (
        "agent",
        &[
            "approvals",
            "config",
            "policy",
            "provider",
            "registry",
            "sandbox",
            "storage",
        ],
    ),
    ("shipped", &[]),
    ("sdk_sources", &[]),
    (
        "app",
        &[
            "agent",
            "approvals",
            "config",
            "http",
            "peers",
            "policy",
            "provider",
            "registry",
            "sandbox",
        ],
    ),
    ("mcp", &["agent", "approvals", "registry"]),
    (
        "server",
        &["agent", "approvals", "config", "registry", "storage"],
    ),
    (
        "cli",
        &[
            "agent",
            "app",
            "approvals",
            "config",
            "http",
            "mcp",
            "policy",
            "provider",
            "registry",
            "sandbox",
            "sdk_sources",
            "server",
            "shipped",
            "storage",
        ],
    ),
];

#[test]
fn modules_use_only_what_stands_below_them() {
    let values = [
        "capability",
        "event",
        "harmless",
        "ids",
        "tool",
        "transcript",
    ];
    let modules: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for (file, text) in host_sources() {
        let own = module(&file);
        if ["lib", "main"].contains(&own) {
            continue;
        }
        let allowed: &[&str] = match MAY_USE.iter().find(|(name, _)| *name == own) {
            Some((_, allowed)) => allowed,
            None => {
                assert!(
                    values.contains(&own),
                    "{file}: the module `{own}` is not on the map"
                );
                &[]
            }
        };
        let code = code(&text);
        for other in &modules {
            if *other == own || allowed.contains(other) {
                continue;
            }
            let used = code.contains(&format!("crate::{other}::")) || in_crate_list(&code, other);
            assert!(
                !used,
                "{file} uses {other}, which does not stand below {own}"
            );
        }
    }
}

/// Whether a `use crate::{…}` list has it; there, modules stand indented by four.
fn in_crate_list(code: &str, module: &str) -> bool {
    code.split("use crate::{").skip(1).any(|rest| {
        let list = rest.split("\n};").next().unwrap_or(rest);
        list.lines()
            .any(|line| line.starts_with(&format!("    {module}::")))
    })
}

#[test]
fn wasmtime_is_a_version_with_long_support_and_there_is_only_one() {
    let lock =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock")).unwrap();
    let versions: Vec<&str> = lock
        .split("[[package]]")
        .filter(|package| package.contains("\nname = \"wasmtime\"\n"))
        .filter_map(|package| package.split("version = \"").nth(1)?.split('"').next())
        .collect();
    assert_eq!(versions.len(), 1, "{versions:?}");
    let numbers: Vec<u32> = versions[0].split('.').map(|n| n.parse().unwrap()).collect();
    assert!(
        numbers[0] == 48 && numbers[2] >= 8,
        "{versions:?}: 48.0.8 is the floor"
    );
}

#[test]
fn the_map_names_every_module() {
    let sources = host_sources();
    let map = &sources.iter().find(|(file, _)| file == "lib.rs").unwrap().1;
    for line in map.lines().filter_map(|line| line.strip_prefix("pub mod ")) {
        let name = line.trim_end_matches(';');
        assert!(
            map.contains(&format!("//! | [`{name}`] |")),
            "`{name}` is not on the map"
        );
    }
}

#[test]
fn nothing_that_a_model_or_a_tool_reaches_can_grant() {
    let reachable = [
        "agent", "mcp", "peers", "policy", "provider", "registry", "sandbox",
    ];
    let grants = [
        "TrustStore",
        "LockPlace",
        "add_grants",
        "append_allow",
        ".pin(",
        "write_atomically",
    ];
    for (file, text) in host_sources() {
        if !reachable.contains(&module(&file)) {
            continue;
        }
        let code = code(&text);
        for word in grants {
            assert!(!code.contains(word), "{file} names `{word}`");
        }
    }
}
