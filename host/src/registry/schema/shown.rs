//! One plain object for the model, from whatever form the schema's root has, and the lost rule in words.

use serde_json::{Map, Value, json};

use super::{
    MAX_SCHEMA_BYTES, SchemaFault,
    document::{self, Document, Kinds},
    faults::{shown_text, shown_value},
};

/// What endpoints refuse at the root of a schema, and `$ref`, which hides such a root.
const REFUSED_AT_ROOT: [&str; 10] = [
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const",
];
/// The longest note, in bytes.
const MAX_NOTE_BYTES: usize = 2_000;
/// Schemas that are merged into one object.
const MAX_MERGED: usize = 500;
/// Alternatives that are put into words, and how deep.
const MAX_TOLD: usize = 20;
const MAX_TOLD_DEPTH: usize = 3;

/// The schema that a model is shown, and what it does not say.
pub(super) fn for_model(document: &Document) -> Result<(Value, Option<String>), SchemaFault> {
    let root = document.root();
    let kinds = Kinds::of(document, root);
    if !kinds.has(Kinds::OBJECT) {
        return Err(SchemaFault::RootIsNoObject {
            kinds: kinds.words(),
        });
    }
    let Value::Object(map) = root else {
        return Err(SchemaFault::SaysNothing);
    };
    if !REFUSED_AT_ROOT
        .iter()
        .any(|keyword| map.contains_key(*keyword))
    {
        return Ok((modern(plain(map)), None));
    }
    let mut merging = Merging {
        document,
        left: MAX_MERGED,
        bytes_left: 4 * MAX_SCHEMA_BYTES,
    };
    let not_showable = |why: &str| SchemaFault::NotShowable {
        why: why.to_owned(),
    };
    let merged = merging
        .flat(root)
        .map_err(|TooMuch| not_showable("it has too many alternatives to merge"))?
        .ok_or_else(|| not_showable("no object fits it"))?;
    let shown = merged.into_schema();
    if shown.to_string().len() > MAX_SCHEMA_BYTES {
        return Err(not_showable("merged into one object it is too large"));
    }
    Ok((modern(shown), note(document, root)))
}

/// `exactly one of: ...`, for messages and notes.
pub(super) fn rule(document: &Document, keyword: &str, parts: &[Value]) -> String {
    Words { document }.rule(keyword, parts, MAX_TOLD_DEPTH)
}

/// A root that endpoints take, apart from words that only matter to the host.
fn plain(root: &Map<String, Value>) -> Value {
    let mut shown = Map::new();
    shown.insert("type".to_owned(), json!("object"));
    for (keyword, value) in root {
        if !matches!(keyword.as_str(), "type" | "$schema" | "$id" | "id") {
            shown.insert(keyword.clone(), value.clone());
        }
    }
    shown.entry("properties").or_insert_with(|| json!({}));
    Value::Object(shown)
}

/// Endpoints read schemas as draft 2020-12, where a list is no longer a form of `items` and a boolean none of
/// `exclusiveMinimum`.
fn modern(mut schema: Value) -> Value {
    make_modern(&mut schema);
    schema
}

