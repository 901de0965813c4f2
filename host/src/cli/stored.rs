//! Runs that are kept, and the questions they ask: `runs`, `approvals`, `approve`, `deny`, `backup`, `check`.

use std::{
    fmt::Write as _,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Global,
    ask::remember,
    exit::{Exit, Misuse},
    terminal::{caution, dim, good, harmless, one_line, strong},
    write,
};
use crate::{
    agent::durable,
    approvals::Answer,
    config::Places,
    event::RunEvent,
    ids::RunId,
    storage::{Question, RunStore, StoredEvent, StoredRun, Wanted, now_ms, sqlite::SqliteStore},
    transcript::Usage,
};

/// Runs that are looked through for the beginning of an id.
const MAX_LOOKED: usize = 10_000;
const MIN_PREFIX: usize = 4;
/// Events that are read at once.
const PAGE: usize = 1000;

/// The runs of this user.
pub(super) fn open_store() -> anyhow::Result<Arc<SqliteStore>> {
    let path = Places::of_this_user()?.runs_file();
    Ok(Arc::new(SqliteStore::open(&path)?))
}

/// The run of this id, or of an id that begins so, or the newest.
pub(super) async fn find_run(store: &dyn RunStore, id: &str) -> anyhow::Result<StoredRun> {
    if let Some(id) = RunId::parse(id)
        && let Some(run) = store.run(id).await?
    {
        return Ok(run);
    }
    let is_last = id == "last";
    Misuse::unless(
        is_last || id.len() >= MIN_PREFIX,
        "say at least the first four digits of the run's id, or `last`",
    )?;
    let wanted = Wanted {
        limit: if is_last { 1 } else { MAX_LOOKED },
        ..Wanted::default()
    };
    let mut runs = store.runs(wanted).await?;
    if !is_last {
        runs.retain(|run| run.id.to_string().starts_with(id));
    }
    match (runs.pop(), runs.len()) {
        (Some(run), 0) => Ok(run),
        (Some(_), _) => Err(Misuse(format!(
            "several runs begin with `{id}`; say more of the id"
        ))
        .into()),
        (None, _) => Err(Misuse(format!(
            "no run that is kept begins with `{id}`; `agentloop-host runs` lists them"
        ))
        .into()),
    }
}

