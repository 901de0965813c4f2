//! From the layers to [`Settings`]: each key is read once, in the order in which people read them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    AnthropicSettings, CacheDir, ConfigError, DEFAULT_ANTHROPIC_MODEL, Fault, FileLine, Flags,
    Inputs, OpenAiSettings, Origin, PLUGINS_DIR, PROJECT_FILE, Places, PluginSettings,
    ProviderName, RepeatedCallSettings, RunLimitSettings, Settings, Withheld, env_vars,
    file::{read_bounded, read_layer},
    key::Entry,
    keys,
    layers::{Context, Layers},
    lock::{LOCK_FILE, LockPlace},
    node::Node,
    origin::nearest,
    permissions::Permissions,
    secrets, shown,
    trust::{ProjectFile, TrustStore},
};
use crate::{
    capability::{Access, EnvironmentGrant, Grants, OperatorLimits, SecretGrant, TimeoutSetting},
    ids::PluginName,
    peers::{PeerAt, PeerSettings},
    provider::Secret,
    sandbox::{SandboxSettings, compiler::Compiler},
};

pub(super) fn resolve(inputs: &Inputs) -> Result<Settings, ConfigError> {
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
    let project_dir = project_path
        .parent()
        .unwrap_or(&inputs.working_dir)
        .to_owned();
    let project_file = ProjectFile::new(
        (project_dir
            .canonicalize()
            .unwrap_or_else(|_| project_dir.clone()))
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
    let named =
        inputs
            .flags
            .config
            .clone()
            .or_else(|| match inputs.environment.get(env_vars::CONFIG) {
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
            let joined = ancestor.canonicalize().ok()?.join(rest);
            // without the slash that joining nothing leaves
            Some(joined.components().collect::<PathBuf>())
        })
    };
    [
        &places.config_dir,
        &places.data_dir,
        &places.state_dir,
        &places.cache_dir,
    ]
    .into_iter()
    .filter_map(|path| canonical(path))
    .collect()
}

/// Beside the settings that count: a project's once it is trusted, the user's otherwise.
fn lock_place(trusted: bool, inputs: &Inputs, project: &ProjectFile) -> LockPlace {
    let is_projects = trusted && project.path.is_file();
    let folder = match project.path.parent() {
        Some(folder) if is_projects => folder,
        Some(_) | None => &inputs.places.config_dir,
    };
    LockPlace {
        path: folder.join(LOCK_FILE),
        state_dir: inputs.places.state_dir.clone(),
        is_written: !(is_projects && inputs.flags.trust),
    }
}

