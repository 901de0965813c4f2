//! Queries in the language of jq.

use agentloop_sdk::{Result, ToolError, tool, tools};
use jaq_core::{
    Compiler, Ctx, Vars, compile,
    data::JustLut,
    load::{self, Arena, File, Loader},
};
use jaq_json::{Val, read, write};

tools![query_json];

/// In bytes.
const MAX_FILTER: usize = 4 << 10;
/// Of arrays and objects, and of the filter's brackets; each level costs stack.
const MAX_DEPTH: usize = 128;
/// Of all results together, in bytes.
const MAX_ANSWER: usize = 64 << 10;
const MAX_RESULTS: usize = 1_000;

/// Query or transform JSON with a filter in the language of jq.
///
/// For example `.items | length`, `.users[] | select(.age > 30) | .name`, `map({id, total: (.price * .count)})`,
/// `group_by(.kind) | map({kind: .[0].kind, n: length})`, `to_entries`, `[.[] | tonumber] | add`, `test("^a")`. Each result stands on its
/// own line or lines. Numbers keep all their digits, and objects the order of their keys.
#[tool(read_only, idempotent, closed_world, timeout = "10s")]
fn query_json(
    /// The JSON text; several values one after the other are filtered one by one.
    json: String,
    /// The jq filter; `.` gives the JSON itself, indented.
    filter: String,
) -> Result<String> {
    check_depth("JSON", &json)?;
    check_depth("filter", &filter)?;
    if filter.len() > MAX_FILTER {
        return Err(ToolError::invalid_arguments(format!(
            "the filter has {} bytes; at most {MAX_FILTER} are taken",
            filter.len()
        )));
    }
    let filter = compiled(&filter)?;
    let mut results = Results::default();
    for input in read::parse_many(json.as_bytes()) {
        let input = input.map_err(|error| {
            ToolError::invalid_arguments(format!("`json` is not JSON: {error}"))
        })?;
        let ctx = Ctx::<JustLut<Val>>::new(&filter.lut, Vars::new([]));
        for result in filter.id.run((ctx, input)) {
            match result.map_err(jaq_core::Exn::get_err) {
                Ok(value) if results.push(&value)? => {}
                // No more is taken.
                Ok(_) => return Ok(results.text),
                Err(Ok(error)) => return Err(results.with_error(&error.to_string())),
                // `halt`.
                Err(Err(_)) => return Ok(results.into_text()),
            }
        }
    }
    Ok(results.into_text())
}

type Filter = jaq_core::compile::Filter<jaq_core::Native<JustLut<Val>>>;

fn compiled(code: &str) -> Result<Filter> {
    let definitions = jaq_core::defs()
        .chain(jaq_std::defs())
        .chain(jaq_json::defs());
    let functions = jaq_core::funs()
        .chain(jaq_std::funs())
        .chain(jaq_json::funs());
    let arena = Arena::default();
    let modules = Loader::new(definitions)
        .load(&arena, File { code, path: () })
        .map_err(|errors| invalid_filter(code, told_by_loader(&errors)))?;
    Compiler::default()
        .with_funs(functions)
        .compile(modules)
        .map_err(|errors| invalid_filter(code, told_by_compiler(&errors)))
}

/// What is wrong, and where the rest of the filter begins that it is wrong with.
type Fault<'a> = (String, &'a str);

fn told_by_loader<'a>(errors: &load::Errors<&'a str, ()>) -> Option<Fault<'a>> {
    match errors.first()?.1 {
        load::Error::Io(ref errors) => {
            let (module, _) = errors.first()?;
            Some(("there are no modules here".into(), module))
        }
        load::Error::Lex(ref errors) => {
            let (expected, rest) = errors.first()?;
            Some((format!("expected {}", expected.as_str()), rest))
        }
        load::Error::Parse(ref errors) => {
            let (expected, rest) = errors.first()?;
            Some((format!("expected {}", expected.as_str()), rest))
        }
    }
}

fn told_by_compiler<'a>(errors: &compile::Errors<&'a str, ()>) -> Option<Fault<'a>> {
    let (name, undefined) = errors.first()?.1.first()?;
    let kind = undefined.as_str();
    let arity = match undefined {
        compile::Undefined::Filter(0) => " without arguments".into(),
        compile::Undefined::Filter(1) => " with 1 argument".into(),
        compile::Undefined::Filter(count) => format!(" with {count} arguments"),
        _ => String::new(),
    };
    Some((format!("there is no {kind} `{name}`{arity}"), name))
}

fn invalid_filter(code: &str, fault: Option<Fault<'_>>) -> ToolError {
    let Some((what, rest)) = fault else {
        return ToolError::invalid_arguments("the filter is not understood");
    };
    // `rest` is a part of `code`, or of a definition that came with the language.
    let at = (rest.as_ptr() as usize).checked_sub(code.as_ptr() as usize);
    let place = match at
        .filter(|&at| at <= code.len())
        .and_then(|at| code.get(at..))
    {
        Some("") => "at its end".into(),
        Some(rest) => format!("at `{}`", rest.chars().take(40).collect::<String>()),
        None => "in it".into(),
    };
    ToolError::invalid_arguments(format!("the filter can't be used: {what} {place}"))
}

/// The results so far, as text.
#[derive(Default)]
struct Results {
    text: String,
    count: usize,
}

