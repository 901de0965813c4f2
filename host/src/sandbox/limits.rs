//! Every bound that a guest meets, and the limiter that holds its memory.

use std::time::Duration;

use wasmtime::ResourceLimiter;

use super::egress;

/// Largest file that is taken for a component: Python ones have about 18 MiB.
pub const MAX_COMPONENT_BYTES: usize = 64 << 20;
/// How long a load waits for one compilation. Compiling is outside of what wasmtime promises to bound.
pub const COMPILE_WAIT: Duration =
    Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 30 });

/// Address space of the process that compiles one component; CPython's takes about a quarter of it.
pub const COMPILE_MEMORY_BYTES: u64 = 4 << 30;
/// Processor time of that process, all its threads together.
pub const COMPILE_CPU_SECONDS: u64 = COMPILE_WAIT.as_secs() * COMPILE_THREADS as u64;
/// Threads of that process that compile.
pub const COMPILE_THREADS: usize = 4;
/// Largest compiled code that is taken or kept.
pub const COMPILED_BYTES: u64 = 512 << 20;
/// Modules and components in a component, itself included.
pub const COMPONENT_PARTS: usize = 1000;
/// Components inside of each other.
pub const COMPONENT_DEPTH: usize = 16;
/// Functions of all modules together; CPython has about 20,000.
pub const FUNCTIONS: usize = 200_000;
/// Code of one function, before it is compiled.
pub const FUNCTION_BYTES: usize = 2 << 20;
/// Variables of one function, its parameters apart: a compiler's time can grow with their square.
pub const LOCALS: usize = 10_000;
/// Blocks inside of each other in one function.
pub const BLOCK_DEPTH: usize = 5_000;
/// Targets of all branch tables of one function.
pub const BRANCH_TARGETS: usize = 200_000;

/// Threads for guests' files, look-ups and compilations, of all calls together.
pub const BLOCKING_THREADS: usize = 128;

/// Elements of all tables of a call together; CPython's has most, about 12,000.
pub const TABLE_ELEMENTS: usize = 20_000;
pub const TABLES_PER_CALL: usize = 16;
pub const MEMORIES_PER_CALL: usize = 8;
/// Memories in the pool beyond the first one of each call, for components with several: one for each so many
/// calls.
pub(super) const CALLS_PER_EXTRA_MEMORY: u32 = 4;
/// Core instances of a call: Python components link about 30 modules.
pub const INSTANCES_PER_CALL: usize = 64;
/// Metadata of one instance in the host's memory.
pub const INSTANCE_METADATA_BYTES: usize = 1 << 20;
pub const WASM_STACK_BYTES: usize = 512 << 10;
/// What one host call may copy out of a guest.
pub const HOST_CALL_BYTES: usize = 8 << 20;
/// Things of the host that a guest may hold: streams, files, pollables, requests.
pub const HOST_RESOURCES: usize = 1024;
/// Handles of all kinds in a store, those between a component's own parts included.
pub const HANDLES: usize = 4096;
/// Random bytes that a guest gets at once.
pub const RANDOM_BYTES: u64 = 64 << 10;
/// Header fields of one request or response, with their bookkeeping.
pub const HTTP_FIELD_BYTES: usize = 32 << 10;

/// Lines that a call may log or print; the rest is counted.
pub const LINES: usize = 1000;
/// Longer lines are cut.
pub const LINE_BYTES: usize = 4 << 10;
/// Text of all lines of a call.
pub const LINES_BYTES: usize = 64 << 10;
/// Reports of progress that are passed on; the rest is counted.
pub const PROGRESS_REPORTS: usize = 1000;
/// Longest text of a trap or panic in an outcome.
pub const TRAP_TEXT_BYTES: usize = 4 << 10;

/// The custom section `agentloop-tools`, or what `list` gives.
pub const METADATA_BYTES: usize = 8 << 20;
pub const METADATA_TIMEOUT: Duration = Duration::from_millis(100);
/// Runs of `list` that are late before it counts as one that does not end.
pub const METADATA_ATTEMPTS: u32 = 3;
pub const METADATA_MEMORY_BYTES: usize = 64 << 20;
pub const TOOLS_PER_COMPONENT: usize = 256;
pub const REQUESTS_PER_TOOL: usize = 64;
pub const TITLE_BYTES: usize = 256;
pub const DESCRIPTION_BYTES: usize = 8 << 10;
pub const SCHEMA_BYTES: usize = 256 << 10;
pub const REASON_BYTES: usize = 512;
/// The file beside a program that makes it a tool.
pub const MANIFEST_BYTES: usize = 64 << 10;
/// Arguments of a program, and their text together.
pub const ARGV_ITEMS: usize = 1024;
pub const ARGV_BYTES: usize = 128 << 10;
/// How deep the types of a plain function may be nested; a schema nests two to three times as deep.
pub const TYPE_DEPTH: usize = 24;
/// Parts of the types of a plain function, written out.
pub const TYPE_NODES: usize = 5000;

/// A bound that nobody sets: it is the same for every call of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    pub what: &'static str,
    pub limit: u64,
    pub unit: Unit,
    /// What a guest notices that goes further.
    pub effect: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Seconds,
}

