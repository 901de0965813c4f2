//! The command line: one file per subcommand.
pub mod completions;
pub mod init;
pub mod new;
pub mod prompt;
pub mod show;
pub mod terminal;
mod write;
