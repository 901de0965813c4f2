//! What a component's authors wrote above its functions and types: the custom section `package-docs`, as tools
//! of the ecosystem put it there. Its format is that of the crate `wit-parser`; only what is needed here is read,
//! and whatever does not fit is as if nobody had written it.

use std::collections::HashMap;

use serde::Deserialize;

/// The custom section's name.
pub(in super::super::super) const SECTION: &str = "package-docs";
/// Largest section that is read.
const MAX_BYTES: usize = 1 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Docs {
    worlds: HashMap<String, World>,
    interfaces: HashMap<String, Interface>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct World {
    funcs: HashMap<String, Item>,
    func_exports: HashMap<String, Item>,
    types: HashMap<String, Type>,
    interfaces: HashMap<String, Interface>,
    interface_exports: HashMap<String, Interface>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Interface {
    funcs: HashMap<String, Item>,
    types: HashMap<String, Type>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Type {
    docs: Option<String>,
    items: HashMap<String, String>,
}

/// A bare text in the section's first version.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Item {
    Bare(Option<String>),
    Full { docs: Option<String> },
}

impl Item {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Bare(docs) | Self::Full { docs } => docs.as_deref(),
        }
    }
}

impl Docs {
    /// Reads the section: a byte that tells its version, then JSON.
    pub(super) fn read(section: &[u8]) -> Self {
        match section {
            [0 | 1, json @ ..] if json.len() <= MAX_BYTES => {
                serde_json::from_slice(json).unwrap_or_default()
            }
            _ => Self::default(),
        }
    }

    /// `interface`: as the component exports it, such as `ns:pkg/name@1.0.0`; `None` at the root.
    pub(super) fn function(&self, interface: Option<&str>, name: &str) -> Option<&str> {
        match interface {
            Some(interface) => self
                .interfaces_named(interface)
                .find_map(|interface| interface.funcs.get(name)?.text()),
            None => self.worlds().find_map(|world| {
                world
                    .func_exports
                    .get(name)
                    .or(world.funcs.get(name))?
                    .text()
            }),
        }
    }

    /// What is said of a type and, by name, of its fields or cases. `owner`: the interface that defines it, by
    /// its bare name; `None` for a world's.
    pub(super) fn type_(&self, owner: Option<&str>, name: &str) -> Option<TypeDocs<'_>> {
        let found = match owner {
            Some(owner) => self
                .interfaces_named(owner)
                .find_map(|interface| interface.types.get(name)),
            None => self.worlds().find_map(|world| world.types.get(name)),
        };
        found.map(TypeDocs)
    }

    /// The worlds by name, so that two readings give the same.
    fn worlds(&self) -> impl Iterator<Item = &World> {
        let mut worlds: Vec<_> = self.worlds.iter().collect();
        worlds.sort_by_key(|(name, _)| *name);
        worlds.into_iter().map(|(_, world)| world)
    }

    fn interfaces_named(&self, interface: &str) -> impl Iterator<Item = &Interface> {
        let bare = bare(interface).to_owned();
        let inline = bare.clone();
        self.interfaces
            .get(&bare)
            .into_iter()
            .chain(self.worlds().filter_map(move |world| {
                world
                    .interface_exports
                    .get(&inline)
                    .or_else(|| world.interfaces.get(&inline))
            }))
    }
}

/// `name` of `ns:pkg/name@1.0.0`.
pub(super) fn bare(interface: &str) -> &str {
    let interface = interface.rsplit('/').next().unwrap_or(interface);
    interface.split('@').next().unwrap_or(interface)
}

pub(super) struct TypeDocs<'a>(&'a Type);

impl<'a> TypeDocs<'a> {
    pub(super) fn text(&self) -> Option<&'a str> {
        self.0.docs.as_deref()
    }

    pub(super) fn item(&self, name: &str) -> Option<&'a str> {
        self.0.items.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn docs(version: u8, json: &str) -> Docs {
        Docs::read(&[&[version], json.as_bytes()].concat())
    }

    #[test]
    fn both_versions_are_read() {
        let bare = docs(0, r#"{"worlds":{"w":{"funcs":{"f":"old"}}}}"#);
        assert_eq!(bare.function(None, "f"), Some("old"));
        let full = docs(
            1,
            r#"{"worlds":{"w":{"docs":"?","func_exports":{"f":{"docs":"new","stability":{}}}}}}"#,
        );
        assert_eq!(full.function(None, "f"), Some("new"));
    }

    #[test]
    fn interfaces_are_found_by_their_bare_name() {
        let docs = docs(
            1,
            r#"{"interfaces":{"i":{"funcs":{"f":{"docs":"d"}},"types":{"t":{"docs":"td","items":{"a":"ad"}}}}}}"#,
        );
        assert_eq!(docs.function(Some("n:p/i@1.2.3"), "f"), Some("d"));
        assert_eq!(docs.function(None, "f"), None);
        let found = docs.type_(Some("i"), "t").unwrap();
        assert_eq!((found.text(), found.item("a")), (Some("td"), Some("ad")));
    }

    #[test]
    fn what_does_not_fit_says_nothing() {
        for section in [&b""[..], b"\x01", b"\x02{}", b"\x01[1]"] {
            assert_eq!(Docs::read(section).function(None, "f"), None);
        }
    }
}
