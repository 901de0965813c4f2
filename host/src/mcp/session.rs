//! Clients with a session over HTTP. A session is what a client said of itself; a request is served by itself and
//! owns its stream, so that whatever belongs to a call goes out there and ends there.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use rmcp::{
    RoleServer,
    model::{
        ClientJsonRpcMessage, InitializeRequestParams, NumberOrString, RequestId,
        ServerJsonRpcMessage,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage, serve_directly_with_ct},
    transport::Transport,
};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Handler;

/// Sessions that may be open at once.
pub(super) const MAX_SESSIONS: usize = 10_000;
/// How long a session outlives its last message.
pub(super) const IDLE: Duration = Duration::from_mins(30);
/// How often idle sessions are looked for.
const SWEEP: Duration = Duration::from_mins(1);
/// Messages of one call that its stream has not taken yet; more make the call wait.
const MAX_UNSENT: usize = 64;
/// Answers of the client to one call that it has not taken yet.
const MAX_UNREAD: usize = 16;

pub(super) struct Sessions {
    open: Mutex<HashMap<Arc<str>, Arc<Session>>>,
    /// How long a session outlives its last message.
    idle: Duration,
}

pub(super) struct Session {
    /// With the revision that was agreed on.
    client: InitializeRequestParams,
    /// Of the log lines that the client wants.
    level: Arc<AtomicU8>,
    used: Mutex<Instant>,
    /// The requests that run.
    calls: Mutex<HashMap<RequestId, CancellationToken>>,
    /// The server's own requests that the client has not answered.
    questions: Mutex<HashMap<RequestId, Question>>,
    next_question: AtomicI64,
    /// Ends the stream that news go out on.
    news: Mutex<Option<CancellationToken>>,
    ended: CancellationToken,
}

/// Who asked, and what they call it.
struct Question {
    id: RequestId,
    asker: mpsc::Sender<ClientJsonRpcMessage>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    pub(super) fn new(idle: Duration) -> Self {
        Self {
            open: Mutex::default(),
            idle,
        }
    }

    /// Opens a session; its id is 128 random bits, and `None` where there are too many or no randomness.
    pub(super) fn open(
        &self,
        client: InitializeRequestParams,
        level: Arc<AtomicU8>,
        ended: CancellationToken,
    ) -> Option<Arc<str>> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        let id: Arc<str> = format!("{:032x}", u128::from_le_bytes(bytes)).into();
        let session = Session {
            client,
            level,
            used: Mutex::new(Instant::now()),
            calls: Mutex::default(),
            questions: Mutex::default(),
            next_question: AtomicI64::new(1),
            news: Mutex::default(),
            ended,
        };
        let mut open = lock(&self.open);
        if open.len() >= MAX_SESSIONS {
            return None;
        }
        open.insert(Arc::clone(&id), Arc::new(session));
        Some(id)
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Session>> {
        let session = Arc::clone(lock(&self.open).get(id)?);
        session.touch();
        Some(session)
    }

    /// Ends a session and all that runs in it; false where there is none.
    pub(super) fn close(&self, id: &str) -> bool {
        let closed = lock(&self.open).remove(id);
        if let Some(session) = &closed {
            session.ended.cancel();
        }
        closed.is_some()
    }

    /// Ends sessions that nobody has used for long, until `stop`.
    pub(super) async fn sweep(&self, stop: CancellationToken) {
        let every = SWEEP.min(self.idle);
        while tokio::time::timeout(every, stop.cancelled()).await.is_err() {
            let idle: Vec<Arc<Session>> = {
                let mut open = lock(&self.open);
                let idle = |session: &Session| {
                    lock(&session.used).elapsed() >= self.idle && lock(&session.calls).is_empty()
                };
                open.extract_if(|_, session| idle(session))
                    .map(|(_, session)| session)
                    .collect()
            };
            for session in idle {
                session.ended.cancel();
            }
        }
    }
}

impl Session {
    fn touch(&self) {
        *lock(&self.used) = Instant::now();
    }

    pub(super) fn level(&self) -> Arc<AtomicU8> {
        Arc::clone(&self.level)
    }

    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Ends a request that runs, as its client wished.
    pub(super) fn cancel(&self, id: &RequestId) {
        if let Some(call) = lock(&self.calls).get(id) {
            call.cancel();
        }
    }

