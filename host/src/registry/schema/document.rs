//! A schema as a bounded, self-contained document, and the ways through it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, SchemaFault, faults};

/// Keywords whose schemas apply to the same value as the schema that holds them.
pub(super) const IN_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
pub(super) const IN_PLACE: [&str; 4] = ["not", "if", "then", "else"];
const ITEMS: [&str; 4] = ["items", "additionalItems", "unevaluatedItems", "contains"];
const MEMBERS: [&str; 3] = [
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
];
const MAPS: [&str; 4] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
];
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// What bounds the stack that compiling a schema takes: the nesting of all that it refers to, added up.
const MAX_REFERRED_LEVELS: usize = 1_000;
/// Schemas of a document whose references are written out: bounds the time of compiling and of checking.
const MAX_UNFOLDED: usize = 50_000;
/// Schemas that apply to one value because of each other, in a chain.
const MAX_IN_PLACE: usize = 32;

/// A schema that refers to nothing outside itself.
#[derive(Debug)]
pub(super) struct Document {
    root: Value,
    /// Plain-name fragments and the pointers that they stand for.
    anchors: HashMap<String, String>,
}

impl Document {
    pub(super) fn new(schema: &Value) -> Result<Self, SchemaFault> {
        if !schema.is_object() {
            return Err(SchemaFault::NotAnObject {
                got: faults::shown_value(schema),
            });
        }
        if deeper_than(schema, MAX_SCHEMA_DEPTH) {
            return Err(SchemaFault::TooDeep);
        }
        if schema.to_string().len() > MAX_SCHEMA_BYTES {
            return Err(SchemaFault::TooLarge);
        }
        let mut document = Self {
            root: schema.clone(),
            anchors: HashMap::new(),
        };
        let mut anchors = HashMap::new();
        find_anchors(&document.root, &mut String::new(), &mut anchors);
        document.anchors = anchors;
        document.check_references()?;
        if document.unfolded(&document.root, &mut HashMap::new()) > MAX_UNFOLDED {
            return Err(SchemaFault::TooManyReferences);
        }
        Ok(document)
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// What a `$ref` of this document leads to.
    pub(super) fn follow(&self, reference: &str) -> Option<&Value> {
        let fragment = percent_decoded(reference.strip_prefix('#')?)?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return self.root.pointer(&fragment);
        }
        self.root.pointer(self.anchors.get(&fragment)?)
    }

    /// The target of the schema's own `$ref`.
    pub(super) fn referred<'a>(&'a self, schema: &'a Map<String, Value>) -> Option<&'a Value> {
        self.follow(schema.get("$ref")?.as_str()?)
    }

    /// All schemas that may have to accept the very value that these apply to, these first, each once.
    pub(super) fn in_place<'a>(&'a self, schemas: &[&'a Value]) -> Vec<&'a Map<String, Value>> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        let mut open: Vec<&Value> = schemas.iter().rev().copied().collect();
        while let Some(next) = open.pop() {
            let Value::Object(map) = next else { continue };
            if !seen.insert(std::ptr::from_ref(map)) {
                continue;
            }
            found.push(map);
            // `not` and `if` ask for nothing.
            let questions = [map.get("not"), map.get("if")];
            open.extend(self.in_place_parts(map).filter(|part| {
                !questions
                    .iter()
                    .flatten()
                    .any(|question| std::ptr::eq(*question, *part))
            }));
        }
        found
    }

