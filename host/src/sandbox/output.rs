//! What a guest says while it runs: log lines, standard output and error, progress. Bounded together, so that
//! no guest floods a terminal, a log or the host's memory.

use crate::harmless::shown;
use std::{
    borrow::Cow,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::{
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamError, StreamResult},
};

use super::{
    GuestListener,
    limits::{LINE_BYTES, LINES, LINES_BYTES, PROGRESS_REPORTS},
    scrub::Scrubber,
};
use crate::event::LogLevel;

/// Where one call's lines and reports go.
#[derive(Clone)]
pub(super) struct GuestOutput(Arc<Shared>);

struct Shared {
    listener: Arc<dyn GuestListener>,
    scrubber: Option<Scrubber>,
    heard: Mutex<Heard>,
}

#[derive(Default)]
struct Heard {
    lines: usize,
    lines_bytes: usize,
    dropped_lines: usize,
    reports: usize,
    dropped_reports: usize,
    /// The line that each stream has not ended yet.
    open: [Vec<u8>; 2],
    /// The last text on standard error: a panic's words, if there was one.
    last_words: Vec<u8>,
}

/// Which of a guest's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

impl Stream {
    fn level(self) -> LogLevel {
        match self {
            Self::Out => LogLevel::Info,
            Self::Err => LogLevel::Warn,
        }
    }
}

impl GuestOutput {
    /// `scrubber` takes the values of secrets out of all that the guest says.
    pub(super) fn new(listener: Arc<dyn GuestListener>, scrubber: Option<Scrubber>) -> Self {
        Self(Arc::new(Shared {
            listener,
            scrubber,
            heard: Mutex::default(),
        }))
    }

    /// Passes a line on, or counts it.
    pub(super) fn line(&self, level: LogLevel, text: &str) {
        let line = self.heard().admit(&self.scrubbed(text));
        if let Some(line) = line {
            self.0.listener.logged(level, line);
        }
    }

    pub(super) fn progress(&self, done: f64, total: Option<f64>, message: Option<&str>) {
        {
            let mut heard = self.heard();
            if heard.reports == PROGRESS_REPORTS {
                heard.dropped_reports += 1;
                return;
            }
            heard.reports += 1;
        }
        let message = message.map(|text| shown(&self.scrubbed(text), LINE_BYTES, false));
        self.0.listener.progressed(done, total, message);
    }

    /// Takes what a stream got. Whole lines are passed on at once.
    fn wrote(&self, stream: Stream, bytes: &[u8]) {
        let mut lines = Vec::new();
        {
            let mut heard = self.heard();
            if stream == Stream::Err {
                heard.remember(bytes);
            }
            for piece in bytes.split_inclusive(|b| *b == b'\n') {
                let open = &mut heard.open[stream as usize];
                let room = (LINE_BYTES + 1).saturating_sub(open.len());
                let whole = piece.ends_with(b"\n");
                let text = piece.strip_suffix(b"\n").unwrap_or(piece);
                open.extend_from_slice(&text[..text.len().min(room)]);
                if whole {
                    let line = std::mem::take(open);
                    lines.extend(heard.admit(&self.scrubbed(&String::from_utf8_lossy(&line))));
                }
            }
        }
        for line in lines {
            self.0.listener.logged(stream.level(), line);
        }
    }

    /// Passes on what was left without a line end, and says once what was dropped.
    pub(super) fn finish(&self) {
        for stream in [Stream::Out, Stream::Err] {
            let open = std::mem::take(&mut self.heard().open[stream as usize]);
            if !open.is_empty() {
                self.line(stream.level(), &String::from_utf8_lossy(&open));
            }
        }
        let (lines, reports) = {
            let mut heard = self.heard();
            (
                std::mem::take(&mut heard.dropped_lines),
                std::mem::take(&mut heard.dropped_reports),
            )
        };
        let tell = |what: String| self.0.listener.logged(LogLevel::Warn, what);
        if lines > 0 {
            tell(format!(
                "{lines} more lines were dropped: a call may log {LINES} lines and {LINES_BYTES} bytes"
            ));
        }
        if reports > 0 {
            tell(format!(
                "{reports} more reports of progress were dropped: a call may make {PROGRESS_REPORTS}"
            ));
        }
    }

    /// The end of what the guest wrote to standard error.
    pub(super) fn last_words(&self) -> String {
        let words = String::from_utf8_lossy(&self.heard().last_words).into_owned();
        self.scrubbed(&words).into_owned()
    }

    fn scrubbed<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let scrubber = self.0.scrubber.as_ref();
        match scrubber.and_then(|scrubber| scrubber.text(text)) {
            Some(scrubbed) => Cow::Owned(scrubbed),
            None => Cow::Borrowed(text),
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heard {
    fn admit(&mut self, text: &str) -> Option<String> {
        if self.lines == LINES || self.lines_bytes >= LINES_BYTES {
            self.dropped_lines += 1;
            return None;
        }
        let line = shown(text.trim_end_matches(['\r', '\n']), LINE_BYTES, false);
        self.lines += 1;
        self.lines_bytes += line.len();
        Some(line)
    }

    fn remember(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LINES_BYTES)..];
        self.last_words.extend_from_slice(bytes);
        // Cut rarely, so that many small writes stay cheap.
        if self.last_words.len() > 2 * LINES_BYTES {
            let cut = self.last_words.len() - LINES_BYTES;
            self.last_words.drain(..cut);
        }
    }
}

