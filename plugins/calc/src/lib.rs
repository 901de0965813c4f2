//! Exact arithmetic and units. The numbers are fractions of any size; nothing is ever run as code.

use std::time::{Duration, Instant};

use agentloop_sdk::{Result, ToolError, tool, tools};
use fend_core::{Context, Interrupt, evaluate_with_interrupt};

tools![calculate, convert_units];

/// In bytes. What is longer is no question that a person or model asks, and costs stack.
const MAX_EXPRESSION: usize = 1_000;
/// Of parentheses; each level costs stack.
const MAX_DEPTH: usize = 64;
const MAX_PRECISION: i64 = 1_000;
/// In characters.
const MAX_ANSWER: usize = 10_000;
/// How long one evaluation may take. Stands below the tools' own timeout, so that the model gets an error which
/// says what was wrong with the question.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the evaluator takes but this tool doesn't: notations that mean something else than people expect, that
/// can't be interrupted, or that could recurse.
const NOT_OFFERED: [(&str, &str); 7] = [
    ("//", "write `floor(a / b)`"),
    ("<<", "multiply by a power of 2"),
    (">>", "divide by a power of 2"),
    ("=>", "functions can't be defined"),
    (":", "functions can't be defined"),
    ("\\", "functions can't be defined"),
    ("@", "attributes are not offered"),
];

/// Evaluate a mathematical expression to the given decimal precision.
///
/// Exact: `0.1 + 0.2` is 0.3, and integers may have thousands of digits. An answer that had to be rounded begins
/// with "approx.". Understands `+ - * / ^ !`, `mod`, `a choose b`, parentheses, percentages (`15% of 80`), `pi`, `e`, `i`,
/// `sqrt`, `cbrt`, `exp`, `ln`, `log`, `log2`, `sin`, `cos`, `tan` and the like (radians, or `sin(30 degrees)`), `abs`, `floor`,
/// `ceil`, `round`, units (`5 ft + 3 m`, `60 km/h to mph`), number bases (`255 to hex`), and variables (`x = 5; x * 2`).
#[tool(read_only, idempotent, closed_world, timeout = "5s")]
fn calculate(expression: String, #[default(6)] precision: i64) -> Result<String> {
    if !(0..=MAX_PRECISION).contains(&precision) {
        return Err(ToolError::invalid_arguments(format!(
            "`precision` is a number of decimal places from 0 to {MAX_PRECISION}, not {precision}"
        )));
    }
    check(&expression)?;
    let mut context = Context::new();
    let answer = evaluate(&expression, &mut context)?;
    if !answer.contains('.') {
        return bounded(answer);
    }
    // `ans` is the answer above, not yet rounded. What is no number (a text with a stop in it) stays as it is.
    let Ok(rounded) = evaluate(&format!("ans to {precision} dp"), &mut context) else {
        return bounded(answer);
    };
    let lost = rounded.starts_with("approx. 0") && !rounded.contains(|c| matches!(c, '1'..='9'));
    if lost && precision > 0 {
        // Decimal places would leave nothing of so small a number: significant figures do.
        return bounded(
            evaluate(&format!("ans to {precision} sf"), &mut context).unwrap_or(rounded),
        );
    }
    bounded(rounded)
}

/// Convert a value from one unit to another, for example from `miles` to `km`, `celsius` to `fahrenheit` or `MB/s` to `Mbit/s`.
///
/// Knows SI and imperial units with all prefixes, and compounds such as `kg m / s^2`. Currencies are not offered.
#[tool(read_only, idempotent, closed_world, timeout = "5s")]
fn convert_units(value: f64, from: String, to: String) -> Result<String> {
    for unit in [&from, &to] {
        check_unit(unit)?;
    }
    let expression = format!("({value}) {from} to {to}");
    check(&expression)?;
    bounded(evaluate(&expression, &mut Context::new())?)
}