    /// Hands the client's answer to whoever asked. What nobody asked is dropped.
    pub(super) fn answered(&self, message: ClientJsonRpcMessage) {
        let question = |id: &RequestId| lock(&self.questions).remove(id);
        let (asker, message) = match message {
            ClientJsonRpcMessage::Response(mut response) => {
                let Some(Question { id, asker }) = question(&response.id) else {
                    return;
                };
                response.id = id;
                (asker, ClientJsonRpcMessage::Response(response))
            }
            ClientJsonRpcMessage::Error(mut error) => {
                let Some(Question { id, asker }) = error.id.as_ref().and_then(question) else {
                    return;
                };
                error.id = Some(id);
                (asker, ClientJsonRpcMessage::Error(error))
            }
            ClientJsonRpcMessage::Request(_) | ClientJsonRpcMessage::Notification(_) => return,
        };
        // A call asks one thing at a time; one with a full queue is not waiting for this.
        let _ = asker.try_send(message);
    }

    /// The stream for news from now on, in the place of an earlier one.
    pub(super) fn hear_news(&self) -> CancellationToken {
        let replaced = self.ended.child_token();
        if let Some(earlier) = lock(&self.news).replace(replaced.clone()) {
            earlier.cancel();
        }
        replaced
    }

    /// Serves one request; `None` where another one with its id runs.
    pub(super) fn serve(
        self: &Arc<Self>,
        handler: Handler,
        id: RequestId,
        message: ClientJsonRpcMessage,
    ) -> Option<Exchange> {
        let stop = self.ended.child_token();
        {
            let mut calls = lock(&self.calls);
            if calls.contains_key(&id) {
                return None;
            }
            calls.insert(id.clone(), stop.clone());
        }
        let (out, messages) = mpsc::channel(MAX_UNSENT);
        let (asker, answers) = mpsc::channel(MAX_UNREAD);
        let wire = Wire {
            request: Some(message),
            answers,
            asker,
            out,
            session: Arc::clone(self),
            is_answered: CancellationToken::new(),
        };
        let running =
            serve_directly_with_ct(handler, wire, Some(self.client.clone()), stop.clone());
        tokio::spawn(async move { running.waiting().await });
        Some(Exchange {
            messages,
            _stop: stop.drop_guard(),
            _call: Registered {
                session: Arc::clone(self),
                id,
            },
        })
    }
}

/// A request that is being served. Dropping it ends it.
pub(super) struct Exchange {
    pub(super) messages: mpsc::Receiver<ServerJsonRpcMessage>,
    _stop: DropGuard,
    _call: Registered,
}

struct Registered {
    session: Arc<Session>,
    id: RequestId,
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.session.calls).remove(&self.id);
        self.session.touch();
    }
}

/// What rmcp reads and writes for one request.
struct Wire {
    request: Option<ClientJsonRpcMessage>,
    answers: mpsc::Receiver<ClientJsonRpcMessage>,
    asker: mpsc::Sender<ClientJsonRpcMessage>,
    out: mpsc::Sender<ServerJsonRpcMessage>,
    session: Arc<Session>,
    is_answered: CancellationToken,
}

impl Transport<RoleServer> for Wire {
    type Error = io::Error;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let is_answer = matches!(
            message,
            ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)
        );
        if let ServerJsonRpcMessage::Request(request) = &mut message {
            // Every request counts its own from nought; the client sees them all.
            let n = self.session.next_question.fetch_add(1, Ordering::Relaxed);
            let id = std::mem::replace(&mut request.id, NumberOrString::Number(n));
            let asker = self.asker.clone();
            let question = Question { id, asker };
            lock(&self.session.questions).insert(request.id.clone(), question);
        }
        let (out, is_answered) = (self.out.clone(), self.is_answered.clone());
        async move {
            let sent = out.send(message).await;
            if is_answer {
                is_answered.cancel();
            }
            sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        if let Some(request) = self.request.take() {
            return Some(request);
        }
        tokio::select! {
            answer = self.answers.recv() => answer,
            () = self.is_answered.cancelled() => None,
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.is_answered.cancel();
        Ok(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // What was asked for this request concerns nobody any more.
        lock(&self.session.questions)
            .retain(|_, question| !question.asker.same_channel(&self.asker));
    }
}
