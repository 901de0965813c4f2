//! What a file is, without compiling or running anything of it.

use crate::harmless::shown;
use std::sync::Arc;

use wasmparser::{ComponentExternalKind, ComponentTypeRef, Encoding, Parser, Payload, TypeBounds};

use super::{
    LoadError,
    cache::Cache,
    imports,
    kinds::{self, Act, DocsSections, Functions, Manifest, Offer},
    limits::MAX_COMPONENT_BYTES,
    metadata::{self, Definitions, MetadataError, SECTION},
};
use crate::{capability::Request, ids::ComponentDigest};

/// The interface that makes a component a plugin.
const TOOLS_INTERFACE: &str = "agentloop:tool/tools";
/// The version of the contract that this host speaks; also what its messages name.
pub(super) const CONTRACT: Version = Version { major: 0, minor: 1 };
/// Names that are kept of a component's imports and exports.
const MAX_NAMES: usize = 1000;
const MAX_NAME_BYTES: usize = 200;

/// What can be told of a file by reading it.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    pub digest: ComponentDigest,
    pub size_bytes: usize,
    pub file: FileKind,
    /// The interfaces that a component needs of its host: an upper bound of what it can ask for. Of a core
    /// module, the modules that it imports from.
    pub imports: Vec<String>,
    pub exports: Vec<String>,
    /// What the custom section says, or the types of plain functions; absent in components that have to be
    /// asked by running `list`.
    pub metadata: Option<Result<Definitions, MetadataError>>,
    /// What an ACT component's section says; the error is what is wrong with it.
    pub act: Option<Result<Act, String>>,
    /// How its tools are called, if it has some that this host can call.
    pub(super) offer: Option<Offer>,
}

/// What stands beside a file and belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// The file's name without its ending.
    pub program: String,
    /// The text of `NAME.toml`, which makes a program a tool.
    pub manifest: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileKind {
    /// A component with `agentloop:tool/tools`; the version as it stands there, if one does.
    Tool {
        version: Option<String>,
    },
    /// A component that exports plain functions, at its root or in interfaces of its own.
    Functions,
    /// A component that runs as a program (`wasi:cli/run`): a tool if a manifest says how.
    Command,
    /// A component that answers HTTP requests (`wasi:http/incoming-handler`).
    Http,
    /// A component of ACT (`act:tools/tool-provider`), which this host can't call yet.
    Act,
    /// A component that exports nothing that can be called.
    Component,
    /// WebAssembly 1.0 without the component layer.
    CoreModule,
    NotWasm {
        /// With its article, such as `a zip archive`.
        looks_like: &'static str,
    },
    Damaged {
        at: usize,
        why: String,
    },
}

/// Reads what a file is. Takes about a millisecond for each MiB, most of it for the digest; for plain functions
/// some more, since their types are read.
pub fn inspect(wasm: &[u8]) -> Inspection {
    inspect_with(wasm, None)
}

/// As [`inspect`], with what stands beside the file.
pub fn inspect_with(wasm: &[u8], beside: Option<&Beside>) -> Inspection {
    inspect_kept(wasm, beside, None)
}

