//! A server's process: few variables, a process group of its own, and an end that takes the whole group with it.

use std::{
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
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

pub(super) struct Process {
    child: Mutex<(Child, bool)>,
    /// Reads standard error.
    reader: JoinHandle<()>,
}

impl Process {
    pub(super) fn start(
        name: &PluginName,
        argv: &[String],
        environment: &[EnvironmentGrant],
    ) -> Result<(Self, ChildStdout, ChildStdin), PeerError> {
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
            reader: tokio::spawn(listen(name.clone(), stderr)),
        };
        Ok((process, stdout, stdin))
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
