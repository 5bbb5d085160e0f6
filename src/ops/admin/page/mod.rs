//! The status pages, of a worker and of its group: each is one HTML page that needs nothing else, not even JavaScript.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what pages share; the worker's page, of a [`WorkerStatus`] |
//! | `format.rs` | numbers and text, escaped |
//! | `load.rs` | the section of the load |
//! | `group.rs` | the group's page, of [`GroupFigures`](super::group::GroupFigures) |
//! | `page.css`, `page.js` | put into each page as they are |
//! | `worker.js`, `group.js` | what each page does beside that |
//!
//! Every figure is in the page as it is sent. `page.js` fetches the page's JSON from time to time and puts new figures
//! where the page says they belong: `data-v` is a path into the JSON, `data-f` names the format, and a table with
//! `data-rows` gets a row for each element, with a cell for each of its heads.

mod format;
mod group;
mod load;

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use self::format::{Text, bytes, is_web, known, millis, number, rate, seconds, short};
pub use self::group::render_group;
use super::status::{Count, PageCounters, PartitionRow, Requests, ShardDocuments, WorkerStatus};
use crate::geoshard::picture::{LAND, MapDrawing, MapLabel};

const STYLE: &str = include_str!("page.css");
const SHARED_SCRIPT: &str = include_str!("page.js");
const SCRIPT: &str = include_str!("worker.js");

/// Allows the page only to render and to query this server.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
     script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The worker's page.
pub fn render(status: &WorkerStatus, drawing: &MapDrawing) -> String {
    let word = if status.ready { "ready" } else { "not ready" };
    let title = format!("{word} · geofold · {}", Text(&status.worker.topic));
    let body = format!(
        "{header}<main>\n{tiles}{map}{load}{partitions}\
         <div class=\"pair\">\n{elasticsearch}{records}</div>\n{recent}{limits}</main>\n",
        header = header(status),
        tiles = tiles(status),
        map = map_section(status, drawing),
        load = load::section(&status.load),
        partitions = partitions(&status.partitions),
        elasticsearch = elasticsearch(status),
        records = records(status),
        recent = recent(status),
        limits = limits(status),
    );
    document(&title, &body, SCRIPT)
}

/// A page of this title and body, both HTML.
fn document(title: &str, body: &str, script: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}\
         {FOOTER}<script>\n{SHARED_SCRIPT}{script}</script>\n</body>\n</html>\n"
    )
}

const FOOTER: &str = "<footer>\
    <a href=\"/\">this worker</a> <a href=\"/group\">the group</a> <a href=\"/status.json\">/status.json</a> \
    <a href=\"/group.json\">/group.json</a> <a href=\"/metrics\">/metrics</a> \
    <a href=\"/readyz\">/readyz</a> <a href=\"/healthz\">/healthz</a> \
    <a href=\"/shards/cover?polygon=0,0;0,1;1,1\">/shards/cover</a></footer>\n";

fn header(status: &WorkerStatus) -> String {
    let worker = &status.worker;
    let (state, word) = match (status.silent_seconds, status.ready) {
        (Some(_), _) => ("stopped", "not alive"),
        (None, true) => ("running", "ready"),
        (None, false) => ("paused", "not ready"),
    };
    let reasons: String = status
        .reasons
        .iter()
        .map(|reason| format!("<li><b>{}</b> {}</li>", Text(&reason.part), Text(&reason.reason)))
        .collect();
    let silence = status.silent_seconds.map_or_else(String::new, |silence| {
        format!("<li><b>poll thread</b> has not polled for {silence} s</li>")
    });
    format!(
        "<header>\n<h1>geofold</h1>\n<p id=\"state\" data-state=\"{state}\">{word}</p>\n\
         <p class=\"where\">topic <b>{topic}</b> to <b>{prefix}-*</b> in group <a href=\"/group\"><b>{group}</b></a></p>\n\
         <p class=\"since\">version {version}, up <span data-v=\"uptime_seconds\" data-f=\"seconds\">{up}</span>\
         <span id=\"live\" role=\"status\"></span></p>\n\
         <ul id=\"reasons\" aria-label=\"Why the worker is not ready\">{silence}{reasons}</ul>\n</header>\n",
        topic = Text(&worker.topic),
        prefix = Text(&worker.prefix),
        group = Text(&worker.group),
        version = Text(worker.version),
        up = seconds(status.uptime_seconds),
    )
}

