//! Keys from services that this process plays, and what refusals mean. That signatures are right is seen in `tests/it/aws.rs`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;

use super::*;
use crate::io::aws::credentials::*;

const END: &str = "2026-11-21T12:00:00Z";

fn at(time: &str) -> SystemTime {
    humantime::parse_rfc3339(time).unwrap()
}

fn source(variables: &[(&str, &str)]) -> Result<KeySource, String> {
    let value = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    KeySource::from_environment(value, "eu-central-1")
}

/// Serves until the test ends; gives its address.
async fn serve(
    answer: impl Fn(&str, &HeaderMap, &str) -> Response + Clone + Send + Sync + 'static,
) -> String {
    let router = Router::new().fallback(any(move |request: Request| async move {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 10_000).await.unwrap();
        let line = format!("{} {}", parts.method, parts.uri.path());
        answer(&line, &parts.headers, std::str::from_utf8(&body).unwrap())
    }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

fn keys_of_a_role() -> Response {
    let keys = json!({
        "AccessKeyId": "ASIA1", "SecretAccessKey": "secret", "Token": "token", "Expiration": END, "Code": "Success",
    });
    keys.to_string().into_response()
}

async fn keys(variables: &[(&str, &str)]) -> Result<aws_credential_types::Credentials, String> {
    Keyring::new(source(variables)?).unwrap().keys(at("2026-11-21T11:00:00Z")).await
}

fn assert_is_the_role(keys: &aws_credential_types::Credentials) {
    let told = (keys.access_key_id(), keys.secret_access_key(), keys.session_token(), keys.expiry());
    assert_eq!(told, ("ASIA1", "secret", Some("token"), Some(at(END))));
}

#[test]
fn the_environment_is_read_in_the_order_of_amazons_tools() {
    let given = [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "S")];
    let web = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"), ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")];
    let pod = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials")];
    let all = [given.as_slice(), &web, &pod].concat();
    let KeySource::Given(keys) = source(&all).unwrap() else { panic!("keys come first") };
    assert_eq!((keys.access_key_id(), keys.session_token()), ("A", None));
    let KeySource::WebIdentity { endpoint, session_name, .. } = source(&all[2..]).unwrap() else {
        panic!("then the web identity")
    };
    assert_eq!(
        (endpoint.as_str(), session_name.as_str()),
        ("https://sts.eu-central-1.amazonaws.com/", "geofold")
    );
    assert!(matches!(source(&pod).unwrap(), KeySource::Container { authorization: None, .. }));
    let relative = source(&[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x")]).unwrap();
    assert!(
        matches!(relative, KeySource::Container { url, .. } if url.as_str() == "http://169.254.170.2/v2/x")
    );
    assert!(matches!(source(&[]).unwrap(), KeySource::Instance { .. }));
}

#[test]
fn half_of_what_is_needed_is_refused_and_no_secret_is_shown() {
    for (variables, words) in [
        ([("AWS_ACCESS_KEY_ID", "A")].as_slice(), "AWS_SECRET_ACCESS_KEY"),
        (&[("AWS_SECRET_ACCESS_KEY", "planted")], "AWS_ACCESS_KEY_ID"),
        (&[("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")], "AWS_ROLE_ARN"),
        (&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/planted")], "use https"),
        (&[("AWS_EC2_METADATA_DISABLED", "true")], "AWS_WEB_IDENTITY_TOKEN_FILE"),
    ] {
        let error = source(variables).unwrap_err();
        assert!(error.contains(words) && !error.contains("planted"), "{error}");
    }
    let given = source(&[("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "planted")]).unwrap();
    assert!(!format!("{given:?}").contains("planted"));
}

#[tokio::test]
async fn a_web_identity_is_exchanged_for_keys() {
    let url = serve(|line, _, body| {
        let form = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr\
                    &RoleSessionName=pod&WebIdentityToken=a.b%2Fc";
        assert_eq!((line, body), ("POST /", form));
        format!(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
             <SessionToken>token</SessionToken><SecretAccessKey>secret</SecretAccessKey>\
             <Expiration>{END}</Expiration><AccessKeyId>ASIA1</AccessKeyId>\
             </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )
        .into_response()
    })
    .await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "a.b/c\n").unwrap();
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.path().to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_ROLE_SESSION_NAME", "pod"),
        ("AWS_ENDPOINT_URL_STS", &url),
    ];
    assert_is_the_role(&keys(&variables).await.unwrap());
}

#[tokio::test]
async fn a_container_shows_its_token_and_gets_keys() {
    let url = serve(|line, headers, _| {
        assert_eq!(
            (line, &headers["authorization"]),
            ("GET /v1/credentials", &HeaderValue::from_static("pass"))
        );
        keys_of_a_role()
    })
    .await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "pass\n").unwrap();
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{url}/v1/credentials")),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.path().display().to_string()),
    ];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_is_the_role(&keys(&variables).await.unwrap());
}

#[tokio::test]
async fn an_instance_is_asked_for_its_role_with_a_session_token() {
    let url = serve(|line, headers, _| {
        let token = headers.get("x-aws-ec2-metadata-token");
        match line {
            "PUT /latest/api/token" => return "session".into_response(),
            _ => assert_eq!(token, Some(&HeaderValue::from_static("session"))),
        }
        match line {
            "GET /latest/meta-data/iam/security-credentials/" => "writer\n".into_response(),
            "GET /latest/meta-data/iam/security-credentials/writer" => keys_of_a_role(),
            other => panic!("{other}"),
        }
    })
    .await;
    assert_is_the_role(&keys(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]).await.unwrap());
}

