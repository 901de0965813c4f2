//! Wiring: from settings to the parts of a running program. The only place that names them together.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use url::Url;

use crate::{
    agent::{
        Deps, ToolLoop,
        run::{RepeatLimits, RunLimits},
    },
    capability::Grants,
    config::{
        self, MaxTokensField, ProviderName, Settings,
        lock::{Held, LockPlace, Standing},
    },
    http::{ClientError, ClientSettings, model_client},
    ids::PluginName,
    peers::{self, Peer, PeerAt},
    provider::{
        Anthropic, AnthropicSettings, KeyHeader, OpenAi, OpenAiSettings, Provider, ScriptError,
        Scripted,
    },
    registry::{
        Plugin, Registry, RegistryError, SetAside,
        folder::{
            Folders, Loaded,
            watch::{Watching, watch},
        },
        live::LiveRegistry,
    },
    sandbox::{Sandbox, SandboxError},
};

const ANTHROPIC: &str = "https://api.anthropic.com";
const OPENAI: &str = "https://api.openai.com/v1";

/// The parts, ready for runs and calls.
pub struct App {
    pub settings: Settings,
    pub registry: LiveRegistry,
    /// What a person should know of settings and plugins although nothing keeps the program from working; a
    /// sentence each.
    pub notes: Vec<String>,
    sandbox: Sandbox,
    /// What MCP servers offer.
    offers: Arc<[peers::Offer]>,
    /// What the registry was made from, until it is watched.
    unwatched: Mutex<Option<(Folders, Loaded)>>,
}

/// Why the program can't start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("can't connect to a model: {0}")]
    Client(#[from] ClientError),
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error(
        "no model is named; use `--model`, `AGENTLOOP_MODEL`, or `model = \"…\"` in agentloop.toml"
    )]
    NoModel,
    #[error(
        "the provider `scripted` needs a script; use `--script FILE`, or `script = \"…\"` in agentloop.toml"
    )]
    NoScript,
    #[error(
        "there is no key for {endpoint}; put it into `{variable}`, or the path of a file that holds it into `{variable}_FILE`"
    )]
    NoKey {
        endpoint: &'static str,
        variable: &'static str,
    },
    #[error(
        "`{url}` is not the address of a model endpoint: {source}; write something like `http://127.0.0.1:8080/v1`"
    )]
    BaseUrl {
        url: String,
        source: url::ParseError,
    },
}

impl App {
    /// Starts the sandbox and loads the plugins. A plugin that can't be loaded is set aside.
    pub async fn open(settings: Settings) -> Result<Self, AppError> {
        let sandbox = Sandbox::new(settings.sandbox.clone())?;
        let mut folders = folders(&settings, &sandbox);
        let (loaded, (offers, absent)) = tokio::join!(folders.read(), connect(&settings));
        let offers: Arc<[peers::Offer]> = offers.into();
        let (registry, told) = registry(&settings, &sandbox, &loaded, &offers)?;
        let mut notes = settings.notes.clone();
        notes.extend(absent);
        notes.extend(told);
        Ok(Self {
            settings,
            registry: LiveRegistry::from(Arc::new(registry)),
            notes,
            sandbox,
            offers,
            unwatched: Mutex::new(Some((folders, loaded))),
        })
    }

    /// The plugins of the settings' folders, whether what they are granted counts or not: their files, and what they
    /// are.
    pub async fn held(settings: &Settings) -> Result<Vec<(String, Held)>, AppError> {
        let sandbox = Sandbox::new(settings.sandbox.clone())?;
        let mut folders = folders(settings, &sandbox);
        let loaded = folders.read().await;
        let held = held(&loaded);
        Ok(held
            .map(|(plugin, held)| (plugin.file.clone(), held))
            .collect())
    }

    /// From now on, until the answer is dropped, the registry follows what becomes of the plugins folders. `None`
    /// where it does so already.
    pub fn watch(&self) -> Option<Watching> {
        let mut unwatched = self
            .unwatched
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (folders, loaded) = unwatched.take()?;
        let (settings, sandbox) = (self.settings.clone(), self.sandbox.clone());
        let (live, offers) = (self.registry.clone(), Arc::clone(&self.offers));
        Some(watch(folders, &loaded, live, move |loaded| {
            let (registry, told) = registry(&settings, &sandbox, &loaded, &offers)?;
            tracing::info!("the plugins have changed: {} tools", registry.tools().len());
            for note in told {
                tracing::warn!("{note}");
            }
            Ok(registry)
        }))
    }

