//! WIT types as trees: written out, bounded, and without what can't be put into JSON.

use crate::harmless::shown;
use serde::{Deserialize, Serialize};
use wit_parser::{Handle, Resolve, Type, TypeDefKind, TypeId, TypeOwner};

use super::super::super::limits::{DESCRIPTION_BYTES, TYPE_DEPTH, TYPE_NODES};
use super::docs::Docs;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Shape {
    Bool,
    S8,
    S16,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    Char,
    String,
    /// `list<u8>`: base64 in JSON.
    Bytes,
    List(Box<Shape>),
    /// A list of exactly so many.
    Array(Box<Shape>, u32),
    Map(Box<Shape>, Box<Shape>),
    Tuple(Vec<Shape>),
    Record(Named<Shape>),
    Variant(Named<Option<Shape>>),
    Enum(Named<()>),
    Flags(Named<()>),
    Option(Box<Shape>),
    Result {
        ok: Option<Box<Shape>>,
        err: Option<Box<Shape>>,
    },
}

/// A type with named parts and what is written about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Named<T> {
    pub(super) docs: Option<String>,
    pub(super) parts: Vec<Part<T>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Part<T> {
    pub(super) name: String,
    pub(super) docs: Option<String>,
    pub(super) of: T,
}

impl Shape {
    pub(super) fn is_record(&self) -> bool {
        matches!(self, Self::Record(_))
    }

    /// Whether `null` is one of its values in JSON.
    pub(super) fn takes_null(&self) -> bool {
        matches!(self, Self::Option(_))
    }

    /// The type as WIT writes it, with named types written out, at most about `max_bytes` of it.
    pub(super) fn write(&self, out: &mut String, max_bytes: usize) {
        if out.len() > max_bytes {
            if !out.ends_with('…') {
                out.push('…');
            }
            return;
        }
        let list = |out: &mut String, word: &str, parts: &[&Shape]| {
            out.push_str(word);
            for (n, part) in parts.iter().enumerate() {
                out.push_str(if n == 0 { "<" } else { ", " });
                part.write(out, max_bytes);
            }
            out.push('>');
        };
        let word = match self {
            Self::Bool => "bool",
            Self::S8 => "s8",
            Self::S16 => "s16",
            Self::S32 => "s32",
            Self::S64 => "s64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Char => "char",
            Self::String => "string",
            Self::Bytes => "list<u8>",
            Self::List(of) => return list(out, "list", &[of]),
            Self::Array(of, len) => {
                out.push_str("list<");
                of.write(out, max_bytes);
                out.push_str(&format!(", {len}>"));
                return;
            }
            Self::Map(key, value) => return list(out, "map", &[key, value]),
            Self::Tuple(of) => return list(out, "tuple", &of.iter().collect::<Vec<_>>()),
            Self::Option(of) => return list(out, "option", &[of]),
            Self::Result { ok, err } => {
                match (ok, err) {
                    (None, None) => out.push_str("result"),
                    (Some(ok), None) => list(out, "result", &[ok]),
                    (Some(ok), Some(err)) => list(out, "result", &[ok, err]),
                    (None, Some(err)) => {
                        out.push_str("result<_, ");
                        err.write(out, max_bytes);
                        out.push('>');
                    }
                }
                return;
            }
            Self::Record(record) => {
                out.push_str("record {");
                for (n, field) in record.parts.iter().enumerate() {
                    out.push_str(if n == 0 { " " } else { ", " });
                    out.push_str(&format!("{}: ", field.name));
                    field.of.write(out, max_bytes);
                }
                out.push_str(" }");
                return;
            }
            Self::Variant(_) => "variant",
            Self::Enum(_) => "enum",
            Self::Flags(_) => "flags",
        };
        out.push_str(word);
    }
}

/// Builds the shapes of one function: the types that it names share one budget.
pub(super) struct Shapes<'a> {
    resolve: &'a Resolve,
    docs: &'a Docs,
    nodes: usize,
}

impl<'a> Shapes<'a> {
    pub(super) fn new(resolve: &'a Resolve, docs: &'a Docs) -> Self {
        Self {
            resolve,
            docs,
            nodes: 0,
        }
    }

    /// Fails for what has no JSON, with a reason that follows "its function …: ".
    pub(super) fn of(&mut self, ty: &Type) -> Result<Shape, String> {
        self.shape(ty, 0)
    }

    fn shape(&mut self, ty: &Type, depth: usize) -> Result<Shape, String> {
        self.nodes += 1;
        if self.nodes > TYPE_NODES {
            return Err(format!(
                "its types have more than {TYPE_NODES} parts when written out"
            ));
        }
        if depth > TYPE_DEPTH {
            return Err(format!(
                "its types are nested deeper than {TYPE_DEPTH} levels"
            ));
        }
        Ok(match ty {
            Type::Bool => Shape::Bool,
            Type::U8 => Shape::U8,
            Type::U16 => Shape::U16,
            Type::U32 => Shape::U32,
            Type::U64 => Shape::U64,
            Type::S8 => Shape::S8,
            Type::S16 => Shape::S16,
            Type::S32 => Shape::S32,
            Type::S64 => Shape::S64,
            Type::F32 => Shape::F32,
            Type::F64 => Shape::F64,
            Type::Char => Shape::Char,
            Type::String => Shape::String,
            Type::ErrorContext => return Err("it uses `error-context`".to_owned()),
            Type::Id(id) => return self.defined(*id, depth + 1),
        })
    }

