//! A run's events as lines of JSON: the `--trace` file, and `--output stream-json`.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Mutex, PoisonError},
};

use crate::{
    agent::record::Journal,
    event::{LINE_VERSION, Observer, RunEvent},
    storage::{Line, now_ms},
};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, ready},
};

/// The version of the lines.
pub const VERSION: u32 = LINE_VERSION;

/// The JSON Schema that every line fits.
pub fn schema() -> schemars::Schema {
    let mut schema = schemars::schema_for!(Line<'_>);
    schema.insert("title".into(), "A line of an agentloop run".into());
    if let Some(version) = schema.pointer_mut("/properties/v") {
        *version = serde_json::json!({"const": VERSION});
    }
    schema
}

/// Numbers the events of one run.
pub struct Lines {
    run: String,
    seq: u64,
}

impl Lines {
    pub fn new(run: String) -> Self {
        Self { run, seq: 0 }
    }

    fn write(&mut self, event: &RunEvent, mut to: impl Write) -> io::Result<()> {
        let line = Line {
            v: VERSION,
            run: &self.run,
            seq: self.seq,
            ts: now_ms(),
            event,
        };
        let mut bytes = serde_json::to_vec(&line)?;
        bytes.push(b'\n');
        to.write_all(&bytes)?;
        self.seq += 1;
        Ok(())
    }
}

/// A trace file. Beginnings and ends of calls are on the disk before the run goes on.
pub struct TraceFile(Mutex<(File, Lines)>);

impl TraceFile {
    /// Appends to the file, so that runs that continue each other can share one.
    pub fn open(path: &Path, run: String) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(path)?;
        Ok(Self(Mutex::new((file, Lines::new(run)))))
    }
}

impl Journal for TraceFile {
    fn append(&self, event: &RunEvent) -> BoxFuture<'static, io::Result<()>> {
        ready(self.write(event)).boxed()
    }
}

impl TraceFile {
    fn write(&self, event: &RunEvent) -> io::Result<()> {
        let mut locked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, lines) = &mut *locked;
        lines.write(event, &*file)?;
        match event {
            RunEvent::CallStarted { .. }
            | RunEvent::CallEnded { .. }
            | RunEvent::TurnEnded { .. } => file.sync_data(),
            RunEvent::RunStarted { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::TextStreamed { .. }
            | RunEvent::ReasoningStreamed { .. }
            | RunEvent::ToolUseStreamed { .. }
            | RunEvent::ModelRetried { .. }
            | RunEvent::CallRequested { .. }
            | RunEvent::ApprovalRequested { .. }
            | RunEvent::ApprovalAnswered { .. }
            | RunEvent::CallQueued { .. }
            | RunEvent::CallProgressed { .. }
            | RunEvent::CallLogged { .. }
            | RunEvent::OutputCut { .. }
            | RunEvent::Noted { .. }
            | RunEvent::RunEnded { .. }
            | RunEvent::RunContinued { .. } => Ok(()),
        }
    }
}

/// Writes every event to stdout, up to the first that can't be written.
pub struct StreamJson(Mutex<Writing>);

struct Writing {
    lines: Lines,
    failed: Option<io::Error>,
}

impl StreamJson {
    pub fn new(run: String) -> Self {
        Self(Mutex::new(Writing {
            lines: Lines::new(run),
            failed: None,
        }))
    }

    /// Why lines are missing, if they are. A reader that has gone away misses none.
    pub fn finish(&self) -> io::Result<()> {
        let mut writing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match writing.failed.take() {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            Some(_) | None => Ok(()),
        }
    }
}

impl Observer for StreamJson {
    fn observe(&self, event: &RunEvent) {
        let mut writing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It does not end the run, whose result is in the trace and the history; `finish` tells.
        if writing.failed.is_none() {
            writing.failed = writing.lines.write(event, std::io::stdout().lock()).err();
        }
    }
}
