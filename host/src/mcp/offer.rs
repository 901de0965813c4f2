//! The registry as MCP lists it: made once, in the registry's order, schemas as the tools declare them.

use std::{collections::HashMap, sync::Arc};

use rmcp::{
    ErrorData,
    model::{JsonObject, ListToolsResult, Tool as McpTool, ToolAnnotations},
};
use serde_json::Value;

use crate::registry::{Registry, Tool};

/// Tools on one page.
const PAGE_TOOLS: usize = 250;
/// Schemas and texts on one page, in bytes; a tool that alone is larger has a page of its own.
const PAGE_BYTES: usize = 2 << 20;

pub(super) struct Offer {
    pub(super) registry: Arc<Registry>,
    tools: Vec<McpTool>,
    by_name: HashMap<String, usize>,
    /// The page that each tool begins, where it begins one, is the next one's end.
    page_starts: Vec<usize>,
}

impl Offer {
    pub(super) fn new(registry: Arc<Registry>) -> Self {
        let tools: Vec<McpTool> = registry
            .tools()
            .iter()
            .map(|tool| described(tool))
            .collect();
        let by_name = tools
            .iter()
            .enumerate()
            .map(|(n, tool)| (tool.name.to_string(), n))
            .collect();
        let sizes: Vec<usize> = tools.iter().map(size).collect();
        Self {
            registry,
            tools,
            by_name,
            page_starts: page_starts(&sizes),
        }
    }

    /// Whether a client that lists both sees no difference.
    pub(super) fn lists_the_same(&self, other: &Self) -> bool {
        self.tools == other.tools
    }

    pub(super) fn tool(&self, name: &str) -> Option<&McpTool> {
        self.by_name.get(name).map(|n| &self.tools[*n])
    }

    /// The page that begins with the tool whose name is the cursor; the first page without one.
    pub(super) fn page(&self, cursor: Option<&str>) -> Result<ListToolsResult, ErrorData> {
        let start = match cursor {
            None => 0,
            Some(name) => self
                .by_name
                .get(name)
                .copied()
                .filter(|start| self.page_starts.contains(start))
                .ok_or_else(|| {
                    ErrorData::invalid_params(
                        "this cursor is not one of the list as it is now; list again without a cursor",
                        None,
                    )
                })?,
        };
        let next = self.page_starts.iter().find(|next| **next > start).copied();
        let end = next.unwrap_or(self.tools.len());
        let mut page = ListToolsResult::with_all_items(self.tools[start..end].to_vec());
        page.next_cursor = next.map(|next| self.tools[next].name.to_string());
        Ok(page)
    }
}

fn page_starts(sizes: &[usize]) -> Vec<usize> {
    let mut starts = Vec::new();
    let (mut tools, mut bytes) = (0, 0);
    for (n, size) in sizes.iter().enumerate() {
        if n == 0 || tools == PAGE_TOOLS || bytes + size > PAGE_BYTES {
            starts.push(n);
            (tools, bytes) = (0, 0);
        }
        tools += 1;
        bytes += size;
    }
    starts
}

fn size(tool: &McpTool) -> usize {
    serde_json::to_vec(tool).map_or(0, |json| json.len())
}

fn described(tool: &Tool) -> McpTool {
    let definition = &tool.definition;
    let mut described = McpTool::new(
        tool.name.as_str().to_owned(),
        definition.description.clone(),
        object(&definition.input_schema),
    );
    described.title = definition.title.clone();
    described.output_schema = definition.output_schema.as_ref().map(object);
    described.annotations = Some(
        ToolAnnotations::new()
            .read_only(definition.annotations.read_only)
            .destructive(definition.annotations.destructive)
            .idempotent(definition.annotations.idempotent)
            .open_world(definition.annotations.open_world),
    );
    described
}

/// A schema word for word. The registry takes none that is not an object.
fn object(schema: &Value) -> Arc<JsonObject> {
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::native::NativeTool;

    fn offer(n_tools: usize) -> Offer {
        let tools = (0..n_tools).map(|n| {
            NativeTool::new(
                &format!("tool_{n}"),
                "A tool.",
                json!({"type": "object"}),
                |_| Ok::<_, String>(String::new()),
            )
            .unwrap()
        });
        Offer::new(Arc::new(Registry::new(tools).unwrap()))
    }

    #[test]
    fn pages_together_are_the_list_in_its_order() {
        let offer = offer(2 * PAGE_TOOLS + 1);
        let mut names = Vec::new();
        let mut cursor = None;
        let mut n_pages = 0;
        loop {
            let page = offer.page(cursor.as_deref()).unwrap();
            names.extend(page.tools.iter().map(|tool| tool.name.to_string()));
            n_pages += 1;
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(n_pages, 3);
        let expected: Vec<String> = (0..2 * PAGE_TOOLS + 1)
            .map(|n| format!("tool_{n}"))
            .collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn a_cursor_of_another_list_is_refused() {
        let offer = offer(3);
        for cursor in ["tool_1", "gone", ""] {
            assert_eq!(
                offer.page(Some(cursor)).unwrap_err().code.0,
                -32602,
                "{cursor}"
            );
        }
        assert_eq!(offer.page(None).unwrap().tools.len(), 3);
    }

    #[test]
    fn pages_are_bounded_in_bytes_and_a_giant_has_its_own() {
        assert_eq!(page_starts(&[]), Vec::<usize>::new());
        assert_eq!(
            page_starts(&[10, PAGE_BYTES + 1, 10, PAGE_BYTES - 10, 1]),
            [0, 1, 2, 4]
        );
    }
}
