use serde_json::json;

use super::*;

fn schema(value: Value) -> ArgumentSchema {
    ArgumentSchema::compile(&value).unwrap()
}

fn fault(value: Value) -> SchemaFault {
    ArgumentSchema::compile(&value).unwrap_err()
}

fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn runs(schema: &ArgumentSchema, input: Value, given: Value) {
    assert_eq!(schema.check(map(input)), Ok(map(given)));
}

#[track_caller]
fn refused(schema: &ArgumentSchema, input: Value, faults: &[&str]) {
    assert_eq!(schema.check(map(input)).unwrap_err(), faults);
}

/// Refused with one fault at this path.
#[track_caller]
fn refused_at(schema: &ArgumentSchema, input: Value, path: &str) {
    let faults = schema.check(map(input)).unwrap_err();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with(&format!("{path}: ")), "{faults:?}");
}

fn limit() -> ArgumentSchema {
    schema(json!({
        "type": "object",
        "properties": {"limit": {"type": "integer"}, "q": {"type": "string"}},
    }))
}

mod coercion {
    use super::*;

    #[test]
    fn a_string_that_is_exactly_the_number_is_converted() {
        let limit = limit();
        runs(
            &limit,
            json!({"limit": "5", "q": "7"}),
            json!({"limit": 5, "q": "7"}),
        );
        runs(&limit, json!({"limit": "-12"}), json!({"limit": -12}));
        runs(
            &limit,
            json!({"limit": "9223372036854775807"}),
            json!({"limit": i64::MAX}),
        );
    }

    #[test]
    fn whatever_is_lossy_or_doubtful_is_refused() {
        let limit = limit();
        for text in [
            "5.5",
            "5.0",
            "0x10",
            "1e3",
            " 5",
            "5 ",
            "five",
            "",
            "+5",
            "05",
            "-0",
            "--5",
            "٣",
            "1_000",
            "9223372036854775808",
        ] {
            refused(
                &limit,
                json!({"limit": text}),
                &[&format!("limit: an integer, got {}", json!(text))],
            );
        }
        refused(
            &limit,
            json!({"limit": 5.5}),
            &["limit: an integer, got 5.5"],
        );
        refused(&limit, json!({"q": 7}), &["q: a string, got 7"]);
        refused(
            &limit,
            json!({"limit": [5]}),
            &["limit: an integer, got [5]"],
        );
        refused(
            &limit,
            json!({"limit": true}),
            &["limit: an integer, got true"],
        );
    }

    #[test]
    fn whole_numbers_are_within_what_a_tool_can_hold() {
        let limit = limit();
        let range = "limit: an integer from -9223372036854775808 to 9223372036854775807, got ";
        for number in [
            "9223372036854775808",
            "1e30",
            "-1e30",
            "18446744073709551616",
        ] {
            let number: Value = serde_json::from_str(number).unwrap();
            refused(
                &limit,
                json!({"limit": number}),
                &[&format!("{range}{number}")],
            );
        }
        runs(
            &limit,
            json!({"limit": i64::MAX}),
            json!({"limit": i64::MAX}),
        );
        for unsigned in [
            json!({"type": "integer", "minimum": 0}),
            json!({"type": "integer", "format": "uint64"}),
        ] {
            let unsigned = schema(json!({"type": "object", "properties": {"n": unsigned}}));
            runs(&unsigned, json!({"n": u64::MAX}), json!({"n": u64::MAX}));
            runs(
                &unsigned,
                json!({"n": "18446744073709551615"}),
                json!({"n": u64::MAX}),
            );
            refused(
                &unsigned,
                json!({"n": 1e30}),
                &["n: an integer of at most 18446744073709551615, got 1e+30"],
            );
        }
        let number = schema(json!({"type": "object", "properties": {"n": {"type": "number"}}}));
        runs(&number, json!({"n": 1e30}), json!({"n": 1e30}));
        runs(&number, json!({"n": 5.0}), json!({"n": 5.0}));
    }

