//! From tools to an immutable, ordered set of them: what one run sees.

pub mod folder;
pub mod live;
pub mod native;
pub mod schema;

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, Value};

use crate::{
    capability::{Grants, Limits, OperatorLimits, Reach},
    ids::{ComponentDigest, PluginName, ToolName},
    peers::{self, Peer},
    policy::Authorized,
    provider::ToolSchema,
    registry::{
        native::NativeTool,
        schema::{ArgumentSchema, OutputSchema},
    },
    sandbox::{self, Component, Ending, Executor, GuestCall, GuestListener, Sandbox},
    tool::ToolDefinition,
};

/// The tools that a run can call, in a fixed order. Never changes; a changed folder makes a new one.
#[derive(Default)]
pub struct Registry {
    tools: Vec<Arc<Tool>>,
    by_name: HashMap<ToolName, Arc<Tool>>,
    schemas: Arc<[ToolSchema]>,
    set_aside: Vec<SetAside>,
}

/// One tool, ready to be called.
pub struct Tool {
    /// What the model calls it: unique in the registry.
    pub name: ToolName,
    /// `plugin.tool`, as permission rules name it; `host.tool` for a tool of the embedding program.
    pub rule_name: String,
    pub definition: ToolDefinition,
    /// What it can touch; `None` for a tool of the embedding program.
    pub reach: Option<Reach>,
    pub limits: Limits,
    arguments: ArgumentSchema,
    output: Option<OutputSchema>,
    runner: Runner,
}

enum Runner {
    Component {
        sandbox: Sandbox,
        component: Component,
        plugin: PluginName,
    },
    Native(Box<NativeTool>),
    Peer {
        peer: Arc<Peer>,
        /// As the server calls it.
        original: String,
    },
}

/// Something that was not taken into the registry, or under another name, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// A file, or `plugin.tool`.
    pub what: String,
    /// A complete sentence without a final stop.
    pub why: String,
}

/// A component with what the operator grants it.
#[derive(Clone)]
pub struct Plugin {
    pub name: PluginName,
    /// The file it came from, as the operator wrote it.
    pub file: String,
    pub component: Component,
    pub grants: Grants,
    pub limits: OperatorLimits,
}

/// Two tools of the embedding program want one name, or one of them can't be offered.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("two tools are called `{0}`")]
    DuplicateName(ToolName),
    #[error("the tool `{tool}` can't be offered: {why}")]
    Unusable { tool: ToolName, why: String },
}

impl Registry {
    /// A registry of the embedding program's own tools, in this order.
    pub fn new(tools: impl IntoIterator<Item = NativeTool>) -> Result<Self, RegistryError> {
        Self::with_plugins(tools, [], None, Vec::new())
    }

    /// The embedding program's own tools, then those of the plugins, sorted by plugin name.
    ///
    /// Own tools keep their names. Where two plugins declare one name, or a plugin declares the name of an
    /// own tool, each such plugin's tool is offered as `plugin__tool`, whatever the order of the files. A
    /// tool that can't be offered is set aside, and the others stay. `set_aside` is what was set aside before,
    /// when the folders were read.
    pub fn with_plugins(
        own: impl IntoIterator<Item = NativeTool>,
        plugins: impl IntoIterator<Item = Plugin>,
        sandbox: Option<&Sandbox>,
        set_aside: Vec<SetAside>,
    ) -> Result<Self, RegistryError> {
        let mut building = Building {
            set_aside,
            ..Building::default()
        };
        for tool in own {
            building.add_own(tool)?;
        }
        let mut plugins: Vec<Plugin> = plugins.into_iter().collect();
        plugins.sort_by(|a, b| (&a.name, &a.file).cmp(&(&b.name, &b.file)));
        building.add_plugins(&plugins, sandbox);
        Ok(building.finish())
    }

