//! A proxy in front of Elasticsearch that does what networks and busy servers do: it is late, refuses all of a request or a
//! part of it, loses answers, breaks connections, and delivers requests whose sender is long dead.

mod items;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Random;
use items::{Refusal, Split};

/// What goes wrong. Shares are in percent of the requests; those of `items` in percent of the shards that a request is for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Answered 429 with `Retry-After: 1`, and not passed on.
    pub busy: u64,
    /// Answered 503, and not passed on.
    pub unavailable: u64,
    /// Passed on, and the answer is thrown away with the connection.
    pub lost_replies: u64,
    /// Passed on, and the connection ends in the middle of the answer.
    pub cut_replies: u64,
    /// The connection ends, and nothing was passed on.
    pub resets: u64,
    /// The connection ends at once, and the request is passed on up to [`Faults::late_by`] later.
    pub late: u64,
    /// How much later than its connection's end a request may be passed on.
    pub late_by: Duration,
    /// Every request is passed on so much later, at most.
    pub latency: Duration,
    /// Of a `_bulk`, a shard refuses its items with 429; of an `_mget`, it cannot be read.
    pub busy_items: u64,
    /// The same with 503.
    pub unavailable_items: u64,
    /// Every request is answered 401.
    pub unauthorized: bool,
    /// Every `_bulk` is passed on so much later.
    pub bulk_delay: Duration,
    /// Every `_bulk` but the next so many is passed on only when other faults are set, whether its sender still waits or not.
    pub bulks_until_held: Option<u64>,
}

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    PassedOn,
    Busy,
    Unavailable,
    ReplyLost,
    ReplyCut,
    Reset,
    Late,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        busy: 0,
        unavailable: 0,
        lost_replies: 0,
        cut_replies: 0,
        resets: 0,
        late: 0,
        late_by: Duration::ZERO,
        latency: Duration::ZERO,
        busy_items: 0,
        unavailable_items: 0,
        unauthorized: false,
        bulk_delay: Duration::ZERO,
        bulks_until_held: None,
    };

    fn fate(&self, mut dice: u64) -> Fate {
        let shares = [
            (self.busy, Fate::Busy),
            (self.unavailable, Fate::Unavailable),
            (self.lost_replies, Fate::ReplyLost),
            (self.cut_replies, Fate::ReplyCut),
            (self.resets, Fate::Reset),
            (self.late, Fate::Late),
        ];
        for (share, fate) in shares {
            if dice < share {
                return fate;
            }
            dice -= share;
        }
        Fate::PassedOn
    }
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
    under_way: AtomicU64,
    largest: AtomicUsize,
    tally: Mutex<BTreeMap<&'static str, u64>>,
}

impl Proxy {
    /// In front of `upstream`, with nothing wrong yet.
    pub fn start(upstream: &str, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            http: reqwest::blocking::Client::builder().timeout(Duration::from_secs(300)).build().unwrap(),
            faults: Mutex::default(),
            random: Mutex::new(Random::new(seed)),
            held_begun: AtomicU64::new(0),
            held_ended: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            largest: AtomicUsize::new(0),
            tally: Mutex::default(),
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

    /// Requests that came in and whose end is not known yet, those among them whose sender is gone.
    pub fn under_way(&self) -> u64 {
        self.shared.under_way.load(SeqCst)
    }

    /// Bytes of the largest request body.
    pub fn largest_request(&self) -> usize {
        self.shared.largest.load(SeqCst)
    }

    /// How often anything went wrong.
    pub fn faults_done(&self) -> u64 {
        self.tally().values().sum()
    }

    /// How often what went wrong. Items count one by one.
    pub fn tally(&self) -> BTreeMap<&'static str, u64> {
        self.shared.tally.lock().unwrap().clone()
    }
}

/// A request as it came.
struct Request {
    head: Vec<String>,
    method: String,
    path: String,
    body: Vec<u8>,
}

/// Counts a request as under way while it lives.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.under_way.fetch_add(1, SeqCst);
        Self(shared.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}

