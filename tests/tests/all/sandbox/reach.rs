//! What guests reach: what was requested and granted, and nothing else.

use std::{fs, path::Path};

use agentloop_host::{
    capability::{
        Access, Capability, EnvironmentGrant, FolderGrant, Grants, HttpGrant, OriginPattern,
    },
    tool::ToolOutcome,
};
use agentloop_tests::{
    guests::{self, Guest},
    servers::{Reply, Server},
};
use serde_json::json;

pub(crate) fn folder(host: &Path, guest: &str, access: Access) -> Grants {
    Grants {
        folders: vec![FolderGrant {
            host_path: host.canonicalize().unwrap(),
            guest_path: guest.to_owned(),
            access,
        }],
        ..Grants::default()
    }
}

pub(crate) fn origin(origin: &str) -> Grants {
    Grants {
        http: vec![HttpGrant {
            origin: OriginPattern::parse(origin).unwrap(),
            methods: Vec::new(),
        }],
        ..Grants::default()
    }
}

/// B38. The test's own process has variables enough.
#[tokio::test]
async fn the_environment_is_what_was_granted() {
    assert!(std::env::vars().count() > 1);
    let mut helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    assert_eq!(
        helpful.text("environment", json!({})).await,
        r#"|[]|Ok("")"#
    );
    let variable = |name: &str, value: &str| EnvironmentGrant {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    // Granted but not asked for: not there.
    helpful.grants.environment = vec![variable("FOO", "f1"), variable("ANTHROPIC_API_KEY", "k1")];
    assert_eq!(
        helpful.text("environment", json!({})).await,
        r#"FOO=f1|[]|Ok("")"#
    );
}

#[tokio::test]
async fn without_a_grant_there_are_no_files() {
    let hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    for path in [
        "/etc/passwd",
        "/",
        ".",
        "..",
        "etc/passwd",
        "/proc/self/environ",
        "",
    ] {
        for what in ["read", "list", "write", "create_dir"] {
            let ending = hostile
                .call("try_files", json!({ "what": what, "from": path }))
                .await;
            assert!(
                matches!(&ending.outcome, ToolOutcome::CapabilityRefused { refusals, .. } if refusals.len() == 1),
                "{what} {path}: {ending:?}"
            );
        }
    }
}

/// RUSTSEC-2026-0149, 0188.
#[tokio::test]
async fn a_folder_granted_for_reading_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (ro, rw) = (dir.path().join("ro"), dir.path().join("rw"));
    fs::create_dir(&ro).unwrap();
    fs::create_dir(&rw).unwrap();
    fs::write(ro.join("f"), "original").unwrap();
    fs::write(dir.path().join("outside"), "secret").unwrap();
    let mut grants = folder(&ro, "/ro", Access::Read);
    grants
        .folders
        .extend(folder(&rw, "/rw", Access::Write).folders);
    let mut hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    hostile.grants = grants;
    let attempt = async |what: &str, from: &str, to: &str| {
        let input = json!({ "what": what, "from": from, "to": to });
        hostile.call("try_files", input).await.outcome
    };
    assert_eq!(
        guests::text(&attempt("read", "/ro/f", "").await),
        "original"
    );
    for (what, from, to) in [
        ("write", "/ro/f", ""),
        ("append", "/ro/f", ""),
        ("truncate", "/ro/f", ""),
        ("set_len", "/ro/f", ""),
        ("create", "/ro/new", ""),
        ("create_dir", "/ro/new", ""),
        ("remove", "/ro/f", ""),
        ("rename", "/ro/f", "/ro/g"),
        ("rename", "/ro/f", "/rw/g"),
        ("link", "/ro/f", "/ro/g"),
        // A second name in a folder that can be written would open the file itself for writing.
        ("link", "/ro/f", "/rw/g"),
        ("rename", "/rw/../ro/f", "/rw/g"),
        ("read", "/ro/../outside", ""),
        ("read", "/rw/../outside", ""),
        ("read", "/ro/../../etc/passwd", ""),
        ("write", "/rw/../outside", ""),
    ] {
        let outcome = attempt(what, from, to).await;
        assert!(
            matches!(
                outcome,
                ToolOutcome::Failed { .. } | ToolOutcome::CapabilityRefused { .. }
            ),
            "{what} {from} {to}: {outcome:?}"
        );
        assert_eq!(
            fs::read_to_string(ro.join("f")).unwrap(),
            "original",
            "{what} {from} {to}"
        );
        assert_eq!(fs::read_dir(&ro).unwrap().count(), 1, "{what} {from} {to}");
        assert_eq!(fs::read_dir(&rw).unwrap().count(), 0, "{what} {from} {to}");
        assert_eq!(
            fs::read_to_string(dir.path().join("outside")).unwrap(),
            "secret"
        );
    }
    assert_eq!(
        guests::text(&attempt("write", "/rw/g", "").await),
        "written"
    );
    assert_eq!(fs::read_to_string(rw.join("g")).unwrap(), "changed");
    assert_eq!(
        guests::text(&attempt("rename", "/rw/g", "/rw/h").await),
        "renamed"
    );
    assert_eq!(
        guests::text(&attempt("remove", "/rw/h", "").await),
        "removed"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn links_lead_nowhere_else() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    fs::create_dir_all(open.join("sub")).unwrap();
    fs::write(dir.path().join("outside"), "secret").unwrap();
    fs::write(open.join("inside"), "fine").unwrap();
    symlink("../outside", open.join("relative")).unwrap();
    symlink(dir.path().join("outside"), open.join("absolute")).unwrap();
    symlink(dir.path(), open.join("folder")).unwrap();
    symlink("sub/../../outside", open.join("winding")).unwrap();
    symlink("inside", open.join("good")).unwrap();
    let mut hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    hostile.grants = folder(&open, "/open", Access::Write);
    for path in [
        "/open/relative",
        "/open/absolute",
        "/open/folder/outside",
        "/open/winding",
    ] {
        for what in ["read", "write", "append", "truncate"] {
            let ending = hostile
                .call("try_files", json!({ "what": what, "from": path }))
                .await;
            assert!(
                matches!(ending.outcome, ToolOutcome::Failed { .. }),
                "{what} {path}: {ending:?}"
            );
        }
    }
    assert_eq!(
        fs::read_to_string(dir.path().join("outside")).unwrap(),
        "secret"
    );
    assert_eq!(
        hostile
            .text("try_files", json!({ "what": "read", "from": "/open/good" }))
            .await,
        "fine"
    );
}

/// B34.
#[tokio::test]
async fn folders_may_have_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let name = "My Data [v1] {x} 100%25 ünï * ~";
    let host = dir.path().join(name);
    fs::create_dir(&host).unwrap();
    fs::write(host.join("a b%20[c].txt"), "found").unwrap();
    let mut helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    for guest in ["/data", "/da ta/[x] 100%25 ü", "/"] {
        helpful.grants = folder(&host, guest, Access::Write);
        let path = |file: &str| format!("{}/{file}", guest.trim_end_matches('/'));
        let read = helpful
            .text("read", json!({ "path": path("a b%20[c].txt") }))
            .await;
        assert_eq!(read, "found", "{guest}");
        let written = helpful
            .text("write", json!({ "path": path("new [1]"), "text": "t" }))
            .await;
        assert_eq!(written, "written");
        assert_eq!(fs::read_to_string(host.join("new [1]")).unwrap(), "t");
    }
}

