//! Model Context Protocol on pipes, as clients see it: in raw messages.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use agentloop_host::{
    agent::Deps,
    capability::{FolderGrant, Grants},
    config::permissions::Rule,
    ids::PluginName,
    mcp::McpServer,
    registry::{Plugin, Registry},
    sandbox::Sandbox,
};
use agentloop_tests::guests;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader as AsyncBufReader, DuplexStream, Lines,
    ReadHalf, WriteHalf,
};
use tokio_util::sync::CancellationToken;

/// No exchange takes so long, on a machine under load and with nothing compiled.
pub(super) const PATIENCE: Duration = Duration::from_secs(150);

pub(super) async fn registry(plugins: &[(&str, &[u8], Grants)]) -> Arc<Registry> {
    let sandbox: Sandbox = guests::sandbox();
    let mut loaded = Vec::new();
    for (name, wasm, grants) in plugins {
        loaded.push(Plugin {
            name: PluginName::parse(name).unwrap(),
            file: format!("{name}.wasm"),
            component: sandbox.load((*wasm).into()).await.unwrap(),
            grants: grants.clone(),
            limits: Default::default(),
        });
    }
    Arc::new(Registry::with_plugins([], loaded, Some(&sandbox), Vec::new()).unwrap())
}

pub(super) async fn server(deps: Deps) -> McpServer {
    let plugins = [
        ("helpful", guests::HELPFUL, Grants::default()),
        ("hostile", guests::HOSTILE, Grants::default()),
    ];
    McpServer::new(registry(&plugins).await, deps).unwrap()
}

/// A client on pipes, which sends and reads single lines.
struct Client {
    write: WriteHalf<DuplexStream>,
    lines: Lines<AsyncBufReader<ReadHalf<DuplexStream>>>,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<Result<(), agentloop_host::mcp::stdio::StdioError>>,
    next_id: u64,
}

impl Client {
    fn of(server: &McpServer) -> Self {
        let (here, there) = tokio::io::duplex(64 << 10);
        let (read, write) = tokio::io::split(there);
        let stop = CancellationToken::new();
        let serving = tokio::spawn({
            let (server, stop) = (server.clone(), stop.clone());
            async move { server.serve_pipes(read, write, stop).await }
        });
        let (read, write) = tokio::io::split(here);
        Self {
            write,
            lines: AsyncBufReader::new(read).lines(),
            stop,
            serving,
            next_id: 0,
        }
    }

    /// After the handshake of a revision that has one.
    async fn in_session(server: &McpServer, revision: &str, capabilities: Value) -> Self {
        let mut client = Self::of(server);
        let params = json!({
            "protocolVersion": revision,
            "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"},
        });
        let result = client.ask("initialize", params).await;
        assert_eq!(result["result"]["protocolVersion"], revision, "{result}");
        client
            .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        client
    }

    async fn send(&mut self, message: Value) {
        self.send_line(&message.to_string()).await;
    }

    async fn send_line(&mut self, line: &str) {
        self.write.write_all(line.as_bytes()).await.unwrap();
        self.write.write_all(b"\n").await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line())
            .await
            .expect("the server says nothing")
            .unwrap()
            .expect("the server has closed its end");
        serde_json::from_str(&line).unwrap()
    }

    async fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    /// The answer; what comes before it is dropped.
    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        self.answer(id).await.1
    }

    /// What comes before the answer to this request, and the answer.
    async fn answer(&mut self, id: u64) -> (Vec<Value>, Value) {
        let mut before = Vec::new();
        loop {
            let message = self.receive().await;
            if message["id"] == id && message.get("method").is_none() {
                return (before, message);
            }
            before.push(message);
        }
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
            .await
    }
}

/// What a request of the revision without sessions carries.
pub(super) fn stateless(mut params: Value, capabilities: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    params
}

pub(super) fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text: {answer}"))
}

const SESSION_REVISIONS: [&str; 2] = ["2025-06-18", "2025-11-25"];

