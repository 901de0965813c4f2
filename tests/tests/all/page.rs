//! The page of `serve`: what it answers, who may see it, and what a real browser makes of it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use agentloop_host::{
    agent::{Deps, ToolLoop},
    capability::Grants,
    config::permissions::Rule,
    ids::PluginName,
    provider::{ModelReply, ModelRequest, Provider, ProviderError, Watch},
    registry::{Plugin, Registry, native::NativeTool},
    server::{
        Bounds, NewAgent, Parts, Server,
        access::{Access, Token},
        listen::{Listener, Patience},
    },
    transcript::{Message, Role},
};
use agentloop_tests::{
    agent::{calls, says, scripted},
    guests,
    http_client::{Answer, Request},
    storage,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    sync::{Barrier, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const SCREENS: [&str; 6] = [
    "/",
    "/runs/0123abcd",
    "/approvals",
    "/tools",
    "/begin",
    "/settings",
];

struct Serving {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Serving {
    async fn start(server: Server) -> Self {
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(anywhere, None, Patience::default()).await;
        let listener = listener.unwrap();
        let address = listener.address().unwrap();
        let task = tokio::spawn(server.serve(listener, CancellationToken::new()));
        Self {
            address,
            _task: AbortOnDropHandle::new(task),
        }
    }

    async fn with(access: Access) -> Self {
        let no_model: NewAgent = Arc::new(|| Err("no model is named".to_owned()));
        Self::start(server(Registry::new([]).unwrap(), access, no_model)).await
    }

    async fn send(&self, request: Request) -> Answer {
        request.send(self.address).await
    }

    /// Signs in, and gives the cookie as a browser would send it.
    async fn cookie(&self) -> String {
        let answer = self.send(form("/sign-in", &format!("token={TOKEN}"))).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }
}

fn server(registry: Registry, access: Access, agents: NewAgent) -> Server {
    let mut deps = Deps::default();
    deps.permissions.ask = vec![Rule::parse("echo.echo").unwrap()];
    Server::new(Parts {
        registry: Arc::new(registry).into(),
        deps,
        access,
        bounds: Bounds::default(),
        store: storage::fresh(),
        scope: "test".to_owned(),
        agents,
        remember: None,
    })
}

fn with_token() -> Access {
    Access::open().with_token(Token::parse(TOKEN).unwrap())
}

/// As a browser sends a form of this server's own page.
fn form(path: &str, body: &str) -> Request {
    Request::new("POST", path)
        .header("origin", "http://localhost")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body)
}

#[tokio::test]
async fn each_screen_is_html_under_a_strict_policy() {
    let serving = Serving::with(Access::open()).await;
    for path in SCREENS {
        let answer = serving.send(Request::get(path)).await;
        assert_eq!(answer.status, 200, "{path}");
        let is = |name: &str, value: &str| assert_eq!(answer.header(name), Some(value), "{path}");
        is("content-type", "text/html; charset=utf-8");
        is("x-content-type-options", "nosniff");
        is("cache-control", "no-store");
        is("referrer-policy", "same-origin");
        is("cross-origin-opener-policy", "same-origin");
        is("cross-origin-resource-policy", "same-origin");
        let policy = answer.header("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.split("; ").any(|has| has == part), "{path} {part}");
        }
        assert!(!policy.contains("unsafe"));
        let text = answer.text();
        assert!(text.starts_with("<!doctype html>") && text.contains("<html lang=\"en\">"));
        for inline in ["<style", " style=", " onclick=", "<script>", "javascript:"] {
            assert!(!text.contains(inline), "{path} {inline}");
        }
        // Everything that it loads is there.
        for asset in text.split('"').filter(|part| part.starts_with("/page/")) {
            let asset = serving.send(Request::get(asset)).await;
            assert_eq!(asset.status, 200);
            let media_type = asset.header("content-type").unwrap();
            assert!(media_type.starts_with("text/"), "{media_type}");
        }
    }
    assert_eq!(
        serving.send(Request::get("/page/none.js")).await.status,
        404
    );
    let description = serving.send(Request::get("/openapi.json")).await.json();
    assert!(description["paths"].get("/approvals").is_none());
}

#[tokio::test]
async fn host_and_origin_hold_for_the_page_too() {
    let serving = Serving::with(with_token()).await;
    let cookie = serving.cookie().await;
    for path in SCREENS.into_iter().chain(["/sign-in", "/page/kit.js"]) {
        for (host, origin, code) in [
            ("evil.example", None, "host"),
            ("localhost", Some("http://evil.example"), "origin"),
            ("localhost", Some("http://localhost:1"), "origin"),
            ("localhost", Some("null"), "origin"),
        ] {
            let mut request = Request::bare("GET", path)
                .header("host", host)
                .header("cookie", &cookie);
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            let answer = serving.send(request).await;
            assert_eq!(answer.status, 403, "{path} {host} {origin:?}");
            assert_eq!(answer.json()["code"], code);
        }
        // In a frame or as a picture of somebody else's page.
        let framed = Request::get(path)
            .header("cookie", &cookie)
            .header("sec-fetch-site", "same-site")
            .header("sec-fetch-mode", "navigate")
            .header("sec-fetch-dest", "iframe");
        assert_eq!(serving.send(framed).await.status, 403, "{path}");
    }
}

#[tokio::test]
async fn a_token_is_asked_for_once() {
    let serving = Serving::with(with_token()).await;
    for path in SCREENS {
        let answer = serving.send(Request::get(path)).await;
        assert_eq!(answer.status, 303, "{path}");
        let to = format!("/sign-in?to={path}");
        assert_eq!(answer.header("location"), Some(&*to));
        assert!(answer.body.is_empty());
    }
    let asking = serving.send(Request::get("/sign-in?to=/approvals")).await;
    assert_eq!(asking.status, 200);
    assert!(asking.text().contains("name=\"to\" value=\"/approvals\""));
    let elsewhere = serving
        .send(Request::get(
            "/sign-in?to=//evil.example/%22%3E%3Cscript%3E",
        ))
        .await;
    assert!(elsewhere.text().contains("name=\"to\" value=\"/\""));

    for wrong in ["token=", "token=wrong", &format!("token={TOKEN}x")] {
        let answer = serving.send(form("/sign-in", wrong)).await;
        assert_eq!(answer.status, 403, "{wrong}");
        assert!(answer.header("set-cookie").is_none());
        assert!(answer.text().contains("not the server"));
        assert!(!answer.text().contains("wrong\"x"));
    }
    let answer = serving
        .send(form("/sign-in", &format!("token={TOKEN}&to=/runs/0a")))
        .await;
    assert_eq!(answer.status, 303);
    assert_eq!(answer.header("location"), Some("/runs/0a"));
    let cookie = answer.header("set-cookie").unwrap();
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains(TOKEN) && !cookie.contains("Secure"));
    let secure = Request::new("POST", "/sign-in")
        .header("origin", "https://localhost")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(format!("token={TOKEN}"));
    // Port 443 behind a proxy that speaks TLS.
    let secure = serving.send(secure).await;
    assert!(secure.header("set-cookie").unwrap().ends_with("; Secure"));

    let cookie = cookie.split(';').next().unwrap();
    let signed_in = |path: &str| Request::get(path).header("cookie", cookie);
    for path in SCREENS
        .into_iter()
        .chain(["/v1/runs", "/v1/tools", "/metrics"])
    {
        assert_eq!(serving.send(signed_in(path)).await.status, 200, "{path}");
    }
    let again = serving.send(signed_in("/sign-in?to=/tools")).await;
    assert_eq!(again.header("location"), Some("/tools"));

    let out = form("/sign-out", "").header("cookie", cookie);
    let out = serving.send(out).await;
    assert_eq!(out.status, 303);
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(serving.send(signed_in("/v1/runs")).await.status, 401);
    assert_eq!(serving.send(signed_in("/")).await.status, 303);
}

#[tokio::test]
async fn a_session_is_for_this_servers_own_page() {
    let listed = "http://localhost:6274";
    let serving = Serving::with(with_token().with_origin(listed).unwrap()).await;
    let cookie = serving.cookie().await;
    let begin = |headers: &[(&str, &str)]| {
        let mut request = Request::post("/v1/runs", &json!({"prompt": "hi"}));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request
    };
    let own = ("origin", "http://localhost");
    let session = ("cookie", &*cookie);
    let wrong = ("cookie", "agentloop_session=0000");
    let bearer = format!("Bearer {TOKEN}");
    let rows: [(&[(&str, &str)], u16); 9] = [
        // There is no model: it came in.
        (&[session, own], 503),
        (&[session], 401),
        (&[own], 401),
        (&[wrong, own], 401),
        (&[session, ("origin", listed)], 401),
        (&[session, ("origin", "http://localhost:1")], 403),
        (&[session, own, ("authorization", "Bearer x")], 401),
        (&[session, own, ("sec-fetch-site", "same-origin")], 503),
        (&[("authorization", &bearer)], 503),
    ];
    for (headers, status) in rows {
        let answer = serving.send(begin(headers)).await;
        assert_eq!(answer.status, status, "{headers:?} {}", answer.text());
    }
    // It is no key to anything else.
    for path in ["/mcp", "/nothing"] {
        let request = Request::get(path).header("cookie", &cookie);
        assert_eq!(serving.send(request).await.status, 401, "{path}");
    }
    let stolen = Request::bare("GET", "/v1/runs")
        .header("host", "localhost:81")
        .header("cookie", &cookie);
    assert_eq!(serving.send(stolen).await.status, 401);
}

#[tokio::test]
async fn without_a_token_nobody_is_asked() {
    let serving = Serving::with(Access::open()).await;
    let answer = serving.send(Request::get("/sign-in?to=/tools")).await;
    assert_eq!(answer.status, 303);
    assert_eq!(answer.header("location"), Some("/tools"));
    assert!(
        !serving
            .send(Request::get("/"))
            .await
            .text()
            .contains("Sign out")
    );
    let tried = serving.send(form("/sign-in", "token=")).await;
    assert_eq!(tried.status, 403);
}

#[tokio::test]
async fn settings_are_told_with_their_origin_and_escaped() {
    let no_model: NewAgent = Arc::new(|| Err("no model: <b>none</b>".to_owned()));
    let server = server(Registry::new([]).unwrap(), Access::open(), no_model)
        .with_settings(vec!["model = \"<script>x\"  # from ./a&b.toml".to_owned()]);
    let serving = Serving::start(server).await;
    let text = serving.send(Request::get("/settings")).await;
    let text = text.text();
    assert!(
        text.contains("model = &#34;&#60;script&#62;x&#34;"),
        "{text}"
    );
    assert!(text.contains("./a&#38;b.toml"));
    assert!(text.contains("&#60;b&#62;none") && !text.contains("<b>none"));
}

/// What a hostile model or tool would have the page do.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"><script>window.owned=1</script></pre></figure>\
    <h1 id=owned>owned</h1>\u{1b}[31mred\u{1b}[0m \u{202e}desrever\u{2066} a\u{200b}b \u{9b}2J \u{e0041} {{7*7}} ${7*7} \
    <a href=\"javascript:window.owned=1\">x</a>";

/// Two tools that wait for each other, and then for a word.
fn meeting(go_on: &Arc<Semaphore>) -> [NativeTool; 2] {
    let both = Arc::new(Barrier::new(2));
    ["left", "right"].map(|name| {
        let (both, go_on) = (Arc::clone(&both), Arc::clone(go_on));
        NativeTool::from_async(name, "Waits for the other.", json!({"type": "object"}), {
            move |_| {
                let (both, go_on) = (Arc::clone(&both), Arc::clone(&go_on));
                async move {
                    both.wait().await;
                    let _place = go_on.acquire().await;
                    Ok::<_, String>("both were there")
                }
            }
        })
        .unwrap()
    })
}

async fn registry(go_on: &Arc<Semaphore>) -> Registry {
    let sandbox = guests::sandbox();
    let plugin = async |name: &str, wasm: &[u8]| Plugin {
        name: PluginName::parse(name).unwrap(),
        file: format!("{name}.wasm"),
        component: sandbox.load(wasm.into()).await.unwrap(),
        grants: Grants::default(),
        limits: Default::default(),
    };
    let plugins = [
        plugin("echo", guests::ECHO).await,
        plugin("helpful", guests::HELPFUL).await,
    ];
    let shout_schema = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to shout"},
            "times": {"type": "integer", "default": 1},
            "mood": {"enum": ["calm", "loud"]},
        },
        "required": ["text"],
    });
    let shout = NativeTool::new("shout", "Says it louder.", shout_schema, |arguments| {
        let text = arguments["text"].as_str().ok_or("no text")?;
        Ok::<_, &str>(text.to_uppercase())
    });
    let forever =
        NativeTool::from_async("forever", "Never ends.", json!({"type": "object"}), |_| {
            std::future::pending::<Result<String, String>>()
        });
    let [left, right] = meeting(go_on);
    let own = [left, right, shout.unwrap(), forever.unwrap()];
    Registry::with_plugins(own, plugins, Some(&sandbox), Vec::new()).unwrap()
}

