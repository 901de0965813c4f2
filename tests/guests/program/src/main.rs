//! A program that knows nothing of tools: it takes arguments and standard input, prints, and exits.

use std::{
    env, fs,
    hint::black_box,
    io::{self, Read as _, Write as _},
    process::exit,
};

fn main() {
    let argv: Vec<String> = env::args().collect();
    match argv.get(1).map_or("", String::as_str) {
        "arguments" => println!("{argv:?}"),
        "upper" => {
            let mut text = String::new();
            io::stdin()
                .read_to_string(&mut text)
                .expect("stdin is text");
            print!("{}", text.to_uppercase());
        }
        "read" => match fs::read_to_string(&argv[2]) {
            Ok(text) => print!("{text}"),
            Err(error) => fail(&format!("can't read {}: {error}", argv[2])),
        },
        "variables" => println!("{}", env::vars().count()),
        "json" => println!(r#"{{"sum": {}}}"#, argv[2..].len()),
        "warn" => {
            eprintln!("careful");
            println!("done");
        }
        "fail" => fail("it can't be done"),
        "quiet" => exit(1),
        "panic" => panic!("boom in the program"),
        "flood" => loop {
            if io::stdout().write_all(&[b'x'; 4096]).is_err() {
                exit(1);
            }
        },
        "spin" => {
            let mut n = 1_u64;
            loop {
                n = black_box(n.wrapping_mul(3) + 1);
            }
        }
        "" => {}
        other => fail(&format!("no command `{other}`")),
    }
}

fn fail(why: &str) {
    eprintln!("program: {why}");
    exit(3);
}
