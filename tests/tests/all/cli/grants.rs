//! What is granted sticks to the component that it was granted to.

use super::*;

/// A folder to read.
const NOTES: &str = "[grants.helpful]\nfolders = [{ path = \"notes\", as = \"/notes\" }]\n";

impl Person {
    fn granted(settings: &str) -> Self {
        let mut person = Self::with_tools();
        person.names_folder = false;
        person.write("notes/a.txt", "a");
        person.write("out/b.txt", "b");
        person.write("agentloop.toml", settings);
        person.run(&["config", "trust", "--yes"]).is(0);
        person
    }

    fn grants(&self) -> Value {
        let grants = self.run(&["grants", "--json"]).is(0).json();
        grants["plugins"][0].clone()
    }

    /// Another component under the same name: `helpful` with a section behind it.
    fn changes_the_component(&self) {
        let mut wasm = guests::HELPFUL.to_vec();
        // A custom section of the name "x", empty.
        wasm.extend([0, 2, 1, b'x']);
        self.write("plugins/helpful.wasm", wasm);
    }
}

#[test]
fn a_changed_component_has_nothing_until_it_is_granted_again() {
    let person = Person::granted(NOTES);
    assert!(!person.path("agentloop.lock").exists());
    person.run(&["call", "echo", r#"{"text":"hi"}"#]).is(0);
    let lock = person.read("agentloop.lock");
    assert!(lock.contains("name = \"helpful\""), "{lock}");
    assert!(lock.contains("/notes as /notes"), "{lock}");
    let grants = person.grants();
    assert_eq!(grants["counts"], true);
    assert_eq!(grants["sha256"], grants["pinned"]["sha256"]);

    person.changes_the_component();
    person
        .run(&["call", "echo", r#"{"text":"hi"}"#])
        .is(2)
        .says(&["not what it was"]);
    let tools = person.run(&["tools"]).is(0);
    assert!(!tools.stdout.contains("echo"), "{tools:?}");
    tools.says(&["not what it was", "agentloop-host grant helpful"]);
    assert_eq!(person.grants()["counts"], false);
    person
        .run(&["grant", "helpful"])
        .is(1)
        .says(&["grant helpful --yes"]);
    person.run(&["grant", "helpful", "--yes"]).is(0);
    person.run(&["call", "echo", r#"{"text":"hi"}"#]).is(0);

    // Somebody else's file takes away, and can give nothing.
    let forged = person
        .read("agentloop.lock")
        .replace("/notes", "/elsewhere");
    person.write("agentloop.lock", forged);
    person.run(&["tools"]).is(0).says(&["was not written here"]);
    person.run(&["grant", "helpful", "--yes"]).is(0);
    person.run(&["call", "echo", r#"{"text":"hi"}"#]).is(0);
    person.write("agentloop.lock", "nonsense");
    person.run(&["tools"]).is(0).says(&["delete it"]);
}

#[test]
fn what_nothing_is_granted_to_may_change() {
    let person = Person::with_tools();
    person.run(&["call", "echo", r#"{"text":"hi"}"#]).is(0);
    person.changes_the_component();
    person.run(&["call", "echo", r#"{"text":"hi"}"#]).is(0);
    assert!(!person.path("agentloop.lock").exists());
}

#[test]
fn things_are_granted_and_taken_away_by_command() {
    let person = Person::granted("# mine\nmodel = \"m\"\n[grants.helpful]\nenv = [\"FOO\"]\n");
    let granted = person
        .run(&[
            "grant",
            "helpful",
            "--read",
            "notes",
            "--env",
            "BAR",
            "--http",
            "https://api.example.org=GET,post",
            "--yes",
        ])
        .is(0);
    granted.says(&["requests", "granted", "/notes"]);
    let settings = person.read("agentloop.toml");
    assert!(
        settings.starts_with("# mine\nmodel = \"m\"\n"),
        "{settings}"
    );
    for line in [
        r#"env = ["FOO", "BAR"]"#,
        r#"folders = [{ path = "notes", as = "/notes" }]"#,
        r#"http = [{ origin = "https://api.example.org", methods = ["GET", "POST"] }]"#,
    ] {
        assert!(settings.contains(line), "no `{line}` in {settings}");
    }
    // It still counts, and nothing is said twice.
    person
        .run(&["grant", "helpful", "--env", "BAR", "--yes"])
        .is(0);
    assert_eq!(person.read("agentloop.toml"), settings);
    let granted = person.grants()["granted"].to_string();
    assert!(
        granted.contains("/notes") && granted.contains("POST"),
        "{granted}"
    );

    // What can't be granted leaves the file as it was.
    person
        .run(&["grant", "helpful", "--read", "/nowhere=relative", "--yes"])
        .is(2);
    assert_eq!(person.read("agentloop.toml"), settings);
    person
        .run(&["grant", "nobody", "--env", "BAR", "--yes"])
        .is(2)
        .says(&["no plugin `nobody`"]);
    person.run(&["revoke", "nobody"]).is(0);
    person
        .run(&["revoke", "helpful"])
        .is(0)
        .prints("helpful has nothing any more\n");
    assert_eq!(person.grants()["granted"], json!([]));
    assert!(!person.read("agentloop.lock").contains("helpful"));
    person
        .run(&["revoke", "helpful"])
        .is(0)
        .prints("helpful had nothing\n");
}

#[test]
fn nothing_is_pinned_where_nobody_trusts() {
    let mut person = Person::with_tools();
    person.names_folder = false;
    person.write("notes/a.txt", "a");
    person.write("agentloop.toml", NOTES);
    person
        .run(&["call", "echo", r#"{"text":"hi"}"#, "--trust"])
        .is(0);
    person.run(&["tools"]).is(0);
    assert!(!person.path("agentloop.lock").exists());
    person
        .run(&["grant", "helpful", "--env", "BAR", "--yes"])
        .is(1)
        .says(&["trust"]);
    assert_eq!(person.read("agentloop.toml"), NOTES);
}
