//! Conversions that lose nothing, for what models write almost right: `"5"` for an integer, the JSON text of
//! an object for the object. Never the other way round, and never where the schema also takes the string.

use std::collections::HashSet;

use jsonschema::Validator;
use serde_json::{Map, Number, Value};

use super::{
    MAX_ARGUMENT_DEPTH, Survey,
    document::{Document, Kinds},
    faults::{Fault, push_step},
};

/// The largest whole number below which an `f64` stands for itself and nothing else.
const MAX_EXACT_FLOAT: f64 = 9_007_199_254_740_992.0;

/// Arguments after every conversion that the schema invites.
pub(super) struct Coercion {
    pub(super) value: Value,
    /// Where whole numbers are wanted: numbers that no tool could hold.
    pub(super) out_of_range: Vec<Fault>,
    /// Pointers of the values that were JSON texts.
    unpacked: Vec<String>,
}

impl Coercion {
    pub(super) fn of(document: &Document, input: &Value) -> Self {
        Self::without(document, input, HashSet::new())
    }

    /// Leaves the JSON texts at the pointers in `packed` as they are.
    pub(super) fn without(document: &Document, input: &Value, packed: HashSet<String>) -> Self {
        let mut walk = Walk {
            document,
            input,
            packed,
            pointer: String::new(),
            out_of_range: Vec::new(),
            unpacked: Vec::new(),
        };
        let mut value = input.clone();
        walk.visit(&mut value, &[document.root()]);
        Self {
            value,
            out_of_range: walk.out_of_range,
            unpacked: walk.unpacked,
        }
    }

    pub(super) fn is_valid(&self, validator: &Validator) -> bool {
        self.out_of_range.is_empty() && validator.is_valid(&self.value)
    }

    /// The JSON texts that a fault lies at or below.
    pub(super) fn unpacked_with_faults(&self, faults: &[Fault]) -> HashSet<String> {
        self.unpacked
            .iter()
            .filter(|pointer| faults.iter().any(|fault| fault.is_within(pointer)))
            .cloned()
            .collect()
    }
}

struct Walk<'a> {
    document: &'a Document,
    input: &'a Value,
    packed: HashSet<String>,
    pointer: String,
    out_of_range: Vec<Fault>,
    unpacked: Vec<String>,
}

impl<'a> Walk<'a> {
    /// `schemas` are all that may apply to the value, each alone.
    fn visit(&mut self, value: &mut Value, schemas: &[&'a Value]) {
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => {
                if self.kinds(schemas).only_whole_numbers() {
                    match whole(number, || self.takes_u64(schemas)) {
                        Ok(whole) => *number = whole,
                        Err(wanted) => {
                            let fault = Fault::new(self.input, &self.pointer, wanted, value);
                            self.out_of_range.push(fault);
                        }
                    }
                }
            }
            Value::String(text) => {
                if let Some(converted) = self.convert(text, schemas) {
                    *value = converted;
                }
            }
            Value::Array(items) => {
                let parts = self.in_place(schemas);
                for (index, item) in items.iter_mut().enumerate() {
                    let of_item: Vec<&Value> = parts
                        .iter()
                        .flat_map(|part| Document::item_parts(part, index))
                        .collect();
                    self.step(&index.to_string(), item, &of_item);
                }
            }
            Value::Object(members) => {
                let parts = self.in_place(schemas);
                for (name, member) in members {
                    let of_member = of_member(&parts, name);
                    self.step(name, member, &of_member);
                }
            }
        }
    }

