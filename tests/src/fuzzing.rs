//! What is done with anything at all: a function for each place where foreign text or bytes are read. Each must
//! neither panic nor hang, and what it says of its input has to hold. `tests/fuzz` hands them to libFuzzer, and
//! `tests/tests/all/fuzz.rs` to a short run with the corpus.

use std::{fs, str, sync::LazyLock};

use agentloop_host::{
    capability::{OriginPattern, Scheme},
    config::{
        Environment, Flags, Inputs, Places, Settings,
        permissions::{Mode, Permissions, Rule, Verdict},
    },
    provider::fuzzing::read_stream,
    registry::{Registry, native::NativeTool},
    sandbox::{FileKind, compiler::Compiler, inspect, limits},
};
use serde_json::{Map, Value};

use crate::crafted::Crafted;

pub type Target = fn(&[u8]);

/// The name of each, which its corpus and its harness have as well.
pub const TARGETS: [(&str, Target); 6] = [
    ("metadata", metadata),
    ("arguments", arguments),
    ("sse", sse),
    ("config", config),
    ("hosts", hosts),
    ("paths", paths),
];

/// The custom section of a component.
pub fn metadata(data: &[u8]) {
    const NAME: &[u8] = b"agentloop-tools";
    static BASE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        Crafted {
            section: None,
            ..Crafted::default()
        }
        .component()
    });
    let mut wasm = BASE.clone();
    wasm.push(0);
    leb(NAME.len() + 1 + data.len(), &mut wasm);
    leb(NAME.len(), &mut wasm);
    wasm.extend_from_slice(NAME);
    wasm.extend_from_slice(data);
    let inspection = inspect(&wasm);
    assert!(matches!(inspection.file, FileKind::Tool { .. }));
    match inspection.metadata.expect("there is one section") {
        Err(error) => assert!(error.to_string().len() < 4096, "{error}"),
        Ok(definitions) => {
            assert!(definitions.tools.len() <= limits::TOOLS_PER_COMPONENT);
            for tool in &definitions.tools {
                assert!(tool.description.len() <= limits::DESCRIPTION_BYTES);
                assert!(tool.requests.len() <= limits::REQUESTS_PER_TOOL);
            }
            for aside in &definitions.set_aside {
                assert!(aside.why.len() < 4096, "{}", aside.why);
            }
        }
    }
}

fn leb(mut n: usize, into: &mut Vec<u8>) {
    loop {
        let byte = (n & 0x7f) as u8;
        n >>= 7;
        if n == 0 {
            return into.push(byte);
        }
        into.push(byte | 0x80);
    }
}

/// A schema, and on the lines below it the arguments of calls.
pub fn arguments(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let mut lines = text.lines();
    let Some(Ok(schema)) = lines.next().map(serde_json::from_str::<Value>) else {
        return;
    };
    let tool = NativeTool::new("t", "d", schema, |_| Ok::<_, String>(String::new()));
    let Ok(registry) = Registry::new([tool.expect("the name is one")]) else {
        return;
    };
    let tool = registry.get("t").expect("it was not set aside");
    for line in lines {
        let Ok(input) = serde_json::from_str::<Map<String, Value>>(line) else {
            continue;
        };
        match tool.check_arguments(input) {
            // What the approver sees is what the tool gets.
            Ok(checked) => assert_eq!(tool.check_arguments(checked.clone()), Ok(checked)),
            Err(faults) => {
                assert!(!faults.is_empty());
                let bytes: usize = faults.iter().map(String::len).sum();
                assert!(bytes < 64 << 10, "{bytes} bytes of faults");
            }
        }
    }
}

/// A streamed reply of a model endpoint: the same in whichever pieces it comes.
pub fn sse(data: &[u8]) {
    let whole = read_stream(data, usize::MAX);
    for piece_bytes in [1, 7] {
        assert_eq!(whole, read_stream(data, piece_bytes));
    }
}

/// A project's settings, which nobody trusts.
pub fn config(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a folder");
    let project = dir.path().join("project");
    fs::create_dir(&project).expect("a folder");
    fs::write(project.join("agentloop.toml"), data).expect("a file");
    let inputs = Inputs {
        working_dir: project,
        places: Places::inside(dir.path()),
        environment: Environment::default(),
        flags: Flags::default(),
        compiler: Compiler::InProcess,
    };
    match Settings::resolve(&inputs) {
        Err(error) => assert!(error.to_string().len() < 1 << 20),
        Ok(settings) => {
            assert_eq!(settings.permissions.allow, [], "it allows something");
            assert!(
                settings
                    .permissions
                    .mode
                    .is_at_least_as_strict_as(Mode::Ask),
                "it loosens the mode"
            );
            assert!(settings.sandbox.extra_ca_files.is_empty());
            assert!(settings.peers.is_empty(), "it starts something");
            for line in settings.origin_lines() {
                assert!(!line.contains('\n'));
            }
        }
    }
}

/// A pattern of hosts, and on the lines below it addresses.
pub fn hosts(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let mut lines = text.lines();
    let Some(Ok(pattern)) = lines.next().map(OriginPattern::parse) else {
        return;
    };
    let written = pattern.to_string();
    assert_eq!(OriginPattern::parse(&written).as_ref(), Ok(&pattern));
    for line in lines {
        let Ok(url) = url::Url::parse(line) else {
            continue;
        };
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => continue,
        };
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            continue;
        };
        if !pattern.covers(scheme, host, port) || written == "*" {
            continue;
        }
        // Said in another way: the same scheme and port, and the host or a sub-domain of it.
        let plain = written.replacen("*.", "", 1);
        let own = url::Url::parse(&plain).expect("it was parsed before");
        assert_eq!(own.scheme(), url.scheme(), "{written} covers {line}");
        assert_eq!(
            own.port_or_known_default(),
            Some(port),
            "{written} covers {line}"
        );
        let own = own.host_str().expect("it has one");
        if plain == written {
            assert_eq!(own, host, "{written} covers {line}");
        } else {
            assert!(
                host.ends_with(&format!(".{own}")),
                "{written} covers {line}"
            );
        }
    }
}

/// A rule on a path, and on the lines below it paths: however a denied path is written, it is denied.
pub fn paths(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let mut lines = text.lines();
    let Some(pattern) = lines.next() else { return };
    // Others are texts, and a text is what it is.
    if !pattern.starts_with('/') {
        return;
    }
    let Ok(rule) = Rule::parse(&format!("files.read(path:{pattern})")) else {
        return;
    };
    let mut permissions = Permissions::default();
    permissions.deny = vec![rule];
    let verdict = |path: &str| {
        let mut input = Map::new();
        input.insert("path".to_owned(), path.into());
        permissions
            .rule_for("files.read", &input)
            .map(|(verdict, _)| verdict)
    };
    for path in lines {
        if verdict(path) != Some(Verdict::Deny) || path.is_empty() {
            continue;
        }
        // The same place, written otherwise.
        let absolute = path.starts_with('/');
        for other in [
            format!("{path}/"),
            path.replace('/', "//"),
            path.replace('/', "/./"),
            if absolute {
                format!("/x/..{path}")
            } else {
                format!("./{path}")
            },
        ] {
            assert_eq!(
                verdict(&other),
                Some(Verdict::Deny),
                "{path} is denied, {other} is not"
            );
        }
    }
}
