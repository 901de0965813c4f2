//! The shipped plugins, as people get them: the components inside the binary, in real sandboxes.

use std::{collections::BTreeSet, fs, path::Path, process::Command, time::Duration};

use agentloop_host::{
    capability::{Access, FolderGrant, Grants, HttpGrant, OriginPattern},
    sandbox::Sandbox,
    shipped,
    tool::{Content, Refusal, ToolOutcome},
};
use agentloop_tests::{
    guests::{self, Guest},
    servers::{Reply, Server},
};
use serde_json::{Value, json};

/// They are a workspace of their own, with tests of their plain functions beside them.
#[test]
fn they_pass_their_own_tests() {
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins");
    let output = Command::new(env!("CARGO"))
        .args(["test", "--locked", "--workspace"])
        .current_dir(workspace)
        .env(
            "CARGO_TARGET_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins"),
        )
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}\n{report}");
    let passed = report.matches("test result: ok.").count();
    assert!(passed >= shipped::PLUGINS.len(), "{talk}\n{report}");
}

async fn plugin(sandbox: &Sandbox, name: &str) -> Guest {
    Guest::load(sandbox, shipped::get(name).unwrap().wasm).await
}

async fn answer(guest: &Guest, tool: &str, input: Value) -> Vec<String> {
    match guest.call(tool, input).await.outcome {
        ToolOutcome::Answered(content) => content
            .into_iter()
            .map(|block| match block {
                Content::Text(text) => text,
                other => panic!("not text: {other:?}"),
            })
            .collect(),
        other => panic!("not an answer: {other:?}"),
    }
}

fn failure(outcome: ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Failed { message } => message,
        other => panic!("not a failure: {other:?}"),
    }
}

fn refusal(outcome: ToolOutcome) -> (String, Vec<Refusal>) {
    match outcome {
        ToolOutcome::CapabilityRefused { message, refusals } => (message, refusals),
        other => panic!("not a refusal: {other:?}"),
    }
}

fn folder(path: &std::path::Path, guest_path: &str, access: Access) -> FolderGrant {
    FolderGrant {
        host_path: path.canonicalize().unwrap(),
        guest_path: guest_path.into(),
        access,
    }
}

fn origin(pattern: &str, methods: &[&str]) -> HttpGrant {
    HttpGrant {
        origin: OriginPattern::parse(pattern).unwrap(),
        methods: methods.iter().map(|&method| method.into()).collect(),
    }
}

#[tokio::test]
async fn their_tools_have_names_and_words_of_their_own() {
    let sandbox = guests::sandbox();
    let mut names = BTreeSet::new();
    for shipped in shipped::PLUGINS {
        let guest = plugin(&sandbox, shipped.name).await;
        assert!(guest.component.set_aside().is_empty(), "{}", shipped.name);
        for definition in guest.component.definitions() {
            let name = definition.name.to_string();
            assert!(definition.description.len() > 30, "{name}");
            assert!(
                definition
                    .requests
                    .iter()
                    .all(|request| !request.reason.is_empty()),
                "{name}"
            );
            assert!(names.insert(name.clone()), "two tools are called {name}");
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "calculate",
            "convert_time",
            "convert_units",
            "edit_file",
            "fetch",
            "get_weather",
            "list_files",
            "nap",
            "now",
            "query_json",
            "read_file",
            "search_files",
            "spin",
            "time_between",
            "write_file",
        ]
    );
}

#[tokio::test]
async fn calc_calculates() {
    let calc = plugin(&guests::sandbox(), "calc").await;
    assert_eq!(
        calc.text("calculate", json!({"expression": "2/3"})).await,
        "approx. 0.666667"
    );
    assert_eq!(
        calc.text("calculate", json!({"expression": "2^100", "precision": 2}))
            .await,
        "1267650600228229401496703205376"
    );
    assert_eq!(
        calc.text(
            "convert_units",
            json!({"value": 5, "from": "ft", "to": "m"})
        )
        .await,
        "1.524 m"
    );
}

#[tokio::test]
async fn calc_gives_up_on_what_grows_without_bound() {
    let calc = plugin(&guests::sandbox(), "calc").await;
    let said = failure(
        calc.call("calculate", json!({"expression": "10^10^10"}))
            .await
            .outcome,
    );
    assert!(said.contains("too large"), "{said}");
}

#[tokio::test]
async fn calc_has_stack_for_all_that_it_takes() {
    let calc = plugin(&guests::sandbox(), "calc").await;
    let nested = format!("{}1{}", "(".repeat(64), ")".repeat(64));
    for expression in [
        nested,
        "1+".repeat(499) + "1",
        "2-".repeat(499) + "1",
        "1^".repeat(499) + "1",
        "-".repeat(999) + "1",
        "sqrt ".repeat(199) + "1",
    ] {
        answer(&calc, "calculate", json!({ "expression": expression })).await;
    }
}

