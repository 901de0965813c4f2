//! `mcp`: the tools for an MCP client that starts this program, and the entry that makes it do so.

mod clients;

use std::{path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tokio_util::sync::CancellationToken;

use self::clients::{Client, Launch};
use crate::{
    agent::Deps,
    app::App,
    cli::{
        Global,
        ask::{Asking, approver},
        config::settings_for_tools,
        exit::Exit,
        run::{AskingArgs, next_signal},
        show::Show,
        terminal::harmless,
        write,
    },
    mcp::McpServer,
};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct McpArgs {
    #[command(subcommand)]
    pub command: Option<McpCommand>,
    #[command(flatten)]
    pub asking: AskingArgs,
}

#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Print the entry that makes a client start this program with these settings
    Config {
        /// Whose settings the entry is for
        #[arg(value_enum)]
        client: Client,
        /// Put it into the client's settings file instead; what else is there stays
        #[arg(long)]
        write: bool,
        /// What the client calls this server
        #[arg(long, default_value = "agentloop", value_name = "NAME")]
        name: String,
        /// The client's settings file, where it is not in its usual place
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

pub async fn run(args: &McpArgs, global: &Global) -> anyhow::Result<Exit> {
    match &args.command {
        None => serve(args, global).await,
        Some(McpCommand::Config {
            client,
            write,
            name,
            file,
        }) => config(*client, *write, name, file.clone(), global),
    }
}

/// Serves until the client closes its end or a signal comes.
async fn serve(args: &McpArgs, global: &Global) -> anyhow::Result<Exit> {
    let mut flags = global.flags();
    args.asking.flags(&mut flags);
    // From here on, so that a signal during the start ends the program as one later does.
    let stop = CancellationToken::new();
    let signal = tokio::spawn({
        let stop = stop.clone();
        async move {
            let exit = next_signal().await;
            stop.cancel();
            exit
        }
    });
    let serving = async {
        let app = App::open(settings_for_tools(global, flags)?).await?;
        let show = Arc::new(Show::new(global.detail(), false));
        show.notes(&app.notes);
        let deps = Deps {
            approver: approver(&app.settings, args.asking.yes, &show, Asking::Never),
            ..app.deps()
        };
        let server = McpServer::new(Arc::clone(&app.registry), deps)?;
        let (read, write) = rmcp::transport::stdio_pipes();
        server.serve_pipes(read, write, stop.clone()).await?;
        anyhow::Ok(())
    };
    let served = tokio::select! {
        served = serving => served,
        // Loading has no end of its own to wait for; serving has, and comes first.
        () = async {
            stop.cancelled().await;
            tokio::time::sleep(clients::PATIENCE).await;
        } => Ok(()),
    };
    let exit = if stop.is_cancelled() {
        signal.await?
    } else {
        signal.abort();
        Exit::Done
    };
    served.map(|()| exit)
}

fn config(
    client: Client,
    write: bool,
    name: &str,
    file: Option<PathBuf>,
    global: &Global,
) -> anyhow::Result<Exit> {
    let settings = global.settings(global.flags())?;
    let mut args = Vec::new();
    // Clients start it in whatever folder they are in themselves.
    if settings.project.path.is_file() {
        args.push("--config".to_owned());
        args.push(text(settings.project.path.clone())?);
    }
    args.push("mcp".to_owned());
    let launch = Launch {
        command: text(std::env::current_exe().context("can't tell where this program is")?)?,
        args,
    };
    if !write {
        write::stdout(&client.entry(name, &launch))?;
        return Ok(Exit::Done);
    }
    let file = match file {
        Some(file) => file,
        None => client.file()?,
    };
    clients::install(client, &file, name, &launch)?;
    eprintln!(
        "`{}` is now in {}; the client reads it when it starts",
        harmless(name),
        harmless(&file.display().to_string())
    );
    Ok(Exit::Done)
}

fn text(path: PathBuf) -> anyhow::Result<String> {
    path.into_os_string().into_string().map_err(|path| {
        anyhow::anyhow!(
            "the path {} is not UTF-8, and clients' settings can't hold it",
            harmless(&path.to_string_lossy())
        )
    })
}
