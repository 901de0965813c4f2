//! Components that export `agentloop:tool/tools`, this host's own contract.

use serde_json::{Map, Value};
use wasmtime::{Store, component::InstancePre};

use super::{
    super::{
        bindings::{ToolPre, agentloop::tool::types::ToolDefinition},
        store::CallState,
    },
    Answer,
};
use crate::ids::ToolName;

#[derive(Clone)]
pub(in super::super) struct Contract(ToolPre<CallState>);

impl Contract {
    pub(super) fn link(pre: InstancePre<CallState>) -> wasmtime::Result<Self> {
        ToolPre::new(pre).map(Self)
    }

    pub(super) async fn call(
        &self,
        store: &mut Store<CallState>,
        tool: &ToolName,
        arguments: Map<String, Value>,
    ) -> wasmtime::Result<Answer> {
        let arguments = Value::Object(arguments).to_string();
        let instance = self.0.instantiate_async(&mut *store).await?;
        instance
            .agentloop_tool_tools()
            .call_call(store, tool.as_str(), &arguments)
            .await
    }

    pub(super) async fn list(
        &self,
        store: &mut Store<CallState>,
    ) -> wasmtime::Result<Vec<ToolDefinition>> {
        let instance = self.0.instantiate_async(&mut *store).await?;
        instance.agentloop_tool_tools().call_list(store).await
    }
}
