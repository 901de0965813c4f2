//! The command line: one file per subcommand.
pub mod build;
pub mod completions;
pub mod init;
pub mod inspect;
pub mod new;
pub mod prompt;
mod requests;
pub mod show;
pub mod terminal;
pub mod tools;
mod write;
