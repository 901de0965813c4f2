//! When a request is repeated, and how long that waits: the rules of the vendors' own clients.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

/// How often and how fast a request is repeated.
#[derive(Debug, Clone, PartialEq)]
pub struct Retries {
    /// Attempts after the first.
    pub max: u32,
    /// The first wait; it doubles with each attempt.
    pub base: Duration,
    /// The longest wait of our own choice.
    pub cap: Duration,
    /// Where the endpoint asks for more than this, the request fails instead.
    pub longest_asked: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            max: 4,
            base: Duration::from_millis(500),
            cap: Duration::from_secs(8),
            longest_asked: Duration::from_secs(120),
        }
    }
}

impl Retries {
    /// The wait before the next attempt, or `None` if there is to be none. `attempt` is the one that failed,
    /// from 1; `asked` is the endpoint's wish, and `random` is between 0 and 1.
    pub(super) fn wait(
        &self,
        attempt: u32,
        asked: Option<Duration>,
        random: f64,
    ) -> Option<Duration> {
        if attempt > self.max {
            return None;
        }
        if let Some(asked) = asked.filter(|asked| !asked.is_zero()) {
            return (asked <= self.longest_asked).then_some(asked);
        }
        let doubled = self.base.saturating_mul(2_u32.saturating_pow(attempt - 1));
        Some(
            doubled
                .min(self.cap)
                .mul_f64(1.0 - random.clamp(0.0, 1.0) / 4.0),
        )
    }
}

/// `retry-after-ms`, else `retry-after` in seconds or as a date.
pub(super) fn asked_wait(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok();
    let ms = text("retry-after-ms").and_then(number);
    if let Some(wait) = ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok()) {
        return Some(wait);
    }
    let asked = text("retry-after")?;
    match number(asked) {
        Some(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        None => {
            let at = httpdate::parse_http_date(asked).ok()?;
            Some(at.duration_since(now).unwrap_or_default())
        }
    }
}

/// What the endpoint itself says of a repetition.
pub(super) fn should_retry(headers: &HeaderMap) -> Option<bool> {
    match headers.get("x-should-retry")?.as_bytes() {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// Between 0 and 1; 0 where the system has no randomness to give.
pub(super) fn random() -> f64 {
    getrandom::u32().map_or(0.0, |n| f64::from(n) / f64::from(u32::MAX))
}
