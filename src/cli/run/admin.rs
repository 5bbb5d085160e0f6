//! The admin server of `geofold run`, and the tasks that find out what it shows.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::base::clock::Clock;
use crate::cli::Failure;
use crate::io::elastic::Elastic;
use crate::io::maps::MapsReader;
use crate::ops::admin::{
    self, AdminState, CoverSource, DocumentCounts, GroupSource, MapNow, StatusParts, StatusSource,
    ViewedLoad, Worker,
};
use crate::support::config::Config;
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::partition_status::PartitionStatusReader;
use crate::support::telemetry::recent::Recent;
use crate::worker;

/// What is shown of a worker.
pub(super) struct Admin<'a> {
    /// The configuration at startup.
    pub config: &'a Config,
    /// The one in force.
    pub in_force: watch::Receiver<Arc<Config>>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
    pub elastic: Arc<dyn Elastic>,
    pub maps: MapsReader,
    pub partition_status: PartitionStatusReader,
    /// Warnings and errors.
    pub recent: Recent,
}

impl Admin<'_> {
    /// Starts the server, and the tasks; all of them end with `stop`. Gives the server, to wait for its end.
    pub(super) async fn start(
        self,
        supervisor: &Supervisor,
        stop: &CancellationToken,
    ) -> Result<JoinHandle<()>, Failure> {
        let Self { config, in_force, clock, metrics, health, elastic, maps, partition_status, recent } = self;
        let (topic, prefix) = (config.kafka.topic.clone(), config.elasticsearch.prefix.clone());
        let map: MapNow = {
            let maps = maps.clone();
            Arc::new(move || maps.record().deciding().clone())
        };
        let (counts, load) = (DocumentCounts::new(clock.clone()), ViewedLoad::new(clock.clone()));
        let worker = Worker {
            version: env!("CARGO_PKG_VERSION"),
            topic: topic.clone(),
            group: config.kafka.group_id.clone(),
            prefix: prefix.clone(),
            name: worker::worker_name(&config.kafka.client_id),
        };
        let group = GroupSource::new(worker.clone(), clock.clone(), config.commit.interval);
        let status = StatusSource::new(StatusParts {
            worker,
            clock,
            metrics: metrics.clone(),
            health: health.clone(),
            map: map.clone(),
            limits: Arc::new(move || in_force.borrow().followed()),
            counts: counts.clone(),
            load: load.clone(),
            partition_status,
            recent,
        });
        let cover = CoverSource { maps: Arc::new(move || maps.live()), prefix: prefix.clone() };
        let state = AdminState { metrics, health, status: status.clone(), group: group.clone(), cover };
        let (bound, server) =
            admin::serve(config.admin.listen, admin::routes(state), stop.clone(), supervisor).await?;

        let counting = counts.keep_counting(elastic.clone(), prefix, stop.clone());
        supervisor.spawn("document counts", stop.clone(), counting);
        let reading = load.keep_reading(elastic.clone(), topic, map, stop.clone());
        supervisor.spawn("load shown", stop.clone(), reading);
        let question = admin::group::question_of_worker(config, bound, elastic, stop.clone());
        supervisor.spawn("group shown", stop.clone(), group.keep_asking(question, stop.clone()));
        supervisor.spawn("a line a minute", stop.clone(), status.log_each_minute(stop.clone()));
        Ok(server)
    }
}
