//! Runs that outlive the process that drives them: a host that dies between any two events, questions that wait.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use agentloop_host::{
    agent::{
        Left, RunResult, ToolLoop,
        durable::{self, Asked, LeaseJournal, RunSpec, StoredApprover},
        record::Journal,
        resume::Resumed,
        run::RunStatus,
        stop::Stopper,
    },
    approvals::{Answer, Approver as _},
    capability::{Grants, OperatorLimits},
    config::permissions::Rule,
    event::RunEvent,
    ids::{PluginName, RunId},
    registry::{Plugin, Registry, native::NativeTool},
    storage::{Lease, RunKind, RunState, RunStore, Submitted, sqlite::SqliteStore},
    transcript::Message,
};
use agentloop_tests::{
    agent::{Stateless, assert_paired, calls, says},
    guests,
};
use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// A journal whose host dies at its n-th event: before the event is kept, or right after.
struct Dying {
    inner: Arc<dyn Journal>,
    lives: AtomicUsize,
    is_kept: bool,
    dead: Arc<Notify>,
}

impl Journal for Dying {
    fn append(&self, event: &RunEvent) -> BoxFuture<'static, io::Result<()>> {
        let lives = self
            .lives
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match lives {
            Ok(n) if n > 0 => self.inner.append(event),
            Ok(_) | Err(_) => {
                let is_last = lives.is_ok();
                let kept = (is_last && self.is_kept).then(|| self.inner.append(event));
                let dead = Arc::clone(&self.dead);
                async move {
                    if let Some(kept) = kept {
                        kept.await?;
                    }
                    dead.notify_one();
                    std::future::pending().await
                }
                .boxed()
            }
        }
    }
}

/// When the host dies.
#[derive(Debug, Clone, Copy)]
struct Death {
    at: usize,
    is_kept: bool,
}

/// What a run is made of in these tests: a payment, which must not happen twice, beside a guest that can do nothing.
struct House {
    registry: Arc<Registry>,
    paid: Arc<AtomicUsize>,
    replies: Value,
}

impl House {
    async fn new(replies: Value) -> Self {
        let paid = Arc::new(AtomicUsize::new(0));
        let pay = {
            let paid = Arc::clone(&paid);
            NativeTool::new("pay", "Pays.", json!({"type": "object"}), move |_| {
                paid.fetch_add(1, Ordering::SeqCst);
                Ok::<_, String>("paid")
            })
        };
        let sandbox = guests::sandbox();
        let plugin = Plugin {
            name: PluginName::parse("echo").unwrap(),
            file: "echo.wasm".to_owned(),
            component: sandbox.load(guests::ECHO.into()).await.unwrap(),
            grants: Grants::default(),
            limits: OperatorLimits::default(),
        };
        let registry =
            Registry::with_plugins([pay.unwrap()], [plugin], Some(&sandbox), Vec::new()).unwrap();
        Self {
            registry: Arc::new(registry),
            paid,
            replies,
        }
    }

    fn agent(&self) -> ToolLoop {
        let model = Stateless::new(self.replies.clone());
        ToolLoop::new(model, "stateless", Arc::clone(&self.registry))
    }

    /// Begins or goes on, until the end or the death of the host.
    async fn live(
        &self,
        folder: &Path,
        run: Option<RunId>,
        death: Option<Death>,
    ) -> (RunId, Option<RunResult>) {
        let store: Arc<dyn RunStore> = open(folder);
        let agent = self.agent();
        let (lease, resumed) = match run {
            None => begin(&*store, &agent).await,
            Some(run) => resume(&*store, run).await,
        };
        let run = lease.run.id;
        let journal = Arc::new(LeaseJournal::new(Arc::clone(&store), Arc::new(lease)));
        let dead = Arc::new(Notify::new());
        let journal: Arc<dyn Journal> = match death {
            None => journal,
            Some(Death { at, is_kept }) => Arc::new(Dying {
                inner: journal,
                lives: AtomicUsize::new(at + 1),
                is_kept,
                dead: Arc::clone(&dead),
            }),
        };
        let (stopper, signal) = Stopper::new();
        let ended = tokio::select! {
            biased;
            () = dead.notified() => None,
            left = agent.go_on(resumed, stopper, signal, vec![journal], None) => match left {
                Left::Ended(result) => Some(result),
                other => panic!("{other:?}"),
            },
        };
        // A guest that is being killed still holds what it talks to; a dead process would hold nothing.
        let gone = Arc::downgrade(&store);
        drop(store);
        while gone.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
        (run, ended)
    }
}

fn open(folder: &Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(&folder.join("runs.db")).unwrap())
}

