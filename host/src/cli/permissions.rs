//! `permissions test`: what would become of a call, and which rule says so. Nothing runs.

mod import;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::{
    Global,
    config::settings_for_tools,
    exit::{Exit, Misuse},
    terminal::{dim, harmless, strong},
    tools::named,
    write,
};
use crate::{
    app::App,
    config::permissions::Verdict,
    ids::ToolUseId,
    policy::{self, Decision},
    tool::ToolCall,
};

#[derive(Debug, Args)]
pub struct PermissionsArgs {
    #[command(subcommand)]
    command: PermissionsCommand,
}

#[derive(Debug, Subcommand)]
enum PermissionsCommand {
    /// Say what would become of a call, and which rule says so; nothing runs
    Test(TestArgs),
    /// Print the rules of a Claude Code settings file as rules of this host, and say what can't be carried over
    Import(import::ImportArgs),
}

#[derive(Debug, Args)]
struct TestArgs {
    /// The tool, as the model calls it or as `plugin.tool`
    tool: String,
    /// Its arguments, a JSON object
    #[arg(default_value = "{}")]
    arguments: String,
    #[arg(long)]
    json: bool,
}

pub async fn run(args: &PermissionsArgs, global: &Global) -> anyhow::Result<Exit> {
    match &args.command {
        PermissionsCommand::Test(args) => test(args, global).await,
        PermissionsCommand::Import(args) => import::import(args),
    }
}

async fn test(args: &TestArgs, global: &Global) -> anyhow::Result<Exit> {
    let app = App::open(settings_for_tools(global, global.flags())?).await?;
    let registry = app.registry.now();
    let tool = named(&registry, &args.tool)?;
    let input: Map<String, Value> = serde_json::from_str(&args.arguments)
        .map_err(|error| Misuse(format!("the arguments are no JSON object: {error}")))?;
    // Rules see what the tool would get.
    let input = tool.check_arguments(input).map_err(|faults| {
        Misuse(format!(
            "the tool takes no such arguments: {}",
            faults.join("; ")
        ))
    })?;
    let permissions = &app.settings.permissions;
    let tested = permissions.test(&tool.rule_name, &input);
    let decided_by = tested.iter().find(|tested| tested.miss.is_none());
    let call = ToolCall {
        id: ToolUseId::parse("test")?,
        tool: tool.name.clone(),
        input: input.clone(),
    };
    let (verdict, why) = match policy::decide(
        permissions,
        &tool.rule_name,
        tool.reach.as_ref(),
        call,
        None,
    ) {
        Decision::Deny { reason } => (Verdict::Deny, reason),
        Decision::Ask(pending) => (Verdict::Ask, pending.why),
        Decision::Allow(_) => (
            Verdict::Allow,
            match decided_by {
                Some(tested) => format!("the rule `{}` allows it", tested.rule),
                None => format!(
                    "no rule speaks of it, and the mode `{}` allows it",
                    permissions.mode.as_str()
                ),
            },
        ),
    };
    let text = if args.json {
        let rules: Vec<Value> = tested
            .iter()
            .map(|tested| {
                json!({
                    "verdict": tested.verdict.as_str(),
                    "rule": tested.rule,
                    "matches": tested.miss.is_none(),
                    "miss": tested.miss.as_ref().map(ToString::to_string),
                })
            })
            .collect();
        let decided_by = decided_by.map(|tested| tested.rule);
        format!(
            "{:#}\n",
            json!({
                "tool": tool.rule_name,
                "arguments": input,
                "verdict": verdict.as_str(),
                "why": why,
                "decided_by": decided_by,
                "mode": permissions.mode.as_str(),
                "rules": rules,
            })
        )
    } else {
        let mut text = format!(
            "{}: {}\n  {}\n",
            strong().for_stdout().apply_to(&tool.rule_name),
            verdict.as_str(),
            harmless(&why)
        );
        if !tested.is_empty() {
            text.push_str("rules, in the order in which they are asked:\n");
        }
        for tested in &tested {
            let note = match &tested.miss {
                None => "matches".to_owned(),
                Some(miss) => miss.to_string(),
            };
            text.push_str(&format!(
                "  {:<5} {}  {}\n",
                tested.verdict.as_str(),
                harmless(tested.rule),
                dim().for_stdout().apply_to(harmless(&note))
            ));
        }
        text
    };
    write::stdout(&text)?;
    Ok(match verdict {
        Verdict::Allow => Exit::Done,
        Verdict::Ask | Verdict::Deny => Exit::Denied,
    })
}
