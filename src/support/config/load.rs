//! From a file and the environment to a [`Config`].
//!
//! The file becomes a flat list of keys, each with its value and the line it stands on. Variables are laid over it,
//! `${NAME}` is replaced, unknown keys are refused, secrets are read from their files; only then do the types look at
//! it. So every complaint can name the key and the place, and all complaints of one stage come together. No complaint
//! quotes a line of the file: it may hold a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::campaigns::CampaignDocuments;
use super::kafka::GroupProtocol;
use super::keys::{self, Keys, REQUIRED, SECRETS};
use super::overlay;
use super::types::Config;

/// Why the configuration could not be loaded.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading the configuration {path}: {source}; {}", advice_on_reading(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// Invalid TOML.
    #[error("{place}: not valid TOML: {message}")]
    Syntax {
        /// Where it stops being TOML.
        place: ValueOrigin,
        /// The parser's error.
        message: String,
    },
    /// A variable that may override a key is not text.
    #[error("the environment variable {0} is not valid UTF-8; set it again, or unset it")]
    VariableNotUtf8(String),
    /// Keys that are unknown, missing, or have no legal value.
    #[error("{}", .0.iter().map(BadConfigKey::to_string).collect::<Vec<_>>().join("\n"))]
    Keys(Vec<BadConfigKey>),
}

fn advice_on_reading(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::InvalidData => "save it as UTF-8",
        io::ErrorKind::NotFound => {
            "check the path (--config, GEOFOLD_CONFIG), or write a first one with geofold config init"
        }
        _ => "check the path (--config, GEOFOLD_CONFIG) and its permissions",
    }
}

/// One key that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {key}: {problem}")]
pub struct BadConfigKey {
    /// Where it was given.
    pub place: ValueOrigin,
    /// The key's dotted path, or the variable's name.
    pub key: String,
    /// The problem, and what to do.
    pub problem: String,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    /// A line of the configuration file, counted from 1.
    Line(PathBuf, usize),
    /// The configuration file as a whole.
    File(PathBuf),
    /// The environment.
    Environment,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(path, line) => write!(f, "{}:{line}", path.display()),
            Self::File(path) => path.display().fmt(f),
            Self::Environment => f.write_str("environment"),
        }
    }
}

/// A value and where it was given.
struct Given {
    value: Value,
    place: ValueOrigin,
}

impl Config {
    /// Reads the file at `path` and lays `env` over it. Relative paths in it start at the file's folder.
    pub fn load(path: &Path, env: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let text =
            fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let base_dir = path.parent().unwrap_or(Path::new(""));
        Loader { file: path, base_dir, env, keys: Keys::new(), bad: Vec::new() }.load(&text)
    }

    /// The same for a text; relative paths in it start at `base_dir`, where files with secrets are read.
    pub fn from_toml(
        text: &str,
        base_dir: &Path,
        env: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let file = Path::new("configuration");
        Loader { file, base_dir, env, keys: Keys::new(), bad: Vec::new() }.load(text)
    }
}

struct Loader<'a> {
    file: &'a Path,
    base_dir: &'a Path,
    env: &'a BTreeMap<String, String>,
    keys: Keys,
    bad: Vec<BadConfigKey>,
}

