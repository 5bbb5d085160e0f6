//! Builds the Elasticsearch client and placement rules of a subcommand from the configuration.

use std::sync::Arc;

use anyhow::{Context, anyhow};

use super::Failure;
use crate::base::clock::{BootClock, Clock};
use crate::core::counting::facets::FacetRules;
use crate::core::decode::{Decoder, LocationPath};
use crate::core::mover::Rules;
use crate::geoshard::{GeoshardMap, LiveMaps};
use crate::io::aws::credentials::KeySource;
use crate::io::elastic::Elastic;
use crate::io::elastic::http::{Auth, HttpElastic, HttpOptions};
use crate::io::elastic::repeat::RepeatedReads;
use crate::io::indices::{self, Layout, Template, WantedIndex};
use crate::io::maps::{MapsRecord, MapsStore};
use crate::support::config::{Config, DeadLetterPolicy, ElasticsearchCredentials, KeyForm};
use crate::support::tls::ClientIdentity;
use crate::worker::record;

/// A client for the configured Elasticsearch. It does not connect yet.
pub(super) fn elasticsearch(config: &Config) -> Result<HttpElastic, Failure> {
    elasticsearch_as(config, config.elasticsearch.credentials())
}

/// The same for commands that read for long: reads and refreshes are repeated while the server is busy.
pub(super) fn patient_elasticsearch(config: &Config) -> Result<Arc<dyn Elastic>, Failure> {
    Ok(Arc::new(RepeatedReads::new(Arc::new(elasticsearch(config)?))))
}

/// The client of [`elasticsearch`] with other credentials than the configured ones.
pub(super) fn elasticsearch_as(
    config: &Config,
    credentials: Option<ElasticsearchCredentials<'_>>,
) -> Result<HttpElastic, Failure> {
    let elasticsearch = &config.elasticsearch;
    let auth = match credentials {
        None => Auth::None,
        Some(ElasticsearchCredentials::Aws { region, service }) => {
            let source = KeySource::from_environment(|name| std::env::var(name).ok(), region)
                .map_err(|error| anyhow!("elasticsearch.aws_region is set: {error}"))
                .map_err(Failure::usage)?;
            tracing::debug!("requests are signed for AWS, with keys from {}", source.name());
            Auth::Aws { region: region.to_owned(), service: service.as_str(), source }
        }
        Some(ElasticsearchCredentials::Basic { username, password }) => {
            Auth::Basic { user: username.to_owned(), password: password.expose().to_owned() }
        }
        Some(ElasticsearchCredentials::ApiKey(key)) => Auth::ApiKey(key.expose().to_owned()),
    };
    let ca_pem = match &elasticsearch.ca_file {
        None => None,
        Some(path) => {
            let pem = std::fs::read(path)
                .map_err(|error| {
                    let path = path.display();
                    anyhow!(
                        "reading elasticsearch.ca_file {path}: {error}; check the path and its permissions"
                    )
                })
                .map_err(Failure::usage)?;
            Some(pem)
        }
    };
    let identity = match (&elasticsearch.client_cert_file, &elasticsearch.client_key_file) {
        (Some(certificate), Some(key)) => {
            let certificate = ("elasticsearch.client_cert_file", certificate.as_path());
            let identity = ClientIdentity::read(certificate, ("elasticsearch.client_key_file", key));
            Some(identity.map_err(Failure::usage)?)
        }
        // Refused by the configuration's checks, unless there is neither.
        _ => None,
    };
    let options = HttpOptions {
        urls: elasticsearch.nodes().iter().map(|url| url.as_url().clone()).collect(),
        auth,
        ca_pem,
        identity,
        compress_requests: elasticsearch.compress_requests,
        prefix: elasticsearch.prefix.clone(),
        request_timeout: elasticsearch.request_timeout,
    };
    HttpElastic::connect(&options, clock())
        .context("preparing the Elasticsearch client")
        .map_err(Failure::usage)
}

/// Refuses `what` unless keys are plain ids. `what` writes records with plain ids as keys; with other key forms they would land
/// in other partitions than the document's own, owned by other workers.
pub(super) fn plain_keys(config: &Config, what: &str) -> Result<(), Failure> {
    if config.kafka.key == KeyForm::Text {
        return Ok(());
    }
    Err(Failure::usage(anyhow!(
        "{what} writes records with plain ids as keys, but kafka.key is \"{}\": records would land in other partitions than the \
         topic's own; it needs a topic with kafka.key = \"text\"",
        config.kafka.key
    )))
}

/// Warns that `what` stops its partition, if records that cannot be applied do.
pub(super) fn warn_of_stops(config: &Config, what: &str) {
    if config.dead_letter.policy == DeadLetterPolicy::Stop {
        eprintln!(
            "warning: dead_letter.policy is \"stop\": {what} stops its partition, and with it all later writes there; set \
             dead_letter.policy = \"topic\" for the workers first"
        );
    }
}

/// How a worker reads records.
pub(super) fn decoder(config: &Config) -> Result<Decoder, Failure> {
    Ok(record::decoder(config, location(config)?))
}

/// Where a document's location is.
pub(super) fn location(config: &Config) -> Result<LocationPath, Failure> {
    let path = config.documents.location_path();
    path.map_err(|error| Failure::usage(anyhow!("{} in the configuration: {error}", error.key())))
}

/// The map, the location path and the `on_missing` policy.
pub(super) fn rules(config: &Config) -> Result<Rules, Failure> {
    Ok(Rules {
        map: map(config)?,
        location: location(config)?,
        on_missing: config.on_missing(),
        other_map: None,
        announce_all: false,
        tally: FacetRules::configured(&config.tally),
    })
}

/// The configured map.
pub(super) fn map(config: &Config) -> Result<Arc<GeoshardMap>, Failure> {
    let map = GeoshardMap::load(&config.geoshards.map)
        .context("geoshards.map in the configuration")
        .map_err(Failure::usage)?;
    Ok(Arc::new(map))
}

/// The maps by which documents may be placed: those on record (two during a map change), or the configured one if there is no
/// record.
pub(super) async fn live_maps(config: &Config, elastic: &dyn Elastic) -> Result<LiveMaps, Failure> {
    Ok(maps_record(config, elastic).await?.live())
}

/// The record of the maps; of the configured one if there is none.
pub(super) async fn maps_record(config: &Config, elastic: &dyn Elastic) -> Result<MapsRecord, Failure> {
    let stored = MapsStore::new(elastic, &config.kafka.topic, config.elasticsearch.request_timeout)
        .read()
        .await
        .context("asking which maps are in force")?;
    match stored {
        Some(stored) => Ok(stored.record),
        None => Ok(MapsRecord::unwritten(map(config)?, config.positions.epoch)),
    }
}

/// The indices that must exist, and their settings.
pub(super) fn wanted_indices(config: &Config) -> Result<Vec<WantedIndex>, Failure> {
    let template = match &config.geoshards.index_template {
        None => Template::default(),
        Some(path) => Template::load(path).map_err(Failure::usage)?,
    };
    let map = map(config)?;
    let layout = Layout {
        prefix: &config.elasticsearch.prefix,
        shards: map.shards(),
        location: &config.documents.searched(),
        gc_deletes: config.elasticsearch.gc_deletes,
        placements: config.placements,
    };
    indices::wanted(&layout, &template).map_err(Failure::usage)
}

/// The machine's boot-time clock.
pub(super) fn clock() -> Arc<dyn Clock> {
    Arc::new(BootClock)
}