fn check(expression: &str) -> Result<()> {
    let invalid = |why: String| Err(ToolError::invalid_arguments(why));
    if expression.len() > MAX_EXPRESSION {
        return invalid(format!(
            "the expression has {} bytes; at most {MAX_EXPRESSION} are taken: calculate parts of it",
            expression.len()
        ));
    }
    for (notation, instead) in NOT_OFFERED {
        if expression.contains(notation) {
            return invalid(format!("`{notation}` is not understood here: {instead}"));
        }
    }
    let mut depth = 0usize;
    for (at, c) in expression.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            // The evaluator leaves out separators of thousands, and would take `(4, 6)` for 46.
            ',' if !separates_thousands(&expression[at + 1..]) => {
                return invalid(
                    "`,` may only separate thousands: functions take one argument, and decimals have a `.`"
                        .into(),
                );
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return invalid(format!("parentheses are nested deeper than {MAX_DEPTH}"));
        }
    }
    Ok(())
}

fn separates_thousands(rest: &str) -> bool {
    rest.bytes()
        .take_while(|byte| byte.is_ascii_digit())
        .take(4)
        .count()
        == 3
}

fn check_unit(unit: &str) -> Result<()> {
    let plain = |c: char| c.is_alphabetic() || c.is_ascii_digit() || " */^°µ-_$%'\"".contains(c);
    if !unit.trim().is_empty() && unit.chars().all(plain) {
        return Ok(());
    }
    Err(ToolError::invalid_arguments(format!(
        "`{}` is no unit: write a name such as `km` or `kg m / s^2`",
        unit.chars().take(40).collect::<String>()
    )))
}

fn evaluate(expression: &str, context: &mut Context) -> Result<String> {
    let patience = Patience(Instant::now() + PATIENCE);
    match evaluate_with_interrupt(expression, context, &patience) {
        Ok(answer) => Ok(answer.get_main_result().to_owned()),
        Err(_) if patience.should_interrupt() => Err(ToolError::new(format!(
            "this takes longer than {} s: the numbers become too large",
            PATIENCE.as_secs()
        ))),
        Err(error) => Err(ToolError::invalid_arguments(short(&error))),
    }
}

fn bounded(answer: String) -> Result<String> {
    match answer.len() {
        0 => Err(ToolError::invalid_arguments("there is nothing to evaluate")),
        length if length > MAX_ANSWER => Err(ToolError::new(format!(
            "the answer has {length} characters; at most {MAX_ANSWER} are given: ask for less of it, such as `log10(…)` for its size or `… mod 10^9` for its end"
        ))),
        _ => Ok(answer),
    }
}

