//! What the workers themselves say: `/status.json` of each one that can be reached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use reqwest::redirect::Policy;
use serde::{Deserialize, Serialize};

use url::{Host, Url};

use super::members::GroupSeen;
use crate::support::config::Config;
use crate::support::http;
use crate::worker::partition::stopped_part;

/// How long a worker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum bytes of an answer.
const MAX_BYTES: usize = 8 << 20;
/// Maximum workers asked.
const MAX_WORKERS: usize = 256;

/// The query of `/status.json` for an answer that does not count as viewing the worker's page: it shows neither document counts nor load.
pub const UNVIEWED: &str = "unviewed";

/// A worker's answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerSeen {
    /// Where it was asked.
    pub url: String,
    /// Its name: client, host, process. `None`: it did not say.
    pub name: Option<String>,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether it is ready.
    pub ready: bool,
    /// Why not, by part.
    pub reasons: BTreeMap<String, String>,
    /// Its partitions, each with `starting`, `running`, `paused` or `stopped`.
    pub partitions: BTreeMap<i32, String>,
    /// Of each of them, for how long its oldest dirty document has been.
    #[serde(skip)]
    pub oldest_dirty_seconds: BTreeMap<i32, f64>,
}

impl WorkerSeen {
    /// Why this partition is stopped, if it is.
    pub fn stopped(&self, partition: i32) -> Option<&str> {
        let state = self.partitions.get(&partition)?;
        let reason = || self.reasons.get(&stopped_part(partition)).map_or("no reason given", String::as_str);
        (state == "stopped").then(reason)
    }

    /// Reasons against being ready that are not about a partition of its own.
    pub fn other_reasons(&self) -> impl Iterator<Item = (&String, &String)> {
        self.reasons
            .iter()
            .filter(|(part, _)| !self.partitions.keys().any(|number| **part == stopped_part(*number)))
    }
}

/// The needed parts of `/status.json`.
#[derive(Debug, Deserialize)]
struct Status {
    worker: Named,
    ready: bool,
    reasons: Vec<Reason>,
    partitions: Vec<Partition>,
}

