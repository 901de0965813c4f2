//! What a component asks for, beside what the operator grants of it; for people.

use crate::{
    capability::{Access, Capability, Grants, OriginPattern, READING_METHODS, Request},
    cli::terminal::harmless,
    ids::{PluginName, ToolName},
    registry::schema::{ArgumentSchema, OutputSchema},
    sandbox::{Definitions, Inspection},
    tool::ToolDefinition,
};

/// A capability that tools of one component ask for.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) capability: Capability,
    /// That of the first tool which asks.
    pub(super) reason: String,
    pub(super) tools: Vec<ToolName>,
}

/// How far a request is granted. `by`: what is open by that, no wider than either side.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Granted {
    Whole { by: Vec<String> },
    Partly { by: Vec<String>, lacks: String },
    Not,
}

impl Granted {
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole { .. })
    }
}

impl Asked {
    /// Each capability once, in the order of the tools.
    pub(super) fn of<'a>(tools: impl IntoIterator<Item = &'a ToolDefinition>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for tool in tools {
            for Request { capability, reason } in &tool.requests {
                match all.iter_mut().find(|asked| asked.capability == *capability) {
                    Some(asked) => asked.tools.push(tool.name.clone()),
                    None => all.push(Self {
                        capability: capability.clone(),
                        reason: reason.clone(),
                        tools: vec![tool.name.clone()],
                    }),
                }
            }
        }
        all
    }

    pub(super) fn granted(&self, grants: &Grants) -> Granted {
        match &self.capability {
            Capability::Folder { path, access } => folder(path, *access, grants),
            Capability::Http { origin, methods } => http(origin, methods, grants),
            Capability::Environment { name } if name == "*" => {
                let variables = grants.environment.iter();
                let by: Vec<_> = variables
                    .map(|grant| format!("see the variable {}", grant.name))
                    .collect();
                if by.is_empty() {
                    Granted::Not
                } else {
                    Granted::Whole { by }
                }
            }
            Capability::Environment { name } => {
                if grants.environment.iter().any(|grant| grant.name == *name) {
                    let by = vec![format!("see the variable {name}")];
                    Granted::Whole { by }
                } else {
                    Granted::Not
                }
            }
            Capability::Secret { name } => {
                match grants.secrets.iter().find(|grant| grant.name == *name) {
                    Some(grant) => Granted::Whole {
                        by: vec![format!("send {grant}, unseen")],
                    },
                    None => Granted::Not,
                }
            }
        }
    }
}

fn folder(path: &str, access: Access, grants: &Grants) -> Granted {
    let fitting: Vec<_> = grants
        .folders
        .iter()
        .filter(|grant| path == "*" || path == grant.guest_path)
        .collect();
    let by: Vec<_> = fitting
        .iter()
        .map(|grant| {
            let verb = match grant.access.min(access) {
                Access::Read => "read",
                Access::Write => "write",
            };
            let host = grant.host_path.display();
            format!("{verb} {host} as {}", grant.guest_path)
        })
        .collect();
    if fitting.is_empty() {
        Granted::Not
    } else if fitting.iter().any(|grant| grant.access >= access) {
        Granted::Whole { by }
    } else {
        let lacks = "writing".to_owned();
        Granted::Partly { by, lacks }
    }
}

fn http(origin: &OriginPattern, methods: &[String], grants: &Grants) -> Granted {
    let wanted = effective(methods);
    let fitting: Vec<_> = grants
        .http
        .iter()
        .filter(|grant| overlap(origin, &grant.origin))
        .filter(|grant| {
            effective(&grant.methods)
                .iter()
                .any(|method| wanted.contains(method))
        })
        .collect();
    if fitting.is_empty() {
        return Granted::Not;
    }
    let by = fitting
        .iter()
        .map(|grant| {
            let mut methods = effective(&grant.methods);
            methods.retain(|method| wanted.contains(method));
            let origin = if within(origin, &grant.origin) {
                origin
            } else {
                &grant.origin
            };
            format!("{} at {origin}", methods.join(", "))
        })
        .collect();
    let mut lacks = Vec::new();
    // Of whatever is granted, something is all.
    let all_origins = *origin == OriginPattern::Any;
    if !all_origins && !fitting.iter().any(|grant| within(origin, &grant.origin)) {
        lacks.push("other hosts".to_owned());
    }
    let methods_granted = |method: &&str| {
        fitting
            .iter()
            .any(|grant| effective(&grant.methods).contains(method))
    };
    lacks.extend(
        wanted
            .iter()
            .filter(|method| !methods_granted(method))
            .map(|method| (*method).to_owned()),
    );
    if lacks.is_empty() {
        Granted::Whole { by }
    } else {
        let lacks = lacks.join(", ");
        Granted::Partly { by, lacks }
    }
}

