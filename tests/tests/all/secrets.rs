//! Secrets that guests use and never see (T3, T4).

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
};

use agentloop_host::{
    capability::{
        Capability, Grants, HttpGrant, OriginPattern, SecretGrant, SecretPlace, SecretSource,
        SecretValue,
    },
    ids::SecretName,
    sandbox::Ending,
    tool::ToolOutcome,
};
use agentloop_tests::{
    guests::{self, Guest, text},
    servers::{Received, Reply, Server, Step, response_head},
};
use base64::{Engine as _, engine::general_purpose as engines};
use serde_json::json;

/// 64 random bytes, each a printable character: with everything that encodings treat in their own way.
fn canary() -> String {
    // Keyed by the system's randomness.
    let random = std::iter::repeat_with(|| RandomState::new().build_hasher().finish())
        .flat_map(u64::to_ne_bytes);
    let mut canary: String = random
        .map(|byte| char::from(b' ' + byte % 95))
        .filter(|c| *c != ' ')
        .take(54)
        .collect();
    canary.push_str("%+/\"\\&<>='");
    canary
}

fn secret(name: &str, value: Option<&str>, origins: &[String], place: SecretPlace) -> SecretGrant {
    SecretGrant {
        name: SecretName::parse(name).unwrap(),
        source: SecretSource::Environment {
            variable: format!("{}_TOKEN", name.to_uppercase()),
            value: value.map(SecretValue::new),
        },
        origins: origins
            .iter()
            .map(|origin| OriginPattern::parse(origin).unwrap())
            .collect(),
        place,
        template: "Bearer {secret}".into(),
    }
}

fn authorization() -> SecretPlace {
    SecretPlace::Header("authorization".into())
}

async fn keeper(granted: &[&Server], secrets: Vec<SecretGrant>) -> Guest {
    let mut guest = Guest::load(&guests::sandbox(), guests::KEEPER).await;
    let http = |server: &&Server| HttpGrant {
        origin: OriginPattern::parse(&server.origin()).unwrap(),
        methods: ["GET", "POST", "TRACE"].map(str::to_owned).to_vec(),
    };
    guest.grants = Grants {
        http: granted.iter().map(http).collect(),
        secrets: secrets.into_iter().map(Arc::new).collect(),
        ..Grants::default()
    };
    guest
}

/// The value in all forms that are looked for.
fn forms(value: &str) -> Vec<String> {
    let json = serde_json::to_string(value).unwrap();
    let mut forms = vec![
        value.to_owned(),
        json.trim_matches('"').to_owned(),
        value.bytes().map(|b| format!("{b:02x}")).collect(),
        value.bytes().map(|b| format!("{b:02X}")).collect(),
        value.bytes().map(|b| format!("%{b:02X}")).collect(),
        value.bytes().map(|b| format!("%{b:02x}")).collect(),
        url::form_urlencoded::byte_serialize(value.as_bytes()).collect(),
        value.bytes().map(|b| format!("\\u{b:04x}")).collect(),
    ];
    for before in ["", "u", "us"] {
        for engine in [&engines::STANDARD, &engines::URL_SAFE_NO_PAD] {
            let encoded = engine.encode(format!("{before}{value}"));
            forms.push(encoded[4..encoded.len() - 4].to_owned());
        }
    }
    forms
}

#[track_caller]
fn assert_absent(value: &str, from: &str, what: &str) {
    for form in forms(value) {
        // Debug output escapes what it quotes.
        for form in [form.escape_debug().to_string(), form] {
            assert!(!from.contains(&form), "{what} holds `{form}`:\n{from}");
        }
    }
}

/// All that anybody but the bound host gets to know of a call.
fn all_of(guest: &Guest, ending: &Ending) -> String {
    format!(
        "{ending:?} {:?} {:?} {}",
        guest.heard.lines(),
        guest.heard.reports(),
        match &ending.outcome {
            ToolOutcome::Answered(_) => guests_text(&ending.outcome),
            _ => String::new(),
        }
    )
}

