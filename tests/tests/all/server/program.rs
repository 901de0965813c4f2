//! The program `serve`, run as a person runs it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use agentloop_tests::{
    binary::{command, run},
    guests,
    http_client::Request,
};
use serde_json::json;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_program");

struct Running {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), format!("{}\n", super::TOKEN)).unwrap();
        fs::create_dir(folder.path().join("tools")).unwrap();
        fs::write(folder.path().join("tools/hostile.wasm"), guests::HOSTILE).unwrap();
        let mut child = command(PROGRAM, folder.path(), folder.path())
            .arg("serve")
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("http://").unwrap();
        let mut address: SocketAddr = address.parse().unwrap();
        address.set_ip([127, 0, 0, 1].into());
        Self {
            child,
            address,
            _folder: folder,
        }
    }

    #[cfg(unix)]
    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn another_address_than_loopback_needs_a_token_or_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(command(PROGRAM, folder.path(), folder.path()).args([
        "serve",
        "--listen",
        "0.0.0.0:0",
    ]));
    assert_eq!(refused.code, 2, "{refused:?}");
    for way in ["--token-file", "AGENTLOOP_TOKEN", "--without-token"] {
        assert!(refused.stderr.contains(way), "{}", refused.stderr);
    }
    let mut weak = command(PROGRAM, folder.path(), folder.path());
    weak.arg("serve").env("AGENTLOOP_TOKEN", "short-token");
    let weak = run(&mut weak);
    assert_eq!(weak.code, 2);
    assert!(weak.stderr.contains("16 to 1024"), "{}", weak.stderr);
    assert!(!weak.stderr.contains("short-token"));
    let origin =
        run(command(PROGRAM, folder.path(), folder.path()).args(["serve", "--origin", "*"]));
    assert_eq!(origin.code, 2);
    assert!(
        origin.stderr.contains("not a web origin"),
        "{}",
        origin.stderr
    );
}

#[tokio::test]
async fn the_token_comes_from_its_file_and_is_asked_for() {
    let running = Running::start(&[
        "--listen",
        "0.0.0.0:0",
        "--token-file",
        "token",
        "--set",
        "plugin_dirs=tools",
    ]);
    let answer = Request::get("/v1/tools").send(running.address).await;
    assert_eq!(answer.status, 401);
    let answer = Request::get("/v1/tools")
        .header("authorization", &format!("Bearer {}", super::TOKEN))
        .send(running.address)
        .await;
    assert_eq!(answer.json()["tools"][0]["plugin"], "hostile");
    let initialize = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    });
    let mcp =
        Request::post("/mcp", &initialize).header("accept", "application/json, text/event-stream");
    assert_eq!(mcp.send(running.address).await.status, 401);
    let mcp = mcp.header("authorization", &format!("Bearer {}", super::TOKEN));
    let answer = mcp.send(running.address).await.json();
    assert_eq!(answer["result"]["serverInfo"]["name"], "agentloop-host");
}

#[cfg(unix)]
#[tokio::test]
async fn a_signal_ends_the_program_with_0() {
    for signal in ["-TERM", "-INT"] {
        let mut running = Running::start(&["--listen", "127.0.0.1:0"]);
        let answer = Request::get("/readyz").send(running.address).await;
        assert_eq!(answer.status, 200);
        running.signal(signal);
        let status = running.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{signal}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_second_signal_ends_what_runs_at_once() {
    let args = ["--listen", "127.0.0.1:0", "--set", "plugin_dirs=tools"];
    let mut running = Running::start(&args);
    let address = running.address;
    tokio::spawn(async move {
        let call = Request::post("/v1/tools/sleep_for_ever/call", &json!({}));
        call.send(address).await
    });
    let figures = || async { Request::get("/metrics").send(address).await };
    while !figures()
        .await
        .text()
        .contains("agentloop_calls_running 1\n")
    {
        tokio::task::yield_now().await;
    }
    running.signal("-TERM");
    // No longer listening: the first signal has come.
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(running.child.try_wait().unwrap().is_none());
    running.signal("-TERM");
    assert_eq!(running.child.wait().unwrap().code(), Some(143));
}
