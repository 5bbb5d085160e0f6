//! The page of the group.

use std::fmt::Write;

use super::super::group::{
    FactShown, GroupFigures, LettersShown, MemberShown, PartitionShown, Shown, WorkerShown,
};
use super::format::{Text, change, known, number, rate, seconds};
use super::{document, spark, table};

const SCRIPT: &str = include_str!("group.js");

/// The group's page.
pub fn render_group(figures: &GroupFigures) -> String {
    let title = format!("{} · group {} · geofold", figures.word, Text(&figures.group));
    let body = format!(
        "{header}<main>\n{tiles}<div class=\"pair\">\n{facts}{letters}</div>\n{workers}{members}{partitions}</main>\n",
        header = header(figures),
        tiles = tiles(figures),
        facts = facts(&figures.facts),
        partitions = partitions(&figures.partitions),
        workers = workers(&figures.workers),
        members = members(&figures.members),
        letters = letters(&figures.letters),
    );
    document(&title, &body, SCRIPT)
}

fn header(figures: &GroupFigures) -> String {
    let mut findings = String::new();
    for finding in &figures.findings {
        // Writing to a string cannot fail; the same below.
        let _ = write!(findings, "<li>{}</li>", Text(finding));
    }
    format!(
        "<header>\n<h1>geofold</h1>\n<p id=\"state\" data-state=\"{state}\">{word}</p>\n\
         <p class=\"where\">group <b>{group}</b> on topic <b>{topic}</b>, as seen by <a href=\"/\">this worker</a></p>\n\
         <p class=\"since\"><span data-v=\"answered\" data-f=\"text\">{answered}</span>\
         <span id=\"live\" role=\"status\"></span></p>\n\
         <ul id=\"reasons\" aria-label=\"What needs attention\">{findings}</ul>\n</header>\n",
        state = figures.state,
        word = figures.word,
        group = Text(&figures.group),
        topic = Text(&figures.topic),
        answered = Text(&figures.answered),
    )
}

fn tiles(figures: &GroupFigures) -> String {
    let tile = |label: &str, (path, format, value): (&str, &str, String), below: String| {
        format!(
            "<div><dt>{label}</dt><dd class=\"big\" data-v=\"{path}\" data-f=\"{format}\">{}</dd>\
             <dd>{below}</dd>{}</div>\n",
            Text(value),
            spark(path),
        )
    };
    let part = |path: &str, format: &str, value: String| {
        format!("<span data-v=\"{path}\" data-f=\"{format}\">{}</span>", Text(value))
    };
    let tiles = [
        tile(
            "Lag",
            ("lag", "number", known(figures.lag, number)),
            format!("{}/s", part("lag_per_second", "change", known(figures.lag_per_second, change))),
        ),
        tile(
            "Committed/s",
            ("committed_per_second", "rate", known(figures.committed_per_second, rate)),
            format!("over {}", part("sample_seconds", "seconds", known(figures.sample_seconds, seconds))),
        ),
        tile(
            "Oldest dirty",
            ("oldest_dirty_seconds", "seconds", known(figures.oldest_dirty_seconds, seconds)),
            "of reached workers".to_owned(),
        ),
        tile(
            "Stopped",
            ("stopped", "number", known(figures.stopped, number)),
            format!(
                "of {} partitions",
                part("partitions_in_all", "number", known(figures.partitions_in_all, number))
            ),
        ),
        tile(
            "Members",
            ("members_in_all", "number", known(figures.members_in_all, number)),
            format!(
                "{} workers reached",
                part("workers_reached", "number", known(figures.workers_reached, number))
            ),
        ),
        tile(
            "Dead letters",
            ("letters_last_hour", "number", known(figures.letters_last_hour, number)),
            "in the last hour".to_owned(),
        ),
    ];
    format!(
        "<section aria-labelledby=\"now\">\n<h2 id=\"now\">Now</h2>\n<dl class=\"tiles few\">\n{}</dl>\n</section>\n",
        tiles.concat()
    )
}

fn facts(facts: &[FactShown]) -> String {
    let columns = [("About", "name", "id"), ("What is known", "text", "text")];
    let rows = facts.iter().map(|fact| vec![fact.name.clone(), fact.text.clone()]);
    format!(
        "<section aria-labelledby=\"facts\">\n<h2 id=\"facts\">Group</h2>\n{}</section>\n",
        table("facts", "What is known of the group", &columns, rows)
    )
}

