//! Settings, resolved once: flag, then environment, then project file, then user file, then default.
//!
//! Everything that is read comes in as a value ([`Inputs`]), and each resolved value knows where it comes
//! from. Faults are told all at once, each with file, line and key. What a project file grants or loosens
//! counts only when the file is trusted ([`trust`]).

pub mod env_vars;
mod grants;
mod key;
mod keys;
mod layers;
mod node;
mod origin;
pub mod permissions;
mod places;
mod template;
pub mod trust;
mod units;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use self::{
    env_vars::Environment,
    layers::{Shown, Withheld},
    origin::{ConfigError, Fault, FileLine, Origin},
    places::{NoHome, Places},
    template::project_template,
};
use self::{
    key::{Default_, Entry},
    layers::{Context, Layers},
    node::{MAX_FILE_BYTES, Node, Value},
    origin::nearest,
    permissions::{Permissions, ToolPattern},
    trust::{ProjectFile, TrustStore},
};
use crate::{
    capability::{Access, EnvironmentGrant, Grants, Limits},
    ids::PluginName,
    provider::Secret,
    sandbox::SandboxSettings,
};

/// The project file, in the working directory.
pub const PROJECT_FILE: &str = "agentloop.toml";

/// The folder of a project's own plugins, beside the project file.
pub const PLUGINS_DIR: &str = "plugins";

/// The provider `anthropic` asks this model unless told otherwise.
pub const DEFAULT_ANTHROPIC_MODEL: &str = "claude-opus-4-8";

/// All that settings are resolved from.
#[derive(Debug, Clone)]
pub struct Inputs {
    pub working_dir: PathBuf,
    pub places: Places,
    pub environment: Environment,
    pub flags: Flags,
}

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// The project file, instead of `agentloop.toml` in the working directory.
    pub config: Option<PathBuf>,
    /// The project file counts in full, this time.
    pub trust: bool,
    values: Vec<(String, &'static str, String)>,
}

impl Flags {
    /// Sets a key (`limits.max_tokens`) to what stands behind a flag (`--max-tokens`). A list grows by one
    /// element each time.
    pub fn set(&mut self, key: impl Into<String>, flag: &'static str, value: impl Into<String>) {
        self.values.push((key.into(), flag, value.into()));
    }
}

/// The kind of model endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProviderName {
    #[default]
    Anthropic,
    OpenAi,
    Scripted,
}

impl ProviderName {
    const WORDS: [(&'static str, Self); 3] =
        [("anthropic", Self::Anthropic), ("openai", Self::OpenAi), ("scripted", Self::Scripted)];
}

/// How an Anthropic endpoint is given the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnthropicAuth {
    #[default]
    XApiKey,
    Bearer,
}

impl AnthropicAuth {
    const WORDS: [(&'static str, Self); 2] = [("x-api-key", Self::XApiKey), ("bearer", Self::Bearer)];
}

/// What a chat-completions endpoint calls the bound on a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaxTokensField {
    /// As the endpoint at hand wants it.
    #[default]
    Auto,
    MaxTokens,
    MaxCompletionTokens,
}

impl MaxTokensField {
    const WORDS: [(&'static str, Self); 3] = [
        ("auto", Self::Auto),
        ("max_tokens", Self::MaxTokens),
        ("max_completion_tokens", Self::MaxCompletionTokens),
    ];
}

/// Where compiled code is kept, as a key says it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum CacheDir {
    #[default]
    OfTheUser,
    None,
    At(PathBuf),
}

/// The `[anthropic]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnthropicSettings {
    pub version: String,
    pub auth: AnthropicAuth,
}

/// The `[openai]` table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenAiSettings {
    pub tools_as_schema: bool,
    pub max_tokens_field: MaxTokensField,
}

/// The `[limits]` table: the bounds of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimitSettings {
    pub max_iterations: u32,
    pub max_tokens: u32,
    /// At least `max_tokens`.
    pub max_tokens_ceiling: u32,
    pub max_parallel_tools: usize,
    pub parallel: bool,
    pub max_tool_calls: Option<u32>,
    pub max_total_tokens: Option<u64>,
    pub wall_time: Option<Duration>,
    pub repeated_calls: RepeatedCallSettings,
}