#[tokio::test]
async fn tools_are_listed_word_for_word_and_in_order() {
    let server = server(Deps::default()).await;
    let mut client = Client::in_session(&server, "2025-11-25", json!({})).await;
    let first = client.ask("tools/list", json!({})).await;
    let tools = first["result"]["tools"].as_array().unwrap();
    let registry = registry(&[
        ("helpful", guests::HELPFUL, Grants::default()),
        ("hostile", guests::HOSTILE, Grants::default()),
    ])
    .await;
    assert_eq!(tools.len(), registry.tools().len());
    for (listed, tool) in tools.iter().zip(registry.tools()) {
        let definition = &tool.definition;
        assert_eq!(listed["name"], tool.name.as_str());
        assert_eq!(listed["description"], definition.description);
        assert_eq!(
            listed["inputSchema"].to_string(),
            definition.input_schema.to_string(),
            "with its keys in their order"
        );
        assert_eq!(
            listed.get("outputSchema"),
            definition.output_schema.as_ref()
        );
        assert_eq!(
            listed["annotations"]["readOnlyHint"],
            definition.annotations.read_only
        );
        assert_eq!(
            listed["annotations"]["openWorldHint"],
            definition.annotations.open_world
        );
    }
    let show = tools.iter().find(|tool| tool["name"] == "show").unwrap();
    assert_eq!(show["outputSchema"]["properties"]["sum"]["type"], "integer");
    assert_eq!(
        client.ask("tools/list", json!({})).await["result"],
        first["result"]
    );
    let refused = client.ask("tools/list", json!({"cursor": "nowhere"})).await;
    assert_eq!(refused["error"]["code"], -32602);
}

#[tokio::test]
async fn calls_answer_in_every_revision() {
    let server = server(Deps::default()).await;
    for revision in SESSION_REVISIONS {
        let mut client = Client::in_session(&server, revision, json!({})).await;
        let answer = client.call("echo", json!({"text": "hi"})).await;
        assert_eq!(
            answer["result"],
            json!({"content": [{"type": "text", "text": "hi"}], "isError": false}),
            "{revision}"
        );
    }
    let mut client = Client::of(&server);
    let discovered = client
        .ask("server/discover", stateless(json!({}), json!({})))
        .await;
    let result = &discovered["result"];
    assert_eq!(
        result["supportedVersions"],
        json!(["2025-06-18", "2025-11-25", "2026-07-28"])
    );
    assert!(result["instructions"].as_str().unwrap().contains("sandbox"));
    assert!(result["capabilities"]["tools"].is_object());
    let call = json!({"name": "echo", "arguments": {"text": "hi"}});
    let answer = client.ask("tools/call", stateless(call, json!({}))).await;
    assert_eq!(
        answer["result"],
        json!({"resultType": "complete", "content": [{"type": "text", "text": "hi"}], "isError": false})
    );
    let listed = client
        .ask("tools/list", stateless(json!({}), json!({})))
        .await;
    assert_eq!(listed["result"]["resultType"], "complete");
    assert!(listed["result"]["ttlMs"].is_u64());
    let unsupported = json!({"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2019-01-01",
        "io.modelcontextprotocol/clientCapabilities": {},
    }});
    let refused = client.ask("tools/list", unsupported).await;
    assert_eq!(refused["error"]["code"], -32022);
    let bare = client.ask("tools/list", json!({})).await;
    assert_eq!(bare["error"]["code"], -32602, "{bare}");
}

