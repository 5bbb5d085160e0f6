//! The cover against Elasticsearch's own geometry: everything it finds within a circle, a box or a polygon, in any index, is
//! in an index of the cover.

use std::collections::BTreeSet;
use std::path::Path;

use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::geoshard::cell::leaf;
use geofold::geoshard::cover::Shape;
use geofold::geoshard::describe::covered;
use geofold::geoshard::{GeoshardMap, LiveMaps};
use s2::cellid::CellID;
use serde_json::{Value, json};

use crate::reference::{away, below, centre, circle, haversine, one_of, point, power, sign, stored, turned};
use crate::support::{Random, TIMEOUT, World, WorldOptions, seed, text};

/// Documents gather around places where projections go wrong, at all distances from centimetres to a thousand kilometres.
pub fn places(random: &mut Random) -> Vec<GeoPoint> {
    (0..150)
        .flat_map(|_| {
            let middle = centre(random);
            (0..20)
                .map(|_| {
                    let distance = power(random, -2.0, 6.0);
                    away(random, middle, distance)
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Twelve geoshards of many ranges, which begin at the documents' leaf cells and at the cells around those.
pub fn map_through(random: &mut Random, places: &[GeoPoint]) -> GeoshardMap {
    let mut cuts = BTreeSet::new();
    for _ in 0..1500 {
        let cell = CellID(leaf(places[below(random, places.len())]));
        let cell = if random.below(2) == 0 { cell } else { cell.parent(random.below(31)) };
        cuts.extend([cell.range_min().0, cell.range_max().0 + 2]);
    }
    let starts = std::iter::once(0).chain(cuts.into_iter().filter(|cut| (3..6 << 61).contains(cut)));
    let mut shard = || ShardId::new(&format!("s{:02}", random.below(12))).unwrap();
    GeoshardMap::new(1, "through the documents", starts.map(|start| (start, shard())).collect()).unwrap()
}

/// A shape about a document, often with one of its neighbours exactly on the rim, and the query for it.
fn some_shape(random: &mut Random, places: &[GeoPoint]) -> (Shape, Value) {
    let cluster = 20 * below(random, places.len() / 20);
    let [place, other] = [(); 2].map(|()| places[cluster + below(random, 20)]);
    let (lat, lon) = stored(other);
    match random.below(4) {
        0 | 1 => {
            let is_exact = random.below(2) == 0;
            let distance = power(random, -2.0, if is_exact { 4.0 } else { 5.5 });
            let middle = away(random, if is_exact { other } else { place }, distance);
            let metres = match is_exact {
                // A hair more: the distance is rounded too.
                true => haversine((middle.lat(), middle.lon()), (lat, lon)) + 1e-6,
                false => power(random, -1.0, 7.2),
            };
            let query = json!({"distance": format!("{metres}m"), "location": {"lat": middle.lat(), "lon": middle.lon()}});
            (circle(middle, metres), json!({"geo_distance": query}))
        }
        2 => {
            // A side or two at another document's stored coordinates.
            let (high, wide) = (power(random, -6.0, 1.8), power(random, -6.0, 2.0));
            let top = point(place.lat() + high, 0.0).lat();
            let top = if lat > place.lat() { one_of(random, &[top, lat]) } else { top };
            let bottom = point(place.lat() - high, 0.0).lat();
            let left = one_of(random, &[turned(place.lon() - wide), lon]);
            let right = turned(place.lon() + wide);
            let query = json!({"location": {"top": top, "left": left, "bottom": bottom, "right": right}});
            (Shape::bounding_box(top, left, bottom, right).unwrap(), json!({"geo_bounding_box": query}))
        }
        _ => {
            let size = power(random, -6.0, 1.5);
            let lat = place.lat().clamp(-90.0 + size, 90.0 - size);
            // Convex, or Elasticsearch might refuse it; not over the antimeridian, where it would have to be cut.
            let lon = place.lon().clamp(-180.0 + size, 180.0 - size);
            let turn = std::f64::consts::PI * sign(random);
            let vertex = |n: u32| {
                let angle = turn + f64::from(n) * std::f64::consts::TAU / 5.0;
                (lat + size * angle.sin(), lon + size * angle.cos())
            };
            let vertices: Vec<(f64, f64)> = (0..5).map(vertex).collect();
            let ring: Vec<[f64; 2]> =
                vertices.iter().chain(&vertices[..1]).map(|&(lat, lon)| [lon, lat]).collect();
            let shape = json!({"type": "Polygon", "coordinates": [ring]});
            let query = json!({"geo_shape": {"location": {"shape": shape, "relation": "intersects"}}});
            (Shape::polygon(vertices).unwrap(), query)
        }
    }
}

#[test]
fn no_hit_is_outside_of_the_cover_and_a_search_finds_all_of_them() {
    let mut random = Random::new(seed("no_hit_is_outside_of_the_cover"));
    let places = places(&mut random);
    let map = map_through(&mut random, &places);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("map.json");
    std::fs::write(&file, map.to_json()).unwrap();
    let world = World::new(WorldOptions {
        // A search may take long on a busy machine.
        config: vec![("geoshards", format!("map = {file:?}")), ("route", "timeout = \"60s\"".to_owned())],
        ..WorldOptions::default()
    });
    send_all(&world, folder.path(), &places);

    let maps = LiveMaps::One(map.into());
    let all = format!("/{}-s*/_search", world.name);
    let hits = |query: &Value| {
        let body = json!({"query": query, "size": 10_000, "_source": false, "sort": ["_doc"]});
        let answer = world.stack.ask("POST", &all, Some(body));
        assert_eq!(answer["_shards"]["failed"], 0, "{query} {answer}");
        let hits = answer["hits"]["hits"].as_array().unwrap().clone();
        hits.into_iter()
            .map(|hit| (hit["_index"].as_str().unwrap().to_owned(), hit["_id"].as_str().unwrap().to_owned()))
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(hits(&json!({"match_all": {}})).len(), places.len());
    let (mut seen, mut left_out) = (0, 0);
    for n in 0..1200 {
        let (shape, query) = some_shape(&mut random, &places);
        let indices = covered(&maps, &world.name, &shape).indices;
        let found = hits(&query);
        for (index, id) in &found {
            let place = places[id.parse::<usize>().unwrap()];
            assert!(
                indices.contains(index),
                "{id} at {place:?} in {index} is a hit of {query}, not in {indices:?}"
            );
        }
        seen += found.len();
        left_out += 12 - indices.len();
        if let (Shape::Circle { centre, radius }, 0) = (&shape, n % 40) {
            let argument = format!("{},{},{}m", centre.lat(), centre.lon(), radius.metres());
            let searched = world.geofold(&["search", "--circle", &argument, "--limit", "5000", "--json"]);
            assert!(searched.status.success(), "{}", text(&searched));
            let answer: Value = serde_json::from_slice(&searched.stdout).unwrap();
            let of = |hit: &Value, key: &str| hit[key].as_str().unwrap().to_owned();
            let same: BTreeSet<_> = answer["hits"]
                .as_array()
                .unwrap()
                .iter()
                .map(|hit| (of(hit, "index"), of(hit, "id")))
                .collect();
            assert_eq!(same, found, "{argument}");
        }
    }
    println!("{seen} hits in 1200 shapes; {left_out} indices did not have to be asked");
    assert!(seen > 5000 && left_out > 1200, "{seen} {left_out}");
}

/// Through topic and worker, as documents come; ids are the places' numbers.
fn send_all(world: &World, folder: &Path, places: &[GeoPoint]) {
    let line = |(id, place): (usize, &GeoPoint)| {
        json!({"id": id, "location": {"lat": place.lat(), "lon": place.lon()}}).to_string() + "\n"
    };
    let file = folder.join("places.ndjson");
    std::fs::write(&file, places.iter().enumerate().map(line).collect::<String>()).unwrap();
    let sent = world.geofold(&["send", file.to_str().unwrap()]);
    assert!(sent.status.success(), "{}", text(&sent));
    let worker = world.worker();
    worker.wait_until_ready();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    world.stack.ask("POST", &format!("/{}-s*/_refresh", world.name), None);
}