/// In how many turns in a row the same call may come; none is larger than the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepeatedCallSettings {
    pub warn: u32,
    pub refuse: u32,
    pub stop: u32,
}

/// What one plugin may reach and use up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PluginSettings {
    grants: Grants,
    limits: Limits,
    /// Folder grants with the paths as they stand in the file.
    written_folders: Vec<grants::WrittenFolder>,
    origin: Origin,
}

/// The configuration of a process, complete and checked.
#[derive(Debug, Clone)]
pub struct Settings {
    pub provider: ProviderName,
    /// `None`: the provider has no default, and nobody named one.
    pub model: Option<String>,
    /// Without a slash at its end; `None` is the provider's own address.
    pub base_url: Option<String>,
    /// The key of `provider`.
    pub api_key: Option<Secret>,
    pub system: Option<String>,
    /// May hold folders that do not exist.
    pub plugin_dirs: Vec<PathBuf>,
    pub tools: Vec<ToolPattern>,
    pub script: Option<PathBuf>,
    pub anthropic: AnthropicSettings,
    pub openai: OpenAiSettings,
    pub limits: RunLimitSettings,
    pub sandbox: SandboxSettings,
    /// Of a call of a plugin that has none of its own.
    pub call_limits: Limits,
    pub permissions: Permissions,
    /// The project file, or where it would be.
    pub project: ProjectFile,
    /// What of the project file does not count, since nobody trusts it. Empty when it is trusted.
    pub withheld: Vec<Withheld>,
    /// What a person should know although nothing is wrong; a sentence each.
    pub notes: Vec<String>,
    plugins: BTreeMap<PluginName, PluginSettings>,
    shown: Vec<Shown>,
}

impl Settings {
    /// Reads the files and merges the layers. Every fault that can be found is in the error.
    pub fn resolve(inputs: &Inputs) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let environment = inputs.environment.layer(&mut faults);
        let flags = flags_layer(&inputs.flags, &mut faults);

        let user_path = inputs.places.config_file();
        let (user, _) = read_layer(&user_path, &user_path, Origin::User, &mut faults);
        let (project_path, project_named) = project_path(inputs, &mut faults);
        let written = match &project_named {
            Some(written) => written.clone(),
            None => PathBuf::from(PROJECT_FILE),
        };
        let (project, content) = read_layer(&project_path, &written, Origin::Project, &mut faults);
        if let (Some(written), None) = (&project_named, &content) {
            let at_file = Origin::Project(FileLine {
                file: shown(&written.display().to_string()).into(),
                line: 0,
            });
            if !faults.iter().any(|fault| fault.origin == at_file) {
                faults.push(Fault {
                    origin: at_file,
                    message: "the file does not exist; correct the path, or make it with `init`".into(),
                });
            }
        }
        let project_dir = project_path.parent().unwrap_or(&inputs.working_dir).to_owned();
        let project_file = ProjectFile::new(
            (project_dir.canonicalize().unwrap_or_else(|_| project_dir.clone()))
                .join(project_path.file_name().unwrap_or_default()),
            content.as_deref().unwrap_or_default(),
        );
        let trusted = inputs.flags.trust || is_trusted(inputs, &project_file, &mut faults);

