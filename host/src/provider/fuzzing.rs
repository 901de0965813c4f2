//! A way in for tests that give the readers of replies anything at all. No part of the interface.

use std::pin::pin;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};

use super::{
    anthropic,
    exchange::Reader,
    openai,
    sse::{self, BodyFault},
};

/// What each reader makes of a streamed body that comes in pieces of this size.
pub fn read_stream(body: &[u8], piece_bytes: usize) -> Vec<String> {
    vec![
        read(anthropic::reply::Assembly::new("m", 0), body, piece_bytes),
        read(
            openai::reply::Assembly::new("m", 0, false),
            body,
            piece_bytes,
        ),
        read(
            openai::reply::Assembly::new("m", 0, true),
            body,
            piece_bytes,
        ),
    ]
}

fn read(mut reader: impl Reader, body: &[u8], piece_bytes: usize) -> String {
    let pieces = body.chunks(piece_bytes.max(1));
    let pieces = pieces.map(|piece| Ok::<_, BodyFault>(Bytes::copy_from_slice(piece)));
    let reading = async {
        let mut events = pin!(sse::events(stream::iter(pieces)));
        while let Some(event) = events.next().await {
            match event {
                Err(fault) => return fault.to_string(),
                Ok(event) => match reader.event(&event, &mut ()) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(fault) => return format!("{fault:?}"),
                },
            }
        }
        match reader.finish() {
            Ok(reply) => format!("{reply:?}"),
            Err(fault) => format!("{fault:?}"),
        }
    };
    reading
        .now_or_never()
        .unwrap_or_else(|| "it waits, and nothing will come".to_owned())
}
