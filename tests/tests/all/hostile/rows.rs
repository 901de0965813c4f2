//! The attacks.

use agentloop_tests::crafted::Crafted;
use serde_json::{Value, json};
use wit_component::StringEncoding;

/// What an attack is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// It does not end.
    Time,
    /// It takes memory, tables or stack.
    Memory,
    /// It ends as a call must not.
    Ending,
    /// It answers what an answer must not be.
    Answer,
    /// It floods the host or takes what the host keeps for it.
    Host,
    Files,
    Network,
    /// It lies about itself, or says too much.
    Metadata,
    /// It is hard to compile.
    Compiler,
}

pub(super) enum Attack {
    /// A tool of `tests/guests/hostile`. In the arguments, names in braces stand for the scene's servers.
    Tool(&'static str, Value),
    /// A tool of a component of its own.
    Component(&'static str, Box<dyn Fn() -> Vec<u8>>),
}

#[derive(Debug)]
pub(super) enum Ends {
    Late,
    OutOfMemory,
    OutOfFuel,
    Trapped(&'static str),
    Failed(&'static str),
    /// With the capability that it lacks.
    Refused,
    /// By itself, since something did not work.
    GivesUp,
    TooLarge,
    /// What it gave is not believed.
    Broken,
    Answered(&'static str),
    NotLoaded(&'static str),
}

pub(super) struct Row {
    pub(super) door: Door,
    pub(super) what: &'static str,
    pub(super) attack: Attack,
    pub(super) ends: Ends,
}

const LOOP: &str = "(loop $again (br $again))";

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(time());
    rows.extend(memory());
    rows.extend(endings());
    rows.extend(answers());
    rows.extend(host());
    rows.extend(files());
    rows.extend(network());
    rows.extend(metadata());
    rows.extend(compiler());
    rows
}

fn tool(door: Door, what: &'static str, tool: &'static str, input: Value, ends: Ends) -> Row {
    Row {
        door,
        what,
        attack: Attack::Tool(tool, input),
        ends,
    }
}

/// A component around fields of a module and the body of `call`.
fn crafted(
    door: Door,
    what: &'static str,
    fields: impl Into<String>,
    call: &'static str,
    ends: Ends,
) -> Row {
    let fields = fields.into();
    let make = move || {
        Crafted {
            fields: &fields,
            call,
            ..Crafted::default()
        }
        .component()
    };
    Row {
        door,
        what,
        attack: Attack::Component("crafted", Box::new(make)),
        ends,
    }
}

/// A component with a plain function `run`, from text.
fn plain(door: Door, what: &'static str, text: impl Fn() -> String + 'static, ends: Ends) -> Row {
    Row {
        door,
        what,
        attack: Attack::Component("run", Box::new(move || wat::parse_str(text()).unwrap())),
        ends,
    }
}

/// A module with these fields, whose function `run` gives 0.
fn around(fields: &str) -> String {
    format!(
        r#"(component
            (core module $m {fields} (func (export "run") (result i32) i32.const 0))
            (core instance $i (instantiate $m))
            (func $run (result u32) (canon lift (core func $i "run")))
            (export "run" (func $run)))"#
    )
}

fn time() -> Vec<Row> {
    let row = |what, name, input| tool(Door::Time, what, name, input, Ends::Late);
    let looping =
        |what, fields: String| crafted(Door::Time, what, fields, "i32.const 64", Ends::Late);
    vec![
        row("a loop", "spin", json!({})),
        row("a loop of host calls", "spin_in_imports", json!({})),
        row(
            "a loop of polls that never wait",
            "spin_in_polls",
            json!({}),
        ),
        row("a sleep of an hour", "sleep_for_ever", json!({})),
        row("memory.fill again and again", "fill", json!({ "mib": 32 })),
        tool(
            Door::Time,
            "a loop with fuel",
            "spin",
            json!({}),
            Ends::OutOfFuel,
        ),
        looping(
            "a loop in `start`",
            format!("(func $start {LOOP}) (start $start)"),
        ),
        looping(
            "a loop in `cabi_realloc`",
            format!(
                r#"(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) {LOOP} unreachable)"#
            ),
        ),
        looping(
            "a loop after the answer",
            format!(r#"(func (export "cabi_post_{{interface}}#call") (param i32) {LOOP})"#),
        ),
        plain(
            Door::Time,
            "a loop in a destructor",
            || {
                format!(
                    r#"(component
                        (core module $d (func (export "end") (param i32) {LOOP}))
                        (core instance $d (instantiate $d))
                        (type $r (resource (rep i32) (dtor (func $d "end"))))
                        (core func $new (canon resource.new $r))
                        (core func $drop (canon resource.drop $r))
                        (core module $m
                            (import "h" "new" (func $new (param i32) (result i32)))
                            (import "h" "drop" (func $drop (param i32)))
                            (func (export "run") (result i32)
                                (call $drop (call $new (i32.const 1)))
                                i32.const 0))
                        (core instance $i (instantiate $m (with "h" (instance
                            (export "new" (func $new)) (export "drop" (func $drop))))))
                        (func $run (result u32) (canon lift (core func $i "run")))
                        (export "run" (func $run)))"#
                )
            },
            Ends::Late,
        ),
        crafted(
            Door::Time,
            "table.fill again and again",
            "(table $t 9000 funcref)",
            "(loop $again (table.fill $t (i32.const 0) (ref.null func) (i32.const 9000)) (br $again)) unreachable",
            Ends::Late,
        ),
    ]
}

fn memory() -> Vec<Row> {
    let row = |what, name, ends| tool(Door::Memory, what, name, json!({}), ends);
    let shape = |what, fields: String, call, ends| crafted(Door::Memory, what, fields, call, ends);
    const NOTHING: &str = "i32.const 64";
    vec![
        row("memory in small steps", "allocate", Ends::OutOfMemory),
        row("memory in one step", "allocate_at_once", Ends::OutOfMemory),
        row("memory, with manners", "allocate_politely", Ends::Failed("memory limit")),
        row("recursion", "recurse", Ends::Trapped("")),
        shape(
            "several memories that grow",
            r#"(memory (export "memory") 1) (memory $b 1) (memory $c 1)"#.into(),
            "(if (i32.eq (memory.grow 1 (i32.const 600)) (i32.const -1)) (then unreachable))
             (if (i32.eq (memory.grow 2 (i32.const 600)) (i32.const -1)) (then unreachable))
             i32.const 64",
            Ends::OutOfMemory,
        ),
        shape(
            "a first memory of 128 MiB",
            r#"(memory (export "memory") 2048)"#.into(),
            NOTHING,
            Ends::OutOfMemory,
        ),
        shape(
            "twenty memories",
            format!(r#"(memory (export "memory") 1) {}"#, "(memory 1)".repeat(20)),
            NOTHING,
            Ends::NotLoaded("memor"),
        ),
        shape(
            "a table that grows",
            "(table $t 10 funcref)".into(),
            "(if (i32.eq (table.grow $t (ref.null func) (i32.const 100000)) (i32.const -1)) (then unreachable))
             i32.const 64",
            Ends::Trapped("unreachable"),
        ),
        shape(
            "a giant table",
            "(table 100000000 funcref)".into(),
            NOTHING,
            Ends::NotLoaded("table"),
        ),
        shape(
            "forty tables",
            "(table 5 funcref)".repeat(40),
            NOTHING,
            Ends::NotLoaded("table"),
        ),
        shape(
            "recursion of two functions",
            "(func $a (result i32) (i32.add (call $b) (i32.const 1)))
             (func $b (result i32) (i32.add (call $a) (i32.const 1)))"
                .into(),
            "(call $a)",
            Ends::Trapped("stack"),
        ),
    ]
}

fn endings() -> Vec<Row> {
    let row = |what, name, input, says| tool(Door::Ending, what, name, input, Ends::Trapped(says));
    let shape = |what, fields: &str, call, ends| crafted(Door::Ending, what, fields, call, ends);
    vec![
        row("unreachable", "trap", json!({}), "unreachable"),
        row(
            "a panic of 1 MB",
            "panic_at_length",
            json!({ "bytes": 1_000_000 }),
            "last words",
        ),
        row(
            "a panic that paints",
            "panic",
            json!({ "message": "\u{1b}[2J\u{202e}APPROVED" }),
            "\\u{1b}[2J\\u{202e}APPROVED",
        ),
        row("exit with 0", "exit", json!({ "code": 0 }), "exited"),
        row("exit with 3", "exit", json!({ "code": 3 }), "exited"),
        shape(
            "a division by zero",
            "",
            "(i32.div_u (i32.const 1) (i32.const 0))",
            Ends::Trapped("divide"),
        ),
        shape(
            "reading beyond memory",
            "",
            "(i32.load (i32.const -4))",
            Ends::Trapped("out of bounds"),
        ),
        shape(
            "data beyond memory",
            r#"(memory (export "memory") 1) (data (i32.const 65535) "xx")"#,
            "i32.const 64",
            Ends::Trapped("out of bounds"),
        ),
        shape(
            "a trap in `start`",
            "(func $start unreachable) (start $start)",
            "i32.const 64",
            Ends::Trapped("unreachable"),
        ),
    ]
}

fn answers() -> Vec<Row> {
    // The result area at 64: ok, a list of one block at 128, which is a text at 256.
    let answer = |what, encoding, length: u32, data: &'static str| {
        let make = move || {
            let bytes = |n: u32| n.to_le_bytes().map(|b| format!("\\{b:02x}")).concat();
            let fields = format!(
                r#"(memory (export "memory") 1)
                (data (i32.const 64) "{zero}{list}{one}")
                (data (i32.const 128) "{zero}{pointer}{length}")
                (data (i32.const 256) "{data}")"#,
                zero = bytes(0),
                list = bytes(128),
                one = bytes(1),
                pointer = bytes(256),
                length = bytes(length),
            );
            Crafted {
                fields: &fields,
                encoding,
                ..Crafted::default()
            }
            .component()
        };
        Row {
            door: Door::Answer,
            what,
            attack: Attack::Component("crafted", Box::new(make)),
            ends: Ends::Broken,
        }
    };
    let row = |what, name, input, ends| tool(Door::Answer, what, name, input, ends);
    vec![
        row(
            "an answer of 30 MiB",
            "answer",
            json!({ "bytes": 30 << 20 }),
            Ends::TooLarge,
        ),
        row(
            "600,000 blocks",
            "blocks",
            json!({ "count": 600_000 }),
            Ends::TooLarge,
        ),
        row(
            "an error of 20 MiB",
            "fail_at_length",
            json!({ "bytes": 20 << 20 }),
            Ends::TooLarge,
        ),
        answer(
            "text that is not UTF-8",
            StringEncoding::UTF8,
            2,
            "\\ff\\fe",
        ),
        answer("a lone surrogate", StringEncoding::UTF16, 1, "\\00\\d8"),
        answer("a text of 4 GiB", StringEncoding::UTF8, u32::MAX, ""),
        crafted(
            Door::Answer,
            "an answer beyond memory",
            "",
            "i32.const -8",
            Ends::Broken,
        ),
        crafted(
            Door::Answer,
            "an answer of no kind",
            r#"(memory (export "memory") 1) (data (i32.const 64) "\07")"#,
            "i32.const 64",
            Ends::Broken,
        ),
    ]
}

fn host() -> Vec<Row> {
    let row = |what, name, input, ends| tool(Door::Host, what, name, input, ends);
    let exhaust = |what, name: &str, ends| row(what, "exhaust", json!({ "what": name }), ends);
    vec![
        row(
            "stdout and stderr without end",
            "print",
            json!({ "text": "flood\n" }),
            Ends::Late,
        ),
        row(
            "a line without end",
            "print",
            json!({ "text": "x".repeat(1000) }),
            Ends::Late,
        ),
        row(
            "log lines and progress without end",
            "talk",
            json!({ "text": "flood" }),
            Ends::Late,
        ),
        row(
            "a million host calls",
            "ask_often",
            json!({ "times": 1_000_000 }),
            Ends::Answered("asked"),
        ),
        row(
            "a log line of 30 MiB",
            "log_line",
            json!({ "bytes": 30 << 20 }),
            Ends::Trapped(""),
        ),
        exhaust("pollables", "pollables", Ends::Trapped("")),
        exhaust("header fields", "fields", Ends::Trapped("")),
        exhaust("requests", "requests", Ends::Trapped("")),
        exhaust("100,000 headers", "headers", Ends::Trapped("")),
        exhaust("16 MiB of random bytes", "random", Ends::Trapped("")),
        exhaust("threads", "threads", Ends::Failed("")),
        row(
            "ten thousand open files",
            "open_many",
            json!({ "path": "/ro/f" }),
            Ends::Trapped(""),
        ),
        row(
            "the environment and arguments",
            "surroundings",
            json!({}),
            Ends::Answered("[] ["),
        ),
    ]
}

fn files() -> Vec<Row> {
    let row = |what, tried: &str, from: &str, to: &str, ends| {
        let input = json!({ "what": tried, "from": from, "to": to });
        tool(Door::Files, what, "try_files", input, ends)
    };
    vec![
        row("an absolute path", "read", "/etc/passwd", "", Ends::GivesUp),
        row(
            "the process's own files",
            "read",
            "/proc/self/environ",
            "",
            Ends::GivesUp,
        ),
        row("up and out", "read", "/ro/../outside", "", Ends::GivesUp),
        row(
            "up and out with more of it",
            "read",
            "/ro/../../../../../../etc/passwd",
            "",
            Ends::GivesUp,
        ),
        row(
            "a link that leads out",
            "read",
            "/ro/link",
            "",
            Ends::GivesUp,
        ),
        row(
            "an absolute link that leads out",
            "read",
            "/ro/absolute",
            "",
            Ends::GivesUp,
        ),
        row(
            "writing through a link that leads out",
            "write",
            "/rw/link",
            "",
            Ends::GivesUp,
        ),
        row("a device", "read", "/ro/device", "", Ends::GivesUp),
        row(
            "a pipe that nobody writes to",
            "read",
            "/rw/pipe",
            "",
            Ends::Late,
        ),
        row(
            "writing where only reading is granted",
            "write",
            "/ro/f",
            "",
            Ends::GivesUp,
        ),
        row(
            "cutting where only reading is granted",
            "truncate",
            "/ro/f",
            "",
            Ends::GivesUp,
        ),
        row(
            "removing where only reading is granted",
            "remove",
            "/ro/f",
            "",
            Ends::GivesUp,
        ),
        row(
            "moving into where it may write",
            "rename",
            "/ro/f",
            "/rw/f",
            Ends::GivesUp,
        ),
        row(
            "a hard link into where it may write",
            "link",
            "/ro/f",
            "/rw/f",
            Ends::GivesUp,
        ),
        row(
            "making where only reading is granted",
            "create",
            "/ro/new",
            "",
            Ends::GivesUp,
        ),
    ]
}

fn network() -> Vec<Row> {
    let fetch =
        |what, url: &str, ends| tool(Door::Network, what, "fetch", json!({ "url": url }), ends);
    let connect = |what, address: &str| {
        tool(
            Door::Network,
            what,
            "connect",
            json!({ "address": address }),
            Ends::Failed(""),
        )
    };
    vec![
        fetch("a server that never answers", "{silent}", Ends::Late),
        fetch("a server that drips", "{dripping}", Ends::Late),
        fetch("a redirect to this machine", "{redirecting}", Ends::Refused),
        fetch("this machine", "http://127.0.0.1:{port}/", Ends::Refused),
        fetch(
            "a name of this machine",
            "http://localhost:{port}/",
            Ends::Refused,
        ),
        fetch(
            "this machine in hexadecimal",
            "http://0x7f000001:{port}/",
            Ends::Refused,
        ),
        fetch(
            "this machine inside of IPv6",
            "http://[::ffff:127.0.0.1]:{port}/",
            Ends::Refused,
        ),
        fetch(
            "a cloud's metadata",
            "http://169.254.169.254/latest/meta-data",
            Ends::Refused,
        ),
        connect("a socket", "127.0.0.1:{port}"),
        connect("a look-up", "localhost:{port}"),
    ]
}

fn metadata() -> Vec<Row> {
    let section = |what, text: fn() -> String, says| {
        let make = move || {
            Crafted {
                section: Some(&text()),
                ..Crafted::default()
            }
            .component()
        };
        Row {
            door: Door::Metadata,
            what,
            attack: Attack::Component("crafted", Box::new(make)),
            ends: Ends::NotLoaded(says),
        }
    };
    let list = |what, fields: &'static str, list: &'static str, says| {
        let make = move || {
            Crafted {
                fields,
                list,
                section: None,
                ..Crafted::default()
            }
            .component()
        };
        Row {
            door: Door::Metadata,
            what,
            attack: Attack::Component("crafted", Box::new(make)),
            ends: Ends::NotLoaded(says),
        }
    };
    vec![
        section(
            "a section of 10 MB",
            || " ".repeat(10_000_000),
            "the limit is",
        ),
        section("deep JSON", || "[".repeat(100_000), "`agentloop-tools`"),
        section("no JSON", || "{".into(), "`agentloop-tools`"),
        section(
            "300 tools",
            || {
                let one = r#"{"name":"t","description":"d","input_schema":{"type":"object"}}"#;
                format!(r#"{{"tools":[{}]}}"#, vec![one; 300].join(","))
            },
            "300 tools",
        ),
        list(
            "a loop in `list`",
            "",
            "(loop $again (br $again)) unreachable",
            "does not end",
        ),
        list(
            "memory in `list`",
            "",
            "(drop (memory.grow (i32.const 60000))) unreachable",
            "needs more than",
        ),
        list("a trap in `list`", "", "unreachable", "failed"),
        list(
            "an answer of `list` beyond memory",
            "",
            "i32.const -8",
            "`list`",
        ),
        plain(
            Door::Metadata,
            "an import that nobody has",
            || {
                r#"(component (import "acme:db/query@1.0.0" (instance)) (component $c) (instance $i (instantiate $c)) (export "agentloop:tool/tools@0.1.0" (instance $i)))"#.into()
            },
            Ends::NotLoaded("acme:db/query"),
        ),
        plain(
            Door::Metadata,
            "a known import with other contents",
            || {
                r#"(component (import "wasi:io/poll@0.2.0" (instance (export "surprise" (func)))) (component $c) (instance $i (instantiate $c)) (export "agentloop:tool/tools@0.1.0" (instance $i)))"#.into()
            },
            Ends::NotLoaded("interfaces"),
        ),
        plain(
            Door::Metadata,
            "types that double",
            || {
                let mut types = "(type $t0 (tuple u8 u8))".to_owned();
                for n in 1..22 {
                    types += &format!("(type $t{n} (tuple $t{m} $t{m}))", m = n - 1);
                }
                format!(
                    r#"(component {types}
                        (core module $m (memory (export "m") 1) (func (export "r") (param i32 i32 i32 i32) (result i32) i32.const 0)
                            (func (export "run") (param i32)))
                        (core instance $i (instantiate $m))
                        (func $run (param "x" $t21) (canon lift (core func $i "run") (memory $i "m") (realloc (func $i "r"))))
                        (export "run" (func $run)))"#
                )
            },
            Ends::NotLoaded(""),
        ),
    ]
}

fn compiler() -> Vec<Row> {
    let row =
        |what, text: fn() -> String, says| plain(Door::Compiler, what, text, Ends::NotLoaded(says));
    vec![
        row(
            "200,001 functions",
            || around(&"(func)".repeat(200_001)),
            "functions",
        ),
        row(
            "a function of 2 MiB",
            || around(&format!("(func {})", "nop ".repeat(2 << 20))),
            "bytes in one function",
        ),
        row(
            "50,000 variables",
            || around(&format!("(func (local {}))", "i64 ".repeat(50_000))),
            "variables",
        ),
        row(
            "6,000 blocks inside of each other",
            || {
                around(&format!(
                    "(func {} {})",
                    "block ".repeat(6000),
                    "end ".repeat(6000)
                ))
            },
            "blocks",
        ),
        row(
            "a branch table of 300,000",
            || {
                around(&format!(
                    "(func (block (br_table {} (i32.const 0))))",
                    "0 ".repeat(300_000)
                ))
            },
            "branch targets",
        ),
        row(
            "twenty components inside of each other",
            || {
                let nested = format!("{}{}", "(component ".repeat(20), ")".repeat(20));
                around("").replacen("(component", &format!("(component {nested}"), 1)
            },
            "inside of each other",
        ),
        row(
            "a thousand modules",
            || {
                let modules = "(core module)".repeat(1000);
                around("").replacen("(component", &format!("(component {modules}"), 1)
            },
            "modules",
        ),
        row(
            "code that does not hold",
            || around("(func (result i32) i64.const 1)"),
            "does not compile",
        ),
    ]
}
