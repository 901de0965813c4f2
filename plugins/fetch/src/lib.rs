//! Pages and answers of web origins that are granted.

use std::collections::BTreeMap;

use agentloop_sdk::{
    Content, Image, Result, ToolError, Value, args,
    http::{Request, Response},
    tool, tools,
};

tools![fetch];

/// Of a response, in bytes.
const MAX_BODY: usize = 4 << 20;
/// Of HTML that is taken apart, scripts and the like left out, in bytes.
const MAX_HTML: usize = 1 << 20;
/// Tags of that HTML. Each needs up to 800 bytes on the way to text, and a call has 64 MiB.
const MAX_TAGS: usize = 30_000;
/// Text in one answer, in bytes. Models lose the thread in more.
const MAX_ANSWER: usize = 32 << 10;
/// Where lines of HTML are broken, in characters.
const WIDTH: usize = 120;

#[args]
#[serde(rename_all = "UPPERCASE")]
enum Method {
    Get,
    Head,
    Post,
}

/// Fetch a URL and read the answer. HTML comes as text with its links listed at the end, JSON and other text as it is,
/// images as images.
///
/// Long answers come in pieces, and a note then says how to go on.
#[tool(
    timeout = "30s",
    http(
        "*",
        methods = ["GET", "HEAD", "POST"],
        reason = "to fetch what the model asks for, from the origins that you choose"
    )
)]
fn fetch(
    /// An absolute URL with `https://` or `http://`
    url: String,
    #[default(Method::Get)] method: Method,
    /// Further headers
    #[default(BTreeMap::new())]
    headers: BTreeMap<String, String>,
    /// What to send with `POST`
    body: Option<String>,
    /// Where in the answer's text to begin, to go on with a long one
    #[default(0)]
    start: usize,
) -> Result<Vec<Content>> {
    let response = request(url, &method, headers, body)?.send()?;
    let mut head = format!("status {} from {}", response.status, response.url);
    let kind = response.header("content-type").unwrap_or_default();
    if !kind.is_empty() {
        head.push_str(&format!(", {}", kind.escape_debug()));
    }
    if matches!(method, Method::Head) {
        return Ok(vec![(head + &headers_of(&response)).into()]);
    }
    let media_type = kind
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let bytes = response.bytes();
    head.push_str(&format!(", {} bytes", bytes.len()));
    if matches!(
        media_type.as_str(),
        "image/png" | "image/jpeg" | "image/gif" | "image/webp"
    ) {
        return Ok(vec![head.into(), Image::new(media_type, bytes).into()]);
    }
    let Some(text) = decoded(bytes, kind) else {
        head.push_str("; not text, left out");
        return Ok(vec![head.into()]);
    };
    let text = match media_type.as_str() {
        "text/html" | "application/xhtml+xml" => readable(&text)?,
        "" if is_html(&text) => readable(&text)?,
        _ => text,
    };
    let (piece, note) = piece(&text, start)?;
    let mut answer = vec![head.into()];
    if !piece.is_empty() {
        answer.push(piece.into());
    }
    answer.extend(note.map(Into::into));
    Ok(answer)
}

