//! Components made of WebAssembly text, for shapes that no compiler makes.

use std::{fs, path::Path};

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::{Resolve, UnresolvedPackageGroup};

/// The package in `wit/`.
const PACKAGE: &str = "agentloop:tool@0.1.0";

/// A core module around the interface `tools`. What is not given answers with nothing: no tools, no content.
pub struct Crafted<'a> {
    /// Fields of the module, put first. Memory, `cabi_realloc` and the exports are there unless these have them.
    pub fields: &'a str,
    /// The body of `call`: takes the name and the arguments as pointers and lengths, gives a pointer.
    pub call: &'a str,
    /// The body of `list`: gives a pointer.
    pub list: &'a str,
    /// The JSON of the custom section; `None` leaves it out, so that `list` is run at load.
    pub section: Option<&'a str>,
    pub encoding: StringEncoding,
    /// In the package's name.
    pub version: &'a str,
}

impl Default for Crafted<'_> {
    fn default() -> Self {
        Self {
            fields: "",
            call: "i32.const 64",
            list: "i32.const 64",
            section: Some(
                r#"{"tools":[{"name":"crafted","description":"d","input_schema":{"type":"object"}}]}"#,
            ),
            encoding: StringEncoding::UTF8,
            version: "0.1.0",
        }
    }
}

impl Crafted<'_> {
    pub fn component(&self) -> Vec<u8> {
        let package = PACKAGE.replace("0.1.0", self.version);
        let interface = package.replacen('@', "/tools@", 1);
        let has = |export: &str| self.fields.contains(export);
        let memory = if has(r#"(export "memory")"#) {
            ""
        } else {
            r#"(memory (export "memory") 1)"#
        };
        let realloc = if has(r#"(export "cabi_realloc")"#) {
            ""
        } else {
            // Gives the same place again and again: enough for two short strings.
            r#"(global $next (mut i32) (i32.const 4096))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
                (global.set $next (i32.add (global.get $next) (i32.const 1024)))
                (global.get $next))"#
        };
        let section = self.section.map_or(String::new(), |json| {
            format!(
                r#"(@custom "agentloop-tools" "{}")"#,
                json.replace('\\', "\\\\").replace('"', "\\\"")
            )
        });
        let module = format!(
            r#"(module
                {fields}
                {memory}
                {realloc}
                (func (export "{interface}#list") (result i32) {list})
                (func (export "{interface}#call") (param i32 i32 i32 i32) (result i32) {call})
                {section})"#,
            fields = self.fields.replace("{interface}", &interface),
            list = self.list,
            call = self.call,
        );
        let mut module = wat::parse_str(&module).unwrap();
        let (resolve, world) = self.world();
        embed_component_metadata(&mut module, &resolve, world, self.encoding).unwrap();
        ComponentEncoder::default()
            // Some of them are broken on purpose, which is the host's to find.
            .validate(false)
            .module(&module)
            .unwrap()
            .encode()
            .unwrap()
    }

    fn world(&self) -> (Resolve, wit_parser::WorldId) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
        let other = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let text = fs::read_to_string(entry.path()).unwrap();
            let text = text.replace(PACKAGE, &PACKAGE.replace("0.1.0", self.version));
            fs::write(other.path().join(entry.file_name()), text).unwrap();
        }
        let mut resolve = Resolve::default();
        let group = UnresolvedPackageGroup::parse_dir(other.path()).unwrap();
        let package = resolve.push_group(group).unwrap();
        let world = resolve.select_world(&[package], Some("tool")).unwrap();
        (resolve, world)
    }
}