impl Results {
    /// Adds a result; false when no more is taken, which the text then says.
    fn push(&mut self, value: &Val) -> Result<bool> {
        let format = write::Pp {
            indent: Some("  ".into()),
            sep_space: true,
            ..write::Pp::default()
        };
        let mut written = Vec::new();
        write::write(&mut written, &format, 0, value)?;
        let written = String::from_utf8_lossy(&written);
        let room = MAX_ANSWER.saturating_sub(self.text.len());
        if self.count == MAX_RESULTS || written.len() > room {
            let start = floor_char_boundary(&written, room);
            self.text.push_str(&written[..start]);
            self.text.push_str(&format!(
                "\n[cut here: at most {MAX_RESULTS} results and {MAX_ANSWER} bytes are given; let the filter give less, with `length`, `.[:20]` or `limit(20; …)`]"
            ));
            return Ok(false);
        }
        self.text.push_str(&written);
        self.text.push('\n');
        self.count += 1;
        Ok(true)
    }

    fn into_text(mut self) -> String {
        match self.count {
            0 => "(no results)".into(),
            _ => {
                self.text.truncate(self.text.trim_end().len());
                self.text
            }
        }
    }

    fn with_error(self, error: &str) -> ToolError {
        let error = &error[..floor_char_boundary(error, 1_000)];
        ToolError::new(match self.count {
            0 => format!("the filter failed: {error}"),
            count => format!(
                "the filter failed after {count} results: {error}; the results before:\n{}",
                self.into_text()
            ),
        })
    }
}

fn floor_char_boundary(text: &str, mut at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Counts brackets outside of strings, which is enough for a bound.
fn check_depth(what: &str, text: &str) -> Result<()> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' | b'(' if !in_string => depth += 1,
            b']' | b'}' | b')' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(ToolError::invalid_arguments(format!(
                "the {what} is nested deeper than {MAX_DEPTH}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(json: &str, filter: &str) -> Result<String> {
        query_json(json.into(), filter.into())
    }

    const SHOP: &str = r#"{"items": [{"name": "tea", "price": 3.5, "tags": ["hot"]}, {"name": "ice", "price": 2, "tags": []}]}"#;

    #[test]
    fn values_are_queried_and_transformed() {
        for (json, filter, expected) in [
            (SHOP, ".items | length", "2"),
            (SHOP, ".items[].name", "\"tea\"\n\"ice\""),
            (SHOP, "[.items[] | .price] | add", "5.5"),
            (
                SHOP,
                r#".items[] | select(.name | test("^i")) | .price"#,
                "2",
            ),
            (
                SHOP,
                ".items | map({(.name): .price}) | add",
                "{\n  \"tea\": 3.5,\n  \"ice\": 2\n}",
            ),
            (SHOP, ".nothing", "null"),
            (SHOP, ".items[] | select(.price > 100)", "(no results)"),
            ("1 2\n3", ". * 2", "2\n4\n6"),
            ("\"a,b\"", r#"split(",") | join("-")"#, "\"a-b\""),
            (
                "123456789012345678901234567890",
                ". + 1",
                "123456789012345678901234567891",
            ),
            (r#"{"b": 1, "a": 2}"#, ".", "{\n  \"b\": 1,\n  \"a\": 2\n}"),
            (r#"{"a": "b"}"#, "@json", r#""{\"a\":\"b\"}""#),
            ("[1,2]", ".[0], halt, .[1]", "1"),
        ] {
            assert_eq!(query(json, filter).unwrap(), expected, "{filter}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_filter_is_told() {
        for (filter, says) in [
            (".items[", "expected closing bracket at its end"),
            (
                ".items | nosuch",
                "no filter `nosuch` without arguments at `nosuch`",
            ),
            (".items | map(1; 2)", "no filter `map` with 2 arguments"),
            ("$x", "no variable `$x`"),
            ("if . then 1 else", "at its end"),
            ("import \"a\" as a; .", "no modules"),
        ] {
            let error = query("1", filter).unwrap_err();
            assert!(matches!(error, ToolError::InvalidArguments(_)), "{error:?}");
            assert!(error.message().contains(says), "{filter}: {error}");
        }
    }

    #[test]
    fn what_goes_wrong_while_filtering_is_told() {
        let error = query("[1, \"a\"]", ".[] | . - 1").unwrap_err();
        assert!(
            error.message().contains("after 1 results") && error.message().ends_with("before:\n0"),
            "{error}"
        );
        let error = query("{\"a\":", ".").unwrap_err();
        assert!(error.message().starts_with("`json` is not JSON"), "{error}");
        let error = query("1", "error(\"x\" * 100000)").unwrap_err();
        assert!(error.message().len() < 2_000);
    }

    #[test]
    fn the_answer_is_bounded() {
        let endless = query("1", "repeat(.)").unwrap();
        assert!(endless.contains("[cut here") && endless.lines().count() < 1_010);
        let long = query("1", "\"ä\" * 100000").unwrap();
        assert!(long.len() < MAX_ANSWER + 300 && long.contains("[cut here"));
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        query(&deep(MAX_DEPTH), "flatten").unwrap();
        query(&deep(MAX_DEPTH + 1), ".").unwrap_err();
        query("1", &deep(MAX_DEPTH + 1)).unwrap_err();
        query(&format!("\"{}\"", "[".repeat(1_000)), ".").unwrap();
    }
}
