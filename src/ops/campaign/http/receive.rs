//! Receives the list of a new campaign, which a request brings.

use std::io::{self, BufReader, Read};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::problem::RequestProblem;
use crate::ops::campaign::create::{CreateError, IdSource, SortOptions, create};
use crate::ops::campaign::select::SelectError;
use crate::ops::campaign::store::{CampaignStore, NewCampaign};

/// Bytes for sorting the ids of one list; more go to temporary files.
const MEMORY: usize = 16 << 20;
/// A client that sends nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// Makes a campaign of the list in `body`; `None` if another request with this key does. Nothing is left if it fails.
pub(super) async fn receive(
    store: &CampaignStore,
    new: &NewCampaign,
    body: Body,
    max_bytes: u64,
    paused: bool,
    stop: &CancellationToken,
) -> Result<Option<i64>, RequestProblem> {
    let (sender, pieces) = mpsc::channel(4);
    let list = IdSource::List(Box::new(BufReader::new(Incoming { pieces, piece: Bytes::new() })));
    let sort_options = SortOptions { folder: std::env::temp_dir(), memory: MEMORY };
    let told = |_| {};
    let making = create(store, new, list, &sort_options, paused, stop, &told);
    let (made, received) = tokio::join!(making, feed(body, sender, max_bytes));
    received?;
    match made {
        Ok(created) => Ok(created.map(|created| created.id)),
        Err(error @ (CreateError::Empty | CreateError::Select(SelectError::Io(_)))) => {
            Err(RequestProblem::bad_request(error.to_string()))
        }
        Err(CreateError::Database(error)) => Err(error.into()),
        Err(CreateError::Interrupted) => {
            Err(RequestProblem::new(StatusCode::SERVICE_UNAVAILABLE, "the collector ends; try again"))
        }
        Err(error) => {
            tracing::warn!(%error, "a request for a campaign failed");
            Err(RequestProblem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
        }
    }
}

/// Passes the body on, piece by piece, and says why if that ends early. The reader then sees an error, not the end.
async fn feed(
    body: Body,
    sender: mpsc::Sender<io::Result<Bytes>>,
    max_bytes: u64,
) -> Result<(), RequestProblem> {
    let mut stream = body.into_data_stream();
    let (mut received, mut last) = (0, b'\n');
    let problem = loop {
        match timeout(SILENCE, stream.next()).await {
            // Some clients end a body that they could not send whole as if it were; half an id may be another one's.
            Ok(None) if last != b'\n' => {
                let reason = "the list's last line has no line break, so the list may have been cut; end every line with one";
                break RequestProblem::bad_request(reason);
            }
            Ok(None) => return Ok(()),
            Ok(Some(Ok(piece))) => {
                received += piece.len() as u64;
                last = piece.last().copied().unwrap_or(last);
                if received > max_bytes {
                    let reason = format!(
                        "the list has more than campaigns.request_max_bytes, {max_bytes} bytes; send parts of it, or use `geofold campaign create`"
                    );
                    break RequestProblem::new(StatusCode::PAYLOAD_TOO_LARGE, reason);
                }
                // Gone if the list is refused: that error is told.
                if sender.send(Ok(piece)).await.is_err() {
                    return Ok(());
                }
            }
            Ok(Some(Err(error))) => {
                break RequestProblem::bad_request(format!("the list did not arrive: {error}"));
            }
            Err(_) => {
                let reason = format!("nothing arrived for {} s", SILENCE.as_secs());
                break RequestProblem::new(StatusCode::REQUEST_TIMEOUT, reason);
            }
        }
    };
    let _ = sender.send(Err(io::Error::other(problem.reason.clone()))).await;
    Err(problem)
}

/// The body, for who reads it in a thread of its own.
struct Incoming {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let taken = self.piece.split_to(buffer.len().min(self.piece.len()));
        buffer[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}