    /// The same registry with the tools of MCP servers behind it, each as `server__tool`: names that nobody here
    /// chose take none from the others.
    #[must_use]
    pub fn with_peers(&self, offers: &[peers::Offer]) -> Self {
        let mut building = Building {
            set_aside: self.set_aside.clone(),
            ..Building::default()
        };
        for tool in &self.tools {
            building.push(Arc::clone(tool));
        }
        for offer in offers {
            building.add_peer(offer);
        }
        building.finish()
    }

    /// The tool that the model calls by this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Tool>> {
        self.by_name.get(name)
    }

    /// All names, sorted.
    /// By the name that models call, or by `plugin.tool` as rules name it.
    pub fn find(&self, name: &str) -> Option<&Arc<Tool>> {
        let by_rule_name = || self.tools.iter().find(|tool| tool.rule_name == name);
        self.get(name).or_else(by_rule_name)
    }

    pub fn names(&self) -> Vec<ToolName> {
        let mut names: Vec<ToolName> = self.by_name.keys().cloned().collect();
        names.sort();
        names
    }

    /// What a model is shown, in the registry's order and byte-stable.
    pub fn schemas(&self) -> &Arc<[ToolSchema]> {
        &self.schemas
    }

    pub fn tools(&self) -> &[Arc<Tool>] {
        &self.tools
    }

    /// What could not be offered as it was declared.
    pub fn set_aside(&self) -> &[SetAside] {
        &self.set_aside
    }

    /// The same registry with only the tools that `keep` wants, for example those that a run was told to
    /// use or those that no rule denies outright.
    pub fn filtered(&self, keep: impl Fn(&Tool) -> bool) -> Self {
        let mut building = Building {
            set_aside: self.set_aside.clone(),
            ..Building::default()
        };
        for tool in self.tools.iter().filter(|tool| keep(tool)) {
            building.push(Arc::clone(tool));
        }
        building.finish()
    }
}

impl Tool {
    /// Whether it runs as a component: what else runs meets none of the sandbox's bounds.
    pub fn is_sandboxed(&self) -> bool {
        matches!(self.runner, Runner::Component { .. })
    }

    /// The arguments after lossless coercion, or what is wrong with them.
    pub fn check_arguments(
        &self,
        input: Map<String, Value>,
    ) -> Result<Map<String, Value>, Vec<String>> {
        self.arguments.check(input)
    }

    /// What is wrong with structured output, if the tool says what it should be.
    pub fn check_output(&self, output: &Value) -> Result<(), Vec<String>> {
        match &self.output {
            Some(schema) => schema.check(output),
            None => Ok(()),
        }
    }

    /// The component that it is part of; none for a tool of the embedding program or of an MCP server.
    pub fn digest(&self) -> Option<ComponentDigest> {
        match &self.runner {
            Runner::Component { component, .. } => Some(component.digest()),
            Runner::Native(_) | Runner::Peer { .. } => None,
        }
    }

    /// The plugin or MCP server that it is part of; none for a tool of the embedding program.
    pub fn plugin(&self) -> Option<&PluginName> {
        match &self.runner {
            Runner::Component { plugin, .. } => Some(plugin),
            Runner::Native(_) => None,
            Runner::Peer { peer, .. } => Some(peer.name()),
        }
    }

    /// Waits for a place to run in. Nobody's clock ticks meanwhile.
    pub(crate) async fn slot(&self) -> Slot {
        match &self.runner {
            Runner::Component { sandbox, .. } => Slot(Some(sandbox.slot().await)),
            Runner::Native(_) | Runner::Peer { .. } => Slot(None),
        }
    }

