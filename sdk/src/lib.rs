//! Write tools for `agentloop-host` as plain Rust functions.
//!
//! A tool crate is a `cdylib` with this one dependency:
//!
//! ```toml
//! [package]
//! name = "weather"
//! edition = "2024"
//!
//! [lib]
//! crate-type = ["cdylib"]
//!
//! [dependencies]
//! agentloop-sdk = { path = "…" }
//!
//! [profile.release]
//! opt-level = "s"
//! lto = true
//! codegen-units = 1
//! panic = "abort"
//! strip = true
//! ```
//!
//! and a `src/lib.rs` like this:
//!
//! ```
//! use agentloop_sdk::{Result, ToolError, http, tool, tools};
//!
//! /// Return the weather forecast for a city.
//! #[tool(
//!     read_only,
//!     title = "Weather",
//!     timeout = "10s",
//!     http("https://api.example.org", reason = "to ask for the forecast")
//! )]
//! fn get_weather(
//!     /// City name, in English
//!     city: String,
//!     /// How many days ahead
//!     #[default(1)]
//!     days: u8,
//! ) -> Result<String> {
//!     if city.is_empty() {
//!         return Err(ToolError::invalid_arguments("`city` is empty: name a city"));
//!     }
//!     let forecast = http::Request::get("https://api.example.org/forecast")
//!         .query("city", &city)
//!         .query("days", days)
//!         .send()?
//!         .error_for_status()?;
//!     Ok(forecast.text())
//! }
//!
//! # #[cfg(any())]
//! tools![get_weather];
//! ```
//!
//! `agentloop-host build` makes a component of it, or `cargo build --release --target wasm32-wasip2`. The host calls each
//! tool in a fresh instance: nothing that a call keeps in memory is there in the next one, and calls run in
//! parallel without knowing of each other.
//!
//! # What the model sees
//!
//! The function's name, its doc comment, and a JSON Schema of its parameters. Say what the tool does and when to
//! use it, and what each parameter means where its name does not. A parameter that need not be given is an
//! `Option<T>` (absent and null are both `None`) or has a `#[default(…)]`:
//!
//! ```
//! use agentloop_sdk::{Tool, tool};
//!
//! /// Evaluate a mathematical expression to the given decimal precision.
//! #[tool(read_only, closed_world)]
//! fn calculate(expression: String, #[default(6)] precision: i64) -> String {
//!     format!("{expression} with {precision} digits")
//! }
//!
//! assert_eq!(
//!     calculate::DEFINITION.input_schema,
//!     concat!(
//!         r#"{"type":"object","properties":{"expression":{"type":"string"},"precision":{"type":"integer"}},"#,
//!         r#""required":["expression"]}"#,
//!     ),
//! );
//! ```
//!
//! Parameters may be of any type with a [`Schema`]: numbers, `bool`, `String`, `Option`, `Vec`, arrays, tuples, maps with
//! `String` keys, [`Value`] for any JSON, and structs and enums that are marked with [`args`](macro@args). A single
//! parameter with the name `args` is the whole arguments object:
//!
//! ```
//! use agentloop_sdk::{Tool, tool};
//!
//! /// Something to draw.
//! #[agentloop_sdk::args]
//! #[serde(tag = "kind", rename_all = "snake_case")]
//! enum Shape {
//!     Circle { radius: f64 },
//!     Group { shapes: Vec<Shape> },
//! }
//!
//! #[agentloop_sdk::args]
//! struct Drawing {
//!     /// From the back to the front
//!     shapes: Vec<Shape>,
//!     #[default("white".into())]
//!     background: String,
//! }
//!
//! /// Count the circles of a drawing.
//! #[tool(read_only, closed_world)]
//! fn count_circles(args: Drawing) -> usize {
//!     fn circles(shape: &Shape) -> usize {
//!         match shape {
//!             Shape::Circle { .. } => 1,
//!             Shape::Group { shapes } => shapes.iter().map(circles).sum(),
//!         }
//!     }
//!     args.shapes.iter().map(circles).sum()
//! }
//!
//! let answer = count_circles::call(
//!     r#"{"shapes": [{"kind": "group", "shapes": [{"kind": "circle", "radius": 1}]}]}"#,
//! );
//! assert_eq!(answer, Ok(vec!["1".into()]));
//! ```
//!
//! # What the tool answers
//!
//! Text, [`Json`] (with an output schema, where the type is marked with [`output`](macro@output)), [`Image`], [`Audio`],
//! [`Resource`], or several of them in a tuple or a `Vec`; see [`IntoContent`]. In a [`Result`], `?` makes a [`ToolError`]
//! of any error and any string. The model reads it, so say what to do differently.
//!
//! ```
//! use agentloop_sdk::{Image, Json, Result, output, tool};
//!
//! #[output]
//! struct Size {
//!     width: u32,
//!     height: u32,
//! }
//!
//! /// Show a picture and tell its size.
//! #[tool(read_only, folder("/pictures", read, reason = "to read the picture"))]
//! fn show(name: String) -> Result<(Image, String, Json<Size>)> {
//!     let data = std::fs::read(format!("/pictures/{name}"))?;
//!     Ok((Image::png(data), name, Json(Size { width: 640, height: 480 })))
//! }
//! ```
//!
//! [`log!`](macro@log) writes a line of the operator's log and [`progress`] tells the person who waits how far a long call
//! has come. A panic ends the call; the host reports its text to the model.
//!
//! # What a tool may reach
//!
//! Nothing but what it requests with `http(…)`, `folder(…)`, `env(…)` or `secret(…)` *and* the operator grants. Granted folders and
//! environment variables are used through `std::fs` and `std::env`, origins through [`http`]. What the host refuses is
//! [`ToolError::Denied`] after a `?`.
//!
//! What opens an API is better requested with `secret("NAME", …)` than read from a variable: the operator's settings say
//! which host it is for and which header or parameter holds it, and the host puts it into the tool's requests there. The
//! tool sets nothing, and never sees the value: in what comes back, `[secret NAME]` stands in its place.
//!
//! # Tests
//!
//! A tool is a function: plain `cargo test` calls it natively. `NAME::call` goes through the JSON as the host does, see
//! [`Tool`]; [`http::fake`] answers requests.

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
pub mod http;
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
    (debug, $($text:tt)+) => { $crate::log::debug!($($text)+) };
    (info, $($text:tt)+) => { $crate::log::info!($($text)+) };
    (warn, $($text:tt)+) => { $crate::log::warn!($($text)+) };
    (error, $($text:tt)+) => { $crate::log::error!($($text)+) };
}

