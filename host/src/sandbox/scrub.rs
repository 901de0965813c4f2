//! Finds the values of secrets in what comes back, as they are and in the encodings that servers echo them in, and
//! writes `[secret NAME]` in their place.
//!
//! A value is found as it is, percent-encoded, escaped as in JSON or HTML, in hexadecimal, and in Base64 of either
//! alphabet at any of the three positions that it can have among other bytes. It is found over the borders of
//! chunks. A server that wants to give a value away can always write it in another way: what bounds a secret is
//! which hosts it is sent to.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    capability::{MIN_SECRET_BYTES, SecretValue},
    ids::SecretName,
};

/// Looks for some secrets. Cheap to clone.
#[derive(Clone)]
pub(super) struct Scrubber(Arc<Needles>);

struct Needles {
    needles: Vec<Needle>,
    /// The bytes with which any of them can begin.
    first: [bool; 256],
}

struct Needle {
    mask: Arc<str>,
    form: Form,
    /// For Base64 its letters, else the value.
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Percent,
    Json,
    Html,
    Hex,
    Base64,
}

/// How far a needle is at the start of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    No,
    /// All of the bytes are a beginning of it.
    Begun,
    /// It takes so many bytes.
    Whole(usize),
}

/// One byte of a needle at the start of some bytes.
enum Step {
    No,
    More,
    Took(usize),
}

impl Scrubber {
    pub(super) fn new<'a>(
        secrets: impl IntoIterator<Item = (&'a SecretName, &'a SecretValue)>,
    ) -> Self {
        let mut needles = Vec::new();
        for (name, value) in secrets {
            let mask: Arc<str> = format!("[secret {name}]").into();
            let value = value.expose().as_bytes();
            let mut add = |form, bytes: Vec<u8>| {
                needles.push(Needle {
                    mask: mask.clone(),
                    form,
                    bytes,
                });
            };
            for form in [
                Form::Plain,
                Form::Percent,
                Form::Json,
                Form::Html,
                Form::Hex,
            ] {
                add(form, value.to_vec());
            }
            for shift in 0..3 {
                add(Form::Base64, base64(value, shift));
            }
        }
        let mut first = [false; 256];
        for byte in 0..=255 {
            first[usize::from(byte)] = needles
                .iter()
                .any(|needle| !matches!(needle.at(&[byte]), Found::No));
        }
        Self(Arc::new(Needles { needles, first }))
    }

    /// What is left of a whole text; `None`: nothing was found.
    pub(super) fn bytes(&self, input: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut found = false;
        self.pass(input, true, &mut out, &mut found);
        found.then_some(out)
    }

    pub(super) fn text(&self, text: &str) -> Option<String> {
        // Masks are text, and what they replace is ASCII.
        let scrubbed = self.bytes(text.as_bytes())?;
        Some(String::from_utf8_lossy(&scrubbed).into_owned())
    }

    pub(super) fn in_place(&self, text: &mut String) {
        if let Some(scrubbed) = self.text(text) {
            *text = scrubbed;
        }
    }

    /// Writes what can be told, and gives how much of the input that was. The rest may be the beginning of a secret;
    /// `is_all`: nothing follows.
    fn pass(&self, input: &[u8], is_all: bool, out: &mut Vec<u8>, found: &mut bool) -> usize {
        let Needles { needles, first } = &*self.0;
        let (mut at, mut written) = (0, 0);
        while at < input.len() {
            if !first[usize::from(input[at])] {
                at += 1;
                continue;
            }
            let rest = &input[at..];
            let mut longest: Option<(usize, &Needle)> = None;
            let mut begun: Option<&Needle> = None;
            for needle in needles {
                match needle.at(rest) {
                    Found::No => {}
                    Found::Begun => begun = begun.or(Some(needle)),
                    Found::Whole(length) if longest.is_none_or(|(most, _)| length > most) => {
                        longest = Some((length, needle));
                    }
                    Found::Whole(_) => {}
                }
            }
            // The end of a text that was cut inside of a secret.
            let cut = is_all && rest.len() >= MIN_SECRET_BYTES;
            let (length, needle) = match (longest, begun) {
                // It may become a longer one.
                (_, Some(_)) if !is_all => break,
                (Some(longest), _) => longest,
                (None, Some(needle)) if cut => (rest.len(), needle),
                (None, _) => {
                    at += 1;
                    continue;
                }
            };
            out.extend_from_slice(&input[written..at]);
            out.extend_from_slice(needle.mask.as_bytes());
            *found = true;
            at += length;
            written = at;
        }
        out.extend_from_slice(&input[written..at]);
        at
    }
}

/// A text that comes in pieces.
pub(super) struct Scrubbing {
    scrubber: Scrubber,
    /// What may be the beginning of a secret: never longer than the longest form of one.
    held: Vec<u8>,
}

