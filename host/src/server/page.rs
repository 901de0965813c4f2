//! The page: what a person sees of runs, approvals and tools in a browser.
//!
//! A screen is a shell without any data. Its script asks the same routes below `/v1` that every client asks, and
//! puts what it gets into the page as text, never as markup: `page/kit.js` is the only place that makes elements,
//! and the policy below makes a browser refuse everything else.
//!
//! | file | |
//! |---|---|
//! | [`sign_in`] | the token, shown once, becomes a session |
//! | `settings` | what holds here, as the server itself tells it |
//! | `*.html` | askama templates, compiled in |
//! | `*.js`, `style.css` | served as they are, from inside the binary |

mod settings;
pub(super) mod sign_in;

use std::sync::Arc;

use askama::Template;
use axum::{
    Router,
    response::{IntoResponse as _, Response},
    routing::get,
};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};

pub(super) use self::settings::SettingLines;
use super::{Shared, problem::Problem};

/// Only what this server itself serves, no inline script or style, in nobody's frame; and no way from a string to
/// markup or code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, type, content. Everybody may have them: they say nothing of what runs here.
const ASSETS: [(&str, &str, &str); 9] = [
    (
        "/page/style.css",
        "text/css; charset=utf-8",
        include_str!("page/style.css"),
    ),
    ("/page/kit.js", JAVASCRIPT, include_str!("page/kit.js")),
    ("/page/runs.js", JAVASCRIPT, include_str!("page/runs.js")),
    ("/page/run.js", JAVASCRIPT, include_str!("page/run.js")),
    (
        "/page/timeline.js",
        JAVASCRIPT,
        include_str!("page/timeline.js"),
    ),
    (
        "/page/approvals.js",
        JAVASCRIPT,
        include_str!("page/approvals.js"),
    ),
    ("/page/tools.js", JAVASCRIPT, include_str!("page/tools.js")),
    ("/page/begin.js", JAVASCRIPT, include_str!("page/begin.js")),
    (
        "/page/settings.js",
        JAVASCRIPT,
        include_str!("page/settings.js"),
    ),
];

/// A screen that its script fills.
#[derive(Template)]
#[template(path = "screen.html")]
struct Screen {
    title: &'static str,
    /// Its place in the navigation, and the name of its script.
    name: &'static str,
    has_sign_out: bool,
}

pub(super) fn routes() -> Router<Arc<Shared>> {
    let mut router = Router::new()
        .route("/", screen("Runs", "runs"))
        .route("/runs/{id}", screen("Run", "run"))
        .route("/approvals", screen("Approvals", "approvals"))
        .route("/tools", screen("Tools", "tools"))
        .route("/begin", screen("Start a run", "begin"))
        .route("/settings", get(settings::show))
        .route("/sign-in", get(sign_in::ask).post(sign_in::sign_in))
        .route("/sign-out", axum::routing::post(sign_in::sign_out));
    for (path, media_type, content) in ASSETS {
        let answer = move || async move { ([(header::CONTENT_TYPE, media_type)], content) };
        router = router.route(path, get(answer));
    }
    router
}

fn screen(title: &'static str, name: &'static str) -> axum::routing::MethodRouter<Arc<Shared>> {
    get(
        move |axum::extract::State(shared): axum::extract::State<Arc<Shared>>| async move {
            let screen = Screen {
                title,
                name,
                has_sign_out: shared.access.has_token(),
            };
            html(StatusCode::OK, &screen)
        },
    )
}

/// What everybody may load, so that a person without a session can get one.
pub(super) fn is_public(path: &str) -> bool {
    path == "/sign-in" || ASSETS.iter().any(|(asset, ..)| *asset == path)
}

/// Whether a session is as good as the token here: on the page itself, and where its scripts ask.
pub(super) fn takes_session(path: &str) -> bool {
    is_screen(path)
        || path == "/sign-out"
        || path == "/metrics"
        || path == "/openapi.json"
        || path.starts_with("/v1/")
}

/// Whether a person can be at this path, so that they are led to the door rather than told of a missing token.
fn is_screen(path: &str) -> bool {
    let is_run = path
        .strip_prefix("/runs/")
        .is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric()));
    is_run || ["/", "/approvals", "/tools", "/begin", "/settings"].contains(&path)
}

/// Where a person goes whose browser asks for a screen without a session.
pub(super) fn way_in(method: &Method, path: &str) -> Option<Response> {
    let wants_screen = is_screen(path) && [Method::GET, Method::HEAD].contains(method);
    wants_screen.then(|| see_other(&format!("/sign-in?to={path}")))
}

fn html(status: StatusCode, template: &impl Template) -> Response {
    let Ok(text) = template.render() else {
        return Problem::internal().into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // Without it a browser hides the origin of forms, and the door refuses them.
        (header::REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ];
    (status, headers, text).into_response()
}

fn see_other(path: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    if let Ok(path) = HeaderValue::from_str(path) {
        response.headers_mut().insert(header::LOCATION, path);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_make_no_markup_of_text_and_run_no_strings() {
        for (path, media_type, content) in ASSETS {
            if media_type != JAVASCRIPT {
                continue;
            }
            for way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "DOMParser",
                "createContextualFragment",
                "eval(",
                "Function(",
                "srcdoc",
                "localStorage",
                "document.cookie",
            ] {
                assert!(!content.contains(way), "{path} has {way}");
            }
            let makes_elements = content.contains("createElement");
            assert_eq!(makes_elements, path == "/page/kit.js", "{path}");
        }
    }

    #[test]
    fn only_screens_lead_to_the_door() {
        for path in ["/", "/approvals", "/runs/0123abcd"] {
            assert!(way_in(&Method::GET, path).is_some(), "{path}");
            assert!(way_in(&Method::POST, path).is_none(), "{path}");
        }
        for path in [
            "/v1/runs",
            "/runs/",
            "/runs/a/b",
            "/runs/%0d",
            "//evil",
            "/mcp",
        ] {
            assert!(way_in(&Method::GET, path).is_none(), "{path}");
        }
        assert!(!takes_session("/mcp") && !is_public("/page/../v1/runs"));
    }
}
