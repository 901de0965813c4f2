//! Model Context Protocol over streamable HTTP, as clients see it: in raw requests.

use std::{net::SocketAddr, time::Duration};

use agentloop_host::{
    agent::Deps,
    mcp::{McpServer, http::HttpSettings, stdio::MAX_MESSAGE_BYTES},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::mcp::{PATIENCE, server, stateless, text, write_call, writing_server};

struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Served {
    async fn new(server: McpServer, settings: HttpSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = tokio::spawn({
            let stop = stop.clone();
            async move { server.serve_http(listener, settings, stop).await.unwrap() }
        });
        Self {
            address,
            stop,
            serving,
        }
    }

    async fn of(server: McpServer) -> Self {
        Self::new(server, HttpSettings::loopback()).await
    }

    async fn send(&self, method: &str, headers: &[(&str, &str)], body: &[u8]) -> Stream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut head = format!("{method} /mcp HTTP/1.1\r\nConnection: close\r\n");
        let mut has = |name: &str, value: &str| {
            if !headers
                .iter()
                .any(|(given, _)| given.eq_ignore_ascii_case(name))
            {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        has("Host", &self.address.to_string());
        has("Accept", "application/json, text/event-stream");
        has("Content-Type", "application/json");
        has("Content-Length", &body.len().to_string());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses by the head may not take the body.
        let _ = stream.write_all(body).await;
        Stream::open(stream).await
    }

    async fn post(&self, headers: &[(&str, &str)], message: &Value) -> Reply {
        self.send("POST", headers, message.to_string().as_bytes())
            .await
            .whole()
            .await
    }

    /// A request of the revision without sessions, with the headers that belong to it.
    async fn ask(&self, method: &str, params: Value, capabilities: Value) -> Reply {
        let name = params["name"].as_str().map(str::to_owned);
        let message = json!({
            "jsonrpc": "2.0", "id": 1, "method": method, "params": stateless(params, capabilities),
        });
        let mut headers = vec![
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", method),
        ];
        headers.extend(name.as_deref().map(|name| ("Mcp-Name", name)));
        self.post(&headers, &message).await
    }

    async fn session(&self, capabilities: Value) -> Session<'_> {
        let reply = self
            .post(
                &[],
                &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": capabilities,
                    "clientInfo": {"name": "test", "version": "1"},
                }}),
            )
            .await;
        assert_eq!(reply.json()["result"]["protocolVersion"], "2025-11-25");
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        let session = Session { served: self, id };
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(session.post(&initialized).await.status, 202);
        session
    }

    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.serving)
            .await
            .unwrap()
            .unwrap();
    }
}

struct Session<'a> {
    served: &'a Served,
    id: String,
}

impl Session<'_> {
    fn headers(&self) -> [(&str, &str); 2] {
        [
            ("Mcp-Session-Id", &self.id),
            ("MCP-Protocol-Version", "2025-11-25"),
        ]
    }

    async fn post(&self, message: &Value) -> Reply {
        self.served.post(&self.headers(), message).await
    }

    async fn open(&self, message: &Value) -> Stream {
        self.served
            .send("POST", &self.headers(), message.to_string().as_bytes())
            .await
    }
}

fn call(id: u64, tool: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
}

/// A response whose body may still be coming.
struct Stream {
    status: u16,
    headers: Vec<(String, String)>,
    body: BufReader<TcpStream>,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Stream {
    async fn open(stream: TcpStream) -> Self {
        let mut body = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = tokio::time::timeout(PATIENCE, body.read_line(&mut line)).await;
            read.expect("no response").unwrap();
            if line.trim_end().is_empty() {
                break;
            }
            lines.push(line.trim_end().to_owned());
        }
        let status = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines[1..]
            .iter()
            .map(|line| {
                let (name, value) = line.split_once(": ").unwrap();
                (name.to_ascii_lowercase(), value.to_owned())
            })
            .collect();
        Self {
            status,
            headers,
            body,
        }
    }

    async fn whole(mut self) -> Reply {
        let mut body = Vec::new();
        let read = tokio::time::timeout(PATIENCE, self.body.read_to_end(&mut body)).await;
        read.expect("the response does not end").unwrap();
        Reply {
            status: self.status,
            headers: self.headers,
            body: String::from_utf8(body).unwrap(),
        }
    }

