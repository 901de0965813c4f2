//! `run`: a task for the agent, or a conversation.

use std::{
    io::{IsTerminal as _, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::{
    agent::{RunResult, ToolLoop, record::Journal, stop::Stopper},
    app::App,
    cli::{
        Global,
        ask::{Asking, approver},
        config::settings_for_tools,
        exit::{Exit, Misuse},
        show::Show,
        signals::{self, Signals},
        terminal::{caution, dim, harmless, next_line, strong},
        trace::{StreamJson, TraceFile},
        write,
    },
    config::Flags,
    event::Observer,
    ids::RunId,
    tool::Canceller,
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
    /// What happens where no rule decides: ask, auto or deny
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
    let prompt = prompt(args.prompt.as_deref())?;
    let output = args.output();
    let (mut messages, repairs) = match &args.history {
        Some(path) => history(path)?,
        None => Default::default(),
    };
    let mut flags = global.flags();
    args.flags(&mut flags);
    let app = App::open(settings_for_tools(global, flags)?).await?;
    let run_id = RunId::random().context("can't get random bytes for the run's id")?;

    let stream_text = output == Output::Text && std::io::stdout().is_terminal();
    let show = Arc::new(Show::new(global.detail(), stream_text));
    show.notes(&app.notes);
    show.notes(&repairs);
    let mut deps = app.deps();
    deps.approver = approver(&app.settings, args.asking.yes, &show, Asking::WherePossible);
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
    let journal = || -> anyhow::Result<Option<Box<dyn Journal>>> {
        let Some(path) = &args.trace else {
            return Ok(None);
        };
        let trace = TraceFile::open(path, run_id.to_string())
            .with_context(|| format!("can't write the trace file `{}`", path.display()))?;
        Ok(Some(Box::new(trace)))
    };

    let Some(prompt) = prompt else {
        return converse(&agent, messages, &show, journal).await;
    };
    messages.push(Message::user(prompt));
    let (result, signal) = run_once(&agent, messages, journal()?).await;
    print(&result, output, stream_text, &show)?;
    if let Some(stream) = stream {
        stream.finish().context("can't write to stdout")?;
    }
    Ok(signal.unwrap_or_else(|| Exit::of(&result)))
}

/// One run, stopped by the first Ctrl-C or a termination; a second one ends the program at once.
async fn run_once(
    agent: &ToolLoop,
    messages: Vec<Message>,
    journal: Option<Box<dyn Journal>>,
) -> (RunResult, Option<Exit>) {
    let (stopper, signal) = Stopper::new();
    let by = Arc::new(OnceLock::new());
    let watch = tokio::spawn(stop_on_signals(
        Signals::new(),
        stopper.clone(),
        Arc::clone(&by),
    ));
    let result = agent.run_until(messages, stopper, signal, journal).await;
    // With it goes the wait for a second signal, which would end a later run of the conversation.
    watch.abort();
    (result, by.get().copied())
}

async fn stop_on_signals(mut signals: Signals, stopper: Stopper, by: Arc<OnceLock<Exit>>) {
    let first = signals.next().await;
    by.get_or_init(|| first);
    stopper.stop(Canceller::User);
    eprintln!(
        "\n{} once more ends the program at once",
        dim().apply_to("stopping;")
    );
    let second = signals.next().await;
    std::process::exit(second.code().into());
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

async fn converse(
    agent: &ToolLoop,
    mut messages: Vec<Message>,
    show: &Show,
    journal: impl Fn() -> anyhow::Result<Option<Box<dyn Journal>>>,
) -> anyhow::Result<Exit> {
    eprintln!(
        "{} · Ctrl-C stops a run, Ctrl-D ends the conversation",
        strong().apply_to(&agent.model)
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
        messages.push(Message::user(line.trim_end()));
        let (result, by) = run_once(agent, messages, journal()?).await;
        if by == Some(Exit::Terminated) {
            return Ok(Exit::Terminated);
        }
        if !result.status.is_success() {
            show.status(&result.status);
        }
        messages = result.messages;
    }
}
