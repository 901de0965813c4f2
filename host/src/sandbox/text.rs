//! Text that a guest or a file made, on its way into a message, a line or a name.

/// At most `max_bytes` of `text` (and a mark where something is missing), with whatever could steer a terminal
/// or turn the reading direction written out. Line breaks and tabs stay where `lines` says so.
pub(crate) fn shown(text: &str, max_bytes: usize, lines: bool) -> String {
    let mut out = String::with_capacity(text.len().min(max_bytes));
    for c in text.chars() {
        if out.len() >= max_bytes {
            out.push('…');
            break;
        }
        match c {
            '\n' | '\t' if lines => out.push(c),
            c if steers(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// Controls, and the invisible characters that reorder or hide text (UAX #9, and the tag characters).
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steering_characters_are_written_out() {
        assert_eq!(
            shown("a\x1b[31mb\u{202e}c", 100, false),
            "a\\u{1b}[31mb\\u{202e}c"
        );
        assert_eq!(shown("a\nb\tc", 100, true), "a\nb\tc");
        assert_eq!(shown("a\nb", 100, false), "a\\u{a}b");
        assert_eq!(shown("ünï", 100, false), "ünï");
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(shown(&"ü".repeat(100), 5, false), "üüü…");
    }
}
