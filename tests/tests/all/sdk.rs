//! The SDK from the author's side: crates built as authors build them, and the generated bindings.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use agentloop_host::{
    capability::{HttpGrant, OriginPattern},
    event::LogLevel,
    tool::{Content, ResourceBody, ToolOutcome},
};
use agentloop_tests::{
    guests::{self, Guest},
    servers::{Authority, Received, Reply, Server},
};
use serde_json::{Value, json};
use wit_bindgen_core::{Files, WorldGenerator as _, wit_parser::Resolve};

/// Set it to anything to write the bindings anew instead of comparing them.
const UPDATE: &str = "AGENTLOOP_UPDATE_BINDINGS";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_bindings_are_those_of_the_contract() {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(repository().join("wit")).unwrap();
    let world = resolve.select_world(&[package], Some("tool")).unwrap();
    let options = wit_bindgen_rust::Opts {
        format: true,
        pub_export_macro: true,
        export_macro_name: Some("export_component".into()),
        // The export macro is expanded in the author's crate, which knows the SDK alone.
        default_bindings_module: Some("agentloop_sdk::bindings".into()),
        runtime_path: Some("::agentloop_sdk::__rt::wit_bindgen::rt".into()),
        ..Default::default()
    };
    let mut files = Files::default();
    options
        .build()
        .generate(&mut resolve, world, &mut files)
        .unwrap();
    let (_, generated) = files.iter().next().unwrap();

    let path = repository().join("sdk/src/bindings.rs");
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, generated).unwrap();
    }
    assert!(
        fs::read(&path).unwrap() == generated,
        "sdk/src/bindings.rs is not what wit/ says: run `{UPDATE}=1 cargo test -p agentloop-tests bindings` and commit it"
    );
}

/// An author's folder with an SDK unpacked beside the crate, as `agentloop-host new` leaves it.
struct Author {
    folder: tempfile::TempDir,
}

