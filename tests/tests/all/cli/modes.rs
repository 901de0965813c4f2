//! What the modes of permissions do in a run.

use super::*;

fn writes() -> Value {
    tool_use(
        "w",
        "write_file",
        json!({"path": "/notes/new.txt", "text": "x"}),
    )
}

fn with_notes() -> Person {
    let person = Person::initialised();
    person.write("notes/a.txt", "please write a file");
    person.write(
        "agentloop.toml",
        "[grants.files]\nfolders = [{ path = \"notes\", as = \"/notes\", access = \"write\" }]\n",
    );
    person.run(&["config", "trust", "--yes"]).is(0);
    person
}

#[test]
fn content_from_outside_makes_the_mode_auto_ask() {
    let person = with_notes();
    let read = tool_use("r", "read_file", json!({"path": "/notes/a.txt"}));
    let auto = ["go", "--permission-mode", "auto", "--json"];
    let outcomes = |replies: Value, args: &[&str]| -> Vec<Value> {
        let result = person.run_scripted(&replies, args).is(0).json();
        let turns = result["trace"].as_array().unwrap().clone();
        let calls = turns
            .iter()
            .flat_map(|turn| turn["calls"].as_array().unwrap());
        calls.cloned().collect()
    };
    // What only the user and the model have said may ask for anything.
    let alone = outcomes(json!([calls(&[writes()]), text("Done.")]), &auto);
    assert_eq!(alone[0]["outcome"], "ok");
    let tainted = json!([
        calls(std::slice::from_ref(&read)),
        calls(&[writes()]),
        text("Done.")
    ]);
    let after = outcomes(tainted.clone(), &auto);
    assert_eq!(after[0]["outcome"], "ok");
    assert_eq!(after[1]["outcome"], "denied");
    let why = after[1]["result"].to_string();
    assert!(
        why.contains("read_file") && why.contains("outside"),
        "{why}"
    );
    // In a later task of the same conversation as well.
    person
        .run_scripted(&json!([calls(&[read]), text("Done.")]), &auto)
        .is(0);
    let later = json!([calls(&[writes()]), text("Done.")]);
    let resumed = [
        "more",
        "--resume",
        "last",
        "--permission-mode",
        "auto",
        "--json",
    ];
    let all = outcomes(later, &resumed);
    assert_eq!(all.last().unwrap()["outcome"], "denied");
    // A rule is the operator's word.
    fs::remove_file(person.path("notes/new.txt")).unwrap();
    let allowed = [&auto[..], &["--allow", "files.write_file"]].concat();
    assert_eq!(outcomes(tainted, &allowed)[1]["outcome"], "ok");
}

#[test]
fn a_plan_changes_nothing() {
    let person = with_notes();
    let read = tool_use("r", "read_file", json!({"path": "/notes/a.txt"}));
    let replies = json!([calls(&[read, writes()]), text("Done.")]);
    let plan = [
        "go",
        "--permission-mode",
        "plan",
        "--allow",
        "files.*",
        "--json",
    ];
    let result = person.run_scripted(&replies, &plan).is(0).json();
    let calls = &result["trace"][0]["calls"];
    assert_eq!(calls[0]["outcome"], "ok");
    assert_eq!(calls[1]["outcome"], "denied");
    assert!(calls[1]["result"].to_string().contains("`plan`"));
    assert!(!person.path("notes/new.txt").exists());
}