/// [`log!`](macro@crate::log) with the level in the macro's name: `log::info!("{count} files")`.
pub mod log {
    #[doc(inline)]
    pub use crate::{
        __log_debug as debug, __log_error as error, __log_info as info, __log_warn as warn,
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_debug {
    ($($text:tt)+) => {
        $crate::__rt::write_log($crate::Level::Debug, ::core::format_args!($($text)+))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_info {
    ($($text:tt)+) => {
        $crate::__rt::write_log($crate::Level::Info, ::core::format_args!($($text)+))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_warn {
    ($($text:tt)+) => {
        $crate::__rt::write_log($crate::Level::Warn, ::core::format_args!($($text)+))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_error {
    ($($text:tt)+) => {
        $crate::__rt::write_log($crate::Level::Error, ::core::format_args!($($text)+))
    };
}

/// What has to be a compile error.
///
/// Two tools of one name:
/// ```compile_fail,E0080
/// use agentloop_sdk::tool;
/// /// One.
/// #[tool(name = "same")]
/// fn one() {}
/// /// Two.
/// #[tool(name = "same")]
/// fn two() {}
/// mod component {
///     const DEFINITIONS: &[&agentloop_sdk::Definition] = &[
///         <super::one as agentloop_sdk::Tool>::DEFINITION,
///         <super::two as agentloop_sdk::Tool>::DEFINITION,
///     ];
///     pub const LEN: usize = agentloop_sdk::__rt::write_section::<0>(DEFINITIONS).len;
/// }
/// assert!(component::LEN > 0);
/// ```
///
/// Arguments that are no object:
/// ```compile_fail,E0080
/// use agentloop_sdk::{Tool, tool};
/// /// One.
/// #[tool]
/// fn one(args: Vec<u8>) {}
/// assert_eq!(one::DEFINITION.name, "one");
/// ```
///
/// A type that can't be flattened:
/// ```compile_fail,E0080
/// use agentloop_sdk::{Tool, tool};
/// #[agentloop_sdk::args]
/// struct Outer {
///     #[serde(flatten)]
///     inner: Option<Inner>,
/// }
/// #[agentloop_sdk::args]
/// struct Inner {
///     a: u8,
/// }
/// /// One.
/// #[tool]
/// fn one(args: Outer) {}
/// assert_eq!(one::DEFINITION.name, "one");
/// ```
///
/// A function that is no tool, and a type without a schema:
/// ```compile_fail,E0573
/// fn one() {}
/// agentloop_sdk::tools![one];
/// ```
///
/// ```compile_fail,E0277
/// struct Unknown;
/// /// One.
/// #[agentloop_sdk::tool]
/// fn one(what: Unknown) {}
/// ```
#[cfg(doctest)]
struct Refused;
