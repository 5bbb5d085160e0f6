//! AWS credentials, from the same sources as AWS's own tools: the environment, a web identity (EKS: IRSA), a container's role
//! (ECS, EKS Pod Identity), the role of an EC2 instance. Temporary credentials are renewed before they expire.
//!
//! The answers of these services are few and small, and are read here; Amazon's crate for it, `aws-config`, brings more than
//! thirty others with it, among them a second TLS stack in C. Files of profiles are not read.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use reqwest::header::AUTHORIZATION;
use serde::Deserialize;
use tokio::sync::Mutex;
use url::Url;

use crate::base::causes::with_causes;
use crate::support::http;

/// Keys are fetched again this long before they end.
const BEFORE_THE_END: Duration = Duration::from_secs(300);
/// How long after an attempt that failed the next one is made, while the keys at hand are good.
const PAUSE: Duration = Duration::from_secs(30);
/// For one request to one of these services.
const TIMEOUT: Duration = Duration::from_secs(5);
/// No answer of theirs is longer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Hosts other than loopback from which a container's role may be fetched without TLS.
const CONTAINER_HOSTS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];

/// Where keys come from.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// Keys that were given.
    Given(Credentials),
    /// AWS's token service, for a token that lies in a file.
    WebIdentity {
        /// File of the token; read for each request.
        token_file: PathBuf,
        /// The role to take.
        role_arn: String,
        /// Session name, as in AWS's logs.
        session_name: String,
        /// The token service.
        endpoint: Url,
    },
    /// The agent that gives a container its role.
    Container {
        /// Its address.
        url: Url,
        /// The `Authorization` header to send, if any.
        authorization: Option<Authorization>,
    },
    /// The metadata service of an EC2 instance.
    Instance {
        /// Its address.
        endpoint: Url,
    },
}

/// The authorization with which a container fetches its role.
#[derive(Clone, PartialEq, Eq)]
pub enum Authorization {
    /// The token.
    Token(String),
    /// File of the value; read for each request.
    File(PathBuf),
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl KeySource {
    /// The first that the variables name, in the order of Amazon's own tools; without any, the role of the instance.
    ///
    /// # Errors
    /// If half of what is needed is there, in words for people.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>, region: &str) -> Result<Self, String> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let address = |name: &str, text: &str| {
            Url::parse(text).map_err(|error| format!("{name} is no address: {error}"))
        };
        match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret)) => {
                let token = variable("AWS_SESSION_TOKEN");
                return Ok(Self::Given(Credentials::new(id, secret, token, None, "environment")));
            }
            (Some(_), None) => {
                return Err("AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not".to_owned());
            }
            (None, Some(_)) => {
                return Err("AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID is not".to_owned());
            }
            (None, None) => {}
        }
        if let Some(token_file) = variable("AWS_WEB_IDENTITY_TOKEN_FILE") {
            let role_arn = variable("AWS_ROLE_ARN")
                .ok_or("AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not")?;
            let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
            let usual = format!("https://sts.{region}.{domain}/");
            let endpoint = variable("AWS_ENDPOINT_URL_STS").unwrap_or(usual);
            return Ok(Self::WebIdentity {
                token_file: token_file.into(),
                role_arn,
                session_name: variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "geofold".to_owned()),
                endpoint: address("AWS_ENDPOINT_URL_STS", &endpoint)?,
            });
        }
        let relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        let full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
        if let Some(text) = relative.map(|path| format!("http://{}{path}", CONTAINER_HOSTS[0])).or(full) {
            let url = address("AWS_CONTAINER_CREDENTIALS_FULL_URI", &text)?;
            if !is_safe(&url) {
                return Err(format!(
                    "AWS_CONTAINER_CREDENTIALS_FULL_URI names {}, which would send keys in the clear; use https",
                    url.host_str().unwrap_or_default()
                ));
            }
            let file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
            let authorization = file
                .map(|file| Authorization::File(file.into()))
                .or_else(|| variable("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(Authorization::Token));
            return Ok(Self::Container { url, authorization });
        }
        if variable("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Err(
                "the environment names no AWS credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
                        AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_FULL_URI), and \
                        AWS_EC2_METADATA_DISABLED forbids to ask the instance"
                    .to_owned(),
            );
        }
        let endpoint = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
        let endpoint = endpoint.unwrap_or_else(|| "http://169.254.169.254/".to_owned());
        Ok(Self::Instance { endpoint: address("AWS_EC2_METADATA_SERVICE_ENDPOINT", &endpoint)? })
    }

    /// For logs and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Given(_) => "the environment",
            Self::WebIdentity { .. } => "the web identity (AWS_WEB_IDENTITY_TOKEN_FILE)",
            Self::Container { .. } => "the container's role (AWS_CONTAINER_CREDENTIALS_FULL_URI)",
            Self::Instance { .. } => "the role of the EC2 instance",
        }
    }
}

fn is_safe(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let is_loopback = host == "localhost" || host.starts_with("127.") || host == "[::1]";
    url.scheme() == "https" || is_loopback || CONTAINER_HOSTS.contains(&host)
}

/// Keys, fetched when they are needed and again before they end.
#[derive(Debug)]
pub(crate) struct Keyring {
    source: KeySource,
    client: reqwest::Client,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    keys: Option<Credentials>,
    /// Not before this time, while the keys are good.
    next_attempt: Option<SystemTime>,
}

impl Keyring {
    pub(crate) fn new(source: KeySource) -> Result<Self, String> {
        let mut builder =
            reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(TIMEOUT);
        if !matches!(source, KeySource::WebIdentity { .. }) {
            // Metadata services are local: never use a proxy.
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { source, client, held: Mutex::default() })
    }

