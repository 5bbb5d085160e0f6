//! `geofold audit --source`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};

use super::{AuditArgs, LONG, PRINTED, a_seed};
use crate::base::ids::DocId;
use crate::base::retry::RetryPolicy;
use crate::cli::progress::ProgressMeter;
use crate::cli::{Failure, connect, output};
use crate::io::elastic::Elastic;
use crate::ops::audit::AuditError;
use crate::ops::audit::touches::TopicTouches;
use crate::ops::audit::truth::{ComparedDocuments, Comparing, Differs};
use crate::support::config::Config;
use crate::worker::refeed::{DocumentSource, SourceOpenError};

/// Maximum ids in a file: they are held in memory.
const MOST_IDS: usize = 1_000_000;

/// Compares documents with the source of truth; requests refeeds of those that differ if --repair is given.
pub(super) async fn run(
    args: &AuditArgs,
    config: &Config,
    elastic: &Arc<dyn Elastic>,
) -> Result<ExitCode, Failure> {
    let source = DocumentSource::open(config).map_err(|error| match error {
        SourceOpenError::None | SourceOpenError::Incomplete => Failure::usage(error),
        error => error.into(),
    })?;
    let which = match (&args.ids, args.sample) {
        (Some(path), _) => ComparedDocuments::Ids(ids(path)?),
        (None, Some(size)) => ComparedDocuments::Sample(usize::from(size), a_seed()),
        (None, None) => ComparedDocuments::All,
    };
    let topic = TopicTouches::connect(config, elastic.clone(), args.touch_rate).await?;
    let location = connect::location(config)?;
    let comparing = Comparing {
        elastic: &**elastic,
        prefix: &config.elasticsearch.prefix,
        truth: &source,
        location: &location,
        log: &topic,
        mend: args.repair.then_some(&topic),
        settle: args.settle,
        timeout: config.elasticsearch.request_timeout.max(LONG),
        retry: RetryPolicy { initial: config.retry.initial_backoff, max: config.retry.max_backoff },
    };
    let mut out = args.out_file()?;
    let mut printed = 0;
    // Progress goes to standard error, results to standard output.
    let meter = ProgressMeter::new();
    let found = |differs: &Differs| {
        if let Some(out) = &mut out {
            let line = serde_json::to_string(differs).unwrap_or_default();
            writeln!(out, "{line}").map_err(|error| AuditError::Out(error.to_string()))?;
        }
        if !args.json && printed < PRINTED {
            // A closed standard output does not stop the repair.
            meter.print(|| drop(output::line(differs)));
        }
        printed += 1;
        Ok(())
    };
    let report = comparing.run(which, &|progress| meter.tell(progress), found).await?;
    meter.end();
    if let Some(mut out) = out {
        out.flush().context("writing the findings")?;
    }
    if args.json {
        output::json(&report)?;
    } else {
        if printed > PRINTED {
            output::line(format_args!("and {} more; --out FILE writes all of them", printed - PRINTED))?;
        }
        output::line(&report)?;
    }
    let is_mended = args.repair && report.refed == report.wrong && report.unsettled == 0 && !report.too_many;
    Ok(if report.is_clean() || is_mended { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads one id per line; `-` is standard input.
fn ids(path: &Path) -> Result<Vec<DocId>, Failure> {
    let name = path.display();
    let input: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("opening {name}"));
        Box::new(BufReader::new(file.map_err(Failure::usage)?))
    };
    let mut ids = Vec::new();
    for (number, line) in input.lines().enumerate() {
        let line = line.with_context(|| format!("reading {name}"))?;
        if line.is_empty() {
            continue;
        }
        let id = DocId::from_key(Some(line.as_bytes()));
        ids.push(id.with_context(|| format!("line {} of {name}", number + 1)).map_err(Failure::usage)?);
        if ids.len() > MOST_IDS {
            let why =
                anyhow!("{name} has more than {MOST_IDS} ids; compare them in parts, or all without --ids");
            return Err(Failure::usage(why));
        }
    }
    Ok(ids)
}