    fn boxed(&mut self, ty: &Type, depth: usize) -> Result<Box<Shape>, String> {
        self.shape(ty, depth).map(Box::new)
    }

    fn payload(&mut self, ty: Option<&Type>, depth: usize) -> Result<Option<Box<Shape>>, String> {
        ty.map(|ty| self.boxed(ty, depth)).transpose()
    }

    fn defined(&mut self, id: TypeId, depth: usize) -> Result<Shape, String> {
        let resolve = self.resolve;
        let Some(def) = resolve.types.get(id) else {
            return Err("it uses a type that is not there".to_owned());
        };
        let name = def.name.as_deref().unwrap_or("");
        let owner = match def.owner {
            TypeOwner::Interface(id) => {
                let interface = &resolve.interfaces[id];
                Some(interface.name.as_deref().unwrap_or("").to_owned())
            }
            TypeOwner::World(_) | TypeOwner::None => None,
        };
        let docs = self.docs.type_(owner.as_deref(), name);
        let text =
            |text: Option<&str>| text.map(|text| shown(text.trim(), DESCRIPTION_BYTES, true));
        let of_type = text(docs.as_ref().and_then(|docs| docs.text()));
        let of_item = |item: &str| text(docs.as_ref().and_then(|docs| docs.item(item)));
        Ok(match &def.kind {
            TypeDefKind::Type(ty) => self.shape(ty, depth)?,
            TypeDefKind::Option(ty) => Shape::Option(self.boxed(ty, depth)?),
            TypeDefKind::List(Type::U8) => Shape::Bytes,
            TypeDefKind::List(ty) => Shape::List(self.boxed(ty, depth)?),
            TypeDefKind::FixedLengthList(ty, len) => Shape::Array(self.boxed(ty, depth)?, *len),
            TypeDefKind::Map(key, value) => {
                Shape::Map(self.boxed(key, depth)?, self.boxed(value, depth)?)
            }
            TypeDefKind::Tuple(tuple) => Shape::Tuple(
                tuple
                    .types
                    .iter()
                    .map(|ty| self.shape(ty, depth))
                    .collect::<Result<_, _>>()?,
            ),
            TypeDefKind::Result(result) => Shape::Result {
                ok: self.payload(result.ok.as_ref(), depth)?,
                err: self.payload(result.err.as_ref(), depth)?,
            },
            TypeDefKind::Record(record) => {
                let mut parts = Vec::new();
                for field in &record.fields {
                    parts.push(Part {
                        name: field.name.clone(),
                        docs: of_item(&field.name),
                        of: self.shape(&field.ty, depth)?,
                    });
                }
                Shape::Record(Named {
                    docs: of_type,
                    parts,
                })
            }
            TypeDefKind::Variant(variant) => {
                let mut parts = Vec::new();
                for case in &variant.cases {
                    parts.push(Part {
                        name: case.name.clone(),
                        docs: of_item(&case.name),
                        of: match &case.ty {
                            Some(ty) => Some(self.shape(ty, depth)?),
                            None => None,
                        },
                    });
                    self.nodes += 1;
                }
                Shape::Variant(Named {
                    docs: of_type,
                    parts,
                })
            }
            TypeDefKind::Enum(words) => {
                let names = words.cases.iter().map(|case| &case.name);
                Shape::Enum(self.words(of_type, names, of_item))
            }
            TypeDefKind::Flags(flags) => {
                let names = flags.flags.iter().map(|flag| &flag.name);
                Shape::Flags(self.words(of_type, names, of_item))
            }
            TypeDefKind::Resource => return Err(resource(name)),
            TypeDefKind::Handle(Handle::Own(id) | Handle::Borrow(id)) => {
                let name = resolve.types.get(*id).and_then(|def| def.name.as_deref());
                return Err(resource(name.unwrap_or("")));
            }
            TypeDefKind::Future(_) => return Err("it uses a `future`".to_owned()),
            TypeDefKind::Stream(_) => return Err("it uses a `stream`".to_owned()),
            TypeDefKind::Unknown => return Err("it uses a type that is not known".to_owned()),
        })
    }

    fn words<'n>(
        &mut self,
        docs: Option<String>,
        names: impl Iterator<Item = &'n String>,
        of_item: impl Fn(&str) -> Option<String>,
    ) -> Named<()> {
        let parts: Vec<_> = names
            .map(|name| Part {
                name: name.clone(),
                docs: of_item(name),
                of: (),
            })
            .collect();
        self.nodes += parts.len();
        Named { docs, parts }
    }
}

fn resource(name: &str) -> String {
    format!(
        "it uses the resource `{}`, and a resource does not outlive a call",
        shown(name, 80, false)
    )
}
