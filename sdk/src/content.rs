//! What a tool answers.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::{
    ToolError,
    schema::{Node, Schema},
};

/// One piece of a tool's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Text(String),
    Image(Image),
    Audio(Audio),
    Resource(Resource),
    /// Structured output, at most once in an answer.
    Json(Value),
}

/// A picture. PNG, JPEG, GIF and WebP reach the model; other kinds are described to it in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub media_type: String,
    pub data: Vec<u8>,
}

impl Image {
    pub fn new(media_type: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        Self {
            media_type: media_type.into(),
            data: data.into(),
        }
    }

    pub fn png(data: impl Into<Vec<u8>>) -> Self {
        Self::new("image/png", data)
    }

    pub fn jpeg(data: impl Into<Vec<u8>>) -> Self {
        Self::new("image/jpeg", data)
    }
}

/// A sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audio {
    pub media_type: String,
    pub data: Vec<u8>,
}

impl Audio {
    pub fn new(media_type: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        Self {
            media_type: media_type.into(),
            data: data.into(),
        }
    }

    pub fn wav(data: impl Into<Vec<u8>>) -> Self {
        Self::new("audio/wav", data)
    }
}

/// A document that is part of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub uri: String,
    pub media_type: Option<String>,
    pub body: ResourceBody,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceBody {
    Text(String),
    Bytes(Vec<u8>),
}

impl Resource {
    pub fn text(uri: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            media_type: None,
            body: ResourceBody::Text(text.into()),
        }
    }

    pub fn bytes(uri: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            uri: uri.into(),
            media_type: None,
            body: ResourceBody::Bytes(bytes.into()),
        }
    }

    /// Says what kind of document it is, such as `text/csv`.
    pub fn media_type(mut self, media_type: impl Into<String>) -> Self {
        self.media_type = Some(media_type.into());
        self
    }
}

/// Structured output: serialised as JSON. Where the type is marked with [`output`](macro@crate::output), its
/// schema becomes the tool's output schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// What a tool function may return: text, numbers and the like, [`Json`], [`Image`], [`Audio`], [`Resource`], several
/// of them in a tuple or a `Vec`, nothing, and each of these in a `Result`.
#[diagnostic::on_unimplemented(
    message = "a tool can't return `{Self}`",
    note = "return `String`, `Json<T>` with a serialisable `T`, `Image`, `Audio`, `Resource`, a tuple or `Vec` of these, or a `Result` with one of them"
)]
pub trait IntoContent {
    fn into_content(self) -> Result<Vec<Content>, ToolError>;
}

/// The schema of what a tool returns, where it is known.
#[doc(hidden)]
pub trait OutputSchema {
    const NODE: &'static Node;
}

impl<T: Schema> OutputSchema for Json<T> {
    const NODE: &'static Node = T::NODE;
}

impl<T: OutputSchema, E> OutputSchema for Result<T, E> {
    const NODE: &'static Node = T::NODE;
}

macro_rules! texts {
    ($($type:ty)*) => { $(
        impl IntoContent for $type {
            fn into_content(self) -> Result<Vec<Content>, ToolError> {
                Ok(vec![Content::Text(self.into())])
            }
        }
    )* };
}

texts!(String & str Cow<'_, str>);

// Not `u8`: a `Vec<u8>` is data of some kind, never a block for each of its bytes.
macro_rules! displayed {
    ($($type:ty)*) => { $(
        impl IntoContent for $type {
            fn into_content(self) -> Result<Vec<Content>, ToolError> {
                Ok(vec![Content::Text(self.to_string())])
            }
        }
    )* };
}

displayed!(bool char i8 i16 i32 i64 i128 isize u16 u32 u64 u128 usize f32 f64);

impl IntoContent for () {
    fn into_content(self) -> Result<Vec<Content>, ToolError> {
        Ok(Vec::new())
    }
}

impl<T: Serialize> IntoContent for Json<T> {
    fn into_content(self) -> Result<Vec<Content>, ToolError> {
        match serde_json::to_value(&self.0) {
            Ok(value) => Ok(vec![Content::Json(value)]),
            Err(error) => Err(ToolError::new(format!(
                "the answer can't be written as JSON: {error}"
            ))),
        }
    }
}

macro_rules! blocks {
    ($($type:ident)*) => { $(
        impl From<$type> for Content {
            fn from(block: $type) -> Self {
                Self::$type(block)
            }
        }

        impl IntoContent for $type {
            fn into_content(self) -> Result<Vec<Content>, ToolError> {
                Ok(vec![self.into()])
            }
        }
    )* };
}

blocks!(Image Audio Resource);

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl IntoContent for Content {
    fn into_content(self) -> Result<Vec<Content>, ToolError> {
        Ok(vec![self])
    }
}

impl<T: IntoContent> IntoContent for Vec<T> {
    fn into_content(self) -> Result<Vec<Content>, ToolError> {
        let mut blocks = Vec::with_capacity(self.len());
        for block in self {
            blocks.append(&mut block.into_content()?);
        }
        Ok(blocks)
    }
}

impl<T: IntoContent> IntoContent for Option<T> {
    fn into_content(self) -> Result<Vec<Content>, ToolError> {
        match self {
            Some(block) => block.into_content(),
            None => Ok(Vec::new()),
        }
    }
}

impl<T: IntoContent, E: Into<ToolError>> IntoContent for Result<T, E> {
    fn into_content(self) -> Result<Vec<Content>, ToolError> {
        self.map_err(Into::into)?.into_content()
    }
}

macro_rules! tuples {
    ($(($($block:ident)+))*) => { $(
        impl<$($block: IntoContent),+> IntoContent for ($($block,)+) {
            #[expect(non_snake_case, reason = "one name for type and value")]
            fn into_content(self) -> Result<Vec<Content>, ToolError> {
                let ($($block,)+) = self;
                let mut blocks = Vec::new();
                $(blocks.append(&mut $block.into_content()?);)+
                Ok(blocks)
            }
        }
    )* };
}

tuples!((A)(A B)(A B C)(A B C D)(A B C D E)(A B C D E F));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_order() {
        let answer = (
            "one",
            vec![Content::from("two"), Image::png(*b"three").into()],
            Some(Resource::text("note:4", "four").media_type("text/plain")),
            None::<Audio>,
            (),
            Json([5]),
        );
        let blocks = answer.into_content().unwrap();
        assert_eq!(
            blocks,
            [
                Content::Text("one".into()),
                Content::Text("two".into()),
                Content::Image(Image::new("image/png", *b"three")),
                Content::Resource(Resource {
                    uri: "note:4".into(),
                    media_type: Some("text/plain".into()),
                    body: ResourceBody::Text("four".into()),
                }),
                Content::Json(serde_json::json!([5])),
            ]
        );
    }

    #[test]
    fn an_error_in_one_block_is_the_answer() {
        let answer = ("one", Err::<String, _>("no"));
        assert_eq!(answer.into_content(), Err(ToolError::new("no")));
    }

    #[test]
    fn what_json_cannot_hold_is_an_error() {
        let keys = std::collections::BTreeMap::from([([1, 2], 3)]);
        let error = Json(keys).into_content().unwrap_err();
        assert_eq!(
            error.message(),
            "the answer can't be written as JSON: key must be a string"
        );
    }
}
