//! Asking the person at the terminal about a call.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    approvals::{Answer, ApprovalRequest, Approver, ApproverFailed, Remember},
    cli::{
        show::Show,
        terminal::{caution, dim, harmless, next_line, one_line, strong},
    },
};

/// Longest text of arguments that is shown whole.
const MAX_ARGUMENT_CHARS: usize = 4_000;

/// Asks on stderr and reads the answer from the terminal. One question at a time.
pub struct TerminalApprover {
    show: Arc<Show>,
    remember: Remember,
    asking: tokio::sync::Mutex<()>,
}

impl TerminalApprover {
    pub fn new(show: Arc<Show>, remember: Remember) -> Self {
        Self {
            show,
            remember,
            asking: tokio::sync::Mutex::default(),
        }
    }
}

#[async_trait]
impl Approver for TerminalApprover {
    async fn approve(&self, request: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        let _one_at_a_time = self.asking.lock().await;
        let paused = self.show.pause();
        let answer = ask(&question(request))
            .await
            .map_err(|error| ApproverFailed(format!("the terminal could not be read: {error}")))?;
        if answer == Answer::Always {
            match (self.remember)(request) {
                Ok(where_to) => eprintln!("  {}", dim().apply_to(harmless(&where_to))),
                Err(why) => eprintln!(
                    "  {} it holds for this run only: {}",
                    caution().apply_to("note:"),
                    harmless(&why)
                ),
            }
        }
        drop(paused);
        Ok(answer)
    }
}

/// What the person reads: the tool, the exact arguments, what the call may touch, why it is asked.
fn question(request: &ApprovalRequest) -> String {
    let input = serde_json::to_string_pretty(&request.call.input).unwrap_or_default();
    let n_chars = input.chars().count();
    let mut shown: String = harmless(&input).chars().take(MAX_ARGUMENT_CHARS).collect();
    if n_chars > MAX_ARGUMENT_CHARS {
        shown.push_str(&format!("\n… ({n_chars} characters in all)"));
    }
    let mut text = format!(
        "\n{} may {} run?\n",
        caution().apply_to("?"),
        strong().apply_to(one_line(&request.rule_name, 140))
    );
    for line in shown.lines() {
        text.push_str(&format!("  │ {line}\n"));
    }
    for line in &request.may_touch {
        text.push_str(&format!("  may {}\n", one_line(line, 200)));
    }
    text.push_str(&format!(
        "  asked because {}\n",
        one_line(&request.why, 200)
    ));
    if let Some(digest) = &request.digest {
        let digest = digest.to_string();
        text.push_str(&format!(
            "  {}\n",
            dim().apply_to(digest.get(..19).unwrap_or(&digest))
        ));
    }
    text
}

/// Given up when the run is stopped meanwhile; see [`next_line`].
async fn ask(question: &str) -> std::io::Result<Answer> {
    eprint!("{question}");
    loop {
        eprint!("  [y] once  [r] for this run  [a] always  [n] no  [s] stop the run › ");
        let Some(line) = next_line().await? else {
            eprintln!();
            return Ok(Answer::Deny { reason: None });
        };
        match parse(&line) {
            Some(answer) => return Ok(answer),
            None => eprintln!("  y, r, a, n (a reason may follow, the model reads it) or s"),
        }
    }
}

fn parse(line: &str) -> Option<Answer> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let reason = Some(rest.trim().to_owned()).filter(|reason| !reason.is_empty());
    match (word.to_ascii_lowercase().as_str(), &reason) {
        ("y" | "yes" | "once", None) => Some(Answer::Once),
        ("r" | "run", None) => Some(Answer::ForThisRun),
        ("a" | "always", None) => Some(Answer::Always),
        ("n" | "no" | "deny", _) => Some(Answer::Deny { reason }),
        ("s" | "stop", None) => Some(Answer::Stop),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        ids::{ToolName, ToolUseId},
        tool::ToolCall,
    };

    #[test]
    fn every_answer_has_a_letter_and_nothing_else_is_an_answer() {
        let reason = Some("use the other folder".to_owned());
        for (line, answer) in [
            ("y", Some(Answer::Once)),
            ("Yes\n", Some(Answer::Once)),
            ("r", Some(Answer::ForThisRun)),
            ("a", Some(Answer::Always)),
            ("n", Some(Answer::Deny { reason: None })),
            ("n  use the other folder\n", Some(Answer::Deny { reason })),
            ("s", Some(Answer::Stop)),
            ("", None),
            ("yy", None),
            ("y please", None),
        ] {
            assert_eq!(parse(line), answer, "{line:?}");
        }
    }

    #[test]
    fn arguments_cannot_forge_the_prompt() {
        let call = ToolCall {
            id: ToolUseId::parse("a").unwrap(),
            tool: ToolName::parse("write_file").unwrap(),
            input: json!({"path": "x\u{1b}[2K\r? may calc run? \u{202e}"})
                .as_object()
                .unwrap()
                .clone(),
        };
        let request = ApprovalRequest {
            call,
            rule_name: "files.write_file".into(),
            digest: None,
            may_touch: vec!["read and write /n (as /notes)".into()],
            why: "it can change things outside its sandbox".into(),
        };
        let shown = console::strip_ansi_codes(&question(&request)).into_owned();
        assert!(!shown.contains(['\u{1b}', '\r', '\u{202e}']), "{shown}");
        assert!(
            shown.contains("may read and write /n (as /notes)"),
            "{shown}"
        );
    }
}