fn tiles(status: &WorkerStatus) -> String {
    let PageCounters { records, indexed, folded, moves, retries, dead_letters } = status.counters;
    let counters = [
        ("Records in", "records", records),
        ("Indexed", "indexed", indexed),
        ("Folded", "folded", folded),
        ("Moves", "moves", moves),
        ("Retries", "retries", retries),
        ("Dead letters", "dead_letters", dead_letters),
    ];
    let mut tiles = String::new();
    for (label, name, count) in counters {
        let average = count as f64 / status.uptime_seconds.max(1.0);
        // Writing to a string cannot fail; the same below.
        let _ = writeln!(
            tiles,
            "<div><dt>{label}</dt><dd class=\"big\"><span data-rate=\"{name}\">{}</span><small>/s</small></dd>\
             <dd><span data-v=\"counters.{name}\" data-f=\"number\">{}</span> in all</dd>{}</div>",
            rate(average),
            number(count),
            spark(&format!("counters.{name}")),
        );
    }
    let memory = &status.memory;
    let _ = write!(
        tiles,
        "<div><dt>Lag</dt><dd class=\"big\" data-v=\"lag\" data-f=\"number\">{}</dd>\
         <dd>not committed</dd>{}</div>\n\
         <div><dt>Oldest dirty</dt><dd class=\"big\" data-v=\"oldest_dirty_seconds\" data-f=\"seconds\">{}</dd>\
         <dd>since it was read</dd>{}</div>\n\
         <div><dt>Held</dt><dd class=\"big\" data-v=\"memory.held_bytes\" data-f=\"bytes\">{}</dd>\
         <dd><meter id=\"held\" aria-label=\"held bytes\" max=\"{max}\" high=\"{high}\" value=\"{held}\">\
         </meter> \
         of <span data-v=\"memory.limit_bytes\" data-f=\"bytes\">{}</span></dd>{}</div>\n",
        number(status.lag),
        spark("lag"),
        seconds(status.oldest_dirty_seconds),
        spark("oldest_dirty_seconds"),
        bytes(memory.held_bytes),
        bytes(memory.limit_bytes),
        spark("memory.held_bytes"),
        max = memory.limit_bytes.max(1),
        high = memory.limit_bytes.max(1) / 10 * 9,
        held = memory.held_bytes,
    );
    format!(
        "<section aria-labelledby=\"now\">\n<h2 id=\"now\">Now \
         <small id=\"window\">rates are averages since the start</small></h2>\n\
         <dl class=\"tiles\">\n{tiles}</dl>\n</section>\n"
    )
}

/// Where `page.js` draws the last minutes.
fn spark(path: &str) -> String {
    format!("<dd class=\"spark\" data-spark=\"{path}\"></dd>")
}

fn map_section(status: &WorkerStatus, drawing: &MapDrawing) -> String {
    let documents = &status.documents;
    let legend: String = documents
        .scale
        .iter()
        .enumerate()
        .map(|(class, least)| {
            format!(
                "<li><i class=\"q{class}\"></i>\
                 <span data-v=\"documents.scale.{class}\" data-f=\"short\">{}</span></li>",
                short(*least)
            )
        })
        .collect();
    let rows = documents
        .shards
        .iter()
        .map(|shard| vec![shard.shard.clone(), shard.around.to_owned(), known(shard.documents, number)]);
    let columns =
        [("Geoshard", "shard", "text"), ("Around", "around", "text"), ("Documents", "documents", "number")];
    format!(
        "<section aria-labelledby=\"globe\">\n<h2 id=\"globe\">Geoshards \
         <small>{name}, version {version}</small></h2>\n\
         <figure>\n{svg}<figcaption>\n<p id=\"documents\">{summary}</p>\n\
         <ul class=\"legend\" aria-label=\"Colours: documents in a geoshard, from\">{legend}\
         <li><i class=\"none\"></i><span>unknown</span></li></ul>\n</figcaption>\n</figure>\n\
         <details><summary>Documents of each geoshard as a table</summary>\n{table}</details>\n</section>\n",
        name = Text(&status.map.name),
        version = status.map.version,
        svg = svg(documents, drawing),
        summary = Text(summary(documents)),
        table = table("documents.shards", "Documents of each geoshard", &columns, rows),
    )
}

