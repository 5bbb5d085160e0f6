//! Dashboard, alerts and documents speak of metrics that exist, with labels that they have; every metric is on a dashboard or
//! in an alert, and in docs/metrics.tsv; every alert has its runbook, and series for which it fires and does not.
//!
//! `GEOFOLD_UPDATE=1 cargo test --test it dashboards` updates docs/metrics.tsv.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use geofold::io::elastic::CallError;
use geofold::support::telemetry::Metrics;
use geofold::support::telemetry::autopilot::AutopilotMetrics;
use geofold::support::telemetry::collector::CollectorMetrics;
use geofold::support::telemetry::elasticsearch::RequestLabel;
use geofold::support::telemetry::families::{MetricInfo, MetricType};
use geofold::support::telemetry::metrics::Success;
use geofold::support::telemetry::route::RouteMetrics;
use serde_json::Value;

use crate::tools::has;

/// Labels that Prometheus gives to every series.
const OF_THE_TARGET: [&str; 2] = ["job", "instance"];
/// Labels whose values are a closed set, all of which are there from the beginning.
const CLOSED: [&str; 3] = ["outcome", "kind", "result"];
/// What begins like a metric and is none: a table, and the prefix itself.
const NO_METRIC: [&str; 2] = ["geofold_schema", "geofold_"];

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What a worker, a collector and a router expose, with every series that they can begin with.
struct Exposed {
    worker: Vec<MetricInfo>,
    collector: Vec<MetricInfo>,
    router: Vec<MetricInfo>,
    autopilot: Vec<MetricInfo>,
    worker_text: String,
    collector_text: String,
    router_text: String,
    autopilot_text: String,
}

