//! `geofold campaign status` and `geofold campaign list`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;

use super::{ConfigArgs, Failure, open, output, refused};
use crate::ops::campaign::CampaignState;
use crate::ops::campaign::store::{CampaignStatus, Failed};

/// Show progress, rate, estimated end and failures. Without ID: all unfinished campaigns.
#[derive(Debug, Args)]
pub(super) struct CampaignStatusArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The campaign's number.
    id: Option<i64>,
    /// Failed ids to show per campaign, with reasons.
    #[arg(long, value_name = "N", default_value_t = 10)]
    failures: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// List all campaigns.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn status(args: CampaignStatusArgs) -> Result<ExitCode, Failure> {
    let store = open(&args.config.load()?).await?;
    let statuses = match args.id {
        Some(id) => vec![store.status(id).await.map_err(refused)?],
        None => {
            let all = store.list().await?;
            all.into_iter().filter(|status| !status.state.is_over()).collect()
        }
    };
    let mut shown = Vec::new();
    for status in statuses {
        let failed = if status.failed > 0 { store.failed(status.id, args.failures).await? } else { vec![] };
        shown.push((status, failed));
    }
    store.close().await;
    if args.json {
        let mut values: Vec<_> = shown.iter().map(|(status, failed)| status.to_json(failed)).collect();
        match (args.id, values.pop()) {
            (Some(_), Some(one)) => output::json(&one)?,
            (_, last) => {
                values.extend(last);
                output::json(&values)?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if shown.is_empty() {
        output::line("no campaign is under way; `geofold campaign list` shows all")?;
    }
    for (status, failed) in &shown {
        output::text(whole(status, failed))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn list(args: ListArgs) -> Result<ExitCode, Failure> {
    let store = open(&args.config.load()?).await?;
    let statuses = store.list().await?;
    store.close().await;
    if args.json {
        output::json(&statuses)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line("   id  state      action          ids   done    failed  made                  name")?;
    for status in &statuses {
        output::line(format_args!(
            "{:>5}  {:<9}  {:<6}  {:>11}  {:>3.0} %  {:>8}  {}  {}",
            status.id,
            standing(status),
            status.action.as_str(),
            status.ids,
            percent(status),
            status.failed,
            time(status.created),
            status.name
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The state in one word.
fn standing(status: &CampaignStatus) -> &'static str {
    if status.broken_off { "broken" } else { status.state.as_str() }
}

fn whole(status: &CampaignStatus, failed: &[Failed]) -> String {
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let mut line = |shown: std::fmt::Arguments<'_>| writeln!(text, "{shown}").unwrap_or_default();
    let CampaignStatus { id, name, action, selection, topic, .. } = status;
    line(format_args!("campaign {id}, {}: {name}", standing(status)));
    line(format_args!("  does      {action}, {selection}, through {topic}"));
    line(format_args!(
        "  ids       {} of {} sent ({:.1} %), {} failed",
        status.produced,
        status.ids,
        percent(status),
        status.failed
    ));
    line(format_args!(
        "  chunks    {}: {} at work, {} of runs that gave no sign of life, {} not begun",
        status.chunks, status.chunks_at_work, status.chunks_expired, status.chunks_fresh
    ));
    let limit = match status.rate_limit {
        0 => String::new(),
        limit => format!(", {limit} at most"),
    };
    line(format_args!("  ids/s     {:.0} lately{limit}", status.rate));
    let times = [("made", status.created), ("begun", status.started), ("ended", status.ended)]
        .map(|(what, at)| if at == 0 { None } else { Some(format!("{what} {}", time(at))) });
    line(format_args!("  times     {}", times.into_iter().flatten().collect::<Vec<_>>().join(", ")));
    match (status.state, status.seconds_left) {
        (CampaignState::Ready, Some(seconds)) => line(format_args!("  end       in {}", duration(seconds))),
        (CampaignState::Ready, None) => {
            line(format_args!("  end       not started; run: geofold campaign run {id}"))
        }
        (CampaignState::Creating, _) if status.broken_off => line(format_args!(
            "  end       its list is incomplete and its writer gone: geofold campaign cancel {id}, then remove {id}"
        )),
        _ => {}
    }
    for Failed { id, reason } in failed {
        line(format_args!("  failed    {}: {reason}", String::from_utf8_lossy(id).escape_debug()));
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "it is shown to people")]
fn percent(status: &CampaignStatus) -> f64 {
    if status.ids == 0 { 100.0 } else { status.done() as f64 / status.ids as f64 * 100.0 }
}

fn time(micros: i64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs());
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Formats seconds for humans.
pub(super) fn duration(seconds: f64) -> String {
    const LONGEST: f64 = 1e9;
    humantime::format_duration(Duration::from_secs_f64(seconds.clamp(0.0, LONGEST).ceil())).to_string()
}
