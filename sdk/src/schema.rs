//! JSON Schema (2020-12) of Rust types, made at compile time: a type describes itself as a tree of
//! constants and a `const fn` writes the tree as text, so that the text can stand in a section of the
//! component that nobody has to run to read.
//!
//! The schema accepts what decoding accepts, with one exception: `i64`, `u64` and `usize` carry no bound that
//! JSON numbers can't express everywhere, so a number beyond them is found by decoding alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use crate::text::Text;

/// A type with a JSON Schema. `#[args]` and `#[output]` implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no JSON Schema",
    note = "put `#[agentloop_sdk::args]` on a type that is decoded, `#[agentloop_sdk::output]` on one that is returned in `Json`"
)]
pub trait Schema {
    #[doc(hidden)]
    const NODE: &'static Node;
    /// Whether an object may lack a field of this type.
    #[doc(hidden)]
    const OPTIONAL: bool = false;
}

#[doc(hidden)]
pub enum Node {
    Any,
    Null,
    Boolean,
    Number,
    Integer {
        minimum: Option<i64>,
        maximum: Option<i64>,
    },
    String,
    Char,
    /// This very string.
    Const(&'static str),
    /// One of some strings.
    Enum(&'static [Variant]),
    Array {
        items: &'static Node,
        length: Option<usize>,
    },
    Tuple(&'static [&'static Node]),
    Map(&'static Node),
    Object {
        fields: &'static [Field],
        /// No other fields.
        closed: bool,
    },
    AnyOf(&'static [Variant]),
    Nullable(&'static Node),
    /// What a newtype holds.
    Same(&'static Node),
    Named(Named),
}

#[doc(hidden)]
pub struct Field {
    pub name: &'static str,
    pub doc: &'static str,
    pub node: &'static Node,
    pub required: bool,
    /// The fields of the node stand in the object itself; the name means nothing.
    pub flatten: bool,
}

/// One value of an enum: a name, or any schema.
#[doc(hidden)]
pub struct Variant {
    pub name: &'static str,
    pub doc: &'static str,
    pub node: &'static Node,
}

#[doc(hidden)]
pub struct Type {
    pub name: &'static str,
    /// Differs from that of every other type of the program.
    pub id: &'static str,
    pub doc: &'static str,
    pub node: Node,
}

/// Points to a type's description, which may lead back to itself. A reference can't do that: the compiler
/// would follow it to its end while it evaluates the constant.
#[doc(hidden)]
pub struct Named(*const Type);

// SAFETY: only made from references to immutable statics.
unsafe impl Sync for Named {}
// SAFETY: as above.
unsafe impl Send for Named {}

impl Named {
    pub const fn new(of: *const Type) -> Self {
        Self(of)
    }

    const fn get(&self) -> &'static Type {
        // SAFETY: the macros pass the address of a static and nothing else makes this type.
        unsafe { &*self.0 }
    }
}

/// The schema of a tool's arguments, which has to be a plain object at its root.
#[doc(hidden)]
pub const fn write_input<const N: usize>(node: &'static Node) -> Text<N> {
    if !is_object(node) {
        panic!(
            "a tool's single parameter `args` has to be a struct with named fields; call the parameter something else to take a plain value"
        );
    }
    write_schema(node)
}

#[doc(hidden)]
pub const fn write_schema<const N: usize>(node: &'static Node) -> Text<N> {
    let mut types = Types::none();
    collect_recursive(node, &mut types, &mut Types::none());
    let mut text = Text::new();
    write_root(&mut text, node, &types);
    text
}

macro_rules! plain {
    ($($type:ty => $node:expr,)*) => { $(
        impl Schema for $type {
            const NODE: &'static Node = &$node;
        }
    )* };
}

plain! {
    bool => Node::Boolean,
    f32 => Node::Number,
    f64 => Node::Number,
    i8 => integer(i8::MIN as i64, i8::MAX as i64),
    i16 => integer(i16::MIN as i64, i16::MAX as i64),
    i32 => integer(i32::MIN as i64, i32::MAX as i64),
    i64 => Node::Integer { minimum: None, maximum: None },
    u8 => integer(0, u8::MAX as i64),
    u16 => integer(0, u16::MAX as i64),
    u32 => integer(0, u32::MAX as i64),
    u64 => Node::Integer { minimum: Some(0), maximum: None },
    // 32 bits in a component.
    usize => if usize::BITS == 32 { integer(0, u32::MAX as i64) } else { Node::Integer { minimum: Some(0), maximum: None } },
    isize => if isize::BITS == 32 { integer(i32::MIN as i64, i32::MAX as i64) } else { Node::Integer { minimum: None, maximum: None } },
    char => Node::Char,
    String => Node::String,
    str => Node::String,
    () => Node::Null,
    serde_json::Value => Node::Any,
    serde_json::Map<String, serde_json::Value> => Node::Map(&Node::Any),
}

impl<T: Schema + ?Sized> Schema for &T {
    const NODE: &'static Node = T::NODE;
    const OPTIONAL: bool = T::OPTIONAL;
}

impl<T: Schema + ?Sized> Schema for Box<T> {
    const NODE: &'static Node = T::NODE;
    const OPTIONAL: bool = T::OPTIONAL;
}

impl<T: Schema> Schema for Option<T> {
    const NODE: &'static Node = &Node::Nullable(T::NODE);
    const OPTIONAL: bool = true;
}

macro_rules! lists {
    ($($list:ident)*) => { $(
        impl<T: Schema> Schema for $list<T> {
            const NODE: &'static Node = &Node::Array { items: T::NODE, length: None };
        }
    )* };
}

lists!(Vec VecDeque BTreeSet);

impl<T: Schema, S> Schema for HashSet<T, S> {
    const NODE: &'static Node = &Node::Array {
        items: T::NODE,
        length: None,
    };
}

impl<T: Schema> Schema for [T] {
    const NODE: &'static Node = &Node::Array {
        items: T::NODE,
        length: None,
    };
}

impl<T: Schema, const N: usize> Schema for [T; N] {
    const NODE: &'static Node = &Node::Array {
        items: T::NODE,
        length: Some(N),
    };
}

impl<T: Schema> Schema for BTreeMap<String, T> {
    const NODE: &'static Node = &Node::Map(T::NODE);
}

impl<T: Schema, S> Schema for HashMap<String, T, S> {
    const NODE: &'static Node = &Node::Map(T::NODE);
}

macro_rules! tuples {
    ($(($($item:ident)+))*) => { $(
        impl<$($item: Schema),+> Schema for ($($item,)+) {
            const NODE: &'static Node = &Node::Tuple(&[$($item::NODE),+]);
        }
    )* };
}

tuples!((A)(A B)(A B C)(A B C D)(A B C D E)(A B C D E F));

const fn integer(minimum: i64, maximum: i64) -> Node {
    Node::Integer {
        minimum: Some(minimum),
        maximum: Some(maximum),
    }
}

const fn is_object(node: &Node) -> bool {
    match node {
        Node::Object { .. } => true,
        Node::Same(inner) => is_object(inner),
        Node::Named(named) => is_object(&named.get().node),
        _ => false,
    }
}

/// Types in the order in which they were met.
struct Types {
    list: [Option<&'static Type>; Types::CAPACITY],
    len: usize,
}

impl Types {
    const CAPACITY: usize = 256;

