//! `call`: one tool, without a model.

use std::{io::Read as _, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use crate::{
    agent::{Deps, run_calls},
    app::App,
    cli::{
        Global,
        ask::{Asking, approver},
        config::settings_for_tools,
        exit::Exit,
        run::AskingArgs,
        show::Show,
        terminal::harmless,
        write,
    },
    event::Observer,
    tool::ToolOutcome,
    transcript::{ResultContent, ToolUse},
};

#[derive(Debug, Args)]
pub struct CallArgs {
    /// The tool, as the model calls it or as `plugin.tool`
    pub tool: String,
    /// Its arguments, a JSON object; `-` reads it from stdin
    #[arg(default_value = "{}")]
    pub arguments: String,
    #[command(flatten)]
    pub asking: AskingArgs,
    /// The whole record of the call as JSON
    #[arg(long)]
    pub json: bool,
}

pub async fn run(args: &CallArgs, global: &Global) -> anyhow::Result<Exit> {
    let mut arguments = args.arguments.clone();
    if arguments == "-" {
        arguments.clear();
        std::io::stdin()
            .read_to_string(&mut arguments)
            .context("can't read the arguments from stdin")?;
    }
    let mut flags = global.flags();
    args.asking.flags(&mut flags);
    let app = App::open(settings_for_tools(global, flags)?).await?;
    let show = Arc::new(Show::new(global.detail(), false));
    show.notes(&app.notes);
    let deps = Deps {
        approver: approver(&app.settings, args.asking.yes, &show, Asking::WherePossible),
        observers: vec![Arc::clone(&show) as Arc<dyn Observer>],
        ..app.deps()
    };
    let registry = app.registry.now();
    let name = registry
        .find(&args.tool)
        .map_or(args.tool.as_str(), |tool| tool.name.as_str());
    let mut tool_use = ToolUse::new("call_0_0", name, json!({}))?;
    tool_use.input = crate::transcript::ToolInput::parse(&arguments);

    let mut records = run_calls(&[tool_use.into()], &registry, &deps).await;
    let record = records.pop().context("the call left no record")?;
    let mut text = String::new();
    if args.json {
        text = format!("{:#}\n", serde_json::to_value(&record.traced)?);
    } else {
        for content in &record.traced.result.content {
            text += &match content {
                ResultContent::Text { text } => harmless(text),
                ResultContent::Image(image) => format!(
                    "[{} image, {} bytes of base64]",
                    image.media_type,
                    image.base64.len()
                ),
            };
            text.push('\n');
        }
    }
    write::stdout(&text)?;
    Ok(exit_of(&record.outcome))
}

fn exit_of(outcome: &ToolOutcome) -> Exit {
    match outcome {
        ToolOutcome::Answered(_) => Exit::Done,
        ToolOutcome::MalformedArguments { .. }
        | ToolOutcome::UnknownTool { .. }
        | ToolOutcome::InvalidArguments { .. } => Exit::Usage,
        ToolOutcome::Denied { .. }
        | ToolOutcome::ApprovalFailed { .. }
        | ToolOutcome::CapabilityRefused { .. } => Exit::Denied,
        ToolOutcome::TimedOut { .. } | ToolOutcome::Abandoned { .. } => Exit::OutOfTime,
        ToolOutcome::Cancelled { .. } => Exit::Interrupted,
        ToolOutcome::Failed { .. }
        | ToolOutcome::Trapped { .. }
        | ToolOutcome::OutOfFuel { .. }
        | ToolOutcome::OutOfMemory { .. }
        | ToolOutcome::OutputTooLarge { .. }
        | ToolOutcome::BadOutput { .. }
        | ToolOutcome::OutcomeUnknown
        | ToolOutcome::Internal { .. } => Exit::Failed,
    }
}
