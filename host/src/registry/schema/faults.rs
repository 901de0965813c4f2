//! What does not fit, in words for the model that has to write it anew: `PATH: WANTED, got VALUE`.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use jsonschema::{
    JsonType, ValidationError, Validator,
    error::{TypeKind, ValidationErrorKind},
};
use serde_json::{Map, Value};

use super::{
    Survey,
    document::{Document, Kinds},
    shown,
};

/// Faults that are told one by one.
const MAX_FAULTS: usize = 8;
/// Characters of a value, a name or a pattern inside a fault.
const MAX_SHOWN_CHARS: usize = 80;
/// Names or values in one list.
const MAX_LISTED: usize = 10;
/// How often schemas meet values, at most, where each single fault is looked for. Alternatives inside
/// alternatives multiply, so beyond this only the fact is told.
const MAX_MEETINGS: usize = 20_000;
/// The same, times the size of the arguments in bytes: each level of alternatives copies what it holds.
const MAX_COPIED_BYTES: usize = 256 << 20;
/// Meetings that lead to one another: looking for faults goes as deep on the stack.
const MAX_MEETING_DEPTH: usize = 256;
/// Pairs of schema and value that [`Meetings`] remembers.
const MAX_KNOWN_MEETINGS: usize = 50_000;

/// One thing that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pointer: String,
    /// Empty for the root.
    path: String,
    /// `WANTED, got VALUE`.
    text: String,
}

impl Fault {
    /// A fault at `pointer` inside `root`, where `got` is.
    pub(super) fn new(root: &Value, pointer: &str, wanted: impl AsRef<str>, got: &Value) -> Self {
        Self {
            pointer: pointer.to_owned(),
            path: path(root, pointer),
            text: format!("{}, got {}", wanted.as_ref(), shown_value(got)),
        }
    }

