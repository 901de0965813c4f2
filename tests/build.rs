//! Builds `tests/guests` into components, once, and makes a constant of each: a guest that is missing does not
//! compile.
#![allow(
    clippy::expect_used,
    reason = "a build script that fails has to stop the build"
)]

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "wasm32-wasip2";
/// Each is a member of the workspace in `tests/guests`.
const GUESTS: [&str; 10] = [
    "author",
    "conformance",
    "echo",
    "helpful",
    "hostile",
    "keeper",
    "notes",
    "plain",
    "program",
    "server",
];

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let guests = manifest_dir.join("guests");
    for input in ["guests", "../sdk", "../wit"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let target_dir = root_target_dir(&out_dir).join("guests");
    build(&guests, &target_dir);

    let mut constants = String::new();
    for guest in GUESTS {
        let file = target_dir
            .join(TARGET)
            .join("release")
            .join(format!("{guest}.wasm"));
        let name = guest.to_uppercase();
        let path = file.to_str().expect("the target folder's path is UTF-8");
        writeln!(
            constants,
            "pub const {name}: &[u8] = include_bytes!({path:?});"
        )
        .expect("a string takes all");
    }
    fs::write(out_dir.join("guests.rs"), constants).expect("OUT_DIR can be written");
}

/// The outer cargo's; the guests get a folder of their own in it, since that one is locked.
fn root_target_dir(out_dir: &Path) -> &Path {
    // <target>/<profile>/build/<package>/out, where <target> may end with a triple.
    out_dir
        .ancestors()
        .nth(4)
        .expect("OUT_DIR lies in a target folder")
}

fn build(guests: &Path, target_dir: &Path) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo
        .args(["build", "--release", "--locked", "--target", TARGET])
        // Where its own `.cargo/config.toml` counts.
        .current_dir(guests)
        .env("CARGO_TARGET_DIR", target_dir);
    // What is meant for this build is not meant for the guests.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let is_setting = name.ends_with("RUSTFLAGS")
            || name.starts_with("CARGO_PROFILE_")
            || name.starts_with("CARGO_BUILD_")
            || name.starts_with("CARGO_ENCODED_")
            || ["RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"].contains(&&*name);
        if is_setting {
            cargo.env_remove(&*name);
        }
    }
    let output = cargo.output().expect("cargo runs");
    if output.status.success() {
        return;
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("target may not be installed") {
        panic!("the guests need the target {TARGET}: run `rustup target add {TARGET}`\n\n{stderr}");
    }
    panic!("building {} failed:\n\n{stderr}", guests.display());
}