/// One-line summary of the map; the same as in `page.js`.
fn summary(documents: &ShardDocuments) -> String {
    let problem = documents.problem.as_ref().map_or_else(String::new, |problem| format!(" · {problem}"));
    let (Some(total), Some(age)) = (documents.total, documents.age_seconds) else {
        return format!("{} geoshards, documents unknown{problem}", documents.shards.len());
    };
    let fullest = documents.fullest.as_ref().map_or_else(String::new, |fullest| {
        format!(" · fullest {}, {:.1} times the mean", fullest.shard, fullest.times_mean)
    });
    let (count, total, age) = (documents.shards.len(), number(total), seconds(age.floor()));
    format!("{count} geoshards, {total} documents{fullest} · counted {age} ago{problem}")
}

fn svg(documents: &ShardDocuments, drawing: &MapDrawing) -> String {
    let mut shapes = String::new();
    for (number, path) in drawing.shards.iter().enumerate() {
        let _ = writeln!(shapes, "<path id=\"g{number}\" d=\"{path}\"/>");
    }
    // The map's unit is a quarter of a degree.
    let mut names = String::new();
    for MapLabel { id, city, at, size, .. } in &drawing.labels {
        let city = city.map_or_else(String::new, |city| {
            format!("<tspan x=\"0\" dy=\"1.1em\" class=\"city\">{}</tspan>", Text(city))
        });
        let _ = writeln!(
            names,
            "<text transform=\"translate({:.1} {:.1})\" font-size=\"{:.1}\"><tspan x=\"0\">{}</tspan>{city}</text>",
            (at.0 + 180.0) * 4.0,
            (90.0 - at.1) * 4.0,
            size * 4.0,
            Text(id)
        );
    }
    let shards = documents.shards.iter().map(|shard| {
        let name = with_city(&shard.shard, shard.around);
        (shard.class, format!("{name}: {} documents", known(shard.documents, number)))
    });
    // The sea is the frame minus the land. The land's unit is a tenth of a degree, the map's a quarter.
    let defined = format!(
        "<defs>\n{shapes}\
         <path id=\"sea\" class=\"sea\" transform=\"scale(.4)\" fill-rule=\"evenodd\" d=\"M0 0h3600v1800h-3600z{LAND}\"/>\n\
         <path id=\"borders\" class=\"borders\" d=\"{}\"/>\n\
         <g id=\"names\" class=\"names\" aria-hidden=\"true\">\n{names}</g>\n</defs>\n",
        drawing.borders
    );
    let description =
        "Each geoshard is coloured by how many documents it holds; the table below has the numbers.";
    globe("map", "Map of the geoshards", description, &defined, shards, "")
}

/// The globe with each geoshard in a colour and with a text of its own. The shapes are defined by the page's first globe.
fn globe(
    id: &str,
    title: &str,
    description: &str,
    defined: &str,
    shards: impl Iterator<Item = (Option<u64>, String)>,
    above: &str,
) -> String {
    let mut uses = String::new();
    for (number, (class, text)) in shards.enumerate() {
        let (class, text) = (class_name(class), Text(text));
        let _ = writeln!(uses, "<use href=\"#g{number}\" class=\"{class}\"><title>{text}</title></use>");
    }
    format!(
        "<svg id=\"{id}\" class=\"globe\" viewBox=\"0 0 1440 720\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n\
         <title id=\"{id}-title\">{title}</title>\n\
         <desc id=\"{id}-desc\">The globe in equirectangular projection. {description}</desc>\n\
         {defined}<g class=\"shards\">\n{uses}</g>\n<use href=\"#sea\"/>\n<use href=\"#borders\"/>\n\
         <use href=\"#names\"/>\n{above}</svg>\n"
    )
}

/// The style of a colour.
fn class_name(class: Option<u64>) -> String {
    class.map_or_else(|| "none".to_owned(), |class| format!("q{class}"))
}

/// A geoshard, with its largest city.
fn with_city(shard: &str, around: &str) -> String {
    match around {
        "" => shard.to_owned(),
        city => format!("{shard}, around {city}"),
    }
}

