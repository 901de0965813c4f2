//! `tools`: what the configured folders offer.

use std::{collections::HashSet, process::ExitCode};

use serde_json::{Value, json};

use super::{
    exit::Misuse,
    inspect::UNUSABLE,
    requests::{Asked, Granted},
    terminal::{caution, dim, harmless, one_line, strong},
    write,
};
use crate::{
    agent::result::nearest,
    capability::{Grants, Reach},
    registry::{Registry, Tool},
};

/// Longest line that is shown of one text.
const MAX_LINE_CHARS: usize = 100;
/// Names that are told where one is wrong.
const MAX_NEAR: usize = 5;

#[derive(Debug, clap::Args)]
pub struct ToolsArgs {
    /// One JSON object, with the schemas
    #[arg(long)]
    json: bool,
    /// Exit with 7 when a file or a tool could not be taken
    #[arg(long)]
    check: bool,
}

pub fn run(args: &ToolsArgs, registry: &Registry) -> anyhow::Result<ExitCode> {
    if args.json {
        write::stdout(&format!("{:#}\n", in_json(registry)))?;
    } else {
        write::stdout(&in_text(registry))?;
        for aside in registry.set_aside() {
            eprintln!(
                "{} {}: {}",
                caution().apply_to("set aside:"),
                one_line(&aside.what, 300),
                harmless(&aside.why)
            );
        }
    }
    if args.check && !registry.set_aside().is_empty() {
        return Ok(ExitCode::from(UNUSABLE));
    }
    Ok(ExitCode::SUCCESS)
}

/// The tool that a person names.
pub(super) fn named<'a>(registry: &'a Registry, name: &str) -> Result<&'a Tool, Misuse> {
    let unknown = || {
        let near = nearest(name, &registry.names(), MAX_NEAR);
        let near: Vec<&str> = near.iter().map(|name| name.as_str()).collect();
        Misuse(format!(
            "there is no tool `{name}`; the nearest are {}",
            near.join(", ")
        ))
    };
    registry.find(name).map(|tool| &**tool).ok_or_else(unknown)
}

fn in_text(registry: &Registry) -> String {
    let tools = registry.tools();
    if tools.is_empty() {
        return "no tools: `agentloop-host init` puts the shipped ones here, `agentloop-host new NAME` starts one\n"
            .to_owned();
    }
    let width = tools.iter().map(|tool| tool.name.as_str().len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    let mut plugin = None;
    for tool in tools {
        let of = plugin_of(tool);
        if plugin != Some(of) {
            let blank = if plugin.is_some() { "\n" } else { "" };
            text.push_str(&format!("{blank}{}\n", strong().for_stdout().apply_to(of)));
            plugin = Some(of);
        }
        let name = tool.name.as_str();
        text.push_str(&format!(
            "  {name:width$}  {}\n",
            one_line(first_sentence(&tool.definition.description), MAX_LINE_CHARS)
        ));
        for line in touches(tool) {
            let line = dim().for_stdout().apply_to(one_line(&line, MAX_LINE_CHARS));
            text.push_str(&format!("  {:width$}  {line}\n", ""));
        }
    }
    text
}

/// The plugin, or `host` for a tool of the program itself.
fn plugin_of(tool: &Tool) -> &str {
    tool.plugin().map_or("host", |plugin| plugin.as_str())
}

/// The first line, up to its first full stop.
fn first_sentence(text: &str) -> &str {
    let line = text.trim().lines().next().unwrap_or_default();
    match line.find(". ") {
        Some(end) => &line[..end],
        None => line.strip_suffix('.').unwrap_or(line),
    }
}

/// Lines below the tool's own.
fn touches(tool: &Tool) -> Vec<String> {
    let Some(reach) = &tool.reach else {
        return vec!["runs outside the sandbox, as part of this program".to_owned()];
    };
    if reach.is_outside() {
        return vec!["runs outside the sandbox, in an MCP server".to_owned()];
    }
    let (may_touch, not_granted) = held_against_grants(tool, reach);
    let may = (!may_touch.is_empty()).then(|| format!("may {}", may_touch.join("; ")));
    let not = (!not_granted.is_empty()).then(|| format!("not granted: {}", not_granted.join("; ")));
    may.into_iter().chain(not).collect()
}

/// What a call may touch, and what its tool asks for in vain.
fn held_against_grants(tool: &Tool, reach: &Reach) -> (Vec<String>, Vec<String>) {
    let grants = Grants {
        folders: reach.folders.clone(),
        http: reach.http.clone(),
        environment: reach.environment.clone(),
        secrets: reach.secrets.clone(),
    };
    let mut may_touch = Vec::new();
    let mut not_granted = Vec::new();
    for asked in Asked::of([&tool.definition]) {
        match asked.granted(&grants) {
            Granted::Whole { by } => may_touch.extend(by),
            Granted::Partly { by, lacks } => {
                may_touch.extend(by);
                not_granted.push(format!("{} ({lacks})", asked.capability));
            }
            Granted::Not => not_granted.push(asked.capability.to_string()),
        }
    }
    let mut seen = HashSet::new();
    may_touch.retain(|thing| seen.insert(thing.clone()));
    (may_touch, not_granted)
}

/// One JSON object; its keys are documented in the README.
fn in_json(registry: &Registry) -> Value {
    let tools: Vec<_> = registry
        .tools()
        .iter()
        .map(|tool| {
            let (may_touch, not_granted) = match &tool.reach {
                Some(reach) => held_against_grants(tool, reach),
                None => Default::default(),
            };
            let definition = &tool.definition;
            json!({
                "name": tool.name,
                "plugin": tool.plugin(),
                "rule_name": tool.rule_name,
                "digest": tool.digest().map(|digest| digest.to_string()),
                "title": definition.title,
                "description": definition.description,
                "input_schema": definition.input_schema,
                "output_schema": definition.output_schema,
                "annotations": definition.annotations,
                "parallel_safe": definition.parallel_safe,
                "timeout_ms": tool.limits.timeout.map(|timeout| timeout.as_millis() as u64),
                "sandboxed": tool.reach.as_ref().is_some_and(|reach| !reach.is_outside()),
                "may_touch": may_touch,
                "not_granted": not_granted,
            })
        })
        .collect();
    let set_aside: Vec<_> = registry
        .set_aside()
        .iter()
        .map(|aside| json!({ "what": aside.what, "why": aside.why }))
        .collect();
    json!({ "v": 1, "tools": tools, "set_aside": set_aside })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_cut_at_its_first_sentence() {
        assert_eq!(first_sentence("Adds. And more.\nNext"), "Adds");
        assert_eq!(
            first_sentence("\nAdds 1.5 to it.\n\nMore"),
            "Adds 1.5 to it"
        );
        assert_eq!(first_sentence(""), "");
    }
}
