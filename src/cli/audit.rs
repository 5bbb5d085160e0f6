//! `geofold audit`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use futures::future::{BoxFuture, FutureExt};
use serde_json::json;

use super::{ConfigArgs, Failure, audit_counts, connect, output, signals};
use crate::audit::{Audit, AuditError, Finding, Mended, Mender, Options, Report, Touches};
use crate::config::{ByteSize, Config};
use crate::decode::LocationPath;
use crate::ids::DocId;
use crate::kafka::topic::Topic;
use crate::position::Position;

/// Refreshing and scanning whole indices is not the hot path.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Compare every placement with every copy in every geoshard, while writes go on, and say what is wrong.
///
/// Documents that look wrong are read again, realtime, before they are called so: what is in motion is not wrong. Needs
/// Elasticsearch; with --repair, Kafka as well. What each kind of defect means and what to do about it is in
/// docs/operations.md, "The index looks wrong: what now". With --tally, it is the live counts that are compared, with all
/// documents. Exit code 0: nothing is wrong, or all of it could be mended; 1: something is, or the audit could not be ended.
#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Mend what can be mended without guessing: mostly by touches into the topic, which workers carry out. Run the audit
    /// again when the lag is gone. What only the source of truth knows is left alone and said.
    #[arg(long)]
    repair: bool,
    /// Count all documents anew, and compare that with the live counts. It is exact only while nothing is written, and after
    /// every increment is merged. With --repair, the counts become what was found: stop all workers and collectors first.
    #[arg(long, conflicts_with_all = ["out", "settle", "memory", "temp_dir"])]
    tally: bool,
    /// Documents that are asked to be placed again, per second, at most.
    #[arg(long, value_name = "N", default_value = "2000", requires = "repair")]
    touch_rate: NonZeroU32,
    /// Write every finding to a file, one JSON object a line. Standard output has the first hundred.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON: the report alone.
    #[arg(long)]
    json: bool,
    /// Time between two looks at a document that seems wrong. Longer than a batch takes.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    settle: Duration,
    /// Indices that are read side by side.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    scans: u8,
    /// Memory for sorting; more of it makes fewer temporary files.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: ByteSize,
    /// Where temporary files go: about 60 bytes for each placement and each copy.
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
}

/// Findings printed on standard output.
const PRINTED: u64 = 100;

pub async fn audit(args: AuditArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let stop = signals::stop_on_signal()?;
    let elastic = connect::elasticsearch(&config)?;
    if args.tally {
        return tokio::select! {
            ended = audit_counts::run(&config, &elastic, args.repair, args.json) => ended,
            () = stop.cancelled() => Err(anyhow!("interrupted; nothing was changed").into()),
        };
    }
    let location = LocationPath::new(&config.documents.location)
        .context("documents.location in the configuration")
        .map_err(Failure::usage)?;
    let work = async {
        let maps = connect::live_maps(&config, &elastic).await?;
        let timeout = config.elasticsearch.request_timeout.max(LONG);
        let audit = Audit {
            elastic: &elastic,
            prefix: &config.elasticsearch.prefix,
            maps: &maps,
            location: &location,
            epoch: config.positions.epoch,
            options: Options {
                scans: usize::from(args.scans),
                memory: args.memory.as_usize(),
                folder: args.temp_dir.clone().unwrap_or_else(std::env::temp_dir),
                settle: args.settle,
                timeout,
            },
        };
        let topic =
            if args.repair { Some(TopicTouches::connect(&config, args.touch_rate).await?) } else { None };
        let mender = match &topic {
            None => None,
            Some(touches) => {
                Some(Mender { elastic: &elastic, touches, end: touches.end(&config).await?, timeout })
            }
        };
        run(&args, &audit, mender.as_ref()).await
    };
    tokio::select! {
        ended = work => ended,
        () = stop.cancelled() => Err(anyhow!("interrupted; what was mended so far stays so").into()),
    }
}