    /// The next message of an event stream.
    async fn event(&mut self) -> Value {
        loop {
            let mut line = String::new();
            let read = tokio::time::timeout(PATIENCE, self.body.read_line(&mut line)).await;
            assert_ne!(read.expect("no event").unwrap(), 0, "the stream ended");
            if let Some(data) = line.strip_prefix("data:").map(str::trim)
                && !data.is_empty()
            {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(have, _)| have == name)
            .map(|(_, value)| value.as_str())
    }

    fn json(&self) -> Value {
        assert_eq!(
            self.header("content-type"),
            Some("application/json"),
            "{self:?}"
        );
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

#[tokio::test]
async fn what_does_not_stream_is_plain_json_in_both_eras() {
    let served = Served::of(server(Deps::default()).await).await;
    let session = served.session(json!({})).await;
    let reply = session.post(&call(1, "echo", json!({"text": "hi"}))).await;
    assert_eq!(text(&reply.json()), "hi");
    let reply = served
        .ask(
            "tools/call",
            json!({"name": "echo", "arguments": {"text": "hi"}}),
            json!({}),
        )
        .await;
    assert_eq!(reply.status, 200);
    assert_eq!(text(&reply.json()), "hi");
    assert_eq!(reply.json()["result"]["resultType"], "complete");
    let reply = served.ask("server/discover", json!({}), json!({})).await;
    assert_eq!(
        reply.json()["result"]["supportedVersions"],
        json!(["2025-06-18", "2025-11-25", "2026-07-28"])
    );
    served.end().await;
}

#[tokio::test]
async fn what_streams_does_so_before_the_answer() {
    let served = Served::of(server(Deps::default()).await).await;
    let session = served.session(json!({})).await;
    let mut message = call(1, "narrate", json!({"lines": 2}));
    message["params"]["_meta"] = json!({"progressToken": 7});
    let mut stream = session.open(&message).await;
    let mut progress = Vec::new();
    let answer = loop {
        let event = stream.event().await;
        if event["method"] == "notifications/progress" {
            progress.push(event["params"]["progress"].as_f64().unwrap());
        } else if event["id"] == 1 {
            break event;
        }
    };
    assert_eq!(progress, [1.0, 2.0]);
    assert_eq!(text(&answer), "told");
    served.end().await;
}

#[tokio::test]
async fn only_known_names_origins_and_tokens_come_in() {
    let server = server(Deps::default()).await;
    let served = Served::of(server.clone()).await;
    let ping = call(1, "echo", json!({"text": "x"}));
    for (headers, status) in [
        (vec![("Host", "evil.example")], 403),
        (vec![("Host", "localhost.evil.example:80")], 403),
        (vec![("Origin", "http://evil.example")], 403),
        (vec![("Origin", "null")], 403),
        // Another program of this machine.
        (vec![("Origin", "http://localhost:3000")], 403),
        // In, and then without a session.
        (
            vec![
                ("Host", "localhost:8321"),
                ("Origin", "http://localhost:8321"),
            ],
            400,
        ),
        (vec![], 400),
    ] {
        let reply = served.post(&headers, &ping).await;
        assert_eq!(reply.status, status, "{headers:?}");
        let reply = served.send("GET", &headers, b"").await;
        assert_eq!(reply.status, status, "GET {headers:?}");
    }
    served.end().await;

    let settings = HttpSettings {
        token: Some("right".into()),
        ..HttpSettings::loopback()
    };
    let served = Served::new(server, settings).await;
    for (headers, status) in [
        (vec![], 401),
        (vec![("Authorization", "Bearer wrong")], 401),
        (vec![("Authorization", "Bearer right")], 400),
    ] {
        let reply = served.post(&headers, &ping).await;
        assert_eq!(reply.status, status, "{headers:?}");
        if status == 401 {
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        }
    }
    served.end().await;
}

#[tokio::test]
async fn an_address_for_everybody_needs_a_token() {
    let server = server(Deps::default()).await;
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = server
        .serve_http(listener, HttpSettings::loopback(), CancellationToken::new())
        .await;
    assert!(refused.unwrap_err().to_string().contains("is not loopback"));
}

#[tokio::test]
async fn what_is_no_message_gets_an_error_of_json_rpc() {
    let served = Served::of(server(Deps::default()).await).await;
    for (body, status, code) in [
        (&b"{"[..], 400, -32700),
        (b"[]", 400, -32600),
        (b"7", 400, -32600),
        (b"\xff\xfe", 400, -32700),
        (
            br#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
            400,
            -32602,
        ),
    ] {
        let reply = served.send("POST", &[], body).await.whole().await;
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(reply.json()["error"]["code"], code, "{reply:?}");
    }
    let long = vec![b' '; MAX_MESSAGE_BYTES + 1];
    let reply = served.send("POST", &[], &long).await;
    assert_eq!(reply.status, 413);
    let unknown = served.ask("tools/shred", json!({}), json!({})).await;
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!(-32601))
    );
    let unknown = served
        .ask(
            "tools/call",
            json!({"name": "ecko", "arguments": {}}),
            json!({}),
        )
        .await;
    assert_eq!(unknown.json()["error"]["code"], -32602);
    // A header that tells of another tool than the body does.
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": stateless(json!({"name": "echo", "arguments": {"text": "x"}}), json!({}))});
    let headers = [
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "add"),
    ];
    let reply = served.post(&headers, &message).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (400, &json!(-32020))
    );
    served.end().await;
}

