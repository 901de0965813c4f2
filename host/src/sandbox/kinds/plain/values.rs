//! JSON values into a component's and back, without loss. The table is in [`super::schema`].

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Number, Value};
use wasmtime::component::Val;

use super::shape::{Part, Shape};
use crate::harmless::shown;

/// A fault names its place and what is wanted there.
pub(super) fn to_component(shape: &Shape, json: Value, at: &str) -> Result<Val, String> {
    let wrong = |wanted: &str| Err(format!("`{}`: {wanted} is wanted", shown(at, 200, false)));
    Ok(match (shape, json) {
        (Shape::Bool, Value::Bool(value)) => Val::Bool(value),
        (Shape::S8, Value::Number(n)) => Val::S8(signed(&n, at)?),
        (Shape::S16, Value::Number(n)) => Val::S16(signed(&n, at)?),
        (Shape::S32, Value::Number(n)) => Val::S32(signed(&n, at)?),
        (Shape::S64, Value::Number(n)) => Val::S64(signed(&n, at)?),
        (Shape::U8, Value::Number(n)) => Val::U8(unsigned(&n, at)?),
        (Shape::U16, Value::Number(n)) => Val::U16(unsigned(&n, at)?),
        (Shape::U32, Value::Number(n)) => Val::U32(unsigned(&n, at)?),
        (Shape::U64, Value::Number(n)) => Val::U64(unsigned(&n, at)?),
        (Shape::F64, Value::Number(n)) => match n.as_f64() {
            Some(value) => Val::Float64(value),
            None => return wrong("a number"),
        },
        (Shape::F32, Value::Number(n)) => match n.as_f64().map(|value| value as f32) {
            Some(value) if value.is_finite() => Val::Float32(value),
            Some(_) | None => return wrong("a number within the range of a 32-bit float"),
        },
        (Shape::Char, Value::String(text)) => {
            let mut chars = text.chars();
            match (chars.next(), chars.next()) {
                (Some(value), None) => Val::Char(value),
                _ => return wrong("exactly one character"),
            }
        }
        (Shape::String, Value::String(text)) => Val::String(text),
        (Shape::Bytes, Value::String(text)) => match BASE64.decode(text.trim()) {
            Ok(bytes) => Val::List(bytes.into_iter().map(Val::U8).collect()),
            Err(_) => return wrong("base64"),
        },
        (Shape::List(of), Value::Array(items)) => Val::List(list(of, items, at)?),
        (Shape::Array(of, len), Value::Array(items)) => {
            if items.len() != *len as usize {
                return wrong(&format!("an array of {len}"));
            }
            Val::FixedLengthList(list(of, items, at)?)
        }
        (Shape::Tuple(of), Value::Array(items)) => {
            if items.len() != of.len() {
                return wrong(&format!("an array of {}", of.len()));
            }
            let items = of.iter().zip(items).enumerate();
            let items =
                items.map(|(n, (shape, item))| to_component(shape, item, &format!("{at}.{n}")));
            Val::Tuple(items.collect::<Result<_, _>>()?)
        }
        (Shape::Map(key, value), Value::Object(fields)) if **key == Shape::String => {
            let pairs = fields.into_iter().map(|(name, field)| {
                let field = to_component(value, field, &format!("{at}.{name}"))?;
                Ok((Val::String(name), field))
            });
            Val::Map(pairs.collect::<Result<_, String>>()?)
        }
        (Shape::Map(key, value), Value::Array(pairs)) if **key != Shape::String => {
            let pairs = pairs.into_iter().enumerate().map(|(n, pair)| {
                let at = format!("{at}.{n}");
                match pair {
                    Value::Array(pair) => match <[Value; 2]>::try_from(pair) {
                        Ok([k, v]) => {
                            Ok((to_component(key, k, &at)?, to_component(value, v, &at)?))
                        }
                        Err(_) => Err(format!("`{at}`: a pair is wanted")),
                    },
                    _ => Err(format!("`{at}`: a pair is wanted")),
                }
            });
            Val::Map(pairs.collect::<Result<_, String>>()?)
        }
        (Shape::Record(record), Value::Object(mut fields)) => {
            let mut values = Vec::with_capacity(record.parts.len());
            for field in &record.parts {
                let value = fields.remove(&field.name).unwrap_or(Value::Null);
                let value = to_component(&field.of, value, &format!("{at}.{}", field.name))?;
                values.push((field.name.clone(), value));
            }
            if let Some(name) = fields.keys().next() {
                return wrong(&format!("a record without `{}`", shown(name, 80, false)));
            }
            Val::Record(values)
        }
        (Shape::Variant(variant), Value::Object(mut fields)) => {
            let tag = fields.remove("tag");
            let case = tag
                .as_ref()
                .and_then(Value::as_str)
                .and_then(|tag| variant.parts.iter().find(|case| case.name == tag));
            let Some(case) = case else {
                return wrong("a `tag` that names a case");
            };
            let val = fields.remove("val");
            let value = match (&case.of, val) {
                (Some(shape), val) => {
                    let val = val.unwrap_or(Value::Null);
                    Some(Box::new(to_component(shape, val, &format!("{at}.val"))?))
                }
                (None, None | Some(Value::Null)) => None,
                (None, Some(_)) => return wrong(&format!("`{}` without `val`", case.name)),
            };
            Val::Variant(case.name.clone(), value)
        }
        (Shape::Enum(words), Value::String(word)) if has(&words.parts, &word) => Val::Enum(word),
        (Shape::Flags(flags), Value::Array(items)) => {
            let mut set = Vec::with_capacity(items.len().min(flags.parts.len()));
            for item in items {
                match item {
                    Value::String(word) if has(&flags.parts, &word) => {
                        if !set.contains(&word) {
                            set.push(word);
                        }
                    }
                    _ => return wrong("an array of the flags' names"),
                }
            }
            Val::Flags(set)
        }
        (Shape::Option(_), Value::Null) => Val::Option(None),
        (Shape::Option(of), json) => {
            let json = match json {
                Value::Object(mut fields) if of.takes_null() => match fields.remove("some") {
                    Some(value) => value,
                    None => return wrong("`{\"some\": …}` or null"),
                },
                _ if of.takes_null() => return wrong("`{\"some\": …}` or null"),
                json => json,
            };
            Val::Option(Some(Box::new(to_component(of, json, at)?)))
        }
        (Shape::Result { ok, err }, Value::Object(fields)) => {
            let mut fields = fields.into_iter();
            let (Some((name, value)), None) = (fields.next(), fields.next()) else {
                return wrong("one of `ok` and `err`");
            };
            let payload = |shape: &Option<Box<Shape>>, value| match shape {
                Some(shape) => {
                    let value = to_component(shape, value, &format!("{at}.{name}"))?;
                    Ok::<_, String>(Some(Box::new(value)))
                }
                None => Ok(None),
            };
            match name.as_str() {
                "ok" => Val::Result(Ok(payload(ok, value)?)),
                "err" => Val::Result(Err(payload(err, value)?)),
                _ => return wrong("one of `ok` and `err`"),
            }
        }
        (shape, _) => {
            let mut wanted = String::new();
            shape.write(&mut wanted, 100);
            return wrong(&format!("a value of the type `{wanted}`"));
        }
    })
}

