//! A web server that knows nothing of tools.

use wasip2::{
    exports::http::incoming_handler::Guest,
    http::types::{
        ErrorCode, Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
    },
};

struct Server;

wasip2::http::proxy::export!(Server);

impl Guest for Server {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let path = request.path_with_query().unwrap_or_default();
        match path.as_str() {
            "/never" => {}
            "/panic" => panic!("boom in the server"),
            "/error" => ResponseOutparam::set(out, Err(ErrorCode::InternalError(None))),
            "/flood" => respond(out, 200, std::iter::repeat_n("x".repeat(4096), 1 << 20)),
            _ => {
                let body = body(&request);
                let agent = request.headers().get("x-who");
                let who = agent
                    .first()
                    .map_or_else(String::new, |who| String::from_utf8_lossy(who).into_owned());
                let status = if path == "/missing" { 404 } else { 200 };
                let text = format!("{:?} {path} {who} {body}", request.method());
                respond(out, status, std::iter::once(text));
            }
        }
    }
}

fn body(request: &IncomingRequest) -> String {
    let Ok(body) = request.consume() else {
        return String::new();
    };
    let Ok(stream) = body.stream() else {
        return String::new();
    };
    let mut bytes = Vec::new();
    while let Ok(more) = stream.blocking_read(4096) {
        bytes.extend(more);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn respond(out: ResponseOutparam, status: u16, parts: impl Iterator<Item = String>) {
    let headers = Fields::new();
    let _ = headers.set("content-type", &[b"text/plain".to_vec()]);
    let response = OutgoingResponse::new(headers);
    let _ = response.set_status_code(status);
    let body = response.body().expect("the body is there once");
    ResponseOutparam::set(out, Ok(response));
    let stream = body.write().expect("the stream is there once");
    for part in parts {
        for piece in part.as_bytes().chunks(4096) {
            if stream.blocking_write_and_flush(piece).is_err() {
                return;
            }
        }
    }
    drop(stream);
    let _ = OutgoingBody::finish(body, None);
}
