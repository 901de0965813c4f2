//! When to ask: the `[permissions]` table.
//!
//! Grants say what a component can reach, permissions say when a person is asked. A rule names tools as
//! `plugin.tool` and may look at arguments: `files.write(path:/notes/**)`. Deny comes before ask before allow;
//! in each list the first rule that matches decides, however specific others are.

mod append;
mod glob;
mod rule;

use serde_json::{Map, Value};

pub(in crate::config) use self::append::{with_allow_rule, with_grants, without_grants};
pub use self::{
    append::{AppendError, GrantLines, append_allow},
    rule::{InvalidRule, MAX_RULE_BYTES, Miss, Rule, ToolPattern},
};

/// What happens to a call that no rule speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// What provably only reads is allowed, everything else asks.
    #[default]
    Ask,
    /// Allowed.
    Auto,
    /// As `Ask`, but what would ask is denied: for running unattended.
    Deny,
    /// What provably only reads is allowed and nothing else, whatever rules allow: for plans.
    Plan,
}

impl Mode {
    /// The words of `[permissions] mode`.
    pub const WORDS: [&'static str; 4] = ["ask", "auto", "deny", "plan"];

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "ask" => Some(Self::Ask),
            "auto" => Some(Self::Auto),
            "deny" => Some(Self::Deny),
            "plan" => Some(Self::Plan),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Auto => "auto",
            Self::Deny => "deny",
            Self::Plan => "plan",
        }
    }

    /// Whether nothing is allowed under `self` that would not be allowed under `other`.
    pub fn is_at_least_as_strict_as(self, other: Self) -> bool {
        let strictness = |mode| match mode {
            Self::Auto => 0,
            Self::Ask => 1,
            Self::Deny => 2,
            Self::Plan => 3,
        };
        strictness(self) >= strictness(other)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Deny,
    Ask,
    Allow,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Ask => "ask",
            Self::Allow => "allow",
        }
    }
}

/// The operator's rules. Deny comes before ask before allow, whatever their order in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    pub mode: Mode,
    pub deny: Vec<Rule>,
    pub ask: Vec<Rule>,
    pub allow: Vec<Rule>,
    /// What a person allowed while the run goes on. It comes before `ask`, or the answer "for this run" to a
    /// question that an ask rule put would have no effect; it never comes before `deny`.
    allow_this_run: Vec<Rule>,
}

/// What one rule says of a call, for people who wonder why they were asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tested<'a> {
    pub verdict: Verdict,
    /// The rule as it stands in the file.
    pub rule: &'a str,
    /// Why the rule does not speak of the call; `None` when it does.
    pub miss: Option<Miss>,
}

impl Permissions {
    /// The first rule that speaks of this call, as it stands in the file. `rule_name` is `plugin.tool`.
    pub fn rule_for(&self, rule_name: &str, input: &Map<String, Value>) -> Option<(Verdict, &str)> {
        self.in_order()
            .find(|(verdict, rule)| rule.check(*verdict, rule_name, input).is_ok())
            .map(|(verdict, rule)| (verdict, rule.as_str()))
    }