fn request(
    url: String,
    method: &Method,
    headers: BTreeMap<String, String>,
    body: Option<String>,
) -> Result<Request> {
    let mut request = match (method, &body) {
        (Method::Post, _) => Request::post(url),
        (_, Some(_)) => {
            return Err(ToolError::invalid_arguments(
                "`body` goes with the method POST",
            ));
        }
        (Method::Get, None) => Request::get(url),
        (Method::Head, None) => Request::head(url),
    };
    let has = |name: &str| headers.keys().any(|key| key.eq_ignore_ascii_case(name));
    if !has("accept") {
        request = request.header(
            "accept",
            "text/html, application/json, text/*;q=0.9, */*;q=0.5",
        );
    }
    if !has("user-agent") {
        request = request.header(
            "user-agent",
            concat!("agentloop-fetch/", env!("CARGO_PKG_VERSION")),
        );
    }
    if let Some(body) = body {
        if !has("content-type") {
            let is_json = body
                .parse::<Value>()
                .is_ok_and(|value| value.is_object() || value.is_array());
            let kind = if is_json {
                "application/json"
            } else {
                "text/plain; charset=utf-8"
            };
            request = request.header("content-type", kind);
        }
        request = request.body(body);
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    Ok(request.max_body_bytes(MAX_BODY))
}

fn headers_of(response: &Response) -> String {
    response
        .headers
        .iter()
        .map(|(name, value)| format!("\n{name}: {}", value.escape_debug()))
        .collect()
}

/// The bytes as text, if they are some.
fn decoded(bytes: &[u8], kind: &str) -> Option<String> {
    if bytes.contains(&0) {
        return None;
    }
    let charset = kind.to_ascii_lowercase();
    if ["iso-8859-1", "latin1", "windows-1252", "us-ascii"]
        .iter()
        .any(|name| charset.contains(name))
    {
        return Some(bytes.iter().map(|&byte| char::from(byte)).collect());
    }
    Some(String::from_utf8_lossy(bytes).into_owned())
}

fn is_html(text: &str) -> bool {
    let start = text.trim_start().get(..14).unwrap_or_default();
    start.eq_ignore_ascii_case("<!doctype html") || start.to_ascii_lowercase().starts_with("<html")
}

fn readable(html: &str) -> Result<String> {
    let (lean, read) = without_code(html);
    let mut text = html2text::config::plain()
        .allow_width_overflow()
        .string_from_read(lean.as_bytes(), WIDTH)?;
    if let Some(title) = title(&lean) {
        text = format!("{title}\n\n{text}");
    }
    if read < html.len() {
        text.push_str(&format!(
            "\n[the page goes on: {read} of its {} bytes were read]",
            html.len()
        ));
    }
    Ok(text)
}

/// HTML without what nobody reads, which is most of many pages, and how much of it was read until there was enough.
fn without_code(html: &str) -> (String, usize) {
    const LEFT_OUT: [(&str, &str); 4] = [
        ("<script", "</script"),
        ("<style", "</style"),
        ("<svg", "</svg"),
        ("<!--", "--"),
    ];
    // ASCII, so that places in it are places in `html`.
    let lower = html.to_ascii_lowercase();
    let mut lean = String::new();
    let mut tags = 0;
    let mut at = 0;
    while at < html.len() {
        // From one `<` up to the next one.
        let rest = &lower[at..];
        let left_out = LEFT_OUT.iter().find(|(open, _)| rest.starts_with(open));
        if let Some((open, close)) = left_out {
            let end = rest[open.len()..].find(close).and_then(|end| {
                let end = open.len() + end;
                Some(end + rest[end..].find('>')? + 1)
            });
            // What is never closed goes on to the end.
            at += end.unwrap_or(rest.len());
            continue;
        }
        let length = rest
            .char_indices()
            .skip(1)
            .find(|&(_, c)| c == '<')
            .map_or(rest.len(), |(next, _)| next);
        let room = MAX_HTML - lean.len();
        if tags == MAX_TAGS || length > room {
            let some = if tags == MAX_TAGS {
                0
            } else {
                html[at..].floor_char_boundary(room)
            };
            lean.push_str(&html[at..at + some]);
            return (lean, at + some);
        }
        tags += usize::from(rest.starts_with('<'));
        lean.push_str(&html[at..at + length]);
        at += length;
    }
    (lean, html.len())
}

/// The page's title, which is not part of its body.
fn title(html: &str) -> Option<String> {
    // ASCII, so that places in it are places in `html`.
    let lower = html.to_ascii_lowercase();
    let start = lower.find("<title")?;
    let start = start + lower[start..].find('>')? + 1;
    let end = start + lower[start..].find("</title")?;
    let text = html2text::config::plain()
        .string_from_read(&html.as_bytes()[start..end], 1_000)
        .ok()?;
    let title = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!title.is_empty()).then_some(title)
}

