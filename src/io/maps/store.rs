//! Where the record is kept: a document of the index `<prefix>-meta`. That a partition's owner acts by it is in the partition's
//! [`Claim`].
//!
//! The record is written by compare-and-set only, so that of two who change it one finds out.

use std::time::Duration;

use super::record::MapsRecord;
use crate::base::ids::DocId;
use crate::io::claims::{Claim, claim_key};
use crate::io::elastic::{Elastic, SeqNo};
use crate::io::stored::{RecordError, StoredRecord, key, read_all_as};

/// The stored record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The record.
    pub record: MapsRecord,
    /// Its state, for compare-and-set.
    pub stamp: SeqNo,
}

/// The record of one topic, and the claims of its partitions.
pub struct MapsStore<'a> {
    elastic: &'a dyn Elastic,
    topic: &'a str,
    timeout: Duration,
}

impl<'a> MapsStore<'a> {
    /// Of `topic`; each request may take `timeout`.
    pub fn new(elastic: &'a dyn Elastic, topic: &'a str, timeout: Duration) -> Self {
        Self { elastic, topic, timeout }
    }

    /// The record, if there is one.
    pub async fn read(&self) -> Result<Option<Stored>, RecordError> {
        let id = record_key(self.topic);
        let found = StoredRecord::new(self.elastic, &id, self.timeout).read_as().await?;
        Ok(found.map(|(record, stamp)| Stored { record, stamp }))
    }

    /// Writes the record if it is unchanged since it was read (`None`: if it does not exist).
    pub async fn write(&self, record: &MapsRecord, over: Option<SeqNo>) -> Result<(), RecordError> {
        let id = record_key(self.topic);
        StoredRecord::new(self.elastic, &id, self.timeout).write(record, over).await
    }

    /// The claims of partitions `0..partitions`, each with the generation by which its owner acts.
    pub async fn claims(&self, partitions: i32) -> Result<Vec<Option<Claim>>, RecordError> {
        let found = self.stamped_claims(partitions).await?;
        Ok(found.into_iter().map(|found| found.map(|(claim, _)| claim)).collect())
    }

    /// The same with their states: each renewal makes another one.
    pub async fn stamped_claims(&self, partitions: i32) -> Result<Vec<Option<(Claim, SeqNo)>>, RecordError> {
        let keys: Vec<DocId> = (0..partitions).map(|partition| claim_key(self.topic, partition)).collect();
        read_all_as(self.elastic, &keys, self.timeout).await
    }
}

/// `_id` of the record of `topic`.
pub fn record_key(topic: &str) -> DocId {
    key(format!("maps/{topic}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::position::Epoch;
    use crate::testkit::testing::{MemoryElastic, six_faces};

    const SOON: Duration = Duration::from_secs(1);

    fn record() -> MapsRecord {
        let next = MapsRecord::unwritten(six_faces(), Epoch::new(1).unwrap());
        next.replaced(six_faces(), Epoch::new(1).unwrap())
    }

    #[tokio::test]
    async fn of_two_who_change_the_record_one_finds_out() {
        let elastic: Arc<MemoryElastic> = MemoryElastic::for_map(&six_faces());
        let store = MapsStore::new(&*elastic, "topic", SOON);
        assert_eq!(store.read().await.unwrap(), None);
        store.write(&record(), None).await.unwrap();
        assert!(matches!(store.write(&record(), None).await, Err(RecordError::Conflict { .. })));
        let first = store.read().await.unwrap().unwrap();
        assert_eq!(first.record, record());
        let next = record().replaced(six_faces(), Epoch::new(2).unwrap());
        store.write(&next, Some(first.stamp)).await.unwrap();
        assert!(matches!(store.write(&next, Some(first.stamp)).await, Err(RecordError::Conflict { .. })));
        assert_eq!(store.read().await.unwrap().unwrap().record, next);
        assert_eq!(MapsStore::new(&*elastic, "other", SOON).read().await.unwrap(), None);
    }
}
