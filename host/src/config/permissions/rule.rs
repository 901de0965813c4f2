//! One rule: `plugin.tool`, with patterns, and optionally patterns for arguments.

use std::{borrow::Cow, fmt};

use serde_json::{Map, Value};

use super::{
    Verdict,
    glob::{Case, Glob, PathGlob, Segment, Token},
};

/// Longest rule, in bytes.
pub const MAX_RULE_BYTES: usize = 1024;

/// A rule of `[permissions]`, valid once built.
///
/// - `plugin.tool`, each with `*` (any run of characters) and `?` (any one); a bare `plugin` means all its
///   tools; `mcp__plugin__tool` and `mcp__plugin` are read as the same.
/// - `(argument:pattern, …)` behind it: each argument has to be there and match. `a.b` is the member `b` of
///   `a`. `\` makes the next character a plain one.
///
/// A pattern with `://` is a URL, one with another `/` a path: `*` then ends at `/`, `**` does not, and the
/// argument is brought to its plain form first (`..` resolved, relative paths start at `/`, as they do for a
/// component). Any other pattern is text. What is not a string is compared as compact JSON with sorted keys.
///
/// In doubt a rule is read the careful way. Deny and ask rules ignore case and speak of a call when any
/// element of a list matches. An allow rule wants all elements to match, and a text pattern other than `*`
/// never allows an argument with a `..` in it that stands alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    text: String,
    tool: ToolPattern,
    arguments: Vec<ArgumentPattern>,
}

/// `plugin.tool` with patterns, as in [`Rule`], without arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPattern {
    plugin: Glob,
    tool: Glob,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ArgumentPattern {
    key: String,
    pattern: Pattern,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// `*` alone.
    Anything,
    Text(Glob),
    Path(PathGlob),
    Url(PathGlob),
}

/// Why a rule does not speak of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Miss {
    OtherTool,
    /// The call has no such argument.
    NoArgument(String),
    /// The argument is there and does not match.
    Argument(String),
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherTool => f.write_str("it names other tools"),
            Self::NoArgument(key) => write!(f, "the call has no argument `{key}`"),
            Self::Argument(key) => write!(f, "the argument `{key}` does not match"),
        }
    }
}

/// Why a text is not a rule, or not a pattern of tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}")]
pub struct InvalidRule {
    text: String,
    what: String,
}

impl InvalidRule {
    fn rule(text: &str, why: &str) -> Self {
        Self {
            text: super::super::shown(text),
            what: format!(
                "a permission rule: {why}; write `plugin.tool`, `plugin.*` or `plugin.tool(argument:pattern)`"
            ),
        }
    }

    fn tools(text: &str, why: &str) -> Self {
        Self {
            text: super::super::shown(text),
            what: format!("a pattern of tools: {why}; write `plugin.tool` or `plugin.*`"),
        }
    }
}

