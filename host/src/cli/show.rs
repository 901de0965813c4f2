//! A run on a terminal: one line for each call that runs, and what became of it. Without a terminal, a line
//! for each change.

use std::{
    collections::HashMap,
    io::{IsTerminal as _, Write as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    agent::run::RunStatus,
    cli::{
        session::Session,
        terminal::{bad, caution, dim, good, harmless, one_line, strong},
    },
    event::{LogLevel, Observer, RunEvent},
    ids::ToolUseId,
    transcript::ToolResult,
};

/// How much is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Nothing but errors.
    Quiet,
    Normal,
    /// Also what tools log, and what the model thinks.
    Verbose,
}

/// Longest line of a call's arguments or result.
const MAX_LINE_CHARS: usize = 100;
/// Most lines that are kept for after a question.
const MAX_HELD_LINES: usize = 1_000;

/// Shows a run on stderr, and on stdout what the model says when that is a terminal too.
pub struct Show {
    detail: Detail,
    /// The model's text goes to stdout as it comes. Otherwise stdout is for the result alone.
    stream_text: bool,
    /// Lines of running calls are drawn and redrawn.
    live: bool,
    lines: MultiProgress,
    held: Mutex<Held>,
    /// Held for one event; observers are called one at a time anyway.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: HashMap<ToolUseId, Call>,
    /// The cursor stands behind text that the model is saying.
    mid_line: bool,
}

/// What waits while a person is asked.
#[derive(Default)]
struct Held {
    questions: usize,
    lines: Vec<String>,
}

/// While this lives nothing is drawn: a person is reading a question.
#[must_use]
pub struct Paused<'a>(&'a Show);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let mut held = self.0.held();
        held.questions -= 1;
        if held.questions > 0 {
            return;
        }
        if self.0.live {
            self.0.lines.set_draw_target(ProgressDrawTarget::stderr());
        }
        for line in held.lines.drain(..) {
            self.0.print(&line);
        }
    }
}

struct Call {
    tool: String,
    input: String,
    line: Option<ProgressBar>,
}

