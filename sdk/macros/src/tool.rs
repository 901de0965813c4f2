//! `#[tool]`: a function and, beside it, the type that tells about it and calls it.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Attribute, Error, Expr, FnArg, GenericArgument, Ident, ItemFn, Pat, PatType, PathArguments,
    Result, ReturnType, Safety, Type, ext::IdentExt, parse2, spanned::Spanned,
};

use crate::{
    doc,
    options::Options,
    serde::{self, Field},
};

/// The most parameters of a tool, so that a mistake in generated code ends here.
const MAX_PARAMETERS: usize = 64;

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let mut function: ItemFn = parse2(item)
        .map_err(|error| Error::new(error.span(), "`#[tool]` belongs on a function"))?;
    let options: Options = parse2(options)?;
    check_signature(&function)?;

    let ident = function.sig.ident.clone();
    let name = options.tool_name(&ident)?;
    let description = options.tool_description(&ident, doc::text(&function.attrs))?;
    let title = optional(options.title.as_ref());
    let annotations = options.annotations();
    let parallel_safe = options.parallel_safe();
    let timeout_ms = options.timeout_ms();
    let requests = options.requests();

    let parameters = take_parameters(&mut function)?;
    let Arguments {
        types,
        node,
        argument_type,
        values,
    } = arguments(&parameters);
    let output_schema = output_schema(&function.sig.output);
    let cfgs: Vec<_> = function
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .collect();
    let vis = &function.vis;

    Ok(quote! {
        #function

        #(#cfgs)*
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #vis enum #ident {}

        #(#cfgs)*
        #[allow(non_camel_case_types, clippy::all, clippy::pedantic)]
        const _: () = {
            #types

            const __INPUT: &::agentloop_sdk::__rt::Node = #node;

            impl ::agentloop_sdk::Tool for #ident {
                const DEFINITION: &'static ::agentloop_sdk::Definition = &::agentloop_sdk::Definition {
                    name: #name,
                    title: #title,
                    description: #description,
                    input_schema: ::agentloop_sdk::__text!(write_input, __INPUT),
                    output_schema: #output_schema,
                    annotations: #annotations,
                    parallel_safe: #parallel_safe,
                    timeout_ms: #timeout_ms,
                    requests: #requests,
                };

                fn call(
                    arguments: &str,
                ) -> ::core::result::Result<::std::vec::Vec<::agentloop_sdk::Content>, ::agentloop_sdk::ToolError> {
                    let __arguments: #argument_type = ::agentloop_sdk::__rt::decode(arguments)?;
                    ::agentloop_sdk::IntoContent::into_content(#ident(#values))
                }
            }
        };
    })
}

fn check_signature(function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    if let Some(token) = &signature.asyncness {
        return Err(Error::new(
            token.span(),
            "a tool is not `async`: it runs alone in its component and may wait; the host runs calls in parallel",
        ));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &signature.generics,
            "a tool has no type parameters or lifetimes: the model has to know what to send",
        ));
    }
    if !matches!(signature.safety, Safety::Default)
        || signature.abi.is_some()
        || signature.variadic.is_some()
    {
        return Err(Error::new_spanned(signature, "a tool is a plain function"));
    }
    if signature.inputs.len() > MAX_PARAMETERS {
        return Err(Error::new_spanned(
            &signature.inputs,
            "a tool has at most 64 parameters",
        ));
    }
    Ok(())
}

struct Parameter {
    ident: Ident,
    ty: Type,
    doc: String,
    default: Option<Expr>,
    serde: Field,
    /// Passed on to the struct that is decoded.
    attributes: Vec<Attribute>,
}

/// The parameters; their attributes are taken off, since none is allowed there in the end.
fn take_parameters(function: &mut ItemFn) -> Result<Vec<Parameter>> {
    function
        .sig
        .inputs
        .iter_mut()
        .map(|input| match input {
            FnArg::Receiver(receiver) => Err(Error::new_spanned(
                receiver,
                "a tool is a function that belongs to no type",
            )),
            FnArg::Typed(parameter) => take_parameter(parameter),
        })
        .collect()
}

