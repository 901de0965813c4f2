//! A server's process: few variables, a process group of its own, and an end that takes the whole group with it.

use std::{
    io,
    pin::Pin,
    process::Stdio,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader, ReadBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

use super::{PeerError, convert};
use crate::{capability::EnvironmentGrant, ids::PluginName};

/// What programs need to start. None of them is a secret by its name.
const VARIABLES: [&str; 9] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TERM",
    "SYSTEMROOT",
    "TEMP",
];
/// Of what a server writes to standard error, a line at a time.
const LINE_BYTES: u64 = 4 << 10;
/// Of one message, which is a line; as much as the transport takes.
pub(super) const MESSAGE_BYTES: usize = 16 << 20;

pub(super) struct Process {
    child: Mutex<(Child, bool)>,
    /// Whether it sent a message that is too long.
    sent_too_much: Arc<AtomicBool>,
    /// Reads standard error.
    reader: JoinHandle<()>,
}

impl Process {
    pub(super) fn start(
        name: &PluginName,
        argv: &[String],
        environment: &[EnvironmentGrant],
    ) -> Result<(Self, Messages<ChildStdout>, ChildStdin), PeerError> {
        let Some((program, arguments)) = argv.split_first() else {
            return Err(PeerError::NoCommand);
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(
                VARIABLES
                    .iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .envs(environment.iter().map(|v| (&v.name, &v.value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        #[cfg(unix)]
        command.process_group(0);
        let cannot = |source| PeerError::Start {
            program: program.clone(),
            source,
        };
        let mut child = command.spawn().map_err(cannot)?;
        let (Some(stdout), Some(stdin), Some(stderr)) =
            (child.stdout.take(), child.stdin.take(), child.stderr.take())
        else {
            return Err(cannot(std::io::ErrorKind::BrokenPipe.into()));
        };
        let process = Self {
            child: Mutex::new((child, false)),
            sent_too_much: Arc::default(),
            reader: tokio::spawn(listen(name.clone(), stderr)),
        };
        let messages = Messages {
            of: stdout,
            bytes: 0,
            too_long: process.sent_too_much.clone(),
        };
        Ok((process, messages, stdin))
    }

    pub(super) fn sent_too_much(&self) -> bool {
        self.sent_too_much.load(Ordering::SeqCst)
    }

    pub(super) fn is_killed(&self) -> bool {
        self.child().1
    }

    /// Ends it and all that it started. Nobody has waited for it before, so its number is still its own.
    pub(super) fn kill(&self) {
        let mut child = self.child();
        if std::mem::replace(&mut child.1, true) {
            return;
        }
        #[cfg(unix)]
        if let Some(group) = child
            .0
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?))
        {
            // It may be gone already.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.0.start_kill();
    }

    fn child(&self) -> MutexGuard<'_, (Child, bool)> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.reader.abort();
    }
}

/// What a server sends, up to a message that is too long: there the connection ends, and with it whoever waits
/// for an answer. The transport by itself drops such a message and goes on, and its answer never comes.
pub(super) struct Messages<R> {
    of: R,
    /// Of the message that has not ended yet.
    bytes: usize,
    too_long: Arc<AtomicBool>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Messages<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.of).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        let is_end = |byte: &u8| *byte == b'\n';
        let ends = read.iter().position(is_end);
        let message = self.bytes + ends.map_or(read.len(), |at| at + 1);
        if message > MESSAGE_BYTES {
            buffer.set_filled(before);
            self.too_long.store(true, Ordering::SeqCst);
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        self.bytes = match read.iter().rposition(is_end) {
            Some(at) => read.len() - at - 1,
            None => message,
        };
        Poll::Ready(Ok(()))
    }
}

/// What it says is for the operator's log.
async fn listen(name: PluginName, stderr: ChildStderr) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut stderr)
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)
            .await
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let line = convert::shown(String::from_utf8_lossy(&line).trim_end());
                tracing::debug!("the MCP server `{name}` says: {line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: Vec<u8>) -> (io::Result<usize>, bool) {
        let too_long = Arc::new(AtomicBool::default());
        let mut messages = Messages {
            of: bytes.as_slice(),
            bytes: 0,
            too_long: too_long.clone(),
        };
        // In pieces, as a transport reads.
        let mut piece = vec![0; 8 << 10];
        let mut total = 0;
        let read = loop {
            match messages.read(&mut piece).await {
                Ok(0) => break Ok(total),
                Ok(read) => total += read,
                Err(e) => break Err(e),
            }
        };
        (read, too_long.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn messages_end_at_their_bound() {
        let line = |bytes: usize| {
            let mut line = vec![b'x'; bytes - 1];
            line.push(b'\n');
            line
        };
        // Each message counts for itself.
        let most = line(MESSAGE_BYTES).repeat(2);
        let bytes = most.len();
        let (all, too_long) = read(most).await;
        assert_eq!((all.unwrap(), too_long), (bytes, false));
        for long in [
            line(MESSAGE_BYTES + 1),
            vec![b'x'; MESSAGE_BYTES + 1],
            [line(5), line(MESSAGE_BYTES + 1)].concat(),
        ] {
            let (all, too_long) = read(long).await;
            assert!(all.is_err() && too_long);
        }
    }
}
