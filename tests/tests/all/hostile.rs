//! Components that mean harm, one row for each: the door that they try, how they try it, and how that ends. After
//! each of them a good call has to succeed, and the host has to be what it was: its memory, its threads, its slots.

mod compiling;
mod limits;
mod rows;

use std::{fs, time::Duration};

use agentloop_host::{
    capability::{Access, Grants},
    sandbox::{Sandbox, SandboxSettings},
    tool::ToolOutcome,
};
use agentloop_tests::{
    guests::{self, Guest},
    servers::{Reply, Server},
};
use serde_json::{Value, json};

use self::rows::{Attack, Door, Ends, Row, rows};
use super::sandbox::reach::{folder, origin};

const SLOTS: usize = 8;
/// Of a call that does not end by itself.
const SHORT: Duration = Duration::from_millis(250);
/// What a row may add to the host's memory: one call's, its copy, and compiled code.
const MEMORY_BYTES: usize = 700 << 20;
/// Threads that may come beside those of the start: idle ones for blocking work live some seconds.
const THREADS: usize = 24;

#[test]
fn there_are_at_least_forty_and_each_has_its_name() {
    let mut names: Vec<_> = rows().iter().map(|row| row.what).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "two rows have one name");
    assert!(count >= 40, "{count}");
}

#[test]
fn time() {
    alone("time", Door::Time);
}

#[test]
fn memory() {
    alone("memory", Door::Memory);
}

#[test]
fn endings() {
    alone("endings", Door::Ending);
}

#[test]
fn answers() {
    alone("answers", Door::Answer);
}

#[test]
fn the_host_itself() {
    alone("the_host_itself", Door::Host);
}

#[test]
fn files() {
    alone("files", Door::Files);
}

#[test]
fn the_network() {
    alone("the_network", Door::Network);
}

#[test]
fn metadata() {
    alone("metadata", Door::Metadata);
}

#[test]
fn the_compiler() {
    alone("the_compiler", Door::Compiler);
}

