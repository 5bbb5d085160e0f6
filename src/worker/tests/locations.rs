//! Locations as databases have them, and the `geo_point` field that is added for searches.

use super::*;
use crate::support::config::{Envelope, LatLonFields, LocationFields};

const PAIR: [&str; 2] = ["place.lat", "place.lon"];

impl World {
    fn write(&mut self, id: &str, value: Option<&str>, op: Option<&str>) {
        let mut record = BaseRecord::to(TOPIC).key(id).partition(0);
        record.payload = value;
        if op.is_some() {
            let header = Header { key: crate::base::headers::OP_HEADER, value: op };
            record = record.headers(OwnedHeaders::new().insert(header));
        }
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.flush(PATIENCE).unwrap();
        *self.ends.entry(0).or_default() += 1;
    }

    /// Waits until all is committed; the only copy of a document.
    async fn copy(&self, id: &str) -> (String, String) {
        until("all is committed", || self.committed() == self.ends).await;
        let mut copies = self.elastic.copies(id);
        assert_eq!(copies.len(), 1, "{copies:?}");
        let (shard, document) = copies.remove(0);
        (shard.to_string(), document)
    }

    fn config_of_pairs(&self) -> Config {
        let mut config = self.config();
        let [lat, lon] = PAIR.map(str::to_owned);
        config.documents.location = LocationFields::Pair(LatLonFields { lat, lon });
        config.documents.point = Some("point".to_owned());
        config
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_fields_become_a_point_and_move_the_document() {
    let mut world = World::new();
    let worker = world.start(&world.config_of_pairs());
    world.write("a", Some(r#"{"place":{"lat":52.5,"lon":"13.4"},"n":1.10}"#), None);
    let (north, document) = world.copy("a").await;
    assert_eq!(document, r#"{"place":{"lat":52.5,"lon":"13.4"},"n":1.10,"point":[13.4,52.5]}"#);

    // One field of the two.
    world.write("a", Some(r#"{"place":{"lat":-52.5}}"#), Some("patch"));
    let (south, document) = world.copy("a").await;
    assert_eq!(document, r#"{"place":{"lat":-52.5,"lon":"13.4"},"n":1.10,"point":[13.4,-52.5]}"#);
    assert_ne!(north, south);

    // Neither a patch nor a document can put the point elsewhere.
    world.write("a", Some(r#"{"point":[0,0],"n":2}"#), Some("patch"));
    let (shard, document) = world.copy("a").await;
    assert_eq!((shard, document.ends_with(r#""point":[13.4,-52.5]}"#)), (south, true), "{document}");
    world.write("a", Some(r#"{"point":null,"place":{"lat":52.5,"lon":13.4}}"#), None);
    let (shard, document) = world.copy("a").await;
    assert_eq!(
        (shard, document.as_str()),
        (north, r#"{"point":[13.4,52.5],"place":{"lat":52.5,"lon":13.4}}"#)
    );

    world.write("a", None, None);
    until("all is committed", || world.committed() == world.ends).await;
    assert_eq!(world.elastic.copies("a"), []);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn geometries_of_debezium_and_postgis_become_points() {
    let mut world = World::new();
    let mut config = world.config();
    config.kafka.envelope = Envelope::Debezium;
    config.documents.location = "geom".into();
    config.documents.point = Some("point".to_owned());
    let worker = world.start(&config);
    let event = |geometry: &str| format!(r#"{{"op":"u","after":{{"geom":{geometry}}}}}"#);
    let mut shards = Vec::new();
    for (geometry, point) in [
        (r#"{"wkb":"AQEAACDmEAAAzczMzMzMKkAAAAAAAEBKQA==","srid":4326}"#, "[13.4,52.5]"),
        (r#""0101000020E6100000CDCCCCCCCCCC2A400000000000404A40""#, "[13.4,52.5]"),
        (r#""POINT (13.4 -52.5)""#, "[13.4,-52.5]"),
        (r#"{"type":"Point","coordinates":[13.4,52.5]}"#, "[13.4,52.5]"),
    ] {
        world.write("a", Some(&event(geometry)), None);
        let (shard, document) = world.copy("a").await;
        assert_eq!(document, format!(r#"{{"geom":{geometry},"point":{point}}}"#));
        shards.push(shard);
    }
    assert!(shards[0] == shards[1] && shards[0] != shards[2] && shards[0] == shards[3], "{shards:?}");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_touch_adds_the_point_to_a_document_from_before() {
    let mut world = World::new();
    let mut config = world.config();
    config.documents.location = "geom".into();
    world.write("a", Some(r#"{"geom":"POINT (13.4 52.5)"}"#), None);
    // Searches find this one in the south; its place is by its location.
    world.write("b", Some(r#"{"point":{"lat":-52.5,"lon":13.4},"geom":"POINT (13.4 52.5)"}"#), None);
    let worker = world.start(&config);
    let (shard, document) = world.copy("a").await;
    assert_eq!(document, r#"{"geom":"POINT (13.4 52.5)"}"#);
    worker.stop().await.unwrap();

    config.documents.point = Some("point".to_owned());
    let worker = world.start(&config);
    world.write("a", None, Some("touch"));
    world.write("b", None, Some("touch"));
    let touched = world.copy("a").await;
    assert_eq!(touched, (shard.clone(), r#"{"geom":"POINT (13.4 52.5)","point":[13.4,52.5]}"#.to_owned()));
    let touched = world.copy("b").await;
    assert_eq!(touched, (shard, r#"{"point":[13.4,52.5],"geom":"POINT (13.4 52.5)"}"#.to_owned()));
    worker.stop().await.unwrap();
}