        let mut layers = Layers {
            tables: vec![user, project, environment, flags],
            trusted,
            cx: Context {
                faults,
                working_dir: inputs.working_dir.clone(),
                project_dir,
                user_dir: inputs.places.config_dir.clone(),
                home: inputs.places.home.clone(),
                closed_to_tools: closed_to_tools(&inputs.places),
            },
            withheld: Vec::new(),
            shown: Vec::new(),
        };
        let settings = read_all(&mut layers, inputs, project_file);
        let mut faults = layers.cx.faults;
        if faults.is_empty() {
            return Ok(settings);
        }
        faults.sort();
        faults.dedup();
        Err(ConfigError { faults })
    }

    /// What the operator opened to a plugin.
    pub fn grants_for(&self, plugin: &PluginName) -> Grants {
        self.plugins.get(plugin).map(|p| p.grants.clone()).unwrap_or_default()
    }

    /// The limits of a call: the operator's for the plugin or for all, with the tool's own timeout where it is
    /// shorter.
    pub fn limits_for(&self, plugin: &PluginName, tool_timeout: Option<Duration>) -> Limits {
        let limits = self.plugins.get(plugin).map_or(self.call_limits, |p| p.limits);
        Limits {
            timeout: limits.timeout.into_iter().chain(tool_timeout).min(),
            ..limits
        }
    }

    /// Whether a run sees this tool, `plugin.tool`.
    pub fn shows_tool(&self, rule_name: &str) -> bool {
        self.tools.iter().any(|pattern| pattern.matches(rule_name))
    }

    /// The folders opened to a plugin, as the operator wrote them: `notes as /notes (write)`.
    pub fn folders_as_written(&self, plugin: &PluginName) -> Vec<String> {
        let folders = self.plugins.get(plugin).map(|p| p.written_folders.as_slice()).unwrap_or_default();
        folders
            .iter()
            .map(|folder| {
                let access = match folder.grant.access {
                    Access::Read => "read",
                    Access::Write => "write",
                };
                format!("{} as {} ({access})", shown(&folder.written), folder.grant.guest_path)
            })
            .collect()
    }

    /// Grants for plugins that are not there, and permission rules that speak of no tool: most often misspelt.
    /// `rule_names` are `plugin.tool`.
    pub fn notes_about(&self, plugins: &[PluginName], rule_names: &[String]) -> Vec<String> {
        let grants = self.plugins.iter().filter(|(name, _)| !plugins.contains(name)).map(|(name, p)| {
            let hint = match nearest(name.as_str(), plugins.iter().map(PluginName::as_str)) {
                Some(near) => format!("; did you mean `{near}`?"),
                None => String::new(),
            };
            format!("`[grants.{name}]` opens something to a plugin that is not there ({}){hint}", p.origin)
        });
        let rules = self.permissions.rules_without_tool(rule_names).map(|(verdict, rule)| {
            format!("the {} rule `{}` speaks of no tool", verdict.as_str(), shown(rule.as_str()))
        });
        grants.chain(rules).collect()
    }

    /// Every value and where it comes from, a line each: `limits.max_tokens = 4096  # from default`. Keys are
    /// told to be set, not printed.
    pub fn origin_lines(&self) -> Vec<String> {
        let values = self.shown.iter().map(Shown::to_string);
        let withheld = self.withheld.iter().map(|withheld| {
            format!("# not trusted, does not count: {withheld}  # from {}", withheld.origin)
        });
        values.chain(withheld).collect()
    }
}

fn flags_layer(flags: &Flags, faults: &mut Vec<Fault>) -> Node {
    let mut layer = Node::empty_table(Origin::Default);
    for (key, flag, text) in &flags.values {
        let origin = Origin::Flag(flag);
        match keys::ALL.iter().find(|entry| entry.path == key) {
            Some(entry) => layer.set(key, env_vars::from_flag(entry.form, text, &origin)),
            None => {
                let hint = match nearest(key, keys::ALL.iter().map(|entry| entry.path)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "`config show` lists all".to_owned(),
                };
                faults.push(Fault {
                    origin,
                    message: format!("there is no key `{}`; {hint}", shown(key)),
                });
            }
        }
    }
    layer
}

/// The path of the project file, and how it was named if it was.
fn project_path(inputs: &Inputs, faults: &mut Vec<Fault>) -> (PathBuf, Option<PathBuf>) {
    let named = inputs.flags.config.clone().or_else(|| match inputs.environment.get(env_vars::CONFIG) {
        Ok(path) => path.map(PathBuf::from),
        Err(env_vars::NotText) => {
            faults.push(not_text(env_vars::CONFIG));
            None
        }
    });
    let path = match &named {
        Some(path) => inputs.working_dir.join(path),
        None => inputs.working_dir.join(PROJECT_FILE),
    };
    (path, named)
}