async fn begin(store: &dyn RunStore, agent: &ToolLoop) -> (Lease, Resumed) {
    let spec = RunSpec::of(agent, vec![Message::user("go")]);
    let id = RunId::random().unwrap();
    let new = spec.to_new_run(id, RunKind::Served, "test".into()).unwrap();
    match store.submit(new).await.unwrap() {
        Submitted::New(lease) => (lease, Resumed::new(spec.limits, spec.messages)),
        other => panic!("{other:?}"),
    }
}

async fn resume(store: &dyn RunStore, run: RunId) -> (Lease, Resumed) {
    let lease = store
        .claim_run(run)
        .await
        .unwrap()
        .expect("nobody drives it");
    let spec = durable::spec(store, &lease.run).await.unwrap();
    let resumed = durable::replayed(store, &lease.run, &spec).await.unwrap();
    (lease, resumed)
}

/// Exactly one end for each call that was asked for, in the record as well.
async fn assert_recorded(folder: &Path, run: RunId, result: &RunResult) {
    let store = open(folder);
    assert!(store.check().await.unwrap().is_empty());
    let stored = store.run(run).await.unwrap().unwrap();
    assert_eq!(stored.state, RunState::Ended);
    let events = store.read(stored.number, 0, 1000).await.unwrap();
    let mut asked = Vec::new();
    let mut ended = Vec::new();
    for event in events {
        match event.event {
            RunEvent::CallRequested { id, .. } => asked.push(id),
            RunEvent::CallEnded { id, .. } => ended.push(id),
            _ => {}
        }
    }
    asked.sort();
    ended.sort();
    assert_eq!(asked, ended);
    // What is read later is what the run came to.
    let (_, resumed) = resume(&*store, run).await;
    assert_eq!(resumed.into_result().messages, result.messages);
}

#[tokio::test]
async fn a_host_may_die_between_any_two_events() {
    let house = House::new(json!([
        calls(&[
            ("a", "pay", json!({})),
            ("b", "echo", json!({"text": "hi"})),
        ]),
        calls(&[("c", "echo", json!({"text": "again"}))]),
        says("done"),
    ]))
    .await;
    let mut n_unknown = 0;
    for is_kept in [false, true] {
        for second in [None, Some(0), Some(2)] {
            for at in 0.. {
                let folder = tempfile::tempdir().unwrap();
                house.paid.store(0, Ordering::SeqCst);
                let (run, mut ended) = house
                    .live(folder.path(), None, Some(Death { at, is_kept }))
                    .await;
                let died = ended.is_none();
                if died {
                    let again = second.map(|at| Death {
                        at,
                        is_kept: !is_kept,
                    });
                    ended = house.live(folder.path(), Some(run), again).await.1;
                    if ended.is_none() {
                        ended = house.live(folder.path(), Some(run), None).await.1;
                    }
                }
                let what = format!("dead at {at}, kept: {is_kept}, again at {second:?}");
                let result = ended.expect("the last host lives");
                assert_eq!(result.status, RunStatus::Completed, "{what}");
                assert_eq!(result.final_text(), Some("done"), "{what}");
                assert_paired(&result.messages);
                let paid = house.paid.load(Ordering::SeqCst);
                assert!(paid <= 1, "paid {paid} times: {what}");
                let calls: Vec<_> = result.trace.iter().flat_map(|turn| &turn.calls).collect();
                assert_eq!(calls.len(), 3, "{what}");
                for call in calls {
                    match (&*call.tool, &*call.outcome) {
                        ("pay", "outcome_unknown") => n_unknown += 1,
                        ("pay", outcome) => assert_eq!((outcome, paid), ("ok", 1), "{what}"),
                        // It can do nothing, so that it is simply done again.
                        (_, outcome) => assert_eq!(outcome, "ok", "{what}"),
                    }
                }
                assert_recorded(folder.path(), run, &result).await;
                if !died {
                    break;
                }
            }
        }
    }
    assert!(n_unknown > 0, "some hosts died while they paid");
}