    #[test]
    fn a_whole_float_reaches_the_tool_as_an_integer() {
        let out = limit().check(map(json!({"limit": 5.0}))).unwrap();
        assert_eq!(serde_json::to_string(&out).unwrap(), r#"{"limit":5}"#);
    }

    #[test]
    fn numbers_and_booleans() {
        let schema = schema(json!({
            "type": "object",
            "properties": {"x": {"type": "number"}, "on": {"type": "boolean"}, "any": {}},
        }));
        runs(
            &schema,
            json!({"x": "0.25", "any": "5"}),
            json!({"x": 0.25, "any": "5"}),
        );
        runs(&schema, json!({"x": "-12.50"}), json!({"x": -12.5}));
        runs(&schema, json!({"x": "3"}), json!({"x": 3}));
        runs(&schema, json!({"on": "true"}), json!({"on": true}));
        runs(&schema, json!({"on": "false"}), json!({"on": false}));
        for text in [
            "1e3",
            "NaN",
            "inf",
            ".5",
            "5.",
            "0.1000000000000000055511151231257827",
        ] {
            refused_at(&schema, json!({"x": text}), "x");
        }
        for text in ["True", "yes", "1", ""] {
            refused_at(&schema, json!({"on": text}), "on");
        }
        refused_at(&schema, json!({"on": 1}), "on");
    }

    #[test]
    fn where_the_string_is_welcome_it_stays() {
        let schema = schema(json!({
            "type": "object",
            "properties": {
                "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "listed": {"type": ["integer", "string"]},
                "n": {"type": "integer"},
            },
        }));
        runs(
            &schema,
            json!({"either": "5", "listed": "6", "n": "7"}),
            json!({"either": "5", "listed": "6", "n": 7}),
        );
    }

    #[test]
    fn through_references_lists_alternatives_and_maps() {
        let schema = schema(json!({
            "type": "object",
            "properties": {
                "opts": {"anyOf": [{"$ref": "#/$defs/opts~1v1"}, {"type": "null"}]},
                "items": {"type": "array", "items": {"type": "integer"}},
                "pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "string"}]},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
                "tree": {"$ref": "#/$defs/tree"},
                "level": {"enum": [1, 2, 3]},
            },
            "$defs": {
                "opts/v1": {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}},
                "tree": {
                    "type": "object",
                    "properties": {
                        "v": {"type": "integer"},
                        "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                    },
                    "required": ["v"],
                },
            },
        }));
        runs(
            &schema,
            json!({
                "opts": {"n": "3"}, "items": ["1", 2], "pair": ["true", "true"], "map": {"a": "1"},
                "tree": {"v": "1", "next": {"v": "2", "next": null}}, "level": "2",
            }),
            json!({
                "opts": {"n": 3}, "items": [1, 2], "pair": [true, "true"], "map": {"a": 1},
                "tree": {"v": 1, "next": {"v": 2, "next": null}}, "level": 2,
            }),
        );
        refused(
            &schema,
            json!({"items": [1, 2, "x"]}),
            &["items[2]: an integer, got \"x\""],
        );
        refused(
            &schema,
            json!({"tree": {"v": 1, "next": {"v": "x"}}}),
            &["tree.next.v: an integer, got \"x\""],
        );
        refused(
            &schema,
            json!({"level": "7"}),
            &["level: one of 1, 2, 3, got 7"],
        );
    }

    #[test]
    fn a_json_text_becomes_the_object_that_it_is() {
        let schema = schema(json!({
            "type": "object",
            "properties": {
                "opts": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false},
                "list": {"type": "array", "items": {"type": "integer"}},
                "n": {"type": "integer"},
                "text": {"type": "string"},
            },
        }));
        runs(
            &schema,
            json!({"opts": "{\"n\": 3}", "list": "[1, 2]", "text": "{\"n\": 3}"}),
            json!({"opts": {"n": 3}, "list": [1, 2], "text": "{\"n\": 3}"}),
        );
        // Only as it stands, and never the other way round.
        refused(
            &schema,
            json!({"opts": "{\"n\": \"3\"}", "n": "4"}),
            &[r#"opts: an object, got "{\"n\": \"3\"}""#],
        );
        refused(
            &schema,
            json!({"opts": "[]"}),
            &["opts: an object, got \"[]\""],
        );
        refused(
            &schema,
            json!({"opts": "{"}),
            &["opts: an object, got \"{\""],
        );
        refused(
            &schema,
            json!({"text": {"n": 3}}),
            &["text: a string, got {\"n\":3}"],
        );
        // The good text is converted although the other one is not.
        refused(
            &schema,
            json!({"opts": "{\"m\":1}", "list": "[1]"}),
            &[r#"opts: an object, got "{\"m\":1}""#],
        );
    }
}

mod faults {
    use super::*;

    #[test]
    fn unknown_names_get_the_closest_and_missing_ones_their_kind() {
        let schema = schema(json!({
            "type": "object",
            "properties": {"limit": {"type": "integer"}, "query": {"type": "string"}},
            "required": ["query"],
            "additionalProperties": false,
        }));
        refused(
            &schema,
            json!({}),
            &["query: a string is required, got nothing"],
        );
        refused(
            &schema,
            json!({"query": "q", "limt": 5}),
            &["limt: a known name (closest: limit), got 5"],
        );
        refused(
            &schema,
            json!({"query": "q", "zzz": 5}),
            &["zzz: a known name (limit, query), got 5"],
        );
        let none = self::schema(json!({"type": "object", "additionalProperties": false}));
        refused(&none, json!({"x": 1}), &["x: no further members, got 1"]);
    }

    #[test]
    fn keywords_in_words() {
        let table = [
            (json!({"minimum": 0}), json!(-1), "at least 0, got -1"),
            (json!({"maximum": 255}), json!(300), "at most 255, got 300"),
            (
                json!({"exclusiveMinimum": 0}),
                json!(0),
                "more than 0, got 0",
            ),
            (
                json!({"exclusiveMaximum": 9.5}),
                json!(9.5),
                "less than 9.5, got 9.5",
            ),
            (json!({"multipleOf": 5}), json!(7), "a multiple of 5, got 7"),
            (
                json!({"minLength": 2}),
                json!("x"),
                "at least 2 characters, got \"x\"",
            ),
            (
                json!({"maxLength": 1}),
                json!("xy"),
                "at most 1 characters, got \"xy\"",
            ),
            (
                json!({"pattern": "^a+$"}),
                json!("b"),
                "text that matches `^a+$`, got \"b\"",
            ),
            (
                json!({"format": "date"}),
                json!("soon"),
                "text in the format `date`, got \"soon\"",
            ),
            (
                json!({"enum": ["fast", "slow"]}),
                json!("FAST"),
                "one of \"fast\", \"slow\", got \"FAST\"",
            ),
            (json!({"const": "a"}), json!("b"), "\"a\", got \"b\""),
            (
                json!({"type": ["integer", "null"]}),
                json!([]),
                "an integer or null, got []",
            ),
            (
                json!({"maxItems": 1}),
                json!([1, 2]),
                "at most 1 items, got [1,2]",
            ),
            (
                json!({"uniqueItems": true}),
                json!([1, 1]),
                "items that all differ, got [1,1]",
            ),
            (
                json!({"not": {"const": 1}}),
                json!(1),
                "a value that does not fit `{\"const\":1}`, got 1",
            ),
            (json!(false), json!(1), "nothing at all, got 1"),
        ];
        for (keyword, input, words) in table {
            let schema = schema(json!({"type": "object", "properties": {"x": keyword}}));
            refused(&schema, json!({"x": input}), &[&format!("x: {words}")]);
        }
    }

    #[test]
    fn paths_of_odd_names() {
        let schema = schema(
            json!({"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "null"}}}),
        );
        refused(
            &schema,
            json!({"a b": {"0": 1}}),
            &["[\"a b\"].0: null, got 1"],
        );
        refused(
            &schema,
            json!({"a/b~c": {"": 1}}),
            &["[\"a/b~c\"][\"\"]: null, got 1"],
        );
    }

    #[test]
    fn values_are_bounded_and_on_one_line() {
        let schema = limit();
        let long = "ä".repeat(1000);
        let faults = schema.check(map(json!({"limit": long}))).unwrap_err();
        assert!(faults[0].chars().count() < 120, "{faults:?}");
        assert!(faults[0].ends_with('…'));
        refused(
            &schema,
            json!({"limit": "\u{1b}[31m\u{202e}\n\u{7f}"}),
            &["limit: an integer, got \"\\u001b[31m\\u202e\\n\\u007f\""],
        );
    }

    #[test]
    fn at_most_eight_and_a_count() {
        let schema = schema(json!({"type": "object", "additionalProperties": {"type": "null"}}));
        let input: Map<String, Value> = (0..20).map(|n| (format!("m{n:02}"), json!(n))).collect();
        let faults = schema.check(input).unwrap_err();
        assert_eq!(faults.len(), 9);
        assert_eq!(faults[0], "m00: null, got 0");
        assert_eq!(faults[8], "and 12 more");
    }

    #[test]
    fn optional_enums_and_structs_name_the_path() {
        let schema = schema(json!({
            "type": "object",
            "properties": {
                "mode": {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]},
                "opts": {"anyOf": [{"$ref": "#/$defs/Opts"}, {"type": "null"}]},
                "tree": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
            },
            "$defs": {
                "Mode": {"type": "string", "enum": ["fast", "slow"]},
                "Opts": {
                    "type": "object",
                    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 255}},
                    "required": ["n"],
                },
                "Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}},
            },
        }));
        for good in [
            json!({}),
            json!({"mode": null, "opts": null, "tree": null}),
            json!({"mode": "fast", "opts": {"n": 3}, "tree": {"next": {"next": null}}}),
        ] {
            runs(&schema, good.clone(), good);
        }
        refused(
            &schema,
            json!({"mode": "FAST"}),
            &["mode: one of \"fast\", \"slow\" or null, got \"FAST\""],
        );
        refused(
            &schema,
            json!({"opts": {"n": 300}}),
            &["opts.n: at most 255, got 300"],
        );
        refused(
            &schema,
            json!({"opts": {"n": -1}}),
            &["opts.n: at least 0, got -1"],
        );
        refused(
            &schema,
            json!({"opts": {}}),
            &["opts.n: an integer is required, got nothing"],
        );
        refused(
            &schema,
            json!({"opts": 3}),
            &["opts: an object or null, got 3"],
        );
    }

    #[test]
    fn of_tagged_alternatives_the_meant_one_is_told() {
        let schema = schema(json!({
            "type": "object",
            "properties": {"shape": {"oneOf": [
                {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
                {"type": "object", "properties": {"kind": {"const": "square"}, "a": {"type": "number"}}, "required": ["kind", "a"]},
            ]}},
        }));
        refused(
            &schema,
            json!({"shape": {"kind": "square"}}),
            &["shape.a: a number is required, got nothing"],
        );
        refused(
            &schema,
            json!({"shape": {"kind": "cube"}}),
            &["shape.kind: \"circle\" or \"square\", got \"cube\""],
        );
    }
}

mod shown {
    use super::*;

    #[track_caller]
    fn assert_plain_root(schema: &ArgumentSchema) {
        let shown = schema.shown();
        assert_eq!(shown["type"], "object");
        assert!(shown["properties"].is_object());
        for keyword in [
            "oneOf", "anyOf", "allOf", "not", "if", "then", "else", "enum", "$ref",
        ] {
            assert!(shown.get(keyword).is_none(), "{shown}");
        }
    }

    #[test]
    fn a_plain_object_is_shown_as_declared() {
        let declared = json!({
            "type": "object",
            "properties": {
                "expression": {"type": "string", "description": "What to work out"},
                "precision": {"type": "integer"},
            },
            "required": ["expression"],
        });
        let schema = schema(declared.clone());
        assert_eq!(schema.shown().to_string(), declared.to_string());
        assert_eq!(schema.shown_note(), None);
        assert_eq!(schema.original(), &declared);
    }

    #[test]
    fn one_of_two_sets_of_arguments() {
        let schema = schema(json!({
            "type": "object",
            "properties": {"url": {"type": "string"}, "file": {"type": "string"}},
            "oneOf": [{"required": ["url"]}, {"required": ["file"]}],
        }));
        assert_eq!(
            *schema.shown(),
            json!({"type": "object", "properties": {"url": {"type": "string"}, "file": {"type": "string"}}})
        );
        assert_eq!(
            schema.shown_note(),
            Some("The arguments also have to satisfy: exactly one of (`url`), (`file`).")
        );
        runs(&schema, json!({"url": "u"}), json!({"url": "u"}));
        refused(
            &schema,
            json!({}),
            &["arguments: exactly one of (`url`), (`file`), got {}"],
        );
        refused(
            &schema,
            json!({"url": "u", "file": "f"}),
            &[
                "arguments: exactly one of (`url`), (`file`) (more than one fits), got {\"url\":\"u\",\"file\":\"f\"}",
            ],
        );
    }

    #[test]
    fn tagged_alternatives_are_merged() {
        let schema = schema(json!({
            "description": "A command",
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "add"}, "text": {"type": "string"}}, "required": ["kind", "text"], "additionalProperties": false},
                {"type": "object", "properties": {"kind": {"const": "drop"}, "id": {"$ref": "#/$defs/Id"}}, "required": ["kind", "id"], "additionalProperties": false},
                {"type": "null"},
            ],
            "$defs": {"Id": {"type": "integer"}},
        }));
        assert_eq!(
            *schema.shown(),
            json!({
                "type": "object",
                "description": "A command",
                "properties": {
                    "kind": {"enum": ["add", "drop"], "type": "string"},
                    "text": {"type": "string"},
                    "id": {"$ref": "#/$defs/Id"},
                },
                "required": ["kind"],
                "additionalProperties": false,
                "$defs": {"Id": {"type": "integer"}},
            })
        );
        assert_eq!(
            schema.shown_note(),
            Some(
                "The arguments also have to satisfy: exactly one of (`kind` = \"add\" and `text`), (`kind` = \"drop\" and `id`), (null)."
            )
        );
        runs(
            &schema,
            json!({"kind": "drop", "id": "5"}),
            json!({"kind": "drop", "id": 5}),
        );
        refused(
            &schema,
            json!({"kind": "add"}),
            &["text: a string is required, got nothing"],
        );
    }

    #[test]
    fn a_reference_at_the_root_is_resolved() {
        let schema = schema(json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$ref": "#/$defs/Args",
            "$defs": {"Args": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}},
        }));
        let shown = schema.shown();
        assert_eq!(shown["properties"], json!({"q": {"type": "string"}}));
        assert_eq!(shown["required"], json!(["q"]));
        assert_eq!(schema.shown_note(), None);
        assert_plain_root(&schema);
        refused(
            &schema,
            json!({}),
            &["q: a string is required, got nothing"],
        );
    }

    #[test]
    fn all_parts_and_conditions() {
        let schema = schema(json!({
            "type": "object",
            "properties": {"a": {"type": "integer"}, "how": {"enum": ["x", "y"]}},
            "allOf": [
                {"properties": {"a": {"minimum": 1}, "b": {"type": "string"}}, "required": ["b"]},
                {"not": {"required": ["a", "b"]}},
            ],
            "if": {"properties": {"how": {"const": "x"}}, "required": ["how"]},
            "then": {"required": ["c"], "properties": {"c": {"type": "boolean"}}},
            "unevaluatedProperties": false,
        }));
        assert_plain_root(&schema);
        assert_eq!(
            *schema.shown(),
            json!({
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "minimum": 1},
                    "how": {"enum": ["x", "y"]},
                    "b": {"type": "string"},
                    "c": {"type": "boolean"},
                },
                "required": ["b"],
                "additionalProperties": false,
            })
        );
        assert_eq!(
            schema.shown_note(),
            Some(
                "The arguments also have to satisfy: not `a` and `b` together; and where they fit `how` = \"x\", `c`."
            )
        );
        runs(
            &schema,
            json!({"b": "t", "how": "y"}),
            json!({"b": "t", "how": "y"}),
        );
        refused_at(&schema, json!({"b": "t", "how": "x"}), "c");
        refused_at(&schema, json!({"b": "t", "a": 1}), "arguments");
    }

    #[test]
    fn forms_of_roots_that_are_always_made_plain() {
        for root in [
            json!({"properties": {"q": {"type": "string"}}}),
            json!({"type": ["object", "null"]}),
            json!({"enum": [{"a": 1}, {"a": 2}]}),
            json!({"not": {"required": ["x"]}}),
            json!({"anyOf": [{"type": "object"}, {"type": "string"}]}),
            json!({"allOf": [{"$ref": "#/$defs/a"}, {"oneOf": [{"required": ["b"]}, {"required": ["c"]}]}], "$defs": {"a": {"type": "object"}}}),
        ] {
            assert_plain_root(&schema(root));
        }
    }

    #[test]
    fn a_reference_into_a_part_that_is_rewritten_sets_the_tool_aside() {
        let root = json!({
            "oneOf": [
                {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"$ref": "#/oneOf/0/properties/a"}}, "required": ["b"]},
            ],
        });
        assert!(matches!(fault(root), SchemaFault::NotShowable { .. }));
    }

    #[test]
    fn a_merged_root_takes_what_the_original_takes() {
        let root = json!({
            "anyOf": [
                {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
                {"type": "object", "properties": {"id": {"type": "string"}, "x": false}, "required": ["id"]},
                {"type": "object", "properties": {"id": {"type": "null"}, "x": {"type": "string"}}, "required": ["id", "x"]},
            ],
        });
        let original = schema(root);
        let shown = ArgumentSchema::compile(&original.shown()).unwrap();
        for input in [
            json!({"id": 1}),
            json!({"id": "a"}),
            json!({"id": null, "x": "y"}),
        ] {
            runs(&original, input.clone(), input.clone());
            runs(&shown, input.clone(), input);
        }
    }
}

