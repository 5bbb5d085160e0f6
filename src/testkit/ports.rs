//! Ports of loopback for servers that are told where to listen.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that systems give to clients (from 32768 on Linux, from 49152 elsewhere): no connection that begins before
/// the server does takes its port. `dev/stack` chooses from 20000 on.
const PORTS: Range<u16> = 10_000..20_000;
/// How far one process begins behind the one before it; few need as many.
const STRIDE: u32 = 61;

/// How many were tried by this process.
static TRIED: AtomicU16 = AtomicU16::new(0);

/// A port that nobody listens on, another one with each call. Processes that ask at the same time begin at different places.
///
/// # Errors
/// If all are taken, or the system gives none.
pub fn free_port() -> io::Result<u16> {
    let count = PORTS.end - PORTS.start;
    let first = (std::process::id() % u32::from(count)) * STRIDE;
    let mut outcome = Err(io::Error::from(io::ErrorKind::AddrInUse));
    for _ in PORTS {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        let offset = (first + u32::from(tried)) % u32::from(count);
        // Smaller than `count`.
        let port = PORTS.start + u16::try_from(offset).unwrap_or_default();
        outcome = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(|_| port);
        if outcome.as_ref().err().is_none_or(|error| error.kind() != io::ErrorKind::AddrInUse) {
            break;
        }
    }
    outcome
}

/// [`free_port`] with its host.
///
/// # Errors
/// As [`free_port`].
pub fn free_address() -> io::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_call_gives_another_port_that_no_client_gets() {
        let ports: BTreeSet<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
    }

    #[test]
    fn a_port_that_is_taken_is_left_out() {
        let next = free_port().unwrap() + 1;
        // Another test may have had it in the meantime; then it is left out for that.
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        assert_ne!(free_port().unwrap(), next);
    }
}
