//! The way of a tool's author: a crate, a component, a look at it, the shipped tools.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use agentloop_tests::binary::{self, Ran};
use serde_json::{Value, json};

/// A person with a folder of their own, whose name has a blank in it.
struct Author {
    folder: tempfile::TempDir,
}

impl Author {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("my tools ").tempdir();
        Self {
            folder: folder.unwrap(),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_program");
        let mut command = binary::command(program, self.folder.path(), &shared().join("home"));
        command.args(args);
        share_builds(&mut command);
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        binary::run(&mut self.command(args))
    }

    /// As [`Author::run`], for what has to work.
    fn done(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        ran
    }

    fn inspect(&self, file: &str) -> Value {
        let ran = self.run(&["inspect", "--json", file]);
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr))
    }
}

/// Outlives a test run, so that dependencies are built once. The SDK is unpacked here too: at another place it
/// would be another package.
fn shared() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("authoring")
}

fn share_builds(command: &mut Command) {
    command
        .env("CARGO_TARGET_DIR", shared().join("target"))
        .env("CARGO_NET_OFFLINE", "true")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
}

#[test]
fn a_new_crate_builds_tests_and_says_what_it_is() {
    let author = Author::new();
    // Somebody's workspace around it, a name that is a word of Rust, and flags of the author's own.
    author.write("Cargo.toml", "[workspace]\nmembers = []\n");
    let made = author.done(&["new", "type", "--path", "own crates/type"]);
    assert_eq!(made.stdout, "own crates/type\n");
    assert!(
        made.stderr
            .contains("agentloop-host build 'own crates/type'"),
        "{}",
        made.stderr
    );
    assert!(made.stderr.contains("stands apart"), "{}", made.stderr);

    let mut build = author.command(&["build", "own crates/type"]);
    let built = binary::run(build.env("RUSTFLAGS", "-C debuginfo=0"));
    assert_eq!(built.code, 0, "{}", built.stderr);
    assert!(
        built.stdout.ends_with("plugins/type.wasm\n"),
        "{}",
        built.stdout
    );
    assert!(
        built.stderr.contains("it asks for nothing"),
        "{}",
        built.stderr
    );

    let found = author.inspect("plugins/type.wasm");
    assert_eq!(found["kind"], "tools");
    assert_eq!(found["usable"], true);
    assert_eq!(found["faults"], json!([]));
    assert_eq!(found["tools"][0]["name"], "type");
    assert_eq!(
        found["tools"][0]["input_schema"]["required"],
        json!(["text"])
    );
    assert_eq!(found["tools"][0]["requests"], json!([]));

    let again = author.done(&["build", "own crates/type", "--plugins", "elsewhere"]);
    assert!(
        again.stdout.ends_with("elsewhere/type.wasm\n"),
        "{}",
        again.stdout
    );

    // The same functions, natively; and the one error where the target was forgotten.
    let native = |command: &str| {
        let mut cargo = Command::new("cargo");
        cargo
            .arg(command)
            .current_dir(author.path("own crates/type"));
        share_builds(&mut cargo);
        binary::run(&mut cargo)
    };
    let tested = native("test");
    assert!(tested.stdout.contains("1 passed"), "{tested:?}");
    let wrong_target = native("build");
    assert_ne!(wrong_target.code, 0);
    assert!(
        wrong_target.stderr.contains("agentloop-host build"),
        "{}",
        wrong_target.stderr
    );
    assert_eq!(
        wrong_target.stderr.matches("\nerror: ").count(),
        2,
        "the error, and cargo's own: {}",
        wrong_target.stderr
    );
}

