//! The embedded engine: one SQLite file, written by one thread that commits together whatever waits (`writer`), read
//! by as many connections as there are readers. Several processes may use one file; which of them live is seen by
//! `owners`, so that leases need no clock.

mod owners;
mod writer;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{FutureExt as _, future::BoxFuture};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, params};
use tempfile::TempDir;
use tokio::sync::{Semaphore, watch};

use self::{
    owners::Owner,
    writer::{Ctx, Writer},
};
use super::{
    Decided, Fate, Keep, Lease, MAX_CRASHES, NewRun, Question, RunKind, RunState, RunStore,
    StorageError, StoredEvent, StoredRun, Submitted, Undecidable, Wanted, now_ms,
};
use crate::{
    approvals::{Answer, ApprovalRequest},
    event::RunEvent,
    ids::RunId,
    transcript::Usage,
};

/// The version of the tables.
const VERSION: i64 = 1;
/// How long a process waits for another one's commit.
const BUSY: Duration = Duration::from_secs(20);
/// Jobs that wait while passing events are still taken.
const MAX_PASSING: usize = 20_000;
/// Connections for readers; whoever comes later waits for one. Each has a cache of its own.
const MAX_READERS: usize = 4;

/// Where the file is, for what is said about it.
#[derive(Debug, Clone)]
struct Place(Arc<str>);

impl Place {
    fn failed(&self, why: impl ToString) -> StorageError {
        StorageError::Failed {
            place: self.0.to_string(),
            why: why.to_string(),
        }
    }

    fn error(&self, error: &rusqlite::Error) -> StorageError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StorageError::Full {
                place: self.0.to_string(),
            },
            _ => self.failed(error),
        }
    }
}

/// Runs in a SQLite file.
pub struct SqliteStore {
    writer: Writer,
    /// Taken out by whoever reads.
    readers: Mutex<Vec<Connection>>,
    reading: Semaphore,
    path: PathBuf,
    owner: Arc<Owner>,
    place: Place,
    /// Removed with this value.
    _folder: Option<TempDir>,
}

