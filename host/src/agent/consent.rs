//! Getting a person's yes for a call, within one run: sticky answers hold for the run and for siblings that
//! are waiting already.

use std::{collections::HashSet, sync::Arc};

use tokio::sync::watch;

use crate::{
    agent::stop::Stopper,
    approvals::{Answer, ApprovalRequest, Approver},
    ids::ComponentDigest,
    policy::Consent,
    tool::{Canceller, ToolOutcome},
};

/// What a sticky answer is about: this tool, of this very component.
type Key = (String, Option<ComponentDigest>);

/// The answers of one run.
pub(crate) struct RunConsents {
    approver: Option<Arc<dyn Approver>>,
    sticky: watch::Sender<HashSet<Key>>,
    stopper: Stopper,
}

/// What came of asking.
pub(crate) struct Answered {
    pub(crate) verdict: Result<Consent, ToolOutcome>,
    /// What the person said, for the record.
    pub(crate) reason: Option<String>,
}

impl RunConsents {
    pub(crate) fn new(approver: Option<Arc<dyn Approver>>, stopper: Stopper) -> Self {
        Self {
            approver,
            sticky: watch::Sender::new(HashSet::new()),
            stopper,
        }
    }

    pub(crate) async fn ask(&self, request: &ApprovalRequest) -> Answered {
        let denied = |reason: String| Answered {
            verdict: Err(ToolOutcome::Denied {
                reason: reason.clone(),
            }),
            reason: Some(reason),
        };
        let yes = |reason: Option<String>| Answered {
            verdict: Ok(Consent::given_by_person()),
            reason,
        };
        let key = (request.rule_name.clone(), request.digest);
        let Some(approver) = &self.approver else {
            return denied(format!(
                "`{name}` needs an approval ({why}), and there is nobody to ask. The operator can allow it with \
                 `--allow '{name}'`, with `allow = [\"{name}\"]` below `[permissions]` in agentloop.toml, or with `--yes`",
                name = request.rule_name,
                why = request.why,
            ));
        };
        let mut sticky = self.sticky.subscribe();
        let answer = tokio::select! {
            biased;
            allowed = sticky.wait_for(|keys| keys.contains(&key)) => {
                drop(allowed);
                return yes(Some("an earlier answer holds for this run".into()));
            }
            answer = approver.approve(request) => answer,
        };
        match answer {
            Ok(Answer::Once) => yes(None),
            Ok(Answer::ForThisRun | Answer::Always) => {
                self.sticky.send_modify(|keys| {
                    keys.insert(key);
                });
                yes(None)
            }
            Ok(Answer::Deny { reason }) => denied(match reason {
                Some(reason) => format!("the user refused this call: {reason}"),
                None => "the user refused this call".into(),
            }),
            Ok(Answer::Stop) => {
                self.stopper.stop(Canceller::User);
                denied("the user refused this call and stopped the run".into())
            }
            Err(error) => Answered {
                verdict: Err(ToolOutcome::ApprovalFailed {
                    why: error.0.clone(),
                }),
                reason: Some(error.0),
            },
        }
    }
}