/// In a process of its own, since it is measured what is left behind, and other tests may share this one.
fn alone(name: &str, door: Door) {
    const CHILD: &str = "HOSTILE_ALONE";
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        return runtime.block_on(withstand(door));
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([&*format!("all::hostile::{name}"), "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Tries all rows of a door.
async fn withstand(door: Door) {
    let scene = Scene::set().await;
    let rows: Vec<_> = rows().into_iter().filter(|row| row.door == door).collect();
    assert!(!rows.is_empty());
    let mut wrong = Vec::new();
    for row in rows {
        wrong.extend(scene.play(row).await);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What the attacks find: folders with something outside of them, servers, and a tool that works.
struct Scene {
    sandbox: Sandbox,
    hostile: Guest,
    good: Guest,
    dir: tempfile::TempDir,
    silent: Server,
    dripping: Server,
    redirecting: Server,
    inside: Server,
}

impl Scene {
    async fn set() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for made in ["ro", "rw"] {
            fs::create_dir(at(made)).unwrap();
        }
        fs::write(at("ro/f"), "original").unwrap();
        fs::write(at("outside"), "secret").unwrap();
        for link in ["ro/link", "rw/link"] {
            std::os::unix::fs::symlink("../outside", at(link)).unwrap();
        }
        std::os::unix::fs::symlink(at("outside"), at("ro/absolute")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("ro/device")).unwrap();
        let fifo = std::process::Command::new("mkfifo")
            .arg(at("rw/pipe"))
            .status()
            .unwrap();
        assert!(fifo.success());

        let sandbox = Sandbox::new(SandboxSettings {
            max_live_calls: SLOTS,
            ..guests::settings()
        })
        .unwrap();
        let inside = Server::start(|_| Reply::text("secret")).await;
        let to = inside.url("/");
        Self {
            hostile: Guest::load(&sandbox, guests::HOSTILE).await,
            good: Guest::load(&sandbox, guests::HELPFUL).await,
            silent: Server::start(|_| Reply::silent()).await,
            dripping: Server::start(|_| Reply::dripping(Duration::from_millis(20))).await,
            redirecting: Server::start(move |_| Reply::redirect(&to)).await,
            inside,
            sandbox,
            dir,
        }
    }

    /// What is wrong with how it ended, if anything. That the host is harmed is nothing to go on from.
    async fn play(&self, row: Row) -> Option<String> {
        let what = row.what;
        let before = Load::now();
        let wrong = match (self.attack(&row).await, &row.ends) {
            (Err(why), Ends::NotLoaded(says)) if why.contains(says) => None,
            (Ok(outcome), ends) if ends.is(&outcome) => None,
            (ended, ends) => Some(format!("{what} ended with {ended:?} and not with {ends:?}")),
        };
        assert_eq!(
            self.good.text("echo", json!({ "text": what })).await,
            what,
            "no good call after {what}"
        );
        // All slots are free: nothing of it goes on.
        let mut slots = Vec::new();
        for _ in 0..SLOTS {
            slots.push(self.sandbox.slot().await);
        }
        drop(slots);
        let after = Load::now();
        assert!(
            after.memory < before.memory + MEMORY_BYTES,
            "{what} leaves {before:?}, {after:?}"
        );
        assert!(
            after.threads <= before.threads + THREADS,
            "{what} leaves {before:?}, {after:?}"
        );
        assert!(
            after.files <= before.files + 8,
            "{what} leaves {before:?}, {after:?}"
        );
        assert_eq!(self.inside.connections(), 0, "{what} was inside");
        let read = |path: &str| fs::read_to_string(self.dir.path().join(path)).unwrap();
        assert_eq!(
            (read("ro/f"), read("outside")),
            ("original".into(), "secret".into()),
            "{what}"
        );
        let mut names: Vec<_> = fs::read_dir(self.dir.path().join("ro"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["absolute", "device", "f", "link"], "{what}");
        wrong
    }

    /// How the call ended, or why there was none.
    async fn attack(&self, row: &Row) -> Result<ToolOutcome, String> {
        let load = async |wasm: &[u8]| match self.sandbox.load(wasm.into()).await {
            Ok(component) => Ok(Guest {
                component,
                ..self.hostile.clone()
            }),
            Err(error) => Err(error.to_string()),
        };
        let (mut guest, tool, input) = match &row.attack {
            Attack::Tool(tool, input) => (self.hostile.clone(), *tool, self.filled(input)),
            Attack::Component(tool, wasm) => (load(&wasm()).await?, *tool, json!({})),
        };
        guest.grants = self.grants();
        match row.ends {
            Ends::Late => guest.limits.timeout = Some(SHORT),
            Ends::OutOfFuel => guest.limits.fuel = Some(1_000_000),
            _ => {}
        }
        Ok(guest.call(tool, input).await.outcome)
    }

    /// Two folders, the servers that are no one's inside, and every public origin.
    fn grants(&self) -> Grants {
        let at = |path: &str| self.dir.path().join(path);
        let mut grants = folder(&at("ro"), "/ro", Access::Read);
        grants
            .folders
            .extend(folder(&at("rw"), "/rw", Access::Write).folders);
        for server in [&self.silent, &self.dripping, &self.redirecting] {
            grants.http.extend(origin(&server.origin()).http);
        }
        grants.http.extend(origin("*").http);
        grants
    }

    /// With the servers' addresses in the place of their names.
    fn filled(&self, input: &Value) -> Value {
        let mut text = input.to_string();
        let port = self.inside.address().port().to_string();
        for (name, value) in [
            ("{silent}", self.silent.url("/")),
            ("{dripping}", self.dripping.url("/")),
            ("{redirecting}", self.redirecting.url("/")),
            ("{port}", port),
        ] {
            text = text.replace(name, &value);
        }
        serde_json::from_str(&text).unwrap()
    }
}

/// What the host has taken of the machine.
#[derive(Debug)]
struct Load {
    memory: usize,
    threads: usize,
    files: usize,
}

impl Load {
    fn now() -> Self {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        let count = |dir: &str| fs::read_dir(dir).unwrap().count();
        Self {
            memory: pages * 4096,
            threads: count("/proc/self/task"),
            files: count("/proc/self/fd"),
        }
    }
}

impl Ends {
    fn is(&self, outcome: &ToolOutcome) -> bool {
        match (self, outcome) {
            (Self::Late, ToolOutcome::TimedOut { after, .. }) => *after == SHORT,
            (Self::OutOfMemory, ToolOutcome::OutOfMemory { .. })
            | (Self::OutOfFuel, ToolOutcome::OutOfFuel { .. })
            | (Self::TooLarge, ToolOutcome::OutputTooLarge { .. })
            | (
                Self::Broken,
                ToolOutcome::BadOutput { .. }
                | ToolOutcome::Trapped { .. }
                | ToolOutcome::OutputTooLarge { .. },
            ) => true,
            (Self::Trapped(says), ToolOutcome::Trapped { message })
            | (Self::Failed(says), ToolOutcome::Failed { message }) => {
                message.contains(says) && message.len() < 10_000
            }
            (Self::Refused, ToolOutcome::CapabilityRefused { refusals, .. }) => {
                !refusals.is_empty()
            }
            (Self::GivesUp, ToolOutcome::Failed { .. } | ToolOutcome::CapabilityRefused { .. }) => {
                true
            }
            (Self::Answered(says), ToolOutcome::Answered(_)) => {
                guests::text(outcome).contains(says)
            }
            _ => false,
        }
    }
}
