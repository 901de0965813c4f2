//! `serve` as clients and strangers see it, on real sockets.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use agentloop_host::{
    agent::Deps,
    capability::Grants,
    config::permissions::Rule,
    ids::PluginName,
    registry::{Plugin, Registry, native::NativeTool},
    server::{
        Bounds, NewAgent, Parts, Server,
        access::{Access, Token},
        listen::{self, Listener, Patience},
    },
};
use agentloop_tests::{
    guests,
    http_client::{Answer, Request, read_answer},
    servers::Authority,
    storage,
};
use axum::{Router, routing::any};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

mod program;
mod runs;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A server that listens.
struct Serving {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Serving {
    async fn start(server: Server, patience: Patience) -> Self {
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(anywhere, None, patience).await.unwrap();
        let address = listener.address().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.serve(listener, stop.clone()));
        Self {
            address,
            stop,
            task,
        }
    }

    async fn with(access: Access) -> Self {
        Self::start(server(access, Bounds::default()), Patience::default()).await
    }

    async fn send(&self, request: Request) -> Answer {
        request.send(self.address).await
    }

    /// The oldest call that waits for a person, once there is one.
    async fn question(&self) -> Value {
        self.questions(1).await[0].clone()
    }

    /// All calls that wait for a person, once there are so many.
    async fn questions(&self, n: usize) -> Vec<Value> {
        loop {
            let open = self.send(Request::get("/v1/approvals")).await.json();
            let open = open["approvals"].as_array().unwrap().clone();
            if open.len() >= n {
                return open;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn answer(&self, question: &Value, decision: Value) -> Answer {
        let path = format!("/v1/approvals/{}", question["id"].as_str().unwrap());
        self.send(Request::post(&path, &decision)).await
    }

    async fn figure(&self, line: &str) -> bool {
        let figures = self.send(Request::get("/metrics")).await;
        figures.text().lines().any(|found| found == line)
    }

    async fn wait_for_figure(&self, line: &str) {
        while !self.figure(line).await {
            tokio::task::yield_now().await;
        }
    }
}

fn own_tools() -> Registry {
    let schema = json!({
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": false,
    });
    let echo = NativeTool::new("echo", "Returns the text.", schema, |arguments| {
        arguments["text"]
            .as_str()
            .map(str::to_owned)
            .ok_or("no text")
    })
    .unwrap();
    let fail = NativeTool::new("fail", "Fails.", json!({"type": "object"}), |_| {
        Err::<String, _>("it did not work")
    })
    .unwrap();
    Registry::new([echo, fail]).unwrap()
}

fn server(access: Access, bounds: Bounds) -> Server {
    server_of(own_tools(), Deps::default(), access, bounds)
}

/// Without a model.
fn server_of(registry: Registry, deps: Deps, access: Access, bounds: Bounds) -> Server {
    Server::new(Parts {
        registry: Arc::new(registry).into(),
        deps,
        access,
        bounds,
        store: storage::fresh(),
        scope: "test".to_owned(),
        agents: Arc::new(|| Err("no model is named".to_owned())),
        remember: None,
    })
}

async fn serving_of(agents: NewAgent) -> Serving {
    let server = Server::new(Parts {
        registry: Arc::new(own_tools()).into(),
        deps: Deps::default(),
        access: Access::open(),
        bounds: Bounds::default(),
        store: storage::fresh(),
        scope: "test".to_owned(),
        agents,
        remember: None,
    });
    Serving::start(server, Patience::default()).await
}

fn with_token() -> Access {
    Access::open().with_token(Token::parse(TOKEN).unwrap())
}

fn problem(answer: &Answer, status: u16, code: &str) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    let problem = answer.json();
    assert_eq!(problem["status"], status);
    assert_eq!(problem["code"], code);
    assert!(problem["title"].is_string() && problem["detail"].is_string());
    problem
}

/// Every route, as the server's own description has them: method and path.
async fn routes(serving: &Serving) -> Vec<(String, String)> {
    let request = Request::get("/openapi.json").header("authorization", &format!("Bearer {TOKEN}"));
    let document = serving.send(request).await.json();
    let mut routes = vec![("GET".to_owned(), "/openapi.json".to_owned())];
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            routes.push((method, path.replace("{name}", "echo").replace("{id}", "0")));
        }
    }
    assert!(routes.len() > 5, "{routes:?}");
    routes
}

