//! The events of one run, in order and numbered without gaps. Writers append, readers read at their own pace from
//! wherever they are: a slow one holds up nobody.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use serde::Serialize;
use tokio::sync::watch;

use crate::event::{LINE_VERSION, RunEvent};

/// What pieces of text, progress and log lines of one run are kept, in bytes. The whole text is in the messages.
const MAX_PASSING_BYTES: usize = 4 << 20;

/// One event of a run, as `run --output stream-json` writes it.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    v: u32,
    run: &'a str,
    seq: u64,
    ts: u64,
    #[serde(flatten)]
    event: &'a RunEvent,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// From 0.
    pub(super) seq: u64,
    /// Milliseconds since 1970.
    pub(super) ts: u64,
    pub(super) event: RunEvent,
}

impl Entry {
    pub(super) fn line<'a>(&'a self, run: &'a str) -> Line<'a> {
        Line {
            v: LINE_VERSION,
            run,
            seq: self.seq,
            ts: self.ts,
            event: &self.event,
        }
    }
}

pub(super) struct RunLog {
    kept: Mutex<Kept>,
    /// How many entries there are.
    length: watch::Sender<u64>,
}

#[derive(Default)]
struct Kept {
    entries: Vec<Arc<Entry>>,
    passing_bytes: usize,
}

impl RunLog {
    pub(super) fn new() -> Self {
        Self {
            kept: Mutex::default(),
            length: watch::Sender::new(0),
        }
    }

    pub(super) fn append(&self, event: &RunEvent) {
        let passing = passing_bytes(event);
        let length = {
            let mut kept = self.kept();
            if let Some(bytes) = passing {
                if kept.passing_bytes + bytes > MAX_PASSING_BYTES {
                    return;
                }
                kept.passing_bytes += bytes;
            }
            let seq = kept.entries.len() as u64;
            kept.entries.push(Arc::new(Entry {
                seq,
                ts: now_ms(),
                event: event.clone(),
            }));
            seq + 1
        };
        self.length.send_replace(length);
    }

    /// At most `limit` entries from `seq` on.
    pub(super) fn read(&self, seq: u64, limit: usize) -> Vec<Arc<Entry>> {
        let kept = self.kept();
        let from = usize::try_from(seq)
            .unwrap_or(usize::MAX)
            .min(kept.entries.len());
        let to = from.saturating_add(limit).min(kept.entries.len());
        kept.entries[from..to].to_vec()
    }

    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        self.read(0, usize::MAX)
    }

    pub(super) fn length(&self) -> u64 {
        *self.length.borrow()
    }

    /// Whether nothing follows `seq` unless somebody continues the run.
    pub(super) fn is_over_at(&self, seq: u64) -> bool {
        let kept = self.kept();
        seq >= kept.entries.len() as u64
            && kept
                .entries
                .last()
                .is_some_and(|entry| matches!(entry.event, RunEvent::RunEnded { .. }))
    }

    /// Ends once there are entries from `seq` on.
    pub(super) async fn beyond(&self, seq: u64) {
        let mut length = self.length.subscribe();
        // The sender lives as long as this log.
        let _ = length.wait_for(|length| *length > seq).await;
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The size of what is there to be watched and is no part of the record.
fn passing_bytes(event: &RunEvent) -> Option<usize> {
    /// Of an entry itself.
    const OWN: usize = 100;
    let text = match event {
        RunEvent::TextStreamed { text }
        | RunEvent::ReasoningStreamed { text }
        | RunEvent::CallLogged { text, .. } => text.len(),
        RunEvent::ToolUseStreamed { name } => name.len(),
        RunEvent::CallProgressed { message, .. } => message.as_deref().unwrap_or_default().len(),
        RunEvent::ModelRetried { error, .. } => error.len(),
        RunEvent::RunStarted { .. }
        | RunEvent::TurnStarted { .. }
        | RunEvent::TurnEnded { .. }
        | RunEvent::CallRequested { .. }
        | RunEvent::ApprovalRequested { .. }
        | RunEvent::ApprovalAnswered { .. }
        | RunEvent::CallQueued { .. }
        | RunEvent::CallStarted { .. }
        | RunEvent::CallEnded { .. }
        | RunEvent::OutputCut { .. }
        | RunEvent::Noted { .. }
        | RunEvent::RunEnded { .. } => return None,
    };
    Some(text + OWN)
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since_1970 = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::Usage;

    fn streamed(bytes: usize) -> RunEvent {
        RunEvent::TextStreamed {
            text: "x".repeat(bytes),
        }
    }

    fn over() -> RunEvent {
        RunEvent::RunEnded {
            status: "completed",
            text: String::new(),
            usage: Usage::default(),
        }
    }

    #[test]
    fn what_passes_is_bounded_and_the_record_is_not() {
        let log = RunLog::new();
        for _ in 0..10 {
            log.append(&streamed(1 << 20));
        }
        assert_eq!(log.length(), 3);
        log.append(&over());
        let seqs: Vec<u64> = log.all().iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, [0, 1, 2, 3]);
    }

    #[test]
    fn readers_read_from_where_they_are() {
        let log = RunLog::new();
        assert!(!log.is_over_at(0));
        log.append(&streamed(1));
        assert!(!log.is_over_at(1));
        log.append(&over());
        assert_eq!(log.read(0, 1).len(), 1);
        assert_eq!(log.read(1, 10)[0].seq, 1);
        assert!(log.read(2, 10).is_empty());
        assert!(log.read(u64::MAX, usize::MAX).is_empty());
        assert!(!log.is_over_at(1));
        assert!(log.is_over_at(2));
        assert!(log.is_over_at(u64::MAX));
    }
}
