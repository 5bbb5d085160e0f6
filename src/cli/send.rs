//! `geofold send`.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};

use super::{ConfigArgs, Failure, connect, output, signals, values};
use crate::io::send::{LineRules, Op, SendOptions};
use crate::support::config::Partitioner;

/// Produce documents, deletes and patches from a file or standard input to the topic.
///
/// One record per line. A line that begins with `{` is a document whose id is at --id-field. Otherwise `ID<TAB>JSON`,
/// or `ID<TAB>OP<TAB>JSON` with OP index, delete, patch, touch or refeed; without JSON it is a delete. Keys are
/// partitioned by kafka.partitioner. Exit code 1: a record was not delivered.
#[derive(Debug, Args)]
pub(super) struct SendArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// File to read; standard input if `-` or missing.
    file: Option<PathBuf>,
    /// Dotted path of the id in a line that is a JSON object.
    #[arg(long, value_name = "PATH", default_value = "id")]
    id_field: String,
    /// Operation of lines that do not name one.
    #[arg(long, value_enum)]
    op: Option<OpArg>,
    /// Topic, instead of the configured one; records are not checked then.
    #[arg(long)]
    topic: Option<String>,
    /// Send records, too, that a worker with this configuration would refuse.
    #[arg(long)]
    unchecked: bool,
    /// Maximum records per second.
    #[arg(long, value_name = "N", value_parser = values::rate)]
    rate: Option<NonZeroU32>,
    /// Continue after bad lines and failed deliveries, count them, and name the first hundred.
    #[arg(long)]
    keep_going: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OpArg {
    Index,
    Delete,
    Patch,
    Touch,
    Refeed,
}

impl From<OpArg> for Op {
    fn from(op: OpArg) -> Self {
        match op {
            OpArg::Index => Self::Index,
            OpArg::Delete => Self::Delete,
            OpArg::Patch => Self::Patch,
            OpArg::Touch => Self::Touch,
            OpArg::Refeed => Self::Refeed,
        }
    }
}

/// How long to wait for acknowledgements after the last line.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn send(args: SendArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    if args.topic.is_none() {
        connect::plain_keys(&config, "geofold send")?;
        if config.kafka.partitioner == Partitioner::Custom {
            return Err(Failure::usage(anyhow!(
                "kafka.partitioner is \"custom\": geofold send cannot tell the partition of a key; send with the \
                 producer that does"
            )));
        }
    }
    let decoder = match args.topic.is_none() && !args.unchecked {
        true => Some(connect::decoder(&config)?),
        false => None,
    };
    let stop = signals::stop_on_signal_or_hang_up()?;
    let (input, input_bytes): (Box<dyn BufRead + Send>, Option<u64>) = match &args.file {
        Some(path) if path.as_os_str() != "-" => {
            let file = File::open(path)
                .with_context(|| format!("opening {}", path.display()))
                .map_err(Failure::usage)?;
            let bytes =
                file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
            (Box::new(BufReader::with_capacity(1 << 20, file)), bytes)
        }
        _ => (Box::new(BufReader::with_capacity(1 << 20, stdin())), None),
    };
    let options = SendOptions {
        properties: config.topic_producer_properties().into_iter().collect(),
        topic: args.topic.unwrap_or_else(|| config.kafka.topic.clone()),
        rules: LineRules { id_field: args.id_field, op: args.op.map(Op::from) },
        rate: args.rate,
        keep_going: args.keep_going,
        decoder,
        input_bytes,
        flush_timeout: FLUSH_TIMEOUT,
    };
    let summary = crate::io::send::send(options, input, stop).await?;
    for failure in &summary.failures {
        eprintln!("{failure}");
    }
    let named = summary.failures.len() as u64;
    if summary.failed() > named && named > 0 {
        eprintln!("and {} more", summary.failed() - named);
    }
    output::line(&summary)?;
    Ok(if summary.failed() > 0 || summary.interrupted { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