#[tokio::test]
async fn host_and_origin_are_checked_on_every_route() {
    let serving = Serving::with(Access::open()).await;
    let refused = [
        ("evil.example", None, "host"),
        ("localhost.evil.example:80", None, "host"),
        ("localhost", Some("http://evil.example"), "origin"),
        ("localhost:8720", Some("http://localhost:8721"), "origin"),
        ("localhost", Some("null"), "origin"),
    ];
    let mut paths = routes(&serving).await;
    paths.push(("GET".to_owned(), "/nothing/here".to_owned()));
    paths.push(("OPTIONS".to_owned(), "/v1/tools".to_owned()));
    let n_paths = paths.len();
    for (method, path) in paths {
        for (host, origin, code) in refused {
            let mut request = Request::bare(&method, &path).header("host", host);
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            problem(&serving.send(request).await, 403, code);
        }
        let answer = serving.send(Request::bare(&method, &path)).await;
        problem(&answer, 400, "host");
    }
    let n_refused = format!(
        "agentloop_http_refused_total{{why=\"origin\"}} {}",
        n_paths * 3
    );
    assert!(serving.figure(&n_refused).await);
}

#[tokio::test]
async fn every_route_but_health_needs_the_token() {
    let serving = Serving::with(with_token()).await;
    for (method, path) in routes(&serving).await {
        for (authorization, allowed) in [
            (None, false),
            (Some("Bearer x".to_owned()), false),
            (Some(format!("Bearer {TOKEN}x")), false),
            (Some(format!("Bearer {TOKEN}")), true),
        ] {
            let mut request = Request::new(&method, &path);
            if let Some(authorization) = &authorization {
                request = request.header("authorization", authorization);
            }
            let answer = serving.send(request).await;
            let is_public = ["/healthz", "/readyz"].contains(&path.as_str());
            if allowed || is_public {
                assert_ne!(answer.status, 401, "{method} {path} {authorization:?}");
            } else {
                problem(&answer, 401, "unauthorized");
                assert!(
                    answer
                        .header("www-authenticate")
                        .unwrap()
                        .starts_with("Bearer")
                );
            }
        }
        let in_query = Request::new(
            &method,
            &format!("{path}?token={TOKEN}&access_token={TOKEN}"),
        );
        let answer = serving.send(in_query).await;
        assert!(answer.status == 401 || path.ends_with('z'), "{path}");
    }
}

#[tokio::test]
async fn without_the_token_no_body_is_read() {
    let serving = Serving::with(with_token()).await;
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    // The body never comes.
    let head = "POST /v1/tools/echo/call HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(read_answer(stream).await.status, 401);
}

#[tokio::test]
async fn pages_of_listed_origins_are_served_and_others_are_not() {
    let origin = "http://localhost:6274";
    let serving = Serving::with(with_token().with_origin(origin).unwrap()).await;
    let preflight = |from: &str| {
        Request::new("OPTIONS", "/v1/tools/echo/call")
            .header("origin", from)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "mcp-protocol-version")
    };
    let answer = serving.send(preflight(origin)).await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
    let methods = answer.header("access-control-allow-methods").unwrap();
    assert_eq!(methods, "GET, POST, DELETE");
    let sendable = answer.header("access-control-allow-headers").unwrap();
    for name in [
        "content-type",
        "accept",
        "authorization",
        "mcp-session-id",
        "mcp-protocol-version",
        "last-event-id",
    ] {
        assert!(sendable.split(", ").any(|known| known == name), "{name}");
    }
    assert_eq!(
        serving
            .send(preflight("http://localhost:6275"))
            .await
            .status,
        403
    );

    // What the page may not see in a refusal it could not act on.
    let refused = serving
        .send(Request::get("/v1/tools").header("origin", origin))
        .await;
    problem(&refused, 401, "unauthorized");
    assert_eq!(refused.header("access-control-allow-origin"), Some(origin));
    let exposed = refused.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("mcp-session-id"));
    assert_eq!(refused.header("vary"), Some("origin"));
}

