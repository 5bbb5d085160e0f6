//! How many refreshes Elasticsearch can do at once: more under way only wait there for one another.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{MAX_RUNNING, Visibility};
use crate::io::elastic::{AdminCall, Method};

/// It is asked so often: nodes come and go.
const INTERVAL: Duration = Duration::from_secs(60);

const PATH: &str = "/_nodes/data:true/thread_pool?filter_path=nodes.*.thread_pool.refresh.max";

impl Visibility {
    /// Keeps to as many refreshes at once as Elasticsearch has threads for them. Never ends. While it does not say, the number that was
    /// known stays, or the most that a worker does.
    pub async fn follow_threads(self: Arc<Self>) {
        loop {
            let call = AdminCall { method: Method::Get, path: PATH.to_owned(), body: None };
            match self.rounds.elastic.admin(call, self.rounds.limits.request_timeout).await {
                Ok(answer) => {
                    if let Some(threads) = threads(&answer.body) {
                        self.state().queue.set_max_running(threads);
                        self.wake.notify_one();
                    } else {
                        let status = answer.status;
                        tracing::debug!(
                            status,
                            "the number of threads for refreshes is not known; it takes the privilege monitor"
                        );
                    }
                }
                Err(error) => tracing::debug!(%error, "the number of threads for refreshes is not known"),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Those of all data nodes together; `None` if no node tells.
fn threads(answer: &Value) -> Option<usize> {
    let nodes = answer["nodes"].as_object()?.values();
    let threads = nodes.filter_map(|node| node["thread_pool"]["refresh"]["max"].as_u64()).sum::<u64>();
    let threads = usize::try_from(threads).unwrap_or(usize::MAX);
    (threads > 0).then(|| threads.min(MAX_RUNNING))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_threads_of_all_nodes_count_as_far_as_one_worker_goes() {
        let node = |max: u64| json!({"thread_pool": {"refresh": {"type": "scaling", "max": max}}});
        assert_eq!(threads(&json!({"nodes": {"a": node(1)}})), Some(1));
        assert_eq!(threads(&json!({"nodes": {"a": node(1), "b": node(2)}})), Some(3));
        assert_eq!(threads(&json!({"nodes": {"a": node(10), "b": node(10)}})), Some(MAX_RUNNING));
        // One that may not be asked, or does not say.
        for unknown in [json!({"error": {}}), json!({"nodes": {"a": {}}}), json!(null)] {
            assert_eq!(threads(&unknown), None, "{unknown}");
        }
    }
}