impl Exposed {
    fn new() -> Self {
        let metrics = Metrics::new().unwrap();
        metrics.partition(0);
        metrics.tally.partition(0);
        metrics.distribution("notify");
        metrics.elasticsearch.retry("429", 1);
        metrics.entries_retried("placement_conflict", 1);
        for kind in [RequestLabel::Mget, RequestLabel::Bulk] {
            for result in [Success::Ok, Success::Failed] {
                metrics.elasticsearch.request(kind, result, Duration::from_millis(1));
            }
        }
        let collector = CollectorMetrics::new().unwrap();
        let router = RouteMetrics::new().unwrap();
        let autopilot = AutopilotMetrics::new().unwrap();
        Self {
            worker: metrics.catalogue().to_vec(),
            collector: collector.catalogue().to_vec(),
            router: router.catalogue().to_vec(),
            autopilot: autopilot.catalogue().to_vec(),
            worker_text: metrics.render().unwrap(),
            collector_text: collector.render().unwrap(),
            router_text: router.render().unwrap(),
            autopilot_text: autopilot.render().unwrap(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &MetricInfo> {
        self.worker.iter().chain(&self.collector).chain(&self.router).chain(&self.autopilot)
    }

    /// The metric whose series have this name; histograms have three names.
    fn metric(&self, series: &str) -> Option<&MetricInfo> {
        let of = |name: &str| self.all().find(|metric| metric.name == name);
        of(series).or_else(|| {
            let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| series.strip_suffix(end))?;
            of(name).filter(|metric| metric.kind == MetricType::Histogram)
        })
    }

    /// What is wrong with the use of a metric.
    fn complaints(&self, used: &Used) -> Vec<String> {
        let Some(metric) = self.metric(&used.name) else {
            return vec![format!("there is no metric {}", used.name)];
        };
        let mut complaints = Vec::new();
        for (label, value) in &used.labels {
            let known = metric.labels.contains(label)
                || OF_THE_TARGET.contains(&label.as_str())
                || (label == "le" && used.name.ends_with("_bucket"));
            if !known {
                complaints.push(format!("{} has no label {label}", used.name));
            }
            if let Some(value) = value.as_ref().filter(|_| CLOSED.contains(&label.as_str())) {
                let series = |text: &str| {
                    text.lines().any(|line| {
                        line.starts_with(&metric.name) && line.contains(&format!("{label}=\"{value}\""))
                    })
                };
                let texts =
                    [&self.worker_text, &self.collector_text, &self.router_text, &self.autopilot_text];
                if !texts.iter().any(|text| series(text)) {
                    complaints.push(format!("{} is never with {label}=\"{value}\"", used.name));
                }
            }
        }
        complaints
    }
}

/// A metric as some text uses it: its name, and the labels in braces behind it, with the values that are compared for
/// equality.
struct Used {
    name: String,
    labels: Vec<(String, Option<String>)>,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn used_in(text: &str) -> Vec<Used> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices("geofold_") {
        if start > 0 && is_name(text.as_bytes()[start - 1]) {
            continue;
        }
        let rest = &text[start..];
        let end = rest.bytes().position(|byte| !is_name(byte)).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        if NO_METRIC.contains(&name) {
            continue;
        }
        let braces = behind.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let labels = braces.map_or_else(Vec::new, |(inner, _)| {
            inner.split(',').map(str::trim).filter(|part| !part.is_empty()).map(label_of).collect()
        });
        found.push(Used { name: name.to_owned(), labels });
    }
    found
}

/// `kind`, `kind="bulk"` or `kind=~"b.*"`.
fn label_of(part: &str) -> (String, Option<String>) {
    let end = part.bytes().position(|byte| !is_name(byte)).unwrap_or(part.len());
    let (label, rest) = part.split_at(end);
    let equal = rest.strip_prefix("=\"").and_then(|value| value.strip_suffix('"'));
    (label.to_owned(), equal.map(str::to_owned))
}

/// The names in the `by (…)` of an expression.
fn grouped_by(expr: &str) -> BTreeSet<String> {
    let clauses = expr.split(" by (").skip(1).filter_map(|rest| rest.split_once(')'));
    clauses.flat_map(|(names, _)| names.split(',').map(|name| name.trim().to_owned())).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("dashboards/geofold.json")).unwrap()
}

/// Title, expression and legend of every query of the dashboard.
fn queries() -> Vec<(String, String, String)> {
    let mut queries = Vec::new();
    for panel in dashboard()["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = |key: &str| target[key].as_str().unwrap_or_default().to_owned();
            queries.push((panel["title"].as_str().unwrap().to_owned(), text("expr"), text("legendFormat")));
        }
    }
    assert!(queries.len() > 40, "{}", queries.len());
    queries
}

/// As Prometheus would get it.
fn without_variables(expr: &str) -> String {
    ["job", "instance", "partition"]
        .iter()
        .fold(expr.replace("$__rate_interval", "5m"), |expr, name| expr.replace(&format!("${name}"), ".+"))
}

/// Name, text, and runbook of each alert.
fn alerts() -> Vec<(String, String, String)> {
    let rules = read("dashboards/alerts.yml");
    let alerts: Vec<_> = rules
        .split("- alert: ")
        .skip(1)
        .map(|alert| {
            let (name, text) = alert.split_once('\n').unwrap();
            let runbook = text.lines().find_map(|line| line.trim().strip_prefix("runbook: "));
            (name.to_owned(), text.to_owned(), runbook.unwrap_or_default().to_owned())
        })
        .collect();
    assert!(alerts.len() > 15, "{}", alerts.len());
    alerts
}

/// All documents, with their names.
fn documents() -> Vec<(String, String)> {
    let mut names = vec![
        "README.md".to_owned(),
        "ARCHITECTURE.md".into(),
        "SECURITY.md".into(),
        "CONTRIBUTING.md".into(),
    ];
    for entry in std::fs::read_dir(at("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if Path::new(&name).extension().is_some_and(|end| end == "md") {
            names.push(format!("docs/{name}"));
        }
    }
    names.into_iter().map(|name| (name.clone(), read(&name))).collect()
}

