//! Tools that try what a tool must not be able to do. Each tells what came of it where it survives.

use std::{
    cell::Cell,
    fs,
    hint::black_box,
    io::{Read as _, Write as _},
    thread,
    time::Duration,
};

use agentloop_sdk::{Level, Result, ToolError, http, log, progress, tool, tools};
use wasip2::{
    clocks::monotonic_clock,
    http::types::{Fields, OutgoingRequest},
    io::poll,
    random::random,
};

/// Never ends.
#[tool(read_only, closed_world)]
fn spin() -> String {
    let mut n = 0_u64;
    loop {
        n = black_box(n.wrapping_add(1));
        if n == u64::MAX {
            return String::new();
        }
    }
}

/// Never ends, asking the host for the time again and again.
#[tool(read_only, closed_world)]
fn spin_in_imports() -> String {
    loop {
        black_box(monotonic_clock::now());
    }
}

/// Never ends, with polls that never wait.
#[tool(read_only, closed_world)]
fn spin_in_polls() -> String {
    loop {
        let ready = monotonic_clock::subscribe_duration(0);
        poll::poll(&[&ready]);
    }
}

/// Sleeps for an hour.
#[tool(read_only, closed_world)]
fn sleep_for_ever() -> String {
    thread::sleep(Duration::from_secs(3600));
    String::new()
}

/// Fills memory again and again.
#[tool(read_only, closed_world)]
fn fill(mib: usize) -> String {
    let mut bytes = vec![1_u8; mib << 20];
    loop {
        bytes.fill(black_box(7));
        black_box(&mut bytes);
    }
}

/// Recurses without end.
#[tool(read_only, closed_world)]
fn recurse() -> u64 {
    #[expect(unconditional_recursion, reason = "that is the point")]
    fn deeper(n: u64) -> u64 {
        let local = [n; 64];
        black_box(&local);
        deeper(n + 1) + local[3]
    }
    deeper(0)
}

/// Takes memory in pieces of 1 MiB, without end or up to a number.
#[tool(read_only, closed_world)]
fn allocate(pieces: Option<usize>) -> usize {
    let mut kept = Vec::new();
    while pieces.is_none_or(|n| kept.len() < n) {
        kept.push(vec![1_u8; 1 << 20]);
    }
    kept.len()
}

/// Asks for 4 GiB at once and gives up as an allocator does.
#[tool(read_only, closed_world)]
fn allocate_at_once() -> String {
    if core::arch::wasm32::memory_grow(0, 65_535) == usize::MAX {
        std::process::abort();
    }
    "got 4 GiB".to_owned()
}

/// Notices that memory is out and reports it as its own failure.
#[tool(read_only, closed_world)]
fn allocate_politely() -> Result<String> {
    let mut bytes = Vec::<u8>::new();
    bytes.try_reserve_exact(1 << 30)?;
    Ok("got 1 GiB".to_owned())
}

/// Panics.
#[tool(read_only, closed_world)]
fn panic(message: String) -> String {
    panic!("{message}")
}

/// Traps without a word.
#[tool(read_only, closed_world)]
fn trap() -> String {
    core::arch::wasm32::unreachable()
}

/// Leaves as a program does.
#[tool(read_only, closed_world)]
fn exit(code: i32) -> String {
    std::process::exit(code)
}

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Counts its calls.
#[tool(read_only, closed_world)]
fn bump() -> u32 {
    CALLS.set(CALLS.get() + 1);
    CALLS.get()
}

/// Fills all memory it can get with a canary, then traps.
#[tool(read_only, closed_world)]
fn plant(canary: u64) -> String {
    let mut kept = Vec::new();
    for _ in 0..32 {
        kept.push(vec![canary; (1 << 20) / 8]);
    }
    black_box(&kept);
    core::arch::wasm32::unreachable()
}

/// Looks for the canary's complement in fresh memory, so that its own argument is not found.
#[tool(read_only, closed_world)]
fn search(complement: u64) -> usize {
    let pages = 32 * 16;
    let first = core::arch::wasm32::memory_grow(0, pages);
    assert!(first != usize::MAX, "no memory to search");
    // SAFETY: these pages have just been added to memory, and nothing else uses them.
    let fresh =
        unsafe { std::slice::from_raw_parts((first * 65_536) as *const u64, pages * 65_536 / 8) };
    fresh.iter().filter(|word| **word == !complement).count()
}

/// Answers with so many bytes.
#[tool(read_only, closed_world)]
fn answer(bytes: usize) -> String {
    "x".repeat(bytes)
}

/// Answers with so many empty blocks.
#[tool(read_only, closed_world)]
fn blocks(count: usize) -> Vec<String> {
    vec![String::new(); count]
}

/// Fails with so many bytes.
#[tool(read_only, closed_world)]
fn fail_at_length(bytes: usize) -> Result<String> {
    Err(ToolError::new("x".repeat(bytes)))
}

/// Prints without end, or so many times.
#[tool(read_only, closed_world)]
fn print(text: String, times: Option<u64>) -> Result<String> {
    let mut n = 0;
    while times.is_none_or(|times| n < times) {
        std::io::stdout().write_all(text.as_bytes())?;
        std::io::stderr().write_all(text.as_bytes())?;
        n += 1;
    }
    Ok("printed".to_owned())
}

