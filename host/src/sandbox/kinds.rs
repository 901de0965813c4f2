//! The kinds of components that offer tools, one adapter each. An adapter knows how its kind's tools are called
//! and answers in the words of this host's own contract; everything around it (a fresh store, the limits, the
//! deadline, the ending) is the same for all, and nothing outside of [`super`] knows that there are kinds.
//!
//! | kind | a tool is | known by | its definitions come from |
//! |---|---|---|---|
//! | [`contract`] | what `list` names | `agentloop:tool/tools` | the custom section, or a closed run of `list` |
//! | [`plain`] | each exported function | functions of its own | its WIT types and their doc comments |
//! | [`command`] | the program | `wasi:cli/run` | the manifest beside the file, see [`manifest`] |
//! | [`http`] | a request that it answers | `wasi:http/incoming-handler` | this host |
//!
//! [`act`] reads what ACT components say of themselves; they can't be called.

mod act;
mod command;
mod contract;
mod http;
mod manifest;
mod plain;

use std::sync::Arc;

use serde_json::{Map, Value};
use wasmtime::{Store, component::InstancePre};

pub use self::act::Act;
pub(super) use self::act::{SECTION as ACT_SECTION, read as act};
pub(super) use self::plain::{
    docs::SECTION as DOCS_SECTION,
    functions::{DERIVATION, DocsSections, Functions, functions, is_foreign},
};
use self::{command::Command, contract::Contract, http::Http, plain::Plain};
pub(super) use self::{command::Process, manifest::Manifest};
use super::{
    bindings::agentloop::tool::types::{self as wit, CallError, Content},
    metadata::Definitions,
    output::Captured,
    store::CallState,
};
use crate::{
    capability::{Access, Capability, OriginPattern, Request},
    ids::ToolName,
};

/// What a request of a component that names no methods is for: all that can be granted.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// What a call gave, in the contract's words.
pub(super) type Answer = Result<Vec<Content>, CallError>;

/// How a component offers its tools, as far as reading it tells.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Offer {
    /// Through this host's own contract.
    Contract,
    /// As plain functions.
    Functions(Arc<Functions>),
    /// As a program.
    Command(Arc<Manifest>),
    /// As a web server.
    Http,
}

/// One call of a tool.
pub(super) struct Call<'a> {
    pub(super) tool: &'a ToolName,
    pub(super) arguments: Map<String, Value>,
    /// What a program printed, see [`Kind::process`].
    pub(super) printed: &'a Captured,
    /// What the answer may hold. An adapter may stop early at more; it need not.
    pub(super) limit_bytes: usize,
}

/// The one tool of a web server.
pub(super) fn http_definitions(requests: Vec<Request>) -> Definitions {
    Definitions {
        tools: http::definition(requests).into_iter().collect(),
        set_aside: Vec::new(),
    }
}

/// What a component could use, for kinds that declare nothing: whatever the operator grants to it by name, of
/// what it imports the interface for.
pub(super) fn requests_of_imports(imports: &[String]) -> Vec<Request> {
    let request = |interface: &str, capability: Capability| {
        imports
            .iter()
            .any(|import| import.starts_with(interface))
            .then(|| Request {
                capability,
                reason: format!("it imports `{}`", interface.trim_end_matches(['/', '@'])),
            })
    };
    let folders = Capability::Folder {
        path: "*".to_owned(),
        access: Access::Write,
    };
    let http = Capability::Http {
        origin: OriginPattern::Any,
        methods: METHODS.map(str::to_owned).to_vec(),
    };
    let environment = Capability::Environment {
        name: "*".to_owned(),
    };
    [
        request("wasi:filesystem/", folders),
        request("wasi:http/outgoing-handler@", http),
        request("wasi:cli/environment@", environment.clone())
            .or_else(|| request("wasi:config/store@", environment)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A linked component that can be called, in the way of its kind.
#[derive(Clone)]
pub(super) enum Kind {
    Contract(Contract),
    Plain(Plain),
    Command(Command),
    Http(Http),
}

impl Kind {
    pub(super) fn link(pre: InstancePre<CallState>, offer: &Offer) -> wasmtime::Result<Self> {
        Ok(match offer {
            Offer::Contract => Self::Contract(Contract::link(pre)?),
            Offer::Functions(functions) => Self::Plain(Plain::link(pre, functions.clone())?),
            Offer::Command(manifest) => Self::Command(Command::link(pre, manifest.clone())?),
            Offer::Http => Self::Http(Http::link(pre)?),
        })
    }

    /// What a call's surroundings hold beyond its reach, or what is wrong with its arguments.
    pub(super) fn process(&self, arguments: &Map<String, Value>) -> Result<Process, String> {
        match self {
            Self::Command(command) => command.process(arguments),
            Self::Contract(_) | Self::Plain(_) | Self::Http(_) => Ok(Process::default()),
        }
    }

    /// Makes the instance and the call. The outer error is a trap.
    pub(super) async fn call(
        &self,
        store: &mut Store<CallState>,
        call: Call<'_>,
    ) -> wasmtime::Result<Answer> {
        match self {
            Self::Contract(contract) => contract.call(store, call.tool, call.arguments).await,
            Self::Plain(plain) => plain.call(store, call.tool, call.arguments).await,
            Self::Command(command) => command.call(store, call.printed).await,
            Self::Http(http) => http.call(store, &call.arguments, call.limit_bytes).await,
        }
    }

    /// Runs the component to hear of its tools. Only of components that reading told nothing of.
    pub(super) async fn list(
        &self,
        store: &mut Store<CallState>,
    ) -> wasmtime::Result<Vec<wit::ToolDefinition>> {
        match self {
            Self::Contract(contract) => contract.list(store).await,
            Self::Plain(_) | Self::Command(_) | Self::Http(_) => Ok(Vec::new()),
        }
    }

    /// Whether its tools declare what they ask for. Of others the host knows only what they could use.
    pub(super) fn declares_requests(&self) -> bool {
        match self {
            Self::Contract(_) => true,
            Self::Plain(_) | Self::Command(_) | Self::Http(_) => false,
        }
    }
}