#[tokio::test]
async fn clock_knows_the_time_and_its_zones() {
    let clock = plugin(&guests::sandbox(), "clock").await;
    let now = clock.text("now", json!({"timezone": "Asia/Kolkata"})).await;
    assert!(now.ends_with("+05:30[Asia/Kolkata]"), "{now}");
    let input = json!({"time": "2026-07-01 12:00", "from": "Europe/Berlin", "to": "UTC"});
    let there = clock.text("convert_time", input).await;
    assert!(there.ends_with("2026-07-01T10:00:00+00:00[UTC]"), "{there}");
    let input = json!({"a": "2026-01-01", "b": "2026-01-02"});
    assert_eq!(
        clock.text("time_between", input).await,
        "1d (86400 seconds)"
    );
}

#[tokio::test]
async fn json_is_queried() {
    let json = plugin(&guests::sandbox(), "json").await;
    let input = json!({"json": "{\"b\": [1, 2.5], \"a\": 12345678901234567890}", "filter": ".a, (.b | add), (env | length)"});
    assert_eq!(
        json.text("query_json", input).await,
        "12345678901234567890\n3.5\n0"
    );
}

#[tokio::test]
async fn json_has_stack_for_all_that_it_takes() {
    let json = plugin(&guests::sandbox(), "json").await;
    let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
    let query = async |filter: &str| {
        answer(&json, "query_json", json!({"json": deep, "filter": filter})).await
    };
    let filters = [
        ".".to_owned(),
        "[..] | length".to_owned(),
        "tojson | fromjson | flatten".to_owned(),
        deep.clone(),
        format!("{}1{}", "(".repeat(128), ")".repeat(128)),
        ".[]?|".repeat(200) + ".",
        "1+".repeat(500) + "1",
    ];
    for filter in filters {
        query(&filter).await;
    }
}

#[tokio::test]
async fn files_are_worked_with_in_granted_folders() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("My Data [v1] {x} 100%25 ünï");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("tea.txt"), "green\nblack\n").unwrap();
    let mut files = plugin(&guests::sandbox(), "files").await;
    files.grants.folders = vec![folder(&data, "/data dir", Access::Write)];

    let call = async |tool: &str, input: Value| answer(&files, tool, input).await.join("|");
    assert_eq!(call("list_files", json!({})).await, "/data dir/\n");
    assert_eq!(
        call("list_files", json!({"path": "/data dir"})).await,
        "/data dir/tea.txt (12 bytes)"
    );
    assert_eq!(
        call(
            "read_file",
            json!({"path": "/data dir/tea.txt", "max_lines": 1})
        )
        .await,
        "green\n|[lines 1 to 1 of 2; go on with start_line = 2]"
    );
    assert_eq!(
        call("search_files", json!({"pattern": "b.ack", "regex": true})).await,
        "/data dir/tea.txt:2: black\n[matching lines: 1, files searched: 1]"
    );
    let path = "/data dir/new/note [1].md";
    call("write_file", json!({"path": path, "text": "one\ntwo\n"})).await;
    call("edit_file", json!({"path": path, "old": "two", "new": "2"})).await;
    call(
        "write_file",
        json!({"path": "/data dir/tea.txt", "text": "white\n", "overwrite": true}),
    )
    .await;
    assert_eq!(
        fs::read_to_string(data.join("new/note [1].md")).unwrap(),
        "one\n2\n"
    );
    assert_eq!(fs::read_to_string(data.join("tea.txt")).unwrap(), "white\n");
    assert_eq!(
        fs::read_dir(&data).unwrap().count(),
        2,
        "nothing is left behind"
    );
    let said = failure(
        files
            .call("read_file", json!({"path": "/data dir/none"}))
            .await
            .outcome,
    );
    assert!(said.contains("`/data dir/none` does not exist"), "{said}");
}

#[tokio::test]
async fn files_without_a_folder_say_what_they_lack() {
    let files = plugin(&guests::sandbox(), "files").await;
    for (tool, input) in [
        ("list_files", json!({})),
        ("read_file", json!({"path": "/notes/a"})),
        ("search_files", json!({"pattern": "x"})),
        ("write_file", json!({"path": "/notes/a", "text": ""})),
        (
            "edit_file",
            json!({"path": "/notes/a", "old": "a", "new": "b"}),
        ),
    ] {
        let (message, refusals) = refusal(files.call(tool, input).await.outcome);
        assert!(
            message.contains("no folder is granted"),
            "{tool}: {message}"
        );
        assert_eq!(refusals.len(), 1, "{tool}: {refusals:?}");
    }
}

