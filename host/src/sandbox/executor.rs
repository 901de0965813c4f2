//! Where guests run: an executor of their own, or the caller's thread for the first tick.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

use tokio::{runtime::Runtime, task::JoinHandle};

use super::{Ending, SandboxError, limits::BLOCKING_THREADS};

/// Where a call's guest code runs while it does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// On the caller's thread up to its first pause or for one tick (1 ms), then among the guests: saves
    /// two thread switches for calls that are over in microseconds.
    CallerFirst,
    /// Among the guests from the start; for calls that are to run beside each other.
    Guests,
}

/// The future's result, or none once the deadline is over. A guest that computes is interrupted by its own store
/// at the same instant; this is for one that waits.
pub(super) async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
        None => Some(future.await),
    }
}

/// The guests' own executor: however many of them spin, the rest of the host keeps its threads.
pub(super) struct GuestExecutor(Option<Runtime>);

pub(super) type Guest<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl GuestExecutor {
    pub(super) fn start(workers: usize) -> Result<Self, SandboxError> {
        tokio::runtime::Builder::new_multi_thread()
            .thread_name("guest")
            .worker_threads(workers)
            // A spinning guest gives up its worker once each tick; then timers and I/O are looked after first.
            .event_interval(1)
            .global_queue_interval(1)
            .max_blocking_threads(BLOCKING_THREADS)
            .enable_all()
            .build()
            .map(|runtime| Self(Some(runtime)))
            .map_err(SandboxError::Thread)
    }

    #[expect(clippy::expect_used, reason = "it is taken by `drop` alone")]
    pub(super) fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("the executor is running")
    }

    /// Runs among the guests until the answer is dropped.
    pub(super) fn spawn<T: Send + 'static>(&self, guest: Guest<T>) -> AbortOnDrop<T> {
        AbortOnDrop(self.runtime().spawn(guest))
    }

    pub(super) async fn run(&self, mut guest: Guest<Ending>, executor: Executor) -> Ending {
        if executor == Executor::CallerFirst {
            let _entered = self.runtime().enter();
            // Nobody is to be woken: what is not ready is polled anew among the guests at once.
            let mut context = Context::from_waker(Waker::noop());
            let polled =
                std::panic::catch_unwind(AssertUnwindSafe(|| guest.as_mut().poll(&mut context)));
            match polled {
                Ok(Poll::Ready(ending)) => return ending,
                Ok(Poll::Pending) => {}
                Err(_) => {
                    return Ending::internal("the host panicked during the call".to_owned());
                }
            }
        }
        match self.spawn(guest).await {
            Ok(ending) => ending,
            Err(e) if e.is_panic() => {
                Ending::internal("the host panicked during the call".to_owned())
            }
            Err(_) => Ending::internal("the sandbox was shut down".to_owned()),
        }
    }
}

impl Drop for GuestExecutor {
    fn drop(&mut self) {
        // The last sandbox may go inside of another runtime, where waiting for this one would panic.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, tokio::task::JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
