//! The functions of a component, read from its types without compiling or running it, and what a tool of each
//! looks like.

use std::{
    collections::{HashMap, HashSet},
    io::{self, Read},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use wit_parser::{
    FunctionKind, Resolve, WorldItem,
    decoding::{DecodedWasm, decode_reader},
};

use super::{
    super::super::{
        limits::{DESCRIPTION_BYTES, SCHEMA_BYTES, TOOLS_PER_COMPONENT},
        metadata::{Definitions, MetadataError, SetAside},
    },
    docs::{self, Docs, bare},
    schema,
    shape::{Shape, Shapes},
};
use crate::{
    capability::{Capability, Request},
    harmless::shown,
    ids::ToolName,
    tool::{Annotations, ToolDefinition},
};

/// Longest name of a tool.
const NAME_BYTES: usize = 64;
/// Hexadecimal digits that stand for what a name had to lose.
const NAME_HASH: usize = 8;

/// Of what decides which functions a component has and what their schemas are; what an earlier state of it
/// worked out is not taken for the present one's.
pub(in super::super::super) const DERIVATION: u64 = derivation(&[
    env!("CARGO_PKG_VERSION").as_bytes(),
    include_bytes!("functions.rs"),
    include_bytes!("docs.rs"),
    include_bytes!("schema.rs"),
    include_bytes!("shape.rs"),
    include_bytes!("../../limits.rs"),
    include_bytes!("../../../harmless.rs"),
]);

/// FNV-1a, for it is there at compile time; nothing secret depends on it.
const fn derivation(sources: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut source = 0;
    while source < sources.len() {
        let mut at = 0;
        while at < sources[source].len() {
            hash = (hash ^ sources[source][at] as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        source += 1;
    }
    hash
}

/// The functions of a component that are tools, and what is known of the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Kept", into = "Kept")]
pub(in super::super::super) struct Functions {
    pub(super) functions: Vec<Function>,
    by_tool: HashMap<ToolName, usize>,
    set_aside: Vec<SetAside>,
}

/// As it is written down.
#[derive(Serialize, Deserialize)]
struct Kept {
    functions: Vec<Function>,
    set_aside: Vec<SetAside>,
}

impl From<Kept> for Functions {
    fn from(kept: Kept) -> Self {
        let tools = kept.functions.iter().enumerate();
        Self {
            by_tool: tools.map(|(at, f)| (f.tool.clone(), at)).collect(),
            functions: kept.functions,
            set_aside: kept.set_aside,
        }
    }
}

impl From<Functions> for Kept {
    fn from(functions: Functions) -> Self {
        Self {
            functions: functions.functions,
            set_aside: functions.set_aside,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Function {
    pub(super) tool: ToolName,
    /// As the component exports it; `None` at the root.
    pub(super) interface: Option<String>,
    pub(super) name: String,
    pub(super) params: Vec<(String, Shape)>,
    pub(super) result: Option<Shape>,
    docs: Option<String>,
    input_schema: Value,
    output_schema: Option<Value>,
}

/// Reads the functions of a component. Takes some milliseconds for each MiB, since the whole file is validated.
pub(in super::super::super) fn functions(
    wasm: &[u8],
    docs: &DocsSections,
) -> Result<Functions, MetadataError> {
    let unreadable = |why: &str| MetadataError::Types {
        why: shown(why, 300, false),
    };
    // Under their own name the decoder would read these sections too, and fail at one that does not fit.
    let bytes = Parts::renamed(wasm, &docs.names);
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_reader(bytes)))
        .map_err(|_| unreadable("they are too odd for their parser"))?
        .map_err(|e| unreadable(&format!("{e:#}")))?;
    let DecodedWasm::Component(resolve, world) = decoded else {
        return Err(MetadataError::WitPackage);
    };
    let docs = match docs.sections.as_slice() {
        [section] => Docs::read(section),
        _ => Docs::default(),
    };
    let mut found = Vec::new();
    for (key, item) in &resolve.worlds[world].exports {
        match item {
            WorldItem::Function(function) => found.push((None, function)),
            WorldItem::Interface { id, .. } => {
                let name = resolve.name_world_key(key);
                if is_foreign(&name) {
                    continue;
                }
                let functions = resolve.interfaces[*id].functions.values();
                // What componentize-py calls when it builds a component.
                let functions = functions
                    .filter(|function| (name.as_str(), &*function.name) != ("exports", "init"));
                found.extend(functions.map(|function| (Some(name.clone()), function)));
            }
            WorldItem::Type { .. } => {}
        }
    }
    if found.len() > TOOLS_PER_COMPONENT {
        return Err(MetadataError::TooManyTools { count: found.len() });
    }
    Ok(Functions::new(&resolve, &docs, &found))
}

/// Interfaces that others call for other ends: a program's or a server's entry, for example.
pub(in super::super::super) fn is_foreign(interface: &str) -> bool {
    ["wasi:", "agentloop:", "act:"]
        .iter()
        .any(|package| interface.starts_with(package))
}

/// The sections with what the authors wrote, wherever they stand in the file.
#[derive(Debug, Default)]
pub(in super::super::super) struct DocsSections {
    /// Contents of those of the component itself.
    pub(in super::super::super) sections: Vec<Vec<u8>>,
    /// Where the names of all of them stand, in the order of the file.
    pub(in super::super::super) names: Vec<Range<usize>>,
}

impl Functions {
    fn new(
        resolve: &Resolve,
        docs: &Docs,
        found: &[(Option<String>, &wit_parser::Function)],
    ) -> Self {
        let names = Names::new(found.iter().map(|(i, f)| (i.as_deref(), f.name.as_str())));
        let mut kept = Kept {
            functions: Vec::new(),
            set_aside: Vec::new(),
        };
        for (interface, function) in found {
            let interface = interface.as_deref();
            match Function::new(resolve, docs, interface, function, &names) {
                Ok(function) => kept.functions.push(function),
                Err(why) => kept.set_aside.push(SetAside {
                    what: shown(&full_name(interface, &function.name), 200, false),
                    why: shown(&why, 500, false),
                }),
            }
        }
        kept.into()
    }

    pub(super) fn position(&self, tool: &ToolName) -> Option<usize> {
        self.by_tool.get(tool).copied()
    }

    /// Whether there is nothing to say of it, not even why nothing can be called.
    pub(in super::super::super) fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.set_aside.is_empty()
    }

    /// What each tool looks like. None of them says what it asks for, so each asks for what the component could
    /// use: `requests`.
    pub(in super::super::super) fn definitions(&self, requests: &[Request]) -> Definitions {
        let mut definitions = Definitions {
            tools: Vec::new(),
            set_aside: self.set_aside.clone(),
        };
        for function in &self.functions {
            let definition = function.definition(requests);
            let size = definition.input_schema.to_string().len();
            if size > SCHEMA_BYTES {
                definitions.set_aside.push(SetAside {
                    what: function.tool.to_string(),
                    why: format!(
                        "its schema has a size of {size}, and the limit is {SCHEMA_BYTES}"
                    ),
                });
            } else {
                definitions.tools.push(definition);
            }
        }
        definitions
    }
}

impl Function {
    fn new(
        resolve: &Resolve,
        docs: &Docs,
        interface: Option<&str>,
        function: &wit_parser::Function,
        names: &Names,
    ) -> Result<Self, String> {
        match function.kind {
            FunctionKind::Freestanding => {}
            FunctionKind::AsyncFreestanding
            | FunctionKind::AsyncMethod(_)
            | FunctionKind::AsyncStatic(_) => {
                return Err("it is asynchronous, which WASI 0.2 does not have".to_owned());
            }
            FunctionKind::Method(_) | FunctionKind::Static(_) | FunctionKind::Constructor(_) => {
                return Err(
                    "it belongs to a resource, and a resource does not outlive a call".to_owned(),
                );
            }
        }
        let mut shapes = Shapes::new(resolve, docs);
        let mut params = Vec::with_capacity(function.params.len());
        for param in &function.params {
            let shape = shapes.of(&param.ty);
            let shape = shape.map_err(|why| format!("its parameter `{}`: {why}", param.name))?;
            params.push((param.name.clone(), shape));
        }
        let result = function.result.as_ref().map(|ty| shapes.of(ty));
        let result = result
            .transpose()
            .map_err(|why| format!("its result: {why}"))?;
        let text = docs.function(interface, &function.name);
        Ok(Self {
            tool: names.of(interface, &function.name)?,
            interface: interface.map(str::to_owned),
            name: function.name.clone(),
            input_schema: schema::of_arguments(&params),
            output_schema: schema::of_answer(result.as_ref())
                .filter(|schema| schema.to_string().len() <= SCHEMA_BYTES),
            params,
            result,
            docs: text.map(|text| shown(text.trim(), DESCRIPTION_BYTES - 4, true)),
        })
    }

    fn definition(&self, requests: &[Request]) -> ToolDefinition {
        let description = match &self.docs {
            Some(docs) if !docs.is_empty() => docs.clone(),
            Some(_) | None => self.signature(),
        };
        let input_schema = self.input_schema.clone();
        let mut definition = ToolDefinition::new(self.tool.clone(), description, input_schema);
        definition.output_schema = self.output_schema.clone();
        // What has nothing to reach out with can change nothing.
        let sees_only_variables =
            |request: &Request| matches!(request.capability, Capability::Environment { .. });
        if requests.iter().all(sees_only_variables) {
            definition.annotations = Annotations {
                read_only: true,
                destructive: false,
                idempotent: false,
                open_world: false,
            };
        }
        definition.requests = requests.to_vec();
        definition
    }

    /// The function as WIT writes it: what a model is told where no author wrote anything.
    fn signature(&self) -> String {
        const MAX: usize = 1000;
        let mut text = format!(
            "{}: func(",
            full_name(self.interface.as_deref(), &self.name)
        );
        for (n, (name, shape)) in self.params.iter().enumerate() {
            text.push_str(if n == 0 { "" } else { ", " });
            text.push_str(&format!("{name}: "));
            shape.write(&mut text, MAX);
        }
        text.push(')');
        if let Some(result) = &self.result {
            text.push_str(" -> ");
            result.write(&mut text, MAX);
        }
        shown(&text, 2 * MAX, false)
    }
}

fn full_name(interface: Option<&str>, function: &str) -> String {
    match interface {
        Some(interface) => format!("{interface}.{function}"),
        None => function.to_owned(),
    }
}

/// Tools' names: a function's own name where only one function of the component has it, else with its interface
/// in front, else with its package as well. WIT's names have no `_`, so that no two of them come to the same;
/// what is too long is cut, and ends with a digest of the whole.
struct Names {
    /// Functions by their own name, and by that of their interface and their own.
    own: HashMap<String, usize>,
    with_interface: HashMap<String, usize>,
    at_root: HashSet<String>,
}

impl Names {
    fn new<'a>(functions: impl Iterator<Item = (Option<&'a str>, &'a str)>) -> Self {
        let mut names = Self {
            own: HashMap::new(),
            with_interface: HashMap::new(),
            at_root: HashSet::new(),
        };
        for (interface, function) in functions {
            *names.own.entry(function.to_owned()).or_default() += 1;
            match interface {
                Some(interface) => {
                    let name = with_interface(interface, function);
                    *names.with_interface.entry(name).or_default() += 1;
                }
                None => {
                    names.at_root.insert(function.to_owned());
                }
            }
        }
        names
    }

    fn of(&self, interface: Option<&str>, function: &str) -> Result<ToolName, String> {
        let only = |names: &HashMap<String, usize>, name: &str| names.get(name) == Some(&1);
        let name = match interface {
            // The root's own come first: no interface takes a name from them.
            None => function.to_owned(),
            Some(_) if only(&self.own, function) => function.to_owned(),
            Some(interface) => {
                let name = with_interface(interface, function);
                if only(&self.with_interface, &name) {
                    name
                } else {
                    whole(interface, function)
                }
            }
        };
        let full = full_name(interface, function);
        let name = if name.len() > NAME_BYTES {
            let digest = Sha256::digest(full.as_bytes());
            let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let kept = name.get(..NAME_BYTES - NAME_HASH - 1).unwrap_or_default();
            format!("{kept}_{}", &hash[..NAME_HASH])
        } else {
            name
        };
        ToolName::parse(&name).map_err(|e| format!("its name can't be a tool's: {e}"))
    }
}

fn with_interface(interface: &str, function: &str) -> String {
    format!("{}_{function}", bare(interface))
}

/// `ns_pkg_interface_1-2-0_function`: each part of the interface's name between underscores.
fn whole(interface: &str, function: &str) -> String {
    let flat: String = interface
        .chars()
        .map(|c| match c {
            ':' | '/' | '@' => '_',
            '.' | '+' => '-',
            c => c,
        })
        .collect();
    format!("{flat}_{function}")
}

/// A file with other names for some of its sections, as long as their own.
struct Parts<'a>(Vec<&'a [u8]>);

impl<'a> Parts<'a> {
    fn renamed(wasm: &'a [u8], names: &[Range<usize>]) -> Self {
        const OTHER: &[u8] = &[b'x'; docs::SECTION.len()];
        let mut parts = Vec::new();
        let mut from = 0;
        for name in names {
            parts.extend(wasm.get(from..name.start));
            parts.extend(OTHER.get(..name.len()));
            from = name.end;
        }
        parts.extend(wasm.get(from..));
        parts.reverse();
        Self(parts)
    }
}

impl Read for Parts<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(part) = self.0.last_mut() {
            if part.is_empty() {
                self.0.pop();
                continue;
            }
            return part.read(out);
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(functions: &[(Option<&str>, &str)]) -> Vec<String> {
        let names = Names::new(functions.iter().copied());
        let of = |(interface, function): &(Option<&str>, &str)| {
            names.of(*interface, function).unwrap().to_string()
        };
        functions.iter().map(of).collect()
    }

    #[test]
    fn names_are_as_short_as_they_can_be_and_never_the_same() {
        assert_eq!(
            names(&[
                (None, "read-file"),
                (Some("a:b/c@1.0.0"), "get"),
                (Some("a:b/d"), "put"),
                (Some("a:b/e"), "put"),
                (Some("a:b/e"), "read-file"),
                (Some("a:b/f@1.0.0"), "x"),
                (Some("a:z/f@2.0.0"), "x"),
            ]),
            [
                "read-file",
                "get",
                "d_put",
                "e_put",
                "e_read-file",
                "a_b_f_1-0-0_x",
                "a_z_f_2-0-0_x",
            ]
        );
    }

    #[test]
    fn long_names_are_cut_and_differ() {
        let start = "a".repeat(80);
        let (one, other) = (format!("{start}-x"), format!("{start}-y"));
        let names = names(&[(None, &one), (None, &other)]);
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.len() == NAME_BYTES));
    }

    #[test]
    fn sections_are_renamed_in_place() {
        let mut read = Vec::new();
        let wasm = b"0123456789";
        Parts::renamed(wasm, &[0..1, 3..5, 9..10])
            .read_to_end(&mut read)
            .unwrap();
        assert_eq!(read, b"x12xx5678x");
    }
}