/// Some of the evaluator's messages repeat the whole number.
fn short(message: &str) -> String {
    const MAX: usize = 300;
    match message.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

struct Patience(Instant);

impl Interrupt for Patience {
    fn should_interrupt(&self) -> bool {
        Instant::now() >= self.0
    }
}

#[cfg(test)]
mod tests {
    use agentloop_sdk::{Tool, Value, json};

    use super::*;

    fn evaluated(expression: &str, precision: i64) -> Result<String> {
        calculate(expression.into(), precision)
    }

    fn answer(expression: &str) -> String {
        evaluated(expression, 6).unwrap()
    }

    fn converted(value: f64, from: &str, to: &str) -> Result<String> {
        convert_units(value, from.into(), to.into())
    }

    #[test]
    fn the_schema_is_the_one_people_know() {
        let definition = calculate::DEFINITION;
        let schema: Value = definition.input_schema.parse().unwrap();
        assert_eq!(schema["required"], json!(["expression"]));
        assert_eq!(schema["properties"]["expression"]["type"], "string");
        assert_eq!(schema["properties"]["precision"]["type"], "integer");
        assert!(
            definition
                .description
                .starts_with("Evaluate a mathematical expression to the given decimal precision.")
        );
    }

    #[test]
    fn arithmetic_is_exact() {
        for (expression, expected) in [
            ("0.1 + 0.2", "0.3"),
            ("2^100", "1267650600228229401496703205376"),
            ("2**10", "1024"),
            ("1,000,000 * 2", "2000000"),
            ("(1/3 + 1/6) * 2", "1"),
            ("sqrt(16)", "4"),
            ("10 mod 3", "1"),
            ("5 choose 2", "10"),
            ("20!", "2432902008176640000"),
            ("15% of 80", "12"),
            ("x = 5.5; x * 2", "11"),
            ("255 to hex", "ff"),
            ("5 == 5", "true"),
        ] {
            assert_eq!(answer(expression), expected, "{expression}");
        }
    }

    #[test]
    fn what_is_rounded_says_so() {
        assert_eq!(answer("2/3"), "approx. 0.666667");
        assert_eq!(evaluated("2/3", 2).unwrap(), "approx. 0.67");
        assert_eq!(evaluated("2.5", 0).unwrap(), "approx. 3");
        assert_eq!(answer("1.123456789"), "approx. 1.123457");
        assert_eq!(
            evaluated("1/7", 30).unwrap(),
            "approx. 0.142857142857142857142857142857"
        );
        assert_eq!(answer("5 ft + 3 m"), "approx. 14.842520 ft");
    }

    #[test]
    fn small_numbers_are_not_rounded_to_nothing() {
        assert_eq!(answer("1/800000000"), "0.00000000125");
        assert_eq!(answer("1/3e9"), "approx. 0.000000000333333");
        assert_eq!(evaluated("1/800", 0).unwrap(), "approx. 0");
    }

    #[test]
    fn units_are_converted() {
        assert_eq!(converted(1.0, "mile", "km").unwrap(), "1.609344 km");
        assert_eq!(
            converted(-40.0, "celsius", "fahrenheit").unwrap(),
            "-40 fahrenheit"
        );
        assert_eq!(converted(37.5, "C", "F").unwrap(), "99.5 °F");
        assert_eq!(converted(1e-7, "km", "mm").unwrap(), "0.1 mm");
        let error = converted(5.0, "kg", "m").unwrap_err();
        assert!(
            error.message().contains("cannot convert from kg to m"),
            "{error}"
        );
        for unit in ["", " ", "m; 5", "m)", "m\n", "m to"] {
            converted(5.0, "ft", unit).unwrap_err();
        }
        for value in [f64::NAN, f64::INFINITY] {
            converted(value, "ft", "m").unwrap_err();
        }
    }

    #[test]
    fn nonsense_is_the_callers_error() {
        let deep = "(".repeat(65);
        let long = "1+".repeat(600);
        for expression in [
            "",
            "2 +",
            "1/0",
            "foo(2)",
            "gcd(4,6)",
            "max(1, 2)",
            "3,14",
            "7 // 2",
            "1 << 3",
            "f = x: f x; f 1",
            "f = \\x. f x; f 1",
            "f = (x => f x); f 1",
            "@debug 1",
            "roll d6",
            "today",
            "1 USD to EUR",
            "__import__('os')",
            &deep,
            &long,
        ] {
            let error = evaluated(expression, 6).unwrap_err();
            assert!(
                matches!(error, ToolError::InvalidArguments(_)),
                "{expression}: {error:?}"
            );
        }
        evaluated("1", -1).unwrap_err();
        evaluated("1", 1_001).unwrap_err();
    }

    #[test]
    fn what_would_grow_without_bound_is_an_error() {
        let error = evaluated("10^10^10", 6).unwrap_err();
        assert!(error.message().contains("too large"), "{error}");
        let error = evaluated("10^20000", 6).unwrap_err();
        assert!(error.message().contains("20001 characters"), "{error}");
        assert!(answer("10^20000 mod 7").len() < 3);
        let error = evaluated("(10^5000) to words", 6).unwrap_err();
        assert!(error.message().len() < 1_000, "{error}");
    }
}
