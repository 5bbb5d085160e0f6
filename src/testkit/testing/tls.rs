//! A server that speaks TLS, with a certificate that only the tests' own authority has signed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/tls");

/// The authority's certificate.
pub(crate) fn authority() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/tls/authority.pem"))
}

/// Answers each connection's request with this body, on a free port of 127.0.0.1, to which the certificate belongs.
pub(crate) fn answer_with_tls(body: &'static str) -> SocketAddr {
    let certificate = CertificateDer::from_pem_file(format!("{FILES}/endpoint.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(format!("{FILES}/endpoint.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), connection);
            // A client that does not trust the certificate closes the connection.
            let mut asked = [0; 4096];
            let Ok(1..) = stream.read(&mut asked) else { continue };
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).unwrap();
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
    });
    address
}