fn make_modern(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    if map.get("items").is_some_and(Value::is_array)
        && let Some(tuple) = map.insert("items".to_owned(), Value::Bool(true))
    {
        if let Some(rest) = map.remove("additionalItems") {
            map.insert("items".to_owned(), rest);
        }
        map.insert("prefixItems".to_owned(), tuple);
    }
    for (exclusive, limit) in [
        ("exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "maximum"),
    ] {
        if map.get(exclusive).is_some_and(Value::is_boolean)
            && map.remove(exclusive) == Some(Value::Bool(true))
            && let Some(number) = map.remove(limit)
        {
            map.insert(exclusive.to_owned(), number);
        }
    }
    for part in document::inner_parts_mut(map) {
        make_modern(part);
    }
}

fn note(document: &Document, root: &Value) -> Option<String> {
    let words = Words { document };
    let mut rules = Vec::new();
    words.rules(root, &mut rules, MAX_TOLD_DEPTH);
    if rules.is_empty() {
        return None;
    }
    let mut text = format!(
        "The arguments also have to satisfy: {}.",
        rules.join("; and ")
    );
    if text.len() > MAX_NOTE_BYTES {
        text.truncate(text.floor_char_boundary(MAX_NOTE_BYTES));
        text.push('…');
    }
    Some(text)
}

/// What an object schema comes to when its in-place parts are merged into it.
#[derive(Default, Clone)]
struct Flat {
    properties: Map<String, Value>,
    required: Vec<String>,
    /// The only names allowed, where others are not.
    allowed: Option<Vec<String>>,
    /// Other keywords, such as `description` and `$defs`.
    others: Map<String, Value>,
}

impl Flat {
    /// What fits both.
    fn and(&mut self, other: Flat) {
        for (name, schema) in other.properties {
            match self.properties.get_mut(&name) {
                Some(own) => *own = both(own.take(), schema),
                None => {
                    self.properties.insert(name, schema);
                }
            }
        }
        for name in other.required {
            if !self.required.contains(&name) {
                self.required.push(name);
            }
        }
        self.allowed = match (self.allowed.take(), other.allowed) {
            (Some(own), Some(other)) => {
                Some(own.into_iter().filter(|n| other.contains(n)).collect())
            }
            (own, other) => own.or(other),
        };
        for (keyword, value) in other.others {
            self.others.entry(keyword).or_insert(value);
        }
    }

    /// What fits either.
    fn or(&mut self, other: Flat) {
        for (name, schema) in other.properties {
            match self.properties.get_mut(&name) {
                Some(own) => *own = either(own.take(), schema),
                None => {
                    self.properties.insert(name, schema);
                }
            }
        }
        self.required.retain(|name| other.required.contains(name));
        self.allowed = match (self.allowed.take(), other.allowed) {
            (Some(mut own), Some(other)) => {
                for name in other {
                    if !own.contains(&name) {
                        own.push(name);
                    }
                }
                Some(own)
            }
            _ => None,
        };
        // What only one alternative says is not said of the whole.
        self.others
            .retain(|keyword, value| other.others.get(keyword) == Some(value));
    }

    fn into_schema(mut self) -> Value {
        if let Some(allowed) = &self.allowed {
            self.properties.retain(|name, _| allowed.contains(name));
        }
        let mut shown = Map::new();
        shown.insert("type".to_owned(), json!("object"));
        let definitions: Vec<(String, Value)> = ["$defs", "definitions"]
            .iter()
            .filter_map(|keyword| Some(((*keyword).to_owned(), self.others.remove(*keyword)?)))
            .collect();
        shown.extend(self.others);
        shown.insert("properties".to_owned(), Value::Object(self.properties));
        if !self.required.is_empty() {
            shown.insert("required".to_owned(), json!(self.required));
        }
        if self.allowed.is_some() {
            shown.insert("additionalProperties".to_owned(), json!(false));
        }
        shown.extend(definitions);
        Value::Object(shown)
    }
}

/// A schema's alternatives multiply.
struct TooMuch;

struct Merging<'a> {
    document: &'a Document,
    left: usize,
    bytes_left: usize,
}

impl Merging<'_> {
    /// `None` where no object fits.
    fn flat(&mut self, schema: &Value) -> Result<Option<Flat>, TooMuch> {
        self.left = self.left.checked_sub(1).ok_or(TooMuch)?;
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(false) => return Ok(None),
            _ => return Ok(Some(Flat::default())),
        };
        if !Kinds::of(self.document, schema).has(Kinds::OBJECT) {
            return Ok(None);
        }
        let mut flat = self.own(map)?;
        let always = self
            .document
            .referred(map)
            .into_iter()
            .chain(parts(map, "allOf"));
        for part in always {
            match self.flat(part)? {
                Some(part) => flat.and(part),
                None => return Ok(None),
            }
        }
        for keyword in ["anyOf", "oneOf"] {
            if !map.contains_key(keyword) {
                continue;
            }
            let mut any: Option<Flat> = None;
            for part in parts(map, keyword) {
                let Some(part) = self.flat(part)? else {
                    continue;
                };
                match &mut any {
                    Some(any) => any.or(part),
                    None => any = Some(part),
                }
            }
            match any {
                Some(mut any) => {
                    // Titles and limits of alternatives are not those of the whole; the note has the rest.
                    any.others.clear();
                    flat.and(any);
                }
                None => return Ok(None),
            }
        }
        for keyword in ["then", "else"] {
            let conditional = match map.get(keyword) {
                Some(part) if map.contains_key("if") => self.flat(part)?,
                _ => None,
            };
            for (name, schema) in conditional.into_iter().flat_map(|flat| flat.properties) {
                flat.properties.entry(name).or_insert(schema);
            }
        }
        if map.get("unevaluatedProperties") == Some(&Value::Bool(false))
            && flat.allowed.is_none()
            && !map.contains_key("patternProperties")
        {
            flat.allowed = Some(flat.properties.keys().cloned().collect());
        }
        Ok(Some(flat))
    }

    fn own(&mut self, map: &Map<String, Value>) -> Result<Flat, TooMuch> {
        let mut flat = Flat::default();
        for (keyword, value) in map {
            match keyword.as_str() {
                "properties" => {
                    let size = value.to_string().len();
                    self.bytes_left = self.bytes_left.checked_sub(size).ok_or(TooMuch)?;
                    if let Value::Object(properties) = value {
                        flat.properties.clone_from(properties);
                    }
                }
                "required" => {
                    let names = value.as_array().into_iter().flatten();
                    flat.required
                        .extend(names.filter_map(Value::as_str).map(str::to_owned));
                }
                "additionalProperties" => {
                    if *value == Value::Bool(false) && !map.contains_key("patternProperties") {
                        let names = map.get("properties").and_then(Value::as_object);
                        flat.allowed =
                            Some(names.into_iter().flat_map(|n| n.keys().cloned()).collect());
                    }
                }
                "type" | "$schema" | "$id" | "id" | "$comment" | "unevaluatedProperties" => {}
                keyword if REFUSED_AT_ROOT.contains(&keyword) => {}
                _ => {
                    let size = value.to_string().len();
                    self.bytes_left = self.bytes_left.checked_sub(size).ok_or(TooMuch)?;
                    flat.others.insert(keyword.to_owned(), value.clone());
                }
            }
        }
        Ok(flat)
    }
}

