//! `run`: a task for the agent, or a conversation.

use std::{
    io::{IsTerminal as _, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::{
    agent::{Left, RunResult, durable},
    app::App,
    cli::{
        Global,
        ask::{Asking, approver},
        config::settings_for_tools,
        exit::{Exit, Misuse},
        session::{Anywhere, Session},
        show::Show,
        signals,
        stored::{find_run, open_store},
        terminal::{caution, harmless, next_line, strong},
        trace::StreamJson,
        write,
    },
    config::Flags,
    event::Observer,
    ids::RunId,
    storage::{RunState, RunStore, StoredRun},
    transcript::{
        Message,
        repair::{self, Repair},
    },
};

/// Longest prompt that is read from stdin.
const MAX_PROMPT_BYTES: u64 = 16 << 20;

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The task. `-` reads it from stdin; without one, a pipe is read, and a terminal begins a conversation
    pub prompt: Option<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub asking: AskingArgs,
    /// Offer only these tools: `plugin.tool` with `*`; several times or separated by commas
    #[arg(long, value_name = "GLOB", value_delimiter = ',')]
    pub tools: Vec<String>,
    /// At most so many model requests
    #[arg(long, value_name = "N")]
    pub max_iterations: Option<String>,
    /// At most so long, such as `90s` or `10m`
    #[arg(long, value_name = "TIME")]
    pub wall_time: Option<String>,
    /// Run the calls of a turn one after another
    #[arg(long)]
    pub no_parallel: bool,
    /// Continue the conversation in this file, as `--json` gives it
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Go on with a run that is kept: the beginning of its id, or `last`. One that has ended takes a further task
    #[arg(long, value_name = "RUN", conflicts_with_all = ["history", "fork", "ephemeral"])]
    pub resume: Option<String>,
    /// Begin a new run with the conversation of one that is kept
    #[arg(long, value_name = "RUN", conflicts_with = "history")]
    pub fork: Option<String>,
    /// Keep nothing of this run
    #[arg(long)]
    pub ephemeral: bool,
    /// Where an approval is needed, end the program; the run waits for `approve` or `deny`, then for `--resume`
    #[arg(long, conflicts_with_all = ["ephemeral", "yes"])]
    pub unattended: bool,
    /// Append every event but streamed pieces, progress and logs to this file, a line of JSON each
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// What goes to stdout
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    pub output: Output,
    /// The whole result as one JSON object on stdout; short for `--output json`
    #[arg(long)]
    pub json: bool,
}

/// Which model, and how it is asked.
#[derive(Debug, Default, Args)]
pub struct ModelArgs {
    /// Which model to ask
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The kind of endpoint: anthropic, openai (and whatever speaks chat completions) or scripted
    #[arg(long, value_name = "KIND")]
    pub provider: Option<String>,
    /// Where the endpoint is, such as `http://127.0.0.1:8080/v1`
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// The system prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Output tokens of one reply
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<String>,
    /// Offer the tools as a response format, for local models that can't call tools
    #[arg(long)]
    pub tools_as_schema: bool,
    /// The replies of the provider `scripted`
    #[arg(long, value_name = "FILE")]
    pub script: Option<String>,
}

/// When to ask, and who answers.
#[derive(Debug, Default, Args)]
pub struct AskingArgs {
    /// Allow what would be asked; what is denied stays denied
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Allow this: a rule such as `files.write_file(path:/notes/**)`; several times
    #[arg(long, value_name = "RULE")]
    pub allow: Vec<String>,
    /// Deny this; several times
    #[arg(long, value_name = "RULE")]
    pub deny: Vec<String>,
    /// What happens where no rule decides: ask, auto, deny or plan
    #[arg(long, value_name = "MODE")]
    pub permission_mode: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// What the model says in the end
    #[default]
    Text,
    /// The whole result as one JSON object
    Json,
    /// Every event as it happens, a line of JSON each
    StreamJson,
}

impl RunArgs {
    pub fn flags(&self, flags: &mut Flags) {
        self.model.flags(flags);
        self.asking.flags(flags);
        for glob in &self.tools {
            flags.set("tools", "--tools", glob);
        }
        let given = [
            (
                "limits.max_iterations",
                "--max-iterations",
                &self.max_iterations,
            ),
            ("limits.wall_time", "--wall-time", &self.wall_time),
        ];
        set_given(flags, &given);
        if self.no_parallel {
            flags.set("limits.parallel", "--no-parallel", "false");
        }
    }

    fn output(&self) -> Output {
        if self.json { Output::Json } else { self.output }
    }
}

impl ModelArgs {
    pub fn flags(&self, flags: &mut Flags) {
        let given = [
            ("model", "--model", &self.model),
            ("provider", "--provider", &self.provider),
            ("base_url", "--base-url", &self.base_url),
            ("system", "--system", &self.system),
            ("limits.max_tokens", "--max-tokens", &self.max_tokens),
            ("script", "--script", &self.script),
        ];
        set_given(flags, &given);
        if self.tools_as_schema {
            flags.set("openai.tools_as_schema", "--tools-as-schema", "true");
        }
    }
}

impl AskingArgs {
    pub fn flags(&self, flags: &mut Flags) {
        for rule in &self.allow {
            flags.set("permissions.allow", "--allow", rule);
        }
        for rule in &self.deny {
            flags.set("permissions.deny", "--deny", rule);
        }
        set_given(
            flags,
            &[(
                "permissions.mode",
                "--permission-mode",
                &self.permission_mode,
            )],
        );
    }
}

fn set_given(flags: &mut Flags, given: &[(&str, &'static str, &Option<String>)]) {
    for (key, flag, value) in given {
        if let Some(value) = value {
            flags.set(*key, flag, value.as_str());
        }
    }
}

pub async fn run(args: &RunArgs, global: &Global) -> anyhow::Result<Exit> {
    let known = match args.resume.as_ref().or(args.fork.as_ref()) {
        Some(id) => Some(find_run(&*open_store()?, id).await?),
        None => None,
    };
    let prompt = match &known {
        // What has not ended goes on without a word.
        Some(run) if args.resume.is_some() && run.state != RunState::Ended => args.prompt.clone(),
        Some(_) | None => prompt(args.prompt.as_deref())?,
    };
    let output = args.output();
    let mut flags = global.flags();
    args.flags(&mut flags);
    let app = App::open(settings_for_tools(global, flags)?).await?;
    let stream_text = output == Output::Text && std::io::stdout().is_terminal();
    let show = Arc::new(Show::new(global.detail(), stream_text));
    show.notes(&app.notes);
    let resumed = known.as_ref().filter(|_| args.resume.is_some());
    let run_id = match resumed {
        Some(run) => run.id,
        None => RunId::random().context("can't get random bytes for the run's id")?,
    };
    let store = store(args, &show)?;

    let scope = match resumed {
        Some(run) => run.scope.clone(),
        None => app.settings.scope(),
    };
    let mut deps = app.deps();
    let here = approver(&app.settings, args.asking.yes, &show, Asking::WherePossible);
    let goes_on_alone = resumed.is_some_and(|run| run.state != RunState::Ended);
    // A run that has waited for answers goes on with them, and waits again where nobody can be asked.
    let is_unattended = args.unattended || (goes_on_alone && here.is_none());
    deps.approver = match &store {
        Some(store) if is_unattended || (here.is_some() && !args.asking.yes) => {
            let here = here.filter(|_| !is_unattended);
            Some(Arc::new(Anywhere::new(
                here,
                Arc::clone(store),
                run_id,
                scope.clone(),
            )))
        }
        Some(_) | None => here,
    };
    deps.observers.push(Arc::clone(&show) as Arc<dyn Observer>);
    let stream =
        (output == Output::StreamJson).then(|| Arc::new(StreamJson::new(run_id.to_string())));
    deps.observers.extend(
        stream
            .iter()
            .map(|stream| Arc::clone(stream) as Arc<dyn Observer>),
    );
    let agent = app.agent(deps)?;
    let _watching = app.watch();
    let session = match (&known, &store) {
        (Some(run), Some(store)) if args.resume.is_some() => {
            let spec = durable::spec(&**store, run).await?;
            if run.scope != app.settings.scope() {
                show.notes(&[format!(
                    "this run was begun with the settings of {}; it goes on with those of {}",
                    run.scope,
                    app.settings.scope()
                )]);
            }
            Session::stored(spec.applied_to(agent)?, run, Arc::clone(store))
        }
        _ => {
            let messages = begin(args, known.as_ref(), &show).await?;
            Session::new(agent, run_id, scope, messages, store)
        }
    };
    let mut session = session
        .traced_to(args.trace.clone())
        .unattended(is_unattended);

    if prompt.is_none() && !goes_on_alone {
        return converse(session, &show).await;
    }
    let (left, signal) = session.go(prompt).await?;
    let exit = match &left {
        Left::Ended(result) | Left::NotRecorded { result, .. } => {
            print(result, output, stream_text, &show)?;
            if !result.status.is_success() {
                show.how_to_go_on(&session);
            }
            Exit::of(result)
        }
        Left::WaitsForPerson => {
            show.how_to_go_on(&session);
            Exit::Waiting
        }
    };
    if let Some(stream) = stream {
        stream.finish().context("can't write to stdout")?;
    }
    Ok(signal.unwrap_or(exit))
}

/// Where the run is kept. A run that can't be kept is better than none, unless what it needs is there.
fn store(args: &RunArgs, show: &Show) -> anyhow::Result<Option<Arc<dyn RunStore>>> {
    if args.ephemeral {
        return Ok(None);
    }
    match open_store() {
        Ok(store) => Ok(Some(store)),
        Err(error) if args.resume.is_some() || args.unattended => Err(error),
        Err(error) => {
            show.notes(&[format!("this run is not kept: {error}")]);
            Ok(None)
        }
    }
}

/// The messages that a new run begins with.
async fn begin(
    args: &RunArgs,
    forked: Option<&StoredRun>,
    show: &Show,
) -> anyhow::Result<Vec<Message>> {
    if let Some(path) = &args.history {
        let (messages, repairs) = history(path)?;
        show.notes(&repairs);
        return Ok(messages);
    }
    match forked {
        None => Ok(Vec::new()),
        Some(run) => {
            let store = open_store()?;
            let spec = durable::spec(&*store, run).await?;
            let replayed = durable::replayed(&*store, run, &spec).await?;
            Ok(replayed.into_result().messages)
        }
    }
}

/// What the person wants, or `None` for a conversation.
fn prompt(argument: Option<&str>) -> anyhow::Result<Option<String>> {
    let from_stdin = match argument {
        Some("-") => true,
        Some(text) => {
            Misuse::unless(
                !text.trim().is_empty(),
                "the prompt is empty; say what is to be done",
            )?;
            return Ok(Some(text.to_owned()));
        }
        None => !std::io::stdin().is_terminal(),
    };
    if !from_stdin {
        return Ok(None);
    }
    let mut text = String::new();
    let n_bytes = std::io::stdin()
        .lock()
        .take(MAX_PROMPT_BYTES + 1)
        .read_to_string(&mut text)
        .context("can't read the prompt from stdin")?;
    Misuse::unless(
        n_bytes as u64 <= MAX_PROMPT_BYTES,
        "the prompt on stdin is longer than 16 MiB",
    )?;
    Misuse::unless(
        !text.trim().is_empty(),
        "the prompt on stdin is empty; say what is to be done",
    )?;
    Ok(Some(text))
}

/// The messages of a file, which holds a list of them or a whole result of `--json`, and what had to be mended.
fn history(path: &Path) -> anyhow::Result<(Vec<Message>, Vec<String>)> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Misuse(format!(
            "can't read the history `{}`: {error}",
            path.display()
        ))
    })?;
    let read = || {
        let mut value: Value = serde_json::from_str(&text)?;
        let messages = value.get_mut("messages").map(Value::take);
        repair::from_value(messages.unwrap_or(value))
    };
    let (messages, repairs) = read().map_err(|error| {
        Misuse(format!(
            "`{}` is no conversation: {error}; it takes what `run --json` prints, or its `messages`",
            path.display()
        ))
    })?;
    let noted = |repair: Repair| format!("history `{}`: {repair}", path.display());
    Ok((messages, repairs.into_iter().map(noted).collect()))
}