/// One of a guest's streams. Always writable: a guest is never held up by who listens.
#[derive(Clone)]
pub(super) struct GuestStream {
    output: GuestOutput,
    stream: Stream,
}

impl GuestStream {
    pub(super) fn new(output: &GuestOutput, stream: Stream) -> Self {
        Self {
            output: output.clone(),
            stream,
        }
    }
}

impl IsTerminal for GuestStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for GuestStream {
    async fn ready(&mut self) {}
}

impl OutputStream for GuestStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.output.wrote(self.stream, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(LINES_BYTES)
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.output.wrote(self.stream, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Standard output that is an answer: kept instead of told, up to a bound. A program that prints more is
/// stopped.
#[derive(Clone)]
pub(super) struct Captured(Arc<Mutex<Kept>>);

struct Kept {
    bytes: Vec<u8>,
    limit_bytes: usize,
}

impl Captured {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Kept {
            bytes: Vec::new(),
            limit_bytes,
        })))
    }

    /// Whether more was printed than the bound; then one byte more than that is kept.
    pub(super) fn is_over(&self) -> bool {
        let kept = self.kept();
        kept.bytes.len() > kept.limit_bytes
    }

    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.kept().bytes)
    }

    /// False: it is over.
    fn keep(&self, bytes: &[u8]) -> bool {
        let mut kept = self.kept();
        let room = kept.limit_bytes.saturating_add(1) - kept.bytes.len();
        kept.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        kept.bytes.len() <= kept.limit_bytes
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IsTerminal for Captured {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Captured {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for Captured {
    async fn ready(&mut self) {}
}

impl OutputStream for Captured {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if self.keep(&bytes) {
            Ok(())
        } else {
            Err(StreamError::trap("it printed more than an answer may hold"))
        }
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(LINES_BYTES)
    }
}

impl AsyncWrite for Captured {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(if self.keep(bytes) {
            Ok(bytes.len())
        } else {
            Err(std::io::ErrorKind::FileTooLarge.into())
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Lines(Mutex<Vec<(LogLevel, String)>>);

    impl GuestListener for Lines {
        fn logged(&self, level: LogLevel, text: String) {
            self.0.lock().unwrap().push((level, text));
        }
        fn progressed(&self, done: f64, _: Option<f64>, _: Option<String>) {
            self.logged(LogLevel::Debug, format!("progress {done}"));
        }
    }

    fn output() -> (Arc<Lines>, GuestOutput) {
        let lines = Arc::new(Lines::default());
        (lines.clone(), GuestOutput::new(lines, None))
    }

    #[test]
    fn streams_become_lines() {
        let (lines, output) = output();
        output.wrote(Stream::Out, b"one\ntw");
        output.wrote(Stream::Err, b"err\n");
        output.wrote(Stream::Out, b"o\r\nthree");
        output.finish();
        let got: Vec<_> = lines.0.lock().unwrap().drain(..).collect();
        let text: Vec<_> = got.iter().map(|(_, t)| t.as_str()).collect();
        assert_eq!(text, ["one", "err", "two", "three"]);
        assert_eq!(got[1].0, LogLevel::Warn);
        assert_eq!(output.last_words(), "err\n");
    }

    #[test]
    fn a_flood_is_counted_once() {
        let (lines, output) = output();
        for _ in 0..LINES + 5 {
            output.line(LogLevel::Info, "x");
        }
        output.finish();
        output.finish();
        let lines = lines.0.lock().unwrap();
        assert_eq!(lines.len(), LINES + 1);
        assert!(lines[LINES].1.starts_with("5 more lines were dropped"));
    }

    #[test]
    fn a_line_without_end_stays_small() {
        let (lines, output) = output();
        for _ in 0..100 {
            output.wrote(Stream::Err, &[b'x'; 64 << 10]);
        }
        assert!(output.heard().open[1].len() <= LINE_BYTES + 1);
        assert!(output.heard().last_words.len() <= 2 * LINES_BYTES);
        output.finish();
        assert!(lines.0.lock().unwrap()[0].1.len() <= LINE_BYTES + '…'.len_utf8());
    }

    #[test]
    fn the_text_of_all_lines_is_bounded() {
        let (lines, output) = output();
        for _ in 0..100 {
            output.line(LogLevel::Info, &"y".repeat(LINE_BYTES));
        }
        output.finish();
        assert_eq!(lines.0.lock().unwrap().len(), LINES_BYTES / LINE_BYTES + 1);
    }

    #[test]
    fn progress_is_bounded() {
        let (lines, output) = output();
        for _ in 0..PROGRESS_REPORTS + 3 {
            output.progress(1.0, None, None);
        }
        output.finish();
        let lines = lines.0.lock().unwrap();
        assert_eq!(lines.len(), PROGRESS_REPORTS + 1);
        assert!(lines[PROGRESS_REPORTS].1.starts_with("3 more reports"));
    }
}
