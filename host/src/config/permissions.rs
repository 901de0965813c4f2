//! When to ask: the `[permissions]` table.

use serde_json::{Map, Value};

/// What happens to a call that no rule speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// What provably only reads is allowed, everything else asks.
    #[default]
    Ask,
    /// Allowed.
    Auto,
    /// As `Ask`, but what would ask is denied: for running unattended.
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Deny,
    Ask,
    Allow,
}

/// The operator's rules. Deny comes before ask before allow, whatever their order in the file.
#[derive(Debug, Clone, Default)]
pub struct Permissions {
    pub mode: Mode,
    // deny, ask, allow: Vec<Rule>
}

impl Permissions {
    /// The first rule that speaks of this call, as it stands in the file. `rule_name` is `plugin.tool`.
    pub fn rule_for(
        &self,
        _rule_name: &str,
        _input: &Map<String, Value>,
    ) -> Option<(Verdict, &str)> {
        None
    }
}
