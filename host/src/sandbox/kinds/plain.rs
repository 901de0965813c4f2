//! Components that know nothing of this host: each function that they export, at the root of their world or in
//! an interface, is a tool.
//!
//! | | |
//! |---|---|
//! | [`functions`] | which functions there are, under which names, and what is set aside |
//! | [`docs`] | what their authors wrote about them |
//! | [`shape`] | their types, as far as values can be written in JSON |
//! | [`schema`] | shapes as JSON Schema |
//! | [`values`] | JSON values into the component's and back |
//!
//! An error of a `result` is the tool's error; its value is the answer.

pub(super) mod docs;
pub(super) mod functions;
mod schema;
mod shape;
mod values;

use std::sync::Arc;

use serde_json::{Map, Value};
use wasmtime::{
    Store,
    component::{ComponentExportIndex, InstancePre, Val},
};

use self::{
    functions::{Function, Functions},
    shape::Shape,
};
use super::{
    super::{
        bindings::agentloop::tool::types::{CallError, Content},
        store::CallState,
    },
    Answer,
};
use crate::ids::ToolName;

#[derive(Clone)]
pub(in super::super) struct Plain {
    pre: InstancePre<CallState>,
    functions: Arc<Functions>,
    /// One for each function.
    exports: Arc<[ComponentExportIndex]>,
}

impl Plain {
    pub(super) fn link(
        pre: InstancePre<CallState>,
        functions: Arc<Functions>,
    ) -> wasmtime::Result<Self> {
        let component = pre.component();
        let exports = functions
            .functions
            .iter()
            .map(|function| {
                let interface = match &function.interface {
                    None => None,
                    Some(name) => Some(component.get_export_index(None, name)?),
                };
                component.get_export_index(interface.as_ref(), &function.name)
            })
            .collect::<Option<Arc<[_]>>>()
            .ok_or_else(|| wasmtime::Error::msg("a function that it exports is not there"))?;
        Ok(Self {
            pre,
            functions,
            exports,
        })
    }

    pub(super) async fn call(
        &self,
        store: &mut Store<CallState>,
        tool: &ToolName,
        mut arguments: Map<String, Value>,
    ) -> wasmtime::Result<Answer> {
        let Some((function, export)) = self.function(tool) else {
            return Ok(Err(CallError::UnknownTool));
        };
        let mut params = Vec::with_capacity(function.params.len());
        for (name, shape) in &function.params {
            let argument = arguments.remove(name).unwrap_or(Value::Null);
            match values::to_component(shape, argument, name) {
                Ok(value) => params.push(value),
                Err(fault) => return Ok(Err(CallError::InvalidArguments(fault))),
            }
        }
        let instance = self.pre.instantiate_async(&mut *store).await?;
        let called = instance
            .get_func(&mut *store, export)
            .ok_or_else(|| wasmtime::Error::msg("a function that it exports is not there"))?;
        let mut results = vec![Val::Bool(false); usize::from(function.result.is_some())];
        called.call_async(store, &params, &mut results).await?;
        match (&function.result, results.pop()) {
            (Some(shape), Some(value)) => answer(shape, value),
            _ => Ok(Ok(Vec::new())),
        }
    }

    fn function(&self, tool: &ToolName) -> Option<(&Function, &ComponentExportIndex)> {
        let at = self.functions.position(tool)?;
        Some((self.functions.functions.get(at)?, self.exports.get(at)?))
    }
}

fn answer(shape: &Shape, value: Val) -> wasmtime::Result<Answer> {
    match (shape, value) {
        (Shape::Result { ok, .. }, Val::Result(Ok(value))) => match (ok, value) {
            (Some(shape), Some(value)) => content(shape, *value).map(Ok),
            _ => Ok(Ok(Vec::new())),
        },
        (Shape::Result { err, .. }, Val::Result(Err(value))) => {
            let text = match (err, value) {
                (Some(shape), Some(value)) => match values::to_json(shape, *value)? {
                    Value::String(text) => text,
                    value => value.to_string(),
                },
                _ => String::new(),
            };
            Ok(Err(CallError::Failed(text)))
        }
        (shape, value) => content(shape, value).map(Ok),
    }
}

/// A text as it is; a record as structured output; anything else as JSON text, since structured output is an
/// object.
fn content(shape: &Shape, value: Val) -> wasmtime::Result<Vec<Content>> {
    let content = match values::to_json(shape, value)? {
        Value::String(text) => Content::Text(text),
        value @ Value::Object(_) if shape.is_record() => Content::Json(value.to_string()),
        value => Content::Text(value.to_string()),
    };
    Ok(vec![content])
}
