//! The plugins that travel inside the binary, built by `build.rs` from the folder `plugins`.

/// A plugin as a component.
#[derive(Clone, Copy)]
pub struct Shipped {
    /// Its name, and that of its file without `.wasm`.
    pub name: &'static str,
    pub wasm: &'static [u8],
}

/// The plugin whose tools misbehave on purpose, for the command `demo`. Nobody wants it installed.
pub const DEMO: &str = "demo";

/// All of them, sorted by name.
pub const PLUGINS: &[Shipped] = include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// The plugin of this name.
pub fn get(name: &str) -> Option<&'static Shipped> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// The plugins that people use: all but [`DEMO`].
pub fn for_use() -> impl Iterator<Item = &'static Shipped> {
    PLUGINS.iter().filter(|plugin| plugin.name != DEMO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_components_in_order() {
        assert!(PLUGINS.is_sorted_by_key(|plugin| plugin.name));
        for plugin in PLUGINS {
            // The preamble of a component, as opposed to a core module.
            assert_eq!(plugin.wasm[..8], *b"\0asm\x0d\0\x01\0", "{}", plugin.name);
        }
        assert!(get(DEMO).is_some());
        assert!(for_use().all(|plugin| plugin.name != DEMO));
        assert!(get("calc").is_some());
    }
}
