//! Durations and sizes as people write them.

use std::time::Duration;

/// A year: far beyond any use, and far below where adding it to an instant overflows.
const MAX_SECONDS: u64 = 366 * 24 * 3600;

/// `500ms`, `30s`, `5m`, `2h`, `1d`. Zero is no duration.
pub(super) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let (count, unit) = split_unit(text)?;
    let milliseconds_each: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => return Err("the unit is missing"),
        _ => return Err("the unit is unknown"),
    };
    match count.checked_mul(milliseconds_each) {
        Some(0) => Err("it has to be longer than nothing"),
        Some(milliseconds) if milliseconds <= MAX_SECONDS * 1000 => {
            Ok(Duration::from_millis(milliseconds))
        }
        _ => Err("it is longer than a year"),
    }
}

/// `512B`, `64KiB`, `64MiB`, `1GiB`, and `kB`, `MB`, `GB` for thousands.
pub(super) fn parse_size(text: &str) -> Result<u64, &'static str> {
    let (count, unit) = split_unit(text)?;
    let bytes_each: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "" => return Err("the unit is missing"),
        _ => return Err("the unit is unknown"),
    };
    count.checked_mul(bytes_each).ok_or("it is too large")
}

fn split_unit(text: &str) -> Result<(u64, &str), &'static str> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (count, unit) = text.split_at(end);
    if count.is_empty() {
        return Err("it has to begin with a whole number");
    }
    let count = count.parse().map_err(|_| "the number is too large")?;
    Ok((count, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, expected) in [
            ("500ms", Ok(Duration::from_millis(500))),
            ("30s", Ok(Duration::from_secs(30))),
            ("30 s", Ok(Duration::from_secs(30))),
            ("10m", Ok(Duration::from_secs(600))),
            ("2h", Ok(Duration::from_secs(7200))),
            ("1d", Ok(Duration::from_secs(86_400))),
            ("0s", Err("it has to be longer than nothing")),
            ("30", Err("the unit is missing")),
            ("30 sec", Err("the unit is unknown")),
            ("30S", Err("the unit is unknown")),
            ("-1s", Err("it has to begin with a whole number")),
            ("1.5s", Err("the unit is unknown")),
            ("", Err("it has to begin with a whole number")),
            ("400d", Err("it is longer than a year")),
            ("99999999999999999999s", Err("the number is too large")),
            ("18446744073709551615d", Err("it is longer than a year")),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("64MiB", Ok(64 << 20)),
            ("64 MiB", Ok(64 << 20)),
            ("1GiB", Ok(1 << 30)),
            ("1KiB", Ok(1024)),
            ("1kB", Ok(1000)),
            ("3B", Ok(3)),
            ("64", Err("the unit is missing")),
            ("64M", Err("the unit is unknown")),
            ("-1MiB", Err("it has to begin with a whole number")),
            ("99999999999GiB", Err("it is too large")),
        ] {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }
}