#[tokio::test]
async fn what_is_wrong_with_a_call_is_said_in_its_own_way() {
    let server = server(Deps::default()).await;
    let mut client = Client::in_session(&server, "2025-11-25", json!({})).await;
    let unknown = client.call("ecko", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    assert!(
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .contains("Unknown tool 'ecko'. Available: [echo")
    );
    let invalid = client.call("echo", json!({"txet": "hi"})).await;
    assert_eq!(invalid["result"]["isError"], true);
    assert!(
        text(&invalid).starts_with("Invalid arguments for echo: "),
        "{invalid}"
    );
    let failed = client
        .call("fail", json!({"message": "the moon is gone"}))
        .await;
    assert_eq!(failed["result"]["isError"], true);
    assert_eq!(text(&failed), "Error: the moon is gone");
    let trapped = client.call("panic", json!({"message": "ouch"})).await;
    assert_eq!(trapped["result"]["isError"], true);
    assert!(text(&trapped).contains("ouch"), "{trapped}");
    let method = client.ask("tools/shred", json!({})).await;
    assert_eq!(method["error"]["code"], -32601);
    for (line, id, code) in [
        ("{\"jsonrpc\":", Value::Null, -32700),
        ("[1]", Value::Null, -32600),
        (
            r#"{"jsonrpc":"2.0","id":70,"method":"tools/call","params":{"name":5}}"#,
            json!(70),
            -32602,
        ),
        (
            r#"{"jsonrpc":"1.0","id":71,"method":"ping"}"#,
            json!(71),
            -32600,
        ),
    ] {
        client.send_line(line).await;
        let error = client.receive().await;
        assert_eq!(
            (&error["id"], &error["error"]["code"]),
            (&id, &json!(code)),
            "{line}: {error}"
        );
    }
    let long = "x".repeat(agentloop_host::mcp::stdio::MAX_MESSAGE_BYTES + 1);
    client.send_line(&long).await;
    assert_eq!(client.receive().await["error"]["code"], -32600);
    assert_eq!(
        text(&client.call("echo", json!({"text": "still here"})).await),
        "still here"
    );
}

#[tokio::test]
async fn structured_output_and_pictures_arrive() {
    let server = server(Deps::default()).await;
    let mut client = Client::in_session(&server, "2025-06-18", json!({})).await;
    let answer = client.call("show", json!({"a": 2, "b": 3})).await;
    let result = &answer["result"];
    assert_eq!(result["structuredContent"], json!({"sum": 5}));
    let kinds: Vec<_> = result["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| &block["type"])
        .collect();
    assert_eq!(kinds, ["text", "image", "text"]);
    assert_eq!(result["content"][1]["mimeType"], "image/png");
    assert_eq!(result["content"][2]["text"], "{\"sum\":5}");
}

#[tokio::test]
async fn progress_and_lines_come_before_the_answer_and_only_where_wanted() {
    let server = server(Deps::default()).await;
    let mut client = Client::in_session(&server, "2025-11-25", json!({})).await;
    let call =
        json!({"name": "narrate", "arguments": {"lines": 3}, "_meta": {"progressToken": "t"}});
    let id = client.request("tools/call", call.clone()).await;
    let (before, answer) = client.answer(id).await;
    assert_eq!(text(&answer), "told");
    let of = |method: &str| -> Vec<&Value> {
        before
            .iter()
            .filter(|message| message["method"] == method)
            .map(|message| &message["params"])
            .collect()
    };
    let progress: Vec<_> = of("notifications/progress")
        .iter()
        .map(|p| {
            (
                p["progressToken"].clone(),
                p["progress"].as_f64(),
                p["total"].as_f64(),
            )
        })
        .collect();
    let expected: Vec<_> = [1.0, 2.0, 3.0]
        .map(|n| (json!("t"), Some(n), Some(3.0)))
        .into();
    assert_eq!(progress, expected);
    let lines: Vec<_> = of("notifications/message")
        .iter()
        .map(|line| (line["level"].clone(), line["data"].clone()))
        .collect();
    for line in [
        ("info", "line 0"),
        ("info", "line 2"),
        ("warning", "complained"),
    ] {
        assert!(lines.contains(&(json!(line.0), json!(line.1))), "{lines:?}");
    }

    assert_eq!(
        client
            .ask("logging/setLevel", json!({"level": "error"}))
            .await["result"],
        json!({})
    );
    let id = client
        .request(
            "tools/call",
            json!({"name": "narrate", "arguments": {"lines": 3}}),
        )
        .await;
    assert_eq!(client.answer(id).await.0, Vec::<Value>::new());

    // Without a session, only a request that asks for lines has any.
    let mut client = Client::of(&server);
    let id = client
        .request(
            "tools/call",
            stateless(
                json!({"name": "narrate", "arguments": {"lines": 1}}),
                json!({}),
            ),
        )
        .await;
    assert_eq!(client.answer(id).await.0, Vec::<Value>::new());
    let mut wants = stateless(
        json!({"name": "narrate", "arguments": {"lines": 1}}),
        json!({}),
    );
    wants["_meta"]["io.modelcontextprotocol/logLevel"] = json!("warning");
    let id = client.request("tools/call", wants).await;
    let before = client.answer(id).await.0;
    let lines: Vec<_> = before.iter().map(|line| &line["params"]["data"]).collect();
    assert_eq!(lines, ["complained"]);
}

#[tokio::test]
async fn a_cancelled_call_ends_its_guest_and_has_no_answer() {
    let server = server(Deps::default()).await;
    for (revision, wrap) in [("2025-11-25", false), ("2026-07-28", true)] {
        let mut client = if wrap {
            Client::of(&server)
        } else {
            Client::in_session(&server, revision, json!({})).await
        };
        let dress = |params: Value| {
            if wrap {
                stateless(params, json!({}))
            } else {
                params
            }
        };
        // Says that it runs before it hangs.
        let mut hang =
            json!({"name": "talk", "arguments": {"text": "x", "times": 4_000_000_000_u64}});
        hang["_meta"]["io.modelcontextprotocol/logLevel"] = json!("debug");
        let hanging = client.request("tools/call", dress(hang)).await;
        let running = client.receive().await;
        assert_eq!(running["method"], "notifications/message", "{running}");
        client.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": hanging}})).await;
        let id = client
            .request(
                "tools/call",
                dress(json!({"name": "echo", "arguments": {"text": "next"}})),
            )
            .await;
        let (before, answer) = client.answer(id).await;
        assert_eq!(text(&answer), "next");
        assert!(
            before.iter().all(|message| message["id"] != hanging),
            "a cancelled request was answered"
        );
        client.stop.cancel();
        tokio::time::timeout(PATIENCE, client.serving)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn the_end_of_the_client_and_a_stop_end_running_calls() {
    let server = server(Deps::default()).await;
    for by_stop in [false, true] {
        let mut client = Client::in_session(&server, "2025-11-25", json!({})).await;
        client
            .request("tools/call", json!({"name": "spin", "arguments": {}}))
            .await;
        assert_eq!(
            text(&client.call("echo", json!({"text": "meanwhile"})).await),
            "meanwhile"
        );
        if by_stop {
            client.stop.cancel();
        } else {
            client.write.shutdown().await.unwrap();
        }
        tokio::time::timeout(PATIENCE, client.serving)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

/// A server whose tool may write to this folder, as far as the rules say.
pub(super) async fn writing_server(folder: &Path, deps: Deps) -> McpServer {
    let mut grants = Grants::default();
    grants.folders.push(FolderGrant {
        host_path: folder.to_owned(),
        guest_path: "/out".into(),
        access: agentloop_host::capability::Access::Write,
    });
    McpServer::new(
        registry(&[("helpful", guests::HELPFUL, grants)]).await,
        deps,
    )
    .unwrap()
}

pub(super) fn write_call() -> Value {
    json!({"name": "write", "arguments": {"path": "/out/note.txt", "text": "hi"}})
}

#[tokio::test]
async fn what_nobody_can_be_asked_about_is_refused_with_the_way_to_allow_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = writing_server(folder.path(), Deps::default()).await;
    let mut client = Client::in_session(&server, "2025-11-25", json!({})).await;
    let refused = client.ask("tools/call", write_call()).await;
    assert_eq!(refused["result"]["isError"], true);
    assert!(
        text(&refused).contains("--allow 'helpful.write'"),
        "{refused}"
    );
    assert!(!folder.path().join("note.txt").exists());
    let access = client.call("read", json!({"path": "/elsewhere/x"})).await;
    assert_eq!(access["result"]["isError"], true, "{access}");
}

#[tokio::test]
async fn a_person_behind_a_session_is_asked_and_only_a_yes_runs_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let server = writing_server(folder.path(), Deps::default()).await;
    let mut client = Client::in_session(&server, "2025-11-25", json!({"elicitation": {}})).await;
    for (answer, runs) in [
        (json!({"action": "decline"}), false),
        (
            json!({"action": "accept", "content": {"allow": false, "reason": "not today"}}),
            false,
        ),
        (
            json!({"action": "accept", "content": {"allow": true}}),
            true,
        ),
    ] {
        let id = client.request("tools/call", write_call()).await;
        let question = client.receive().await;
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let message = question["params"]["message"].as_str().unwrap();
        for part in ["helpful.write", "/out/note.txt", "It may read and write"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(
            !folder.path().join("note.txt").exists(),
            "it ran before the answer"
        );
        client
            .send(json!({"jsonrpc": "2.0", "id": question["id"], "result": answer}))
            .await;
        let (_, result) = client.answer(id).await;
        assert_eq!(result["result"]["isError"], !runs, "{result}");
        if answer["content"]["reason"].is_string() {
            assert!(text(&result).contains("not today"), "{result}");
        }
        assert_eq!(folder.path().join("note.txt").exists(), runs);
    }
}

#[tokio::test]
async fn without_a_session_the_question_is_a_round_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let server = writing_server(folder.path(), Deps::default()).await;
    let mut client = Client::of(&server);
    let capable = || json!({"elicitation": {"form": {}}});
    let round = |more: Value| {
        let mut call = write_call();
        for (key, value) in more.as_object().unwrap() {
            call[key] = value.clone();
        }
        stateless(call, capable())
    };
    let yes = json!({"approval": {"action": "accept", "content": {"allow": true}}});

    let asked = client.ask("tools/call", round(json!({}))).await;
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    assert_eq!(
        result["inputRequests"]["approval"]["method"],
        "elicitation/create"
    );
    let state = result["requestState"].as_str().unwrap().to_owned();

    // Nothing that was changed opens the call.
    let mut forged = state.clone();
    forged.replace_range(0..1, if state.starts_with('A') { "B" } else { "A" });
    for state in [forged.as_str(), "", "AAAA"] {
        let refused = client
            .ask(
                "tools/call",
                round(json!({"requestState": state, "inputResponses": yes})),
            )
            .await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let mut moved = round(json!({"requestState": state, "inputResponses": yes}));
    moved["arguments"]["text"] = json!("something else");
    assert_eq!(
        client.ask("tools/call", moved).await["error"]["code"],
        -32602
    );
    assert!(!folder.path().join("note.txt").exists());

    // A round without the answer asks again; the first state is used up.
    let again = client
        .ask(
            "tools/call",
            round(json!({"requestState": state, "inputResponses": {"other": {}}})),
        )
        .await;
    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    assert_eq!(again["result"]["inputRequests"], result["inputRequests"]);
    let second = again["result"]["requestState"].as_str().unwrap();
    let used = client
        .ask(
            "tools/call",
            round(json!({"requestState": state, "inputResponses": yes})),
        )
        .await;
    assert_eq!(used["error"]["code"], -32602);

    let done = client
        .ask(
            "tools/call",
            round(json!({"requestState": second, "inputResponses": yes})),
        )
        .await;
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    assert_eq!(
        fs::read_to_string(folder.path().join("note.txt")).unwrap(),
        "hi"
    );
    let replayed = client
        .ask(
            "tools/call",
            round(json!({"requestState": second, "inputResponses": yes})),
        )
        .await;
    assert_eq!(replayed["error"]["code"], -32602);

    // A client that shows no forms is not asked.
    let refused = client
        .ask("tools/call", stateless(write_call(), json!({})))
        .await;
    assert_eq!(refused["result"]["isError"], true, "{refused}");
}

#[tokio::test]
async fn a_rule_decides_before_anybody_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut deps = Deps::default();
    deps.permissions
        .deny
        .push(Rule::parse("helpful.write").unwrap());
    let server = writing_server(folder.path(), deps).await;
    let mut client = Client::in_session(&server, "2025-11-25", json!({"elicitation": {}})).await;
    let refused = client.ask("tools/call", write_call()).await;
    assert!(text(&refused).starts_with("Denied: "), "{refused}");
}

#[tokio::test]
async fn other_tools_are_news_for_every_client() {
    let server = server(Deps::default()).await;
    let mut session = Client::in_session(&server, "2025-11-25", json!({})).await;
    // The server has taken the client in once it answers what came later.
    session.ask("ping", json!({})).await;
    session.call("echo", json!({"text": "in"})).await;
    let mut listener = Client::of(&server);
    let listen = json!({"notifications": {"toolsListChanged": true}});
    listener
        .request("subscriptions/listen", stateless(listen, json!({})))
        .await;
    let acknowledged = listener.receive().await;
    assert_eq!(
        acknowledged["method"],
        "notifications/subscriptions/acknowledged"
    );

    // The same list again is no news.
    let same = [
        ("helpful", guests::HELPFUL, Grants::default()),
        ("hostile", guests::HOSTILE, Grants::default()),
    ];
    server.replace(registry(&same).await).await;
    let ping = session.request("ping", json!({})).await;
    assert_eq!(session.answer(ping).await.0, Vec::<Value>::new());

    server
        .replace(registry(&[("hostile", guests::HOSTILE, Grants::default())]).await)
        .await;
    assert_eq!(
        session.receive().await["method"],
        "notifications/tools/list_changed"
    );
    assert_eq!(
        listener.receive().await["method"],
        "notifications/tools/list_changed"
    );
    assert_eq!(
        session.call("echo", json!({"text": "x"})).await["error"]["code"],
        -32602
    );
}

/// The program itself, started as clients start it.
pub(super) struct Program {
    pub(super) child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    pub(super) stderr: BufReader<ChildStderr>,
    folder: TempDir,
}

impl Program {
    pub(super) fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("plugins")).unwrap();
        for (name, wasm) in [("helpful", guests::HELPFUL), ("hostile", guests::HOSTILE)] {
            fs::write(folder.path().join(format!("plugins/{name}.wasm")), wasm).unwrap();
        }
        let mut child = command(folder.path())
            .args(args)
            .env("AGENTLOOP_PLUGIN_DIRS", "plugins")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
            folder,
        }
    }

    fn send(&mut self, message: Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn initialize(&mut self) {
        self.send(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        }}));
        assert_eq!(
            self.receive()["result"]["serverInfo"]["name"],
            "agentloop-host"
        );
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    fn call(&mut self, id: u64, tool: &str, arguments: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}));
    }
}

