//! What the model is shown of a tool's schema, and the check of arguments and answers against it.
//!
//! Schemas come from components and are not trusted: their size and depth are bounded, they can refer to
//! nothing outside themselves, and checking an argument takes time and memory in proportion to both.

mod coerce;
mod document;
mod faults;
mod shown;

use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value};

use self::{coerce::Coercion, document::Document};

/// The largest schema, in bytes of compact JSON.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// How deep a schema may be nested, in values.
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// How much one call may be given, in bytes, roughly as JSON.
pub const MAX_ARGUMENT_BYTES: usize = 4 << 20;
/// How deep the arguments of a call may be nested, in values.
pub const MAX_ARGUMENT_DEPTH: usize = 64;

/// Steps back of one pattern on one text before the text counts as not matching: what keeps a pattern such
/// as `(a|a)*$` with look-around from running for ever.
const MAX_PATTERN_BACKTRACKS: usize = 100_000;
/// Memory of one compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Why a schema can't be used, so that its tool is set aside. The text follows "its input
/// schema can't be used: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaFault {
    #[error(
        "it is missing or not an object but {got}; a tool without arguments declares `{{\"type\": \"object\", \"properties\": {{}}}}`"
    )]
    NotAnObject { got: String },
    #[error(
        "it says nothing; a tool without arguments declares `{{\"type\": \"object\", \"properties\": {{}}}}`"
    )]
    SaysNothing,
    #[error(
        "it describes {kinds}, but arguments are always an object; declare `\"type\": \"object\"`"
    )]
    RootIsNoObject { kinds: String },
    #[error(
        "it is larger than {MAX_SCHEMA_BYTES} bytes; shorten its descriptions and enumerations"
    )]
    TooLarge,
    #[error("it is nested deeper than {MAX_SCHEMA_DEPTH} values; move inner parts to `$defs`")]
    TooDeep,
    #[error(
        "it refers to `{reference}`, which is not inside it; put that part into `$defs` and refer to `#/$defs/NAME`"
    )]
    OutsideReference { reference: String },
    #[error("it has too many or too long chains of references; write some of them out")]
    TooManyReferences,
    #[error(
        "it has alternatives inside alternatives without end; a `$ref` may lead back to itself only through `properties` or `items`"
    )]
    TooManyAlternatives,
    #[error("it uses `{keyword}`, which this host does not support; write the reference as `$ref`")]
    Unsupported { keyword: &'static str },
    #[error("it is not a valid JSON Schema: {why}")]
    Invalid { why: String },
    #[error(
        "it can't be shown to a model as one object: {why}; give it one root object with `properties`"
    )]
    NotShowable { why: String },
}

/// The schema of a tool's arguments, ready to be shown and to check.
#[derive(Debug)]
pub struct ArgumentSchema {
    document: Document,
    validator: Validator,
    shown: Arc<Value>,
    shown_note: Option<String>,
}

impl ArgumentSchema {
    /// Fails for a schema that can't describe a call's arguments, or not in a way that a model can be shown.
    pub fn compile(schema: &Value) -> Result<Self, SchemaFault> {
        let document = Document::new(schema)?;
        if document.root().as_object().is_some_and(Map::is_empty) {
            return Err(SchemaFault::SaysNothing);
        }
        let validator = build(document.root())?;
        let (shown, shown_note) = shown::for_model(&document)?;
        if shown != *document.root() {
            build(&shown).map_err(|_| SchemaFault::NotShowable {
                why: "a reference in it leads to a part that has to be rewritten, or it is of an older draft than 2020-12".to_owned(),
            })?;
        }
        Ok(Self {
            document,
            validator,
            shown: Arc::new(shown),
            shown_note,
        })
    }

    /// As the tool declared it; what arguments are checked against.
    pub fn original(&self) -> &Value {
        self.document.root()
    }

    /// What a model is shown: an object schema without `oneOf`, `anyOf`, `allOf`, `not`, `if` or `enum` at
    /// its root, which endpoints refuse. It has every property and what all alternatives require; what it
    /// can't say any more, [`Self::shown_note`] says in words.
    pub fn shown(&self) -> Arc<Value> {
        Arc::clone(&self.shown)
    }

    /// What [`Self::shown`] lost, in words for the end of the tool's description.
    pub fn shown_note(&self) -> Option<&str> {
        self.shown_note.as_deref()
    }

