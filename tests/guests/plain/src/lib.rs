//! A component that knows nothing of this host: plain functions, at the root of its world and in interfaces.

use std::{
    cell::Cell,
    fs,
    hint::black_box,
    net::ToSocketAddrs as _,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use wasip2::http::{outgoing_handler, types};

wit_bindgen::generate!({ world: "plain", path: "wit", generate_all });

use exports::tests::plain::{
    shapes::{self, Color, Failure, Figure, Point, Rights},
    things::{self, CounterBorrow},
};

struct Plain;

export!(Plain);

impl Guest for Plain {
    fn echo(text: String) -> String {
        text
    }

    fn add(a: i64, b: i64) -> i64 {
        a.wrapping_add(b)
    }

    fn spin() -> String {
        let mut n = 1_u64;
        loop {
            n = black_box(n.wrapping_mul(3) + 1);
        }
    }

    fn nap(ms: u32) -> String {
        thread::sleep(Duration::from_millis(ms.into()));
        format!("slept {ms}")
    }

    fn alloc(mib: u32) -> String {
        let mut kept = Vec::new();
        for n in 0..mib {
            kept.push(black_box(vec![n as u8; 1 << 20]));
        }
        format!("{} MiB", kept.len())
    }

    fn boom() -> String {
        panic!("boom from the guest")
    }

    fn read_file(path: String) -> Result<String, String> {
        fs::read_to_string(&path).map_err(|e| format!("read {path}: {e}"))
    }

    fn write_file(path: String, text: String) -> Result<(), String> {
        fs::write(&path, text).map_err(|e| format!("write {path}: {e}"))
    }

    fn get_env(key: String) -> Result<String, String> {
        std::env::var(&key).map_err(|e| format!("{key}: {e}"))
    }

    fn get_config(key: String) -> Option<String> {
        wasi::config::store::get(&key).expect("it does not fail")
    }

    fn all_config() -> Vec<(String, String)> {
        wasi::config::store::get_all().expect("it does not fail")
    }

    fn dial(address: String) -> Result<String, String> {
        let mut found = address.to_socket_addrs().map_err(|e| e.to_string())?;
        let found = found.next().ok_or("no address")?;
        match std::net::TcpStream::connect(found) {
            Ok(_) => Ok("connected".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    }

    fn get(authority: String, path: String) -> Result<String, String> {
        request(&types::Method::Get, &authority, &path)
    }

    fn send(method: String, authority: String) -> Result<String, String> {
        request(&types::Method::Other(method), &authority, "/")
    }

    fn blob(kib: u32) -> String {
        "x".repeat(kib as usize * 1024)
    }

    fn count() -> u32 {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        CALLS.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn print(text: String) {
        println!("{text}");
    }
}

fn request(method: &types::Method, authority: &str, path: &str) -> Result<String, String> {
    let request = types::OutgoingRequest::new(types::Fields::new());
    request.set_method(method).map_err(|()| "method")?;
    request
        .set_scheme(Some(&types::Scheme::Http))
        .map_err(|()| "scheme")?;
    request
        .set_authority(Some(authority))
        .map_err(|()| "authority")?;
    request
        .set_path_with_query(Some(path))
        .map_err(|()| "path")?;
    let answer = outgoing_handler::handle(request, None).map_err(|e| format!("handle: {e:?}"))?;
    loop {
        if let Some(answer) = answer.get() {
            let answer = answer.map_err(|()| "taken twice")?;
            let answer = answer.map_err(|e| format!("http: {e:?}"))?;
            return Ok(format!("status {}", answer.status()));
        }
        answer.subscribe().block();
    }
}

impl shapes::Guest for Plain {
    fn small(a: i8, b: u8, c: i16, d: u16, e: i32, f: u32) -> String {
        format!("{a} {b} {c} {d} {e} {f}")
    }

    fn signed(value: i64) -> i64 {
        value
    }

    fn unsigned(value: u64) -> u64 {
        value
    }

    fn floats(a: f32, b: f64) -> (f32, f64) {
        (a, if b == 0.0 { f64::NAN } else { b })
    }

    fn letter(value: char) -> char {
        value
    }

    fn truth(value: bool) -> bool {
        value
    }

    fn bytes(value: Vec<u8>) -> Vec<u8> {
        value
    }

    fn texts(value: Vec<String>) -> Vec<String> {
        value
    }

    fn place(value: Point) -> Point {
        value
    }

    fn draw(value: Figure) -> Figure {
        value
    }

    fn paint(value: Color) -> Color {
        value
    }

    fn allow(value: Rights) -> Rights {
        value
    }

    fn nested(value: Option<Option<u32>>) -> Option<Option<u32>> {
        value
    }

    fn outcome(value: Result<u32, String>) -> (Result<u32, String>,) {
        (value,)
    }

    fn nothing() {}

    fn find(name: String) -> Result<Point, Failure> {
        match name.as_str() {
            "here" => Ok(Point {
                x: 1,
                y: -1,
                label: Some(name),
            }),
            _ => Err(Failure::NotFound(name)),
        }
    }

    fn only_err(fail: bool) -> Result<(), String> {
        if fail {
            Err("it failed".to_owned())
        } else {
            Ok(())
        }
    }

    fn bare_result(fail: bool) -> Result<(), ()> {
        if fail { Err(()) } else { Ok(()) }
    }

    fn echo(text: String) -> String {
        format!("not the root's: {text}")
    }
}

struct Counter(Cell<u32>);

impl things::GuestCounter for Counter {
    fn new() -> Self {
        Self(Cell::new(0))
    }

    fn next(&self) -> u32 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

impl things::Guest for Plain {
    type Counter = Counter;

    fn make() -> things::Counter {
        things::Counter::new(Counter(Cell::new(0)))
    }

    fn take(value: CounterBorrow<'_>) -> u32 {
        value.get::<Counter>().0.get()
    }

    fn how_many() -> u32 {
        7
    }
}
