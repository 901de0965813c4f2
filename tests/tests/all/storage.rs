//! What every engine of [`RunStore`] promises. An engine is a function that opens the same storage as another process
//! would; each test here is written against the trait, so that a further engine only has to be named in [`ENGINES`].

use std::{path::Path, sync::Arc};

use agentloop_host::{
    approvals::{Answer, ApprovalRequest},
    event::RunEvent,
    ids::RunId,
    storage::{
        Fate, IdempotencyKey, Keep, Lease, MAX_CRASHES, NewRun, Question, RunKind, RunState,
        RunStore, StorageError, StoredEvent, Submitted, Undecidable, Wanted, now_ms,
        sqlite::SqliteStore,
    },
};
use agentloop_tests::storage::{begun, new_run, noted, question, run_ended, turn_ended};
use serde_json::json;
use tempfile::TempDir;

/// Opens what is kept in this folder, as one more process.
type Engine = fn(&Path) -> Arc<dyn RunStore>;

const ENGINES: [Engine; 1] =
    [|folder| Arc::new(SqliteStore::open(&folder.join("runs.db")).unwrap())];

/// For each engine a folder of its own.
fn engines() -> impl Iterator<Item = (Engine, TempDir)> {
    ENGINES
        .into_iter()
        .map(|engine| (engine, tempfile::tempdir().unwrap()))
}

async fn append(store: &dyn RunStore, lease: &Lease, event: &RunEvent) {
    store.append(lease, event, Keep::Durably).await.unwrap();
}

async fn all(store: &dyn RunStore, number: u64) -> Vec<StoredEvent> {
    store.read(number, 0, usize::MAX >> 2).await.unwrap()
}

#[tokio::test]
async fn what_was_appended_is_there_for_every_later_process() {
    for (open, folder) in engines() {
        let store = open(folder.path());
        let lease = begun(&*store).await;
        assert_eq!(lease.run.state, RunState::Running);
        for n in 0..5 {
            let keep = if n % 2 == 0 {
                Keep::Lazily
            } else {
                Keep::Passing
            };
            store
                .append(&lease, &noted(&n.to_string()), keep)
                .await
                .unwrap();
        }
        append(&*store, &lease, &turn_ended()).await;
        let other = open(folder.path());
        let events = all(&*other, lease.run.number).await;
        let seqs: Vec<u64> = events.iter().map(|stored| stored.seq).collect();
        assert_eq!(seqs, [0, 1, 2, 3, 4, 5]);
        assert_eq!(events[2].event, noted("2"));
        assert_eq!(events[5].event, turn_ended());
        let run = other.run(lease.run.id).await.unwrap().unwrap();
        assert_eq!((run.turns, run.usage.input, run.next_seq), (1, Some(3), 6));
        assert_eq!(
            other.spec(run.number).await.unwrap(),
            json!({"any": "thing"})
        );
        assert_eq!(other.read(run.number, 4, 1).await.unwrap()[0].seq, 4);
        assert!(other.read(run.number, 6, 10).await.unwrap().is_empty());
        append(&*store, &lease, &run_ended()).await;
        let run = other.run(lease.run.id).await.unwrap().unwrap();
        assert_eq!(run.state, RunState::Ended);
        assert_eq!(run.word, "completed");
        assert_eq!(run.ending.as_deref(), Some("it is complete"));
        assert!(run.ended_ms >= Some(run.created_ms));
    }
}

