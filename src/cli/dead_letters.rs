//! `geofold dead-letters`.

use std::fmt::Write as _;
use std::num::{NonZeroU64, NonZeroUsize};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::anyhow;
use clap::{Args, Subcommand};
use rdkafka::message::Headers;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{ConfigArgs, Failure, connect, output, signals};
use crate::ops::dead_letters::{
    FoundLetters, LetterFilter, LetterPlace, LetterRow, LetterSeen, LettersError, Replay, ReplayTally, Skip,
    read_letters,
};
use crate::ops::records::{Bound, RecordsReader};
use crate::support::config::Config;

/// List dead letters, show one, send them again, or skip a record of a stopped partition.
///
/// A letter is named PARTITION/OFFSET of the dead-letter topic (dead_letter.topic, or --dead-letter-topic). docs/dead-letters.md explains
/// reasons and headers.
#[derive(Debug, Args)]
pub(super) struct DeadLettersArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(ListArgs),
    Show(ShowArgs),
    Replay(ReplayArgs),
    Skip(SkipArgs),
}

#[derive(Debug, Args)]
struct TopicArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Dead-letter topic, instead of the configured one.
    #[arg(long, value_name = "TOPIC")]
    dead_letter_topic: Option<String>,
}

impl TopicArgs {
    fn load(&self) -> Result<(Config, String), Failure> {
        let config = self.config.load()?;
        let topic = self.dead_letter_topic.clone().or_else(|| config.dead_letter.topic.clone());
        let topic = topic.ok_or_else(|| {
            Failure::usage(anyhow!(
                "no dead-letter topic is configured (dead_letter.topic); name one with --dead-letter-topic"
            ))
        })?;
        Ok((config, topic))
    }
}

#[derive(Debug, Args)]
struct FilterArgs {
    /// Only letters with this reason.
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only letters of this document.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Only letters made since then: a time like 2026-11-21T08:00:00Z, or a duration before now like 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<i64>,
}

impl FilterArgs {
    fn filter(self, places: Vec<LetterPlace>) -> LetterFilter {
        LetterFilter { places, reason: self.reason, id: self.id, since_ms: self.since }
    }
}

fn parse_since(text: &str) -> Result<i64, String> {
    let time = match humantime::parse_duration(text) {
        Ok(before) => std::time::SystemTime::now().checked_sub(before),
        Err(_) => humantime::parse_rfc3339_weak(text).ok(),
    };
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .ok_or_else(|| "write a time like 2026-11-21T08:00:00Z, or a duration like 2h".to_owned())
}

/// List dead letters: place, time, reason, id, and the partition and offset of the record.
///
/// Reads the whole dead-letter topic, or from --since on; shows the newest --limit letters, oldest first, and counts by reason.
#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    topic: TopicArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Maximum letters to show.
    #[arg(long, value_name = "N", default_value = "100")]
    limit: NonZeroUsize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Show one dead letter with its headers and its value.
#[derive(Debug, Args)]
struct ShowArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// The letter: PARTITION/OFFSET.
    letter: LetterPlace,
    /// Print JSON; bytes that are not UTF-8 are replaced.
    #[arg(long)]
    json: bool,
}

/// Send the records of dead letters to their source partition again, unless a newer write of the document exists.
///
/// A record that is sent again gets a new position, so it is only sent if neither the topic nor the index has a newer write of its
/// document. Fix the cause first. Letters are sent in the order of their records. Sending a letter twice is harmless: the first one is the
/// newer write. Letters stay in their topic. Exit code 0: each letter was sent or is obsolete; 1: others remain.
#[derive(Debug, Args)]
struct ReplayArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// The letters: PARTITION/OFFSET each.
    letters: Vec<LetterPlace>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Every letter in the topic.
    #[arg(long, conflicts_with_all = ["letters", "reason", "id", "since"])]
    all: bool,
    /// Maximum letters: the newest.
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: NonZeroUsize,
    /// Only print what would be sent.
    #[arg(long)]
    dry_run: bool,
    /// Also send letters of which it cannot be known whether a newer write exists.
    #[arg(long)]
    force: bool,
    /// Maximum records to read in the source topic.
    #[arg(long, value_name = "N", default_value = "10000000")]
    max_records: NonZeroU64,
    /// Maximum time to read the source topic.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    max_time: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Skip the record at which a partition is stopped: it becomes a dead letter, and the group continues after it.
///
/// For dead_letter.policy = "stop". Stop all workers of the group first: the committed offset is theirs, and the broker refuses to move it
/// while one is a member. Only the record at the committed offset can be skipped. The dead letter has the reason skipped_by_operator.
#[derive(Debug, Args)]
struct SkipArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// Partition.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    /// Offset of the record, as geofold status or the log states it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// Why, for the letter's detail.
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn dead_letters(args: DeadLettersArgs) -> Result<ExitCode, Failure> {
    let stop = signals::stop_on_signal_or_hang_up()?;
    match args.command {
        Command::List(args) => list(args, stop).await,
        Command::Show(args) => show(args, stop).await,
        Command::Replay(args) => replay(args, stop).await,
        Command::Skip(args) => skip(args, stop).await,
    }
}

async fn read(
    config: Config,
    topic: String,
    filter: LetterFilter,
    limit: usize,
    stop: CancellationToken,
) -> Result<FoundLetters, Failure> {
    let reading = tokio::task::spawn_blocking(move || -> Result<FoundLetters, LettersError> {
        let reader = RecordsReader::new(&config, &topic, stop)?;
        read_letters(&reader, &filter, limit)
    });
    Ok(reading.await??)
}

