//! Compiled code: kept, and never believed. B32.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use agentloop_host::{
    sandbox::{Sandbox, SandboxSettings},
    tool::ToolOutcome,
};
use agentloop_tests::{
    crafted::Crafted,
    guests::{self, Guest},
};
use serde_json::json;

fn sandbox(cache: &Path) -> Sandbox {
    let settings = SandboxSettings {
        cache_dir: Some(cache.to_owned()),
        ..guests::settings()
    };
    Sandbox::new(settings).unwrap()
}

/// Small, since most of these tests compile it several times.
async fn works(cache: &Path) {
    let guest = Guest::load(&sandbox(cache), &Crafted::default().component()).await;
    let ending = guest.call("crafted", json!({})).await;
    assert_eq!(ending.outcome, ToolOutcome::Answered(vec![]));
}

/// The compiled components, sorted.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(cache.join("compiled"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    entries
}

fn only_entry(cache: &Path) -> PathBuf {
    let [entry] = &entries(cache)[..] else {
        panic!("{:?}", entries(cache))
    };
    entry.clone()
}

#[tokio::test]
async fn compiled_code_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("a/b");
    works(&cache).await;
    let entry = only_entry(&cache);
    let written = fs::metadata(&entry).unwrap().modified().unwrap();
    works(&cache).await;
    assert_eq!(
        fs::metadata(&entry).unwrap().modified().unwrap(),
        written,
        "it was compiled again"
    );
    // Counting fuel is another compilation.
    let mut guest = Guest::load(&sandbox(&cache), &Crafted::default().component()).await;
    guest.limits.fuel = Some(u64::MAX);
    let ending = guest.call("crafted", json!({})).await;
    assert_eq!(ending.outcome, ToolOutcome::Answered(vec![]));
    assert_eq!(entries(&cache).len(), 2);
}

/// The schemas of plain functions: their file is read whole for them, which takes long for a large one.
#[tokio::test]
async fn schemas_are_worked_out_once_for_each_file() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let first = Guest::load(&sandbox(&cache), guests::PLAIN).await;
    let kept = entries(&cache)
        .into_iter()
        .find(|entry| entry.extension().is_some_and(|end| end == "functions"))
        .unwrap();
    let good = fs::read(&kept).unwrap();
    let written = fs::metadata(&kept).unwrap().modified().unwrap();
    let same = async || {
        let again = Guest::load(&sandbox(&cache), guests::PLAIN).await;
        assert_eq!(again.component.definitions(), first.component.definitions());
        assert_eq!(again.component.set_aside(), first.component.set_aside());
        let point = json!({ "value": { "x": 1, "y": 2, "label": null } });
        let ending = again.call("place", point.clone()).await;
        assert_eq!(ending.outcome, first.call("place", point).await.outcome);
        assert!(matches!(ending.outcome, ToolOutcome::Answered(_)));
    };
    same().await;
    let again = fs::metadata(&kept).unwrap().modified().unwrap();
    assert_eq!(again, written, "they were worked out again");
    // What this host has not sealed is not believed, however much it looks like it.
    let forged = String::from_utf8_lossy(&good).replace("place", "plaza");
    for bad in [forged.into_bytes(), good[..40].to_vec(), Vec::new()] {
        fs::write(&kept, &bad).unwrap();
        same().await;
        assert_eq!(fs::read(&kept).unwrap(), good, "it was not replaced");
    }
}

/// As large as those of Python: the file, its memory and its tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_component_is_compiled_once_and_fits_the_pool() {
    const MIB: usize = 20;
    let fields = format!(
        r#"(memory (export "memory") {}) (table 12000 funcref) (data (i32.const 65536) "{}")"#,
        (MIB + 1) * 16,
        "x".repeat(MIB << 20)
    );
    let large = Crafted {
        fields: &fields,
        ..Crafted::default()
    }
    .component();
    assert!(large.len() > MIB << 20);
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let load = async || Guest::load(&sandbox(&cache), &large).await;
    load().await;
    let entry = only_entry(&cache);
    let written = fs::metadata(&entry).unwrap().modified().unwrap();
    let started = Instant::now();
    let guest = load().await;
    println!(
        "{} bytes, loaded from the cache in {:?}",
        large.len(),
        started.elapsed()
    );
    let again = fs::metadata(&entry).unwrap().modified().unwrap();
    assert_eq!(again, written, "it was compiled again");
    let calls = (0..guests::MAX_LIVE_CALLS).map(|_| guest.call("crafted", json!({})));
    for ending in futures_util::future::join_all(calls).await {
        assert_eq!(ending.outcome, ToolOutcome::Answered(vec![]));
        assert!(ending.peak_memory_bytes > MIB << 20);
    }
}

