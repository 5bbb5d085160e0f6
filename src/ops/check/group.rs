//! Checks the group: partitions that are stopped, as far as their workers can be asked, and a group that was rewound.

use super::CheckFinding;
use crate::io::elastic::Elastic;
use crate::ops::group::{rewound_partitions, stopped_partitions};
use crate::support::config::Config;

const STOPPED: &str = "stopped partitions";
const REWOUND: &str = "committed offsets";

/// Only problems: a worker that is not there is none, and brokers that do not answer are reported by another check.
pub(super) async fn look(config: &Config, elastic: &dyn Elastic) -> Vec<CheckFinding> {
    let (stopped, rewound) = tokio::join!(stopped_partitions(config), rewound_partitions(config, elastic));
    let stopped = stopped.into_iter().map(|(partition, reason)| {
        CheckFinding::error(STOPPED, format_args!("partition {partition} is stopped: {reason}"))
    });
    let epoch = config.positions.epoch;
    let rewound = rewound.unwrap_or_default().into_iter().map(|(partition, (committed, remembered))| {
        CheckFinding::error(
            REWOUND,
            format_args!(
                "the group was rewound: partition {partition} has {committed} committed, and {remembered} was: workers stop there; to \
                 replay deliberately raise positions.epoch above {epoch}, otherwise set the offset back"
            ),
        )
    });
    stopped.chain(rewound).collect()
}