    pub(super) fn is_within(&self, pointer: &str) -> bool {
        self.pointer
            .strip_prefix(pointer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What does not fit of `value`, which the validator does not accept.
pub(super) fn find(
    document: &Document,
    validator: &Validator,
    value: &Value,
    survey: &Survey,
) -> Vec<Fault> {
    if validator.is_valid(value) {
        return Vec::new();
    }
    let meetings = Meetings::of(document, value);
    if meetings > MAX_MEETINGS || meetings.saturating_mul(survey.bytes) > MAX_COPIED_BYTES {
        let wanted = "a value that fits the schema (it has too many alternatives to say more)";
        return vec![Fault::new(value, "", wanted, value)];
    }
    let explanation = Explanation {
        root: value,
        document: Some(document),
    };
    let mut faults = Vec::new();
    for error in validator.iter_errors(value) {
        explanation.add(&error, &mut faults);
    }
    faults
}

/// The first faults as sentences, and how many there are beyond. `root` is what the whole value is called.
pub(super) fn told(root: &str, faults: Vec<Fault>) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    let mut more = 0;
    for fault in faults {
        let path = match fault.path.as_str() {
            "" => root,
            path => path,
        };
        let sentence = format!("{path}: {}", fault.text);
        if told.contains(&sentence) {
            continue;
        }
        if told.len() < MAX_FAULTS {
            told.push(sentence);
        } else {
            more += 1;
        }
    }
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told
}

/// Why a schema is not one, in the same words.
pub(super) fn of_schema(schema: &Value, error: &ValidationError<'_>) -> String {
    let explanation = Explanation {
        root: schema,
        document: None,
    };
    let mut faults = Vec::new();
    explanation.add(error, &mut faults);
    told("the schema", faults).join("; ")
}

/// A value as compact JSON, bounded, on one line, without characters that steer a terminal.
pub(super) fn shown_value(value: &Value) -> String {
    struct Bounded(Vec<u8>);
    impl Write for Bounded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Four bytes are the most that one character takes.
            let room = (MAX_SHOWN_CHARS + 1) * 4 - self.0.len();
            self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if bytes.len() > room {
                return Err(io::Error::other("enough"));
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut bounded = Bounded(Vec::new());
    // The only error is that there is enough.
    let _ = serde_json::to_writer(&mut bounded, value);
    let text = match std::str::from_utf8(&bounded.0) {
        Ok(text) => text,
        Err(cut) => std::str::from_utf8(&bounded.0[..cut.valid_up_to()]).unwrap_or_default(),
    };
    shown_text(text)
}

/// As [`shown_value`], for a text.
pub(super) fn shown_text(text: &str) -> String {
    let mut shown = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == MAX_SHOWN_CHARS {
            shown.push('…');
            break;
        }
        let steers = character.is_control()
            || matches!(
                character,
                '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            );
        if steers {
            shown.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Adds one step to a JSON pointer.
pub(super) fn push_step(pointer: &mut String, name: &str) {
    pointer.push('/');
    pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
}

/// `opts.n`, `items[2]`, `["odd name"].x`; empty for the root.
fn path(root: &Value, pointer: &str) -> String {
    let mut path = String::new();
    let mut here = Some(root);
    for step in pointer.split('/').skip(1) {
        let name = step.replace("~1", "/").replace("~0", "~");
        here = match here {
            Some(Value::Array(items)) => {
                path.push_str(&format!("[{}]", shown_text(&name)));
                name.parse::<usize>()
                    .ok()
                    .and_then(|index| items.get(index))
            }
            Some(Value::Object(members)) => {
                push_name(&mut path, &name);
                members.get(&name)
            }
            _ => {
                push_name(&mut path, &name);
                None
            }
        };
    }
    path
}

fn push_name(path: &mut String, name: &str) {
    let plain = !name.is_empty()
        && name.chars().count() <= MAX_SHOWN_CHARS
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$' | '@'));
    if !plain {
        path.push_str(&format!("[\"{}\"]", shown_text(name)));
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

/// Turns the validator's errors into faults.
struct Explanation<'a> {
    root: &'a Value,
    /// The schema; `None` where the value is itself a schema.
    document: Option<&'a Document>,
}

impl Explanation<'_> {
    fn add(&self, error: &ValidationError<'_>, faults: &mut Vec<Fault>) {
        let at = error.instance_path().as_str();
        match error.kind() {
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                let mut pointer = at.to_owned();
                push_step(&mut pointer, name);
                let wanted = self.member_words(error, name);
                faults.push(Fault {
                    path: path(self.root, &pointer),
                    text: format!("{wanted} is required, got nothing"),
                    pointer,
                });
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                for name in unexpected {
                    let mut pointer = at.to_owned();
                    push_step(&mut pointer, name);
                    let got = error.instance().get(name).unwrap_or(&Value::Null);
                    let wanted = self.known_names(error, name);
                    faults.push(Fault::new(self.root, &pointer, wanted, got));
                }
            }
            ValidationErrorKind::FalseSchema if self.closed_object(error).is_some() => {
                // Where no name is known, the validator does not tell which one it met.
                for (name, got) in self.closed_object(error).into_iter().flatten() {
                    let mut pointer = at.to_owned();
                    push_step(&mut pointer, name);
                    faults.push(Fault::new(self.root, &pointer, "no further members", got));
                }
            }
            ValidationErrorKind::AnyOf { context }
            | ValidationErrorKind::OneOfNotValid { context } => {
                self.add_alternatives(error, context, faults);
            }
            _ => faults.push(Fault::new(
                self.root,
                at,
                self.wanted(error),
                error.instance(),
            )),
        }
    }

    /// Of alternatives that all fail, the faults of the one that was probably meant.
    fn add_alternatives(
        &self,
        error: &ValidationError<'_>,
        branches: &[Vec<ValidationError<'static>>],
        faults: &mut Vec<Fault>,
    ) {
        let at = error.instance_path().as_str();
        let distances: Vec<Distance> = branches
            .iter()
            .map(|branch| Distance::of(at, branch))
            .collect();
        let Some(least) = distances.iter().min().copied() else {
            return;
        };
        let closest: Vec<&Vec<ValidationError<'static>>> = branches
            .iter()
            .zip(&distances)
            .filter_map(|(branch, distance)| (*distance == least).then_some(branch))
            .collect();
        if let [only] = closest.as_slice()
            && !matches!(least, Distance::OtherValue)
        {
            for error in only.iter() {
                self.add(error, faults);
            }
            return;
        }
        // All want another value at one place: a tag that is none of the tags, or simply another kind.
        let place = match least {
            Distance::OtherValue | Distance::OtherKind => Some(at),
            Distance::OtherTag => common_tag(&closest),
            Distance::Faults(_) => None,
        };
        if let Some(place) = place {
            let here: Vec<&ValidationError<'static>> = branches
                .iter()
                .flatten()
                .filter(|error| error.instance_path().as_str() == place && names_values(error))
                .collect();
            let mut words: Vec<String> = Vec::new();
            for error in &here {
                let wanted = self.wanted(error);
                if !words.contains(&wanted) {
                    words.push(wanted);
                }
            }
            if let Some(first) = here.first() {
                faults.push(Fault::new(
                    self.root,
                    place,
                    words.join(" or "),
                    first.instance(),
                ));
                return;
            }
        }
        faults.push(Fault::new(
            self.root,
            at,
            self.wanted(error),
            error.instance(),
        ));
    }

    fn wanted(&self, error: &ValidationError<'_>) -> String {
        use ValidationErrorKind as Kind;
        match error.kind() {
            Kind::Type { kind } => kinds_of(kind).words(),
            Kind::Enum { options } => match options.as_array().map(Vec::as_slice) {
                Some([one]) => shown_value(one),
                Some(options) => {
                    format!("one of {}", listed(options.iter().map(shown_value)))
                }
                None => shown_value(options),
            },
            Kind::Constant { expected_value } => shown_value(expected_value),
            Kind::Minimum { limit } => format!("at least {}", shown_value(limit)),
            Kind::Maximum { limit } => format!("at most {}", shown_value(limit)),
            Kind::ExclusiveMinimum { limit } => format!("more than {}", shown_value(limit)),
            Kind::ExclusiveMaximum { limit } => format!("less than {}", shown_value(limit)),
            Kind::MultipleOf { multiple_of } => format!("a multiple of {multiple_of}"),
            Kind::MinLength { limit } => format!("at least {limit} characters"),
            Kind::MaxLength { limit } => format!("at most {limit} characters"),
            Kind::MinItems { limit } => format!("at least {limit} items"),
            Kind::MaxItems { limit } => format!("at most {limit} items"),
            Kind::AdditionalItems { limit } => format!("at most {limit} items"),
            Kind::UnevaluatedItems { .. } => "no further items".to_owned(),
            Kind::UniqueItems => "items that all differ".to_owned(),
            Kind::Contains => "the right number of items of the required form".to_owned(),
            Kind::MinProperties { limit } => format!("at least {limit} members"),
            Kind::MaxProperties { limit } => format!("at most {limit} members"),
            Kind::PropertyNames { error } => {
                format!("members whose names are {}", self.wanted(error))
            }
            Kind::Pattern { pattern } => format!("text that matches `{}`", shown_text(pattern)),
            Kind::Format { format } => format!("text in the format `{}`", shown_text(format)),
            Kind::ContentEncoding { content_encoding } => {
                format!("text encoded as `{}`", shown_text(content_encoding))
            }
            Kind::ContentMediaType { content_media_type } => {
                format!("text of the type `{}`", shown_text(content_media_type))
            }
            Kind::FromUtf8 { .. } => "text that is UTF-8 inside its encoding".to_owned(),
            Kind::BacktrackLimitExceeded { .. } | Kind::RegexEngineFailure { .. } => {
                "text that the schema's pattern can be tried on in bounded time".to_owned()
            }
            Kind::Not { schema } => format!("a value that does not fit `{}`", shown_value(schema)),
            Kind::FalseSchema => "nothing at all".to_owned(),
            Kind::AnyOf { .. } => self.alternatives(error, "anyOf"),
            Kind::OneOfNotValid { .. } => self.alternatives(error, "oneOf"),
            Kind::OneOfMultipleValid { .. } => {
                format!("{} (more than one fits)", self.alternatives(error, "oneOf"))
            }
            Kind::Required { property } => {
                format!("`{}`", shown_text(property.as_str().unwrap_or_default()))
            }
            Kind::AdditionalProperties { .. } | Kind::UnevaluatedProperties { .. } => {
                "no members of unknown names".to_owned()
            }
            Kind::Custom { message, .. } => shown_text(message),
            Kind::Referencing(error) => format!(
                "a reference that leads somewhere ({})",
                shown_text(&error.to_string())
            ),
        }
    }

    /// The members of an object whose schema knows no names and takes no others.
    fn closed_object(&self, error: &ValidationError<'_>) -> Option<&Map<String, Value>> {
        let keyword = error.schema_path().as_str().rsplit('/').next()?;
        let members = self
            .root
            .pointer(error.instance_path().as_str())?
            .as_object()?;
        (matches!(keyword, "additionalProperties" | "unevaluatedProperties") && !members.is_empty())
            .then_some(members)
    }

    fn alternatives(&self, error: &ValidationError<'_>, keyword: &str) -> String {
        let parts = self
            .document
            .and_then(|document| {
                let parts = document.root().pointer(error.schema_path().as_str())?;
                Some((document, parts.as_array()?))
            })
            .filter(|(_, parts)| !parts.is_empty());
        match parts {
            Some((document, parts)) => shown::rule(document, keyword, parts),
            None => "one of several forms".to_owned(),
        }
    }

    /// The schema that holds the keyword that failed.
    fn holder(&self, error: &ValidationError<'_>) -> Option<(&Document, &Value)> {
        let document = self.document?;
        let (holder, _) = error.schema_path().as_str().rsplit_once('/')?;
        Some((document, document.root().pointer(holder)?))
    }

    fn member_words(&self, error: &ValidationError<'_>, name: &str) -> String {
        self.holder(error)
            .and_then(|(document, holder)| {
                let part = holder.get("properties")?.get(name)?;
                Some(Kinds::of(document, part).words())
            })
            .unwrap_or_else(|| "a value".to_owned())
    }

    fn known_names(&self, error: &ValidationError<'_>, unknown: &str) -> String {
        let mut known: Vec<&str> = Vec::new();
        if let Some((document, holder)) = self.holder(error) {
            for part in document.in_place(&[holder]) {
                let properties = part.get("properties").and_then(Value::as_object);
                known.extend(
                    properties
                        .into_iter()
                        .flat_map(|p| p.keys().map(String::as_str)),
                );
            }
        }
        let unknown: String = unknown.chars().take(MAX_SHOWN_CHARS).collect();
        let closeness = |name: &str| {
            strsim::normalized_damerau_levenshtein(&unknown.to_lowercase(), &name.to_lowercase())
        };
        let closest = known
            .iter()
            .filter(|name| name.len() <= 4 * MAX_SHOWN_CHARS)
            .map(|name| (closeness(name), *name))
            .filter(|(closeness, _)| *closeness >= 0.5)
            .max_by(|(a, _), (b, _)| a.total_cmp(b));
        match (closest, known.as_slice()) {
            (Some((_, name)), _) => format!("a known name (closest: {})", shown_text(name)),
            (None, []) => "no further members".to_owned(),
            (None, known) => {
                format!(
                    "a known name ({})",
                    listed(known.iter().map(|name| shown_text(name)))
                )
            }
        }
    }
}

/// How far an alternative is from what was given, the closest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// Right at its heart; so many faults.
    Faults(usize),
    /// A member that says which alternative it is says another one.
    OtherTag,
    /// Not one of its values.
    OtherValue,
    /// Not even of its kind.
    OtherKind,
}

impl Distance {
    fn of(at: &str, branch: &[ValidationError<'_>]) -> Self {
        branch
            .iter()
            .map(|error| {
                let here = error.instance_path().as_str() == at;
                match error.kind() {
                    ValidationErrorKind::Type { .. } if here => Self::OtherKind,
                    ValidationErrorKind::Constant { .. } | ValidationErrorKind::Enum { .. }
                        if here =>
                    {
                        Self::OtherValue
                    }
                    ValidationErrorKind::Constant { .. } => Self::OtherTag,
                    ValidationErrorKind::Enum { options }
                        if options.as_array().is_some_and(|options| options.len() == 1) =>
                    {
                        Self::OtherTag
                    }
                    _ => Self::Faults(branch.len()),
                }
            })
            .max()
            .unwrap_or(Self::Faults(0))
    }
}

fn names_values(error: &ValidationError<'_>) -> bool {
    matches!(
        error.kind(),
        ValidationErrorKind::Type { .. }
            | ValidationErrorKind::Constant { .. }
            | ValidationErrorKind::Enum { .. }
    )
}

/// The member that tells all these alternatives apart, if it is one and the same.
fn common_tag<'a>(branches: &[&'a Vec<ValidationError<'static>>]) -> Option<&'a str> {
    let tags = |branch: &'a Vec<ValidationError<'static>>| {
        branch
            .iter()
            .filter(|error| {
                matches!(
                    error.kind(),
                    ValidationErrorKind::Constant { .. } | ValidationErrorKind::Enum { .. }
                )
            })
            .map(|error| error.instance_path().as_str())
    };
    let (first, others) = branches.split_first()?;
    tags(first).find(|tag| {
        others
            .iter()
            .all(|branch| tags(branch).any(|other| other == *tag))
    })
}

fn kinds_of(kind: &TypeKind) -> Kinds {
    let one = |kind: JsonType| match kind {
        JsonType::Null => Kinds::NULL,
        JsonType::Boolean => Kinds::BOOLEAN,
        JsonType::Integer => Kinds::INTEGER,
        JsonType::Number => Kinds::NUMBER,
        JsonType::String => Kinds::STRING,
        JsonType::Array => Kinds::ARRAY,
        JsonType::Object => Kinds::OBJECT,
    };
    match kind {
        TypeKind::Single(kind) => one(*kind),
        TypeKind::Multiple(kinds) => kinds
            .iter()
            .fold(Kinds::NONE, |all, kind| all.or(one(kind))),
    }
}

fn listed(entries: impl ExactSizeIterator<Item = String>) -> String {
    let beyond = entries.len().saturating_sub(MAX_LISTED);
    let shown: Vec<String> = entries.take(MAX_LISTED).collect();
    let mut text = shown.join(", ");
    if beyond > 0 {
        text.push_str(&format!(" and {beyond} more"));
    }
    text
}

/// Counts how often a schema is tried on a value, at most, before any is.
struct Meetings<'a> {
    document: &'a Document,
    known: HashMap<(*const Value, *const Value), usize>,
}

impl<'a> Meetings<'a> {
    fn of(document: &'a Document, value: &'a Value) -> usize {
        let mut meetings = Self {
            document,
            known: HashMap::new(),
        };
        meetings.count(document.root(), value, 0)
    }

    fn count(&mut self, schema: &'a Value, value: &'a Value, depth: usize) -> usize {
        let Value::Object(map) = schema else { return 1 };
        let key = (std::ptr::from_ref(schema), std::ptr::from_ref(value));
        if let Some(count) = self.known.get(&key) {
            return *count;
        }
        if depth == MAX_MEETING_DEPTH || self.known.len() >= MAX_KNOWN_MEETINGS {
            return usize::MAX;
        }
        let mut count = 1usize;
        for part in self.document.in_place_parts(map) {
            count = count.saturating_add(self.count(part, value, depth + 1));
        }
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    for part in Document::named_member_parts(map, name)
                        .chain(Document::other_member_parts(map))
                    {
                        count = count.saturating_add(self.count(part, member, depth + 1));
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    for part in Document::item_parts(map, index).chain(map.get("contains")) {
                        count = count.saturating_add(self.count(part, item, depth + 1));
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        self.known.insert(key, count);
        count
    }
}
