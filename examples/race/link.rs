//! A link to Elasticsearch: it passes bytes on, those to the server no faster than its rate, and counts them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep_until};

/// Passed on at once.
const CHUNK: usize = 64 << 10;

/// What a pause may be too long by, since timers are not exact, and is made up for.
const SLACK: Duration = Duration::from_millis(10);

/// It passes on as long as this lives.
pub struct Link {
    url: String,
    sent: Arc<AtomicU64>,
    pace: Arc<Pace>,
    _runtime: Runtime,
}

/// What all connections share.
struct Pace(Mutex<State>);

struct State {
    bytes_per_second: Option<f64>,
    /// When the link is free again.
    free: Instant,
}

impl Link {
    /// Listens on a free port of loopback. At first it is as fast as that.
    pub fn start(elasticsearch: &str) -> Result<Self> {
        let server: SocketAddr = elasticsearch
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .parse()
            .context("Elasticsearch's address and port")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let url = format!("http://{}", listener.local_addr()?);
        let sent = Arc::new(AtomicU64::new(0));
        let pace = Arc::new(Pace(Mutex::new(State { bytes_per_second: None, free: Instant::now() })));
        let (shared, counter) = (pace.clone(), sent.clone());
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, server, shared.clone(), counter.clone()));
            }
        });
        Ok(Self { url, sent, pace, _runtime: runtime })
    }

    /// From now on so many megabits per second to the server; as many as come without.
    pub fn limit(&self, megabits: Option<f64>) {
        self.pace.state().bytes_per_second = megabits.map(|megabits| megabits * 1e6 / 8.0);
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Bytes passed on to the server so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Pace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for as long as the link takes for so many bytes.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a chunk")]
    async fn wait_for(&self, bytes: usize) {
        let until = {
            let mut state = self.state();
            let Some(rate) = state.bytes_per_second else { return };
            let begins = state.free.max(Instant::now() - SLACK);
            state.free = begins + Duration::from_secs_f64(bytes as f64 / rate);
            state.free
        };
        sleep_until(until).await;
    }
}

/// One connection, until either side has enough.
async fn pass_on(client: TcpStream, server: SocketAddr, pace: Arc<Pace>, sent: Arc<AtomicU64>) -> Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let requests = pass_requests_on(from_client, to_server, &pace, &sent);
    tokio::try_join!(requests, tokio::io::copy(&mut from_server, &mut to_client))?;
    Ok(())
}

async fn pass_requests_on(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    pace: &Pace,
    sent: &AtomicU64,
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let bytes = client.read(&mut chunk).await?;
        if bytes == 0 {
            return server.shutdown().await;
        }
        sent.fetch_add(bytes as u64, Ordering::Relaxed);
        pace.wait_for(bytes).await;
        server.write_all(&chunk[..bytes]).await?;
    }
}
