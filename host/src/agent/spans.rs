//! What a run looks like to whoever collects traces: spans by OpenTelemetry's conventions for generative AI. Names and
//! counts only; what people, models and tools say is in none of them.

use tracing::{Span, field::Empty, info_span};

use crate::{
    agent::{RunResult, ToolLoop},
    ids::{ToolName, ToolUseId},
    provider::{ModelReply, ProviderError},
    transcript::Usage,
};

/// One driving of a run. `run` is its id.
pub fn invoke_agent(agent: &ToolLoop, run: impl std::fmt::Display) -> Span {
    info_span!(
        "invoke_agent",
        otel.name = "invoke_agent agentloop",
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.name = "agentloop",
        gen_ai.conversation.id = %run,
        gen_ai.request.model = %agent.model,
        gen_ai.provider.name = agent.provider.name(),
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        error.r#type = Empty,
    )
}

/// The run ended so.
pub fn agent_ended(span: &Span, result: &RunResult) {
    used(span, result.tokens);
    if !result.status.is_success() {
        span.record("error.type", result.status.word());
    }
}

/// One request to the model, repetitions included.
pub(crate) fn chat(agent: &ToolLoop, max_tokens: u32) -> Span {
    info_span!(
        "chat",
        otel.name = format!("chat {}", agent.model),
        otel.kind = "client",
        gen_ai.operation.name = "chat",
        gen_ai.request.model = %agent.model,
        gen_ai.request.max_tokens = max_tokens,
        gen_ai.provider.name = agent.provider.name(),
        gen_ai.response.finish_reasons = Empty,
        gen_ai.response.id = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        error.r#type = Empty,
    )
}

pub(crate) fn chat_ended(span: &Span, reply: &Result<ModelReply, ProviderError>) {
    match reply {
        Ok(reply) => {
            used(span, reply.usage);
            span.record("gen_ai.response.finish_reasons", reply.stop_reason.as_str());
            if let Some(id) = &reply.request_id {
                span.record("gen_ai.response.id", id);
            }
        }
        Err(error) => {
            span.record("error.type", error.kind.word());
        }
    }
}

/// One call, from its start to its end.
pub(crate) fn execute_tool(tool: &ToolName, id: &ToolUseId) -> Span {
    info_span!(
        "execute_tool",
        otel.name = format!("execute_tool {tool}"),
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = %tool,
        gen_ai.tool.call.id = %id,
        gen_ai.tool.r#type = "function",
        error.r#type = Empty,
    )
}

/// As the conventions count: cached tokens are input tokens.
fn used(span: &Span, usage: Usage) {
    let cached = usage.cache_read.unwrap_or_default() + usage.cache_write.unwrap_or_default();
    if let Some(input) = usage.input {
        span.record("gen_ai.usage.input_tokens", input + cached);
    }
    if let Some(output) = usage.output {
        span.record("gen_ai.usage.output_tokens", output);
    }
}