    /// Carries out one call; its clock starts now.
    pub(crate) async fn run(
        &self,
        slot: Slot,
        call: Authorized,
        executor: Executor,
        listener: Arc<dyn GuestListener>,
    ) -> Ending {
        match (&self.runner, slot) {
            (
                Runner::Component {
                    sandbox,
                    component,
                    plugin,
                },
                Slot(Some(slot)),
            ) => {
                let guest_call = GuestCall {
                    component,
                    tool: &self.definition.name,
                    plugin,
                    reach: self.reach.as_ref().unwrap_or(Reach::NOTHING),
                    limits: &self.limits,
                };
                sandbox
                    .call(slot, guest_call, call, executor, listener)
                    .await
            }
            (Runner::Native(tool), _) => tool.run(call, self.limits.timeout).await,
            (Runner::Peer { peer, original }, _) => {
                let Limits {
                    timeout,
                    output_bytes,
                    ..
                } = self.limits;
                peer.call(original, call, timeout, output_bytes).await
            }
            (Runner::Component { .. }, Slot(None)) => {
                unreachable!("a slot comes from the tool that it is for")
            }
        }
    }
}

/// A place to run in, from [`Tool::slot`].
pub(crate) struct Slot(Option<sandbox::Slot>);

/// Builds a registry: resolves names, compiles schemas, sets aside what can't be offered.
#[derive(Default)]
struct Building {
    tools: Vec<Arc<Tool>>,
    by_name: HashMap<ToolName, Arc<Tool>>,
    set_aside: Vec<SetAside>,
}

impl Building {
    fn push(&mut self, tool: Arc<Tool>) {
        self.by_name.insert(tool.name.clone(), Arc::clone(&tool));
        self.tools.push(tool);
    }

    fn add_own(&mut self, own: NativeTool) -> Result<(), RegistryError> {
        let definition = own.definition().clone();
        let name = definition.name.clone();
        if self.by_name.contains_key(&name) {
            return Err(RegistryError::DuplicateName(name));
        }
        let limits = Limits {
            timeout: definition.timeout,
            ..Limits::default()
        };
        let rule_name = format!("host.{name}");
        match Tool::new(
            name,
            rule_name,
            definition,
            None,
            limits,
            Runner::Native(Box::new(own)),
        ) {
            Ok(tool) => self.push(Arc::new(tool)),
            Err((tool, why)) => return Err(RegistryError::Unusable { tool, why }),
        }
        Ok(())
    }

    /// `plugins` are sorted.
    fn add_plugins(&mut self, plugins: &[Plugin], sandbox: Option<&Sandbox>) {
        let Some(sandbox) = sandbox else { return };
        let mut declared: HashMap<&ToolName, Vec<&Plugin>> = HashMap::new();
        for plugin in plugins {
            for definition in plugin.component.definitions() {
                declared.entry(&definition.name).or_default().push(plugin);
            }
        }
        let mut seen: HashMap<&PluginName, &str> = HashMap::new();
        for plugin in plugins {
            if let Some(first) = seen.insert(&plugin.name, &plugin.file) {
                seen.insert(&plugin.name, first);
                self.set_aside.push(SetAside {
                    what: plugin.file.clone(),
                    why: format!("its name comes to the plugin name `{}`, which {first} has already; rename it", plugin.name),
                });
                continue;
            }
            for definition in plugin.component.definitions() {
                let rule_name = format!("{}.{}", plugin.name, definition.name);
                let others = declared
                    .get(&definition.name)
                    .map_or(&[][..], Vec::as_slice);
                let clash = if self
                    .by_name
                    .get(&definition.name)
                    .is_some_and(|t| t.plugin().is_none())
                {
                    Some("this program's own tools".to_owned())
                } else {
                    others
                        .iter()
                        .find(|other| other.name != plugin.name)
                        .map(|other| other.file.clone())
                };
                let name = match clash {
                    None => definition.name.clone(),
                    Some(other) => {
                        match ToolName::parse(&format!("{}__{}", plugin.name, definition.name)) {
                            Ok(qualified) => {
                                self.set_aside.push(SetAside {
                                what: rule_name.clone(),
                                why: format!(
                                    "`{}` is declared by {} and by {other}; this one is offered as `{qualified}`",
                                    definition.name, plugin.file
                                ),
                            });
                                qualified
                            }
                            Err(error) => {
                                let why = format!(
                                    "`{}` is declared by {other} too, and {error}",
                                    definition.name
                                );
                                self.set_aside.push(SetAside {
                                    what: rule_name,
                                    why,
                                });
                                continue;
                            }
                        }
                    }
                };
                if self.by_name.contains_key(&name) {
                    let why = format!(
                        "the name `{name}` is taken by another tool; rename {}",
                        plugin.file
                    );
                    self.set_aside.push(SetAside {
                        what: rule_name,
                        why,
                    });
                    continue;
                }
                let reach = Reach::new(&definition.requests, &plugin.grants);
                let limits = plugin.limits.for_tool(definition.timeout);
                let runner = Runner::Component {
                    sandbox: sandbox.clone(),
                    component: plugin.component.clone(),
                    plugin: plugin.name.clone(),
                };
                match Tool::new(
                    name,
                    rule_name.clone(),
                    definition.clone(),
                    Some(reach),
                    limits,
                    runner,
                ) {
                    Ok(tool) => self.push(Arc::new(tool)),
                    Err((_, why)) => self.set_aside.push(SetAside {
                        what: rule_name,
                        why,
                    }),
                }
            }
        }
    }