/// A name that is not UTF-8 hides no other file and harms nobody.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_name_that_is_not_utf8_is_an_error_of_the_listing() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(OsStr::from_bytes(b"bad\xff")), "x").unwrap();
    fs::write(dir.path().join("good"), "fine").unwrap();
    let mut helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    helpful.grants = folder(dir.path(), "/data", Access::Read);
    let listed = helpful.call("list", json!({ "path": "/data" })).await;
    assert!(
        matches!(
            listed.outcome,
            ToolOutcome::Failed { .. } | ToolOutcome::Answered(_)
        ),
        "{listed:?}"
    );
    assert_eq!(
        helpful.text("read", json!({ "path": "/data/good" })).await,
        "fine"
    );
}

#[tokio::test]
async fn a_missing_folder_is_named_with_its_remedy() {
    let helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    let ending = helpful.call("notes", json!({})).await;
    let ToolOutcome::CapabilityRefused { refusals, .. } = &ending.outcome else {
        panic!("{ending:?}")
    };
    let [refusal] = &refusals[..] else {
        panic!("{refusals:?}")
    };
    assert_eq!(
        refusal.missing,
        Capability::Folder {
            path: "/notes".into(),
            access: Access::Read
        }
    );
    assert!(refusal.requested);
    assert!(
        refusal.remedy.contains("[grants.guest]"),
        "{}",
        refusal.remedy
    );
    assert!(
        refusal.remedy.contains(r#"as = "/notes""#),
        "{}",
        refusal.remedy
    );

    // Granted, and the file is not there: an error like any other.
    let dir = tempfile::tempdir().unwrap();
    let granted = Guest {
        grants: folder(dir.path(), "/notes", Access::Read),
        ..helpful
    };
    let ending = granted.call("notes", json!({})).await;
    assert!(
        matches!(ending.outcome, ToolOutcome::Failed { .. }),
        "{ending:?}"
    );
}

#[tokio::test]
async fn a_granted_folder_that_is_gone_is_the_operators_fault() {
    let dir = tempfile::tempdir().unwrap();
    let mut helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    helpful.grants = folder(dir.path(), "/notes", Access::Read);
    let host_path = dir.path().display().to_string();
    drop(dir);
    let ending = helpful.call("notes", json!({})).await;
    let ToolOutcome::Internal { why } = &ending.outcome else {
        panic!("{ending:?}")
    };
    assert!(why.contains("/notes") && !why.contains(&host_path), "{why}");
}

#[tokio::test]
async fn requests_leave_through_the_host_alone() {
    let server = Server::start(|_| Reply::text("a page")).await;
    let sandbox = guests::sandbox();
    let mut helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    let url = json!({ "url": server.url("/page") });

    let refused = helpful.call("fetch", url.clone()).await;
    let ToolOutcome::CapabilityRefused { refusals, .. } = &refused.outcome else {
        panic!("{refused:?}")
    };
    assert!(refusals[0].requested);
    assert!(
        refusals[0].remedy.contains("[grants.guest]"),
        "{}",
        refusals[0].remedy
    );
    assert!(
        refusals[0].remedy.contains(&server.origin()),
        "{}",
        refusals[0].remedy
    );

    helpful.grants = origin(&server.origin());
    assert_eq!(helpful.text("fetch", url.clone()).await, "a page");

    // Granted, but this tool did not ask for it.
    let refused = helpful.call("fetch_elsewhere", url).await;
    let ToolOutcome::CapabilityRefused { refusals, .. } = &refused.outcome else {
        panic!("{refused:?}")
    };
    assert!(!refusals[0].requested);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn there_are_no_sockets() {
    let server = Server::start(|_| Reply::text("a page")).await;
    let hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    for address in [
        server.address().to_string(),
        format!("localhost:{}", server.address().port()),
    ] {
        let ending = hostile.call("connect", json!({ "address": address })).await;
        assert!(
            matches!(ending.outcome, ToolOutcome::Failed { .. }),
            "{ending:?}"
        );
    }
    assert_eq!(server.connections(), 0);
}