/// GitHub's anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn no_complaints(complaints: &[String]) {
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_metric_that_a_dashboard_an_alert_or_a_document_names_exists_with_its_labels() {
    let exposed = Exposed::new();
    let mut texts = documents();
    texts.extend(alerts().into_iter().map(|(name, text, _)| (name, text)));
    texts.extend(queries().into_iter().map(|(title, expr, _)| (title, expr)));
    texts.push(("variables".to_owned(), dashboard()["templating"].to_string().replace("\\\"", "\"")));
    let mut complaints = Vec::new();
    for (place, text) in &texts {
        for used in used_in(text) {
            complaints.extend(exposed.complaints(&used).into_iter().map(|what| format!("{place}: {what}")));
        }
        for (start, _) in text.match_indices("process_") {
            let end = text[start..].bytes().position(|byte| !is_name(byte)).unwrap_or(text.len() - start);
            let name = &text[start..start + end];
            if name != "process_" && !exposed.worker_text.contains(&format!("# TYPE {name} ")) {
                complaints.push(format!("{place}: there is no metric {name}"));
            }
        }
    }
    no_complaints(&complaints);
}

#[test]
fn grouping_and_legend_labels_exist_in_the_queries() {
    let exposed = Exposed::new();
    let mut complaints = Vec::new();
    let alerts = alerts().into_iter().map(|(name, text, _)| (name, text, String::new()));
    for (place, expr, legend) in queries().into_iter().chain(alerts) {
        let mut known: BTreeSet<&str> = OF_THE_TARGET.into();
        for used in used_in(&expr) {
            known.extend(
                exposed
                    .metric(&used.name)
                    .into_iter()
                    .flat_map(|metric| metric.labels.iter().map(String::as_str)),
            );
        }
        let by = grouped_by(&expr);
        let unknown = by.iter().filter(|label| *label != "le" && !known.contains(label.as_str()));
        complaints.extend(unknown.map(|label| format!("{place}: by ({label}), which nothing there has")));
        for shown in legend.split("{{").skip(1).filter_map(|rest| rest.split_once("}}")) {
            let left = by.contains(shown.0)
                || (!expr.contains(" by (") && !expr.contains("sum(") && known.contains(shown.0));
            if !left {
                complaints.push(format!("{place}: shows {{{{{}}}}}, which {expr} has not", shown.0));
            }
        }
    }
    no_complaints(&complaints);
}

#[test]
fn every_metric_is_on_the_dashboard_or_in_an_alert() {
    let mut texts: String = queries().into_iter().map(|(_, expr, _)| expr + "\n").collect();
    texts.extend(alerts().into_iter().map(|(_, text, _)| text));
    let exposed = Exposed::new();
    let used: BTreeSet<String> = used_in(&texts)
        .iter()
        .filter_map(|used| exposed.metric(&used.name))
        .map(|metric| metric.name.clone())
        .collect();
    let forgotten: Vec<String> = exposed
        .all()
        .filter(|metric| !used.contains(&metric.name))
        .map(|metric| metric.name.clone())
        .collect();
    no_complaints(&forgotten);
}

#[test]
fn the_reference_of_metrics_is_what_the_registry_says() {
    let exposed = Exposed::new();
    let processes = [
        ("worker", &exposed.worker),
        ("collector", &exposed.collector),
        ("router", &exposed.router),
        ("autopilot", &exposed.autopilot),
    ];
    let lines: BTreeSet<String> = exposed
        .all()
        .map(|metric| {
            let who = processes.iter().filter(|(_, metrics)| metrics.contains(metric)).map(|(who, _)| *who);
            let MetricInfo { name, kind, labels, help, .. } = metric;
            let kind = format!("{kind:?}").to_lowercase();
            let who = who.collect::<Vec<_>>().join(", ");
            format!("{name}\t{kind}\t{}\t{who}\t{help}\n", labels.join(", "))
        })
        .collect();
    let mut text = "metric\ttype\tlabels\texposed by\tmeaning\n".to_owned();
    text.extend(lines);
    if std::env::var_os("GEOFOLD_UPDATE").is_some() {
        std::fs::write(at("docs/metrics.tsv"), &text).unwrap();
    }
    assert!(
        read("docs/metrics.tsv") == text,
        "docs/metrics.tsv is not current: GEOFOLD_UPDATE=1 cargo test --test it dashboards"
    );
}

