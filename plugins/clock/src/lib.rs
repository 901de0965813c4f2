//! The time, here and elsewhere, and how long it is from one time to another.

use agentloop_sdk::{Result, ToolError, tool, tools};
use jiff::{
    Timestamp, Unit, ZonedDateTime, ZonedDateTimeDifference, civil,
    fmt::temporal::DateTimeParser,
    tz::{self, AmbiguousOffset, TimeZone},
};

tools![now, convert_time, time_between];

/// Tell the current date and time, with weekday and offset, in UTC or in a time zone such as `Europe/Berlin` or `+05:30`.
#[tool(read_only, closed_world)]
fn now(
    /// An IANA name or an offset from UTC; without one the time is UTC.
    timezone: Option<String>,
) -> Result<String> {
    let zone = zone(timezone.as_deref().unwrap_or("UTC"))?;
    told(&Timestamp::now().to_zoned_datetime(zone))
}

/// Convert a time from one time zone to another. Daylight saving time is taken into account.
#[tool(read_only, idempotent, closed_world)]
fn convert_time(
    /// Such as `2026-03-29 14:30`, `2026-03-29T14:30:00` or `14:30` (today). A time with an offset or zone of its own
    /// (`2026-03-29T14:30:00Z`) is that instant, whatever `from` says.
    time: String,
    /// The time zone that `time` is in, such as `America/New_York`, `UTC` or `-03:00`.
    from: String,
    /// The time zone to convert to.
    to: String,
) -> Result<String> {
    convert(&time, &from, &to, Timestamp::now())
}

/// Tell how long it is from `a` to `b`: by the calendar, in days, and in seconds. Negative when `b` is earlier.
#[tool(read_only, idempotent, closed_world)]
fn time_between(
    /// A date or a time, such as `2026-03-29`, `2026-03-29 14:30`, `2026-03-29T14:30:00+02:00` or
    /// `2026-03-29T14:30[Europe/Berlin]`. Without an offset or zone it is UTC.
    a: String,
    /// As `a`.
    b: String,
) -> Result<String> {
    let today = Timestamp::now();
    let a = read(&a, &TimeZone::UTC, today)?.time;
    let b = read(&b, &TimeZone::UTC, today)?.time;
    // Between two zones days have no one length: those of `a` count.
    let b = b.with_time_zone(a.time_zone().clone());
    let by = |largest| a.until(ZonedDateTimeDifference::new(&b).largest(largest));
    let seconds = a.duration_until(&b).as_secs();
    let (calendar, days) = (by(Unit::Year)?, by(Unit::Day)?);
    Ok(match seconds.unsigned_abs() {
        0..60 => format!("{seconds} seconds"),
        _ if calendar.fieldwise() == days.fieldwise() => {
            format!("{calendar:#} ({seconds} seconds)")
        }
        _ => format!("{calendar:#}, or {days:#} ({seconds} seconds)"),
    })
}

fn convert(time: &str, from: &str, to: &str, now: Timestamp) -> Result<String> {
    let (from, to) = (zone(from)?, zone(to)?);
    let Read { time, note } = read(time, &from, now)?;
    let there = told(&time.with_time_zone(to))?;
    Ok(format!("{} is {there}{note}", told(&time)?))
}

struct Read {
    time: ZonedDateTime,
    /// What had to be assumed; empty where nothing was.
    note: &'static str,
}

/// Reads a time that is in `zone` unless it says otherwise, and of today's date unless it has one.
fn read(text: &str, zone: &TimeZone, now: Timestamp) -> Result<Read> {
    let text = text.trim();
    if let Ok(time) = text.parse::<ZonedDateTime>() {
        return Ok(Read { time, note: "" });
    }
    if let Ok(instant) = text.parse::<Timestamp>() {
        let time = instant.to_zoned_datetime(zone.clone());
        return Ok(Read { time, note: "" });
    }
    let local = if let Ok(local) = text.parse::<civil::DateTime>() {
        local
    } else if let Ok(clock) = text.parse::<civil::Time>() {
        let today = now.to_zoned_datetime(zone.clone()).date();
        today.to_datetime(clock)
    } else {
        return Err(ToolError::invalid_arguments(format!(
            "`{}` is no time that is understood here: write `2026-03-29 14:30`, `2026-03-29T14:30:00Z`, `2026-03-29` or `14:30`",
            quoted(text)
        )));
    };
    let candidates = zone.to_ambiguous_zoned_datetime(local);
    let note = match candidates.offset() {
        AmbiguousOffset::Unambiguous { .. } => "",
        AmbiguousOffset::Gap { .. } => {
            " (the clocks were put forward over the given time: that much later was taken)"
        }
        AmbiguousOffset::Fold { .. } => {
            " (the clocks were put back, and the given time came twice: the first was taken)"
        }
    };
    let time = candidates.compatible()?;
    Ok(Read { time, note })
}

