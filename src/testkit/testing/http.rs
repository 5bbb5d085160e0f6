//! A web server for the length of a test.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::Router;
use tokio_util::sync::{CancellationToken, DropGuard};

/// It ends when it is dropped.
pub(super) struct Served {
    pub(super) address: SocketAddr,
    _stop: DropGuard,
}

/// On a free port of this machine.
pub(super) async fn serve(routes: Router) -> Served {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = axum::serve(listener, routes) => {}
            () = stopped.cancelled() => {}
        }
    });
    Served { address, _stop: stop.drop_guard() }
}

/// A test that has failed with the lock is no reason for its server to fail, too.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