fn effective(methods: &[String]) -> Vec<&str> {
    if methods.is_empty() {
        READING_METHODS.to_vec()
    } else {
        methods.iter().map(String::as_str).collect()
    }
}

/// Whether all that the pattern names is inside the other one.
fn within(pattern: &OriginPattern, outer: &OriginPattern) -> bool {
    use crate::capability::HostPattern::{Exact, SubdomainsOf};
    match pattern {
        OriginPattern::Any => *outer == OriginPattern::Any,
        OriginPattern::Origin { scheme, host, port } => match host {
            Exact(host) => outer.covers(*scheme, host, *port),
            // A host below the parent stands for all of them.
            SubdomainsOf(parent) => {
                let below = format!("sub.{parent}");
                pattern == outer
                    || (outer.covers(*scheme, &below, *port) && !outer.names_exactly(&below))
            }
        },
    }
}

fn overlap(a: &OriginPattern, b: &OriginPattern) -> bool {
    within(a, b) || within(b, a)
}

/// The lines of a settings file that grant what is not granted yet; `None` when all is. A folder or origin that
/// the operator has to choose stands there as an example.
pub(super) fn lines_to_add(
    plugin: &PluginName,
    asked: &[Asked],
    grants: &Grants,
) -> Option<String> {
    let mut folders: Vec<(&str, Access)> = Vec::new();
    let mut http: Vec<(&OriginPattern, Vec<&str>)> = Vec::new();
    let mut environment: Vec<&str> = Vec::new();
    let mut secrets: Vec<&str> = Vec::new();
    for asked in asked
        .iter()
        .filter(|asked| !asked.granted(grants).is_whole())
    {
        match &asked.capability {
            Capability::Folder { path, access } => {
                match folders.iter_mut().find(|(other, _)| other == path) {
                    Some((_, most)) => *most = (*most).max(*access),
                    None => folders.push((path, *access)),
                }
            }
            Capability::Http { origin, methods } => {
                let methods = effective(methods);
                match http.iter_mut().find(|(other, _)| *other == origin) {
                    Some((_, all)) => {
                        all.extend(methods);
                        all.sort_unstable();
                        all.dedup();
                    }
                    None => http.push((origin, methods)),
                }
            }
            Capability::Environment { name } if name == "*" => environment.push("A_VARIABLE"),
            Capability::Environment { name } => environment.push(name),
            Capability::Secret { name } => secrets.push(name.as_str()),
        }
    }
    let folders: Vec<_> = folders.into_iter().map(folder_line).collect();
    let http: Vec<_> = http.into_iter().map(http_line).collect();
    let environment: Vec<_> = environment.into_iter().map(quoted).collect();
    let secrets: Vec<_> = secrets.into_iter().map(quoted).collect();
    let mut text = String::new();
    for (key, values) in [
        ("folders", folders),
        ("http", http),
        ("env", environment),
        ("secrets", secrets),
    ] {
        if !values.is_empty() {
            text.push_str(&format!("{key} = [{}]\n", values.join(", ")));
        }
    }
    (!text.is_empty()).then(|| harmless(&format!("[grants.{plugin}]\n{text}")))
}

fn folder_line((path, access): (&str, Access)) -> String {
    let access = match access {
        Access::Read => "read",
        Access::Write => "write",
    };
    match path {
        "*" => format!("{{ path = \"a/folder/of/yours\", access = \"{access}\" }}"),
        path => format!(
            "{{ path = \"a/folder/of/yours\", as = {}, access = \"{access}\" }}",
            quoted(path)
        ),
    }
}

