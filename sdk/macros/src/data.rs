//! `#[args]` and `#[output]`: serde's derives and the JSON Schema of a type.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Attribute, Data, DataEnum, DeriveInput, Error, Expr, Field, Fields, Generics, Ident, Path,
    Result, Type, ext::IdentExt, parse_quote, parse2,
};

use crate::{
    doc,
    serde::{self, Case, Container},
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Args,
    Output,
}

impl Role {
    fn attribute(self) -> &'static str {
        match self {
            Self::Args => "args",
            Self::Output => "output",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Args => Self::Output,
            Self::Output => Self::Args,
        }
    }
}

pub(crate) fn expand(role: Role, options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !options.is_empty() {
        return Err(Error::new_spanned(
            options,
            format!("`#[{}]` takes no options", role.attribute()),
        ));
    }
    let mut input: DeriveInput = parse2(item)?;
    let other = take_attribute(&mut input.attrs, role.other());
    let both = other.is_some();
    // Else its import would seem unused.
    let other = other.map(|path| {
        quote!(const _: () = {
            #[allow(unused_imports)]
            use #path as _;
        };)
    });
    let derive_deserialize = (both || role == Role::Args)
        .then(|| quote!(#[derive(::agentloop_sdk::__rt::serde::Deserialize)]));
    let derive_serialize = (both || role == Role::Output)
        .then(|| quote!(#[derive(::agentloop_sdk::__rt::serde::Serialize)]));
    let defaults = take_defaults(&mut input)?;
    let schema = schema(&input)?;
    Ok(quote! {
        #derive_deserialize
        #derive_serialize
        #[serde(crate = "::agentloop_sdk::__rt::serde")]
        #input
        #other
        #defaults
        #schema
    })
}

/// Takes the attribute of the other role off, if it is there.
fn take_attribute(attributes: &mut Vec<Attribute>, role: Role) -> Option<Path> {
    let position = attributes.iter().position(|attribute| {
        let last = attribute.path().segments.last();
        last.is_some_and(|segment| segment.ident == role.attribute())
    })?;
    Some(attributes.remove(position).path().clone())
}

/// Turns each `#[default(expression)]` into a function that serde calls.
fn take_defaults(input: &mut DeriveInput) -> Result<TokenStream> {
    let ident = input.ident.clone();
    let mut functions = TokenStream::new();
    let mut take = |prefix: &str, fields: &mut Fields, generics: &Generics| -> Result<()> {
        for (position, field) in fields.iter_mut().enumerate() {
            let Some(expression) = take_default(field)? else {
                continue;
            };
            if !generics.params.is_empty() {
                return Err(Error::new_spanned(
                    expression,
                    "a type with parameters has no `#[default(…)]`: use `#[serde(default)]`",
                ));
            }
            let function = format_ident!("__default_{prefix}{position}");
            let path = format!("{ident}::{function}");
            let ty = &field.ty;
            functions.extend(quote!(fn #function() -> #ty { #expression }));
            field.attrs.push(parse_quote!(#[serde(default = #path)]));
        }
        Ok(())
    };
    match &mut input.data {
        Data::Struct(data) => take("", &mut data.fields, &input.generics)?,
        Data::Enum(data) => {
            for variant in &mut data.variants {
                let prefix = format!("{}_", variant.ident.unraw());
                take(&prefix, &mut variant.fields, &input.generics)?;
            }
        }
        Data::Union(_) => {}
    }
    if functions.is_empty() {
        return Ok(functions);
    }
    Ok(quote! {
        #[allow(non_snake_case, dead_code, clippy::all, clippy::pedantic)]
        impl #ident { #functions }
    })
}

fn take_default(field: &mut Field) -> Result<Option<Expr>> {
    let Some(position) = field
        .attrs
        .iter()
        .position(|attribute| attribute.path().is_ident("default"))
    else {
        return Ok(None);
    };
    field.attrs.remove(position).parse_args::<Expr>().map(Some)
}

fn schema(input: &DeriveInput) -> Result<TokenStream> {
    let container = serde::container(&input.attrs)?;
    let transparent = transparent(input)?;
    let node = match &input.data {
        Data::Struct(data) => match &transparent {
            Some(inner) => same(inner),
            None => match &data.fields {
                Fields::Named(_) => object(
                    TokenStream::new(),
                    fields(&data.fields, container.rename_all, container.default)?,
                    container.deny_unknown_fields,
                ),
                fields => unnamed(fields)?,
            },
        },
        Data::Enum(data) => enumeration(data, &container)?,
        Data::Union(_) => {
            return Err(Error::new_spanned(&input.ident, "a union has no schema"));
        }
    };
    let optional = match &transparent {
        Some(inner) => quote!(<#inner as ::agentloop_sdk::Schema>::OPTIONAL),
        None => quote!(false),
    };
    let ident = &input.ident;
    if !input.generics.params.is_empty() {
        return Ok(generic(input, &node, &optional));
    }
    let doc = doc::text(&input.attrs);
    // The name stands in a URI reference.
    let name = match ident.unraw().to_string() {
        name if name.is_ascii() => name,
        _ => "Type".to_owned(),
    };
    Ok(quote! {
        const _: () = {
            static TYPE: ::agentloop_sdk::__rt::Type = ::agentloop_sdk::__rt::Type {
                name: #name,
                id: ::core::concat!(::core::module_path!(), "::", #name, ":", ::core::line!(), ":", ::core::column!()),
                doc: #doc,
                node: #node,
            };

            impl ::agentloop_sdk::Schema for #ident {
                const NODE: &'static ::agentloop_sdk::__rt::Node = &::agentloop_sdk::__rt::Node::Named(
                    ::agentloop_sdk::__rt::Named::new(&raw const TYPE),
                );
                const OPTIONAL: bool = #optional;
            }
        };
    })
}

/// A type with parameters has no static of its own to point to, so it stands in full wherever it is used and
/// can't contain itself.
fn generic(input: &DeriveInput, node: &TokenStream, optional: &TokenStream) -> TokenStream {
    let ident = &input.ident;
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::agentloop_sdk::Schema));
    }
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    quote! {
        impl #impl_generics ::agentloop_sdk::Schema for #ident #type_generics #where_clause {
            const NODE: &'static ::agentloop_sdk::__rt::Node = &#node;
            const OPTIONAL: bool = #optional;
        }
    }
}

/// The one field of a struct with `#[serde(transparent)]`.
fn transparent(input: &DeriveInput) -> Result<Option<Type>> {
    let mut marked = false;
    for attribute in &input.attrs {
        if attribute.path().is_ident("serde") {
            attribute.parse_nested_meta(|meta| {
                marked = marked || meta.path.is_ident("transparent");
                if meta.input.peek(syn::Token![=]) {
                    meta.value()?.parse::<Expr>()?;
                }
                Ok(())
            })?;
        }
    }
    let Data::Struct(data) = &input.data else {
        return Ok(None);
    };
    if !marked {
        return Ok(None);
    }
    for field in &data.fields {
        if !serde::field(&field.attrs)?.skip {
            return Ok(Some(field.ty.clone()));
        }
    }
    Ok(None)
}

fn same(ty: &Type) -> TokenStream {
    quote!(::agentloop_sdk::__rt::Node::Same(<#ty as ::agentloop_sdk::Schema>::NODE))
}

fn object(tag: TokenStream, fields: TokenStream, closed: bool) -> TokenStream {
    quote!(::agentloop_sdk::__rt::Node::Object { fields: &[#tag #fields], closed: #closed })
}

/// Of a struct or variant without field names.
fn unnamed(fields: &Fields) -> Result<TokenStream> {
    for field in fields {
        let attributes = serde::field(&field.attrs)?;
        if attributes.skip || attributes.default || attributes.flatten {
            return Err(Error::new_spanned(
                field,
                "fields without names can't be skipped, left out or flattened in a JSON Schema",
            ));
        }
    }
    let types: Vec<_> = fields.iter().map(|field| &field.ty).collect();
    Ok(match (fields, types.as_slice()) {
        (Fields::Unit, _) => quote!(::agentloop_sdk::__rt::Node::Null),
        (_, [only]) => same(only),
        (_, types) => quote!(::agentloop_sdk::__rt::Node::Tuple(
            &[#(<#types as ::agentloop_sdk::Schema>::NODE),*]
        )),
    })
}

fn fields(fields: &Fields, case: Option<Case>, all_default: bool) -> Result<TokenStream> {
    let mut nodes = TokenStream::new();
    for field in fields {
        let attributes = serde::field(&field.attrs)?;
        if attributes.skip {
            continue;
        }
        let Some(ident) = &field.ident else {
            continue;
        };
        let name = attributes
            .rename
            .unwrap_or_else(|| rename(case, Case::of_field, ident));
        let ty = &field.ty;
        let doc = doc::text(&field.attrs);
        let has_default = attributes.default || all_default;
        let flatten = attributes.flatten;
        nodes.extend(quote!(::agentloop_sdk::__rt::Field {
            name: #name,
            doc: #doc,
            node: <#ty as ::agentloop_sdk::Schema>::NODE,
            required: !#has_default && !<#ty as ::agentloop_sdk::Schema>::OPTIONAL,
            flatten: #flatten,
        },));
    }
    Ok(nodes)
}

fn rename(case: Option<Case>, apply: fn(Case, &str) -> String, ident: &Ident) -> String {
    let name = ident.unraw().to_string();
    match case {
        Some(case) => apply(case, &name),
        None => name,
    }
}

/// A field that is always there.
fn field(name: &str, node: &TokenStream) -> TokenStream {
    quote!(::agentloop_sdk::__rt::Field {
        name: #name,
        doc: "",
        node: &#node,
        required: true,
        flatten: false,
    },)
}

fn enumeration(data: &DataEnum, container: &Container) -> Result<TokenStream> {
    let mut names = TokenStream::new();
    let mut others = TokenStream::new();
    for variant in &data.variants {
        let attributes = serde::variant(&variant.attrs)?;
        if attributes.skip {
            continue;
        }
        let name = attributes
            .rename
            .unwrap_or_else(|| rename(container.rename_all, Case::of_variant, &variant.ident));
        let doc = doc::text(&variant.attrs);
        let case = attributes.rename_all.or(container.rename_all_fields);
        let closed = container.deny_unknown_fields;
        let body = match &variant.fields {
            named @ Fields::Named(_) => {
                object(TokenStream::new(), fields(named, case, false)?, closed)
            }
            other => unnamed(other)?,
        };
        let unit = matches!(variant.fields, Fields::Unit);
        let constant = quote!(::agentloop_sdk::__rt::Node::Const(#name));
        let node = match (&container.tag, &container.content) {
            _ if container.untagged => body,
            (None, _) if unit => {
                names.extend(quote!(::agentloop_sdk::__rt::Variant {
                    name: #name,
                    doc: #doc,
                    node: &::agentloop_sdk::__rt::Node::Null,
                },));
                continue;
            }
            (None, _) => object(TokenStream::new(), field(&name, &body), true),
            (Some(tag), Some(content)) => {
                let content = if unit {
                    TokenStream::new()
                } else {
                    field(content, &body)
                };
                object(field(tag, &constant), content, closed)
            }
            (Some(tag), None) => {
                let rest = match &variant.fields {
                    Fields::Unit => TokenStream::new(),
                    named @ Fields::Named(_) => fields(named, case, false)?,
                    // serde itself refuses more than one field here.
                    Fields::Unnamed(_) => quote!(::agentloop_sdk::__rt::Field {
                        name: "",
                        doc: "",
                        node: &#body,
                        required: true,
                        flatten: true,
                    },),
                };
                object(field(tag, &constant), rest, closed)
            }
        };
        others.extend(quote!(::agentloop_sdk::__rt::Variant {
            name: #name,
            doc: #doc,
            node: &#node,
        },));
    }
    if others.is_empty() && names.is_empty() {
        return Err(Error::new(
            proc_macro2::Span::call_site(),
            "an enum without variants can't be sent",
        ));
    }
    let names = quote!(::agentloop_sdk::__rt::Node::Enum(&[#names]));
    if others.is_empty() {
        return Ok(names);
    }
    let has_names = !container.untagged
        && container.tag.is_none()
        && data
            .variants
            .iter()
            .any(|variant| matches!(variant.fields, Fields::Unit));
    let names = has_names
        .then(|| quote!(::agentloop_sdk::__rt::Variant { name: "", doc: "", node: &#names },));
    Ok(quote!(::agentloop_sdk::__rt::Node::AnyOf(&[#names #others])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_a_schema_cannot_express_says_why() {
        for (item, why) in [
            (quote!(union U { a: u8 }), "a union has no schema"),
            (
                quote!(
                    enum E {}
                ),
                "without variants",
            ),
            (
                quote!(
                    #[serde(from = "A")]
                    struct S {
                        a: u8,
                    }
                ),
                "serde's `from`",
            ),
            (
                quote!(
                    #[serde(rename_all = "Title Case")]
                    struct S {
                        a: u8,
                    }
                ),
                "no such case",
            ),
            (
                quote!(
                    #[serde(rename_all(serialize = "lowercase"))]
                    struct S {
                        a: u8,
                    }
                ),
                "one name for both",
            ),
            (
                quote!(
                    struct S {
                        #[serde(alias = "b")]
                        a: u8,
                    }
                ),
                "serde's `alias`",
            ),
            (
                quote!(
                    struct S {
                        #[serde(deserialize_with = "f")]
                        a: u8,
                    }
                ),
                "serde's `deserialize_with`",
            ),
            (
                quote!(
                    struct S {
                        #[serde(rename(serialize = "b"))]
                        a: u8,
                    }
                ),
                "one name for both",
            ),
            (
                quote!(
                    struct S(u8, #[serde(default)] u8);
                ),
                "fields without names",
            ),
            (
                quote!(
                    struct S<T> {
                        #[default(1)]
                        a: T,
                    }
                ),
                "use `#[serde(default)]`",
            ),
            (
                quote!(
                    enum E {
                        A,
                        #[serde(other)]
                        B,
                    }
                ),
                "serde's `other`",
            ),
        ] {
            match expand(Role::Args, TokenStream::new(), item) {
                Ok(_) => panic!("accepted, instead of: {why}"),
                Err(error) => assert!(error.to_string().contains(why), "{error}"),
            }
        }
        let error = expand(
            Role::Output,
            quote!(x),
            quote!(
                struct S;
            ),
        )
        .unwrap_err();
        assert_eq!(error.to_string(), "`#[output]` takes no options");
    }
}
