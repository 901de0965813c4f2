//! What the model is shown of a schema, and the check of arguments against it.
