//! The body of an answer, in bounded time and size, as bytes or as server-sent events.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use sse_stream::{Sse, SseByteStream};
use tokio::time::Instant;

use crate::http::{TransportFault, explain};

/// The largest reply that is read. The longest that a model can say is far below.
pub(super) const MAX_REPLY_BYTES: usize = 64 << 20;

/// Why a body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyFault {
    #[error("nothing came for {} s", .0.as_secs_f64())]
    Idle(Duration),
    #[error("it took longer than its limit of {} s", .0.as_secs_f64())]
    TooSlow(Duration),
    #[error("it is larger than {MAX_REPLY_BYTES} bytes")]
    TooLarge,
    #[error("{fault}: {explained}")]
    Transport {
        fault: TransportFault,
        explained: String,
    },
    #[error("it is not UTF-8")]
    NotUtf8,
}

/// How long a body may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The longest silence between two pieces.
    pub(super) idle: Duration,
    /// The longest time for all of it.
    pub(super) total: Duration,
    pub(super) deadline: Instant,
}

/// The pieces of a body; ends after the first fault.
pub(super) fn chunks(
    response: reqwest::Response,
    pace: Pace,
    max_bytes: usize,
) -> impl Stream<Item = Result<Bytes, BodyFault>> + Send {
    stream::unfold(Some((response, max_bytes)), move |state| async move {
        let (mut response, left) = state?;
        match next_chunk(&mut response, pace, left).await {
            Ok(Some(chunk)) => {
                let left = left - chunk.len();
                Some((Ok(chunk), Some((response, left))))
            }
            Ok(None) => None,
            Err(fault) => Some((Err(fault), None)),
        }
    })
}

async fn next_chunk(
    response: &mut reqwest::Response,
    pace: Pace,
    left: usize,
) -> Result<Option<Bytes>, BodyFault> {
    let idle_at = Instant::now() + pace.idle;
    let until = idle_at.min(pace.deadline);
    match tokio::time::timeout_at(until, response.chunk()).await {
        Err(_) if until == idle_at => Err(BodyFault::Idle(pace.idle)),
        Err(_) => Err(BodyFault::TooSlow(pace.total)),
        Ok(Err(error)) => Err(BodyFault::Transport {
            fault: TransportFault::of(&error),
            explained: explain(&error),
        }),
        Ok(Ok(Some(chunk))) if chunk.len() > left => Err(BodyFault::TooLarge),
        Ok(Ok(chunk)) => Ok(chunk),
    }
}

/// A body as events. Comments, and a last event without its blank line, are left out.
pub(super) fn events(
    chunks: impl Stream<Item = Result<Bytes, BodyFault>> + Send,
) -> impl Stream<Item = Result<Sse, BodyFault>> + Send {
    SseByteStream::new(Box::pin(chunks)).map(|event| {
        event.map_err(|error| match error {
            sse_stream::Error::Body(inner) => match inner.downcast::<BodyFault>() {
                Ok(fault) => *fault,
                Err(other) => BodyFault::Transport {
                    fault: TransportFault::Other,
                    explained: other.to_string(),
                },
            },
            _ => BodyFault::NotUtf8,
        })
    })
}

/// A body as a whole.
pub(super) async fn whole(
    chunks: impl Stream<Item = Result<Bytes, BodyFault>> + Send,
) -> Result<Vec<u8>, BodyFault> {
    let mut chunks = std::pin::pin!(chunks);
    let mut body = Vec::new();
    while let Some(chunk) = chunks.next().await {
        body.extend_from_slice(&chunk?);
    }
    Ok(body)
}
