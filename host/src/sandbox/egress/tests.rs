//! Each rule with a breach, over real sockets. Names and public addresses are a test double's, so that nothing
//! leaves the machine.

#[path = "../../../../tests/src/servers.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the tests of the whole, which use more of it"
)]
mod servers;

use std::{
    collections::{HashMap, VecDeque},
    io,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::net::TcpStream;

use self::servers::{Authority, GZIP_BOMB, Reply, Server, Step};
use super::*;
use crate::capability::{Capability, Grants, HttpGrant, OriginPattern, Request};

const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 34));
const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));
/// Nothing answers here, not even with a refusal.
const BLACK_HOLE: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 99));

/// Answers for the DNS and the internet: public addresses lead to servers of the test.
#[derive(Default, Clone)]
struct Fake(Arc<FakeState>);

#[derive(Default)]
struct FakeState {
    /// Answers in order; the last one stays.
    names: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    routes: Mutex<HashMap<IpAddr, SocketAddr>>,
    resolved: Mutex<Vec<String>>,
    dialled: Mutex<Vec<SocketAddr>>,
}

impl Fake {
    fn name(self, name: &str, answers: &[&[IpAddr]]) -> Self {
        let answers = answers.iter().map(|a| a.to_vec()).collect();
        self.0.names.lock().unwrap().insert(name.into(), answers);
        self
    }

    fn route(self, from: IpAddr, to: &Server) -> Self {
        self.0.routes.lock().unwrap().insert(from, to.address());
        self
    }

    fn dialled(&self) -> Vec<IpAddr> {
        let dialled = self.0.dialled.lock().unwrap();
        dialled.iter().map(SocketAddr::ip).collect()
    }

    fn resolved(&self) -> Vec<String> {
        self.0.resolved.lock().unwrap().clone()
    }
}

#[async_trait::async_trait]
impl Network for Fake {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.0.resolved.lock().unwrap().push(name.to_owned());
        let mut names = self.0.names.lock().unwrap();
        let answers = names
            .get_mut(name)
            .ok_or_else(|| io::Error::other("no such name"))?;
        let answer = match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        };
        Ok(answer
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect())
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.0.dialled.lock().unwrap().push(to);
        if to.ip() == BLACK_HOLE {
            return std::future::pending().await;
        }
        let route = self.0.routes.lock().unwrap().get(&to.ip()).copied();
        match route {
            Some(server) => TcpStream::connect(server).await,
            None if to.ip().is_loopback() => TcpStream::connect(to).await,
            None => Err(io::ErrorKind::HostUnreachable.into()),
        }
    }
}

fn origin(text: &str) -> OriginPattern {
    OriginPattern::parse(text).unwrap()
}

fn methods(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

type Entry<'a> = (&'a str, &'a [&'a str]);

fn reach(requested: &[Entry<'_>], granted: &[Entry<'_>]) -> Reach {
    let requests: Vec<Request> = requested
        .iter()
        .map(|(pattern, names)| Request {
            capability: Capability::Http {
                origin: origin(pattern),
                methods: methods(names),
            },
            reason: "to test".into(),
        })
        .collect();
    let http = granted.iter().map(|(pattern, names)| HttpGrant {
        origin: origin(pattern),
        methods: methods(names),
    });
    let grants = Grants {
        http: http.collect(),
        ..Grants::default()
    };
    Reach::new(&requests, &grants)
}

const ALL_METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "DELETE"];

/// Requested is everything, granted are these origins.
fn granted(origins: &[&str]) -> Reach {
    let grants: Vec<Entry<'_>> = origins.iter().map(|o| (*o, ALL_METHODS)).collect();
    reach(&[("*", ALL_METHODS)], &grants)
}

fn call_with(fake: &Fake, limits: EgressLimits, reach: &Reach) -> CallEgress {
    egress(fake, limits, &[]).for_call(reach, &plugin(), None, None)
}

fn call(fake: &Fake, reach: &Reach) -> CallEgress {
    call_with(fake, EgressLimits::default(), reach)
}

fn egress(fake: &Fake, limits: EgressLimits, extra_ca_files: &[PathBuf]) -> Egress {
    Egress::over(Box::new(fake.clone()), limits, extra_ca_files).unwrap()
}

fn plugin() -> PluginName {
    PluginName::parse("weather").unwrap()
}

fn get(uri: &str) -> http::Request<WasiBody> {
    http::Request::get(uri).body(body(b"")).unwrap()
}