#[tokio::test]
async fn a_question_waits_without_a_host_and_its_answer_is_for_this_very_call() {
    let house = House::new(json!([
        calls(&[
            ("a", "pay", json!({"to": "x"})),
            ("b", "echo", json!({"text": "hi"})),
        ]),
        calls(&[("c", "pay", json!({"to": "y"}))]),
        says("done"),
    ]))
    .await;
    let folder = tempfile::tempdir().unwrap();
    /// Long enough for a look at what was answered; where it was not, the run is ready and driven once more.
    const GRACE: Duration = Duration::from_millis(100);
    let drive_once = async |run: Option<RunId>| {
        let store: Arc<dyn RunStore> = open(folder.path());
        let mut agent = house.agent();
        agent.deps.permissions.ask = vec![Rule::parse("host.pay").unwrap()];
        let (lease, resumed) = match run {
            None => begin(&*store, &agent).await,
            Some(run) => resume(&*store, run).await,
        };
        let id = lease.run.id;
        agent.deps.approver = Some(Arc::new(StoredApprover {
            store: Arc::clone(&store),
            run: Some(id),
            answer_within: Duration::from_secs(3600),
            scope: "test".into(),
            since_ms: 0,
        }));
        let lease = Arc::new(lease);
        let journal = Arc::new(LeaseJournal::new(Arc::clone(&store), Arc::clone(&lease)));
        let (stopper, signal) = Stopper::new();
        let left = agent
            .go_on(resumed, stopper, signal, vec![journal], Some(GRACE))
            .await;
        if let Left::WaitsForPerson = left {
            store.release(&lease).await.unwrap();
        }
        let state = store.run(id).await.unwrap().unwrap().state;
        (id, left, state)
    };
    let drive = async |mut run: Option<RunId>| loop {
        let (id, left, state) = drive_once(run).await;
        if state != RunState::Ready {
            break (id, left);
        }
        run = Some(id);
    };
    let (run, left) = drive(None).await;
    assert!(matches!(left, Left::WaitsForPerson), "{left:?}");
    let store = open(folder.path());
    assert_eq!(
        store.run(run).await.unwrap().unwrap().state,
        RunState::Waiting
    );
    let questions = store.open_questions().await.unwrap();
    assert_eq!(questions.len(), 1);
    assert_eq!(questions[0].request.call.input["to"], "x");

    // Without an answer it is put away again, and asks no second time.
    let (_, left) = drive(Some(run)).await;
    assert!(matches!(left, Left::WaitsForPerson), "{left:?}");
    assert_eq!(store.open_questions().await.unwrap()[0].id, questions[0].id);
    assert_eq!(house.paid.load(Ordering::SeqCst), 0);

    let answer = store.decide(&questions[0].id, Answer::Once, "x").await;
    answer.unwrap().unwrap();
    let (_, left) = drive(Some(run)).await;
    assert!(
        matches!(left, Left::WaitsForPerson),
        "the other call is asked about: {left:?}"
    );
    assert_eq!(house.paid.load(Ordering::SeqCst), 1);
    let questions = store.open_questions().await.unwrap();
    assert_eq!(questions[0].request.call.input["to"], "y");
    let answer = Answer::Deny {
        reason: Some("too much".into()),
    };
    store
        .decide(&questions[0].id, answer, "x")
        .await
        .unwrap()
        .unwrap();
    let (_, left) = drive(Some(run)).await;
    let Left::Ended(result) = left else {
        panic!("{left:?}")
    };
    assert_eq!(result.status, RunStatus::Completed);
    assert_paired(&result.messages);
    let outcomes: Vec<_> = result.trace.iter().flat_map(|turn| &turn.calls).collect();
    assert_eq!(outcomes[0].outcome, "ok");
    assert_eq!(outcomes[2].outcome, "denied");
    assert!(outcomes[2].result.text().contains("too much"));
    assert_eq!(house.paid.load(Ordering::SeqCst), 1);
    assert_recorded(folder.path(), run, &result).await;
}

#[tokio::test]
async fn the_first_answer_is_the_answer_and_no_question_waits_for_ever() {
    let store: Arc<dyn RunStore> = agentloop_tests::storage::fresh();
    let approver = |answer_within| StoredApprover {
        store: Arc::clone(&store),
        run: None,
        answer_within,
        scope: "test".into(),
        since_ms: u64::MAX,
    };
    let request = agentloop_tests::storage::question(None, "a").request;
    let patient = approver(Duration::from_secs(3600));
    let Asked::Open { id, expires_ms } = patient.asked(&request).await.unwrap() else {
        panic!("nothing stands")
    };
    let no = Answer::Deny { reason: None };
    store
        .decide(&id, no.clone(), "elsewhere")
        .await
        .unwrap()
        .unwrap();
    let here = patient.answered_here(&id, expires_ms, Answer::Once).await;
    assert_eq!(here.unwrap(), no);

    // No server looks after expired questions here.
    let answer = approver(Duration::from_millis(1)).approve(&request).await;
    assert!(
        matches!(answer.unwrap(), Answer::Deny { reason: Some(why) } if why.contains("in time"))
    );
}
