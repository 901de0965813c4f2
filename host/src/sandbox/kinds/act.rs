//! Components of ACT (`act:tools/tool-provider`): what they say of themselves in their custom section, which is
//! CBOR. Their functions are asynchronous (WASI 0.3), and this host's engine is built without that: they are
//! described, not run.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{
    super::limits::{DESCRIPTION_BYTES, REASON_BYTES, REQUESTS_PER_TOOL, TITLE_BYTES},
    METHODS,
};
use crate::{
    capability::{Access, Capability, OriginPattern, Request},
    harmless::shown,
};

pub(in super::super) const SECTION: &str = "act:component";
/// The section's content that is read.
const SECTION_BYTES: usize = 256 << 10;

/// What an ACT component declares.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Act {
    pub name: String,
    pub version: String,
    pub description: String,
    /// What of its declarations has a counterpart here.
    pub requests: Vec<Request>,
    /// What has none, in words.
    pub not_taken: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Section {
    std: Std,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Std {
    name: String,
    version: String,
    description: String,
    capabilities: BTreeMap<String, Declared>,
}

/// One class of capabilities.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Declared {
    /// A text, or one for each language.
    description: Value,
    #[serde(alias = "allow")]
    constraints: Vec<Value>,
}

/// Reads the section; the error says what is wrong with it.
pub(in super::super) fn read(section: &[u8]) -> Result<Act, String> {
    if section.len() > SECTION_BYTES {
        let bytes = section.len();
        return Err(format!(
            "it takes {bytes} bytes, and the limit is {SECTION_BYTES}"
        ));
    }
    let section: Section =
        ciborium::from_reader(section).map_err(|e| shown(&e.to_string(), 300, false))?;
    let std = section.std;
    let mut act = Act {
        name: shown(&std.name, TITLE_BYTES, false),
        version: shown(&std.version, TITLE_BYTES, false),
        description: shown(&std.description, DESCRIPTION_BYTES, true),
        ..Act::default()
    };
    for (class, declared) in &std.capabilities {
        act.take(class, declared);
    }
    Ok(act)
}

impl Act {
    fn take(&mut self, class: &str, declared: &Declared) {
        let of_class = match class {
            "wasi:filesystem" => folder,
            "wasi:http" => http,
            _ => {
                self.leave(format!("`{class}`: this host has nothing of that kind"));
                return;
            }
        };
        let reason = match &declared.description {
            Value::String(text) => text.as_str(),
            Value::Object(languages) => {
                let any = languages.get("en").or_else(|| languages.values().next());
                any.and_then(Value::as_str).unwrap_or_default()
            }
            _ => "",
        };
        let reason = if reason.is_empty() {
            format!("it declares `{class}`")
        } else {
            shown(reason, REASON_BYTES, false)
        };
        if declared.constraints.is_empty() {
            self.leave(format!("`{class}` without saying what of it"));
        }
        for constraint in &declared.constraints {
            match of_class(constraint) {
                Ok(capability) if self.requests.len() < REQUESTS_PER_TOOL => {
                    let reason = reason.clone();
                    self.requests.push(Request { capability, reason });
                }
                Ok(_) => self.leave(format!("`{class}`: more than {REQUESTS_PER_TOOL} requests")),
                Err(why) => self.leave(format!("`{class}` {constraint}: {why}")),
            }
        }
    }

    fn leave(&mut self, what: String) {
        if self.not_taken.len() < REQUESTS_PER_TOOL {
            self.not_taken.push(shown(&what, 300, false));
        }
    }
}

fn folder(constraint: &Value) -> Result<Capability, String> {
    let path = constraint["path"].as_str().ok_or("it has no `path`")?;
    let access = match constraint["mode"].as_str() {
        Some("ro") => Access::Read,
        Some("rw") => Access::Write,
        Some(_) | None => return Err("its `mode` is neither `ro` nor `rw`".to_owned()),
    };
    let whole = path
        .strip_suffix("/**")
        .or_else(|| path.strip_suffix("/*"))
        .unwrap_or(path);
    let path = match whole {
        "" | "*" | "**" => "*",
        whole if whole.contains(['*', '?', '[', '{']) => {
            return Err("a folder is granted whole, and this is a pattern".to_owned());
        }
        whole if !whole.starts_with('/') || whole.split('/').any(|part| part == "..") => {
            return Err("its `path` is not absolute".to_owned());
        }
        whole => whole,
    };
    let path = path.to_owned();
    Ok(Capability::Folder { path, access })
}