/// Reads a settings file as far as it is one; a file that is not there says nothing. Also its content.
fn read_layer(
    path: &Path,
    written: &Path,
    at: fn(FileLine) -> Origin,
    faults: &mut Vec<Fault>,
) -> (Node, Option<Vec<u8>>) {
    let file: Arc<str> = shown(&written.display().to_string()).into();
    let at_file = at(FileLine {
        file: file.clone(),
        line: 0,
    });
    let nothing = Node::empty_table(at_file.clone());
    let mut fault = |message: String| {
        faults.push(Fault {
            origin: at_file.clone(),
            message,
        });
    };
    let content = match read_bounded(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (nothing, None),
        Err(error) => {
            fault(format!("the file cannot be read: {error}"));
            return (nothing, None);
        }
    };
    if content.len() > MAX_FILE_BYTES {
        fault(format!("the file is larger than {MAX_FILE_BYTES} bytes"));
        return (nothing, None);
    }
    let Ok(text) = std::str::from_utf8(&content) else {
        fault("the file is not UTF-8 text".to_owned());
        return (nothing, Some(content));
    };
    match node::parse(text, at, &file) {
        Ok(table) => {
            check_known(&table, "", faults);
            (table, Some(content))
        }
        Err(syntax) => {
            faults.extend(syntax);
            (nothing, Some(content))
        }
    }
}

/// One byte more than [`MAX_FILE_BYTES`] at most.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Notes every key that no [`Entry`] has.
fn check_known(table: &Node, prefix: &str, faults: &mut Vec<Fault>) {
    for member in table.members() {
        let key = member.key.as_str();
        let path = join(prefix, key);
        let known = match prefix {
            "grants" => join(prefix, keys::ANY_PLUGIN),
            prefix => join(prefix, key),
        };
        let mut fault = |message: String| {
            faults.push(Fault {
                origin: member.origin.clone(),
                message,
            });
        };
        if keys::ALL.iter().any(|entry| entry.path == known) {
            continue;
        }
        let is_table = children(&known).next().is_some();
        match &member.node.value {
            Value::Table(_) if is_table && prefix == "grants" => match PluginName::parse(key) {
                Ok(_) => check_grant(&member.node, &path, faults),
                Err(error) => fault(format!("`[grants.{}]`: {error}", shown(key))),
            },
            Value::Table(_) if is_table => check_known(&member.node, &path, faults),
            _ if is_table => fault(format!(
                "`{}` wants a table, got {}",
                shown(&path),
                member.node.in_words()
            )),
            _ => fault(unknown_key(prefix, key)),
        }
    }
}

/// A table of one plugin.
fn check_grant(table: &Node, path: &str, faults: &mut Vec<Fault>) {
    let prefix = join("grants", keys::ANY_PLUGIN);
    for member in table.members() {
        if children(&prefix).all(|child| child != member.key) {
            let message = unknown_key(&prefix, &member.key).replace(&prefix, &shown(path));
            faults.push(Fault {
                origin: member.origin.clone(),
                message,
            });
        }
    }
}

fn unknown_key(prefix: &str, key: &str) -> String {
    let path = shown(&join(prefix, key));
    if ["key", "token", "secret", "password"].iter().any(|word| key.to_lowercase().ends_with(word)) {
        return format!(
            "there is no key `{path}`; keys do not stand in files: set `ANTHROPIC_API_KEY` or `OPENAI_API_KEY`, or the same with `_FILE`"
        );
    }
    let here: BTreeSet<&str> = children(prefix).collect();
    if let Some(near) = nearest(key, here.iter().copied()) {
        return format!("there is no key `{path}`; did you mean `{}`?", join(prefix, near));
    }
    let elsewhere = |entry: &&Entry| entry.path.rsplit('.').next() == Some(key);
    if let Some(entry) = keys::ALL.iter().find(elsewhere) {
        return format!("there is no key `{path}`; did you mean `{}`?", entry.path);
    }
    let here = here.into_iter().collect::<Vec<_>>().join(", ");
    match prefix {
        "" => format!("there is no key `{path}`; known are {here}"),
        prefix => format!("there is no key `{path}`; known in `[{prefix}]` are {here}"),
    }
}