impl Rule {
    pub fn parse(text: &str) -> Result<Self, InvalidRule> {
        let no = |why| InvalidRule::rule(text, why);
        if text.len() > MAX_RULE_BYTES {
            return Err(no("it is longer than 1024 bytes"));
        }
        let trimmed = text.trim();
        let (name, arguments) = match trimmed.split_once('(') {
            None => (trimmed, Vec::new()),
            Some((name, rest)) => (name.trim_end(), parse_arguments(rest).map_err(no)?),
        };
        Ok(Self {
            text: text.to_owned(),
            tool: ToolPattern::parse_name(name).map_err(no)?,
            arguments,
        })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the rule names this tool, whatever its arguments. `rule_name` is `plugin.tool`.
    pub fn names(&self, rule_name: &str) -> bool {
        self.tool.matches(rule_name)
    }

    pub(super) fn check(
        &self,
        verdict: Verdict,
        rule_name: &str,
        input: &Map<String, Value>,
    ) -> Result<(), Miss> {
        if !self.names(rule_name) {
            return Err(Miss::OtherTool);
        }
        let reading = match verdict {
            Verdict::Deny | Verdict::Ask => Reading::Wide,
            Verdict::Allow => Reading::Narrow,
        };
        self.arguments
            .iter()
            .try_for_each(|argument| argument.check(reading, input))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ToolPattern {
    pub fn parse(text: &str) -> Result<Self, InvalidRule> {
        Self::parse_name(text.trim()).map_err(|why| InvalidRule::tools(text, why))
    }

    /// `rule_name` is `plugin.tool`.
    pub fn matches(&self, rule_name: &str) -> bool {
        let (plugin, tool) = rule_name.split_once('.').unwrap_or((rule_name, ""));
        self.plugin.matches(plugin, Case::Matters) && self.tool.matches(tool, Case::Matters)
    }

    /// `*`, alone or for both parts.
    pub fn matches_all(&self) -> bool {
        let any = [Token::AnyRun];
        self.plugin.0 == any && self.tool.0 == any
    }

    fn parse_name(name: &str) -> Result<Self, &'static str> {
        if name.is_empty() {
            return Err("it names no tool");
        }
        let mcp = name.strip_prefix("mcp__").filter(|_| !name.contains('.'));
        let (plugin, tool) = match mcp {
            Some(rest) => rest.split_once("__").unwrap_or((rest, "*")),
            None => name.split_once('.').unwrap_or((name, "*")),
        };
        if plugin.is_empty() || tool.is_empty() {
            return Err("the plugin or the tool is missing");
        }
        Ok(Self {
            plugin: name_glob(plugin)?,
            tool: name_glob(tool)?,
        })
    }
}

fn name_glob(text: &str) -> Result<Glob, &'static str> {
    text.chars()
        .map(|c| match c {
            '*' => Ok(Token::AnyRun),
            '?' => Ok(Token::AnyChar),
            '_' | '-' => Ok(Token::Exactly(c)),
            c if c.is_ascii_alphanumeric() => Ok(Token::Exactly(c)),
            _ => Err("names hold A-Z a-z 0-9 _ - and the patterns * and ?"),
        })
        .collect::<Result<_, _>>()
        .map(Glob)
}

/// A character of a rule, and whether a `\` stood before it.
type Piece = (char, bool);

/// What stands behind the opening parenthesis.
fn parse_arguments(rest: &str) -> Result<Vec<ArgumentPattern>, &'static str> {
    let mut arguments = Vec::new();
    let mut current = Vec::<Piece>::new();
    let mut chars = rest.chars();
    loop {
        let piece = match chars.next() {
            None => return Err("the closing parenthesis is missing"),
            Some('\\') => (chars.next().ok_or("it ends in `\\`")?, true),
            Some(c) => (c, false),
        };
        match piece {
            (')', false) => break,
            (',', false) => arguments.push(ArgumentPattern::parse(&std::mem::take(&mut current))?),
            piece => current.push(piece),
        }
    }
    arguments.push(ArgumentPattern::parse(&current)?);
    if !chars.as_str().trim().is_empty() {
        return Err("something stands behind the closing parenthesis");
    }
    Ok(arguments)
}

fn trim(mut pieces: &[Piece]) -> &[Piece] {
    let blank = |piece: &Piece| piece.0.is_whitespace() && !piece.1;
    while let [first, rest @ ..] = pieces
        && blank(first)
    {
        pieces = rest;
    }
    while let [rest @ .., last] = pieces
        && blank(last)
    {
        pieces = rest;
    }
    pieces
}

/// Which way an unclear case goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Any element, any spelling: for rules that stop a call.
    Wide,
    /// All elements, as written: for rules that let a call pass.
    Narrow,
}

impl Reading {
    fn case(self) -> Case {
        match self {
            Self::Wide => Case::Ignored,
            Self::Narrow => Case::Matters,
        }
    }
}