#[tokio::test]
async fn files_leave_no_folder_and_write_to_none_that_is_for_reading() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("in")).unwrap();
    fs::write(dir.path().join("in/a"), "a").unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    let mut files = plugin(&guests::sandbox(), "files").await;
    files.grants.folders = vec![folder(&dir.path().join("in"), "/in", Access::Read)];
    for (tool, input) in [
        ("write_file", json!({"path": "/in/b", "text": "b"})),
        ("write_file", json!({"path": "/in/x/b", "text": "b"})),
        (
            "write_file",
            json!({"path": "/in/a", "text": "b", "overwrite": true}),
        ),
        (
            "edit_file",
            json!({"path": "/in/a", "old": "a", "new": "b"}),
        ),
        ("read_file", json!({"path": "/in/../secret"})),
        ("read_file", json!({"path": "/secret"})),
    ] {
        let outcome = files.call(tool, input.clone()).await.outcome;
        assert!(
            !matches!(outcome, ToolOutcome::Answered(_)),
            "{tool} {input}: {outcome:?}"
        );
        assert_eq!(
            fs::read_to_string(dir.path().join("in/a")).unwrap(),
            "a",
            "{tool} {input}"
        );
    }
    assert_eq!(fs::read_dir(dir.path().join("in")).unwrap().count(), 1);
    // A tool that only reads is given no more, whatever the grant says.
    files.grants.folders[0].access = Access::Write;
    answer(&files, "read_file", json!({"path": "/in/a"})).await;
    answer(&files, "write_file", json!({"path": "/in/b", "text": "b"})).await;
}

#[cfg(unix)]
#[tokio::test]
async fn files_do_not_follow_links_out_of_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("in")).unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", dir.path().join("in/link")).unwrap();
    std::os::unix::fs::symlink("..", dir.path().join("in/up")).unwrap();
    let mut files = plugin(&guests::sandbox(), "files").await;
    files.grants.folders = vec![folder(&dir.path().join("in"), "/in", Access::Write)];
    let list = answer(&files, "list_files", json!({"path": "/in", "depth": 5})).await;
    assert_eq!(list, ["/in/link (a link)\n/in/up (a link)"]);
    let found = answer(&files, "search_files", json!({"pattern": "secret"})).await;
    assert_eq!(found, ["\n[matching lines: 0, files searched: 0]"]);
    for (tool, input) in [
        ("read_file", json!({"path": "/in/link"})),
        ("read_file", json!({"path": "/in/up/secret"})),
        ("list_files", json!({"path": "/in/up"})),
        (
            "write_file",
            json!({"path": "/in/link", "text": "x", "overwrite": true}),
        ),
        (
            "write_file",
            json!({"path": "/in/up/secret", "text": "x", "overwrite": true}),
        ),
        (
            "edit_file",
            json!({"path": "/in/up/secret", "old": "secret", "new": "x"}),
        ),
    ] {
        let outcome = files.call(tool, input.clone()).await.outcome;
        assert!(
            !matches!(outcome, ToolOutcome::Answered(_)),
            "{tool} {input}: {outcome:?}"
        );
        assert_eq!(
            fs::read_to_string(dir.path().join("secret")).unwrap(),
            "secret"
        );
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn files_leave_out_names_that_are_not_text() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "tea").unwrap();
    fs::write(dir.path().join(OsStr::from_bytes(b"b\xff")), "tea").unwrap();
    fs::write(dir.path().join("c"), "tea").unwrap();
    let mut files = plugin(&guests::sandbox(), "files").await;
    files.grants.folders = vec![folder(dir.path(), "/in", Access::Read)];
    let list = answer(&files, "list_files", json!({"path": "/in"})).await;
    assert_eq!(
        list,
        ["/in/a (3 bytes)\n/in/c (3 bytes)\n[names left out since they are not UTF-8: 1]"]
    );
}