/// As [`inspect_with`]; what takes time to work out is worked out once for each file.
pub(super) fn inspect_kept(
    wasm: &[u8],
    beside: Option<&Beside>,
    cache: Option<&Cache>,
) -> Inspection {
    let mut found = Found::default();
    let file = match looks_like(wasm) {
        Some(looks_like) => FileKind::NotWasm { looks_like },
        None => match found.read(wasm) {
            Err((at, why)) => FileKind::Damaged { at, why },
            Ok(Encoding::Module) => FileKind::CoreModule,
            Ok(Encoding::Component) => found.component_kind(),
        },
    };
    let mut inspection = Inspection {
        digest: ComponentDigest::of(wasm),
        size_bytes: wasm.len(),
        file,
        imports: found.imports,
        exports: found.exports,
        metadata: None,
        act: None,
        offer: None,
    };
    match inspection.file {
        FileKind::Tool { .. } => {
            inspection.offer = Some(Offer::Contract);
            // Two of them (in a composition) would leave open whose tools are called: then it is asked.
            if let [section] = found.sections.as_slice() {
                inspection.metadata = Some(metadata::from_section(section));
            }
        }
        FileKind::Functions => match functions(wasm, &inspection.digest, &found.docs, cache) {
            Ok(functions) if functions.is_empty() => inspection.file = FileKind::Component,
            Ok(functions) => {
                let requests = kinds::requests_of_imports(&inspection.imports);
                inspection.metadata = Some(Ok(functions.definitions(&requests)));
                inspection.offer = Some(Offer::Functions(Arc::new(functions)));
            }
            Err(error) => inspection.metadata = Some(Err(error)),
        },
        FileKind::Command => {
            let requests = kinds::requests_of_imports(&inspection.imports);
            let manifest =
                beside.map(|beside| Manifest::read(&beside.manifest, &beside.program, requests));
            inspection.metadata = manifest.map(|manifest| {
                let manifest = manifest?;
                let tools = vec![manifest.tool().clone()];
                inspection.offer = Some(Offer::Command(Arc::new(manifest)));
                Ok(Definitions {
                    tools,
                    set_aside: Vec::new(),
                })
            });
        }
        FileKind::Http => {
            let requests = kinds::requests_of_imports(&inspection.imports);
            inspection.metadata = Some(Ok(kinds::http_definitions(requests)));
            inspection.offer = Some(Offer::Http);
        }
        FileKind::Act => inspection.act = found.act.as_deref().map(kinds::act),
        FileKind::Component
        | FileKind::CoreModule
        | FileKind::NotWasm { .. }
        | FileKind::Damaged { .. } => {}
    }
    inspection
}

fn functions(
    wasm: &[u8],
    digest: &ComponentDigest,
    docs: &DocsSections,
    cache: Option<&Cache>,
) -> Result<Functions, MetadataError> {
    if let Some(kept) = cache.and_then(|cache| cache.derived(digest, kinds::DERIVATION)) {
        return Ok(kept);
    }
    let functions = kinds::functions(wasm, docs)?;
    if let Some(cache) = cache {
        cache.put_derived(digest, kinds::DERIVATION, &functions);
    }
    Ok(functions)
}

/// What an import of a component comes to in this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportNeeds {
    /// It is there for every tool.
    Nothing,
    /// It is there, with nothing behind it unless a folder is granted.
    Folders,
    /// It is there, and refuses what is not granted.
    Http,
    /// It is there, and holds what is granted.
    Environment,
    /// It is there and refuses everything: no grant opens it.
    Refused,
    /// This host does not have it, so that the component can't be loaded.
    Missing,
}

impl ImportNeeds {
    pub fn of(import: &str) -> Self {
        let from = |interface: &str| import.starts_with(interface);
        if !is_known(import) {
            Self::Missing
        } else if from("wasi:filesystem/") {
            Self::Folders
        } else if from("wasi:http/outgoing-handler@") {
            Self::Http
        } else if from("wasi:cli/environment@") || from("wasi:config/store@") {
            Self::Environment
        } else if from("wasi:sockets/") {
            Self::Refused
        } else {
            Self::Nothing
        }
    }
}

impl Inspection {
    /// What a component whose tools declare nothing could use, if it were granted; of an ACT component, what it
    /// declares as a whole. Empty for one whose tools say what they ask for.
    pub fn could_use(&self) -> Vec<Request> {
        if let (FileKind::Act, Some(Ok(act))) = (&self.file, &self.act) {
            return act.requests.clone();
        }
        match self.file {
            FileKind::Functions | FileKind::Command | FileKind::Http | FileKind::Act => {
                kinds::requests_of_imports(&self.imports)
            }
            FileKind::Tool { .. }
            | FileKind::Component
            | FileKind::CoreModule
            | FileKind::NotWasm { .. }
            | FileKind::Damaged { .. } => Vec::new(),
        }
    }

