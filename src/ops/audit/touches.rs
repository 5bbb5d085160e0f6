//! Kafka implementation of [`Touches`] and [`OffsetLog`].

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};

use super::sweep::OffsetLog;
use super::{AuditError, Touches};
use crate::base::ids::DocId;
use crate::base::position::{Epoch, Position};
use crate::io::elastic::Elastic;
use crate::io::maps::OffsetFloor;
use crate::io::send::Op;
use crate::io::send::topic::{SendTopic, TopicError};
use crate::support::config::Config;

/// Touches by the topic, no faster than allowed.
pub(crate) struct TopicTouches {
    topic: SendTopic,
    /// Per second.
    rate: NonZeroU32,
}

impl TopicTouches {
    /// `elastic` has the placements, which name the partitions of documents.
    pub(crate) async fn connect(
        config: &Config,
        elastic: Arc<dyn Elastic>,
        rate: NonZeroU32,
    ) -> Result<Self, TopicError> {
        Ok(Self { topic: SendTopic::connect(config, elastic).await?, rate })
    }

    /// The first position that some record still to come may have: the end of what is committed, where that is least. Not even
    /// the partition of a document is known here; the producer decides on it. `None` beyond what positions can hold.
    pub(crate) async fn next(&self, epoch: Epoch) -> Result<Option<Position>, TopicError> {
        let ends = self.topic.ends().await?;
        let behind = self.topic.behind(&ends).await?;
        let committed = ends.iter().map(|(partition, end)| behind.get(partition).copied().unwrap_or(*end));
        Ok(Position::new(epoch, committed.min().unwrap_or(0)))
    }

    async fn ask(&self, op: Op, ids: Vec<DocId>) -> Result<(), AuditError> {
        let share = Duration::from_secs(1) / self.rate.get();
        let pause = share.saturating_mul(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        let asked = self.topic.ask(op, ids).await;
        asked.map_err(|error| AuditError::Touch(error.to_string()))?;
        self.topic.flush().await.map_err(|error| AuditError::Touch(error.to_string()))?;
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

impl Touches for TopicTouches {
    fn touch(&self, ids: Vec<DocId>) -> BoxFuture<'_, Result<(), AuditError>> {
        self.ask(Op::Touch, ids).boxed()
    }

    fn refeed(&self, ids: Vec<DocId>) -> BoxFuture<'_, Result<(), AuditError>> {
        self.ask(Op::Refeed, ids).boxed()
    }
}

impl OffsetLog for TopicTouches {
    fn ends(&self) -> BoxFuture<'_, Result<OffsetFloor, AuditError>> {
        async move { self.topic.ends().await.map_err(|error| AuditError::Log(error.to_string())) }.boxed()
    }

    fn behind<'a>(&'a self, floor: &'a OffsetFloor) -> BoxFuture<'a, Result<OffsetFloor, AuditError>> {
        async move { self.topic.behind(floor).await.map_err(|error| AuditError::Log(error.to_string())) }
            .boxed()
    }
}