impl Shared {
    /// One request and its answer; `None` when the connection is to be closed.
    fn serve(self: &Arc<Self>, connection: &TcpStream) -> Option<()> {
        let request = read_request(connection)?;
        self.largest.fetch_max(request.body.len(), SeqCst);
        let under_way = UnderWay::new(self);
        let is_bulk = request.path.contains("_bulk");
        let (faults, is_held) = {
            let mut faults = self.faults.lock().unwrap();
            let is_held = is_bulk && faults.bulks_until_held == Some(0);
            if is_bulk {
                faults.bulks_until_held = faults.bulks_until_held.map(|count| count.saturating_sub(1));
            }
            (*faults, is_held)
        };
        if faults.unauthorized {
            self.count("unauthorized", 1);
            let text = r#"{"error":{"type":"security_exception","reason":"no such user"},"status":401}"#;
            return answer(connection, 401, "", text.as_bytes());
        }
        let fate = faults.fate(self.below(100));
        match fate {
            Fate::Busy => {
                self.count("requests refused with 429", 1);
                let text =
                    r#"{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}"#;
                return answer(connection, 429, "retry-after: 1\r\n", text.as_bytes());
            }
            Fate::Unavailable => {
                self.count("requests refused with 503", 1);
                return answer(connection, 503, "retry-after: 1\r\n", b"upstream is tired");
            }
            Fate::Reset => {
                self.count("connections broken before the request was passed on", 1);
                return None;
            }
            Fate::Late => {
                self.count("requests passed on after their connection had broken", 1);
                let shared = self.clone();
                std::thread::spawn(move || {
                    shared.sleep_up_to(faults.late_by);
                    // The client is gone.
                    let _ = shared.pass_on(&request, request.body.clone());
                    drop(under_way);
                });
                return None;
            }
            Fate::PassedOn | Fate::ReplyLost | Fate::ReplyCut => {}
        }
        self.held_begun.fetch_add(u64::from(is_held), SeqCst);
        if is_bulk {
            std::thread::sleep(faults.bulk_delay);
        }
        self.sleep_up_to(faults.latency);
        while is_held && self.faults.lock().unwrap().bulks_until_held.is_some() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let answered = self.pass_on_in_part(&request, &faults);
        self.held_ended.fetch_add(u64::from(is_held), SeqCst);
        let (status, bytes) = answered?;
        match fate {
            Fate::ReplyLost => {
                self.count("answers lost", 1);
                None
            }
            Fate::ReplyCut => {
                self.count("answers cut short", 1);
                let whole = answer_bytes(status, "", &bytes);
                let mut connection = connection;
                // Its end is not waited for: the connection is to break in any case.
                let _ = connection.write_all(&whole[..whole.len() / 2]);
                None
            }
            _ => answer(connection, status, "", &bytes),
        }
    }

    /// Passes on what no shard refuses, and answers for those that do.
    fn pass_on_in_part(&self, request: &Request, faults: &Faults) -> Option<(u16, Vec<u8>)> {
        let mut told: HashMap<(String, u64), Option<Refusal>> = HashMap::new();
        let mut refuses = |index: &str, shard: u64| {
            *told.entry((index.to_owned(), shard)).or_insert_with(|| {
                let dice = self.below(100);
                if dice < faults.busy_items {
                    Some(Refusal::Busy)
                } else if dice < faults.busy_items + faults.unavailable_items {
                    Some(Refusal::Unavailable)
                } else {
                    None
                }
            })
        };
        let is_in_part = faults.busy_items + faults.unavailable_items > 0;
        if is_in_part
            && request.path.starts_with("/_bulk")
            && let Some(split) = Split::new(&request.body, &mut refuses)
        {
            self.count("items of a _bulk refused with 429 or 503", split.refused() as u64);
            let (status, bytes) = match split.passed.is_empty() {
                true => (200, Vec::new()),
                false => self.pass_on(request, split.passed.clone())?,
            };
            // What is no answer to the items is the answer to the request.
            let joined = if status == 200 { split.answer(&bytes) } else { None };
            return Some((status, joined.unwrap_or(bytes)));
        }
        let (status, bytes) = self.pass_on(request, request.body.clone())?;
        if is_in_part
            && request.path.starts_with("/_mget")
            && let Some((spoilt, count)) = items::spoil_mget(&bytes, &mut refuses)
        {
            self.count("documents of an _mget not looked up", count as u64);
            return Some((status, spoilt));
        }
        Some((status, bytes))
    }

    fn pass_on(&self, request: &Request, body: Vec<u8>) -> Option<(u16, Vec<u8>)> {
        let url = format!("{}{}", self.upstream, request.path);
        let mut passed = self.http.request(request.method.parse().unwrap(), url).body(body);
        for line in &request.head[1..] {
            let (name, value) = line.split_once(':')?;
            if !["host", "content-length", "connection", "accept-encoding"]
                .contains(&name.to_ascii_lowercase().as_str())
            {
                passed = passed.header(name, value.trim());
            }
        }
        let response = passed.send().and_then(|response| Ok((response.status(), response.bytes()?)));
        let (status, bytes) = response.ok()?;
        Some((status.as_u16(), bytes.to_vec()))
    }

    fn below(&self, n: u64) -> u64 {
        self.random.lock().unwrap().below(n)
    }

    fn sleep_up_to(&self, most: Duration) {
        if !most.is_zero() {
            std::thread::sleep(Duration::from_millis(self.below(most.as_millis() as u64 + 1)));
        }
    }

    fn count(&self, what: &'static str, times: u64) {
        if times > 0 {
            *self.tally.lock().unwrap().entry(what).or_default() += times;
        }
    }
}

fn read_request(connection: &TcpStream) -> Option<Request> {
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
    let mut words = head.first()?.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(Request { head, method, path, body })
}

fn answer(mut connection: &TcpStream, status: u16, header: &str, body: &[u8]) -> Option<()> {
    connection.write_all(&answer_bytes(status, header, body)).ok()
}

fn answer_bytes(status: u16, header: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status} Answer\r\ncontent-type: application/json\r\n{header}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