/// The names directly below a path.
fn children(path: &str) -> impl Iterator<Item = &'static str> {
    let prefix = match path {
        "" => String::new(),
        path => format!("{path}."),
    };
    keys::ALL
        .iter()
        .filter_map(move |entry| entry.path.strip_prefix(prefix.as_str())?.split('.').next())
}

fn join(prefix: &str, key: &str) -> String {
    match prefix {
        "" => key.to_owned(),
        prefix => format!("{prefix}.{key}"),
    }
}

fn is_trusted(inputs: &Inputs, project: &ProjectFile, faults: &mut Vec<Fault>) -> bool {
    match TrustStore::new(&inputs.places.state_dir).is_trusted(project) {
        Ok(trusted) => trusted,
        Err(error) => {
            faults.push(Fault {
                origin: Origin::Default,
                message: error.to_string(),
            });
            false
        }
    }
}

/// As far as they exist, canonical; a folder that does not exist yet by its nearest ancestor that does.
fn closed_to_tools(places: &Places) -> Vec<PathBuf> {
    let canonical = |path: &Path| {
        path.ancestors().find_map(|ancestor| {
            let rest = path.strip_prefix(ancestor).ok()?;
            Some(ancestor.canonicalize().ok()?.join(rest))
        })
    };
    [&places.config_dir, &places.data_dir, &places.state_dir, &places.cache_dir]
        .into_iter()
        .filter_map(|path| canonical(path))
        .collect()
}

fn read_all(layers: &mut Layers, inputs: &Inputs, project: ProjectFile) -> Settings {
    let provider = layers.value(&keys::PROVIDER);
    let model = layers.value(&keys::MODEL).or_else(|| default_model(provider, layers));
    let base_url = base_url(provider, layers, inputs);
    let api_key = api_key(provider, layers, inputs);
    let system = layers.value(&keys::SYSTEM);
    let plugin_dirs = match layers.value(&keys::PLUGIN_DIRS) {
        Some(dirs) => dirs,
        None => default_plugin_dirs(layers, inputs),
    };
    let tools = layers.value(&keys::TOOLS);
    let script = layers.value(&keys::SCRIPT);
    let anthropic = AnthropicSettings {
        version: layers.value(&keys::ANTHROPIC_VERSION),
        auth: layers.value(&keys::ANTHROPIC_AUTH),
    };
    let openai = OpenAiSettings {
        tools_as_schema: layers.value(&keys::OPENAI_TOOLS_AS_SCHEMA),
        max_tokens_field: layers.value(&keys::OPENAI_MAX_TOKENS_FIELD),
    };
    let limits = run_limits(layers);
    let call_limits = Limits {
        timeout: layers.value(&keys::SANDBOX_TIMEOUT),
        memory_bytes: layers.value(&keys::SANDBOX_MEMORY),
        output_bytes: layers.value(&keys::SANDBOX_OUTPUT),
        fuel: layers.value(&keys::SANDBOX_FUEL),
    };
    let sandbox = SandboxSettings {
        pool: layers.value(&keys::SANDBOX_POOL),
        max_live_calls: layers.value(&keys::SANDBOX_MAX_LIVE_CALLS),
        extra_ca_files: layers.value(&keys::SANDBOX_EXTRA_CA_FILES),
        cache_dir: cache_dir(layers, inputs),
    };
    let mut permissions = Permissions::default();
    permissions.mode = layers.value(&keys::PERMISSIONS_MODE);
    permissions.deny = layers.joined(&keys::PERMISSIONS_DENY);
    permissions.ask = layers.joined(&keys::PERMISSIONS_ASK);
    permissions.allow = layers.joined(&keys::PERMISSIONS_ALLOW);
    let mut notes = Vec::new();
    let plugins = plugins(layers, inputs, call_limits, &mut notes);
    note_replaceable(&plugins, &plugin_dirs, &project, &mut notes);
    Settings {
        provider,
        model,
        base_url,
        api_key,
        system,
        plugin_dirs,
        tools,
        script,
        anthropic,
        openai,
        limits,
        sandbox,
        call_limits,
        permissions,
        project,
        withheld: std::mem::take(&mut layers.withheld),
        notes,
        plugins,
        shown: std::mem::take(&mut layers.shown),
    }
}