fn zone(name: &str) -> Result<TimeZone> {
    static PARSER: DateTimeParser = DateTimeParser::new();
    let name = name.trim();
    if let Ok(zone) = PARSER.parse_time_zone(name) {
        return Ok(zone);
    }
    let wanted = name.to_ascii_lowercase().replace(' ', "_");
    let alike: Vec<String> = tz::db()
        .available()
        .map(|known| known.to_string())
        .filter(|known| {
            !wanted.is_empty()
                && known
                    .to_ascii_lowercase()
                    .rsplit('/')
                    .next()
                    .is_some_and(|city| city == wanted)
        })
        .map(|known| format!("`{known}`"))
        .collect();
    let meant = match alike.as_slice() {
        [] => "write an IANA name such as `Europe/Berlin`, or an offset such as `+05:30`".into(),
        alike => format!("did you mean {}?", alike.join(" or ")),
    };
    Err(ToolError::invalid_arguments(format!(
        "`{}` is no known time zone; {meant}",
        quoted(name)
    )))
}

/// In a form that the tools here read again.
fn told(time: &ZonedDateTime) -> Result<String> {
    let time = time.with().subsec_nanosecond(0).build()?;
    Ok(format!("{} {time}", time.strftime("%A")))
}

/// Guest text in a message, short enough to be one.
fn quoted(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noon() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    fn converted(time: &str, from: &str, to: &str) -> String {
        convert(time, from, to, noon()).unwrap()
    }

    fn between(a: &str, b: &str) -> String {
        time_between(a.into(), b.into()).unwrap()
    }

    #[test]
    fn now_is_now() {
        let before = Timestamp::now().as_second();
        let text = now(Some("Asia/Kolkata".into())).unwrap();
        let (weekday, time) = text.split_once(' ').unwrap();
        let time: ZonedDateTime = time.parse().unwrap();
        assert!((before..=Timestamp::now().as_second()).contains(&time.timestamp().as_second()));
        assert_eq!(time.strftime("%A").to_string(), weekday);
        assert!(text.ends_with("+05:30[Asia/Kolkata]"), "{text}");
        assert!(now(None).unwrap().ends_with("+00:00[UTC]"));
    }

    #[test]
    fn times_are_converted() {
        assert_eq!(
            converted("2026-03-29 14:30", "America/New_York", "Europe/Berlin"),
            "Sunday 2026-03-29T14:30:00-04:00[America/New_York] is Sunday 2026-03-29T20:30:00+02:00[Europe/Berlin]"
        );
        assert_eq!(
            converted("2026-12-31T23:00:00Z", "UTC", "Asia/Tokyo"),
            "Thursday 2026-12-31T23:00:00+00:00[UTC] is Friday 2027-01-01T08:00:00+09:00[Asia/Tokyo]"
        );
        assert_eq!(
            converted("09:15", "-03:00", "utc"),
            "Monday 2026-06-01T09:15:00-03:00[-03:00] is Monday 2026-06-01T12:15:00+00:00[UTC]"
        );
    }

    #[test]
    fn what_daylight_saving_does_to_a_time_is_told() {
        let gap = converted("2026-03-29 02:30", "Europe/Berlin", "UTC");
        assert!(
            gap.contains("T03:30:00+02:00") && gap.contains("put forward"),
            "{gap}"
        );
        let fold = converted("2026-10-25 02:30", "Europe/Berlin", "UTC");
        assert!(
            fold.contains("T00:30:00+00:00") && fold.contains("came twice"),
            "{fold}"
        );
    }

    #[test]
    fn intervals_are_told_by_the_calendar_and_in_seconds() {
        assert_eq!(
            between("2024-02-28", "2026-03-01"),
            "2y 1d, or 732d (63244800 seconds)"
        );
        assert_eq!(
            between("2026-03-01", "2026-02-27 12:00"),
            "1d 12h ago (-129600 seconds)"
        );
        assert_eq!(
            between(
                "2026-03-29T00:00[Europe/Berlin]",
                "2026-03-30T00:00[Europe/Berlin]"
            ),
            "1d (82800 seconds)"
        );
        assert_eq!(between("2026-01-01", "2026-01-01"), "0 seconds");
    }

    #[test]
    fn what_is_not_understood_is_the_callers_error() {
        for (time, zone, says) in [
            ("14:30", "Berlin", "did you mean `Europe/Berlin`?"),
            ("14:30", "new york", "did you mean `America/New_York`?"),
            ("14:30", "Nowhere", "an IANA name"),
            ("14:30", "", "an IANA name"),
            ("half past two", "UTC", "`2026-03-29 14:30`"),
            ("2026-02-30", "UTC", "no time"),
        ] {
            let error = convert(time, zone, "UTC", noon()).unwrap_err();
            assert!(matches!(error, ToolError::InvalidArguments(_)), "{error:?}");
            assert!(error.message().contains(says), "{error}");
        }
    }
}
