//! Required background tasks. A task that ends without being stopped, or that panics, is reported by name and ends the process
//! in order.
//!
//! tokio stores a panic in the task's join handle, which is never awaited here. Without supervision a worker would continue
//! without the task: with a map that is never read again, for example, or documents that are never fetched.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::future::FutureExt;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A required background task that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the background task \"{task}\" {how}; this is a defect in geofold, please report it with the log")]
pub struct TaskLost {
    /// Its name.
    pub task: &'static str,
    /// How it ended.
    pub how: String,
}

/// Spawns background tasks, and reports those that are lost. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Supervisor(mpsc::UnboundedSender<TaskLost>);

/// Where lost tasks are reported.
#[derive(Debug)]
pub struct LostTasks(mpsc::UnboundedReceiver<TaskLost>);

impl Supervisor {
    /// A supervisor, and where it reports.
    pub fn new() -> (Self, LostTasks) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), LostTasks(receiver))
    }

    /// Spawns a task that is needed until `stop`. One that is aborted is not lost.
    pub fn spawn(
        &self,
        name: &'static str,
        stop: CancellationToken,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        self.watch(name, task, move || !stop.is_cancelled())
    }

    /// Spawns a task that ends by itself when its work is done: only a panic is reported.
    pub fn spawn_until_done(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        self.watch(name, task, || false)
    }

    fn watch(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
        is_needed: impl FnOnce() -> bool + Send + 'static,
    ) -> JoinHandle<()> {
        let lost = self.0.clone();
        #[expect(clippy::disallowed_methods, reason = "this is where the others are spawned")]
        tokio::spawn(async move {
            let how = match AssertUnwindSafe(work).catch_unwind().await {
                Ok(()) if is_needed() => "ended without being stopped".to_owned(),
                Ok(()) => return,
                Err(panic) => format!("panicked: {}", message(&*panic)),
            };
            // The receiver is gone while the process ends.
            let _ = lost.send(TaskLost { task, how });
        })
    }
}

impl LostTasks {
    /// Runs `work`. When a background task is lost, `stop` is cancelled, and `work` is expected to end.
    ///
    /// # Errors
    /// If a background task was lost; the result of `work` is then logged.
    pub async fn or_else_stop<T, E: std::fmt::Display>(
        &mut self,
        stop: &CancellationToken,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, TaskLost> {
        tokio::pin!(work);
        let lost = tokio::select! {
            ended = &mut work => return Ok(ended),
            Some(lost) = self.0.recv() => lost,
        };
        tracing::error!(task = lost.task, how = lost.how, "a background task ended unexpectedly; stopping");
        stop.cancel();
        if let Err(error) = work.await {
            tracing::error!(%error, "and stopping did not go well");
        }
        Err(lost)
    }
}

#[cfg(test)]
impl LostTasks {
    /// The next one that was reported by now.
    pub(crate) fn reported(&mut self) -> Option<TaskLost> {
        self.0.try_recv().ok()
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::*;

    /// Runs until cancelled.
    async fn until(stop: &CancellationToken) -> Result<&'static str, Infallible> {
        stop.cancelled().await;
        Ok("stopped")
    }

    #[tokio::test]
    async fn a_task_that_panics_ends_the_work_and_is_named() {
        let (supervisor, mut lost) = Supervisor::new();
        let stop = CancellationToken::new();
        supervisor.spawn("good", stop.clone(), std::future::pending());
        supervisor.spawn("bad", stop.clone(), async { panic!("number {}", 7) });
        let lost = lost.or_else_stop(&stop, until(&stop)).await.unwrap_err();
        assert_eq!(lost, TaskLost { task: "bad", how: "panicked: number 7".to_owned() });
        assert!(lost.to_string().contains("\"bad\" panicked: number 7"), "{lost}");
        assert!(stop.is_cancelled());
    }

    #[tokio::test]
    async fn task_that_ends_early_ends_the_work() {
        let (supervisor, mut lost) = Supervisor::new();
        let stop = CancellationToken::new();
        supervisor.spawn("short", CancellationToken::new(), async {});
        let lost = lost.or_else_stop(&stop, until(&stop)).await.unwrap_err();
        assert_eq!(lost.how, "ended without being stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn the_work_is_given_the_time_to_end_in_good_order() {
        let (supervisor, mut lost) = Supervisor::new();
        let stop = CancellationToken::new();
        supervisor.spawn("bad", stop.clone(), async { panic!("now") });
        let mut is_done = false;
        let work = async {
            until(&stop).await?;
            tokio::time::sleep(Duration::from_secs(20)).await;
            is_done = true;
            Ok::<(), Infallible>(())
        };
        lost.or_else_stop(&stop, work).await.unwrap_err();
        assert!(is_done);
    }

    #[tokio::test]
    async fn stopped_aborted_and_finished_tasks_are_not_lost() {
        let (supervisor, mut lost) = Supervisor::new();
        let stop = CancellationToken::new();
        let told = stop.clone();
        let ended = [
            supervisor.spawn("told", stop.clone(), async move { told.cancelled().await }),
            supervisor.spawn_until_done("done", async {}),
        ];
        let aborted = supervisor.spawn("aborted", CancellationToken::new(), std::future::pending());
        aborted.abort();
        assert!(aborted.await.unwrap_err().is_cancelled());
        stop.cancel();
        for task in ended {
            task.await.unwrap();
        }
        supervisor.spawn_until_done("bad", async { panic!("but a panic is reported") });
        assert_eq!(lost.0.recv().await.unwrap().task, "bad", "the first that is reported");
    }
}
