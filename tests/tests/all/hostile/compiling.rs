//! Compiling happens in a process of its own, which is bounded, told nothing, and gone when nobody waits for it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use agentloop_host::{
    sandbox::{
        LoadError, Sandbox, SandboxSettings,
        compiler::{COMMAND, Compiler},
    },
    tool::ToolOutcome,
};
use agentloop_tests::{
    binary::{command, run},
    crafted::Crafted,
    guests::{self, Guest},
};
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_program");

fn sandbox(program: &Path, cache_dir: Option<PathBuf>) -> Sandbox {
    Sandbox::new(SandboxSettings {
        compiler: Compiler::Apart(program.to_owned()),
        cache_dir,
        ..guests::settings()
    })
    .unwrap()
}

/// A program of shell lines in the place of the compiler.
fn script(dir: &Path, lines: &str) -> PathBuf {
    let path = dir.join("compiler");
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

async fn error(program: &Path, wasm: &[u8]) -> LoadError {
    match sandbox(program, None).load(wasm.into()).await {
        Err(error) => error,
        Ok(_) => panic!("it was loaded"),
    }
}

#[tokio::test]
async fn a_component_that_was_compiled_apart_runs_kept_or_not() {
    let dir = tempfile::tempdir().unwrap();
    for cache in [None, Some(dir.path().join("cache"))] {
        let sandbox = sandbox(Path::new(PROGRAM), cache.clone());
        let mut guest = Guest::load(&sandbox, &Crafted::default().component()).await;
        for fuel in [None, Some(1_000_000)] {
            guest.limits.fuel = fuel;
            let ending = guest.call("crafted", json!({})).await;
            assert_eq!(ending.outcome, ToolOutcome::Answered(vec![]));
        }
        if let Some(cache) = cache {
            let kept = fs::read_dir(cache.join("compiled")).unwrap().count();
            assert_eq!(kept, 2, "one for each profile");
        }
    }
}

#[tokio::test]
async fn what_does_not_compile_is_the_components_fault() {
    let crafted = Crafted {
        call: "i64.const 1",
        ..Crafted::default()
    };
    let error = error(Path::new(PROGRAM), &crafted.component()).await;
    assert!(
        matches!(&error, LoadError::Compile { why } if why.contains("type mismatch")),
        "{error}"
    );
}

#[tokio::test]
async fn a_compiler_that_fails_is_told_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let wasm = Crafted::default().component();
    for (lines, says) in [
        ("echo it burns >&2; exit 3", "it burns"),
        ("kill -ABRT $$", "needs more than its 4096 MiB of memory"),
        ("kill -XCPU $$", "of processor time"),
        ("cat >/dev/null; echo no code", "does not fit"),
        ("exit 0", "does not fit"),
    ] {
        let error = error(&script(dir.path(), lines), &wasm).await.to_string();
        assert!(
            error.contains(says) && error.contains("`sandbox.compile_apart = false`"),
            "{lines}: {error}"
        );
    }
    let missing = error(&dir.path().join("nowhere"), &wasm).await.to_string();
    assert!(missing.contains("can't start"), "{missing}");
}

/// What it is not told, it can't give away.
#[tokio::test]
async fn the_child_sees_none_of_the_hosts_variables() {
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    let lines = format!("export -p > {}", seen.display());
    error(&script(dir.path(), &lines), &Crafted::default().component()).await;
    let seen = fs::read_to_string(seen).unwrap();
    let names: Vec<_> = seen
        .lines()
        .filter_map(|line| line.strip_prefix("export ")?.split('=').next())
        // The shell's own.
        .filter(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name))
        .collect();
    assert_eq!(names, ["RAYON_NUM_THREADS"]);
}

/// With all that it has started.
#[tokio::test]
async fn the_child_ends_with_whoever_waits() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let lines = format!(
        "sleep 600 & echo $$ $! > {s}.new; mv {s}.new {s}; wait",
        s = started.display()
    );
    let sandbox = sandbox(&script(dir.path(), &lines), None);
    let loading = tokio::spawn(async move {
        let wasm = Crafted::default().component();
        sandbox.load(wasm.into()).await.err()
    });
    let until = async |what: &dyn Fn() -> bool| {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until(&|| started.exists()).await;
    let processes: Vec<String> = fs::read_to_string(&started)
        .unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    assert_eq!(processes.len(), 2);
    loading.abort();
    // Gone, or dead and waiting for whoever collects it.
    let is_dead = |id: &String| match fs::read_to_string(format!("/proc/{id}/stat")) {
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    };
    until(&|| processes.iter().all(is_dead)).await;
}

/// The kernel holds them, so that no component talks the compiler out of them.
#[cfg(target_os = "linux")]
#[test]
fn the_child_bounds_itself_before_it_reads() {
    let mut child = Command::new(PROGRAM)
        .args([COMMAND, "plain"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let path = format!("/proc/{}/limits", child.id());
    let limits = loop {
        let limits = fs::read_to_string(&path).unwrap();
        let is_set = limits
            .lines()
            .any(|line| line.starts_with("Max address space") && line.contains("4294967296"));
        if is_set {
            break limits;
        }
        assert!(child.try_wait().unwrap().is_none(), "{limits}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let of = |name: &str| -> Vec<&str> {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().take(2).collect()
    };
    assert_eq!(of("Max file size"), ["0", "0"]);
    assert_eq!(of("Max core file size"), ["0", "0"]);
    assert_eq!(of("Max open files"), ["64", "64"]);
    assert_ne!(of("Max cpu time"), ["unlimited", "unlimited"]);
    drop(child.stdin.take());
    assert!(!child.wait().unwrap().success(), "nothing is no component");
}

#[test]
fn nobody_else_calls_the_compiler() {
    let home = tempfile::tempdir().unwrap();
    let ran = run(command(PROGRAM, home.path(), home.path()).arg(COMMAND));
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("by nobody else"), "{}", ran.stderr);
}

/// The program compiles apart unless it is told otherwise.
#[test]
fn the_program_compiles_apart() {
    let home = tempfile::tempdir().unwrap();
    let plugins = home.path().join("plugins");
    fs::create_dir(&plugins).unwrap();
    let crafted = Crafted::default().component();
    fs::write(plugins.join("crafted.wasm"), crafted).unwrap();
    for (setting, is_apart) in [("true", true), ("false", false)] {
        let set = format!("sandbox.compile_apart={setting}");
        let ran = run(command(PROGRAM, home.path(), home.path()).args([
            "-vv",
            "--trust",
            "--set",
            &set,
            "--set",
            "sandbox.cache_dir=none",
            "tools",
        ]));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stdout.contains("crafted"), "{}", ran.stdout);
        assert_eq!(
            ran.stderr.contains("in a process of its own"),
            is_apart,
            "{}",
            ran.stderr
        );
    }
}