#[tokio::test]
async fn tools_are_listed_and_called() {
    let serving = Serving::with(Access::open()).await;
    let list = serving.send(Request::get("/v1/tools")).await.json();
    let names: Vec<_> = list["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["echo", "fail"]);
    assert_eq!(list["tools"][0]["rule_name"], "host.echo");
    assert_eq!(list["tools"][0]["sandboxed"], false);
    assert_eq!(
        list["tools"][0]["input_schema"]["required"],
        json!(["text"])
    );

    let call = |tool: &str, body: Value| {
        serving.send(Request::post(&format!("/v1/tools/{tool}/call"), &body))
    };
    let answer = call("echo", json!({"arguments": {"text": "hé"}})).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let answer = answer.json();
    assert_eq!(answer["outcome"], "ok");
    assert_eq!(answer["is_error"], false);
    assert_eq!(answer["content"], json!([{"type": "text", "text": "hé"}]));
    assert!(answer["ran_ms"].is_number());

    let by_rule_name = call("host.echo", json!({"arguments": {"text": "x"}})).await;
    assert_eq!(by_rule_name.json()["outcome"], "ok");
    let failed = call("fail", json!({})).await.json();
    assert_eq!(failed["outcome"], "error");
    assert_eq!(failed["is_error"], true);
    assert!(
        failed["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("it did not work")
    );

    problem(&call("nope", json!({})).await, 404, "unknown_tool");
    let unfit = problem(&call("echo", json!({})).await, 422, "invalid_arguments");
    assert!(
        unfit["faults"][0].as_str().unwrap().contains("text"),
        "{unfit}"
    );
    problem(
        &call("echo", json!({"argument": {}})).await,
        422,
        "unfit_body",
    );
    problem(
        &call("echo", json!({"arguments": []})).await,
        422,
        "unfit_body",
    );

    assert!(
        serving
            .figure("agentloop_calls_total{tool=\"echo\",outcome=\"ok\"} 2")
            .await
    );
    assert!(
        serving
            .figure("agentloop_calls_total{tool=\"fail\",outcome=\"error\"} 1")
            .await
    );
    assert!(serving.figure("agentloop_calls_running 0").await);
}

#[tokio::test]
async fn what_is_no_request_is_said_in_one_shape() {
    let serving = Serving::with(Access::open()).await;
    let path = "/v1/tools/echo/call";
    problem(
        &serving.send(Request::get("/v1/nothing")).await,
        404,
        "not_found",
    );
    let wrong_method = serving.send(Request::get(path)).await;
    problem(&wrong_method, 405, "method_not_allowed");
    assert_eq!(wrong_method.header("allow"), Some("POST"));
    let form = Request::new("POST", path)
        .header("content-type", "text/plain")
        .body("{}");
    problem(&serving.send(form).await, 415, "not_json");
    problem(
        &serving.send(Request::new("POST", path).body("{}")).await,
        415,
        "not_json",
    );
    let broken = Request::new("POST", path)
        .header("content-type", "application/json; charset=utf-8")
        .body("{\"arguments\": ");
    problem(&serving.send(broken).await, 400, "malformed_json");
    let not_text = Request::post("/v1/tools/%FF/call", &json!({}));
    problem(&serving.send(not_text).await, 400, "path");
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_time() {
    let bounds = Bounds {
        body: 1000,
        body_wait: Duration::from_millis(50),
        ..Bounds::default()
    };
    let serving = Serving::start(server(Access::open(), bounds), Patience::default()).await;
    let path = "/v1/tools/echo/call";
    let text = "x".repeat(2000);
    let announced = Request::post(path, &json!({"arguments": {"text": text}}));
    problem(&serving.send(announced).await, 413, "body_too_large");

    let start = |headers: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\r\n"
        )
    };
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    let chunked = start("transfer-encoding: chunked\r\n");
    stream.write_all(chunked.as_bytes()).await.unwrap();
    let chunk = format!("7d0\r\n{text}\r\n");
    stream.write_all(chunk.as_bytes()).await.unwrap();
    problem(&read_answer(stream).await, 413, "body_too_large");

    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    stream
        .write_all(start("content-length: 10\r\n").as_bytes())
        .await
        .unwrap();
    problem(&read_answer(stream).await, 408, "body_timeout");
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let patience = Patience {
        head: Duration::from_millis(50),
        ..Patience::default()
    };
    let serving = Serving::start(server(Access::open(), Bounds::default()), patience).await;
    for beginning in [
        "",
        "GET /healthz HT",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n",
    ] {
        let mut stream = TcpStream::connect(serving.address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"HTTP/1.1 200"));
    }
    // Idle after a request is no different.
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(read_answer(stream).await.status, 200);

    let large = Request::get("/healthz").header("x-large", &"x".repeat(1 << 20));
    assert_eq!(serving.send(large).await.status, 431);
}

