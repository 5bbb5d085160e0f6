//! How many refreshes Elasticsearch runs at once: any more only queue there.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{MAX_RUNNING, Visibility};
use crate::io::elastic::{AdminCall, Method};

/// Polling interval: nodes come and go.
const INTERVAL: Duration = Duration::from_secs(60);

const PATH: &str = "/_nodes/data:true/thread_pool?filter_path=nodes.*.thread_pool.refresh.max";

impl Visibility {
    /// Limits concurrent refreshes to Elasticsearch's refresh threads. Never ends. While the number is unavailable, the
    /// last known one or the worker's maximum applies.
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
                            "the number of refresh threads is unavailable; grant the privilege monitor"
                        );
                    }
                }
                Err(error) => tracing::debug!(%error, "the number of refresh threads is unavailable"),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// The sum over all data nodes; `None` if no node reports it.
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
    fn refresh_threads_of_all_nodes_add_up_to_the_workers_limit() {
        let node = |max: u64| json!({"thread_pool": {"refresh": {"type": "scaling", "max": max}}});
        assert_eq!(threads(&json!({"nodes": {"a": node(1)}})), Some(1));
        assert_eq!(threads(&json!({"nodes": {"a": node(1), "b": node(2)}})), Some(3));
        assert_eq!(threads(&json!({"nodes": {"a": node(10), "b": node(10)}})), Some(MAX_RUNNING));
        // Not permitted, or not reported.
        for unknown in [json!({"error": {}}), json!({"nodes": {"a": {}}}), json!(null)] {
            assert_eq!(threads(&unknown), None, "{unknown}");
        }
    }
}
