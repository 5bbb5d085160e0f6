//! `geofold audit`.

mod counts;
mod source;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::json;

use super::progress::ProgressMeter;
use super::{ConfigArgs, Failure, connect, output, signals, values};
use crate::base::figures::count;
use crate::base::progress::Progress;
use crate::io::elastic::Elastic;
use crate::ops::audit::sweep::{self, TombstoneSweep};
use crate::ops::audit::touches::TopicTouches;
use crate::ops::audit::{
    Audit, AuditError, AuditFinding, AuditOptions, AuditReport, Defect, RepairOutcome, RepairTarget, Repairer,
};
use crate::support::config::{ByteSize, Config};

/// Refreshing and scanning whole indices is not the hot path.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Compare every placement with every copy while writes continue, and report defects.
///
/// Suspects are read again in realtime before they are reported. Needs Elasticsearch; --repair, --adopt and --sweep
/// also need Kafka. docs/audit.md explains each defect. --tally compares the live counts with all documents, --source
/// compares documents with the source of truth. Exit code 0: no defects, or all repaired; 1: defects remain, or the
/// audit did not complete.
#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Repair what needs no guessing, mostly by touches in the topic, which workers execute. Audit again when the lag
    /// is gone. Content is fetched from [source] if configured; otherwise such documents are left and reported.
    #[arg(long)]
    repair: bool,
    /// Make placements for an index from before geofold, at each document's newest copy. Before the first worker
    /// starts, after the last foreign write, and with positions.epoch above that of every version in the index.
    /// Misplaced documents get a touch. Other defects are left for --repair.
    #[arg(long, conflicts_with = "repair")]
    adopt: bool,
    /// Remove placements of documents deleted longer than placements.deleted_retention ago, according to marks of earlier
    /// audits. Needs Kafka, to verify commits.
    #[arg(long)]
    sweep: bool,
    /// Check only N random copies and N random placements (at most 10000), each in every geoshard, and state the
    /// confidence.
    #[arg(long, value_name = "N", conflicts_with = "sweep", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    sample: Option<u16>,
    /// Compare documents with the source of truth by value: all with a placement, a --sample, or --ids. Differences are
    /// judged after the workers have processed the topic. With --repair, workers fetch them again. Needs Kafka and the
    /// source. Documents that only the source knows are found by --ids.
    #[arg(long, conflicts_with_all = ["tally", "adopt", "sweep"])]
    source: bool,
    /// With --source: ids to compare, one per line; `-` is standard input.
    #[arg(long, value_name = "FILE", requires = "source", conflicts_with = "sample")]
    ids: Option<PathBuf>,
    /// Recount all documents and compare with the live counts. Exact only while nothing is written and all increments
    /// are merged. With --repair the counts are corrected: stop all workers and collectors first.
    #[arg(long, conflicts_with_all = ["out", "settle", "memory", "temp_dir", "sample", "adopt", "sweep"])]
    tally: bool,
    /// Maximum touches per second.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = values::rate)]
    touch_rate: NonZeroU32,
    /// Write every finding to this file, one JSON object per line. Standard output shows the first hundred.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print only the report, as JSON.
    #[arg(long)]
    json: bool,
    /// Time between two reads of a suspect; longer than a batch.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    settle: Duration,
    /// Indices to scan concurrently.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    scans: u8,
    /// Memory for sorting; more means fewer temporary files.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: ByteSize,
    /// Folder for temporary files, about 60 bytes per placement and copy.
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
}

impl AuditArgs {
    /// The file of --out, if it was given.
    fn out_file(&self) -> Result<Option<BufWriter<File>>, Failure> {
        let Some(path) = &self.out else { return Ok(None) };
        let file = File::create(path).with_context(|| format!("creating {}", path.display()));
        Ok(Some(BufWriter::new(file.map_err(Failure::usage)?)))
    }
}

/// Findings printed on standard output.
const PRINTED: u64 = 100;