#[tokio::test]
async fn a_damaged_entry_is_a_miss_and_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    works(&cache).await;
    let entry = only_entry(&cache);
    let good = fs::read(&entry).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let mut seal = good.clone();
    *seal.last_mut().unwrap() ^= 1;
    for bad in [
        vec![0; good.len()],
        good[..good.len() / 2].to_vec(),
        good[..good.len() - 1].to_vec(),
        Vec::new(),
        b"\x7fELF".to_vec(),
        flipped,
        seal,
    ] {
        fs::write(&entry, &bad).unwrap();
        works(&cache).await;
        assert_ne!(fs::read(&entry).unwrap(), bad, "it was not replaced");
        assert_eq!(fs::metadata(&entry).unwrap().len(), good.len() as u64);
    }
}

/// T18: what another host, or anybody else, put there is not run, however well-formed.
#[tokio::test]
async fn a_foreign_entry_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    works(&ours).await;
    works(&theirs).await;
    let foreign = fs::read(only_entry(&theirs)).unwrap();
    fs::write(only_entry(&ours), &foreign).unwrap();
    works(&ours).await;
    assert_ne!(fs::read(only_entry(&ours)).unwrap()[..], foreign[..]);

    // One component's code under another's name.
    let traps = Crafted {
        call: "unreachable",
        ..Crafted::default()
    }
    .component();
    Guest::load(&sandbox(&ours), &traps).await;
    let [a, b] = &entries(&ours)[..] else {
        panic!()
    };
    let (code_a, code_b) = (fs::read(a).unwrap(), fs::read(b).unwrap());
    fs::write(a, &code_b).unwrap();
    fs::write(b, &code_a).unwrap();
    works(&ours).await;
    let guest = Guest::load(&sandbox(&ours), &traps).await;
    let ending = guest.call("crafted", json!({})).await;
    assert!(
        matches!(ending.outcome, ToolOutcome::Trapped { .. }),
        "{ending:?}"
    );
}

#[tokio::test]
async fn a_new_key_makes_all_entries_misses() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    works(&cache).await;
    let before = fs::read(only_entry(&cache)).unwrap();
    fs::remove_file(cache.join("key")).unwrap();
    works(&cache).await;
    assert_ne!(fs::read(only_entry(&cache)).unwrap(), before);
    // A key that is none: the cache is left alone, and all works.
    fs::write(cache.join("key"), "short").unwrap();
    works(&cache).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_folder_that_others_can_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    for open in ["", "compiled", "key"] {
        let cache = dir.path().join(format!("cache {open}"));
        works(&cache).await;
        let mode = if open == "key" { 0o644 } else { 0o777 };
        fs::set_permissions(cache.join(open), fs::Permissions::from_mode(mode)).unwrap();
        let entry = only_entry(&cache);
        fs::write(&entry, "planted").unwrap();
        works(&cache).await;
        assert_eq!(fs::read(&entry).unwrap(), b"planted", "it was used");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn what_is_made_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    works(&cache).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&cache), 0o700);
    assert_eq!(mode(&cache.join("compiled")), 0o700);
    assert_eq!(mode(&cache.join("key")), 0o600);
    assert_eq!(mode(&only_entry(&cache)), 0o600);
}

/// A cache that can't be used costs time and nothing else.
#[tokio::test]
async fn an_unusable_folder_only_costs_time() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    works(&file).await;
    works(&file.join("below")).await;

    let cache = dir.path().join("cache");
    works(&cache).await;
    // An entry that can't be written: something else has its name.
    let entry = only_entry(&cache);
    fs::remove_file(&entry).unwrap();
    fs::create_dir(&entry).unwrap();
    works(&cache).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hosts_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let cache = dir.path().join("cache");
        let _ = fs::remove_dir_all(&cache);
        tokio::join!(works(&cache), works(&cache), works(&cache));
        works(&cache).await;
        only_entry(&cache);
    }
}

/// What an earlier host left half-written goes when there is too little room, and stands in nobody's way.
#[tokio::test]
async fn rubbish_in_the_folder_is_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    works(&cache).await;
    fs::remove_file(only_entry(&cache)).unwrap();
    fs::write(cache.join("compiled/.new-abc"), "half").unwrap();
    fs::create_dir(cache.join("compiled/folder")).unwrap();
    works(&cache).await;
    works(&cache).await;
}
