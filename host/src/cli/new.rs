//! `new`: a tool crate that builds.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};

use super::{
    terminal::{dim, good, strong},
    write,
};
use crate::{ids::MAX_NAME_BYTES, sdk_sources};

#[derive(Debug, clap::Args)]
pub struct NewArgs {
    /// Name of the crate, of its plugin and of its first tool
    name: String,
    /// Where to put it, instead of a folder of that name here
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
}

/// Path in the crate, and text.
const TEMPLATE: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("template/Cargo.toml.in")),
    (
        ".cargo/config.toml",
        include_str!("template/cargo-config.toml.in"),
    ),
    (".gitignore", include_str!("template/gitignore.in")),
    ("README.md", include_str!("template/README.md.in")),
    ("src/lib.rs", include_str!("template/lib.rs.in")),
];

/// `data_dir` is the user's, where the SDK's sources are unpacked.
pub fn run(args: &NewArgs, data_dir: &Path) -> anyhow::Result<ExitCode> {
    let names = Names::of(&args.name)?;
    let folder = match &args.path {
        Some(path) => path.clone(),
        None => PathBuf::from(&args.name),
    };
    check_is_free(&folder)?;
    let sdk = sdk_sources::unpack(data_dir)?;
    let sdk = std::path::absolute(&sdk)?;
    let Some(sdk) = sdk.to_str() else {
        bail!(
            "the data folder `{}` has a name that is not Unicode, so Cargo.toml can't name it; set XDG_DATA_HOME to another folder",
            sdk.display()
        );
    };
    put(&folder, &names, sdk)
        .with_context(|| format!("can't make the crate in `{}`", folder.display()))?;

    eprintln!(
        "{} `{}`: its first tool is in {}",
        good().apply_to("created"),
        folder.display(),
        folder.join("src/lib.rs").display()
    );
    if let Some(outer) = outer_workspace(&folder) {
        eprintln!(
            "{}",
            dim().apply_to(format!(
                "it stands apart from the workspace of {}; its Cargo.toml says how to join",
                outer.display()
            ))
        );
    }
    eprintln!(
        "next: {}",
        strong().apply_to(format!("agentloop-host build {}", shell_word(&folder)))
    );
    write::stdout(&format!("{}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// What the crate's parts are called.
#[derive(Debug, PartialEq)]
struct Names {
    package: String,
    library: String,
    /// As it stands in code: `r#type` for a tool `type`.
    function: String,
    tool: String,
}

impl Names {
    fn of(name: &str) -> anyhow::Result<Self> {
        if let Some(last) = name.rsplit(['/', '\\']).next().filter(|last| *last != name) {
            bail!("`{name}` is a path; write `agentloop-host new {last} --path {name}`");
        }
        let is_name = name.len() <= MAX_NAME_BYTES
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !is_name {
            bail!(
                "`{}` can't be the name of a crate: it takes a letter and then up to {} of A-Z a-z 0-9 _ -",
                name.chars().take(80).collect::<String>().escape_debug(),
                MAX_NAME_BYTES - 1
            );
        }
        let tool = name.replace('-', "_").to_ascii_lowercase();
        if DEVICES.contains(&tool.as_str()) {
            bail!("`{name}` can't be the name of a folder on Windows; choose another one");
        }
        // A dependency, or a crate that every crate sees, has the name already.
        let taken = TAKEN.contains(&tool.as_str());
        let library = if taken || is_keyword(&tool) {
            format!("{tool}_tools")
        } else {
            tool.clone()
        };
        let (tool, function) = match tool.as_str() {
            // No raw identifier, or a type that the code beside the tool needs.
            "self" | "super" | "crate" | "tool" | "tools" => {
                (format!("{tool}_it"), format!("{tool}_it"))
            }
            word if PRIMITIVES.contains(&word) => (format!("{tool}_it"), format!("{tool}_it")),
            word if is_keyword(word) => (tool.clone(), format!("r#{tool}")),
            _ => (tool.clone(), tool),
        };
        Ok(Self {
            package: name.to_owned(),
            library,
            function,
            tool,
        })
    }
}

/// File names that Windows keeps for itself.
const DEVICES: [&str; 22] = [
    "aux", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9", "con", "lpt1",
    "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9", "nul", "prn",
];
const TAKEN: [&str; 10] = [
    "agentloop_sdk",
    "agentloop_sdk_macros",
    "alloc",
    "core",
    "proc_macro",
    "serde",
    "serde_json",
    "std",
    "test",
    "wit_bindgen",
];
const PRIMITIVES: [&str; 17] = [
    "bool", "char", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "str", "u8", "u16",
    "u32", "u64", "u128", "usize",
];

/// Strict and reserved keywords of the edition 2024.
fn is_keyword(word: &str) -> bool {
    const KEYWORDS: [&str; 51] = [
        "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
        "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
        "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub",
        "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type",
        "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
    ];
    KEYWORDS.contains(&word)
}

fn check_is_free(folder: &Path) -> anyhow::Result<()> {
    match fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => bail!(
                "`{}` is there already and not empty; choose another name, or another place with `--path`",
                folder.display()
            ),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => bail!(
            "`{}` is there already and not a folder; choose another name, or another place with `--path`",
            folder.display()
        ),
        Err(error) => Err(error).with_context(|| format!("can't look into `{}`", folder.display())),
    }
}

/// The whole crate at once, or nothing of it.
fn put(folder: &Path, names: &Names, sdk: &str) -> io::Result<()> {
    let folder = std::path::absolute(folder)?;
    let parent = folder.parent().unwrap_or(&folder);
    fs::create_dir_all(parent)?;
    let scratch = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(parent)?;
    let fresh = scratch.path().join("fresh");
    for (path, text) in TEMPLATE {
        let path = fresh.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&fresh))?;
        let text = text
            .replace("{{package}}", &names.package)
            .replace("{{library}}", &names.library)
            .replace("{{function}}", &names.function)
            .replace("{{tool}}", &names.tool)
            .replace("{{sdk}}", &toml::Value::from(sdk).to_string());
        fs::write(path, text)?;
    }
    if folder.exists() {
        // Only an empty one goes.
        fs::remove_dir(&folder)?;
    }
    fs::rename(&fresh, &folder)
}