fn body(bytes: &'static [u8]) -> WasiBody {
    Full::new(Bytes::from_static(bytes))
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// As guests do it: in pieces, with no length in advance.
fn pieces(count: usize, size: usize) -> WasiBody {
    let piece = Bytes::from(vec![b'p'; size]);
    let frames = (0..count).map(move |_| Ok(http_body::Frame::data(piece.clone())));
    UnsyncBoxBody::new(StreamBody::new(futures_util::stream::iter(frames)))
}

#[derive(Debug)]
struct Got {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// The whole of an answer, or the error that ended it at either stage.
async fn ask(call: &mut CallEgress, request: http::Request<WasiBody>) -> Result<Got, Error> {
    ask_with(call, request, None).await
}

async fn ask_with(
    call: &mut CallEgress,
    request: http::Request<WasiBody>,
    options: Option<RequestOptions>,
) -> Result<Got, Error> {
    let whole = whole(call, request, options);
    timeout(Duration::from_secs(20), whole)
        .await
        .expect("the request did not end")
}

async fn whole(
    call: &mut CallEgress,
    request: http::Request<WasiBody>,
    options: Option<RequestOptions>,
) -> Result<Got, Error> {
    let sending = call.send_request(request, options, Box::new(async { Ok(()) }));
    let (response, driver) = Box::into_pin(sending).await?;
    let (head, body) = response.into_parts();
    let reading = body.collect();
    let (body, _) = tokio::join!(reading, Box::into_pin(driver));
    Ok(Got {
        status: head.status,
        headers: head.headers,
        body: body?.to_bytes(),
    })
}

fn is_denied(answer: Result<Got, Error>) -> bool {
    matches!(answer, Err(Error::HttpRequestDenied))
}

fn is_prohibited(answer: Result<Got, Error>) -> bool {
    matches!(answer, Err(Error::DestinationIpProhibited))
}

#[tokio::test]
async fn a_granted_request_goes_out_and_its_answer_comes_back() {
    let server = Server::start(|_| Reply::text("sunny")).await;
    let mut call = call(&Fake::default(), &granted(&[&server.origin()]));
    let request = http::Request::post(server.url("/a/b?key=k1"))
        .header("x-kept", "1")
        .header("host", "evil.example")
        .header("te", "trailers")
        .header("proxy-authorization", "Basic eA==")
        .header("connection", "x-dropped, keep-alive")
        .header("x-dropped", "1")
        .header("keep-alive", "timeout=5")
        .header("upgrade", "websocket")
        .body(pieces(3, 2))
        .unwrap();

    let got = ask(&mut call, request).await.unwrap();

    assert_eq!(got.status, 200);
    assert_eq!(got.headers["content-type"], "text/plain");
    assert_eq!(got.body, "sunny");
    let [heard] = &server.requests()[..] else {
        panic!("one request")
    };
    assert_eq!(
        (heard.method.as_str(), heard.target.as_str()),
        ("POST", "/a/b?key=k1")
    );
    assert_eq!(heard.body, b"pppppp");
    assert_eq!(heard.header("x-kept"), Some("1"));
    assert_eq!(heard.header("host"), Some(&*server.address().to_string()));
    assert_eq!(heard.header("connection"), Some("close"));
    assert!(
        heard
            .header("user-agent")
            .unwrap()
            .starts_with("agentloop-host/")
    );
    for dropped in [
        "te",
        "proxy-authorization",
        "x-dropped",
        "keep-alive",
        "upgrade",
    ] {
        assert_eq!(heard.header(dropped), None, "{dropped}");
    }
    assert_eq!(heard.headers.iter().filter(|(n, _)| n == "host").count(), 1);
    // The query is not told.
    assert_eq!(call.sent(), [format!("POST {}/a/b", server.origin())]);
    assert_eq!(call.refusals(), []);
}

#[tokio::test]
async fn what_is_not_both_requested_and_granted_does_not_leave() {
    let server = Server::start(|_| Reply::text("no")).await;
    let other = Server::start(|_| Reply::text("no")).await;
    let here = server.origin();
    let here = here.as_str();
    let everything: Entry<'_> = ("*", ALL_METHODS);
    let nothing = reach(&[], &[]);
    let not_requested = reach(&[("https://api.example.org", &[])], &[everything]);
    let not_granted = reach(&[everything], &[]);
    let only_reading = reach(&[everything], &[(here, &[])]);
    let only_reading_requested = reach(&[(here, &[])], &[(here, ALL_METHODS)]);
    let whole = granted(&[here]);
    let request = |method: &str, uri: String| {
        http::Request::builder()
            .method(method)
            .uri(uri)
            .body(body(b""))
            .unwrap()
    };
    let table = [
        ("nothing", &nothing, request("GET", server.url("/"))),
        (
            "not requested",
            &not_requested,
            request("GET", server.url("/")),
        ),
        ("not granted", &not_granted, request("GET", server.url("/"))),
        (
            "method not granted",
            &only_reading,
            request("POST", server.url("/")),
        ),
        (
            "method not requested",
            &only_reading_requested,
            request("POST", server.url("/")),
        ),
        (
            "method in lower case",
            &whole,
            request("get", server.url("/")),
        ),
        ("other port", &whole, request("GET", other.url("/"))),
        (
            "other scheme",
            &whole,
            request("GET", format!("https://{}/", server.address())),
        ),
        (
            "other name for the same",
            &whole,
            request("GET", server.origin_as("localhost")),
        ),
        (
            "granted name as user",
            &whole,
            request(
                "GET",
                format!("http://{}@{}/", "127.0.0.1", other.address()),
            ),
        ),
    ];
    for (what, reach, request) in table {
        let mut call = call(&Fake::default(), reach);
        assert!(is_denied(ask(&mut call, request).await), "{what}");
        assert_eq!(call.sent(), [""; 0], "{what}");
        assert_eq!(call.refusals().len(), 1, "{what}");
    }
    assert_eq!(server.connections() + other.connections(), 0);
}

#[tokio::test]
async fn a_user_name_in_a_granted_address_is_refused() {
    let server = Server::start(|_| Reply::text("no")).await;
    let mut call = call(&Fake::default(), &granted(&[&server.origin()]));
    let uri = format!("http://user:pw@{}/", server.address());
    let answer = ask(&mut call, get(&uri)).await;
    assert!(matches!(answer, Err(Error::HttpRequestUriInvalid)));
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_refusal_says_what_was_tried_and_what_would_allow_it() {
    let uri = "https://api.example.org/v1/today?key=secret";
    let mut not_granted = call(&Fake::default(), &reach(&[("*", ALL_METHODS)], &[]));
    assert!(is_denied(ask(&mut not_granted, get(uri)).await));
    let [refusal] = &not_granted.refusals()[..] else {
        panic!("one refusal")
    };
    assert_eq!(refusal.attempted, "GET https://api.example.org/v1/today");
    assert_eq!(
        refusal.missing.to_string(),
        "GET at https://api.example.org"
    );
    assert!(refusal.requested);
    assert_eq!(
        refusal.remedy,
        "To allow it, add the origin to the plugin's grants in agentloop.toml:\n\
         [grants.weather]\n\
         http = [\"https://api.example.org\"]"
    );

    let mut not_requested = call(&Fake::default(), &reach(&[], &[("*", ALL_METHODS)]));
    assert!(is_denied(ask(&mut not_requested, get(uri)).await));
    let [refusal] = &not_requested.refusals()[..] else {
        panic!("one refusal")
    };
    assert!(!refusal.requested);
    assert!(refusal.remedy.starts_with("Only the author of the tool"));
}

/// The lines of a remedy are put into the settings, and then the same request is allowed.
#[tokio::test]
async fn the_lines_of_a_remedy_are_the_ones_that_help() {
    for method in ["GET", "POST"] {
        let server = Server::start(|_| Reply::text("ok")).await;
        let request = || {
            http::Request::builder()
                .method(method)
                .uri(server.url("/"))
                .body(body(b""))
                .unwrap()
        };
        let asked: Entry<'_> = ("*", ALL_METHODS);
        let mut refused = call(&Fake::default(), &reach(&[asked], &[]));
        assert!(is_denied(ask(&mut refused, request()).await));
        let remedy = &refused.refusals()[0].remedy;
        let (_, lines) = remedy.split_once('\n').unwrap();

        let settings: toml::Table = lines.parse().unwrap();
        let entry = &settings["grants"]["weather"]["http"][0];
        let (pattern, names) = match entry {
            toml::Value::String(pattern) => (pattern.as_str(), vec![]),
            entry => (
                entry["origin"].as_str().unwrap(),
                vec![entry["methods"][0].as_str().unwrap()],
            ),
        };
        let mut allowed = call(&Fake::default(), &reach(&[asked], &[(pattern, &names)]));
        assert_eq!(ask(&mut allowed, request()).await.unwrap().body, "ok");
    }
}

#[tokio::test]
async fn refusals_are_told_once_and_bounded() {
    let mut call = call(&Fake::default(), &granted(&[]));
    for n in 0..MAX_REQUESTS / 2 {
        for path in ["a", "b"] {
            let uri = format!("https://h{n}.example/{path}");
            assert!(is_denied(ask(&mut call, get(&uri)).await));
        }
    }
    let refusals = call.refusals();
    assert_eq!(refusals.len(), MAX_REFUSALS);
    let origins: std::collections::HashSet<_> =
        refusals.iter().map(|r| r.missing.to_string()).collect();
    assert_eq!(origins.len(), MAX_REFUSALS);
}

/// B36: an allowed site sends the guest on to another port, where nothing may arrive.
#[tokio::test]
async fn a_redirect_is_judged_like_a_first_request() {
    let inside = Server::start(|_| Reply::text("secret")).await;
    let to = inside.url("/latest/meta-data");
    let allowed = Server::start(move |_| Reply::redirect(&to)).await;
    let mut call = call(&Fake::default(), &granted(&[&allowed.origin()]));

    let first = ask(&mut call, get(&allowed.url("/"))).await.unwrap();
    assert_eq!(first.status, 302);
    let location = first.headers["location"].to_str().unwrap();
    assert!(is_denied(ask(&mut call, get(location)).await));

    assert_eq!(inside.connections(), 0);
    let [refusal] = &call.refusals()[..] else {
        panic!("one refusal")
    };
    assert_eq!(refusal.attempted, format!("GET {location}"));
    assert_eq!(call.sent(), [format!("GET {}/", allowed.origin())]);
}

#[tokio::test]
async fn a_public_site_cannot_redirect_inside_even_under_a_grant_of_everything() {
    let public = Server::start(|_| Reply::redirect("http://169.254.169.254/latest/")).await;
    let fake = Fake::default()
        .name("public.example", &[&[PUBLIC]])
        .route(PUBLIC, &public);
    let mut call = call(&fake, &granted(&["*"]));
    let first = ask(&mut call, get("http://public.example/")).await.unwrap();
    let location = first.headers["location"].to_str().unwrap();
    assert!(is_prohibited(ask(&mut call, get(location)).await));
    assert_eq!(fake.dialled(), [PUBLIC]);
}

#[tokio::test]
async fn private_addresses_need_a_grant_that_names_them() {
    let server = Server::start(|_| Reply::text("inside")).await;
    let port = server.address().port();
    let fake = Fake::default();
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.1.",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "10.0.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "192.168.0.1",
        "[fd00:ec2::254]",
        "0.0.0.0",
    ] {
        let mut call = call(&fake, &granted(&["*"]));
        let answer = ask(&mut call, get(&format!("http://{host}:{port}/"))).await;
        assert!(is_prohibited(answer), "{host}");
        let [refusal] = &call.refusals()[..] else {
            panic!("one refusal for {host}")
        };
        assert!(refusal.requested);
        assert!(
            refusal.remedy.contains("name it exactly"),
            "{}",
            refusal.remedy
        );
        assert!(
            refusal.remedy.contains("[grants.weather]"),
            "{}",
            refusal.remedy
        );
    }
    assert_eq!(fake.dialled(), [IpAddr::V4(Ipv4Addr::LOCALHOST); 0]);
    assert_eq!(fake.resolved(), [""; 0]);
    assert_eq!(server.connections(), 0);

    // Other spellings of a granted address are that address.
    for host in ["127.0.0.1", "0x7f000001", "127.1"] {
        let mut call = call(&fake, &granted(&["*", &server.origin()]));
        let got = ask(&mut call, get(&format!("http://{host}:{port}/"))).await;
        assert_eq!(got.unwrap().body, "inside", "{host}");
    }
    // Named exactly, but not for this method.
    let everything: Entry<'_> = ("*", ALL_METHODS);
    let reading = reach(&[everything], &[everything, (&server.origin(), &[])]);
    let mut call = call(&fake, &reading);
    let post = http::Request::post(server.url("/"))
        .body(body(b""))
        .unwrap();
    assert!(is_prohibited(ask(&mut call, post).await));
}

#[tokio::test]
async fn localhost_is_the_loopback_whatever_the_dns_says() {
    let server = Server::start(|_| Reply::text("inside")).await;
    let fake = Fake::default().name("localhost", &[&[METADATA]]);
    let mut call = call(&fake, &granted(&[&server.origin_as("localhost")]));
    let uri = server.origin_as("LocalHost.") + "/";
    assert_eq!(ask(&mut call, get(&uri)).await.unwrap().body, "inside");
    assert_eq!(fake.resolved(), [""; 0]);
    assert_eq!(fake.dialled(), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
}

#[tokio::test]
async fn names_that_lead_inside_are_refused_even_when_granted_by_name() {
    for address in [
        METADATA,
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
        "10.1.2.3".parse().unwrap(),
        "::ffff:10.1.2.3".parse().unwrap(),
        "fd00::1".parse().unwrap(),
    ] {
        let fake = Fake::default().name("api.example.org", &[&[address]]);
        let mut call = call(&fake, &granted(&["http://api.example.org", "*"]));
        let answer = ask(&mut call, get("http://api.example.org/")).await;
        assert!(is_prohibited(answer), "{address}");
        assert_eq!(fake.dialled(), [PUBLIC; 0], "{address}");
        let [refusal] = &call.refusals()[..] else {
            panic!("one refusal for {address}")
        };
        // A tool must not learn where inside names lead.
        assert!(!refusal.remedy.contains(&address.to_string()));
    }
}

#[tokio::test]
async fn of_mixed_answers_only_public_addresses_are_connected_to() {
    let server = Server::start(|_| Reply::text("outside")).await;
    let fake = Fake::default()
        .name("mixed.example", &[&[METADATA, BLACK_HOLE, PUBLIC]])
        .route(BLACK_HOLE, &server)
        .route(PUBLIC, &server);
    let limits = EgressLimits {
        // The first of two addresses gets half of it.
        connect: Duration::from_secs(2),
        ..EgressLimits::default()
    };
    let mut call = call_with(&fake, limits, &granted(&["http://mixed.example"]));
    let got = ask(&mut call, get("http://mixed.example/")).await.unwrap();
    assert_eq!(got.body, "outside");
    // The one that does not answer does not use up the time of the one that does.
    assert_eq!(fake.dialled(), [BLACK_HOLE, PUBLIC]);
}

#[tokio::test]
async fn a_name_is_looked_up_once_and_the_second_answer_is_never_used() {
    let outside = Server::start(|_| Reply::text("outside")).await;
    let fake = Fake::default()
        .name("flip.example", &[&[PUBLIC], &[METADATA]])
        .route(PUBLIC, &outside);
    let mut call = call(&fake, &granted(&["http://flip.example"]));

    let got = ask(&mut call, get("http://flip.example/")).await.unwrap();
    assert_eq!(got.body, "outside");
    assert_eq!(fake.resolved(), ["flip.example"]);
    assert!(is_prohibited(
        ask(&mut call, get("http://flip.example/")).await
    ));
    assert_eq!(fake.resolved().len(), 2);
    assert_eq!(fake.dialled(), [PUBLIC]);
}

#[tokio::test]
async fn hosts_are_compared_and_sent_in_one_spelling() {
    let server = Server::start(|_| Reply::text("ok")).await;
    let fake = Fake::default()
        .name("api.example.org", &[&[PUBLIC]])
        .route(PUBLIC, &server);
    let mut call = call(&fake, &granted(&["http://api.example.org"]));
    for uri in [
        "http://API.Example.ORG/",
        "http://api.example.org./",
        "http://api.example.org:80",
    ] {
        assert_eq!(ask(&mut call, get(uri)).await.unwrap().body, "ok", "{uri}");
    }
    for heard in server.requests() {
        assert_eq!(heard.header("host"), Some("api.example.org"));
        assert_eq!(heard.target, "/");
    }
    assert!(is_denied(
        ask(&mut call, get("http://x.api.example.org/")).await
    ));
}

#[tokio::test]
async fn unknown_names_and_closed_ports_have_their_own_errors() {
    let closed = Server::start(|_| Reply::silent()).await;
    let address = closed.address();
    drop(closed);
    let mut call = call(
        &Fake::default(),
        &granted(&["*", &format!("http://{address}")]),
    );
    let answer = ask(&mut call, get("http://nowhere.example/")).await;
    assert!(matches!(answer, Err(Error::DnsError { .. })), "{answer:?}");
    let answer = ask(&mut call, get("http://93.184.216.35/")).await;
    assert!(
        matches!(answer, Err(Error::DestinationUnavailable)),
        "{answer:?}"
    );
    assert_eq!(call.sent(), [""; 0]);
}

/// B41.
#[tokio::test]
async fn a_private_authority_is_trusted_only_when_the_setting_names_it() {
    let authority = Authority::generate();
    let dir = tempfile::tempdir().unwrap();
    let pem = dir.path().join("corp.pem");
    authority.write_pem(&pem);
    let tls = authority.server_config(&["api.example.org", "localhost", "127.0.0.1"]);
    let server = Server::start_tls(tls, |_| Reply::text("inside TLS")).await;
    let fake = Fake::default()
        .name("api.example.org", &[&[PUBLIC]])
        .name("wrong.example.org", &[&[PUBLIC]])
        .route(PUBLIC, &server);
    let by_name = "https://api.example.org/";
    let wrong_name = "https://wrong.example.org/";
    let reach = granted(&["*", &server.origin(), &server.origin_as("localhost")]);

    let without = egress(&fake, EgressLimits::default(), &[]);
    let mut call = without.for_call(&reach, &plugin(), None, None);
    for _ in 0..2 {
        let answer = ask(&mut call, get(by_name)).await;
        assert!(
            matches!(answer, Err(Error::TlsCertificateError)),
            "{answer:?}"
        );
    }
    let [hint] = &call.hints()[..] else {
        panic!("one hint")
    };
    assert!(hint.contains("not trusted"), "{hint}");
    assert!(hint.contains("https://api.example.org"), "{hint}");
    assert!(hint.contains("`extra_ca_files`"), "{hint}");
    assert_eq!(call.sent(), [""; 0]);

    let with = egress(&fake, EgressLimits::default(), &[pem]);
    let mut call = with.for_call(&reach, &plugin(), None, None);
    for uri in [by_name, &server.url("/"), &server.origin_as("localhost")] {
        let got = ask(&mut call, get(uri)).await.unwrap();
        assert_eq!(got.body, "inside TLS", "{uri}");
    }
    let answer = ask(&mut call, get(wrong_name)).await;
    assert!(
        matches!(answer, Err(Error::TlsCertificateError)),
        "{answer:?}"
    );
    assert_eq!(call.hints(), [""; 0]);
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_server_without_tls_is_no_https_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("https://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer)
            .await
            .unwrap();
        stream
    });
    let mut call = call(&Fake::default(), &granted(&[&uri]));
    let answer = ask(&mut call, get(&uri)).await;
    assert!(matches!(answer, Err(Error::TlsProtocolError)), "{answer:?}");
    assert_eq!(call.hints(), [""; 0]);
    drop(server.await);
}

/// Short enough to wait for.
const SOON: Duration = Duration::from_millis(200);

/// No time limit ends a request, so that the one under test has to.
const PATIENT: EgressLimits = EgressLimits {
    requests: MAX_REQUESTS,
    at_once: MAX_REQUESTS_AT_ONCE,
    request_body_bytes: MAX_REQUEST_BODY_BYTES,
    response_body_bytes: MAX_RESPONSE_BODY_BYTES,
    header_bytes: MAX_HEADER_BYTES,
    connect: Duration::from_secs(3600),
    first_byte: Duration::from_secs(3600),
    gap: Duration::from_secs(3600),
    total: Duration::from_secs(3600),
};

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let server = Server::start(|_| Reply::silent()).await;
    let limits = EgressLimits {
        first_byte: SOON,
        ..PATIENT
    };
    let mut call = call_with(&Fake::default(), limits, &granted(&[&server.origin()]));
    let answer = ask(&mut call, get(&server.url("/"))).await;
    assert!(
        matches!(answer, Err(Error::ConnectionReadTimeout)),
        "{answer:?}"
    );
    server.ended(1).await;
    // It was sent, whatever became of it.
    assert_eq!(call.sent().len(), 1);
}

#[tokio::test]
async fn an_answer_that_stalls_is_given_up() {
    let server = Server::start(|_| Reply::stalling("so far")).await;
    let limits = EgressLimits {
        gap: SOON,
        ..PATIENT
    };
    let mut call = call_with(&Fake::default(), limits, &granted(&[&server.origin()]));
    let answer = ask(&mut call, get(&server.url("/"))).await;
    assert!(
        matches!(answer, Err(Error::ConnectionReadTimeout)),
        "{answer:?}"
    );
    server.ended(1).await;
}

#[tokio::test]
async fn an_answer_that_only_drips_ends_with_the_total() {
    let server = Server::start(|_| Reply::dripping(Duration::from_millis(20))).await;
    let limits = EgressLimits {
        total: SOON,
        ..PATIENT
    };
    let mut call = call_with(&Fake::default(), limits, &granted(&[&server.origin()]));
    let answer = ask(&mut call, get(&server.url("/"))).await;
    assert!(
        matches!(answer, Err(Error::HttpResponseTimeout)),
        "{answer:?}"
    );
    server.ended(1).await;
}

#[tokio::test]
async fn the_calls_deadline_ends_its_requests() {
    let server = Server::start(|_| Reply::dripping(Duration::from_millis(20))).await;
    let egress = egress(&Fake::default(), PATIENT, &[]);
    let deadline = std::time::Instant::now() + SOON;
    let mut call = egress.for_call(
        &granted(&[&server.origin()]),
        &plugin(),
        None,
        Some(deadline),
    );
    let answer = ask(&mut call, get(&server.url("/"))).await;
    assert!(
        matches!(answer, Err(Error::HttpResponseTimeout)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn an_address_that_swallows_connections_is_given_up() {
    let fake = Fake::default().name("hole.example", &[&[BLACK_HOLE]]);
    let limits = EgressLimits {
        connect: SOON,
        ..PATIENT
    };
    let mut call = call_with(&fake, limits, &granted(&["*"]));
    let answer = ask(&mut call, get("http://hole.example/")).await;
    assert!(
        matches!(answer, Err(Error::ConnectionTimeout)),
        "{answer:?}"
    );
    assert_eq!(call.sent(), [""; 0]);
}

#[tokio::test]
async fn a_guest_can_be_less_patient_but_not_more() {
    let silent = Server::start(|_| Reply::silent()).await;
    let stalling = Server::start(|_| Reply::stalling("")).await;
    let fake = Fake::default().name("hole.example", &[&[BLACK_HOLE]]);
    let reach = granted(&["*", &silent.origin(), &stalling.origin()]);
    let none = RequestOptions::default();
    let connect = |time| RequestOptions {
        connect_timeout: Some(time),
        ..none
    };
    let first_byte = |time| RequestOptions {
        first_byte_timeout: Some(time),
        ..none
    };
    let gap = |time| RequestOptions {
        between_bytes_timeout: Some(time),
        ..none
    };
    let hole = "http://hole.example/".to_owned();
    for (uri, options) in [
        (&hole, connect(SOON)),
        (&silent.url("/"), first_byte(SOON)),
        (&stalling.url("/"), gap(SOON)),
    ] {
        let mut call = call_with(&fake, PATIENT, &reach);
        let answer = ask_with(&mut call, get(uri), Some(options)).await;
        assert!(
            matches!(
                answer,
                Err(Error::ConnectionTimeout | Error::ConnectionReadTimeout)
            ),
            "{uri}: {answer:?}"
        );
    }
    let limits = EgressLimits {
        first_byte: SOON,
        ..PATIENT
    };
    let mut call = call_with(&fake, limits, &reach);
    let longer = Some(first_byte(PATIENT.total));
    let answer = ask_with(&mut call, get(&silent.url("/")), longer).await;
    assert!(
        matches!(answer, Err(Error::ConnectionReadTimeout)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn request_bodies_end_at_their_limit() {
    let server = Server::start(|_| Reply::text("ok")).await;
    let limits = EgressLimits {
        request_body_bytes: 1000,
        ..EgressLimits::default()
    };
    let mut call = call_with(&Fake::default(), limits, &granted(&[&server.origin()]));
    let post = |body| http::Request::post(server.url("/")).body(body).unwrap();

    let just = ask(&mut call, post(pieces(10, 100))).await.unwrap();
    assert_eq!(just.status, 200);
    let answer = ask(&mut call, post(pieces(11, 100))).await;
    assert!(
        matches!(answer, Err(Error::HttpRequestBodySize(Some(1000)))),
        "{answer:?}"
    );
    // An announced one does not even connect.
    let mut announced = post(pieces(11, 100));
    let length = http::HeaderValue::from_static("1100");
    announced.headers_mut().insert("content-length", length);
    let connections = server.connections();
    let answer = ask(&mut call, announced).await;
    assert!(
        matches!(answer, Err(Error::HttpRequestBodySize(Some(1000)))),
        "{answer:?}"
    );
    assert_eq!(server.connections(), connections);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn response_bodies_are_cut_at_their_limit() {
    const LIMIT: u64 = 100_000;
    let limits = EgressLimits {
        response_body_bytes: LIMIT,
        ..EgressLimits::default()
    };
    let too_large = |answer: Result<Got, Error>| {
        matches!(answer, Err(Error::HttpResponseBodySize(Some(LIMIT))))
    };
    let fits = Server::start(|_| Reply::whole(200, &[], vec![b'x'; LIMIT as usize])).await;
    let announced = Server::start(|_| Reply::whole(200, &[], vec![b'x'; LIMIT as usize + 1])).await;
    let endless = Server::start(|_| Reply::endless()).await;
    let origins = [fits.origin(), announced.origin(), endless.origin()];
    let reach = granted(&origins.each_ref().map(String::as_str));
    let mut call = call_with(&Fake::default(), limits, &reach);

    let got = ask(&mut call, get(&fits.url("/"))).await.unwrap();
    assert_eq!(got.body.len() as u64, LIMIT);
    // Where the length is known, the guest does not even get the head.
    let sending = call.send_request(get(&announced.url("/")), None, Box::new(async { Ok(()) }));
    assert!(Box::into_pin(sending).await.is_err());
    assert!(too_large(ask(&mut call, get(&announced.url("/"))).await));
    assert!(too_large(ask(&mut call, get(&endless.url("/"))).await));
    endless.ended(1).await;
    // The length in an answer to HEAD is of a body that does not come.
    let head = http::Request::head(announced.url("/"))
        .body(body(b""))
        .unwrap();
    let answer = ask(&mut call, head).await;
    assert!(answer.is_ok_and(|got| got.body.is_empty()));
}

#[tokio::test]
async fn headers_end_at_their_limit_both_ways() {
    let server = Server::start(|_| Reply::large_head(2 * MAX_HEADER_BYTES)).await;
    let mut call = call(&Fake::default(), &granted(&[&server.origin()]));
    let answer = ask(&mut call, get(&server.url("/"))).await;
    let limit = u32::try_from(MAX_HEADER_BYTES).unwrap();
    assert!(
        matches!(answer, Err(Error::HttpResponseHeaderSectionSize(Some(l))) if l == limit),
        "{answer:?}"
    );
    let large = http::Request::get(server.url("/"))
        .header("x-large", "v".repeat(MAX_HEADER_BYTES))
        .body(body(b""))
        .unwrap();
    let answer = ask(&mut call, large).await;
    assert!(
        matches!(answer, Err(Error::HttpRequestHeaderSectionSize(Some(l))) if l == limit),
        "{answer:?}"
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_call_has_a_number_of_requests() {
    let server = Server::start(|_| Reply::text("ok")).await;
    let mut call = call(&Fake::default(), &granted(&[&server.origin()]));
    for n in 0..MAX_REQUESTS {
        // Refused ones count, or a guest could try addresses for ever.
        let uri = match n % 2 {
            0 => server.url("/"),
            _ => "https://other.example/".to_owned(),
        };
        let answer = ask(&mut call, get(&uri)).await;
        assert!(!matches!(answer, Err(Error::ConnectionLimitReached)), "{n}");
    }
    let answer = ask(&mut call, get(&server.url("/"))).await;
    assert!(
        matches!(answer, Err(Error::ConnectionLimitReached)),
        "{answer:?}"
    );
    assert_eq!(server.connections(), MAX_REQUESTS / 2);
    assert_eq!(call.sent().len(), MAX_REQUESTS / 2);
}

#[tokio::test]
async fn requests_beyond_those_at_once_wait_in_line() {
    let pause = Step::Wait(Duration::from_millis(30));
    let answer = Reply::steps([pause, Reply::text("ok").0.remove(0).unwrap()]);
    let server = Server::start(move |_| answer.clone()).await;
    let call = call(&Fake::default(), &granted(&[&server.origin()]));
    let asking = (0..3 * MAX_REQUESTS_AT_ONCE).map(|_| {
        let mut door = CallEgress(call.0.clone());
        let uri = server.url("/");
        async move { ask(&mut door, get(&uri)).await.unwrap().status }
    });
    let statuses = join_all(asking).await;
    assert!(statuses.iter().all(|status| *status == 200));
    assert!(
        server.most_at_once() <= MAX_REQUESTS_AT_ONCE,
        "{}",
        server.most_at_once()
    );
}

#[tokio::test]
async fn a_place_in_line_is_held_by_an_unread_answer_and_not_waited_for_for_ever() {
    let server = Server::start(|_| Reply::stalling("")).await;
    let limits = EgressLimits {
        at_once: 1,
        total: Duration::from_secs(2),
        ..EgressLimits::default()
    };
    let mut call = call_with(&Fake::default(), limits, &granted(&[&server.origin()]));
    let uri = server.url("/");
    let first = call.send_request(get(&uri), None, Box::new(async { Ok(()) }));
    let unread = Box::into_pin(first).await.unwrap();
    let second = ask(&mut call, get(&uri)).await;
    assert!(
        matches!(second, Err(Error::ConnectionLimitReached)),
        "{second:?}"
    );
    assert_eq!(server.connections(), 1);
    drop(unread);

    // One that was read to its end holds no place, even while the guest keeps the handle.
    let done = Server::start(|_| Reply::text("done")).await;
    let mut call = call_with(&Fake::default(), limits, &granted(&[&done.origin()]));
    let uri = done.url("/");
    let first = call.send_request(get(&uri), None, Box::new(async { Ok(()) }));
    let (mut response, driver) = Box::into_pin(first).await.unwrap();
    let (read, _) = tokio::join!(response.body_mut().collect(), Box::into_pin(driver));
    assert_eq!(read.unwrap().to_bytes(), "done");
    let third = call.send_request(get(&uri), None, Box::new(async { Ok(()) }));
    assert!(Box::into_pin(third).await.is_ok());
    drop(response);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_told() {
    let server = Server::start(|_| Reply::truncated()).await;
    let nonsense =
        Server::start(|_| Reply::steps([Step::Send(b"SSH-2.0-OpenSSH_9\r\n\r\n".to_vec())])).await;
    let mute = Server::start(|_| Reply::steps([])).await;
    let reach = granted(&[&server.origin(), &nonsense.origin(), &mute.origin()]);
    let mut call = call(&Fake::default(), &reach);
    let answer = ask(&mut call, get(&server.url("/"))).await;
    assert!(
        matches!(answer, Err(Error::HttpResponseIncomplete)),
        "{answer:?}"
    );
    let answer = ask(&mut call, get(&mute.url("/"))).await;
    assert!(
        matches!(answer, Err(Error::ConnectionTerminated)),
        "{answer:?}"
    );
    let answer = ask(&mut call, get(&nonsense.url("/"))).await;
    assert!(
        matches!(answer, Err(Error::HttpProtocolError)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn compressed_bodies_stay_as_they_are() {
    let server = Server::start(|_| Reply::gzip_bomb()).await;
    let mut call = call(&Fake::default(), &granted(&[&server.origin()]));
    let got = ask(&mut call, get(&server.url("/"))).await.unwrap();
    assert_eq!(got.body, &GZIP_BOMB[..]);
    assert_eq!(got.headers["content-encoding"], "gzip");
    assert_eq!(server.requests()[0].header("accept-encoding"), None);
}

#[tokio::test]
async fn bodies_arrive_while_the_server_still_sends() {
    let server = Server::start(|_| Reply::stalling("early")).await;
    let mut call = call(&Fake::default(), &granted(&[&server.origin()]));
    let sending = call.send_request(get(&server.url("/")), None, Box::new(async { Ok(()) }));
    let (response, driver) = Box::into_pin(sending).await.unwrap();
    let mut body = response.into_body();
    let mut driver = Box::into_pin(driver);
    let frame = tokio::select! {
        frame = body.frame() => frame.unwrap().unwrap(),
        _ = &mut driver => panic!("the connection is still open"),
    };
    assert_eq!(frame.into_data().unwrap(), "early");
    // What wasi-http drops when the guest's store goes.
    drop((body, driver, call));
    server.ended(1).await;
}

#[tokio::test]
async fn dropping_a_request_under_way_closes_its_connection() {
    let server = Server::start(|_| Reply::silent()).await;
    let mut call = call(&Fake::default(), &granted(&[&server.origin()]));
    let sending = call.send_request(get(&server.url("/")), None, Box::new(async { Ok(()) }));
    let sending = tokio::spawn(Box::into_pin(sending));
    while server.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    sending.abort();
    server.ended(1).await;
    assert_eq!(call.sent().len(), 1);
}

#[test]
fn the_limits_are_the_documented_ones() {
    let limits = EgressLimits::default();
    assert_eq!((limits.requests, limits.at_once), (32, 6));
    assert_eq!(limits.request_body_bytes, 10 << 20);
    assert_eq!(limits.response_body_bytes, 10 << 20);
    assert_eq!(limits.header_bytes, 32 << 10);
    let seconds = [limits.connect, limits.first_byte, limits.gap, limits.total];
    assert_eq!(seconds.map(|time| time.as_secs()), [5, 15, 15, 30]);
}
