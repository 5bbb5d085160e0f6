//! What the workers themselves say: `/status.json` of each one that can be reached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::members::GroupSeen;
use crate::support::config::Config;
use crate::worker::partition::stopped_part;

/// How long a worker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum bytes of an answer.
const MAX_BYTES: usize = 8 << 20;
/// Maximum workers asked.
const MAX_WORKERS: usize = 256;

/// A worker's answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerSeen {
    /// Where it was asked.
    pub url: String,
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
            let local = if ip.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { ip };
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

/// Asks every address at once. An address without a worker of this group is left out, unless it was named.
pub(super) async fn ask(addresses: &[String], are_named: bool, config: &Config) -> Vec<WorkerSeen> {
    // Workers are in this network: no proxy.
    let Ok(client) = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build() else {
        return Vec::new();
    };
    let asked = addresses.iter().map(|url| one(&client, url, config));
    let answers = futures::future::join_all(asked).await;
    let seen = addresses.iter().zip(answers).filter_map(|(url, answer)| match answer {
        Ok(status) => Some(WorkerSeen {
            url: url.clone(),
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
            error: Some(error),
            ready: false,
            reasons: BTreeMap::new(),
            partitions: BTreeMap::new(),
            oldest_dirty_seconds: BTreeMap::new(),
        }),
        Err(_) => None,
    });
    seen.collect()
}

async fn one(client: &reqwest::Client, url: &str, config: &Config) -> Result<Status, String> {
    let said = |error: reqwest::Error| crate::base::causes::with_causes(&error.without_url());
    let mut answer = client.get(format!("{url}/status.json")).send().await.map_err(said)?;
    if !answer.status().is_success() {
        return Err(format!("answered {}", answer.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(said)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_BYTES {
            return Err(format!("its answer exceeds {MAX_BYTES} bytes"));
        }
    }
    let status: Status = serde_json::from_slice(&body).map_err(|_| "not a worker of geofold".to_owned())?;
    let Named { topic, group } = &status.worker;
    if *topic != config.kafka.topic || *group != config.kafka.group_id {
        return Err(format!("a worker of another group ({group}, topic {topic})"));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::super::members::GroupMember;
    use super::*;

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
        let given = ["a:1".to_owned(), "https://b/".to_owned()];
        assert_eq!(addresses(&given, &config, Some(&group)), ["http://a:1", "https://b"]);
    }

    #[test]
    fn reason_of_a_stopped_partition_is_that_of_its_worker() {
        let worker = WorkerSeen {
            url: String::new(),
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