#[tokio::test]
async fn keys_are_renewed_early_and_used_until_they_expire() {
    let (calls, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, breaks) = (calls.clone(), broken.clone());
    let url = serve(move |_, _, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        if breaks.load(Ordering::Relaxed) {
            return (StatusCode::FORBIDDEN, "<Error><Code>AccessDenied</Code><Id>planted</Id></Error>")
                .into_response();
        }
        keys_of_a_role()
    })
    .await;
    let keyring = Keyring::new(source(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)]).unwrap()).unwrap();
    let ask = |time: &'static str| {
        let keyring = &keyring;
        async move { keyring.keys(at(time)).await }
    };
    for time in ["2026-11-21T11:00:00Z", "2026-11-21T11:54:59Z"] {
        ask(time).await.unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    ask("2026-11-21T11:55:01Z").await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    broken.store(true, Ordering::Relaxed);
    // Not each request asks again.
    for time in ["2026-11-21T11:56:00Z", "2026-11-21T11:56:29Z", "2026-11-21T11:56:31Z"] {
        ask(time).await.unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    let error = ask("2026-11-21T12:00:01Z").await.unwrap_err();
    assert!(error.contains("403") && error.contains("AccessDenied") && !error.contains("planted"), "{error}");
}

#[test]
fn refusal_tells_unauthenticated_from_unauthorized() {
    let said = |status, text: &str| {
        let body = json!({ "message": text }).to_string();
        explain(status, body.as_bytes()).map(|(status, body)| (status, decode::error_body(&body).1))
    };
    for (text, status, words) in [
        (
            "Signature expired: 20261121T115000Z is now earlier than 20261121T115500Z",
            401,
            "behind that of AWS",
        ),
        ("Signature not yet current: 20261121T121000Z is still later than", 401, "ahead of that of AWS"),
        (
            "The request signature we calculated does not match the signature you provided.",
            401,
            "AWS_SECRET_ACCESS_KEY",
        ),
        ("Credential should be scoped to a valid region.", 401, "aws_region"),
        ("The security token included in the request is expired", 401, "needs a role"),
        ("The security token included in the request is invalid.", 401, "AWS_ACCESS_KEY_ID"),
        (
            "User: arn:aws:sts::1:assumed-role/r/s is not authorized to perform: es:ESHttpPost",
            403,
            "es:ESHttp*",
        ),
    ] {
        let (got, reason) = said(403, text).unwrap();
        assert!(got == status && reason.contains(text) && reason.contains(words), "{got} {reason}");
    }
    assert_eq!(said(403, "something else"), None);
    assert_eq!(said(404, "Signature expired"), None);
    let body = br#"{"error":{"type":"security_exception","reason":"no permissions for [indices:data/write/bulk] and User [r]"},"status":403}"#;
    let (status, body) = explain(403, body).unwrap();
    let (kind, reason) = decode::error_body(&body);
    assert_eq!((status, kind.as_str()), (403, "security_exception"));
    assert!(reason.contains("fine-grained"), "{reason}");
}

#[test]
fn signature_is_not_logged() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let keys = aws_credential_types::Credentials::new(
        "A",
        "planted-key",
        Some("planted-token".into()),
        None,
        "test",
    );
    let signer = Signer::new("eu-central-1".into(), "es", KeySource::Given(keys.clone())).unwrap();
    let url = "https://search-x.eu-central-1.es.amazonaws.com/_bulk".parse().unwrap();
    let request = RequestToSign { method: "POST", url: &url, body: b"planted-body" };
    let mut headers = HeaderMap::new();
    tracing::subscriber::with_default(subscriber, || {
        tracing::trace!("it listens");
        signer.sign_with(keys, &request, &mut headers, SystemTime::now()).unwrap();
    });
    let seen = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(seen.contains("it listens") && !seen.contains("planted"), "{seen}");
    assert_eq!(headers["x-amz-security-token"], "planted-token");
    assert!(headers.values().all(HeaderValue::is_sensitive));
}

#[test]
fn a_signature_is_for_the_service_and_the_region_that_are_configured() {
    let keys = aws_credential_types::Credentials::new("A", "B", None, None, "test");
    for (region, service) in [("eu-central-1", "es"), ("us-east-1", "aoss")] {
        let signer = Signer::new(region.into(), service, KeySource::Given(keys.clone())).unwrap();
        let url = "https://search.example.com/_bulk".parse().unwrap();
        let request = RequestToSign { method: "POST", url: &url, body: b"{}" };
        let mut headers = HeaderMap::new();
        signer.sign_with(keys.clone(), &request, &mut headers, SystemTime::now()).unwrap();
        let authorization = headers["authorization"].to_str().unwrap();
        assert!(authorization.contains(&format!("/{region}/{service}/aws4_request")), "{authorization}");
    }
}
