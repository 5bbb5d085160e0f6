//! `geofold demo`: the whole job with nothing installed.
//!
//! librdkafka's mock broker and an in-process stand-in for Elasticsearch serve two real workers, child processes of this
//! one. Simulated people travel the globe, faults come as on a bad day, and at the end every document of the index is
//! compared with what it should be.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the demo from outside: options in, verdict out |
//! | `stage.rs` | everything that takes part, and the course of the day |
//! | `setup.rs` | what it stands on: indices, configuration |
//! | `people.rs` | the simulation and its truth (pure) |
//! | `faults.rs` | what goes wrong when (pure) |
//! | `timeline.rs` | what went wrong when, and what came of it (pure) |
//! | `topic.rs` | producing, what is committed, what ended among the dead letters |
//! | `workers.rs` | the child processes |
//! | `onlooker.rs` | reads a few documents all the time |
//! | `searcher.rs` | searches for them all the time |
//! | `audit.rs` | the index against the truth |
//! | `verdict.rs` | how it went |
//! | `view.rs` | what a person sees meanwhile |

mod audit;
mod faults;
mod onlooker;
mod people;
mod searcher;
mod setup;
mod stage;
mod timeline;
mod topic;
mod verdict;
mod view;
mod workers;

use std::time::Instant;

use anyhow::{Result, bail};
use tokio_util::sync::CancellationToken;

use self::stage::DemoStage;
pub use self::verdict::DemoVerdict;

/// How the demo runs.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// People, one document each.
    pub docs: u32,
    /// Events per second once all documents exist.
    pub rate: u32,
    /// Length of the day after that.
    pub seconds: u32,
    /// Of people and faults.
    pub seed: u64,
    /// No faults.
    pub calm: bool,
    /// The workers go on after the verdict, until the demo is told to stop.
    pub hold: bool,
    /// The first worker's admin port, the second worker's is one above; 0: any that are free.
    pub port: u16,
    /// More arguments for the workers.
    pub worker_arguments: Vec<String>,
}

/// Runs the demo to its verdict, and shows that, with the status pages of workers that go on.
///
/// # Errors
/// If a part of it cannot be started, a worker ends by itself, the workers do not finish the work in time, or `stop` is
/// cancelled before the verdict.
pub async fn run(
    options: DemoOptions,
    stop: CancellationToken,
    show: impl FnOnce(&DemoVerdict, &[String]),
) -> Result<DemoVerdict> {
    let began = Instant::now();
    let hold = options.hold;
    let verdict = async {
        let mut stage = DemoStage::set(options).await?;
        let counters = stage.play().await?;
        if !hold {
            stage.stop_workers().await?;
        }
        let verdict = stage.judge(counters, began).await?;
        anyhow::Ok((stage, verdict))
    };
    // Dropping the stage stops its workers.
    let (mut stage, verdict) = tokio::select! {
        verdict = verdict => verdict?,
        () = stop.cancelled() => bail!("interrupted; the workers were stopped, and nothing is left behind"),
    };
    show(&verdict, &stage.pages());
    if hold {
        stop.cancelled().await;
        stage.stop_workers().await?;
    }
    Ok(verdict)
}
