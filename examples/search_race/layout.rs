//! An index, or geoshards and their router, with everybody in them.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use geofold::base::random::Random;
use geofold::geoshard::plan::{By, CellLoads, MapPlan, Naming, PlanOptions};
use geofold::geoshard::{GeoshardMap, LiveMaps};
use reqwest::blocking::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Options;
use crate::crowd::{Crowd, Question};

/// Documents in one `_bulk` of the first load.
const DOCUMENTS_PER_BULK: usize = 2_000;
const LOADERS: usize = 2;
/// Writes come so far apart.
const TICK: Duration = Duration::from_millis(100);
/// So much of the people's number plans a map as well as all of them.
const PLANNED_BY: usize = 200_000;

/// How the people are kept.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// One index with so many primary shards.
    One(usize),
    /// So many geoshards.
    Geoshards(usize),
}

/// An answer of a search.
pub struct Asked {
    pub body: Value,
    /// Geoshards that were asked.
    pub geoshards: Option<u64>,
}

/// See the file's first line.
pub struct Layout {
    name: String,
    /// Start of the geoshards' names; the name of the one index.
    prefix: String,
    elasticsearch: String,
    maps: Option<LiveMaps>,
    /// Of each person, the index.
    homes: Vec<u16>,
    indices: Vec<String>,
    router: Option<Router>,
    /// The version of the newest write.
    version: AtomicU64,
    /// Documents per second of the first load.
    loaded: String,
    http: Client,
    folder: TempDir,
}

/// `geofold route`; killed on drop.
struct Router {
    child: Child,
    url: String,
}

impl Drop for Router {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Layout {
    /// Makes the indices, writes everybody, and starts a router where there are geoshards.
    pub fn load(options: &Options, crowd: &Crowd, kind: Kind) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let stamp = std::time::UNIX_EPOCH.elapsed()?.as_millis();
        let http = Client::builder().timeout(Duration::from_secs(300)).build()?;
        let elasticsearch = options.elasticsearch.clone();
        let mut layout = match kind {
            Kind::One(primaries) => {
                let prefix = format!("one{primaries}-{stamp:x}");
                let settings = json!({"number_of_shards": primaries, "number_of_replicas": 0});
                let body = json!({"settings": settings, "mappings": mappings()});
                http.put(format!("{elasticsearch}/{prefix}")).json(&body).send()?.error_for_status()?;
                let name = match primaries {
                    1 => "1 primary".to_owned(),
                    _ => format!("{primaries} primaries"),
                };
                Self::new(options, name, prefix, http, folder)
            }
            Kind::Geoshards(count) => {
                let prefix = format!("geo{count}-{stamp:x}");
                let map = planned(crowd, count)?;
                let config = configure(options, folder.path(), &prefix, &map)?;
                let binary = binary(options)?;
                let created =
                    Command::new(&binary).args(["shards", "create", "--config"]).arg(&config).output()?;
                if !created.status.success() {
                    bail!("geofold shards create: {}", String::from_utf8_lossy(&created.stderr));
                }
                let mut layout = Self::new(options, format!("{count} geoshards"), prefix, http, folder);
                layout.indices =
                    map.shards().iter().map(|shard| format!("{}-{shard}", layout.prefix)).collect();
                layout.homes = crowd
                    .places
                    .iter()
                    .map(|&place| Ok(u16::try_from(map.locate_index(place))?))
                    .collect::<Result<_>>()?;
                layout.maps = Some(LiveMaps::One(Arc::new(map)));
                layout.router = Some(route(&binary, &config, layout.folder.path())?);
                layout
            }
        };
        layout.write_everybody(crowd)?;
        Ok(layout)
    }

    fn new(options: &Options, name: String, prefix: String, http: Client, folder: TempDir) -> Self {
        Self {
            name,
            indices: vec![prefix.clone()],
            prefix,
            elasticsearch: options.elasticsearch.clone(),
            maps: None,
            homes: Vec::new(),
            router: None,
            version: AtomicU64::new(1),
            loaded: String::new(),
            http,
            folder,
        }
    }

