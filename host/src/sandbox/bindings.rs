//! The tool contract, generated from `wit/`.

wasmtime::component::bindgen!({
    path: "../wit",
    world: "tool",
    exports: { default: async },
});
