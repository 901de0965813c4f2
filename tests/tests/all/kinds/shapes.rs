//! The shapes of functions that are usual in components made for other hosts.

use agentloop_host::tool::{Content, ToolOutcome};
use agentloop_tests::guests::{self, Guest};
use serde_json::{Value, json};

#[tokio::test]
async fn usual_shapes_are_tools() {
    let guest = Guest::load(&guests::sandbox(), guests::NOTES).await;
    assert!(guest.component.set_aside().is_empty());
    let tools = guest.component.definitions();
    let definition = |name: &str| {
        tools
            .iter()
            .find(|tool| tool.name.as_str() == name)
            .unwrap()
    };
    assert_eq!(
        definition("search-files").input_schema["required"],
        json!(["root", "literal"]),
        "what is optional may be left out"
    );
    assert_eq!(
        definition("add-notes").input_schema["properties"]["notes"]["items"]["required"],
        json!(["title", "lines"])
    );
    let output = definition("read-notes").output_schema.as_ref().unwrap();
    assert_eq!(output["required"], json!(["notes", "links"]));

    let call = async |tool: &str, input: Value| match guest.call(tool, input).await.outcome {
        ToolOutcome::Answered(content) => match content.as_slice() {
            [] => Ok(Value::Null),
            [Content::Json(value)] => Ok(value.clone()),
            [Content::Text(text)] => Ok(serde_json::from_str(text).unwrap_or(json!(text))),
            other => panic!("{other:?}"),
        },
        ToolOutcome::Failed { message } => Err(message),
        other => panic!("{tool}: {other:?}"),
    };
    let note = json!({ "title": "t", "lines": ["1", "2"] });
    let hit = |path: &str, line: u32| json!({ "hits": [{ "path": path, "line-number": line }], "truncated": true });
    for (tool, input, expected) in [
        ("add-notes", json!({ "notes": [note] }), json!([note])),
        ("remove-notes", json!({ "titles": [] }), Value::Null),
        (
            "read-notes",
            json!({}),
            json!({
                "notes": [{ "title": "a", "lines": ["1"] }],
                "links": [{ "from-note": "a", "to-note": "a" }],
            }),
        ),
        (
            "look-up",
            json!({ "note-title": "n", "tokens": 5 }),
            json!({ "success": false, "found": [], "error": "n None Some(5)" }),
        ),
        ("now", json!({}), json!("now")),
        ("path-exists", json!({ "path": "/" }), json!(true)),
        ("list-folder", json!({ "path": "/" }), json!(["/", "b"])),
        (
            "search-files",
            json!({ "root": "r", "literal": true }),
            hit("r None", 200),
        ),
        (
            "search-files",
            json!({ "root": "r", "literal": true, "glob": "*", "max-results": null }),
            hit("r Some(\"*\")", 200),
        ),
    ] {
        assert_eq!(call(tool, input).await, Ok(expected), "{tool}");
    }
    let gone = call("remove-notes", json!({ "titles": ["x"] })).await;
    assert_eq!(gone, Err("no note is called x".to_owned()));
    let none = call("add-notes", json!({ "notes": [] })).await;
    assert_eq!(none, Err("no notes".to_owned()));
}