fn literal(text: &str) -> String {
    Node::text(text, Origin::Default).literal()
}

fn default_model(provider: ProviderName, layers: &mut Layers) -> Option<String> {
    let model = match provider {
        ProviderName::Anthropic => DEFAULT_ANTHROPIC_MODEL,
        ProviderName::Scripted => "scripted",
        ProviderName::OpenAi => return None,
    };
    layers.show(keys::MODEL.entry.path, literal(model), Origin::Default);
    Some(model.to_owned())
}

/// The provider's own variable stands between `AGENTLOOP_BASE_URL` and the files.
fn base_url(provider: ProviderName, layers: &mut Layers, inputs: &Inputs) -> Option<String> {
    let name = match provider {
        ProviderName::Anthropic => "ANTHROPIC_BASE_URL",
        ProviderName::OpenAi => "OPENAI_BASE_URL",
        ProviderName::Scripted => return layers.value(&keys::BASE_URL),
    };
    let path = keys::BASE_URL.entry.path;
    let environment = layers.tables.iter_mut().rev().nth(1);
    if let Some(table) = environment
        && table.get(path).is_none()
    {
        match inputs.environment.get(name) {
            Ok(Some(url)) => table.set(path, Node::text(url, Origin::Environment(name.to_owned()))),
            Ok(None) => {}
            Err(env_vars::NotText) => layers.cx.faults.push(not_text(name)),
        }
    }
    layers.value(&keys::BASE_URL)
}

fn not_text(name: &str) -> Fault {
    Fault {
        origin: Origin::Environment(name.to_owned()),
        message: "its value is not Unicode text".to_owned(),
    }
}

fn api_key(provider: ProviderName, layers: &mut Layers, inputs: &Inputs) -> Option<Secret> {
    let (name, file_name, shown_as) = match provider {
        ProviderName::Anthropic => ("ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY_FILE", "anthropic"),
        ProviderName::OpenAi => ("OPENAI_API_KEY", "OPENAI_API_KEY_FILE", "openai"),
        ProviderName::Scripted => return None,
    };
    let mut get = |name: &str| match inputs.environment.get(name) {
        Ok(value) => value,
        Err(env_vars::NotText) => {
            layers.cx.faults.push(not_text(name));
            None
        }
    };
    let (key, from) = match (get(name), get(file_name)) {
        (None, None) => return None,
        (Some(_), Some(_)) => {
            layers.cx.faults.push(Fault {
                origin: Origin::Environment(file_name.to_owned()),
                message: format!("`{name}` is set as well; unset one of them"),
            });
            return None;
        }
        (Some(key), None) => (key.to_owned(), name),
        (None, Some(path)) => match read_key(&inputs.working_dir.join(path)) {
            Ok(key) => (key, file_name),
            Err(why) => {
                layers.cx.faults.push(Fault {
                    origin: Origin::Environment(file_name.to_owned()),
                    message: format!("the file `{}` {why}", shown(path)),
                });
                return None;
            }
        },
    };
    let origin = Origin::Environment(from.to_owned());
    layers.show(&format!("{shown_as}.api_key"), "\"(set)\"".to_owned(), origin);
    Some(Secret::new(&key))
}

fn read_key(path: &Path) -> Result<String, String> {
    let content = read_bounded(path).map_err(|error| format!("cannot be read: {error}"))?;
    match std::str::from_utf8(&content).map(str::trim) {
        Ok("") => Err("is empty".to_owned()),
        Ok(key) if !key.contains(char::is_whitespace) => Ok(key.to_owned()),
        Ok(_) | Err(_) => Err("holds something else than one key".to_owned()),
    }
}

