//! TLS of a listener: certificate, key and the authorities of clients, from PEM files that are read again when they change.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// What the files are called in the configuration, and where they are.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, and behind it those between it and its authority.
    pub certificate: (&'static str, PathBuf),
    /// Its private key.
    pub key: (&'static str, PathBuf),
    /// Authorities: each client has to have a certificate of one of them.
    pub client_authorities: Option<(&'static str, PathBuf)>,
}

/// Why the files cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TlsError {
    /// One of them cannot be read.
    #[error("reading {key} {}: {reason}; name a PEM file that this process may read", path.display())]
    File {
        /// The configuration's key.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// They do not fit each other.
    #[error(
        "{certificate} and {key} cannot be used: {reason}; name a certificate and the key that belongs to it"
    )]
    Pair {
        /// The configuration's key of the certificate.
        certificate: &'static str,
        /// The configuration's key of the private key.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// TLS as the files say. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    files: TlsFiles,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    /// Of the files' content.
    digest: u64,
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let current = Current::new(&files, &Contents::read(&files)?)?;
        Ok(Self(Arc::new(Inner { files, current: RwLock::new(current) })))
    }

    /// Reads the files again. Says whether they changed; connections made from then on follow them. Waits for the disk.
    ///
    /// # Errors
    /// If they cannot be used. What was read before stays in force.
    pub fn read_again(&self) -> Result<bool, TlsError> {
        let Inner { files, current } = &*self.0;
        let contents = Contents::read(files)?;
        if contents.digest() == current.read().unwrap_or_else(PoisonError::into_inner).digest {
            return Ok(false);
        }
        let next = Current::new(files, &contents)?;
        *current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(true)
    }

    /// For one connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.current.read().unwrap_or_else(PoisonError::into_inner).config.clone())
    }
}

/// The bytes of the files.
#[derive(Hash)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_authorities: Option<Vec<u8>>,
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |(key, path): &(&'static str, PathBuf)| {
            std::fs::read(path).map_err(|error| unusable(key, path, error.to_string()))
        };
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            client_authorities: files.client_authorities.as_ref().map(read).transpose()?,
        })
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl Current {
    fn new(files: &TlsFiles, contents: &Contents) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let mismatched =
            |reason: String| TlsError::Pair { certificate: files.certificate.0, key: files.key.0, reason };
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| mismatched(error.to_string()))?;
        let config = match (&files.client_authorities, &contents.client_authorities) {
            (Some((key, path)), Some(pem)) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(key, path, pem)? {
                    roots.add(authority).map_err(|error| unusable(key, path, error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                config.with_client_cert_verifier(
                    verifier.map_err(|error| unusable(key, path, error.to_string()))?,
                )
            }
            _ => config.with_no_client_auth(),
        };
        let chain = certificates(files.certificate.0, &files.certificate.1, &contents.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|error| unusable(files.key.0, &files.key.1, error.to_string()))?;
        let mut config =
            config.with_single_cert(chain, key).map_err(|error| mismatched(error.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { digest: contents.digest(), config: Arc::new(config) })
    }
}

fn certificates(
    key: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| unusable(key, path, error.to_string()))?;
    match found.is_empty() {
        true => Err(unusable(key, path, "no certificate is in it".to_owned())),
        false => Ok(found),
    }
}

fn unusable(key: &'static str, path: &Path, reason: String) -> TlsError {
    TlsError::File { key, path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/tls/endpoint");
    const SECOND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/route/tls/router");

    #[test]
    fn files_are_followed_once_they_can_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let copy = |from: &str, end: &str| std::fs::copy(format!("{from}.{end}"), at(end)).unwrap();
        let files = TlsFiles {
            certificate: ("certificate", at("pem")),
            key: ("key", at("key")),
            client_authorities: None,
        };
        let missing = Tls::read(files.clone()).unwrap_err().to_string();
        assert!(missing.contains("reading certificate") && missing.contains("pem"), "{missing}");
        copy(FIRST, "pem");
        copy(FIRST, "key");
        let tls = Tls::read(files).unwrap();
        let first = tls.acceptor();
        assert_eq!(tls.read_again(), Ok(false));
        // A certificate is written, and not yet its key.
        copy(SECOND, "pem");
        let half = tls.read_again().unwrap_err().to_string();
        assert!(half.contains("certificate and key cannot be used"), "{half}");
        assert!(Arc::ptr_eq(first.config(), tls.acceptor().config()), "the old pair stays in force");
        copy(SECOND, "key");
        assert_eq!((tls.read_again(), tls.read_again()), (Ok(true), Ok(false)));
        assert!(!Arc::ptr_eq(first.config(), tls.acceptor().config()));
        for (file, says) in [("pem", "no certificate"), ("key", "reading key")] {
            std::fs::write(at(file), "-").unwrap();
            let error = tls.read_again().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            copy(SECOND, file);
        }
    }
}
