//! The Cloud ID of a deployment of Elastic Cloud, which says where its Elasticsearch is.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::server_url::ServerUrl;

/// Of a Cloud ID that names no port.
const DEFAULT_PORT: u16 = 443;

/// With or without padding, which is easily lost when an id is copied.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// `name:base64`, where the base64 is of `host[:port]$elasticsearch[:port][$kibana]`, as Elastic's clients read it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CloudId {
    text: String,
    url: ServerUrl,
}

/// Why a text is not a Cloud ID. Never quotes the text: an API key looks alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this is not a Cloud ID: {0}; copy it whole from the deployment's page in Elastic Cloud")]
pub struct BadCloudId(&'static str);

impl CloudId {
    /// The address of the deployment's Elasticsearch.
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }
}

impl FromStr for CloudId {
    type Err = BadCloudId;

    fn from_str(text: &str) -> Result<Self, BadCloudId> {
        let (_, encoded) = text.rsplit_once(':').ok_or(BadCloudId("there is no name and ':' before it"))?;
        let decoded = BASE64.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or(BadCloudId("what follows its name is not the base64 of a text"))?;
        let mut parts = decoded.split('$');
        let mut next = |port| host_and_port(parts.next().unwrap_or_default(), port);
        let (host, port) = next(DEFAULT_PORT)?;
        let (elasticsearch, port) = next(port)?;
        let url = format!("https://{elasticsearch}.{host}:{port}");
        let url = url.parse::<ServerUrl>().map_err(|_| BadCloudId("its host cannot be used"))?;
        Ok(Self { text: text.to_owned(), url })
    }
}

/// Splits `host[:port]`.
fn host_and_port(text: &str, default_port: u16) -> Result<(&str, u16), BadCloudId> {
    let (host, port) = match text.split_once(':') {
        None => (text, default_port),
        Some((host, port)) => (host, port.parse().map_err(|_| BadCloudId("its port is not a number"))?),
    };
    if host.is_empty() {
        return Err(BadCloudId("it names no Elasticsearch"));
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    if !host.bytes().all(legal) {
        return Err(BadCloudId("its host cannot be used"));
    }
    Ok((host, port))
}

impl TryFrom<String> for CloudId {
    type Error = BadCloudId;

    fn try_from(text: String) -> Result<Self, BadCloudId> {
        text.parse()
    }
}

impl From<CloudId> for String {
    fn from(id: CloudId) -> String {
        id.text
    }
}

impl fmt::Debug for CloudId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<String, BadCloudId> {
        text.parse::<CloudId>().map(|id| id.url().to_string())
    }

    fn id(content: &str) -> String {
        format!("places:{}", BASE64.encode(content))
    }

    #[test]
    fn elastics_own_example_is_read() {
        let example = "staging:dXMtZWFzdC0xLmF3cy5mb3VuZC5pbyRjZWM2ZjI2MWE3NGJmMjRjZTMzYmI4ODExYjg0Mjk0ZiRjNmMyY2E2ZDA0MjI\
                       0OWFmMGNjN2Q3YTllOTYyNTc0Mw==";
        let host = "https://cec6f261a74bf24ce33bb8811b84294f.us-east-1.aws.found.io";
        assert_eq!(url(example).as_deref(), Ok(host));
        assert_eq!(url(example.trim_end_matches('=')).as_deref(), Ok(host));
    }

    #[test]
    fn port_is_443_or_that_of_host_or_of_elasticsearch() {
        for (content, expected) in [
            ("example.com$es$kibana", "https://es.example.com"),
            ("example.com$es", "https://es.example.com"),
            ("example.com:443$es$", "https://es.example.com"),
            ("example.com:9243$es$kibana", "https://es.example.com:9243"),
            ("example.com:9243$es:9244$kibana:9245", "https://es.example.com:9244"),
        ] {
            assert_eq!(url(&id(content)).as_deref(), Ok(expected), "{content}");
        }
        assert_eq!(
            url(&id("example.com$es").replace("places", "a:b")).as_deref(),
            Ok("https://es.example.com")
        );
    }

    #[test]
    fn a_bad_id_is_refused_and_not_repeated() {
        for (text, reason) in [
            (String::new(), "':'"),
            ("hunter2".to_owned(), "':'"),
            ("id:hunter2-hunter2".to_owned(), "base64"),
            (id("\u{fffd}").replace("77+9", "/w"), "base64"),
            (id("hunter2"), "names no Elasticsearch"),
            (id("hunter2$"), "names no Elasticsearch"),
            (id("$hunter2$k"), "names no Elasticsearch"),
            (id("hunter2:$es"), "port"),
            (id("hunter2:65536$es"), "port"),
            (id("user@hunter2$es"), "host"),
            (id("hunter2/path$es"), "host"),
            (id("hunter2$es/../"), "host"),
            (id("999$es"), "host"),
        ] {
            let error = url(&text).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("copy it whole"), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