    /// Whether this host can load it, as far as reading tells.
    pub fn check(&self) -> Result<(), LoadError> {
        if self.size_bytes > MAX_COMPONENT_BYTES {
            let bytes = self.size_bytes;
            return Err(LoadError::TooLarge { bytes });
        }
        match &self.file {
            FileKind::NotWasm { looks_like } => Err(LoadError::NotWasm { looks_like }),
            FileKind::Damaged { at, why } => Err(LoadError::Damaged {
                at: *at,
                size: self.size_bytes,
                why: why.clone(),
            }),
            FileKind::CoreModule => Err(LoadError::CoreModule),
            FileKind::Command => match &self.metadata {
                None => Err(LoadError::Command),
                Some(Err(error)) => Err(LoadError::Manifest(error.clone())),
                Some(Ok(_)) => check_imports(&self.imports),
            },
            FileKind::Http => check_imports(&self.imports),
            FileKind::Act => Err(LoadError::Act),
            FileKind::Component => Err(LoadError::NoTools {
                exports: names(&self.exports),
            }),
            FileKind::Tool { version } => {
                check_version(version.as_deref())?;
                check_imports(&self.imports)
            }
            FileKind::Functions => {
                if let Some(Err(error)) = &self.metadata {
                    return Err(LoadError::Functions(error.clone()));
                }
                check_imports(&self.imports)
            }
        }
    }
}

fn check_version(version: Option<&str>) -> Result<(), LoadError> {
    let found = version.unwrap_or("no version").to_owned();
    let side = match version.and_then(Version::parse) {
        Some(version) if version == CONTRACT => return Ok(()),
        Some(version) if version > CONTRACT => "update agentloop-host",
        Some(_) | None => "build the tool again with a newer agentloop-sdk",
    };
    Err(LoadError::OtherVersion { found, side })
}

fn check_imports(imports: &[String]) -> Result<(), LoadError> {
    let unknown: Vec<_> = imports.iter().filter(|name| !is_known(name)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let newer = unknown
        .iter()
        .any(|name| name.starts_with("agentloop:tool/"));
    Err(LoadError::UnknownImports {
        imports: names(&unknown),
        advice: if newer {
            "update agentloop-host"
        } else if unknown.iter().any(|name| name.starts_with("wasi:")) {
            "build it for WASI 0.2 (`wasm32-wasip2`)"
        } else {
            "link them into the component, with `wac plug` for example"
        },
    })
}

fn is_known(import: &str) -> bool {
    const WASI: [&str; 7] = [
        "wasi:cli",
        "wasi:clocks",
        "wasi:filesystem",
        "wasi:http",
        "wasi:io",
        "wasi:random",
        "wasi:sockets",
    ];
    if imports::config::INTERFACES.contains(&import) {
        return true;
    }
    let Some((package, rest)) = import.split_once('/') else {
        return false;
    };
    let Some((_, version)) = rest.split_once('@') else {
        return false;
    };
    let Some(version) = Version::parse(version) else {
        return false;
    };
    if package == "agentloop:tool" {
        return version == CONTRACT;
    }
    WASI.contains(&package) && version == Version { major: 0, minor: 2 }
}

fn names(names: &[impl AsRef<str>]) -> String {
    const SHOWN: usize = 12;
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let mut text = String::new();
    for (n, name) in names.iter().take(SHOWN).enumerate() {
        let comma = if n == 0 { "" } else { ", " };
        text.push_str(&format!("{comma}`{}`", name.as_ref()));
    }
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

/// The part of a version that has to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    major: u64,
    minor: u64,
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-', '+']);
        let mut number = || parts.next()?.parse().ok();
        let version = Self {
            major: number()?,
            minor: number()?,
        };
        number().map(|_: u64| version)
    }
}