fn print(result: &RunResult, output: Output, text_shown: bool, show: &Show) -> anyhow::Result<()> {
    match output {
        Output::Text if text_shown => {}
        Output::Text => {
            if let Some(text) = result.final_text() {
                // A pipe gets the text as it is; a terminal must not be steered by it.
                let text = if std::io::stdout().is_terminal() {
                    harmless(text)
                } else {
                    text.to_owned()
                };
                write::stdout(&format!("{text}\n"))?;
            }
        }
        Output::Json => {
            let mut value = serde_json::to_value(result)?;
            if let Some(object) = value.as_object_mut() {
                object.insert("final_text".into(), result.final_text().into());
            }
            write::stdout(&format!("{value:#}\n"))?;
        }
        Output::StreamJson => {}
    }
    if !result.status.is_success() {
        show.status(&result.status);
    }
    Ok(())
}

async fn converse(mut session: Session, show: &Show) -> anyhow::Result<Exit> {
    eprintln!(
        "{} · Ctrl-C stops a run, Ctrl-D ends the conversation",
        strong().apply_to(&session.agent.model)
    );
    loop {
        eprint!("{} ", caution().apply_to("›"));
        let line = tokio::select! {
            line = next_line() => line.context("can't read from the terminal")?,
            // After the first run a signal no longer ends the program by itself.
            signal = signals::next() => {
                eprintln!();
                return Ok(signal);
            }
        };
        let Some(line) = line else {
            eprintln!();
            return Ok(Exit::Done);
        };
        if line.trim().is_empty() {
            continue;
        }
        let (left, by) = session.go(Some(line.trim_end().to_owned())).await?;
        if by == Some(Exit::Terminated) {
            return Ok(Exit::Terminated);
        }
        match &left {
            Left::Ended(result) | Left::NotRecorded { result, .. } => {
                if !result.status.is_success() {
                    show.status(&result.status);
                }
            }
            Left::WaitsForPerson => {
                show.how_to_go_on(&session);
                return Ok(Exit::Waiting);
            }
        }
    }
}
