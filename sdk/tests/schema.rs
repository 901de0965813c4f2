//! The schema that a model sees, and that it accepts what decoding accepts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use agentloop_sdk::{Json, Result, Tool, ToolError, Value, args, json, output, tool};

fn schema<T: Tool>() -> Value {
    serde(T::DEFINITION.input_schema)
}

fn serde(text: &str) -> Value {
    text.parse().unwrap()
}

/// Asserts that schema and decoding agree about these arguments.
#[track_caller]
fn check<T: Tool>(arguments: Value, fits: bool) {
    let validator = jsonschema::draft202012::new(&schema::<T>()).unwrap();
    let faults: Vec<_> = validator
        .iter_errors(&arguments)
        .map(|fault| format!("{}: {fault}", fault.instance_path()))
        .collect();
    let decoded = !matches!(
        T::call(&arguments.to_string()),
        Err(ToolError::InvalidArguments(_))
    );
    assert_eq!(
        faults.is_empty(),
        fits,
        "the schema: {arguments}: {faults:?}"
    );
    assert_eq!(decoded, fits, "decoding: {arguments}");
}

/// Nothing.
#[tool]
fn nothing() {}

/// Evaluate a mathematical expression to the given decimal precision.
#[tool]
fn calculate(expression: String, #[default(6)] precision: i64) -> String {
    format!("{expression}/{precision}")
}

#[test]
fn a_tool_without_arguments_takes_an_empty_object() {
    assert_eq!(
        schema::<nothing>(),
        json!({"type": "object", "properties": {}})
    );
    check::<nothing>(json!({}), true);
    check::<nothing>(json!({"more": 1}), true);
    assert_eq!(nothing::call(""), Ok(vec![]));
}

