//! The macros of `agentloop-sdk`. What they write refers to everything through that crate, so that a tool
//! crate needs no other dependency.

use proc_macro::TokenStream;

mod data;
mod doc;
mod options;
mod serde;
mod tool;

/// Makes a tool of a function.
///
/// The function's name is the tool's, its doc comment the description for the model, its parameters are the
/// arguments. Beside the function stands a type of the same name, which implements `agentloop_sdk::Tool`; `tools!`
/// takes both by that one name.
///
/// | option | meaning |
/// | --- | --- |
/// | `name = "…"` | instead of the function's name: 1 to 64 of `A-Z a-z 0-9 _ -` |
/// | `title = "…"` | a short name for people |
/// | `description = "…"` | instead of the doc comment |
/// | `read_only` | changes nothing |
/// | `destructive = false` | adds, but never overwrites or deletes (`destructive` is the default unless `read_only`) |
/// | `idempotent` | twice is the same as once |
/// | `closed_world` | deals with nothing outside this machine (`open_world` is the default) |
/// | `serial` | calls of one turn run one after another |
/// | `timeout = "10s"` | how long a call may take: `ms`, `s`, `m` or `h` |
/// | `http("https://api.example.org", methods = ["GET", "POST"], reason = "…")` | requests a web origin; without methods `GET` and `HEAD`; `*` is whatever the operator grants |
/// | `folder("/notes", write, reason = "…")` | requests a folder to `read` or `write`; `*` is whatever the operator grants |
/// | `env("NAME", reason = "…")` | requests an environment variable |
/// | `secret("NAME", reason = "…")` | requests that the host puts a secret of the operator's into requests; the tool never sees it |
///
/// `http`, `folder`, `env` and `secret` may stand several times. Reasons are for the person who grants.
///
/// A parameter's doc comment describes the argument. `Option<T>` need not be given; with `#[default(expression)]`
/// neither. A single parameter with the name `args` is the whole arguments object: a struct with `#[args]`.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    tool::expand(options.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes a struct or enum decodable as (part of) a tool's arguments.
///
/// Implements serde's `Deserialize` and `agentloop_sdk::Schema`; doc comments become descriptions. Takes
/// `#[default(expression)]` on fields, and serde's attributes as far as a JSON Schema can express them: `rename`,
/// `rename_all`, `rename_all_fields`, `default`, `skip`, `flatten` (structs and maps), `tag`, `content`,
/// `untagged`, `transparent`, `deny_unknown_fields`. With `#[output]` besides, a type serves both ways.
#[proc_macro_attribute]
pub fn args(options: TokenStream, item: TokenStream) -> TokenStream {
    data::expand(data::Role::Args, options.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes a struct or enum usable in `Json<…>` as a tool's structured answer, with an output schema.
///
/// Implements serde's `Serialize` and `agentloop_sdk::Schema`, and takes what `#[args]` takes.
#[proc_macro_attribute]
pub fn output(options: TokenStream, item: TokenStream) -> TokenStream {
    data::expand(data::Role::Output, options.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