/// Those of a call, in the order in which a person would look for them.
pub fn fixed() -> Vec<Fixed> {
    let row = |what, limit: u64, unit, effect| Fixed {
        what,
        limit,
        unit,
        effect,
    };
    let count = |what, limit: usize, effect| row(what, limit as u64, Unit::Count, effect);
    let bytes = |what, limit: usize, effect| row(what, limit as u64, Unit::Bytes, effect);
    let seconds = |what, limit: Duration, effect| row(what, limit.as_secs(), Unit::Seconds, effect);
    const REFUSED_AT_LOAD: &str = "the component is not loaded";
    const TRAP: &str = "the call ends with a trap";
    const REQUEST_FAILS: &str = "the request fails";
    vec![
        count("memories", MEMORIES_PER_CALL, REFUSED_AT_LOAD),
        count("tables", TABLES_PER_CALL, REFUSED_AT_LOAD),
        count(
            "elements of all tables",
            TABLE_ELEMENTS,
            "the table does not grow",
        ),
        count("instances of modules", INSTANCES_PER_CALL, REFUSED_AT_LOAD),
        bytes("stack", WASM_STACK_BYTES, TRAP),
        count(
            "files, streams, pollables and requests held",
            HOST_RESOURCES,
            TRAP,
        ),
        count("handles of all kinds", HANDLES, TRAP),
        bytes("copied by one host call", HOST_CALL_BYTES, TRAP),
        bytes("random bytes at once", RANDOM_BYTES as usize, TRAP),
        count("log lines", LINES, "the rest is counted"),
        bytes("a log line", LINE_BYTES, "it is cut"),
        bytes("all log lines", LINES_BYTES, "the rest is counted"),
        count(
            "reports of progress",
            PROGRESS_REPORTS,
            "the rest is counted",
        ),
        bytes("text of a trap or panic", TRAP_TEXT_BYTES, "it is cut"),
        count("requests", egress::MAX_REQUESTS, REQUEST_FAILS),
        count(
            "requests at once",
            egress::MAX_REQUESTS_AT_ONCE,
            "they wait",
        ),
        bytes("an address", egress::MAX_URI_BYTES, REQUEST_FAILS),
        bytes(
            "headers of a request or response",
            HTTP_FIELD_BYTES,
            REQUEST_FAILS,
        ),
        bytes(
            "body of a request",
            egress::MAX_REQUEST_BODY_BYTES as usize,
            REQUEST_FAILS,
        ),
        bytes(
            "body of a response",
            egress::MAX_RESPONSE_BODY_BYTES as usize,
            REQUEST_FAILS,
        ),
        seconds(
            "first byte of a response",
            egress::FIRST_BYTE_TIMEOUT,
            REQUEST_FAILS,
        ),
        seconds(
            "between two pieces of a body",
            egress::GAP_TIMEOUT,
            REQUEST_FAILS,
        ),
        seconds("a request as a whole", egress::TOTAL_TIMEOUT, REQUEST_FAILS),
    ]
}

/// Counts a call's memory and remembers when it refused some: a guest that gets none aborts with a trap that
/// says nothing of memory.
#[derive(Debug)]
pub(super) struct MemoryLimiter {
    limit_bytes: usize,
    bytes: usize,
    /// The growth that was allowed last, to be taken back should it fail.
    pending_bytes: usize,
    peak_bytes: usize,
    table_elements: usize,
    refused: bool,
}

impl MemoryLimiter {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            bytes: 0,
            pending_bytes: 0,
            peak_bytes: 0,
            table_elements: 0,
            refused: false,
        }
    }

    pub(super) fn peak_bytes(&self) -> usize {
        self.peak_bytes
    }

    /// Whether the guest asked for more memory than it may have.
    pub(super) fn refused(&self) -> bool {
        self.refused
    }
}

impl ResourceLimiter for MemoryLimiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        let allowed = self
            .bytes
            .checked_add(growth)
            .is_some_and(|total| total <= self.limit_bytes);
        if allowed {
            self.bytes += growth;
            self.pending_bytes = growth;
            self.peak_bytes = self.peak_bytes.max(self.bytes);
        } else {
            self.pending_bytes = 0;
            self.refused = true;
        }
        Ok(allowed)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.bytes -= std::mem::take(&mut self.pending_bytes);
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        let allowed = self
            .table_elements
            .checked_add(growth)
            .is_some_and(|total| total <= TABLE_ELEMENTS);
        if allowed {
            self.table_elements += growth;
        }
        Ok(allowed)
    }

    fn instances(&self) -> usize {
        INSTANCES_PER_CALL
    }

    fn tables(&self) -> usize {
        TABLES_PER_CALL
    }

    fn memories(&self) -> usize {
        MEMORIES_PER_CALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_are_summed() {
        let mut limiter = MemoryLimiter::new(100);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        assert!(!limiter.refused());
        assert!(!limiter.memory_growing(40, 41, None).unwrap());
        assert!(limiter.refused());
        assert_eq!(limiter.peak_bytes(), 100);
    }

    #[test]
    fn a_growth_that_failed_is_given_back() {
        let mut limiter = MemoryLimiter::new(100);
        assert!(limiter.memory_growing(0, 80, None).unwrap());
        limiter
            .memory_grow_failed(wasmtime::Error::msg("no"))
            .unwrap();
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        // A failure after a refusal takes nothing back.
        assert!(!limiter.memory_growing(100, 101, None).unwrap());
        limiter
            .memory_grow_failed(wasmtime::Error::msg("no"))
            .unwrap();
        assert!(!limiter.memory_growing(100, 101, None).unwrap());
    }

    #[test]
    fn sizes_do_not_overflow() {
        let mut limiter = MemoryLimiter::new(usize::MAX);
        assert!(limiter.memory_growing(0, 10, None).unwrap());
        assert!(!limiter.memory_growing(0, usize::MAX, None).unwrap());
    }

    #[test]
    fn tables_are_summed() {
        let mut limiter = MemoryLimiter::new(0);
        assert!(limiter.table_growing(0, TABLE_ELEMENTS, None).unwrap());
        assert!(!limiter.table_growing(0, 1, None).unwrap());
        assert!(!limiter.refused(), "tables are not memory");
    }
}
