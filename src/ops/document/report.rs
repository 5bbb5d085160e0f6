//! What `geofold where` prints: text through `Display`, JSON through `Serialize`.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::verdict::{DocumentVerdict, PartitionProgress};
use super::{LastOfKey, Lookup};
use crate::base::geo::GeoPoint;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::core::decode::Envelope;
use crate::core::defect::{Fit, Observation, ObservedPlacement};
use crate::geoshard::cities::largest_cities;
use crate::io::elastic::Index;
use crate::ops::records::Dated;

/// The epoch and offset of a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReportedPosition {
    /// Its epoch.
    pub epoch: u32,
    /// The offset of its record.
    pub offset: i64,
}

impl From<Position> for ReportedPosition {
    fn from(position: Position) -> Self {
        Self { epoch: position.epoch().get(), offset: position.offset() }
    }
}

impl fmt::Display for ReportedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.offset)
    }
}

/// The geoshard of the location by one live map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Belongs {
    /// The map's fingerprint.
    pub map: String,
    /// The geoshard.
    pub geoshard: ShardId,
    /// Its largest city, if it has one of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub around: Option<&'static str>,
    /// Whether this map decides.
    pub decides: bool,
}

/// The placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PlacementSeen {
    /// There is none.
    None,
    /// The record in the placements index is not a placement.
    Unreadable,
    /// A placement.
    Placed {
        /// The document's geoshard; `None`: deleted.
        geoshard: Option<ShardId>,
        /// The position at which that was decided.
        version: ReportedPosition,
        /// Other geoshards that may hold an old copy.
        leftovers: Vec<ShardId>,
        /// Elasticsearch refused the document at that position.
        refused: bool,
        /// The partition of the record that decided.
        partition: Option<i32>,
    },
}

/// One copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopySeen {
    /// Its geoshard.
    pub geoshard: ShardId,
    /// The index.
    pub index: String,
    /// Its version.
    pub version: ReportedPosition,
    /// Whether its location belongs there: `here`, `elsewhere` or `no_location`; `wrong_point`: searches find it elsewhere.
    pub belongs: &'static str,
}

/// A record of the topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastRecord {
    /// Its offset.
    pub offset: i64,
    /// What it does: index, delete, patch, touch, refeed, or `event` for a change event.
    pub op: String,
    /// Its time, in milliseconds since 1970.
    pub time_ms: Option<i64>,
    /// Bytes of its value.
    pub value_bytes: Option<usize>,
}

impl LastRecord {
    /// Of a record in the topic.
    pub fn of(dated: &Dated, envelope: Envelope) -> Self {
        let Dated { record, time_ms } = dated;
        let op = match (record.op(), &record.value) {
            (Some(op), _) => String::from_utf8_lossy(op).chars().take(20).collect(),
            (None, None) => "delete".to_owned(),
            (None, Some(_)) if envelope == Envelope::Debezium => "event".to_owned(),
            (None, Some(_)) => "index".to_owned(),
        };
        let value_bytes = record.value.as_ref().map(bytes::Bytes::len);
        Self { offset: record.offset, op, time_ms: *time_ms, value_bytes }
    }

    /// Whether it changes no content: a touch that finds the document in place writes nothing.
    pub fn leaves_content(&self) -> bool {
        self.op == "touch"
    }

    /// Whether no document may be left after it.
    pub fn deletes(&self) -> bool {
        ["delete", "event", "refeed"].contains(&self.op.as_str())
    }
}

/// The topic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TopicSeen {
    /// The partition of the document's records.
    pub partition: Option<i32>,
    /// The group's committed offset.
    pub committed: Option<i64>,
    /// Where the partition ends.
    pub end: Option<i64>,
    /// Offsets read: from the first to the one before the second.
    pub searched: Option<(i64, i64)>,
    /// Whether the search ended before it was sure.
    pub incomplete: bool,
    /// The last record of the key in those offsets.
    pub last: Option<LastRecord>,
    /// Why the topic was not read.
    pub note: Option<String>,
}

impl TopicSeen {
    pub(super) fn of(partition: i32, progress: PartitionProgress, found: &LastOfKey) -> Self {
        Self {
            partition: Some(partition),
            committed: progress.committed,
            end: progress.end,
            searched: Some((found.searched.start, found.searched.end)),
            incomplete: !found.is_complete,
            last: None,
            note: None,
        }
    }
}

/// A location for JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReportedPoint {
    lat: f64,
    lon: f64,
}

/// Everything about one document.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DocumentReport {
    /// Its id.
    pub id: String,
    /// The location of its newest copy.
    pub location: Option<ReportedPoint>,
    /// Where that belongs.
    pub belongs: Vec<Belongs>,
    /// Its placement.
    pub placement: PlacementSeen,
    /// Its copies.
    pub copies: Vec<CopySeen>,
    /// Geoshards that were asked.
    pub geoshards_asked: usize,
    /// Its records.
    pub topic: TopicSeen,
    /// The judgement.
    pub verdict: DocumentVerdict,
    /// The judgement in a sentence.
    pub sentence: String,
}

