//! Names and identifiers, valid once built.

use std::{fmt, sync::Arc};

use sha2::{Digest as _, Sha256};

/// Longest name of a tool and longest id of a call, in bytes: what every model endpoint accepts.
pub const MAX_NAME_BYTES: usize = 64;

/// Why a text is not a name or an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}: it takes 1 to 64 of A-Z a-z 0-9 _ -")]
pub struct InvalidName {
    what: &'static str,
    text: String,
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Fails unless `text` is 1 to 64 of `A-Z a-z 0-9 _ -`.
            pub fn parse(text: &str) -> Result<Self, InvalidName> {
                if is_name(text) {
                    return Ok(Self(text.into()));
                }
                let text = text.chars().take(80).flat_map(char::escape_debug).collect();
                Err(InvalidName { what: $what, text })
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"})
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name! {
    /// The name of a tool as the model calls it: unique in a registry snapshot.
    ToolName, "tool name"
}
name! {
    /// The name of a plugin: its file name without `.wasm`, other characters replaced by `_`.
    PluginName, "plugin name"
}
name! {
    /// The name of a secret in the settings, and that under which a tool asks for it.
    SecretName, "name of a secret"
}
name! {
    /// Ties a result to its call; unique in a run.
    ToolUseId, "tool use id"
}

impl ToolUseId {
    /// An id for call `n` of the reply that follows `turn` messages, both from 0.
    pub fn minted(turn: usize, n: usize) -> Self {
        Self(format!("call_{turn}_{n}").into())
    }
}

impl PluginName {
    /// The name of the plugin in a file of this name. Two files may come to one name; the registry tells.
    pub fn of_file_stem(stem: &str) -> Self {
        let mut name: String = stem
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '_' || c == '-' {
                    c
                } else {
                    '_'
                }
            })
            .take(MAX_NAME_BYTES)
            .collect();
        if name.is_empty() {
            name.push('_');
        }
        Self(name.into())
    }
}

/// Names a run: 128 random bits, as 32 hexadecimal digits. Knowing it is no authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId(u128);

impl RunId {
    /// Fails when the system has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }

    /// `None` unless it is 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_id)?;
        Some(Self(number))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The SHA-256 of a component's bytes: what "the same tool" means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ComponentDigest([u8; 32]);

impl ComponentDigest {
    pub fn of(component: &[u8]) -> Self {
        Self(Sha256::digest(component).into())
    }

    /// 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// As [`ComponentDigest::hex`].
impl serde::Serialize for ComponentDigest {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.hex())
    }
}

impl<'de> serde::Deserialize<'de> for ComponentDigest {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        let mut bytes = [0; 32];
        let digits = text.as_bytes();
        let is_hex = digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit);
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            let pair = text.get(at..at + 2).filter(|_| is_hex);
            *byte = pair
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or_else(|| serde::de::Error::custom("a digest is 64 hexadecimal digits"))?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
