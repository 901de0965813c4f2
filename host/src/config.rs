//! Settings, resolved once: flag, then environment, then project file, then user file, then default.
pub mod permissions;
