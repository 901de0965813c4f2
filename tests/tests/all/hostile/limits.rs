//! `limits` prints what holds for a call, and what sets it; and the trace tells of fuel.

use std::fs;

use std::sync::Arc;

use agentloop_host::{
    capability::{Grants, OperatorLimits},
    event::RunEvent,
    ids::PluginName,
    registry::{Plugin, Registry},
    sandbox::limits,
};
use agentloop_tests::{
    agent::{Events, agent_with, calls, run as run_agent, says, scripted},
    binary::{Ran, command, run},
    crafted::Crafted,
    guests,
};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_program");

/// The program in a trusted project with two plugins, one of them with limits of its own.
fn program(arguments: &[&str]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let plugins = dir.path().join("plugins");
    fs::create_dir(&plugins).unwrap();
    fs::write(plugins.join("crafted.wasm"), Crafted::default().component()).unwrap();
    fs::write(plugins.join("helpful.wasm"), guests::HELPFUL).unwrap();
    fs::write(
        dir.path().join("agentloop.toml"),
        "[sandbox]\noutput = \"1MiB\"\n\n[grants.crafted]\nmemory = \"32MiB\"\nfuel = 5000000\n",
    )
    .unwrap();
    run(command(PROGRAM, dir.path(), dir.path())
        .arg("--trust")
        .args(arguments))
}

fn limit<'a>(answer: &'a Value, what: &str) -> (&'a str, &'a str) {
    let set = answer["set"].as_array().unwrap();
    let row = set.iter().find(|row| row["what"] == what).unwrap();
    (
        row["limit"].as_str().unwrap(),
        row["from"].as_str().unwrap(),
    )
}

#[test]
fn each_limit_says_what_sets_it() {
    let ran = program(&["--set", "sandbox.timeout=7s", "limits", "crafted", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer["tool"], "crafted.crafted");
    assert_eq!(limit(&answer, "time"), ("7s", "flag --set"));
    let (memory, from) = limit(&answer, "memory");
    assert_eq!(memory, "32MiB");
    assert!(from.contains("agentloop.toml:5"), "{from}");
    assert!(from.contains("`grants.crafted.memory`"), "{from}");
    let (output, from) = limit(&answer, "answer");
    assert_eq!(output, "1MiB");
    assert!(from.contains("agentloop.toml:2"), "{from}");
    assert_eq!(limit(&answer, "fuel").0, "5000000");

    let ran = program(&["limits", "helpful.echo"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for says in [
        "helpful.echo",
        "30s",
        "64MiB",
        "default; `grants.helpful.memory` sets it",
        "the same for every call:",
        "beyond it the rest is counted",
    ] {
        assert!(ran.stdout.contains(says), "{says}: {}", ran.stdout);
    }
    for fixed in limits::fixed() {
        assert!(ran.stdout.contains(fixed.what), "{}", fixed.what);
    }
}

#[test]
fn a_tool_that_is_not_there_is_named_with_its_nearest() {
    let ran = program(&["limits", "craftet"]);
    assert_ne!(ran.code, 0);
    assert!(
        ran.stderr.contains("`craftet`") && ran.stderr.contains("crafted"),
        "{}",
        ran.stderr
    );
}

/// The same input takes the same fuel, in each run.
#[tokio::test]
async fn the_trace_tells_of_fuel() {
    let sandbox = guests::sandbox();
    let component = sandbox.load(guests::HELPFUL.into()).await.unwrap();
    let mut told = Vec::new();
    for fuel in [Some(50_000_000), Some(50_000_000), None] {
        let plugin = Plugin {
            name: PluginName::parse("helpful").unwrap(),
            file: "helpful.wasm".to_owned(),
            component: component.clone(),
            grants: Grants::default(),
            limits: OperatorLimits {
                fuel,
                ..OperatorLimits::default()
            },
        };
        let registry = Registry::with_plugins([], [plugin], Some(&sandbox), Vec::new()).unwrap();
        let model = scripted(json!([
            calls(&[("a", "count", json!({"to": 100_000}))]),
            says("done"),
        ]));
        let events = Arc::new(Events::default());
        let mut agent = agent_with(&model, registry);
        agent.deps.observers = vec![Arc::clone(&events) as _];
        let result = run_agent(&agent, "count").await;
        let traced = result.trace[0].calls[0].fuel_used;
        let event = events.all().into_iter().find_map(|event| match event {
            RunEvent::CallEnded { fuel_used, .. } => Some(fuel_used),
            _ => None,
        });
        assert_eq!(event, Some(traced));
        told.push(traced);
    }
    assert!(told[0].is_some_and(|fuel| fuel > 100_000), "{told:?}");
    assert_eq!(told[0], told[1]);
    assert_eq!(told[2], None, "nothing is counted without a budget");
}