pub(super) async fn audit(args: AuditArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let elastic = connect::patient_elasticsearch(&config)?;
    if args.tally {
        return tokio::select! {
            ended = counts::run(&config, &*elastic, args.repair, args.json) => ended,
            () = stop.cancelled() => Err(anyhow!("interrupted; nothing was changed").into()),
        };
    }
    if args.source {
        if args.repair {
            connect::plain_keys(&config, "a repair")?;
            connect::warn_of_stops(&config, "a document that cannot be fetched or written");
        }
        return tokio::select! {
            ended = source::run(&args, &config, &elastic) => ended,
            () = stop.cancelled() => Err(anyhow!("interrupted; what was asked for so far is in the topic").into()),
        };
    }
    if args.repair || args.adopt {
        connect::plain_keys(&config, "a repair")?;
        connect::warn_of_stops(&config, "a document that cannot be placed");
    }
    tokio::select! {
        ended = placements(&args, &config, &elastic) => ended,
        () = stop.cancelled() => Err(anyhow!("interrupted; repairs made so far remain").into()),
    }
}

/// Compares copies and placements, and repairs, adopts or sweeps as asked for.
async fn placements(
    args: &AuditArgs,
    config: &Config,
    elastic: &Arc<dyn Elastic>,
) -> Result<ExitCode, Failure> {
    let location = connect::location(config)?;
    let maps = connect::live_maps(config, &**elastic).await?;
    let timeout = config.elasticsearch.request_timeout.max(LONG);
    let epoch = config.positions.epoch;
    let needs_topic = args.repair || args.adopt || args.sweep;
    let topic = if needs_topic {
        Some(TopicTouches::connect(config, elastic.clone(), args.touch_rate).await?)
    } else {
        None
    };
    let sweep_below = match topic.as_ref().filter(|_| args.sweep) {
        None => None,
        Some(topic) => sweepable(config, &**elastic, topic, timeout).await?,
    };
    let audit = Audit {
        elastic: &**elastic,
        prefix: &config.elasticsearch.prefix,
        topic: &config.kafka.topic,
        maps: &maps,
        location: &location,
        epoch,
        options: AuditOptions {
            scans: usize::from(args.scans),
            memory: args.memory.as_usize(),
            folder: args.temp_dir.clone().unwrap_or_else(std::env::temp_dir),
            settle: args.settle,
            timeout,
            rate: None,
            sweep_below,
        },
    };
    let mender = match &topic {
        Some(touches) if args.repair || args.adopt => {
            let aim = if args.adopt {
                RepairTarget::Adopt { epoch, counts: config.tally.is_on() }
            } else {
                let next = touches.next(epoch).await?;
                let next = next.ok_or_else(|| anyhow!("offsets are beyond what positions can hold"))?;
                RepairTarget::Repair { next }
            };
            let has_source = config.source.kind.is_some();
            Some(Repairer { elastic: &**elastic, touches, aim, has_source, timeout })
        }
        _ => None,
    };
    run(args, &audit, mender.as_ref()).await
}

/// The horizon for sweeping placements of deleted documents; prints the reason if there is none.
async fn sweepable(
    config: &Config,
    elastic: &dyn Elastic,
    topic: &TopicTouches,
    timeout: Duration,
) -> Result<Option<u64>, Failure> {
    let (prefix, keep) = (&config.elasticsearch.prefix, config.placements.deleted_retention);
    let of = (config.kafka.topic.as_str(), config.positions.epoch);
    match sweep::prepare(elastic, prefix, of, topic, keep, timeout).await? {
        TombstoneSweep::Below(writes) => return Ok(Some(writes)),
        TombstoneSweep::Unripe => eprintln!(
            "nothing is swept yet: it takes a mark that was committed more than placements.deleted_retention ({}) ago",
            humantime::format_duration(keep)
        ),
        TombstoneSweep::Waits(partitions) => eprintln!(
            "nothing is swept yet: partitions {partitions:?} have not committed what was in the topic at the oldest mark; after \
             that it takes {}",
            humantime::format_duration(keep)
        ),
    }
    Ok(None)
}

/// Results of --repair.
#[derive(Debug, Default, serde::Serialize)]
struct Repairs {
    mended: u64,
    changed_meanwhile: u64,
    left_alone: u64,
    /// With --adopt: the epoch with which all copies could be adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    needs_epoch: Option<u32>,
}