    /// For a table.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// How the first load went.
    pub fn loaded(&self) -> String {
        self.loaded.clone()
    }

    pub fn map(&self) -> Option<&LiveMaps> {
        self.maps.as_ref()
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn router_pid(&self) -> Option<u32> {
        self.router.as_ref().map(|router| router.child.id())
    }

    /// As a client would: the router where there is one.
    pub fn ask(&self, question: &Question) -> Result<Asked> {
        let base = self.router.as_ref().map_or(&self.elasticsearch, |router| &router.url);
        self.post(&format!("{base}/{}/_search", self.prefix), question)
    }

    /// Elasticsearch itself, by these indices.
    pub fn ask_directly(&self, indices: &[String], question: &Question) -> Result<Asked> {
        self.post(&format!("{}/{}/_search", self.elasticsearch, indices.join(",")), question)
    }

    fn post(&self, url: &str, question: &Question) -> Result<Asked> {
        let answer = self.http.post(url).json(&question.body).send()?;
        let geoshards = answer.headers().get("x-geofold-geoshards-asked");
        let geoshards =
            geoshards.map(|count| Ok::<u64, anyhow::Error>(count.to_str()?.parse()?)).transpose()?;
        let status = answer.status();
        let body: Value = answer.json()?;
        if !status.is_success() || body["_shards"]["failed"] != 0 || body["timed_out"] != false {
            bail!("{url} answered {status}: {body}");
        }
        Ok(Asked { body, geoshards })
    }

    /// All begin with what was written refreshed.
    pub fn settle(&self) -> Result<()> {
        let indices = format!("{}/{}*", self.elasticsearch, self.prefix);
        self.http.post(format!("{indices}/_refresh")).send()?.error_for_status()?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }

    fn write_everybody(&mut self, crowd: &Crowd) -> Result<()> {
        let began = Instant::now();
        let everybody: Vec<usize> = (0..crowd.places.len()).collect();
        let chunks = Mutex::new(everybody.chunks(DOCUMENTS_PER_BULK));
        let load = || -> Result<()> {
            loop {
                let Some(chunk) = chunks.lock().ok().and_then(|mut chunks| chunks.next()) else {
                    return Ok(());
                };
                self.write(crowd, chunk.iter().copied(), 1)?;
            }
        };
        std::thread::scope(|scope| {
            let loaders: Vec<_> = (0..LOADERS).map(|_| scope.spawn(load)).collect();
            loaders
                .into_iter()
                .try_for_each(|loader| loader.join().unwrap_or_else(|_| bail!("a loader panicked")))
        })?;
        let per_second = crowd.places.len() as f64 / began.elapsed().as_secs_f64();
        // As indices are that have not just been filled: few segments, and the same number of them for all.
        let url = format!("{}/{}*/_forcemerge?max_num_segments=1", self.elasticsearch, self.prefix);
        self.http.post(url).timeout(Duration::from_secs(3_600)).send()?.error_for_status()?;
        let stats: Value =
            self.http.get(format!("{}/{}*/_stats/store", self.elasticsearch, self.prefix)).send()?.json()?;
        let megabytes = stats["_all"]["total"]["store"]["size_in_bytes"].as_f64().context("a size")? / 1e6;
        self.loaded = format!("{per_second:.0} documents/s, {megabytes:.0} MB");
        Ok(())
    }

    fn write(&self, crowd: &Crowd, people: impl Iterator<Item = usize>, version: u64) -> Result<()> {
        let mut lines = String::new();
        for n in people {
            let home = self.homes.get(n).map_or(0, |&home| usize::from(home));
            let index = &self.indices[home];
            let action = json!({"index": {
                "_index": index, "_id": format!("p{n}"), "version": version, "version_type": "external_gte",
            }});
            lines += &format!("{action}\n{}\n", crowd.document(n, version));
        }
        let request = self.http.post(format!("{}/_bulk?filter_path=errors", self.elasticsearch));
        let answer: Value =
            request.header("content-type", "application/x-ndjson").body(lines).send()?.json()?;
        if answer["errors"] != false {
            bail!("a _bulk failed: {answer}");
        }
        Ok(())
    }
}

/// Writes at a steady rate, until they are ended.
pub struct Writes<'scope> {
    is_over: Arc<AtomicBool>,
    writer: ScopedJoinHandle<'scope, Result<f64>>,
}