fn default_plugin_dirs(layers: &mut Layers, inputs: &Inputs) -> Vec<PathBuf> {
    let of_user = inputs.places.plugins_dir();
    let of_project = layers.cx.project_dir.join(PLUGINS_DIR);
    let mut dirs = vec![of_user];
    let path = keys::PLUGIN_DIRS.entry.path;
    if of_project.is_dir() {
        if layers.trusted {
            dirs.insert(0, of_project);
        } else {
            // a cloned component could carry the name of one that the user has granted something
            layers.withheld.push(Withheld {
                key: path.to_owned(),
                value: format!("[{}]", literal(PLUGINS_DIR)),
                origin: Origin::Default,
            });
        }
    }
    let literals: Vec<_> = dirs.iter().map(|dir| literal(&dir.to_string_lossy())).collect();
    layers.show(path, format!("[{}]", literals.join(", ")), Origin::Default);
    dirs
}

fn cache_dir(layers: &mut Layers, inputs: &Inputs) -> Option<PathBuf> {
    match layers.value(&keys::SANDBOX_CACHE_DIR) {
        CacheDir::None => None,
        CacheDir::At(path) => Some(path),
        CacheDir::OfTheUser => {
            let path = inputs.places.compiled_code_dir();
            let literal = literal(&path.to_string_lossy());
            layers.show(keys::SANDBOX_CACHE_DIR.entry.path, literal, Origin::Default);
            Some(path)
        }
    }
}

fn run_limits(layers: &mut Layers) -> RunLimitSettings {
    let limits = RunLimitSettings {
        max_iterations: layers.value(&keys::MAX_ITERATIONS),
        max_tokens: layers.value(&keys::MAX_TOKENS),
        max_tokens_ceiling: layers.value(&keys::MAX_TOKENS_CEILING),
        max_parallel_tools: layers.value(&keys::MAX_PARALLEL_TOOLS),
        parallel: layers.value(&keys::PARALLEL),
        max_tool_calls: layers.value(&keys::MAX_TOOL_CALLS),
        max_total_tokens: layers.value(&keys::MAX_TOTAL_TOKENS),
        wall_time: layers.value(&keys::WALL_TIME),
        repeated_calls: RepeatedCallSettings {
            warn: layers.value(&keys::REPEATED_WARN),
            refuse: layers.value(&keys::REPEATED_REFUSE),
            stop: layers.value(&keys::REPEATED_STOP),
        },
    };
    let repeated = limits.repeated_calls;
    for (less, more, is_fine) in [
        (
            &keys::MAX_TOKENS.entry,
            &keys::MAX_TOKENS_CEILING.entry,
            limits.max_tokens <= limits.max_tokens_ceiling,
        ),
        (&keys::REPEATED_WARN.entry, &keys::REPEATED_REFUSE.entry, repeated.warn <= repeated.refuse),
        (&keys::REPEATED_REFUSE.entry, &keys::REPEATED_STOP.entry, repeated.refuse <= repeated.stop),
    ] {
        if !is_fine {
            check_order(layers, less, more);
        }
    }
    limits
}

/// Two values contradict each other: told at the one that somebody set.
fn check_order(layers: &mut Layers, less: &Entry, more: &Entry) {
    let find = |entry: &Entry| layers.shown.iter().find(|shown| shown.key == entry.path);
    let (Some(less), Some(more)) = (find(less), find(more)) else {
        return;
    };
    let origin = less.origins.iter().chain(&more.origins).max().cloned().unwrap_or(Origin::Default);
    let message =
        format!("`{}` is {}, above `{}`, which is {}", less.key, less.value, more.key, more.value);
    layers.cx.faults.push(Fault { origin, message });
}

