//! A minimal memcached client: `gets`, `cas` and `add` of the text protocol, over TCP.
//!
//! Written here for two rules that existing crates leave to their callers (async-memcached 0.9: one connection, no
//! timeouts, no reconnecting): nothing waits without a limit, and a `cas` uses the connection of its `gets`.
//! memcached's cas numbers start over when it restarts; a connection does not survive that, so a number never meets
//! another process's. (A proxy that hides a restart would break this; there must be none.) A connection with an error,
//! or with an answer that was not awaited, is dropped.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::run_after::RunRecord;

/// memcached's limit on a key.
pub const MAX_KEY_BYTES: usize = 250;

/// Maximum line of an answer; the longest expected one has a key and three numbers.
const MAX_LINE_BYTES: u64 = 512;

/// geofold writes no longer values.
const MAX_VALUE_BYTES: usize = 128;

/// Idle connections kept.
const MAX_IDLE: usize = 4;

/// Attempts of a write that others overtake.
const ATTEMPTS: usize = 8;

/// Keys per `gets`; memcached has no limit, but the whole answer is awaited.
const KEYS_AT_ONCE: usize = 64;

/// Expiry of a record without writes. memcached may evict it at any time.
const RECORD_TTL: Duration = Duration::from_secs(24 * 3600);

/// Why memcached gave no answer. Callers go on without it.
#[derive(Debug, Error)]
pub enum MemcachedError {
    /// No connection, or a broken one.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// Not conforming to the protocol; holds its beginning.
    #[error("unexpected answer: {0:?}")]
    Unexpected(String),
    /// Other writers were always faster.
    #[error("other workers overtook the write {ATTEMPTS} times")]
    Contended,
}

/// One memcached.
pub struct Memcached {
    address: String,
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl fmt::Debug for Memcached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memcached").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Memcached {
    /// At `host:port`. `timeout` covers one whole call, dialling included. Connects on first use.
    pub fn new(address: &str, timeout: Duration) -> Self {
        Self { address: address.to_owned(), timeout, idle: Mutex::default() }
    }

    /// Reads the records of some keys, in order; `None` for a missing or unreadable one.
    ///
    /// # Errors
    /// See [`MemcachedError`].
    pub async fn read(&self, keys: &[String]) -> Result<Vec<Option<RunRecord>>, MemcachedError> {
        let reading = async {
            let mut connection = self.connection().await?;
            let mut records = Vec::with_capacity(keys.len());
            for some in keys.chunks(KEYS_AT_ONCE) {
                let found = connection.gets(some).await?;
                records.extend(found.into_iter().map(|found| found.and_then(|(_, record)| record)));
            }
            Ok((connection, records))
        };
        let (connection, records) = self.within(reading).await?;
        self.keep(connection);
        Ok(records)
    }

    /// Reads a record and writes the result of `change`, retrying while others are faster. `change` returns `None` to
    /// leave it unchanged.
    ///
    /// # Errors
    /// See [`MemcachedError`]. The write may have been executed all the same.
    pub async fn update(
        &self,
        key: &str,
        mut change: impl FnMut(Option<RunRecord>) -> Option<RunRecord>,
    ) -> Result<(), MemcachedError> {
        let keys = [key.to_owned()];
        let updating = async {
            let mut connection = self.connection().await?;
            for _ in 0..ATTEMPTS {
                let found = connection.gets(&keys).await?.into_iter().next().flatten();
                let record = found.and_then(|(_, record)| record);
                let Some(record) = change(record) else { return Ok(connection) };
                if connection.store(key, record, found.map(|(cas, _)| cas)).await? {
                    return Ok(connection);
                }
            }
            Err(MemcachedError::Contended)
        };
        let connection = self.within(updating).await?;
        self.keep(connection);
        Ok(())
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, MemcachedError>>,
    ) -> Result<T, MemcachedError> {
        timeout(self.timeout, work).await.map_err(|_| MemcachedError::Timeout(self.timeout))?
    }

    async fn connection(&self) -> Result<Connection, MemcachedError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(connection) = idle
            && connection.is_quiet()
        {
            return Ok(connection);
        }
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    /// Only a connection whose last answer was read completely is kept.
    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }
}

struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Whether nothing unrequested has arrived, above all an end of stream.
    fn is_quiet(&self) -> bool {
        let nothing_read = self.stream.buffer().is_empty();
        let read = self.stream.get_ref().try_read(&mut [0; 1]);
        nothing_read && read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Reads some keys: the cas number of each, and the record if there is one.
    async fn gets(
        &mut self,
        keys: &[String],
    ) -> Result<Vec<Option<(u64, Option<RunRecord>)>>, MemcachedError> {
        self.send(format!("gets {}\r\n", keys.join(" ")).as_bytes()).await?;
        let mut found = vec![None; keys.len()];
        loop {
            let line = self.line().await?;
            if line == "END" {
                return Ok(found);
            }
            let (key, bytes, cas) = value_line(&line).ok_or_else(|| unexpected(&line))?;
            if bytes > MAX_VALUE_BYTES {
                return Err(unexpected(&line));
            }
            let mut value = vec![0; bytes + 2];
            self.stream.read_exact(&mut value).await?;
            let Some(value) = value.strip_suffix(b"\r\n") else { return Err(unexpected(&line)) };
            // memcached does not guarantee the order.
            for (slot, _) in found.iter_mut().zip(keys).filter(|(_, wanted)| *wanted == key) {
                *slot = Some((cas, RunRecord::parse(value)));
            }
        }
    }

    /// Writes a record if its cas number is still `over`; without one, if there is none. `false`: another writer was
    /// faster.
    async fn store(
        &mut self,
        key: &str,
        record: RunRecord,
        over: Option<u64>,
    ) -> Result<bool, MemcachedError> {
        let (value, ttl) = (record.to_string(), RECORD_TTL.as_secs());
        let request = match over {
            Some(cas) => format!("cas {key} 0 {ttl} {} {cas}\r\n{value}\r\n", value.len()),
            None => format!("add {key} 0 {ttl} {}\r\n{value}\r\n", value.len()),
        };
        self.send(request.as_bytes()).await?;
        match &*self.line().await? {
            "STORED" => Ok(true),
            "EXISTS" | "NOT_STORED" | "NOT_FOUND" => Ok(false),
            line => Err(unexpected(line)),
        }
    }

    async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await
    }

    /// A line of the answer, without its end.
    async fn line(&mut self) -> Result<String, MemcachedError> {
        let mut line = Vec::new();
        (&mut self.stream).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await?;
        let text = String::from_utf8_lossy(&line).into_owned();
        match text.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None if line.is_empty() => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            None => Err(unexpected(&text)),
        }
    }
}

/// Key, length and cas number of `VALUE <key> <flags> <bytes> <cas>`.
fn value_line(line: &str) -> Option<(&str, usize, u64)> {
    let mut words = line.strip_prefix("VALUE ")?.split(' ');
    let (key, _flags) = (words.next()?, words.next()?);
    let (bytes, cas) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some((key, bytes, cas))
}

fn unexpected(line: &str) -> MemcachedError {
    MemcachedError::Unexpected(line.chars().take(80).collect())
}

#[cfg(test)]
mod tests {
    use tokio::io::BufStream;
    use tokio::net::TcpListener;

    use super::*;

