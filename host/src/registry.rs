//! From tools to an immutable, ordered set of them: what one run sees.
pub mod schema;
