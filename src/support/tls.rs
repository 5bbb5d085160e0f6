//! TLS from PEM files. Of a listener: certificate, key and the authorities of clients, read again when they change. Of a client: the
//! certificate and key by which it proves who it is, read once.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::sign::CertifiedKey;
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

impl TlsFiles {
    /// What a listener's section names: certificate, private key, authorities of clients, each with its key. `None` without
    /// certificate or private key.
    pub fn of_listener(given: [(&'static str, &Option<PathBuf>); 3]) -> Option<Self> {
        let [certificate, key, client_authorities] =
            given.map(|(name, path)| path.clone().map(|path| (name, path)));
        Some(Self { certificate: certificate?, key: key?, client_authorities })
    }
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

/// The authorities in a PEM file, for a client to trust; beside it, what it is called where it was named.
///
/// # Errors
/// If it cannot be read, or holds no certificate.
fn authorities(file: (&'static str, &Path)) -> Result<Vec<reqwest::Certificate>, TlsError> {
    let (key, path) = file;
    let found = certificates(key, path, &contents(file)?)?;
    let usable = |authority: CertificateDer<'_>| {
        reqwest::Certificate::from_der(&authority).map_err(|error| unusable(key, path, error.to_string()))
    };
    found.into_iter().map(usable).collect()
}

/// A client that trusts the authorities in a PEM file, if one is named, instead of the built-in ones.
///
/// # Errors
/// If the file cannot be read, or holds no certificate.
pub fn trusting(
    client: reqwest::ClientBuilder,
    file: Option<(&'static str, &Path)>,
) -> Result<reqwest::ClientBuilder, TlsError> {
    let Some(file) = file else { return Ok(client) };
    let client = client.tls_built_in_root_certs(false);
    Ok(authorities(file)?.into_iter().fold(client, reqwest::ClientBuilder::add_root_certificate))
}

/// Whether a failure says, in the words of rustls, that a server's certificate is of an authority that is not trusted.
pub fn is_untrusted(cause: &str) -> bool {
    cause.contains("UnknownIssuer") || cause.contains("CaUsedAsEndEntity")
}

/// The certificate and private key of a client. Never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    pem: Vec<u8>,
}

impl ClientIdentity {
    /// Reads two files, each beside what it is called in the configuration.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn read(certificate: (&'static str, &Path), key: (&'static str, &Path)) -> Result<Self, TlsError> {
        let (chain_pem, key_pem) = (contents(certificate)?, contents(key)?);
        let chain = certificates(certificate.0, certificate.1, &chain_pem)?;
        let private_key = private_key(key.0, key.1, &key_pem)?;
        CertifiedKey::from_der(chain, private_key, &ring::default_provider()).map_err(|error| {
            TlsError::Pair { certificate: certificate.0, key: key.0, reason: error.to_string() }
        })?;
        Ok(Self { pem: [chain_pem.as_slice(), b"\n", &key_pem].concat() })
    }

    /// The certificates and, last, the key.
    pub fn pem(&self) -> &[u8] {
        &self.pem
    }
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientIdentity(redacted)")
    }
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
        let read = |file: &(&'static str, PathBuf)| contents((file.0, &file.1));
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
        let key = private_key(files.key.0, &files.key.1, &contents.key)?;
        let mut config =
            config.with_single_cert(chain, key).map_err(|error| mismatched(error.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { digest: contents.digest(), config: Arc::new(config) })
    }
}

fn contents((key, path): (&'static str, &Path)) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| unusable(key, path, error.to_string()))
}

/// The library's error may quote a line of the file: a key whose line breaks were lost is one line.
fn private_key(key: &'static str, path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let reason = match error {
            pem::Error::NoItemsFound => "no private key without a passphrase is in it",
            _ => "it is no PEM file, or its line breaks were lost",
        };
        unusable(key, path, reason.to_owned())
    })
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
    fn client_files_that_cannot_be_used_are_named_and_no_key_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("pem"), folder.path().join("key"));
        let read = || ClientIdentity::read(("cert_file", &certificate), ("key_file", &key));
        let refused = |says: &[&str]| {
            let error = read().unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(says.iter().all(|words| shown.contains(words)), "no {says:?} in {shown}");
            // What every key of this kind begins with, as text and as numbers.
            assert!(!shown.contains("MIGH") && !shown.contains("77, 73, 71, 72"), "{shown}");
        };
        let copy = |from: String, to: &Path| std::fs::copy(from, to).unwrap();
        refused(&["reading cert_file", "pem"]);
        copy(format!("{FIRST}.pem"), &certificate);
        refused(&["reading key_file", "key"]);
        copy(format!("{FIRST}.pem"), &key);
        refused(&["reading key_file", "no private key"]);
        let text = std::fs::read_to_string(format!("{FIRST}.key")).unwrap();
        assert!(text.contains("MIGH"), "{text}");
        std::fs::write(&key, text.replace('\n', "")).unwrap();
        refused(&["reading key_file", "line breaks"]);
        copy(format!("{SECOND}.key"), &key);
        refused(&["cert_file and key_file cannot be used"]);
        copy(format!("{FIRST}.key"), &key);
        let identity = read().unwrap();
        assert!(identity.pem().ends_with(text.as_bytes()));
        assert!(!format!("{identity:?}").contains("MIGH"));
    }

    #[test]
    fn a_file_without_an_authority_is_refused_and_each_authority_of_another_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("authorities.pem");
        let read = || authorities(("ca_file", &file)).map(|authorities| authorities.len());
        let refused = |says: &str| assert!(read().unwrap_err().to_string().contains(says));
        refused("reading ca_file");
        std::fs::copy(format!("{FIRST}.key"), &file).unwrap();
        refused("no certificate is in it");
        let one = std::fs::read_to_string(format!("{FIRST}.pem")).unwrap();
        std::fs::write(&file, one.repeat(2)).unwrap();
        assert_eq!(read(), Ok(2));
    }

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
