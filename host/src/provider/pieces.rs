//! Strings as JSON carries them: in pieces that may end anywhere, and with escapes that are half a character.

use std::borrow::Cow;

use serde_json::value::RawValue;

/// A string that arrives as JSON literals, one of which may end between the halves of a surrogate pair.
#[derive(Debug, Default, Clone)]
pub(super) struct Pieces {
    text: String,
    /// The inside of literals that is not readable yet.
    held: String,
}

/// What becomes of half a surrogate pair whose other half never comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lone {
    /// U+FFFD: for texts.
    Replaced,
    /// The escape itself, six characters: for JSON in a string, where it is a fault to be told.
    Kept,
}

impl Pieces {
    /// Adds a literal and gives what became readable by it. `null` adds nothing; anything else that is not a
    /// string gives `None`.
    pub(super) fn push(&mut self, literal: &RawValue, lone: Lone) -> Option<&str> {
        let Some(inside) = inside(literal.get()) else {
            return (literal.get() == "null").then_some("");
        };
        let start = self.text.len();
        self.held.push_str(inside);
        if !ends_in_half(&self.held) {
            self.text.push_str(&read(&self.held, lone));
            self.held.clear();
        }
        Some(&self.text[start..])
    }

    pub(super) fn finish(mut self, lone: Lone) -> String {
        self.text.push_str(&read(&self.held, lone));
        self.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.held.is_empty()
    }
}

/// The string that a literal stands for; `None` if it is not a string.
pub(super) fn string(literal: &RawValue, lone: Lone) -> Option<String> {
    inside(literal.get()).map(|inside| read(inside, lone).into_owned())
}

fn inside(literal: &str) -> Option<&str> {
    literal.strip_prefix('"')?.strip_suffix('"')
}

/// The code unit of an escape `\uXXXX` at the start.
fn unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

fn is_high(unit: u16) -> bool {
    (0xd800..0xdc00).contains(&unit)
}

fn is_low(unit: u16) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

/// Whether the last escape is the first half of a pair.
fn ends_in_half(inside: &str) -> bool {
    let Some(at) = inside
        .len()
        .checked_sub(6)
        .filter(|at| inside.is_char_boundary(*at))
    else {
        return false;
    };
    let before = &inside.as_bytes()[..at];
    let backslashes = before.iter().rev().take_while(|b| **b == b'\\').count();
    unit(&inside[at..]).is_some_and(is_high) && backslashes % 2 == 0
}

/// Reads the inside of a literal that is valid JSON but for lone surrogates.
fn read(inside: &str, lone: Lone) -> Cow<'_, str> {
    if !inside.contains('\\') {
        return inside.into();
    }
    let mut mended = String::from("\"");
    let mut rest = inside;
    while let Some(at) = rest.find('\\') {
        mended.push_str(&rest[..at]);
        rest = &rest[at..];
        let first = unit(rest);
        let paired = first.is_some_and(is_high) && rest.get(6..).and_then(unit).is_some_and(is_low);
        let (escape, length) = match first {
            Some(_) if paired => (&rest[..12], 12),
            Some(unit) if is_high(unit) || is_low(unit) => {
                if lone == Lone::Kept {
                    // An escaped backslash, so that the escape becomes text.
                    mended.push('\\');
                    (&rest[..6], 6)
                } else {
                    ("\\ufffd", 6)
                }
            }
            Some(_) => (&rest[..6], 6),
            None => (&rest[..2], 2),
        };
        mended.push_str(escape);
        rest = &rest[length..];
    }
    mended.push_str(rest);
    mended.push('"');
    // Whatever is still wrong was no JSON string to begin with, which the caller's types rule out.
    serde_json::from_str(&mended).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.into()).unwrap()
    }

    #[test]
    fn pieces_may_end_inside_a_pair() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.push(&raw(r#""a\ud83d""#), Lone::Replaced), Some(""));
        assert_eq!(pieces.push(&raw("null"), Lone::Replaced), Some(""));
        assert_eq!(
            pieces.push(&raw(r#""\ude00b""#), Lone::Replaced),
            Some("a😀b")
        );
        assert_eq!(pieces.push(&raw("7"), Lone::Replaced), None);
        assert_eq!(pieces.finish(Lone::Replaced), "a😀b");
    }

    #[test]
    fn halves_without_the_other_half() {
        for (literal, replaced, kept) in [
            (r#""\ud83d""#, "\u{fffd}", r"\ud83d"),
            (r#""x\ude00y""#, "x\u{fffd}y", r"x\ude00y"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}😀", r"\ud83d😀"),
            (r#""\\ud83d""#, r"\ud83d", r"\ud83d"),
            (r#""\\\ud83d""#, "\\\u{fffd}", r"\\ud83d"),
            (r#""\"\\\u00e9 \n""#, "\"\\é \n", "\"\\é \n"),
            (r#""""#, "", ""),
        ] {
            assert_eq!(string(&raw(literal), Lone::Replaced).unwrap(), replaced);
            assert_eq!(string(&raw(literal), Lone::Kept).unwrap(), kept);
            let mut pieces = Pieces::default();
            pieces.push(&raw(literal), Lone::Kept).unwrap();
            assert_eq!(pieces.finish(Lone::Kept), kept);
        }
        assert_eq!(string(&raw("null"), Lone::Kept), None);
    }
}