#[test]
fn every_alert_has_its_runbook_and_every_runbook_its_alert() {
    let handbook = read("docs/runbooks.md");
    let headings: BTreeSet<String> =
        handbook.lines().filter_map(|line| line.strip_prefix("### ")).map(anchor).collect();
    let alerts = alerts();
    for (name, _, runbook) in &alerts {
        assert_eq!(*runbook, format!("docs/runbooks.md#{}", name.to_lowercase()), "{name}");
        assert!(headings.contains(&name.to_lowercase()), "docs/runbooks.md has no section ### {name}");
    }
    for heading in headings.iter().filter(|heading| heading.starts_with("geofold")) {
        assert!(
            alerts.iter().any(|(name, ..)| name.to_lowercase() == *heading),
            "no alert for the runbook {heading}"
        );
    }
}

#[test]
fn every_alert_is_tried_with_series_that_fire_it_and_series_that_do_not() {
    let tests = read("dashboards/alerts_test.yml");
    for (name, ..) in alerts() {
        let tried: Vec<&str> = tests
            .split("- alertname: ")
            .skip(1)
            .filter(|rest| rest.lines().next() == Some(name.as_str()))
            .map(|rest| rest.split("input_series").next().unwrap())
            .collect();
        assert!(tried.iter().any(|tried| tried.contains("exp_labels")), "{name} is nowhere seen to fire");
        assert!(
            tried.iter().any(|tried| tried.contains("exp_alerts: []")),
            "{name} is nowhere seen not to fire"
        );
    }
}

#[test]
fn the_dashboard_is_whole() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut cells, mut rows) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: another panel has its id");
        let edge = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(edge("x") + edge("w") <= 24, "{title} is beyond the right edge");
        for x in edge("x")..edge("x") + edge("w") {
            for y in edge("y")..edge("y") + edge("h") {
                assert!(cells.insert((x, y)), "{title} lies on another panel");
            }
        }
        if panel["type"] == "row" {
            rows.push(title);
            continue;
        }
        assert!(
            panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
            "{title} says nothing of itself"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let refs: BTreeSet<&str> = panel["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|target| target["refId"].as_str().unwrap())
            .collect();
        assert_eq!(
            refs.len(),
            panel["targets"].as_array().unwrap().len(),
            "{title}: two queries of one name"
        );
    }
    assert_eq!(rows[..4], ["Is it right", "Is it keeping up", "Is Elasticsearch healthy", "What moves"]);
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables: Vec<&str> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "job", "instance", "partition"]);
}

/// The unit of a query's values, as Grafana names it.
fn unit_of(expr: &str) -> &'static str {
    let is_of =
        |ends: &[&str]| used_in(expr).iter().any(|used| ends.iter().any(|end| used.name.ends_with(end)));
    if expr.contains("time()") || expr.contains("histogram_quantile") && is_of(&["_seconds_bucket"]) {
        "s"
    } else if expr.contains(") / sum") {
        "percentunit"
    } else if expr.contains("histogram_quantile")
        || expr.contains("increase(")
        || expr.contains("process_cpu")
    {
        "short"
    } else if expr.contains("rate(") {
        if is_of(&["_bytes_total"]) {
            "Bps"
        } else if is_of(&["_seconds_total"]) {
            // Seconds per second: how many wait at the same time.
            "short"
        } else {
            "ops"
        }
    } else if is_of(&["_bytes", "_bytes_limit"]) || expr.contains("memory_bytes") {
        "bytes"
    } else if is_of(&["_seconds"]) {
        "s"
    } else {
        "short"
    }
}

