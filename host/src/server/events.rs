//! A run's events as they come, for any number of readers, each at its own pace.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{
        IntoResponse as _, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use super::{
    Shared,
    extract::{Params, Segment},
    problem::Problem,
    runs::find,
};
use crate::storage::{RunState, RunStore, StorageError, StoredEvent, StoredRun};

/// Entries that one reader takes at once.
const BATCH: usize = 64;
/// How long a stream may be silent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsParams {
    /// Only events after this one; all unless given
    after: Option<u64>,
}

/// The events of a run, as server-sent events
///
/// Each has its number as `id`, its type as `event` and a line as `agentloop-host schema` describes it as `data`.
/// The stream ends with the run. A client that reconnects sends the last number in `Last-Event-ID`, which counts
/// before `after`, and misses nothing.
#[utoipa::path(
    get, path = "/v1/runs/{id}/events", tag = "runs",
    params(
        ("id" = String, Path),
        ("Last-Event-ID" = Option<String>, Header, description = "The number of the last event that arrived"),
        EventsParams,
    ),
    responses(
        (status = 200, description = "The events", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The run has ended, and nothing follows"),
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment,
    Params(params): Params<EventsParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let run = find(&shared, &id).await?;
    let last = match headers.get("last-event-id") {
        None => params.after,
        Some(last) => Some(
            last.to_str()
                .ok()
                .and_then(|last| last.trim().parse().ok())
                .ok_or_else(|| {
                    Problem::bad_request(
                        "last_event_id",
                        "the header `last-event-id` holds the number of an event",
                    )
                })?,
        ),
    };
    let next = last.map_or(0, |last| last.saturating_add(1));
    if is_over_at(&run, next) {
        // What makes a browser stop asking.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let reading = Reading {
        store: Arc::clone(&shared.store),
        tail: shared.store.tail(run.number),
        id: run.id.to_string(),
        run,
        next,
        read: VecDeque::new(),
        stopping: shared.stopping.clone(),
    };
    let events = stream::unfold(reading, |mut reading| async move {
        let event = reading.event().await?;
        Some((Ok::<_, Infallible>(event), reading))
    });
    Ok(Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response())
}

/// Whether nothing follows unless somebody continues the run.
fn is_over_at(run: &StoredRun, next: u64) -> bool {
    run.state == RunState::Ended && next >= run.next_seq
}

/// Where one reader is.
struct Reading {
    store: Arc<dyn RunStore>,
    tail: watch::Receiver<u64>,
    run: StoredRun,
    id: String,
    next: u64,
    read: VecDeque<StoredEvent>,
    stopping: CancellationToken,
}

impl Reading {
    /// None: nothing follows, or the server stops.
    async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(stored) = self.read.pop_front() {
                self.next = stored.seq + 1;
                return event(&self.id, &stored);
            }
            match self.more().await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!("a reader of run {} is sent away: {error}", self.id);
                    return None;
                }
            }
        }
    }

    /// False: nothing follows.
    async fn more(&mut self) -> Result<bool, StorageError> {
        self.tail.mark_unchanged();
        self.read = self
            .store
            .read(self.run.number, self.next, BATCH)
            .await?
            .into();
        if !self.read.is_empty() {
            return Ok(true);
        }
        match self.store.run(self.run.id).await? {
            Some(run) if !is_over_at(&run, self.next) => self.run = run,
            Some(_) | None => return Ok(false),
        }
        // Something may have come between the two looks.
        if self.run.next_seq > self.next {
            return Ok(true);
        }
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => Ok(false),
            changed = self.tail.changed() => Ok(changed.is_ok()),
        }
    }
}

fn event(run: &str, entry: &StoredEvent) -> Option<Event> {
    let line = serde_json::to_value(entry.line(run)).ok()?;
    let kind = line["type"].as_str().unwrap_or("event").to_owned();
    Some(
        Event::default()
            .id(entry.seq.to_string())
            .event(kind)
            .data(line.to_string()),
    )
}
