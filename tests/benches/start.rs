//! From start to first call with the shipped plugins, as a program and inside of one. Prints a table.
//!
//! `cargo bench -p agentloop-tests --bench start`
//!
//! With `LARGE=FILE.wasm`, one of the big components of `plugins/examples` for instance, also how long it takes to load
//! that: compiled the first time, from the cache afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench may panic")]

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use agentloop_host::{
    agent::run_calls,
    app::App,
    config::{Environment, Flags, Inputs, Places, Settings},
    sandbox::compiler::Compiler,
    tool::ToolOutcome,
    transcript::ToolUse,
};
use serde_json::json;

const ROUNDS: usize = 50;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    println!("load average before: {}", load_average());
    println!("{:<60}{:>9}{:>9}{:>9}", "ms", "first", "median", "p99");

    program(dir.path(), &["init"]);
    let call = &["call", "now", "{}"];
    row("the program: `call now`", || program(dir.path(), call));
    row("for comparison: the program: `--version`", || {
        program(dir.path(), &["--version"])
    });

    if let Some(large) = std::env::var_os("LARGE") {
        let bytes = std::fs::metadata(&large).unwrap().len();
        let large_dir = tempfile::tempdir().unwrap();
        let plugins = large_dir.path().join("plugins");
        std::fs::create_dir(&plugins).unwrap();
        std::fs::copy(&large, plugins.join("large.wasm")).unwrap();
        let what = format!(
            "the program: `tools` with a component of {} MiB",
            bytes >> 20
        );
        row(&what, || {
            program(large_dir.path(), &["tools", "--set", "plugin_dirs=plugins"])
        });
    }

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let other = tempfile::tempdir().unwrap();
    let mut flags = Flags::default();
    // `init` is trusted in the program's places, and these are others.
    flags.trust = true;
    let inputs = Inputs {
        working_dir: dir.path().to_owned(),
        places: Places::inside(other.path()),
        environment: Environment::default(),
        flags,
        compiler: Compiler::InProcess,
    };
    row("inside a program: settings, `App::open`, `now`", || {
        runtime.block_on(in_process(&inputs))
    });
}

/// Settings and compiled code lie in `dir`, whoever runs this.
fn program(dir: &Path, arguments: &[&str]) {
    let status = Command::new(env!("CARGO_BIN_EXE_program"))
        .args(arguments)
        .current_dir(dir)
        .env_clear()
        .env("HOME", dir.join("home"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{arguments:?}: {status}");
}

async fn in_process(inputs: &Inputs) {
    let app = App::open(Settings::resolve(inputs).unwrap()).await.unwrap();
    let call = ToolUse::new("call-1", "now", json!({})).unwrap();
    let records = run_calls(&[call.into()], &app.registry.now(), &app.deps()).await;
    assert!(
        matches!(records[0].outcome, ToolOutcome::Answered(_)),
        "{records:?}"
    );
}

/// The first time stands alone: it compiles the plugins.
fn row(what: &str, mut work: impl FnMut()) {
    let mut timed = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let first = timed();
    let mut took: Vec<Duration> = (0..ROUNDS).map(|_| timed()).collect();
    took.sort();
    let [first, median, p99] = [first, took[ROUNDS / 2], took[(ROUNDS * 99) / 100]]
        .map(|duration| duration.as_secs_f64() * 1e3);
    println!("{what:<60}{first:>9.1}{median:>9.1}{p99:>9.1}");
}

fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_else(|_| "unknown\n".to_owned())
}