/// A section with one table, and how many rows are left out of it.
fn section<T>(
    (path, title): (&str, &str),
    caption: &str,
    columns: &[(&str, &str, &str)],
    shown: &Shown<T>,
    row: impl Fn(&T) -> Vec<String>,
) -> String {
    format!(
        "<section aria-labelledby=\"{path}\">\n<h2 id=\"{path}\">{title} \
         <small data-v=\"{path}.left_out\" data-f=\"text\">{}</small></h2>\n{}</section>\n",
        Text(&shown.left_out),
        table(&format!("{path}.rows"), caption, columns, shown.rows.iter().map(row))
    )
}

fn partitions(partitions: &Shown<PartitionShown>) -> String {
    let columns = [
        ("Partition", "partition", "id"),
        ("State", "state", "state"),
        ("Lag", "lag", "number"),
        ("Lag/s", "lag_per_second", "change"),
        ("Committed/s", "committed_per_second", "rate"),
        ("Oldest dirty", "oldest_dirty_seconds", "seconds"),
        ("Owner", "owner", "text"),
        ("Why stopped", "reason", "text"),
    ];
    let caption = "The group's partitions: stopped ones, then those with the largest lag";
    section(("partitions", "Partitions, the worst first"), caption, &columns, partitions, |one| {
        vec![
            one.partition.to_string(),
            one.state.clone(),
            number(one.lag),
            change(one.lag_per_second),
            rate(one.committed_per_second),
            known(one.oldest_dirty_seconds, seconds),
            one.owner.clone(),
            one.reason.clone(),
        ]
    })
}

fn workers(workers: &Shown<WorkerShown>) -> String {
    let columns = [
        ("Page", "address", "link"),
        ("Worker", "name", "text"),
        ("State", "ready", "word"),
        ("Partitions", "partitions", "number"),
        ("Why not ready", "reasons", "text"),
    ];
    section(("workers", "Workers reached"), "The workers that were reached", &columns, workers, |one| {
        vec![
            one.address.clone(),
            one.name.clone(),
            one.ready.to_owned(),
            number(one.partitions),
            one.reasons.clone(),
        ]
    })
}

fn members(members: &Shown<MemberShown>) -> String {
    let columns = [
        ("Client", "client", "text"),
        ("Host", "host", "text"),
        ("Partitions", "partitions", "number"),
        ("Numbers", "numbers", "text"),
    ];
    section(("members", "Members"), "The group's members", &columns, members, |one| {
        vec![one.client.clone(), one.host.clone(), number(one.partitions), one.numbers.clone()]
    })
}