/// Logs and reports without end, or so many times.
#[tool(read_only, closed_world)]
fn talk(text: String, times: Option<u64>) -> String {
    let mut n = 0;
    while times.is_none_or(|times| n < times) {
        log!(info, "{text}");
        progress(n as f64, None::<f64>, &text);
        n += 1;
    }
    format!("{:?}", Level::Info)
}

/// Hands the host a line of so many bytes.
#[tool(read_only, closed_world)]
fn log_line(bytes: usize) -> String {
    log!(warn, "{}", "y".repeat(bytes));
    "logged".to_owned()
}

/// Takes things of the host until it gets no more.
#[tool(read_only, closed_world)]
fn exhaust(what: String) -> Result<String> {
    let mut count = 0_u64;
    match what.as_str() {
        "pollables" => {
            let mut kept = Vec::new();
            loop {
                kept.push(monotonic_clock::subscribe_duration(1_000_000_000_000));
                count += 1;
                black_box((&kept, count));
            }
        }
        "fields" => {
            let mut kept = Vec::new();
            loop {
                kept.push(Fields::new());
                count += 1;
                black_box((&kept, count));
            }
        }
        "requests" => {
            let mut kept = Vec::new();
            loop {
                kept.push(OutgoingRequest::new(Fields::new()));
                count += 1;
                black_box((&kept, count));
            }
        }
        "headers" => {
            let fields = Fields::new();
            for n in 0..100_000 {
                if let Err(e) = fields.append(&format!("x-{n}"), b"value") {
                    return Ok(format!("refused after {n}: {e:?}"));
                }
            }
            Ok("all headers".to_owned())
        }
        "random" => Ok(random::get_random_bytes(1 << 24).len().to_string()),
        "threads" => {
            let thread = thread::Builder::new().spawn(|| ())?;
            Ok(format!("{:?}", thread.join()))
        }
        other => Err(ToolError::invalid_arguments(other)),
    }
}

/// Tries something with the file system, `from` and `to` being paths.
#[tool(folder("*", write, reason = "to try what it must not"))]
fn try_files(what: String, from: String, to: Option<String>) -> Result<String> {
    let to = to.unwrap_or_default();
    match what.as_str() {
        "read" => Ok(fs::read_to_string(from)?),
        "write" => Ok(fs::write(from, "changed").map(|()| "written".to_owned())?),
        "append" => {
            fs::OpenOptions::new()
                .append(true)
                .open(from)?
                .write_all(b"changed")?;
            Ok("appended".to_owned())
        }
        "truncate" => {
            fs::OpenOptions::new()
                .read(true)
                .write(true)
                .truncate(true)
                .open(from)?;
            Ok("truncated".to_owned())
        }
        "set_len" => {
            fs::File::open(from)?.set_len(0)?;
            Ok("cut".to_owned())
        }
        "create" => Ok(fs::File::create_new(from).map(|_| "created".to_owned())?),
        "create_dir" => Ok(fs::create_dir(from).map(|()| "created".to_owned())?),
        "remove" => Ok(fs::remove_file(from).map(|()| "removed".to_owned())?),
        "rename" => Ok(fs::rename(from, to).map(|()| "renamed".to_owned())?),
        "link" => Ok(fs::hard_link(from, to).map(|()| "linked".to_owned())?),
        "list" => Ok(format!("{:?}", fs::read_dir(from)?.collect::<Vec<_>>())),
        "read_handle" => {
            let mut text = String::new();
            fs::File::open(from)?.read_to_string(&mut text)?;
            Ok(text)
        }
        other => Err(ToolError::invalid_arguments(other)),
    }
}

/// Opens a file again and again, keeping all of them.
#[tool(folder("*", read, reason = "to try what it must not"))]
fn open_many(path: String) -> Result<String> {
    let mut kept = Vec::new();
    for n in 0..10_000 {
        match fs::File::open(&path) {
            Ok(file) => kept.push(file),
            Err(e) => return Err(ToolError::new(format!("refused after {n}: {e}"))),
        }
    }
    Ok("all of them".to_owned())
}

/// Asks the host for the time so many times.
#[tool(read_only, closed_world)]
fn ask_often(times: u64) -> String {
    for _ in 0..times {
        black_box(monotonic_clock::now());
    }
    "asked".to_owned()
}

/// Panics with so many bytes.
#[tool(read_only, closed_world)]
fn panic_at_length(bytes: usize) -> String {
    panic!("{}", "p".repeat(bytes))
}

/// Says all variables and arguments that it finds.
#[tool(read_only, closed_world)]
fn surroundings() -> String {
    let variables: Vec<_> = std::env::vars_os().collect();
    let arguments: Vec<_> = std::env::args_os().collect();
    format!("{variables:?} {arguments:?}")
}

/// Fetches a page.
#[tool(read_only, http("*", reason = "to try what it must not"))]
fn fetch(url: String) -> Result<String> {
    Ok(http::get(url)?.text())
}

/// Tries to open a socket or to look a name up.
#[tool(read_only)]
fn connect(address: String) -> Result<String> {
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    Ok("connected".to_owned())
}

tools![
    spin,
    spin_in_imports,
    spin_in_polls,
    sleep_for_ever,
    fill,
    recurse,
    allocate,
    allocate_at_once,
    allocate_politely,
    panic,
    trap,
    exit,
    bump,
    plant,
    search,
    answer,
    blocks,
    fail_at_length,
    print,
    talk,
    log_line,
    exhaust,
    try_files,
    open_many,
    ask_often,
    panic_at_length,
    surroundings,
    fetch,
    connect,
];