async fn list(args: ListArgs, stop: CancellationToken) -> Result<ExitCode, Failure> {
    let (config, topic) = args.topic.load()?;
    let found = read(config, topic, args.filter.filter(Vec::new()), args.limit.get(), stop).await?;
    if args.json {
        let rows: Vec<LetterRow> = found.letters.iter().map(LetterSeen::row).collect();
        let FoundLetters { matching, by_reason, .. } = &found;
        output::json(&json!({"letters": rows, "matching": matching, "by_reason": by_reason}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for letter in &found.letters {
        output::line(line(&letter.row()))?;
    }
    let counts: Vec<String> =
        found.by_reason.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let hidden = found.matching.saturating_sub(found.letters.len() as u64);
    let hidden =
        if hidden > 0 { format!("; {hidden} older ones not shown (--limit)") } else { String::new() };
    match found.matching {
        0 => output::line(format_args!("no dead letters ({} read)", found.read))?,
        matching => output::line(format_args!("{matching} dead letters: {}{hidden}", counts.join(", ")))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One letter on one line.
fn line(row: &LetterRow) -> String {
    let mut line =
        format!("{:<8}  {:<20}  {}  {}", row.letter.to_string(), time(row.time_ms), row.reason, row.id);
    if let Some(origin) = &row.origin {
        // Writing to a string cannot fail.
        let _ =
            write!(line, "  ({} partition {} offset {}", origin.topic, origin.partition, origin.first_offset);
        if origin.last_offset != origin.first_offset {
            let _ = write!(line, " to {}", origin.last_offset);
        }
        line.push(')');
    }
    // A key is anyone's bytes.
    line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn time(millis: Option<i64>) -> String {
    let Some(millis) = millis.and_then(|millis| u64::try_from(millis).ok()) else { return "-".to_owned() };
    match UNIX_EPOCH.checked_add(Duration::from_millis(millis)) {
        // RFC 3339 has four digits for the year.
        Some(time) if millis < 253_402_300_800_000 => humantime::format_rfc3339_seconds(time).to_string(),
        _ => "-".to_owned(),
    }
}

async fn show(args: ShowArgs, stop: CancellationToken) -> Result<ExitCode, Failure> {
    let (config, topic) = args.topic.load()?;
    let filter = LetterFilter { places: vec![args.letter], ..LetterFilter::default() };
    let found = read(config, topic, filter, 1, stop).await?;
    let letter = found.letters.first();
    let letter = letter.ok_or_else(|| LettersError::Missing(args.letter.to_string()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers: Vec<(String, Option<String>)> =
        letter.headers.iter().map(|header| (header.key.to_owned(), header.value.map(text))).collect();
    let value = letter.value.as_deref().map(text);
    if args.json {
        let mut shown = serde_json::to_value(letter.row())?;
        shown["headers"] =
            json!(headers.iter().map(|(key, value)| json!({"key": key, "value": value})).collect::<Vec<_>>());
        shown["value"] = json!(value);
        shown["value_left_out"] = json!(letter.value_left_out);
        output::json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(line(&letter.row()))?;
    output::line(format_args!("stage   {}", letter.stage))?;
    output::line(format_args!("detail  {}", letter.detail))?;
    for (key, value) in headers {
        output::line(format_args!("header  {key}: {}", value.unwrap_or_default()))?;
    }
    match (&letter.value_left_out, value) {
        (Some(bytes), _) => {
            output::line(format_args!("value   left out, {bytes} bytes; see the record in the source topic"))?
        }
        (None, None) => output::line("value   none")?,
        (None, Some(value)) => output::line(value)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn replay(args: ReplayArgs, stop: CancellationToken) -> Result<ExitCode, Failure> {
    let filter = args.filter.filter(args.letters);
    if filter.is_any() && !args.all {
        return Err(Failure::usage(anyhow!(
            "name letters (PARTITION/OFFSET), or choose them with --reason, --id, --since or --all"
        )));
    }
    let (config, topic) = args.topic.load()?;
    let replay = Replay {
        config: &config,
        elastic: Arc::new(connect::elasticsearch(&config)?),
        letters_topic: &topic,
        filter: &filter,
        limit: args.limit.get(),
        bound: Bound { records: args.max_records.get(), time: args.max_time },
        force: args.force,
        dry_run: args.dry_run,
        stop,
    };
    let replayed = replay.run().await?;
    let tally = ReplayTally::of(&replayed);
    if args.json {
        output::json(&json!({"letters": replayed, "sums": tally, "dry_run": args.dry_run}))?;
    } else {
        for one in &replayed {
            output::line(one)?;
        }
        let ReplayTally { sent, obsolete, not_sent } = tally;
        let verb = if args.dry_run { "to send" } else { "sent" };
        output::line(format_args!("{sent} {verb}, {obsolete} obsolete, {not_sent} not sent"))?;
    }
    Ok(if tally.not_sent == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn skip(args: SkipArgs, stop: CancellationToken) -> Result<ExitCode, Failure> {
    let (config, topic) = args.topic.load()?;
    let skip = Skip {
        config: &config,
        letters_topic: &topic,
        partition: args.partition,
        offset: args.offset,
        why: &args.why,
        stop,
    };
    let skipped = skip.run().await?;
    if args.json {
        output::json(&skipped)?;
    } else {
        output::line(format_args!(
            "skipped: partition {}, offset {}, key {:?}; the group continues at offset {}",
            skipped.partition, skipped.offset, skipped.id, skipped.committed
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
