//! Checks the targets of distributions: the shared memcached, and webhooks. Failures do not keep a worker from starting.

use std::time::{Duration, Instant};

use futures::future::join_all;
use reqwest::StatusCode;

use super::CheckFinding;
use crate::support::config::{Config, DistributionJob, RunStore, ServerUrl};
use crate::worker::distribution::memcached::{MAX_KEY_BYTES, Memcached};
use crate::worker::distribution::setup::webhook;

const MEMCACHED: &str = "memcached";

/// Checks all concurrently, each within the timeout.
pub(super) async fn look(config: &Config, timeout: Duration) -> Vec<CheckFinding> {
    let distribution = &config.distribution;
    if distribution.jobs.is_empty() {
        return Vec::new();
    }
    let webhooks =
        distribution.jobs.iter().filter_map(|job| Some(look_at_webhook(job, job.url.as_ref()?, timeout)));
    let memcached = async {
        match (distribution.run_store, &distribution.memcached) {
            (RunStore::Memcached, Some(address)) => {
                Some(look_at_memcached(address, distribution.memcached_timeout, timeout).await)
            }
            _ => None,
        }
    };
    let (memcached, webhooks) = tokio::join!(memcached, join_all(webhooks));
    memcached.into_iter().chain(webhooks).collect()
}

/// Reads a key that is never written, with the workers' timeout (`limit`).
async fn look_at_memcached(address: &str, limit: Duration, timeout: Duration) -> CheckFinding {
    let mut key = format!("geofold-check-{}", std::process::id());
    key.truncate(MAX_KEY_BYTES);
    let began = Instant::now();
    match Memcached::new(address, timeout).read(&[key]).await {
        Ok(_) if began.elapsed() > limit => CheckFinding::warning(
            MEMCACHED,
            format_args!(
                "{address} answered after {:?}: workers wait for distribution.memcached_timeout, {limit:?}, and then run every \
                 job themselves",
                began.elapsed()
            ),
        ),
        Ok(_) => CheckFinding::ok(MEMCACHED, format_args!("{address} answered")),
        Err(error) => CheckFinding::warning(
            MEMCACHED,
            format_args!(
                "{address}: {error}; each worker runs every job itself meanwhile: check distribution.memcached and that server"
            ),
        ),
    }
}

async fn look_at_webhook(job: &DistributionJob, url: &ServerUrl, timeout: Duration) -> CheckFinding {
    let about = format!("webhook {}", job.name);
    let webhook = match webhook(job, url) {
        Ok(webhook) => webhook,
        Err(error) => return CheckFinding::error(about, error),
    };
    match webhook.probe(timeout).await {
        Ok(status) => judge(about, status),
        Err(reason) if reason.contains("certificate") => CheckFinding::error(
            about,
            format_args!(
                "its certificate is not trusted: {reason}; the job's ca_file must contain its CA, and its url a name in the certificate"
            ),
        ),
        Err(reason) => CheckFinding::unreachable(
            about,
            format_args!("no answer: {reason}; check the job's url{}", held(job)),
        ),
    }
}

/// The consequence of the endpoint not answering.
fn held(job: &DistributionJob) -> &'static str {
    if job.has_gate() { ", and do not leave it like this: offsets wait for it (gate)" } else { "" }
}