mod schema_faults {
    use super::*;

    #[test]
    fn what_is_no_schema_of_arguments() {
        for none in [json!(null), json!(true), json!("object"), json!([])] {
            assert!(matches!(fault(none), SchemaFault::NotAnObject { .. }));
        }
        assert_eq!(fault(json!({})), SchemaFault::SaysNothing);
        for (root, words) in [
            (json!({"type": "string"}), "a string"),
            (json!({"type": ["array", "null"]}), "an array or null"),
            (
                json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}),
                "an integer",
            ),
            (
                json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
                "a string or a number",
            ),
        ] {
            let fault = fault(root);
            assert_eq!(
                fault,
                SchemaFault::RootIsNoObject {
                    kinds: words.into()
                }
            );
            assert!(fault.to_string().contains(words));
        }
        assert!(matches!(
            fault(json!({"allOf": [{"type": "object"}, false]})),
            SchemaFault::RootIsNoObject { .. }
        ));
    }

    #[test]
    fn a_tool_without_arguments_is_fine() {
        for none in [
            json!({"type": "object"}),
            json!({"type": "object", "properties": {}}),
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
        ] {
            let schema = schema(none);
            runs(&schema, json!({}), json!({}));
            assert_eq!(schema.shown()["properties"], json!({}));
        }
    }

    #[test]
    fn a_schema_that_is_not_valid_says_where() {
        let fault = fault(json!({"type": "object", "properties": {"x": {"type": "strin"}}}));
        assert!(
            matches!(&fault, SchemaFault::Invalid { why } if why.starts_with("properties.x.type: ")),
            "{fault}"
        );
        let pattern = self::fault(json!({"type": "object", "properties": {"x": {"pattern": "("}}}));
        assert!(matches!(pattern, SchemaFault::Invalid { .. }), "{pattern}");
    }

    #[test]
    fn nothing_outside_the_schema_is_referred_to() {
        for reference in [
            "https://example.org/schema.json",
            "file:///etc/passwd",
            "other.json#/x",
            "#/$defs/missing",
            "#nowhere",
        ] {
            let root = json!({"type": "object", "properties": {"x": {"$ref": reference}}});
            assert_eq!(
                fault(root),
                SchemaFault::OutsideReference {
                    reference: reference.into()
                }
            );
        }
        let anchored = schema(json!({
            "type": "object",
            "properties": {"x": {"$ref": "#count"}, "$ref": {"type": "string"}, "$id": {"type": "string"}},
            "$defs": {"n": {"$anchor": "count", "type": "integer"}},
        }));
        runs(&anchored, json!({"x": "5"}), json!({"x": 5}));
        let encoded = schema(json!({
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/a%25b%7E1c"}},
            "$defs": {"a%b/c": {"type": "integer"}},
        }));
        runs(&encoded, json!({"x": "5"}), json!({"x": 5}));
    }

    #[test]
    fn older_drafts_are_read_as_they_say() {
        let draft7 = schema(json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"pair": {"items": [{"type": "integer"}, {"type": "string"}]}, "n": {"$ref": "#/definitions/n"}},
            "definitions": {"n": {"type": "integer"}},
        }));
        runs(
            &draft7,
            json!({"pair": ["1", "x"], "n": "2"}),
            json!({"pair": [1, "x"], "n": 2}),
        );
    }
}

