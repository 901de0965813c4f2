//! The serde attributes that have a meaning in a JSON Schema, and the refusal of all others.

use syn::{Attribute, Error, LitStr, Path, Result, Token, meta::ParseNestedMeta};

/// How serde changes the case of names.
#[derive(Clone, Copy)]
pub(crate) enum Case {
    Lower,
    Upper,
    Pascal,
    Camel,
    Snake,
    ScreamingSnake,
    Kebab,
    ScreamingKebab,
}

/// On a struct or an enum.
#[derive(Default)]
pub(crate) struct Container {
    pub(crate) rename_all: Option<Case>,
    pub(crate) rename_all_fields: Option<Case>,
    pub(crate) tag: Option<String>,
    pub(crate) content: Option<String>,
    pub(crate) untagged: bool,
    pub(crate) default: bool,
    pub(crate) deny_unknown_fields: bool,
}

/// On a variant of an enum.
#[derive(Default)]
pub(crate) struct Variant {
    pub(crate) rename: Option<String>,
    pub(crate) rename_all: Option<Case>,
    pub(crate) skip: bool,
}

/// On a field, or on a parameter of a tool.
#[derive(Default)]
pub(crate) struct Field {
    pub(crate) rename: Option<String>,
    pub(crate) default: bool,
    pub(crate) skip: bool,
    pub(crate) flatten: bool,
}

pub(crate) fn container(attributes: &[Attribute]) -> Result<Container> {
    let mut found = Container::default();
    each(attributes, |meta, key| {
        match key {
            "rename_all" => found.rename_all = Some(case(meta)?),
            "rename_all_fields" => found.rename_all_fields = Some(case(meta)?),
            "tag" => found.tag = Some(text(meta)?.value()),
            "content" => found.content = Some(text(meta)?.value()),
            "untagged" => found.untagged = true,
            "default" => {
                found.default = true;
                skip_value(meta)?;
            }
            "deny_unknown_fields" => found.deny_unknown_fields = true,
            // Newtype structs are transparent anyway; the others don't touch what is decoded.
            "transparent" => {}
            "rename" | "bound" | "expecting" => skip_value(meta)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(found)
}

pub(crate) fn variant(attributes: &[Attribute]) -> Result<Variant> {
    let mut found = Variant::default();
    each(attributes, |meta, key| {
        match key {
            "rename" => found.rename = Some(text(meta)?.value()),
            "rename_all" => found.rename_all = Some(case(meta)?),
            "skip" => found.skip = true,
            "bound" => skip_value(meta)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(found)
}

pub(crate) fn field(attributes: &[Attribute]) -> Result<Field> {
    let mut found = Field::default();
    each(attributes, |meta, key| {
        match key {
            "rename" => found.rename = Some(text(meta)?.value()),
            "default" => {
                found.default = true;
                skip_value(meta)?;
            }
            "skip" => found.skip = true,
            // What may be left out when it is written is not required.
            "skip_serializing_if" => {
                found.default = true;
                skip_value(meta)?;
            }
            "flatten" => found.flatten = true,
            "bound" => skip_value(meta)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(found)
}

impl Case {
    /// Of a field's name, which is in snake case.
    pub(crate) fn of_field(self, name: &str) -> String {
        match self {
            Self::Lower | Self::Snake => name.to_owned(),
            Self::Upper | Self::ScreamingSnake => name.to_ascii_uppercase(),
            Self::Pascal => pascal(name),
            Self::Camel => uncapitalised(&pascal(name)),
            Self::Kebab => name.replace('_', "-"),
            Self::ScreamingKebab => name.to_ascii_uppercase().replace('_', "-"),
        }
    }

    /// Of a variant's name, which is in Pascal case.
    pub(crate) fn of_variant(self, name: &str) -> String {
        match self {
            Self::Pascal => name.to_owned(),
            Self::Lower => name.to_ascii_lowercase(),
            Self::Upper => name.to_ascii_uppercase(),
            Self::Camel => uncapitalised(name),
            Self::Snake => snake(name),
            Self::ScreamingSnake => snake(name).to_ascii_uppercase(),
            Self::Kebab => snake(name).replace('_', "-"),
            Self::ScreamingKebab => snake(name).to_ascii_uppercase().replace('_', "-"),
        }
    }
}

fn pascal(snake: &str) -> String {
    let mut name = String::new();
    let mut capital = true;
    for c in snake.chars() {
        if c == '_' {
            capital = true;
        } else if capital {
            name.push(c.to_ascii_uppercase());
            capital = false;
        } else {
            name.push(c);
        }
    }
    name
}

fn snake(pascal: &str) -> String {
    let mut name = String::new();
    for (i, c) in pascal.char_indices() {
        if i > 0 && c.is_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

fn uncapitalised(name: &str) -> String {
    let mut rest = name.chars();
    match rest.next() {
        Some(first) => first.to_ascii_lowercase().to_string() + rest.as_str(),
        None => String::new(),
    }
}

/// Calls `known` with each word in `#[serde(…)]`, and refuses what it doesn't know.
fn each(
    attributes: &[Attribute],
    mut known: impl FnMut(&ParseNestedMeta<'_>, &str) -> Result<bool>,
) -> Result<()> {
    for attribute in attributes {
        if !attribute.path().is_ident("serde") {
            continue;
        }
        attribute.parse_nested_meta(|meta| {
            let key = key(&meta.path);
            if known(&meta, &key)? {
                return Ok(());
            }
            Err(Error::new_spanned(
                &meta.path,
                format!("a JSON Schema can't express serde's `{key}` here"),
            ))
        })?;
    }
    Ok(())
}

fn key(path: &Path) -> String {
    path.get_ident()
        .map(ToString::to_string)
        .unwrap_or_default()
}

fn text(meta: &ParseNestedMeta<'_>) -> Result<LitStr> {
    if !meta.input.peek(Token![=]) {
        return Err(meta.error("one name for both ways: `= \"…\"`"));
    }
    meta.value()?.parse()
}

fn skip_value(meta: &ParseNestedMeta<'_>) -> Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<syn::Expr>()?;
    }
    Ok(())
}

fn case(meta: &ParseNestedMeta<'_>) -> Result<Case> {
    let text = text(meta)?;
    Ok(match text.value().as_str() {
        "lowercase" => Case::Lower,
        "UPPERCASE" => Case::Upper,
        "PascalCase" => Case::Pascal,
        "camelCase" => Case::Camel,
        "snake_case" => Case::Snake,
        "SCREAMING_SNAKE_CASE" => Case::ScreamingSnake,
        "kebab-case" => Case::Kebab,
        "SCREAMING-KEBAB-CASE" => Case::ScreamingKebab,
        _ => return Err(Error::new(text.span(), "serde knows no such case")),
    })
}
