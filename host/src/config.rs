//! Settings, resolved once: flag, then environment, then project file, then user file, then default.
//!
//! Everything that is read comes in as a value ([`Inputs`]), and each resolved value knows where it comes
//! from. Faults are told all at once, each with file, line and key. What a project file grants or loosens
//! counts only when the file is trusted ([`trust`]).

pub mod env_vars;
mod file;
mod grants;
mod key;
mod keys;
mod layers;
pub mod lock;
mod node;
mod origin;
pub mod permissions;
mod places;
mod resolve;
mod secrets;
mod template;
pub mod trust;
mod units;

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    path::{Path, PathBuf},
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
    origin::nearest,
    permissions::{Permissions, ToolPattern},
    trust::ProjectFile,
};
use crate::{
    capability::{Access, Grants, Limits, OperatorLimits},
    ids::PluginName,
    peers::PeerSettings,
    provider::Secret,
    sandbox::{SandboxSettings, compiler::Compiler},
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
    /// Where components are compiled unless `sandbox.compile_apart` says otherwise; an embedder has no program
    /// for it, unless it makes one (see [`crate::sandbox::compiler`]).
    pub compiler: Compiler,
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
    const WORDS: [(&'static str, Self); 3] = [
        ("anthropic", Self::Anthropic),
        ("openai", Self::OpenAi),
        ("scripted", Self::Scripted),
    ];
}

/// How an Anthropic endpoint is given the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnthropicAuth {
    #[default]
    XApiKey,
    Bearer,
}

impl AnthropicAuth {
    const WORDS: [(&'static str, Self); 2] =
        [("x-api-key", Self::XApiKey), ("bearer", Self::Bearer)];
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
    pub eager: bool,
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
    limits: OperatorLimits,
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
    pub call_limits: OperatorLimits,
    pub permissions: Permissions,
    /// MCP servers whose tools are used.
    pub peers: Vec<PeerSettings>,
    /// The project file, or where it would be.
    pub project: ProjectFile,
    /// Which components the grants are for.
    pub lock: lock::LockPlace,
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
        resolve::resolve(inputs)
    }

    /// Names these settings among the runs that are kept: the path of the project file.
    pub fn scope(&self) -> String {
        self.project.path.display().to_string()
    }

    /// What the operator opened to a plugin.
    pub fn grants_for(&self, plugin: &PluginName) -> Grants {
        self.plugins
            .get(plugin)
            .map(|p| p.grants.clone())
            .unwrap_or_default()
    }

    /// The operator's limits for calls of a plugin, its own or those of all.
    pub fn operator_limits(&self, plugin: &PluginName) -> OperatorLimits {
        (self.plugins.get(plugin)).map_or(self.call_limits, |p| p.limits)
    }

    /// The limits of a call of a tool with this own wish for its timeout.
    pub fn limits_for(&self, plugin: &PluginName, tool_timeout: Option<Duration>) -> Limits {
        self.operator_limits(plugin).for_tool(tool_timeout)
    }

    /// Whether a run sees this tool, `plugin.tool`.
    pub fn shows_tool(&self, rule_name: &str) -> bool {
        self.tools.iter().any(|pattern| pattern.matches(rule_name))
    }

    /// The folders opened to a plugin, as the operator wrote them: `notes as /notes (write)`.
    pub fn folders_as_written(&self, plugin: &PluginName) -> Vec<String> {
        let folders = self
            .plugins
            .get(plugin)
            .map(|p| p.written_folders.as_slice())
            .unwrap_or_default();
        folders
            .iter()
            .map(|folder| {
                let access = match folder.grant.access {
                    Access::Read => "read",
                    Access::Write => "write",
                };
                format!(
                    "{} as {} ({access})",
                    shown(&folder.written),
                    folder.grant.guest_path
                )
            })
            .collect()
    }

    /// Grants for plugins that are not there, and permission rules that speak of no tool: most often misspelt.
    /// `rule_names` are `plugin.tool`.
    pub fn notes_about(&self, plugins: &[PluginName], rule_names: &[String]) -> Vec<String> {
        let grants = self
            .plugins
            .iter()
            .filter(|(name, _)| !plugins.contains(name))
            .map(|(name, p)| {
                let hint = match nearest(name.as_str(), plugins.iter().map(PluginName::as_str)) {
                    Some(near) => format!("; did you mean `{near}`?"),
                    None => String::new(),
                };
                format!(
                    "`[grants.{name}]` opens something to a plugin that is not there ({}){hint}",
                    p.origin
                )
            });
        let rules = self
            .permissions
            .rules_without_tool(rule_names)
            .map(|(verdict, rule)| {
                format!(
                    "the {} rule `{}` speaks of no tool",
                    verdict.as_str(),
                    shown(rule.as_str())
                )
            });
        grants.chain(rules).collect()
    }

    /// Every value as it counts, without those of keys.
    pub fn values(&self) -> &[Shown] {
        &self.shown
    }

    /// Where the value of a key comes from, if one of the layers or a default gives it.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        let shown = self.shown.iter().find(|shown| shown.key == key)?;
        shown.origins.last()
    }

    /// Every value and where it comes from, a line each: `limits.max_tokens = 4096  # from default`. Keys are
    /// told to be set, not printed.
    pub fn origin_lines(&self) -> Vec<String> {
        let values = self.shown.iter().map(Shown::to_string);
        let withheld = self.withheld.iter().map(|withheld| {
            format!(
                "# not trusted, does not count: {withheld}  # from {}",
                withheld.origin
            )
        });
        values.chain(withheld).collect()
    }
}

/// A piece of somebody's text, fit for a message.
fn shown(text: &str) -> String {
    const MAX_BYTES: usize = 200;
    crate::harmless::shown(text, MAX_BYTES, false)
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