fn read_all(layers: &mut Layers, inputs: &Inputs, project: ProjectFile) -> Settings {
    let provider = layers.value(&keys::PROVIDER);
    let model = layers
        .value(&keys::MODEL)
        .or_else(|| default_model(provider, layers));
    let base_url = base_url(provider, layers, inputs);
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
    let api_key = api_key(provider, layers, inputs);
    let limits = run_limits(layers);
    let (timeout, is_said) = layers.value_if_said(&keys::SANDBOX_TIMEOUT);
    let call_limits = OperatorLimits {
        timeout: timeout_setting(timeout, is_said),
        memory_bytes: layers.value(&keys::SANDBOX_MEMORY),
        output_bytes: layers.value(&keys::SANDBOX_OUTPUT),
        fuel: layers.value(&keys::SANDBOX_FUEL),
    };
    let sandbox = SandboxSettings {
        pool: layers.value(&keys::SANDBOX_POOL),
        max_live_calls: layers.value(&keys::SANDBOX_MAX_LIVE_CALLS),
        extra_ca_files: layers.value(&keys::SANDBOX_EXTRA_CA_FILES),
        cache_dir: cache_dir(layers, inputs),
        compiler: match layers.value(&keys::SANDBOX_COMPILE_APART) {
            true => inputs.compiler.clone(),
            false => Compiler::InProcess,
        },
    };
    let mut permissions = Permissions::default();
    permissions.mode = layers.value(&keys::PERMISSIONS_MODE);
    permissions.deny = layers.joined(&keys::PERMISSIONS_DENY);
    permissions.ask = layers.joined(&keys::PERMISSIONS_ASK);
    permissions.allow = layers.joined(&keys::PERMISSIONS_ALLOW);
    let mut notes = Vec::new();
    let secrets = secrets::all(layers, inputs);
    let plugins = plugins(layers, inputs, call_limits, &secrets, &mut notes);
    let peers = peers(layers, inputs, &mut notes);
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
        peers,
        lock: lock_place(layers.trusted, inputs, &project),
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

pub(super) fn not_text(name: &str) -> Fault {
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
    layers.show(
        &format!("{shown_as}.api_key"),
        "\"(set)\"".to_owned(),
        origin,
    );
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
    let literals: Vec<_> = dirs
        .iter()
        .map(|dir| literal(&dir.to_string_lossy()))
        .collect();
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
        eager: layers.value(&keys::EAGER),
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
        (
            &keys::REPEATED_WARN.entry,
            &keys::REPEATED_REFUSE.entry,
            repeated.warn <= repeated.refuse,
        ),
        (
            &keys::REPEATED_REFUSE.entry,
            &keys::REPEATED_STOP.entry,
            repeated.refuse <= repeated.stop,
        ),
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
    let origin = less
        .origins
        .iter()
        .chain(&more.origins)
        .max()
        .cloned()
        .unwrap_or(Origin::Default);
    let message = format!(
        "`{}` is {}, above `{}`, which is {}",
        less.key, less.value, more.key, more.value
    );
    layers.cx.faults.push(Fault { origin, message });
}

fn plugins(
    layers: &mut Layers,
    inputs: &Inputs,
    call_limits: OperatorLimits,
    secrets: &[Arc<SecretGrant>],
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
        let written_folders = layers.value_at(
            &keys::GRANT_FOLDERS,
            &path(&keys::GRANT_FOLDERS.entry),
            Vec::new(),
        );
        let http = layers.value_at(
            &keys::GRANT_HTTP,
            &path(&keys::GRANT_HTTP.entry),
            Vec::new(),
        );
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
        let granted = layers.value_at(
            &keys::GRANT_SECRETS,
            &path(&keys::GRANT_SECRETS.entry),
            Vec::new(),
        );
        let mut of_plugin = Vec::new();
        for secret in granted {
            match secrets.iter().find(|known| known.name == secret) {
                Some(known) => of_plugin.push(known.clone()),
                None => notes.push(format!(
                    "`grants.{name}.secrets` names `{secret}`, and there is no `[secrets.{secret}]` that counts"
                )),
            }
        }
        if let Some((one, other)) = secrets::clash(&of_plugin) {
            layers.cx.faults.push(Fault {
                origin: origin.clone(),
                message: format!(
                    "`grants.{name}.secrets` names `{one}` and `{other}`, which want the same place at the same host; \
                     keep one of them"
                ),
            });
        }
        let timeout_path = path(&keys::GRANT_TIMEOUT.entry);
        let for_all = call_limits.timeout.resolve(None);
        let (timeout, is_said) =
            layers.value_at_if_said(&keys::GRANT_TIMEOUT, &timeout_path, for_all);
        let limits = OperatorLimits {
            timeout: if is_said {
                timeout_setting(timeout, true)
            } else {
                call_limits.timeout
            },
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
            fuel: layers.value_at(
                &keys::GRANT_FUEL,
                &path(&keys::GRANT_FUEL.entry),
                call_limits.fuel,
            ),
        };
        let grants = Grants {
            folders: written_folders
                .iter()
                .map(|folder| folder.grant.clone())
                .collect(),
            http,
            environment,
            secrets: of_plugin,
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

/// The tables `[mcp.NAME]`. One without a command and a URL that counts is left out: it may stand in a file that
/// nobody trusts.
fn peers(layers: &mut Layers, inputs: &Inputs, notes: &mut Vec<String>) -> Vec<PeerSettings> {
    /// Of a call, unless the operator says otherwise.
    const TIMEOUT: Duration = Duration::from_secs(30);
    let mut names: BTreeMap<PluginName, Origin> = BTreeMap::new();
    for table in &layers.tables {
        for member in table.get("mcp").map(Node::members).unwrap_or_default() {
            if let Ok(name) = PluginName::parse(&member.key) {
                names.insert(name, member.origin.clone());
            }
        }
    }
    let mut peers = Vec::new();
    for (name, origin) in names {
        let path = |entry: &Entry| entry.path.replace(keys::ANY_PLUGIN, name.as_str());
        let (argv, has_command) = layers.value_at_if_said(
            &keys::MCP_COMMAND,
            &path(&keys::MCP_COMMAND.entry),
            Vec::new(),
        );
        let url = layers.value_at(&keys::MCP_URL, &path(&keys::MCP_URL.entry), None);
        let tools = layers.value_at(&keys::MCP_TOOLS, &path(&keys::MCP_TOOLS.entry), Vec::new());
        let variables = layers.value_at(&keys::MCP_ENV, &path(&keys::MCP_ENV.entry), Vec::new());
        let timeout_path = path(&keys::MCP_TIMEOUT.entry);
        let timeout = layers.value_at(&keys::MCP_TIMEOUT, &timeout_path, Some(TIMEOUT));
        let mut environment = Vec::new();
        for variable in variables {
            match inputs.environment.get(&variable) {
                Ok(Some(value)) => environment.push(EnvironmentGrant {
                    value: value.to_owned(),
                    name: variable,
                }),
                Ok(None) => notes.push(format!(
                    "`mcp.{name}.env` names `{}`, which is not set",
                    shown(&variable)
                )),
                Err(env_vars::NotText) => layers.cx.faults.push(not_text(&shown(&variable))),
            }
        }
        let at = match (has_command, url) {
            (true, None) if !argv.is_empty() => PeerAt::Command { argv, environment },
            (false, Some(url)) => PeerAt::Url(url),
            (false, None) => {
                let withheld = format!("mcp.{name}.");
                if !layers.withheld.iter().any(|w| w.key.starts_with(&withheld)) {
                    layers.cx.faults.push(Fault {
                        origin,
                        message: format!("`[mcp.{name}]` has neither `command` nor `url`"),
                    });
                }
                continue;
            }
            (true, _) => {
                layers.cx.faults.push(Fault {
                    origin,
                    message: format!(
                        "`[mcp.{name}]` wants either `command`, with a program, or `url`"
                    ),
                });
                continue;
            }
        };
        peers.push(PeerSettings {
            name,
            at,
            tools,
            timeout,
        });
    }
    peers
}

fn timeout_setting(timeout: Option<Duration>, is_said: bool) -> TimeoutSetting {
    match timeout {
        _ if !is_said => TimeoutSetting::Unset,
        Some(timeout) => TimeoutSetting::After(timeout),
        None => TimeoutSetting::Never,
    }
}

/// A tool that may write where plugins or settings stand can replace them: trust in the settings then ends,
/// but a replaced plugin has the grants of its name.
fn note_replaceable(
    plugins: &BTreeMap<PluginName, PluginSettings>,
    plugin_dirs: &[PathBuf],
    project: &ProjectFile,
    notes: &mut Vec<String>,
) {
    let plugin_dirs: Vec<_> = plugin_dirs
        .iter()
        .filter_map(|dir| dir.canonicalize().ok())
        .collect();
    for (name, plugin) in plugins {
        for folder in plugin
            .written_folders
            .iter()
            .filter(|f| f.grant.access == Access::Write)
        {
            let path = &folder.grant.host_path;
            let written = shown(&folder.written);
            if plugin_dirs
                .iter()
                .any(|dir| dir.starts_with(path) || path.starts_with(dir))
            {
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
