//! Tokens for Amazon MSK with IAM: a signed address, as `aws-msk-iam-sasl-signer` makes it.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign,
};
use aws_sigv4::sign::v4::SigningParams;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use url::Url;

use super::{NoToken, Token};
use crate::io::aws::credentials::{KeySource, Keyring};

/// The most that MSK takes.
const LIFETIME: Duration = Duration::from_secs(900);

/// Amazon MSK in one region, and the keys of this process.
pub(super) struct Msk<'a> {
    region: &'a str,
    keyring: Keyring,
}

impl<'a> Msk<'a> {
    /// With keys from where AWS's own tools look for them.
    pub(super) fn from_environment(region: &'a str) -> Result<Self, String> {
        let source = KeySource::from_environment(|name| std::env::var(name).ok(), region)?;
        Ok(Self { region, keyring: Keyring::new(source)? })
    }

    pub(super) async fn token(&self, now: SystemTime) -> Result<Token, NoToken> {
        let keys = self.keyring.keys(now).await.map_err(NoToken::Unavailable)?;
        // Keys that end sooner take their tokens with them.
        let end = keys.expiry().map_or(now + LIFETIME, |end| end.min(now + LIFETIME));
        let principal = keys.access_key_id().to_owned();
        let address = signed_address(self.region, keys, now).map_err(NoToken::Refused)?;
        Ok(Token { text: URL_SAFE_NO_PAD.encode(address), principal, end })
    }
}

fn signed_address(region: &str, keys: Credentials, now: SystemTime) -> Result<String, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    let unsigned = format!("https://kafka.{region}.{domain}/?Action=kafka-cluster%3AConnect");
    let mut address = Url::parse(&unsigned).map_err(|error| text(&error))?;

    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.payload_checksum_kind = PayloadChecksumKind::NoHeader;
    settings.expires_in = Some(LIFETIME);
    let identity = keys.into();
    let params = SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("kafka-cluster")
        .time(now)
        .settings(settings)
        .build()
        .map_err(|error| text(&error))?
        .into();
    let request = SignableRequest::new("GET", &unsigned, std::iter::empty(), SignableBody::Bytes(b""));
    let request = request.map_err(|error| text(&error))?;
    // At level trace the crate logs what it signs, including the session token.
    let signed = tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), || {
        sign(request, &params)
    });
    let (instructions, _) = signed.map_err(|error| text(&error))?.into_parts();
    {
        let mut query = address.query_pairs_mut();
        for (name, value) in instructions.params() {
            query.append_pair(name, value);
        }
        // Not signed: it says in MSK's logs who made the token.
        query.append_pair("User-Agent", concat!("geofold/", env!("CARGO_PKG_VERSION")));
    }
    Ok(address.into())
}

#[cfg(test)]
mod tests;
