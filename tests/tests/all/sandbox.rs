//! Guests in sandboxes: what they can do, what they can't, and that they end.

mod cache;
mod calls;
mod deadlines;
mod loading;
mod memory;
mod output;
pub(crate) mod reach;
