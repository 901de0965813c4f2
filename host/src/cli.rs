//! The command line: one file per subcommand. Data goes to stdout, talk to stderr.

pub mod ask;
pub mod build;
pub mod call;
pub mod completions;
pub mod config;
pub mod demo;
pub mod exit;
pub mod grants;
pub mod import_policy;
pub mod init;
pub mod inspect;
pub mod limits;
pub mod mcp;
pub mod new;
pub mod permissions;
pub mod prompt;
mod requests;
pub mod run;
pub mod schema;
pub mod serve;
mod session;
pub mod show;
mod signals;
pub mod stored;
mod telemetry;
pub mod terminal;
pub mod tools;
pub mod trace;
mod write;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{
    agent::RunError,
    app::{App, AppError},
    cli::{
        exit::{Exit, Misuse},
        show::Detail,
        terminal::{Color, bad, harmless},
    },
    config::{
        ConfigError, Environment, Flags, Inputs, PLUGINS_DIR, Places, Settings, project_template,
        trust::TrustStore,
    },
    sandbox::compiler::{self, Compiler},
    shipped,
};

/// Runs an LLM agent loop whose tools are sandboxed WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "agentloop-host", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command understands.
#[derive(Debug, Args)]
pub struct Global {
    /// Settings, instead of `agentloop.toml` in this folder
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Let the project file count in full this time, grants and all
    #[arg(long, global = true)]
    pub trust: bool,
    /// Set any key of the settings, such as `limits.max_tool_calls=20`; several times
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Say only what went wrong
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Also say what tools log and what the model thinks; twice: the host's own log
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// When to colour
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: Color,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Give the agent a task, or talk with it
    Run(Box<run::RunArgs>),
    /// Call one tool, without a model
    Call(call::CallArgs),
    /// Watch tools run in parallel in their sandboxes, one being killed and one being refused; no key, no network
    Demo(demo::DemoArgs),
    /// List the tools that a run sees, and what was set aside
    Tools(tools::ToolsArgs),
    /// Serve the tools to an MCP client on stdin and stdout, or write the entry that makes a client start this
    Mcp(mcp::McpArgs),
    /// Serve the tools over HTTP
    Serve(serve::ServeArgs),
    /// Say what a .wasm file is, what it requests and what it is granted, without running it
    Inspect(inspect::InspectArgs),
    /// Print a wassette policy (`policy.yaml`) as grants for agentloop.toml, and say what can't be carried over
    ImportPolicy(import_policy::ImportPolicyArgs),
    /// Make a tool crate that builds
    New(new::NewArgs),
    /// Build tool crates, check the components, and install them
    Build(build::BuildArgs),
    /// Write commented settings and the shipped tools into a folder
    Init(init::InitArgs),
    /// List the runs that are kept, or show one
    Runs(stored::RunsArgs),
    /// List the calls that wait for a person, of any run of this user
    Approvals(stored::ApprovalsArgs),
    /// Let a call run that waits
    Approve(stored::ApproveArgs),
    /// Keep a call that waits from running
    Deny(stored::DenyArgs),
    /// Copy the runs that are kept to another file, while they go on
    Backup(stored::BackupArgs),
    /// Look whether anything is wrong with the runs that are kept
    Check,
    /// Say what a call of a tool may use up, and what sets each of these limits
    Limits(limits::LimitsArgs),
    /// Ask the rules about a call
    Permissions(permissions::PermissionsArgs),
    /// List what each plugin requests and is granted, and whether that counts
    Grants(grants::GrantsArgs),
    /// Grant something to a plugin, or let it keep what it is granted although it has changed
    Grant(grants::GrantArgs),
    /// Take everything from a plugin that it is granted
    Revoke(grants::RevokeArgs),
    /// Look at settings, and trust a project's
    Config(config::ConfigArgs),
    /// Print the JSON Schema of the lines that `--output stream-json` and `--trace` write
    Schema,
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

impl Global {
    pub fn detail(&self) -> Detail {
        match (self.quiet, self.verbose) {
            (true, _) => Detail::Quiet,
            (false, 0) => Detail::Normal,
            (false, _) => Detail::Verbose,
        }
    }

    /// The settings that these flags are about.
    pub fn flags(&self) -> Flags {
        let mut flags = Flags::default();
        flags.config = self.config.clone();
        flags.trust = self.trust;
        for setting in &self.set {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            flags.set(key.trim(), "--set", value.trim());
        }
        flags
    }

