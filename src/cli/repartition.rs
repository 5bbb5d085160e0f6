//! `geofold repartition`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output, signals};
use crate::cli::progress::ProgressMeter;
use crate::ops::repartition::{Producers, Repartition};

/// Find out when partitions that were added to the topic may be read, while producers write and workers run.
///
/// Add the partitions first, to a multiple of their number. Workers go on with the old ones. This waits until every producer knows the
/// new ones and until what was written before is committed, remembers that, and says to raise positions.epoch: then workers read all.
/// From its start until then geofold writes no records of its own (touches, campaigns, replays). It may be interrupted; repeat it to
/// continue.
#[derive(Debug, Args)]
pub(super) struct RepartitionArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// How long producers may not know of new partitions: the longest metadata.max.age.ms (Java) or
    /// topic.metadata.refresh.interval.ms (librdkafka) of any producer.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    metadata_age: Duration,
    /// All producers are stopped: any number of partitions may have been added, and nothing is waited for but commits.
    #[arg(long, conflicts_with = "metadata_age")]
    producers_stopped: bool,
    /// Wait for nothing, for example if partitions were added by a number that is no multiple: documents of which records wait in two
    /// partitions may end as dead letters or in an old state; write them again.
    #[arg(long, conflicts_with_all = ["metadata_age", "producers_stopped"])]
    accept_disorder: bool,
}

pub(super) async fn repartition(args: RepartitionArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let (elastic, clock) = (connect::patient_elasticsearch(&config)?, connect::clock());
    let meter = ProgressMeter::new();
    let producers = match (args.producers_stopped, args.accept_disorder) {
        (_, true) => Producers::Unknown,
        (true, false) => Producers::Stopped,
        (false, false) => Producers::Know(args.metadata_age),
    };
    let drained = Repartition {
        config: &config,
        elastic: &*elastic,
        clock: &*clock,
        producers,
        tell: &|progress| meter.tell(progress),
        stop,
    }
    .run()
    .await?;
    meter.end();
    output::line(drained)?;
    Ok(ExitCode::SUCCESS)
}
