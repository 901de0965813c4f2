//! What a tool says of itself, and the section of the component that says it without being run.

use crate::text::Text;

/// How a tool presents itself. [`tool`](macro@crate::tool) makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    pub name: &'static str,
    pub title: Option<&'static str>,
    pub description: &'static str,
    /// JSON Schema of the arguments object.
    pub input_schema: &'static str,
    /// JSON Schema of the structured answer.
    pub output_schema: Option<&'static str>,
    pub annotations: Annotations,
    pub parallel_safe: bool,
    pub timeout_ms: Option<u64>,
    pub requests: &'static [Request],
}

/// Hints in MCP's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Annotations {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    pub open_world: bool,
}

/// Something that a tool wants to reach, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub capability: Capability,
    pub reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    Folder {
        path: &'static str,
        write: bool,
    },
    Http {
        origin: &'static str,
        methods: &'static [&'static str],
    },
    Environment(&'static str),
    Secret(&'static str),
}

/// The content of the section `agentloop-tools`: one JSON document and a line end, since a linker puts
/// sections of the same name one behind the other.
#[doc(hidden)]
pub const fn write_section<const N: usize>(definitions: &[&Definition]) -> Text<N> {
    let mut text = Text::new();
    text.raw("{\"package\":\"agentloop:tool@0.1.0\",\"tools\":[");
    let mut i = 0;
    while i < definitions.len() {
        refuse_same_name(definitions, i);
        separate(&mut text, i);
        write_definition(&mut text, definitions[i]);
        i += 1;
    }
    text.raw("]}\n");
    text
}

const fn refuse_same_name(definitions: &[&Definition], index: usize) {
    let name = definitions[index].name.as_bytes();
    let mut i = 0;
    while i < index {
        let other = definitions[i].name.as_bytes();
        let mut same = name.len() == other.len();
        let mut k = 0;
        while same && k < name.len() {
            same = name[k] == other[k];
            k += 1;
        }
        if same {
            panic!("two tools in `tools!` have the same name");
        }
        i += 1;
    }
}

const fn separate<const N: usize>(text: &mut Text<N>, index: usize) {
    if index > 0 {
        text.raw(",");
    }
}

const fn write_definition<const N: usize>(text: &mut Text<N>, definition: &Definition) {
    text.raw("{\"name\":");
    text.string(definition.name);
    if let Some(title) = definition.title {
        text.raw(",\"title\":");
        text.string(title);
    }
    text.raw(",\"description\":");
    text.string(definition.description);
    text.raw(",\"input_schema\":");
    text.raw(definition.input_schema);
    if let Some(schema) = definition.output_schema {
        text.raw(",\"output_schema\":");
        text.raw(schema);
    }
    let annotations = &definition.annotations;
    text.raw(",\"annotations\":{\"read_only\":");
    write_bool(text, annotations.read_only);
    text.raw(",\"destructive\":");
    write_bool(text, annotations.destructive);
    text.raw(",\"idempotent\":");
    write_bool(text, annotations.idempotent);
    text.raw(",\"open_world\":");
    write_bool(text, annotations.open_world);
    text.raw("},\"parallel_safe\":");
    write_bool(text, definition.parallel_safe);
    if let Some(timeout) = definition.timeout_ms {
        text.raw(",\"timeout_ms\":");
        text.natural(timeout);
    }
    text.raw(",\"requests\":[");
    let mut i = 0;
    while i < definition.requests.len() {
        separate(text, i);
        write_request(text, &definition.requests[i]);
        i += 1;
    }
    text.raw("]}");
}

const fn write_request<const N: usize>(text: &mut Text<N>, request: &Request) {
    text.raw("{\"capability\":");
    match request.capability {
        Capability::Folder { path, write } => {
            text.raw("{\"folder\":{\"path\":");
            text.string(path);
            text.raw(",\"access\":");
            text.string(if write { "write" } else { "read" });
            text.raw("}}");
        }
        Capability::Http { origin, methods } => {
            text.raw("{\"http\":{\"origin\":");
            text.string(origin);
            text.raw(",\"methods\":[");
            let mut i = 0;
            while i < methods.len() {
                separate(text, i);
                text.string(methods[i]);
                i += 1;
            }
            text.raw("]}}");
        }
        Capability::Environment(name) => {
            text.raw("{\"environment\":");
            text.string(name);
            text.raw("}");
        }
        Capability::Secret(name) => {
            text.raw("{\"secret\":");
            text.string(name);
            text.raw("}");
        }
    }
    text.raw(",\"reason\":");
    text.string(request.reason);
    text.raw("}");
}

const fn write_bool<const N: usize>(text: &mut Text<N>, value: bool) {
    text.raw(if value { "true" } else { "false" });
}