#[tokio::test]
async fn further_connections_wait_for_a_place() {
    let patience = Patience {
        connections: 1,
        ..Patience::default()
    };
    let serving = Serving::start(server(Access::open(), Bounds::default()), patience).await;
    let holds = TcpStream::connect(serving.address).await.unwrap();
    let second = tokio::spawn({
        let address = serving.address;
        async move { Request::get("/healthz").send(address).await }
    });
    // Nothing can tell that the second is not served but that it is not, after a while.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!second.is_finished());
    drop(holds);
    assert_eq!(second.await.unwrap().status, 200);
}

/// A tool that says when it starts, waits, and says when it is dropped.
fn waiting(started: &Arc<Notify>, go_on: &Arc<Notify>, dropped: &Arc<Notify>) -> NativeTool {
    struct Tells(Arc<Notify>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let (started, go_on, dropped) = (started.clone(), go_on.clone(), dropped.clone());
    NativeTool::from_async("wait", "Waits.", json!({"type": "object"}), move |_| {
        let (started, go_on, tells) = (started.clone(), go_on.clone(), Tells(dropped.clone()));
        async move {
            started.notify_one();
            go_on.notified().await;
            drop(tells);
            Ok::<_, String>("waited".to_owned())
        }
    })
    .unwrap()
}

#[derive(Default)]
struct Signals {
    started: Arc<Notify>,
    go_on: Arc<Notify>,
    dropped: Arc<Notify>,
}

impl Signals {
    fn server(&self, bounds: Bounds) -> Server {
        let tool = waiting(&self.started, &self.go_on, &self.dropped);
        let registry = Registry::new([tool]).unwrap();
        server_of(registry, Deps::default(), Access::open(), bounds)
    }
}

fn wait() -> Request {
    Request::post("/v1/tools/wait/call", &json!({}))
}

#[tokio::test]
async fn a_full_server_says_when_to_come_back() {
    let signals = Signals::default();
    let bounds = Bounds {
        calls: 1,
        ..Bounds::default()
    };
    let serving = Serving::start(signals.server(bounds), Patience::default()).await;
    let address = serving.address;
    let first = tokio::spawn(async move { wait().send(address).await });
    signals.started.notified().await;
    let busy = serving.send(wait()).await;
    problem(&busy, 429, "busy");
    assert_eq!(busy.header("retry-after"), Some("1"));
    signals.go_on.notify_one();
    assert_eq!(first.await.unwrap().json()["outcome"], "ok");
    signals.go_on.notify_one();
    assert_eq!(serving.send(wait()).await.status, 200);
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_call() {
    let signals = Signals::default();
    let serving = Serving::start(signals.server(Bounds::default()), Patience::default()).await;
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    stream.write_all(&wait().bytes()).await.unwrap();
    signals.started.notified().await;
    assert!(serving.figure("agentloop_calls_running 1").await);
    drop(stream);
    signals.dropped.notified().await;
    serving.wait_for_figure("agentloop_calls_running 0").await;
}

#[tokio::test]
async fn stopping_lets_calls_end_and_takes_no_new_ones() {
    let signals = Signals::default();
    let serving = Serving::start(signals.server(Bounds::default()), Patience::default()).await;
    let address = serving.address;
    let running = tokio::spawn(async move { wait().send(address).await });
    signals.started.notified().await;
    let idle = TcpStream::connect(address).await.unwrap();
    // Answered on a connection that is open already, so it is open for the server too.
    let mut open = TcpStream::connect(address).await.unwrap();
    open.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut start = [0; 12];
    open.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");

    serving.stop.cancel();
    let mut rest = Vec::new();
    for mut stream in [open, idle] {
        let _ = stream.read_to_end(&mut rest).await;
    }
    assert!(TcpStream::connect(address).await.is_err());
    assert!(!serving.task.is_finished());
    signals.go_on.notify_one();
    assert_eq!(running.await.unwrap().json()["outcome"], "ok");
    serving.task.await.unwrap();
}

#[tokio::test]
async fn what_does_not_end_in_time_is_ended() {
    let signals = Signals::default();
    let patience = Patience {
        last_words: Duration::from_millis(50),
        ..Patience::default()
    };
    let serving = Serving::start(signals.server(Bounds::default()), patience).await;
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    stream.write_all(&wait().bytes()).await.unwrap();
    signals.started.notified().await;
    serving.stop.cancel();
    signals.dropped.notified().await;
    serving.task.await.unwrap();
}

#[tokio::test]
async fn guests_are_called_within_their_rules() {
    let sandbox = guests::sandbox();
    let plugin = Plugin {
        name: PluginName::parse("helpful").unwrap(),
        file: "helpful.wasm".into(),
        component: sandbox.load(guests::HELPFUL.into()).await.unwrap(),
        grants: Grants::default(),
        limits: Default::default(),
    };
    let registry = Registry::with_plugins([], [plugin], Some(&sandbox), Vec::new()).unwrap();
    let mut deps = Deps::default();
    deps.permissions.ask = vec![Rule::parse("helpful.add").unwrap()];
    let server = server_of(registry, deps, Access::open(), Bounds::default());
    let serving = Serving::start(server, Patience::default()).await;
    let call = |tool: &str, arguments: Value| {
        let path = format!("/v1/tools/{tool}/call");
        serving.send(Request::post(&path, &json!({ "arguments": arguments })))
    };
    let shown = call("show", json!({"a": 1, "b": 2})).await.json();
    let kinds: Vec<_> = shown["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["text", "image", "json"], "{shown}");
    assert_eq!(shown["content"][1]["media_type"], "image/png");

    let asked = call("add", json!({"a": 1, "b": 2}));
    let answers = async {
        let question = serving.question().await;
        assert_eq!(question["run"], Value::Null);
        assert_eq!(question["rule_name"], "helpful.add");
        assert_eq!(question["arguments"], json!({"a": 1, "b": 2}));
        serving
            .answer(&question, json!({"verdict": "deny", "reason": "not today"}))
            .await;
    };
    let (asked, ()) = tokio::join!(asked, answers);
    let asked = asked.json();
    assert_eq!(asked["outcome"], "denied");
    let text = asked["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("not today"), "{text}");

    let list = serving.send(Request::get("/v1/tools")).await.json();
    let read = list["tools"]
        .as_array()
        .unwrap()
        .iter()
        .find(|tool| tool["name"] == "read")
        .unwrap();
    assert_eq!(read["plugin"], "helpful");
    assert_eq!(read["digest"].as_str().unwrap().len(), 64);
    assert_eq!(read["requests"][0]["capability"], "read granted folders");
    assert_eq!(read["may_touch"], json!([]));
}

#[tokio::test]
async fn other_routes_stand_behind_the_same_door() {
    let got = any(|body: String| async move { format!("got {body}") });
    let routes = Router::new().route("/mcp", got);
    let server = server(with_token(), Bounds::default()).with_routes(routes);
    let serving = Serving::start(server, Patience::default()).await;
    let request = Request::post("/mcp", &json!({"a": 1}));
    problem(&serving.send(request.clone()).await, 401, "unauthorized");
    let request = request.header("authorization", &format!("Bearer {TOKEN}"));
    assert_eq!(serving.send(request.clone()).await.text(), "got {\"a\":1}");
    let foreign = request.header("origin", "http://evil.example");
    problem(&serving.send(foreign).await, 403, "origin");
}

#[tokio::test]
async fn tls_is_spoken_with_the_given_files() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificates, private) = (
        folder.path().join("chain.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&certificates, key.cert.pem()).unwrap();
    std::fs::write(&private, key.signing_key.serialize_pem()).unwrap();
    let tls = listen::tls(&certificates, &private).unwrap();
    let patience = Patience {
        handshake: Duration::from_millis(200),
        ..Patience::default()
    };
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(anywhere, Some(tls), patience).await.unwrap();
    let address = listener.address().unwrap();
    let server = server(Access::open(), Bounds::default());
    tokio::spawn(server.serve(listener, CancellationToken::new()));

    let mut roots = tokio_rustls::rustls::RootCertStore::empty();
    roots.add(key.cert.der().clone()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = tokio_rustls::rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let stream = connector.connect(name, stream).await.unwrap();
    let answer = Request::get("/healthz").send_on(stream).await;
    assert_eq!(answer.json()["status"], "ok");

    // Plain text is no handshake, and silence does not last.
    for beginning in ["GET / HTTP/1.1\r\n\r\n", ""] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"HTTP"));
    }

    let other = Authority::generate();
    other.write_pem(&folder.path().join("other.pem"));
    let wrong = listen::tls(&private, &private).err().unwrap().to_string();
    assert!(wrong.contains("holds no PEM certificates"), "{wrong}");
    let missing = listen::tls(&folder.path().join("none"), &private);
    assert!(missing.err().unwrap().to_string().contains("can't read"));
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_let_go() {
    let large = "x".repeat(8 << 20);
    let tool = NativeTool::new(
        "large",
        "Says much.",
        json!({"type": "object"}),
        move |_| Ok::<_, String>(large.clone()),
    )
    .unwrap();
    let patience = Patience {
        stalled: Duration::from_millis(100),
        ..Patience::default()
    };
    let registry = Registry::new([tool]).unwrap();
    let server = server_of(registry, Deps::default(), Access::open(), Bounds::default());
    let serving = Serving::start(server, patience).await;
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    let request = Request::post("/v1/tools/large/call", &json!({}));
    stream.write_all(&request.bytes()).await.unwrap();
    serving
        .wait_for_figure("agentloop_calls_total{tool=\"large\",outcome=\"ok\"} 1")
        .await;
    serving.stop.cancel();
    // Only the peer that reads nothing keeps the server, and only for so long.
    serving.task.await.unwrap();
    drop(stream);
}

#[tokio::test]
async fn the_description_is_whole() {
    let serving = Serving::with(Access::open()).await;
    let answer = serving.send(Request::get("/openapi.json")).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let document = answer.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/tools",
        "/v1/tools/{name}/call",
        "/v1/runs",
        "/v1/runs/{id}",
        "/v1/runs/{id}/events",
        "/v1/runs/{id}/messages",
        "/v1/runs/{id}/cancel",
        "/v1/approvals",
        "/v1/approvals/{id}",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    // Every reference leads somewhere.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    found.push(reference.clone());
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            assert!(
                responses.keys().any(|status| status.starts_with('2')),
                "{method} {path}"
            );
            for status in ["400", "401", "403", "500"] {
                let response = &operation["responses"][status];
                assert!(
                    response["description"].is_string(),
                    "{method} {path} {status}"
                );
            }
        }
    }
}