/// What stands in a component, read from its sections.
#[derive(Default)]
struct Found {
    imports: Vec<String>,
    exports: Vec<String>,
    sections: Vec<Vec<u8>>,
    docs: DocsSections,
    /// Of an ACT component.
    act: Option<Vec<u8>>,
    /// Whether there is a function at the root, or an interface that could have some.
    functions: bool,
}

impl Found {
    fn read(&mut self, wasm: &[u8]) -> Result<Encoding, (usize, String)> {
        let mut depth = 0_usize;
        let mut outermost = None;
        let damaged =
            |e: wasmparser::BinaryReaderError| (e.offset(), shown(e.message(), 300, false));
        for payload in Parser::new(0).parse_all(wasm) {
            match payload.map_err(damaged)? {
                Payload::Version { encoding, .. } => {
                    depth += 1;
                    outermost.get_or_insert(encoding);
                }
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(imports) if depth == 1 => {
                    for import in imports {
                        let import = import.map_err(damaged)?;
                        // A type that is written out needs nobody to give it.
                        if !matches!(import.ty, ComponentTypeRef::Type(TypeBounds::Eq(_))) {
                            keep(&mut self.imports, import.name.name);
                        }
                    }
                }
                Payload::ImportSection(imports) if depth == 1 => {
                    for import in imports.into_imports() {
                        let module = import.map_err(damaged)?.module;
                        if !self.imports.iter().any(|name| name == module) {
                            keep(&mut self.imports, module);
                        }
                    }
                }
                Payload::ComponentExportSection(exports) if depth == 1 => {
                    for export in exports {
                        let export = export.map_err(damaged)?;
                        self.functions |= match export.kind {
                            ComponentExternalKind::Func => true,
                            ComponentExternalKind::Instance => !kinds::is_foreign(export.name.name),
                            _ => false,
                        };
                        keep(&mut self.exports, export.name.name);
                    }
                }
                Payload::CustomSection(section)
                    if section.name() == SECTION && self.sections.len() < 2 =>
                {
                    self.sections.push(section.data().to_vec());
                }
                Payload::CustomSection(section)
                    if depth == 1 && section.name() == kinds::ACT_SECTION =>
                {
                    self.act.get_or_insert_with(|| section.data().to_vec());
                }
                Payload::CustomSection(section) if section.name() == kinds::DOCS_SECTION => {
                    let data = section.data_offset();
                    self.docs.names.push(data - kinds::DOCS_SECTION.len()..data);
                    if depth == 1 && self.docs.sections.len() < 2 {
                        self.docs.sections.push(section.data().to_vec());
                    }
                }
                _ => {}
            }
        }
        outermost.ok_or_else(|| (wasm.len(), "it has no header".to_owned()))
    }

    fn component_kind(&self) -> FileKind {
        let versions = |interface: &str| -> Vec<Option<String>> {
            self.exports
                .iter()
                .filter_map(|export| match export.split_once('@') {
                    Some((name, version)) => (name == interface).then(|| Some(version.to_owned())),
                    None => (export == interface).then_some(None),
                })
                .collect()
        };
        let mut tools = versions(TOOLS_INTERFACE);
        // A component may offer several; the one that this host speaks counts.
        tools.sort_by_key(|version| version.as_deref().and_then(Version::parse) != Some(CONTRACT));
        match tools.into_iter().next() {
            Some(version) => FileKind::Tool { version },
            None if !versions("act:tools/tool-provider").is_empty() => FileKind::Act,
            None if self.functions => FileKind::Functions,
            None if !versions("wasi:cli/run").is_empty() => FileKind::Command,
            None if !versions("wasi:http/incoming-handler").is_empty() => FileKind::Http,
            None => FileKind::Component,
        }
    }
}