mod bounds {
    use super::*;

    #[test]
    fn schemas_are_bounded() {
        let mut deep = json!({"type": "string"});
        for _ in 0..MAX_SCHEMA_DEPTH {
            deep = json!({"items": deep});
        }
        assert_eq!(
            fault(json!({"type": "object", "properties": {"x": deep}})),
            SchemaFault::TooDeep
        );
        let long = "x".repeat(MAX_SCHEMA_BYTES);
        assert_eq!(
            fault(json!({"type": "object", "description": long})),
            SchemaFault::TooLarge
        );
    }

    #[test]
    fn arguments_are_bounded() {
        let schema = schema(json!({"type": "object"}));
        let long = "x".repeat(MAX_ARGUMENT_BYTES);
        refused_at(&schema, json!({"x": long}), "arguments");
        let mut deep = json!(1);
        for _ in 0..MAX_ARGUMENT_DEPTH - 1 {
            deep = Value::Array(vec![deep]);
        }
        runs(
            &schema,
            json!({"x": deep.clone()}),
            json!({"x": deep.clone()}),
        );
        refused(
            &schema,
            json!({"x": [deep]}),
            &["arguments: values nested at most 64 deep, got deeper ones"],
        );
    }

    #[test]
    fn a_reference_that_leads_back_to_itself_means_nothing() {
        assert_eq!(
            fault(json!({"$ref": "#"})),
            SchemaFault::TooManyAlternatives
        );
        for root in [
            json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}),
            json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
        ] {
            assert_eq!(fault(root), SchemaFault::TooManyAlternatives);
        }
    }

    #[test]
    fn long_chains_of_references_are_refused_before_they_take_the_stack() {
        let chain = |n: usize, link: &dyn Fn(String) -> Value| {
            let mut defs: Map<String, Value> = (0..n)
                .map(|i| (format!("d{i}"), link(format!("#/$defs/d{}", i + 1))))
                .collect();
            defs.insert(format!("d{n}"), json!({"type": "integer"}));
            json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs})
        };
        let through_members =
            |to: String| json!({"type": "object", "properties": {"x": {"$ref": to}}});
        assert_eq!(
            fault(chain(200, &|to| json!({"$ref": to}))),
            SchemaFault::TooManyAlternatives
        );
        assert_eq!(
            fault(chain(600, &through_members)),
            SchemaFault::TooManyReferences
        );
        // The longest that are taken fit the stack that threads of the runtime have.
        let longest = chain(330, &through_members);
        std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || {
                let mut deepest = json!("x");
                for _ in 0..MAX_ARGUMENT_DEPTH - 1 {
                    deepest = json!({"x": deepest});
                }
                let schema = schema(longest);
                assert!(schema.check(map(json!({"x": deepest}))).is_err());
            })
            .unwrap()
            .join()
            .unwrap();
    }

    #[test]
    fn the_deepest_recursion_fits_the_stack() {
        // At each level of the arguments a chain of in-place schemas as long as is allowed.
        let mut defs: Map<String, Value> = (0..15)
            .map(|i| {
                (
                    format!("d{i}"),
                    json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}]}),
                )
            })
            .collect();
        defs.insert(
            "d15".into(),
            json!({"type": ["object", "integer"], "properties": {"x": {"$ref": "#/$defs/d0"}}}),
        );
        let root =
            json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs});
        std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || {
                let schema = schema(root);
                let mut deepest = json!("x");
                for _ in 0..MAX_ARGUMENT_DEPTH - 1 {
                    deepest = json!({"x": deepest});
                }
                assert!(schema.check(map(json!({"x": deepest}))).is_err());
            })
            .unwrap()
            .join()
            .unwrap();
    }

    #[test]
    fn alternatives_that_multiply_do_not_take_for_ever() {
        // Each level of the arguments is tried in four ways, and each way fails only at the bottom.
        let root = json!({
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"anyOf": [
                {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["a"]},
                {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["b"]},
                {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["c"]},
                {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}, "y": {"type": "integer"}}},
            ]}},
        });
        let schema = schema(root);
        let mut deep = json!({"y": "no"});
        for _ in 0..MAX_ARGUMENT_DEPTH - 2 {
            deep = json!({"x": deep, "a": 1, "b": 1, "c": 1});
        }
        let faults = schema.check(map(json!({"x": deep}))).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("too many alternatives"));
    }

    #[test]
    fn references_that_fan_out_do_not_take_for_ever() {
        let fan = |levels: usize, link: &dyn Fn(Value) -> Value| {
            let mut defs: Map<String, Value> = (0..levels)
                .map(|i| {
                    let to = json!({"$ref": format!("#/$defs/d{}", i + 1)});
                    (format!("d{i}"), link(to))
                })
                .collect();
            defs.insert(format!("d{levels}"), json!({"type": "integer"}));
            json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs})
        };
        let in_place = |to: Value| json!({"anyOf": [to, to, to, to]});
        let in_members = |to: Value| json!({"properties": {"a": to, "b": to, "c": to, "d": to}});
        assert_eq!(fault(fan(8, &in_place)), SchemaFault::TooManyReferences);
        assert_eq!(fault(fan(8, &in_members)), SchemaFault::TooManyReferences);
        let schema = schema(fan(6, &in_place));
        refused_at(&schema, json!({"x": "no"}), "x");
        runs(&schema, json!({"x": "5"}), json!({"x": 5}));
        runs(
            &self::schema(fan(6, &in_members)),
            json!({"x": {"a": 1}}),
            json!({"x": {"a": 1}}),
        );
    }

    #[test]
    fn a_pattern_that_backtracks_without_end_is_given_up() {
        let schema = schema(json!({
            "type": "object",
            "properties": {"x": {"type": "string", "pattern": "^(?=(a+)+$)(a|aa)+$"}},
        }));
        refused_at(
            &schema,
            json!({"x": format!("{}b", "a".repeat(5_000))}),
            "x",
        );
    }
}

