//! Ctrl-C, and a supervisor's word to end.

use super::exit::Exit;

/// The next one from now on.
pub(super) async fn next() -> Exit {
    Signals::new().next().await
}

/// The wishes of a person or a supervisor that this program end. None is lost once this is made.
pub(super) struct Signals {
    #[cfg(unix)]
    interrupt: Option<tokio::signal::unix::Signal>,
    #[cfg(unix)]
    terminate: Option<tokio::signal::unix::Signal>,
    #[cfg(windows)]
    ctrl_c: Option<tokio::signal::windows::CtrlC>,
}

impl Signals {
    #[cfg(unix)]
    pub(super) fn new() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
        }
    }

    #[cfg(windows)]
    pub(super) fn new() -> Self {
        Self {
            ctrl_c: tokio::signal::windows::ctrl_c().ok(),
        }
    }

    #[cfg(unix)]
    pub(super) async fn next(&mut self) -> Exit {
        async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
            match signal {
                Some(signal) => _ = signal.recv().await,
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = received(&mut self.interrupt) => Exit::Interrupted,
            () = received(&mut self.terminate) => Exit::Terminated,
        }
    }

    #[cfg(windows)]
    pub(super) async fn next(&mut self) -> Exit {
        match &mut self.ctrl_c {
            Some(ctrl_c) => _ = ctrl_c.recv().await,
            None => std::future::pending().await,
        }
        Exit::Interrupted
    }
}