#[test]
fn a_default_is_no_required_argument() {
    assert_eq!(calculate::DEFINITION.name, "calculate");
    assert_eq!(
        calculate::DEFINITION.description,
        "Evaluate a mathematical expression to the given decimal precision."
    );
    assert_eq!(
        calculate::DEFINITION.input_schema,
        r#"{"type":"object","properties":{"expression":{"type":"string"},"precision":{"type":"integer"}},"required":["expression"]}"#
    );
    assert_eq!(
        calculate::call(r#"{"expression": "1"}"#),
        Ok(vec!["1/6".into()])
    );
    check::<calculate>(json!({"expression": "1", "precision": -3}), true);
    check::<calculate>(json!({"expression": "1", "precision": 3.0}), true);
    check::<calculate>(json!({"expression": "1", "precision": 3.5}), false);
    check::<calculate>(json!({"expression": "1", "precision": null}), false);
    check::<calculate>(json!({"precision": 3}), false);
}

#[args]
#[serde(rename_all = "lowercase")]
enum Mode {
    Fast,
    Slow,
}

#[args]
#[derive(Debug)]
struct Opts {
    n: u8,
}

#[args]
struct Node {
    name: String,
    left: Option<Box<Node>>,
    right: Option<Box<Node>>,
}

/// Optional parts.
#[tool]
fn optional(mode: Option<Mode>, opts: Option<Opts>, tree: Option<Box<Node>>) -> String {
    fn names(node: &Node) -> String {
        let side = |node: &Option<Box<Node>>| node.as_deref().map(names).unwrap_or_default();
        format!("({}{}{})", side(&node.left), node.name, side(&node.right))
    }
    let mode = mode.map(|mode| match mode {
        Mode::Fast => 'f',
        Mode::Slow => 's',
    });
    format!(
        "{mode:?} {opts:?} {}",
        tree.as_deref().map(names).unwrap_or_default()
    )
}

#[test]
fn an_option_is_none_when_absent_and_when_null() {
    let none = Ok(vec!["None None ".into()]);
    for arguments in [
        "{}",
        r#"{"mode":null,"opts":null,"tree":null}"#,
        r#"{"opts":null}"#,
    ] {
        assert_eq!(optional::call(arguments), none, "{arguments}");
        check::<optional>(serde(arguments), true);
    }
    let full =
        r#"{"mode":"fast","opts":{"n":3},"tree":{"name":"a","left":{"name":"b","right":null}}}"#;
    assert_eq!(
        optional::call(full),
        Ok(vec!["Some('f') Some(Opts { n: 3 }) ((b)a)".into()])
    );
    check::<optional>(serde(full), true);
    for refused in [
        json!({"mode": "FAST"}),
        json!({"mode": 1}),
        json!({"opts": {"n": 300}}),
        json!({"opts": {"n": -1}}),
        json!({"opts": {}}),
        json!({"opts": "n"}),
        json!({"tree": {}}),
        json!({"tree": {"name": "a", "left": {"left": null}}}),
        json!({"tree": "a"}),
    ] {
        check::<optional>(refused, false);
    }
}

#[test]
fn a_recursive_type_is_defined_once_and_referred_to() {
    let schema = schema::<optional>();
    let node = json!({"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]});
    assert_eq!(schema["properties"]["tree"], node);
    assert_eq!(schema["$defs"]["Node"]["properties"]["left"], node);
    // What contains itself nowhere stands where it is used.
    assert_eq!(schema["$defs"].as_object().unwrap().len(), 1);
    assert_eq!(
        schema["properties"]["mode"]["enum"],
        json!(["fast", "slow", null])
    );
}

mod other {
    /// Not the `Node` above.
    #[agentloop_sdk::args]
    pub struct Node {
        pub nodes: Vec<Node>,
        pub theirs: Option<super::Node>,
    }
}

/// Two types of one name.
#[tool]
fn two_nodes(
    #[serde(rename = "first")] one: Node,
    /// The other
    two: other::Node,
) -> usize {
    one.name.len() + two.nodes.len() + usize::from(two.theirs.is_some())
}

#[test]
fn types_of_the_same_name_stay_apart() {
    let schema = schema::<two_nodes>();
    assert_eq!(schema["properties"]["first"]["$ref"], "#/$defs/Node");
    assert_eq!(
        schema["properties"]["two"],
        json!({"$ref": "#/$defs/Node2", "description": "The other"})
    );
    assert_eq!(
        schema["$defs"]["Node2"]["description"],
        "Not the `Node` above."
    );
    check::<two_nodes>(
        json!({"first": {"name": "a"}, "two": {"nodes": [{"nodes": []}], "theirs": {"name": "b"}}}),
        true,
    );
    check::<two_nodes>(json!({"first": {"nodes": []}, "two": {"nodes": []}}), false);
    check::<two_nodes>(json!({"one": {"name": "a"}, "two": {"nodes": []}}), false);
}

#[args]
#[serde(rename_all = "camelCase")]
struct Renamed {
    two_words: bool,
    #[serde(rename = "type")]
    kind: String,
    r#fn: u8,
    #[serde(skip)]
    hidden: u8,
    #[serde(default)]
    with_default: u8,
    #[default(7 * 6)]
    with_value: u8,
}

/// Renames.
#[tool]
fn renames(args: Renamed) -> String {
    let Renamed {
        two_words,
        kind,
        r#fn,
        hidden,
        with_default,
        with_value,
    } = args;
    format!("{two_words} {kind} {fn} {hidden} {with_default} {with_value}", fn = r#fn)
}

#[test]
fn serde_attributes_count_in_the_schema() {
    let schema = schema::<renames>();
    let names: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
    let mut names: Vec<_> = names.into_iter().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["fn", "twoWords", "type", "withDefault", "withValue"]
    );
    assert_eq!(schema["required"], json!(["twoWords", "type", "fn"]));
    assert_eq!(
        renames::call(r#"{"twoWords": true, "type": "x", "fn": 1}"#),
        Ok(vec!["true x 1 0 0 42".into()])
    );
    check::<renames>(json!({"two_words": true, "type": "x", "fn": 1}), false);
}

macro_rules! cases {
    ($($case:ident $text:literal)*) => {
        $(#[allow(non_snake_case, clippy::upper_case_acronyms, reason = "odd names on purpose")]
        mod $case {
            #[agentloop_sdk::args]
            #[serde(rename_all = $text)]
            #[expect(dead_code, reason = "only its names count")]
            pub struct Fields {
                plain: u8,
                two_words: u8,
                a_b_c: u8,
                _under__score_: u8,
            }

            #[agentloop_sdk::args]
            #[serde(rename_all = $text)]
            pub enum Variant {
                Plain,
                TwoWords,
                ABC,
            }

            /// Names.
            #[agentloop_sdk::tool]
            pub fn names(fields: Fields, variants: Vec<Variant>) {
                let _ = (fields, variants);
            }
        })*

        #[test]
        fn names_change_as_serde_changes_them() {
            $(names_agree::<$case::names>();)*
        }
    };
}

cases! {
    lower "lowercase"
    upper "UPPERCASE"
    pascal "PascalCase"
    camel "camelCase"
    snake "snake_case"
    screaming_snake "SCREAMING_SNAKE_CASE"
    kebab "kebab-case"
    screaming_kebab "SCREAMING-KEBAB-CASE"
}

/// All fields are required: decoding fails if the schema has another name for one.
#[track_caller]
fn names_agree<T: Tool>() {
    let schema = schema::<T>();
    let properties = schema["properties"]["fields"]["properties"].as_object();
    let fields: BTreeMap<_, _> = properties.unwrap().keys().map(|name| (name, 1)).collect();
    assert_eq!(fields.len(), 4);
    let variants = &schema["properties"]["variants"]["items"]["enum"];
    check::<T>(json!({"fields": fields, "variants": variants}), true);
}

#[args]
enum External {
    /// Says nothing
    Unit,
    /// Says little
    New(u8),
    Pair(u8, String),
    Struct {
        n: Option<u8>,
        #[default(2)]
        m: u8,
    },
    #[serde(skip)]
    #[expect(dead_code, reason = "never decoded")]
    Hidden,
}

#[args]
#[serde(
    tag = "type",
    rename_all = "lowercase",
    rename_all_fields = "UPPERCASE"
)]
enum Internal {
    Unit,
    New(Opts),
    Struct { left: Box<Internal>, right: u8 },
}

#[args]
#[serde(tag = "t", content = "c", deny_unknown_fields)]
enum Adjacent {
    Unit,
    New(u8),
    Pair(u8, u8),
    Struct { n: u8 },
}

#[args]
#[serde(untagged)]
enum Untagged {
    Number(f64),
    Text(String),
    Struct { n: u8 },
}

/// Enums with data.
#[tool]
fn enums(
    external: Option<External>,
    internal: Option<Internal>,
    adjacent: Option<Adjacent>,
    untagged: Option<Untagged>,
) -> String {
    let external = external.map(|value| match value {
        External::Unit => "unit".to_owned(),
        External::New(n) => format!("{n}"),
        External::Pair(n, s) => format!("{n}{s}"),
        External::Struct { n, m } => format!("{n:?}{m}"),
        External::Hidden => "hidden".to_owned(),
    });
    fn depth(internal: &Internal) -> u8 {
        match internal {
            Internal::Unit => 0,
            Internal::New(opts) => opts.n,
            Internal::Struct { left, right } => right + depth(left),
        }
    }
    let adjacent = adjacent.map(|value| match value {
        Adjacent::Unit => 0,
        Adjacent::New(n) | Adjacent::Struct { n } => n,
        Adjacent::Pair(a, b) => a + b,
    });
    let untagged = untagged.map(|value| match value {
        Untagged::Number(n) => n.to_string(),
        Untagged::Text(text) => text,
        Untagged::Struct { n } => n.to_string(),
    });
    format!(
        "{external:?} {:?} {adjacent:?} {untagged:?}",
        internal.as_ref().map(depth)
    )
}

#[test]
fn enums_with_data_agree_in_all_representations() {
    for external in [
        json!("Unit"),
        json!({"New": 3}),
        json!({"Pair": [3, "a"]}),
        json!({"Struct": {}}),
        json!({"Struct": {"n": null, "m": 4}}),
        json!(null),
    ] {
        check::<enums>(json!({"external": external}), true);
    }
    for external in [
        json!("New"),
        json!("Hidden"),
        json!("unit"),
        json!({}),
        json!({"New": 300}),
        json!({"New": 3, "Pair": [3, "a"]}),
        json!({"Pair": [3]}),
        json!({"Pair": [3, "a", 1]}),
        json!({"Struct": {"m": null}}),
        json!(3),
    ] {
        check::<enums>(json!({"external": external}), false);
    }
    for internal in [
        json!({"type": "unit"}),
        json!({"type": "new", "n": 3}),
        json!({"type": "struct", "LEFT": {"type": "unit"}, "RIGHT": 1}),
    ] {
        check::<enums>(json!({"internal": internal}), true);
    }
    for internal in [
        json!({"type": "Unit"}),
        json!({"type": "new"}),
        json!({"n": 3}),
        json!({"type": "struct", "LEFT": {"type": "no"}, "RIGHT": 1}),
        json!("unit"),
    ] {
        check::<enums>(json!({"internal": internal}), false);
    }
    for adjacent in [
        json!({"t": "Unit"}),
        json!({"t": "New", "c": 1}),
        json!({"t": "Pair", "c": [1, 2]}),
        json!({"t": "Struct", "c": {"n": 1}}),
    ] {
        check::<enums>(json!({"adjacent": adjacent}), true);
    }
    for adjacent in [
        json!({"t": "New"}),
        json!({"t": "New", "c": 1, "more": 1}),
        json!({"t": "Struct", "c": {"n": 1, "more": 1}}),
        json!({"c": 1}),
    ] {
        check::<enums>(json!({"adjacent": adjacent}), false);
    }
    for (untagged, fits) in [
        (json!(1.5), true),
        (json!(1), true),
        (json!("a"), true),
        (json!({"n": 3}), true),
        (json!({"n": 300}), false),
        (json!([1]), false),
        (json!(true), false),
    ] {
        check::<enums>(json!({"untagged": untagged}), fits);
    }
}

#[test]
fn no_schema_has_a_choice_at_its_root() {
    for schema in [schema::<enums>(), schema::<optional>(), schema::<renames>()] {
        assert_eq!(schema["type"], "object");
        for key in ["anyOf", "oneOf", "allOf", "$ref"] {
            assert_eq!(schema.get(key), None);
        }
    }
}

#[test]
fn what_is_said_of_variants_reaches_the_model() {
    let schema = schema::<enums>();
    let variants = &schema["properties"]["external"]["anyOf"];
    assert_eq!(
        variants[0],
        json!({"type": "string", "enum": ["Unit"], "description": "- `Unit`: Says nothing"})
    );
    assert_eq!(variants[1]["description"], "Says little");
}

#[args]
struct Celsius(f64);

#[args]
#[serde(transparent)]
struct Maybe {
    inner: Option<u8>,
}

#[args]
struct Page<T> {
    items: Vec<T>,
    next: Option<T>,
}

/// All the plain types.
#[tool]
#[expect(clippy::too_many_arguments, reason = "one of each kind")]
fn plain(
    bool: Option<bool>,
    char: Option<char>,
    i8: Option<i8>,
    u32: Option<u32>,
    u64: Option<u64>,
    f32: Option<f32>,
    list: Option<Vec<u8>>,
    set: Option<BTreeSet<String>>,
    array: Option<[u8; 2]>,
    pair: Option<(u8, String)>,
    map: Option<BTreeMap<String, u8>>,
    hash: Option<HashMap<String, Option<u8>>>,
    any: Option<Value>,
    newtype: Option<Celsius>,
    page: Option<Page<u8>>,
    maybe: Maybe,
) -> bool {
    let _ = (
        bool, char, i8, u32, u64, f32, list, set, array, pair, map, hash, any,
    );
    newtype.is_none_or(|celsius| celsius.0 > -300.0)
        && page.is_none_or(|page| page.items.len() < 100 && page.next != Some(0))
        && maybe.inner.is_none()
}

#[test]
fn plain_types_agree() {
    check::<plain>(json!({}), true);
    let values = [
        ("bool", json!(true), true),
        ("bool", json!(0), false),
        ("bool", json!("true"), false),
        ("char", json!("ä"), true),
        ("char", json!("😀"), true),
        ("char", json!(""), false),
        ("char", json!("ab"), false),
        ("i8", json!(-128), true),
        ("i8", json!(-129), false),
        ("i8", json!(127.0), true),
        ("i8", json!(128.0), false),
        ("u32", json!(4_294_967_295_u32), true),
        ("u32", json!(4_294_967_296_u64), false),
        ("u64", json!(u64::MAX), true),
        ("u64", json!(1e19), true),
        ("u64", json!(-1), false),
        ("f32", json!(1), true),
        ("f32", json!(1.5), true),
        ("f32", json!("1.5"), false),
        ("list", json!([]), true),
        ("list", json!([1, 2.0]), true),
        ("list", json!([1, null]), false),
        ("list", json!({}), false),
        ("set", json!(["a", "a"]), true),
        ("array", json!([1, 2]), true),
        ("array", json!([1]), false),
        ("array", json!([1, 2, 3]), false),
        ("pair", json!([1, "a"]), true),
        ("pair", json!(["a", 1]), false),
        ("pair", json!([1, "a", 2]), false),
        ("map", json!({"a": 1, "b": 2}), true),
        ("map", json!({"a": 300}), false),
        ("hash", json!({"a": null}), true),
        ("any", json!([{"a": null}]), true),
        ("newtype", json!(-3), true),
        ("newtype", json!([-3]), false),
        ("page", json!({"items": [1]}), true),
        ("page", json!({"items": [1], "next": null}), true),
        ("page", json!({"next": 1}), false),
        ("page", json!({"items": [300]}), false),
        ("maybe", json!(null), true),
        ("maybe", json!(3), true),
        ("maybe", json!({"inner": 3}), false),
    ];
    for (name, value, fits) in values {
        check::<plain>(json!({ name: value }), fits);
    }
}

#[args]
struct Inner {
    inner: u8,
    also: Option<u8>,
}

#[args]
struct Flat {
    outer: u8,
    #[serde(flatten)]
    inner: Inner,
    #[serde(flatten)]
    rest: BTreeMap<String, u8>,
}

#[args]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct Closed {
    only: u8,
}

/// Flattened and closed structs.
#[tool]
fn shapes(flat: Option<Flat>, closed: Option<Closed>) -> String {
    let flat = flat.map(|flat| (flat.outer, flat.inner.inner, flat.inner.also, flat.rest));
    format!("{flat:?} {:?}", closed.map(|closed| closed.only))
}

#[test]
fn flattened_fields_stand_in_the_object_itself() {
    let flat = schema::<shapes>()["properties"]["flat"].clone();
    assert_eq!(flat["required"], json!(["outer", "inner"]));
    assert_eq!(flat["properties"].as_object().unwrap().len(), 3);
    check::<shapes>(json!({"flat": {"outer": 1, "inner": 2}}), true);
    check::<shapes>(
        json!({"flat": {"outer": 1, "inner": 2, "also": null, "x": 3}}),
        true,
    );
    check::<shapes>(json!({"flat": {"outer": 1, "inner": 2, "x": 300}}), false);
    check::<shapes>(json!({"flat": {"outer": 1}}), false);
}

#[test]
fn a_closed_struct_takes_nothing_else() {
    check::<shapes>(json!({"closed": {}}), true);
    check::<shapes>(json!({"closed": {"only": 1}}), true);
    check::<shapes>(json!({"closed": {"only": 1, "more": 1}}), false);
}

/// First line,
/// second "line" with a \ and a	tab.
///
/// - a list
///     - indented
#[tool(name = "described-1")]
fn described(
    /// What is it?
    ///
    /// Say it in `words`.
    what: Described,
    whats: Vec<Described>,
) {
    let _ = (what, whats);
}

/// Said of the type.
#[args]
#[expect(dead_code, reason = "only its schema counts")]
struct Described {
    /// Said of the field: ä €
    field: u8,
}

#[test]
fn doc_comments_reach_the_model_as_they_are() {
    assert_eq!(described::DEFINITION.name, "described-1");
    assert_eq!(
        described::DEFINITION.description,
        "First line,\nsecond \"line\" with a \\ and a\ttab.\n\n- a list\n    - indented"
    );
    let schema = schema::<described>();
    let what = &schema["properties"]["what"];
    assert_eq!(what["description"], "What is it?\n\nSay it in `words`.");
    assert_eq!(
        what["properties"]["field"]["description"],
        "Said of the field: ä €"
    );
    assert_eq!(
        schema["properties"]["whats"]["items"]["description"],
        "Said of the type."
    );
}

/// Both ways.
#[args]
#[output]
#[serde(rename_all = "camelCase")]
struct Answer {
    some_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u8>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    list: Vec<Answer>,
}

/// Answers what it is given.
#[tool]
fn mirror(answer: Answer) -> Result<(String, Json<Answer>)> {
    Ok((answer.some_text.clone(), Json(answer)))
}

/// Answers with JSON of which nothing is known.
#[tool]
fn unknown() -> Json<HashMap<u8, u8>> {
    Json(HashMap::new())
}

type Alias = agentloop_sdk::Result<Json<Vec<Answer>>>;

/// Answers behind an alias.
#[tool]
fn aliased() -> Alias {
    Ok(Json(vec![]))
}

#[test]
fn a_structured_answer_fits_the_output_schema() {
    let output = serde(mirror::DEFINITION.output_schema.unwrap());
    let validator = jsonschema::draft202012::new(&output).unwrap();
    for answer in [
        json!({"someText": "a"}),
        json!({"someText": "a", "number": 3, "list": [{"someText": "b"}]}),
    ] {
        let content = mirror::call(&json!({ "answer": answer }).to_string()).unwrap();
        let [_, agentloop_sdk::Content::Json(json)] = content.as_slice() else {
            panic!("{content:?}");
        };
        assert_eq!(json, &answer);
        assert!(validator.is_valid(json));
    }
    assert!(!validator.is_valid(&json!({"some_text": "a"})));
    assert_eq!(unknown::DEFINITION.output_schema, None);
    assert_eq!(calculate::DEFINITION.output_schema, None);
    let aliased = serde(aliased::DEFINITION.output_schema.unwrap());
    assert_eq!(aliased["type"], "array");
}