mod output {
    use super::*;

    #[test]
    fn an_answer_is_checked_and_never_converted() {
        let schema = OutputSchema::compile(&json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        }))
        .unwrap();
        assert_eq!(schema.check(&json!({"n": 5})), Ok(()));
        assert_eq!(
            schema.check(&json!({"n": "5"})),
            Err(vec!["n: an integer, got \"5\"".to_owned()])
        );
        assert_eq!(
            schema.check(&json!({})),
            Err(vec!["n: an integer is required, got nothing".to_owned()])
        );
        assert_eq!(
            schema.check(&json!([])),
            Err(vec!["output: an object, got []".to_owned()])
        );
        assert!(OutputSchema::compile(&json!({"type": "array"})).is_ok());
        assert!(OutputSchema::compile(&json!(null)).is_err());
    }
}

mod properties {
    use proptest::{prelude::*, sample::select};

    use super::*;

    fn inputs() -> impl Strategy<Value = Value> {
        let texts = vec![
            "5",
            "-3",
            "5.5",
            "5.0",
            "true",
            "false",
            "null",
            "x",
            "",
            " 5",
            "{}",
            "[1]",
            "{\"a\":1}",
            "[\"5\"]",
            "{",
            "9223372036854775808",
        ];
        let leaf = prop_oneof![
            select(texts).prop_map(Value::from),
            select(vec![0, 1, 5, -3, i64::MAX]).prop_map(Value::from),
            select(vec![5.0, 5.5, -0.0, 1e30]).prop_map(Value::from),
            Just(Value::from(u64::MAX)),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                members(inner).prop_map(Value::from),
            ]
        })
    }

    fn members(of: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
        let name = select(vec!["a", "b", "c"]).prop_map(str::to_owned);
        prop::collection::vec((name, of), 0..4).prop_map(|pairs| pairs.into_iter().collect())
    }

    fn object_with(of: impl Strategy<Value = Value> + Clone) -> impl Strategy<Value = Value> {
        let others = prop_oneof![Just(json!(true)), Just(json!(false)), of.clone()];
        let required = prop::collection::btree_set(select(vec!["a", "b", "c"]), 0..3);
        (members(of), required, others).prop_map(|(properties, required, others)| {
            json!({
                "type": "object", "properties": properties, "required": required,
                "additionalProperties": others,
            })
        })
    }

    fn combined(of: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
        let keyword = select(vec!["anyOf", "oneOf", "allOf"]);
        (keyword, prop::collection::vec(of, 1..4))
            .prop_map(|(keyword, parts)| json!({keyword: parts}))
    }

    fn schemas() -> impl Strategy<Value = Value> + Clone {
        let kinds = vec![
            "string", "integer", "number", "boolean", "object", "array", "null",
        ];
        let leaf = prop_oneof![
            3 => select(kinds).prop_map(|kind| json!({"type": kind})),
            1 => Just(json!({"type": ["integer", "null"]})),
            1 => Just(json!({"type": "integer", "minimum": 0, "maximum": 255})),
            1 => Just(json!({"enum": ["x", 5, null]})),
            1 => Just(json!({"const": "x"})),
            1 => Just(json!({})),
            2 => Just(json!({"$ref": "#/$defs/d"})),
            1 => Just(json!({"type": "string", "pattern": "^[0-9]+$"})),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                object_with(inner.clone()),
                inner
                    .clone()
                    .prop_map(|items| json!({"type": "array", "items": items})),
                combined(inner.clone()),
                inner.prop_map(|not| json!({"not": not})),
            ]
        })
    }

    fn roots() -> impl Strategy<Value = Value> {
        let root = prop_oneof![
            4 => object_with(schemas()),
            2 => combined(object_with(schemas())),
            1 => Just(json!({"$ref": "#/$defs/d"})),
            1 => schemas(),
        ];
        (root, schemas()).prop_map(|(mut root, definition)| {
            root["$defs"] = json!({"d": definition});
            root
        })
    }

    /// A schema, a value that fits it, and the value as a careless model writes it.
    type Written = (Value, Value, Value);

    fn written() -> impl Strategy<Value = Written> {
        let either = |value: Value, text: String, careless: bool| {
            let loose = if careless {
                Value::from(text)
            } else {
                value.clone()
            };
            (value, loose)
        };
        let integer = (any::<i64>(), any::<bool>()).prop_map(move |(n, careless)| {
            let (value, loose) = either(json!(n), n.to_string(), careless);
            (json!({"type": ["integer", "null"]}), value, loose)
        });
        let number = (-9_999..9_999, any::<bool>()).prop_map(move |(n, careless)| {
            let n = f64::from(n) + 0.25;
            let (value, loose) = either(json!(n), n.to_string(), careless);
            (json!({"type": "number"}), value, loose)
        });
        let boolean = any::<(bool, bool)>().prop_map(move |(on, careless)| {
            let (value, loose) = either(json!(on), on.to_string(), careless);
            (json!({"type": "boolean"}), value, loose)
        });
        let text = select(vec!["5", "true", "{}", ""])
            .prop_map(|text| (json!({"type": "string"}), json!(text), json!(text)));
        prop_oneof![integer, number, boolean, text].prop_recursive(3, 16, 4, |inner| {
            let items = prop::collection::vec(inner.clone(), 0..4);
            let members = prop::collection::btree_map("[a-d]", inner, 0..4);
            prop_oneof![
                (items, any::<bool>()).prop_map(|(items, packed)| {
                    let part = |n: fn(&Written) -> Value| items.iter().map(n).collect::<Value>();
                    let value = part(|(_, value, _)| value.clone());
                    let mut schema = json!({"type": "array"});
                    if !items.is_empty() {
                        schema["prefixItems"] = part(|(schema, ..)| schema.clone());
                    }
                    let loose = if packed { json!(value.to_string()) } else { part(|(.., loose)| loose.clone()) };
                    (schema, value, loose)
                }),
                (members, any::<bool>()).prop_map(|(members, packed)| {
                    let part = |n: fn(&Written) -> Value| {
                        members.iter().map(|(name, w)| (name.clone(), n(w))).collect::<Map<_, _>>()
                    };
                    let value = Value::from(part(|(_, value, _)| value.clone()));
                    let schema = json!({"type": "object", "properties": part(|(schema, ..)| schema.clone())});
                    let loose = if packed { json!(value.to_string()) } else { Value::from(part(|(.., loose)| loose.clone())) };
                    (schema, value, loose)
                }),
            ]
        })
    }

    /// Nothing but what the conversions may do lies between the two.
    fn is_lossless(before: &Value, after: &Value) -> bool {
        match (before, after) {
            (Value::Object(a), Value::Object(b)) => {
                a.len() == b.len()
                    && a.iter()
                        .all(|(name, a)| b.get(name).is_some_and(|b| is_lossless(a, b)))
            }
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_lossless(a, b))
            }
            (Value::Number(a), Value::Number(b)) => {
                a == b || a.as_f64() == b.as_f64() && b.is_i64()
            }
            (Value::String(a), b) if !b.is_string() => {
                !b.is_null() && serde_json::from_str::<Value>(a).is_ok_and(|a| a == *b)
            }
            (a, b) => a == b,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn what_runs_fits_and_lost_nothing(root in roots(), input in members(inputs())) {
            let Ok(schema) = ArgumentSchema::compile(&root) else { return Ok(()) };
            let strict = jsonschema::options().should_validate_formats(true).build(&root).unwrap();
            let whole = Value::Object(input.clone());
            let fits = strict.is_valid(&whole);
            match schema.check(input) {
                Ok(given) => {
                    let given = Value::Object(given);
                    prop_assert!(strict.is_valid(&given));
                    prop_assert!(is_lossless(&whole, &given), "{whole} became {given}");
                    if fits && !Survey::of(&whole).odd_number {
                        prop_assert_eq!(&given, &whole);
                    }
                    prop_assert_eq!(schema.check(map(given.clone())), Ok(map(given)));
                }
                Err(faults) => {
                    prop_assert!(!fits || Survey::of(&whole).odd_number, "{faults:?}");
                    prop_assert!((1..=9).contains(&faults.len()));
                    for fault in faults {
                        let form = fault.contains(": ") && fault.contains(", got ");
                        prop_assert!(form || fault.starts_with("and "), "{fault}");
                        prop_assert!(!fault.contains('\n') && fault.len() < 8_000, "{fault}");
                    }
                }
            }
        }

        #[test]
        fn what_a_careless_model_writes_is_what_it_meant((part, meant, loose) in written()) {
            let schema = schema(json!({"type": "object", "properties": {"x": part}}));
            prop_assert_eq!(schema.check(map(json!({"x": loose}))), Ok(map(json!({"x": meant}))));
        }

        #[test]
        fn what_is_shown_is_a_plain_object_and_stays(root in roots()) {
            let Ok(schema) = ArgumentSchema::compile(&root) else { return Ok(()) };
            let shown = schema.shown();
            prop_assert_eq!(&shown["type"], "object");
            prop_assert!(shown["properties"].is_object());
            for keyword in ["oneOf", "anyOf", "allOf", "not", "if", "enum", "const", "$ref"] {
                prop_assert!(shown.get(keyword).is_none(), "{shown}");
            }
            let again = ArgumentSchema::compile(&shown).unwrap();
            prop_assert_eq!(again.shown().to_string(), shown.to_string());
            prop_assert_eq!(again.shown_note(), None);
        }
    }
}
