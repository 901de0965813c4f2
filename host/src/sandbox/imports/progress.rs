//! `agentloop:tool/progress`: how far a call has come.

use super::super::{bindings::agentloop::tool::progress::Host, store::CallState};

impl Host for CallState {
    fn report(&mut self, done: f64, total: Option<f64>, message: Option<String>) {
        self.output.progress(done, total, message.as_deref());
    }
}