    /// A server of one connection at a time that gives these answers, one per request (one line, or two with a value),
    /// and then none.
    async fn server(answers: &'static [&'static [u8]]) -> (Memcached, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let memcached =
            Memcached::new(&listener.local_addr().unwrap().to_string(), Duration::from_millis(300));
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufStream::new(stream);
            let mut requests = Vec::new();
            for answer in answers {
                let mut request = String::new();
                stream.read_line(&mut request).await.unwrap();
                if !request.starts_with("gets") {
                    stream.read_line(&mut request).await.unwrap();
                }
                requests.push(request);
                stream.write_all(answer).await.unwrap();
                stream.flush().await.unwrap();
            }
            // Silent, but open.
            while stream.read_line(&mut String::new()).await.unwrap_or(0) > 0 {}
            requests
        });
        (memcached, serving)
    }

    #[tokio::test]
    async fn record_is_written_over_the_state_that_was_read() {
        let (memcached, serving) = server(&[
            b"VALUE k 0 20 41\r\n00000000000000ff:3:1\r\nEND\r\n",
            b"EXISTS\r\n",
            b"VALUE k 0 20 42\r\n00000000000000ff:4:1\r\nEND\r\n",
            b"STORED\r\n",
        ])
        .await;
        let mut seen = Vec::new();
        let raise = |found: Option<RunRecord>| {
            seen.push(found);
            found.and_then(|record| record.start()).map(|(record, _)| record)
        };
        memcached.update("k", raise).await.unwrap();
        assert_eq!(seen.iter().flatten().map(|record| record.counter).collect::<Vec<_>>(), [3, 4]);
        drop(memcached);
        let requests = serving.await.unwrap();
        assert_eq!(requests[1], "cas k 0 86400 20 41\r\n00000000000000ff:4:1\r\n");
        assert_eq!(requests[3], "cas k 0 86400 20 42\r\n00000000000000ff:5:1\r\n");
    }

    #[tokio::test]
    async fn add_creates_missing_key() {
        let (memcached, serving) = server(&[b"END\r\n", b"STORED\r\n"]).await;
        memcached.update("k", |found| found.is_none().then_some(RunRecord::new(1))).await.unwrap();
        drop(memcached);
        assert!(serving.await.unwrap()[1].starts_with("add k 0 86400 20\r\n"));
    }

    #[tokio::test]
    async fn several_keys_are_read_at_once_in_any_answer_order() {
        const ANSWER: &[u8] = b"VALUE b 0 20 9\r\n0000000000000002:2:0\r\nVALUE a 0 5 8\r\nstray\r\nEND\r\n";
        let (memcached, _serving) = server(&[ANSWER]).await;
        let keys = ["a", "b", "c"].map(str::to_owned);
        let records = memcached.read(&keys).await.unwrap();
        assert_eq!(records, [None, RunRecord::parse(b"2:2:0"), None]);
    }

    #[tokio::test]
    async fn unexpected_answers_are_errors_within_limits() {
        let long: &'static [u8] = &[b'x'; 600];
        for answer in [
            &b"SERVER_ERROR out of memory\r\n"[..],
            b"VALUE k 0 999999999 1\r\n",
            b"VALUE k 0 -1 1\r\n",
            b"VALUE k 0 1\r\nx\r\nEND\r\n",
            b"VALUE k 0 1 1\r\nxyz\r\nEND\r\n",
            long,
        ] {
            let answers: &'static [&'static [u8]] = Box::leak(Box::new([answer]));
            let (memcached, _serving) = server(answers).await;
            let error = memcached.read(&["k".to_owned()]).await.unwrap_err();
            assert!(matches!(error, MemcachedError::Unexpected(_)), "{answer:?}: {error}");
        }
    }

    #[tokio::test]
    async fn silent_server_costs_the_timeout_and_its_connection() {
        let (memcached, _serving) = server(&[b"END\r\n"]).await;
        memcached.read(&["k".to_owned()]).await.unwrap();
        assert_eq!(memcached.idle.lock().unwrap().len(), 1);
        let error = memcached.read(&["k".to_owned()]).await.unwrap_err();
        assert!(matches!(error, MemcachedError::Timeout(_)), "{error}");
        assert_eq!(
            memcached.idle.lock().unwrap().len(),
            0,
            "a late answer would be taken for the next one's"
        );
    }

    #[tokio::test]
    async fn always_overtaken_write_gives_up() {
        const STATE: &[u8] = b"VALUE k 0 20 41\r\n00000000000000ff:3:1\r\nEND\r\n";
        const FASTER: &[u8] = b"EXISTS\r\n";
        let answers: &'static [&'static [u8]] = Box::leak(Box::new([STATE, FASTER].repeat(ATTEMPTS)));
        let (memcached, _serving) = server(answers).await;
        let error = memcached.update("k", |found| found).await.unwrap_err();
        assert!(matches!(error, MemcachedError::Contended), "{error}");
    }
}