fn take_parameter(parameter: &mut PatType) -> Result<Parameter> {
    let ident = match &*parameter.pat {
        Pat::Ident(pattern) if pattern.by_ref.is_none() && pattern.subpat.is_none() => {
            pattern.ident.clone()
        }
        pattern => {
            return Err(Error::new_spanned(
                pattern,
                "a tool's parameter is a plain name, which the model sees",
            ));
        }
    };
    match &*parameter.ty {
        Type::Reference(_) => {
            return Err(Error::new_spanned(
                &parameter.ty,
                "a tool owns its arguments: `String` instead of `&str`, `Vec<T>` instead of `&[T]`",
            ));
        }
        Type::ImplTrait(_) => {
            return Err(Error::new_spanned(
                &parameter.ty,
                "a tool's parameter has a definite type, so that the model knows what to send",
            ));
        }
        _ => {}
    }
    let mut default = None;
    let mut attributes = Vec::new();
    let doc = doc::text(&parameter.attrs);
    for attribute in parameter.attrs.drain(..) {
        if attribute.path().is_ident("default") {
            default = Some(attribute.parse_args::<Expr>()?);
        } else if attribute.path().is_ident("serde") {
            attributes.push(attribute);
        } else if !doc::is_doc(&attribute) {
            return Err(Error::new_spanned(
                attribute,
                "on a tool's parameter stand doc comments, `#[default(…)]` and `#[serde(…)]` alone",
            ));
        }
    }
    let serde = serde::field(&attributes)?;
    if serde.skip {
        return Err(Error::new_spanned(
            &ident,
            "a parameter can't be skipped: make it a variable of the function",
        ));
    }
    Ok(Parameter {
        ident,
        ty: (*parameter.ty).clone(),
        doc,
        default,
        serde,
        attributes,
    })
}

struct Arguments {
    types: TokenStream,
    node: TokenStream,
    argument_type: TokenStream,
    values: TokenStream,
}