fn plugins(
    layers: &mut Layers,
    inputs: &Inputs,
    call_limits: Limits,
    notes: &mut Vec<String>,
) -> BTreeMap<PluginName, PluginSettings> {
    let mut names: BTreeMap<PluginName, Origin> = BTreeMap::new();
    for table in &layers.tables {
        for member in table.get("grants").map(Node::members).unwrap_or_default() {
            if let Ok(name) = PluginName::parse(&member.key) {
                names.insert(name, member.origin.clone());
            }
        }
    }
    let mut plugins = BTreeMap::new();
    for (name, origin) in names {
        let path = |entry: &Entry| entry.path.replace(keys::ANY_PLUGIN, name.as_str());
        let written_folders =
            layers.value_at(&keys::GRANT_FOLDERS, &path(&keys::GRANT_FOLDERS.entry), Vec::new());
        let http = layers.value_at(&keys::GRANT_HTTP, &path(&keys::GRANT_HTTP.entry), Vec::new());
        let names = layers.value_at(&keys::GRANT_ENV, &path(&keys::GRANT_ENV.entry), Vec::new());
        let mut environment = Vec::new();
        for variable in names {
            match inputs.environment.get(&variable) {
                Ok(Some(value)) => environment.push(EnvironmentGrant {
                    value: value.to_owned(),
                    name: variable,
                }),
                Ok(None) => notes.push(format!(
                    "`grants.{name}.env` names `{}`, which is not set",
                    shown(&variable)
                )),
                Err(env_vars::NotText) => layers.cx.faults.push(not_text(&shown(&variable))),
            }
        }
        let limits = Limits {
            timeout: layers.value_at(
                &keys::GRANT_TIMEOUT,
                &path(&keys::GRANT_TIMEOUT.entry),
                call_limits.timeout,
            ),
            memory_bytes: layers.value_at(
                &keys::GRANT_MEMORY,
                &path(&keys::GRANT_MEMORY.entry),
                call_limits.memory_bytes,
            ),
            output_bytes: layers.value_at(
                &keys::GRANT_OUTPUT,
                &path(&keys::GRANT_OUTPUT.entry),
                call_limits.output_bytes,
            ),
            fuel: layers.value_at(&keys::GRANT_FUEL, &path(&keys::GRANT_FUEL.entry), call_limits.fuel),
        };
        let grants = Grants {
            folders: written_folders.iter().map(|folder| folder.grant.clone()).collect(),
            http,
            environment,
        };
        plugins.insert(
            name,
            PluginSettings {
                grants,
                limits,
                written_folders,
                origin,
            },
        );
    }
    plugins
}

/// A tool that may write where plugins or settings stand can replace them: trust in the settings then ends,
/// but a replaced plugin has the grants of its name.
fn note_replaceable(
    plugins: &BTreeMap<PluginName, PluginSettings>,
    plugin_dirs: &[PathBuf],
    project: &ProjectFile,
    notes: &mut Vec<String>,
) {
    let plugin_dirs: Vec<_> = plugin_dirs.iter().filter_map(|dir| dir.canonicalize().ok()).collect();
    for (name, plugin) in plugins {
        for folder in plugin.written_folders.iter().filter(|f| f.grant.access == Access::Write) {
            let path = &folder.grant.host_path;
            let written = shown(&folder.written);
            if plugin_dirs.iter().any(|dir| dir.starts_with(path) || path.starts_with(dir)) {
                notes.push(format!(
                    "`grants.{name}.folders` opens `{written}` for writing, and plugins are loaded from there: its tools can replace them"
                ));
            }
            if project.path.starts_with(path) {
                notes.push(format!(
                    "`grants.{name}.folders` opens `{written}` for writing, and the settings file stands there: when a tool changes it, it has to be trusted again"
                ));
            }
        }
    }
}

/// A piece of somebody's text, fit for a message: bounded, and with control and direction characters
/// escaped.
fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    let mut shown: String = text.chars().take(MAX_CHARS).flat_map(shown_char).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

fn shown_char(c: char) -> impl Iterator<Item = char> {
    let plain = matches!(c, '\\' | '\'' | '"').then_some(c);
    let escaped = plain.is_none().then(|| c.escape_debug());
    plain.into_iter().chain(escaped.into_iter().flatten())
}

/// Replaces a file in one step: a reader sees the old content or the new one, also after a crash.
fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    if let Ok(metadata) = std::fs::metadata(path) {
        file.as_file().set_permissions(metadata.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