#[test]
fn a_workspace_is_built_whole_and_asks_for_grants_in_the_words_of_the_file() {
    let author = Author::new();
    for name in ["one-tool", "other"] {
        author.done(&["new", name, "--path", &format!("crates/{name}")]);
        let manifest = author.read(&format!("crates/{name}/Cargo.toml"));
        let member = manifest.replace("[workspace]\n", "");
        assert_ne!(member, manifest);
        author.write(&format!("crates/{name}/Cargo.toml"), member);
    }
    author.write(
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n",
    );
    author.write(
        "crates/library/Cargo.toml",
        "[package]\nname = \"library\"\nedition = \"2024\"\n",
    );
    author.write(
        "crates/library/src/lib.rs",
        "compile_error!(\"is no tool\");\n",
    );
    let code = author.read("crates/other/src/lib.rs");
    author.write(
        "crates/other/src/lib.rs",
        code.replace(
            "#[tool(read_only, idempotent, closed_world)]",
            r#"#[tool(
                http("https://api.example.org", methods = ["GET", "POST"], reason = "to look up prices"),
                folder("/notes", write, reason = "to keep them"),
                env("CITY", reason = "to know where you are"),
            )]"#,
        ),
    );

    let built = author.done(&["build"]);
    let installed: Vec<_> = built.stdout.lines().collect();
    assert_eq!(installed.len(), 2, "{}", built.stdout);
    assert!(author.path("plugins/one-tool.wasm").exists());
    assert!(
        built.stderr.contains("to look up prices"),
        "{}",
        built.stderr
    );

    // What it says to put into the file is what the file takes.
    let lines: Vec<_> = built
        .stderr
        .lines()
        .skip_while(|line| line.trim() != "[grants.other]")
        .take_while(|line| !line.trim().is_empty())
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let settings = lines.concat().replace("a/folder/of/yours", "notes");
    author.write("agentloop.toml", &settings);
    fs::create_dir(author.path("notes")).unwrap();
    let granted = |args: &[&str]| {
        let mut inspect = author.command(&["inspect", "--json", "plugins/other.wasm"]);
        let ran = binary::run(inspect.args(args).env("CITY", "Lima"));
        assert_eq!(ran.code, 0, "{settings}\n{}", ran.stderr);
        let found: Value = serde_json::from_str(&ran.stdout).unwrap();
        let requests = found["tools"][0]["requests"].as_array().unwrap().clone();
        requests
            .iter()
            .map(|r| r["granted"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(granted(&["--trust"]), ["whole", "whole", "whole"]);
    assert_eq!(
        granted(&[]),
        ["not", "not", "not"],
        "a file that nobody trusts grants nothing"
    );

    let again = author.done(&["build", "."]);
    assert!(again.stderr.contains("is up to date"), "{}", again.stderr);
}

#[test]
fn what_is_no_plugin_is_named_with_the_way_out() {
    let author = Author::new();
    author.done(&["new", "sample"]);
    author.done(&["build", "sample"]);
    let wasm = fs::read(author.path("plugins/sample.wasm")).unwrap();
    let with_version = |version: &[u8; 5]| {
        let mut wasm = wasm.clone();
        let name = b"agentloop:tool/tools@";
        let places: Vec<_> = (0..wasm.len() - name.len())
            .filter(|at| wasm[*at..].starts_with(name))
            .collect();
        assert!(!places.is_empty());
        for at in places {
            wasm[at + name.len()..][..5].copy_from_slice(version);
        }
        wasm
    };
    // A component with nothing in it, and one that is a program.
    let component = b"\0asm\x0d\0\x01\0".to_vec();
    for (file, content, kind, says) in [
        (
            "core.wasm",
            b"\0asm\x01\0\0\0".to_vec(),
            "core module",
            "--target wasm32-wasip2",
        ),
        (
            "newer.wasm",
            with_version(b"9.1.0"),
            "tools",
            "update agentloop-host",
        ),
        (
            "older.wasm",
            with_version(b"0.0.9"),
            "tools",
            "agentloop-sdk",
        ),
        (
            "empty-component.wasm",
            component,
            "component",
            "exports nothing",
        ),
        (
            "page.wasm",
            b"<!DOCTYPE html>".to_vec(),
            "not wasm",
            "a web page",
        ),
        ("empty.wasm", Vec::new(), "not wasm", "an empty file"),
        (
            "cut.wasm",
            wasm[..wasm.len() / 2].to_vec(),
            "damaged",
            "build it again",
        ),
    ] {
        author.write(file, content);
        let ran = author.run(&["inspect", file]);
        assert_eq!(ran.code, 7, "{file}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(file) && ran.stderr.contains(says),
            "{file}: {}",
            ran.stderr
        );
        assert_eq!(author.inspect(file)["kind"], kind, "{file}");
    }
    let missing = author.run(&["inspect", "none.wasm"]);
    assert_eq!(missing.code, 7);
    assert!(
        missing.stderr.contains("no such file"),
        "{}",
        missing.stderr
    );
}

#[test]
fn a_folder_with_a_bad_file_lists_the_good_ones_and_fails_the_check() {
    let author = Author::new();
    author.done(&["new", "sample"]);
    author.done(&["build", "sample"]);
    let good = author.done(&["tools", "--check", "--trust"]);
    assert!(good.stdout.contains("sample"), "{}", good.stdout);

    author.write("plugins/core.wasm", b"\0asm\x01\0\0\0");
    let listed = author.done(&["tools", "--trust"]);
    assert!(
        listed.stdout.contains("Repeats a text"),
        "{}",
        listed.stdout
    );
    assert!(
        listed.stderr.contains("core.wasm") && listed.stderr.contains("wasm32-wasip2"),
        "{}",
        listed.stderr
    );
    let checked = author.run(&["tools", "--check", "--json", "--trust"]);
    assert_eq!(checked.code, 7);
    let found: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(found["tools"][0]["name"], "sample");
    assert_eq!(found["tools"][0]["rule_name"], "sample.sample");
    assert_eq!(found["set_aside"].as_array().unwrap().len(), 1);
}

#[test]
fn what_a_component_says_cannot_steer_the_terminal() {
    let author = Author::new();
    author.done(&["new", "sample"]);
    let code = author.read("sample/src/lib.rs");
    author.write(
        "sample/src/lib.rs",
        code.replace(
            "#[tool(read_only,",
            r#"#[tool(description = "Clears\u{1b}[2J\u{202e}it", env("A", reason = "be\u{7}cause\u{1b}]0;x"), read_only,"#,
        ),
    );
    let built = author.done(&["build", "sample"]);
    let inspected = author.done(&["inspect", "plugins/sample.wasm"]);
    let listed = author.done(&["tools", "--trust"]);
    for text in [&built.stderr, &inspected.stdout, &listed.stdout] {
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers), "{text:?}");
    }
    assert!(
        inspected.stdout.contains("Clears\\u{1b}[2J"),
        "{}",
        inspected.stdout
    );
}

