use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::transcript::{Media, Seal, ToolUse};

fn text(text: &str) -> ContentBlock {
    ContentBlock::text(text)
}

fn call(id: &str) -> ContentBlock {
    ToolUse::new(id, "echo", json!({"text": "x"}))
        .unwrap()
        .into()
}

fn result(id: &str, said: &str) -> ContentBlock {
    ContentBlock::ToolResult(ToolResult {
        tool_use_id: ToolUseId::parse(id).unwrap(),
        content: vec![ResultContent::Text { text: said.into() }],
        is_error: false,
    })
}

fn unknown(id: &str) -> ContentBlock {
    ContentBlock::ToolResult(ToolResult {
        tool_use_id: ToolUseId::parse(id).unwrap(),
        content: vec![ResultContent::Text {
            text: outcome_unknown("echo"),
        }],
        is_error: true,
    })
}

fn user(content: Vec<ContentBlock>) -> Message {
    Message {
        role: Role::User,
        content,
    }
}

fn assistant(content: Vec<ContentBlock>) -> Message {
    Message {
        role: Role::Assistant,
        content,
    }
}

fn renamed(id: &str, before: &str) -> ContentBlock {
    let mut call = ToolUse::new(id, "echo", json!({"text": "x"})).unwrap();
    call.provider_id = Some(before.into());
    call.into()
}

/// Repairs, and holds the sentences against these.
#[track_caller]
fn repaired(messages: Vec<Message>, sentences: &[&str]) -> Vec<Message> {
    let (messages, repairs) = repair(messages);
    let told: Vec<String> = repairs.iter().map(ToString::to_string).collect();
    assert_eq!(told, sentences);
    assert_eq!(fault(&messages), None);
    messages
}

/// What a strict endpoint would say; written apart from the repair on purpose.
fn fault(messages: &[Message]) -> Option<String> {
    let mut ids = HashSet::new();
    let mut expected: Vec<&str> = Vec::new();
    for (m, message) in messages.iter().enumerate() {
        let wanted = if m % 2 == 0 {
            Role::User
        } else {
            Role::Assistant
        };
        if message.role != wanted {
            return Some(format!("message {m} has the wrong role"));
        }
        if message.content.is_empty() {
            return Some(format!("message {m} is empty"));
        }
        for (b, block) in message.content.iter().enumerate() {
            let here = format!("block {b} of message {m}");
            if b < expected.len() && !matches!(block, ContentBlock::ToolResult(_)) {
                return Some(format!("{here} stands before a result"));
            }
            match block {
                ContentBlock::Text { text, .. } if text.trim().is_empty() => {
                    return Some(format!("{here} is blank"));
                }
                ContentBlock::ToolUse(call) if message.role == Role::Assistant => {
                    if !ids.insert(call.id.as_str()) {
                        return Some(format!("{here} uses the id {} again", call.id));
                    }
                }
                ContentBlock::ToolResult(result) if message.role == Role::User => {
                    if expected.get(b) != Some(&result.tool_use_id.as_str()) {
                        return Some(format!("{here} answers nothing"));
                    }
                    for part in &result.content {
                        if matches!(part, ResultContent::Text { text } if text.trim().is_empty()) {
                            return Some(format!("{here} is blank"));
                        }
                    }
                }
                ContentBlock::ToolUse(_) | ContentBlock::ToolResult(_) => {
                    return Some(format!("{here} is the other role's"));
                }
                ContentBlock::Reasoning { .. } if message.role == Role::User => {
                    return Some(format!("{here} is the other role's"));
                }
                ContentBlock::Text { .. }
                | ContentBlock::Image(_)
                | ContentBlock::Reasoning { .. }
                | ContentBlock::Foreign(_) => {}
            }
        }
        if message.content.len() < expected.len() {
            return Some(format!("message {m} lacks results"));
        }
        expected = message.tool_uses().map(|call| call.id.as_str()).collect();
    }
    (!expected.is_empty()).then(|| "calls at the end have no result".to_owned())
}

#[test]
fn a_valid_history_stays_as_it_is() {
    let messages = vec![
        user(vec![text("hi")]),
        assistant(vec![text("well"), call("a"), call("b")]),
        user(vec![result("a", "1"), result("b", "2"), text("and")]),
        assistant(vec![text("done")]),
    ];
    assert_eq!(repaired(messages.clone(), &[]), messages);
    assert_eq!(repaired(vec![], &[]), []);
}