fn command(folder: &Path) -> Command {
    let mut command =
        agentloop_tests::binary::command(env!("CARGO_BIN_EXE_program"), folder, folder);
    command.env("HOME", folder).env(
        "XDG_CACHE_HOME",
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-cache"),
    );
    command
}

#[test]
fn a_call_right_after_the_handshake_finds_its_tool_and_the_end_of_stdin_ends_the_program() {
    let mut program = Program::start(&["mcp"]);
    program.initialize();
    program.call(1, "echo", json!({"text": "at once"}));
    assert_eq!(text(&program.receive()), "at once");
    program.call(2, "spin", json!({}));
    program.stdin.take();
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_changed_folder_is_news_and_counts_at_once() {
    let mut program = Program::start(&["mcp"]);
    program.initialize();
    program.call(1, "bump", json!({}));
    assert_eq!(text(&program.receive()), "1");
    fs::remove_file(program.folder.path().join("plugins/hostile.wasm")).unwrap();
    assert_eq!(
        program.receive()["method"],
        "notifications/tools/list_changed"
    );
    program.call(2, "bump", json!({}));
    assert_eq!(program.receive()["error"]["code"], -32602);
    program.call(3, "echo", json!({"text": "still here"}));
    assert_eq!(text(&program.receive()), "still here");
}

#[test]
fn what_was_sent_before_the_end_of_stdin_is_answered() {
    let mut program = Program::start(&["mcp"]);
    program.initialize();
    program.call(1, "add", json!({"a": 20, "b": 22}));
    program.stdin.take();
    assert_eq!(text(&program.receive()), "42");
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}

#[cfg(unix)]
#[test]
fn a_termination_ends_guests_and_program() {
    let mut program = Program::start(&["mcp"]);
    program.initialize();
    program.call(1, "spin", json!({}));
    program.call(2, "echo", json!({"text": "meanwhile"}));
    assert_eq!(text(&program.receive()), "meanwhile");
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

#[test]
fn the_entry_of_a_client_starts_this_program_with_these_settings() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("agentloop.toml"), "").unwrap();
    for client in [
        "claude-desktop",
        "claude-code",
        "cursor",
        "vscode",
        "zed",
        "goose",
        "codex",
    ] {
        let printed = command(folder.path())
            .args(["mcp", "config", client])
            .output()
            .unwrap();
        assert!(printed.status.success());
        let printed = String::from_utf8(printed.stdout).unwrap();
        for part in [
            "agentloop",
            env!("CARGO_BIN_EXE_program"),
            "agentloop.toml",
            "--config",
            "mcp",
        ] {
            assert!(
                printed.contains(part),
                "{client}: {part} is not in {printed}"
            );
        }
        let args = ["mcp", "config", client, "--write", "--file", "settings"];
        let written = command(folder.path()).args(args).output().unwrap();
        assert!(written.status.success(), "{written:?}");
        assert_eq!(
            fs::read_to_string(folder.path().join("settings")).unwrap(),
            printed
        );
        fs::remove_file(folder.path().join("settings")).unwrap();
    }
    fs::write(folder.path().join("settings"), "{ // mine\n}").unwrap();
    let refused = command(folder.path())
        .args(["mcp", "config", "zed", "--write", "--file", "settings"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(
        stderr.contains("context_servers"),
        "the entry is shown: {stderr}"
    );
    assert_eq!(
        fs::read_to_string(folder.path().join("settings")).unwrap(),
        "{ // mine\n}"
    );
}
