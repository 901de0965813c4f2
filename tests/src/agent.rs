//! Agents with a scripted model.

use std::sync::{Arc, Mutex};

use agentloop_host::{
    agent::{RunResult, ToolLoop},
    event::{Observer, RunEvent},
    provider::{ModelReply, ModelRequest, Provider, ProviderError, Scripted, Watch},
    registry::{Registry, native::NativeTool},
    transcript::{ContentBlock, Message, Role, ToolResult},
};
use async_trait::async_trait;
use serde_json::{Value, json};

/// A scripted model that gives these replies.
pub fn scripted(replies: Value) -> Arc<Scripted> {
    Arc::new(Scripted::from_value(&json!({ "replies": replies })).unwrap())
}

/// An agent with this model and these tools of the test's own.
pub fn agent(model: &Arc<Scripted>, tools: impl IntoIterator<Item = NativeTool>) -> ToolLoop {
    agent_with(model, Registry::new(tools).unwrap())
}

pub fn agent_with(model: &Arc<Scripted>, registry: Registry) -> ToolLoop {
    ToolLoop::new(Arc::clone(model) as _, "scripted-model", Arc::new(registry))
}

/// Runs from one user text.
pub async fn run(agent: &ToolLoop, text: &str) -> RunResult {
    agent.run(vec![Message::user(text)]).await
}

/// A reply that asks for these calls: `(id, name, input)`.
pub fn calls(calls: &[(&str, &str, Value)]) -> Value {
    let blocks: Vec<Value> = calls
        .iter()
        .map(
            |(id, name, input)| json!({"type": "tool_use", "id": id, "name": name, "input": input}),
        )
        .collect();
    json!({ "content": blocks })
}

/// A reply of one text.
pub fn says(text: &str) -> Value {
    json!({ "content": [{"type": "text", "text": text}] })
}

/// The results that stand in a message, in order; they have to come first in it.
pub fn results(message: &Message) -> Vec<&ToolResult> {
    let results: Vec<_> = message
        .content
        .iter()
        .map_while(|block| match block {
            ContentBlock::ToolResult(result) => Some(result),
            _ => None,
        })
        .collect();
    let n_results = message
        .content
        .iter()
        .filter(|block| matches!(block, ContentBlock::ToolResult(_)))
        .count();
    assert_eq!(results.len(), n_results, "results come first: {message:?}");
    results
}

/// Fails unless every call in the conversation has exactly one result, in call order, in the next message.
pub fn assert_paired(messages: &[Message]) {
    for (i, message) in messages.iter().enumerate() {
        let uses: Vec<_> = message.tool_uses().map(|t| &t.id).collect();
        let answered: Vec<_> = messages
            .get(i + 1)
            .map(results)
            .unwrap_or_default()
            .iter()
            .map(|r| &r.tool_use_id)
            .collect();
        assert_eq!(uses, answered, "message {i} of {messages:#?}");
    }
}

/// Keeps every event.
#[derive(Default)]
pub struct Events(Mutex<Vec<RunEvent>>);

impl Events {
    pub fn all(&self) -> Vec<RunEvent> {
        self.0.lock().unwrap().clone()
    }

    /// The kinds of the events, as their serde tag says them.
    pub fn kinds(&self) -> Vec<String> {
        let kind = |event: &RunEvent| {
            serde_json::to_value(event).unwrap()["type"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        self.all().iter().map(kind).collect()
    }
}

impl Observer for Events {
    fn observe(&self, event: &RunEvent) {
        self.0.lock().unwrap().push(event.clone());
    }
}

/// A model without a memory of its own: its reply follows from how many replies the conversation has. So it says the
/// same to a process that goes on with a run as to the one that began it.
pub struct Stateless {
    replies: Vec<Value>,
}

impl Stateless {
    /// The replies in order, in the form of [`scripted`].
    pub fn new(replies: Value) -> Arc<Self> {
        let Value::Array(replies) = replies else {
            panic!("replies are a list")
        };
        Arc::new(Self { replies })
    }
}

#[async_trait]
impl Provider for Stateless {
    fn name(&self) -> &str {
        "stateless"
    }

    async fn ask(
        &self,
        request: &ModelRequest<'_>,
        watch: &mut dyn Watch,
    ) -> Result<ModelReply, ProviderError> {
        let said = |message: &&Message| message.role == Role::Assistant;
        let n_said = request.messages.iter().filter(said).count();
        let reply = &self.replies[n_said.min(self.replies.len() - 1)];
        scripted(json!([reply])).ask(request, watch).await
    }
}