#[derive(Debug, Args)]
pub struct RunsArgs {
    #[command(subcommand)]
    command: Option<RunsCommand>,
    /// Only runs in this state: running, waiting, completed, failed, cancelled or a limit
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum RunsCommand {
    /// One run: its turns and calls with their times, its usage, what it came to
    Show(ShowArgs),
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// The beginning of its id, or `last`
    run: String,
    /// The conversation and the trace as one JSON object, as `run --json` gives it
    #[arg(long, conflicts_with_all = ["markdown", "events"])]
    json: bool,
    /// The trace in Markdown
    #[arg(long, conflicts_with = "events")]
    markdown: bool,
    /// Every event, a line of JSON each
    #[arg(long)]
    events: bool,
}

pub async fn runs(args: &RunsArgs) -> anyhow::Result<Exit> {
    let store = open_store()?;
    if let Some(RunsCommand::Show(args)) = &args.command {
        return show(args, &*store).await;
    }
    let runs = store
        .runs(Wanted {
            word: args.state.clone(),
            limit: args.limit,
            ..Wanted::default()
        })
        .await?;
    let text = match args.json {
        true => format!(
            "{:#}\n",
            json!({"runs": runs.iter().map(in_json).collect::<Vec<_>>()})
        ),
        false if runs.is_empty() => "no runs are kept\n".to_owned(),
        false => runs.iter().map(line).collect(),
    };
    write::stdout(&text)?;
    Ok(Exit::Done)
}

fn in_json(run: &StoredRun) -> Value {
    json!({
        "id": run.id.to_string(),
        "state": run.word,
        "ending": run.ending,
        "title": run.title,
        "model": run.model,
        "created_ms": run.created_ms,
        "ended_ms": run.ended_ms,
        "turns": run.turns,
        "calls": run.calls,
        "asked": run.asked,
        "usage": run.usage,
    })
}

fn line(run: &StoredRun) -> String {
    let id = run.id.to_string();
    let word = match &*run.word {
        "completed" => good().for_stdout().apply_to(&run.word),
        "waiting" => caution().for_stdout().apply_to(&run.word),
        _ => dim().for_stdout().apply_to(&run.word),
    };
    format!(
        "{}  {word:<10}  {:>9}  {:>2} turns {:>3} calls  {}\n",
        &id[..8],
        age(run.created_ms),
        run.turns,
        run.calls,
        one_line(&run.title, 60)
    )
}

fn age(since_ms: u64) -> String {
    let seconds = now_ms().saturating_sub(since_ms) / 1000;
    match seconds {
        0..=119 => format!("{seconds} s ago"),
        120..=7199 => format!("{} min ago", seconds / 60),
        7200..=172_799 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

fn tokens(usage: Usage) -> String {
    let count = |n: Option<u64>| n.map_or_else(|| "?".into(), |n| n.to_string());
    format!("{} in, {} out", count(usage.input), count(usage.output))
}

async fn events(store: &dyn RunStore, run: &StoredRun) -> anyhow::Result<Vec<StoredEvent>> {
    let mut all = Vec::new();
    while (all.len() as u64) < run.next_seq {
        let events = store.read(run.number, all.len() as u64, PAGE).await?;
        if events.is_empty() {
            break;
        }
        all.extend(events);
    }
    Ok(all)
}

async fn show(args: &ShowArgs, store: &dyn RunStore) -> anyhow::Result<Exit> {
    let run = find_run(store, &args.run).await?;
    let events = events(store, &run).await?;
    let text = if args.events {
        let id = run.id.to_string();
        let lines = events
            .iter()
            .map(|event| serde_json::to_string(&event.line(&id)));
        let lines: Vec<String> = lines.collect::<Result<_, _>>()?;
        lines.join("\n") + "\n"
    } else {
        let spec = durable::spec(store, &run).await?;
        let result = durable::replayed(store, &run, &spec).await?.into_result();
        if args.markdown {
            // A pipe gets it as it is; a terminal must not be steered by it.
            for_reader(&result.to_markdown())
        } else if args.json {
            let mut value = serde_json::to_value(&result)?;
            if let Some(object) = value.as_object_mut() {
                object.insert("run".into(), in_json(&run));
                object.insert("final_text".into(), result.final_text().into());
            }
            format!("{value:#}\n")
        } else {
            let mut text = timeline(&run, &events);
            if let Some(said) = result.final_text() {
                let _ = write!(text, "\n{}\n", harmless(said));
            }
            text
        }
    };
    write::stdout(&text)?;
    Ok(Exit::Done)
}

fn for_reader(text: &str) -> String {
    use std::io::IsTerminal as _;
    match std::io::stdout().is_terminal() {
        true => harmless(text),
        false => text.to_owned(),
    }
}

/// What happened when, from the beginning of the run. Calls that ran side by side overlap in their times.
fn timeline(run: &StoredRun, events: &[StoredEvent]) -> String {
    let mut text = format!(
        "{}  {}\n{} · {} · {} turns · {} calls · {}\n",
        strong().for_stdout().apply_to(run.id),
        run.word,
        harmless(&run.model),
        age(run.created_ms),
        run.turns,
        run.calls,
        tokens(run.usage),
    );
    if let Some(ending) = &run.ending {
        let _ = writeln!(text, "{}", harmless(ending));
    }
    let _ = writeln!(text, "\n{}", one_line(&run.title, 200));
    let begun = events.first().map_or(run.created_ms, |event| event.at_ms);
    let mut started: Vec<(&crate::ids::ToolUseId, u64)> = Vec::new();
    for event in events {
        let at = event.at_ms.saturating_sub(begun);
        let what = match &event.event {
            RunEvent::TurnEnded {
                turn,
                stop_reason,
                usage,
                ..
            } => {
                format!("turn {turn}  {}  {}", stop_reason.as_str(), tokens(*usage))
            }
            RunEvent::CallStarted { id, .. } => {
                started.push((id, at));
                continue;
            }
            RunEvent::ApprovalRequested { tool, why, .. } => {
                format!("  {tool}  asked: {}", one_line(why, 100))
            }
            RunEvent::ApprovalAnswered {
                allowed, reason, ..
            } => {
                let word = if *allowed { "allowed" } else { "denied" };
                let reason = reason.as_deref().unwrap_or_default();
                format!("  {word} {}", one_line(reason, 100))
            }
            RunEvent::CallEnded {
                id, tool, outcome, ..
            } => {
                let from = started.iter().rev().find(|(started, _)| *started == id);
                let span = match from {
                    Some((_, from)) => format!("{} – {}", seconds(*from), seconds(at)),
                    None => "not run".to_owned(),
                };
                format!("  {}  {span}  {outcome}", one_line(tool, 40))
            }
            RunEvent::Noted { text } => format!("note: {}", one_line(text, 160)),
            RunEvent::RunContinued { text } => format!("more: {}", one_line(text, 160)),
            RunEvent::RunEnded { status, .. } => format!("{status}"),
            RunEvent::RunStarted { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::TextStreamed { .. }
            | RunEvent::ReasoningStreamed { .. }
            | RunEvent::ToolUseStreamed { .. }
            | RunEvent::ModelRetried { .. }
            | RunEvent::CallRequested { .. }
            | RunEvent::CallQueued { .. }
            | RunEvent::CallProgressed { .. }
            | RunEvent::CallLogged { .. }
            | RunEvent::OutputCut { .. } => continue,
        };
        let _ = writeln!(text, "{:>10}  {what}", seconds(at));
    }
    text
}

fn seconds(ms: u64) -> String {
    format!("{:.3} s", Duration::from_millis(ms).as_secs_f64())
}

#[derive(Debug, Args)]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    command: Option<ApprovalsCommand>,
    /// One JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ApprovalsCommand {
    /// What waits for an answer; also without this word
    List,
}

pub async fn approvals(args: &ApprovalsArgs) -> anyhow::Result<Exit> {
    let open = open_store()?.open_questions().await?;
    let text = if args.json {
        let open: Vec<Value> = open.iter().map(question_in_json).collect();
        format!("{:#}\n", json!({ "approvals": open }))
    } else if open.is_empty() {
        "nothing waits for an answer\n".to_owned()
    } else {
        let open: Vec<String> = open.iter().map(question_in_text).collect();
        open.join("\n")
    };
    write::stdout(&text)?;
    Ok(Exit::Done)
}

fn question_in_json(question: &Question) -> Value {
    let request = &question.request;
    json!({
        "id": question.id,
        "run": question.run.map(|run| run.to_string()),
        "call": request.call.id,
        "tool": request.call.tool,
        "rule_name": request.rule_name,
        "digest": request.digest,
        "arguments": request.call.input,
        "may_touch": request.may_touch,
        "why": request.why,
        "asked_ms": question.asked_ms,
        "expires_ms": question.expires_ms,
    })
}

/// Host text at the margin, what the model wrote behind a bar.
fn question_in_text(question: &Question) -> String {
    let request = &question.request;
    let mut text = format!(
        "{}  {}  asked {}{}\n",
        strong().for_stdout().apply_to(&question.id[..8]),
        one_line(&request.rule_name, 140),
        age(question.asked_ms),
        match question.run {
            Some(run) => format!(" by run {}", &run.to_string()[..8]),
            None => " by a client".to_owned(),
        }
    );
    let input = serde_json::to_string_pretty(&request.call.input).unwrap_or_default();
    for line in harmless(&input).lines() {
        let _ = writeln!(text, "  │ {line}");
    }
    for line in &request.may_touch {
        let _ = writeln!(text, "  may {}", one_line(line, 200));
    }
    let _ = writeln!(text, "  asked because {}", one_line(&request.why, 200));
    if let Some(digest) = &request.digest {
        let _ = writeln!(text, "  {}", dim().for_stdout().apply_to(digest));
    }
    text
}

#[derive(Debug, Args)]
pub struct ApproveArgs {
    /// The beginning of the question's id, as `approvals` shows it
    question: String,
    /// Also every later call of this tool in this run
    #[arg(long, conflicts_with = "always")]
    run: bool,
    /// Also in later runs: writes an allow rule into the settings of this folder
    #[arg(long)]
    always: bool,
}

#[derive(Debug, Args)]
pub struct DenyArgs {
    /// The beginning of the question's id, as `approvals` shows it
    question: String,
    /// Why; the model reads it
    reason: Option<String>,
    /// Also stop the run
    #[arg(long, conflicts_with = "reason")]
    stop: bool,
}

pub async fn approve(args: &ApproveArgs, global: &Global) -> anyhow::Result<Exit> {
    let answer = match (args.run, args.always) {
        (_, true) => Answer::Always,
        (true, _) => Answer::ForThisRun,
        (false, false) => Answer::Once,
    };
    let remember = match args.always {
        true => remember(&global.settings(global.flags())?),
        false => None,
    };
    let question = decide(&args.question, answer).await?;
    let mut said = format!("allowed: {}", one_line(&question.request.rule_name, 140));
    if args.always {
        let written = match remember {
            Some(remember) => remember(&question.request),
            None => Err("there is no place to write the rule to".to_owned()),
        };
        match written {
            Ok(where_to) => said = format!("{said}; {}", harmless(&where_to)),
            Err(why) => said = format!("{said}, for this run only: {}", harmless(&why)),
        }
    }
    write::stdout(&format!("{said}\n"))?;
    Ok(Exit::Done)
}

pub async fn deny(args: &DenyArgs) -> anyhow::Result<Exit> {
    let answer = match args.stop {
        true => Answer::Stop,
        false => Answer::Deny {
            reason: args.reason.clone(),
        },
    };
    let question = decide(&args.question, answer).await?;
    write::stdout(&format!(
        "denied: {}\n",
        one_line(&question.request.rule_name, 140)
    ))?;
    Ok(Exit::Done)
}

async fn decide(id: &str, answer: Answer) -> anyhow::Result<Question> {
    Misuse::unless(
        id.len() >= MIN_PREFIX,
        "say at least the first four digits of the question's id",
    )?;
    let store = open_store()?;
    let mut open = store.open_questions().await?;
    open.retain(|question| question.id.starts_with(id));
    let id = match &*open {
        [question] => &question.id,
        // One that is over says so by itself.
        [] => id,
        _ => {
            return Err(Misuse(format!(
                "several questions begin with `{id}`; say more of the id"
            ))
            .into());
        }
    };
    let decided = store.decide(id, answer, "command line").await?;
    decided.with_context(|| format!("question `{}` takes no answer", one_line(id, 40)))
}

#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The copy; it must not be there yet
    file: PathBuf,
}

pub async fn backup(args: &BackupArgs) -> anyhow::Result<Exit> {
    open_store()?.backup(&args.file).await?;
    write::stdout(&format!(
        "the runs are now in `{}` as well\n",
        args.file.display()
    ))?;
    Ok(Exit::Done)
}

/// Looks for damage.
pub async fn check() -> anyhow::Result<Exit> {
    let store = open_store()?;
    let begun = SystemTime::now();
    let mut faults = store.check().await?;
    let mut n_runs = 0;
    let mut before = None;
    loop {
        let wanted = Wanted {
            before,
            limit: PAGE,
            ..Wanted::default()
        };
        let runs = store.runs(wanted).await?;
        let Some(last) = runs.last() else { break };
        before = Some(last.number);
        for run in &runs {
            n_runs += 1;
            let replayed = async {
                let spec = durable::spec(&*store, run).await?;
                anyhow::Ok(durable::replayed(&*store, run, &spec).await?)
            };
            if let Err(error) = replayed.await {
                faults.push(format!("run {} can't be read: {error:#}", run.id));
            }
        }
    }
    for fault in &faults {
        eprintln!("{} {}", caution().apply_to("fault:"), harmless(fault));
    }
    if !faults.is_empty() {
        return Ok(Exit::Failed);
    }
    let took = begun.elapsed().unwrap_or_default();
    write::stdout(&format!(
        "{n_runs} runs, nothing wrong ({:.1} s)\n",
        took.as_secs_f64()
    ))?;
    Ok(Exit::Done)
}
