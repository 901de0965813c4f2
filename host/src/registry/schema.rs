//! stub
use serde_json::{Map, Value};
use std::sync::Arc;
pub struct ArgumentSchema(Arc<Value>);
#[derive(Debug, thiserror::Error)]
#[error("stub")]
pub struct SchemaFault;
impl ArgumentSchema {
    pub fn compile(s: &Value) -> Result<Self, SchemaFault> {
        Ok(Self(Arc::new(s.clone())))
    }
    pub fn shown(&self) -> Arc<Value> {
        self.0.clone()
    }
    pub fn shown_note(&self) -> Option<&str> {
        None
    }
    pub fn check(&self, i: Map<String, Value>) -> Result<Map<String, Value>, Vec<String>> {
        Ok(i)
    }
}
pub struct OutputSchema;
impl OutputSchema {
    pub fn compile(_: &Value) -> Result<Self, SchemaFault> {
        Ok(Self)
    }
    pub fn check(&self, _: &Value) -> Result<(), Vec<String>> {
        Ok(())
    }
}