fn http_line((origin, methods): (&OriginPattern, Vec<&str>)) -> String {
    let origin = match origin {
        OriginPattern::Any => quoted("https://an.origin.you.choose"),
        origin => quoted(&origin.to_string()),
    };
    if methods == READING_METHODS {
        return origin;
    }
    let methods: Vec<_> = methods.into_iter().map(quoted).collect();
    format!(
        "{{ origin = {origin}, methods = [{}] }}",
        methods.join(", ")
    )
}

/// As a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// What the component says of its tools; `None`: nothing that could be read without running it.
pub(super) fn definitions(inspection: &Inspection) -> Option<&Definitions> {
    match &inspection.metadata {
        Some(Ok(definitions)) => Some(definitions),
        Some(Err(_)) | None => None,
    }
}

/// The tools that can be told without running it.
pub(super) fn tools(inspection: &Inspection) -> &[ToolDefinition] {
    definitions(inspection).map_or(&[], |definitions| &definitions.tools)
}

/// What is wrong with the tools of a component that can be loaded.
pub(super) fn faults(inspection: &Inspection) -> Vec<String> {
    let definitions = match &inspection.metadata {
        None => return Vec::new(),
        Some(Err(error)) => {
            return vec![format!(
                "its section `agentloop-tools` can't be used: {error}"
            )];
        }
        Some(Ok(definitions)) => definitions,
    };
    let set_aside = definitions
        .set_aside
        .iter()
        .map(|aside| format!("the tool `{}` can't be offered: {}", aside.what, aside.why));
    let schemas = definitions.tools.iter().flat_map(|tool| {
        let input = ArgumentSchema::compile(&tool.input_schema).err();
        let output = tool.output_schema.as_ref();
        let output = output.and_then(|schema| OutputSchema::compile(schema).err());
        let fault = |kind: &str, fault: &dyn std::fmt::Display| {
            format!(
                "the tool `{}` can't be offered: its {kind} schema can't be used: {fault}",
                tool.name
            )
        };
        [
            input.map(|error| fault("input", &error)),
            output.map(|error| fault("output", &error)),
        ]
    });
    set_aside.chain(schemas.flatten()).collect()
}