    /// The arguments as the tool gets them. Where they do not fit as they are, conversions that lose nothing
    /// are made (`"5"` for an integer); the error lists at most eight faults, each
    /// `PATH: WANTED, got VALUE`, and the number of further ones.
    pub fn check(&self, input: Map<String, Value>) -> Result<Map<String, Value>, Vec<String>> {
        let input = Value::Object(input);
        let survey = Survey::of(&input);
        if let Some(fault) = survey.fault("arguments") {
            return Err(vec![fault]);
        }
        if !survey.odd_number && self.validator.is_valid(&input) {
            return object(input);
        }
        let mut coercion = Coercion::of(&self.document, &input);
        if coercion.is_valid(&self.validator) {
            return object(coercion.value);
        }
        // A JSON text that does not fit as an object is reported as the text that it is.
        let mut found = faults::find(&self.document, &self.validator, &coercion.value, &survey);
        let misfits = coercion.unpacked_with_faults(&found);
        if !misfits.is_empty() {
            coercion = Coercion::without(&self.document, &input, misfits);
            found = faults::find(&self.document, &self.validator, &coercion.value, &survey);
        }
        found.extend(coercion.out_of_range);
        Err(faults::told("arguments", found))
    }
}

/// The schema of a tool's structured answer.
#[derive(Debug)]
pub struct OutputSchema {
    document: Document,
    validator: Validator,
}

impl OutputSchema {
    pub fn compile(schema: &Value) -> Result<Self, SchemaFault> {
        let document = Document::new(schema)?;
        let validator = build(document.root())?;
        Ok(Self {
            document,
            validator,
        })
    }

    /// The error lists faults as [`ArgumentSchema::check`] does. Nothing is converted.
    pub fn check(&self, output: &Value) -> Result<(), Vec<String>> {
        let survey = Survey::of(output);
        if let Some(fault) = survey.fault("output") {
            return Err(vec![fault]);
        }
        if self.validator.is_valid(output) {
            return Ok(());
        }
        let found = faults::find(&self.document, &self.validator, output, &survey);
        Err(faults::told("output", found))
    }
}

fn object(value: Value) -> Result<Map<String, Value>, Vec<String>> {
    match value {
        Value::Object(map) => Ok(map),
        // Nothing converts the root.
        other => Err(vec![format!(
            "arguments: an object, got {}",
            faults::shown_value(&other)
        )]),
    }
}

fn build(schema: &Value) -> Result<Validator, SchemaFault> {
    jsonschema::options()
        .offline()
        .should_validate_formats(true)
        .with_pattern_options(
            PatternOptions::fancy_regex()
                .backtrack_limit(MAX_PATTERN_BACKTRACKS)
                .size_limit(MAX_PATTERN_BYTES),
        )
        .build(schema)
        .map_err(|error| SchemaFault::Invalid {
            why: faults::of_schema(schema, &error),
        })
}

/// One pass over a value before it is checked.
#[derive(Debug, Clone, Copy, Default)]
struct Survey {
    /// Roughly the bytes of its JSON.
    bytes: usize,
    too_deep: bool,
    /// It holds a number that JSON Schema may call an integer and that an `i64` can't hold as it stands:
    /// `5.0`, `1e30`, or 2^63 and above.
    odd_number: bool,
}

impl Survey {
    fn of(value: &Value) -> Self {
        let mut survey = Self::default();
        survey.visit(value, MAX_ARGUMENT_DEPTH);
        survey
    }

    fn visit(&mut self, value: &Value, depth_left: usize) {
        self.bytes += 4;
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => {
                self.bytes += 8;
                self.odd_number |= number.as_i64().is_none()
                    && number.as_f64().is_none_or(|float| float.fract() == 0.0);
            }
            Value::String(text) => self.bytes += text.len(),
            Value::Array(_) | Value::Object(_) if depth_left == 0 => self.too_deep = true,
            Value::Array(items) => {
                for item in items {
                    self.visit(item, depth_left - 1);
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    self.bytes += name.len();
                    self.visit(member, depth_left - 1);
                }
            }
        }
    }

    fn fault(&self, root: &str) -> Option<String> {
        if self.too_deep {
            return Some(format!(
                "{root}: values nested at most {MAX_ARGUMENT_DEPTH} deep, got deeper ones"
            ));
        }
        (self.bytes > MAX_ARGUMENT_BYTES).then(|| {
            format!(
                "{root}: at most {MAX_ARGUMENT_BYTES} bytes, got about {}",
                self.bytes
            )
        })
    }
}

#[cfg(test)]
mod tests;
