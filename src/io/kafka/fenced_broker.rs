//! A broker for tests that can answer as one that is fenced: it names topics, and no broker.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};

/// Keys of the requests that it answers, with the versions.
const METADATA: (i16, i16) = (3, 1);
const API_VERSIONS: (i16, i16) = (18, 0);

const UNSUPPORTED_VERSION: i16 = 35;
const LEADER_NOT_AVAILABLE: i16 = 5;

/// With so many topics librdkafka is busy with the answer for longer than with ending the connection: what it begins then to find
/// brokers again, the end of the answer cancels.
const TOPICS: i32 = 50_000;
/// Length of their names. librdkafka takes no more memory for an answer than four times its length.
const NAME: usize = 200;
/// How often a client may find its brokers again all the same, on a machine that is busy.
const MOST_ATTEMPTS: usize = 20;

/// How long one of many requests for metadata is waited for.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How long an answer is waited for in all.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the top of this file. Its threads end with the test's process.
pub(super) struct FencedBroker {
    address: String,
    is_fenced: Arc<AtomicBool>,
}

impl FencedBroker {
    /// Listens on a free port; it is not fenced yet.
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_fenced = Arc::new(AtomicBool::new(false));
        let fenced = is_fenced.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let fenced = fenced.clone();
                std::thread::spawn(move || serve(client, port, &fenced));
            }
        });
        Self { address: format!("127.0.0.1:{port}"), is_fenced }
    }

    /// `host:port`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Makes a client learn the broker, and lose it.
    pub(super) fn make_lose<C: ClientContext>(&self, client: &Client<C>) {
        let is_lost = |_| {
            assert!(is_answered(client), "the broker does not answer");
            self.is_fenced.store(true, Ordering::Relaxed);
            let named = client.fetch_metadata(Some("t"), PATIENCE).unwrap().brokers().len();
            assert_eq!(named, 0);
            self.is_fenced.store(false, Ordering::Relaxed);
            client.fetch_metadata(Some("t"), TIMEOUT).is_err()
        };
        assert!(
            (0..MOST_ATTEMPTS).any(is_lost),
            "librdkafka finds its brokers by itself: lost_brokers.rs may go"
        );
    }
}

/// Whether a broker answers the client in time.
pub(super) fn is_answered<C: ClientContext>(client: &Client<C>) -> bool {
    let began = Instant::now();
    std::iter::from_fn(|| (began.elapsed() < PATIENCE).then_some(()))
        .any(|()| client.fetch_metadata(Some("t"), TIMEOUT).is_ok())
}

fn serve(mut client: TcpStream, port: u16, is_fenced: &AtomicBool) {
    let mut size = [0; 4];
    while client.read_exact(&mut size).is_ok() {
        let mut request = vec![0; u32::from_be_bytes(size) as usize];
        if client.read_exact(&mut request).is_err() {
            return;
        }
        let number = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
        let mut answer = Answer(request[4..8].to_vec());
        match (number(0), number(2)) {
            METADATA => answer.metadata(port, is_fenced.load(Ordering::Relaxed)),
            (key, version) if key == API_VERSIONS.0 => {
                answer.versions(if version == API_VERSIONS.1 { 0 } else { UNSUPPORTED_VERSION });
            }
            _ => return,
        }
        let size = u32::try_from(answer.0.len()).unwrap();
        if client.write_all(&[&size.to_be_bytes()[..], &answer.0].concat()).is_err() {
            return;
        }
    }
}

/// The bytes of an answer, from its correlation id on.
struct Answer(Vec<u8>);

impl Answer {
    fn short(&mut self, number: i16) {
        self.0.extend(number.to_be_bytes());
    }

    fn long(&mut self, number: i32) {
        self.0.extend(number.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.short(i16::try_from(text.len()).unwrap());
        self.0.extend(text.as_bytes());
    }

    fn versions(&mut self, error: i16) {
        self.short(error);
        self.long(2);
        for (key, version) in [METADATA, API_VERSIONS] {
            [key, version, version].into_iter().for_each(|number| self.short(number));
        }
    }

    /// One broker or none, and a topic `t` with one partition that has no leader.
    fn metadata(&mut self, port: u16, is_fenced: bool) {
        self.long(if is_fenced { 0 } else { 1 });
        if !is_fenced {
            self.long(1);
            self.text("127.0.0.1");
            self.long(port.into());
            self.short(-1); // rack
        }
        self.long(-1); // controller
        let topics = if is_fenced { TOPICS } else { 1 };
        self.long(topics);
        for number in 0..topics {
            self.short(0);
            self.text(&if number == 0 { "t".to_owned() } else { format!("{number:0>NAME$}") });
            self.0.push(0); // internal
            self.long(1);
            self.short(LEADER_NOT_AVAILABLE);
            self.long(0);
            self.long(-1); // leader
            self.long(0); // replicas
            self.long(0); // in sync
        }
    }
}