/// A size for people.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes.div_ceil(1024)),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::capability::{EnvironmentGrant, FolderGrant, HttpGrant};

    fn http_request(origin: &str, methods: &[&str]) -> Capability {
        Capability::Http {
            origin: OriginPattern::parse(origin).unwrap(),
            methods: methods.iter().map(|m| (*m).to_owned()).collect(),
        }
    }

    fn folder_request(path: &str, access: Access) -> Capability {
        let path = path.to_owned();
        Capability::Folder { path, access }
    }

    fn tool(name: &str, requests: Vec<Capability>) -> ToolDefinition {
        ToolDefinition {
            requests: requests
                .into_iter()
                .map(|capability| Request {
                    capability,
                    reason: format!("for {name}"),
                })
                .collect(),
            ..ToolDefinition::new(ToolName::parse(name).unwrap(), "d", json!({}))
        }
    }

    fn asked(capability: Capability) -> Asked {
        Asked::of(&[tool("t", vec![capability])]).remove(0)
    }

    fn grants() -> Grants {
        let http = |origin: &str, methods: &[&str]| HttpGrant {
            origin: OriginPattern::parse(origin).unwrap(),
            methods: methods.iter().map(|m| (*m).to_owned()).collect(),
        };
        Grants {
            folders: vec![FolderGrant {
                host_path: "/srv/notes".into(),
                guest_path: "/notes".into(),
                access: Access::Read,
            }],
            http: vec![
                http("https://api.example.org", &[]),
                http("https://*.example.net", &["GET", "POST"]),
            ],
            secrets: Vec::new(),
            environment: vec![EnvironmentGrant {
                name: "CITY".into(),
                value: "Lima".into(),
            }],
        }
    }

    #[test]
    fn each_request_is_held_against_the_grants() {
        let lacks = |capability: Capability| match asked(capability).granted(&grants()) {
            Granted::Whole { .. } => "nothing".to_owned(),
            Granted::Partly { lacks, .. } => lacks,
            Granted::Not => "everything".to_owned(),
        };
        for (capability, lacking) in [
            (folder_request("/notes", Access::Read), "nothing"),
            (folder_request("*", Access::Read), "nothing"),
            (folder_request("/notes", Access::Write), "writing"),
            (folder_request("/other", Access::Read), "everything"),
            (http_request("https://api.example.org", &[]), "nothing"),
            (
                http_request("https://api.example.org", &["GET", "PUT"]),
                "PUT",
            ),
            (
                http_request("https://api.example.org", &["PUT"]),
                "everything",
            ),
            (http_request("http://api.example.org", &[]), "everything"),
            (http_request("https://*.example.org", &[]), "other hosts"),
            (http_request("https://a.example.net", &["POST"]), "nothing"),
            (http_request("https://*.example.net", &["POST"]), "nothing"),
            (
                http_request("https://*.a.example.net", &["POST"]),
                "nothing",
            ),
            (http_request("https://example.net", &["POST"]), "everything"),
            (http_request("*", &["GET"]), "nothing"),
            (
                Capability::Environment {
                    name: "CITY".into(),
                },
                "nothing",
            ),
            (
                Capability::Environment {
                    name: "HOME".into(),
                },
                "everything",
            ),
        ] {
            assert_eq!(lacks(capability.clone()), lacking, "{capability}");
        }
    }

    #[test]
    fn what_is_open_is_no_wider_than_request_and_grant() {
        let open = |capability: Capability| match asked(capability).granted(&grants()) {
            Granted::Whole { by } | Granted::Partly { by, .. } => by.join("; "),
            Granted::Not => String::new(),
        };
        for (capability, expected) in [
            (
                folder_request("/notes", Access::Write),
                "read /srv/notes as /notes",
            ),
            (
                http_request("https://a.example.net", &["GET", "PUT"]),
                "GET at https://a.example.net",
            ),
            (
                http_request("*", &["POST"]),
                "POST at https://*.example.net",
            ),
        ] {
            assert_eq!(open(capability), expected);
        }
    }

    #[test]
    fn lines_to_add_are_toml_and_hold_each_thing_once() {
        let tools = [
            tool(
                "a",
                vec![
                    folder_request("/out", Access::Read),
                    http_request("https://api.example.com", &[]),
                    Capability::Environment {
                        name: "CITY".into(),
                    },
                ],
            ),
            tool(
                "b",
                vec![
                    folder_request("/out", Access::Write),
                    http_request("https://api.example.com", &["POST"]),
                    http_request("https://b.example.com", &[]),
                    http_request("https://api.example.com", &[]),
                    Capability::Environment {
                        name: "HOME".into(),
                    },
                ],
            ),
        ];
        let asked = Asked::of(&tools);
        assert_eq!(asked[1].tools.len(), 2);
        let plugin = PluginName::parse("my-tools").unwrap();
        let lines = lines_to_add(&plugin, &asked, &grants()).unwrap();
        let table: toml::Table = lines.parse().unwrap();
        let table = table["grants"]["my-tools"].as_table().unwrap().clone();
        let expected: toml::Table = r#"
            folders = [{ path = "a/folder/of/yours", as = "/out", access = "write" }]
            http = [{ origin = "https://api.example.com", methods = ["GET", "HEAD", "POST"] }, "https://b.example.com"]
            env = ["HOME"]
        "#
        .parse()
        .unwrap();
        assert_eq!(table, expected);
    }

    #[test]
    fn what_is_granted_needs_no_line() {
        let plugin = PluginName::parse("p").unwrap();
        let all = [asked(folder_request("/notes", Access::Read))];
        assert_eq!(lines_to_add(&plugin, &all, &grants()), None);
        assert_eq!(lines_to_add(&plugin, &[], &Grants::default()), None);
    }
}