fn list(of: &Shape, items: Vec<Value>, at: &str) -> Result<Vec<Val>, String> {
    items
        .into_iter()
        .enumerate()
        .map(|(n, item)| to_component(of, item, &format!("{at}.{n}")))
        .collect()
}

fn has(parts: &[Part<()>], word: &str) -> bool {
    parts.iter().any(|part| part.name == word)
}

fn signed<T: TryFrom<i64>>(n: &Number, at: &str) -> Result<T, String> {
    n.as_i64()
        .and_then(|n| n.try_into().ok())
        .ok_or_else(|| out_of_range(at))
}

fn unsigned<T: TryFrom<u64>>(n: &Number, at: &str) -> Result<T, String> {
    n.as_u64()
        .and_then(|n| n.try_into().ok())
        .ok_or_else(|| out_of_range(at))
}

fn out_of_range(at: &str) -> String {
    format!(
        "`{}`: a whole number within the type's range is wanted",
        shown(at, 200, false)
    )
}

/// Fails only if the value is not of the shape, which would be a fault of ours.
pub(super) fn to_json(shape: &Shape, value: Val) -> wasmtime::Result<Value> {
    Ok(match (shape, value) {
        (Shape::Bool, Val::Bool(value)) => value.into(),
        (Shape::S8, Val::S8(value)) => value.into(),
        (Shape::S16, Val::S16(value)) => value.into(),
        (Shape::S32, Val::S32(value)) => value.into(),
        (Shape::S64, Val::S64(value)) => value.into(),
        (Shape::U8, Val::U8(value)) => value.into(),
        (Shape::U16, Val::U16(value)) => value.into(),
        (Shape::U32, Val::U32(value)) => value.into(),
        (Shape::U64, Val::U64(value)) => value.into(),
        // The shortest decimal that is this very float, not the digits that a wider one would add.
        (Shape::F32, Val::Float32(value)) => float(value.to_string().parse().unwrap_or(f64::NAN)),
        (Shape::F64, Val::Float64(value)) => float(value),
        (Shape::Char, Val::Char(value)) => value.to_string().into(),
        (Shape::String, Val::String(value)) => value.into(),
        (Shape::Bytes, Val::List(items)) => {
            let bytes = items.into_iter().map(|item| match item {
                Val::U8(byte) => Ok(byte),
                _ => Err(mismatch()),
            });
            BASE64
                .encode(bytes.collect::<wasmtime::Result<Vec<u8>>>()?)
                .into()
        }
        (Shape::List(of), Val::List(items))
        | (Shape::Array(of, _), Val::FixedLengthList(items)) => {
            let items = items.into_iter().map(|item| to_json(of, item));
            Value::Array(items.collect::<wasmtime::Result<_>>()?)
        }
        (Shape::Map(key, value), Val::Map(pairs)) if **key == Shape::String => {
            let mut fields = Map::new();
            for (k, v) in pairs {
                let Val::String(name) = k else {
                    return Err(mismatch());
                };
                fields.insert(name, to_json(value, v)?);
            }
            Value::Object(fields)
        }
        (Shape::Map(key, value), Val::Map(pairs)) => {
            let pairs = pairs
                .into_iter()
                .map(|(k, v)| Ok(Value::Array(vec![to_json(key, k)?, to_json(value, v)?])));
            Value::Array(pairs.collect::<wasmtime::Result<_>>()?)
        }
        (Shape::Tuple(of), Val::Tuple(items)) if of.len() == items.len() => {
            let items = of.iter().zip(items);
            let items = items.map(|(shape, item)| to_json(shape, item));
            Value::Array(items.collect::<wasmtime::Result<_>>()?)
        }
        (Shape::Record(record), Val::Record(values)) if record.parts.len() == values.len() => {
            let mut fields = Map::new();
            for (field, (_, value)) in record.parts.iter().zip(values) {
                fields.insert(field.name.clone(), to_json(&field.of, value)?);
            }
            Value::Object(fields)
        }
        (Shape::Variant(variant), Val::Variant(name, value)) => {
            let case = variant.parts.iter().find(|case| case.name == name);
            let shape = case.and_then(|case| case.of.as_ref());
            let mut fields = Map::new();
            fields.insert("tag".to_owned(), name.into());
            if let (Some(shape), Some(value)) = (shape, value) {
                fields.insert("val".to_owned(), to_json(shape, *value)?);
            }
            Value::Object(fields)
        }
        (Shape::Enum(_), Val::Enum(word)) => word.into(),
        (Shape::Flags(_), Val::Flags(words)) => words.into(),
        (Shape::Option(_), Val::Option(None)) => Value::Null,
        (Shape::Option(of), Val::Option(Some(value))) => {
            let value = to_json(of, *value)?;
            if of.takes_null() {
                field("some", value)
            } else {
                value
            }
        }
        (Shape::Result { ok, .. }, Val::Result(Ok(value))) => field("ok", payload(ok, value)?),
        (Shape::Result { err, .. }, Val::Result(Err(value))) => field("err", payload(err, value)?),
        _ => return Err(mismatch()),
    })
}

fn payload(shape: &Option<Box<Shape>>, value: Option<Box<Val>>) -> wasmtime::Result<Value> {
    match (shape, value) {
        (Some(shape), Some(value)) => to_json(shape, *value),
        _ => Ok(Value::Null),
    }
}

fn field(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}

fn float(value: f64) -> Value {
    match Number::from_f64(value) {
        Some(number) => Value::Number(number),
        None if value.is_nan() => "NaN".into(),
        None if value > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

fn mismatch() -> wasmtime::Error {
    wasmtime::Error::msg("a value is not of the type that its component declares")
}