#[tokio::test]
async fn a_person_is_asked_on_the_stream_of_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::of(writing_server(folder.path(), Deps::default()).await).await;
    let session = served.session(json!({"elicitation": {}})).await;
    let message =
        json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": write_call()});
    let mut stream = session.open(&message).await;
    let question = stream.event().await;
    assert_eq!(question["method"], "elicitation/create");
    assert!(!folder.path().join("note.txt").exists());
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"allow": true}}});
    assert_eq!(session.post(&answer).await.status, 202);
    assert_eq!(stream.event().await["result"]["isError"], false);
    assert!(folder.path().join("note.txt").exists());
    served.end().await;
}

/// One call may run at once, so the next one runs only when the guest of the first is gone.
async fn one_at_a_time() -> Served {
    use agentloop_host::{
        capability::Grants,
        ids::PluginName,
        registry::{Plugin, Registry},
        sandbox::Sandbox,
    };
    use agentloop_tests::guests;
    let mut settings = guests::settings();
    settings.max_live_calls = 1;
    let sandbox = Sandbox::new(settings).unwrap();
    let plugin = Plugin {
        name: PluginName::parse("hostile").unwrap(),
        file: "hostile.wasm".into(),
        component: sandbox.load(guests::HOSTILE.into()).await.unwrap(),
        grants: Grants::default(),
        limits: Default::default(),
    };
    let registry = Registry::with_plugins([], [plugin], Some(&sandbox), Vec::new()).unwrap();
    Served::of(McpServer::new(registry.into(), Deps::default()).unwrap()).await
}

fn talk_for_ever() -> Value {
    json!({"name": "talk", "arguments": {"text": "x", "times": 4_000_000_000_u64}})
}

#[tokio::test]
async fn a_closed_stream_ends_its_guest() {
    let served = one_at_a_time().await;
    let session = served.session(json!({})).await;
    let bump = call(9, "bump", json!({}));

    // Without a session, while it streams.
    let mut params = stateless(talk_for_ever(), json!({}));
    params["_meta"]["io.modelcontextprotocol/logLevel"] = json!("debug");
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let headers = [
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "talk"),
    ];
    let mut stream = served
        .send("POST", &headers, message.to_string().as_bytes())
        .await;
    assert_eq!(stream.event().await["method"], "notifications/message");
    drop(stream);
    assert_eq!(text(&session.post(&bump).await.json()), "1");

    // In a session: at once where nothing was said that it could come back to, and by its own word.
    let mut quiet = TcpStream::connect(served.address).await.unwrap();
    let body = call(2, "spin", json!({})).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n\
         Content-Type: application/json\r\nMcp-Session-Id: {}\r\nMCP-Protocol-Version: 2025-11-25\r\n\
         Content-Length: {}\r\n\r\n{body}",
        session.id,
        body.len()
    );
    quiet.write_all(head.as_bytes()).await.unwrap();
    let mut waiting = Box::pin(session.post(&bump));
    // Whether it comes before or after the other, it is answered once that one's client is gone.
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    drop(quiet);
    let reply = match early {
        Ok(reply) => reply,
        Err(_) => waiting.as_mut().await,
    };
    drop(waiting);
    assert_eq!(text(&reply.json()), "1");

    let mut stream = session
        .open(&call(3, "talk", talk_for_ever()["arguments"].clone()))
        .await;
    assert_eq!(stream.event().await["method"], "notifications/message");
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}});
    assert_eq!(session.post(&cancelled).await.status, 202);
    assert_eq!(text(&session.post(&bump).await.json()), "1");
    served.end().await;
}