fn guests_text(outcome: &ToolOutcome) -> String {
    let ToolOutcome::Answered(blocks) = outcome else {
        return String::new();
    };
    blocks
        .iter()
        .map(|block| match block {
            agentloop_host::tool::Content::Text(text) => text.clone(),
            agentloop_host::tool::Content::Image { data, .. } => {
                String::from_utf8_lossy(data).into_owned()
            }
            other => format!("{other:?}"),
        })
        .collect()
}

#[tokio::test]
async fn a_granted_secret_goes_into_requests_to_its_host_and_nowhere_else() {
    let canary = canary();
    let bound = Server::start(|_| Reply::text("in")).await;
    let other = Server::start(|_| Reply::text("out")).await;
    let tickets = secret("tickets", Some(&canary), &[bound.origin()], authorization());
    let weather = secret(
        "weather",
        Some("w&eather="),
        &[bound.origin()],
        SecretPlace::Query("key".into()),
    );
    let guest = keeper(&[&bound, &other], vec![tickets.clone(), weather]).await;
    for server in [&bound, &other] {
        let headers = [
            "authorization: mine",
            "range: bytes=0-5",
            "accept-encoding: gzip",
        ];
        let input = json!({ "url": server.url("/a?key=mine&x=1"), "headers": headers });
        let ending = guest.call("fetch", input).await;
        text(&ending.outcome);
        assert_absent(&canary, &all_of(&guest, &ending), "the call");
    }
    let heard = &bound.requests()[0];
    let sent = format!("Bearer {canary}");
    assert_eq!(heard.header("authorization"), Some(sent.as_str()));
    assert_eq!(heard.target, "/a?x=1&key=Bearer+w%26eather%3D");
    assert_eq!(heard.header("range"), None);
    assert_eq!(heard.header("accept-encoding"), Some("identity"));
    let heard = &other.requests()[0];
    assert_eq!(heard.header("authorization"), Some("mine"));
    assert_eq!(heard.target, "/a?key=mine&x=1");

    // Granted to the plugin, and the tool does not ask for it.
    let mut helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    helpful.grants = guest.grants.clone();
    helpful
        .text("fetch", json!({ "url": bound.url("/b") }))
        .await;
    assert_eq!(bound.requests()[1].header("authorization"), None);

    // Asked for, and not granted: the tool that fails is told.
    let lacking = keeper(&[&bound], Vec::new()).await;
    let ending = lacking
        .call("tell", json!({ "how": "error", "value": "401" }))
        .await;
    let ToolOutcome::CapabilityRefused { refusals, .. } = ending.outcome else {
        panic!("{:?}", ending.outcome)
    };
    assert!(
        matches!(&refusals[0].missing, Capability::Secret { name } if name.as_str() == "tickets")
    );
    assert!(
        refusals[0]
            .remedy
            .ends_with("[grants.guest]\nsecrets = [\"tickets\"]"),
        "{}",
        refusals[0].remedy
    );
}

/// Each hop is a request of its own.
#[tokio::test]
async fn a_redirect_to_another_host_loses_the_secret() {
    let canary = canary();
    let elsewhere = Server::start(|_| Reply::text("out")).await;
    let to = elsewhere.url("/landing");
    let bound = Server::start(move |received| match &*received.target {
        "/away" => Reply::redirect(&to),
        "/again" => Reply::redirect("/here"),
        _ => Reply::text("in"),
    })
    .await;
    let tickets = secret("tickets", Some(&canary), &[bound.origin()], authorization());
    let guest = keeper(&[&bound, &elsewhere], vec![tickets]).await;
    guest
        .text("fetch", json!({ "url": bound.url("/away") }))
        .await;
    guest
        .text("fetch", json!({ "url": bound.url("/again") }))
        .await;
    let is_signed = |received: &Received| received.header("authorization").is_some();
    assert_eq!(elsewhere.requests().len(), 1);
    assert!(!elsewhere.requests().iter().any(is_signed));
    assert_eq!(bound.requests().len(), 3);
    assert!(bound.requests().iter().all(is_signed));
}