impl ArgumentPattern {
    fn parse(pieces: &[Piece]) -> Result<Self, &'static str> {
        let colon = (pieces.iter())
            .position(|piece| *piece == (':', false))
            .ok_or("an argument is written `argument:pattern`")?;
        let key: String = trim(&pieces[..colon]).iter().map(|piece| piece.0).collect();
        let pattern = trim(&pieces[colon + 1..]);
        if key.is_empty() {
            return Err("the name of an argument is missing");
        }
        if pattern.is_empty() {
            return Err("the pattern of an argument is empty");
        }
        Ok(Self {
            key,
            pattern: Pattern::parse(pattern)?,
        })
    }

    fn check(&self, reading: Reading, input: &Map<String, Value>) -> Result<(), Miss> {
        let mut found = Vec::new();
        collect_member(input, &self.key, &mut found);
        let matches = |value: &Option<&Value>| {
            value.is_some_and(|value| self.pattern.matches(reading, value))
        };
        let holds = match reading {
            Reading::Wide => found.iter().any(matches),
            Reading::Narrow => !found.is_empty() && found.iter().all(matches),
        };
        if holds {
            Ok(())
        } else if found.iter().all(Option::is_none) {
            Err(Miss::NoArgument(self.key.clone()))
        } else {
            Err(Miss::Argument(self.key.clone()))
        }
    }
}

/// Collects what stands at a dotted key, `None` for each place where it could stand and does not. Lists are
/// looked into; a member whose own name has dots is found as well.
fn collect_member<'a>(
    object: &'a Map<String, Value>,
    key: &str,
    found: &mut Vec<Option<&'a Value>>,
) {
    let whole = object.get(key);
    let nested = (key.split_once('.')).and_then(|(first, rest)| Some((object.get(first)?, rest)));
    if let Some(value) = whole {
        collect_elements(value, found);
    }
    if let Some((value, rest)) = nested {
        collect_inside(value, rest, found);
    }
    if whole.is_none() && nested.is_none() {
        found.push(None);
    }
}

fn collect_inside<'a>(value: &'a Value, key: &str, found: &mut Vec<Option<&'a Value>>) {
    match value {
        Value::Object(object) => collect_member(object, key, found),
        Value::Array(elements) => elements.iter().for_each(|e| collect_inside(e, key, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => found.push(None),
    }
}

fn collect_elements<'a>(value: &'a Value, found: &mut Vec<Option<&'a Value>>) {
    match value {
        Value::Array(elements) => elements.iter().for_each(|e| collect_elements(e, found)),
        value => found.push(Some(value)),
    }
}

impl Pattern {
    fn parse(pieces: &[Piece]) -> Result<Self, &'static str> {
        let plain: String = pieces.iter().map(|piece| piece.0).collect();
        if pieces.iter().all(|piece| *piece == ('*', false)) {
            return Ok(Self::Anything);
        }
        if plain.contains("://") {
            return parse_url(pieces).map(Self::Url);
        }
        if plain.contains('/') {
            let segments = (pieces.split(|piece| piece.0 == '/'))
                .filter(|segment| !segment.is_empty() && !is_text(segment, "."));
            return parse_segments(segments).map(|s| Self::Path(PathGlob(s)));
        }
        Ok(Self::Text(Glob(tokens(pieces))))
    }

    fn matches(&self, reading: Reading, value: &Value) -> bool {
        let text = match value {
            Value::String(text) => Cow::Borrowed(text.as_str()),
            value => Cow::Owned(canonical(value)),
        };
        let case = reading.case();
        match self {
            Self::Anything => true,
            Self::Text(glob) => match reading {
                // `./notes.txt` is the file that `notes.txt` names
                Reading::Wide => {
                    glob.matches(&text, case) || glob.matches(&plain_path(&text).join("/"), case)
                }
                Reading::Narrow => {
                    let joins = |c: char| c.is_alphanumeric() || c == '.';
                    !text.split(|c| !joins(c)).any(|word| word == "..") && glob.matches(&text, case)
                }
            },
            Self::Path(glob) => glob.matches(&plain_path(&text), case),
            Self::Url(glob) => match plain_url(&text, reading) {
                Some(url) => glob.matches(&url_segments(&url), case),
                None => reading == Reading::Wide && glob.matches(&url_segments(&text), case),
            },
        }
    }
}

fn tokens(pieces: &[Piece]) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match piece {
            ('*', false) if tokens.last() == Some(&Token::AnyRun) => {}
            ('*', false) => tokens.push(Token::AnyRun),
            ('?', false) => tokens.push(Token::AnyChar),
            (c, _) => tokens.push(Token::Exactly(*c)),
        }
    }
    tokens
}

