//! What a tool tells the people around it: log lines and progress. Neither reaches the model. Outside a
//! component, in `cargo test`, both go to standard error.

use std::fmt;

/// How much a line of the log matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Writes a line of the operator's log; [`log!`](macro@crate::log) formats it. The host keeps 1,000 lines of
/// 4 KiB for each call.
pub fn write_log(level: Level, message: fmt::Arguments<'_>) {
    let text;
    let message = match message.as_str() {
        Some(message) => message,
        None => {
            text = message.to_string();
            &text
        }
    };
    host::log(level, message);
}

/// Says how far a long call has come, for the person who waits.
///
/// `done` should grow with each report. `total` is a number or, where it is not known, `None`; an empty message
/// is none.
///
/// ```
/// # use agentloop_sdk::progress;
/// let files = ["a", "b"];
/// for (done, file) in files.iter().enumerate() {
///     progress(done, files.len(), file);
/// }
/// progress(12.5, None, "");
/// ```
pub fn progress(done: impl Amount, total: impl Total, message: impl AsRef<str>) {
    host::report(done.amount(), total.total(), message.as_ref());
}

/// A number of whatever a call works through.
pub trait Amount {
    fn amount(self) -> f64;
}

/// A number of whatever a call works through, or none.
pub trait Total {
    fn total(self) -> Option<f64>;
}

macro_rules! amounts {
    ($($number:ty)*) => { $(
        impl Amount for $number {
            fn amount(self) -> f64 {
                self as f64
            }
        }

        impl Total for $number {
            fn total(self) -> Option<f64> {
                Some(self as f64)
            }
        }
    )* };
}

// For `f64` alone, so that a plain `None` has a type.
impl Total for Option<f64> {
    fn total(self) -> Option<f64> {
        self
    }
}

amounts!(i32 i64 u8 u16 u32 u64 usize f32 f64);

#[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
mod host {
    use super::Level;
    use crate::bindings::agentloop::tool::{logging, progress};

    pub(super) fn log(level: Level, message: &str) {
        let level = match level {
            Level::Debug => logging::Level::Debug,
            Level::Info => logging::Level::Info,
            Level::Warn => logging::Level::Warn,
            Level::Error => logging::Level::Error,
        };
        logging::log(level, message);
    }

    pub(super) fn report(done: f64, total: Option<f64>, message: &str) {
        progress::report(done, total, (!message.is_empty()).then_some(message));
    }
}

#[cfg(not(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2")))]
mod host {
    use super::Level;

    pub(super) fn log(level: Level, message: &str) {
        eprintln!("{level:?}: {message}");
    }

    pub(super) fn report(done: f64, total: Option<f64>, message: &str) {
        match total {
            Some(total) => eprintln!("{done} of {total} {message}"),
            None => eprintln!("{done} {message}"),
        }
    }
}