impl Author {
    fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("my tools ")
            .tempdir()
            .unwrap();
        let author = Self { folder };
        copy(&repository().join("sdk"), &author.path("agentloop sdk"));
        author
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Writes a tool crate into a folder of its own.
    fn crate_in(&self, folder: &str, more_manifest: &str, code: &str) {
        let up = "../".repeat(folder.split('/').count());
        let manifest = format!(
            r#"
            [package]
            name = "author-tools"
            edition = "2024"

            [lib]
            crate-type = ["cdylib"]

            [dependencies]
            agentloop-sdk = {{ path = "{up}agentloop sdk" }}
            {more_manifest}
            "#
        );
        self.write(&format!("{folder}/Cargo.toml"), &manifest);
        self.write(&format!("{folder}/src/lib.rs"), code);
        // The versions that this repository is tested with, so that nothing has to be looked up.
        let lock = fs::read(repository().join("Cargo.lock")).unwrap();
        fs::write(self.path(folder).join("Cargo.lock"), lock).unwrap();
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn cargo(&self, folder: &str, arguments: &[&str], rustflags: Option<&str>) -> Output {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(arguments)
            .current_dir(self.path(folder))
            // All authors' crates share what they are built of.
            .env(
                "CARGO_TARGET_DIR",
                Path::new(env!("CARGO_TARGET_TMPDIR")).join("authors"),
            )
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        if let Some(flags) = rustflags {
            cargo.env("RUSTFLAGS", flags);
        }
        cargo.output().unwrap()
    }

    /// Builds for the components' target, and gives the component.
    #[track_caller]
    fn component(&self, folder: &str, profile: &str, rustflags: Option<&str>) -> Vec<u8> {
        let output = self.cargo(
            folder,
            &[
                "build",
                "--profile",
                profile,
                "--target",
                "wasm32-wasip2",
                "--message-format",
                "json",
            ],
            rustflags,
        );
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{talk}");
        let messages = String::from_utf8(output.stdout).unwrap();
        let wasm = messages
            .lines()
            .map(|line| line.parse::<Value>().unwrap())
            .filter_map(|message| {
                let files = message["filenames"].as_array()?.clone();
                files.iter().find_map(|file| {
                    file.as_str()
                        .filter(|file| file.ends_with(".wasm"))
                        .map(PathBuf::from)
                })
            })
            .next_back();
        fs::read(wasm.unwrap()).unwrap()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// What the section `agentloop-tools` says, and the names of what the component exports.
fn inspect(component: &[u8]) -> (Value, Vec<String>) {
    let mut section = None;
    let mut exports = Vec::new();
    let mut depth = 0;
    for payload in wasmparser::Parser::new(0).parse_all(component) {
        match payload.unwrap() {
            wasmparser::Payload::ModuleSection { .. }
            | wasmparser::Payload::ComponentSection { .. } => depth += 1,
            wasmparser::Payload::End(_) if depth > 0 => depth -= 1,
            wasmparser::Payload::ComponentExportSection(reader) if depth == 0 => {
                exports.extend(
                    reader
                        .into_iter()
                        .map(|export| export.unwrap().name.name.to_owned()),
                );
            }
            wasmparser::Payload::CustomSection(custom) if custom.name() == "agentloop-tools" => {
                assert!(section.is_none(), "two sections");
                section = Some(serde_json::from_slice(custom.data()).unwrap());
            }
            _ => {}
        }
    }
    (section.unwrap(), exports)
}

const ECHO: &str = r#"
#![forbid(unsafe_code)]
#![deny(warnings)]

/// Return the text unchanged.
#[agentloop_sdk::tool(read_only, closed_world)]
fn r#type(text: String, r#fn: Option<u8>) -> String {
    format!("{text}{fn:?}", fn = r#fn)
}

agentloop_sdk::tools![r#type];

#[cfg(test)]
mod tests {
    #[test]
    fn natively_a_tool_is_a_function() {
        assert_eq!(super::r#type("a".into(), None), "aNone");
    }
}
"#;

#[track_caller]
fn assert_echo(component: &[u8]) {
    let (section, exports) = inspect(component);
    assert_eq!(section["package"], "agentloop:tool@0.1.0");
    let tools = section["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 1);
    assert_eq!(tools[0]["name"], "type");
    assert_eq!(tools[0]["input_schema"]["required"], json!(["text"]));
    let fn_type = &tools[0]["input_schema"]["properties"]["fn"]["type"];
    assert_eq!(*fn_type, json!(["integer", "null"]));
    assert_eq!(exports, ["agentloop:tool/tools@0.1.0"]);
}

#[test]
fn an_authors_crate_builds_in_a_workspace_beside_other_bindings_and_with_flags_set() {
    let author = Author::new();
    author.write(
        "work space/Cargo.toml",
        "[workspace]\nmembers = [\"tools\"]\nresolver = \"3\"\n",
    );
    author.crate_in(
        "work space/tools",
        // Another version than the SDK's, with its own allocator export.
        "wit-bindgen = { version = \"0.57\", default-features = false, features = [\"realloc\"] }",
        &format!(
            "{ECHO}\n#[used]\nstatic LINKED: fn() = wit_bindgen::rt::maybe_link_cabi_realloc;\n"
        ),
    );
    fs::rename(
        author.path("work space/tools/Cargo.lock"),
        author.path("work space/Cargo.lock"),
    )
    .unwrap();
    let component = author.component("work space/tools", "dev", Some("-C debuginfo=0"));
    assert_echo(&component);
}

#[test]
fn a_small_tool_makes_a_small_component() {
    let author = Author::new();
    let profile = r#"
        [profile.release]
        opt-level = "s"
        lto = true
        codegen-units = 1
        panic = "abort"
        strip = true
    "#;
    author.crate_in("echo tool", profile, ECHO);
    let component = author.component("echo tool", "release", None);
    assert_echo(&component);
    assert!(component.len() < 120_000, "{} bytes", component.len());
}

#[test]
fn the_wrong_target_is_one_error_with_the_right_command() {
    let author = Author::new();
    author.crate_in("echo", "", ECHO);
    let output = author.cargo("echo", &["check"], None);
    assert!(!output.status.success());
    let talk = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<_> = talk
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    // The second is cargo's own, that there was one.
    assert_eq!(errors.len(), 2, "{talk}");
    assert!(errors[0].contains("`agentloop-host build`"), "{talk}");
    assert!(
        errors[0].contains("`cargo build --release --target wasm32-wasip2`"),
        "{talk}"
    );
}

#[test]
fn an_authors_tests_run_natively() {
    let author = Author::new();
    author.crate_in("echo", "", ECHO);
    let output = author.cargo("echo", &["test"], None);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(
        report.contains("natively_a_tool_is_a_function ... ok"),
        "{report}"
    );
}

const SECTION: &[u8] = b"agentloop-tools";

/// The same component with the section under another name, so that `list` has to be asked.
fn without_section(component: &[u8]) -> Vec<u8> {
    let mut component = component.to_vec();
    let mut found = component
        .windows(SECTION.len())
        .enumerate()
        .filter(|(_, window)| *window == SECTION)
        .map(|(position, _)| position);
    let position = found.next().unwrap();
    assert_eq!(found.next(), None);
    component[position] = b'x';
    component
}

#[tokio::test]
async fn the_section_says_what_list_says() {
    let sandbox = guests::sandbox();
    let of_section = sandbox.load(guests::AUTHOR.into()).await.unwrap();
    let of_list = sandbox
        .load(without_section(guests::AUTHOR).into())
        .await
        .unwrap();
    assert_eq!(of_section.definitions(), of_list.definitions());
    assert!(of_section.set_aside().is_empty());
    assert!(of_list.set_aside().is_empty());

    let every = &of_section.definitions()[0];
    insta::assert_debug_snapshot!(every);
}

#[tokio::test]
async fn every_kind_of_content_arrives() {
    let author = Guest::load(&guests::sandbox(), guests::AUTHOR).await;
    let outcome = author.call("contents", json!({})).await.outcome;
    assert_eq!(
        outcome,
        ToolOutcome::Answered(vec![
            Content::Text("text".into()),
            Content::Image {
                media_type: "image/png".into(),
                data: vec![1, 2],
            },
            Content::Audio {
                media_type: "audio/wav".into(),
                data: vec![3],
            },
            Content::Resource {
                uri: "note:1".into(),
                media_type: Some("text/plain".into()),
                body: ResourceBody::Text("a note".into()),
            },
            Content::Resource {
                uri: "note:2".into(),
                media_type: None,
                body: ResourceBody::Bytes(vec![0xff]),
            },
            Content::Json(json!({"n": 1.5})),
        ])
    );
}

#[tokio::test]
async fn each_failure_arrives_as_what_it_is() {
    let author = Guest::load(&guests::sandbox(), guests::AUTHOR).await;
    let fail = async |how: &str| author.call("fail", json!({ "how": how })).await.outcome;
    let failed = |message: &str| ToolOutcome::Failed {
        message: message.into(),
    };
    assert_eq!(
        fail("invalid").await,
        ToolOutcome::InvalidArguments {
            faults: vec!["`how` is no good".into()]
        }
    );
    assert_eq!(fail("denied").await, failed("`how` is not granted"));
    assert_eq!(fail("error").await, failed("invalid digit found in string"));
    assert_eq!(fail("text").await, failed("only a text"));
    for (how, text) in [
        ("panic", "the cat is not on the mat"),
        ("unwrap", "called `Option::unwrap()` on a `None` value"),
    ] {
        match fail(how).await {
            ToolOutcome::Trapped { message } => assert!(message.contains(text), "{message}"),
            other => panic!("{other:?}"),
        }
    }
    // The host checks arguments first; a tool that gets others all the same says so.
    match fail("unknown").await {
        ToolOutcome::InvalidArguments { faults } => {
            assert!(
                faults[0].contains("unknown variant `unknown`"),
                "{faults:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_operator_hears_what_is_logged_and_reported() {
    let author = Guest::load(&guests::sandbox(), guests::AUTHOR).await;
    let outcome = author.call("tell", json!({"text": "line"})).await.outcome;
    assert_eq!(outcome, ToolOutcome::Answered(vec![]));
    assert_eq!(
        author.heard.lines(),
        [
            (LogLevel::Debug, "line 1".to_owned()),
            (LogLevel::Info, "line 2".to_owned()),
            (LogLevel::Warn, "line 3".to_owned()),
            (LogLevel::Error, "line 4".to_owned()),
        ]
    );
    assert_eq!(
        author.heard.reports(),
        [(1.0, Some(2.0), Some("line".to_owned())), (1.5, None, None)]
    );
}

#[tokio::test]
async fn recursive_arguments_are_decoded() {
    let author = Guest::load(&guests::sandbox(), guests::AUTHOR).await;
    for (tree, expected) in [
        (json!({}), json!(null)),
        (json!({"tree": null}), json!(null)),
        (
            json!({"tree": {"name": "b", "next": {"name": "c"}}}),
            json!({"name": "b", "next": {"name": "c", "next": null}}),
        ),
    ] {
        let mut input = tree.clone();
        input["do"] = json!("a");
        assert_eq!(
            author.call("every-option", input).await.outcome,
            ToolOutcome::Answered(vec![Content::Json(json!({"name": "a", "next": expected}))]),
            "{tree}"
        );
    }
}

/// The guest with grants for these origins.
async fn author_with(origins: &[String]) -> Guest {
    let mut author = Guest::load(&guests::sandbox(), guests::AUTHOR).await;
    grant(&mut author, origins);
    author
}

fn grant(author: &mut Guest, origins: &[String]) {
    author.grants.http = origins
        .iter()
        .map(|origin| HttpGrant {
            origin: OriginPattern::parse(origin).unwrap(),
            methods: vec!["GET".into(), "POST".into()],
        })
        .collect();
}

/// What the tool `request` tells.
async fn request(author: &Guest, input: Value) -> Value {
    match author.call("request", input).await.outcome {
        ToolOutcome::Answered(content) => match content.as_slice() {
            [Content::Json(told)] => told.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn mirror(received: &Received) -> Reply {
    Reply::whole(201, &[("content-type", "text/x-mirror")], &received.body)
}

#[tokio::test]
async fn a_request_goes_out_and_its_response_comes_in() {
    let server = Server::start(mirror).await;
    let author = author_with(&[server.origin()]).await;
    // More than what one write or one read takes.
    let body = "line\n".repeat(60_000);
    let told = request(
        &author,
        json!({
            "method": "POST",
            "url": server.url("/a b?q=ü"),
            "body": body,
            "headers": {"X-Own": "1"},
        }),
    )
    .await;
    assert_eq!(told["error"], Value::Null, "{told}");
    assert_eq!(told["status"], 201);
    assert_eq!(told["type"], "text/x-mirror");
    assert!(
        told["text"] == body,
        "{} bytes",
        told["text"].as_str().unwrap().len()
    );
    let received = &server.requests()[0];
    assert_eq!(received.method, "POST");
    assert_eq!(received.target, "/a%20b?q=%C3%BC");
    assert_eq!(received.header("x-own"), Some("1"));
    assert_eq!(
        received.header("content-length"),
        Some(body.len().to_string().as_str())
    );
    let agent = received.header("user-agent").unwrap();
    assert!(agent.starts_with("agentloop-sdk/"), "{agent}");
}

#[tokio::test]
async fn each_hop_of_a_redirect_needs_its_grant() {
    let end = Server::start(|_| Reply::text("there")).await;
    let to = end.url("/end");
    let start = Server::start(move |_| Reply::redirect(&to)).await;
    let input = json!({
        "method": "GET",
        "url": start.url("/"),
        "headers": {"authorization": "Bearer 1"},
    });

    let author = author_with(&[start.origin()]).await;
    let told = request(&author, input.clone()).await;
    assert_eq!(told["error"], "denied", "{told}");
    assert!(
        told["message"].as_str().unwrap().contains(&end.url("/end")),
        "{told}"
    );
    assert_eq!(end.connections(), 0);

    let author = author_with(&[start.origin(), end.origin()]).await;
    let told = request(&author, input).await;
    assert_eq!(told["text"], "there", "{told}");
    assert_eq!(told["url"], end.url("/end"));
    assert_eq!(
        start.requests()[1].header("authorization"),
        Some("Bearer 1")
    );
    assert_eq!(end.requests()[0].header("authorization"), None);
}

#[tokio::test]
async fn faults_of_the_network_are_told_apart() {
    let silent = Server::start(|_| Reply::silent()).await;
    let stalling = Server::start(|_| Reply::stalling("so far")).await;
    let endless = Server::start(|_| Reply::endless()).await;
    let truncated = Server::start(|_| Reply::truncated()).await;
    let tls = Authority::generate().server_config(&["localhost"]);
    let untrusted = Server::start_tls(tls, |_| Reply::text("no")).await;
    let closed = Server::start(|_| Reply::silent()).await;
    let nobody = closed.origin();
    drop(closed);
    let author = author_with(&[
        silent.origin(),
        stalling.origin(),
        endless.origin(),
        truncated.origin(),
        untrusted.origin_as("localhost"),
        nobody.clone(),
        "*".into(),
    ])
    .await;
    for (url, expected) in [
        (silent.url("/"), "timeout"),
        (stalling.url("/"), "timeout"),
        (endless.url("/"), "too large"),
        (truncated.url("/"), "connection"),
        (untrusted.origin_as("localhost"), "certificate"),
        (nobody, "connection"),
        // Granted by `*` alone, which does not open this machine.
        ("http://127.0.0.1:9".into(), "address denied"),
        ("https://user@example.org/".into(), "other"),
    ] {
        for (method, body) in [("GET", None), ("POST", Some("a body"))] {
            let input = json!({
                "method": method,
                "url": url,
                "body": body,
                "timeout_ms": if expected == "timeout" { 300 } else { 20_000 },
            });
            let told = request(&author, input).await;
            assert_eq!(told["error"], expected, "{method} {url}: {told}");
        }
    }
    let input = json!({"method": "DELETE", "url": silent.url("/"), "timeout_ms": 20_000});
    assert_eq!(request(&author, input).await["error"], "denied");
}

#[tokio::test]
async fn the_bound_of_a_body_is_exact() {
    let server = Server::start(|_| Reply::text(&"x".repeat(1_000))).await;
    let author = author_with(&[server.origin()]).await;
    for (limit, error) in [(1_000, Value::Null), (999, json!("too large"))] {
        let input = json!({"method": "GET", "url": server.url("/"), "max_body_bytes": limit});
        assert_eq!(request(&author, input).await["error"], error, "{limit}");
    }
}

#[tokio::test]
async fn a_refusal_that_the_tool_passes_on_is_reported_as_one() {
    let server = Server::start(|_| Reply::text("no")).await;
    let mut author = Guest::load(&guests::sandbox(), guests::AUTHOR).await;
    author.limits.timeout = Some(Duration::from_secs(20));
    let outcome = author
        .call("get", json!({"url": server.url("/")}))
        .await
        .outcome;
    match outcome {
        ToolOutcome::CapabilityRefused { message, refusals } => {
            assert!(
                message.contains("the host refused `GET http://127.0.0.1"),
                "{message}"
            );
            assert_eq!(refusals.len(), 1);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.connections(), 0);
}
