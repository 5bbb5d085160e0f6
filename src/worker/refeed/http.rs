//! One GET per document: 200 returns the document; 404 and 410 mean it is missing (see `gone.rs`); other refusals of
//! this one request are permanent; anything else is retried.

use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::{FetchAnswer, FetchFailure, SourceOpenError};
use crate::base::causes::with_causes;
use crate::base::ids::DocId;
use crate::support::config::SourceConfig;
use crate::support::config::source::HttpTemplate;
use crate::support::{http, tls};

/// A web server with documents.
#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    template: HttpTemplate,
    username: Option<String>,
    password: Option<crate::support::config::Secret>,
    max_document: usize,
    timeout: Duration,
}

impl Http {
    pub(super) fn new(
        source: &SourceConfig,
        template: HttpTemplate,
        max_document: usize,
    ) -> Result<Self, SourceOpenError> {
        // Redirects are not followed: they would take credentials and headers elsewhere.
        let builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(source.request_timeout)
            .default_headers(headers(source)?);
        let authorities = source.ca_file.as_deref().map(|file| ("source.ca_file", file));
        let builder = tls::trusting(builder, authorities)?;
        let client = builder.build().map_err(|error| SourceOpenError::Client(with_causes(&error)))?;
        Ok(Self {
            client,
            template,
            username: source.username.clone(),
            password: source.password.clone(),
            max_document,
            timeout: source.request_timeout,
        })
    }

    pub(super) async fn get(&self, id: &DocId) -> FetchAnswer {
        let Some(url) = self.template.address_of(id.as_str()) else {
            return FetchAnswer::Unusable {
                reason: "unfetchable_id",
                detail: "the id cannot be part of the source's URL: it would change the path".to_owned(),
            };
        };
        let mut request = self.client.get(url);
        if let Some(username) = &self.username {
            request = request
                .basic_auth(username, self.password.as_ref().map(crate::support::config::Secret::expose));
        }
        match request.send().await {
            Ok(response) => self.read(response).await,
            Err(error) => FetchAnswer::Failed(self.failure(error)),
        }
    }

    async fn read(&self, mut response: Response) -> FetchAnswer {
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::GONE => return FetchAnswer::Gone,
            status if is_about_the_id(status) => {
                return FetchAnswer::Unusable {
                    reason: "refused_by_source",
                    detail: format!(
                        "the source answered {status} for this id; if it does so for all, check source.url and what the \
                         source expects"
                    ),
                };
            }
            status => {
                let retry_after = retry_after(response.headers());
                return FetchAnswer::Failed(FetchFailure {
                    retry_after,
                    ..FetchFailure::new(refusal(status))
                });
            }
        }
        match http::body(&mut response, self.max_document).await {
            Ok(Some(body)) => FetchAnswer::Found(body),
            Ok(None) => FetchAnswer::Unusable {
                reason: "too_large",
                detail: format!(
                    "the document at the source exceeds documents.max_bytes ({} bytes)",
                    self.max_document
                ),
            },
            Err(error) => FetchAnswer::Failed(self.failure(error)),
        }
    }

    /// Without the URL: it contains the id, and may contain a key.
    fn failure(&self, error: reqwest::Error) -> FetchFailure {
        if error.is_timeout() {
            return FetchFailure::new(format!(
                "the source did not answer completely within {} (source.request_timeout)",
                humantime::format_duration(self.timeout)
            ));
        }
        let cause = with_causes(&error.without_url());
        let advice = if tls::is_untrusted(&cause) {
            "; its certificate is untrusted: set source.ca_file"
        } else if cause.contains("InvalidContentType") {
            "; the port does not speak TLS: use http:// in source.url, or another port"
        } else {
            ""
        };
        FetchFailure::new(format!("asking the source: {cause}{advice}"))
    }
}

fn headers(source: &SourceConfig) -> Result<HeaderMap, SourceOpenError> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let mut put = |name: HeaderName, value: &str| {
        let mut value = HeaderValue::try_from(value).map_err(|_| {
            SourceOpenError::Client(format!("the value of {name} is not a valid header value"))
        })?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok::<(), SourceOpenError>(())
    };
    if let Some(token) = &source.bearer_token {
        put(AUTHORIZATION, &format!("Bearer {}", token.expose()))?;
    }
    for (name, value) in &source.headers {
        let name = HeaderName::try_from(name)
            .map_err(|_| SourceOpenError::Client(format!("{name:?} is not a valid header name")))?;
        put(name, value.expose())?;
    }
    Ok(headers)
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Whether the source refuses this document permanently. Client errors about the method, headers, rate or credentials
/// concern all requests alike; once fixed, each document can be fetched.
fn is_about_the_id(status: StatusCode) -> bool {
    let is_about_all = matches!(
        status.as_u16(),
        401 | 402 | 403 | 405 | 406 | 407 | 408 | 411 | 415 | 417 | 421 | 423 | 425 | 426 | 428 | 429 | 431
    );
    status.is_client_error() && !is_about_all
}

fn refusal(status: StatusCode) -> String {
    let advice = match status.as_u16() {
        401 | 403 => "check source.username and source.password, source.bearer_token or source.headers",
        300..=399 => "redirects are not followed; set source.url to the final address",
        400..=499 if status != StatusCode::TOO_MANY_REQUESTS => {
            "this does not concern the document; check source.url and what the source expects"
        }
        200..=299 => "expected 200, 404 or 410",
        _ => "retrying; if it lasts, see the source's log",
    };
    format!("the source answered {status}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_a_remedy() {
        for (status, advice) in [
            (204, "expected 200"),
            (302, "redirects"),
            (405, "source.url"),
            (401, "source.password"),
            (403, "source.headers"),
            (429, "retrying"),
            (500, "log"),
            (503, "log"),
        ] {
            let text = refusal(StatusCode::from_u16(status).unwrap());
            assert!(text.contains(advice), "{status}: {text}");
        }
    }

    #[test]
    fn refusal_is_permanent_only_if_it_concerns_the_document() {
        let is_about_the_id = |status: u16| is_about_the_id(StatusCode::from_u16(status).unwrap());
        for status in [400, 409, 413, 414, 418, 422, 424, 451, 499] {
            assert!(is_about_the_id(status), "{status}");
        }
        for status in [204, 302, 401, 402, 403, 405, 406, 407, 408, 415, 425, 429, 431, 500, 502, 503] {
            assert!(!is_about_the_id(status), "{status}");
        }
    }

    #[test]
    fn retry_after_is_parsed_in_seconds() {
        let of = |value: &'static str| {
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]))
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("Wed, 21 Oct 2026 07:28:00 GMT"), None);
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