#[tokio::test]
async fn a_secret_without_a_value_says_what_to_set_and_nothing_is_sent() {
    let server = Server::start(|_| Reply::text("in")).await;
    let tickets = secret("tickets", None, &[server.origin()], authorization());
    let guest = keeper(&[&server], vec![tickets]).await;
    let ending = guest.call("fetch", json!({ "url": server.url("/") })).await;
    let ToolOutcome::CapabilityRefused { refusals, .. } = ending.outcome else {
        panic!("{:?}", ending.outcome)
    };
    assert_eq!(
        refusals[0].remedy,
        "The secret `tickets` is granted and has no value: the environment variable `TICKETS_TOKEN` is not set; \
         set it before the program starts."
    );
    assert_eq!(server.connections(), 0);
}

fn in_body(encode: fn(&str) -> String) -> impl Fn(&str) -> Reply {
    move |value| Reply::whole(200, &[], format!("before {} after", encode(value)))
}

/// T3, T4: a server gives back what it got, and a guest says what it can, in every way at hand.
#[tokio::test]
async fn no_way_leads_a_secret_to_a_guest() {
    let canary = canary();
    let chunked = |value: &str, size: usize| {
        let mut body = response_head(200, &[("transfer-encoding", "chunked")]);
        for piece in format!("before {value} after").as_bytes().chunks(size) {
            body.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            body.extend_from_slice(piece);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"0\r\n\r\n");
        body
    };
    type Echo = Box<dyn Fn(&str) -> Reply + Send + Sync>;
    let echoes: Vec<(&str, Echo)> = vec![
        ("plain", Box::new(in_body(str::to_owned))),
        (
            "json",
            Box::new(in_body(|v| json!({ "got": v }).to_string())),
        ),
        (
            "unicode",
            Box::new(in_body(|v| {
                v.bytes().map(|b| format!("\\u{b:04x}")).collect()
            })),
        ),
        (
            "hex",
            Box::new(in_body(|v| v.bytes().map(|b| format!("{b:02x}")).collect())),
        ),
        (
            "HEX",
            Box::new(in_body(|v| v.bytes().map(|b| format!("{b:02X}")).collect())),
        ),
        (
            "percent",
            Box::new(in_body(|v| {
                v.bytes().map(|b| format!("%{b:02X}")).collect()
            })),
        ),
        (
            "form",
            Box::new(in_body(|v| {
                url::form_urlencoded::byte_serialize(v.as_bytes()).collect()
            })),
        ),
        ("base64", Box::new(in_body(|v| engines::STANDARD.encode(v)))),
        (
            "base64, 1",
            Box::new(in_body(|v| engines::STANDARD.encode(format!("u{v}:")))),
        ),
        (
            "base64, 2",
            Box::new(in_body(|v| engines::STANDARD.encode(format!("us{v}:")))),
        ),
        (
            "url-safe",
            Box::new(in_body(|v| engines::URL_SAFE_NO_PAD.encode(v))),
        ),
        (
            "url-safe, 1",
            Box::new(in_body(|v| engines::URL_SAFE.encode(format!("u{v}!")))),
        ),
        (
            "url-safe, 2",
            Box::new(in_body(|v| engines::URL_SAFE.encode(format!("us{v}!")))),
        ),
        ("twice", Box::new(in_body(|v| format!("{v}{v}")))),
        (
            "error",
            Box::new(|v| Reply::whole(401, &[], format!("no such token: {v}"))),
        ),
        (
            "crash",
            Box::new(|v| Reply::whole(500, &[], format!("at auth({v:?})"))),
        ),
        (
            "header",
            Box::new(|v| Reply::whole(200, &[("x-echo", v)], "")),
        ),
        (
            "cookie",
            Box::new(|v| {
                let cookie = format!("t={}", engines::STANDARD.encode(v));
                Reply::whole(200, &[("set-cookie", &cookie)], "")
            }),
        ),
        (
            "location",
            Box::new(|v| {
                let query: String = url::form_urlencoded::byte_serialize(v.as_bytes()).collect();
                Reply::redirect(&format!("/landing?token={query}"))
            }),
        ),
        (
            "in chunks",
            Box::new(move |v| Reply::steps([Step::Send(chunked(v, 7))])),
        ),
        (
            "byte by byte",
            Box::new(move |v| Reply::steps([Step::Send(chunked(v, 1))])),
        ),
        (
            "in packets",
            Box::new(|v| {
                let mut head = response_head(200, &[]);
                let (one, two) = v.split_at(30);
                head.extend_from_slice(one.as_bytes());
                let pause = Step::Wait(std::time::Duration::from_millis(20));
                Reply::steps([Step::Send(head), pause, Step::Send(two.into())])
            }),
        ),
        ("cut", Box::new(|v| Reply::whole(200, &[], &v[..60]))),
        (
            "packed",
            Box::new(|v| Reply::whole(200, &[("content-encoding", "gzip")], v)),
        ),
    ];
    let mut tries = 0;
    for (name, echo) in echoes {
        let server = Server::start(move |received| match received.header("authorization") {
            Some(value) => echo(value.strip_prefix("Bearer ").unwrap_or(value)),
            None => Reply::text("unsigned"),
        })
        .await;
        let tickets = secret(
            "tickets",
            Some(&canary),
            &[server.origin()],
            authorization(),
        );
        let guest = keeper(&[&server], vec![tickets]).await;
        let ending = guest
            .call("fetch", json!({ "url": server.url("/a") }))
            .await;
        assert!(!server.requests().is_empty(), "{name}");
        assert_absent(&canary, &all_of(&guest, &ending), name);
        if name == "packed" {
            assert!(
                format!("{ending:?}").contains("HttpResponseContentCoding"),
                "{ending:?}"
            );
        } else if name != "location" {
            let said = text(&ending.outcome);
            assert!(said.contains("[secret tickets]"), "{name}: {said}");
        }
        if name == "cut" {
            assert_absent(&canary[..20], &all_of(&guest, &ending), name);
        }
        for request in server.requests() {
            assert_absent(&canary, &request.target, name);
        }
        tries += 1;
    }

    // The guest itself asks for more than it should have.
    let server = Server::start(|received| {
        Reply::text(&format!("{:?} {}", received.headers, received.target))
    })
    .await;
    let other = Server::start(|received| Reply::text(&format!("{received:?}"))).await;
    let tickets = secret(
        "tickets",
        Some(&canary),
        &[server.origin()],
        authorization(),
    );
    let guest = keeper(&[&server, &other], vec![tickets]).await;
    for input in [
        json!({ "url": server.url("/"), "method": "TRACE" }),
        json!({ "url": server.url("/"), "headers": ["connection: authorization"] }),
        json!({ "url": server.url("/"), "headers": ["x-a: {secret}", "authorization: {secret}"] }),
        json!({ "url": server.url("/"), "headers": ["accept-encoding: gzip", "range: bytes=5-9"] }),
        json!({ "url": server.origin_as("user:{secret}@127.0.0.1") }),
        json!({ "url": server.origin_as("localhost") }),
        json!({ "url": other.url("/{secret}?{secret}"), "headers": ["host: 127.0.0.1"] }),
        json!({ "url": other.url("/tickets?secret=tickets") }),
    ] {
        let ending = guest.call("fetch", input.clone()).await;
        assert_absent(&canary, &all_of(&guest, &ending), &input.to_string());
        tries += 1;
    }
    for how in [
        "answer",
        "error",
        "denied",
        "arguments",
        "panic",
        "log",
        "progress",
        "stdout",
        "stderr",
        "pieces",
        "environment",
    ] {
        // As if it had come to know it.
        let ending = guest
            .call("tell", json!({ "how": how, "value": canary }))
            .await;
        let all = all_of(&guest, &ending);
        assert_absent(&canary, &all, how);
        assert!(
            how == "environment" || all.contains("[secret tickets]"),
            "{how}: {all}"
        );
        tries += 1;
    }
    for tool in ["tell_object", "tell_picture"] {
        let ending = guest.call(tool, json!({ "value": canary })).await;
        let all = all_of(&guest, &ending);
        assert_absent(&canary, &all, tool);
        assert!(all.contains("[secret tickets]"), "{tool}: {all}");
        tries += 1;
    }
    assert!(!other.requests().is_empty());
    assert_absent(
        &canary,
        &format!("{:?}", other.requests()),
        "the other server",
    );
    assert!(tries >= 30, "{tries}");
}
