//! The folder changes while tools are in use.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use agentloop_host::{
    agent::{Deps, run_calls},
    capability::{Grants, OperatorLimits},
    event::RunEvent,
    ids::PluginName,
    registry::{
        Registry,
        folder::{
            Folders,
            watch::{Watching, watch},
        },
        live::LiveRegistry,
        native::NativeTool,
    },
    transcript::ToolUse,
};
use agentloop_tests::{
    agent::{agent, calls, results, run, says, scripted},
    guests,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch::Receiver;

/// No change takes so long to arrive, on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// A watched folder, and what comes of it.
struct Desk {
    dir: TempDir,
    live: LiveRegistry,
    changes: Receiver<Arc<Registry>>,
    _watching: Watching,
}

impl Desk {
    async fn with(files: &[(&str, &[u8])]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        let sandbox = guests::sandbox();
        let mut folders = Folders::new(
            vec![dir.path().to_owned()],
            sandbox.clone(),
            |_: &PluginName| (Grants::default(), OperatorLimits::default()),
        );
        let before = folders.read().await;
        let build = move |loaded: &agentloop_host::registry::folder::Loaded| {
            let (plugins, set_aside) = (loaded.plugins.clone(), loaded.set_aside.clone());
            Registry::with_plugins([], plugins, Some(&sandbox), set_aside)
        };
        let live = LiveRegistry::from(Arc::new(build(&before).unwrap()));
        let changes = live.subscribe();
        let watching = watch(folders, &before, live.clone(), move |loaded| build(&loaded));
        Self {
            dir,
            live,
            changes,
            _watching: watching,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The next registry that is offered.
    async fn change(&mut self) -> Arc<Registry> {
        let changed = tokio::time::timeout(PATIENCE, self.changes.changed()).await;
        changed.expect("a change is told").unwrap();
        Arc::clone(&self.changes.borrow_and_update())
    }
}

fn names(registry: &Registry) -> Vec<String> {
    registry.names().iter().map(ToString::to_string).collect()
}

/// Puts a file there in one step, as an installer does.
fn put(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("part");
    fs::write(&beside, bytes).unwrap();
    fs::rename(beside, path).unwrap();
}

async fn call(registry: &Registry, tool: &str, input: Value) -> Result<String, String> {
    let call = ToolUse::new("call", tool, input).unwrap();
    let records = run_calls(&[call.into()], registry, &Deps::default()).await;
    let result = &records[0].traced.result;
    match result.is_error {
        false => Ok(result.text()),
        true => Err(result.text()),
    }
}

/// B33, P4: a slow copy is one change, rubbish changes nothing that serves, and a removal removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_copy_rubbish_and_a_removal() {
    let mut desk = Desk::with(&[("tool.wasm", guests::ECHO)]).await;
    let removed = Arc::new(AtomicBool::new(false));
    let caller = tokio::spawn({
        let (live, removed) = (desk.live.clone(), Arc::clone(&removed));
        async move {
            let mut n_calls = 0;
            while !removed.load(Ordering::Relaxed) {
                let answer = call(&live.now(), "echo", json!({"text": "x"})).await;
                if !removed.load(Ordering::Relaxed) {
                    assert_eq!(answer.as_deref(), Ok("x"));
                    n_calls += 1;
                }
                tokio::task::yield_now().await;
            }
            n_calls
        }
    });

    let path = desk.path("tool.wasm");
    let piece = guests::HELPFUL.len().div_ceil(40);
    let mut file = File::create(&path).unwrap();
    for piece in guests::HELPFUL.chunks(piece) {
        file.write_all(piece).unwrap();
        // How a slow copy looks.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(file);
    let new = desk.change().await;
    assert!(names(&new).contains(&"add".to_owned()), "{:?}", names(&new));
    assert_eq!(new.set_aside(), []);

    put(&path, b"rubbish");
    let spoilt = desk.change().await;
    assert_eq!(names(&spoilt), names(&new));
    let told = &spoilt.set_aside()[0];
    assert!(told.what.ends_with("tool.wasm"), "{told:?}");
    assert!(told.why.contains("not WebAssembly"), "{told:?}");
    assert!(told.why.contains("goes on serving"), "{told:?}");

    removed.store(true, Ordering::Relaxed);
    fs::remove_file(&path).unwrap();
    assert_eq!(names(&*desk.change().await), [""; 0]);
    assert!(caller.await.unwrap() > 0);
}

#[tokio::test]
async fn files_are_added_renamed_and_put_back_and_a_touch_is_no_change() {
    let mut desk = Desk::with(&[]).await;
    put(&desk.path("a.wasm"), guests::ECHO);
    let added = desk.change().await;
    assert_eq!(added.get("echo").unwrap().rule_name, "a.echo");

    fs::rename(desk.path("a.wasm"), desk.path("b.wasm")).unwrap();
    let renamed = desk.change().await;
    assert_eq!(renamed.get("echo").unwrap().rule_name, "b.echo");

    // Written anew with what it held: only the next change is one.
    put(&desk.path("b.wasm"), guests::ECHO);
    put(&desk.path("c.wasm"), guests::HELPFUL);
    let both = desk.change().await;
    assert!(both.get("b__echo").is_some() && both.get("c__echo").is_some());

    put(&desk.path("c.wasm"), b"rubbish");
    desk.change().await;
    put(&desk.path("c.wasm"), guests::HELPFUL);
    let mended = desk.change().await;
    assert_eq!(names(&mended), names(&both));
    assert_eq!(mended.set_aside(), both.set_aside());
}

/// P5: a call that runs ends as what it was begun as.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_call_ends_on_its_version() {
    let mut desk = Desk::with(&[("tool.wasm", guests::HELPFUL)]).await;
    let before = desk.live.now();
    let running = tokio::spawn({
        let before = Arc::clone(&before);
        async move { call(&before, "work", json!({"ms": 1500})).await }
    });
    put(&desk.path("tool.wasm"), guests::ECHO);
    let after = desk.change().await;
    assert_eq!(names(&after), ["echo"]);
    assert_eq!(running.await.unwrap().as_deref(), Ok("done"));
    // Nor is what was there before lost to those who still hold it.
    let sum = call(&before, "add", json!({"a": 1, "b": 2})).await;
    assert_eq!(sum.as_deref(), Ok("3"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_replacements_under_load_lose_no_call() {
    let sandbox = guests::sandbox();
    let mut registries = Vec::new();
    for wasm in [guests::ECHO, guests::HELPFUL] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tool.wasm"), wasm).unwrap();
        let nothing = |_: &PluginName| (Grants::default(), OperatorLimits::default());
        let folders = [dir.path().to_owned()];
        let loaded = agentloop_host::registry::folder::load(&folders, &sandbox, nothing).await;
        let registry = Registry::with_plugins([], loaded.plugins, Some(&sandbox), Vec::new());
        registries.push(Arc::new(registry.unwrap()));
    }
    let live = LiveRegistry::from(Arc::clone(&registries[0]));
    let (done, made) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (live, done, made) = (live.clone(), Arc::clone(&done), Arc::clone(&made));
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let answer = call(&live.now(), "echo", json!({"text": "x"})).await;
                    assert_eq!(answer.as_deref(), Ok("x"));
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for n in 0..1000 {
        live.replace(Arc::clone(&registries[n % 2]));
        // On average a call for each.
        while made.load(Ordering::Relaxed) < n {
            tokio::task::yield_now().await;
        }
    }
    done.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    // Nobody keeps what was replaced.
    drop(live);
    assert!(
        registries
            .iter()
            .all(|registry| Arc::strong_count(registry) == 1)
    );
}

/// The calls of a turn go to the tools that the model was shown for it.
#[tokio::test]
async fn a_run_sees_a_change_between_turns() {
    let tool = |name: &str| {
        let schema = json!({"type": "object"});
        NativeTool::new(name, "Says it is there.", schema, |_| {
            Ok::<_, String>("here")
        })
        .unwrap()
    };
    let model = scripted(json!([
        calls(&[("a", "old", json!({})), ("b", "new", json!({}))]),
        calls(&[("c", "old", json!({})), ("d", "new", json!({}))]),
        says("done"),
    ]));
    let mut agent = agent(&model, [tool("old")]);
    let live = agent.registry.clone();
    let new = Arc::new(Registry::new([tool("new")]).unwrap());
    agent.deps.observers.push(Arc::new(move |event: &RunEvent| {
        if matches!(event, RunEvent::TurnEnded { turn: 0, .. }) {
            live.replace(Arc::clone(&new));
        }
    }));
    let result = run(&agent, "go").await;
    let errors = |message: usize| -> Vec<bool> {
        let results = results(&result.messages[message]);
        results.iter().map(|result| result.is_error).collect()
    };
    assert_eq!(errors(2), [false, true]);
    assert_eq!(errors(4), [true, false]);
}