    /// The schemas directly inside `schema` that apply to the same value.
    pub(super) fn in_place_parts<'a>(
        &'a self,
        schema: &'a Map<String, Value>,
    ) -> impl Iterator<Item = &'a Value> {
        let lists = IN_PLACE_LISTS
            .iter()
            .filter_map(|keyword| schema.get(*keyword)?.as_array())
            .flatten();
        let single = IN_PLACE.iter().filter_map(|keyword| schema.get(*keyword));
        let dependent = ["dependentSchemas", "dependencies"]
            .iter()
            .filter_map(|keyword| schema.get(*keyword)?.as_object())
            .flat_map(Map::values);
        self.referred(schema)
            .into_iter()
            .chain(lists)
            .chain(single)
            .chain(dependent)
    }

    /// The schemas directly inside `schema` for its member of this name (of all patterns, matching or not).
    pub(super) fn named_member_parts<'a>(
        schema: &'a Map<String, Value>,
        name: &str,
    ) -> impl Iterator<Item = &'a Value> {
        let named = schema
            .get("properties")
            .and_then(Value::as_object)
            .and_then(|properties| properties.get(name));
        let patterns = schema
            .get("patternProperties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(Map::values);
        named.into_iter().chain(patterns)
    }

    /// The schemas directly inside `schema` for members that it does not name.
    pub(super) fn other_member_parts(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
        ["additionalProperties", "unevaluatedProperties"]
            .iter()
            .filter_map(|keyword| schema.get(*keyword))
            .filter(|part| part.is_object())
    }

    /// The schemas directly inside `schema` for its item at this index. `contains` is none: it asks for
    /// one item, whichever that is.
    pub(super) fn item_parts(
        schema: &Map<String, Value>,
        index: usize,
    ) -> impl Iterator<Item = &Value> {
        // Before 2020-12 a list of `items` meant what `prefixItems` means since.
        let tuple = ["prefixItems", "items"]
            .iter()
            .filter_map(move |keyword| schema.get(*keyword)?.as_array()?.get(index));
        let each = ITEMS[..3]
            .iter()
            .filter_map(|keyword| schema.get(*keyword))
            .filter(|part| part.is_object());
        tuple.chain(each)
    }

    /// Every part that is read as a schema is visited once, so that no reference is left unread.
    fn check_references(&self) -> Result<(), SchemaFault> {
        let mut seen = HashSet::new();
        let mut targets = HashSet::new();
        // No way through the schema passes a target twice, so this is the longest that one can be.
        let mut levels = depth(&self.root);
        let mut heights = HashMap::new();
        let mut open = vec![&self.root];
        while let Some(next) = open.pop() {
            let Value::Object(schema) = next else {
                continue;
            };
            if !seen.insert(std::ptr::from_ref(schema)) {
                continue;
            }
            self.in_place_height(next, 0, &mut heights)?;
            for keyword in ["$dynamicRef", "$recursiveRef"] {
                if schema.contains_key(keyword) {
                    return Err(SchemaFault::Unsupported { keyword });
                }
            }
            // An inner `$id` would change what the references below it mean.
            let inner_id = schema.get("$id").and_then(Value::as_str);
            if !std::ptr::eq(next, &self.root) && inner_id.is_some_and(|id| !id.starts_with('#')) {
                return Err(SchemaFault::Unsupported { keyword: "$id" });
            }
            if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
                let target =
                    self.follow(reference)
                        .ok_or_else(|| SchemaFault::OutsideReference {
                            reference: faults::shown_text(reference),
                        })?;
                if targets.insert(std::ptr::from_ref(target)) {
                    levels += depth(target);
                    if levels > MAX_REFERRED_LEVELS {
                        return Err(SchemaFault::TooManyReferences);
                    }
                }
                open.push(target);
            }
            open.extend(inner_parts(schema));
            open.extend(definitions(schema));
        }
        Ok(())
    }
}

impl Document {
    /// How many schemas there would be if each reference were written out, one that leads into a circle
    /// once. The validator remembers what it found only for those in a circle.
    fn unfolded(&self, schema: &Value, known: &mut HashMap<*const Value, usize>) -> usize {
        let Value::Object(map) = schema else { return 1 };
        if let Some(count) = known.get(&std::ptr::from_ref(schema)) {
            return *count;
        }
        known.insert(schema, 1);
        let count = self
            .referred(map)
            .into_iter()
            .chain(inner_parts(map))
            .fold(1usize, |count, part| {
                count.saturating_add(self.unfolded(part, known))
            });
        known.insert(schema, count);
        count
    }

