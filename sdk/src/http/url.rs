//! As much of URLs as requests and redirects need (RFC 3986). The host reads them again with a full parser and
//! decides; a full parser here would make each tool larger by the tables for international names.

use std::fmt;

use super::{Error, Result};

/// An absolute web address without fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) https: bool,
    /// In lower case, without the scheme's own port.
    pub(super) authority: String,
    /// Begins with `/`; everything that may not stand in a request is encoded.
    pub(super) path_and_query: String,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let fault = |why| Error::InvalidUrl {
            url: text.chars().take(300).collect(),
            why,
        };
        let (https, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            _ => {
                return Err(fault(
                    "it begins neither with `https://` nor with `http://`",
                ));
            }
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path_and_query) = rest.split_at(end);
        if authority.contains('@') {
            return Err(fault("it has a user or password: send them in a header"));
        }
        if !authority.is_ascii() {
            return Err(fault("its host is not in ASCII: write the name as `xn--…`"));
        }
        let host_char = |b: u8| b.is_ascii_alphanumeric() || b"-._~:[]%".contains(&b);
        if authority.is_empty() || authority.starts_with(':') || !authority.bytes().all(host_char) {
            return Err(fault("it has no proper host"));
        }
        let authority = authority.to_ascii_lowercase();
        let own_port = if https { ":443" } else { ":80" };
        let authority = authority
            .strip_suffix(own_port)
            .map(str::to_owned)
            .unwrap_or(authority);
        let mut encoded = String::with_capacity(path_and_query.len() + 1);
        if !path_and_query.starts_with('/') {
            encoded.push('/');
        }
        for c in path_and_query.chars() {
            if c.is_control() {
                return Err(fault("it has control characters"));
            }
            if c.is_ascii() && !" \"<>\\^`{|}".contains(c) {
                encoded.push(c);
            } else {
                percent(&mut encoded, c);
            }
        }
        Ok(Self {
            https,
            authority,
            path_and_query: encoded,
        })
    }

    /// The address that a `Location` means, seen from this one.
    pub(super) fn join(&self, location: &str) -> Result<Self> {
        let location = location.trim();
        let scheme = if self.https { "https" } else { "http" };
        if has_scheme(location) {
            return Self::parse(location);
        }
        if location.starts_with("//") {
            return Self::parse(&format!("{scheme}:{location}"));
        }
        let path = self.path_and_query.split('?').next().unwrap_or_default();
        let target = match location.as_bytes().first() {
            None | Some(b'#') => self.path_and_query.clone(),
            Some(b'/') => without_dots(location),
            Some(b'?') => format!("{path}{location}"),
            Some(_) => {
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                without_dots(&format!("{folder}/{location}"))
            }
        };
        Self::parse(&format!("{scheme}://{}{target}", self.authority))
    }

    pub(super) fn same_origin(&self, other: &Self) -> bool {
        self.https == other.https && self.authority == other.authority
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path_and_query)
    }
}

/// Appends the text with everything encoded that has a meaning in a query.
pub(super) fn encode(to: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || "-._~".contains(c) {
            to.push(c);
        } else {
            percent(to, c);
        }
    }
}

fn percent(to: &mut String, c: char) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        to.push('%');
        to.push(HEX[usize::from(byte >> 4)].into());
        to.push(HEX[usize::from(byte & 15)].into());
    }
}

/// Whether it begins with `scheme:`, RFC 3986 §3.1.
fn has_scheme(location: &str) -> bool {
    location.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    })
}

/// RFC 3986 §5.2.4; what follows a `?` or `#` stays.
fn without_dots(path_and_rest: &str) -> String {
    let end = path_and_rest
        .find(['?', '#'])
        .unwrap_or(path_and_rest.len());
    let (path, rest) = path_and_rest.split_at(end);
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        match part {
            "." if last => kept.push(""),
            "." => {}
            ".." => {
                kept.pop();
                if last {
                    kept.push("");
                }
            }
            part => kept.push(part),
        }
    }
    format!("/{}{rest}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        Url::parse(text).unwrap().to_string()
    }

    #[test]
    fn addresses_are_made_regular() {
        for (text, regular) in [
            ("https://a.example", "https://a.example/"),
            ("HTTP://A.Example:80/Path#f", "http://a.example/Path"),
            ("https://a.example:443?q=1", "https://a.example/?q=1"),
            ("https://a.example:444/", "https://a.example:444/"),
            ("http://[::1]:8080/x", "http://[::1]:8080/x"),
            (
                "https://a.example/a b/ü?c=\"d\"&e=%20",
                "https://a.example/a%20b/%C3%BC?c=%22d%22&e=%20",
            ),
        ] {
            assert_eq!(parsed(text), regular, "{text}");
        }
    }

    #[test]
    fn what_is_no_web_address_is_refused() {
        for text in [
            "",
            "a.example",
            "/path",
            "ftp://a.example/",
            "https://",
            "https:///path",
            "https://:80/",
            "https://user@a.example/",
            "https://user:pw@a.example/",
            "https://bücher.example/",
            "https://a b/",
            "https://a.example/\r\nx: y",
            "https://a\\b/",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
    }

    /// The examples of RFC 3986 §5.4, as far as they stay on the web.
    #[test]
    fn locations_are_resolved() {
        let base = Url::parse("http://a/b/c/d;p?q").unwrap();
        for (location, target) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q"),
            ("g#s", "http://a/b/c/g"),
            (";x", "http://a/b/c/;x"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("./", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("/./g", "http://a/g"),
            ("/../g", "http://a/g"),
            ("g.", "http://a/b/c/g."),
            ("..g", "http://a/b/c/..g"),
            ("./g/.", "http://a/b/c/g/"),
            ("g/./h", "http://a/b/c/g/h"),
            ("g/../h", "http://a/b/c/h"),
            ("g?y/../x", "http://a/b/c/g?y/../x"),
            ("https://b/x", "https://b/x"),
            (" /g ", "http://a/g"),
        ] {
            assert_eq!(
                base.join(location).unwrap().to_string(),
                target,
                "{location:?}"
            );
        }
        for elsewhere in ["file:///etc/passwd", "javascript:alert(1)", "mailto:a@b"] {
            assert!(base.join(elsewhere).is_err(), "{elsewhere}");
        }
    }
}
