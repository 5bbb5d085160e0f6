//! The Helm chart, and the manifests that are rendered from it.

use std::path::Path;
use std::process::Command;

use super::{COLLECTOR, ROUTER, WORKER, at, read};
use crate::tools::has;

const AUTOSCALING: &str = "packaging/kubernetes/autoscaling.yaml";
const CHART: &str = "packaging/helm/geofold";

fn assert_valid_for_kubernetes(file: &Path) {
    let output = Command::new("kubernetes-validate").arg("--strict").arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let is_valid = output.status.success() && !said.contains("WARN") && said.contains("passed");
    assert!(is_valid, "{}: {said}", file.display());
}

#[test]
fn the_manifests_are_of_the_kinds_schemas() {
    if has("kubernetes-validate") {
        [WORKER, COLLECTOR, ROUTER].iter().for_each(|file| assert_valid_for_kubernetes(&at(file)));
    }
}

/// What `helm` says, and whether it succeeded.
fn helm(arguments: &[&str]) -> (bool, String) {
    let output = Command::new("helm").args(arguments).current_dir(at("")).output().unwrap();
    let said = if output.status.success() { output.stdout } else { [output.stdout, output.stderr].concat() };
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn rendered(arguments: &[&str]) -> String {
    let (succeeded, said) =
        helm(&[&["template", "geofold", CHART, "--kube-version", "1.33.0"], arguments].concat());
    assert!(succeeded, "helm template {arguments:?}: {said}");
    said
}

/// `GEOFOLD_UPDATE=1 cargo test --test it packaging::kubernetes` writes them.
#[test]
fn the_manifests_are_what_the_chart_renders() {
    let version = format!("ersion: {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(read(&format!("{CHART}/Chart.yaml")).matches(&version).count(), 2, "version and appVersion");
    if !has("helm") {
        return;
    }
    for (file, templates, set, head) in [
        (WORKER, &["config", "worker"][..], "", "Workers of one index."),
        (
            COLLECTOR,
            &["collector"],
            "collector.enabled=true",
            "Collectors of live counts; with the ConfigMap of worker.yaml.",
        ),
        (
            ROUTER,
            &["router"],
            "router.enabled=true",
            "Routers of searches; with the ConfigMap of worker.yaml.",
        ),
        (
            AUTOSCALING,
            &["autoscaling"],
            "worker.autoscaling.enabled=true",
            "As many workers as the lag asks for; leave `replicas` out of worker.yaml then.",
        ),
    ] {
        let shown: Vec<String> = templates.iter().map(|name| format!("templates/{name}.yaml")).collect();
        let mut arguments: Vec<&str> = shown.iter().flat_map(|name| ["--show-only", name.as_str()]).collect();
        arguments.extend(if set.is_empty() { vec![] } else { vec!["--set", set] });
        let text = format!("# {head} Rendered from packaging/helm/geofold.\n{}", rendered(&arguments));
        if std::env::var_os("GEOFOLD_UPDATE").is_some() {
            std::fs::write(at(file), &text).unwrap();
        }
        assert_eq!(read(file), text, "{file} is not what the chart renders");
    }
}

#[test]
fn the_chart_takes_every_value_and_refuses_a_misspelt_one() {
    if !has("helm") {
        return;
    }
    let (is_clean, said) = helm(&["lint", "--strict", CHART]);
    assert!(is_clean, "{said}");
    let folder = tempfile::tempdir().unwrap();
    let (values, map) = (folder.path().join("values.yaml"), folder.path().join("map.json"));
    std::fs::write(&map, "{\"version\": 1}\n").unwrap();
    std::fs::write(
        &values,
        r#"
image: {repository: registry.example/geofold, tag: "2", pullSecrets: [pull]}
createIndices: true
serviceAccount: {create: true, annotations: {role: writer}}
monitoring: {serviceMonitor: true, labels: {release: prometheus}}
worker:
  env: {GEOFOLD_MEMORY__TOTAL: 1GiB}
  secrets: []
  nodeSelector: {disk: fast}
  tolerations: [{key: geofold, operator: Exists}]
  podAnnotations: {team: search}
  autoscaling: {enabled: true, metadata: {tls: enable}, authentication: kafka}
collector: {enabled: true}
router: {enabled: true}
"#,
    )
    .unwrap();
    let (values, map) = (values.to_str().unwrap(), format!("map={}", map.display()));
    let all = rendered(&["--values", values, "--set-file", &map]);
    for wanted in [
        "image: registry.example/geofold:2\n",
        "  - name: pull\n",
        "map.json: \"{\\\"version\\\": 1}\\n\"\n",
        "{name: GEOFOLD_GEOSHARDS__MAP, value: /etc/geofold/map.json}",
        "{name: GEOFOLD_MEMORY__TOTAL, value: \"1GiB\"}",
        "kind: ServiceAccount\n",
        "serviceAccountName: geofold\n",
        "role: writer\n",
        "kind: ServiceMonitor\n",
        "release: prometheus\n",
        "disk: fast\n",
        "operator: Exists\n",
        "team: search\n",
        "tls: enable\n",
        "authenticationRef: {name: kafka}\n",
        "args: [shards, create]\n",
        "args: [check]\n",
        "helm.sh/hook: test\n",
    ] {
        assert!(all.contains(wanted), "{wanted:?} is missing:\n{all}");
    }
    assert!(!all.contains("prometheus.io/"), "the ServiceMonitor finds them");
    assert_eq!(all.matches("  replicas: ").count(), 2, "KEDA says how many workers there are");
    if has("kubernetes-validate") {
        // The schemas of KEDA and of the Prometheus operator are not among its own.
        let own = all
            .split("\n---\n")
            .filter(|one| !one.contains("ScaledObject") && !one.contains("ServiceMonitor"));
        let file = folder.path().join("all.yaml");
        std::fs::write(&file, own.collect::<Vec<_>>().join("\n---\n")).unwrap();
        assert_valid_for_kubernetes(&file);
    }
    let (succeeded, said) = helm(&["template", CHART, "--set", "worker.replica=3"]);
    assert!(!succeeded && said.contains("replica"), "{said}");
}