    fn step(&mut self, name: &str, value: &mut Value, schemas: &[&'a Value]) {
        if schemas.is_empty() {
            return;
        }
        let length = self.pointer.len();
        push_step(&mut self.pointer, name);
        self.visit(value, schemas);
        self.pointer.truncate(length);
    }

    fn convert(&mut self, text: &str, schemas: &[&'a Value]) -> Option<Value> {
        let kinds = self.kinds(schemas);
        if kinds.has(Kinds::STRING) {
            return None;
        }
        if kinds.has(Kinds::BOOLEAN) {
            match text {
                "true" => return Some(Value::Bool(true)),
                "false" => return Some(Value::Bool(false)),
                _ => {}
            }
        }
        if kinds.has(Kinds::INTEGER)
            && let Some(number) = integer(text)
            && (number.is_i64() || !kinds.only_whole_numbers() || self.takes_u64(schemas))
        {
            return Some(Value::Number(number));
        }
        if kinds.has(Kinds::NUMBER)
            && let Some(number) = decimal(text)
        {
            return Some(Value::Number(number));
        }
        let wanted = match text.trim_start().bytes().next()? {
            b'{' => Kinds::OBJECT,
            b'[' => Kinds::ARRAY,
            _ => return None,
        };
        if !kinds.has(wanted) || self.packed.contains(&self.pointer) {
            return None;
        }
        let value: Value = serde_json::from_str(text).ok()?;
        let depth = self.pointer.matches('/').count();
        let mut survey = Survey::default();
        survey.visit(&value, MAX_ARGUMENT_DEPTH.saturating_sub(depth));
        // What is inside has to fit as it stands.
        if survey.too_deep {
            return None;
        }
        self.unpacked.push(self.pointer.clone());
        Some(value)
    }

    fn kinds(&self, schemas: &[&Value]) -> Kinds {
        schemas.iter().fold(Kinds::NONE, |kinds, schema| {
            kinds.or(Kinds::of(self.document, schema))
        })
    }

    fn in_place(&self, schemas: &[&'a Value]) -> Vec<&'a Map<String, Value>> {
        self.document.in_place(schemas)
    }

    /// Whether the schema says in any way that values beyond an `i64` are meant.
    fn takes_u64(&self, schemas: &[&'a Value]) -> bool {
        self.in_place(schemas).iter().any(|schema| {
            let at_least = |keyword, floor: f64| {
                schema
                    .get(keyword)
                    .and_then(Value::as_f64)
                    .is_some_and(|limit| limit >= floor)
            };
            #[expect(
                clippy::cast_precision_loss,
                reason = "rounds up to 2^63, which is meant"
            )]
            let beyond_i64 = i64::MAX as f64;
            at_least("minimum", 0.0)
                || at_least("exclusiveMinimum", -1.0)
                || at_least("maximum", beyond_i64)
                || matches!(
                    schema.get("format").and_then(Value::as_str),
                    Some("uint64" | "uint")
                )
        })
    }
}

/// Where one part of a schema names the member, those for unnamed members are none of its business.
fn of_member<'a>(parts: &[&'a Map<String, Value>], name: &str) -> Vec<&'a Value> {
    let named: Vec<&Value> = parts
        .iter()
        .flat_map(|part| Document::named_member_parts(part, name))
        .collect();
    if !named.is_empty() {
        return named;
    }
    parts
        .iter()
        .flat_map(|part| Document::other_member_parts(part))
        .collect()
}

/// The number as an integer. JSON Schema counts `5.0` as one, most decoders of tools don't.
fn whole(number: &Number, takes_u64: impl FnOnce() -> bool) -> Result<Number, String> {
    if number.is_i64() {
        return Ok(number.clone());
    }
    let takes_u64 = takes_u64();
    if number.is_u64() && takes_u64 {
        return Ok(number.clone());
    }
    match number.as_f64() {
        // What is not whole is the validator's to refuse.
        Some(float) if number.is_f64() && float.fract() != 0.0 => Ok(number.clone()),
        Some(float) if number.is_f64() && float.abs() <= MAX_EXACT_FLOAT => {
            #[expect(clippy::cast_possible_truncation, reason = "whole and within 2^53")]
            let whole = float as i64;
            Ok(Number::from(whole))
        }
        _ if takes_u64 => Err(format!("an integer of at most {}", u64::MAX)),
        _ => Err(format!("an integer from {} to {}", i64::MIN, i64::MAX)),
    }
}

/// A text that is exactly an integer as JSON writes it, within 64 bits.
fn integer(text: &str) -> Option<Number> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || (digits.starts_with('0') && text != "0") {
        return None;
    }
    match text.parse::<i64>() {
        Ok(number) => Some(Number::from(number)),
        Err(_) => text.parse::<u64>().ok().map(Number::from),
    }
}

/// A text that is exactly a decimal fraction as JSON writes it, without exponent, and that an `f64` gives
/// back digit by digit.
fn decimal(text: &str) -> Option<Number> {
    let (before, after) = text.strip_prefix('-').unwrap_or(text).split_once('.')?;
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(before) || !digits(after) || (before.starts_with('0') && before != "0") {
        return None;
    }
    let number: f64 = text.parse().ok()?;
    let shortest = text.trim_end_matches('0').trim_end_matches('.');
    (number.to_string() == shortest)
        .then(|| Number::from_f64(number))
        .flatten()
}
