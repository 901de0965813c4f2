//! `serve`: the host over HTTP.

use std::{io::Write as _, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    agent::Deps,
    app::App,
    cli::{
        Global,
        ask::{Asking, approver, remember},
        config::settings_for_tools,
        exit::{Exit, Misuse},
        run::{AskingArgs, ModelArgs},
        show::Show,
        signals::Signals,
        stored::open_store,
    },
    config::env_vars,
    mcp::McpServer,
    server::{
        Bounds, NewAgent, Parts, Server,
        access::{Access, Token},
        listen::{self, Listener, Patience},
    },
};

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where to listen; port 0 takes any free one
    #[arg(long, default_value = "127.0.0.1:8720", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// The token that clients have to send as `Authorization: Bearer TOKEN`; also `AGENTLOOP_TOKEN`
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Let everybody in who can reach an address other than loopback
    #[arg(long, conflicts_with = "token_file")]
    pub without_token: bool,
    /// Also answer to this host name; several times
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// Also serve pages of this origin, such as `https://app.example.org`; several times
    #[arg(long = "origin", value_name = "ORIGIN")]
    pub origins: Vec<String>,
    /// Speak TLS with this chain of certificates (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificates: Option<PathBuf>,
    /// The private key that belongs to them (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificates")]
    pub tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub asking: AskingArgs,
}

pub async fn run(args: &ServeArgs, global: &Global) -> anyhow::Result<Exit> {
    let access = access(args)?;
    let tls = match (&args.tls_certificates, &args.tls_key) {
        (Some(certificates), Some(key)) => Some(listen::tls(certificates, key)?),
        _ => None,
    };
    let mut signals = Signals::new();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut flags = global.flags();
    args.model.flags(&mut flags);
    args.asking.flags(&mut flags);
    let opening = async {
        let app = App::open(settings_for_tools(global, flags)?).await?;
        let listener = Listener::bind(args.listen, tls, Patience::default())
            .await
            .with_context(|| format!("can't listen on `{}`", args.listen))?;
        anyhow::Ok((app, listener))
    };
    let store = open_store()?;
    let (app, listener) = tokio::select! {
        opened = opening => opened?,
        exit = signals.next() => return Ok(exit),
    };
    let show = Arc::new(Show::new(global.detail(), false));
    show.notes(&app.notes);
    let deps = Deps {
        approver: approver(&app.settings, args.asking.yes, &show, Asking::Never),
        ..app.deps()
    };
    let _watching = app.watch();
    let mcp = McpServer::new(app.registry.now(), deps.clone())?;
    let _following = AbortOnDropHandle::new(tokio::spawn({
        let (mcp, live) = (mcp.clone(), app.registry.clone());
        async move { mcp.follow(&live).await }
    }));
    let setting_lines = app.settings.origin_lines();
    let server = Server::new(Parts {
        registry: app.registry.clone(),
        deps: deps.clone(),
        access,
        bounds: Bounds::default(),
        store,
        scope: app.settings.scope(),
        remember: remember(&app.settings),
        agents: agents(app, deps),
    });
    let mcp_routes = mcp.unchecked_routes(server.stopping())?;
    let server = server.with_settings(setting_lines).with_routes(mcp_routes);

    let mut out = std::io::stdout();
    writeln!(out, "{scheme}://{}", listener.address()?)?;
    out.flush()?;
    let stop = CancellationToken::new();
    let serving = server.serve(listener, stop.clone());
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => return Ok(Exit::Done),
        _ = signals.next() => stop.cancel(),
    }
    eprintln!("stopping once what runs has ended; another signal ends it at once");
    Ok(tokio::select! {
        () = serving => Exit::Done,
        exit = signals.next() => exit,
    })
}

/// Makes agents as the settings say, all with one connection to the model. A script is read anew for each, since
/// it is used up.
fn agents(app: App, deps: Deps) -> NewAgent {
    let new = move || {
        app.agent(deps.clone())
            .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
    };
    match new() {
        Ok(first) if first.provider.name() != "scripted" => Arc::new(move || Ok(first.clone())),
        Ok(_) | Err(_) => Arc::new(new),
    }
}

/// Who may come in, and whether that is enough for where the server listens.
fn access(args: &ServeArgs) -> anyhow::Result<Access> {
    let mut access = Access::open();
    for host in &args.hosts {
        access = access.with_host(host);
    }
    for origin in &args.origins {
        access = access
            .with_origin(origin)
            .map_err(|error| Misuse(error.to_string()))?;
    }
    if let Some(token) = token(args)? {
        return Ok(access.with_token(token));
    }
    Misuse::unless(
        args.listen.ip().is_loopback() || args.without_token,
        &format!(
            "whoever reaches `{}` could use the tools; give a token with `--token-file FILE` or `{}`, or let everybody \
             in with `--without-token`",
            args.listen,
            env_vars::TOKEN,
        ),
    )?;
    Ok(access)
}

fn token(args: &ServeArgs) -> anyhow::Result<Option<Token>> {
    if args.without_token {
        return Ok(None);
    }
    let (text, origin) = match (&args.token_file, std::env::var_os(env_vars::TOKEN)) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("can't read the token from `{}`", file.display()))?;
            (text, format!("`{}`", file.display()))
        }
        (None, Some(text)) if !text.is_empty() => {
            let text = text.to_string_lossy().into_owned();
            (text, format!("`{}`", env_vars::TOKEN))
        }
        (None, _) => return Ok(None),
    };
    let token = Token::parse(&text).map_err(|error| Misuse(format!("{origin}: {error}")))?;
    Ok(Some(token))
}