impl Scrubbing {
    pub(super) fn new(scrubber: Scrubber) -> Self {
        Self {
            scrubber,
            held: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The next piece, as far as it can be told.
    pub(super) fn push(&mut self, piece: &[u8]) -> Bytes {
        self.held.extend_from_slice(piece);
        self.told(false)
    }

    /// What is left.
    pub(super) fn end(&mut self) -> Bytes {
        self.told(true)
    }

    fn told(&mut self, is_all: bool) -> Bytes {
        let mut out = Vec::with_capacity(self.held.len());
        let told = self.scrubber.pass(&self.held, is_all, &mut out, &mut false);
        self.held.drain(..told);
        out.into()
    }
}

impl Needle {
    fn at(&self, input: &[u8]) -> Found {
        let mut at = 0;
        for (i, byte) in self.bytes.iter().enumerate() {
            // In mail and PEM, Base64 is broken into lines.
            if self.form == Form::Base64 && i > 0 {
                at += match input[at..] {
                    [b'\r', b'\n', ..] => 2,
                    [b'\r'] => return Found::Begun,
                    [b'\n', ..] => 1,
                    _ => 0,
                };
            }
            match self.form.step(*byte, &input[at..]) {
                Step::No => return Found::No,
                Step::More => return Found::Begun,
                Step::Took(length) => at += length,
            }
        }
        Found::Whole(at)
    }
}

impl Form {
    fn step(self, byte: u8, input: &[u8]) -> Step {
        let Some(&first) = input.first() else {
            return Step::More;
        };
        let raw = match first == byte {
            true => Step::Took(1),
            false => Step::No,
        };
        match (self, first) {
            (Self::Plain, _) => raw,
            (Self::Percent, b'%') => coded(input, b"%", 2, byte),
            (Self::Percent, b'+') if byte == b' ' => Step::Took(1),
            (Self::Json, b'\\') => match input.get(1) {
                None => Step::More,
                Some(b'u') => coded(input, b"\\u00", 2, byte),
                Some(&b @ (b'"' | b'\\' | b'/')) if b == byte => Step::Took(2),
                Some(_) => Step::No,
            },
            (Self::Html, b'&') => entity(input, byte),
            (Self::Percent | Self::Json | Self::Html, _) => raw,
            (Self::Hex, _) => coded(input, b"", 2, byte),
            // Both alphabets, and what becomes of their signs in addresses and in JSON.
            (Self::Base64, b'%') => match byte {
                b'+' | b'-' => either(coded(input, b"%", 2, b'+'), coded(input, b"%", 2, b'-')),
                b'/' | b'_' => either(coded(input, b"%", 2, b'/'), coded(input, b"%", 2, b'_')),
                _ => Step::No,
            },
            (Self::Base64, b'\\') if matches!(byte, b'/' | b'_') => match input.get(1) {
                None => Step::More,
                Some(b'/') => Step::Took(2),
                Some(_) => Step::No,
            },
            (Self::Base64, b'+' | b'-') if matches!(byte, b'+' | b'-') => Step::Took(1),
            (Self::Base64, b'/' | b'_') if matches!(byte, b'/' | b'_') => Step::Took(1),
            (Self::Base64, _) => raw,
        }
    }
}

fn either(one: Step, other: Step) -> Step {
    match (one, other) {
        (Step::Took(length), _) | (_, Step::Took(length)) => Step::Took(length),
        (Step::More, _) | (_, Step::More) => Step::More,
        (Step::No, Step::No) => Step::No,
    }
}

/// A byte in hexadecimal digits behind a prefix, all in either case.
fn coded(input: &[u8], prefix: &[u8], digits: usize, byte: u8) -> Step {
    let text = format!("{byte:0digits$x}");
    let wanted = prefix.iter().chain(text.as_bytes());
    for (i, wanted) in wanted.enumerate() {
        match input.get(i) {
            None => return Step::More,
            Some(got) if got.eq_ignore_ascii_case(wanted) => {}
            Some(_) => return Step::No,
        }
    }
    Step::Took(prefix.len() + digits)
}

fn entity(input: &[u8], byte: u8) -> Step {
    let names: &[&[u8]] = match byte {
        b'&' => &[b"&amp;", b"&#38;", b"&#x26;"],
        b'<' => &[b"&lt;", b"&#60;", b"&#x3c;"],
        b'>' => &[b"&gt;", b"&#62;", b"&#x3e;"],
        b'"' => &[b"&quot;", b"&#34;", b"&#x22;"],
        b'\'' => &[b"&apos;", b"&#39;", b"&#x27;"],
        b'/' => &[b"&#47;", b"&#x2f;"],
        b'=' => &[b"&#61;", b"&#x3d;"],
        b'`' => &[b"&#96;", b"&#x60;"],
        b'+' => &[b"&#43;", b"&#x2b;"],
        _ => return Step::No,
    };
    let step = |name: &&[u8]| {
        let common = name.len().min(input.len());
        match input[..common].eq_ignore_ascii_case(&name[..common]) {
            true if common == name.len() => Step::Took(common),
            true => Step::More,
            false => Step::No,
        }
    };
    names.iter().map(step).fold(Step::No, either)
}

/// The letters of a value that stands behind `shift` other bytes, without those that its neighbours have a part in.
fn base64(value: &[u8], shift: usize) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |index: usize| value[index / 8] >> (7 - index % 8) & 1;
    // Bits of the value before its first letter of its own.
    let mut from = (6 - shift * 8 % 6) % 6;
    let mut letters = Vec::new();
    while from + 6 <= value.len() * 8 {
        let index = (from..from + 6).fold(0, |index, at| index << 1 | usize::from(bit(at)));
        letters.push(LETTERS[index]);
        from += 6;
    }
    letters
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    /// Every printable character that encodings treat in their own way.
    const CANARY: &str = r#"k7/+&<>"'\%=_-~ zQ0xY"#;

    fn scrubber() -> Scrubber {
        let name = SecretName::parse("k").unwrap();
        Scrubber::new([(&name, &SecretValue::new(CANARY).unwrap())])
    }

    fn percent(keep: impl Fn(u8) -> bool, upper: bool) -> String {
        let one = |b: u8| match (keep(b), upper) {
            (true, _) => char::from(b).to_string(),
            (false, true) => format!("%{b:02X}"),
            (false, false) => format!("%{b:02x}"),
        };
        CANARY.bytes().map(one).collect()
    }

    fn encodings() -> Vec<String> {
        use base64::engine::general_purpose as engines;
        let mut all = vec![
            CANARY.to_owned(),
            percent(|_| false, true),
            percent(|_| false, false),
            percent(|b| b.is_ascii_alphanumeric(), true),
            percent(|b| b.is_ascii_alphanumeric(), true).replace("%20", "+"),
            serde_json::to_string(CANARY)
                .unwrap()
                .trim_matches('"')
                .to_owned(),
            serde_json::to_string(CANARY)
                .unwrap()
                .trim_matches('"')
                .replace('/', "\\/"),
            CANARY.bytes().map(|b| format!("\\u{b:04x}")).collect(),
            CANARY.bytes().map(|b| format!("{b:02x}")).collect(),
            CANARY.bytes().map(|b| format!("{b:02X}")).collect(),
            CANARY
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;")
                .replace('"', "&quot;")
                .replace('\'', "&#39;"),
        ];
        for before in ["", "u", "us", "user:"] {
            for after in ["", "!", "!!"] {
                let text = format!("{before}{CANARY}{after}");
                for engine in [
                    &engines::STANDARD,
                    &engines::STANDARD_NO_PAD,
                    &engines::URL_SAFE,
                    &engines::URL_SAFE_NO_PAD,
                ] {
                    all.push(engine.encode(&text));
                }
                let standard = engines::STANDARD.encode(&text);
                all.push(standard.replace('+', "%2B").replace('/', "%2F"));
                all.push(standard.replace('/', "\\/"));
                let (a, b) = standard.split_at(10);
                all.push(format!("{a}\r\n{b}"));
            }
        }
        all
    }

    #[test]
    fn every_encoding_is_found_wherever_it_is_cut() {
        let scrubber = scrubber();
        for encoded in encodings() {
            let text = format!("before {encoded} after");
            let whole = scrubber.text(&text).unwrap_or_else(|| panic!("{encoded}"));
            assert!(
                whole.contains("[secret k]") && whole.len() < 10 + "before  after".len() + 20,
                "{encoded}: {whole}"
            );
            assert!(
                whole.starts_with("before ") && whole.ends_with(" after"),
                "{whole}"
            );
            for size in 1..=text.len() {
                let mut scrubbing = Scrubbing::new(scrubber.clone());
                let mut out = Vec::new();
                for piece in text.as_bytes().chunks(size) {
                    out.extend_from_slice(&scrubbing.push(piece));
                }
                out.extend_from_slice(&scrubbing.end());
                assert_eq!(
                    String::from_utf8(out).unwrap(),
                    whole,
                    "in pieces of {size}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_secret_passes_at_once() {
        let scrubber = scrubber();
        let text = "k7 is not k7/+& nor %6b37, and für alle {\"a\": 1}";
        assert_eq!(scrubber.text(text), None);
        let mut scrubbing = Scrubbing::new(scrubber);
        assert_eq!(scrubbing.push(b"data: hello\n\n"), "data: hello\n\n");
        assert_eq!(scrubbing.push(b"data: k7"), "data: ");
        assert_eq!(scrubbing.push(b"!\n"), "k7!\n");
        assert!(scrubbing.is_empty());
    }

    #[test]
    fn the_longest_of_several_counts_and_a_cut_one_as_well() {
        let names = ["a", "b"].map(|name| SecretName::parse(name).unwrap());
        let values = ["12345678", "1234567890"].map(|value| SecretValue::new(value).unwrap());
        let scrubber = Scrubber::new(names.iter().zip(&values));
        assert_eq!(scrubber.text("x1234567890x").unwrap(), "x[secret b]x");
        assert_eq!(scrubber.text("x12345678x").unwrap(), "x[secret a]x");
        assert_eq!(scrubber.text("x1234567x"), None);
        let canary = self::scrubber();
        assert_eq!(canary.text(&CANARY[..10]).unwrap(), "[secret k]");
        assert_eq!(canary.text("user:").as_deref(), None);
    }
}
