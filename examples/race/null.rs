//! An Elasticsearch that does nothing: documents and placements are answered at once, as written and as not found. What it
//! cannot make up (indices, geofold's own records) it asks the real one for. What is left of a race against it is what
//! geofold itself can do.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use memchr::memmem;
use reqwest::header::CONTENT_TYPE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// It answers as long as this lives.
pub struct NullElasticsearch {
    url: String,
    _runtime: Runtime,
}

impl NullElasticsearch {
    /// Listens on a free port of loopback; `real` is asked what this does not know.
    pub fn start(real: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))))?;
        let url = format!("http://{}", listener.local_addr()?);
        let real = Real { url: real.to_owned(), http: reqwest::Client::new() };
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, real.clone()));
            }
        });
        Ok(Self { url, _runtime: runtime })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }
}

#[derive(Clone)]
struct Real {
    url: String,
    http: reqwest::Client,
}

/// One connection, request after request, until either side has enough.
async fn serve(mut stream: TcpStream, real: Real) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut received = Vec::new();
    loop {
        let (head_bytes, body_bytes) = loop {
            if let Some(end) = memmem::find(&received, b"\r\n\r\n") {
                break (end + 4, content_length(&received[..end])?);
            }
            if stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        };
        received.reserve((head_bytes + body_bytes).saturating_sub(received.len()));
        while received.len() < head_bytes + body_bytes {
            if stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        }
        let head = std::str::from_utf8(&received[..head_bytes])?;
        let request = Request { head, body: &received[head_bytes..head_bytes + body_bytes] };
        let (status, answer) = match request.made_up() {
            Some(answer) => (200, answer),
            None => request.by(&real).await?,
        };
        let has_body = !head.starts_with("HEAD ");
        let mut response = format!(
            "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        )
        .into_bytes();
        if has_body {
            response.extend_from_slice(&answer);
        }
        stream.write_all(&response).await?;
        received.drain(..head_bytes + body_bytes);
    }
}

fn content_length(head: &[u8]) -> Result<usize> {
    let head = std::str::from_utf8(head)?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    Ok(length.transpose()?.unwrap_or(0))
}

struct Request<'a> {
    /// Request line and headers.
    head: &'a str,
    body: &'a [u8],
}

impl Request<'_> {
    /// The answer, if none of geofold's own records is asked for.
    fn made_up(&self) -> Option<Vec<u8>> {
        let first = &self.body[..self.body.len().min(200)];
        if memmem::find(first, b"-meta\"").is_some() {
            return None;
        }
        if self.head.starts_with("POST /_bulk") {
            let item: &[u8] = match self.head.contains("_seq_no") {
                true => br#"{"index":{"_seq_no":1,"_primary_term":1,"status":200}}"#,
                false => br#"{"index":{"status":200}}"#,
            };
            return Some(list(br#"{"errors":false,"items":["#, item, operations(self.body)));
        }
        if self.head.starts_with("POST /_mget") {
            let asked = memmem::find_iter(self.body, b"\"_id\":").count();
            return Some(list(br#"{"docs":["#, br#"{"_index":"-","_id":"-","found":false}"#, asked));
        }
        None
    }

    async fn by(&self, real: &Real) -> Result<(u16, Vec<u8>)> {
        let mut line = self.head.split(' ');
        let method = line.next().context("a method")?.parse()?;
        let path = line.next().context("a path")?;
        let kind = if path.starts_with("/_bulk") { "application/x-ndjson" } else { "application/json" };
        let mut request = real.http.request(method, format!("{}{path}", real.url));
        if !self.body.is_empty() {
            request = request.header(CONTENT_TYPE, kind).body(self.body.to_vec());
        }
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.bytes().await?.to_vec()))
    }
}

/// Operations in the body of a `_bulk`: every one has a line, and every one but a delete another.
fn operations(body: &[u8]) -> usize {
    let mut count = 0;
    let mut lines = memchr::memchr_iter(b'\n', body);
    let mut start = 0;
    while let Some(end) = lines.next() {
        count += 1;
        let has_source = !body[start..].starts_with(b"{\"delete\"");
        start = if has_source { lines.next().unwrap_or(end) } else { end } + 1;
    }
    count
}

fn list(open: &[u8], item: &[u8], items: usize) -> Vec<u8> {
    let mut answer = Vec::with_capacity(open.len() + items * (item.len() + 1) + 2);
    answer.extend_from_slice(open);
    for n in 0..items {
        if n > 0 {
            answer.push(b',');
        }
        answer.extend_from_slice(item);
    }
    answer.extend_from_slice(b"]}");
    answer
}