    /// Settings of this process, its user and its folder, with these flags.
    pub fn settings(&self, flags: Flags) -> anyhow::Result<Settings> {
        Ok(Settings::resolve(&inputs(flags)?)?)
    }
}

/// What settings are resolved from in this process.
pub fn inputs(flags: Flags) -> anyhow::Result<Inputs> {
    Ok(Inputs {
        working_dir: std::env::current_dir()?,
        places: Places::of_this_user()?,
        environment: Environment::of_this_process(),
        flags,
        compiler: Compiler::this_program(),
    })
}

/// The whole program.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // Before anything else is there: it compiles what nobody trusts.
    if arguments
        .next()
        .is_some_and(|name| name == compiler::COMMAND)
    {
        return compiler::compile_stdin(arguments.next());
    }
    let command = Cli::command().after_long_help(Exit::table());
    let cli = match Cli::from_arg_matches(&command.get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    terminal::set_color(cli.global.color);
    let log = if cli.global.verbose > 1 {
        "agentloop_host=debug,warn"
    } else {
        // A peer's faults are answered; they are no news of this host's.
        "warn,rmcp=error"
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(&error.into()),
    };
    let telemetry = match telemetry::start(log, runtime.handle()) {
        Ok(telemetry) => telemetry,
        Err(error) => return report(&error),
    };
    let exit = runtime.block_on(dispatch(&cli));
    drop(telemetry);
    // A prompt that waits for a line, or a closure of an embedder's, must not hold the program up.
    runtime.shutdown_background();
    match exit {
        Ok(exit) => exit,
        Err(error) => report(&error),
    }
}

async fn dispatch(cli: &Cli) -> anyhow::Result<ExitCode> {
    let exit = match &cli.command {
        Command::Run(args) => run::run(args, &cli.global).await?,
        Command::Call(args) => call::run(args, &cli.global).await?,
        Command::Demo(args) => demo::run(args, &cli.global).await?,
        Command::Mcp(args) => mcp::run(args, &cli.global).await?,
        Command::Serve(args) => serve::run(args, &cli.global).await?,
        Command::Runs(args) => stored::runs(args).await?,
        Command::Approvals(args) => stored::approvals(args).await?,
        Command::Approve(args) => stored::approve(args, &cli.global).await?,
        Command::Deny(args) => stored::deny(args).await?,
        Command::Backup(args) => stored::backup(args).await?,
        Command::Check => stored::check().await?,
        Command::Limits(args) => limits::run(args, &cli.global).await?,
        Command::Permissions(args) => permissions::run(args, &cli.global).await?,
        Command::Grants(args) => grants::grants(args, &cli.global).await?,
        Command::Grant(args) => grants::grant(args, &cli.global).await?,
        Command::Revoke(args) => grants::revoke(args, &cli.global).await?,
        Command::Config(args) => config::run(args, &cli.global)?,
        Command::Tools(args) => {
            let settings = config::settings_for_tools(&cli.global, cli.global.flags())?;
            let app = App::open(settings).await?;
            return tools::run(args, &app.registry.now());
        }
        Command::Inspect(args) => {
            let settings = cli.global.settings(cli.global.flags())?;
            return inspect::run(args, &|plugin| settings.grants_for(plugin));
        }
        Command::ImportPolicy(args) => return import_policy::run(args),
        Command::Build(args) => {
            let settings = cli.global.settings(cli.global.flags())?;
            let project_dir = settings.project.path.parent().unwrap_or(Path::new("."));
            let surroundings = build::Surroundings {
                plugins_dir: &project_dir.join(PLUGINS_DIR),
                data_dir: &Places::of_this_user()?.data_dir,
                grants: &|plugin| settings.grants_for(plugin),
            };
            return build::run(args, &surroundings);
        }
        Command::New(args) => return new::run(args, &Places::of_this_user()?.data_dir),
        Command::Init(args) => {
            let exit = init::run(args, &project_template(), &shipped())?;
            trust_what_init_wrote(&args.dir)?;
            return Ok(exit);
        }
        Command::Schema => return schema::run(),
        Command::Completions(args) => return completions::run(args, Cli::command()),
    };
    Ok(exit.into())
}

/// The person has just made this project's settings here, so they count. A file that was there before is left
/// to `config trust`.
fn trust_what_init_wrote(dir: &Path) -> anyhow::Result<()> {
    let mut inputs = inputs(Flags::default())?;
    inputs.working_dir.push(dir);
    let settings = Settings::resolve(&inputs)?;
    let is_template = std::fs::read_to_string(&settings.project.path)
        .is_ok_and(|text| text == project_template());
    if is_template {
        TrustStore::new(&inputs.places.state_dir).trust(&settings.project)?;
    }
    Ok(())
}

fn shipped() -> Vec<init::Shipped<'static>> {
    shipped::for_use()
        .map(|plugin| (plugin.name, plugin.wasm))
        .collect()
}

/// Says what went wrong, with its causes, and finds the exit code.
fn report(error: &anyhow::Error) -> ExitCode {
    let mut text = String::new();
    for (i, cause) in error.chain().enumerate() {
        let cause = cause.to_string();
        // An error that is transparent repeats its source.
        if i > 0 && text.ends_with(&cause) {
            continue;
        }
        if i > 0 {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    eprintln!("{} {}", bad().apply_to("error:"), harmless(&text));
    let exit = if error.is::<ConfigError>() || error.is::<Misuse>() {
        Exit::Usage
    } else if let Some(error) = error.downcast_ref::<AppError>() {
        match error {
            AppError::NoModel
            | AppError::NoScript
            | AppError::Script(_)
            | AppError::BaseUrl { .. } => Exit::Usage,
            AppError::NoKey { .. } => Exit::Auth,
            AppError::Sandbox(_) | AppError::Registry(_) | AppError::Client(_) => Exit::Failed,
        }
    } else if error.is::<RunError>() {
        Exit::Provider
    } else {
        Exit::Failed
    };
    exit.into()
}