fn parts<'a>(schema: &'a Map<String, Value>, keyword: &str) -> impl Iterator<Item = &'a Value> {
    schema
        .get(keyword)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// One schema for what has to fit two.
fn both(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Bool(true), other) | (other, Value::Bool(true)) => other,
        (Value::Object(a), Value::Object(b)) => {
            let compatible = a
                .iter()
                .all(|(keyword, value)| b.get(keyword).is_none_or(|other| other == value));
            // These two look at what stands beside them.
            let looks_aside = [
                "additionalProperties",
                "unevaluatedProperties",
                "$ref",
                "items",
            ]
            .iter()
            .any(|keyword| a.contains_key(*keyword) || b.contains_key(*keyword));
            if a == b || (compatible && !looks_aside) {
                let mut merged = a;
                merged.extend(b);
                return Value::Object(merged);
            }
            json!({"allOf": [a, b]})
        }
        (a, _) => a,
    }
}

/// One schema for what has to fit one of two.
fn either(a: Value, b: Value) -> Value {
    if a == b {
        return a;
    }
    match (a, b) {
        // An alternative that forbids a property does not say what it is.
        (Value::Bool(false), other) | (other, Value::Bool(false)) => other,
        (Value::Bool(true), _) | (_, Value::Bool(true)) => Value::Bool(true),
        (a, b) => {
            if let (Some((mut values, rest)), Some((more, other_rest))) = (tag(&a), tag(&b))
                && rest == other_rest
            {
                for value in more {
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                let mut merged = rest;
                merged.insert("enum".to_owned(), Value::Array(values));
                return Value::Object(merged);
            }
            let mut options = match a {
                Value::Object(map) if map.len() == 1 && map.contains_key("anyOf") => {
                    parts(&map, "anyOf").cloned().collect()
                }
                a => vec![a],
            };
            if !options.contains(&b) {
                options.push(b);
            }
            json!({"anyOf": options})
        }
    }
}

/// The values of a property that tells alternatives apart, and what else is said of it; its own
/// description would only fit one of them.
fn tag(schema: &Value) -> Option<(Vec<Value>, Map<String, Value>)> {
    let mut rest = schema.as_object()?.clone();
    let values = match (rest.remove("const"), rest.remove("enum")) {
        (Some(value), None) => vec![value],
        (None, Some(Value::Array(values))) => values,
        _ => return None,
    };
    for keyword in ["description", "title", "default", "examples"] {
        rest.remove(keyword);
    }
    if rest.get("type").is_none()
        && let Some(word) = values.iter().map(Value::as_str).collect::<Option<Vec<_>>>()
        && !word.is_empty()
    {
        rest.insert("type".to_owned(), json!("string"));
    }
    Some((values, rest))
}

/// Schemas in words.
struct Words<'a> {
    document: &'a Document,
}