    /// Keys that are good at `now`.
    pub(crate) async fn keys(&self, now: SystemTime) -> Result<Credentials, String> {
        if let KeySource::Given(keys) = &self.source {
            return Ok(keys.clone());
        }
        // Held while fetching, so that concurrent requests fetch once.
        let mut held = self.held.lock().await;
        let left = |keys: &Credentials| match keys.expiry() {
            Some(end) => end.duration_since(now).unwrap_or_default(),
            None => Duration::MAX,
        };
        let good = held.keys.clone().filter(|keys| left(keys) > Duration::ZERO);
        if let Some(keys) = &good
            && (left(keys) > BEFORE_THE_END || held.next_attempt.is_some_and(|next| now < next))
        {
            return Ok(keys.clone());
        }
        let name = self.source.name();
        match (self.fetch().await, good) {
            (Ok(keys), _) => {
                *held = Held { keys: Some(keys.clone()), next_attempt: None };
                Ok(keys)
            }
            (Err(error), Some(keys)) => {
                tracing::warn!("AWS credentials could not be renewed, and end soon: {name}: {error}");
                held.next_attempt = Some(now + PAUSE);
                Ok(keys)
            }
            (Err(error), None) => Err(format!("no AWS credentials from {name}: {error}")),
        }
    }

    async fn fetch(&self) -> Result<Credentials, String> {
        match &self.source {
            KeySource::Given(keys) => Ok(keys.clone()),
            KeySource::WebIdentity { token_file, role_arn, session_name, endpoint } => {
                let token = read(token_file)?;
                let form = [
                    ("Action", "AssumeRoleWithWebIdentity"),
                    ("Version", "2011-06-15"),
                    ("RoleArn", role_arn),
                    ("RoleSessionName", session_name),
                    ("WebIdentityToken", &token),
                ];
                let request = self.client.post(endpoint.clone()).body(form_of(&form));
                let request = request.header("content-type", "application/x-www-form-urlencoded");
                from_xml(&answer(request).await?)
            }
            KeySource::Container { url, authorization } => {
                let mut request = self.client.get(url.clone());
                let token = match authorization {
                    None => None,
                    Some(Authorization::Token(token)) => Some(token.clone()),
                    Some(Authorization::File(file)) => Some(read(file)?),
                };
                if let Some(token) = token {
                    request = request.header(AUTHORIZATION, token);
                }
                from_json(&answer(request).await?)
            }
            KeySource::Instance { endpoint } => {
                let join = |path: &str| endpoint.join(path).map_err(|error| error.to_string());
                let request = self.client.put(join("latest/api/token")?);
                let token = answer(request.header("x-aws-ec2-metadata-token-ttl-seconds", "300")).await?;
                let get = |url: Url| answer(self.client.get(url).header("x-aws-ec2-metadata-token", &token));
                let roles = "latest/meta-data/iam/security-credentials/";
                let listed = get(join(roles)?).await?;
                let role = listed.lines().next().map(str::trim).filter(|role| !role.is_empty());
                let role = role.ok_or("the instance has no role")?;
                from_json(&get(join(&format!("{roles}{role}"))?).await?)
            }
        }
    }
}

fn form_of(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

fn read(file: &std::path::Path) -> Result<String, String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("reading {}: {error}", file.display()))?;
    Ok(text.trim().to_owned())
}

/// The body of a successful response. Errors name neither address nor body: either may hold a token.
async fn answer(request: reqwest::RequestBuilder) -> Result<String, String> {
    let causes = |error: reqwest::Error| with_causes(&error.without_url());
    let mut response = request.send().await.map_err(causes)?;
    let status = response.status();
    let body = http::body(&mut response, MAX_ANSWER_BYTES).await.map_err(causes)?;
    let body = body.ok_or_else(|| format!("the answer has more than {MAX_ANSWER_BYTES} bytes"))?;
    let body = String::from_utf8(body.into()).map_err(|_| "the answer is no text".to_owned())?;
    if status.is_success() {
        return Ok(body);
    }
    let why = member(&body, "Message").or_else(|| member(&body, "Code")).unwrap_or_default();
    Err(format!("it answered {status} {why}").trim_end().to_owned())
}

/// Parses the response of an instance or container metadata service.
fn from_json(text: &str) -> Result<Credentials, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        access_key_id: String,
        secret_access_key: String,
        token: String,
        expiration: String,
    }
    // serde's error would show a part of the text.
    let answer: Answer = serde_json::from_str(text).map_err(|_| NO_KEYS.to_owned())?;
    let end = end(&answer.expiration)?;
    Ok(Credentials::new(
        answer.access_key_id,
        answer.secret_access_key,
        Some(answer.token),
        Some(end),
        "role",
    ))
}

const NO_KEYS: &str = "the answer holds no keys";

/// Parses the response of the token service. Keys and tokens have no characters that XML escapes.
fn from_xml(text: &str) -> Result<Credentials, String> {
    let member = |name| member(text, name).ok_or_else(|| NO_KEYS.to_owned());
    let end = end(member("Expiration")?)?;
    let (id, secret, token) = (member("AccessKeyId")?, member("SecretAccessKey")?, member("SessionToken")?);
    Ok(Credentials::new(id, secret, Some(token.to_owned()), Some(end), "web identity"))
}

/// The text of the first element of this name.
fn member<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim())
}

fn end(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text).map_err(|_| "the keys' expiration time is unreadable".to_owned())
}