#[derive(Debug, Deserialize)]
struct Named {
    topic: String,
    group: String,
    #[serde(default)]
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Reason {
    part: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct Partition {
    partition: i32,
    state: String,
    oldest_dirty_seconds: f64,
}

/// Where workers may be asked: the given addresses; without any, this machine's, and the members' hosts at the configured port, if the
/// admin server listens for others.
pub(super) fn addresses(given: &[String], config: &Config, group: Option<&GroupSeen>) -> Vec<String> {
    if !given.is_empty() {
        let with_scheme = |address: &String| match address.contains("://") {
            true => address.trim_end_matches('/').to_owned(),
            false => format!("http://{}", address.trim_end_matches('/')),
        };
        return given.iter().map(with_scheme).take(MAX_WORKERS).collect();
    }
    let listen = config.admin.listen;
    if listen.port() == 0 {
        return Vec::new();
    }
    let mut hosts: BTreeSet<String> = BTreeSet::new();
    match listen.ip() {
        ip if ip.is_loopback() => drop(hosts.insert(literal(ip))),
        ip => {
            let local = match ip {
                IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
                IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(Ipv6Addr::LOCALHOST),
                ip => ip,
            };
            hosts.insert(literal(local));
            let members = group.map_or(&[][..], |group| &group.members);
            let remote = members.iter().filter_map(|member| member.host.parse::<IpAddr>().ok());
            hosts.extend(remote.filter(|ip| !ip.is_loopback()).map(literal));
        }
    }
    hosts.into_iter().take(MAX_WORKERS).map(|host| format!("http://{host}:{}", listen.port())).collect()
}

fn literal(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Asks every address at once. An address without a worker of this group is left out, unless it was named; so is a worker's second
/// address.
pub(super) async fn ask(addresses: &[String], are_named: bool, config: &Config) -> Vec<WorkerSeen> {
    // Workers are in this network: no proxy. A worker sends nobody elsewhere; what answers at a member's host must not choose who is asked.
    let redirects = if are_named { Policy::default() } else { Policy::none() };
    let client = reqwest::Client::builder().no_proxy().redirect(redirects).timeout(TIMEOUT);
    let Ok(client) = client.build() else {
        return Vec::new();
    };
    let asked = addresses.iter().map(|url| one(&client, url, config));
    let answers = futures::future::join_all(asked).await;
    let seen = addresses.iter().zip(answers).filter_map(|(url, answer)| match answer {
        Ok(status) => Some(WorkerSeen {
            url: url.clone(),
            name: status.worker.name,
            error: None,
            ready: status.ready,
            reasons: status.reasons.into_iter().map(|reason| (reason.part, reason.reason)).collect(),
            oldest_dirty_seconds: status
                .partitions
                .iter()
                .map(|one| (one.partition, one.oldest_dirty_seconds))
                .collect(),
            partitions: status.partitions.into_iter().map(|one| (one.partition, one.state)).collect(),
        }),
        Err(error) if are_named => Some(WorkerSeen {
            url: url.clone(),
            name: None,
            error: Some(error),
            ready: false,
            reasons: BTreeMap::new(),
            partitions: BTreeMap::new(),
            oldest_dirty_seconds: BTreeMap::new(),
        }),
        Err(_) => None,
    });
    once_each(seen.collect())
}

/// The first address of each worker, or the first that is of use on other machines. Workers that say no name are kept.
fn once_each(mut workers: Vec<WorkerSeen>) -> Vec<WorkerSeen> {
    workers.sort_by_key(|worker| is_loopback(&worker.url));
    let mut names = BTreeSet::new();
    workers.retain(|worker| worker.name.as_ref().is_none_or(|name| names.insert(name.clone())));
    workers
}

fn is_loopback(url: &str) -> bool {
    match Url::parse(url).ok().as_ref().and_then(Url::host) {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

async fn one(client: &reqwest::Client, url: &str, config: &Config) -> Result<Status, String> {
    let said = |error: reqwest::Error| crate::base::causes::with_causes(&error.without_url());
    let mut answer = client.get(format!("{url}/status.json?{UNVIEWED}")).send().await.map_err(said)?;
    if !answer.status().is_success() {
        return Err(format!("answered {}", answer.status()));
    }
    let body = http::body(&mut answer, MAX_BYTES).await.map_err(said)?;
    let body = body.ok_or_else(|| format!("its answer exceeds {MAX_BYTES} bytes"))?;
    let status: Status = serde_json::from_slice(&body).map_err(|_| "not a worker of geofold".to_owned())?;
    let Named { topic, group, .. } = &status.worker;
    if *topic != config.kafka.topic || *group != config.kafka.group_id {
        return Err(format!("a worker of another group ({group}, topic {topic})"));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use axum::response::Redirect;
    use axum::routing::get;
    use tokio_util::sync::CancellationToken;

    use super::super::members::GroupMember;
    use super::*;
    use crate::support::supervisor::Supervisor;

    fn group(hosts: &[&str]) -> GroupSeen {
        let member = |host: &&str| GroupMember {
            member_id: String::new(),
            client_id: String::new(),
            host: (*host).to_owned(),
            partitions: Vec::new(),
        };
        GroupSeen { state: "Stable".to_owned(), members: hosts.iter().map(member).collect() }
    }

    #[test]
    fn members_are_asked_where_their_admin_server_can_be_reached() {
        let mut config = Config::default();
        let group = group(&["10.0.0.5", "127.0.0.1", "10.0.0.6", "not an address"]);
        let ask = |config: &Config| addresses(&[], config, Some(&group));
        config.admin.listen = "127.0.0.1:9464".parse().unwrap();
        assert_eq!(ask(&config), ["http://127.0.0.1:9464"]);
        config.admin.listen = "0.0.0.0:9464".parse().unwrap();
        assert_eq!(ask(&config), ["http://10.0.0.5:9464", "http://10.0.0.6:9464", "http://127.0.0.1:9464"]);
        config.admin.listen = "[::]:9464".parse().unwrap();
        assert!(ask(&config).contains(&"http://[::1]:9464".to_owned()), "{:?}", ask(&config));
        config.admin.listen = "127.0.0.1:0".parse().unwrap();
        assert!(ask(&config).is_empty());
        let given = ["a:1".to_owned(), "https://b/".to_owned()];
        assert_eq!(addresses(&given, &config, Some(&group)), ["http://a:1", "https://b"]);
    }

    #[tokio::test]
    async fn host_of_a_member_sends_nobody_elsewhere() {
        let mut config = Config::default();
        (config.kafka.topic, config.kafka.group_id) = ("t".to_owned(), "g".to_owned());
        let status = serde_json::json!({
            "worker": {"topic": "t", "group": "g", "name": "n"}, "ready": true, "reasons": [],
            "partitions": [{"partition": 3, "state": "running", "oldest_dirty_seconds": 1.5}]
        });
        let routes = axum::Router::new()
            .route("/status.json", get(async move || Json(status)))
            .route("/elsewhere/status.json", get(async || Redirect::temporary("/status.json")));
        let stop = CancellationToken::new();
        let (address, _) = crate::ops::admin::serve(
            "127.0.0.1:0".parse().unwrap(),
            routes,
            stop.clone(),
            &Supervisor::new().0,
        )
        .await
        .unwrap();
        let (here, elsewhere) =
            (vec![format!("http://{address}")], vec![format!("http://{address}/elsewhere")]);
        let found = ask(&here, false, &config).await;
        assert_eq!((found.len(), found[0].name.as_deref()), (1, Some("n")));
        assert_eq!(found[0].oldest_dirty_seconds, [(3, 1.5)].into());
        assert!(ask(&elsewhere, false, &config).await.is_empty());
        assert_eq!(ask(&elsewhere, true, &config).await[0].error, None, "a person named it");
        stop.cancel();
    }

    #[test]
    fn worker_with_two_addresses_is_one() {
        let seen = |url: &str, name: Option<&str>| WorkerSeen {
            url: url.to_owned(),
            name: name.map(str::to_owned),
            error: None,
            ready: true,
            reasons: BTreeMap::new(),
            partitions: BTreeMap::new(),
            oldest_dirty_seconds: BTreeMap::new(),
        };
        let workers = vec![
            seen("http://127.0.0.1:9464", Some("one")),
            seen("http://192.168.0.5:9464", Some("one")),
            seen("http://[::1]:9464", Some("two")),
            seen("http://localhost:9465", None),
            seen("http://10.0.0.7:9464", None),
            seen("http://10.0.0.8:9464", Some("three")),
        ];
        let urls: Vec<String> = once_each(workers).into_iter().map(|worker| worker.url).collect();
        assert_eq!(
            urls,
            [
                "http://192.168.0.5:9464",
                "http://10.0.0.7:9464",
                "http://10.0.0.8:9464",
                "http://[::1]:9464",
                "http://localhost:9465"
            ]
        );
    }

    #[test]
    fn reason_of_a_stopped_partition_is_that_of_its_worker() {
        let worker = WorkerSeen {
            url: String::new(),
            name: None,
            error: None,
            ready: false,
            reasons: [("partition 3", "bad record"), ("source", "fails")]
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .into(),
            partitions: [(3, "stopped"), (4, "running")].map(|(n, state)| (n, state.to_owned())).into(),
            oldest_dirty_seconds: BTreeMap::new(),
        };
        assert_eq!(worker.stopped(3), Some("bad record"));
        assert_eq!((worker.stopped(4), worker.stopped(5)), (None, None));
        assert_eq!(worker.other_reasons().map(|(part, _)| part.as_str()).collect::<Vec<_>>(), ["source"]);
    }
}
