//! `limits`: what a call of a tool may use up, and what sets each of these limits. Nothing runs.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{
    Global,
    config::settings_for_tools,
    exit::Exit,
    terminal::{dim, harmless, strong},
    tools::named,
    write,
};
use crate::{
    app::App,
    config::Settings,
    registry::Tool,
    sandbox::limits::{Fixed, Unit, fixed},
};

#[derive(Debug, Args)]
pub struct LimitsArgs {
    /// The tool, as the model calls it or as `plugin.tool`
    tool: String,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// A limit that is set, by someone or by default.
struct Set {
    what: &'static str,
    /// As it would be written in the settings.
    value: String,
    /// Where it comes from, and the key that sets it.
    from: String,
    key: String,
}

pub async fn run(args: &LimitsArgs, global: &Global) -> anyhow::Result<Exit> {
    let app = App::open(settings_for_tools(global, global.flags())?).await?;
    let registry = app.registry.now();
    let tool = named(&registry, &args.tool)?;
    let set = set(tool, &app.settings);
    // What runs outside of the sandbox meets none of its bounds.
    let fixed = if tool.is_sandboxed() {
        fixed()
    } else {
        Vec::new()
    };
    let text = if args.json {
        let set: Vec<Value> = set
            .iter()
            .map(|set| json!({ "what": set.what, "limit": set.value, "from": set.from, "key": set.key }))
            .collect();
        let fixed: Vec<Value> = fixed
            .iter()
            .map(|fixed| {
                json!({
                    "what": fixed.what,
                    "limit": fixed.limit,
                    "unit": unit(fixed.unit),
                    "effect": fixed.effect,
                })
            })
            .collect();
        format!(
            "{:#}\n",
            json!({ "tool": tool.rule_name, "set": set, "fixed": fixed })
        )
    } else {
        let mut text = format!(
            "{}: a call of it may use\n",
            strong().for_stdout().apply_to(&tool.rule_name)
        );
        for set in &set {
            let from = format!("{}; `{}` sets it", set.from, set.key);
            text += &line(set.what, &set.value, &from);
        }
        if !fixed.is_empty() {
            text += "the same for every call:\n";
        }
        for fixed in &fixed {
            text += &line(
                fixed.what,
                &amount(fixed),
                &format!("beyond it {}", fixed.effect),
            );
        }
        text
    };
    write::stdout(&text)?;
    Ok(Exit::Done)
}

fn line(what: &str, value: &str, note: &str) -> String {
    let note = harmless(note);
    format!(
        "  {what:<44} {value:>9}  {}\n",
        dim().for_stdout().apply_to(note)
    )
}

fn set(tool: &Tool, settings: &Settings) -> Vec<Set> {
    let limits = &tool.limits;
    let plugin = tool.rule_name.split('.').next().unwrap_or_default();
    let row = |what, name: &str, value: String| {
        let own = format!("grants.{plugin}.{name}");
        let shared = format!("sandbox.{name}");
        let origin = [&own, &shared]
            .into_iter()
            .find_map(|key| Some((key, settings.origin(key)?)));
        let from = match origin {
            Some((key, origin)) if *key == own => format!("{origin} (`{own}`)"),
            Some((_, origin)) => origin.to_string(),
            None => "default".to_owned(),
        };
        Set {
            what,
            value,
            from,
            key: own,
        }
    };
    let mut time = row(
        "time",
        "timeout",
        limits.timeout.map_or("none".into(), duration),
    );
    if tool.definition.timeout.is_some() && tool.definition.timeout == limits.timeout {
        time.from = "the tool's own wish".to_owned();
    }
    let fuel = limits.fuel.map_or("none".into(), |fuel| fuel.to_string());
    let mut set = vec![
        time,
        row("answer", "output", bytes(limits.output_bytes as u64)),
    ];
    if tool.is_sandboxed() {
        set.push(row("memory", "memory", bytes(limits.memory_bytes as u64)));
        set.push(row("fuel", "fuel", fuel));
    }
    set
}

fn amount(fixed: &Fixed) -> String {
    match fixed.unit {
        Unit::Count => fixed.limit.to_string(),
        Unit::Bytes => bytes(fixed.limit),
        Unit::Seconds => duration(Duration::from_secs(fixed.limit)),
    }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "count",
        Unit::Bytes => "bytes",
        Unit::Seconds => "seconds",
    }
}

/// In the largest unit that leaves nothing over.
fn bytes(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

fn duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms.is_multiple_of(1000) {
        format!("{}s", ms / 1000)
    } else {
        format!("{ms}ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_settings_are() {
        assert_eq!(bytes(64 << 20), "64MiB");
        assert_eq!(bytes(1536), "1536B");
        assert_eq!(bytes(0), "0B");
        assert_eq!(duration(Duration::from_secs(90)), "90s");
        assert_eq!(duration(Duration::from_millis(1500)), "1500ms");
    }
}
