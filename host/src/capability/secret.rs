//! Secrets: what the host puts into requests for a tool that never sees it.

use std::{fmt, path::PathBuf, sync::Arc};

use super::OriginPattern;
use crate::ids::SecretName;

/// What stands in a template for the value.
pub const SECRET_PLACEHOLDER: &str = "{secret}";

/// Shortest value, in bytes: a shorter one could not be told from other text where it is looked for.
pub const MIN_SECRET_BYTES: usize = 8;

/// Longest value, in bytes.
pub const MAX_SECRET_BYTES: usize = 8 << 10;

/// The value of a secret. It can be sent, but neither printed nor serialized.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretValue(Arc<str>);

/// Why a text can't be the value of a secret. Says nothing of the text itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum InvalidSecret {
    #[error("it has less than {MIN_SECRET_BYTES} bytes")]
    TooShort,
    #[error("it has more than {MAX_SECRET_BYTES} bytes")]
    TooLong,
    #[error("it holds something else than printable ASCII")]
    NotPrintable,
}

impl SecretValue {
    /// Line ends behind the value are dropped, since values are read from files and printed by commands.
    pub fn new(text: &str) -> Result<Self, InvalidSecret> {
        let text = text.trim_end_matches(['\r', '\n']);
        if text.len() < MIN_SECRET_BYTES {
            return Err(InvalidSecret::TooShort);
        }
        if text.len() > MAX_SECRET_BYTES {
            return Err(InvalidSecret::TooLong);
        }
        if !text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            return Err(InvalidSecret::NotPrintable);
        }
        Ok(Self(text.into()))
    }

    /// For whoever sends it or looks for it; not for messages.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(***)")
    }
}

/// Where the value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// Read once, when settings are resolved.
    Environment {
        variable: String,
        /// Or why there is none.
        value: Option<Result<SecretValue, InvalidSecret>>,
    },
    /// Read for each call that may use it.
    File(PathBuf),
    /// Run once per process, for the first call that may use it; the value is what it prints.
    Command(Vec<String>),
}

/// Where in a request the value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretPlace {
    /// In lower case.
    Header(String),
    /// A parameter of the query.
    Query(String),
}

/// A secret, opened to a plugin: its value goes into requests to these origins and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretGrant {
    pub name: SecretName,
    pub source: SecretSource,
    /// `https`, or `http` to this machine itself; never [`OriginPattern::Any`].
    pub origins: Vec<OriginPattern>,
    pub place: SecretPlace,
    /// Holds [`SECRET_PLACEHOLDER`].
    pub template: String,
}

impl fmt::Display for SecretGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origins: Vec<_> = self.origins.iter().map(ToString::to_string).collect();
        let place = match &self.place {
            SecretPlace::Header(name) => format!("header {name}"),
            SecretPlace::Query(name) => format!("query parameter {name}"),
        };
        write!(
            f,
            "the secret {} as the {place} at {}",
            self.name,
            origins.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_does_not_print_itself() {
        let value = SecretValue::new("sk-12345678\r\n").unwrap();
        assert_eq!(value.expose(), "sk-12345678");
        let grant = SecretGrant {
            name: SecretName::parse("a").unwrap(),
            source: SecretSource::Environment {
                variable: "A".into(),
                value: Some(Ok(value)),
            },
            origins: vec![OriginPattern::parse("https://example.org").unwrap()],
            place: SecretPlace::Header("authorization".into()),
            template: SECRET_PLACEHOLDER.into(),
        };
        assert!(!format!("{grant:?} {grant}").contains("sk-1"));
    }

    #[test]
    fn what_could_not_be_found_again_is_no_value() {
        for (text, why) in [
            ("", InvalidSecret::TooShort),
            ("1234567\n", InvalidSecret::TooShort),
            ("1234567\n8", InvalidSecret::NotPrintable),
            ("schlüssel", InvalidSecret::NotPrintable),
        ] {
            assert_eq!(SecretValue::new(text), Err(why), "{text}");
        }
        let long = "x".repeat(MAX_SECRET_BYTES + 1);
        assert_eq!(SecretValue::new(&long), Err(InvalidSecret::TooLong));
    }
}
