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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn waits_double_up_to_the_cap_and_vary_downwards() {
        let retries = Retries {
            max: 6,
            ..Retries::default()
        };
        let wait = |attempt, random| retries.wait(attempt, None, random).map(|w| w.as_millis());
        let waits: Vec<_> = (1..=7).map(|attempt| wait(attempt, 0.0)).collect();
        assert_eq!(
            waits,
            [
                Some(500),
                Some(1000),
                Some(2000),
                Some(4000),
                Some(8000),
                Some(8000),
                None
            ]
        );
        assert_eq!(wait(1, 1.0), Some(375));
    }

    #[test]
    fn what_the_endpoint_asks_for_comes_first_within_bounds() {
        let retries = Retries::default();
        let asked = |wait| retries.wait(1, Some(wait), 0.0);
        assert_eq!(
            asked(Duration::from_secs(30)),
            Some(Duration::from_secs(30))
        );
        assert_eq!(asked(Duration::ZERO), Some(retries.base));
        assert_eq!(asked(Duration::from_secs(3600)), None);
    }

    #[test]
    fn waits_are_read_in_every_form() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        let asked = |pairs: &[(&'static str, &str)]| {
            asked_wait(&headers(pairs), now).map(|wait| wait.as_millis())
        };
        assert_eq!(asked(&[("retry-after", "3")]), Some(3000));
        assert_eq!(asked(&[("retry-after", " 1.5 ")]), Some(1500));
        assert_eq!(
            asked(&[("retry-after", "3"), ("retry-after-ms", "250")]),
            Some(250)
        );
        assert_eq!(
            asked(&[("retry-after", "3"), ("retry-after-ms", "soon")]),
            Some(3000)
        );
        assert_eq!(
            asked(&[("retry-after", "Wed, 21 Oct 2026 07:28:10 GMT")]),
            Some(10_000)
        );
        assert_eq!(
            asked(&[("retry-after", "Wed, 21 Oct 2026 07:27:00 GMT")]),
            Some(0)
        );
        for nonsense in ["-3", "NaN", "1e300", "soon", ""] {
            assert_eq!(asked(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
        assert_eq!(asked(&[]), None);
    }

    #[test]
    fn the_endpoint_may_say_whether() {
        assert_eq!(
            should_retry(&headers(&[("x-should-retry", "true")])),
            Some(true)
        );
        assert_eq!(
            should_retry(&headers(&[("x-should-retry", "false")])),
            Some(false)
        );
        assert_eq!(should_retry(&headers(&[("x-should-retry", "maybe")])), None);
        assert_eq!(should_retry(&headers(&[])), None);
    }
}