#[tokio::test]
async fn pages_are_fetched_from_granted_origins() {
    let server = Server::start(|received| {
        let html = [("content-type", "text/html; charset=utf-8")];
        match received.target.as_str() {
            "/tea" => Reply::whole(
                200,
                &html,
                "<title>Tea</title><p>Green &amp; <a href='/b'>black</a></p>",
            ),
            "/deep" => Reply::whole(200, &html, "<div>".repeat(2_000) + "deep"),
            "/large" => Reply::whole(200, &html, "<p>a <b>b</b></p>".repeat(60_000)),
            "/moved" => Reply::whole(302, &[("location", "/tea")], ""),
            "/echo" => Reply::text(&format!(
                "{} {}",
                received.method,
                String::from_utf8_lossy(&received.body)
            )),
            _ => Reply::whole(404, &[], "no such page"),
        }
    })
    .await;
    let mut fetch = plugin(&guests::sandbox(), "fetch").await;
    fetch.grants.http = vec![origin(&server.origin(), &["GET", "POST"])];
    let get = async |path: &str| answer(&fetch, "fetch", json!({"url": server.url(path)})).await;

    let page = get("/tea").await;
    assert!(page[0].starts_with("status 200 from "), "{page:?}");
    assert_eq!(page[1], "Tea\n\nGreen & [black][1]\n\n[1]: /b\n");
    assert!(get("/moved").await[0].contains("/tea"));
    assert!(get("/deep").await[1].contains("deep"));
    let large = get("/large").await;
    assert!(large[2].contains("go on with start"), "{}", large[2]);
    let missing = get("/x").await;
    assert!(
        missing[0].starts_with("status 404 ") && missing[1] == "no such page",
        "{missing:?}"
    );
    let posted = answer(
        &fetch,
        "fetch",
        json!({"url": server.url("/echo"), "method": "POST", "body": "hot"}),
    )
    .await;
    assert_eq!(posted[1], "POST hot");
}

#[tokio::test]
async fn fetch_tells_what_was_refused_from_what_is_not_there() {
    let elsewhere = Server::start(|_| Reply::text("secret")).await;
    let target = elsewhere.url("/");
    let server =
        Server::start(move |_| Reply::whole(302, &[("location", target.as_str())], "")).await;
    let mut fetch = plugin(&guests::sandbox(), "fetch").await;
    let call = async |fetch: &Guest, url: String, method: &str| {
        fetch
            .call("fetch", json!({"url": url, "method": method}))
            .await
            .outcome
    };
    let (message, refusals) = refusal(call(&fetch, server.url("/"), "GET").await);
    assert!(message.contains("was not granted"), "{message}");
    assert!(
        refusals[0].remedy.contains(&server.origin()),
        "{refusals:?}"
    );

    fetch.grants.http = vec![origin(&server.origin(), &[])];
    refusal(call(&fetch, server.url("/"), "POST").await);
    // A redirect is a request of its own.
    let (_, refusals) = refusal(call(&fetch, server.url("/"), "GET").await);
    assert!(
        refusals[0].attempted.contains(&elsewhere.origin()),
        "{refusals:?}"
    );
    assert_eq!(elsewhere.requests().len(), 0);

    // Held, so that nobody else listens there.
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = format!("http://{}", silent.local_addr().unwrap());
    fetch.grants.http = vec![origin(&gone, &[])];
    let said = failure(call(&fetch, gone, "GET").await);
    assert!(said.contains("refuses connections"), "{said}");
}

#[tokio::test]
async fn weather_needs_its_origins() {
    let mut weather = plugin(&guests::sandbox(), "weather").await;
    let (message, refusals) = refusal(
        weather
            .call("get_weather", json!({"city": "Lisbon"}))
            .await
            .outcome,
    );
    assert!(
        message.contains("https://geocoding-api.open-meteo.com"),
        "{message}"
    );
    assert!(
        refusals[0]
            .remedy
            .contains("https://geocoding-api.open-meteo.com"),
        "{refusals:?}"
    );
    // What it does not request can't be granted.
    weather.grants = Grants {
        http: vec![origin("https://example.org", &[])],
        ..Grants::default()
    };
    refusal(
        weather
            .call("get_weather", json!({"city": "Lisbon"}))
            .await
            .outcome,
    );
}

#[tokio::test]
async fn demo_spins_until_it_is_stopped_and_naps_as_long_as_it_says() {
    let mut demo = plugin(&guests::sandbox(), "demo").await;
    let own = |tool: &str| {
        let definitions = demo.component.definitions().iter();
        definitions
            .filter(|d| d.name.as_str() == tool)
            .find_map(|d| d.timeout)
    };
    assert_eq!(own("spin"), Some(Duration::from_secs(1)));
    demo.limits.timeout = Some(Duration::from_millis(200));
    let ending = demo.call("spin", json!({})).await;
    assert!(
        matches!(ending.outcome, ToolOutcome::TimedOut { .. }),
        "{:?}",
        ending.outcome
    );

    demo.limits.timeout = None;
    assert_eq!(demo.text("nap", json!({"ms": 20})).await, "slept for 20 ms");
    let reports = demo.heard.reports();
    assert_eq!(reports.len(), 10);
    assert_eq!(reports[9], (20.0, Some(20.0), Some("asleep".into())));
}
