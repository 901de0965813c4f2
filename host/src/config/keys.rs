//! Every key of a settings file, once. Documentation, template, variables and the check for unknown keys are
//! made from this list.

use std::{path::PathBuf, time::Duration};

use super::{
    AnthropicAuth, CacheDir, MaxTokensField, ProviderName,
    grants::{self, WrittenFolder},
    key::{self, Default_, Entry, Form, Key, Weight},
    node::Node,
    permissions::{Mode, Rule, ToolPattern},
    secrets,
};
use crate::{
    capability::{HttpGrant, OriginPattern},
    ids::SecretName,
};

macro_rules! keys {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident: $type:ty = $path:literal, $form:ident, $default:expr, $weight:expr, $read:expr;
    )*) => {
        $(
            pub(super) const $name: Key<$type> = Key {
                entry: Entry {
                    path: $path,
                    form: Form::$form,
                    default: $default,
                    doc: concat!($($doc),*),
                },
                weight: $weight,
                read: $read,
            };
        )*
        /// In the order in which people read them.
        pub(super) const ALL: &[Entry] = &[$($name.entry),*];
    };
}

const fn is(default: &'static str) -> Default_ {
    Default_::Is(default)
}

const fn found(example: &'static str) -> Default_ {
    Default_::Found { example }
}