#[tokio::test]
async fn a_run_has_one_owner_and_an_earlier_one_is_fenced() {
    for (open, folder) in engines() {
        let first = open(folder.path());
        let lease = begun(&*first).await;
        let id = lease.run.id;
        append(&*first, &lease, &noted("mine")).await;
        let second = open(folder.path());
        assert!(
            second.claim_run(id).await.unwrap().is_none(),
            "its owner lives"
        );
        assert!(
            second
                .claim(RunKind::Served, "here", 9)
                .await
                .unwrap()
                .is_empty()
        );
        first.release(&lease).await.unwrap();
        let taken = second.claim(RunKind::Served, "here", 9).await.unwrap();
        assert_eq!(taken[0].run.id, id);
        assert!(
            first
                .claim(RunKind::Served, "here", 9)
                .await
                .unwrap()
                .is_empty()
        );

        let late = first.append(&lease, &noted("late"), Keep::Durably).await;
        assert!(matches!(late, Err(StorageError::Fenced)), "{late:?}");
        let late = first.release(&lease).await;
        assert!(matches!(late, Err(StorageError::Fenced)), "{late:?}");
        append(&*second, &taken[0], &noted("theirs")).await;
        let events = all(&*first, lease.run.number).await;
        let texts: Vec<_> = events.iter().map(|stored| stored.event.clone()).collect();
        assert_eq!(texts, [noted("mine"), noted("theirs")]);
        // Only runs of the kind and the scope that are asked for.
        second.release(&taken[0]).await.unwrap();
        let elsewhere = first.claim(RunKind::Served, "elsewhere", 9).await.unwrap();
        assert!(elsewhere.is_empty());
        let of = |kind, scope: &str| Wanted {
            of: Some((kind, scope.to_owned())),
            limit: 9,
            ..Wanted::default()
        };
        assert!(
            first
                .runs(of(RunKind::Served, "elsewhere"))
                .await
                .unwrap()
                .is_empty()
        );
        assert!(
            first
                .runs(of(RunKind::Command, "here"))
                .await
                .unwrap()
                .is_empty()
        );
        assert_eq!(
            first.runs(of(RunKind::Served, "here")).await.unwrap().len(),
            1
        );
        assert!(
            first
                .claim(RunKind::Command, "here", 9)
                .await
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn the_run_of_a_dead_owner_goes_on_and_after_three_deaths_it_is_set_aside() {
    for (open, folder) in engines() {
        let store = open(folder.path());
        let lease = begun(&*store).await;
        let id = lease.run.id;
        append(&*store, &lease, &noted("0")).await;
        drop(store);
        for n in 1..MAX_CRASHES {
            let store = open(folder.path());
            let claimed = store.claim(RunKind::Served, "here", 9).await.unwrap();
            assert_eq!(claimed[0].run.id, id, "after {n} deaths");
            append(&*store, &claimed[0], &noted(&n.to_string())).await;
        }
        let store = open(folder.path());
        assert!(
            store
                .claim(RunKind::Served, "here", 9)
                .await
                .unwrap()
                .is_empty()
        );
        let run = store.run(id).await.unwrap().unwrap();
        assert_eq!((run.state, &*run.word), (RunState::Ended, "failed"));
        assert!(run.ending.unwrap().contains("set aside"));
        let events = all(&*store, run.number).await;
        assert_eq!(events.len(), MAX_CRASHES as usize + 1);
        assert!(matches!(
            events.last().unwrap().event,
            RunEvent::RunEnded { .. }
        ));

        // A turn that ends is progress.
        let mut lease = begun(&*store).await;
        let id = lease.run.id;
        let mut store = store;
        for _ in 0..2 * MAX_CRASHES {
            append(&*store, &lease, &turn_ended()).await;
            drop(store);
            store = open(folder.path());
            lease = store.claim_run(id).await.unwrap().expect("it goes on");
        }
    }
}

#[tokio::test]
async fn one_key_is_one_run() {
    for (open, folder) in engines() {
        let store = open(folder.path());
        let keyed = |key: &str, request: u8| NewRun {
            key: Some(IdempotencyKey {
                key: key.into(),
                request: [request; 32],
            }),
            ..new_run(RunKind::Served)
        };
        let Submitted::New(first) = store.submit(keyed("k", 1)).await.unwrap() else {
            panic!("it is new")
        };
        // However many ask at once, from wherever.
        let other = open(folder.path());
        let asked = (0..20).map(|n| {
            let store = if n % 2 == 0 { &store } else { &other };
            store.submit(keyed("k", 1))
        });
        for again in futures_util::future::join_all(asked).await {
            let Submitted::Known(run) = again.unwrap() else {
                panic!("it is known")
            };
            assert_eq!(run.id, first.run.id);
        }
        let wrong = store.submit(keyed("k", 2)).await.unwrap();
        assert!(matches!(wrong, Submitted::OtherRequest));
        let further = store.submit(keyed("other", 1)).await.unwrap();
        assert!(matches!(further, Submitted::New(_)));
    }
}

#[tokio::test]
async fn a_question_is_answered_once_and_its_run_goes_on() {
    for (open, folder) in engines() {
        let store = open(folder.path());
        let lease = begun(&*store).await;
        let id = lease.run.id;
        let asked = store
            .ask(question(Some(id), "a"), u64::MAX)
            .await
            .unwrap()
            .unwrap();
        let other = store
            .ask(question(Some(id), "b"), u64::MAX)
            .await
            .unwrap()
            .unwrap();
        // The same is not asked twice.
        let again = store
            .ask(question(Some(id), "a"), u64::MAX)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(again.id, asked.id);
        assert_eq!(store.open_questions().await.unwrap().len(), 2);
        assert_eq!(store.run(id).await.unwrap().unwrap().word, "waiting");
        store.release(&lease).await.unwrap();
        let run = store.run(id).await.unwrap().unwrap();
        assert_eq!((run.state, run.asked), (RunState::Waiting, 2));
        assert!(
            store
                .claim(RunKind::Served, "here", 9)
                .await
                .unwrap()
                .is_empty()
        );

        // A new process, days later.
        drop(store);
        let store = open(folder.path());
        let elsewhere = open(folder.path());
        let answers = (0..10).map(|n| {
            let store = if n % 2 == 0 { &store } else { &elsewhere };
            store.decide(&asked.id, Answer::Once, "somebody")
        });
        let answers = futures_util::future::join_all(answers).await;
        let won = answers
            .iter()
            .filter(|won| matches!(won, Ok(Ok(_))))
            .count();
        assert_eq!(won, 1);
        let lost =
            |answer: &Result<Result<_, _>, _>| matches!(answer, Ok(Err(Undecidable::Answered)));
        assert_eq!(answers.iter().filter(|answer| lost(answer)).count(), 9);
        let Some(Fate::Decided(decided)) = store.fate(&asked.id).await.unwrap() else {
            panic!("it is decided")
        };
        assert_eq!((decided.answer, &*decided.by), (Answer::Once, "somebody"));

        let claimed = store.claim(RunKind::Served, "here", 9).await.unwrap();
        assert_eq!(claimed[0].run.id, id);
        let found = store
            .ask(question(Some(id), "a"), u64::MAX)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            found.id, asked.id,
            "an answered question is not asked again"
        );
        // It still waits for the other answer.
        store.release(&claimed[0]).await.unwrap();
        assert_eq!(
            store.run(id).await.unwrap().unwrap().state,
            RunState::Waiting
        );
        // What is asked goes with its run.
        let lease = store.claim_run(id).await.unwrap().unwrap();
        append(&*store, &lease, &run_ended()).await;
        assert!(store.open_questions().await.unwrap().is_empty());
        let late = store.decide(&other.id, Answer::Once, "late").await.unwrap();
        assert_eq!(late.unwrap_err(), Undecidable::Withdrawn);
        let unknown = store.decide("nothing", Answer::Once, "x").await.unwrap();
        assert_eq!(unknown.unwrap_err(), Undecidable::Unknown);
    }
}

#[tokio::test]
async fn questions_end_with_their_time_and_with_whoever_asks() {
    for (open, folder) in engines() {
        let store = open(folder.path());
        let lease = begun(&*store).await;
        let mut late = question(Some(lease.run.id), "a");
        late.expires_ms = now_ms();
        let late = store.ask(late, u64::MAX).await.unwrap().unwrap();
        store.release(&lease).await.unwrap();
        let answer = store.decide(&late.id, Answer::Once, "x").await.unwrap();
        assert_eq!(answer.unwrap_err(), Undecidable::Expired);
        let claimed = store.claim(RunKind::Served, "here", 9).await.unwrap();
        assert_eq!(claimed.len(), 1, "its time is over, and it goes on");
        assert!(matches!(
            store.fate(&late.id).await.unwrap(),
            Some(Fate::Expired)
        ));

        let gone = store
            .ask(question(None, "c"), u64::MAX)
            .await
            .unwrap()
            .unwrap();
        store.withdraw(&gone.id).await.unwrap();
        let answer = store.decide(&gone.id, Answer::Once, "x").await.unwrap();
        assert_eq!(answer.unwrap_err(), Undecidable::Withdrawn);
        let orphan = store
            .ask(question(None, "d"), u64::MAX)
            .await
            .unwrap()
            .unwrap();
        drop((claimed, store));
        let store = open(folder.path());
        store.claim(RunKind::Served, "here", 9).await.unwrap();
        let answer = store.decide(&orphan.id, Answer::Once, "x").await.unwrap();
        assert_eq!(
            answer.unwrap_err(),
            Undecidable::Withdrawn,
            "its asker is dead"
        );
    }
}

#[tokio::test]
async fn what_was_allowed_stands_as_far_as_it_was_meant() {
    for (open, folder) in engines() {
        let store = open(folder.path());
        let (one, two) = (begun(&*store).await.run.id, begun(&*store).await.run.id);
        let ask = async |run: Option<RunId>, call: &str, since| {
            store.ask(question(run, call), since).await.unwrap()
        };
        let answer = async |run: Option<RunId>, call: &str, answer: Answer| {
            let asked = ask(run, call, u64::MAX).await.expect("nothing stands");
            store.decide(&asked.id, answer, "x").await.unwrap().unwrap();
        };
        answer(Some(one), "a", Answer::Once).await;
        answer(Some(one), "b", Answer::ForThisRun).await;
        assert!(ask(Some(one), "c", u64::MAX).await.is_none());
        assert!(ask(Some(two), "c", u64::MAX).await.is_some());
        answer(None, "d", Answer::Always).await;
        assert!(ask(Some(two), "e", 0).await.is_none());
        assert!(ask(None, "e", 0).await.is_none());
        // What was meant for good stands in the settings of whoever began later.
        assert!(ask(Some(two), "e", now_ms() + 1).await.is_some());
        let other = Question {
            request: ApprovalRequest {
                rule_name: "files.read".into(),
                ..question(None, "f").request
            },
            ..question(Some(one), "f")
        };
        assert!(store.ask(other, 0).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn lists_have_the_newest_first_and_forget_the_oldest_ended() {
    for (open, folder) in engines() {
        let store = open(folder.path());
        let mut leases = Vec::new();
        for _ in 0..5 {
            leases.push(begun(&*store).await);
        }
        for lease in &leases[..4] {
            append(&*store, lease, &run_ended()).await;
        }
        assert_eq!(store.live(RunKind::Served, "here").await.unwrap(), 1);
        assert_eq!(store.live(RunKind::Command, "here").await.unwrap(), 0);
        let listed = async |wanted: Wanted| -> Vec<u64> {
            let runs = store.runs(wanted).await.unwrap();
            runs.iter().map(|run| run.number).collect()
        };
        let of = |at: usize| leases[at].run.number;
        let wanted = |word: Option<&str>, before, limit| Wanted {
            word: word.map(str::to_owned),
            of: Some((RunKind::Served, "here".to_owned())),
            before,
            limit,
        };
        assert_eq!(listed(wanted(None, None, 2)).await, [of(4), of(3)]);
        assert_eq!(listed(wanted(None, Some(of(1)), 9)).await, [of(0)]);
        assert_eq!(listed(wanted(Some("running"), None, 9)).await, [of(4)]);
        assert_eq!(store.prune(1).await.unwrap(), 3);
        assert_eq!(listed(wanted(None, None, 9)).await, [of(4), of(3)]);
        assert!(all(&*store, of(0)).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_and_readers_at_once() {
    const RUNS: usize = 40;
    const EVENTS: usize = 50;
    for (open, folder) in engines() {
        let (store, elsewhere) = (open(folder.path()), open(folder.path()));
        let mut tasks = Vec::new();
        for n in 0..RUNS {
            let store = if n % 2 == 0 { &store } else { &elsewhere };
            let lease = Arc::new(begun(&**store).await);
            let number = lease.run.number;
            // Read through the other process.
            let reader = if n % 2 == 0 { &elsewhere } else { store };
            let (writer, reader) = (Arc::clone(store), Arc::clone(reader));
            tasks.push(tokio::spawn(async move {
                let appended = (0..EVENTS).map(|n| {
                    let keep = if n % 3 == 0 {
                        Keep::Durably
                    } else {
                        Keep::Lazily
                    };
                    writer.append(&lease, &noted(&n.to_string()), keep)
                });
                for kept in appended.collect::<Vec<_>>() {
                    kept.await.unwrap();
                }
                writer
                    .append(&lease, &run_ended(), Keep::Durably)
                    .await
                    .unwrap();
            }));
            tasks.push(tokio::spawn(async move {
                let mut tail = reader.tail(number);
                let (mut next, mut n) = (0, 0);
                while n <= EVENTS {
                    tail.mark_unchanged();
                    let events = reader.read(number, next, 7).await.unwrap();
                    if events.is_empty() {
                        tail.changed().await.unwrap();
                    }
                    for stored in events {
                        assert_eq!(stored.seq, next, "no gap");
                        if n < EVENTS {
                            assert_eq!(stored.event, noted(&n.to_string()), "and in order");
                        }
                        (next, n) = (next + 1, n + 1);
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn whoever_waits_hears_of_answers_given_by_another_process() {
    for (open, folder) in engines() {
        let (store, elsewhere) = (open(folder.path()), open(folder.path()));
        let mut changes = store.changes();
        let asked = store
            .ask(question(None, "a"), u64::MAX)
            .await
            .unwrap()
            .unwrap();
        let deciding = elsewhere.decide(&asked.id, Answer::Stop, "x");
        deciding.await.unwrap().unwrap();
        while !matches!(store.fate(&asked.id).await.unwrap(), Some(Fate::Decided(_))) {
            changes.changed().await.unwrap();
        }
    }
}

/// Of the embedded engine alone.
mod sqlite {
    use super::*;

    #[tokio::test]
    async fn a_full_disk_refuses_and_room_makes_it_go_on() {
        let store = SqliteStore::temporary().unwrap();
        let lease = begun(&store).await;
        append(&store, &lease, &noted("before")).await;
        store.set_max_bytes(200_000).await.unwrap();
        let big = noted(&"x".repeat(50_000));
        let mut kept = 0;
        let error = loop {
            match store.append(&lease, &big, Keep::Durably).await {
                Ok(()) => kept += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StorageError::Full { .. }), "{error}");
        assert!(error.to_string().contains("runs.db"), "{error}");
        // Reading goes on; and a lease whose event was lost can't pretend otherwise.
        assert_eq!(all(&store, lease.run.number).await.len(), kept + 1);
        store.set_max_bytes(1 << 30).await.unwrap();
        assert!(
            store
                .append(&lease, &noted("gap"), Keep::Durably)
                .await
                .is_err()
        );
        store.release(&lease).await.unwrap();
        let lease = store.claim_run(lease.run.id).await.unwrap().unwrap();
        append(&store, &lease, &noted("after")).await;
        assert!(store.check().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_backup_of_a_moment_is_whole_and_a_damaged_file_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.db");
        let store = SqliteStore::open(&path).unwrap();
        let lease = begun(&store).await;
        append(&store, &lease, &noted("a")).await;
        let copy = folder.path().join("copy.db");
        store.backup(&copy).await.unwrap();
        assert!(store.backup(&copy).await.is_err(), "nothing is overwritten");
        append(&store, &lease, &noted("b")).await;
        let restored = SqliteStore::open(&copy).unwrap();
        assert_eq!(all(&restored, lease.run.number).await.len(), 1);
        assert!(restored.check().await.unwrap().is_empty());

        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute("DELETE FROM events WHERE seq = 0", []).unwrap();
        let faults = store.check().await.unwrap();
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains(&lease.run.id.to_string()), "{faults:?}");
        db.pragma_update(None, "user_version", 99).unwrap();
        let error = SqliteStore::open(&path).err().unwrap().to_string();
        assert!(error.contains("newer version"), "{error}");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn only_its_user_can_look_into_a_new_folder() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("state");
        let _store = SqliteStore::open(&inner.join("runs.db")).unwrap();
        let mode = std::fs::metadata(&inner).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
