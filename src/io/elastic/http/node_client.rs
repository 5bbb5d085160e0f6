//! One node, by a transport of its own.

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use elasticsearch::auth::{ClientCertificate, Credentials};
use elasticsearch::cert::{Certificate, CertificateValidation};
use elasticsearch::http::Method as HttpMethod;
use elasticsearch::http::headers::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use elasticsearch::http::transport::{SingleNodeConnectionPool, Transport, TransportBuilder};
use url::Url;

use super::options::{ConnectError, HttpOptions, check_url};
use crate::io::elastic::aws::{RequestToSign, Signer};
use crate::io::elastic::{CallError, Method, decode};
use crate::support::tls;

/// An answer that announces more than this is not read.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// A node.
pub(super) struct NodeClient {
    /// Ends with a slash.
    pub(super) url: Url,
    transport: Transport,
}

/// A node's response, with any status.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Bytes,
}

impl Answer {
    /// The body; an error for a status other than success.
    pub(super) fn success(self) -> Result<Bytes, CallError> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        let (kind, reason) = decode::error_body(&self.body);
        Err(CallError::Status { status: self.status, kind, reason, retry_after: self.retry_after })
    }
}

impl From<Method> for HttpMethod {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::Get,
            Method::Head => Self::Head,
            Method::Put => Self::Put,
            Method::Post => Self::Post,
            Method::Delete => Self::Delete,
        }
    }
}

impl NodeClient {
    /// A client of the node. No connection is opened yet.
    pub(super) fn new(
        url: &Url,
        credentials: Option<Credentials>,
        options: &HttpOptions,
    ) -> Result<Self, ConnectError> {
        let mut url = check_url(url)?;
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        let mut builder = TransportBuilder::new(SingleNodeConnectionPool::new(url.clone()))
            .timeout(options.request_timeout);
        if let Some(identity) = &options.identity {
            let pem = ClientCertificate::Pem(identity.pem().to_vec());
            builder = builder.auth(Credentials::Certificate(pem));
        }
        if let Some(pem) = &options.ca_pem {
            let certificates = Certificate::from_pem(pem).map_err(|error| ConnectError::Ca(chain(&error)))?;
            builder = builder.cert_validation(CertificateValidation::Full(certificates));
        }
        let transport = builder.build().map_err(|error| ConnectError::Client(error.to_string()))?;
        // The crate's builder takes either these or a certificate, and the client that it has built keeps the certificate.
        if let Some(credentials) = credentials {
            transport.set_auth(credentials);
        }
        Ok(Self { url, transport })
    }

    /// Headers that every request has.
    pub(super) fn headers(content_type: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        // Responses are small or forwarded at once: compression would cost the server more than it saves, and hide their
        // length.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers
    }

    /// Adds the signature of a request with these headers and this body, as they are sent: the transport changes neither.
    pub(super) async fn sign(
        &self,
        signer: &Signer,
        method: HttpMethod,
        path: &str,
        headers: &mut HeaderMap,
        body: &Option<Bytes>,
        timeout: Duration,
    ) -> Result<(), CallError> {
        // As the transport will make it.
        let url = self.url.join(path.trim_start_matches('/'));
        let url = &url.map_err(|error| CallError::Unsigned(error.to_string()))?;
        let method = match method {
            HttpMethod::Get => "GET",
            HttpMethod::Put => "PUT",
            HttpMethod::Post => "POST",
            HttpMethod::Delete => "DELETE",
            HttpMethod::Head => "HEAD",
        };
        let request = RequestToSign { method, url, body: body.as_deref().unwrap_or_default() };
        signer.sign(&request, headers, timeout).await.map_err(CallError::Unsigned)
    }

    /// Sends a request, once.
    pub(super) async fn send(
        &self,
        method: HttpMethod,
        path: &str,
        headers: HeaderMap,
        body: Option<Bytes>,
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        let failure = |error| self.failure(&error, timeout);
        let response = self
            .transport
            .send(method, path, headers, None::<&()>, body, Some(timeout))
            .await
            .map_err(failure)?;
        // The client follows redirects, and makes a GET of a POST on the way.
        if self.url.join(path.trim_start_matches('/')).is_ok_and(|asked| asked != *response.url()) {
            return Err(CallError::Undecodable(format!(
                "{} redirects to another address; set elasticsearch.urls to that of elasticsearch itself",
                self.url
            )));
        }
        if let Some(bytes) = response.content_length().filter(|&bytes| bytes > MAX_ANSWER_BYTES) {
            return Err(CallError::TooLarge { bytes, most: MAX_ANSWER_BYTES });
        }
        let status = response.status_code().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(retry_after);
        let body = response.bytes().await.map_err(failure)?;
        Ok(Answer { status, retry_after, body })
    }

    fn failure(&self, error: &elasticsearch::Error, timeout: Duration) -> CallError {
        if error.is_timeout() {
            return CallError::Timeout(timeout);
        }
        let cause = chain(error);
        let advice = advice(&cause);
        CallError::Connection(format!("{}: {}{advice}", self.url, decode::shorten(&cause, 300)))
    }
}

/// What an operator can do about a connection error, as the end of a sentence.
fn advice(cause: &str) -> &'static str {
    // An alert is about the certificate of this side.
    if let Some((_, alert)) = cause.split_once("received fatal alert: ") {
        if alert.starts_with("CertificateRequired") {
            "; the server demands a client certificate: set elasticsearch.client_cert_file and client_key_file"
        } else if alert.contains("Certificate") || alert.starts_with("UnknownCA") {
            "; the server refuses the client certificate, or demands one: look at elasticsearch.client_cert_file"
        } else {
            ""
        }
    } else if tls::is_untrusted(cause) {
        "; the server's certificate is not trusted: set elasticsearch.ca_file"
    } else if cause.contains("NotValidForName") || cause.contains("not valid for name") {
        "; the server's certificate is for another host name: use that name in elasticsearch.urls"
    } else if cause.contains("Expired") || cause.contains("certificate expired") {
        "; the server's certificate has expired: renew it"
    } else if cause.contains("InvalidContentType") {
        "; the server does not speak TLS there: use http:// in elasticsearch.urls, or another port"
    } else {
        ""
    }
}

/// The causes of an error, outermost first. The client's own line, which would repeat the whole address, is left out.
fn chain(error: &elasticsearch::Error) -> String {
    let mut causes = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !text.starts_with("error sending request") && !text.starts_with("client error") {
            causes.push(text);
        }
        cause = error.source();
    }
    if causes.is_empty() { error.to_string() } else { causes.join(": ") }
}

/// Seconds; Elasticsearch and the usual proxies send no dates.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