impl SqliteStore {
    /// Opens the file, and makes it and its folder where they are not. Only this user can look into a new one.
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        let place = Place(path.display().to_string().into());
        let folder = path.parent().unwrap_or(Path::new("."));
        let make = || -> std::io::Result<Owner> {
            make_private(folder)?;
            let id = RunId::random().map_err(std::io::Error::other)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            Owner::new(&folder.join(format!("{name}.owners")), id.to_string())
        };
        let owner = make().map_err(|error| place.failed(error))?;
        owner.tidy();
        let open = || -> rusqlite::Result<Connection> {
            let db = connect(path)?;
            // Before anything else: it can't be changed inside a transaction.
            db.pragma_update(None, "journal_mode", "WAL")?;
            db.pragma_update(None, "synchronous", "FULL")?;
            Ok(db)
        };
        let mut db = open().map_err(|error| place.error(&error))?;
        migrate(&mut db, &place)?;
        let writer = Writer::start(db, place.clone()).map_err(|error| place.failed(error))?;
        Ok(Self {
            writer,
            readers: Mutex::default(),
            reading: Semaphore::new(MAX_READERS),
            path: path.to_owned(),
            owner: Arc::new(owner),
            place,
            _folder: None,
        })
    }

    /// A store in a folder of its own that is gone with this value: for tests, and for programs whose runs need not
    /// outlive them.
    pub fn temporary() -> Result<Self, StorageError> {
        let folder = tempfile::tempdir()
            .map_err(|error| Place("a temporary folder".into()).failed(error))?;
        let mut store = Self::open(&folder.path().join("runs.db"))?;
        store._folder = Some(folder);
        Ok(store)
    }

    /// From now on the file grows to so many bytes at most; beyond, it is as if the disk were full.
    pub async fn set_max_bytes(&self, bytes: u64) -> Result<(), StorageError> {
        let set = move |ctx: &mut Ctx<'_>| {
            let set = || {
                let page: i64 = ctx
                    .db
                    .pragma_query_value(None, "page_size", |row| row.get(0))?;
                // It never cuts what is there.
                let pages = (int(bytes) / page.max(1)).max(1);
                ctx.db
                    .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
            };
            set().map_err(|error| ctx.place.error(&error))
        };
        self.writer.write(set).await
    }

    /// Copies everything into another file, while runs go on. The copy is of one moment.
    pub async fn backup(&self, to: &Path) -> Result<(), StorageError> {
        let target = to.display().to_string();
        self.reading(move |db| db.execute("VACUUM INTO ?1", [target]))
            .await
            .map(|_| ())
    }

    /// What is wrong with the file, a line each; nothing where all is well.
    pub async fn check(&self) -> Result<Vec<String>, StorageError> {
        self.reading(|db| {
            let mut faults: Vec<String> = db
                .prepare("PRAGMA integrity_check")?
                .query_map([], |row| row.get::<_, String>(0))?
                .collect::<Result<_, _>>()?;
            faults.retain(|fault| fault != "ok");
            let gaps = "SELECT r.id, r.next_seq, count(e.seq), coalesce(max(e.seq) + 1, 0) FROM runs r \
                        LEFT JOIN events e ON e.run = r.number GROUP BY r.number \
                        HAVING r.next_seq <> count(e.seq) OR r.next_seq <> coalesce(max(e.seq) + 1, 0)";
            let mut gaps = db.prepare(gaps)?;
            let gaps = gaps.query_map([], |row| {
                Ok(format!(
                    "run {} has {} events of {}",
                    row.get::<_, String>(0)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, i64>(1)?
                ))
            })?;
            for gap in gaps {
                faults.push(gap?);
            }
            let asked = "SELECT r.id FROM runs r WHERE r.asked <> (SELECT count(*) FROM questions q \
                         WHERE q.run = r.number AND q.fate IS NULL)";
            let mut asked = db.prepare(asked)?;
            for id in asked.query_map([], |row| row.get::<_, String>(0))? {
                faults.push(format!("run {} miscounts its open questions", id?));
            }
            Ok(faults)
        })
        .await
    }

    async fn reading<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        // It is never closed.
        let _turn = self.reading.acquire().await.ok();
        let idle = self.idle().pop();
        let (path, place) = (self.path.clone(), self.place.clone());
        let work = move || {
            let db = match idle {
                Some(db) => db,
                None => connect(&path)?,
            };
            let got = read(&db);
            Ok::<_, rusqlite::Error>((db, got))
        };
        let (db, got) = tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| place.failed("reading hit a fault"))?
            .map_err(|error| place.error(&error))?;
        self.idle().push(db);
        got.map_err(|error| place.error(&error))
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Only this user may look into a folder that did not exist.
fn make_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(BUSY)?;
    db.pragma_update(None, "foreign_keys", true)?;
    db.set_prepared_statement_cache_capacity(64);
    Ok(db)
}

fn migrate(db: &mut Connection, place: &Place) -> Result<(), StorageError> {
    let migrate = |db: &mut Connection| -> rusqlite::Result<i64> {
        let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let found: i64 = tx.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found == 0 {
            tx.execute_batch(include_str!("sqlite/schema.sql"))?;
        }
        if found < VERSION {
            tx.pragma_update(None, "user_version", VERSION)?;
        }
        tx.commit()?;
        Ok(found)
    };
    let found = migrate(db).map_err(|error| place.error(&error))?;
    if found > VERSION {
        return Err(StorageError::TooNew(format!(
            "{} was written by a newer version of this program (its tables are of version {found}, and this one knows \
             {VERSION}); use that version, or another file",
            place.0
        )));
    }
    Ok(())
}

fn kind_word(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Served => "served",
        RunKind::Command => "command",
    }
}

/// A number as SQLite keeps it. What it does not hold no counter of ours reaches.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn uint(row: &Row<'_>, at: &str) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(at)?).unwrap_or_default())
}

fn small(row: &Row<'_>, at: &str) -> rusqlite::Result<u32> {
    Ok(u32::try_from(row.get::<_, i64>(at)?).unwrap_or(u32::MAX))
}

fn unreadable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, why.into())
}

fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, at: &str) -> rusqlite::Result<T> {
    let text = row.get_ref(at)?.as_str().map_err(unreadable)?;
    serde_json::from_str(text).map_err(unreadable)
}

fn run_id(text: &str) -> rusqlite::Result<RunId> {
    RunId::parse(text).ok_or_else(|| unreadable("a run's id is 32 hexadecimal digits"))
}

/// What is known of a run, without what it was asked for.
const COLUMNS: &str = "number, id, kind, scope, title, model, state, next_seq, created_ms, ended_ms, status, ending, \
                       turns, calls, asked, usage";

/// What readers are told of a run in one word.
const WORD: &str =
    "CASE WHEN state = 'ended' THEN status WHEN asked > 0 THEN 'waiting' ELSE 'running' END";