keys! {
    /// The model endpoint: `anthropic`, `openai` (any server that speaks chat completions) or `scripted`.
    PROVIDER: ProviderName = "provider", Word, is("\"anthropic\""), Weight::Free,
        |n, p, cx| key::word(n, p, &ProviderName::WORDS, cx);
    /// The model to ask; for the provider `anthropic` it is `claude-opus-4-8` unless set.
    MODEL: Option<String> = "model", Word, found("\"claude-opus-4-8\""), Weight::Free, key::text_or_unset;
    /// Where the provider is reached, instead of at its own address.
    BASE_URL: Option<String> = "base_url", Word, found("\"http://127.0.0.1:8080/v1\""), Weight::Trusted,
        key::base_url;
    /// The system prompt.
    SYSTEM: Option<String> = "system", Word, found("\"Answer briefly.\""), Weight::Free, key::text_or_unset;
    /// Folders with tool components; unless set, `plugins` beside this file and the user's own plugins folder.
    PLUGIN_DIRS: Option<Vec<PathBuf>> = "plugin_dirs", List, found("[\"plugins\"]"), Weight::Trusted,
        key::paths_or_unset;
    /// The tools that a run sees, as `plugin.tool` with the patterns `*` and `?`.
    TOOLS: Vec<ToolPattern> = "tools", List, is("[\"*\"]"),
        Weight::Stricter(no_wider_tools),
        |n, p, cx| key::list(n, p, "a list of `plugin.tool` patterns", cx, tool_pattern);
    /// The file that a scripted model speaks from.
    SCRIPT: Option<PathBuf> = "script", Word, found("\"script.json\""), Weight::Free, key::path_or_unset;

    /// The header `anthropic-version`.
    ANTHROPIC_VERSION: String = "anthropic.version", Word, is("\"2023-06-01\""), Weight::Free, key::text;
    /// How the key is sent: `x-api-key` or `bearer`.
    ANTHROPIC_AUTH: AnthropicAuth = "anthropic.auth", Word, is("\"x-api-key\""), Weight::Free,
        |n, p, cx| key::word(n, p, &AnthropicAuth::WORDS, cx);

    /// Offer the tools as one JSON schema, for local models without usable tool calls.
    OPENAI_TOOLS_AS_SCHEMA: bool = "openai.tools_as_schema", Bare, is("false"), Weight::Free, key::flag;
    /// What the bound on a reply is called: `max_tokens`, `max_completion_tokens`, or `auto` by the endpoint.
    OPENAI_MAX_TOKENS_FIELD: MaxTokensField = "openai.max_tokens_field", Word, is("\"auto\""), Weight::Free,
        |n, p, cx| key::word(n, p, &MaxTokensField::WORDS, cx);

    /// Model requests of a run.
    MAX_ITERATIONS: u32 = "limits.max_iterations", Bare, is("10"), Weight::Stricter(key::no_wider), key::count;
    /// Output tokens of one reply.
    MAX_TOKENS: u32 = "limits.max_tokens", Bare, is("4096"), Weight::Stricter(key::no_wider), key::count;
    /// How far `max_tokens` is doubled when a reply was cut.
    MAX_TOKENS_CEILING: u32 = "limits.max_tokens_ceiling", Bare, is("64000"), Weight::Stricter(key::no_wider),
        key::count;
    /// Calls of one turn that run at once.
    MAX_PARALLEL_TOOLS: usize = "limits.max_parallel_tools", Bare, is("8"), Weight::Stricter(key::no_wider),
        key::count;
    /// `false` runs the calls of a turn one after another.
    PARALLEL: bool = "limits.parallel", Bare, is("true"), Weight::Free, key::flag;
    /// `false` begins no call before the reply that asks for it has ended; else one that can change nothing is.
    EAGER: bool = "limits.eager", Bare, is("true"), Weight::Free, key::flag;
    /// Tool calls of a run, or `none`.
    MAX_TOOL_CALLS: Option<u32> = "limits.max_tool_calls", Bare, is("\"none\""),
        Weight::Stricter(key::no_wider_or_none), key::count_or_none;
    /// Tokens of a run, input and output together, or `none`.
    MAX_TOTAL_TOKENS: Option<u64> = "limits.max_total_tokens", Bare, is("\"none\""),
        Weight::Stricter(key::no_wider_or_none), key::count_or_none;
    /// Time that a run may take, or `none`.
    WALL_TIME: Option<Duration> = "limits.wall_time", Word, is("\"none\""),
        Weight::Stricter(key::no_wider_or_none), key::duration_or_none;
    /// The same call in so many turns in a row is answered with a warning.
    REPEATED_WARN: u32 = "limits.repeated_calls.warn", Bare, is("3"), Weight::Stricter(key::no_wider), key::count;
    /// The same call in so many turns in a row is refused.
    REPEATED_REFUSE: u32 = "limits.repeated_calls.refuse", Bare, is("5"), Weight::Stricter(key::no_wider),
        key::count;
    /// The same call in so many turns in a row ends the run.
    REPEATED_STOP: u32 = "limits.repeated_calls.stop", Bare, is("8"), Weight::Stricter(key::no_wider), key::count;

    /// Time that a call may take, from the start of the guest; `none` waits for ever.
    SANDBOX_TIMEOUT: Option<Duration> = "sandbox.timeout", Word, is("\"30s\""),
        Weight::Stricter(key::no_wider_or_none), key::duration_or_none;
    /// Memory of a call.
    SANDBOX_MEMORY: usize = "sandbox.memory", Word, is("\"64MiB\""), Weight::Stricter(key::no_wider), key::memory;
    /// What the answer of a call may hold.
    SANDBOX_OUTPUT: usize = "sandbox.output", Word, is("\"16MiB\""), Weight::Stricter(key::no_wider), key::output;
    /// Instructions of a call, roughly, or `none`: not counted.
    SANDBOX_FUEL: Option<u64> = "sandbox.fuel", Bare, is("\"none\""), Weight::Stricter(key::no_wider_or_none),
        key::count_or_none;
    /// `false` for machines that forbid large address-space reservations; calls then cost more.
    SANDBOX_POOL: bool = "sandbox.pool", Bare, is("true"), Weight::Free, key::flag;
    /// Calls that may be alive at once; more wait in line.
    SANDBOX_MAX_LIVE_CALLS: usize = "sandbox.max_live_calls", Bare, is("64"), Weight::Stricter(key::no_wider),
        key::count;
    /// Compile each component in a process of its own, bounded in memory and time; `false` where no process can be started.
    SANDBOX_COMPILE_APART: bool = "sandbox.compile_apart", Bare, is("true"), Weight::Trusted, key::flag;
    /// PEM files with further certificate authorities, for tools and for the model connection.
    SANDBOX_EXTRA_CA_FILES: Vec<PathBuf> = "sandbox.extra_ca_files", List, is("[]"), Weight::Trusted, key::files;
    /// Where compiled code is kept, private to the user; `none` keeps none.
    SANDBOX_CACHE_DIR: CacheDir = "sandbox.cache_dir", Word, found("\"none\""), Weight::Trusted, key::cache_dir;

    /// What happens to a call that no rule speaks of: `ask` allows what only reads and asks for the rest, `auto` allows, `deny` refuses what would ask.
    PERMISSIONS_MODE: Mode = "permissions.mode", Word, is("\"ask\""),
        Weight::Stricter(|new, without| new.is_at_least_as_strict_as(*without)),
        |n, p, cx| key::word(n, p, &[("ask", Mode::Ask), ("auto", Mode::Auto), ("deny", Mode::Deny), ("plan", Mode::Plan)], cx);
    /// Calls that never run. The rules of all files count together; deny comes before ask before allow.
    PERMISSIONS_DENY: Vec<Rule> = "permissions.deny", List, is("[]"), Weight::Free, rules;
    /// Calls that a person is asked about.
    PERMISSIONS_ASK: Vec<Rule> = "permissions.ask", List, is("[]"), Weight::Free, rules;
    /// Calls that run without a question, such as `calc.*` or `files.write(path:/notes/**)`.
    PERMISSIONS_ALLOW: Vec<Rule> = "permissions.allow", List, is("[]"), Weight::Trusted, rules;

    /// Folders of this machine: `{ path = "notes", as = "/notes", access = "write" }`, or `"notes"` to read it as `/notes`.
    GRANT_FOLDERS: Vec<WrittenFolder> = "grants.<plugin>.folders", FileOnly, is("[]"), Weight::Trusted,
        grants::folders;
    /// Web origins: `{ origin = "https://api.example.org", methods = ["GET", "POST"] }`, or the origin alone for GET and HEAD.
    GRANT_HTTP: Vec<HttpGrant> = "grants.<plugin>.http", FileOnly, is("[]"), Weight::Trusted,
        |n, p, cx| key::list(n, p, "a list of web origins", cx, grants::http);
    /// Names of environment variables.
    GRANT_ENV: Vec<String> = "grants.<plugin>.env", FileOnly, is("[]"), Weight::Trusted,
        |n, p, cx| key::list(n, p, "a list of names", cx, grants::environment);
    /// Names of secrets (`[secrets.NAME]`) that are put into its requests.
    GRANT_SECRETS: Vec<SecretName> = "grants.<plugin>.secrets", FileOnly, is("[]"), Weight::Trusted,
        |n, p, cx| key::list(n, p, "a list of names", cx, secrets::name);
    /// Time that a call of this plugin may take; `sandbox.timeout` unless set.
    GRANT_TIMEOUT: Option<Duration> = "grants.<plugin>.timeout", FileOnly, found("\"5s\""),
        Weight::Stricter(key::no_wider_or_none), key::duration_or_none;
    /// Memory of a call of this plugin; `sandbox.memory` unless set.
    GRANT_MEMORY: usize = "grants.<plugin>.memory", FileOnly, found("\"32MiB\""), Weight::Stricter(key::no_wider),
        key::memory;
    /// What the answer of a call of this plugin may hold; `sandbox.output` unless set.
    GRANT_OUTPUT: usize = "grants.<plugin>.output", FileOnly, found("\"1MiB\""), Weight::Stricter(key::no_wider),
        key::output;
    /// Instructions of a call of this plugin, roughly; `sandbox.fuel` unless set.
    GRANT_FUEL: Option<u64> = "grants.<plugin>.fuel", FileOnly, found("1000000000"),
        Weight::Stricter(key::no_wider_or_none), key::count_or_none;

    /// The environment variable that holds the value.
    SECRET_ENV: Option<String> = "secrets.<plugin>.env", FileOnly, found("\"TICKETS_TOKEN\""), Weight::Trusted,
        |n, p, cx| grants::environment(n, p, cx).map(Some);
    /// Where the value goes: `api.example.org` or `*.example.org`, over https; or an origin of this machine, such as `http://127.0.0.1:8080`.
    SECRET_HOSTS: Vec<OriginPattern> = "secrets.<plugin>.hosts", FileOnly, is("[]"), Weight::Trusted,
        |n, p, cx| key::list(n, p, "a list of hosts", cx, secrets::host);
    /// The header that holds it.
    SECRET_HEADER: Option<String> = "secrets.<plugin>.header", FileOnly, found("\"authorization\""),
        Weight::Trusted, secrets::header;
    /// What the header or parameter says, with `{secret}` where the value stands.
    SECRET_VALUE: String = "secrets.<plugin>.value", FileOnly, found("\"Bearer {secret}\""), Weight::Trusted,
        secrets::template;
    /// Instead of `env`: a file that holds the value.
    SECRET_FILE: Option<PathBuf> = "secrets.<plugin>.file", FileOnly, found("\"weather.key\""), Weight::Trusted,
        key::path_or_unset;
    /// Instead of `header`: the parameter of the query that holds it.
    SECRET_QUERY: Option<String> = "secrets.<plugin>.query", FileOnly, found("\"key\""), Weight::Trusted,
        secrets::query;
    /// Instead of `env`: a program, with its arguments, that prints the value.
    SECRET_COMMAND: Vec<String> = "secrets.<plugin>.command", FileOnly, is("[]"), Weight::Trusted,
        |n, p, cx| key::list(n, p, "a list of a program and its arguments", cx, key::text);

    /// The program that is the server, with its arguments; it runs outside the sandbox.
    MCP_COMMAND: Vec<String> = "mcp.<plugin>.command", FileOnly, is("[]"), Weight::Trusted,
        |n, p, cx| key::list(n, p, "a list of a program and its arguments", cx, key::text);
    /// The server's tools that are used; `"*"` for all that it has or will have.
    MCP_TOOLS: Vec<String> = "mcp.<plugin>.tools", FileOnly, is("[]"), Weight::Trusted,
        |n, p, cx| key::list(n, p, "a list of tools' names", cx, key::text);
    /// Names of environment variables that the server sees.
    MCP_ENV: Vec<String> = "mcp.<plugin>.env", FileOnly, is("[]"), Weight::Trusted,
        |n, p, cx| key::list(n, p, "a list of names", cx, grants::environment);
    /// Time that a call of this server may take; then the server is killed. 30s unless set.
    MCP_TIMEOUT: Option<Duration> = "mcp.<plugin>.timeout", FileOnly, found("\"30s\""),
        Weight::Trusted, key::duration_or_none;
    /// Where the server is, instead of a command.
    MCP_URL: Option<String> = "mcp.<plugin>.url", FileOnly, found("\"http://127.0.0.1:9331/mcp\""),
        Weight::Trusted, key::base_url;
}

/// Stands in a path for the name of a plugin.
pub(super) const ANY_PLUGIN: &str = "<plugin>";

/// Whether a pattern is inside others is not decided; everything is inside `*`.
fn no_wider_tools(new: &Vec<ToolPattern>, without: &Vec<ToolPattern>) -> bool {
    new == without || without.iter().any(ToolPattern::matches_all)
}

fn rules(node: &Node, path: &str, cx: &mut super::layers::Context) -> Option<Vec<Rule>> {
    key::list(node, path, "a list of rules", cx, |node, path, cx| {
        let text = key::text(node, path, cx)?;
        match Rule::parse(&text) {
            Ok(rule) => Some(rule),
            Err(error) => {
                cx.faults.push(node.fault(format!("`{path}`: {error}")));
                None
            }
        }
    })
}

fn tool_pattern(node: &Node, path: &str, cx: &mut super::layers::Context) -> Option<ToolPattern> {
    let text = key::text(node, path, cx)?;
    match ToolPattern::parse(&text) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            cx.faults.push(node.fault(format!("`{path}`: {error}")));
            None
        }
    }
}