/// The manifest of a workspace above the folder.
fn outer_workspace(folder: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(folder).ok()?;
    folder.ancestors().skip(1).find_map(|above| {
        let path = above.join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(&path).ok()?.parse().ok()?;
        manifest.contains_key("workspace").then_some(path)
    })
}

/// The path as a person types it into a shell.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+:\\".contains(c);
    if text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_words_of_rust_become_other_identifiers() {
        let names = |name: &str| {
            let names = Names::of(name).unwrap();
            (names.library, names.function, names.tool)
        };
        let owned = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(
            names("Word-Count"),
            owned("word_count", "word_count", "word_count")
        );
        assert_eq!(names("type"), owned("type_tools", "r#type", "type"));
        assert_eq!(names("self"), owned("self_tools", "self_it", "self_it"));
        assert_eq!(names("usize"), owned("usize", "usize_it", "usize_it"));
        assert_eq!(names("serde"), owned("serde_tools", "serde", "serde"));
    }

    #[test]
    fn what_is_no_name_is_refused_with_what_is() {
        for (name, says) in [
            ("", "takes a letter"),
            ("3d", "takes a letter"),
            ("_x", "takes a letter"),
            ("größe", "takes a letter"),
            ("a b", "takes a letter"),
            ("a\u{1b}[2J", "\\u{1b}"),
            ("tools/a", "--path tools/a"),
            ("con", "Windows"),
        ] {
            let error = Names::of(name).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
        assert!(Names::of(&"a".repeat(64)).is_ok());
        assert!(Names::of(&"a".repeat(65)).is_err());
    }

    #[test]
    fn only_an_empty_place_is_taken() {
        let here = tempfile::tempdir().unwrap();
        let make = |folder: &Path| {
            check_is_free(folder)?;
            anyhow::Ok(put(folder, &Names::of("dice")?, "/data/sdk")?)
        };
        let folder = here.path().join("deep/dice");
        make(&folder).unwrap();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert!(manifest.contains(r#"agentloop-sdk = { path = "/data/sdk" }"#));
        for (path, _) in TEMPLATE {
            let text = fs::read_to_string(folder.join(path)).unwrap();
            assert!(!text.contains("{{"), "{path}: {text}");
        }
        let error = make(&folder).unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");

        let file = here.path().join("file");
        fs::write(&file, "").unwrap();
        let error = make(&file).unwrap_err().to_string();
        assert!(error.contains("not a folder"), "{error}");

        let empty = here.path().join("empty");
        fs::create_dir(&empty).unwrap();
        make(&empty).unwrap();
        assert!(empty.join("src/lib.rs").exists());
    }

    #[test]
    fn a_path_with_a_blank_is_quoted_for_the_shell() {
        assert_eq!(shell_word(Path::new("a/b-c")), "a/b-c");
        assert_eq!(shell_word(Path::new("my tools")), "'my tools'");
        assert_eq!(shell_word(Path::new("it's")), r"'it'\''s'");
    }
}
