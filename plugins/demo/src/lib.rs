//! Tools that misbehave on purpose, so that `agentloop-host demo` can show what a host does about it.

use std::{
    thread,
    time::{Duration, Instant},
};

use agentloop_sdk::{progress, tool, tools};

tools![spin, nap];

/// Never ends, and never pauses: the host has to stop it. For demonstrations.
#[tool(read_only, idempotent, closed_world, timeout = "1s")]
fn spin() {
    // Without an effect in its body the loop could be taken out.
    let mut turns = 0u64;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
}

/// Sleeps for some milliseconds and says how far it is. For demonstrations.
#[tool(read_only, idempotent, closed_world)]
fn nap(
    /// How long, in milliseconds.
    ms: u32,
) -> String {
    /// How often it reports, at most.
    const STEPS: u32 = 10;
    let start = Instant::now();
    for step in 1..=STEPS {
        let until = Duration::from_millis((u64::from(ms) * u64::from(step)) / u64::from(STEPS));
        thread::sleep(until.saturating_sub(start.elapsed()));
        progress(until.as_millis() as u64, ms, "asleep");
    }
    format!("slept for {ms} ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nap_takes_its_time() {
        let start = Instant::now();
        assert_eq!(nap(20), "slept for 20 ms");
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
