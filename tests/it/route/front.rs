//! What stands before the stand-in for Elasticsearch: it notes each request, and passes it on, late, or answers in its place.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use reqwest::blocking::Client;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

/// Certificates of the tests' own authority.
pub const TLS_FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/tls");

/// A request.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Seen {
    pub fn is_search(&self) -> bool {
        self.path.contains("/_search") || self.path.contains("/_msearch")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Does {
    Pass,
    PassAfter(Duration),
    /// Not before this number is that large.
    PassFrom(Arc<AtomicUsize>, usize),
    /// Status and body.
    Answer(u16, String),
    /// No answer, until the client closes the connection.
    Hold,
}

type Rule = Box<dyn Fn(&Seen) -> Does + Send>;

/// See the file's first line.
#[derive(Clone)]
pub struct Front {
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    to: String,
    client: Client,
    rule: Mutex<Rule>,
    seen: Mutex<Vec<Seen>>,
    held: AtomicUsize,
    dropped: AtomicUsize,
}

impl Front {
    pub fn start(to: &str) -> Self {
        Self::listening("http", to, |connection| connection)
    }

    /// With TLS, by a certificate of the tests' own authority.
    pub fn start_with_tls(to: &str) -> Self {
        Self::with_tls(to, None)
    }

    /// The same for clients that have a certificate of this authority.
    pub fn start_for_holders(to: &str, authority: &str) -> Self {
        Self::with_tls(to, Some(authority))
    }

    fn with_tls(to: &str, authority: Option<&str>) -> Self {
        let certificate = CertificateDer::from_pem_file(format!("{TLS_FILES}/endpoint.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(format!("{TLS_FILES}/endpoint.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = match authority {
            None => config.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                config.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = config.with_single_cert(vec![certificate], key).unwrap();
        let config = Arc::new(config);
        Self::listening("https", to, move |connection| {
            StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), connection)
        })
    }

    fn listening<S: Read + Write + Send + 'static>(
        scheme: &str,
        to: &str,
        wrap: impl Fn(TcpStream) -> S + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            to: to.to_owned(),
            client: Client::builder().no_proxy().build().unwrap(),
            rule: Mutex::new(Box::new(|_| Does::Pass)),
            seen: Mutex::default(),
            held: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
        });
        let front = Self { url, shared: shared.clone() };
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (mut reader, shared) = (BufReader::new(wrap(connection)), shared.clone());
                std::thread::spawn(move || while serve(&mut reader, &shared).is_some() {});
            }
        });
        front
    }

    /// From now on.
    pub fn does(&self, rule: impl Fn(&Seen) -> Does + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// The searches that came.
    pub fn searches(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(Seen::is_search).collect()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Requests that wait for an answer.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Requests whose client closed the connection before an answer.
    pub fn dropped(&self) -> usize {
        self.shared.dropped.load(Ordering::SeqCst)
    }
}

fn serve<S: Read + Write>(reader: &mut BufReader<S>, shared: &Shared) -> Option<()> {
    let seen = read(reader)?;
    let does = (shared.rule.lock().unwrap())(&seen);
    shared.seen.lock().unwrap().push(seen.clone());
    let (status, body) = match does {
        Does::Pass => pass(&seen, shared)?,
        Does::PassAfter(time) => {
            std::thread::sleep(time);
            pass(&seen, shared)?
        }
        Does::PassFrom(number, least) => {
            while number.load(Ordering::SeqCst) < least {
                std::thread::sleep(Duration::from_millis(2));
            }
            pass(&seen, shared)?
        }
        Does::Answer(status, body) => (status, body.into_bytes()),
        Does::Hold => {
            shared.held.fetch_add(1, Ordering::SeqCst);
            // The end, or an error; a client that waits sends nothing.
            let _ = reader.read(&mut [0]);
            shared.held.fetch_sub(1, Ordering::SeqCst);
            shared.dropped.fetch_add(1, Ordering::SeqCst);
            return None;
        }
    };
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\nx-elastic-product: Elasticsearch\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    reader.get_mut().write_all(&[head.into_bytes(), body].concat()).ok()?;
    reader.get_mut().flush().ok()
}

fn read<S: Read>(reader: &mut BufReader<S>) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { method, path, headers, body })
}

fn pass(seen: &Seen, shared: &Shared) -> Option<(u16, Vec<u8>)> {
    let method = Method::from_bytes(seen.method.as_bytes()).unwrap();
    let mut request = shared.client.request(method, format!("{}{}", shared.to, seen.path));
    for name in ["content-type", "content-encoding"] {
        if let Some(value) = seen.header(name) {
            request = request.header(name, value);
        }
    }
    let answer = request.body(seen.body.clone()).send().ok()?;
    Some((answer.status().as_u16(), answer.bytes().ok()?.to_vec()))
}
