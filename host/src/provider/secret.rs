use std::{fmt, sync::Arc};

use http::HeaderValue;

/// An API key. It can be sent, but neither printed nor stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Blanks around the key are dropped, since keys are read from files.
    pub fn new(key: &str) -> Self {
        Self(key.trim().into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `None`: it holds characters that a header cannot carry.
    pub(super) fn header(&self, scheme: &str) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("{scheme}{}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// Endpoints quote the key in what they say of it.
    pub(super) fn redact(&self, text: &str) -> String {
        if self.is_empty() {
            return text.to_owned();
        }
        text.replace(&*self.0, "[API key]")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print_itself() {
        let key = Secret::new(" sk-123\n");
        assert_eq!(format!("{key:?}"), "Secret(***)");
        let header = key.header("Bearer ").unwrap();
        assert_eq!(header, "Bearer sk-123");
        assert!(!format!("{header:?}").contains("sk-123"));
        assert_eq!(key.redact("bad key sk-123!"), "bad key [API key]!");
        assert_eq!(Secret::new("").redact("as it is"), "as it is");
        assert_eq!(Secret::new("a\nb").header(""), None);
    }
}
