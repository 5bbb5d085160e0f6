//! A proxy in front of Elasticsearch that does what networks and busy servers do: it is late, refuses, loses answers, and
//! delivers requests whose sender is long dead.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Random;

/// What goes wrong. Shares are in percent of the requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Answered 429 with `Retry-After: 1`, and not passed on.
    pub busy: u64,
    /// Answered 503, and not passed on.
    pub unavailable: u64,
    /// Passed on, and the answer is thrown away with the connection.
    pub lost_replies: u64,
    /// Every request is answered 401.
    pub unauthorized: bool,
    /// Every `_bulk` is passed on so much later.
    pub bulk_delay: Duration,
    /// Every `_bulk` but the next so many is passed on only when other faults are set, whether its sender still waits or not.
    pub bulks_until_held: Option<u64>,
}

/// A running proxy. Its threads end with the test's process.
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: String,
    http: reqwest::blocking::Client,
    faults: Mutex<Faults>,
    random: Mutex<Random>,
    held_begun: AtomicU64,
    held_ended: AtomicU64,
    faults_done: AtomicU64,
}

impl Proxy {
    /// In front of `upstream`, with nothing wrong yet.
    pub fn start(upstream: &str, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            http: reqwest::blocking::Client::builder().timeout(Duration::from_secs(60)).build().unwrap(),
            faults: Mutex::default(),
            random: Mutex::new(Random::new(seed)),
            held_begun: AtomicU64::new(0),
            held_ended: AtomicU64::new(0),
            faults_done: AtomicU64::new(0),
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = serving.clone();
                std::thread::spawn(move || while let Some(()) = shared.serve(&connection) {});
            }
        });
        Self { url, shared }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// What goes wrong from now on.
    pub fn set(&self, faults: Faults) {
        *self.shared.faults.lock().unwrap() = faults;
    }

    /// `_bulk` requests that are held, or were, and are not carried out yet.
    pub fn bulks_held(&self) -> u64 {
        let ended = self.shared.held_ended.load(SeqCst);
        self.shared.held_begun.load(SeqCst) - ended
    }

    /// How often anything went wrong.
    pub fn faults_done(&self) -> u64 {
        self.shared.faults_done.load(SeqCst)
    }
}

impl Shared {
    /// One request and its answer; `None` when the connection is to be closed.
    fn serve(&self, connection: &TcpStream) -> Option<()> {
        let (head, body) = read_request(connection)?;
        let mut words = head[0].split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let is_bulk = path.contains("_bulk");
        let (faults, is_held) = {
            let mut faults = self.faults.lock().unwrap();
            let is_held = is_bulk && faults.bulks_until_held == Some(0);
            if is_bulk {
                faults.bulks_until_held = faults.bulks_until_held.map(|count| count.saturating_sub(1));
            }
            (*faults, is_held)
        };
        let dice = self.random.lock().unwrap().below(100);
        let refused = if faults.unauthorized {
            Some((401, r#"{"error":{"type":"security_exception","reason":"no such user"},"status":401}"#))
        } else if dice < faults.busy {
            Some((
                429,
                r#"{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}"#,
            ))
        } else if dice < faults.busy + faults.unavailable {
            Some((503, "upstream is tired"))
        } else {
            None
        };
        if let Some((status, text)) = refused {
            self.faults_done.fetch_add(1, SeqCst);
            return answer(connection, status, "retry-after: 1\r\n", text.as_bytes());
        }
        self.held_begun.fetch_add(u64::from(is_held), SeqCst);
        if is_bulk {
            std::thread::sleep(faults.bulk_delay);
        }
        while is_held && self.faults.lock().unwrap().bulks_until_held.is_some() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut request =
            self.http.request(method.parse().unwrap(), format!("{}{path}", self.upstream)).body(body);
        for line in &head[1..] {
            let (name, value) = line.split_once(':')?;
            if !["host", "content-length", "connection", "accept-encoding"]
                .contains(&name.to_ascii_lowercase().as_str())
            {
                request = request.header(name, value.trim());
            }
        }
        let response = request.send().and_then(|response| Ok((response.status(), response.bytes()?)));
        self.held_ended.fetch_add(u64::from(is_held), SeqCst);
        let (status, bytes) = response.ok()?;
        if (faults.busy + faults.unavailable..faults.busy + faults.unavailable + faults.lost_replies)
            .contains(&dice)
        {
            self.faults_done.fetch_add(1, SeqCst);
            return None;
        }
        answer(connection, status.as_u16(), "", &bytes)
    }
}

fn read_request(connection: &TcpStream) -> Option<(Vec<String>, Vec<u8>)> {
    // Requests are not pipelined: the buffer holds nothing of the next one.
    let mut reader = BufReader::new(connection);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let length = head
        .iter()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.trim().parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn answer(mut connection: &TcpStream, status: u16, header: &str, body: &[u8]) -> Option<()> {
    let mut bytes = format!(
        "HTTP/1.1 {status} Answer\r\ncontent-type: application/json\r\n{header}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    connection.write_all(&bytes).ok()
}