    /// An agent as the settings say, with these people and watchers.
    pub fn agent(&self, deps: Deps) -> Result<ToolLoop, AppError> {
        let limits = self.settings.limits;
        let (provider, model) = self.provider()?;
        let mut agent = ToolLoop::new(provider, model, self.registry.clone());
        agent.system = self.settings.system.clone();
        agent.deps = deps;
        agent.wall_time = limits.wall_time;
        agent.limits = RunLimits {
            max_iterations: limits.max_iterations,
            max_tokens: limits.max_tokens,
            max_tokens_ceiling: limits.max_tokens_ceiling,
            max_tool_calls: limits.max_tool_calls,
            max_total_tokens: limits.max_total_tokens,
            repeats: RepeatLimits {
                warn: limits.repeated_calls.warn,
                refuse: limits.repeated_calls.refuse,
                stop: limits.repeated_calls.stop,
            },
        };
        Ok(agent)
    }

    /// Permissions and bounds of calls as the settings say.
    pub fn deps(&self) -> Deps {
        Deps {
            permissions: self.settings.permissions.clone(),
            parallel: self.settings.limits.parallel,
            eager: self.settings.limits.eager,
            max_parallel_tools: self.settings.limits.max_parallel_tools,
            ..Deps::default()
        }
    }

    fn provider(&self) -> Result<(Arc<dyn Provider>, String), AppError> {
        let settings = &self.settings;
        let model = || settings.model.clone().ok_or(AppError::NoModel);
        let client = |base_url: &Url| {
            model_client(&ClientSettings {
                extra_ca_files: settings.sandbox.extra_ca_files.clone(),
                // A proxy is not asked for what runs on this machine.
                environment_proxy: !is_loopback(base_url),
                ..ClientSettings::default()
            })
        };
        match settings.provider {
            ProviderName::Anthropic => {
                let model = model()?;
                need_key(settings, ANTHROPIC, "ANTHROPIC_API_KEY")?;
                let base_url = base_url(settings, ANTHROPIC)?;
                let client = client(&base_url)?;
                let mut endpoint = AnthropicSettings::new(base_url, settings.api_key.clone());
                endpoint.version = settings.anthropic.version.clone();
                endpoint.key_header = match settings.anthropic.auth {
                    config::AnthropicAuth::XApiKey => KeyHeader::XApiKey,
                    config::AnthropicAuth::Bearer => KeyHeader::Bearer,
                };
                Ok((Arc::new(Anthropic::new(endpoint, client)), model))
            }
            ProviderName::OpenAi => {
                let model = model()?;
                need_key(settings, OPENAI, "OPENAI_API_KEY")?;
                let base_url = base_url(settings, OPENAI)?;
                let client = client(&base_url)?;
                let mut endpoint = OpenAiSettings::new(base_url, settings.api_key.clone());
                endpoint.tools_as_schema = settings.openai.tools_as_schema;
                match settings.openai.max_tokens_field {
                    MaxTokensField::Auto => {}
                    MaxTokensField::MaxTokens => {
                        endpoint.max_tokens_field = crate::provider::MaxTokensField::MaxTokens;
                    }
                    MaxTokensField::MaxCompletionTokens => {
                        endpoint.max_tokens_field =
                            crate::provider::MaxTokensField::MaxCompletionTokens;
                    }
                }
                Ok((Arc::new(OpenAi::new(endpoint, client)), model))
            }
            ProviderName::Scripted => {
                let script = settings.script.as_deref().ok_or(AppError::NoScript)?;
                let model = settings
                    .model
                    .clone()
                    .unwrap_or_else(|| "scripted".to_owned());
                Ok((Arc::new(Scripted::load(script)?), model))
            }
        }
    }
}

fn folders(settings: &Settings, sandbox: &Sandbox) -> Folders {
    let operator = {
        let settings = settings.clone();
        move |name: &PluginName| (settings.grants_for(name), settings.operator_limits(name))
    };
    Folders::new(settings.plugin_dirs.clone(), sandbox.clone(), operator)
}

/// The plugins as they are to be compared with what was granted.
fn held(loaded: &Loaded) -> impl Iterator<Item = (&Plugin, Held)> {
    loaded.plugins.iter().map(|plugin| {
        let tools = plugin.component.definitions().iter();
        let requests = tools.flat_map(|definition| &definition.requests);
        let digest = plugin.component.digest();
        (
            plugin,
            Held::new(&plugin.name, digest, requests, &plugin.grants),
        )
    })
}

