//! The section of the load: a map, the hottest places, and the last week by hour.

use std::fmt::Write;

use super::super::status::{LoadStatus, ShardLoad};
use super::format::{Text, known, rate, seconds, times};
use super::{globe, table, with_city};
use crate::geoshard::load::HotPlace;

/// The picture of a week: units per hour, and its height.
const HOUR_WIDE: usize = 6;
const HIGH: f64 = 100.0;

pub(super) fn section(load: &LoadStatus) -> String {
    let legend: String = load
        .scale
        .iter()
        .enumerate()
        .map(|(class, least)| format!("<li><i class=\"q{class}\"></i><span>{least}</span></li>"))
        .collect();
    let places = [
        ("Place", "place", "text"),
        ("Cell", "cell", "id"),
        ("Geoshard", "shard", "text"),
        ("Writes/s", "writes", "rate"),
        ("Searches/s", "queries", "rate"),
        ("Trend", "trend", "times"),
    ];
    let hottest = load.hottest.iter().map(|hot: &HotPlace| {
        let HotPlace { place, cell, shard, writes, queries, trend, .. } = hot;
        vec![place.clone(), cell.clone(), shard.clone(), rate(*writes), rate(*queries), times(*trend)]
    });
    let columns = [
        ("Geoshard", "shard", "text"),
        ("Times the mean", "times_mean", "times"),
        ("Writes/s", "writes", "rate"),
        ("Searches/s", "queries", "rate"),
    ];
    let shards = load.shards.iter().map(|ShardLoad { shard, times_mean, writes, queries, .. }| {
        vec![shard.clone(), known(*times_mean, times), known(*writes, rate), known(*queries, rate)]
    });
    let described = "Each geoshard is coloured by its load; circles are the places with the most.";
    let texts = load.shards.iter().map(|shard| (shard.class, text(shard)));
    format!(
        "<section aria-labelledby=\"by-load\">\n<h2 id=\"by-load\">Load \
         <small>share of documents, writes and searches; rates are of a day or two, the trend is the last hour over that</small></h2>\n\
         <figure>\n{svg}<figcaption>\n<p id=\"load\">{summary}</p>\n\
         <ul class=\"legend\" aria-label=\"Colours: load over the mean, from\">{legend}\
         <li><i class=\"none\"></i><span>unknown</span></li></ul>\n</figcaption>\n</figure>\n\
         <div class=\"pair\">\n<div>{hottest}</div>\n<figure>\n{trend}</figure>\n</div>\n\
         <details><summary>Load of each geoshard as a table</summary>\n{shards}</details>\n</section>\n",
        svg = globe("load-map", "Map of the load", described, "", texts, &hot_places(&load.hottest)),
        summary = Text(summary(load)),
        hottest = table("load.hottest", "The places with the most writes and searches", &places, hottest),
        trend = trend(load),
        shards = table("load.shards", "Load of each geoshard", &columns, shards),
    )
}

/// The same as in `page.js`, as everything below.
fn summary(load: &LoadStatus) -> String {
    let problem = load.problem.as_ref().map_or_else(String::new, |problem| format!(" · {problem}"));
    let (Some(largest), Some(age)) = (&load.largest, load.age_seconds) else {
        return format!("load unknown{problem}");
    };
    let (shard, over_mean, age) = (&largest.shard, times(largest.times_mean), seconds(age.floor()));
    format!("largest {shard}, {over_mean} times the mean · counted {age} ago{problem}")
}

fn text(of: &ShardLoad) -> String {
    let [writes, queries] = [of.writes, of.queries].map(|per_second| known(per_second, rate));
    let over_mean = known(of.times_mean, times);
    let name = with_city(&of.shard, of.around);
    format!("{name}: {over_mean} times the mean, {writes} writes/s, {queries} searches/s")
}

fn hot_places(hottest: &[HotPlace]) -> String {
    let mut circles = String::new();
    for HotPlace { lat, lon, place, .. } in hottest {
        let (x, y) = ((lon + 180.0) * 4.0, (90.0 - lat) * 4.0);
        // Writing to a string cannot fail; the same below.
        let _ = write!(
            circles,
            "<circle cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"9\"><title>{}</title></circle>",
            Text(place)
        );
    }
    format!("<g id=\"hottest\" class=\"hottest\">{circles}</g>\n")
}

/// Writes and searches by hour, each up to its own largest.
fn trend(load: &LoadStatus) -> String {
    let hours = &load.hours;
    let (writes, most_writes) = line(&hours.writes);
    let (queries, most_queries) = line(&hours.queries);
    let wide = 168 * HOUR_WIDE;
    let days: String = (1..7).map(|day| format!("M{} 0v{HIGH}", day * 24 * HOUR_WIDE)).collect();
    format!(
        "<svg id=\"trend\" class=\"trend\" viewBox=\"0 0 {wide} {HIGH}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Writes and searches by hour, the last seven days\">\n<path class=\"days\" d=\"{days}\"/>\n\
         <path id=\"trend-writes\" d=\"{writes}\"/>\n<path id=\"trend-queries\" d=\"{queries}\"/>\n</svg>\n\
         <figcaption>\n<p>By hour, the last seven days until now:</p>\n<ul class=\"legend lines\">\
         <li class=\"writes\">writes, up to <span id=\"most-writes\">{}</span>/s</li>\
         <li class=\"queries\">searches, up to <span id=\"most-queries\">{}</span>/s</li></ul>\n</figcaption>\n",
        rate(most_writes),
        rate(most_queries)
    )
}

/// A path through the known hours, interrupted where nobody counted; and the largest of them.
fn line(hours: &[Option<f64>]) -> (String, f64) {
    let most = hours.iter().flatten().copied().fold(0.0, f64::max);
    let (mut path, mut is_drawn) = (String::new(), false);
    for (hour, value) in hours.iter().enumerate() {
        if let Some(value) = value {
            let y = if most > 0.0 { HIGH - value / most * (HIGH - 2.0) } else { HIGH };
            let step = if is_drawn { 'L' } else { 'M' };
            let _ = write!(path, "{step}{} {y:.1}", hour * HOUR_WIDE);
            if !is_drawn {
                // An hour alone is a dot.
                path.push_str("h1");
            }
        }
        is_drawn = value.is_some();
    }
    (path, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_gaps_where_nobody_counted() {
        assert_eq!(
            line(&[Some(1.0), None, Some(0.5), Some(1.0)]),
            ("M0 2.0h1M12 51.0h1L18 2.0".to_owned(), 1.0)
        );
        assert_eq!(line(&[Some(0.0)]), ("M0 100.0h1".to_owned(), 0.0));
        assert_eq!(line(&[None, None]), (String::new(), 0.0));
    }
}
