//! `mcp`: the tools for an MCP client that starts this program, and the entry that makes it do so.

mod clients;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::clients::{Client, Launch};
use crate::{
    agent::Deps,
    app::App,
    cli::{
        Global,
        ask::{Asking, approver},
        config::settings_for_tools,
        exit::{Exit, Misuse},
        run::AskingArgs,
        show::Show,
        signals,
        terminal::harmless,
        write,
    },
    mcp::{McpServer, http::HttpSettings},
};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct McpArgs {
    #[command(subcommand)]
    pub command: Option<McpCommand>,
    /// Serve any number of clients over streamable HTTP at `http://ADDRESS/mcp` instead; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
    /// A further name under which the server is reached over HTTP; several times
    #[arg(long, value_name = "NAME", requires = "http")]
    pub host: Vec<String>,
    /// An origin whose web pages may call, such as `https://app.example.org`; several times
    #[arg(long, value_name = "ORIGIN", requires = "http")]
    pub origin: Vec<String>,
    /// A file with the bearer token that requests over HTTP have to carry; needed off this machine
    #[arg(long, value_name = "FILE", requires = "http")]
    pub token_file: Option<PathBuf>,
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
            let exit = signals::next().await;
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
        let _watching = app.watch();
        let server = McpServer::new(app.registry.now(), deps)?;
        let _following = AbortOnDropHandle::new(tokio::spawn({
            let (server, live) = (server.clone(), app.registry.clone());
            async move { server.follow(&live).await }
        }));
        match args.http {
            Some(address) => serve_http(args, &server, address, stop.clone()).await?,
            None => {
                let (read, write) = rmcp::transport::stdio_pipes();
                server.serve_pipes(read, write, stop.clone()).await?;
            }
        }
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

async fn serve_http(
    args: &McpArgs,
    server: &McpServer,
    address: SocketAddr,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut settings = HttpSettings::loopback();
    settings.hosts.extend(args.host.iter().cloned());
    settings.origins.extend(args.origin.iter().cloned());
    if let Some(file) = &args.token_file {
        let shown = || harmless(&file.display().to_string());
        let token = std::fs::read_to_string(file)
            .with_context(|| format!("can't read the token in {}", shown()))?;
        Misuse::unless(
            !token.trim().is_empty(),
            &format!("the token in {} is empty", shown()),
        )?;
        settings.token = Some(token.trim().to_owned());
    }
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("can't listen on {address}"))?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    Ok(server.serve_http(listener, settings, stop).await?)
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