fn partitions(partitions: &[PartitionRow]) -> String {
    let columns = [
        ("Partition", "partition", "id"),
        ("State", "state", "state"),
        ("Lag", "lag", "number"),
        ("Oldest dirty", "oldest_dirty_seconds", "seconds"),
        ("Watermark", "watermark", "number"),
        ("Committed", "committed", "number"),
        ("In flight", "in_flight", "number"),
        ("Dirty documents", "dirty_documents", "number"),
        ("Dirty bytes", "dirty_bytes", "bytes"),
        ("Parked", "parked", "number"),
    ];
    let rows = partitions.iter().map(|partition| {
        vec![
            partition.partition.to_string(),
            partition.state.as_str().to_owned(),
            known(partition.lag, number),
            seconds(partition.oldest_dirty_seconds),
            known(partition.watermark, number),
            known(partition.committed, number),
            number(partition.in_flight),
            number(partition.dirty_documents),
            bytes(partition.dirty_bytes),
            number(partition.parked),
        ]
    });
    format!(
        "<section aria-labelledby=\"partitions\">\n<h2 id=\"partitions\">Partitions</h2>\n{}</section>\n",
        table("partitions", "The partitions that this worker owns", &columns, rows)
    )
}

fn elasticsearch(status: &WorkerStatus) -> String {
    let elasticsearch = &status.elasticsearch;
    let columns = [
        ("Request", "kind", "text"),
        ("Sent", "sent", "number"),
        ("Failed", "failed", "number"),
        ("Median", "median_seconds", "millis"),
        ("99 %", "p99_seconds", "millis"),
    ];
    let rows = elasticsearch.requests.iter().map(|requests: &Requests| {
        vec![
            requests.kind.to_owned(),
            number(requests.sent),
            number(requests.failed),
            known(requests.median_seconds, millis),
            known(requests.p99_seconds, millis),
        ]
    });
    let retry_columns = [("Retry because of", "name", "text"), ("Operations", "count", "number")];
    let retries = status.retries.iter().map(|Count { name, count }| vec![name.clone(), number(count)]);
    format!(
        "<section aria-labelledby=\"search\">\n<h2 id=\"search\">Elasticsearch \
         <small><span data-v=\"elasticsearch.permits_in_use\" data-f=\"number\">{}</span> of \
         <span data-v=\"elasticsearch.permits\" data-f=\"number\">{}</span> requests under way, \
         <span data-v=\"elasticsearch.waiting\" data-f=\"number\">{}</span> waiting</small></h2>\n{}{}</section>\n",
        number(elasticsearch.permits_in_use),
        number(elasticsearch.permits),
        number(elasticsearch.waiting),
        table("elasticsearch.requests", "Requests and how long they take", &columns, rows),
        table("retries", "Operations sent again", &retry_columns, retries),
    )
}

fn records(status: &WorkerStatus) -> String {
    let outcome_columns = [("Outcome", "name", "word"), ("Records", "count", "number")];
    let outcomes =
        status.outcomes.iter().map(|Count { name, count }| vec![name.replace('_', " "), number(count)]);
    let letter_columns = [("Dead letter because of", "name", "text"), ("Messages", "count", "number")];
    let letters = status.dead_letters.iter().map(|Count { name, count }| vec![name.clone(), number(count)]);
    format!(
        "<section aria-labelledby=\"records\">\n<h2 id=\"records\">Records since the start</h2>\n{}{}</section>\n",
        table("outcomes", "How records ended", &outcome_columns, outcomes),
        table("dead_letters", "Dead letters", &letter_columns, letters),
    )
}

fn limits(status: &WorkerStatus) -> String {
    let columns = [("Key", "key", "text"), ("Value", "value", "text")];
    let rows = status.limits.iter().map(|limit| vec![limit.key.clone(), limit.value.clone()]);
    format!(
        "<section aria-labelledby=\"limits\">\n<h2 id=\"limits\">Limits in force \
         <small>followed without a restart</small></h2>\n{}</section>\n",
        table("limits", "What is followed of the configuration", &columns, rows)
    )
}

fn recent(status: &WorkerStatus) -> String {
    let columns = [
        ("Time", "time_ms", "time"),
        ("Level", "level", "level"),
        ("Times", "times", "number"),
        ("What", "text", "text"),
    ];
    let rows = status.recent.iter().map(|event| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(event.time_ms);
        vec![
            humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', ""),
            event.level.to_owned(),
            number(event.times),
            event.text.clone(),
        ]
    });
    format!(
        "<section aria-labelledby=\"recent\">\n<h2 id=\"recent\">Last warnings and errors \
         <small>UTC; the log has all of it</small></h2>\n{}</section>\n",
        table("recent", "The last warnings and errors, the newest first", &columns, rows)
    )
}