fn is_text(pieces: &[Piece], text: &str) -> bool {
    pieces.iter().map(|piece| piece.0).eq(text.chars())
}

fn parse_segments<'a>(
    segments: impl Iterator<Item = &'a [Piece]>,
) -> Result<Vec<Segment>, &'static str> {
    segments
        .map(|segment| {
            if is_text(segment, "..") {
                return Err("a pattern cannot hold `..`; name the folder itself");
            }
            if segment == [('*', false), ('*', false)] {
                return Ok(Segment::AnyDepth);
            }
            if segment
                .windows(2)
                .any(|two| two == [('*', false), ('*', false)])
            {
                return Err("`**` has to stand alone between slashes");
            }
            Ok(Segment::One(Glob(tokens(segment))))
        })
        .collect()
}

/// Scheme and host in lower case and without the scheme's own port, as [`plain_url`] leaves them.
fn parse_url(pieces: &[Piece]) -> Result<PathGlob, &'static str> {
    let mut segments: Vec<Vec<Piece>> = pieces
        .split(|piece| piece.0 == '/')
        .map(<[Piece]>::to_vec)
        .collect();
    for segment in segments.iter_mut().take(3) {
        for piece in segment.iter_mut() {
            piece.0 = piece.0.to_ascii_lowercase();
        }
    }
    let default_port: &str = match segments.first() {
        Some(scheme) if is_text(scheme, "https:") => ":443",
        Some(scheme) if is_text(scheme, "http:") => ":80",
        Some(scheme) if scheme.iter().any(|piece| piece.0 == '*') => "",
        _ => return Err("a URL pattern begins with `https://`, `http://` or `*://`"),
    };
    if let Some(host) = segments.get_mut(2) {
        let without_port = host.len().saturating_sub(default_port.len());
        if !default_port.is_empty() && is_text(&host[without_port..], default_port) {
            host.truncate(without_port);
        }
        if host.is_empty() {
            return Err("the host of the URL is missing");
        }
        if host.iter().any(|piece| piece.0 == '@') {
            return Err("a URL pattern has no user name");
        }
    }
    if segments.len() > 3 && segments.last().is_some_and(Vec::is_empty) {
        segments.pop();
    }
    parse_segments(segments.iter().map(Vec::as_slice)).map(PathGlob)
}

/// The segments of a path without `.` and `..`. `\` separates as well: on Windows the host's opens take it
/// so. A relative path starts at `/`, since a component has no other working directory.
fn plain_path(path: &str) -> Vec<&str> {
    let mut plain = Vec::new();
    for segment in path.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => {
                plain.pop();
            }
            segment => plain.push(segment),
        }
    }
    plain
}

/// As a client sends it: host in lower case, dots resolved, `\` turned. `None` when it is no web address, or
/// when an allow rule should not judge it.
fn plain_url(text: &str, reading: Reading) -> Option<String> {
    let mut url = url::Url::parse(text).ok()?;
    let host = url.host_str()?.trim_end_matches('.').to_owned();
    if !url.username().is_empty() || url.password().is_some() {
        if reading == Reading::Narrow {
            return None;
        }
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
    }
    url.set_host(Some(&host)).ok()?;
    Some(url.into())
}

fn url_segments(url: &str) -> Vec<&str> {
    let mut segments: Vec<&str> = url.split('/').collect();
    if segments.len() > 3 && segments.last() == Some(&"") {
        segments.pop();
    }
    segments
}

/// Compact JSON with sorted keys, and whole numbers without a fraction: one text for one value.
fn canonical(value: &Value) -> String {
    /// Up to here every whole number is exact as a double.
    const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            let members: Vec<_> = (sorted.into_iter())
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(elements) => {
            let elements: Vec<_> = elements.iter().map(canonical).collect();
            format!("[{}]", elements.join(","))
        }
        Value::Number(number) => match number.as_f64() {
            Some(float)
                if number.is_f64() && float.fract() == 0.0 && float.abs() <= MAX_SAFE_INTEGER =>
            {
                format!("{:.0}", float + 0.0)
            }
            _ => number.to_string(),
        },
        value => value.to_string(),
    }
}
