//! May this call run? One pure question, asked once per call, and the only place that can say yes:
//! [`Authorized`] has no other constructor.

use crate::{capability::Reach, config::permissions::Permissions, tool::ToolCall};

/// What policy says of a call.
#[derive(Debug)]
pub enum Decision {
    Allow(Authorized),
    /// A person has to be asked; [`Pending::allowed`] turns a yes into an authorised call.
    Ask(Pending),
    Deny {
        reason: String,
    },
}

/// A call that may run. Nothing outside this module can make one, so running an unauthorised call does not
/// compile:
///
/// ```compile_fail,E0423
/// # fn f(call: agentloop_host::tool::ToolCall) {
/// let forged = agentloop_host::policy::Authorized(call);
/// # }
/// ```
#[derive(Debug)]
pub struct Authorized(ToolCall);

impl Authorized {
    pub fn call(&self) -> &ToolCall {
        &self.0
    }

    pub fn into_call(self) -> ToolCall {
        self.0
    }
}

/// A call that waits for a person's yes.
#[derive(Debug)]
pub struct Pending {
    call: ToolCall,
    /// The rule or mode that asks; a complete sentence.
    pub why: String,
}

impl Pending {
    pub fn call(&self) -> &ToolCall {
        &self.call
    }

    /// The yes. The value of type [`Consent`] comes from a person's answer or an operator's standing order.
    pub fn allowed(self, _: Consent) -> Authorized {
        Authorized(self.call)
    }
}

/// Somebody with the authority to do so said yes. Made from an [`Answer`](crate::approvals::Answer) by
/// [`crate::agent`], or from the operator's `--yes`; nothing that a tool or a model can reach makes one.
#[derive(Debug, Clone, Copy)]
pub struct Consent(());

impl Consent {
    pub(crate) fn given_by_person() -> Self {
        Self(())
    }
}

/// Decides about one call. `rule_name` is `plugin.tool`; `reach` is what the tool can touch, `None` for a
/// tool of the embedding program, which has that program's rights anyway.
///
/// Deny rules come before ask rules before allow rules; without a rule the mode decides, and the default
/// mode allows what provably only reads.
pub fn decide(
    permissions: &Permissions,
    rule_name: &str,
    reach: Option<&Reach>,
    call: ToolCall,
) -> Decision {
    use crate::config::permissions::{Mode, Verdict};
    match permissions.rule_for(rule_name, &call.input) {
        Some((Verdict::Deny, rule)) => {
            return Decision::Deny {
                reason: format!("the operator's rule `{rule}` forbids it"),
            };
        }
        Some((Verdict::Ask, rule)) => {
            return ask(
                permissions,
                call,
                format!("the rule `{rule}` asks before it"),
            );
        }
        Some((Verdict::Allow, _)) => return Decision::Allow(Authorized(call)),
        None => {}
    }
    match permissions.mode {
        Mode::Auto => Decision::Allow(Authorized(call)),
        Mode::Ask | Mode::Deny if reach.is_none_or(Reach::only_reads) => {
            Decision::Allow(Authorized(call))
        }
        Mode::Ask | Mode::Deny if reach.is_some_and(Reach::is_outside) => ask(
            permissions,
            call,
            "it belongs to an MCP server, which runs outside the sandbox".to_owned(),
        ),
        Mode::Ask | Mode::Deny => ask(
            permissions,
            call,
            "it can change things outside its sandbox".to_owned(),
        ),
    }
}

fn ask(permissions: &Permissions, call: ToolCall, why: String) -> Decision {
    use crate::config::permissions::Mode;
    match permissions.mode {
        Mode::Ask | Mode::Auto => Decision::Ask(Pending { call, why }),
        Mode::Deny => Decision::Deny {
            reason: format!("{why}, and the mode `deny` refuses whatever would ask"),
        },
    }
}