/// Those plugins that are what was granted something, or that nothing is granted to; and why the others are not.
/// What was never pinned is pinned now.
fn admitted(place: &LockPlace, loaded: &Loaded) -> (Vec<Plugin>, Vec<SetAside>, Option<String>) {
    let granted = |plugin: &Plugin| plugin.grants != Grants::default();
    let mut lock = match loaded.plugins.iter().any(granted) {
        false => return (loaded.plugins.clone(), Vec::new(), None),
        true => place.read(),
    };
    let mut plugins = Vec::new();
    let mut set_aside = Vec::new();
    let mut is_news = false;
    for (plugin, held) in held(loaded) {
        if !granted(plugin) {
            plugins.push(plugin.clone());
            continue;
        }
        let fault = match &mut lock {
            Ok(lock) => {
                let standing = lock.standing(&held);
                if matches!(standing, Standing::New | Standing::Regranted) {
                    lock.pin(&held);
                    is_news = true;
                }
                standing.fault(&held)
            }
            Err(error) => Some(error.to_string()),
        };
        match fault {
            None => plugins.push(plugin.clone()),
            Some(why) => set_aside.push(SetAside {
                what: plugin.file.clone(),
                why,
            }),
        }
    }
    let saved = match &lock {
        Ok(lock) if is_news => lock.save(),
        Ok(_) | Err(_) => Ok(()),
    };
    let note = saved.err().map(|error| {
        format!(
            "{error}; so a change of a component that was granted something would not be noticed"
        )
    });
    (plugins, set_aside, note)
}

/// What the MCP servers offer, and which of them are not there.
async fn connect(settings: &Settings) -> (Vec<peers::Offer>, Vec<String>) {
    let http = ClientSettings {
        extra_ca_files: settings.sandbox.extra_ca_files.clone(),
        ..ClientSettings::default()
    };
    let connecting = settings.peers.iter().map(|peer| {
        let mut http = http.clone();
        if let PeerAt::Url(url) = &peer.at {
            // A proxy is not asked for what runs on this machine.
            http.environment_proxy = !Url::parse(url).is_ok_and(|url| is_loopback(&url));
        }
        Peer::connect(peer.clone(), http)
    });
    let mut offers = Vec::new();
    let mut absent = Vec::new();
    for (peer, offer) in settings.peers.iter().zip(join_all(connecting).await) {
        match offer {
            Ok(offer) => offers.push(offer),
            // The others are of use without it.
            Err(error) => absent.push(format!("the MCP server `{}`: {error}", peer.name)),
        }
    }
    (offers, absent)
}

/// The tools that a run sees, and what a person should know of them.
fn registry(
    settings: &Settings,
    sandbox: &Sandbox,
    loaded: &Loaded,
    offers: &[peers::Offer],
) -> Result<(Registry, Vec<String>), RegistryError> {
    let (plugins, changed, note) = admitted(&settings.lock, loaded);
    let set_aside = loaded.set_aside.iter().cloned().chain(changed).collect();
    let registry = Registry::with_plugins([], plugins, Some(sandbox), set_aside)?;
    let registry = registry.with_peers(offers);
    let servers = settings.peers.iter().map(|peer| peer.name.clone());
    let plugins = loaded.plugins.iter().map(|plugin| plugin.name.clone());
    let names: Vec<PluginName> = plugins.chain(servers).collect();
    let rule_names: Vec<String> = registry
        .tools()
        .iter()
        .map(|tool| tool.rule_name.clone())
        .collect();
    let mut notes = settings.notes_about(&names, &rule_names);
    let told = |set_aside: &SetAside| format!("{}: {}", set_aside.what, set_aside.why);
    notes.extend(note);
    notes.extend(registry.set_aside().iter().map(told));
    let registry = registry.filtered(|tool| settings.shows_tool(&tool.rule_name));
    Ok((registry, notes))
}

/// The usual endpoints take nothing without a key; one of the operator's own may.
fn need_key(
    settings: &Settings,
    endpoint: &'static str,
    variable: &'static str,
) -> Result<(), AppError> {
    let has_key = settings.api_key.as_ref().is_some_and(|key| !key.is_empty());
    if has_key || settings.base_url.is_some() {
        return Ok(());
    }
    Err(AppError::NoKey { endpoint, variable })
}

fn base_url(settings: &Settings, default: &str) -> Result<Url, AppError> {
    let text = settings.base_url.as_deref().unwrap_or(default);
    Url::parse(text).map_err(|source| AppError::BaseUrl {
        url: text.to_owned(),
        source,
    })
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