#[tokio::test]
async fn a_session_that_was_deleted_is_gone_with_its_calls() {
    let served = one_at_a_time().await;
    let first = served.session(json!({})).await;
    let mut stream = first
        .open(&call(1, "talk", talk_for_ever()["arguments"].clone()))
        .await;
    assert_eq!(stream.event().await["method"], "notifications/message");
    let deleted = served.send("DELETE", &first.headers(), b"").await;
    assert!(deleted.status < 300, "{}", deleted.status);
    let second = served.session(json!({})).await;
    assert_eq!(
        text(&second.post(&call(2, "bump", json!({}))).await.json()),
        "1"
    );
    assert_eq!(first.post(&call(3, "bump", json!({}))).await.status, 404);
    served.end().await;
}

#[tokio::test]
async fn many_calls_at_once_are_all_answered() {
    let served = Served::of(server(Deps::default()).await).await;
    let session = served.session(json!({})).await;
    let calls = (0..300_u64).map(|n| {
        let session = &session;
        async move {
            let reply = session
                .post(&call(n + 10, "echo", json!({"text": n.to_string()})))
                .await
                .json();
            assert_eq!(
                (&reply["id"], text(&reply)),
                (&json!(n + 10), n.to_string().as_str())
            );
        }
    });
    futures_util::future::join_all(calls).await;
    served.end().await;
}

#[test]
fn the_program_serves_over_http_until_it_is_told_to_stop() {
    use std::{
        io::{BufRead as _, Read as _, Write as _},
        net::TcpStream,
        process::Command,
    };
    let mut program = super::mcp::Program::start(&["mcp", "--http", "127.0.0.1:0"]);
    let mut line = String::new();
    while !line.starts_with("serving at http://") {
        line.clear();
        assert_ne!(program.stderr.read_line(&mut line).unwrap(), 0);
    }
    let address = line
        .trim()
        .trim_start_matches("serving at http://")
        .trim_end_matches("/mcp");
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": stateless(json!({"name": "echo", "arguments": {"text": "hi"}}), json!({}))})
    .to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
        Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n\
        Mcp-Name: echo\r\nContent-Length: {}\r\n\r\n{message}", message.len()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(
        reply.starts_with("HTTP/1.1 200") && reply.contains(r#""text":"hi""#),
        "{reply}"
    );
    #[cfg(unix)]
    {
        let pid = program.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(program.child.wait().unwrap().code(), Some(143));
    }
}

