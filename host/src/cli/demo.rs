//! `demo`: real tools in real sandboxes, called by a scripted model.

use std::{io::IsTerminal as _, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Args;

use crate::{
    agent::ToolLoop,
    capability::{Access, FolderGrant, Grants, OperatorLimits},
    cli::{
        Global,
        exit::Exit,
        show::{Detail, Show},
        terminal::{dim, harmless, strong},
        write,
    },
    config::Places,
    event::Observer,
    ids::PluginName,
    provider::Scripted,
    registry::{Plugin, Registry},
    sandbox::{Sandbox, SandboxSettings, compiler::Compiler},
    shipped,
    transcript::Message,
};

/// What the scripted model says.
const SCRIPT: &str = include_str!("demo.json");

const TASK: &str = "Read my shopping list, add up what it costs, and write the total below it. \
                    By the way: what time is it in Tokyo, and how is the weather there?";

const SHOPPING: &str = "# Shopping\n\n- coffee 12.40\n- bread 3.95\n- apples 4.20\n";

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Print the messages of the run as JSON instead of the last word
    #[arg(long)]
    pub json: bool,
}

pub async fn run(args: &DemoArgs, global: &Global) -> anyhow::Result<Exit> {
    let folder = tempfile::tempdir().context("can't make a temporary folder for the demo")?;
    let notes = folder.path().canonicalize()?.join("notes");
    std::fs::create_dir(&notes)?;
    std::fs::write(notes.join("shopping.md"), SHOPPING)?;

    let show = Arc::new(Show::new(
        global.detail(),
        !args.json && std::io::stdout().is_terminal(),
    ));
    let registry = registry(&notes).await?;
    let pace = if std::io::stdout().is_terminal() {
        Duration::from_millis(25)
    } else {
        Duration::ZERO
    };
    let model = Scripted::parse(SCRIPT)?.with_pace(pace);
    let mut agent = ToolLoop::new(Arc::new(model), "scripted", Arc::new(registry));
    agent
        .deps
        .permissions
        .allow
        .push(crate::config::permissions::Rule::parse(
            "files.*(path:/notes/**)",
        )?);
    agent
        .deps
        .observers
        .push(Arc::clone(&show) as Arc<dyn Observer>);

    let told = global.detail() > Detail::Quiet;
    if told {
        eprintln!("{} {TASK}\n", strong().apply_to("You:"));
    }
    let result = agent.run(vec![Message::user(TASK)]).await;
    if args.json {
        write::stdout(&format!("{:#}\n", serde_json::to_value(&result)?))?;
    } else if !std::io::stdout().is_terminal() {
        write::stdout(&format!(
            "{}\n",
            harmless(result.final_text().unwrap_or_default())
        ))?;
    }
    if !result.status.is_success() {
        show.status(&result.status);
    }
    if told {
        epilogue(&notes)?;
    }
    Ok(Exit::of(&result))
}

fn epilogue(notes: &Path) -> std::io::Result<()> {
    let list = std::fs::read_to_string(notes.join("shopping.md"))?;
    eprintln!(
        "\n{}",
        dim().apply_to("The file that was opened to the tools as /notes/shopping.md now reads:")
    );
    for line in list.lines() {
        eprintln!("  │ {}", harmless(line));
    }
    eprintln!(
        "\n{}\n  agentloop-host init          {}\n  agentloop-host run \"…\"       {}",
        dim().apply_to("The model was a script; the tools, their sandboxes, the kill and the refusal were real. Next:"),
        dim().apply_to("the shipped tools and a commented agentloop.toml, here"),
        dim().apply_to("the same with a real model"),
    );
    Ok(())
}

async fn registry(notes: &Path) -> anyhow::Result<Registry> {
    let sandbox = Sandbox::new(SandboxSettings {
        cache_dir: Places::of_this_user()
            .ok()
            .map(|places| places.compiled_code_dir()),
        max_live_calls: 64,
        pool: true,
        extra_ca_files: Vec::new(),
        compiler: Compiler::this_program(),
    })?;
    let loads = shipped::PLUGINS.iter().map(|shipped| {
        let sandbox = &sandbox;
        async move {
            let component = sandbox
                .load(shipped.wasm.into())
                .await
                .with_context(|| format!("can't load the shipped plugin `{}`", shipped.name))?;
            let name = PluginName::of_file_stem(shipped.name);
            let grants = match shipped.name {
                "files" => Grants {
                    folders: vec![FolderGrant {
                        host_path: notes.to_owned(),
                        guest_path: "/notes".into(),
                        access: Access::Write,
                    }],
                    ..Grants::default()
                },
                // The weather's host is not granted, and the demo shows what becomes of that.
                _ => Grants::default(),
            };
            let file = format!("{}.wasm", shipped.name);
            anyhow::Ok(Plugin {
                name,
                file,
                component,
                grants,
                limits: OperatorLimits::default(),
            })
        }
    });
    let plugins = futures_util::future::try_join_all(loads).await?;
    Ok(Registry::with_plugins(
        [],
        plugins,
        Some(&sandbox),
        Vec::new(),
    )?)
}
