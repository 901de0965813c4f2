fn main() {
    // Filters run by recursion: the stack that suits other tools is too small (`.cargo/config.toml`).
    println!("cargo::rustc-link-arg-cdylib=-zstack-size=1048576");
}
