//! Settings from real files in temporary folders.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use agentloop_host::{
    capability::{
        Access, EnvironmentGrant, Limits, MAX_OWN_TIMEOUT, OperatorLimits, SecretSource,
        TimeoutSetting,
    },
    config::{
        AnthropicAuth, Environment, Flags, Inputs, MaxTokensField, Places, ProviderName, Settings,
        env_vars,
        permissions::{Mode, Verdict},
        project_template,
        trust::{TrustError, TrustStore},
    },
    ids::PluginName,
    sandbox::compiler::Compiler,
};
use serde_json::Map;

/// A user with a home folder, and a project of theirs.
struct Desk {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
    flags: Flags,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("home/config")).unwrap();
        fs::create_dir_all(folder.path().join("project")).unwrap();
        Self {
            folder,
            environment: Vec::new(),
            flags: Flags::default(),
        }
    }

    fn trusting() -> Self {
        let mut desk = Self::new();
        desk.flags.trust = true;
        desk
    }

    fn project_dir(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn places(&self) -> Places {
        Places::inside(self.home())
    }

    fn project(&self, text: &str) -> &Self {
        fs::write(self.project_dir().join("agentloop.toml"), text).unwrap();
        self
    }

    fn user(&self, text: &str) -> &Self {
        fs::write(self.places().config_file(), text).unwrap();
        self
    }

    fn variable(&mut self, name: &str, value: &str) -> &mut Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn flag(&mut self, key: &str, flag: &'static str, value: &str) -> &mut Self {
        self.flags.set(key, flag, value);
        self
    }

    fn make_dir(&self, path: &str) -> &Self {
        fs::create_dir_all(self.project_dir().join(path)).unwrap();
        self
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            working_dir: self.project_dir(),
            places: self.places(),
            environment: self.environment.iter().cloned().collect::<Environment>(),
            flags: self.flags.clone(),
            compiler: Compiler::Apart("compiler".into()),
        }
    }

    fn settings(&self) -> Settings {
        Settings::resolve(&self.inputs()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// One line per fault, without this run's folder names.
    fn faults(&self) -> Vec<String> {
        let Err(error) = Settings::resolve(&self.inputs()) else {
            panic!("no fault was found");
        };
        error
            .faults
            .iter()
            .map(|fault| self.without_folder(&fault.to_string()))
            .collect()
    }

    fn fault(&self) -> String {
        let mut faults = self.faults();
        assert_eq!(faults.len(), 1, "{faults:#?}");
        faults.remove(0)
    }

    fn without_folder(&self, text: &str) -> String {
        let canonical = self.folder.path().canonicalize().unwrap();
        text.replace(canonical.to_str().unwrap(), "[tmp]")
            .replace(self.folder.path().to_str().unwrap(), "[tmp]")
    }

    fn origin_lines(&self) -> String {
        self.without_folder(&self.settings().origin_lines().join("\n"))
    }
}

fn plugin(name: &str) -> PluginName {
    PluginName::parse(name).unwrap()
}

fn rule_for(settings: &Settings, name: &str) -> Option<(Verdict, String)> {
    let decided = settings.permissions.rule_for(name, &Map::new());
    decided.map(|(verdict, rule)| (verdict, rule.to_owned()))
}

#[test]
fn without_any_setting_the_defaults_hold() {
    let desk = Desk::new();
    let settings = desk.settings();
    assert_eq!(settings.provider, ProviderName::Anthropic);
    assert_eq!(settings.model.as_deref(), Some("claude-opus-4-8"));
    assert_eq!(settings.plugin_dirs, [desk.home().join("data/plugins")]);
    assert_eq!(settings.call_limits, OperatorLimits::default());
    assert_eq!(
        settings.sandbox.cache_dir,
        Some(desk.home().join("cache/cwasm"))
    );
    assert_eq!(settings.permissions.mode, Mode::Ask);
    assert_eq!(settings.grants_for(&plugin("files")), Default::default());
    assert!(settings.withheld.is_empty() && settings.notes.is_empty());
    assert!(settings.shows_tool("files.read"));
    let values = settings.values();
    assert!(
        values
            .iter()
            .any(|v| v.key == "limits.max_tokens" && v.value == "4096")
    );
}

#[test]
fn flag_comes_before_environment_before_project_before_user_before_default() {
    let mut desk = Desk::new();
    let model = |desk: &Desk| desk.settings().model.unwrap();
    assert_eq!(model(&desk), "claude-opus-4-8");
    desk.user("model = \"of-user\"");
    assert_eq!(model(&desk), "of-user");
    desk.project("model = \"of-project\"");
    assert_eq!(model(&desk), "of-project");
    desk.variable("AGENTLOOP_MODEL", "of-environment");
    assert_eq!(model(&desk), "of-environment");
    desk.flag("model", "--model", "of-flag");
    assert_eq!(model(&desk), "of-flag");
}

#[test]
fn each_line_of_config_show_names_its_origin() {
    let mut desk = Desk::trusting();
    desk.make_dir("notes").make_dir("plugins");
    desk.user("model = \"m\"\n\n[permissions]\ndeny = ['files.delete']\n");
    desk.project(
        "system = '''\nTwo\nlines'''\n[limits]\nmax_iterations = 20\nrepeated_calls = { warn = 2 }\n\
         [permissions]\ndeny = ['mail.*']\n[grants.files]\nfolders = [{ path = 'notes', access = 'write' }]\n",
    );
    desk.variable("AGENTLOOP_SANDBOX__TIMEOUT", "5s")
        .variable("ANTHROPIC_API_KEY", "sk-secret");
    desk.flag("limits.max_tokens", "--max-tokens", "100");
    insta::assert_snapshot!(desk.origin_lines());
}

#[test]
fn what_is_withheld_is_shown() {
    let desk = Desk::new();
    desk.make_dir("plugins");
    desk.project(
        "base_url = 'https://evil.example'\n[permissions]\nallow = ['*']\nmode = 'auto'\n",
    );
    let lines = desk.origin_lines();
    let withheld: Vec<_> = lines.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(
        withheld,
        [
            "# not trusted, does not count: base_url = \"https://evil.example\"  # from project file agentloop.toml:1",
            "# not trusted, does not count: plugin_dirs = [\"plugins\"]  # from default",
            "# not trusted, does not count: permissions.mode = \"auto\"  # from project file agentloop.toml:4",
            "# not trusted, does not count: permissions.allow = [\"*\"]  # from project file agentloop.toml:3",
        ]
    );
}

/// Each key with a value other than the default, and what it does to the settings.
type Effect = (&'static str, &'static str, fn(&Settings) -> bool);

const EFFECTS: [Effect; 36] = [
    ("provider", "'openai'", |s| {
        s.provider == ProviderName::OpenAi && s.model.is_none()
    }),
    ("model", "'m'", |s| s.model.as_deref() == Some("m")),
    ("base_url", "'http://127.0.0.1:1/v1/'", |s| {
        s.base_url.as_deref() == Some("http://127.0.0.1:1/v1")
    }),
    ("system", "'Be brief.'", |s| {
        s.system.as_deref() == Some("Be brief.")
    }),
    ("plugin_dirs", "['a', './b']", |s| {
        s.plugin_dirs
            .iter()
            .map(|d| d.file_name().unwrap())
            .eq(["a", "b"])
    }),
    ("tools", "['calc.*', 'files.read']", |s| {
        s.shows_tool("calc.add") && s.shows_tool("files.read") && !s.shows_tool("files.write")
    }),
    ("script", "'s.json'", |s| {
        s.script
            .as_ref()
            .is_some_and(|path| path.ends_with("project/s.json"))
    }),
    ("anthropic.version", "'2026-10-21'", |s| {
        s.anthropic.version == "2026-10-21"
    }),
    ("anthropic.auth", "'bearer'", |s| {
        s.anthropic.auth == AnthropicAuth::Bearer
    }),
    ("openai.tools_as_schema", "true", |s| {
        s.openai.tools_as_schema
    }),
    ("openai.max_tokens_field", "'max_completion_tokens'", |s| {
        s.openai.max_tokens_field == MaxTokensField::MaxCompletionTokens
    }),
    ("limits.max_iterations", "3", |s| {
        s.limits.max_iterations == 3
    }),
    ("limits.max_tokens", "100", |s| s.limits.max_tokens == 100),
    ("limits.max_tokens_ceiling", "5000", |s| {
        s.limits.max_tokens_ceiling == 5000
    }),
    ("limits.max_parallel_tools", "2", |s| {
        s.limits.max_parallel_tools == 2
    }),
    ("limits.parallel", "false", |s| !s.limits.parallel),
    ("limits.eager", "false", |s| !s.limits.eager),
    ("limits.max_tool_calls", "9", |s| {
        s.limits.max_tool_calls == Some(9)
    }),
    ("limits.max_total_tokens", "5000000000", |s| {
        s.limits.max_total_tokens == Some(5_000_000_000)
    }),
    ("limits.wall_time", "'10m'", |s| {
        s.limits.wall_time == Some(Duration::from_secs(600))
    }),
    ("limits.repeated_calls.warn", "2", |s| {
        s.limits.repeated_calls.warn == 2
    }),
    ("limits.repeated_calls.refuse", "4", |s| {
        s.limits.repeated_calls.refuse == 4
    }),
    ("limits.repeated_calls.stop", "6", |s| {
        s.limits.repeated_calls.stop == 6
    }),
    ("sandbox.timeout", "'none'", |s| {
        s.call_limits.timeout == TimeoutSetting::Never
    }),
    ("sandbox.memory", "'32MiB'", |s| {
        s.call_limits.memory_bytes == 32 << 20
    }),
    ("sandbox.output", "'1MiB'", |s| {
        s.call_limits.output_bytes == 1 << 20
    }),
    ("sandbox.fuel", "1000", |s| s.call_limits.fuel == Some(1000)),
    ("sandbox.pool", "false", |s| !s.sandbox.pool),
    ("sandbox.max_live_calls", "5", |s| {
        s.sandbox.max_live_calls == 5
    }),
    ("sandbox.extra_ca_files", "['agentloop.toml']", |s| {
        s.sandbox
            .extra_ca_files
            .iter()
            .any(|path| path.ends_with("project/agentloop.toml"))
    }),
    ("sandbox.cache_dir", "'none'", |s| {
        s.sandbox.cache_dir.is_none()
    }),
    ("sandbox.compile_apart", "false", |s| {
        s.sandbox.compiler == Compiler::InProcess
    }),
    ("permissions.mode", "'deny'", |s| {
        s.permissions.mode == Mode::Deny
    }),
    ("permissions.deny", "['a.b']", |s| {
        rule_for(s, "a.b") == Some((Verdict::Deny, "a.b".into()))
    }),
    ("permissions.ask", "['a.b']", |s| {
        rule_for(s, "a.b") == Some((Verdict::Ask, "a.b".into()))
    }),
    ("permissions.allow", "['a.b']", |s| {
        rule_for(s, "a.b") == Some((Verdict::Allow, "a.b".into()))
    }),
];

#[test]
fn each_key_has_its_effect() {
    let keys: BTreeSet<_> = env_vars::all()
        .into_iter()
        .filter_map(|var| var.key)
        .collect();
    let tested: BTreeSet<_> = EFFECTS.iter().map(|effect| effect.0).collect();
    assert_eq!(
        keys, tested,
        "a key without a test, or a test without a key"
    );
    for (key, value, holds) in EFFECTS {
        let desk = Desk::trusting();
        assert!(!holds(&desk.settings()), "{key} has this effect by default");
        desk.project(&format!("{key} = {value}\n"));
        assert!(holds(&desk.settings()), "{key} in the project file");
        let desk = Desk::new();
        if key != "sandbox.extra_ca_files" && key != "script" {
            desk.user(&format!("{key} = {value}\n"));
            assert!(holds(&desk.settings()), "{key} in the user file");
        }
    }
}

#[test]
fn each_key_can_be_set_by_its_variable() {
    for var in env_vars::all() {
        let Some((_, value, holds)) = EFFECTS.iter().find(|effect| Some(effect.0) == var.key)
        else {
            continue;
        };
        let mut desk = Desk::new();
        desk.project("# here\n");
        desk.variable(&var.name, value.trim_matches('\''));
        assert!(holds(&desk.settings()), "{}", var.name);
    }
}

#[test]
fn an_empty_variable_is_not_set_and_a_list_has_commas_or_is_toml() {
    let mut desk = Desk::new();
    desk.variable("AGENTLOOP_MODEL", "")
        .variable("AGENTLOOP_PERMISSIONS__DENY", "a.b, c.d");
    desk.variable("AGENTLOOP_PERMISSIONS__ASK", r#"["e.f(x:1, y:2)"]"#);
    let settings = desk.settings();
    assert_eq!(settings.model.as_deref(), Some("claude-opus-4-8"));
    let texts = |rules: &[agentloop_host::config::permissions::Rule]| -> Vec<String> {
        rules.iter().map(ToString::to_string).collect()
    };
    assert_eq!(texts(&settings.permissions.deny), ["a.b", "c.d"]);
    assert_eq!(texts(&settings.permissions.ask), ["e.f(x:1, y:2)"]);
    let mut desk = Desk::new();
    desk.flag("permissions.allow", "--allow", "a.b(x:1, y:2)")
        .flag("permissions.allow", "--allow", "c.d");
    assert_eq!(
        texts(&desk.settings().permissions.allow),
        ["a.b(x:1, y:2)", "c.d"]
    );
}

#[test]
fn rules_of_all_layers_count_together() {
    let mut desk = Desk::trusting();
    desk.user("[permissions]\ndeny = ['a.b']\n");
    desk.project("[permissions]\ndeny = []\nallow = ['a.*']\n");
    desk.flag("permissions.deny", "--deny", "a.c");
    let settings = desk.settings();
    for (name, verdict) in [
        ("a.b", Verdict::Deny),
        ("a.c", Verdict::Deny),
        ("a.d", Verdict::Allow),
    ] {
        assert_eq!(rule_for(&settings, name).unwrap().0, verdict, "{name}");
    }
}

#[test]
fn what_is_wrong_is_refused_with_file_line_key_and_nearest_spelling() {
    let mut wrong = Vec::new();
    for (text, expected) in [
        (
            "timeout_mss = 500",
            "there is no key `timeout_mss`; did you mean `sandbox.timeout`?",
        ),
        (
            "timeout = '5s'",
            "there is no key `timeout`; did you mean `sandbox.timeout`?",
        ),
        (
            "modle = 'm'",
            "there is no key `modle`; did you mean `model`?",
        ),
        (
            "[sandbox]\n# x\ntimeout_mss = 500",
            "there is no key `sandbox.timeout_mss`; did you mean `sandbox.timeout`?",
        ),
        (
            "[sandbox]\nmemory_mb = -1",
            "there is no key `sandbox.memory_mb`; did you mean `sandbox.memory`?",
        ),
        (
            "[grants.files]\nallowed_hosts = 'x'",
            "there is no key `grants.files.allowed_hosts`; known in `[grants.files]` are env, folders, fuel, http, memory, output, secrets, timeout",
        ),
        (
            "[grants.files]\ntimeout_mss = 5",
            "there is no key `grants.files.timeout_mss`; did you mean `grants.files.timeout`?",
        ),
        (
            "[grants.files]\nhttp = 'https://x'",
            "`grants.files.http` wants a list of web origins, got \"https://x\"",
        ),
        (
            "[grants]\nfolders = []",
            "`grants.folders` wants a table, got a list",
        ),
        (
            "[grants.'a b']\n",
            "`[grants.a b]`: `a b` is not a plugin name: it takes 1 to 64 of A-Z a-z 0-9 _ -",
        ),
        (
            "[sandboxx]\n",
            "there is no key `sandboxx`; did you mean `sandbox`?",
        ),
        ("sandbox = 3", "`sandbox` wants a table, got 3"),
        (
            "anthropic.api_key = 'sk-1'",
            "there is no key `anthropic.api_key`; keys do not stand in files: set `ANTHROPIC_API_KEY` or `OPENAI_API_KEY`, or the same with `_FILE`",
        ),
        (
            "provider = 'antropic'",
            "`provider` wants one of \"anthropic\", \"openai\", \"scripted\", got \"antropic\": did you mean \"anthropic\"?",
        ),
        (
            "provider = true",
            "`provider` wants one of \"anthropic\", \"openai\", \"scripted\", got true",
        ),
        (
            "model = ''",
            "`model` wants a text that is not empty, got \"\"",
        ),
        (
            "base_url = 'ftp://x'",
            "`base_url` wants a web address such as \"https://api.example.org/v1\", got \"ftp://x\": only http and https are known",
        ),
        (
            "base_url = 'https://u:p@x'",
            "`base_url` carries a user name or password; put the key into its environment variable",
        ),
        (
            "base_url = 'https://x?y'",
            "`base_url` wants a web address such as \"https://api.example.org/v1\", got \"https://x?y\": it has a query or fragment",
        ),
        (
            "limits.max_iterations = 0",
            "`limits.max_iterations` wants a whole number from 1, got 0",
        ),
        (
            "limits.max_iterations = -3",
            "`limits.max_iterations` wants a whole number from 1, got -3",
        ),
        (
            "limits.max_iterations = 1.5",
            "`limits.max_iterations` wants a whole number from 1, got a number with a fraction",
        ),
        (
            "limits.max_iterations = '3'",
            "`limits.max_iterations` wants a whole number from 1, got \"3\"",
        ),
        (
            "limits.max_tokens = 5000000000",
            "`limits.max_tokens` wants a smaller whole number, got 5000000000",
        ),
        (
            "limits.max_tokens = 99999999999999999999",
            "`limits.max_tokens` wants a whole number from 1, got a number beyond all bounds",
        ),
        (
            "limits.max_tokens = 100000",
            "`limits.max_tokens` is 100000, above `limits.max_tokens_ceiling`, which is 64000",
        ),
        (
            "limits.repeated_calls.warn = 6",
            "`limits.repeated_calls.warn` is 6, above `limits.repeated_calls.refuse`, which is 5",
        ),
        (
            "limits.max_tool_calls = 0",
            "`limits.max_tool_calls` wants a whole number from 1, or \"none\", got 0",
        ),
        (
            "limits.parallel = 'yes'",
            "`limits.parallel` wants true or false, got \"yes\"",
        ),
        (
            "limits.wall_time = 10",
            "`limits.wall_time` wants a duration such as \"500ms\", \"30s\", \"5m\" or \"2h\", or \"none\", got 10",
        ),
        (
            "sandbox.timeout = '30'",
            "`sandbox.timeout` wants a duration such as \"500ms\", \"30s\", \"5m\" or \"2h\", or \"none\", got \"30\": the unit is missing",
        ),
        (
            "sandbox.timeout = '-5s'",
            "`sandbox.timeout` wants a duration such as \"500ms\", \"30s\", \"5m\" or \"2h\", or \"none\", got \"-5s\": it has to begin with a whole number",
        ),
        (
            "sandbox.memory = -1",
            "`sandbox.memory` wants a size such as \"512KiB\", \"64MiB\" or \"1GiB\", got -1",
        ),
        (
            "sandbox.memory = '64M'",
            "`sandbox.memory` wants a size such as \"512KiB\", \"64MiB\" or \"1GiB\", got \"64M\": the unit is unknown",
        ),
        (
            "sandbox.memory = '1B'",
            "`sandbox.memory` wants a size such as \"512KiB\", \"64MiB\" or \"1GiB\", got \"1B\": it is too small",
        ),
        (
            "sandbox.memory = '5GiB'",
            "`sandbox.memory` wants a size such as \"512KiB\", \"64MiB\" or \"1GiB\", got \"5GiB\": it is too large",
        ),
        (
            "sandbox.extra_ca_files = ['no.pem']",
            "`sandbox.extra_ca_files` names the file \"no.pem\", which does not exist (looked for `[tmp]/project/no.pem`)",
        ),
        (
            "permissions.allow = 'a.b'",
            "`permissions.allow` wants a list of rules, got \"a.b\"",
        ),
        (
            "permissions.allow = ['']",
            "`permissions.allow` wants a text that is not empty, got \"\"",
        ),
        (
            "permissions.deny = ['a b']",
            "`permissions.deny`: `a b` is not a permission rule: names hold A-Z a-z 0-9 _ - and the patterns * and ?; write `plugin.tool`, `plugin.*` or `plugin.tool(argument:pattern)`",
        ),
        (
            "tools = ['a b']",
            "`tools`: `a b` is not a pattern of tools: names hold A-Z a-z 0-9 _ - and the patterns * and ?; write `plugin.tool` or `plugin.*`",
        ),
        (
            "plugin_dirs = 'plugins'",
            "`plugin_dirs` wants a list of paths, got \"plugins\"",
        ),
        (
            "model = 2026-01-01",
            "`model` wants a text in quotes, got a date",
        ),
        (
            "grants.f.folders = ['nowhere']",
            "`grants.f.folders` names the folder `nowhere`, which does not exist (looked for `[tmp]/project/nowhere`)",
        ),
        (
            "grants.f.folders = ['agentloop.toml']",
            "`grants.f.folders` names the folder `agentloop.toml`, which is not a folder (looked for `[tmp]/project/agentloop.toml`)",
        ),
        (
            "grants.f.folders = ['.']",
            "`grants.f.folders` has the folder `.`, which gives no name; add `as = \"/name\"`",
        ),
        (
            "grants.f.folders = ['~']",
            "`grants.f.folders` has the folder `~`, which gives no name; add `as = \"/name\"`",
        ),
        (
            "grants.f.folders = [{ as = '/x' }]",
            "`grants.f.folders` has a folder without `path`",
        ),
        (
            "grants.f.folders = [{ path = '.', as = 'x' }]",
            "`grants.f.folders.as` wants a path such as `/notes`, got `x`: it has to begin with `/`",
        ),
        (
            "grants.f.folders = [{ path = '.', as = '/x/../y' }]",
            "`grants.f.folders.as` wants a path such as `/notes`, got `/x/../y`: it has an empty segment, `.` or `..`",
        ),
        (
            "grants.f.folders = [{ path = '.', as = '/x', acess = 'write' }]",
            "`grants.f.folders` has no `acess`; did you mean `access`?",
        ),
        (
            "grants.f.folders = [{ path = '.', as = '/x', access = 'rw' }]",
            "`grants.f.folders.access` wants one of \"read\", \"write\", got \"rw\"",
        ),
        (
            "grants.f.folders = [{ path = '.', as = '/x' }, { path = '../home', as = '/x' }]",
            "`grants.f.folders` opens two folders as `/x`; give one of them another `as`",
        ),
        (
            "grants.f.folders = [{ path = '../home', as = '/x', access = 'write' }]",
            "`grants.f.folders` opens the folder `../home` for writing, which holds this program's own `[tmp]/home/config`; open a folder beside it",
        ),
        (
            "grants.f.folders = [{ path = '../home/config', as = '/x', access = 'write' }]",
            "`grants.f.folders` opens the folder `../home/config` for writing, which holds this program's own `[tmp]/home/config`; open a folder beside it",
        ),
        (
            "grants.f.http = ['api.example.org']",
            "`grants.f.http`: `api.example.org` is not a web origin: it does not parse as a URL; write `https://api.example.org`, `https://*.example.org`, `http://127.0.0.1:8080` or `*`",
        ),
        (
            "grants.f.http = [{ methods = ['GET'] }]",
            "`grants.f.http` has an entry without `origin`",
        ),
        (
            "grants.f.http = [{ origin = 'https://x', methods = [] }]",
            "`grants.f.http.methods` is empty; leave it out for GET and HEAD, or leave out the origin",
        ),
        (
            "grants.f.http = [{ origin = 'https://x', methods = ['G T'] }]",
            "`grants.f.http.methods` wants methods such as \"GET\" or \"POST\", got \"G T\"",
        ),
        (
            "grants.f.http = [{ origin = 'https://x', method = ['GET'] }]",
            "`grants.f.http` has no `method`; did you mean `methods`?",
        ),
        (
            "grants.f.env = ['*']",
            "`grants.f.env` names `*`: variables are granted one by one, by their names",
        ),
        (
            "grants.f.env = ['ANTHROPIC_*']",
            "`grants.f.env` names `ANTHROPIC_*`: variables are granted one by one, by their names",
        ),
        (
            "grants.f.env = ['ANTHROPIC_API_KEY']",
            "`grants.f.env` names `ANTHROPIC_API_KEY`: it belongs to this program and is never given to a tool",
        ),
        (
            "grants.f.env = ['openai_api_key_file']",
            "`grants.f.env` names `openai_api_key_file`: it belongs to this program and is never given to a tool",
        ),
        (
            "grants.f.env = ['AGENTLOOP_ANY']",
            "`grants.f.env` names `AGENTLOOP_ANY`: it belongs to this program and is never given to a tool",
        ),
        (
            "grants.f.env = ['A=B']",
            "`grants.f.env` names `A=B`: it is not the name of a variable",
        ),
        (
            "grants.f.env = ['']",
            "`grants.f.env` wants a text that is not empty, got \"\"",
        ),
        (
            "grants.f.timeout = 500",
            "`grants.f.timeout` wants a duration such as \"500ms\", \"30s\", \"5m\" or \"2h\", or \"none\", got 500",
        ),
        (
            "grants.f.fuel = -1",
            "`grants.f.fuel` wants a whole number from 1, or \"none\", got -1",
        ),
        (
            "model = ",
            "not valid TOML: string values must be quoted, expected literal string",
        ),
        ("model = 'a'\nmodel = 'b'", "not valid TOML: duplicate key"),
    ] {
        let desk = Desk::trusting();
        desk.project(text);
        let line = text.lines().count();
        let expected = [format!("agentloop.toml:{line}: {expected}")];
        let faults = desk.faults();
        if faults != expected {
            wrong.push(format!(
                "{text}\n  wanted {expected:?}\n  got    {faults:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_faults_of_all_layers_are_told_at_once() {
    let mut desk = Desk::new();
    desk.user("modle = 'm'\n");
    desk.project("limits.max_iterations = -1\n[permissions]\ndeny = ['a b', 'c.d', 'e(']\n[grants.x]\nenvv = []\n");
    desk.variable("AGENTLOOP_MODLE", "m")
        .variable("AGENTLOOP_LIMITS__MAX_TOKENS", "many");
    desk.variable("AGENTLOOP_GRANTS__FILES__ENV", "A")
        .variable("AGENTLOOP_XYZ", "1");
    desk.flag("limits.max_iterations", "--max-iterations", "0")
        .flag("no.such", "--set", "1");
    insta::assert_snapshot!(
        desk.without_folder(&Settings::resolve(&desk.inputs()).unwrap_err().to_string())
    );
}

#[test]
fn control_characters_of_a_file_do_not_reach_the_terminal() {
    let desk = Desk::new();
    desk.project("\"a\\u001b[2J\\u202e\" = 1\nprovider = \"x\\u001b]0;\\u0007\"\n");
    for fault in desk.faults() {
        assert!(
            !fault.contains(['\u{1b}', '\u{7}', '\u{202e}']),
            "{fault:?}"
        );
    }
}

#[test]
fn files_that_cannot_be_settings_are_named() {
    let desk = Desk::new();
    fs::write(desk.project_dir().join("agentloop.toml"), b"model = '\xff'").unwrap();
    assert_eq!(desk.fault(), "agentloop.toml: the file is not UTF-8 text");
    desk.project(&format!("# {}", "x".repeat(1 << 20)));
    assert_eq!(
        desk.fault(),
        "agentloop.toml: the file is larger than 1048576 bytes"
    );
    let mut desk = Desk::new();
    desk.flags.config = Some("other/x.toml".into());
    assert_eq!(
        desk.fault(),
        "other/x.toml: the file does not exist; correct the path, or make it with `init`"
    );
    fs::create_dir_all(desk.project_dir().join("other/x.toml")).unwrap();
    assert!(
        desk.fault()
            .starts_with("other/x.toml: the file cannot be read: ")
    );
}

#[test]
fn another_project_file_can_be_named() {
    let mut desk = Desk::trusting();
    desk.project("model = 'here'");
    desk.make_dir("other/notes");
    fs::write(
        desk.project_dir().join("other/x.toml"),
        "model = 'there'\n[grants.f]\nfolders = ['notes']\n",
    )
    .unwrap();
    desk.variable("AGENTLOOP_CONFIG", "other/x.toml");
    let settings = desk.settings();
    assert_eq!(settings.model.as_deref(), Some("there"));
    let notes = desk
        .project_dir()
        .join("other/notes")
        .canonicalize()
        .unwrap();
    assert_eq!(
        settings.grants_for(&plugin("f")).folders[0].host_path,
        notes
    );
    desk.flags.config = Some("agentloop.toml".into());
    assert_eq!(desk.settings().model.as_deref(), Some("here"));
}

#[test]
fn folders_are_taken_as_they_are_written() {
    let desk = Desk::trusting();
    let odd = "My Tools [v1] {x} 100%25 ünï *";
    desk.make_dir(odd)
        .make_dir("data dir")
        .make_dir("a/b")
        .make_dir("../home/inbox");
    let canonical = desk.project_dir().canonicalize().unwrap();
    desk.project(&format!(
        "[grants.f]\nfolders = ['{odd}', {{ path = '{}', as = '/data', access = 'write' }}, './a/../a/b', \
         '~/inbox', {{ path = '.', as = '/' }}]\n",
        canonical.join("data dir").display()
    ));
    let settings = desk.settings();
    let folders = settings.grants_for(&plugin("f")).folders;
    let found: Vec<_> = folders
        .iter()
        .map(|f| (f.host_path.as_path(), f.guest_path.as_str(), f.access))
        .collect();
    let home = desk.home().canonicalize().unwrap();
    assert_eq!(
        found,
        [
            (
                canonical.join(odd).as_path(),
                format!("/{odd}").as_str(),
                Access::Read
            ),
            (canonical.join("data dir").as_path(), "/data", Access::Write),
            (canonical.join("a/b").as_path(), "/b", Access::Read),
            (home.join("inbox").as_path(), "/inbox", Access::Read),
            (canonical.as_path(), "/", Access::Read),
        ]
    );
    assert_eq!(
        settings.folders_as_written(&plugin("f"))[2],
        "./a/../a/b as /b (read)"
    );
}

#[test]
fn a_users_grants_are_relative_to_the_users_file() {
    let desk = Desk::new();
    fs::create_dir_all(desk.home().join("config/mine")).unwrap();
    desk.user("plugin_dirs = ['p']\n[grants.f]\nfolders = ['mine']\n");
    let settings = desk.settings();
    assert_eq!(settings.plugin_dirs, [desk.home().join("config/p")]);
    assert!(
        settings.grants_for(&plugin("f")).folders[0]
            .host_path
            .ends_with("home/config/mine")
    );
}

#[test]
fn only_named_variables_are_granted() {
    let mut desk = Desk::trusting();
    desk.variable("ANTHROPIC_API_KEY", "k1")
        .variable("FOO", "f1")
        .variable("BAR", "b1");
    desk.project("[grants.f]\nenv = ['FOO', 'UNSET']\n");
    let settings = desk.settings();
    let granted = settings.grants_for(&plugin("f")).environment;
    assert_eq!(
        granted,
        [EnvironmentGrant {
            name: "FOO".into(),
            value: "f1".into()
        }]
    );
    assert_eq!(
        settings.notes,
        ["`grants.f.env` names `UNSET`, which is not set"]
    );
    assert_eq!(settings.grants_for(&plugin("g")).environment, []);
    let printed = format!("{settings:?} {:?}", desk.inputs().environment)
        + &settings.origin_lines().join("\n");
    assert!(
        !printed.contains("k1") && !printed.contains("f1") && !printed.contains("b1"),
        "{printed}"
    );
}

#[test]
fn secrets_have_one_source_one_place_and_their_hosts() {
    let mut desk = Desk::trusting();
    desk.variable("TICKETS", "t0p-s3cr3t");
    desk.project(
        "[secrets.tickets]\nenv = 'TICKETS'\nhosts = ['api.example.org', '*.example.net', 'http://127.0.0.1:8080']\n\
         header = 'Authorization'\nvalue = 'Bearer {secret}'\n\
         [secrets.weather]\nfile = 'key'\nhosts = ['https://api.example.org:8443']\nquery = 'key'\n\
         [secrets.maps]\ncommand = ['pass', 'show', 'maps']\nhosts = ['maps.example.org']\nheader = 'x-key'\n\
         [grants.f]\nsecrets = ['tickets', 'weather', 'maps', 'none']\n",
    );
    let settings = desk.settings();
    let secrets = settings.grants_for(&plugin("f")).secrets;
    let told: Vec<_> = secrets.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "the secret tickets as the header authorization at https://api.example.org, https://*.example.net, \
             http://127.0.0.1:8080",
            "the secret weather as the query parameter key at https://api.example.org:8443",
            "the secret maps as the header x-key at https://maps.example.org",
        ]
    );
    assert_eq!(secrets[0].template, "Bearer {secret}");
    assert_eq!(secrets[1].template, "{secret}");
    assert_eq!(
        secrets[1].source,
        SecretSource::File(desk.project_dir().join("key"))
    );
    assert_eq!(
        settings.notes,
        ["`grants.f.secrets` names `none`, and there is no `[secrets.none]` that counts"]
    );
    assert!(settings.grants_for(&plugin("g")).secrets.is_empty());
    let printed = format!("{settings:?} {:?}", desk.inputs().environment)
        + &settings.origin_lines().join("\n");
    assert!(!printed.contains("t0p"), "{printed}");
}

/// It names variables, files and programs of this machine.
#[test]
fn a_project_names_secrets_only_when_it_is_trusted() {
    let mut desk = Desk::new();
    desk.variable("TICKETS", "t0p-s3cr3t");
    let secret = "[secrets.t]\nenv = 'TICKETS'\nhosts = ['evil.example.org']\nheader = 'x-key'\n";
    desk.project(&format!("{secret}[grants.f]\nsecrets = ['t']\n"));
    let settings = desk.settings();
    assert!(settings.grants_for(&plugin("f")).secrets.is_empty());
    let withheld: Vec<_> = settings.withheld.iter().map(|w| w.key.as_str()).collect();
    for key in ["secrets.t.env", "secrets.t.hosts", "grants.f.secrets"] {
        assert!(withheld.contains(&key), "{withheld:?}");
    }
    // A user's secret is not led elsewhere.
    desk.user(
        "[secrets.t]\nenv = 'TICKETS'\nhosts = ['api.example.org']\nheader = 'x-key'\n[grants.f]\nsecrets = ['t']\n",
    );
    let secrets = desk.settings().grants_for(&plugin("f")).secrets;
    assert_eq!(
        secrets[0].to_string(),
        "the secret t as the header x-key at https://api.example.org"
    );
}

#[test]
fn secrets_that_make_no_sense_are_faults() {
    let whole = "env = 'TICKETS'\nhosts = ['api.example.org']\nheader = 'x-key'\n";
    for (table, said) in [
        ("", "says no source"),
        ("env = 'A'\nfile = 'b'\n", "more than one source"),
        ("env = 'A'\n", "says no place"),
        ("env = 'A'\nheader = 'x'\nquery = 'y'\n", "has two places"),
        ("env = 'A'\nheader = 'x'\n", "bound to no host"),
        (
            &whole.replace("api.example.org", "*"),
            "write them one by one",
        ),
        (
            &whole.replace("api.example.org", "http://api.example.org"),
            "only over https",
        ),
        (
            &whole.replace("api.example.org", "http://*.localhost"),
            "only over https",
        ),
        (&whole.replace("api.example.org", "a/b"), "more than scheme"),
        (&whole.replace("x-key", "host"), "sets itself"),
        (&whole.replace("x-key", "x key"), "no name of a header"),
        (
            &whole.replace("header = 'x-key'", "query = 'a&b'"),
            "a parameter takes",
        ),
        (&format!("{whole}value = 'Bearer'\n"), "`{secret}` once"),
        (&format!("{whole}value = 'é {{secret}}'\n"), "can't carry"),
        (
            &whole.replace("TICKETS", "ANTHROPIC_API_KEY"),
            "belongs to this program",
        ),
        (&format!("{whole}hoost = 1\n"), "hosts"),
    ] {
        let desk = Desk::trusting();
        desk.project(&format!("[secrets.t]\n{table}"));
        let faults = desk.faults();
        assert!(
            faults.len() == 1 && faults[0].contains(said),
            "{table}: {faults:?}"
        );
    }
    let desk = Desk::trusting();
    desk.project(&format!(
        "[secrets.a]\n{whole}[secrets.b]\n{whole}[grants.f]\nsecrets = ['a', 'b']\n"
    ));
    let faults = desk.faults();
    assert!(faults[0].contains("names `a` and `b`"), "{faults:?}");
}

#[test]
fn web_grants() {
    let desk = Desk::trusting();
    desk.project(
        "[grants.f]\nhttp = ['https://API.example.org', { origin = 'http://127.0.0.1:8080', methods = ['get', 'POST'] }]\n",
    );
    let http = desk.settings().grants_for(&plugin("f")).http;
    let found: Vec<_> = http
        .iter()
        .map(|h| (h.origin.to_string(), h.methods.join(" ")))
        .collect();
    assert_eq!(
        found,
        [
            ("https://api.example.org".to_owned(), String::new()),
            ("http://127.0.0.1:8080".to_owned(), "GET POST".to_owned()),
        ]
    );
}

#[test]
fn limits_of_a_plugin_come_before_those_of_all_and_a_shorter_own_timeout_wins() {
    let desk = Desk::trusting();
    desk.project(
        "[sandbox]\ntimeout = '20s'\nmemory = '32MiB'\n[grants.f]\ntimeout = '40s'\nfuel = 7\noutput = '2KiB'\nmemory = '1MiB'\n",
    );
    let settings = desk.settings();
    let seconds = |n| Some(Duration::from_secs(n));
    let timeout = |name: &str, own| settings.limits_for(&plugin(name), own).timeout;
    assert_eq!(timeout("f", None), seconds(40));
    assert_eq!(timeout("f", seconds(60)), seconds(40));
    assert_eq!(timeout("f", seconds(5)), seconds(5));
    assert_eq!(timeout("g", None), seconds(20));
    assert_eq!(
        settings.limits_for(&plugin("f"), None),
        Limits {
            timeout: seconds(40),
            memory_bytes: 1 << 20,
            output_bytes: 2 << 10,
            fuel: Some(7),
        }
    );
    assert_eq!(
        settings.limits_for(&plugin("g"), None).memory_bytes,
        32 << 20
    );
    let unset = Desk::trusting().settings();
    let own = |own| unset.limits_for(&plugin("g"), own).timeout;
    assert_eq!(own(None), seconds(30), "nobody says anything");
    assert_eq!(
        own(seconds(120)),
        seconds(120),
        "only the tool says something"
    );
    assert_eq!(own(seconds(100_000)), Some(MAX_OWN_TIMEOUT));
    desk.project("sandbox.timeout = 'none'\n");
    assert_eq!(desk.settings().limits_for(&plugin("g"), None).timeout, None);
    assert_eq!(
        desk.settings().limits_for(&plugin("g"), seconds(5)).timeout,
        seconds(5)
    );
}

#[test]
fn the_key_comes_from_a_variable_or_a_file() {
    use agentloop_host::provider::Secret;
    let mut desk = Desk::new();
    assert_eq!(desk.settings().api_key, None);
    desk.variable("OPENAI_API_KEY", "sk-other");
    assert_eq!(desk.settings().api_key, None);
    desk.variable("ANTHROPIC_API_KEY_FILE", "key.txt");
    assert!(desk.fault().starts_with(
        "environment variable ANTHROPIC_API_KEY_FILE: the file `key.txt` cannot be read: "
    ));
    fs::write(desk.project_dir().join("key.txt"), " sk-1\n").unwrap();
    assert_eq!(desk.settings().api_key, Some(Secret::new("sk-1")));
    for (content, why) in [
        ("\n", "is empty"),
        ("a b", "holds something else than one key"),
    ] {
        fs::write(desk.project_dir().join("key.txt"), content).unwrap();
        assert_eq!(
            desk.fault(),
            format!("environment variable ANTHROPIC_API_KEY_FILE: the file `key.txt` {why}")
        );
    }
    desk.variable("ANTHROPIC_API_KEY", "sk-2");
    assert_eq!(
        desk.fault(),
        "environment variable ANTHROPIC_API_KEY_FILE: `ANTHROPIC_API_KEY` is set as well; unset one of them"
    );
    desk.flag("provider", "--provider", "openai");
    assert_eq!(desk.settings().api_key, Some(Secret::new("sk-other")));
}

#[test]
fn the_providers_own_address_variable_stands_between_ours_and_the_files() {
    let mut desk = Desk::new();
    desk.user("base_url = 'http://user'");
    let url = |desk: &Desk| desk.settings().base_url.unwrap();
    desk.variable("OPENAI_BASE_URL", "http://openai");
    assert_eq!(url(&desk), "http://user");
    desk.variable("ANTHROPIC_BASE_URL", "http://anthropic");
    assert_eq!(url(&desk), "http://anthropic");
    desk.variable("AGENTLOOP_BASE_URL", "http://agentloop");
    assert_eq!(url(&desk), "http://agentloop");
    desk.flag("base_url", "--base-url", "http://flag");
    assert_eq!(url(&desk), "http://flag");
    let mut desk = Desk::new();
    desk.variable("ANTHROPIC_BASE_URL", "nonsense");
    assert!(
        desk.fault()
            .starts_with("environment variable ANTHROPIC_BASE_URL: `base_url` wants a web address")
    );
}

const LOOSENING: &str = "\
base_url = 'https://evil.example'
plugin_dirs = ['plugins']
[limits]
max_iterations = 99
wall_time = 'none'
[sandbox]
timeout = 'none'
memory = '1GiB'
extra_ca_files = ['agentloop.toml']
cache_dir = 'cache'
[permissions]
mode = 'auto'
allow = ['*']
[grants.f]
folders = [{ path = '.', as = '/all', access = 'write' }]
http = ['*']
env = ['HOME']
timeout = '10m'
";

#[test]
fn a_file_that_nobody_trusts_grants_and_loosens_nothing() {
    let mut desk = Desk::new();
    desk.variable("HOME", "/h");
    let before = desk.settings();
    desk.project(LOOSENING);
    let settings = desk.settings();
    assert_eq!(settings.base_url, None);
    assert_eq!(settings.plugin_dirs, before.plugin_dirs);
    assert_eq!(settings.limits, before.limits);
    assert_eq!(settings.call_limits, before.call_limits);
    assert!(settings.sandbox.extra_ca_files.is_empty());
    assert_eq!(settings.sandbox.cache_dir, before.sandbox.cache_dir);
    assert_eq!(settings.permissions, before.permissions);
    assert_eq!(settings.grants_for(&plugin("f")), Default::default());
    assert_eq!(settings.operator_limits(&plugin("f")), before.call_limits);
    let withheld: Vec<_> = settings.withheld.iter().map(|w| w.key.as_str()).collect();
    assert_eq!(
        withheld,
        [
            "base_url",
            "plugin_dirs",
            "limits.max_iterations",
            "sandbox.timeout",
            "sandbox.memory",
            "sandbox.extra_ca_files",
            "sandbox.cache_dir",
            "permissions.mode",
            "permissions.allow",
            "grants.f.folders",
            "grants.f.http",
            "grants.f.env",
            "grants.f.timeout",
        ]
    );
}

#[test]
fn a_file_that_nobody_trusts_may_tighten() {
    let desk = Desk::new();
    fs::create_dir_all(desk.home().join("inbox")).unwrap();
    desk.user(
        "tools = ['a.*']\n[permissions]\nmode = 'deny'\nallow = ['a.*']\n[limits]\nwall_time = '1h'\n\
         [grants.f]\nfolders = ['~/inbox']\ntimeout = '9s'\n",
    );
    desk.project(
        "tools = ['*']\n[permissions]\nmode = 'ask'\ndeny = ['a.b']\nask = ['a.c']\n\
         [limits]\nmax_iterations = 3\nwall_time = '1m'\n[sandbox]\ntimeout = '1s'\n\
         [grants.f]\nfolders = []\ntimeout = '2s'\n",
    );
    let settings = desk.settings();
    assert_eq!(settings.limits.max_iterations, 3);
    assert_eq!(settings.limits.wall_time, Some(Duration::from_secs(60)));
    assert_eq!(
        settings.call_limits.timeout,
        TimeoutSetting::After(Duration::from_secs(1))
    );
    assert_eq!(
        settings.limits_for(&plugin("f"), None).timeout,
        Some(Duration::from_secs(2))
    );
    assert_eq!(rule_for(&settings, "a.b").unwrap().0, Verdict::Deny);
    assert_eq!(rule_for(&settings, "a.c").unwrap().0, Verdict::Ask);
    assert_eq!(rule_for(&settings, "a.d").unwrap().0, Verdict::Allow);
    assert_eq!(settings.permissions.mode, Mode::Deny);
    assert_eq!(settings.grants_for(&plugin("f")).folders.len(), 1);
    assert!(!settings.shows_tool("b.c"));
    let withheld: Vec<_> = settings.withheld.iter().map(ToString::to_string).collect();
    assert_eq!(
        withheld,
        [
            "tools = [\"*\"]",
            "permissions.mode = \"ask\"",
            "grants.f.folders = []"
        ]
    );
}

#[test]
fn trust_holds_for_one_content_of_one_file() {
    let mut desk = Desk::new();
    desk.variable("HOME", "/h");
    desk.make_dir("plugins").project(LOOSENING);
    let store = TrustStore::new(&desk.places().state_dir);
    let seen = desk.settings();
    assert!(!store.is_trusted(&seen.project).unwrap());
    store.trust(&seen.project).unwrap();
    let trusted = desk.settings();
    assert!(trusted.withheld.is_empty());
    assert_eq!(trusted.permissions.mode, Mode::Auto);
    assert_eq!(trusted.grants_for(&plugin("f")).folders.len(), 1);
    assert_eq!(trusted.plugin_dirs, [desk.project_dir().join("plugins")]);

    desk.project(&LOOSENING.replace("10m", "11m"));
    assert!(!desk.settings().withheld.is_empty(), "another content");
    store.trust(&desk.settings().project).unwrap();
    assert!(desk.settings().withheld.is_empty());
    desk.project(LOOSENING);
    assert!(
        !desk.settings().withheld.is_empty(),
        "the earlier content is no longer trusted"
    );

    desk.make_dir("copy");
    fs::write(desk.project_dir().join("copy/agentloop.toml"), LOOSENING).unwrap();
    store.trust(&desk.settings().project).unwrap();
    desk.flags.config = Some("copy/agentloop.toml".into());
    assert!(
        !desk.settings().withheld.is_empty(),
        "the same content elsewhere"
    );
    desk.flags.trust = true;
    assert!(desk.settings().withheld.is_empty(), "for this once");
    assert!(!store.is_trusted(&desk.settings().project).unwrap());
}

#[test]
fn a_folders_own_plugins_wait_for_trust() {
    let desk = Desk::new();
    desk.make_dir("plugins");
    let settings = desk.settings();
    let of_user = desk.home().join("data/plugins");
    assert_eq!(settings.plugin_dirs, std::slice::from_ref(&of_user));
    assert_eq!(
        settings.withheld[0].to_string(),
        "plugin_dirs = [\"plugins\"]"
    );
    TrustStore::new(&desk.places().state_dir)
        .trust(&settings.project)
        .unwrap();
    assert_eq!(
        desk.settings().plugin_dirs,
        [desk.project_dir().join("plugins"), of_user]
    );
    desk.project("# something new\n");
    assert_eq!(desk.settings().plugin_dirs.len(), 1);
}

#[test]
fn always_is_written_into_a_trusted_file_and_trust_goes_on() {
    let desk = Desk::new();
    let store = TrustStore::new(&desk.places().state_dir);
    let mut project = desk.settings().project;
    store.append_allow(&mut project, "calc.add").unwrap();
    let settings = desk.settings();
    assert_eq!(project, settings.project);
    assert_eq!(rule_for(&settings, "calc.add").unwrap().0, Verdict::Allow);
    let text = fs::read_to_string(desk.project_dir().join("agentloop.toml")).unwrap();
    assert_eq!(text, "[permissions]\nallow = [\"calc.add\"]\n");

    desk.project("# changed meanwhile\n");
    assert!(matches!(
        store.append_allow(&mut project, "calc.sub"),
        Err(TrustError::Changed { .. })
    ));
    let mut project = desk.settings().project;
    assert!(matches!(
        store.append_allow(&mut project, "calc.sub"),
        Err(TrustError::NotTrusted { .. })
    ));
    assert!(matches!(
        store.append_allow(&mut project, "calc sub"),
        Err(TrustError::Append(_))
    ));
    assert_eq!(
        fs::read_to_string(&project.path).unwrap(),
        "# changed meanwhile\n"
    );
    store.trust(&project).unwrap();
    store.append_allow(&mut project, "calc.sub").unwrap();
    assert_eq!(
        fs::read_to_string(&project.path).unwrap(),
        "# changed meanwhile\n[permissions]\nallow = [\"calc.sub\"]\n"
    );

    let desk = Desk::new();
    desk.make_dir("plugins");
    let store = TrustStore::new(&desk.places().state_dir);
    let mut project = desk.settings().project;
    assert!(
        matches!(
            store.append_allow(&mut project, "calc.add"),
            Err(TrustError::NotTrusted { .. })
        ),
        "it would trust the plugins as well"
    );
}

#[test]
fn a_broken_list_of_trust_trusts_nothing_and_is_named() {
    let desk = Desk::new();
    desk.project("model = 'm'\n");
    fs::create_dir_all(&desk.places().state_dir).unwrap();
    fs::write(desk.places().state_dir.join("trusted.toml"), "[[project]").unwrap();
    assert_eq!(
        desk.fault(),
        "`[tmp]/home/state/trusted.toml` is not a list of trusted files; delete it, and trust the projects again"
    );
}

#[test]
fn grants_for_plugins_and_rules_for_tools_that_are_not_there_are_told() {
    let desk = Desk::trusting();
    desk.project(
        "[permissions]\ndeny = ['file.delete']\n[grants.filse]\n[grants.other]\n[grants.files]\n",
    );
    let notes = desk
        .settings()
        .notes_about(&[plugin("files")], &["files.delete".to_owned()]);
    assert_eq!(
        notes,
        [
            "`[grants.filse]` opens something to a plugin that is not there (project file agentloop.toml:3); did you mean `files`?",
            "`[grants.other]` opens something to a plugin that is not there (project file agentloop.toml:4)",
            "the deny rule `file.delete` speaks of no tool",
        ]
    );
}

#[test]
fn a_grant_over_plugins_or_settings_is_told() {
    let desk = Desk::trusting();
    desk.make_dir("plugins");
    desk.project("[grants.f]\nfolders = [{ path = '.', as = '/work', access = 'write' }]\n");
    assert_eq!(
        desk.settings().notes,
        [
            "`grants.f.folders` opens `.` for writing, and plugins are loaded from there: its tools can replace them",
            "`grants.f.folders` opens `.` for writing, and the settings file stands there: when a tool changes it, it has to be trusted again",
        ]
    );
}

#[test]
fn the_template_sets_nothing_and_uncommented_it_sets_the_defaults() {
    let values = |desk: &Desk| -> Vec<String> {
        let lines = desk.settings().origin_lines();
        lines
            .iter()
            .map(|line| line.split("  # from ").next().unwrap().to_owned())
            .collect()
    };
    let desk = Desk::trusting();
    let defaults = values(&desk);
    desk.project(&project_template());
    assert_eq!(values(&desk), defaults);
    assert!(desk.settings().withheld.is_empty());

    let mut uncommented = 0;
    let lines: Vec<_> = project_template()
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(setting) if is_setting(setting) => {
                uncommented += 1;
                setting.to_owned()
            }
            _ => line.to_owned(),
        })
        .collect();
    desk.project(&lines.join("\n"));
    assert_eq!(values(&desk), defaults);
    let lines = desk.settings().origin_lines();
    let from_file = lines
        .iter()
        .filter(|line| line.contains("project file"))
        .count();
    // empty lists of rules come from nowhere
    assert_eq!(from_file, uncommented - 3, "{lines:#?}");
    for key in env_vars::all().iter().filter_map(|var| var.key) {
        let name = key.split_once('.').map_or(key, |(_, name)| name);
        assert!(project_template().contains(&format!("{name} = ")), "{key}");
    }
}

/// `key = value`
fn is_setting(line: &str) -> bool {
    line.split_once(" = ").is_some_and(|(key, _)| {
        key.chars()
            .all(|c| c.is_ascii_lowercase() || c == '_' || c == '.')
    })
}

#[test]
fn each_example_of_the_template_is_valid() {
    let desk = Desk::trusting();
    desk.make_dir("notes");
    let text = project_template();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut in_grants = false;
    for line in text.lines() {
        in_grants |= line.contains("[grants.files]");
        if let Some(example) = line.strip_prefix("#   for example: ") {
            before.push(example.to_owned());
        } else if let Some(example) = line.strip_prefix("#   ")
            && in_grants
        {
            after.push(example.to_owned());
        } else {
            before.push(line.to_owned());
        }
    }
    desk.project(&[before, after].concat().join("\n"));
    let settings = desk.settings();
    assert_eq!(settings.system.as_deref(), Some("Answer briefly."));
    assert_eq!(
        settings.grants_for(&plugin("files")).folders[0].access,
        Access::Write
    );
    assert_eq!(
        settings.limits_for(&plugin("files"), None).memory_bytes,
        32 << 20
    );
}

#[test]
fn the_reference_of_variables_is_reviewed() {
    insta::assert_snapshot!(env_vars::reference());
    assert!(env_vars::is_reserved("Anthropic_Api_Key") && !env_vars::is_reserved("HOME"));
}

#[test]
fn the_template_is_reviewed() {
    insta::assert_snapshot!(project_template());
}

#[test]
fn places_of_this_user_are_absolute() {
    let places = Places::of_this_user().unwrap();
    for path in [
        places.config_file(),
        places.plugins_dir(),
        places.compiled_code_dir(),
        places.state_dir,
    ] {
        assert!(
            path.is_absolute() && path.iter().any(|part| part == "agentloop"),
            "{path:?}"
        );
    }
    assert!(Path::new(&places.home).is_absolute());
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text_is_named() {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};
    let desk = Desk::trusting();
    desk.project("[grants.f]\nenv = ['ODD']\n");
    let mut inputs = desk.inputs();
    let names = ["AGENTLOOP_MODEL", "ANTHROPIC_API_KEY", "ODD", "UNRELATED"];
    inputs.environment = names
        .map(|name| (name, OsString::from_vec(vec![0xff])))
        .into_iter()
        .collect();
    let faults: Vec<_> = Settings::resolve(&inputs)
        .unwrap_err()
        .faults
        .iter()
        .map(ToString::to_string)
        .collect();
    let expected = ["AGENTLOOP_MODEL", "ANTHROPIC_API_KEY", "ODD"]
        .map(|name| format!("environment variable {name}: its value is not Unicode text"));
    assert_eq!(faults, expected);
}

mod whatever_is_written {
    use agentloop_host::config::permissions::{Permissions, Rule};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_rule_is_read_or_refused(text in r"[a*]{0,3}\.?[a-z*?]{0,3}(\([a-z.]{0,2}:?[ -~ü]{0,12}\)?)?", value in r"[ -~ü]{0,12}") {
            if let Ok(rule) = Rule::parse(&text) {
                let mut permissions = Permissions::default();
                permissions.deny.push(rule);
                let _ = permissions.test("a.b", json!({ "a": value }).as_object().unwrap());
            }
        }

        #[test]
        fn an_allowed_path_is_in_its_folder(parts in prop::collection::vec(r"\.|\.\.|notes|x|", 0..6), slash in "/|\\\\|") {
            let path = format!("{slash}{}", parts.join("/"));
            let mut permissions = Permissions::default();
            permissions.allow.push(Rule::parse("f.r(path:/notes/**)").unwrap());
            let allowed = permissions.rule_for("f.r", json!({ "path": path }).as_object().unwrap()).is_some();
            let mut plain = Vec::new();
            for part in parts.iter().filter(|part| !part.is_empty() && *part != ".") {
                if part == ".." { plain.pop(); } else { plain.push(part.as_str()); }
            }
            prop_assert_eq!(allowed, plain.first() == Some(&"notes"), "{}", path);
        }

        #[test]
        fn a_file_is_read_or_refused(text in r#"(\[?(grants|sandbox|limits|permissions|f)(\.[a-z]{1,3})?\]?|(folders|deny|timeout|memory|env|http|model) ?=? ?(["'\[{][ -~\n]{0,10}|-?[0-9]{1,3}|true)|[ -~]{0,8}|\n){0,8}"#) {
            let desk = Desk::new();
            desk.project(&text);
            if let Err(error) = Settings::resolve(&desk.inputs()) {
                prop_assert!(!error.faults.is_empty());
            }
        }
    }
}
