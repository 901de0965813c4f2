//! Components that are programs (`wasi:cli/run`), with a manifest that says how a call becomes arguments and
//! standard input. There is no shell: what an argument says is one argument of the program.

use crate::harmless::shown;
use serde_json::{Map, Value};
use std::sync::Arc;
use wasmtime::{Store, component::InstancePre};
use wasmtime_wasi::{I32Exit, p2::bindings::CommandPre};

use super::{
    super::{
        bindings::agentloop::tool::types::{CallError, Content},
        limits::TRAP_TEXT_BYTES,
        output::Captured,
        store::CallState,
    },
    Answer,
    manifest::{Manifest, Output},
};

#[derive(Clone)]
pub(in super::super) struct Command {
    pre: CommandPre<CallState>,
    manifest: Arc<Manifest>,
}

impl Command {
    pub(super) fn link(
        pre: InstancePre<CallState>,
        manifest: Arc<Manifest>,
    ) -> wasmtime::Result<Self> {
        Ok(Self {
            pre: CommandPre::new(pre)?,
            manifest,
        })
    }

    /// What the program is started with, or what of the arguments can't be given to it.
    pub(super) fn process(&self, arguments: &Map<String, Value>) -> Result<Process, String> {
        let mut argv = vec![self.manifest.tool.name.to_string()];
        argv.extend(self.manifest.argv(arguments)?);
        Ok(Process {
            argv,
            stdin: self.manifest.stdin(arguments)?.into_bytes(),
            captures: true,
        })
    }

    /// What it printed is the answer; a status other than 0 makes an error of what it wrote to standard error.
    pub(super) async fn call(
        &self,
        store: &mut Store<CallState>,
        printed: &Captured,
    ) -> wasmtime::Result<Answer> {
        let ran = async {
            let program = self.pre.instantiate_async(&mut *store).await?;
            program.wasi_cli_run().call_run(&mut *store).await
        };
        let status = match ran.await {
            Ok(Ok(())) => 0,
            Ok(Err(())) => 1,
            Err(error) => match error.downcast_ref::<I32Exit>() {
                Some(I32Exit(status)) => *status,
                // It was stopped for what it printed: the bytes are more than an answer may have.
                None if printed.is_over() => 0,
                None => return Err(error),
            },
        };
        let printed = String::from_utf8_lossy(&printed.take()).into_owned();
        if status == 0 {
            return Ok(Ok(match self.manifest.output {
                Output::Json => vec![Content::Json(printed)],
                Output::Text if printed.is_empty() => Vec::new(),
                Output::Text => vec![Content::Text(printed)],
            }));
        }
        let said = store.data().output.last_words();
        let said = if said.trim().is_empty() {
            printed
        } else {
            said
        };
        let from = said
            .char_indices()
            .rev()
            .nth(TRAP_TEXT_BYTES)
            .map_or(0, |(at, _)| at);
        let said = shown(said[from..].trim(), TRAP_TEXT_BYTES, true);
        let message = if said.is_empty() {
            format!("it exited with status {status}")
        } else {
            format!("{said}\n(it exited with status {status})")
        };
        Ok(Err(CallError::Failed(message)))
    }
}

/// What a call gives to the component's process-like surroundings. Kinds without any give nothing.
#[derive(Debug, Default)]
pub(in super::super) struct Process {
    pub(in super::super) argv: Vec<String>,
    pub(in super::super) stdin: Vec<u8>,
    /// Whether standard output is the answer, instead of lines for the operator.
    pub(in super::super) captures: bool,
}
