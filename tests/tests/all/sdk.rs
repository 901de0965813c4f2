//! The SDK from the author's side: crates built as authors build them, and the generated bindings.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
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
    let mut options = wit_bindgen_rust::Opts::default();
    options.format = true;
    options.pub_export_macro = true;
    options.export_macro_name = Some("export_component".into());
    // The export macro is expanded in the author's crate, which knows the SDK alone.
    options.default_bindings_module = Some("agentloop_sdk::bindings".into());
    options.runtime_path = Some("::agentloop_sdk::__rt::wit_bindgen::rt".into());
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
    assert_eq!(
        tools[0]["input_schema"]["required"],
        serde_json::json!(["text"])
    );
    let fn_type = &tools[0]["input_schema"]["properties"]["fn"]["type"];
    assert_eq!(*fn_type, serde_json::json!(["integer", "null"]));
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
