//! Who answers when policy asks: the person at the terminal, a standing `--yes`, or nobody.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::{
    approvals::{Answer, ApprovalRequest, Approver, ApproverFailed, Remember},
    cli::{prompt::TerminalApprover, show::Show, terminal::can_ask},
    config::{Places, Settings, permissions::Verdict, trust::TrustStore},
};

/// Whether a person may be asked at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    WherePossible,
    Never,
}

/// Whoever answers; `None` makes every question a refusal that says how to allow it.
pub fn approver(
    settings: &Settings,
    yes: bool,
    show: &Arc<Show>,
    asking: Asking,
) -> Option<Arc<dyn Approver>> {
    if yes {
        return Some(Arc::new(StandingYes));
    }
    if asking == Asking::Never || !can_ask() {
        return None;
    }
    let remember = remember(settings)?;
    Some(Arc::new(TerminalApprover::new(Arc::clone(show), remember)))
}

/// Writes the rule of an "always" answer into the project's file; `None` where there is no place to trust it in.
pub fn remember(settings: &Settings) -> Option<Remember> {
    let store = TrustStore::new(&Places::of_this_user().ok()?.state_dir);
    let project = Mutex::new(settings.project.clone());
    let permissions = settings.permissions.clone();
    Some(Arc::new(move |request: &ApprovalRequest| {
        let rule = &request.rule_name;
        // Ask rules come before allow rules, so that another allow rule would change nothing.
        if let Some((Verdict::Ask, asks)) = permissions.rule_for(rule, &request.call.input) {
            return Err(format!(
                "the rule `{asks}` below `ask` comes before whatever is allowed; take it out of the settings to be asked no more"
            ));
        }
        let mut project = project.lock().unwrap_or_else(PoisonError::into_inner);
        store
            .append_allow(&mut project, rule)
            .map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
        Ok(format!(
            "`allow = [\"{rule}\"]` is now in {}",
            project.path.display()
        ))
    }))
}

/// The operator's `--yes`.
struct StandingYes;

#[async_trait]
impl Approver for StandingYes {
    async fn approve(&self, _: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        Ok(Answer::Once)
    }
}
