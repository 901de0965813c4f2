//! The network of tests.

use std::{cell::RefCell, rc::Rc};

use super::{Error, Limits, Response, Result, Sent, url::Url};

type Answer = Rc<RefCell<dyn FnMut(&Sent) -> Result<Response>>>;

thread_local! {
    static ANSWERS: RefCell<Vec<Answer>> = const { RefCell::new(Vec::new()) };
}

/// Answers all requests of this thread, each hop of a redirect too, until what it returns is dropped.
///
/// ```
/// use agentloop_sdk::http;
///
/// let _network = http::fake(|request| match request.method.as_str() {
///     "GET" => Ok(http::Response::new(200, "hello").with_header("content-type", "text/plain")),
///     _ => Err(http::Error::Denied { attempted: request.url.clone() }),
/// });
/// assert_eq!(http::get("https://example.org/").unwrap().text(), "hello");
/// assert!(http::Request::post("https://example.org/").send().unwrap_err().is_denied());
/// ```
pub fn fake(answer: impl FnMut(&Sent) -> Result<Response> + 'static) -> Fake {
    ANSWERS.with_borrow_mut(|answers| answers.push(Rc::new(RefCell::new(answer))));
    Fake {
        _of_this_thread: std::marker::PhantomData,
    }
}

/// Answers requests as long as it is held.
#[must_use = "requests are answered as long as it is held: `let _network = …`"]
pub struct Fake {
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        ANSWERS.with_borrow_mut(|answers| answers.pop());
    }
}

pub(super) fn exchange(sent: &Sent, _: &Url, limits: &Limits) -> Result<Response> {
    let attempted = format!("{} {}", sent.method, sent.url);
    // Taken out, so that the closure may itself send requests.
    let Some(answer) = ANSWERS.with_borrow(|answers| answers.last().cloned()) else {
        return Err(Error::OutsideComponent { attempted });
    };
    let response = answer.borrow_mut()(sent)?;
    if response.body.len() > limits.max_body_bytes {
        return Err(Error::TooLarge {
            attempted,
            limit: Some(limits.max_body_bytes as u64),
        });
    }
    if std::time::Instant::now() > limits.deadline {
        return Err(Error::Timeout {
            attempted,
            after: limits.timeout,
        });
    }
    Ok(response)
}