fn stored_run(row: &Row<'_>) -> rusqlite::Result<StoredRun> {
    let state = match row.get_ref("state")?.as_str().map_err(unreadable)? {
        "ready" => RunState::Ready,
        "running" => RunState::Running,
        "waiting" => RunState::Waiting,
        "ended" => RunState::Ended,
        other => return Err(unreadable(format!("`{other}` is no state of a run"))),
    };
    let kind = match row.get_ref("kind")?.as_str().map_err(unreadable)? {
        "served" => RunKind::Served,
        "command" => RunKind::Command,
        other => return Err(unreadable(format!("`{other}` is no kind of run"))),
    };
    Ok(StoredRun {
        id: run_id(row.get_ref("id")?.as_str().map_err(unreadable)?)?,
        number: uint(row, "number")?,
        kind,
        scope: row.get("scope")?,
        title: row.get("title")?,
        model: row.get("model")?,
        state,
        word: row.get("word")?,
        ending: row.get("ending")?,
        created_ms: uint(row, "created_ms")?,
        ended_ms: row
            .get::<_, Option<i64>>("ended_ms")?
            .and_then(|ms| u64::try_from(ms).ok()),
        next_seq: uint(row, "next_seq")?,
        turns: small(row, "turns")?,
        calls: small(row, "calls")?,
        asked: small(row, "asked")?,
        usage: json(row, "usage")?,
    })
}

fn question(row: &Row<'_>) -> rusqlite::Result<Question> {
    let run: Option<String> = row.get("run_id")?;
    Ok(Question {
        id: row.get("id")?,
        run: run.map(|id| run_id(&id)).transpose()?,
        scope: row.get("scope")?,
        fingerprint: row.get("fingerprint")?,
        request: json(row, "request")?,
        asked_ms: uint(row, "asked_ms")?,
        expires_ms: uint(row, "expires_ms")?,
    })
}

fn fate(row: &Row<'_>) -> rusqlite::Result<Fate> {
    let word: Option<String> = row.get("fate")?;
    Ok(match word.as_deref() {
        None => Fate::Open,
        Some("decided") => Fate::Decided(Decided {
            answer: json(row, "answer")?,
            by: row.get("decided_by")?,
            at_ms: uint(row, "decided_ms")?,
        }),
        Some("expired") => Fate::Expired,
        Some("withdrawn") => Fate::Withdrawn,
        Some(other) => {
            return Err(unreadable(format!("`{other}` is no fate of a question")));
        }
    })
}

fn find(
    db: &Connection,
    by: &str,
    value: impl rusqlite::ToSql,
) -> rusqlite::Result<Option<StoredRun>> {
    db.prepare_cached(&format!(
        "SELECT {COLUMNS}, {WORD} AS word FROM runs WHERE {by} = ?1"
    ))?
    .query_row([value], stored_run)
    .optional()
}

/// An event on its way, and what it does to its run.
struct Appended {
    run: u64,
    epoch: u64,
    seq: u64,
    at_ms: u64,
    body: String,
    effect: Effect,
}

enum Effect {
    None,
    TurnEnded(Usage),
    CallRequested,
    Ended { status: String, text: String },
    Continued,
}