    /// Every rule in the order in which it is asked; the first without a miss is [`Permissions::rule_for`]'s.
    pub fn test(&self, rule_name: &str, input: &Map<String, Value>) -> Vec<Tested<'_>> {
        self.in_order()
            .map(|(verdict, rule)| Tested {
                verdict,
                rule: rule.as_str(),
                miss: rule.check(verdict, rule_name, input).err(),
            })
            .collect()
    }

    /// Allows every further call of one tool, as long as this value lives. Deny rules still hold, ask rules
    /// no longer: the person has been asked. `rule_name` is `plugin.tool`.
    pub fn allow_for_run(&mut self, rule_name: &str) -> Result<(), InvalidRule> {
        let rule = Rule::parse(rule_name)?;
        if !self.allow_this_run.contains(&rule) {
            self.allow_this_run.push(rule);
        }
        Ok(())
    }

    /// Rules that match none of these tools (`plugin.tool` each): most often misspelt, and a misspelt deny
    /// rule protects nothing.
    pub fn rules_without_tool<'a>(
        &'a self,
        rule_names: &'a [String],
    ) -> impl Iterator<Item = (Verdict, &'a Rule)> {
        self.in_order()
            .filter(|(_, rule)| !rule_names.iter().any(|name| rule.names(name)))
    }

    fn in_order(&self) -> impl Iterator<Item = (Verdict, &Rule)> {
        (self.deny.iter().map(|r| (Verdict::Deny, r)))
            .chain(self.allow_this_run.iter().map(|r| (Verdict::Allow, r)))
            .chain(self.ask.iter().map(|r| (Verdict::Ask, r)))
            .chain(self.allow.iter().map(|r| (Verdict::Allow, r)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn permissions(deny: &[&str], ask: &[&str], allow: &[&str]) -> Permissions {
        let rules = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| Rule::parse(text).unwrap())
                .collect()
        };
        Permissions {
            deny: rules(deny),
            ask: rules(ask),
            allow: rules(allow),
            ..Permissions::default()
        }
    }

    fn input(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// Whether a rule speaks of a call when it stands in this list.
    fn speaks(verdict: Verdict, rule: &str, name: &str, arguments: Value) -> bool {
        let empty: &[&str] = &[];
        let permissions = match verdict {
            Verdict::Deny => permissions(&[rule], empty, empty),
            Verdict::Ask => permissions(empty, &[rule], empty),
            Verdict::Allow => permissions(empty, empty, &[rule]),
        };
        permissions.rule_for(name, &input(arguments)).is_some()
    }

    #[test]
    fn deny_comes_before_ask_before_allow_and_the_first_match_decides() {
        let all = permissions(
            &["files.delete", "files.write(path:/notes/locked/**)"],
            &["files.*(path:/notes/diary/**)", "mail.*"],
            &["*", "files.delete"],
        );
        for (name, arguments, verdict, rule) in [
            ("files.delete", json!({}), Verdict::Deny, "files.delete"),
            (
                "files.write",
                json!({"path": "/notes/locked/a"}),
                Verdict::Deny,
                "files.write(path:/notes/locked/**)",
            ),
            (
                "files.write",
                json!({"path": "/notes/diary/a"}),
                Verdict::Ask,
                "files.*(path:/notes/diary/**)",
            ),
            ("mail.send", json!({}), Verdict::Ask, "mail.*"),
            (
                "files.write",
                json!({"path": "/notes/a"}),
                Verdict::Allow,
                "*",
            ),
            ("calc.add", json!({}), Verdict::Allow, "*"),
        ] {
            assert_eq!(
                all.rule_for(name, &input(arguments)),
                Some((verdict, rule)),
                "{name}"
            );
        }
        assert_eq!(
            permissions(&[], &[], &[]).rule_for("a.b", &Map::new()),
            None
        );
        assert_eq!(
            permissions(&["a.b"], &["a.b"], &[]).rule_for("a.c", &Map::new()),
            None
        );
    }

    #[test]
    fn a_rule_names_tools() {
        for (rule, name, expected) in [
            ("files.read", "files.read", true),
            ("files.read", "files.reads", false),
            ("files.read", "xfiles.read", false),
            ("files", "files.read", true),
            ("files", "files2.read", false),
            ("fi?es.r*", "files.read", true),
            ("*.read", "files.read", true),
            ("*", "files.read", true),
            ("f*d", "files.read", false),
            ("Files.read", "files.read", false),
            ("mcp__files__read", "files.read", true),
            ("mcp__files__read", "files.write", false),
            ("mcp__files", "files.write", true),
            ("mcp__files__*", "files.write", true),
            ("mcp__files.read", "mcp__files.read", true),
            (" files.read ", "files.read", true),
        ] {
            for verdict in [Verdict::Deny, Verdict::Ask, Verdict::Allow] {
                assert_eq!(
                    speaks(verdict, rule, name, json!({})),
                    expected,
                    "{rule} {name}"
                );
            }
        }
    }

    #[test]
    fn an_allowed_folder_cannot_be_left() {
        for (path, expected) in [
            ("/notes", true),
            ("/notes/a", true),
            ("/notes/a/b.md", true),
            ("notes/a", true),
            ("./notes/a", true),
            ("//notes///a/", true),
            ("/notes/x/../a", true),
            ("/notes/../etc", false),
            ("/notes/../notes2/a", false),
            ("/notes/a/../../etc/passwd", false),
            ("/notes\\..\\..\\etc", false),
            ("../notes/a", true),
            ("/notes2/a", false),
            ("/etc/notes/a", false),
            ("/NOTES/a", false),
            ("", false),
        ] {
            let arguments = json!({"path": path});
            assert_eq!(
                speaks(
                    Verdict::Allow,
                    "files.read(path:/notes/**)",
                    "files.read",
                    arguments
                ),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn one_star_stays_in_its_folder() {
        for (pattern, path, expected) in [
            ("/notes/*.md", "/notes/a.md", true),
            ("/notes/*.md", "/notes/x/a.md", false),
            ("/notes/**/*.md", "/notes/a.md", true),
            ("/notes/**/*.md", "/notes/x/y/a.md", true),
            ("/notes/*/a.md", "/notes/x/a.md", true),
            ("/notes/*/a.md", "/notes/a.md", false),
            ("./docs/**", "docs/a", true),
            ("**/secret", "/a/b/secret", true),
            ("/a?c/**", "/a/c", false),
            (r"/a\*c/x", "/a*c/x", true),
            (r"/a\*c/x", "/abc/x", false),
        ] {
            let rule = format!("f.r(p:{pattern})");
            assert_eq!(
                speaks(Verdict::Allow, &rule, "f.r", json!({"p": path})),
                expected,
                "{pattern} {path}"
            );
        }
    }

    #[test]
    fn a_denied_path_cannot_be_respelt() {
        for path in [
            "/notes/secret/key",
            "notes/secret/key",
            "./notes/./secret/key",
            "/notes//secret//key",
            "/notes/x/../secret/key",
            "/../notes/secret/key",
            "/notes\\secret\\key",
            "/Notes/SECRET/key",
            "/notes/secret",
        ] {
            let arguments = json!({"path": path});
            assert!(
                speaks(
                    Verdict::Deny,
                    "files.read(path:/notes/secret/**)",
                    "files.read",
                    arguments
                ),
                "{path}"
            );
        }
        for path in [
            "notes.txt",
            "./notes.txt",
            "/notes.txt",
            "x/../notes.txt",
            "Notes.TXT",
        ] {
            assert!(
                speaks(
                    Verdict::Deny,
                    "f.r(path:notes.txt)",
                    "f.r",
                    json!({"path": path})
                ),
                "{path}"
            );
        }
        assert!(!speaks(
            Verdict::Deny,
            "f.r(path:notes.txt)",
            "f.r",
            json!({"path": "a/notes.txt"})
        ));
    }

    #[test]
    fn web_addresses_are_compared_as_a_client_sends_them() {
        let rule = "fetch.get(url:https://*.example.org/v1/**)";
        for (url, expected) in [
            ("https://api.example.org/v1/a?b=c", true),
            ("https://api.example.org/v1", true),
            ("HTTPS://API.EXAMPLE.ORG:443/v1/a", true),
            ("https://api.example.org./v1/a", true),
            ("https://api.example.org/v1/../admin", false),
            ("https://api.example.org/v1/%2e%2e/admin", false),
            ("https://api.example.org\\..\\admin", false),
            ("https://api.example.org:8443/v1/a", false),
            ("http://api.example.org/v1/a", false),
            ("https://evil.net?.example.org/v1/a", false),
            ("https://evil.net#.example.org/v1/a", false),
            ("https://evil.net\\.example.org/v1/a", false),
            ("https://a.example.org@evil.net/v1/a", false),
            ("https://me@api.example.org/v1/a", false),
            ("not a url", false),
        ] {
            assert_eq!(
                speaks(Verdict::Allow, rule, "fetch.get", json!({"url": url})),
                expected,
                "{url}"
            );
        }
        let root = "fetch.get(url:https://Example.org:443)";
        assert!(speaks(
            Verdict::Allow,
            root,
            "fetch.get",
            json!({"url": "https://example.org/"})
        ));
        for url in [
            "https://me:pw@API.example.org/v1/a",
            "https://api.example.org/x/../v1/a",
        ] {
            assert!(
                speaks(Verdict::Deny, rule, "fetch.get", json!({"url": url})),
                "{url}"
            );
        }
    }

    #[test]
    fn other_arguments_are_text() {
        for (pattern, value, expected) in [
            ("command:git *", json!({"command": "git log a/b"}), true),
            ("command:git *", json!({"command": "rm -r /"}), false),
            ("command:git *", json!({"command": "git add ../x"}), false),
            ("path:*.md", json!({"path": "/a/b.md"}), true),
            ("path:*.md", json!({"path": "/a/../b.md"}), false),
            ("path:*", json!({"path": "/a/../b"}), true),
            ("n:5", json!({"n": 5}), true),
            ("n:5", json!({"n": 5.0}), true),
            ("n:5", json!({"n": "5"}), true),
            ("n:5", json!({"n": 5.5}), false),
            ("on:true", json!({"on": true}), true),
            ("x:null", json!({"x": null}), true),
            (
                r#"o:{"a":1\,"b":[]}"#,
                json!({"o": {"b": [], "a": 1}}),
                true,
            ),
            ("a.b:x", json!({"a": {"b": "x"}}), true),
            ("a.b:x", json!({"a.b": "x"}), true),
            ("a.b:x", json!({"a": "x"}), false),
            (r"a\:b : x\, y ", json!({"a:b": "x, y"}), true),
            ("a:x, b:y", json!({"a": "x", "b": "y"}), true),
            ("a:x, b:y", json!({"a": "x", "b": "z"}), false),
            ("a:x", json!({}), false),
        ] {
            let rule = format!("p.t({pattern})");
            assert_eq!(
                speaks(Verdict::Allow, &rule, "p.t", value.clone()),
                expected,
                "{rule} {value}"
            );
        }
    }

    #[test]
    fn of_a_list_one_is_enough_to_stop_and_all_are_needed_to_pass() {
        for (arguments, stops, passes) in [
            (json!({"paths": ["/a/1", "/a/2"]}), true, true),
            (json!({"paths": ["/a/1", "/b/2"]}), true, false),
            (json!({"paths": [["/a/1"], "/b/2"]}), true, false),
            (json!({"paths": ["/b/1"]}), false, false),
            (json!({"paths": []}), false, false),
        ] {
            assert_eq!(
                speaks(Verdict::Deny, "f.r(paths:/a/**)", "f.r", arguments.clone()),
                stops
            );
            assert_eq!(
                speaks(Verdict::Ask, "f.r(paths:/a/**)", "f.r", arguments.clone()),
                stops
            );
            assert_eq!(
                speaks(Verdict::Allow, "f.r(paths:/a/**)", "f.r", arguments),
                passes
            );
        }
        for (arguments, stops, passes) in [
            (
                json!({"edits": [{"path": "/a/1"}, {"path": "/a/2"}]}),
                true,
                true,
            ),
            (json!({"edits": [{"path": "/a/1"}, {}]}), true, false),
            (json!({"edits": [{"path": "/a/1"}, 7]}), true, false),
        ] {
            assert_eq!(
                speaks(
                    Verdict::Deny,
                    "f.r(edits.path:/a/**)",
                    "f.r",
                    arguments.clone()
                ),
                stops
            );
            assert_eq!(
                speaks(Verdict::Allow, "f.r(edits.path:/a/**)", "f.r", arguments),
                passes
            );
        }
    }

    #[test]
    fn a_wrong_rule_says_what_is_wrong() {
        for (rule, why) in [
            ("", "it names no tool"),
            ("  ", "it names no tool"),
            (".read", "the plugin or the tool is missing"),
            ("files.", "the plugin or the tool is missing"),
            ("files.read.all", "names hold"),
            ("fi les", "names hold"),
            ("files/read", "names hold"),
            ("files.read(", "the closing parenthesis is missing"),
            ("files.read(path:/a", "the closing parenthesis is missing"),
            ("files.read()", "an argument is written `argument:pattern`"),
            (
                "files.read(path)",
                "an argument is written `argument:pattern`",
            ),
            ("files.read(:a)", "the name of an argument is missing"),
            ("files.read(path:)", "the pattern of an argument is empty"),
            (
                "files.read(path:/a,)",
                "an argument is written `argument:pattern`",
            ),
            ("files.read(path:/a) x", "something stands behind"),
            ("files.read(path:/a/../b)", "a pattern cannot hold `..`"),
            ("files.read(path:/a/b**)", "`**` has to stand alone"),
            ("files.read(path:/a\\", "it ends in `\\`"),
            ("fetch.get(url:ftp://x)", "a URL pattern begins with"),
            (
                "fetch.get(url:https:///x)",
                "the host of the URL is missing",
            ),
            (
                "fetch.get(url:https://me@x)",
                "a URL pattern has no user name",
            ),
        ] {
            let error = Rule::parse(rule).unwrap_err().to_string();
            assert!(error.contains(why), "{rule}: {error}");
        }
        let long = format!("files.read(path:{})", "a".repeat(MAX_RULE_BYTES));
        assert!(
            Rule::parse(&long)
                .unwrap_err()
                .to_string()
                .contains("longer than 1024 bytes")
        );
        let hostile = Rule::parse("a\u{1b}[2J\u{202e}b").unwrap_err().to_string();
        assert!(!hostile.contains(['\u{1b}', '\u{202e}']), "{hostile:?}");
    }

    #[test]
    fn what_a_person_allowed_for_the_run_overrules_ask_and_never_deny() {
        let mut p = permissions(&["a.denied"], &["a.*"], &[]);
        p.allow_for_run("a.asked").unwrap();
        p.allow_for_run("a.denied").unwrap();
        assert_eq!(
            p.rule_for("a.asked", &Map::new()),
            Some((Verdict::Allow, "a.asked"))
        );
        assert_eq!(
            p.rule_for("a.denied", &Map::new()),
            Some((Verdict::Deny, "a.denied"))
        );
        assert_eq!(
            p.rule_for("a.other", &Map::new()),
            Some((Verdict::Ask, "a.*"))
        );
    }

    #[test]
    fn a_test_shows_every_rule_and_why_it_misses() {
        let p = permissions(&["b.*", "a.x(path:/k/**)"], &["a.x(n:1)"], &["a.x"]);
        let tested: Vec<_> = p
            .test("a.x", &input(json!({"path": "/p"})))
            .into_iter()
            .map(|t| (t.verdict, t.rule, t.miss))
            .collect();
        assert_eq!(
            tested,
            [
                (Verdict::Deny, "b.*", Some(Miss::OtherTool)),
                (
                    Verdict::Deny,
                    "a.x(path:/k/**)",
                    Some(Miss::Argument("path".into()))
                ),
                (Verdict::Ask, "a.x(n:1)", Some(Miss::NoArgument("n".into()))),
                (Verdict::Allow, "a.x", None),
            ]
        );
    }

    #[test]
    fn rules_that_match_no_tool_are_found() {
        let p = permissions(&["file.delete"], &[], &["files"]);
        let names = ["files.delete".to_owned()];
        let lost: Vec<_> = p
            .rules_without_tool(&names)
            .map(|(v, r)| (v, r.as_str()))
            .collect();
        assert_eq!(lost, [(Verdict::Deny, "file.delete")]);
    }
}