/// The part of a text from `start` on, and a note when it is not all.
fn piece(text: &str, start: usize) -> Result<(String, Option<String>)> {
    if start > 0 && start >= text.len() {
        return Err(ToolError::invalid_arguments(format!(
            "the answer has {} bytes of text: nothing begins at {start}",
            text.len()
        )));
    }
    let start = text.floor_char_boundary(start);
    let end = text.floor_char_boundary(start + MAX_ANSWER);
    let note = (start > 0 || end < text.len()).then(|| {
        let rest = if end < text.len() {
            format!("; go on with start = {end}")
        } else {
            String::new()
        };
        format!("[bytes {start} to {end} of {}{rest}]", text.len())
    });
    Ok((text[start..end].to_owned(), note))
}

#[cfg(test)]
mod tests {
    use agentloop_sdk::http::{self, Error};

    use super::*;

    const PAGE: &str = "<html><head><title>Tea &amp; more</title><style>p{}</style></head><body><script>x()</script>\
        <h1>Tea</h1><p>Green <a href=\"/green\">tea</a> &eacute;</p></body></html>";

    fn get(url: &str) -> Result<Vec<Content>> {
        fetch(url.into(), Method::Get, BTreeMap::new(), None, 0)
    }

    fn texts(answer: Vec<Content>) -> Vec<String> {
        answer
            .into_iter()
            .map(|block| match block {
                Content::Text(text) => text,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn answers(kind: &'static str, body: impl AsRef<[u8]> + 'static) -> http::Fake {
        http::fake(move |_| {
            let response = Response::new(200, body.as_ref());
            Ok(if kind.is_empty() {
                response
            } else {
                response.with_header("Content-Type", kind)
            })
        })
    }

    #[test]
    fn html_becomes_text() {
        for kind in ["text/html; charset=utf-8", ""] {
            let _network = answers(kind, PAGE);
            let texts = texts(get("https://tea.example/").unwrap());
            assert!(
                texts[0].starts_with("status 200 from https://tea.example/"),
                "{texts:?}"
            );
            assert_eq!(
                texts[1],
                "Tea & more\n\n# Tea\n\nGreen [tea][1] é\n\n[1]: /green\n"
            );
            assert_eq!(texts.len(), 2);
        }
    }

    #[test]
    fn code_is_left_out_and_long_pages_are_cut() {
        for (html, lean) in [
            ("a<SCRIPT src='x'>if (a < b) {}</Script >b", "ab"),
            (
                "<p>é<style>p{}</style>a<!-- <p> -->b<svg><g/></svg>",
                "<p>éab",
            ),
            ("a<script>b", "a"),
            ("a<!-- b", "a"),
            ("a < b <b>c</b> <", "a < b <b>c</b> <"),
        ] {
            assert_eq!(without_code(html), (lean.into(), html.len()), "{html}");
        }
        for (html, read) in [
            ("é".repeat(MAX_HTML), MAX_HTML),
            ("<br>".repeat(MAX_TAGS + 1), 4 * MAX_TAGS),
            (format!("a{}", "é".repeat(MAX_HTML)), MAX_HTML - 1),
        ] {
            let (lean, at) = without_code(&html);
            assert_eq!((lean.as_str(), at), (&html[..read], read));
        }
        let text = readable(&"a<br>".repeat(MAX_TAGS + 1)).unwrap();
        assert!(
            text.ends_with("\n[the page goes on: 150001 of its 150005 bytes were read]"),
            "{}",
            &text[text.len() - 100..]
        );
    }

    #[test]
    fn other_text_stays_as_it_is() {
        let _network = answers("application/json", "{\"a\": \"<b>\"}");
        assert_eq!(
            texts(get("https://tea.example/").unwrap())[1],
            "{\"a\": \"<b>\"}"
        );
        let _network = answers("text/plain; charset=ISO-8859-1", b"caf\xe9");
        assert_eq!(texts(get("https://tea.example/").unwrap())[1], "café");
    }

    #[test]
    fn what_is_not_text_is_named_or_shown() {
        let _network = answers("application/pdf", b"%PDF\0");
        let text = texts(get("https://tea.example/").unwrap()).join("|");
        assert_eq!(
            text,
            "status 200 from https://tea.example/, application/pdf, 5 bytes; not text, left out"
        );
        let _network = answers("image/png", b"\x89PNG\0");
        let answer = get("https://tea.example/").unwrap();
        assert_eq!(answer[1], Content::Image(Image::png(*b"\x89PNG\0")));
    }

    #[test]
    fn long_answers_come_in_pieces() {
        let _network = answers("text/plain", "é".repeat(MAX_ANSWER));
        let first = texts(get("https://tea.example/").unwrap());
        assert_eq!(first[1].len(), MAX_ANSWER);
        assert_eq!(
            first[2],
            "[bytes 0 to 32768 of 65536; go on with start = 32768]"
        );
        let on = |start| {
            fetch(
                "https://tea.example/".into(),
                Method::Get,
                BTreeMap::new(),
                None,
                start,
            )
        };
        assert_eq!(
            texts(on(32_769).unwrap())[2],
            "[bytes 32768 to 65536 of 65536]"
        );
        on(65_536).unwrap_err();
    }

    #[test]
    fn a_failure_says_whether_it_was_refused() {
        let attempted = || "GET https://tea.example/".to_owned();
        let _network = http::fake(move |_| {
            Err(Error::Denied {
                attempted: attempted(),
            })
        });
        assert!(matches!(
            get("https://tea.example/"),
            Err(ToolError::Denied(_))
        ));
        let _network = http::fake(move |_| {
            Err(Error::Connection {
                attempted: attempted(),
                why: "refused".into(),
            })
        });
        assert!(matches!(
            get("https://tea.example/"),
            Err(ToolError::Failed(_))
        ));
        let _network = answers("text/plain", vec![b'x'; MAX_BODY + 1]);
        let error = get("https://tea.example/").unwrap_err();
        assert!(
            error.message().contains("larger than 4194304 bytes"),
            "{error}"
        );
    }

    #[test]
    fn a_status_is_told_and_not_an_error() {
        let _network = http::fake(|_| Ok(Response::new(404, "no such tea")));
        let texts = texts(get("https://tea.example/x").unwrap());
        assert_eq!(
            texts,
            [
                "status 404 from https://tea.example/x, 11 bytes",
                "no such tea"
            ]
        );
    }

    #[test]
    fn requests_are_sent_as_they_are_meant() {
        let _network = http::fake(|request| {
            let header = |name| request.header(name).unwrap_or_default().to_owned();
            let sent = format!(
                "{} {} {} {}",
                request.method,
                String::from_utf8_lossy(&request.body),
                header("content-type"),
                header("x-tea")
            );
            Ok(Response::new(200, sent))
        });
        let post = |body: &str| {
            let headers = BTreeMap::from([("X-Tea".into(), "green".into())]);
            texts(
                fetch(
                    "https://tea.example/".into(),
                    Method::Post,
                    headers,
                    Some(body.into()),
                    0,
                )
                .unwrap(),
            )[1]
            .clone()
        };
        assert_eq!(post("{\"a\": 1}"), "POST {\"a\": 1} application/json green");
        assert_eq!(post("hot"), "POST hot text/plain; charset=utf-8 green");
        let head = fetch(
            "https://tea.example/".into(),
            Method::Head,
            BTreeMap::new(),
            None,
            0,
        )
        .unwrap();
        assert_eq!(texts(head), ["status 200 from https://tea.example/"]);
        let error = fetch(
            "https://tea.example/".into(),
            Method::Get,
            BTreeMap::new(),
            Some("x".into()),
            0,
        );
        assert!(matches!(error, Err(ToolError::InvalidArguments(_))));
    }
}