/// What a panel's overrides of this matcher say of a property.
fn overridden<'a>(panel: &'a Value, matcher: &str, about: &str, property: &str) -> Option<&'a Value> {
    panel["fieldConfig"]["overrides"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|some| some["matcher"]["id"] == matcher && some["matcher"]["options"] == about)
        .flat_map(|some| some["properties"].as_array().unwrap())
        .find(|some| some["id"] == property)
        .map(|some| &some["value"])
}

#[test]
fn panels_show_each_value_in_its_unit_and_color() {
    let mut complaints = Vec::new();
    for panel in dashboard()["panels"].as_array().unwrap() {
        let (title, defaults) = (panel["title"].as_str().unwrap(), &panel["fieldConfig"]["defaults"]);
        let mut complain = |what: String| complaints.push(format!("{title}: {what}"));
        let is_graph = panel["type"] == "timeseries";
        for target in panel["targets"].as_array().into_iter().flatten() {
            let (name, expr) = (target["refId"].as_str().unwrap(), target["expr"].as_str().unwrap());
            let unit = overridden(panel, "byFrameRefID", name, "unit").unwrap_or(&defaults["unit"]);
            let unit = unit.as_str().map_or("nothing", |unit| match unit {
                "reqps" => "ops",
                "none" => "short",
                unit => unit,
            });
            if unit != unit_of(expr) {
                complain(format!("{expr} is in {}, and shown in {unit}", unit_of(expr)));
            }
            // `increase()` extrapolates, so what happened five times is 5.03.
            if expr.contains("increase(") && unit == "short" && defaults["decimals"] != 0 {
                complain(format!("{expr} is shown with decimals"));
            }
            if unit == "percentunit" && defaults["max"] != 1 {
                complain("nothing says that 100 % is the most".to_owned());
            }
            if is_graph && unit != "percentunit" && defaults["custom"]["axisSoftMax"] != 1 {
                complain("an axis of zeros goes to 100".to_owned());
            }
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            if legend.contains("{{result}}") {
                for (word, color) in [("failed", "red"), ("ok|found|answered|followed", "green")] {
                    let chosen = overridden(panel, "byRegexp", &format!("/\\b({word})\\b/"), "color");
                    if chosen.is_none_or(|chosen| chosen["fixedColor"] != color) {
                        complain(format!("{word} is not {color}"));
                    }
                }
            }
        }
    }
    no_complaints(&complaints);
}

#[test]
fn one_partition_is_chosen_at_first() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let partition = variables.iter().find(|variable| variable["name"] == "partition").unwrap();
    assert_eq!(partition["includeAll"], false, "all of them are a series each in every panel");
}

/// Series that are born with their first event hide it from `increase()`, and a panel without series says "No data".
#[test]
fn every_counter_on_the_dashboard_begins_at_zero() {
    let (metrics, router) = (Metrics::new().unwrap(), RouteMetrics::new().unwrap());
    metrics.partition(0);
    let worker = metrics.render().unwrap() + &router.render().unwrap();
    let optional = ["tally_", "collector_", "autopilot_", "distribution_"];
    let missing: BTreeSet<String> = queries()
        .iter()
        .flat_map(|(_, expr, _)| used_in(expr))
        .map(|used| used.name)
        .filter(|name| name.ends_with("_total") && !optional.iter().any(|part| name.contains(part)))
        .filter(|name| !worker.contains(&format!("\n{name}{{")) && !worker.contains(&format!("\n{name} 0")))
        .collect();
    no_complaints(&missing.into_iter().collect::<Vec<_>>());
}

