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
/// tool of the embedding program, which has that program's rights anyway. `taint` names the tool through which
/// content from outside has come into the run, if any has.
///
/// Deny rules come before ask rules before allow rules; without a rule the mode decides, and the default
/// mode allows what provably only reads. What somebody outside wrote may have made the model ask for this: so in a
/// tainted run the mode `auto` no longer allows what can change things.
pub fn decide(
    permissions: &Permissions,
    rule_name: &str,
    reach: Option<&Reach>,
    call: ToolCall,
    taint: Option<&str>,
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
        Some((Verdict::Allow, _)) if permissions.mode != Mode::Plan => {
            return Decision::Allow(Authorized(call));
        }
        Some((Verdict::Allow, _)) | None => {}
    }
    match permissions.mode {
        Mode::Auto => match taint {
            Some(source) if reach.is_some_and(|reach| !reach.only_reads()) => ask(
                permissions,
                call,
                format!(
                    "it can change things outside its sandbox, and this run holds what `{source}` brought in from \
                     outside, which may have asked for it"
                ),
            ),
            Some(_) | None => Decision::Allow(Authorized(call)),
        },
        Mode::Ask | Mode::Deny if reach.is_none_or(Reach::only_reads) => {
            Decision::Allow(Authorized(call))
        }
        Mode::Plan if reach.is_some_and(Reach::only_reads) => Decision::Allow(Authorized(call)),
        Mode::Plan => Decision::Deny {
            reason: "the mode `plan` lets run only what provably changes nothing; say what you would do instead"
                .to_owned(),
        },
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
        Mode::Deny | Mode::Plan => Decision::Deny {
            reason: format!(
                "{why}, and the mode `{}` refuses whatever would ask",
                permissions.mode.as_str()
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        capability::{Access, Capability, FolderGrant, Grants, Request},
        config::permissions::{Mode, Rule},
        ids::{ToolName, ToolUseId},
    };

    fn folder(access: Access) -> Reach {
        let requests = [Request {
            capability: Capability::Folder {
                path: "*".into(),
                access: Access::Write,
            },
            reason: String::new(),
        }];
        let folders = vec![FolderGrant {
            host_path: "/a".into(),
            guest_path: "/a".into(),
            access,
        }];
        let grants = Grants {
            folders,
            ..Grants::default()
        };
        Reach::new(&requests, &grants)
    }

    fn verdict(
        mode: Mode,
        reach: Option<&Reach>,
        taint: Option<&str>,
        allow: &[&str],
    ) -> &'static str {
        let mut permissions = Permissions::default();
        permissions.mode = mode;
        permissions.allow = allow
            .iter()
            .map(|rule| Rule::parse(rule).unwrap())
            .collect();
        let call = ToolCall {
            id: ToolUseId::parse("a").unwrap(),
            tool: ToolName::parse("t").unwrap(),
            input: serde_json::Map::new(),
        };
        match decide(&permissions, "p.t", reach, call, taint) {
            Decision::Allow(_) => "allow",
            Decision::Ask(pending) => {
                if let Some(taint) = taint.filter(|_| mode == Mode::Auto) {
                    assert!(pending.why.contains(taint), "{}", pending.why);
                }
                "ask"
            }
            Decision::Deny { reason } => {
                assert!(!reason.is_empty());
                "deny"
            }
        }
    }

    #[test]
    fn what_each_mode_does_with_what_reads_and_what_writes() {
        let (read, write) = (folder(Access::Read), folder(Access::Write));
        let outside = Reach::outside();
        for (mode, reads, writes, is_outside, native) in [
            (Mode::Ask, "allow", "ask", "ask", "allow"),
            (Mode::Auto, "allow", "allow", "allow", "allow"),
            (Mode::Deny, "allow", "deny", "deny", "allow"),
            (Mode::Plan, "allow", "deny", "deny", "deny"),
        ] {
            let of = |reach| verdict(mode, reach, None, &[]);
            assert_eq!(of(Some(&read)), reads, "{mode:?}");
            assert_eq!(of(Some(&write)), writes, "{mode:?}");
            assert_eq!(of(Some(&outside)), is_outside, "{mode:?}");
            assert_eq!(of(None), native, "{mode:?}");
        }
        let by_rule = |mode| verdict(mode, Some(&write), None, &["p.t"]);
        assert_eq!(by_rule(Mode::Ask), "allow");
        assert_eq!(by_rule(Mode::Plan), "deny", "a plan changes nothing");
    }

    #[test]
    fn a_tainted_run_is_asked_about_what_can_change_things_unless_a_rule_allows_it() {
        let outside = Reach::outside();
        let (read, write) = (folder(Access::Read), folder(Access::Write));
        let tainted =
            |reach, allow: &[&str]| verdict(Mode::Auto, Some(reach), Some("fetch"), allow);
        assert_eq!(tainted(&write, &[]), "ask");
        assert_eq!(tainted(&outside, &[]), "ask");
        assert_eq!(tainted(&read, &[]), "allow");
        assert_eq!(tainted(&write, &["p.*"]), "allow");
    }
}
