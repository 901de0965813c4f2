//! `agentloop:tool/logging`: lines for the operator, bounded with everything else that a call prints.

use super::super::{
    bindings::agentloop::tool::logging::{Host, Level},
    store::CallState,
};
use crate::event::LogLevel;

impl Host for CallState {
    fn log(&mut self, level: Level, message: String) {
        let level = match level {
            Level::Debug => LogLevel::Debug,
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
        };
        self.output.line(level, &message);
    }
}
