//! An HTTP client that sends exactly what it is told.

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

/// An answer, read to the end of its connection.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    fn parse(bytes: &[u8]) -> Self {
        let end = bytes
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(bytes)));
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let headers: Vec<_> = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap();
                (name.to_owned(), value.trim().to_owned())
            })
            .collect();
        let mut answer = Self {
            status: status.parse().unwrap(),
            headers,
            body: bytes[end + 4..].to_vec(),
        };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = unchunked(&answer.body);
        }
        answer
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") else {
            return whole;
        };
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        let from = end + 2;
        let to = (from + size).min(bytes.len());
        whole.extend_from_slice(&bytes[from..to]);
        if size == 0 {
            return whole;
        }
        bytes = bytes.get(to + 2..).unwrap_or_default();
    }
}

/// A request; the connection is closed after it.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// With nothing but `connection: close`; also without a Host.
    pub fn bare(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: vec![("connection".to_owned(), "close".to_owned())],
            body: Vec::new(),
        }
    }

    pub fn new(method: &str, path: &str) -> Self {
        Self::bare(method, path).header("host", "localhost")
    }

    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub fn post(path: &str, body: &Value) -> Self {
        Self::new("POST", path)
            .header("content-type", "application/json")
            .body(body.to_string())
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With its length.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        let length = self.body.len().to_string();
        self.header("content-length", &length)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }

    pub async fn send(&self, address: std::net::SocketAddr) -> Answer {
        self.send_on(TcpStream::connect(address).await.unwrap())
            .await
    }

    pub async fn send_on(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Answer {
        // A server may answer and close before it has read all; what it said still counts.
        let _ = stream.write_all(&self.bytes()).await;
        read_answer(stream).await
    }
}

/// Reads until the peer closes.
pub async fn read_answer(mut stream: impl AsyncRead + Unpin) -> Answer {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    while let Ok(n) = stream.read(&mut piece).await {
        if n == 0 {
            break;
        }
        bytes.extend_from_slice(&piece[..n]);
    }
    Answer::parse(&bytes)
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerEvent {
    pub id: u64,
    pub event: String,
    pub data: Value,
}

/// A stream of server-sent events, read as far as is asked for.
pub struct EventStream {
    stream: TcpStream,
    /// Of the body, not yet out of its chunks.
    raw: Vec<u8>,
    text: String,
}

impl EventStream {
    /// Sends the request and reads the head of its answer.
    pub async fn open(address: std::net::SocketAddr, request: &Request) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&request.bytes()).await.unwrap();
        let mut raw = Vec::new();
        let end = loop {
            if let Some(end) = raw.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            assert_ne!(stream.read_buf(&mut raw).await.unwrap(), 0);
        };
        let head = String::from_utf8(raw.drain(..end).collect()).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("text/event-stream"), "{head}");
        Self {
            stream,
            raw,
            text: String::new(),
        }
    }

    /// The next event; none once the stream has ended.
    pub async fn next(&mut self) -> Option<ServerEvent> {
        loop {
            self.take_chunks();
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                match parse_event(&block) {
                    Some(event) => return Some(event),
                    // A comment that keeps the stream open.
                    None => continue,
                }
            }
            if self.stream.read_buf(&mut self.raw).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// All events to the end of the stream.
    pub async fn rest(mut self) -> Vec<ServerEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    fn take_chunks(&mut self) {
        while let Some(end) = self.raw.windows(2).position(|window| window == b"\r\n") {
            let size = std::str::from_utf8(&self.raw[..end]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            let (from, to) = (end + 2, end + 2 + size);
            if self.raw.len() < to + 2 {
                return;
            }
            self.text
                .push_str(std::str::from_utf8(&self.raw[from..to]).unwrap());
            self.raw.drain(..to + 2);
        }
    }
}

fn parse_event(block: &str) -> Option<ServerEvent> {
    let field = |name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    Some(ServerEvent {
        id: field("id")?.parse().unwrap(),
        event: field("event")?.to_owned(),
        data: serde_json::from_str(field("data")?).unwrap(),
    })
}