fn http(constraint: &Value) -> Result<Capability, String> {
    let host = constraint["host"].as_str().ok_or("it has no `host`")?;
    // Without a scheme it declares both; the safe one is asked for.
    let scheme = constraint["scheme"].as_str().unwrap_or("https");
    let port = match constraint["ports"].as_array().map(Vec::as_slice) {
        None | Some([]) => String::new(),
        Some([port]) if port.is_u64() => format!(":{port}"),
        Some(_) => return Err("it names several ports; an origin has one".to_owned()),
    };
    let origin = match host {
        "*" => OriginPattern::Any,
        host => OriginPattern::parse(&format!("{scheme}://{host}{port}"))
            .map_err(|error| error.to_string())?,
    };
    let named = constraint["methods"].as_array().map(|methods| {
        let methods = methods.iter().filter_map(Value::as_str);
        methods.map(str::to_ascii_uppercase).collect::<Vec<_>>()
    });
    let methods = match named {
        None => METHODS.map(str::to_owned).to_vec(),
        // No methods would mean those that read.
        Some(named) if named.is_empty() => return Err("it names no methods".to_owned()),
        Some(named) => match named.iter().find(|name| !METHODS.contains(&name.as_str())) {
            Some(name) => return Err(format!("the method `{name}` can't be granted")),
            None => named,
        },
    };
    Ok(Capability::Http { origin, methods })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cbor(section: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        ciborium::into_writer(section, &mut bytes).unwrap();
        bytes
    }

    fn declaring(capabilities: &Value) -> Act {
        read(&cbor(&json!({ "std": { "capabilities": capabilities } }))).unwrap()
    }

    #[test]
    fn declarations_are_requests() {
        let section = json!({
            "std": {
                "name": "notes", "version": "1.2.0", "description": "Keeps notes",
                "default-language": "en",
                "capabilities": {
                    "wasi:filesystem": {
                        "description": { "en": "to keep them" },
                        "constraints": [{ "path": "/notes/**", "mode": "rw" }, { "path": "**", "mode": "ro" }],
                    },
                    "wasi:http": { "allow": [
                        { "host": "api.example.org", "methods": ["get"], "ports": [8443] },
                        { "host": "*.example.net", "scheme": "http" },
                    ] },
                },
            },
            "other": { "x": 1 },
        });
        let act = read(&cbor(&section)).unwrap();
        assert_eq!((&*act.name, &*act.version), ("notes", "1.2.0"));
        assert_eq!(act.description, "Keeps notes");
        assert_eq!(act.not_taken, [""; 0]);
        let asked: Vec<_> = act
            .requests
            .iter()
            .map(|request| (request.capability.to_string(), request.reason.as_str()))
            .collect();
        let asked: Vec<_> = asked.iter().map(|(what, why)| (&**what, *why)).collect();
        assert_eq!(
            asked,
            [
                ("write the folder /notes", "to keep them"),
                ("read granted folders", "to keep them"),
                (
                    "GET at https://api.example.org:8443",
                    "it declares `wasi:http`"
                ),
                (
                    "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS at http://*.example.net",
                    "it declares `wasi:http`"
                ),
            ]
        );
    }

    #[test]
    fn what_has_no_counterpart_is_named() {
        for (capabilities, why) in [
            (
                json!({ "wasi:sockets": { "constraints": [{ "host": "*" }] } }),
                "nothing of that kind",
            ),
            (json!({ "wasi:http": {} }), "without saying"),
            (
                json!({ "wasi:http": { "allow": [{ "host": "a.org", "ports": [1, 2] }] } }),
                "several ports",
            ),
            (
                json!({ "wasi:http": { "allow": [{ "host": "a.org", "methods": [] }] } }),
                "no methods",
            ),
            (
                json!({ "wasi:http": { "allow": [{ "host": "a.org", "methods": ["TRACE"] }] } }),
                "TRACE",
            ),
            (
                json!({ "wasi:http": { "allow": [{ "host": "a b" }] } }),
                "a b",
            ),
            (
                json!({ "wasi:filesystem": { "allow": [{ "path": "/a/*.md", "mode": "ro" }] } }),
                "pattern",
            ),
            (
                json!({ "wasi:filesystem": { "allow": [{ "path": "/a/../b", "mode": "ro" }] } }),
                "absolute",
            ),
            (
                json!({ "wasi:filesystem": { "allow": [{ "path": "/a" }] } }),
                "mode",
            ),
        ] {
            let act = declaring(&capabilities);
            assert_eq!(act.requests, [], "{capabilities}");
            assert!(act.not_taken[0].contains(why), "{:?}", act.not_taken);
        }
    }

    #[test]
    fn sections_that_are_none_are_refused() {
        assert!(read(b"").is_err());
        assert!(read(b"\xff\xff").is_err());
        // An array of more items than there are bytes, and one within the other without end.
        assert!(read(b"\x9b\x00\x00\x00\x10\x00\x00\x00\x00").is_err());
        assert!(read(&[0x81; 100_000]).is_err());
        let long = cbor(&json!({ "std": { "name": "x".repeat(SECTION_BYTES) } }));
        assert!(read(&long).unwrap_err().contains("limit"));
        // All that it has to say may be missing.
        assert_eq!(read(&cbor(&json!({}))), Ok(Act::default()));
    }
}