#[tokio::test]
async fn a_session_that_nobody_uses_expires() {
    let settings = HttpSettings {
        session_idle: Duration::from_millis(100),
        ..HttpSettings::loopback()
    };
    let served = Served::new(server(Deps::default()).await, settings).await;
    let session = served.session(json!({})).await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    // Each question keeps it alive for as long again.
    while session.post(&ping).await.status != 404 {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    served.end().await;
}

#[tokio::test]
async fn news_reach_a_session_on_its_own_stream() {
    let server = server(Deps::default()).await;
    let served = Served::of(server.clone()).await;
    let session = served.session(json!({})).await;
    let mut news = served.send("GET", &session.headers(), b"").await;
    assert_eq!(news.status, 200);
    server.replace(super::mcp::registry(&[]).await).await;
    assert_eq!(
        news.event().await["method"],
        "notifications/tools/list_changed"
    );
    served.end().await;
}

/// The suite's own checks are loose in places: some pass on an error that happens to be text. These are the same
/// fixtures, word for word.
#[tokio::test]
async fn the_fixtures_of_the_conformance_suite_are_exact() {
    use agentloop_host::capability::Grants;
    use agentloop_tests::guests;
    let registry =
        super::mcp::registry(&[("conformance", guests::CONFORMANCE, Grants::default())]).await;
    let served = Served::of(McpServer::new(registry, Deps::default()).unwrap()).await;
    let session = served.session(json!({})).await;
    let answer = async |tool: &str, arguments: Value| {
        session.post(&call(1, tool, arguments)).await.json()["result"].clone()
    };
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ";
    let expected = [
        (
            "test_simple_text",
            json!([{"type": "text", "text": "This is a simple text response for testing."}]),
        ),
        (
            "test_embedded_resource",
            json!([{"type": "resource", "resource": {"uri": "test://embedded-resource", "mimeType": "text/plain",
                "text": "This is an embedded resource content."}}]),
        ),
        (
            "test_resource_links",
            json!([
                {"type": "resource_link", "uri": "test://first", "name": "The first"},
                {"type": "resource_link", "uri": "test://second.txt", "name": "second.txt"},
            ]),
        ),
    ];
    for (tool, content) in expected {
        assert_eq!(
            answer(tool, json!({})).await,
            json!({"content": content, "isError": false}),
            "{tool}"
        );
    }
    let image = answer("test_image_content", json!({})).await;
    assert_eq!(image["content"][0]["mimeType"], "image/png");
    assert!(
        image["content"][0]["data"]
            .as_str()
            .unwrap()
            .starts_with(png)
    );
    let audio = answer("test_audio_content", json!({})).await;
    assert_eq!(
        (
            &audio["content"][0]["type"],
            &audio["content"][0]["mimeType"]
        ),
        (&json!("audio"), &json!("audio/wav"))
    );
    let mixed = answer("test_multiple_content_types", json!({})).await;
    let kinds: Vec<_> = mixed["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["type"].clone())
        .collect();
    assert_eq!(kinds, ["text", "image", "resource"]);
    assert_eq!(
        mixed["content"][2]["resource"]["text"],
        r#"{"test":"data","value":123}"#
    );
    let failed = answer("test_error_handling", json!({})).await;
    assert_eq!(
        failed,
        json!({"content": [{"type": "text", "text": "Error: This tool intentionally returns an error for testing"}], "isError": true})
    );
    let sum = answer("test_structured_output", json!({"a": 2, "b": 3})).await;
    assert_eq!(
        sum,
        json!({"content": [{"type": "text", "text": r#"{"sum":5}"#}], "structuredContent": {"sum": 5}, "isError": false})
    );

    let listed = session
        .post(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))
        .await
        .json();
    let tools = listed["result"]["tools"].as_array().unwrap();
    let schema =
        |name: &str| &tools.iter().find(|tool| tool["name"] == name).unwrap()["inputSchema"];
    assert_eq!(
        schema("json_schema_2020_12_tool").to_string(),
        r##"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}"##
    );
    assert_eq!(
        schema("test_header_argument")["properties"]["region"]["x-mcp-header"],
        "Region"
    );
    served.end().await;
}

#[tokio::test]
async fn an_argument_that_also_stands_in_a_header_has_to_match_it() {
    use agentloop_host::capability::Grants;
    use agentloop_tests::guests;
    let registry =
        super::mcp::registry(&[("conformance", guests::CONFORMANCE, Grants::default())]).await;
    let served = Served::of(McpServer::new(registry, Deps::default()).unwrap()).await;
    let params = stateless(
        json!({"name": "test_header_argument", "arguments": {"region": "north"}}),
        json!({}),
    );
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    for (region, status) in [
        (Some("north"), 200),
        (Some("=?base64?bm9ydGg=?="), 200),
        (Some("south"), 400),
        (Some("=?base64?!?="), 400),
        (None, 400),
    ] {
        let mut headers = vec![
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", "test_header_argument"),
        ];
        headers.extend(region.map(|region| ("Mcp-Param-Region", region)));
        let reply = served.post(&headers, &message).await;
        assert_eq!(reply.status, status, "{region:?}: {reply:?}");
        if status == 400 {
            assert_eq!(reply.json()["error"]["code"], -32020);
        }
    }
    served.end().await;
}

/// Runs a script of `tests/mcp` against the fixtures.
async fn script(program: &str, script: &str, environment: &[(&str, String)]) {
    use agentloop_host::capability::Grants;
    use agentloop_tests::guests;
    let registry =
        super::mcp::registry(&[("conformance", guests::CONFORMANCE, Grants::default())]).await;
    let served = Served::of(McpServer::new(registry, Deps::default()).unwrap()).await;
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("mcp")
        .join(script);
    let ran = tokio::process::Command::new(program)
        .arg(script)
        .arg(format!("http://{}/mcp", served.address))
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .status()
        .await
        .unwrap();
    assert!(ran.success(), "{ran}");
    served.end().await;
}

fn wanted(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("set {name}, as the scripts in tests/mcp say"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NODE (22 or later) and SUITE, dist/index.js of npm @modelcontextprotocol/conformance@0.2.0-alpha.12"]
async fn the_conformance_suite_passes_but_for_what_is_listed() {
    let environment = [("NODE", wanted("NODE")), ("SUITE", wanted("SUITE"))];
    script("sh", "conformance.sh", &environment).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PYTHON, with PyPI mcp 2.3"]
async fn the_python_client_works_in_all_its_modes() {
    script(&wanted("PYTHON"), "client.py", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NODE and NODE_MODULES, with npm @modelcontextprotocol/client 2.4 and sdk 1.32"]
async fn the_javascript_clients_work_in_all_their_modes() {
    let environment = [("NODE_MODULES", wanted("NODE_MODULES"))];
    script(&wanted("NODE"), "client.mjs", &environment).await;
}
