//! Tokens of an OAuth 2 token endpoint, by the client's own credentials (RFC 6749, 4.4).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::Deserialize;

use super::{NoToken, Token};
use crate::base::causes::with_causes;
use crate::support::config::kafka_login::TokenEndpoint;
use crate::support::{http, tls};

/// No answer is longer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// So much of a refusal's words is shown.
const MAX_SHOWN: usize = 300;

/// A token endpoint, and a client for one request to it: tokens are minutes apart.
pub(super) struct Endpoint<'a> {
    endpoint: &'a TokenEndpoint,
    http: reqwest::Client,
}

/// RFC 6749, 5.1.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: Option<u64>,
}

/// RFC 6749, 5.2.
#[derive(Deserialize)]
struct Refused {
    error: String,
    error_description: Option<String>,
}

/// What is read of a token that is a JWT (RFC 7519).
#[derive(Deserialize, Default)]
#[serde(default)]
struct Claims {
    sub: Option<String>,
    exp: Option<f64>,
}

impl<'a> Endpoint<'a> {
    pub(super) fn new(endpoint: &'a TokenEndpoint) -> Result<Self, String> {
        let authorities = endpoint.ca_file.as_deref().map(|file| ("kafka.oauth_ca_file", file));
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        let http = tls::trusting(http, authorities).map_err(|error| error.to_string())?;
        Ok(Self { endpoint, http: http.build().map_err(|error| with_causes(&error))? })
    }

    pub(super) async fn fetch(&self, now: SystemTime) -> Result<Token, NoToken> {
        let TokenEndpoint { url, client_id, client_secret, scope, .. } = self.endpoint;
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        if let Some(scope) = scope {
            form.append_pair("scope", scope);
        }
        let request = self
            .http
            .post(url)
            .header("authorization", basic(client_id, client_secret))
            .header("accept", "application/json")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.finish());
        let causes = |error: reqwest::Error| {
            // An address may hold a secret, too.
            let cause = with_causes(&error.without_url());
            if tls::is_untrusted(&cause) {
                return NoToken::Refused(format!(
                    "{cause}; its certificate is untrusted: set kafka.oauth_ca_file"
                ));
            }
            NoToken::Unavailable(cause)
        };
        let mut response = request.send().await.map_err(causes)?;
        let status = response.status();
        let body = http::body(&mut response, MAX_ANSWER_BYTES).await.map_err(causes)?;
        let too_long = || NoToken::Unavailable(format!("the answer has more than {MAX_ANSWER_BYTES} bytes"));
        let body = body.ok_or_else(too_long)?;
        if status.is_success() {
            granted(&body, client_id, now).map_err(NoToken::Unavailable)
        } else {
            Err(refused(status.as_u16(), &body))
        }
    }
}

/// The credentials, each part encoded as in a form (RFC 6749, 2.3.1).
fn basic(client_id: &str, client_secret: &str) -> String {
    let part = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    format!("Basic {}", STANDARD.encode(format!("{}:{}", part(client_id), part(client_secret))))
}

/// The token of an answer. Errors quote nothing of it.
pub(super) fn granted(body: &[u8], client_id: &str, now: SystemTime) -> Result<Token, String> {
    let granted: Granted =
        serde_json::from_slice(body).map_err(|_| "the answer has no access_token".to_owned())?;
    let claims = claims(&granted.access_token);
    let end = match (granted.expires_in, claims.exp) {
        (Some(seconds), _) => now.checked_add(Duration::from_secs(seconds)),
        (None, Some(end)) => {
            Duration::try_from_secs_f64(end).ok().and_then(|end| UNIX_EPOCH.checked_add(end))
        }
        (None, None) => {
            return Err(
                "neither the answer (expires_in) nor the token (exp) says how long it is good".to_owned()
            );
        }
    };
    let end = end.ok_or("the token's end is no time")?;
    if end <= now {
        return Err("the token has ended already; is the clock right?".to_owned());
    }
    let principal = claims.sub.unwrap_or_else(|| client_id.to_owned());
    Ok(Token { text: granted.access_token, principal, end })
}

/// Those of a token that is a JWT; the signature is for the broker to verify.
fn claims(token: &str) -> Claims {
    let payload = token.split('.').nth(1).and_then(|payload| URL_SAFE_NO_PAD.decode(payload).ok());
    payload.and_then(|payload| serde_json::from_slice(&payload).ok()).unwrap_or_default()
}

fn refused(status: u16, body: &[u8]) -> NoToken {
    let why = match serde_json::from_slice::<Refused>(body) {
        Ok(Refused { error, error_description: Some(description) }) => format!(" {error}: {description}"),
        Ok(Refused { error, error_description: None }) => format!(" {error}"),
        Err(_) => String::new(),
    };
    let why: String = why.chars().filter(|char| !char.is_control()).take(MAX_SHOWN).collect();
    let answer = format!("it answered {status}{why}");
    match status {
        400 | 401 | 403 => NoToken::Refused(format!(
            "{answer}; correct kafka.oauth_client_id, kafka.oauth_client_secret or kafka.oauth_scope"
        )),
        404 | 405 => NoToken::Refused(format!("{answer}; correct kafka.oauth_token_url")),
        _ => NoToken::Unavailable(answer),
    }
}