/// A model that goes by what the user said last, and by how often it has answered since: a run may change hands
/// between two of its replies.
struct Storyteller;

impl Storyteller {
    fn reply(said: &str, answered: usize) -> Value {
        let mut reply = match (said, answered) {
            ("Meet, then echo twice.", 0) => {
                calls(&[("l", "left", json!({})), ("r", "right", json!({}))])
            }
            ("Meet, then echo twice.", 1) => calls(&[
                ("one", "echo__echo", json!({"text": HOSTILE})),
                ("two", "echo__echo", json!({"text": "the second"})),
            ]),
            ("Meet, then echo twice.", _) => says(&format!("Done. {HOSTILE}")),
            ("Ask for two.", 0) => calls(&[
                ("one", "echo__echo", json!({"text": "1"})),
                ("two", "echo__echo", json!({"text": "2"})),
            ]),
            ("This one fails.", _) => {
                return json!({"error": {"kind": "auth", "message": format!("wrong key {HOSTILE}")}});
            }
            ("This one says much.", _) => says(&"A long answer. ".repeat(5000)),
            ("This one is stopped.", _) => calls(&[("f", "forever", json!({}))]),
            (_, _) => says("And more."),
        };
        reply["usage"] = json!({"input": 1200, "output": 80, "cache_read": 3000});
        reply
    }
}