    /// The longest chain of schemas that apply to one value, from this one on. Each adds to the stack of a
    /// check at each level of the arguments, and one that leads back to itself means nothing.
    fn in_place_height(
        &self,
        schema: &Value,
        above: usize,
        heights: &mut HashMap<*const Value, usize>,
    ) -> Result<usize, SchemaFault> {
        let Value::Object(map) = schema else {
            return Ok(0);
        };
        let known = heights.get(&std::ptr::from_ref(schema)).copied();
        if above + known.unwrap_or(0) > MAX_IN_PLACE {
            return Err(SchemaFault::TooManyAlternatives);
        }
        if let Some(height) = known {
            return Ok(height);
        }
        let mut height = 0;
        for part in self.in_place_parts(map) {
            height = height.max(1 + self.in_place_height(part, above + 1, heights)?);
        }
        heights.insert(schema, height);
        Ok(height)
    }
}

/// The values of a schema's `type`, `enum` and `const`, and of what they combine with, as a set of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub(super) const NULL: Self = Self(1);
    pub(super) const BOOLEAN: Self = Self(1 << 1);
    pub(super) const INTEGER: Self = Self(1 << 2);
    /// A number that need not be an integer. [`Self::NUMBER`] holds both.
    const FRACTION: Self = Self(1 << 3);
    pub(super) const NUMBER: Self = Self(Self::INTEGER.0 | Self::FRACTION.0);
    pub(super) const STRING: Self = Self(1 << 4);
    pub(super) const ARRAY: Self = Self(1 << 5);
    pub(super) const OBJECT: Self = Self(1 << 6);
    pub(super) const ALL: Self = Self(0x7f);
    pub(super) const NONE: Self = Self(0);

    /// Which kinds of values a schema can accept at all. Too many rather than too few.
    pub(super) fn of(document: &Document, schema: &Value) -> Self {
        Self::within(document, schema, &mut HashMap::new())
    }

    fn within(
        document: &Document,
        schema: &Value,
        known: &mut HashMap<*const Value, Self>,
    ) -> Self {
        let map = match schema {
            Value::Bool(false) => return Self::NONE,
            Value::Object(map) => map,
            _ => return Self::ALL,
        };
        if let Some(kinds) = known.get(&std::ptr::from_ref(schema)) {
            return *kinds;
        }
        // What a reference in a circle says is said where the circle began.
        known.insert(schema, Self::ALL);
        let mut kinds = match map.get("type") {
            Some(Value::String(word)) => Self::of_word(word),
            Some(Value::Array(words)) => words
                .iter()
                .filter_map(Value::as_str)
                .fold(Self::NONE, |kinds, word| kinds.or(Self::of_word(word))),
            _ => Self::ALL,
        };
        if let Some(Value::Array(options)) = map.get("enum") {
            kinds = kinds.and(
                options
                    .iter()
                    .fold(Self::NONE, |kinds, value| kinds.or(Self::of_value(value))),
            );
        }
        if let Some(value) = map.get("const") {
            kinds = kinds.and(Self::of_value(value));
        }
        if let Some(target) = document.referred(map) {
            kinds = kinds.and(Self::within(document, target, known));
        }
        for part in map
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            kinds = kinds.and(Self::within(document, part, known));
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(Value::Array(parts)) = map.get(keyword) {
                kinds = kinds.and(parts.iter().fold(Self::NONE, |kinds, part| {
                    kinds.or(Self::within(document, part, known))
                }));
            }
        }
        known.insert(schema, kinds);
        kinds
    }

    fn of_word(word: &str) -> Self {
        match word {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::ALL,
        }
    }

    pub(super) fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// An integer and no other number.
    pub(super) fn only_whole_numbers(self) -> bool {
        self.and(Self::NUMBER) == Self::INTEGER
    }

    /// `an integer or null`.
    pub(super) fn words(self) -> String {
        if self == Self::ALL {
            return "any value".to_owned();
        }
        let number = if self.has(Self::NUMBER) {
            (Self::NUMBER, "a number")
        } else {
            (Self::INTEGER, "an integer")
        };
        let words: Vec<&str> = [
            (Self::STRING, "a string"),
            number,
            (Self::BOOLEAN, "a boolean"),
            (Self::OBJECT, "an object"),
            (Self::ARRAY, "an array"),
            (Self::NULL, "null"),
        ]
        .into_iter()
        .filter_map(|(kind, word)| self.has(kind).then_some(word))
        .collect();
        match words.split_last() {
            None => "no value".to_owned(),
            Some((last, [])) => (*last).to_owned(),
            Some((last, before)) => format!("{} or {last}", before.join(", ")),
        }
    }
}

