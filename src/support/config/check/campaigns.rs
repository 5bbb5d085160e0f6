//! The rules of `[campaigns]`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Findings;
use crate::support::config::campaigns::{MAX_IDS, MAX_RATE};
use crate::support::config::types::Config;

const PERIODIC: &str = "campaigns.periodic";
/// Each has its own task in every watching process.
const MAX_PERIODIC: usize = 32;
const MAX_NAME_BYTES: usize = 32;
/// A lease is extended six times before it is over.
const LEASES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
const SHORTEST_PERIOD: Duration = Duration::from_secs(60);

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let campaigns = &config.campaigns;
    if !(LEASES[0]..=LEASES[1]).contains(&campaigns.lease_duration) {
        findings.error(
            "campaigns.lease_duration",
            "must be \"1s\" to \"1h\": shorter, chunks are done twice; longer, those of a dead runner wait",
        );
    }
    if campaigns.chunk_size == 0 || campaigns.chunk_size > MAX_IDS {
        findings.error("campaigns.chunk_size", format!("must be 1 to {MAX_IDS}"));
    }
    if campaigns.periodic.len() > MAX_PERIODIC {
        let count = campaigns.periodic.len();
        findings.error(PERIODIC, format!("{count} campaigns; {MAX_PERIODIC} are the most"));
    }
    findings.not_empty("campaigns.bearer_token", campaigns.bearer_token.as_ref());
    let mut names = BTreeSet::new();
    for periodic in &campaigns.periodic {
        let name = &periodic.name;
        let mut error = |message: &str| findings.error(PERIODIC, format!("{name}: {message}"));
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(legal) {
            error("the name must be 1 to 32 lower-case letters, digits, '-' and '_'");
        }
        if !names.insert(name) {
            error("two campaigns have this name");
        }
        if periodic.interval < SHORTEST_PERIOD {
            error("every must be at least \"1m\"");
        }
        if periodic.rate.is_some_and(|rate| rate == 0 || rate > MAX_RATE) {
            error("rate must be 1 to 10000000; leave it out for any number");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;
    use crate::support::config::campaigns::{CampaignAction, CampaignDocuments, PeriodicCampaign};

    #[test]
    fn every_rule_of_campaigns_is_reported_at_its_key() {
        fn periodic(config: &mut Config, change: fn(&mut PeriodicCampaign)) {
            let mut periodic = PeriodicCampaign {
                name: "nightly".to_owned(),
                interval: Duration::from_secs(86_400),
                action: CampaignAction::Touch,
                what: CampaignDocuments::All,
                rate: None,
            };
            change(&mut periodic);
            config.campaigns.periodic.push(periodic);
        }
        type Change = fn(&mut Config);
        let cases: &[(&str, &str, Change)] = &[
            ("campaigns.lease_duration", "1h", |c| c.campaigns.lease_duration = Duration::from_millis(999)),
            ("campaigns.lease_duration", "1h", |c| c.campaigns.lease_duration = Duration::from_secs(3601)),
            ("campaigns.chunk_size", "1 to", |c| c.campaigns.chunk_size = 0),
            ("campaigns.chunk_size", "1 to", |c| c.campaigns.chunk_size = MAX_IDS + 1),
            (PERIODIC, "letters", |c| periodic(c, |p| p.name = "A b".to_owned())),
            (PERIODIC, "1m", |c| periodic(c, |p| p.interval = Duration::from_secs(1))),
            (PERIODIC, "rate", |c| periodic(c, |p| p.rate = Some(0))),
            (PERIODIC, "two campaigns", |c| (0..2).for_each(|_| periodic(c, |_| ()))),
            (PERIODIC, "the most", |c| {
                for number in 0..=MAX_PERIODIC {
                    periodic(c, |_| ());
                    c.campaigns.periodic[number].name = format!("p{number}");
                }
            }),
        ];
        for (key, text, change) in cases {
            let mut config = Config::default();
            change(&mut config);
            let findings = check(&config, true);
            assert_eq!(findings.len(), 1, "{key} ({text}): {findings:#?}");
            assert!(findings[0].key == *key && findings[0].message.contains(text), "{text}: {}", findings[0]);
        }
    }
}
