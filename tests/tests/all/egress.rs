//! Requests of real guests, and the host's own connections to model endpoints, which have the same trust.

use std::{error::Error, time::Duration};

use agentloop_host::{
    capability::{Capability, Grants, HttpGrant, OriginPattern},
    http::{ClientSettings, TransportFault, explain, model_client},
    sandbox::{Executor, Sandbox},
    tool::{Effects, ToolOutcome},
};
use agentloop_tests::{
    guests::{self, Guest, text},
    servers::{Authority, Reply, Server, Step},
};
use serde_json::json;

/// The helpful guest, with these origins granted for reading and sending.
async fn guest(sandbox: &Sandbox, origins: &[String]) -> Guest {
    let mut guest = Guest::load(sandbox, guests::HELPFUL).await;
    let grant = |origin: &String| HttpGrant {
        origin: OriginPattern::parse(origin).unwrap(),
        methods: ["GET", "HEAD", "POST"].map(str::to_owned).to_vec(),
    };
    guest.grants = Grants {
        http: origins.iter().map(grant).collect(),
        ..Grants::default()
    };
    guest
}

async fn fetch(guest: &Guest, url: String) -> ToolOutcome {
    guest.call("fetch", json!({ "url": url })).await.outcome
}

fn failure(outcome: ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Failed { message } => message,
        other => panic!("not a failure: {other:?}"),
    }
}

#[tokio::test]
async fn a_guest_reaches_what_is_granted() {
    let server = Server::start(|_| Reply::text("sunny")).await;
    let mut guest = guest(&guests::sandbox(), &[server.origin()]).await;
    for executor in [Executor::Guests, Executor::CallerFirst] {
        guest.executor = executor;
        assert_eq!(text(&fetch(&guest, server.url("/today")).await), "sunny");
    }
    let heard = server.requests();
    assert_eq!(heard.len(), 2);
    let host = server.address().to_string();
    assert_eq!(heard[0].target, "/today");
    assert_eq!(heard[0].header("host"), Some(host.as_str()));
}