impl Repairs {
    fn left_alone(&mut self, finding: &AuditFinding, adopts: bool) {
        self.left_alone += 1;
        if adopts && finding.defects.contains(&Defect::NoPlacement) {
            let epochs = finding.stored.copies.values().map(|copy| copy.version.epoch().get());
            self.needs_epoch = epochs.map(|epoch| epoch + 1).chain(self.needs_epoch).max();
        }
    }
}

async fn run(
    args: &AuditArgs,
    audit: &Audit<'_>,
    mender: Option<&Repairer<'_>>,
) -> Result<ExitCode, Failure> {
    let mut out = args.out_file()?;
    let mut printed = 0;
    let mut repairs = Repairs::default();
    // Progress goes to standard error, results to standard output.
    let meter = ProgressMeter::new();
    let tell = |progress: Progress<'_>| meter.tell(progress);
    let found = async |findings: Vec<AuditFinding>| {
        let outcomes = match mender {
            None => vec![None; findings.len()],
            Some(mender) => mender.mend(&findings).await?.into_iter().map(Some).collect(),
        };
        for (finding, outcome) in findings.iter().zip(outcomes) {
            let note = match outcome {
                None => "",
                Some(RepairOutcome::Yes) => {
                    repairs.mended += 1;
                    "mended"
                }
                Some(RepairOutcome::Changed) => {
                    repairs.changed_meanwhile += 1;
                    "changed concurrently; run the audit again"
                }
                Some(RepairOutcome::No(why)) => {
                    repairs.left_alone(finding, args.adopt);
                    why
                }
            };
            if let Some(out) = &mut out {
                let mut line = serde_json::to_value(finding).unwrap_or_default();
                if !note.is_empty() {
                    line["repair"] = json!(note);
                }
                writeln!(out, "{line}").map_err(|error| AuditError::Out(error.to_string()))?;
            }
            if !args.json && printed < PRINTED {
                let note = if note.is_empty() { String::new() } else { format!("  [{note}]") };
                // A closed standard output does not stop the repair.
                meter.print(|| drop(output::line(format_args!("{finding}{note}"))));
            }
            printed += 1;
        }
        Ok(())
    };
    let report = match args.sample {
        None => audit.run(&tell, found).await?,
        Some(size) => audit.run_sample(usize::from(size), a_seed(), &tell, found).await?,
    };
    meter.end();
    if let Some(mut out) = out {
        out.flush().context("writing the findings")?;
    }
    print(args, &report, mender.is_some().then_some(&repairs), printed)?;
    let is_well =
        report.is_clean() || (mender.is_some() && repairs.mended == report.wrong && report.unsettled == 0);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(
    args: &AuditArgs,
    report: &AuditReport,
    repairs: Option<&Repairs>,
    found: u64,
) -> Result<(), Failure> {
    if args.json {
        let mut json = serde_json::to_value(report).context("writing JSON")?;
        if let Some(repairs) = repairs {
            json["repairs"] = serde_json::to_value(repairs).context("writing JSON")?;
        }
        return output::json(&json);
    }
    if found > PRINTED {
        output::line(format_args!("and {} more; --out FILE writes all of them", count(found - PRINTED)))?;
    }
    if let Some(Repairs { mended, changed_meanwhile: 0, left_alone: 0, .. }) = repairs
        && args.adopt
        && report.unsettled == 0
    {
        let [documents, copies, mended] = [report.totals.documents, report.totals.copies, *mended].map(count);
        return output::line(format_args!(
            "{documents} documents in {copies} copies: all {mended} that had no placement are adopted; workers may start"
        ));
    }
    output::line(report)?;
    if let Some(epoch) = repairs.and_then(|repairs| repairs.needs_epoch) {
        output::line(format_args!(
            "positions.epoch = {epoch} would allow adopting them (docs/audit.md, \"Adopt an index\")"
        ))?;
    }
    if let Some(repairs) = repairs.filter(|_| report.wrong > 0) {
        let [mended, changed_meanwhile, left_alone] =
            [repairs.mended, repairs.changed_meanwhile, repairs.left_alone].map(count);
        output::line(format_args!(
            "{mended} repaired, {changed_meanwhile} changed concurrently, {left_alone} not repaired; run the audit again \
             once the workers have no lag"
        ))?;
    }
    Ok(())
}

/// Another one each time; below 2^31, as Elasticsearch wants it.
fn a_seed() -> u32 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().subsec_nanos()
}