fn arguments(parameters: &[Parameter]) -> Arguments {
    if let [only] = parameters
        && only.ident == "args"
        && only.default.is_none()
    {
        let ty = &only.ty;
        return Arguments {
            types: TokenStream::new(),
            node: quote!(<#ty as ::agentloop_sdk::Schema>::NODE),
            argument_type: quote!(#ty),
            values: quote!(__arguments),
        };
    }
    let mut defaults = TokenStream::new();
    let mut fields = TokenStream::new();
    let mut nodes = TokenStream::new();
    for (
        position,
        Parameter {
            ident,
            ty,
            doc,
            default,
            serde,
            attributes,
        },
    ) in parameters.iter().enumerate()
    {
        let serde_default = default.as_ref().map(|expression| {
            let function = format_ident!("__default_{position}");
            let path = function.to_string();
            defaults.extend(quote!(fn #function() -> #ty { #expression }));
            quote!(#[serde(default = #path)])
        });
        fields.extend(quote!(#(#attributes)* #serde_default #ident: #ty,));
        let name = serde
            .rename
            .clone()
            .unwrap_or_else(|| ident.unraw().to_string());
        let has_default = default.is_some() || serde.default;
        let flatten = serde.flatten;
        nodes.extend(quote!(::agentloop_sdk::__rt::Field {
            name: #name,
            doc: #doc,
            node: <#ty as ::agentloop_sdk::Schema>::NODE,
            required: !#has_default && !<#ty as ::agentloop_sdk::Schema>::OPTIONAL,
            flatten: #flatten,
        },));
    }
    let idents = parameters.iter().map(|parameter| &parameter.ident);
    Arguments {
        types: quote! {
            #defaults

            #[derive(::agentloop_sdk::__rt::serde::Deserialize)]
            #[serde(crate = "::agentloop_sdk::__rt::serde")]
            struct __Arguments { #fields }
        },
        node: quote!(&::agentloop_sdk::__rt::Node::Object { fields: &[#nodes], closed: false }),
        argument_type: quote!(__Arguments),
        values: quote!(#(__arguments.#idents),*),
    }
}

/// The output schema, where the returned type has one: the first that a piece of the answer brings along.
fn output_schema(output: &ReturnType) -> TokenStream {
    let ReturnType::Type(_, ty) = output else {
        return quote!(::core::option::Option::None);
    };
    let mut pieces = Vec::new();
    pieces_of(ty, &mut pieces);
    let probes = pieces.iter().map(|piece| {
        quote! {
            if let ::core::option::Option::Some(node) = <__Returned<#piece>>::NODE {
                return ::core::option::Option::Some(node);
            }
        }
    });
    // Of two constants with the same name the compiler takes the inherent one where its bound holds, and the
    // trait's where it doesn't.
    quote! {{
        struct __Returned<T>(::core::marker::PhantomData<T>);
        #[allow(dead_code)]
        impl<T: ::agentloop_sdk::__rt::OutputSchema> __Returned<T> {
            const NODE: ::core::option::Option<&'static ::agentloop_sdk::__rt::Node> =
                ::core::option::Option::Some(<T as ::agentloop_sdk::__rt::OutputSchema>::NODE);
        }
        #[allow(dead_code)]
        trait __WithoutSchema {
            const NODE: ::core::option::Option<&'static ::agentloop_sdk::__rt::Node> =
                ::core::option::Option::None;
        }
        impl<T> __WithoutSchema for __Returned<T> {}
        const fn __node() -> ::core::option::Option<&'static ::agentloop_sdk::__rt::Node> {
            #(#probes)*
            ::core::option::Option::None
        }
        const __PRESENT: &::agentloop_sdk::__rt::Node = match __node() {
            ::core::option::Option::Some(node) => node,
            ::core::option::Option::None => &::agentloop_sdk::__rt::Node::Any,
        };
        match __node() {
            ::core::option::Option::Some(_) => ::core::option::Option::Some(
                ::agentloop_sdk::__text!(write_schema, __PRESENT),
            ),
            ::core::option::Option::None => ::core::option::Option::None,
        }
    }}
}

/// The type itself, or the elements of a tuple, also in a `Result`.
fn pieces_of<'a>(ty: &'a Type, pieces: &mut Vec<&'a Type>) {
    match ty {
        Type::Tuple(tuple) => {
            for element in &tuple.elems {
                pieces_of(element, pieces);
            }
        }
        Type::Path(path) => {
            if let Some(last) = path.path.segments.last()
                && last.ident == "Result"
                && let PathArguments::AngleBracketed(arguments) = &last.arguments
                && let Some(GenericArgument::Type(inner @ Type::Tuple(_))) = arguments.args.first()
            {
                pieces_of(inner, pieces);
            } else {
                pieces.push(ty);
            }
        }
        Type::ImplTrait(_) => {}
        _ => pieces.push(ty),
    }
}

fn optional(text: Option<&syn::LitStr>) -> TokenStream {
    match text {
        Some(text) => quote!(::core::option::Option::Some(#text)),
        None => quote!(::core::option::Option::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(options: TokenStream, item: TokenStream, why: &str) {
        match expand(options, item) {
            Ok(_) => panic!("accepted, instead of: {why}"),
            Err(error) => assert!(error.to_string().contains(why), "{error}"),
        }
    }

    #[test]
    fn a_function_that_cannot_be_a_tool_says_why() {
        let documented = |item: TokenStream| quote!(#[doc = " Does."] #item);
        for (item, why) in [
            (
                quote!(
                    fn f() {}
                ),
                "write a doc comment",
            ),
            (
                quote!(
                    #[doc = "  "]
                    fn f() {}
                ),
                "write a doc comment",
            ),
            (
                quote!(
                    struct S;
                ),
                "belongs on a function",
            ),
            (
                documented(quote!(
                    async fn f() {}
                )),
                "not `async`",
            ),
            (
                documented(quote!(
                    fn f<T>(t: T) {}
                )),
                "no type parameters",
            ),
            (
                documented(quote!(
                    fn f<'a>(t: A<'a>) {}
                )),
                "no type parameters",
            ),
            (
                documented(quote!(
                    unsafe fn f() {}
                )),
                "plain function",
            ),
            (
                documented(quote!(
                    extern "C" fn f() {}
                )),
                "plain function",
            ),
            (
                documented(quote!(
                    fn f(&self) {}
                )),
                "belongs to no type",
            ),
            (
                documented(quote!(
                    fn f(city: &str) {}
                )),
                "`String` instead of `&str`",
            ),
            (
                documented(quote!(
                    fn f((a, b): (u8, u8)) {}
                )),
                "plain name",
            ),
            (
                documented(quote!(
                    fn f(a: impl Sized) {}
                )),
                "definite type",
            ),
            (
                documented(quote!(
                    fn f(#[other] a: u8) {}
                )),
                "stand doc comments",
            ),
            (
                documented(quote!(
                    fn f(#[serde(with = "m")] a: u8) {}
                )),
                "serde's `with`",
            ),
            (
                documented(quote!(
                    fn f(#[serde(skip)] a: u8) {}
                )),
                "can't be skipped",
            ),
            (
                documented(quote!(
                    fn grüße() {}
                )),
                "1 to 64 of",
            ),
        ] {
            refused(TokenStream::new(), item, why);
        }
    }

    #[test]
    fn options_that_make_no_sense_say_why() {
        for (options, why) in [
            (quote!(frobnicate), "unknown option; known are `name`"),
            (
                quote!(read_only, destructive),
                "either `read_only` or `destructive`",
            ),
            (quote!(open_world, closed_world), "said already"),
            (quote!(name = "a b"), "1 to 64 of"),
            (quote!(name = ""), "1 to 64 of"),
            (quote!(timeout = "10"), "whole number with a unit"),
            (quote!(timeout = "1.5s"), "whole number with a unit"),
            (quote!(timeout = "0s"), "whole number with a unit"),
            (
                quote!(timeout = "99999999999999999999s"),
                "whole number with a unit",
            ),
            (
                quote!(timeout = "9999999999999999h"),
                "whole number with a unit",
            ),
            (quote!(http("https://a.example")), "why the tool needs this"),
            (
                quote!(http("https://a.example", reason = " ")),
                "why the tool needs this",
            ),
            (
                quote!(http("a.example", reason = "r")),
                "begins with `https://`",
            ),
            (quote!(http("https://a.example/", reason = "r")), "no path"),
            (
                quote!(http("https://u@a.example", reason = "r")),
                "no path, query or user",
            ),
            (
                quote!(http("https://a.*.example", reason = "r")),
                "names a host",
            ),
            (
                quote!(http("https://a.example", methods = ["get"], reason = "r")),
                "in capitals",
            ),
            (
                quote!(http("https://a.example", methods = [GET], reason = "r")),
                "is a text",
            ),
            (
                quote!(http("https://a.example", read, reason = "r")),
                "takes `methods`",
            ),
            (quote!(folder("/notes", reason = "r")), "`read` or `write`"),
            (
                quote!(folder("/notes", read, write, reason = "r")),
                "either `read` or `write`",
            ),
            (quote!(folder("notes", read, reason = "r")), "absolute path"),
            (
                quote!(folder("/a/../b", read, reason = "r")),
                "absolute path",
            ),
            (quote!(folder("/a/", read, reason = "r")), "absolute path"),
            (quote!(folder("/", read, reason = "r")), "absolute path"),
            (quote!(env("A=B", reason = "r")), "exact name"),
            (quote!(env("A*", reason = "r")), "exact name"),
            (quote!(env("A", write, reason = "r")), "`reason` alone"),
            (quote!(env("A", because = "r")), "unknown; known are"),
        ] {
            refused(
                options,
                quote!(
                    #[doc = " Does."]
                    fn f() {}
                ),
                why,
            );
        }
        let long = "x".repeat(8 * 1024 + 1);
        refused(
            quote!(description = #long),
            quote!(
                fn f() {}
            ),
            "the host takes 8192",
        );
    }
}
