//! Guests in sandboxes: what they can do, what they can't, and that they end.

use agentloop_tests::guests::{self, Guest};
use serde_json::json;

#[tokio::test]
async fn a_call_is_answered() {
    let helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    assert_eq!(
        helpful.text("echo", json!({ "text": "hello" })).await,
        "hello"
    );
}
