//! From a call's JSON arguments to a tool function and back.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Content, Definition, ToolError};

/// A tool: what it says of itself, and how it is called. [`tool`](macro@crate::tool) implements it on a type that
/// has the function's own name, so that `tools![…]` and tests can name it.
///
/// ```
/// use agentloop_sdk::{Content, Tool, tool};
///
/// /// Adds two numbers.
/// #[tool(read_only, closed_world)]
/// fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// assert_eq!(add(1, 2), 3);
/// assert_eq!(add::DEFINITION.description, "Adds two numbers.");
/// assert_eq!(add::call(r#"{"a": 1, "b": 2}"#), Ok(vec![Content::Text("3".into())]));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool",
    note = "put `#[tool]` on the function"
)]
pub trait Tool {
    const DEFINITION: &'static Definition;

    /// Carries out one call. `arguments` is a JSON object; nothing at all means `{}`.
    fn call(arguments: &str) -> Result<Vec<Content>, ToolError>;
}

/// A tool as `tools!` lists it.
#[doc(hidden)]
pub struct Entry {
    pub definition: &'static Definition,
    pub call: fn(&str) -> Result<Vec<Content>, ToolError>,
}

#[doc(hidden)]
pub fn decode<T: DeserializeOwned>(arguments: &str) -> Result<T, ToolError> {
    let arguments = match arguments.trim() {
        "" => "{}",
        arguments => arguments,
    };
    let invalid = |error: serde_json::Error| ToolError::invalid_arguments(error.to_string());
    let mut value: Value = serde_json::from_str(arguments).map_err(invalid)?;
    if !value.is_object() {
        return Err(ToolError::invalid_arguments(
            "the arguments are not a JSON object",
        ));
    }
    integers(&mut value);
    serde_json::from_value(value).map_err(invalid)
}

/// Makes integers of numbers such as `3.0`: in JSON Schema they are, for serde they are not.
fn integers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|_| number.is_f64())
                && float.fract() == 0.0
            {
                // The bounds are powers of two, thus exact; what lies between them converts exactly.
                if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&float) {
                    *number = (float as i64).into();
                } else if (0.0..18_446_744_073_709_551_616.0).contains(&float) {
                    *number = (float as u64).into();
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(integers),
        Value::Object(fields) => fields.values_mut().for_each(integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_means_no_arguments() {
        for arguments in ["", "  \n", "{}"] {
            assert_eq!(
                decode::<Value>(arguments),
                Ok(serde_json::json!({})),
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for arguments in ["[]", "null", "3", "{\"a\":", "{\"a\":\"\\ud83d\"}"] {
            let error = decode::<Value>(arguments).unwrap_err();
            assert!(
                matches!(error, ToolError::InvalidArguments(_)),
                "{arguments}: {error:?}"
            );
        }
    }

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        let decoded: Value =
            decode(r#"{"a":[3.0,-0.0,1e3,2.5,1e19,1e20,-1e19,9223372036854775808.0]}"#).unwrap();
        assert_eq!(
            decoded["a"].to_string(),
            "[3,0,1000,2.5,10000000000000000000,1e+20,-1e+19,9223372036854775808]"
        );
    }
}
