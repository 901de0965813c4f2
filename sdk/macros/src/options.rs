//! What stands in the brackets of `#[tool(…)]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{
    Error, Expr, ExprArray, ExprLit, Ident, Lit, LitBool, LitStr, Result, Token,
    ext::IdentExt,
    parenthesized,
    parse::{Parse, ParseStream},
};

/// Limits of the contract (`wit/types.wit`).
const MAX_NAME: usize = 64;
const MAX_DESCRIPTION: usize = 8 << 10;

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) name: Option<LitStr>,
    pub(crate) title: Option<LitStr>,
    pub(crate) description: Option<LitStr>,
    read_only: Option<bool>,
    destructive: Option<bool>,
    idempotent: Option<bool>,
    open_world: Option<bool>,
    serial: bool,
    timeout_ms: Option<u64>,
    requests: Vec<Request>,
}

struct Request {
    capability: Capability,
    reason: String,
}

enum Capability {
    Folder {
        path: String,
        write: bool,
    },
    Http {
        origin: String,
        methods: Vec<String>,
    },
    Environment(String),
    Secret(String),
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            options.option(input)?;
            if input.is_empty() {
                break;
            }
            input.parse::<Token![,]>()?;
        }
        if options.read_only == Some(true) && options.destructive == Some(true) {
            return Err(Error::new(
                Span::call_site(),
                "a tool is either `read_only` or `destructive`",
            ));
        }
        Ok(options)
    }
}

impl Options {
    fn option(&mut self, input: ParseStream<'_>) -> Result<()> {
        let key = input.call(Ident::parse_any)?;
        match key.to_string().as_str() {
            "name" => once(&mut self.name, &key, text(input)?),
            "title" => once(&mut self.title, &key, text(input)?),
            "description" => once(&mut self.description, &key, text(input)?),
            "read_only" => once(&mut self.read_only, &key, flag(input)?),
            "destructive" => once(&mut self.destructive, &key, flag(input)?),
            "idempotent" => once(&mut self.idempotent, &key, flag(input)?),
            "open_world" => once(&mut self.open_world, &key, flag(input)?),
            "closed_world" => once(&mut self.open_world, &key, !flag(input)?),
            "serial" => {
                self.serial = flag(input)?;
                Ok(())
            }
            "timeout" => once(&mut self.timeout_ms, &key, milliseconds(&text(input)?)?),
            "http" => self.request(&key, input, http),
            "folder" => self.request(&key, input, folder),
            "env" => self.request(&key, input, environment),
            "secret" => self.request(&key, input, secret),
            _ => Err(Error::new(
                key.span(),
                "unknown option; known are `name`, `title`, `description`, `read_only`, `destructive`, `idempotent`, `open_world`, `closed_world`, `serial`, `timeout`, `http`, `folder`, `env` and `secret`",
            )),
        }
    }

    fn request(
        &mut self,
        key: &Ident,
        input: ParseStream<'_>,
        read: fn(&LitStr, &mut Arguments) -> Result<Capability>,
    ) -> Result<()> {
        let inner;
        parenthesized!(inner in input);
        let subject: LitStr = inner.parse()?;
        let mut arguments = Arguments::parse(&inner)?;
        let capability = read(&subject, &mut arguments)?;
        let reason = match arguments.reason.take() {
            Some(reason) if !reason.value().trim().is_empty() => reason.value(),
            _ => {
                return Err(Error::new(
                    key.span(),
                    format!(
                        "say to the person who grants it why the tool needs this: `{key}({}, …, reason = \"to …\")`",
                        subject.token()
                    ),
                ));
            }
        };
        self.requests.push(Request { capability, reason });
        Ok(())
    }