/// What became of findings, with --repair.
#[derive(Debug, Default, serde::Serialize)]
struct Repairs {
    mended: u64,
    changed_meanwhile: u64,
    left_alone: u64,
}

async fn run(args: &AuditArgs, audit: &Audit<'_>, mender: Option<&Mender<'_>>) -> Result<ExitCode, Failure> {
    let mut out = match &args.out {
        None => None,
        Some(path) => {
            let file = File::create(path).with_context(|| format!("creating {}", path.display()));
            Some(BufWriter::new(file.map_err(Failure::usage)?))
        }
    };
    let mut printed = 0;
    let mut repairs = Repairs::default();
    // Progress is for people who watch; results go to standard output.
    let say = |line: &str| eprintln!("{line}");
    let found = async |findings: Vec<Finding>| {
        let outcomes = match mender {
            None => vec![None; findings.len()],
            Some(mender) => mender.mend(&findings).await?.into_iter().map(Some).collect(),
        };
        for (finding, outcome) in findings.iter().zip(outcomes) {
            let note = match outcome {
                None => "",
                Some(Mended::Yes) => {
                    repairs.mended += 1;
                    "mended"
                }
                Some(Mended::Changed) => {
                    repairs.changed_meanwhile += 1;
                    "somebody changed it meanwhile; run the audit again"
                }
                Some(Mended::No(why)) => {
                    repairs.left_alone += 1;
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
                // A reader that went away is no reason to stop mending.
                drop(output::line(format_args!("{finding}{note}")));
            }
            printed += 1;
        }
        Ok(())
    };
    let report = audit.run(&say, found).await?;
    if let Some(mut out) = out {
        out.flush().context("writing the findings")?;
    }
    print(args, &report, mender.is_some().then_some(&repairs), printed)?;
    let is_well =
        report.is_clean() || (mender.is_some() && repairs.mended == report.wrong && report.unsettled == 0);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(args: &AuditArgs, report: &Report, repairs: Option<&Repairs>, found: u64) -> Result<(), Failure> {
    if args.json {
        let mut json = serde_json::to_value(report).context("writing JSON")?;
        if let Some(repairs) = repairs {
            json["repairs"] = serde_json::to_value(repairs).context("writing JSON")?;
        }
        return output::json(&json);
    }
    if found > PRINTED {
        output::line(format_args!("and {} more; --out FILE writes all of them", found - PRINTED))?;
    }
    output::line(report)?;
    if let Some(Repairs { mended, changed_meanwhile, left_alone }) = repairs.filter(|_| report.wrong > 0) {
        output::line(format_args!(
            "{mended} mended, {changed_meanwhile} changed meanwhile, {left_alone} left alone; run the audit again \
             once the workers have no lag"
        ))?;
    }
    Ok(())
}

/// Touches by the topic, no faster than allowed.
struct TopicTouches {
    topic: Topic,
    rate: NonZeroU32,
}

impl TopicTouches {
    async fn connect(config: &Config, rate: NonZeroU32) -> Result<Self, Failure> {
        Ok(Self { topic: Topic::connect(config).await?, rate })
    }

    /// The first position that no record of the topic has.
    async fn end(&self, config: &Config) -> Result<Position, Failure> {
        let longest = self.topic.ends().await?.into_values().max().unwrap_or(0);
        Position::new(config.positions.epoch, longest)
            .ok_or_else(|| anyhow!("the topic's offsets are beyond what positions can hold").into())
    }
}

impl Touches for TopicTouches {
    fn touch(&self, ids: Vec<DocId>) -> BoxFuture<'_, Result<(), AuditError>> {
        async move {
            let share = Duration::from_secs(1) / self.rate.get();
            let pause = share.saturating_mul(u32::try_from(ids.len()).unwrap_or(u32::MAX));
            self.topic.touch(ids).await;
            self.topic.flush().await.map_err(|error| AuditError::Touch(error.to_string()))?;
            tokio::time::sleep(pause).await;
            Ok(())
        }
        .boxed()
    }
}