#[test]
fn flags_that_make_no_component_are_told() {
    let author = Author::new();
    author.done(&["new", "sample"]);
    let settings = author.read("sample/.cargo/config.toml");
    author.write(
        "sample/.cargo/config.toml",
        settings + "linker = \"rust-lld\"\n",
    );
    let built = author.run(&["build", "sample"]);
    assert_eq!(built.code, 7, "{}", built.stderr);
    assert!(
        built.stderr.contains("core WebAssembly module") && built.stderr.contains("linker"),
        "{}",
        built.stderr
    );
    assert!(!author.path("plugins/sample.wasm").exists());
}

#[test]
fn code_that_does_not_compile_fails_with_the_compilers_words() {
    let author = Author::new();
    author.done(&["new", "sample"]);
    author.write("sample/src/lib.rs", "agentloop_sdk::tools![missing];\n");
    let built = author.run(&["build", "sample"]);
    assert_eq!(built.code, 1, "{}", built.stderr);
    assert!(
        built.stderr.contains("missing") && built.stderr.contains("could not build `sample`"),
        "{}",
        built.stderr
    );
    assert_eq!(built.stdout, "");
}

#[test]
fn a_folder_without_tool_crates_says_how_to_make_one() {
    let author = Author::new();
    let nothing = author.run(&["build"]);
    assert_eq!(nothing.code, 1);
    assert!(
        nothing.stderr.contains("agentloop-host new"),
        "{}",
        nothing.stderr
    );

    author.done(&["new", "sample"]);
    let manifest = author.read("sample/Cargo.toml");
    author.write(
        "sample/Cargo.toml",
        manifest.replace("crate-type = [\"cdylib\"]\n", ""),
    );
    let no_component = author.run(&["build", "sample"]);
    assert_eq!(no_component.code, 1);
    assert!(
        no_component.stderr.contains("crate-type"),
        "{}",
        no_component.stderr
    );

    author.write(
        "sample/Cargo.toml",
        manifest.replace("agentloop/sdk-", "agentloop/gone-"),
    );
    let no_sdk = author.run(&["build", "sample"]);
    assert_eq!(no_sdk.code, 1);
    let wanted = manifest
        .lines()
        .find(|line| line.starts_with("agentloop-sdk"))
        .unwrap();
    assert!(
        no_sdk.stderr.contains("gone-") && no_sdk.stderr.contains(wanted),
        "{}",
        no_sdk.stderr
    );
}