fn keep(names: &mut Vec<String>, name: &str) {
    if names.len() < MAX_NAMES {
        names.push(shown(name, MAX_NAME_BYTES, false));
    }
}

/// What a file is that doesn't begin like WebAssembly.
fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    const MAGIC: &[u8] = b"\0asm";
    const KNOWN: [(&[u8], &str); 14] = [
        (
            b"\x7fELF",
            "an ELF file (a native program or library, or code compiled ahead of time)",
        ),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"\xfd7zXZ", "an xz archive"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive"),
        (b"MZ", "a Windows program"),
        (b"\xcf\xfa\xed\xfe", "a macOS program"),
        (b"\xca\xfe\xba\xbe", "a macOS program or a Java class"),
        (b"#!", "a script"),
        (b"(", "WebAssembly text"),
        (b"<", "a web page or XML"),
        (b"{", "JSON"),
        (b"version https://git-lfs", "a Git LFS pointer"),
        (b"!<arch>", "a static library"),
    ];
    if bytes.is_empty() {
        return Some("an empty file");
    }
    if bytes.starts_with(MAGIC) {
        return None;
    }
    if MAGIC.starts_with(bytes) {
        return Some("the first bytes of WebAssembly, cut off");
    }
    if bytes.iter().all(|b| *b == 0) {
        return Some("nothing but zeros");
    }
    let start = bytes.trim_ascii_start();
    let known = KNOWN
        .iter()
        .find(|(magic, _)| bytes.starts_with(magic) || start.starts_with(magic));
    Some(known.map_or("data of an unknown kind", |(_, name)| *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(wasm: &[u8]) -> String {
        inspect(wasm).check().unwrap_err().to_string()
    }

    #[test]
    fn other_files_are_named() {
        for (bytes, name) in [
            (&b""[..], "an empty file"),
            (b"\x7fELF\x02\x01", "an ELF file"),
            (b"PK\x03\x04rest", "a zip archive"),
            (b"\0as", "cut off"),
            (b"\0\0\0\0\0\0\0\0\0", "nothing but zeros"),
            (b"\n\n  (component)", "WebAssembly text"),
            (b"hello", "data of an unknown kind"),
        ] {
            let error = error(bytes);
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn core_modules_are_told_apart() {
        let error = error(b"\0asm\x01\0\0\0");
        assert!(
            error.contains("core") && error.contains("wasm32-wasip2"),
            "{error}"
        );
    }

    #[test]
    fn damage_has_a_place() {
        // A component whose first section claims more bytes than there are.
        let error = error(b"\0asm\x0d\0\x01\0\x07\x40\x01");
        assert!(error.contains("at byte"), "{error}");
    }

    #[test]
    fn versions_say_which_side_to_update() {
        let side = |version: Option<&str>| check_version(version).map_err(|e| e.to_string());
        assert_eq!(side(Some("0.1.0")), Ok(()));
        assert_eq!(side(Some("0.1.7")), Ok(()));
        for (version, says) in [
            (Some("0.2.0"), "update agentloop-host"),
            (Some("1.1.0"), "update agentloop-host"),
            (Some("0.0.9"), "agentloop-sdk"),
            (Some("nonsense"), "agentloop-sdk"),
            (None, "agentloop-sdk"),
        ] {
            let error = side(version).unwrap_err();
            assert!(error.contains(says) && error.contains("0.1"), "{error}");
        }
    }

    #[test]
    fn imports_are_known_by_package_and_version() {
        for known in [
            "wasi:io/streams@0.2.6",
            "wasi:http/types@0.2.0",
            "agentloop:tool/logging@0.1.3",
        ] {
            assert!(is_known(known), "{known}");
        }
        for unknown in [
            "wasi:io/streams@0.3.0",
            "wasi:keyvalue/store@0.2.0",
            "agentloop:tool/logging@0.2.0",
            "log",
            "a:b/c",
        ] {
            assert!(!is_known(unknown), "{unknown}");
        }
    }
}
