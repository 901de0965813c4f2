//! Shapes as JSON Schema, for the arguments of a call and for what it answers.
//!
//! | WIT | JSON |
//! |---|---|
//! | integers of all sizes | whole numbers within the type's range |
//! | `f32`, `f64` | numbers; in answers also `"NaN"`, `"Infinity"` and `"-Infinity"` |
//! | `char` | a string of one character |
//! | `list<u8>` | a string in base64 |
//! | `list`, `tuple` | arrays |
//! | `map` | an object where the key is a string, else an array of pairs |
//! | `record` | an object; a field that is an `option` may be left out |
//! | `variant` | `{"tag": NAME}` or `{"tag": NAME, "val": VALUE}` |
//! | `enum` | one of its names |
//! | `flags` | an array of names |
//! | `option` | the value or `null`; an `option` in an `option` is `{"some": VALUE}` or `null` |
//! | `result` inside of other types | `{"ok": VALUE}` or `{"err": VALUE}` |

use serde_json::{Map, Value, json};

use super::shape::{Named, Part, Shape};

/// The object of a function's arguments.
pub(super) fn of_arguments(params: &[(String, Shape)]) -> Value {
    object(
        params
            .iter()
            .map(|(name, shape)| (name.as_str(), of(shape, Side::Argument), shape)),
    )
}

/// What structured output looks like, for answers that are objects.
pub(super) fn of_answer(result: Option<&Shape>) -> Option<Value> {
    match result? {
        Shape::Result { ok, .. } => of_answer(ok.as_deref()),
        shape if shape.is_record() => Some(of(shape, Side::Answer)),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Argument,
    Answer,
}

fn of(shape: &Shape, side: Side) -> Value {
    match shape {
        Shape::Bool => json!({ "type": "boolean" }),
        Shape::S8 => whole(i8::MIN, i8::MAX),
        Shape::S16 => whole(i16::MIN, i16::MAX),
        Shape::S32 => whole(i32::MIN, i32::MAX),
        Shape::S64 => whole(i64::MIN, i64::MAX),
        Shape::U8 => whole(u8::MIN, u8::MAX),
        Shape::U16 => whole(u16::MIN, u16::MAX),
        Shape::U32 => whole(u32::MIN, u32::MAX),
        Shape::U64 => whole(u64::MIN, u64::MAX),
        Shape::F32 | Shape::F64 => match side {
            Side::Argument => json!({ "type": "number" }),
            Side::Answer => json!({ "anyOf": [
                { "type": "number" },
                { "enum": ["NaN", "Infinity", "-Infinity"] },
            ] }),
        },
        Shape::Char => json!({ "type": "string", "minLength": 1, "maxLength": 1 }),
        Shape::String => json!({ "type": "string" }),
        Shape::Bytes => json!({
            "type": "string", "contentEncoding": "base64", "description": "bytes in base64",
        }),
        Shape::List(item) => json!({ "type": "array", "items": of(item, side) }),
        Shape::Array(item, len) => json!({
            "type": "array", "items": of(item, side), "minItems": len, "maxItems": len,
        }),
        Shape::Map(key, value) if **key == Shape::String => json!({
            "type": "object", "additionalProperties": of(value, side),
        }),
        Shape::Map(key, value) => json!({
            "type": "array", "items": tuple(&[of(key, side), of(value, side)]),
        }),
        Shape::Tuple(items) => tuple(&items.iter().map(|item| of(item, side)).collect::<Vec<_>>()),
        Shape::Record(record) => {
            let fields = record.parts.iter().map(|field| {
                let schema = with(of(&field.of, side), field.docs.as_deref());
                (field.name.as_str(), schema, &field.of)
            });
            with(object(fields), record.docs.as_deref())
        }
        Shape::Variant(variant) => {
            let cases = variant.parts.iter().map(|case| {
                let mut fields = vec![("tag", json!({ "const": case.name }))];
                if let Some(shape) = &case.of {
                    fields.push(("val", of(shape, side)));
                }
                with(closed(fields), case.docs.as_deref())
            });
            let schema = json!({ "oneOf": cases.collect::<Vec<_>>() });
            with(schema, variant.docs.as_deref())
        }
        Shape::Enum(words) => {
            let schema = json!({ "type": "string", "enum": names(&words.parts) });
            with(schema, about(words).as_deref())
        }
        Shape::Flags(flags) => {
            let words = json!({ "type": "string", "enum": names(&flags.parts) });
            // No flag at all is an empty list of choices, which no schema can have.
            let items = if flags.parts.is_empty() {
                json!(false)
            } else {
                words
            };
            let schema = json!({ "type": "array", "items": items, "uniqueItems": true });
            with(schema, about(flags).as_deref())
        }
        Shape::Option(of_some) => {
            let some = of(of_some, side);
            let some = if of_some.takes_null() {
                closed(vec![("some", some)])
            } else {
                some
            };
            json!({ "anyOf": [some, { "type": "null" }] })
        }
        Shape::Result { ok, err } => {
            let side_of = |name, payload: &Option<Box<Shape>>| {
                let schema = match payload {
                    Some(shape) => of(shape, side),
                    None => json!({ "type": "null" }),
                };
                closed(vec![(name, schema)])
            };
            json!({ "oneOf": [side_of("ok", ok), side_of("err", err)] })
        }
    }
}

fn whole(min: impl Into<Value>, max: impl Into<Value>) -> Value {
    json!({ "type": "integer", "minimum": min.into(), "maximum": max.into() })
}

fn tuple(items: &[Value]) -> Value {
    let len = items.len();
    if items.is_empty() {
        return json!({ "type": "array", "maxItems": 0 });
    }
    json!({ "type": "array", "prefixItems": items, "items": false, "minItems": len, "maxItems": len })
}

/// An object whose `option`s may be left out.
fn object<'a>(fields: impl Iterator<Item = (&'a str, Value, &'a Shape)>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, schema, shape) in fields {
        if !shape.takes_null() {
            required.push(name);
        }
        properties.insert(name.to_owned(), schema);
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn closed(fields: Vec<(&str, Value)>) -> Value {
    let required: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
    let required = json!(required);
    let properties: Map<_, _> = fields
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn with(mut schema: Value, docs: Option<&str>) -> Value {
    if let (Some(docs), Some(schema)) = (docs, schema.as_object_mut()) {
        schema.insert("description".to_owned(), docs.into());
    }
    schema
}

fn names(parts: &[Part<()>]) -> Vec<&str> {
    parts.iter().map(|part| part.name.as_str()).collect()
}

/// What is written of an enumeration and of its words.
fn about(words: &Named<()>) -> Option<String> {
    let mut lines: Vec<String> = words.docs.iter().cloned().collect();
    for word in &words.parts {
        if let Some(docs) = &word.docs {
            lines.push(format!("{}: {docs}", word.name));
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}
