//! The command line: one file per subcommand.
pub mod prompt;
pub mod show;
pub mod terminal;