#[test]
fn a_call_without_result_counts_as_interrupted() {
    let told = "the call `a` of `echo` had no result: it counts as interrupted, outcome unknown";
    assert_eq!(
        repaired(
            vec![user(vec![text("hi")]), assistant(vec![call("a")])],
            &[told]
        ),
        [
            user(vec![text("hi")]),
            assistant(vec![call("a")]),
            user(vec![unknown("a")])
        ]
    );
    assert_eq!(
        repaired(
            vec![
                user(vec![text("hi")]),
                assistant(vec![call("a"), call("b")]),
                user(vec![result("b", "2"), text("go on")]),
            ],
            &[
                told,
                "the result of the call `b` was moved right after its call"
            ]
        ),
        [
            user(vec![text("hi")]),
            assistant(vec![call("a"), call("b")]),
            user(vec![unknown("a"), result("b", "2"), text("go on")]),
        ]
    );
}

#[test]
fn a_result_without_call_is_dropped() {
    assert_eq!(
        repaired(
            vec![
                user(vec![result("gone", "0"), text("hi")]),
                assistant(vec![call("a")]),
                user(vec![result("a", "1"), result("a", "again")]),
            ],
            &[
                "a result for `gone` was dropped, since no call waits for it",
                "a result for `a` was dropped, since no call waits for it",
            ]
        ),
        [
            user(vec![text("hi")]),
            assistant(vec![call("a")]),
            user(vec![result("a", "1")]),
        ]
    );
}

#[test]
fn results_go_to_the_message_after_their_call_and_first_in_it() {
    let moved = |id| format!("the result of the call `{id}` was moved right after its call");
    assert_eq!(
        repaired(
            vec![
                user(vec![text("hi")]),
                assistant(vec![call("a"), call("b")]),
                user(vec![text("wait"), result("b", "2")]),
                assistant(vec![text("I wait")]),
                user(vec![result("a", "1")]),
            ],
            &[&moved("a"), "1 empty message was dropped"],
        ),
        [
            user(vec![text("hi")]),
            assistant(vec![call("a"), call("b")]),
            user(vec![result("a", "1"), result("b", "2"), text("wait")]),
            assistant(vec![text("I wait")]),
        ]
    );
}

#[test]
fn results_split_over_messages_are_joined() {
    assert_eq!(
        repaired(
            vec![
                user(vec![text("hi")]),
                assistant(vec![call("a")]),
                assistant(vec![call("b")]),
                user(vec![result("a", "1")]),
                user(vec![result("b", "2")]),
            ],
            &[
                "the result of the call `b` was moved right after its call",
                "1 empty message was dropped",
                "1 message was merged with the one before, which had the same role",
            ]
        ),
        [
            user(vec![text("hi")]),
            assistant(vec![call("a"), call("b")]),
            user(vec![result("a", "1"), result("b", "2")]),
        ]
    );
}

#[test]
fn repeated_ids_are_told_apart_by_position() {
    let replaced = |after| {
        format!(
            "a call's id `a` was replaced by `{after}`, since ids have to be unique and well-formed"
        )
    };
    assert_eq!(
        repaired(
            vec![
                user(vec![text("hi")]),
                assistant(vec![call("a"), call("a")]),
                user(vec![result("a", "1"), result("a", "2")]),
                assistant(vec![call("a")]),
                user(vec![result("a", "3")]),
            ],
            &[&replaced("call_1_0"), &replaced("call_3_0")]
        ),
        [
            user(vec![text("hi")]),
            assistant(vec![call("a"), renamed("call_1_0", "a")]),
            user(vec![result("a", "1"), result("call_1_0", "2")]),
            assistant(vec![renamed("call_3_0", "a")]),
            user(vec![result("call_3_0", "3")]),
        ]
    );
}

#[test]
fn a_later_result_never_answers_an_interrupted_call_of_the_same_id() {
    let (messages, _) = repair(vec![
        user(vec![text("hi")]),
        assistant(vec![call("a")]),
        user(vec![text("stopped")]),
        assistant(vec![call("a")]),
        user(vec![result("a", "2")]),
    ]);
    assert_eq!(messages[2], user(vec![unknown("a"), text("stopped")]));
    assert_eq!(messages[4], user(vec![result("call_3_0", "2")]));
}

#[test]
fn nothing_empty_is_left_and_the_user_begins() {
    assert_eq!(
        repaired(
            vec![
                user(vec![]),
                assistant(vec![text(" \n"), text("hello")]),
                assistant(vec![text("")]),
                user(vec![text("x")]),
                user(vec![text("y"), call("a")]),
            ],
            &[
                "2 blank text blocks were dropped",
                "1 block was dropped that only an assistant can say",
                "a first user message was added, since the history began with the assistant",
                "2 empty messages were dropped",
                "1 message was merged with the one before, which had the same role",
            ]
        ),
        [
            Message::user(BEGINNING),
            assistant(vec![text("hello")]),
            user(vec![text("x"), text("y")]),
        ]
    );
}