fn letters(letters: &Shown<LettersShown>) -> String {
    let columns = [
        ("Because of", "reason", "text"),
        ("Last hour", "last_hour", "number"),
        ("Counted", "counted", "number"),
    ];
    section(("letters", "Dead letters"), "The newest dead letters, by reason", &columns, letters, |one| {
        vec![one.reason.clone(), number(one.last_hour), number(one.counted)]
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::group::tests::{report, source};
    use super::*;
    use crate::ops::group::GroupReport;

    fn page(answer: Result<GroupReport, String>) -> String {
        let source = source(Arc::default());
        source.take(answer);
        render_group(&source.figures()).replace('\u{a0}', " ")
    }

    #[test]
    fn the_page_of_the_group_says_all_without_javascript() {
        let page = page(Ok(report(3)));
        for part in [
            "<title>needs attention · group geofold · geofold</title>",
            "<p id=\"state\" data-state=\"paused\">needs attention</p>",
            "<li>partition 2 is stopped: bad record &lt;b&gt;</li>",
            "data-v=\"answered\" data-f=\"text\">answered 0 s ago</span>",
            "data-v=\"lag\" data-f=\"number\">120</dd><dd><span data-v=\"lag_per_second\" data-f=\"change\">-12.3</span>/s</dd>",
            "data-f=\"rate\">1,234</dd><dd>over <span data-v=\"sample_seconds\" data-f=\"seconds\">10 s</span></dd>",
            "data-v=\"stopped\" data-f=\"number\">1</dd>",
            "data-v=\"letters_last_hour\" data-f=\"number\">2</dd>",
            "<td class=\"id\">group</td><td class=\"text\">Stable, 1 member</td>",
            "<td class=\"id\">epoch</td><td class=\"text\">3</td>",
            "<td class=\"id\">map</td><td class=\"text\">as configured, never changed</td>",
            "<td class=\"id\">elasticsearch</td><td class=\"text\">green</td>",
            "<tbody>\n<tr><td class=\"id\">2</td><td class=\"state\" data-state=\"stopped\">stopped</td>",
            "<td class=\"change\">-12.3</td><td class=\"rate\">1,234</td><td class=\"seconds\">4.2 s</td>\
             <td class=\"text\">geofold on a, process 1</td><td class=\"text\">bad record &lt;b&gt;</td>",
            "<td class=\"link\"><a href=\"http://10.0.0.5:9464\">http://10.0.0.5:9464</a></td>",
            "<td class=\"text\">10.0.0.5</td><td class=\"number\">3</td><td class=\"text\">[0-2]</td>",
            "<td class=\"text\">no_location</td><td class=\"number\">0</td><td class=\"number\">5</td>",
            "<a href=\"/\">",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        assert!(!page.contains("NaN") && !page.contains("None"));
    }

    #[test]
    fn the_page_of_the_group_says_that_there_is_no_answer_yet() {
        let source = source(Arc::default());
        let page = render_group(&source.figures());
        assert!(page.contains(">asked a moment ago, not answered yet</span>"), "{page}");
        assert!(page.contains("data-v=\"lag\" data-f=\"number\">unknown</dd>"));
        assert!(page.len() < 40_000, "{} bytes", page.len());
        source.take(Err("cannot <ask>".to_owned()));
        let page = render_group(&source.figures());
        assert!(page.contains("<li>the group could not be asked: cannot &lt;ask&gt;</li>"), "{page}");
    }

    #[test]
    fn text_of_the_group_is_escaped_and_only_the_web_is_linked() {
        const SCRIPT: &str = "<script>alert('x')</script>";
        let text = || SCRIPT.to_owned();
        let mut group = report(3);
        group.findings = vec![text()];
        group.elasticsearch = Some(text());
        group.partitions[0].owner = Some(text());
        group.partitions[0].state = text();
        let member = &mut group.description.as_mut().unwrap().members[0];
        (member.client_id, member.host) = (text(), text());
        let mut worker = group.workers[0].clone();
        worker.name = Some(text());
        worker.reasons = [(text(), text())].into();
        for url in ["javascript:alert(1)", "http://a/\"onclick=\"alert(1)", SCRIPT] {
            worker.url = url.to_owned();
            group.workers.push(worker.clone());
        }
        group.dead_letters.as_mut().unwrap().by_reason = [(text(), 1)].into();
        let page = page(Ok(group));
        assert_eq!(page.matches("<script").count(), 1, "the page's own");
        assert!(!page.contains("href=\"javascript"), "{page}");
        assert!(page.contains("<td class=\"link\">javascript:alert(1)</td>"));
        assert!(page.contains("<a href=\"http://a/&quot;onclick=&quot;alert(1)\">"));
        assert!(page.matches("&lt;script&gt;").count() >= 9);
        assert!(page.contains("on topic <b>people&lt;i&gt;</b>"));
    }

    #[test]
    fn every_figure_of_the_group_that_the_script_refreshes_is_in_the_json() {
        let source = source(Arc::default());
        source.take(Ok(report(3)));
        let figures = serde_json::to_value(source.figures()).unwrap();
        let page = render_group(&source.figures());
        let (page, _script) = page.split_once("<script>").unwrap();
        let paths = |attribute: &str| -> Vec<String> {
            let begin = format!("{attribute}=\"");
            let values = page.split(&begin).skip(1);
            values.filter_map(|rest| Some(rest.split('"').next()?.replace('.', "/"))).collect()
        };
        let found =
            ["data-rows", "data-spark", "span data-v", "small data-v", "dd class=\"big\" data-v"].map(paths);
        assert!(found.iter().all(|paths| !paths.is_empty()), "{found:?}");
        for path in found.iter().flatten() {
            assert!(figures.pointer(&format!("/{path}")).is_some(), "{path}");
        }
        let heads = page.split("<table data-rows=\"").skip(1).flat_map(|table| {
            let (path, rest) = table.split_once('"').unwrap();
            let heads = rest.split("</thead>").next().unwrap().split("scope=\"col\" data-v=\"").skip(1);
            heads.map(move |head| (path.replace('.', "/"), head.split('"').next().unwrap().to_owned()))
        });
        let heads: Vec<(String, String)> = heads.collect();
        assert!(heads.len() > 20, "{heads:?}");
        for (path, head) in heads {
            assert!(figures.pointer(&format!("/{path}/0/{head}")).is_some(), "{path} {head}");
        }
    }
}