impl Effect {
    fn of(event: &RunEvent) -> Self {
        match event {
            RunEvent::TurnEnded { usage, .. } => Self::TurnEnded(*usage),
            RunEvent::CallRequested { .. } => Self::CallRequested,
            RunEvent::RunEnded { status, text, .. } => Self::Ended {
                status: status.clone().into_owned(),
                text: text.clone(),
            },
            RunEvent::RunContinued { .. } => Self::Continued,
            RunEvent::RunStarted { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::TextStreamed { .. }
            | RunEvent::ReasoningStreamed { .. }
            | RunEvent::ToolUseStreamed { .. }
            | RunEvent::ModelRetried { .. }
            | RunEvent::ApprovalRequested { .. }
            | RunEvent::ApprovalAnswered { .. }
            | RunEvent::CallQueued { .. }
            | RunEvent::CallStarted { .. }
            | RunEvent::CallProgressed { .. }
            | RunEvent::CallLogged { .. }
            | RunEvent::CallEnded { .. }
            | RunEvent::OutputCut { .. }
            | RunEvent::Noted { .. } => Self::None,
        }
    }
}

fn append(ctx: &mut Ctx<'_>, event: Appended) -> Result<(), StorageError> {
    let Appended {
        run,
        epoch,
        seq,
        at_ms,
        body,
        effect,
    } = event;
    let (db, place) = (ctx.db, ctx.place);
    let write = || -> rusqlite::Result<bool> {
        // One statement both checks that the run is still ours and takes the place.
        let taken = db
            .prepare_cached("UPDATE runs SET next_seq = ?3 + 1 WHERE number = ?1 AND epoch = ?2 AND next_seq = ?3")?
            .execute(params![int(run), int(epoch), int(seq)])?;
        if taken == 0 {
            return Ok(false);
        }
        db.prepare_cached(
            "INSERT INTO events (run, seq, epoch, at_ms, body) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![int(run), int(seq), int(epoch), int(at_ms), body])?;
        match &effect {
            Effect::None => {}
            Effect::TurnEnded(usage) => {
                let before: String = db
                    .prepare_cached("SELECT usage FROM runs WHERE number = ?1")?
                    .query_row([int(run)], |row| row.get(0))?;
                let before: Usage = serde_json::from_str(&before).map_err(unreadable)?;
                let sum = serde_json::to_string(&before.plus(*usage)).map_err(unreadable)?;
                db.prepare_cached(
                    "UPDATE runs SET turns = turns + 1, usage = ?2, crashes = 0 WHERE number = ?1",
                )?
                .execute(params![int(run), sum])?;
            }
            Effect::CallRequested => {
                db.prepare_cached("UPDATE runs SET calls = calls + 1 WHERE number = ?1")?
                    .execute([int(run)])?;
            }
            Effect::Ended { status, text } => {
                db.prepare_cached(
                    "UPDATE runs SET state = 'ended', owner = NULL, status = ?2, ending = ?3, ended_ms = ?4, asked = 0 WHERE number = ?1",
                )?
                .execute(params![int(run), status, text, int(at_ms)])?;
                db.prepare_cached(
                    "UPDATE questions SET fate = 'withdrawn' WHERE run = ?1 AND fate IS NULL",
                )?
                .execute([int(run)])?;
            }
            Effect::Continued => {
                db.prepare_cached(
                    "UPDATE runs SET state = 'running', status = NULL, ending = NULL, ended_ms = NULL WHERE number = ?1",
                )?
                .execute([int(run)])?;
            }
        }
        Ok(true)
    };
    match write() {
        Ok(true) => {}
        Ok(false) => return Err(refused(ctx, run, epoch)),
        Err(error) => return Err(place.error(&error)),
    }
    ctx.grew(run, seq + 1);
    Ok(())
}

/// Why an event has no place.
fn refused(ctx: &Ctx<'_>, run: u64, epoch: u64) -> StorageError {
    let found = ctx
        .db
        .prepare_cached("SELECT epoch FROM runs WHERE number = ?1")
        .and_then(|mut statement| statement.query_row([int(run)], |row| row.get::<_, i64>(0)));
    match found {
        Ok(found) if found == int(epoch) => ctx
            .place
            .failed("an earlier event of this run could not be written"),
        Ok(_) | Err(rusqlite::Error::QueryReturnedNoRows) => StorageError::Fenced,
        Err(error) => ctx.place.error(&error),
    }
}

/// Takes a run: a new epoch, and whatever an earlier owner still writes is refused.
fn take(db: &Connection, owner: &str, number: u64) -> rusqlite::Result<Lease> {
    let epoch: i64 = db
        .prepare_cached("UPDATE runs SET state = CASE state WHEN 'ended' THEN 'ended' ELSE 'running' END, owner = ?2, epoch = epoch + 1 WHERE number = ?1 RETURNING epoch")?
        .query_row(params![int(number), owner], |row| row.get(0))?;
    let run = find(db, "number", int(number))?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    Ok(Lease::new(run, u64::try_from(epoch).unwrap_or_default()))
}

/// What nobody drives any more becomes ready; what nobody answered in time is over.
fn tidy(ctx: &mut Ctx<'_>, owner: &Owner) -> rusqlite::Result<()> {
    let db = ctx.db;
    let owners: Vec<String> = db
        .prepare_cached(
            "SELECT owner FROM runs WHERE owner IS NOT NULL UNION \
             SELECT owner FROM questions WHERE fate IS NULL AND owner IS NOT NULL",
        )?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for dead in owners.iter().filter(|id| !owner.lives(id)) {
        let orphans: Vec<(i64, i64, i64)> = db
            .prepare_cached(
                "UPDATE runs SET state = CASE state WHEN 'running' THEN 'ready' ELSE state END, owner = NULL, \
                 crashes = crashes + (state = 'running') WHERE owner = ?1 RETURNING number, crashes, next_seq",
            )?
            .query_map([dead], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<Result<_, _>>()?;
        for (number, crashes, next_seq) in orphans {
            if crashes >= i64::from(MAX_CRASHES) {
                set_aside(ctx, number, next_seq)?;
            }
        }
        db.prepare_cached(
            "UPDATE questions SET fate = 'withdrawn' WHERE owner = ?1 AND fate IS NULL",
        )?
        .execute([dead])?;
        ctx.changed();
    }
    let expired: Vec<Option<i64>> = db
        .prepare_cached("UPDATE questions SET fate = 'expired' WHERE fate IS NULL AND expires_ms <= ?1 RETURNING run")?
        .query_map([int(now_ms())], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for run in expired.into_iter().flatten() {
        answered(db, run)?;
        ctx.changed();
    }
    Ok(())
}

/// One question less is open, and the run may have something to do.
fn answered(db: &Connection, run: i64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE runs SET asked = max(asked - 1, 0), state = CASE state WHEN 'waiting' THEN 'ready' ELSE state END WHERE number = ?1",
    )?
    .execute([run])?;
    Ok(())
}

/// Whether an earlier answer says yes to this as well.
fn stands(db: &Connection, asked: &Question, since_ms: u64) -> rusqlite::Result<bool> {
    let earlier: Vec<ApprovalRequest> = db
        .prepare_cached(
            "SELECT request FROM questions WHERE run_id = ?1 AND answer IN ('\"for_this_run\"', '\"always\"') \
             UNION ALL SELECT request FROM questions WHERE answer = '\"always\"' AND decided_ms >= ?2",
        )?
        .query_map(
            params![asked.run.map(|run| run.to_string()), int(since_ms)],
            |row| json(row, "request"),
        )?
        .collect::<Result<_, _>>()?;
    let asked = &asked.request;
    Ok(earlier
        .iter()
        .any(|earlier| earlier.rule_name == asked.rule_name && earlier.digest == asked.digest))
}

fn set_aside(ctx: &mut Ctx<'_>, number: i64, next_seq: i64) -> rusqlite::Result<()> {
    let db = ctx.db;
    let usage: String = db.query_row(
        "SELECT usage FROM runs WHERE number = ?1",
        [number],
        |row| row.get(0),
    )?;
    let text = format!(
        "its host ended {MAX_CRASHES} times in a row while it drove this run, so it is set aside; look at its last call, \
         then continue it"
    );
    let ended = RunEvent::RunEnded {
        status: "failed".into(),
        text,
        usage: serde_json::from_str(&usage).map_err(unreadable)?,
    };
    let epoch: i64 = db.query_row(
        "UPDATE runs SET epoch = epoch + 1, crashes = 0 WHERE number = ?1 RETURNING epoch",
        [number],
        |row| row.get(0),
    )?;
    let uint = |n: i64| u64::try_from(n).unwrap_or_default();
    let event = Appended {
        run: uint(number),
        epoch: uint(epoch),
        seq: uint(next_seq),
        at_ms: now_ms(),
        body: serde_json::to_string(&ended).map_err(unreadable)?,
        effect: Effect::of(&ended),
    };
    append(ctx, event).map_err(|error| unreadable(error.to_string()))
}

#[async_trait]
impl RunStore for SqliteStore {
    async fn submit(&self, run: NewRun) -> Result<Submitted, StorageError> {
        let owner = Arc::clone(&self.owner);
        let submit = move |ctx: &mut Ctx<'_>| {
            let write = |db: &Connection| -> rusqlite::Result<Submitted> {
                let kind = kind_word(run.kind);
                if let Some(key) = &run.key {
                    let known: Option<(i64, Vec<u8>)> = db
                        .prepare_cached(
                            "SELECT number, idem_hash FROM runs WHERE kind = ?1 AND scope = ?2 AND idem_key = ?3",
                        )?
                        .query_row(params![kind, run.scope, key.key], |row| Ok((row.get(0)?, row.get(1)?)))
                        .optional()?;
                    match known {
                        Some((_, hash)) if hash != key.request => {
                            return Ok(Submitted::OtherRequest);
                        }
                        Some((number, _)) => {
                            let run = find(db, "number", number)?;
                            return run
                                .map(Submitted::Known)
                                .ok_or(rusqlite::Error::QueryReturnedNoRows);
                        }
                        None => {}
                    }
                }
                let spec = run.spec.to_string();
                let usage = serde_json::to_string(&Usage::default()).map_err(unreadable)?;
                let (key, hash) = run.key.map(|key| (key.key, key.request)).unzip();
                db.prepare_cached(
                    "INSERT INTO runs (id, kind, idem_key, idem_hash, title, model, spec, state, created_ms, usage, owner, epoch, scope) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'running', ?8, ?9, ?10, 1, ?11)",
                )?
                .execute(params![
                    run.id.to_string(),
                    kind,
                    key,
                    hash,
                    run.title,
                    run.model,
                    spec,
                    int(now_ms()),
                    usage,
                    owner.id,
                    run.scope
                ])?;
                let run = find(db, "number", db.last_insert_rowid())?;
                let run = run.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
                Ok(Submitted::New(Lease::new(run, 1)))
            };
            write(ctx.db).map_err(|error| ctx.place.error(&error))
        };
        self.writer.write(submit).await
    }

    async fn claim(
        &self,
        kind: RunKind,
        scope: &str,
        n: usize,
    ) -> Result<Vec<Lease>, StorageError> {
        let (owner, scope) = (Arc::clone(&self.owner), scope.to_owned());
        let claim = move |ctx: &mut Ctx<'_>| {
            let mut write = || -> rusqlite::Result<Vec<Lease>> {
                tidy(ctx, &owner)?;
                let db = ctx.db;
                let numbers: Vec<i64> = db
                    .prepare_cached(
                        "SELECT number FROM runs WHERE state = 'ready' AND kind = ?1 AND scope = ?2 ORDER BY number LIMIT ?3",
                    )?
                    .query_map(params![kind_word(kind), scope, int(n as u64)], |row| row.get(0))?
                    .collect::<Result<_, _>>()?;
                let numbers = numbers.into_iter().filter_map(|n| u64::try_from(n).ok());
                numbers.map(|number| take(db, &owner.id, number)).collect()
            };
            write().map_err(|error| ctx.place.error(&error))
        };
        self.writer.write(claim).await
    }

    async fn claim_run(&self, id: RunId) -> Result<Option<Lease>, StorageError> {
        let owner = Arc::clone(&self.owner);
        let claim = move |ctx: &mut Ctx<'_>| {
            let mut write = || -> rusqlite::Result<Option<Lease>> {
                tidy(ctx, &owner)?;
                let driven: Option<(i64, Option<String>)> = ctx
                    .db
                    .prepare_cached("SELECT number, owner FROM runs WHERE id = ?1")?
                    .query_row([id.to_string()], |row| Ok((row.get(0)?, row.get(1)?)))
                    .optional()?;
                match driven {
                    Some((number, None)) => {
                        take(ctx.db, &owner.id, u64::try_from(number).unwrap_or_default()).map(Some)
                    }
                    Some((_, Some(_))) | None => Ok(None),
                }
            };
            write().map_err(|error| ctx.place.error(&error))
        };
        self.writer.write(claim).await
    }