#[test]
fn a_stored_history_with_ids_that_are_none_is_read() {
    let stored = json!([
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "", "name": "echo", "input": {}},
            {"type": "tool_use", "id": "", "name": "echo", "input": {}},
            {"type": "tool_use", "id": "fn:1", "name": "echo", "input": {}},
            {"type": "tool_use", "name": "echo", "input": {}},
            {"type": "tool_use", "id": "call_1_0", "name": "echo", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "", "content": [], "is_error": false},
            {"type": "tool_result", "tool_use_id": "", "content": [], "is_error": true},
            {"type": "tool_result", "tool_use_id": "fn:1", "content": [], "is_error": false},
            {"type": "tool_result", "content": [], "is_error": false},
            {"type": "tool_result", "tool_use_id": "call_1_0", "content": [], "is_error": false},
        ]},
    ]);
    let (messages, repairs) = from_value(stored).unwrap();
    assert_eq!(fault(&messages), None);
    let old: Vec<Option<&str>> = messages[1]
        .tool_uses()
        .map(|call| call.provider_id.as_deref())
        .collect();
    assert_eq!(old, [Some(""), Some(""), Some("fn:1"), Some(""), None]);
    assert!(matches!(&messages[2].content[1], ContentBlock::ToolResult(r) if r.is_error));
    assert!(
        repairs
            .iter()
            .all(|repair| matches!(repair, Repair::IdReplaced { .. })),
        "{repairs:?}"
    );
    assert!(from_value(json!({})).is_err());
}

fn blocks() -> impl Strategy<Value = ContentBlock> {
    let id = prop::sample::select(vec!["a", "b", "c", "call_1_0"]);
    let seal = || Seal {
        provider: "p".into(),
        model: "m".into(),
        raw: "{}".into(),
    };
    let reasoning = ContentBlock::Reasoning {
        text: String::new(),
        seal: seal(),
    };
    let image = ContentBlock::Image(Media {
        media_type: "image/png".into(),
        base64: String::new(),
    });
    prop_oneof![
        2 => prop::sample::select(vec!["", " ", "x"]).prop_map(text),
        4 => id.clone().prop_map(call),
        4 => (id, prop::sample::select(vec!["", "r", "s"])).prop_map(|(id, said)| result(id, said)),
        1 => Just(reasoning),
        1 => Just(ContentBlock::Foreign(seal())),
        1 => Just(image),
    ]
}

fn histories() -> impl Strategy<Value = Vec<Message>> {
    let role = prop_oneof![Just(Role::User), Just(Role::Assistant)];
    let message = (role, prop::collection::vec(blocks(), 0..5))
        .prop_map(|(role, content)| Message { role, content });
    prop::collection::vec(message, 0..8)
}

fn n_calls(messages: &[Message]) -> usize {
    messages
        .iter()
        .filter(|message| message.role == Role::Assistant)
        .map(|message| message.tool_uses().count())
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn any_history_becomes_valid_and_then_stays(messages in histories()) {
        let was_valid = fault(&messages).is_none();
        let (once, repairs) = repair(messages.clone());
        prop_assert_eq!(fault(&once), None);
        prop_assert!(!was_valid || once == messages);
        prop_assert_eq!(repairs.is_empty(), once == messages, "{:?}", repairs);
        prop_assert_eq!(n_calls(&once), n_calls(&messages));
        let (twice, repairs) = repair(once.clone());
        prop_assert_eq!(twice, once);
        prop_assert_eq!(repairs, vec![]);
    }

    #[test]
    fn whatever_is_left_out_of_a_valid_history_it_becomes_valid_again(
        n in 1usize..5, parallel in 1usize..4, cut in any::<prop::sample::Index>(),
    ) {
        let mut messages = vec![user(vec![text("hi")])];
        for turn in 0..n {
            let ids: Vec<String> = (0..parallel).map(|p| format!("t{turn}p{p}")).collect();
            messages.push(assistant(ids.iter().map(|id| call(id)).collect()));
            messages.push(user(ids.iter().map(|id| result(id, "r")).collect()));
        }
        prop_assert_eq!(fault(&messages), None);
        messages.remove(cut.index(messages.len()));
        prop_assert_eq!(fault(&repair(messages).0), None);
    }
}
