//! Calls that wait for a person's word. Each is asked about once and answered once: whoever comes second learns
//! that.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::log::now_ms;
use crate::{
    approvals::{Answer, ApprovalRequest, Approver, ApproverFailed},
    ids::{ComponentDigest, RunId},
};

/// Questions that are over and still known, so that a late answer is told what became of its question.
const MAX_REMEMBERED: usize = 1000;

/// A question.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// 128 random bits. It names this one question, and no later one about the same call.
    pub(super) id: String,
    /// None: a call of a client's own.
    pub(super) run: Option<String>,
    pub(super) request: ApprovalRequest,
    /// Milliseconds since 1970.
    pub(super) asked_ms: u64,
}

/// Why an answer had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unanswerable {
    Unknown,
    /// Somebody else was first.
    Answered,
    /// The call no longer waits: its run was stopped, or its client went away.
    Withdrawn,
}

#[derive(Default)]
struct Questions {
    next: u64,
    /// In the order in which they were asked.
    open: BTreeMap<u64, (Question, oneshot::Sender<Answer>)>,
    places: HashMap<String, u64>,
    over: VecDeque<(String, Unanswerable)>,
    /// What was allowed for good since this server started; the rule counts for the next one.
    always: HashSet<(String, Option<ComponentDigest>)>,
}

impl Questions {
    fn take(&mut self, id: &str, why: Unanswerable) -> Option<(Question, oneshot::Sender<Answer>)> {
        let place = self.places.remove(id)?;
        let taken = self.open.remove(&place)?;
        if self.over.len() == MAX_REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back((id.to_owned(), why));
        Some(taken)
    }
}

/// All questions of one server.
#[derive(Default)]
pub(super) struct Inbox(Mutex<Questions>);

impl Inbox {
    /// The oldest first.
    pub(super) fn open(&self) -> Vec<Question> {
        let questions = self.questions();
        let open = questions.open.values();
        open.map(|(question, _)| question.clone()).collect()
    }

    /// Takes the question out, so that nobody else can answer it; [`Claimed::answer`] answers.
    pub(super) fn claim(&self, id: &str) -> Result<Claimed, Unanswerable> {
        let mut questions = self.questions();
        match questions.take(id, Unanswerable::Answered) {
            Some((question, answer)) => Ok(Claimed { question, answer }),
            None => Err(over(&questions, id)),
        }
    }

    /// From now on this very tool is not asked about.
    pub(super) fn allow_always(&self, request: &ApprovalRequest) {
        self.questions().always.insert(key(request));
    }

    fn questions(&self) -> std::sync::MutexGuard<'_, Questions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over(questions: &Questions, id: &str) -> Unanswerable {
    let known = questions.over.iter().find(|(known, _)| known == id);
    known.map_or(Unanswerable::Unknown, |(_, why)| *why)
}

fn key(request: &ApprovalRequest) -> (String, Option<ComponentDigest>) {
    (request.rule_name.clone(), request.digest)
}

/// A question that is this holder's to answer.
pub(super) struct Claimed {
    pub(super) question: Question,
    answer: oneshot::Sender<Answer>,
}

impl Claimed {
    /// False: the call stopped waiting at the same moment.
    pub(super) fn answer(self, answer: Answer) -> bool {
        self.answer.send(answer).is_ok()
    }
}

/// Asks through the inbox, for one run or for calls of clients.
pub(super) struct InboxApprover {
    pub(super) inbox: Arc<Inbox>,
    pub(super) run: Option<String>,
}

#[async_trait]
impl Approver for InboxApprover {
    async fn approve(&self, request: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        let id = RunId::random()
            .map_err(|error| ApproverFailed(format!("this system gives no randomness: {error}")))?
            .to_string();
        let answered = {
            let mut questions = self.inbox.questions();
            if questions.always.contains(&key(request)) {
                return Ok(Answer::Once);
            }
            let place = questions.next;
            questions.next += 1;
            let (answer, answered) = oneshot::channel();
            let question = Question {
                id: id.clone(),
                run: self.run.clone(),
                request: request.clone(),
                asked_ms: now_ms(),
            };
            questions.places.insert(id.clone(), place);
            questions.open.insert(place, (question, answer));
            answered
        };
        let _withdrawn_if_dropped = Withdraws {
            inbox: &self.inbox,
            id: &id,
        };
        answered
            .await
            .map_err(|_| ApproverFailed("the question was dropped without an answer".into()))
    }
}

/// A call that no longer waits takes its question with it.
struct Withdraws<'a> {
    inbox: &'a Inbox,
    id: &'a str,
}

impl Drop for Withdraws<'_> {
    fn drop(&mut self) {
        self.inbox
            .questions()
            .take(self.id, Unanswerable::Withdrawn);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::{
        ids::{ToolName, ToolUseId},
        tool::ToolCall,
    };

    fn request() -> ApprovalRequest {
        ApprovalRequest {
            call: ToolCall {
                id: ToolUseId::parse("a").unwrap(),
                tool: ToolName::parse("write").unwrap(),
                input: Map::new(),
            },
            rule_name: "files.write".into(),
            digest: None,
            may_touch: Vec::new(),
            why: "it writes".into(),
        }
    }

    fn asking(inbox: &Arc<Inbox>) -> tokio::task::JoinHandle<Result<Answer, ApproverFailed>> {
        let approver = InboxApprover {
            inbox: Arc::clone(inbox),
            run: None,
        };
        tokio::spawn(async move { approver.approve(&request()).await })
    }

    async fn question(inbox: &Inbox) -> Question {
        loop {
            if let Some(question) = inbox.open().pop() {
                return question;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_question_is_answered_once() {
        let inbox = Arc::new(Inbox::default());
        let asking = asking(&inbox);
        let id = question(&inbox).await.id;
        assert!(inbox.claim(&id).unwrap().answer(Answer::Once));
        assert_eq!(inbox.claim(&id).err(), Some(Unanswerable::Answered));
        assert_eq!(asking.await.unwrap().unwrap(), Answer::Once);
        assert!(inbox.open().is_empty());
        assert_eq!(inbox.claim("other").err(), Some(Unanswerable::Unknown));
    }

    #[tokio::test]
    async fn a_call_that_stops_waiting_takes_its_question_with_it() {
        let inbox = Arc::new(Inbox::default());
        let asking = asking(&inbox);
        let id = question(&inbox).await.id;
        asking.abort();
        assert!(asking.await.is_err());
        assert!(inbox.open().is_empty());
        assert_eq!(inbox.claim(&id).err(), Some(Unanswerable::Withdrawn));
    }

    #[tokio::test]
    async fn always_holds_for_this_very_component() {
        let inbox = Arc::new(Inbox::default());
        inbox.allow_always(&request());
        let approver = InboxApprover {
            inbox: Arc::clone(&inbox),
            run: None,
        };
        assert_eq!(approver.approve(&request()).await.unwrap(), Answer::Once);
        let other = ApprovalRequest {
            digest: Some(ComponentDigest::of(b"changed")),
            ..request()
        };
        let asking = tokio::spawn(async move { approver.approve(&other).await });
        let id = question(&inbox).await.id;
        assert!(inbox.claim(&id).unwrap().answer(Answer::Stop));
        assert_eq!(asking.await.unwrap().unwrap(), Answer::Stop);
    }
}
