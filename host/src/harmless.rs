//! Text that somebody else made (a guest, a model, a file, a peer), on its way to a person: whatever could steer a
//! terminal, turn the reading direction round or hide is written out.

/// The text with everything that steers written out. Line breaks and tabs stay.
pub fn harmless(text: &str) -> String {
    shown(text, usize::MAX, true)
}

/// As [`harmless`], on one line and at most `max_chars` long.
pub fn one_line(text: &str, max_chars: usize) -> String {
    let text = text.trim().replace(['\n', '\t'], " ");
    let mut out = harmless(&text);
    if out.chars().count() > max_chars {
        out = out.chars().take(max_chars.saturating_sub(1)).collect();
        out.push('…');
    }
    out
}

/// At most `max_bytes` of `text` (and a mark where something is missing), with everything that steers written out.
/// Line breaks and tabs stay where `lines` says so.
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
    fn nothing_that_steers_a_terminal_gets_through() {
        let nasty = "a\u{1b}[2Jb\rc\u{7}d\u{202e}e\u{9b}f\u{0}\u{200b}";
        let shown = harmless(nasty);
        assert!(shown.chars().all(|c| !steers(c)), "{shown}");
        assert_eq!(harmless("plain é 😀\n\ttext"), "plain é 😀\n\ttext");
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(shown(&"ü".repeat(100), 5, false), "üüü…");
    }

    #[test]
    fn a_line_stays_a_line_and_within_its_length() {
        assert_eq!(one_line("a\nb\tc", 10), "a b c");
        assert_eq!(one_line("abcdef", 4), "abc…");
        assert_eq!(one_line("äöüß", 4), "äöüß");
    }
}