    fn append(
        &self,
        lease: &Lease,
        event: &RunEvent,
        keep: Keep,
    ) -> BoxFuture<'static, Result<(), StorageError>> {
        if keep == Keep::Passing && self.writer.queued() > MAX_PASSING {
            return std::future::ready(Ok(())).boxed();
        }
        let body = match serde_json::to_string(event) {
            Ok(body) => body,
            Err(error) => return std::future::ready(Err(self.place.failed(error))).boxed(),
        };
        // Before the place is taken, so that nothing is between the two.
        let mut event = Appended {
            run: lease.run.number,
            epoch: lease.epoch,
            seq: 0,
            at_ms: now_ms(),
            body,
            effect: Effect::of(event),
        };
        let mut next_seq = lease.next_seq();
        event.seq = *next_seq;
        *next_seq += 1;
        let kept = self.writer.write(move |ctx| append(ctx, event));
        drop(next_seq);
        match keep {
            Keep::Durably => kept.boxed(),
            // What goes wrong here shows at the next event, whose place is then not free.
            Keep::Lazily | Keep::Passing => std::future::ready(Ok(())).boxed(),
        }
    }

    async fn heartbeat(&self, _: &[&Lease]) -> Result<(), StorageError> {
        Ok(())
    }

    async fn release(&self, lease: &Lease) -> Result<(), StorageError> {
        let (number, epoch) = (int(lease.run.number), int(lease.epoch));
        let release = move |ctx: &mut Ctx<'_>| {
            let released = ctx
                .db
                .prepare_cached(
                    "UPDATE runs SET owner = NULL, state = CASE WHEN state = 'ended' THEN 'ended' WHEN asked > 0 THEN 'waiting' \
                     ELSE 'ready' END WHERE number = ?1 AND epoch = ?2",
                )
                .and_then(|mut statement| statement.execute([number, epoch]))
                .map_err(|error| ctx.place.error(&error))?;
            ctx.changed();
            if released == 0 {
                return Err(StorageError::Fenced);
            }
            Ok(())
        };
        self.writer.write(release).await
    }

    async fn run(&self, id: RunId) -> Result<Option<StoredRun>, StorageError> {
        self.reading(move |db| find(db, "id", id.to_string())).await
    }

    async fn spec(&self, run: u64) -> Result<serde_json::Value, StorageError> {
        self.reading(move |db| {
            db.prepare_cached("SELECT spec FROM runs WHERE number = ?1")?
                .query_row([int(run)], |row| json(row, "spec"))
                .optional()
                .map(Option::unwrap_or_default)
        })
        .await
    }

    async fn runs(&self, wanted: Wanted) -> Result<Vec<StoredRun>, StorageError> {
        let Wanted {
            word,
            of,
            before,
            limit,
        } = wanted;
        let (kind, scope) = of.map(|(kind, scope)| (kind_word(kind), scope)).unzip();
        self.reading(move |db| {
            db.prepare_cached(&format!(
                "SELECT * FROM (SELECT {COLUMNS}, {WORD} AS word FROM runs WHERE number < ?1 AND (?4 IS NULL OR kind = ?4 AND scope = ?5)) \
                 WHERE ?2 IS NULL OR word = ?2 ORDER BY number DESC LIMIT ?3"
            ))?
            .query_map(
                params![before.map_or(i64::MAX, int), word, int(limit as u64), kind, scope],
                stored_run,
            )?
            .collect()
        })
        .await
    }

    async fn read(
        &self,
        run: u64,
        seq: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StorageError> {
        self.reading(move |db| {
            db.prepare_cached(
                "SELECT seq, at_ms, body FROM events WHERE run = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3",
            )?
            .query_map(params![int(run), int(seq), int(limit as u64)], |row| {
                Ok(StoredEvent {
                    seq: uint(row, "seq")?,
                    at_ms: uint(row, "at_ms")?,
                    event: json(row, "body")?,
                })
            })?
            .collect()
        })
        .await
    }

    fn tail(&self, run: u64) -> watch::Receiver<u64> {
        self.writer.tail(run)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.writer.changes()
    }

    fn ask(
        &self,
        asked: Question,
        since_ms: u64,
    ) -> BoxFuture<'static, Result<Option<Question>, StorageError>> {
        let owner = Arc::clone(&self.owner);
        let ask = move |ctx: &mut Ctx<'_>| {
            let write = |db: &Connection| -> rusqlite::Result<Option<Question>> {
                if stands(db, &asked, since_ms)? {
                    return Ok(None);
                }
                let run = match asked.run {
                    None => None,
                    Some(id) => Some(
                        db.prepare_cached("SELECT number FROM runs WHERE id = ?1")?
                            .query_row([id.to_string()], |row| row.get::<_, i64>(0))?,
                    ),
                };
                if let Some(run) = run {
                    let known = db
                        .prepare_cached(
                            "SELECT * FROM questions WHERE run = ?1 AND fingerprint = ?2 \
                             AND (fate IS NULL OR fate IN ('decided', 'expired')) ORDER BY number DESC LIMIT 1",
                        )?
                        .query_row(params![run, asked.fingerprint], question)
                        .optional()?;
                    if known.is_some() {
                        return Ok(known);
                    }
                    db.prepare_cached("UPDATE runs SET asked = asked + 1 WHERE number = ?1")?
                        .execute([run])?;
                }
                let request = serde_json::to_string(&asked.request).map_err(unreadable)?;
                let (run_id, owner) = match asked.run {
                    Some(id) => (Some(id.to_string()), None),
                    None => (None, Some(owner.id.as_str())),
                };
                db.prepare_cached(
                    "INSERT INTO questions (id, run, run_id, owner, fingerprint, request, asked_ms, expires_ms, scope) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                )?
                .execute(params![
                    asked.id,
                    run,
                    run_id,
                    owner,
                    asked.fingerprint,
                    request,
                    int(asked.asked_ms),
                    int(asked.expires_ms),
                    asked.scope
                ])?;
                Ok(Some(asked))
            };
            let done = write(ctx.db).map_err(|error| ctx.place.error(&error));
            ctx.changed();
            done
        };
        self.writer.write(ask)
    }

    async fn open_questions(&self) -> Result<Vec<Question>, StorageError> {
        self.reading(|db| {
            db.prepare_cached("SELECT * FROM questions WHERE fate IS NULL ORDER BY number")?
                .query_map([], question)?
                .collect()
        })
        .await
    }

    async fn fate(&self, question: &str) -> Result<Option<Fate>, StorageError> {
        let id = question.to_owned();
        self.reading(move |db| {
            db.prepare_cached("SELECT * FROM questions WHERE id = ?1")?
                .query_row([id], fate)
                .optional()
        })
        .await
    }

    async fn decide(
        &self,
        id: &str,
        answer: Answer,
        by: &str,
    ) -> Result<Result<Question, Undecidable>, StorageError> {
        let (id, by) = (id.to_owned(), by.to_owned());
        let decide = move |ctx: &mut Ctx<'_>| {
            let write = |db: &Connection| -> rusqlite::Result<Result<Question, Undecidable>> {
                let found = db
                    .prepare_cached("SELECT * FROM questions WHERE id = ?1")?
                    .query_row([&id], |row| {
                        Ok((
                            question(row)?,
                            fate(row)?,
                            row.get::<_, Option<i64>>("run")?,
                        ))
                    })
                    .optional()?;
                let Some((question, fate, run)) = found else {
                    return Ok(Err(Undecidable::Unknown));
                };
                match fate {
                    Fate::Open if question.expires_ms <= now_ms() => {
                        return Ok(Err(Undecidable::Expired));
                    }
                    Fate::Open => {}
                    Fate::Decided(_) => return Ok(Err(Undecidable::Answered)),
                    Fate::Withdrawn => return Ok(Err(Undecidable::Withdrawn)),
                    Fate::Expired => return Ok(Err(Undecidable::Expired)),
                }
                let answer = serde_json::to_string(&answer).map_err(unreadable)?;
                db.prepare_cached(
                    "UPDATE questions SET fate = 'decided', answer = ?2, decided_by = ?3, decided_ms = ?4 WHERE id = ?1",
                )?
                .execute(params![id, answer, by, int(now_ms())])?;
                if let Some(run) = run {
                    answered(db, run)?;
                }
                Ok(Ok(question))
            };
            let done = write(ctx.db).map_err(|error| ctx.place.error(&error));
            ctx.changed();
            done
        };
        self.writer.write(decide).await
    }

    async fn withdraw(&self, id: &str) -> Result<(), StorageError> {
        let id = id.to_owned();
        let withdraw = move |ctx: &mut Ctx<'_>| {
            let write = |db: &Connection| -> rusqlite::Result<()> {
                let run: Option<Option<i64>> = db
                    .prepare_cached("UPDATE questions SET fate = 'withdrawn' WHERE id = ?1 AND fate IS NULL RETURNING run")?
                    .query_row([&id], |row| row.get(0))
                    .optional()?;
                match run.flatten() {
                    Some(run) => answered(db, run),
                    None => Ok(()),
                }
            };
            let done = write(ctx.db).map_err(|error| ctx.place.error(&error));
            ctx.changed();
            done
        };
        self.writer.write(withdraw).await
    }

    async fn prune(&self, keep: usize) -> Result<usize, StorageError> {
        let prune = move |ctx: &mut Ctx<'_>| {
            ctx.db
                .execute(
                    "DELETE FROM runs WHERE number IN (SELECT number FROM runs WHERE state = 'ended' AND owner IS NULL \
                     ORDER BY ended_ms DESC, number DESC LIMIT -1 OFFSET ?1)",
                    [int(keep as u64)],
                )
                .map_err(|error| ctx.place.error(&error))
        };
        self.writer.write(prune).await
    }

    async fn live(&self, kind: RunKind, scope: &str) -> Result<usize, StorageError> {
        let scope = scope.to_owned();
        self.reading(move |db| {
            let n: i64 = db
                .prepare_cached(
                    "SELECT count(*) FROM runs WHERE state <> 'ended' AND kind = ?1 AND scope = ?2",
                )?
                .query_row([kind_word(kind), &scope], |row| row.get(0))?;
            Ok(usize::try_from(n).unwrap_or_default())
        })
        .await
    }
}
