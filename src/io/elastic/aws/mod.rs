//! Requests signed for Amazon OpenSearch Service (AWS Signature Version 4), and what its refusals mean.
//!
//! The signature is made by `aws-sigv4`, the crate of Amazon's own SDK. It covers method, path, query, host, time, content
//! type and the body that is sent. Where the keys come from is `io/aws/credentials.rs`.

use std::time::{Duration, SystemTime};

use aws_sigv4::http_request::{PayloadChecksumKind, SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use bytes::Bytes;
use elasticsearch::http::headers::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use url::Url;

use super::decode;
use crate::io::aws::credentials::{KeySource, Keyring};

/// Signs requests.
#[derive(Debug)]
pub(super) struct Signer {
    region: String,
    /// The service's name in a signature: `es`, `aoss`.
    service: &'static str,
    keyring: Keyring,
}

/// The signed parts of a request, besides its headers.
pub(super) struct RequestToSign<'a> {
    pub method: &'static str,
    /// As it is sent, with path and query.
    pub url: &'a Url,
    /// As sent, possibly compressed.
    pub body: &'a [u8],
}

impl Signer {
    pub(super) fn new(region: String, service: &'static str, source: KeySource) -> Result<Self, String> {
        Ok(Self { region, service, keyring: Keyring::new(source)? })
    }

    /// Adds the signature of now to `headers`, in which the content type stands already. Gives up after `timeout`.
    ///
    /// # Errors
    /// If there are no credentials, in words for people.
    pub(super) async fn sign(
        &self,
        request: &RequestToSign<'_>,
        headers: &mut HeaderMap,
        timeout: Duration,
    ) -> Result<(), String> {
        let keys = tokio::time::timeout(timeout, self.keyring.keys(SystemTime::now()));
        let keys = keys.await.map_err(|_| format!("no AWS credentials within {timeout:?}"))??;
        self.sign_with(keys, request, headers, SystemTime::now())
    }

    fn sign_with(
        &self,
        keys: aws_credential_types::Credentials,
        request: &RequestToSign<'_>,
        headers: &mut HeaderMap,
        now: SystemTime,
    ) -> Result<(), String> {
        let mut settings = SigningSettings::default();
        // Serverless insists on the header; a domain takes it.
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let identity = keys.into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(self.service)
            .time(now)
            .settings(settings)
            .build()
            .map_err(|error| error.to_string())?
            .into();
        // The rest of the headers may be changed on the way, by a proxy for example.
        let signed = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let signed = signed.map(|value| (CONTENT_TYPE.as_str(), value));
        let body = SignableBody::Bytes(request.body);
        let signable = SignableRequest::new(request.method, request.url.as_str(), signed.into_iter(), body)
            .map_err(|error| error.to_string())?;
        // At level trace the crate logs what it signs, including the session token.
        let signed = tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), || {
            sign(signable, &params)
        });
        let (instructions, _) = signed.map_err(|error| error.to_string())?.into_parts();
        for (name, value) in instructions.headers() {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                "the AWS credentials contain characters that are invalid in a header; check for line breaks"
                    .to_owned()
            })?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(())
    }
}

/// What a refusal (401, 403) to a signed request means: the status that others would give it, and a body that says what to
/// do. `None`: it is what it looks like.
///
/// AWS answers 403 to those it does not know as well as to those who may not, and says which in words.
pub(super) fn explain(status: u16, body: &[u8]) -> Option<(u16, Bytes)> {
    if !matches!(status, 401 | 403) {
        return None;
    }
    let (kind, reason) = decode::error_body(body);
    let (status, advice) = meaning(&reason)?;
    let body = json!({"error": {"type": kind, "reason": format!("{reason}; {advice}")}, "status": status});
    Some((status, body.to_string().into()))
}

/// Status and advice for the words in which AWS refuses.
fn meaning(reason: &str) -> Option<(u16, &'static str)> {
    const TABLE: [(&str, u16, &str); 9] = [
        (
            "Signature expired",
            401,
            "the clock of this machine is behind that of AWS by more than five minutes: set it, by NTP",
        ),
        (
            "Signature not yet current",
            401,
            "the clock of this machine is ahead of that of AWS by more than five minutes: set it, by NTP",
        ),
        (
            "signature we calculated does not match",
            401,
            "look at AWS_SECRET_ACCESS_KEY, and at proxies on the way: a changed host, path or body breaks a signature",
        ),
        (
            "Credential should be scoped to",
            401,
            "set elasticsearch.aws_region and aws_service to what is named there",
        ),
        (
            "token included in the request is expired",
            401,
            "the temporary credentials have expired: a worker needs a role, or keys that do not end",
        ),
        (
            "token included in the request is invalid",
            401,
            "AWS does not know the access key: look at AWS_ACCESS_KEY_ID and AWS_SESSION_TOKEN",
        ),
        ("Missing Authentication Token", 401, "a proxy took the signature away"),
        (
            "is not authorized to perform",
            403,
            "allow es:ESHttp* on the domain to this role or user, in its policy and in the domain's",
        ),
        (
            "no permissions for [",
            403,
            "give this role or user the permissions in the domain's fine-grained access control",
        ),
    ];
    TABLE.iter().find(|(words, ..)| reason.contains(words)).map(|&(_, status, advice)| (status, advice))
}

#[cfg(test)]
mod tests;
