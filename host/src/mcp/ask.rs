//! From a question to a request that clients answer, and back.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rmcp::{
    Peer, RoleServer,
    model::{ClientCapabilities, InputRequest, ServerRequest},
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::approvals::{Answer, ApprovalRequest, Approver, ApproverFailed};

/// The arguments of a call as a person is shown them, in bytes of JSON.
const MAX_SHOWN_BYTES: usize = 4 << 10;
/// A person's reason for a refusal, in bytes.
const MAX_REASON_BYTES: usize = 1 << 10;
/// The key of the question whether a call may run.
const APPROVAL: &str = "approval";

/// What the client is to answer before a call can go on.
pub(super) struct Asked {
    pub(super) requests: BTreeMap<String, InputRequest>,
    pub(super) answer: oneshot::Sender<Answers>,
}

/// One result for each request, as the client gave it; or why there is none.
pub(super) type Answers = Result<BTreeMap<String, Value>, String>;

/// Whether this client shows forms to its person. A bare `elicitation` means forms, which were there first.
pub(super) fn shows_forms(client: &ClientCapabilities) -> bool {
    client
        .elicitation
        .as_ref()
        .is_some_and(|modes| modes.form.is_some() || modes.url.is_none())
}

/// Sends the requests to a client with a session, one after another.
pub(super) async fn in_session(
    peer: &Peer<RoleServer>,
    requests: &BTreeMap<String, InputRequest>,
) -> Answers {
    let mut answers = BTreeMap::new();
    for (key, request) in requests {
        let request = match request.clone() {
            InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
            InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
            InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
            _ => return Err("this host does not know how to ask that".into()),
        };
        let answer = peer.send_request(request).await.map_err(|error| {
            format!(
                "the client did not answer: {}",
                harmless(&error.to_string(), 500)
            )
        })?;
        let answer = serde_json::to_value(answer).map_err(|error| error.to_string())?;
        answers.insert(key.clone(), answer);
    }
    Ok(answers)
}

/// Asks the person behind the client whether a call may run.
pub(super) struct ClientApprover {
    pub(super) asks: mpsc::Sender<Asked>,
}

#[async_trait]
impl Approver for ClientApprover {
    async fn approve(&self, request: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        let failed = |why: String| ApproverFailed(why);
        let form = approval_form(request).map_err(|error| failed(error.to_string()))?;
        let (answer, answered) = oneshot::channel();
        let asked = Asked {
            requests: BTreeMap::from([(APPROVAL.to_owned(), form)]),
            answer,
        };
        let gone = || failed("the client went away before it answered".into());
        self.asks.send(asked).await.map_err(|_| gone())?;
        let answers = answered.await.map_err(|_| gone())?.map_err(failed)?;
        Ok(approval(answers.get(APPROVAL).unwrap_or(&Value::Null)))
    }
}

fn approval_form(request: &ApprovalRequest) -> Result<InputRequest, serde_json::Error> {
    let arguments = harmless(
        &Value::Object(request.call.input.clone()).to_string(),
        MAX_SHOWN_BYTES,
    );
    let mut message = format!(
        "`{}` wants to run, and has to be allowed: {}.\nIts arguments: {arguments}",
        request.rule_name, request.why
    );
    for line in &request.may_touch {
        message.push_str("\nIt may ");
        message.push_str(&harmless(line, 500));
    }
    serde_json::from_value(json!({
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": message,
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "allow": {
                        "type": "boolean",
                        "title": "Allow this call",
                        "description": "Once, with exactly these arguments",
                    },
                    "reason": {
                        "type": "string",
                        "title": "Reason",
                        "description": "What the model is told if you do not allow it",
                    },
                },
                "required": ["allow"],
            },
        },
    }))
}

/// Only an accepted form that says yes is a yes.
fn approval(answer: &Value) -> Answer {
    let reason = answer["content"]["reason"]
        .as_str()
        .filter(|reason| !reason.trim().is_empty())
        .map(|reason| harmless(reason, MAX_REASON_BYTES));
    if answer["action"] == "accept" && answer["content"]["allow"] == true {
        Answer::Once
    } else {
        Answer::Deny { reason }
    }
}

/// Text of a tool's or a client's for a person, bounded and with everything written out that could change what
/// is shown around it.
pub(super) fn harmless(text: &str, max_bytes: usize) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if shown.len() >= max_bytes {
            shown.push('…');
            break;
        }
        let changes_text = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        if c.is_control() || changes_text {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_accepted_form_that_says_yes_is_a_yes() {
        let yes = json!({"action": "accept", "content": {"allow": true}});
        assert_eq!(approval(&yes), Answer::Once);
        for no in [
            json!({"action": "accept", "content": {"allow": false}}),
            json!({"action": "accept", "content": {"allow": "true"}}),
            json!({"action": "accept"}),
            json!({"action": "decline", "content": {"allow": true}}),
            json!({"action": "cancel"}),
            json!({"allow": true}),
            Value::Null,
        ] {
            assert_eq!(approval(&no), Answer::Deny { reason: None }, "{no}");
        }
        let reasoned =
            json!({"action": "accept", "content": {"allow": false, "reason": "not \u{1b}[1mnow"}});
        let reason = Some("not \\u{1b}[1mnow".to_owned());
        assert_eq!(approval(&reasoned), Answer::Deny { reason });
    }
}