impl<'scope> Writes<'scope> {
    /// So many people a second are written again, where they are.
    pub fn begin<'env>(
        scope: &'scope Scope<'scope, 'env>,
        crowd: &'env Crowd,
        layout: &'env Layout,
        per_second: usize,
        seed: usize,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = is_over.clone();
        let writer = scope.spawn(move || {
            let mut random = Random::new(seed as u64);
            let (began, mut ticks, mut written) = (Instant::now(), 0, 0);
            while !told.load(Ordering::Relaxed) {
                let version = layout.version.fetch_add(1, Ordering::Relaxed) + 1;
                let each = per_second / 10;
                let everybody = crowd.places.len() as u64;
                let people: Vec<usize> =
                    (0..each).map(|_| usize::try_from(random.below(everybody)).unwrap_or(0)).collect();
                layout.write(crowd, people.into_iter(), version)?;
                written += each;
                ticks += 1;
                std::thread::sleep((TICK * ticks).saturating_sub(began.elapsed()));
            }
            Ok(written as f64 / began.elapsed().as_secs_f64())
        });
        Self { is_over, writer }
    }

    /// Ends them; gives how many there were per second.
    pub fn end(self) -> Result<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        self.writer.join().unwrap_or_else(|_| bail!("the writer panicked"))
    }
}

fn mappings() -> Value {
    json!({"dynamic": "strict", "properties": {
        "location": {"type": "geo_point"},
        "name": {"type": "text"},
        "bio": {"type": "text"},
        "tags": {"type": "keyword"},
        "age": {"type": "integer"},
        "height": {"type": "integer"},
        "active": {"type": "boolean"},
        "seen": {"type": "long"},
    }})
}

/// A map of so many geoshards with about as many people each.
fn planned(crowd: &Crowd, count: usize) -> Result<GeoshardMap> {
    let mut loads = CellLoads::new(12);
    for &place in crowd.places.iter().take(PLANNED_BY) {
        loads.add(place, 1.0)?;
    }
    let options = PlanOptions { level: 7, split_above: 0.25, counts: count..=count, by: By::Cv };
    Ok(MapPlan::make(&loads, &options)?.map(1, "planned for the race", &Naming::Fresh)?)
}

fn binary(options: &Options) -> Result<PathBuf> {
    match &options.geofold {
        Some(binary) => Ok(binary.clone()),
        // target/release/examples/search_race and target/release/geofold.
        None => {
            Ok(std::env::current_exe()?.ancestors().nth(2).context("this program's folder")?.join("geofold"))
        }
    }
}

fn configure(options: &Options, folder: &Path, prefix: &str, map: &GeoshardMap) -> Result<PathBuf> {
    fs::write(folder.join("map.json"), map.to_json())?;
    let settings = json!({"number_of_replicas": 0});
    fs::write(
        folder.join("template.json"),
        json!({"settings": settings, "mappings": mappings()}).to_string(),
    )?;
    let config = folder.join("geofold.toml");
    let toml = format!(
        "[kafka]\nbrokers = [\"127.0.0.1:9092\"]\ntopic = \"none\"\n\
         [elasticsearch]\nurls = [{:?}]\nprefix = {prefix:?}\n\
         [geoshards]\nmap = \"map.json\"\nindex_template = \"template.json\"\n",
        options.elasticsearch
    );
    fs::write(&config, toml)?;
    Ok(config)
}

fn route(binary: &Path, config: &Path, folder: &Path) -> Result<Router> {
    let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let log = File::create(folder.join("router.log"))?;
    let child = Command::new(binary)
        .args(["route", "--listen", &listen, "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("starting {}", binary.display()))?;
    let router = Router { child, url: format!("http://{listen}") };
    for _ in 0..600 {
        let answer = reqwest::blocking::get(format!("{}/readyz", router.url));
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(router);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = fs::read_to_string(folder.join("router.log")).unwrap_or_default();
    bail!("the router does not get ready: {log}")
}