impl Show {
    /// `stream_text`: stdout is a person's terminal, and the run's result is not wanted as JSON.
    pub fn new(detail: Detail, stream_text: bool) -> Self {
        let target = if std::io::stderr().is_terminal() && detail > Detail::Quiet {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        // A terminal without a cursor (`TERM=dumb`) gets plain lines as well.
        let live = !target.is_hidden();
        let lines = MultiProgress::with_draw_target(target);
        Self {
            detail,
            stream_text,
            live,
            lines,
            held: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Hides the lines of running calls until the guard is dropped, and keeps what there is to say for then. The
    /// run goes on meanwhile: whoever observes it must never wait for a person.
    pub fn pause(&self) -> Paused<'_> {
        let mut held = self.held();
        held.questions += 1;
        if held.questions == 1 && self.live {
            // Only a broken terminal makes this fail, and then there is nobody to tell.
            let _ = self.lines.clear();
            self.lines.set_draw_target(ProgressDrawTarget::hidden());
        }
        Paused(self)
    }

    /// What a person should know before anything runs.
    pub fn notes(&self, notes: &[String]) {
        for note in notes {
            self.say(&format!(
                "{} {}",
                caution().apply_to("note:"),
                harmless(note)
            ));
        }
    }

    /// How a run ended that did not succeed; told even where nothing else is.
    /// What a person can do with a run that was left.
    pub(super) fn how_to_go_on(&self, session: &Session) {
        if !session.is_kept() {
            return;
        }
        let id = &session.run.to_string()[..8];
        self.say(&format!(
            "{} `agentloop-host runs show {id}` shows it, `agentloop-host run --resume {id}` goes on with it",
            dim().apply_to("this run is kept:")
        ));
    }

    pub fn status(&self, status: &RunStatus) {
        self.say_or_hold(&format!(
            "{} {}",
            bad().apply_to(format!("{}:", status.word())),
            harmless(&status.sentence())
        ));
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, line: &str) {
        if self.detail > Detail::Quiet {
            self.say_or_hold(line);
        }
    }

    fn say_or_hold(&self, line: &str) {
        let mut held = self.held();
        if held.questions == 0 {
            self.print(line);
        } else if held.lines.len() < MAX_HELD_LINES {
            held.lines.push(line.to_owned());
        }
    }

    fn print(&self, line: &str) {
        if self.live {
            // Only a broken terminal makes this fail, and then there is nobody to tell.
            let _ = self.lines.println(line);
        } else {
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    fn say_text(&self, state: &mut State, text: &str) {
        if !self.stream_text {
            return;
        }
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "{}", harmless(text));
        let _ = out.flush();
        state.mid_line = !text.ends_with('\n');
    }

    fn end_text(state: &mut State) {
        if std::mem::take(&mut state.mid_line) {
            let _ = writeln!(std::io::stdout());
        }
    }

    fn started(&self, call: &mut Call) {
        if !self.live {
            self.say(&format!(
                "  {} {} {}",
                dim().apply_to("…"),
                call.tool,
                dim().apply_to(&call.input)
            ));
            return;
        }
        let line = call
            .line
            .get_or_insert_with(|| self.lines.add(ProgressBar::new_spinner()));
        line.set_style(running());
        line.set_prefix(call.tool.clone());
        line.set_message(call.input.clone());
        line.enable_steady_tick(Duration::from_millis(80));
    }
}

impl Observer for Show {
    fn observe(&self, event: &RunEvent) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        match event {
            RunEvent::RunStarted { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::ToolUseStreamed { .. } => {}
            RunEvent::TextStreamed { text } => self.say_text(state, text),
            RunEvent::ReasoningStreamed { text } => {
                if self.detail == Detail::Verbose {
                    self.say(&dim().apply_to(harmless(text)).to_string());
                }
            }
            RunEvent::ModelRetried {
                attempt,
                wait_ms,
                error,
            } => self.say(&format!(
                "{} {}; attempt {} in {:.1} s",
                caution().apply_to("retrying:"),
                one_line(error, 300),
                attempt + 1,
                *wait_ms as f64 / 1e3
            )),
            RunEvent::TurnEnded { .. } => Self::end_text(state),
            RunEvent::CallRequested { id, tool, input } => {
                let input = serde_json::to_string(input).unwrap_or_default();
                let call = Call {
                    tool: one_line(tool, 64),
                    input: one_line(&input, MAX_LINE_CHARS),
                    line: None,
                };
                state.calls.insert(id.clone(), call);
            }
            RunEvent::ApprovalRequested { .. } => {}
            RunEvent::ApprovalAnswered { .. } => {}
            RunEvent::CallQueued { id } => {
                if let Some(call) = state.calls.get_mut(id).filter(|_| self.live) {
                    let line = self.lines.add(ProgressBar::new_spinner());
                    line.set_style(waiting());
                    line.set_prefix(call.tool.clone());
                    line.set_message("waits for its turn");
                    line.tick();
                    call.line = Some(line);
                }
            }
            RunEvent::CallStarted { id, .. } => {
                if let Some(call) = state.calls.get_mut(id) {
                    self.started(call);
                }
            }
            RunEvent::CallProgressed {
                id,
                done,
                total,
                message,
            } => {
                if let Some(line) = state.calls.get(id).and_then(|call| call.line.as_ref()) {
                    let of = total.map(|total| format!("/{total}")).unwrap_or_default();
                    let message = message
                        .as_deref()
                        .map(|m| one_line(m, MAX_LINE_CHARS))
                        .unwrap_or_default();
                    line.set_message(format!("{done}{of} {message}"));
                }
            }
            RunEvent::CallLogged { id, level, text } => {
                if self.detail == Detail::Verbose || *level >= LogLevel::Warn {
                    let tool = state.calls.get(id).map_or("?", |call| call.tool.as_str());
                    for line in text.lines() {
                        let line = one_line(line, 4 * MAX_LINE_CHARS);
                        self.say(&format!(
                            "    {} {line}",
                            dim().apply_to(format!("{tool} says:"))
                        ));
                    }
                }
            }
            RunEvent::CallEnded {
                id,
                tool,
                outcome,
                ran_ms,
                result,
                ..
            } => {
                let call = state.calls.remove(id);
                if let Some(line) = call.as_ref().and_then(|call| call.line.as_ref()) {
                    line.finish_and_clear();
                }
                let tool = one_line(tool, 64);
                self.say(&ended(&tool, outcome, *ran_ms, result));
            }
            RunEvent::OutputCut { .. } => {}
            RunEvent::Noted { text } => self.say(&format!(
                "{} {}",
                caution().apply_to("note:"),
                harmless(text)
            )),
            RunEvent::RunEnded { .. } | RunEvent::RunContinued { .. } => Self::end_text(state),
        }
    }
}

fn running() -> ProgressStyle {
    ProgressStyle::with_template(
        "  {spinner:.cyan} {prefix:.bold} {elapsed:>4.dim} {wide_msg:.dim}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn waiting() -> ProgressStyle {
    ProgressStyle::with_template("  {prefix:.bold} {wide_msg:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// `✓ name  0.4 ms  result`: the sign, the word and the text all say how it ended, so colour is never the
/// only one.
fn ended(tool: &str, outcome: &str, ran: Option<Duration>, result: &ToolResult) -> String {
    let (sign, style) = match outcome {
        "ok" => ("✓", good()),
        "denied" | "capability_refused" | "approval_failed" => ("⊘", caution()),
        _ => ("✗", bad()),
    };
    let ran = ran.map(duration).unwrap_or_else(|| "not run".into());
    let word = if outcome == "ok" {
        String::new()
    } else {
        format!("{} ", style.apply_to(outcome))
    };
    // An error says in the end what to do about it.
    let max = if outcome == "ok" {
        MAX_LINE_CHARS
    } else {
        10 * MAX_LINE_CHARS
    };
    let images = result
        .content
        .iter()
        .filter(|c| matches!(c, crate::transcript::ResultContent::Image(_)))
        .count();
    let images = if images > 0 {
        format!(" [{images} image(s)]")
    } else {
        String::new()
    };
    format!(
        "  {} {} {} {word}{}{images}",
        style.apply_to(sign),
        strong().apply_to(tool),
        dim().apply_to(format!("{ran:>8}")),
        one_line(&result.text(), max)
    )
}

fn duration(ran: Duration) -> String {
    match ran.as_secs_f64() {
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
