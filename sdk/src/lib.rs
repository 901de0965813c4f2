//! Write tools for `agentloop-host` as plain Rust functions.

extern crate self as agentloop_sdk;

#[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
#[doc(hidden)]
#[rustfmt::skip]
#[allow(missing_docs)]
pub mod bindings;
mod call;
#[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
mod component;
mod content;
pub mod definition;
mod error;
mod operator;
mod schema;
mod text;

pub use agentloop_sdk_macros::{args, output, tool};
pub use call::Tool;
pub use content::{Audio, Content, Image, IntoContent, Json, Resource, ResourceBody};
pub use definition::Definition;
pub use error::{Result, ToolError};
pub use operator::{Amount, Level, Total, progress};
pub use schema::Schema;
pub use serde_json::{Value, json};

/// What the macros need. Not for tool authors, and free to change.
#[doc(hidden)]
pub mod __rt {
    pub use serde;

    #[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
    pub use crate::{
        bindings::{
            agentloop::tool::types, export_component, exports::agentloop::tool::tools::Guest,
        },
        component::{call, list},
    };
    pub use crate::{
        call::{Entry, decode},
        content::OutputSchema,
        definition::{Annotations, Capability, Definition, Request, write_section},
        operator::write_log,
        schema::{Field, Named, Node, Schema, Type, Variant, write_input, write_schema},
        text::Text,
    };
    #[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
    pub use wit_bindgen;
}

/// Makes a component of the crate: exports the tools, in this order, and writes what they say of themselves
/// into a section that can be read without running anything. Once in each crate.
///
/// Takes paths, such as `tools![search, notes::add]`. The crate has to be a `cdylib`, built for
/// `wasm32-wasip2`; another target is a compile error, except in tests.
#[macro_export]
macro_rules! tools {
    ($($tool:path),+ $(,)?) => {
        #[cfg(not(any(
            test,
            doc,
            clippy,
            all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"),
        )))]
        ::core::compile_error!(
            "tools run as WebAssembly components: build this crate with `agentloop-host build`, or with `cargo build --release --target wasm32-wasip2` (`rustup target add wasm32-wasip2` installs the target)"
        );

        const _: () = {
            const TOOLS: &[$crate::__rt::Entry] = &[$($crate::__rt::Entry {
                definition: <$tool as $crate::Tool>::DEFINITION,
                call: <$tool as $crate::Tool>::call,
            }),+];
            const DEFINITIONS: &[&$crate::Definition] =
                &[$(<$tool as $crate::Tool>::DEFINITION),+];
            #[allow(long_running_const_eval)]
            const LEN: usize = $crate::__rt::write_section::<0>(DEFINITIONS).len;
            const _: &[$crate::__rt::Entry] = TOOLS;
            const _: usize = LEN;

            #[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
            const _: () = {
                #[allow(long_running_const_eval)]
                #[used]
                #[unsafe(link_section = "agentloop-tools")]
                static SECTION: [u8; LEN] = $crate::__rt::write_section::<LEN>(DEFINITIONS).bytes;

                struct Component;

                impl $crate::__rt::Guest for Component {
                    fn list() -> ::std::vec::Vec<$crate::__rt::types::ToolDefinition> {
                        $crate::__rt::list(TOOLS)
                    }

                    fn call(
                        name: ::std::string::String,
                        arguments: ::std::string::String,
                    ) -> ::core::result::Result<
                        ::std::vec::Vec<$crate::__rt::types::Content>,
                        $crate::__rt::types::CallError,
                    > {
                        $crate::__rt::call(TOOLS, &name, &arguments)
                    }
                }

                $crate::__rt::export_component!(Component with_types_in $crate::bindings);
            };
        };
    };
}

/// Writes a line of the operator's log, which never reaches the model:
/// `log!(info, "{count} files")`, with `debug`, `info`, `warn` or `error`.
#[macro_export]
macro_rules! log {
    (debug, $($text:tt)+) => { $crate::__rt::write_log($crate::Level::Debug, ::core::format_args!($($text)+)) };
    (info, $($text:tt)+) => { $crate::__rt::write_log($crate::Level::Info, ::core::format_args!($($text)+)) };
    (warn, $($text:tt)+) => { $crate::__rt::write_log($crate::Level::Warn, ::core::format_args!($($text)+)) };
    (error, $($text:tt)+) => { $crate::__rt::write_log($crate::Level::Error, ::core::format_args!($($text)+)) };
}