/// An endpoint may answer OPTIONS with any status. Authentication errors, 404 and 410 would apply to a POST as well.
fn judge(about: String, status: StatusCode) -> CheckFinding {
    let said = format!("it answered {status} to OPTIONS, and no notice was sent to it");
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => CheckFinding::warning(
            about,
            format_args!(
                "{said}: if a POST gets the same answer, notices become dead letters; check the job's headers"
            ),
        ),
        StatusCode::NOT_FOUND | StatusCode::GONE => CheckFinding::warning(
            about,
            format_args!(
                "{said}: if a POST gets the same answer, notices become dead letters; check the job's url"
            ),
        ),
        _ if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
            CheckFinding::warning(about, format_args!("{said}: a run with this answer is retried"))
        }
        _ if status.is_redirection() => CheckFinding::warning(
            about,
            format_args!("{said}: redirects are not followed; set the job's url to the target"),
        ),
        _ => CheckFinding::ok(about, format_args!("reachable; {said}")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
    use tokio::net::TcpListener;

    use super::super::CheckLevel;
    use super::*;
    use crate::testkit::ports::free_address;

    const SOON: Duration = Duration::from_secs(20);

    /// A server that reads up to a line ending with `until` and responds once with `answer`. Returns its address and what it
    /// read.
    async fn server(until: &'static str, answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move {
            let mut stream = BufStream::new(listener.accept().await.unwrap().0);
            let mut read = String::new();
            while !read.ends_with(until) {
                stream.read_line(&mut read).await.unwrap();
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            read
        });
        (address, serving)
    }

    /// An address without a listener.
    fn nowhere() -> String {
        free_address().unwrap().to_string()
    }

    fn with(distribution: &str) -> Config {
        Config { distribution: toml::from_str(distribution).unwrap(), ..Config::default() }
    }

    fn sharing(address: &str) -> Config {
        with(&format!(
            "run_store = \"memcached\"\nmemcached = \"{address}\"\nmemcached_timeout = \"5s\"\n\
             jobs = [{{ name = \"searchable\", kind = \"refresh\" }}]"
        ))
    }

    fn telling(url: &str) -> Config {
        with(&format!(
            "jobs = [{{ name = \"notify\", kind = \"webhook\", url = \"{url}\", headers = {{ authorization = \"Bearer hunter2\" }} }}]"
        ))
    }

    async fn one(config: &Config) -> CheckFinding {
        let [finding] = <[CheckFinding; 1]>::try_from(look(config, SOON).await).unwrap();
        finding
    }

    #[tokio::test]
    async fn silent_memcached_is_a_warning() {
        let (address, _serving) = server("\n", "END\r\n").await;
        let finding = one(&sharing(&address)).await;
        assert_eq!((finding.level, finding.about.as_str()), (CheckLevel::Ok, "memcached"), "{finding}");
        let (address, _serving) = server("\n", "HTTP/1.1 400 Bad Request\r\n").await;
        let finding = one(&sharing(&address)).await;
        assert_eq!(finding.level, CheckLevel::Warning);
        assert!(finding.message.contains("unexpected answer"), "{finding}");
        let finding = one(&sharing(&nowhere())).await;
        assert_eq!(finding.level, CheckLevel::Warning);
        assert!(finding.message.contains("distribution.memcached"), "{finding}");
    }

    #[tokio::test]
    async fn webhook_check_sends_headers_and_no_notice() {
        let (address, serving) = server("\r\n\r\n", "HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n").await;
        let finding = one(&telling(&format!("http://{address}/changed"))).await;
        assert_eq!((finding.level, finding.about.as_str()), (CheckLevel::Ok, "webhook notify"), "{finding}");
        let request = serving.await.unwrap();
        assert!(request.starts_with("OPTIONS /changed "), "{request}");
        assert!(request.contains("Bearer hunter2") && !request.contains("content-length"), "{request}");
    }

    #[tokio::test]
    async fn unreachable_webhook_is_reported_without_secrets() {
        let finding = one(&telling(&format!("http://{}/key-hunter2", nowhere()))).await;
        assert_eq!(finding.level, CheckLevel::Unreachable);
        assert!(finding.message.contains("offsets wait for it"), "{finding}");
        assert!(!finding.to_string().contains("hunter2"), "{finding}");
    }

    #[tokio::test]
    async fn authorities_that_can_not_be_read_are_an_error() {
        let mut config = telling("https://127.0.0.1:9/");
        config.distribution.jobs[0].ca_file = Some("no/such.pem".into());
        let finding = one(&config).await;
        assert_eq!(finding.level, CheckLevel::Error);
        assert!(finding.message.contains("no/such.pem"), "{finding}");
    }

    #[test]
    fn options_errors_that_apply_to_post_are_warnings() {
        for (status, level, words) in [
            (200, CheckLevel::Ok, "no notice was sent"),
            (204, CheckLevel::Ok, "reachable"),
            (400, CheckLevel::Ok, "reachable"),
            (405, CheckLevel::Ok, "reachable"),
            (501, CheckLevel::Ok, "reachable"),
            (302, CheckLevel::Warning, "not followed"),
            (401, CheckLevel::Warning, "headers"),
            (403, CheckLevel::Warning, "headers"),
            (404, CheckLevel::Warning, "url"),
            (503, CheckLevel::Warning, "retried"),
        ] {
            let finding = judge("webhook notify".to_owned(), StatusCode::from_u16(status).unwrap());
            assert_eq!(finding.level, level, "{finding}");
            assert!(finding.message.contains(words), "{finding}");
        }
    }

    #[tokio::test]
    async fn without_jobs_nothing_is_asked() {
        assert_eq!(look(&Config::default(), SOON).await, []);
    }
}