#[test]
fn two_crates_of_one_name_are_told_apart() {
    let author = Author::new();
    author.done(&["new", "sample", "--path", "a/sample"]);
    author.done(&["new", "sample", "--path", "b/sample"]);
    let built = author.run(&["build"]);
    assert_eq!(built.code, 1);
    assert!(
        built.stderr.contains("a/sample") && built.stderr.contains("b/sample"),
        "{}",
        built.stderr
    );
}

/// A machine with nothing but these programs.
#[cfg(unix)]
fn build_with(author: &Author, programs: &[(&str, &str)]) -> Ran {
    use std::os::unix::fs::PermissionsExt as _;
    let bin = author.path("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, script) in programs {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    binary::run(
        author
            .command(&["build", "sample"])
            .env("PATH", &bin)
            .env_remove("RUSTC"),
    )
}

#[cfg(unix)]
#[test]
fn what_is_missing_on_the_machine_is_named() {
    let author = Author::new();
    author.done(&["new", "sample"]);
    let ran = build_with(&author, &[]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("https://rustup.rs"), "{}", ran.stderr);

    let folder = author.path("sample").canonicalize().unwrap();
    let metadata = json!({ "packages": [{
        "name": "sample",
        "id": "sample",
        "manifest_path": folder.join("Cargo.toml"),
        "targets": [{ "kind": ["cdylib"], "crate_types": ["cdylib"] }],
        "dependencies": [],
    }]});
    let cargo = format!("echo '{metadata}'");
    let libdir = author.path("libdir");
    let rustc = format!("echo '{}'", libdir.display());
    let ran = build_with(&author, &[("cargo", &cargo), ("rustc", &rustc)]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr
            .contains("rustup, which could add it, is not here"),
        "{}",
        ran.stderr
    );

    let rustup = "echo \"$*\"; exit 1";
    let ran = build_with(&author, &[("rustup", rustup)]);
    assert!(
        ran.stderr.contains("adding the target wasm32-wasip2"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("target add wasm32-wasip2\n"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("could not add"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");

    // With the target there, all that fails is that this cargo builds nothing.
    let rustup = format!("/bin/mkdir '{}'", libdir.display());
    let ran = build_with(&author, &[("rustup", &rustup)]);
    assert!(
        ran.stderr.contains("without a .wasm file"),
        "{}",
        ran.stderr
    );

    let ran = build_with(
        &author,
        &[("rustc", "echo 'error: unknown target' >&2; exit 1")],
    );
    assert!(
        ran.stderr.contains("unknown target") && ran.stderr.contains("rustup update"),
        "{}",
        ran.stderr
    );
}

#[test]
fn init_twice_changes_nothing_and_a_changed_tool_is_kept() {
    let author = Author::new();
    let first = author.done(&["init"]);
    assert!(
        first.stderr.contains("created ./agentloop.toml"),
        "{}",
        first.stderr
    );
    assert!(
        first.stderr.contains("agentloop-host demo"),
        "{}",
        first.stderr
    );
    let content = || {
        let mut files: Vec<_> = fs::read_dir(author.path("plugins"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .chain([author.path("agentloop.toml")])
            .map(|path| {
                (
                    path.clone(),
                    fs::read(&path).unwrap(),
                    fs::metadata(path).unwrap().modified().unwrap(),
                )
            })
            .collect();
        files.sort();
        files
    };
    let before = content();
    assert!(before.len() > 2, "the settings and the shipped tools");
    let second = author.done(&["init"]);
    assert!(!second.stderr.contains("created"), "{}", second.stderr);
    assert_eq!(content(), before);
    author.done(&["tools", "--check", "--trust"]);

    author.write("agentloop.toml", "# mine\n");
    author.write("plugins/calc.wasm", "mine");
    let third = author.done(&["init"]);
    assert!(
        third.stderr.contains("kept ./plugins/calc.wasm"),
        "{}",
        third.stderr
    );
    assert_eq!(author.read("plugins/calc.wasm"), "mine");
    author.done(&["init", "--yes"]);
    assert_ne!(fs::read(author.path("plugins/calc.wasm")).unwrap(), b"mine");
    assert_eq!(author.read("agentloop.toml"), "# mine\n");
}

#[test]
fn shells_complete_every_command() {
    let author = Author::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = author.done(&["completions", shell]).stdout;
        for command in [
            "run", "call", "tools", "inspect", "new", "build", "init", "demo",
        ] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}