/// The schemas directly inside a schema, wherever they apply; not its definitions.
fn inner_parts(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let maps = MAPS
        .iter()
        .filter_map(|keyword| schema.get(*keyword)?.as_object())
        .flat_map(Map::values);
    let lists = IN_PLACE_LISTS
        .iter()
        .chain(&["prefixItems", "items"])
        .filter_map(|keyword| schema.get(*keyword)?.as_array())
        .flatten();
    let single = IN_PLACE
        .iter()
        .chain(&MEMBERS)
        .chain(&ITEMS)
        .chain(&["contentSchema"])
        .filter_map(|keyword| schema.get(*keyword))
        .filter(|part| !part.is_array());
    maps.chain(lists).chain(single)
}

/// As [`inner_parts`], and the definitions too.
pub(super) fn inner_parts_mut(schema: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    schema.iter_mut().flat_map(|(keyword, value)| {
        let keyword = keyword.as_str();
        let map = MAPS.contains(&keyword) || DEFINITIONS.contains(&keyword);
        let list = IN_PLACE_LISTS.contains(&keyword) || matches!(keyword, "prefixItems" | "items");
        let single = IN_PLACE.contains(&keyword)
            || MEMBERS.contains(&keyword)
            || ITEMS.contains(&keyword)
            || keyword == "contentSchema";
        if single && !value.is_array() {
            return vec![value];
        }
        match value {
            Value::Object(members) if map => members.values_mut().collect(),
            Value::Array(items) if list => items.iter_mut().collect(),
            _ => Vec::new(),
        }
    })
}

fn definitions(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    DEFINITIONS
        .iter()
        .filter_map(|keyword| schema.get(*keyword)?.as_object())
        .flat_map(Map::values)
}

fn deeper_than(value: &Value, limit: usize) -> bool {
    match value {
        Value::Array(items) => limit == 0 || items.iter().any(|item| deeper_than(item, limit - 1)),
        Value::Object(members) => {
            limit == 0
                || members
                    .values()
                    .any(|member| deeper_than(member, limit - 1))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn find_anchors(value: &Value, pointer: &mut String, anchors: &mut HashMap<String, String>) {
    let length = pointer.len();
    match value {
        Value::Object(members) => {
            // Before 2019-09 an anchor was an `$id` that begins with `#`.
            let old = members
                .get("$id")
                .and_then(Value::as_str)
                .and_then(|id| id.strip_prefix('#'));
            if let Some(name) = members.get("$anchor").and_then(Value::as_str).or(old) {
                anchors.insert(name.to_owned(), pointer.clone());
            }
            for (name, member) in members {
                pointer.push('/');
                pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
                find_anchors(member, pointer, anchors);
                pointer.truncate(length);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointer.push('/');
                pointer.push_str(&index.to_string());
                find_anchors(item, pointer, anchors);
                pointer.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// References are URIs, so characters of a pointer may stand there as `%25`.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        rest = after;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}