impl DocumentReport {
    pub(super) fn new(
        lookup: &Lookup<'_>,
        id: &DocId,
        stored: Observation,
        location: Option<GeoPoint>,
        topic: TopicSeen,
        verdict: DocumentVerdict,
    ) -> Self {
        let live = lookup.maps.live();
        let deciding = lookup.maps.deciding().fingerprint();
        let belongs = location.map_or_else(Vec::new, |at| {
            let one = |map: &std::sync::Arc<crate::geoshard::GeoshardMap>| {
                let fingerprint = map.fingerprint();
                let decides = fingerprint == deciding;
                let around = largest_cities(map)[map.locate_index(at)];
                Belongs { map: fingerprint, geoshard: map.locate(at).clone(), around, decides }
            };
            live.iter().map(one).collect()
        });
        let placement = match stored.placed {
            ObservedPlacement::Nowhere => PlacementSeen::None,
            ObservedPlacement::Unreadable => PlacementSeen::Unreadable,
            ObservedPlacement::At(placement) => PlacementSeen::Placed {
                version: placement.pos.into(),
                leftovers: placement.leftovers.to_vec(),
                refused: placement.refused,
                partition: placement.partition,
                geoshard: placement.shard,
            },
        };
        let copy = |(shard, copy): (ShardId, crate::core::defect::ObservedCopy)| CopySeen {
            index: Index::Geoshard(shard.clone()).name(&lookup.config.elasticsearch.prefix),
            geoshard: shard,
            version: copy.version.into(),
            belongs: match copy.fit {
                Fit::Here => "here",
                Fit::Elsewhere => "elsewhere",
                Fit::NoLocation => "no_location",
                Fit::WrongPoint => "wrong_point",
            },
        };
        let shards: std::collections::BTreeSet<&ShardId> = live.iter().flat_map(|map| map.shards()).collect();
        Self {
            id: id.to_string(),
            location: location.map(|at| ReportedPoint { lat: at.lat(), lon: at.lon() }),
            belongs,
            placement,
            copies: stored.copies.into_iter().map(copy).collect(),
            geoshards_asked: shards.len(),
            topic,
            sentence: verdict.to_string(),
            verdict,
        }
    }
}

impl fmt::Display for DocumentReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.id)?;
        match self.location {
            None => writeln!(f, "  location   not known: no copy with a location")?,
            Some(ReportedPoint { lat, lon }) => writeln!(f, "  location   {lat}, {lon}")?,
        }
        for Belongs { map, geoshard, around, decides } in &self.belongs {
            let role = if *decides || self.belongs.len() == 1 { "" } else { ", does not decide" };
            let around = around.map_or_else(String::new, |city| format!(", around {city}"));
            writeln!(f, "  belongs    {geoshard}{around} (map {map}{role})")?;
        }
        writeln!(f, "  placement  {}", self.placement)?;
        if self.copies.is_empty() {
            writeln!(f, "  copies     none in {} geoshards", self.geoshards_asked)?;
        }
        for CopySeen { index, version, belongs, .. } in &self.copies {
            let misplaced = match *belongs {
                "here" => "",
                "elsewhere" => ", its location belongs elsewhere",
                "wrong_point" => ", without the point of its location",
                _ => ", without a location",
            };
            writeln!(f, "  copy       {index}, version {version}{misplaced}")?;
        }
        writeln!(f, "  topic      {}", self.topic)?;
        write!(f, "{}", self.sentence)
    }
}

impl fmt::Display for PlacementSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Placed { geoshard, version, leftovers, refused, partition } = self else {
            return f.write_str(if *self == Self::None { "none" } else { "unreadable" });
        };
        match geoshard {
            Some(geoshard) => write!(f, "{geoshard}, version {version}")?,
            None => write!(f, "deleted, version {version}")?,
        }
        if let Some(partition) = partition {
            write!(f, ", decided by partition {partition}")?;
        }
        if *refused {
            f.write_str(", refused by Elasticsearch")?;
        }
        if !leftovers.is_empty() {
            let names: Vec<&str> = leftovers.iter().map(ShardId::as_str).collect();
            write!(f, ", an old copy may be in {}", names.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for TopicSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(note), None) = (&self.note, self.searched) {
            return f.write_str(note);
        }
        let (Some(partition), Some((from, to))) = (self.partition, self.searched) else {
            return f.write_str("not read");
        };
        write!(f, "partition {partition}, ")?;
        match &self.last {
            Some(LastRecord { offset, op, time_ms, .. }) => {
                write!(f, "last record {op} at offset {offset}")?;
                if let Some(time) = time_ms.and_then(|time| u64::try_from(time).ok()) {
                    write!(
                        f,
                        " of {}",
                        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(time))
                    )?;
                }
            }
            None if self.incomplete => write!(
                f,
                "no record of this key found in offsets {from} to {to}: the search ended there (--max-records, --max-time)"
            )?,
            None => write!(f, "no newer record of this key in offsets {from} to {to}")?,
        }
        match self.committed {
            Some(committed) => write!(f, "; committed {committed}")?,
            None => f.write_str("; nothing committed")?,
        }
        if let Some(end) = self.end {
            write!(f, ", end {end}")?;
        }
        Ok(())
    }
}
