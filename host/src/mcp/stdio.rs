//! One client at the other end of two pipes: a message a line.

use std::{io, sync::Arc, time::Duration};

use rmcp::{
    ErrorData, RoleServer, ServiceExt as _,
    model::{ClientJsonRpcMessage, ErrorCode, JsonRpcError, RequestId, ServerJsonRpcMessage},
    service::{RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage},
    transport::Transport,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::Mutex,
};
use tokio_util::sync::CancellationToken;

use super::McpServer;

/// The longest message that is read, in bytes. As over HTTP.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// How long running calls may go on once the client has closed its end.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why serving a client ended.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    #[error("the client did not begin as MCP clients do: {0}")]
    Begin(Box<ServerInitializeError>),
    #[error("serving the client failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl McpServer {
    /// Serves one client until it closes its end, or until `stop`. Calls that run then are ended; what they
    /// answered before has been written.
    pub async fn serve_pipes(
        &self,
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
        stop: CancellationToken,
    ) -> Result<(), StdioError> {
        let handler = self.handler();
        let ended = handler.ended.clone();
        let lines = Lines {
            read: BufReader::with_capacity(64 << 10, read),
            line: Vec::new(),
            too_long: false,
            write: Arc::new(Mutex::new(Some(Writing {
                to: write,
                line: Vec::new(),
            }))),
            ended: ended.clone(),
        };
        let serve = async {
            match handler.serve_with_ct(lines, stop.child_token()).await {
                Ok(running) => running
                    .waiting()
                    .await
                    .map(|_| ())
                    .map_err(StdioError::from),
                // Closing without a word, or being stopped before the first one, is no fault.
                Err(
                    ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled,
                ) => Ok(()),
                Err(error) => Err(StdioError::Begin(Box::new(error))),
            }
        };
        tokio::pin!(serve);
        let served = tokio::select! {
            biased;
            () = stop.cancelled() => {
                ended.cancel();
                serve.await
            }
            served = &mut serve => served,
        };
        ended.cancel();
        served
    }
}

struct Lines<R, W> {
    read: BufReader<R>,
    /// The message as far as it has come; `receive` may be dropped and called again at any point.
    line: Vec<u8>,
    /// The rest of the line is skipped.
    too_long: bool,
    write: Arc<Mutex<Option<Writing<W>>>>,
    /// Ends this client's calls.
    ended: CancellationToken,
}

struct Writing<W> {
    to: W,
    /// Kept for its capacity.
    line: Vec<u8>,
}

/// What a line turned out to be.
enum Line {
    Whole,
    TooLong,
    End,
}

impl<R: AsyncRead + Send + Unpin, W: AsyncWrite + Send + Unpin + 'static> Lines<R, W> {
    async fn next_line(&mut self) -> Line {
        loop {
            let Ok(available) = self.read.fill_buf().await else {
                return Line::End;
            };
            if available.is_empty() {
                return Line::End;
            }
            let end = available.iter().position(|b| *b == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            if self.line.len() + taken > MAX_MESSAGE_BYTES {
                self.too_long = true;
                self.line = Vec::new();
            }
            if !self.too_long {
                self.line.extend_from_slice(&available[..taken]);
            }
            self.read.consume(taken);
            if end.is_some() {
                return if std::mem::take(&mut self.too_long) {
                    Line::TooLong
                } else {
                    Line::Whole
                };
            }
        }
    }

    async fn refuse(&mut self, refusal: Refusal) {
        let Refusal { id, code, why } = refusal;
        let error = JsonRpcError::new(id, ErrorData::new(code, why, None));
        let error = ServerJsonRpcMessage::Error(error);
        let _ = send(&self.write, error).await;
    }
}

async fn send<W: AsyncWrite + Unpin>(
    write: &Mutex<Option<Writing<W>>>,
    message: TxJsonRpcMessage<RoleServer>,
) -> io::Result<()> {
    let mut write = write.lock().await;
    let Some(Writing { to, line }) = write.as_mut() else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    line.clear();
    serde_json::to_writer(&mut *line, &message)?;
    line.push(b'\n');
    to.write_all(line).await?;
    to.flush().await
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let write = Arc::clone(&self.write);
        async move { send(&write, message).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            match self.next_line().await {
                Line::Whole => {}
                Line::TooLong => {
                    self.refuse(Refusal {
                        id: None,
                        code: ErrorCode::INVALID_REQUEST,
                        why: format!(
                            "a message may have {MAX_MESSAGE_BYTES} bytes, and this one was longer"
                        ),
                    })
                    .await;
                    continue;
                }
                Line::End => {
                    let ended = self.ended.clone();
                    // Over at once where the calls, for which the service waits, end by themselves.
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(LAST_WORDS, ended.cancelled()).await;
                        ended.cancel();
                    });
                    return None;
                }
            }
            let parsed = parse(&self.line);
            self.line.clear();
            match parsed {
                Ok(None) => {}
                Ok(Some(message)) => return Some(message),
                Err(refusal) => self.refuse(refusal).await,
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.write.lock().await.take();
        Ok(())
    }
}

/// What answers a line that is no message.
#[derive(Debug)]
pub struct Refusal {
    /// Of the request that the line was meant to be, where it can be told.
    pub id: Option<RequestId>,
    pub code: ErrorCode,
    pub why: String,
}

/// A message; nothing for a blank line or a notification that is not understood, which has no answer; or the error
/// that answers what is neither.
pub fn parse(line: &[u8]) -> Result<Option<ClientJsonRpcMessage>, Refusal> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    let error = match serde_json::from_slice(line) {
        Ok(message) => return Ok(Some(message)),
        Err(error) => error,
    };
    let Ok(value) = serde_json::from_slice::<Value>(line) else {
        return Err(Refusal {
            id: None,
            code: ErrorCode::PARSE_ERROR,
            why: format!("this is not JSON: {error}"),
        });
    };
    let id = value
        .get("id")
        .and_then(|id| serde_json::from_value(id.clone()).ok());
    let is_call = value["jsonrpc"] == "2.0" && value["method"].is_string();
    if is_call && value.get("id").is_none() {
        return Ok(None);
    }
    let (code, why) = if is_call && id.is_some() {
        (
            ErrorCode::INVALID_PARAMS,
            "the parameters are not those of this method",
        )
    } else {
        (
            ErrorCode::INVALID_REQUEST,
            "this is JSON, and no message of JSON-RPC 2.0 as MCP has them",
        )
    };
    Err(Refusal {
        id,
        code,
        why: why.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_gets_the_error_that_says_so() {
        let refused = |line: &str| {
            let Err(Refusal { id, code, .. }) = parse(line.as_bytes()) else {
                panic!("{line} was taken")
            };
            (id, code.0)
        };
        let seven = || Some(RequestId::Number(7));
        assert_eq!(refused("{"), (None, -32700));
        assert_eq!(refused("\u{1}"), (None, -32700));
        assert_eq!(refused("[]"), (None, -32600));
        assert_eq!(refused("17"), (None, -32600));
        assert_eq!(refused(r#"{"id":7,"method":"ping"}"#), (seven(), -32600));
        for nothing in [
            "",
            "  \r\n",
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}"#,
        ] {
            assert!(matches!(parse(nothing.as_bytes()), Ok(None)), "{nothing}");
        }
        let ping = r#" {"jsonrpc":"2.0","id":1,"method":"ping"} "#;
        assert!(matches!(parse(ping.as_bytes()), Ok(Some(_))));
    }
}
