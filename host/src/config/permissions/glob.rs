//! Patterns over names, texts, paths and URLs. Matching never takes more than length × length steps, since
//! the text is the model's.

/// One piece of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Exactly(char),
    /// `?`
    AnyChar,
    /// `*`
    AnyRun,
}

/// A pattern without structure: `*` is any run of characters, `?` any one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob(pub(super) Vec<Token>);

impl Glob {
    pub(super) fn matches(&self, text: &str, case: Case) -> bool {
        let text: Vec<char> = text.chars().collect();
        let (pattern, text) = (&self.0, &text);
        let (mut p, mut t) = (0, 0);
        // where the last `*` stands, and from where it is to take one character more
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            match pattern.get(p) {
                Some(Token::AnyRun) => {
                    retry = Some((p, t));
                    p += 1;
                }
                Some(Token::AnyChar) => {
                    p += 1;
                    t += 1;
                }
                Some(Token::Exactly(c)) if case.same(*c, text[t]) => {
                    p += 1;
                    t += 1;
                }
                _ => match retry {
                    Some((star, from)) => {
                        retry = Some((star, from + 1));
                        p = star + 1;
                        t = from + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|token| *token == Token::AnyRun)
    }
}

/// Whether `A` is `a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Matters,
    Ignored,
}

impl Case {
    fn same(self, a: char, b: char) -> bool {
        a == b || self == Self::Ignored && a.to_lowercase().eq(b.to_lowercase())
    }
}

/// A part of a path between two slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// `**`: any number of segments, none included.
    AnyDepth,
    One(Glob),
}

/// A pattern whose `*` ends at `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathGlob(pub(super) Vec<Segment>);

impl PathGlob {
    /// Whether the segments of a path, which hold no `/`, match from the first to the last.
    pub(super) fn matches(&self, path: &[&str], case: Case) -> bool {
        // reached[i]: the pattern so far matches the first i segments
        let mut reached = vec![false; path.len() + 1];
        reached[0] = true;
        for segment in &self.0 {
            let mut next = vec![false; path.len() + 1];
            match segment {
                Segment::AnyDepth => {
                    let mut any = false;
                    for (from, to) in reached.iter().zip(&mut next) {
                        any |= from;
                        *to = any;
                    }
                }
                Segment::One(glob) => {
                    for (i, name) in path.iter().enumerate() {
                        next[i + 1] = reached[i] && glob.matches(name, case);
                    }
                }
            }
            reached = next;
        }
        reached[path.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(text: &str) -> Glob {
        Glob(
            text.chars()
                .map(|c| match c {
                    '*' => Token::AnyRun,
                    '?' => Token::AnyChar,
                    c => Token::Exactly(c),
                })
                .collect(),
        )
    }

    #[test]
    fn star_takes_any_run_and_question_mark_one_character() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "a/b", true),
            ("a*", "a", true),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-d", false),
            ("?", "ü", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("A", "a", false),
        ] {
            assert_eq!(
                glob(pattern).matches(text, Case::Matters),
                expected,
                "{pattern} {text}"
            );
        }
        assert!(glob("ÄB*").matches("äbc", Case::Ignored));
    }

    #[test]
    fn a_pattern_made_to_backtrack_ends() {
        let pattern = glob(&"*a".repeat(200));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(20_000)), Case::Matters));
    }
}