impl Words<'_> {
    /// The rules that a merged object can't say.
    fn rules(&self, schema: &Value, rules: &mut Vec<String>, depth: usize) {
        let Value::Object(map) = schema else { return };
        if rules.len() >= MAX_TOLD {
            return;
        }
        if depth > 0 {
            for part in self
                .document
                .referred(map)
                .into_iter()
                .chain(parts(map, "allOf"))
            {
                self.rules(part, rules, depth - 1);
            }
        }
        for keyword in ["oneOf", "anyOf"] {
            let Some(alternatives) = map.get(keyword).and_then(Value::as_array) else {
                continue;
            };
            let objects = alternatives
                .iter()
                .filter(|part| Kinds::of(self.document, part).has(Kinds::OBJECT));
            if objects.count() > 1 {
                rules.push(self.rule(keyword, alternatives, depth));
            }
        }
        if let Some(forbidden) = map.get("not") {
            rules.push(self.forbidden(forbidden));
        }
        if let Some(condition) = map.get("if") {
            let mut text = format!("where they fit {},", self.words(condition, depth));
            let branch = |keyword| map.get(keyword).map(|part| self.words(part, depth));
            match (branch("then"), branch("else")) {
                (Some(then), Some(other)) => {
                    text.push_str(&format!(" {then}, otherwise {other}"));
                }
                (Some(then), None) => text.push_str(&format!(" {then}")),
                (None, Some(other)) => text.push_str(&format!(" anything, otherwise {other}")),
                (None, None) => return,
            }
            rules.push(text);
        }
        if let Some(value) = map.get("const") {
            rules.push(format!("exactly {}", code(value)));
        }
        if let Some(Value::Array(values)) = map.get("enum") {
            let values: Vec<String> = values.iter().take(MAX_TOLD).map(code).collect();
            rules.push(format!("one of {}", values.join(", ")));
        }
    }

    fn rule(&self, keyword: &str, alternatives: &[Value], depth: usize) -> String {
        let how_many = match keyword {
            "oneOf" => "exactly one of",
            _ => "at least one of",
        };
        let told: Vec<String> = alternatives
            .iter()
            .take(MAX_TOLD)
            .map(|part| format!("({})", self.words(part, depth.saturating_sub(1))))
            .collect();
        let more = alternatives.len().saturating_sub(MAX_TOLD);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        format!("{how_many} {}{more}", told.join(", "))
    }

    fn forbidden(&self, schema: &Value) -> String {
        let names = required(schema);
        if !names.is_empty() && schema.as_object().is_some_and(|map| map.len() == 1) {
            return match names.as_slice() {
                [one] => format!("without {one}"),
                names => format!("not {} together", names.join(" and ")),
            };
        }
        format!("not fitting {}", code(schema))
    }

    /// What one alternative asks for: its tags, what it requires, else what it knows.
    fn words(&self, schema: &Value, depth: usize) -> String {
        let Value::Object(map) = schema else {
            return code(schema);
        };
        if let Some(target) = self.document.referred(map)
            && depth > 0
        {
            return self.words(target, depth - 1);
        }
        let mut words = Vec::new();
        let properties = map.get("properties").and_then(Value::as_object);
        let mut tags = Vec::new();
        for (name, property) in properties.into_iter().flatten().take(MAX_TOLD) {
            let only = match (property.get("const"), property.get("enum")) {
                (Some(value), _) => Some(value),
                (None, Some(Value::Array(values))) if values.len() == 1 => values.first(),
                _ => None,
            };
            if let Some(value) = only {
                words.push(format!("{} = {}", name_code(name), shown_value(value)));
                tags.push(name_code(name));
            }
        }
        words.extend(
            required(schema)
                .into_iter()
                .filter(|name| !tags.contains(name)),
        );
        for (name, property) in properties.into_iter().flatten().take(MAX_TOLD) {
            if *property == Value::Bool(false) {
                words.push(format!("no {}", name_code(name)));
            }
        }
        if let Some(forbidden) = map.get("not") {
            words.push(self.forbidden(forbidden));
        }
        if depth > 0 {
            for part in parts(map, "allOf").take(MAX_TOLD) {
                words.push(self.words(part, depth - 1));
            }
            for keyword in ["anyOf", "oneOf"] {
                if let Some(Value::Array(parts)) = map.get(keyword) {
                    words.push(self.rule(keyword, parts, depth - 1));
                }
            }
        }
        if !words.is_empty() {
            return words.join(" and ");
        }
        let names: Vec<String> = properties
            .into_iter()
            .flat_map(Map::keys)
            .take(MAX_TOLD)
            .map(|name| name_code(name))
            .collect();
        if !names.is_empty() {
            return format!("any of {}", names.join(", "));
        }
        let kinds = Kinds::of(self.document, schema);
        if kinds != Kinds::ALL && map.len() == 1 {
            return kinds.words();
        }
        code(schema)
    }
}

fn required(schema: &Value) -> Vec<String> {
    schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .take(MAX_TOLD)
        .map(name_code)
        .collect()
}

fn code(value: &Value) -> String {
    format!("`{}`", shown_value(value))
}

fn name_code(name: &str) -> String {
    format!("`{}`", shown_text(name))
}
