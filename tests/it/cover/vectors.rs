//! `tests/vectors/cover.json`: cases for who makes the cover in another language. Here they are held against the cover,
//! against points, against distances to cells, and against `docs/cover.py`.
//!
//! A change of the rule needs new ones: `cargo test --test it cover:: -- --ignored write_the_vectors`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::base::random::Random;
use geofold::geoshard::cell::leaf;
use geofold::geoshard::cover::{Shape, cover};
use geofold::geoshard::{GeoshardMap, MapError};
use s2::cellid::CellID;
use serde::Deserialize;
use serde_json::{Value, json};

use super::reference::{
    assert_covered, away, below, centre, circle, distance_to_shard, haversine, point, polygon_has, power,
    sign, stored, turned, within_box,
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/cover.json");
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cover.py");

#[derive(Deserialize)]
struct Vectors {
    maps: BTreeMap<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    map: String,
    #[serde(flatten)]
    shape: Form,
    shards: Vec<ShardId>,
}

#[derive(Deserialize, Clone)]
#[serde(rename_all = "snake_case")]
enum Form {
    Circle { lat: f64, lon: f64, metres: f64 },
    Box { top: f64, left: f64, bottom: f64, right: f64 },
    Polygon(Vec<(f64, f64)>),
}

impl Form {
    fn shape(&self) -> Shape {
        match self.clone() {
            Form::Circle { lat, lon, metres } => circle(point(lat, lon), metres),
            Form::Box { top, left, bottom, right } => Shape::bounding_box(top, left, bottom, right).unwrap(),
            Form::Polygon(vertices) => Shape::polygon(vertices).unwrap(),
        }
    }

    /// The shape, a little smaller, larger, or beside: another implementation's rounding must not matter.
    fn variations(&self) -> Vec<Shape> {
        const BIT: f64 = 3e-7;
        match self.clone() {
            Form::Circle { lat, lon, metres } => {
                [metres - 0.5, metres + 0.5].map(|metres| circle(point(lat, lon), metres.max(0.0))).into()
            }
            Form::Box { top, left, bottom, right } => {
                let moved = |d: f64| {
                    let lat = |lat: f64| lat.clamp(-90.0, 90.0);
                    let lon = |lon: f64| if lon.abs() == 180.0 { lon } else { turned(lon) };
                    Shape::bounding_box(lat(top + d), lon(left - d), lat(bottom - d), lon(right + d)).ok()
                };
                [moved(BIT), moved(-BIT)].into_iter().flatten().collect()
            }
            Form::Polygon(vertices) => {
                let moved = |d_lat: f64, d_lon: f64| {
                    let vertex = |&(lat, lon): &(f64, f64)| ((lat + d_lat).clamp(-90.0, 90.0), lon + d_lon);
                    Shape::polygon(vertices.iter().map(vertex).collect()).unwrap()
                };
                vec![moved(BIT, 0.0), moved(-BIT, 0.0), moved(0.0, BIT), moved(0.0, -BIT)]
            }
        }
    }

    fn to_json(&self) -> (&'static str, Value) {
        match self {
            Form::Circle { lat, lon, metres } => {
                ("circle", json!({"lat": lat, "lon": lon, "metres": metres}))
            }
            Form::Box { top, left, bottom, right } => {
                ("box", json!({"top": top, "left": left, "bottom": bottom, "right": right}))
            }
            Form::Polygon(vertices) => ("polygon", json!(vertices)),
        }
    }

    /// A point that Elasticsearch would find within it, if chance gives one.
    fn hit(&self, random: &mut Random) -> Option<GeoPoint> {
        let between = |random: &mut Random, from: f64, to: f64| from + (to - from) * random.share();
        match self {
            Form::Circle { lat, lon, metres } => {
                let distance = metres * random.share().sqrt();
                let at = away(random, point(*lat, *lon), distance);
                (haversine((*lat, *lon), stored(at)) <= *metres).then_some(at)
            }
            Form::Box { top, left, bottom, right } => {
                let width = if left > right { right + 360.0 - left } else { right - left };
                let at = point(between(random, *bottom, *top), turned(between(random, *left, left + width)));
                within_box(at, [*top, *left, *bottom, *right]).then_some(at)
            }
            Form::Polygon(vertices) => {
                let pick = |random: &mut Random| vertices[below(random, vertices.len())];
                let [a, b, c] = [pick(random), pick(random), pick(random)];
                let (p, q) = (random.share(), random.share());
                let mix = |a: f64, b: f64, c: f64| (a + p * (b - a)) * (1.0 - q) + q * c;
                let at = point(mix(a.0, b.0, c.0), turned(mix(a.1, b.1, c.1)));
                let (lat, lon) = stored(at);
                [0.0, 360.0, -360.0].iter().any(|turn| polygon_has(vertices, lat, lon + turn)).then_some(at)
            }
        }
    }
}

fn read() -> (BTreeMap<String, GeoshardMap>, Vec<Case>) {
    let vectors: Vectors = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    let map = |(name, map): (String, Value)| Ok((name, GeoshardMap::from_json(&map.to_string())?));
    (vectors.maps.into_iter().map(map).collect::<Result<_, MapError>>().unwrap(), vectors.cases)
}

#[test]
fn each_vector_is_the_cover_and_no_hit_is_outside_of_it() {
    let (maps, cases) = read();
    let mut random = Random::new(5);
    assert_eq!(maps["sample"], GeoshardMap::load(Path::new(SAMPLE)).unwrap());
    let mut hits = 0;
    for case in &cases {
        let (map, shape) = (&maps[&case.map], case.shape.shape());
        assert_eq!(cover(map, &shape), case.shards, "{shape:?}");
        for at in (0..500).filter_map(|_| case.shape.hit(&mut random)) {
            hits += 1;
            assert_covered(map, &case.shards, at, &shape);
        }
        if let Form::Circle { lat, lon, metres } = case.shape
            && metres < 19e6
        {
            for shard in map.shards() {
                let is_near = distance_to_shard(map, shard, point(lat, lon)) <= metres + 1.0;
                assert_eq!(case.shards.contains(shard), is_near, "{shard} {shape:?}");
            }
        }
    }
    assert!(cases.len() > 150 && hits > 30_000, "{} cases, {hits} hits", cases.len());
}

#[test]
fn the_rule_in_python_makes_the_same_covers() {
    match Command::new("python3").args([SCRIPT, "--check", FILE]).output() {
        Err(error) => println!("skipped: python3 cannot be run: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.contains(" 0 wrong"), "{said}");
        }
    }
}

/// Geoshards of several ranges each, large and tiny, with many borders around the places where projections go wrong.
fn shreds(random: &mut Random) -> GeoshardMap {
    let mut cuts = BTreeSet::from([leaf(point(10.0, 180.0)), leaf(point(10.0, -180.0))]);
    for _ in 0..120 {
        let cell = CellID(leaf(centre(random))).parent(3 + random.below(28));
        cuts.extend([cell.range_min().0, cell.range_max().0 + 2]);
    }
    let starts = std::iter::once(0).chain(cuts.into_iter().filter(|cut| (3..6 << 61).contains(cut)));
    let shard = |n: u64| ShardId::new(&format!("s{n:02}")).unwrap();
    let ranges: Vec<_> = starts.map(|start| (start, shard(random.below(40)))).collect();
    GeoshardMap::new(2, "shreds", ranges).unwrap()
}

fn rounded(x: f64) -> f64 {
    (x * 1e5).round() / 1e5
}

fn forms(random: &mut Random) -> Vec<Form> {
    let mut forms = Vec::new();
    let corner = 35.26439;
    let special = [
        (90.0, 0.0),
        (-90.0, 77.0),
        (10.0, 180.0),
        (10.0, -180.0),
        (0.0, 0.0),
        (corner, 45.0),
        (-corner, -135.0),
        (0.0, 45.0),
    ];
    for (lat, lon) in special {
        for metres in [0.0, 1.0, 40_233.6, 3_000_000.0, 15_000_000.0] {
            forms.push(Form::Circle { lat, lon, metres });
        }
        let (top, bottom) = (rounded((lat + 2.0).min(90.0)), rounded((lat - 2.0).max(-90.0)));
        forms.push(Form::Box { top, left: turned(lon - 2.0), bottom, right: turned(lon + 2.0) });
        forms.push(Form::Polygon(vec![(bottom, lon - 3.0), (bottom, lon + 3.0), (top, lon)]));
    }
    forms.push(Form::Circle { lat: 1.0, lon: 2.0, metres: 20_015_200.0 });
    forms.push(Form::Box { top: 90.0, left: -180.0, bottom: -90.0, right: 180.0 });
    forms.push(Form::Box { top: 90.0, left: -180.0, bottom: 89.9, right: 180.0 });
    for _ in 0..40 {
        let at = centre(random);
        let (lat, lon) = (rounded(at.lat()), rounded(at.lon()));
        forms.push(Form::Circle { lat, lon, metres: rounded(power(random, 2.0, 7.0)) });
        let (high, wide) = (power(random, -2.0, 1.6), power(random, -2.0, 2.0));
        forms.push(Form::Box {
            top: rounded((lat + high).min(90.0)),
            left: rounded(turned(lon - wide)),
            bottom: rounded((lat - high).max(-90.0)),
            right: rounded(turned(lon + wide)),
        });
        let vertex = |random: &mut Random| {
            (
                rounded((lat + high * sign(random)).clamp(-90.0, 90.0)),
                rounded(lon + 0.8 * wide * sign(random)),
            )
        };
        forms.push(Form::Polygon((0..3 + random.below(5)).map(|_| vertex(random)).collect()));
    }
    forms
}

#[test]
#[ignore = "it writes the file"]
fn write_the_vectors() {
    let mut random = Random::new(2026);
    let faces = (0..6_u64).map(|face| {
        let start = if face == 0 { 0 } else { (face << 61) | 1 };
        (start, ShardId::new(&format!("face{face}")).unwrap())
    });
    let maps = [
        ("faces", GeoshardMap::new(1, "faces", faces.collect()).unwrap()),
        ("sample", GeoshardMap::load(Path::new(SAMPLE)).unwrap()),
        ("shreds", shreds(&mut random)),
    ];
    let mut cases = Vec::new();
    for form in forms(&mut random) {
        for (name, map) in &maps {
            let found = cover(map, &form.shape());
            // One that depends on the last digits is no fair case.
            if form.variations().iter().any(|shape| cover(map, shape) != found) {
                continue;
            }
            let (kind, shape) = form.to_json();
            cases.push(json!({"map": name, kind: shape, "shards": found}).to_string());
        }
    }
    let about = "see docs/cover.md; maps are geoshard maps, a cover may name more geoshards, never fewer";
    let mut json = format!("{{\n\"about\": {},\n\"maps\": {{\n", json!(about));
    for (n, (name, map)) in maps.iter().enumerate() {
        let comma = if n + 1 < maps.len() { "," } else { "" };
        writeln!(json, "{}: {}{comma}", json!(name), map.to_json().trim_end()).unwrap();
    }
    write!(json, "}},\n\"cases\": [\n{}\n]\n}}\n", cases.join(",\n")).unwrap();
    std::fs::write(FILE, json).unwrap();
    println!("{} cases", cases.len());
}