#[test]
fn reasons_that_begin_at_zero_are_reasons_that_there_are() {
    let rendered = Metrics::new().unwrap().render().unwrap();
    let reasons = |metric: &str| -> Vec<String> {
        let begin = format!("{metric}{{reason=\"");
        let of_line = |line: &str| Some(line.strip_prefix(&begin)?.strip_suffix("\"} 0")?.to_owned());
        rendered.lines().filter_map(of_line).collect()
    };
    let dead_letters = reasons("geofold_dead_letters_total");
    assert!(dead_letters.len() >= 5, "{rendered}");
    let documented = read("docs/dead-letters.md");
    let documented = &documented[documented.find("Reasons:").unwrap()..];
    for reason in dead_letters {
        assert!(documented.contains(&format!("`{reason}`")), "no record is refused as {reason}");
    }
    let retries = reasons("geofold_elasticsearch_retries_total");
    assert!(retries.len() >= 4, "{rendered}");
    let status =
        |status| CallError::Status { status, kind: String::new(), reason: String::new(), retry_after: None };
    let possible = [
        status(429).label(),
        status(503).label(),
        CallError::Connection(String::new()).label(),
        CallError::Timeout(Duration::ZERO).label(),
    ];
    for reason in retries {
        assert!(possible.contains(&reason.as_str()), "no call fails as {reason}");
    }
}

fn promtool(arguments: &[&str], input: &str) {
    let mut tool = Command::new("promtool");
    tool.args(arguments)
        .current_dir(at("dashboards"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut tool = tool.spawn().unwrap();
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && err.trim().is_empty(),
        "promtool {}:\n{out}{err}",
        arguments.join(" ")
    );
}

#[test]
fn promtool_takes_the_alerts_and_they_fire_when_they_should() {
    if has("promtool") {
        promtool(&["check", "rules", "alerts.yml"], "");
        promtool(&["check", "config", "prometheus.yml"], "");
        promtool(&["test", "rules", "alerts_test.yml"], "");
    }
}

#[test]
fn promtool_can_read_every_query_of_the_dashboard() {
    if !has("promtool") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queries.yml");
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (number, (_, expr, _)) in queries().iter().enumerate() {
        // JSON's texts are YAML's, too.
        let expr = Value::String(without_variables(expr));
        writeln!(rules, "  - record: query:{number}\n    expr: {expr}").unwrap();
    }
    std::fs::write(&file, rules).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()], "");
}

#[test]
fn promtool_finds_nothing_to_say_about_what_is_exposed() {
    if has("promtool") {
        let exposed = Exposed::new();
        promtool(&["check", "metrics"], &exposed.worker_text);
        promtool(&["check", "metrics"], &exposed.collector_text);
        promtool(&["check", "metrics"], &exposed.autopilot_text);
    }
}

#[test]
fn a_metric_that_does_not_exist_or_a_label_that_it_has_not_is_found() {
    let exposed = Exposed::new();
    let complaints =
        |text: &str| used_in(text).iter().flat_map(|used| exposed.complaints(used)).collect::<Vec<_>>();
    for fine in [
        "`geofold_ready`, in the table geofold_schema",
        "rate(geofold_batch_seconds_bucket{le=\"1\", job=\"a\"}[5m])",
        "geofold_commits_total{result=\"failed\"} 0",
        "geofold_elasticsearch_requests_total{kind,result}",
        "geofold_dead_letters_total{reason=~\"a|b\"}",
    ] {
        no_complaints(&complaints(fine));
    }
    for (wrong, said) in [
        ("geofold_redy", "there is no metric geofold_redy"),
        ("geofold_ready_bucket", "there is no metric geofold_ready_bucket"),
        ("geofold_ready{partition=\"1\"}", "geofold_ready has no label partition"),
        ("geofold_commits_total{result=\"fail\"}", "geofold_commits_total is never with result=\"fail\""),
    ] {
        assert_eq!(complaints(wrong), [said], "{wrong}");
    }
}