    const fn none() -> Self {
        Self {
            list: [None; Self::CAPACITY],
            len: 0,
        }
    }

    /// False when it was there already.
    const fn add(&mut self, new: &'static Type) -> bool {
        if self.position(new).is_some() {
            return false;
        }
        if self.len == Self::CAPACITY {
            panic!("a tool's schema is limited to 256 different types");
        }
        self.list[self.len] = Some(new);
        self.len += 1;
        true
    }

    const fn position(&self, of: &Type) -> Option<usize> {
        let mut i = 0;
        while i < self.len {
            if let Some(known) = self.list[i]
                && equal(known.id, of.id)
            {
                return Some(i);
            }
            i += 1;
        }
        None
    }
}

const fn equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// The node's direct children, by number.
const fn child(node: &Node, number: usize) -> Option<&'static Node> {
    match node {
        Node::Array { items, .. }
        | Node::Map(items)
        | Node::Nullable(items)
        | Node::Same(items)
            if number == 0 =>
        {
            Some(items)
        }
        Node::Tuple(items) if number < items.len() => Some(items[number]),
        Node::Object { fields, .. } if number < fields.len() => Some(fields[number].node),
        Node::AnyOf(variants) if number < variants.len() => Some(variants[number].node),
        Node::Named(named) if number == 0 => Some(&named.get().node),
        _ => None,
    }
}

const fn collect_recursive(node: &'static Node, found: &mut Types, seen: &mut Types) {
    if let Node::Named(named) = node {
        let of = named.get();
        if !seen.add(of) {
            return;
        }
        if reaches(&of.node, of, &mut Types::none()) {
            found.add(of);
        }
    }
    let mut i = 0;
    while let Some(next) = child(node, i) {
        collect_recursive(next, found, seen);
        i += 1;
    }
}

const fn reaches(node: &'static Node, target: &'static Type, seen: &mut Types) -> bool {
    if let Node::Named(named) = node {
        if equal(named.get().id, target.id) {
            return true;
        }
        if !seen.add(named.get()) {
            return false;
        }
    }
    let mut i = 0;
    while let Some(next) = child(node, i) {
        if reaches(next, target, seen) {
            return true;
        }
        i += 1;
    }
    false
}

const fn write_root<const N: usize>(text: &mut Text<N>, node: &'static Node, types: &Types) {
    // Never a reference: endpoints want the type at the root.
    let (mut node, mut doc) = (node, "");
    loop {
        match node {
            Node::Named(named) => {
                let of = named.get();
                if doc.is_empty() {
                    doc = of.doc;
                }
                node = &of.node;
            }
            Node::Same(inner) => node = inner,
            _ => break,
        }
    }
    text.raw("{");
    write_body(text, node, false, doc, types);
    if types.len > 0 {
        separate(text);
        text.raw("\"$defs\":{");
        let mut i = 0;
        while i < types.len {
            if let Some(of) = types.list[i] {
                separate(text);
                text.raw("\"");
                write_name(text, i, of, types);
                text.raw("\":{");
                write_body(text, &of.node, false, of.doc, types);
                text.raw("}");
            }
            i += 1;
        }
        text.raw("}");
    }
    text.raw("}");
}

/// The type's own name, with a number where an earlier type has the same.
const fn write_name<const N: usize>(text: &mut Text<N>, position: usize, of: &Type, types: &Types) {
    text.raw(of.name);
    let mut same = 1;
    let mut i = 0;
    while i < position {
        if let Some(earlier) = types.list[i]
            && equal(earlier.name, of.name)
        {
            same += 1;
        }
        i += 1;
    }
    if same > 1 {
        text.integer(same);
    }
}

const fn separate<const N: usize>(text: &mut Text<N>) {
    if !text.at_start() {
        text.raw(",");
    }
}

const fn write_node<const N: usize>(
    text: &mut Text<N>,
    node: &'static Node,
    doc: &str,
    types: &Types,
) {
    text.raw("{");
    write_body(text, node, false, doc, types);
    text.raw("}");
}

const fn write_type<const N: usize>(text: &mut Text<N>, name: &str, null: bool) {
    text.raw(if null { "\"type\":[\"" } else { "\"type\":\"" });
    text.raw(name);
    text.raw(if null { "\",\"null\"]" } else { "\"" });
}

const fn write_description<const N: usize>(text: &mut Text<N>, doc: &str) {
    if !doc.is_empty() {
        separate(text);
        text.raw("\"description\":");
        text.string(doc);
    }
}

/// Everything between the braces. `null` allows null besides.
const fn write_body<const N: usize>(
    text: &mut Text<N>,
    node: &'static Node,
    null: bool,
    doc: &str,
    types: &Types,
) {
    match node {
        Node::Nullable(inner) => return write_body(text, inner, true, doc, types),
        Node::Same(inner) => return write_body(text, inner, null, doc, types),
        Node::Named(named) => {
            let of = named.get();
            if let Some(position) = types.position(of) {
                if null {
                    text.raw("\"anyOf\":[{");
                }
                text.raw("\"$ref\":\"#/$defs/");
                write_name(text, position, of, types);
                text.raw("\"");
                if null {
                    text.raw("},{\"type\":\"null\"}]");
                }
                return write_description(text, doc);
            }
            let doc = if doc.is_empty() { of.doc } else { doc };
            return write_body(text, &of.node, null, doc, types);
        }
        Node::Any => {}
        Node::Null => write_type(text, "null", false),
        Node::Boolean => write_type(text, "boolean", null),
        Node::Number => write_type(text, "number", null),
        Node::String => write_type(text, "string", null),
        Node::Char => {
            write_type(text, "string", null);
            text.raw(",\"minLength\":1,\"maxLength\":1");
        }
        Node::Integer { minimum, maximum } => {
            write_type(text, "integer", null);
            if let Some(minimum) = minimum {
                text.raw(",\"minimum\":");
                text.integer(*minimum);
            }
            if let Some(maximum) = maximum {
                text.raw(",\"maximum\":");
                text.integer(*maximum);
            }
        }
        Node::Const(name) => {
            write_type(text, "string", null);
            if null {
                text.raw(",\"enum\":[");
                text.string(name);
                text.raw(",null]");
            } else {
                text.raw(",\"const\":");
                text.string(name);
            }
        }
        Node::Enum(variants) => {
            write_type(text, "string", null);
            text.raw(",\"enum\":[");
            let mut i = 0;
            while i < variants.len() {
                separate(text);
                text.string(variants[i].name);
                i += 1;
            }
            if null {
                text.raw(",null");
            }
            text.raw("]");
            return write_enum_description(text, variants, doc);
        }
        Node::Array { items, length } => {
            write_type(text, "array", null);
            text.raw(",\"items\":");
            write_node(text, items, "", types);
            if let Some(length) = length {
                write_length(text, *length);
            }
        }
        Node::Tuple(items) => {
            write_type(text, "array", null);
            text.raw(",\"prefixItems\":[");
            let mut i = 0;
            while i < items.len() {
                separate(text);
                write_node(text, items[i], "", types);
                i += 1;
            }
            text.raw("],\"items\":false");
            write_length(text, items.len());
        }
        Node::Map(values) => {
            write_type(text, "object", null);
            text.raw(",\"additionalProperties\":");
            write_node(text, values, "", types);
        }
        Node::Object { fields, closed } => {
            write_type(text, "object", null);
            text.raw(",\"properties\":{");
            write_properties(text, fields, types);
            text.raw("}");
            if has_required(fields) {
                text.raw(",\"required\":[");
                write_required(text, fields);
                text.raw("]");
            }
            if *closed {
                text.raw(",\"additionalProperties\":false");
            } else {
                write_rest(text, fields, types);
            }
        }
        Node::AnyOf(variants) => {
            text.raw("\"anyOf\":[");
            let mut i = 0;
            while i < variants.len() {
                separate(text);
                write_node(text, variants[i].node, variants[i].doc, types);
                i += 1;
            }
            if null {
                text.raw(",{\"type\":\"null\"}");
            }
            text.raw("]");
        }
    }
    write_description(text, doc);
}

const fn write_length<const N: usize>(text: &mut Text<N>, length: usize) {
    text.raw(",\"minItems\":");
    text.integer(length as i64);
    text.raw(",\"maxItems\":");
    text.integer(length as i64);
}

/// The description of an enum of names, with what is said of each of them.
const fn write_enum_description<const N: usize>(
    text: &mut Text<N>,
    variants: &[Variant],
    doc: &str,
) {
    let mut any = !doc.is_empty();
    let mut i = 0;
    while i < variants.len() {
        any = any || !variants[i].doc.is_empty();
        i += 1;
    }
    if !any {
        return;
    }
    text.raw(",\"description\":\"");
    text.escaped(doc);
    let mut i = 0;
    let mut first = doc.is_empty();
    while i < variants.len() {
        if !variants[i].doc.is_empty() {
            if !first {
                text.escaped("\n");
            }
            first = false;
            text.escaped("- `");
            text.escaped(variants[i].name);
            text.escaped("`: ");
            text.escaped(variants[i].doc);
        }
        i += 1;
    }
    text.raw("\"");
}

/// The fields that a flattened node brings along, if it is an object.
const fn flattened(node: &'static Node) -> Option<&'static [Field]> {
    match node {
        Node::Object { fields, closed } => {
            if *closed {
                panic!("`#[serde(flatten)]` and `deny_unknown_fields` do not go together");
            }
            Some(fields)
        }
        Node::Same(inner) => flattened(inner),
        Node::Named(named) => flattened(&named.get().node),
        Node::Map(_) => None,
        _ => panic!("`#[serde(flatten)]` works with structs and maps alone"),
    }
}

const fn write_properties<const N: usize>(
    text: &mut Text<N>,
    fields: &'static [Field],
    types: &Types,
) {
    let mut i = 0;
    while i < fields.len() {
        let field = &fields[i];
        if field.flatten {
            if let Some(inner) = flattened(field.node) {
                write_properties(text, inner, types);
            }
        } else {
            separate(text);
            text.string(field.name);
            text.raw(":");
            write_node(text, field.node, field.doc, types);
        }
        i += 1;
    }
}

const fn has_required(fields: &'static [Field]) -> bool {
    let mut i = 0;
    while i < fields.len() {
        if fields[i].flatten {
            if let Some(inner) = flattened(fields[i].node)
                && has_required(inner)
            {
                return true;
            }
        } else if fields[i].required {
            return true;
        }
        i += 1;
    }
    false
}

const fn write_required<const N: usize>(text: &mut Text<N>, fields: &'static [Field]) {
    let mut i = 0;
    while i < fields.len() {
        if fields[i].flatten {
            if let Some(inner) = flattened(fields[i].node) {
                write_required(text, inner);
            }
        } else if fields[i].required {
            separate(text);
            text.string(fields[i].name);
        }
        i += 1;
    }
}

/// Where a flattened map takes all other fields, what they have to be.
const fn write_rest<const N: usize>(text: &mut Text<N>, fields: &'static [Field], types: &Types) {
    let mut i = 0;
    while i < fields.len() {
        if fields[i].flatten {
            match fields[i].node {
                Node::Map(values) => {
                    text.raw(",\"additionalProperties\":");
                    write_node(text, values, "", types);
                    return;
                }
                node => {
                    if let Some(inner) = flattened(node) {
                        write_rest(text, inner, types);
                    }
                }
            }
        }
        i += 1;
    }
}