    /// The tool's name: the option, or else the function's.
    pub(crate) fn tool_name(&self, function: &Ident) -> Result<String> {
        let (name, span) = match &self.name {
            Some(name) => (name.value(), name.span()),
            None => (function.unraw().to_string(), function.span()),
        };
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
            return Err(Error::new(
                span,
                "a tool's name is 1 to 64 of `A-Z a-z 0-9 _ -`; `name = \"…\"` gives another one than the function's",
            ));
        }
        Ok(name)
    }

    /// The tool's description: the option, or else the doc comment.
    pub(crate) fn tool_description(&self, function: &Ident, doc: String) -> Result<String> {
        let text = match &self.description {
            Some(text) => text.value(),
            None => doc,
        };
        if text.trim().is_empty() {
            return Err(Error::new(
                function.span(),
                "the model has to know what the tool does and when to use it: write a doc comment (`/// …`) or `description = \"…\"`",
            ));
        }
        if text.len() > MAX_DESCRIPTION {
            return Err(Error::new(
                function.span(),
                format!(
                    "the description has {} bytes; the host takes {MAX_DESCRIPTION}",
                    text.len()
                ),
            ));
        }
        Ok(text)
    }

    pub(crate) fn annotations(&self) -> TokenStream {
        // Where nothing is said, MCP's defaults hold.
        let read_only = self.read_only.unwrap_or(false);
        let destructive = self.destructive.unwrap_or(!read_only);
        let idempotent = self.idempotent.unwrap_or(false);
        let open_world = self.open_world.unwrap_or(true);
        quote!(::agentloop_sdk::__rt::Annotations {
            read_only: #read_only,
            destructive: #destructive,
            idempotent: #idempotent,
            open_world: #open_world,
        })
    }

    pub(crate) fn parallel_safe(&self) -> bool {
        !self.serial
    }

    pub(crate) fn timeout_ms(&self) -> TokenStream {
        match self.timeout_ms {
            Some(timeout) => quote!(::core::option::Option::Some(#timeout)),
            None => quote!(::core::option::Option::None),
        }
    }

    pub(crate) fn requests(&self) -> TokenStream {
        let requests = &self.requests;
        quote!(&[#(#requests),*])
    }
}

impl ToTokens for Request {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let capability = match &self.capability {
            Capability::Folder { path, write } => quote!(Folder { path: #path, write: #write }),
            Capability::Http { origin, methods } => {
                quote!(Http { origin: #origin, methods: &[#(#methods),*] })
            }
            Capability::Environment(name) => quote!(Environment(#name)),
            Capability::Secret(name) => quote!(Secret(#name)),
        };
        let reason = &self.reason;
        tokens.extend(quote!(::agentloop_sdk::__rt::Request {
            capability: ::agentloop_sdk::__rt::Capability::#capability,
            reason: #reason,
        }));
    }
}

/// What follows the first text of `http`, `folder`, `env` or `secret`.
#[derive(Default)]
struct Arguments {
    reason: Option<LitStr>,
    methods: Option<ExprArray>,
    access: Option<Ident>,
}

impl Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut arguments = Self::default();
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let key: Ident = input.parse()?;
            match key.to_string().as_str() {
                "reason" => once(&mut arguments.reason, &key, text(input)?)?,
                "methods" => {
                    input.parse::<Token![=]>()?;
                    once(&mut arguments.methods, &key, input.parse()?)?;
                }
                "read" | "write" => {
                    let span = key.span();
                    if arguments.access.replace(key).is_some() {
                        return Err(Error::new(span, "either `read` or `write`"));
                    }
                }
                _ => {
                    return Err(Error::new(
                        key.span(),
                        "unknown; known are `reason`, `methods` (of `http`), `read` and `write` (of `folder`)",
                    ));
                }
            }
        }
        Ok(arguments)
    }
}

fn http(origin: &LitStr, arguments: &mut Arguments) -> Result<Capability> {
    check_origin(origin)?;
    let mut methods = Vec::new();
    for method in arguments.methods.take().iter().flat_map(|list| &list.elems) {
        let Expr::Lit(ExprLit {
            lit: Lit::Str(method),
            ..
        }) = method
        else {
            return Err(Error::new_spanned(
                method,
                "a method is a text such as \"POST\"",
            ));
        };
        let name = method.value();
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
            return Err(Error::new(
                method.span(),
                "a method is written in capitals, such as \"POST\"",
            ));
        }
        methods.push(name);
    }
    if let Some(access) = &arguments.access {
        return Err(Error::new(access.span(), "`http` takes `methods` instead"));
    }
    Ok(Capability::Http {
        origin: origin.value(),
        methods,
    })
}

fn check_origin(origin: &LitStr) -> Result<()> {
    let text = origin.value();
    let error = |why: &str| {
        Err(Error::new(
            origin.span(),
            format!(
                "{why}; write \"https://api.example.org\", \"https://*.example.org\", \"http://localhost:8080\" or \"*\""
            ),
        ))
    };
    if text == "*" {
        return Ok(());
    }
    let Some(host) = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
    else {
        return error("an origin begins with `https://` or `http://`");
    };
    let host = host.strip_prefix("*.").unwrap_or(host);
    if host.contains(['/', '?', '#', '@']) {
        return error("an origin has no path, query or user");
    }
    if host.is_empty() || host.contains('*') || host.contains(char::is_whitespace) {
        return error("an origin names a host, `*.` in front of it stands for its sub-domains");
    }
    Ok(())
}

fn folder(path: &LitStr, arguments: &mut Arguments) -> Result<Capability> {
    let text = path.value();
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let absolute = text
        .strip_prefix('/')
        .is_some_and(|rest| rest.split('/').all(plain));
    if text != "*" && !absolute {
        return Err(Error::new(
            path.span(),
            "a folder is an absolute path as the tool sees it, such as \"/notes\", or \"*\" for whatever is granted",
        ));
    }
    if arguments.methods.is_some() {
        return Err(Error::new(
            path.span(),
            "`folder` takes `read` or `write` instead of methods",
        ));
    }
    match arguments.access.take() {
        Some(access) => Ok(Capability::Folder {
            path: text,
            write: access == "write",
        }),
        None => Err(Error::new(
            path.span(),
            "say how far the folder is wanted: `read` or `write` (which includes reading)",
        )),
    }
}

fn environment(name: &LitStr, arguments: &mut Arguments) -> Result<Capability> {
    let text = name.value();
    if text.is_empty() || text.contains(['=', '\0', '*']) {
        return Err(Error::new(
            name.span(),
            "an environment variable is requested by its exact name",
        ));
    }
    if arguments.methods.is_some() || arguments.access.is_some() {
        return Err(Error::new(name.span(), "`env` takes a `reason` alone"));
    }
    Ok(Capability::Environment(text))
}

fn secret(name: &LitStr, arguments: &mut Arguments) -> Result<Capability> {
    let text = name.value();
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(allowed) {
        return Err(Error::new(
            name.span(),
            "a secret is requested by the name that it has in the operator's settings: 1 to 64 of `A-Z a-z 0-9 _ -`",
        ));
    }
    if arguments.methods.is_some() || arguments.access.is_some() {
        return Err(Error::new(name.span(), "`secret` takes a `reason` alone"));
    }
    Ok(Capability::Secret(text))
}

fn text(input: ParseStream<'_>) -> Result<LitStr> {
    input.parse::<Token![=]>()?;
    input.parse()
}

/// `flag`, or `flag = true` or `flag = false`.
fn flag(input: ParseStream<'_>) -> Result<bool> {
    if input.peek(Token![=]) {
        input.parse::<Token![=]>()?;
        return Ok(input.parse::<LitBool>()?.value);
    }
    Ok(true)
}

fn once<T>(slot: &mut Option<T>, key: &Ident, value: T) -> Result<()> {
    if slot.replace(value).is_some() {
        return Err(Error::new(key.span(), "this is said already"));
    }
    Ok(())
}

fn milliseconds(text: &LitStr) -> Result<u64> {
    let value = text.value();
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &value[digits.len()..] {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let timeout = digits
        .parse::<u64>()
        .ok()
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit))
        .filter(|&timeout| timeout > 0);
    timeout.ok_or_else(|| {
        Error::new(
            text.span(),
            "a timeout is a whole number with a unit: \"500ms\", \"10s\", \"2m\" or \"1h\"",
        )
    })
}
