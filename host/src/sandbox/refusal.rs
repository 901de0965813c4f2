//! What a tool lacked, and the exact thing that an operator can do about it.

use crate::{
    capability::{Access, Capability, Reach, Request},
    ids::PluginName,
    tool::Refusal,
};

/// A complete sentence for [`Refusal::remedy`], with the lines to add.
fn remedy(plugin: &PluginName, missing: &Capability) -> String {
    let (flag, line) = match missing {
        Capability::Folder { path, access } => {
            let guest = if path == "*" { "/folder" } else { path };
            let (flag, access) = match access {
                Access::Read => ("--read", ""),
                Access::Write => ("--write", ", access = \"write\""),
            };
            (
                format!("{flag} A-FOLDER-OF-YOURS={}", in_shell(guest)),
                format!(
                    "folders = [{{ path = \"a folder of yours\", as = {}{access} }}]",
                    quoted(guest)
                ),
            )
        }
        Capability::Http { origin, .. } => {
            let origin = origin.to_string();
            (
                format!("--http {}", in_shell(&origin)),
                format!("http = [{}]", quoted(&origin)),
            )
        }
        Capability::Environment { name } => (
            format!("--env {}", in_shell(name)),
            format!("env = [{}]", quoted(name)),
        ),
        Capability::Secret { name } => (
            format!("--secret {name}"),
            format!("secrets = [{}]", quoted(name.as_str())),
        ),
    };
    format!(
        "To allow it, run `agentloop-host grant {plugin} {flag}`, which adds to agentloop.toml:\n[grants.{plugin}]\n{line}"
    )
}

/// The folders and variables that a tool asks for and was not granted, or not for writing. WASI has no call
/// that would tell when one is missed, so this is what a tool that fails is told.
pub(super) fn not_granted(
    plugin: &PluginName,
    requests: &[Request],
    reach: &Reach,
) -> Vec<Refusal> {
    requests
        .iter()
        .filter(|request| match &request.capability {
            Capability::Folder { path, access } => !reach
                .folders
                .iter()
                .any(|f| (path == "*" || *path == f.guest_path) && f.access >= *access),
            // Nobody can tell whether one was looked for.
            Capability::Environment { name } if name == "*" => false,
            Capability::Environment { name } => !reach.environment.iter().any(|e| e.name == *name),
            Capability::Secret { name } => !reach.secrets.iter().any(|s| s.name == *name),
            // Recorded where it happens, by the egress.
            Capability::Http { .. } => false,
        })
        .map(|request| Refusal {
            attempted: request.capability.to_string(),
            missing: request.capability.clone(),
            requested: true,
            remedy: remedy(plugin, &request.capability),
        })
        .collect()
}

/// Whether a failure reads like WASI's answer where no folder is granted: a file that is not there, or an
/// operation that is not permitted. For tools that declare no requests.
pub(super) fn names_a_missing_file(message: &str) -> bool {
    const SIGNS: [&str; 8] = [
        "no such file",
        "not permitted",
        "permission denied",
        "pre-opened",
        "preopen",
        "enoent",
        "no-entry",
        "errno 44",
    ];
    let message = message.to_lowercase();
    SIGNS.iter().any(|sign| message.contains(sign))
}

/// As one word of a command line.
fn in_shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+".contains(c);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// As a TOML basic string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{FolderGrant, Grants};

    fn plugin() -> PluginName {
        PluginName::parse("weather").unwrap()
    }

    fn folder(path: &str, access: Access) -> Request {
        Request {
            capability: Capability::Folder {
                path: path.into(),
                access,
            },
            reason: String::new(),
        }
    }

    #[test]
    fn remedies_are_lines_of_the_file() {
        for (missing, line) in [
            (
                Capability::Folder {
                    path: "/my \"notes\"".into(),
                    access: Access::Write,
                },
                r#"folders = [{ path = "a folder of yours", as = '/my "notes"', access = "write" }]"#,
            ),
            (
                Capability::Environment { name: "A".into() },
                r#"env = ["A"]"#,
            ),
        ] {
            let text = remedy(&plugin(), &missing);
            let (_, lines) = text.split_once('\n').unwrap();
            assert_eq!(lines, format!("[grants.weather]\n{line}"));
            toml::from_str::<toml::Table>(lines).unwrap();
        }
    }

    #[test]
    fn missing_files_are_heard_of() {
        for message in [
            "read a: No such file or directory (os error 44)",
            "[Errno 44] No such file or directory: '/a'",
            "failed to find a pre-opened file descriptor",
        ] {
            assert!(names_a_missing_file(message), "{message}");
        }
        assert!(!names_a_missing_file("the number is too large"));
    }

    #[test]
    fn folders_count_with_their_access() {
        let requests = [folder("/notes", Access::Write), folder("*", Access::Read)];
        let grants = |access| Grants {
            folders: vec![FolderGrant {
                host_path: "/srv/notes".into(),
                guest_path: "/notes".into(),
                access,
            }],
            ..Grants::default()
        };
        let missing = |grants: &Grants| {
            not_granted(&plugin(), &requests, &Reach::new(&requests, grants)).len()
        };
        assert_eq!(missing(&Grants::default()), 2);
        assert_eq!(missing(&grants(Access::Read)), 1);
        assert_eq!(missing(&grants(Access::Write)), 0);
    }
}