#[tokio::test]
async fn a_guest_sends_bodies_up_to_the_limit() {
    let server = Server::start(|received| Reply::text(&received.body.len().to_string())).await;
    let guest = guest(&guests::sandbox(), &[server.origin()]).await;
    let post = async |bytes: usize| {
        let input = json!({ "url": server.url("/"), "bytes": bytes });
        guest.call("post", input).await.outcome
    };
    for bytes in [0, 1, 3 << 20, 10 << 20] {
        assert_eq!(text(&post(bytes).await), bytes.to_string());
    }
    let said = failure(post((10 << 20) + 1).await);
    assert!(said.contains("larger than 10485760 bytes"), "{said}");
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn a_guest_that_reaches_further_is_told_what_it_lacks() {
    let server = Server::start(|_| Reply::text("no")).await;
    let sandbox = guests::sandbox();
    let refused = |outcome| match outcome {
        ToolOutcome::CapabilityRefused { message, refusals } => (message, refusals),
        other => panic!("not a refusal: {other:?}"),
    };

    let ungranted = guest(&sandbox, &[]).await;
    let (message, refusals) = refused(fetch(&ungranted, server.url("/v1?key=k1")).await);
    assert!(message.contains("refused"), "{message}");
    let [refusal] = &refusals[..] else {
        panic!("one refusal: {refusals:?}")
    };
    assert_eq!(refusal.attempted, format!("GET {}/v1", server.origin()));
    assert!(refusal.requested);
    assert!(matches!(&refusal.missing, Capability::Http { .. }));
    let lines = format!("[grants.guest]\nhttp = [\"{}\"]", server.origin());
    assert!(refusal.remedy.ends_with(&lines), "{}", refusal.remedy);

    let granted = guest(&sandbox, &["*".into(), server.origin()]).await;
    let input = json!({ "url": server.url("/") });
    let (_, refusals) = refused(granted.call("fetch_elsewhere", input).await.outcome);
    assert!(!refusals[0].requested);
    assert_eq!(server.connections(), 0);
}

/// B36: the SDK follows redirects, and each hop is judged like a first request.
#[tokio::test]
async fn a_redirect_leads_a_guest_only_to_what_is_granted() {
    let inside = Server::start(|_| Reply::text("inside")).await;
    let to = inside.url("/latest/meta-data");
    let allowed = Server::start(move |_| Reply::redirect(&to)).await;
    let sandbox = guests::sandbox();

    let one = guest(&sandbox, &[allowed.origin()]).await;
    let outcome = fetch(&one, allowed.url("/")).await;
    let ToolOutcome::CapabilityRefused { refusals, .. } = outcome else {
        panic!("not a refusal: {outcome:?}")
    };
    assert_eq!(
        refusals[0].attempted,
        format!("GET {}", inside.url("/latest/meta-data"))
    );
    assert_eq!(allowed.requests().len(), 1);
    assert_eq!(inside.connections(), 0);

    let both = guest(&sandbox, &[allowed.origin(), inside.origin()]).await;
    assert_eq!(text(&fetch(&both, allowed.url("/")).await), "inside");
}

/// A grant of everything is one of everything public.
#[tokio::test]
async fn a_wildcard_opens_no_private_address_to_a_guest() {
    let server = Server::start(|_| Reply::text("no")).await;
    let guest = guest(&guests::sandbox(), &["*".into()]).await;
    for url in [
        server.url("/"),
        server.origin_as("localhost"),
        server.origin_as("0x7f000001"),
        server.origin_as("[::ffff:127.0.0.1]"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
    ] {
        let outcome = fetch(&guest, url.clone()).await;
        assert!(
            matches!(&outcome, ToolOutcome::CapabilityRefused { message, .. } if message.contains("refused")),
            "{url}: {outcome:?}"
        );
    }
    assert_eq!(server.connections(), 0);
}

/// B41.
#[tokio::test]
async fn a_guest_behind_a_private_authority_needs_the_setting() {
    let authority = Authority::generate();
    let dir = tempfile::tempdir().unwrap();
    let pem = dir.path().join("corp.pem");
    authority.write_pem(&pem);
    let tls = authority.server_config(&["localhost"]);
    let server = Server::start_tls(tls, |_| Reply::text("behind TLS")).await;
    let by_name = server.origin_as("localhost");
    let origins = [by_name.clone(), server.origin()];

    let without = guest(&guests::sandbox(), &origins).await;
    let said = failure(fetch(&without, by_name.clone()).await);
    assert!(said.contains("not trusted"), "{said}");
    assert!(said.contains("`extra_ca_files`"), "{said}");

    let mut settings = guests::settings();
    settings.extra_ca_files = vec![pem];
    let with = guest(&Sandbox::new(settings).unwrap(), &origins).await;
    assert_eq!(text(&fetch(&with, by_name).await), "behind TLS");
    // The certificate is for another name, and more trust would not help.
    let said = failure(fetch(&with, server.origin()).await);
    assert!(said.contains("certificate"), "{said}");
    assert!(!said.contains("extra_ca_files"), "{said}");
}

#[tokio::test]
async fn a_missing_ca_file_is_told_before_any_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("corp.pem");
    let mut settings = guests::settings();
    settings.extra_ca_files = vec![path.clone()];
    let error = Sandbox::new(settings).err().unwrap().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    assert!(error.contains("`extra_ca_files`"), "{error}");
}

#[tokio::test]
async fn the_deadline_ends_a_guest_on_a_silent_server_and_its_connection() {
    let server = Server::start(|_| Reply::silent()).await;
    let mut guest = guest(&guests::sandbox(), &[server.origin()]).await;
    guest.limits.timeout = Some(Duration::from_millis(500));
    let outcome = fetch(&guest, server.url("/?key=k1")).await;
    let ToolOutcome::TimedOut { effects, .. } = outcome else {
        panic!("not a time-out: {outcome:?}")
    };
    assert_eq!(
        effects,
        Effects::Sent(vec![format!("GET {}/", server.origin())])
    );
    server.ended(1).await;
}

#[tokio::test]
async fn dropping_a_call_closes_its_connections() {
    let server = Server::start(|_| Reply::stalling("so far")).await;
    let guest = guest(&guests::sandbox(), &[server.origin()]).await;
    let url = server.url("/");
    let calling = tokio::spawn(async move { fetch(&guest, url).await });
    while server.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    calling.abort();
    server.ended(1).await;
}

#[tokio::test]
async fn answers_that_break_the_rules_fail_the_call_in_words() {
    let truncated = Server::start(|_| Reply::truncated()).await;
    let endless = Server::start(|_| Reply::endless()).await;
    let large_head = Server::start(|_| Reply::large_head(64 << 10)).await;
    let no_http = Server::start(|_| Reply::steps([Step::Send(b"SSH-2.0\r\n\r\n".to_vec())])).await;
    let closed = Server::start(|_| Reply::silent()).await;
    let table = [
        (truncated.url("/"), "incomplete"),
        (endless.url("/"), "larger than"),
        (large_head.url("/"), "headers are larger than 32768 bytes"),
        (no_http.url("/"), "not HTTP"),
        (closed.url("/"), "refuses connections"),
    ];
    let servers = [&truncated, &endless, &large_head, &no_http, &closed];
    let guest = guest(&guests::sandbox(), &servers.map(Server::origin)).await;
    drop(closed);
    for (url, expected) in table {
        let said = failure(fetch(&guest, url).await);
        assert!(said.contains(expected), "{said} should contain {expected}");
    }
    endless.ended(1).await;
}

fn settings() -> ClientSettings {
    ClientSettings {
        // Whoever runs the tests may have a proxy, which would not find the servers of this machine.
        environment_proxy: false,
        ..ClientSettings::default()
    }
}

/// The body, or the fault and what is said of it.
async fn get(settings: &ClientSettings, url: &str) -> Result<String, (TransportFault, String)> {
    let told = |error| {
        (
            TransportFault::of(&error as &(dyn Error + 'static)),
            explain(&error),
        )
    };
    let client = model_client(settings).unwrap();
    let response = client.get(url).send().await.map_err(told)?;
    assert_eq!(response.status().as_u16(), 200);
    response.text().await.map_err(told)
}

/// B41.
#[tokio::test]
async fn a_model_endpoint_with_a_private_authority_needs_the_setting() {
    let authority = Authority::generate();
    let dir = tempfile::tempdir().unwrap();
    let pem = dir.path().join("corp.pem");
    authority.write_pem(&pem);
    let tls = authority.server_config(&["localhost"]);
    let server = Server::start_tls(tls, |_| Reply::text("a model")).await;
    let url = server.origin_as("localhost") + "/v1?key=k1";

    let (fault, said) = get(&settings(), &url).await.unwrap_err();
    assert_eq!(fault, TransportFault::UntrustedCertificate);
    assert!(fault.to_string().contains("not trusted"));
    assert!(fault.hint().unwrap().contains("`extra_ca_files`"));
    assert!(said.contains("UnknownIssuer"), "{said}");
    assert!(!said.contains("k1"), "{said}");

    let trusting = ClientSettings {
        extra_ca_files: vec![pem],
        ..settings()
    };
    assert_eq!(get(&trusting, &url).await.unwrap(), "a model");

    // The certificate is for another name.
    let (fault, said) = get(&trusting, &server.url("/")).await.unwrap_err();
    assert_eq!(fault, TransportFault::BadCertificate);
    assert_eq!(fault.hint(), None);
    assert!(said.contains("127.0.0.1"), "{said}");
}

#[tokio::test]
async fn faults_of_model_endpoints_are_told_apart() {
    let silent = Server::start(|_| Reply::silent()).await;
    let stalling = Server::start(|_| Reply::stalling("so far")).await;
    let truncated = Server::start(|_| Reply::truncated()).await;
    let mute = Server::start(|_| Reply::steps([])).await;
    let closed = Server::start(|_| Reply::silent()).await;
    let nobody = closed.url("/");
    drop(closed);
    let impatient = ClientSettings {
        read_timeout: Duration::from_millis(200),
        ..settings()
    };
    let table = [
        (&impatient, silent.url("/"), TransportFault::Timeout),
        (&impatient, stalling.url("/"), TransportFault::Timeout),
        (&settings(), truncated.url("/"), TransportFault::Closed),
        (&settings(), mute.url("/"), TransportFault::Closed),
        (&settings(), nobody, TransportFault::Refused),
    ];
    for (settings, url, expected) in table {
        let (fault, said) = get(settings, &url).await.unwrap_err();
        assert_eq!(fault, expected, "{url}: {said}");
        assert!(!said.is_empty());
        assert!(!said.contains("http://"), "{said}");
    }
}

/// A redirect could carry the key to another host.
#[tokio::test]
async fn model_clients_follow_no_redirect() {
    let elsewhere = Server::start(|_| Reply::text("no")).await;
    let to = elsewhere.url("/");
    let server = Server::start(move |_| Reply::redirect(&to)).await;
    let client = model_client(&settings()).unwrap();
    let response = client.get(server.url("/")).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 302);
    assert_eq!(elsewhere.connections(), 0);
    let agent = server.requests()[0]
        .header("user-agent")
        .unwrap()
        .to_owned();
    assert!(agent.starts_with("agentloop-host/"), "{agent}");
}