/// A table whose rows `page.js` can rebuild by its headers. Cells are untrusted text.
fn table(
    path: &str,
    caption: &str,
    columns: &[(&str, &str, &str)],
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let heads: String = columns
        .iter()
        .map(|(head, value, format)| {
            format!("<th scope=\"col\" data-v=\"{value}\" data-f=\"{format}\">{head}</th>")
        })
        .collect();
    let mut body = String::new();
    for row in rows {
        body.push_str("<tr>");
        for (cell, (_, _, format)) in row.iter().map(Text).zip(columns) {
            let state = match *format {
                "state" | "level" => format!(" data-state=\"{cell}\""),
                _ => String::new(),
            };
            let content = match *format {
                "link" if is_web(cell.0) => format!("<a href=\"{cell}\">{cell}</a>"),
                _ => cell.to_string(),
            };
            let _ = write!(body, "<td class=\"{format}\"{state}>{content}</td>");
        }
        body.push_str("</tr>\n");
    }
    format!(
        "<div class=\"scroll\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\
         <table data-rows=\"{path}\"><caption>{caption}</caption>\n\
         <thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::watch;

    use super::super::status::{StatusParts, StatusSource, Worker};
    use super::super::{DocumentCounts, LoadSummary, ViewedLoad};
    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::ids::ShardId;
    use crate::geoshard::cities::largest_cities;
    use crate::geoshard::load::{LoadCounter, LoadRecord};
    use crate::geoshard::map::GeoshardMap;
    use crate::support::telemetry::elasticsearch::RequestLabel;
    use crate::support::telemetry::health::Health;
    use crate::support::telemetry::health::tests::HandClock;
    use crate::support::telemetry::metrics::Success;
    use crate::support::telemetry::partition_status::{PartitionStatus, PartitionStatusSender};
    use crate::support::telemetry::{Metrics, OutcomeLabel, Recent};

    /// A worker with the sample map that has done nothing yet.
    pub(in crate::ops::admin) fn sources(clock: Arc<HandClock>) -> (StatusParts, PartitionStatusSender) {
        let metrics = Metrics::new().unwrap();
        let (partition_status, reader) = watch::channel(Vec::new());
        let map = Arc::new(GeoshardMap::load(Path::new("config/map-55.json")).unwrap());
        let parts = StatusParts {
            worker: Worker {
                version: "1.2.3",
                topic: "people<b>".to_owned(),
                group: "geofold".to_owned(),
                prefix: "people".to_owned(),
                name: "geofold on a, process 1".to_owned(),
            },
            clock: clock.clone(),
            health: Health::new(clock.clone(), metrics.clone(), Duration::from_secs(30)),
            metrics,
            map: Arc::new(move || map.clone()),
            limits: Arc::new(|| [("batch.linger".to_owned(), "200ms".into())].into()),
            counts: DocumentCounts::new(clock.clone()),
            load: ViewedLoad::new(clock),
            partition_status: reader,
            recent: Recent::default(),
        };
        (parts, partition_status)
    }

    fn page(parts: StatusParts) -> String {
        let source = StatusSource::new(parts);
        render(&source.status(), source.shown().drawing())
    }

    #[test]
    fn the_page_says_all_without_javascript() {
        let (parts, partition_status) = sources(Arc::default());
        let partition = parts.metrics.partition(3);
        (0..1500).for_each(|_| partition.record_in());
        partition.record_done(OutcomeLabel::Indexed, 1234);
        partition.parked(7);
        partition.dirty(20, 3_000_000, Some(Duration::from_millis(4200)));
        parts.metrics.partition(4);
        parts.metrics.elasticsearch.request(RequestLabel::Bulk, Success::Ok, Duration::from_millis(30));
        parts.metrics.elasticsearch.retry("429", 17);
        parts.metrics.held_bytes.set(64 << 20);
        parts.metrics.held_bytes_limit.set(512 << 20);
        partition_status.send_replace(vec![PartitionStatus {
            partition: 3,
            paused: true,
            watermark: Some(12_000),
            committed: Some(11_000),
            end: Some(20_500),
        }]);
        let counts = [("s00", 12_345), ("s54", 54_321)].map(|(id, count)| (ShardId::new(id).unwrap(), count));
        parts.counts.take(Ok(BTreeMap::from(counts)));
        let map = GeoshardMap::load(Path::new("config/map-55.json")).unwrap();
        let cities = largest_cities(&map);
        let city = |id: &str| cities[map.shards().partition_point(|known| known.as_str() < id)];
        let title = |id: &str, documents: &str| {
            let around = city(id).map_or_else(String::new, |city| format!(", around {city}"));
            format!("<title>{id}{around}: {documents} documents</title>")
        };
        let page = page(parts).replace('\u{a0}', " ");

        for part in [
            "<td class=\"id\">3</td><td class=\"state\" data-state=\"paused\">paused</td>\
             <td class=\"number\">8,500</td><td class=\"seconds\">4.2 s</td><td class=\"number\">12,000</td><td class=\"number\">11,000</td>\
             <td class=\"number\">266</td><td class=\"number\">20</td><td class=\"bytes\">2.9 MiB</td>\
             <td class=\"number\">7</td>",
            "<td class=\"id\">4</td><td class=\"state\" data-state=\"starting\">starting</td>\
             <td class=\"number\">unknown</td>",
            "data-v=\"counters.records\" data-f=\"number\">1,500</span>",
            "<td class=\"word\">indexed</td><td class=\"number\">1,234</td>",
            "<td class=\"text\">429</td><td class=\"number\">17</td>",
            "<td class=\"text\">bulk</td><td class=\"number\">1</td><td class=\"number\">0</td>",
            "data-f=\"bytes\">512 MiB</span>",
            "55 geoshards, 66,666 documents · fullest s54, 1.6 times the mean · counted 0 s ago",
            "<use href=\"#g54\" class=\"q5\"><title>s54",
            title("s54", "54,321").as_str(),
            title("s01", "unknown").as_str(),
            &format!(
                "<td class=\"text\">s00</td><td class=\"text\">{}</td><td class=\"number\">12,345</td>",
                city("s00").unwrap_or_default()
            ),
        ] {
            assert!(page.contains(part), "{part}\n{}", page.replace(LAND, ""));
        }
        assert_eq!(page.matches("documents</title></use>").count(), 55);
        assert!(page.contains(">Lagos</tspan></text>"), "names on the map");
    }

    #[test]
    fn the_load_colours_the_map_and_names_the_hottest_places() {
        let (parts, _board) = sources(Arc::default());
        let (map, load, counts) = ((parts.map)(), parts.load.clone(), parts.counts.clone());
        counts.take(Ok(map.shards().iter().map(|shard| (shard.clone(), 1000)).collect()));
        let source = StatusSource::new(parts);
        let page = || render(&source.status(), source.shown().drawing()).replace('\u{a0}', " ");
        load.take(Err("nothing is counted <yet>".to_owned()));
        assert!(page().contains("load unknown · nothing is counted &lt;yet&gt;"), "{}", page());

        // An hour ago Paris wrote, and a quarter of an hour ago Mumbai searched the most.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let mut record = LoadRecord::new(now - 2 * 86_400);
        let mut counter = LoadCounter::new(7);
        let at = |lat, lon| GeoPoint::new(lat, lon).unwrap();
        (0..40_000).for_each(|_| counter.wrote(at(48.85, 2.35), 100));
        record.add(&counter.take(), &map, now - 3600);
        (0..1_000).for_each(|_| counter.searched(at(48.85, 2.35), Duration::from_millis(3)));
        (0..9_000).for_each(|_| counter.searched(at(19.08, 72.88), Duration::from_millis(3)));
        record.add(&counter.take(), &map, now - 900);
        load.take(Ok(Arc::new(LoadSummary::new(&record, &map))));
        let page = page();
        for part in [
            // The mean of a 55th of all documents, all writes and a tenth of all searches.
            "largest s37, 20.50 times the mean · counted 15 min ago",
            "<use href=\"#g37\" class=\"q5\"><title>s37, around Paris: 20.50 times the mean, 0.4 writes/s, 0 searches/s</title>",
            "class=\"q0\"><title>s00, around Rio de Janeiro: 0.33 times the mean, 0 writes/s, 0 searches/s</title>",
            "<td class=\"text\">Paris</td><td class=\"id\">47e64</td>",
            "<td class=\"text\">Mumbai</td>",
            "<title>Paris</title></circle>",
            "id=\"trend-writes\" d=\"M",
        ] {
            assert!(page.contains(part), "{part}\n{}", page.replace(LAND, ""));
        }
        assert_eq!(page.matches("searches/s</title></use>").count(), 55);
        assert!(page.len() < 160_000, "{} bytes", page.len());
    }

    #[test]
    fn foreign_text_is_escaped() {
        let (parts, _board) = sources(Arc::default());
        parts.health.not_ready("partition <i>", "<script>alert('x')</script>");
        let recent = parts.recent.clone();
        let log = tracing_subscriber::layer::SubscriberExt::with(tracing_subscriber::registry(), recent);
        tracing::subscriber::with_default(log, || tracing::warn!("<img src=x onerror=alert(1)>"));
        parts.counts.take(Err("</svg><script>".to_owned()));
        let page = page(parts);
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"));
        assert!(page.contains("<b>people&lt;b&gt;</b>"));
        assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"));
        assert_eq!(page.matches("<script").count(), 1);
        assert!(!page.contains("<img"));
    }

    #[test]
    fn the_page_needs_nothing_else_and_is_small() {
        let (parts, _board) = sources(Arc::default());
        let page = page(parts);
        assert!(page.len() < 150_000, "{} bytes", page.len());
        // The only URL is SVG's XML namespace, which is never fetched.
        let without_name = page.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            assert!(!without_name.contains(outside), "{outside}");
        }
        assert!(page.contains("55 geoshards, documents unknown"));
        assert!(!page.contains("NaN") && !page.contains("None"));
    }

    #[test]
    fn a_map_that_is_changed_is_drawn_anew() {
        let (mut parts, _board) = sources(Arc::default());
        let other = r#"{"version":7,"name":"halves","cells":"s2","ranges":[
            {"from":"0000000000000000","shard":"one"},{"from":"6000000000000001","shard":"two"}]}"#;
        let maps = [(parts.map)(), Arc::new(GeoshardMap::from_json(other).unwrap())];
        let changed = Arc::new(AtomicBool::new(false));
        parts.map = Arc::new({
            let changed = changed.clone();
            move || maps[usize::from(changed.load(Ordering::Relaxed))].clone()
        });
        let source = StatusSource::new(parts);
        let pages = [false, true].map(|is_changed| {
            changed.store(is_changed, Ordering::Relaxed);
            (source.status(), render(&source.status(), source.shown().drawing()))
        });
        let [(status, page), (status_after, page_after)] = pages;
        assert_eq!((status.map.version, status_after.map.version), (1, 7));
        assert!(page.contains("s37") && !page.contains("halves"));
        assert!(page_after.contains("halves") && !page_after.contains("s37"), "{page_after}");
        assert_eq!(status_after.documents.shards.len(), 2);
    }

    #[test]
    fn every_figure_that_the_script_refreshes_is_in_the_status() {
        let (parts, _board) = sources(Arc::default());
        parts.metrics.partition(3);
        let source = StatusSource::new(parts);
        let status = serde_json::to_value(source.status()).unwrap();
        let page = render(&source.status(), source.shown().drawing());
        let paths = |attribute| -> Vec<String> {
            let begin = format!("{attribute}=\"");
            let values = page.split(&begin).skip(1);
            values.filter_map(|rest| Some(rest.split('"').next()?.replace('.', "/"))).collect()
        };
        for path in
            ["data-rows", "data-spark", "span data-v", "dd class=\"big\" data-v"].map(paths).iter().flatten()
        {
            assert!(status.pointer(&format!("/{path}")).is_some(), "{path}");
        }
        for name in paths("data-rate") {
            assert!(status["counters"][&name].is_u64(), "{name}");
        }
        for column in ["state", "lag", "watermark", "committed", "parked", "oldest_dirty_seconds"] {
            assert!(status["partitions"][0].get(column).is_some(), "{column}");
        }
        for column in ["times_mean", "writes", "queries"] {
            assert!(status["load"]["shards"][0].get(column).is_some(), "{column}");
        }
    }
}