impl Loader<'_> {
    fn load(mut self, text: &str) -> Result<Config, ConfigError> {
        let mut given = self.parse(text)?;
        self.refuse_unknown(&given);
        self.override_from_env(&mut given);
        self.stop_if_bad()?;
        self.expand(&mut given);
        self.read_secret_files(&mut given);
        self.require(&given);
        self.stop_if_bad()?;
        let mut config = self.typed(&given)?;
        self.refuse_foreign_keys(&given, config.kafka.group_protocol);
        self.stop_if_bad()?;
        self.resolve_paths(&mut config);
        if config.elasticsearch.cloud_id.is_some() {
            // The default of a key that was not given.
            config.elasticsearch.urls.clear();
        }
        Ok(config)
    }

    fn parse(&self, text: &str) -> Result<BTreeMap<String, Given>, ConfigError> {
        let line_of = |offset: usize| {
            let before = &text.as_bytes()[..offset.min(text.len())];
            ValueOrigin::Line(self.file.to_owned(), 1 + before.iter().filter(|byte| **byte == b'\n').count())
        };
        let syntax = |error: toml::de::Error| ConfigError::Syntax {
            place: line_of(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        };
        let table: Table = text.parse().map_err(syntax)?;
        let spans = DeTable::parse(text).map_err(syntax)?;
        let mut given = BTreeMap::new();
        flatten("", table, Some(spans.get_ref()), &line_of, &mut given);
        Ok(given)
    }

    fn complain(&mut self, place: ValueOrigin, key: &str, problem: impl Into<String>) {
        self.bad.push(BadConfigKey { place, key: key.to_owned(), problem: problem.into() });
    }

    fn stop_if_bad(&mut self) -> Result<(), ConfigError> {
        if self.bad.is_empty() { Ok(()) } else { Err(ConfigError::Keys(std::mem::take(&mut self.bad))) }
    }

    fn refuse_unknown(&mut self, given: &BTreeMap<String, Given>) {
        for (key, Given { value, place }) in given {
            let empty_section = value.as_table().is_some_and(Table::is_empty) && self.keys.is_section(key);
            if empty_section || self.keys.example(key).is_some() {
                continue;
            }
            let problem = if self.keys.is_section(key) {
                format!("this is a section: write [{key}] and its keys below")
            } else {
                format!("unknown key; {}", self.suggestion(key, |known| known.to_owned()))
            };
            self.complain(place.clone(), key, problem);
        }
    }

    /// The known key nearest to an unknown one, named by `name`.
    fn suggestion(&self, key: &str, name: impl Fn(&str) -> String) -> String {
        if let Some(known) = self.keys.nearest(key) {
            return format!("did you mean {}?", name(known));
        }
        let section = keys::split(key).0;
        match self.keys.of_section(section) {
            names if names.is_empty() => "there is no such section".to_owned(),
            names => format!("[{section}] has {}", names.join(", ")),
        }
    }

    fn override_from_env(&mut self, given: &mut BTreeMap<String, Given>) {
        for (variable, text) in self.env {
            let Some(key) = overlay::overridden_key(variable) else { continue };
            if self.keys.example(&key).is_none() {
                let suggestion = self.suggestion(&key, overlay::variable_for);
                self.complain(
                    ValueOrigin::Environment,
                    variable,
                    format!("overrides no known key; {suggestion}"),
                );
                continue;
            }
            match overlay::parse_override(&self.keys, &key, text) {
                Ok(value) => {
                    drop_twin_in_file(given, &key);
                    given.insert(key, Given { value, place: ValueOrigin::Environment });
                }
                Err(problem) => self.complain(ValueOrigin::Environment, variable, problem),
            }
        }
        for key in given.keys().filter(|key| keys::of_pair(key).is_none()) {
            if let Some(part) = keys::other_forms(key).into_iter().find(|part| given.contains_key(part)) {
                let problem = format!("give either {key} or its parts, not both");
                self.bad.push(BadConfigKey { place: ValueOrigin::Environment, key: part, problem });
            }
        }
    }

    /// Replaces `${NAME}` in values of the file. A variable's text is not expanded again.
    fn expand(&mut self, given: &mut BTreeMap<String, Given>) {
        for (key, Given { value, place }) in given {
            if *place == ValueOrigin::Environment {
                continue;
            }
            if let Err(problem) = overlay::expand(value, self.env) {
                self.complain(place.clone(), key, problem);
            }
        }
    }

    fn read_secret_files(&mut self, given: &mut BTreeMap<String, Given>) {
        for key in SECRETS {
            let file_key = format!("{key}_file");
            let Some(Given { value: Value::String(path), place }) = given.get(&file_key) else { continue };
            let (path, place) = (self.base_dir.join(path), place.clone());
            if given.contains_key(key) {
                self.complain(place, &file_key, format!("give either {key} or {file_key}, not both"));
                continue;
            }
            match fs::read_to_string(&path) {
                Ok(text) => {
                    // Editors and `echo` add a final newline, which is not part of the secret.
                    let value = Value::String(text.trim_end_matches(['\r', '\n']).to_owned());
                    given.insert(key.to_owned(), Given { value, place });
                }
                Err(error) => {
                    let problem =
                        format!("reading {}: {error}; check the path and its permissions", path.display());
                    self.complain(place, &file_key, problem);
                }
            }
        }
    }

    fn require(&mut self, given: &BTreeMap<String, Given>) {
        for key in REQUIRED {
            let other = keys::alternative(key);
            let other_given = other.and_then(|other| given.get(other));
            match (given.get(key), other.zip(other_given)) {
                (Some(_), Some((other, Given { place, .. }))) => {
                    self.complain(place.clone(), other, format!("give either {key} or {other}, not both"));
                }
                (None, None) => {
                    let example = self.keys.example(key).map(Value::to_string).unwrap_or_default();
                    let or = other.map(|other| format!(", or {other}")).unwrap_or_default();
                    let problem = format!("required{or}; for example {example}");
                    self.complain(ValueOrigin::File(self.file.to_owned()), key, problem);
                }
                _ => {}
            }
        }
    }

    fn typed(&self, given: &BTreeMap<String, Given>) -> Result<Config, ConfigError> {
        serde_path_to_error::deserialize(nest(given)).map_err(|error| {
            let path = error.path().to_string();
            let key = path.split('[').next().unwrap_or_default();
            // Of a key that may be a table, one of its parts.
            let part = || given.iter().find(|(part, _)| keys::of_pair(part).is_some_and(|(whole, _)| whole == key));
            let origin = given.get(key).or_else(|| part().map(|(_, given)| given));
            let place = origin.map_or_else(|| ValueOrigin::File(self.file.to_owned()), |given| given.place.clone());
            let mut problem = error.inner().message().trim().to_owned();
            if problem.ends_with("expected a duration") {
                problem.push_str(r#"; write it with a unit, like "200ms", "5s" or "10m""#);
            } else if problem.ends_with("expected a sequence") {
                problem.push_str(r#"; write a list, like ["host:9092"]"#);
            } else if problem.contains("invalid socket address") {
                let value = given.get(key).map(|given| format!("{} is not an address and a port", given.value));
                problem = format!(
                    r#"{}; write an IP address, like "127.0.0.1:9464" (this machine alone) or "0.0.0.0:9464""#,
                    value.unwrap_or(problem)
                );
            }
            ConfigError::Keys(vec![BadConfigKey { place, key: path, problem }])
        })
    }

    /// A key of the other group protocol would be ignored, and its author would not know.
    fn refuse_foreign_keys(&mut self, given: &BTreeMap<String, Given>, protocol: GroupProtocol) {
        for name in protocol.foreign_keys() {
            let key = format!("kafka.{name}");
            let Some(Given { place, .. }) = given.get(&key) else { continue };
            let problem = match protocol {
                GroupProtocol::Classic => "has a meaning with group_protocol = \"consumer\" only; remove it",
                GroupProtocol::Consumer => {
                    "has a meaning with group_protocol = \"classic\" only; remove it: the broker decides"
                }
            };
            self.complain(place.clone(), &key, problem);
        }
    }

    fn resolve_paths(&self, config: &mut Config) {
        let kafka = &mut config.kafka;
        let elasticsearch = &mut config.elasticsearch;
        let optional = [
            &mut kafka.sasl_password_file,
            &mut kafka.oauth_client_secret_file,
            &mut kafka.oauth_ca_file,
            &mut kafka.ssl_ca_file,
            &mut elasticsearch.password_file,
            &mut elasticsearch.api_key_file,
            &mut elasticsearch.ca_file,
            &mut elasticsearch.client_cert_file,
            &mut elasticsearch.client_key_file,
            &mut config.geoshards.index_template,
            &mut config.schema_registry.password_file,
            &mut config.schema_registry.bearer_token_file,
            &mut config.schema_registry.ca_file,
            &mut config.source.password_file,
            &mut config.source.bearer_token_file,
            &mut config.source.ca_file,
            &mut config.database.password_file,
            &mut config.database.ca_file,
            &mut config.collector.tls_certificate,
            &mut config.collector.tls_key,
            &mut config.collector.tls_client_ca_file,
            &mut config.route.load_file,
            &mut config.route.tls_certificate,
            &mut config.route.tls_key,
            &mut config.route.tls_client_ca_file,
            &mut config.campaigns.bearer_token_file,
            &mut config.audit.temp_dir,
        ];
        for path in optional.into_iter().flatten().chain([&mut config.geoshards.map]) {
            *path = self.base_dir.join(&*path);
        }
        for path in config.distribution.jobs.iter_mut().filter_map(|job| job.ca_file.as_mut()) {
            *path = self.base_dir.join(&*path);
        }
        for periodic in &mut config.campaigns.periodic {
            if let CampaignDocuments::Query(path) = &mut periodic.what {
                *path = self.base_dir.join(&*path);
            }
        }
        config.database.url.resolve(self.base_dir);
    }
}

/// Appends a table's keys by their dotted paths. Arrays and empty tables are values.
fn flatten(
    prefix: &str,
    table: Table,
    spans: Option<&DeTable<'_>>,
    line_of: &impl Fn(usize) -> ValueOrigin,
    given: &mut BTreeMap<String, Given>,
) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let spanned = spans.and_then(|spans| spans.get_key_value(name.as_str()));
        match value {
            Value::Table(inner) if !inner.is_empty() => {
                let inner_spans = match spanned.map(|(_, value)| value.get_ref()) {
                    Some(DeValue::Table(spans)) => Some(spans),
                    _ => None,
                };
                flatten(&key, inner, inner_spans, line_of, given);
            }
            value => {
                let place = line_of(spanned.map_or(0, |(key, _)| Spanned::span(key).start));
                given.insert(key, Given { value, place });
            }
        }
    }
}

