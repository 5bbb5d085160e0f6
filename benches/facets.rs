//! How long it takes to find what one document contributes to the counts, beside finding its location, and what an increment
//! costs: `cargo bench --bench facets`.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails is one that does not run")]

use std::sync::Arc;
use std::time::Duration;

use divan::Bencher;
use divan::counter::BytesCount;
use geofold::base::clock::Instant;
use geofold::base::ids::ShardId;
use geofold::base::position::{Epoch, Position};
use geofold::core::counting::facets::{FacetLimits, FacetRules, Facets};
use geofold::core::counting::increment::CountChange;
use geofold::core::decode::LocationPath;
use geofold::worker::increments::emitter::{Emitter, IncrementSource, Names};

fn main() {
    divan::main();
}

/// About `bytes` of it are text that nothing is counted of.
fn document(n: usize, bytes: usize) -> Vec<u8> {
    let words = "lorem ipsum dolor sit amet, \\\"quoted\\\" ".repeat(bytes / 38 + 1);
    let tags: Vec<String> = (0..5).map(|tag| format!("\"tag {}\"", (n * 7 + tag) % 50)).collect();
    format!(
        r#"{{"name":"person {n}","about":"{words}","profile":{{"gender":"f","age":{},"links":[{{"to":1}},{{"to":2}}]}},"location":{{"lat":48.1,"lon":11.5}},"tags":[{}]}}"#,
        n % 90,
        tags.join(",")
    )
    .into_bytes()
}

fn rules() -> FacetRules {
    let facets = [("tags", "tags"), ("gender", "profile.gender"), ("age", "profile.age")];
    FacetRules::new(true, facets, FacetLimits { max_value_bytes: 256, max_values: 100 })
}

#[divan::bench(args = [200, 2_000, 20_000])]
fn facets_of_a_document(bencher: Bencher<'_, '_>, bytes: usize) {
    let (rules, shard, document) = (rules(), ShardId::new("eu").unwrap(), document(1, bytes));
    bencher.counter(BytesCount::new(document.len())).bench_local(|| rules.facets(&document, &shard));
}

/// To compare with: each document is looked at once for its location and its syntax anyway.
#[divan::bench(args = [200, 2_000, 20_000])]
fn location_of_a_document(bencher: Bencher<'_, '_>, bytes: usize) {
    let (path, document) = (LocationPath::default(), document(1, bytes));
    bencher.counter(BytesCount::new(document.len())).bench_local(|| path.locate(&document).unwrap());
}

/// A thousand documents change: from their facets to the record's bytes.
#[divan::bench]
fn an_increment_of_1000_edges(bencher: Bencher<'_, '_>) {
    let (rules, shard) = (rules(), ShardId::new("eu").unwrap());
    let facets: Vec<Facets> = (0..1001).map(|n| rules.facets(&document(n, 200), &shard)).collect();
    let (start, names) = (Instant::from_start(Duration::ZERO), Arc::new(Names::new()));
    let source = IncrementSource { topic: "documents".into(), partition: 0, epoch: Epoch::default() };
    bencher.bench_local(|| {
        let mut emitter = Emitter::new(source.clone(), names.clone(), Duration::from_secs(1), 0, start);
        let edges = (0..1000).map(|n| CountChange {
            pos: Position::new(Epoch::default(), i64::try_from(n).unwrap()).unwrap(),
            before: facets[n].clone(),
            after: facets[n + 1].clone(),
        });
        emitter.put(edges, start);
        emitter.next(1000, start)
    });
}