    fn add_peer(&mut self, offer: &peers::Offer) {
        let server = offer.peer.name().clone();
        let asides = offer.set_aside.iter().cloned();
        self.set_aside.extend(asides.map(|aside| SetAside {
            what: aside.what,
            why: aside.why,
        }));
        for peers::PeerTool {
            definition,
            original,
        } in offer.tools.iter().cloned()
        {
            let rule_name = format!("{server}.{}", definition.name);
            let runner = Runner::Peer {
                peer: offer.peer.clone(),
                original,
            };
            let limits = Limits {
                timeout: offer.peer.timeout(),
                ..Limits::default()
            };
            let added = ToolName::parse(&format!("{server}__{}", definition.name))
                .map_err(|error| error.to_string())
                .and_then(|name| match self.by_name.contains_key(&name) {
                    true => Err(format!("the name `{name}` is taken by another tool")),
                    false => Ok(name),
                })
                .and_then(|name| {
                    let reach = Some(Reach::outside());
                    Tool::new(name, rule_name.clone(), definition, reach, limits, runner)
                        .map_err(|(_, why)| why)
                });
            match added {
                Ok(tool) => self.push(Arc::new(tool)),
                Err(why) => self.set_aside.push(SetAside {
                    what: rule_name,
                    why,
                }),
            }
        }
    }

    fn finish(self) -> Registry {
        let schemas = self.tools.iter().map(|tool| tool.shown()).collect();
        Registry {
            tools: self.tools,
            by_name: self.by_name,
            schemas,
            set_aside: self.set_aside,
        }
    }
}

impl Tool {
    fn new(
        name: ToolName,
        rule_name: String,
        definition: ToolDefinition,
        reach: Option<Reach>,
        limits: Limits,
        runner: Runner,
    ) -> Result<Self, (ToolName, String)> {
        let compiled = ArgumentSchema::compile(&definition.input_schema)
            .map_err(|fault| format!("its input schema can't be used: {fault}"))
            .and_then(|arguments| {
                let output = definition
                    .output_schema
                    .as_ref()
                    .map(OutputSchema::compile)
                    .transpose();
                let output =
                    output.map_err(|fault| format!("its output schema can't be used: {fault}"))?;
                Ok((arguments, output))
            });
        match compiled {
            Ok((arguments, output)) => Ok(Self {
                name,
                rule_name,
                definition,
                reach,
                limits,
                arguments,
                output,
                runner,
            }),
            Err(why) => Err((name, why)),
        }
    }

    fn shown(&self) -> ToolSchema {
        let description = match self.arguments.shown_note() {
            None => self.definition.description.as_str().into(),
            Some(note) => format!("{}\n\n{note}", self.definition.description).into(),
        };
        ToolSchema {
            name: self.name.clone(),
            description,
            input_schema: self.arguments.shown(),
        }
    }
}
