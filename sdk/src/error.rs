//! Why a tool gave no answer.

use std::{error::Error, fmt};

/// Why a tool gave no answer; its text reaches the model, so it should say what to do differently.
///
/// `?` makes one from every error type and from strings. It tells what the host refused
/// ([`http::Error::Denied`](crate::http::Error::Denied), and files that no grant covers) from what failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolError {
    /// The arguments make no sense, although they fit the schema.
    InvalidArguments(String),
    /// The tool needs something that the host refused; the text names it.
    Denied(String),
    /// The tool ran and failed.
    Failed(String),
}

/// What a tool function returns when it can fail.
pub type Result<T, E = ToolError> = std::result::Result<T, E>;

impl ToolError {
    /// The tool ran and failed.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// The arguments make no sense, although they fit the schema.
    pub fn invalid_arguments(message: impl Into<String>) -> Self {
        Self::InvalidArguments(message.into())
    }

    /// The tool needs something that the host refused; `message` names it.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::Denied(message.into())
    }

    /// The text that the model gets.
    pub fn message(&self) -> &str {
        match self {
            Self::InvalidArguments(message) | Self::Denied(message) | Self::Failed(message) => {
                message
            }
        }
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

// `Error` itself can't be implemented beside this, as in every type that takes all errors.
impl<E: Into<Box<dyn Error>>> From<E> for ToolError {
    fn from(error: E) -> Self {
        let error = error.into();
        let message = with_sources(&*error);
        if was_refused(&*error) {
            Self::Denied(message)
        } else {
            Self::Failed(message)
        }
    }
}

/// The error and what caused it, leaving out causes that the text has already.
fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        cause = error.source();
    }
    message
}

fn was_refused(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return error.kind() == std::io::ErrorKind::PermissionDenied;
        }
        if let Some(error) = error.downcast_ref::<crate::http::Error>() {
            return error.is_denied();
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn tool(error: impl Into<ToolError>) -> ToolError {
        error.into()
    }

    #[test]
    fn every_error_and_every_string_becomes_one() {
        assert_eq!(tool("text"), ToolError::new("text"));
        assert_eq!(tool(String::from("text")), ToolError::new("text"));
        assert_eq!(
            tool("x".parse::<u8>().unwrap_err()),
            ToolError::new("invalid digit found in string")
        );
        let boxed: Box<dyn Error> = "boxed".into();
        assert_eq!(tool(boxed), ToolError::new("boxed"));
        assert_eq!(tool(ToolError::denied("no")), ToolError::denied("no"));
    }

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug)]
        struct Outer(io::Error, &'static str);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.1)
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let outer = |text| Outer(io::Error::other("the disk is full"), text);
        assert_eq!(
            tool(outer("the note was not saved")).message(),
            "the note was not saved: the disk is full"
        );
        assert_eq!(
            tool(outer("not saved, the disk is full")).message(),
            "not saved, the disk is full"
        );
    }

    #[test]
    fn a_refused_file_is_told_from_a_missing_one() {
        let refused = io::Error::new(io::ErrorKind::PermissionDenied, "no");
        assert_eq!(tool(refused), ToolError::denied("no"));
        let missing = io::Error::new(io::ErrorKind::NotFound, "none");
        assert_eq!(tool(missing), ToolError::new("none"));
    }
}