/// The sections again, as the types want them.
fn nest(given: &BTreeMap<String, Given>) -> Table {
    let mut nested = Table::new();
    let mut insert = |path: &[&str], name: &str, value: Value| {
        let mut table = &mut nested;
        for section in path {
            let entry = table.entry(*section).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = entry else { return };
            table = inner;
        }
        table.insert(name.to_owned(), value);
    };
    for (key, Given { value, .. }) in given {
        if value.is_table() {
            continue;
        }
        match keys::free_setting(key) {
            Some((table, setting)) => {
                let (section, inner) = keys::split(table);
                insert(&[section, inner], setting, value.clone());
            }
            None => match keys::of_pair(key) {
                Some((whole, part)) => {
                    let (section, name) = keys::split(whole);
                    insert(&[section, name], part, value.clone());
                }
                None => {
                    let (section, name) = keys::split(key);
                    insert(&[section], name, value.clone());
                }
            },
        }
    }
    nested
}

/// A secret from the environment replaces the file that the configuration names for it, and the other way round; so do a path
/// and a pair, and alternatives.
fn drop_twin_in_file(given: &mut BTreeMap<String, Given>, key: &str) {
    let twins = match key.strip_suffix("_file") {
        Some(stem) if SECRETS.contains(&stem) => vec![stem.to_owned()],
        _ if SECRETS.contains(&key) => vec![format!("{key}_file")],
        _ => keys::alternative(key).map(str::to_owned).into_iter().chain(keys::other_forms(key)).collect(),
    };
    for twin in twins {
        if given.get(&twin).is_some_and(|given| given.place != ValueOrigin::Environment) {
            given.remove(&twin);
        }
    }
}
