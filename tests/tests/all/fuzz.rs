//! A short run of each fuzzing target: the corpus, and some thousand changes of it, the same ones each time. With
//! `FUZZ_SECONDS` set it is one of so many seconds, with other changes each time.

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

use agentloop_tests::fuzzing::TARGETS;

const ROUNDS: usize = 4000;
/// A busy machine gets fewer rounds and no failure.
const AT_MOST: Duration = Duration::from_secs(15);

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut files: Vec<_> = fs::read_dir(folder.join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|file| fs::read(file).unwrap())
        .collect()
}

fn run(target: &str) {
    let (_, function) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let corpus = corpus(target);
    assert!(corpus.len() >= 2, "{target} has nothing to begin with");
    let check = |data: &[u8]| {
        if catch_unwind(AssertUnwindSafe(|| function(data))).is_err() {
            panic!("{target} fails on {:?}", String::from_utf8_lossy(data));
        }
    };
    check(b"");
    corpus.iter().for_each(|data| check(data));
    let started = Instant::now();
    let long = std::env::var("FUZZ_SECONDS").ok();
    let long = long.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    if long.is_some() {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        random.0 ^= now.as_nanos() as u64;
    }
    let mut rounds = 0_usize;
    while started.elapsed() < long.unwrap_or(AT_MOST) && (long.is_some() || rounds < ROUNDS) {
        check(&random.changed(&corpus));
        rounds += 1;
    }
    println!("{target}: {rounds} rounds");
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }

    /// One of the corpus, changed in up to eight places.
    fn changed(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        const PIECES: [&[u8]; 18] = [
            b"\0",
            b"\xff",
            b"\"",
            b"\\",
            b"{",
            b"}",
            b"[",
            b"\n",
            b"\r\n",
            b"..",
            b"/",
            b"*",
            b":",
            b"-1",
            b"1e999",
            b"\\ud800",
            b"\xe2\x80\xae",
            b"99999999999999999999",
        ];
        let mut data = corpus[self.next(corpus.len())].clone();
        for _ in 0..=self.next(8) {
            let at = self.next(data.len() + 1);
            let end = at + self.next(data.len() - at + 1).min(64);
            match self.next(6) {
                0 if at < data.len() => data[at] ^= 1 << self.next(8),
                1 => drop(data.splice(at..at, PIECES[self.next(PIECES.len())].iter().copied())),
                2 => drop(data.drain(at..end)),
                3 => {
                    let again = data[at..end].to_vec();
                    data.splice(at..at, again);
                }
                4 => {
                    let other = &corpus[self.next(corpus.len())];
                    let from = self.next(other.len() + 1);
                    let to = from + self.next(other.len() - from + 1);
                    data.splice(at..end, other[from..to].iter().copied());
                }
                _ => data.truncate(at.max(data.len() / 2)),
            }
        }
        data
    }
}

#[test]
fn each_target_has_a_harness_and_a_corpus() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let names = |folder: &str| -> BTreeSet<String> {
        fs::read_dir(fuzz.join(folder))
            .unwrap()
            .map(|entry| {
                entry
                    .unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    };
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("corpus"), targets);
    assert_eq!(names("fuzz_targets"), targets);
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for target in targets {
        assert!(
            manifest.contains(&format!("name = \"{target}\"")),
            "{target}"
        );
    }
}

#[test]
fn metadata() {
    run("metadata");
}

#[test]
fn arguments() {
    run("arguments");
}

#[test]
fn sse() {
    run("sse");
}

#[test]
fn config() {
    run("config");
}

#[test]
fn hosts() {
    run("hosts");
}

#[test]
fn paths() {
    run("paths");
}