#[async_trait::async_trait]
impl Provider for Storyteller {
    fn name(&self) -> &str {
        "storyteller"
    }

    async fn ask(
        &self,
        request: &ModelRequest<'_>,
        watch: &mut dyn Watch,
    ) -> Result<ModelReply, ProviderError> {
        let messages = request.messages;
        let said = |message: &Message| {
            let is_user = message.role == Role::User;
            is_user
                .then(|| message.last_text().map(str::to_owned))
                .flatten()
        };
        let last = messages.iter().rposition(|message| said(message).is_some());
        let last = last.unwrap();
        let answered = messages[last..]
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .count();
        let reply = Self::reply(&said(&messages[last]).unwrap(), answered);
        scripted(json!([reply])).ask(request, watch).await
    }
}

fn storytellers(registry: Registry) -> NewAgent {
    let registry = Arc::new(registry);
    Arc::new(move || {
        let model = Arc::new(Storyteller);
        let mut agent = ToolLoop::new(model, "scripted-model", Arc::clone(&registry));
        agent.deps.permissions.ask = vec![Rule::parse("echo.echo").unwrap()];
        Ok(agent)
    })
}

/// playwright-core and axe-core, from npm.
fn browser_modules() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm-page");
    std::fs::create_dir_all(&target).unwrap();
    let installed = std::process::Command::new("npm")
        .args([
            "install",
            "--no-save",
            "--no-audit",
            "--no-fund",
            "--prefix",
        ])
        .arg(&target)
        .args(["playwright-core@1.65.1", "axe-core@4.14.1"])
        .stdout(Stdio::null())
        .status()
        .expect("node and npm are needed");
    assert!(installed.success());
    target.join("node_modules")
}

/// A person's way through the page, and hostile texts on it. Pictures of every screen go into the folder that
/// `PICTURES` names, if it names one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Chromium (CHROMIUM, or /usr/bin/chromium), node and npm"]
async fn page_in_chromium() {
    let modules = browser_modules();
    let go_on = Arc::new(Semaphore::new(0));
    let with_tools = registry(&go_on).await;
    let agents = storytellers(registry(&go_on).await);
    let settings = vec![
        "model = \"scripted-model\"  # from ./agentloop.toml".to_owned(),
        "limits.max_tokens = 4096  # from default".to_owned(),
    ];
    let open = server(with_tools, Access::open(), agents).with_settings(settings);
    let open = Serving::start(open).await;
    let locked = Serving::with(with_token()).await;
    let profile = tempfile::tempdir().unwrap();
    let mut browser = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/page/chromium.mjs"))
        .env("NODE_MODULES", modules)
        .env("OPEN", format!("http://{}", open.address))
        .env("LOCKED", format!("http://{}", locked.address))
        .env("TOKEN", TOKEN)
        .env("PROFILE", profile.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(browser.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        println!("{line}");
        if line == "release" {
            go_on.add_permits(2);
        }
    }
    assert!(browser.wait().await.unwrap().success());
}
