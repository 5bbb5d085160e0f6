//! `geofold config`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};

use super::{Failure, output};
use crate::support::config::{Config, ConfigFinding};

/// Write a first configuration.
#[derive(Debug, Args)]
pub(super) struct ConfigCommandArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(InitArgs),
}

/// Write a short, commented configuration file; never over an existing one.
///
/// The values are checked first. config/geofold.toml describes every key. Continue with `geofold shards create` and `geofold check`.
#[derive(Debug, Args)]
struct InitArgs {
    /// File to write.
    #[arg(value_name = "FILE", default_value = "geofold.toml")]
    file: PathBuf,
    /// Brokers, as HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    brokers: Vec<String>,
    /// Topic of document writes.
    #[arg(long, value_name = "NAME")]
    topic: String,
    /// URLs of Elasticsearch's nodes.
    #[arg(long, value_name = "URL", value_delimiter = ',', required_unless_present = "cloud_id")]
    elasticsearch: Vec<String>,
    /// Cloud ID of a deployment of Elastic Cloud, instead of --elasticsearch.
    #[arg(long, value_name = "ID", conflicts_with = "elasticsearch")]
    cloud_id: Option<String>,
    /// Geoshard map, as `geofold shards plan` makes it; a relative path starts at the file's folder.
    #[arg(long, value_name = "FILE")]
    map: PathBuf,
    /// Consumer group.
    #[arg(long, value_name = "NAME", default_value = "geofold")]
    group: String,
    /// Topic for records that cannot be applied; it has to exist [default: TOPIC-dead-letters].
    #[arg(long, value_name = "NAME")]
    dead_letter_topic: Option<String>,
    /// No dead-letter topic: a record that cannot be applied stops its partition until a person decides.
    #[arg(long, conflicts_with = "dead_letter_topic")]
    stop_at_bad_records: bool,
}

impl InitArgs {
    /// The dead-letter topic, unless bad records stop.
    fn letters(&self) -> Option<String> {
        let default = || format!("{}-dead-letters", self.topic);
        (!self.stop_at_bad_records).then(|| self.dead_letter_topic.clone().unwrap_or_else(default))
    }
}

pub(super) fn config(args: ConfigCommandArgs) -> Result<ExitCode, Failure> {
    let Command::Init(args) = args.command;
    let text = text(&args);
    check(&text, &args.file)?;
    let path = args.file.display();
    let mut file = match File::create_new(&args.file) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(Failure::usage(anyhow!(
                "{path} exists and is not overwritten; name another file, or remove it"
            )));
        }
        Err(error) => {
            return Err(Failure::usage(anyhow::Error::new(error).context(format!("writing {path}"))));
        }
    };
    file.write_all(text.as_bytes()).with_context(|| format!("writing {path}"))?;
    let topics = match args.letters() {
        Some(letters) => format!("the topics {} and {letters} have to exist", args.topic),
        None => format!("the topic {} has to exist", args.topic),
    };
    output::line(format_args!(
        "{path} is written; {topics}; continue with: geofold shards create -c {path}, then geofold check -c {path}"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What a worker would refuse is not written. The environment is left out: it may differ where the file is used.
fn check(text: &str, file: &Path) -> Result<(), Failure> {
    let config = Config::from_toml(text, file.parent().unwrap_or(Path::new("")), &BTreeMap::new());
    let findings = config.map_err(Failure::usage)?.findings();
    let errors: Vec<String> =
        findings.iter().filter(|one| ConfigFinding::is_error(one)).map(ToString::to_string).collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::usage(anyhow!("nothing is written: {}", errors.join("; "))))
    }
}

fn text(args: &InitArgs) -> String {
    // In a file, `${` begins the name of a variable.
    let quoted = |text: &str| toml::Value::from(text.replace("${", "$${")).to_string();
    let list = |items: &[String]| items.iter().map(|item| quoted(item.trim())).collect::<Vec<_>>().join(", ");
    let dead_letters = match args.letters() {
        Some(topic) => format!(
            "# A record that cannot be applied goes there, with the reason: geofold dead-letters list. The topic has to exist.\n\
             # policy = \"stop\", without a topic, stops its partition instead.\n\
             policy = \"topic\"\n\
             topic = {}\n",
            quoted(&topic)
        ),
        None => "# A record that cannot be applied stops its partition. policy = \"topic\" sends it to a topic instead.\n\
                 policy = \"stop\"\n\
                 # topic = \"documents-dead-letters\"\n"
            .to_owned(),
    };
    format!(
        "# Written by geofold config init. Every key: config/geofold.toml of the repository. Environment variables override a key:\n\
         # GEOFOLD_KAFKA__TOPIC is kafka.topic. Write secrets as \"${{NAME}}\", or name a file: elasticsearch.password_file.\n\n\
         [kafka]\n\
         brokers = [{brokers}]\n\
         topic = {topic}\n\
         # The workers of one group share the partitions.\n\
         group_id = {group}\n\
         # How producers choose the partition of a key: \"murmur2\" (Java), \"crc32\" (librdkafka), \"fnv1a\" (Sarama).\n\
         # partitioner = \"murmur2\"\n\n\
         [elasticsearch]\n\
         {nodes}\n\
         # Start of every index name.\n\
         prefix = \"geofold\"\n\
         # username = \"geofold\"\n\
         # password = \"${{ELASTICSEARCH_PASSWORD}}\"\n\n\
         [documents]\n\
         # Path of the location in a document, in any form of geo_point.\n\
         location = \"location\"\n\n\
         [geoshards]\n\
         # From geofold shards plan. Change it with geofold shards migrate only.\n\
         map = {map}\n\n\
         [dead_letter]\n\
         {dead_letters}\n\
         [admin]\n\
         # Metrics, health and the status page. \"0.0.0.0:9464\" lets other machines in.\n\
         listen = \"127.0.0.1:9464\"\n",
        brokers = list(&args.brokers),
        topic = quoted(&args.topic),
        group = quoted(&args.group),
        nodes = match &args.cloud_id {
            Some(id) => format!("cloud_id = {}", quoted(id)),
            None => format!("urls = [{}]", list(&args.elasticsearch)),
        },
        map = quoted(&args.map.to_string_lossy()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::config::DeadLetterPolicy;

    fn args(topic: &str, dead_letter_topic: Option<&str>, stop_at_bad_records: bool) -> InitArgs {
        InitArgs {
            file: "geofold.toml".into(),
            brokers: vec!["a:1".to_owned(), " b:2".to_owned()],
            topic: topic.to_owned(),
            elasticsearch: vec!["http://e:9200".to_owned()],
            cloud_id: None,
            map: "map.json".into(),
            group: "g".to_owned(),
            dead_letter_topic: dead_letter_topic.map(str::to_owned),
            stop_at_bad_records,
        }
    }

    fn loaded(args: &InitArgs) -> Config {
        Config::from_toml(&text(args), Path::new(""), &BTreeMap::new()).unwrap()
    }

    #[test]
    fn written_file_says_what_the_flags_say() {
        let config = loaded(&args("documents", Some("bad"), false));
        assert_eq!(config.kafka.brokers, ["a:1", "b:2"]);
        assert_eq!((config.kafka.topic.as_str(), config.kafka.group_id.as_str()), ("documents", "g"));
        assert_eq!(config.geoshards.map, Path::new("map.json"));
        assert_eq!(config.dead_letter.topic.as_deref(), Some("bad"));
        assert!(config.findings().is_empty(), "{:?}", config.findings());
        let stops = loaded(&args("documents", None, true));
        assert!(stops.dead_letter.topic.is_none() && stops.findings().is_empty());
    }

    #[test]
    fn bad_records_go_to_a_topic_unless_they_are_to_stop() {
        let first = loaded(&args("documents", None, false)).dead_letter;
        assert_eq!(
            (first.policy, first.topic.as_deref()),
            (DeadLetterPolicy::Topic, Some("documents-dead-letters"))
        );
        assert_eq!(loaded(&args("documents", None, true)).dead_letter.policy, DeadLetterPolicy::Stop);
    }

    #[test]
    fn other_keys_have_their_defaults() {
        let mut config = loaded(&args("documents", None, true));
        let default = Config::default();
        config.kafka = default.kafka.clone();
        config.elasticsearch.urls.clone_from(&default.elasticsearch.urls);
        config.geoshards = default.geoshards.clone();
        assert_eq!(config, default);
    }

    #[test]
    fn cloud_id_is_written_instead_of_urls() {
        let id = "places:ZXUtY2VudHJhbC0xLmF3cy5jbG91ZC5lcy5pbyRhYmMxMjMkZGVmNDU2";
        let args = InitArgs {
            elasticsearch: Vec::new(),
            cloud_id: Some(id.to_owned()),
            ..args("documents", None, true)
        };
        let config = loaded(&args).elasticsearch;
        assert!(config.urls.is_empty());
        assert_eq!(config.nodes()[0].to_string(), "https://abc123.eu-central-1.aws.cloud.es.io");
    }

    #[test]
    fn text_of_a_flag_is_quoted() {
        let odd = args("a\"b${X}", None, false);
        assert_eq!(loaded(&odd).kafka.topic, "a\"b${X}");
        assert!(check(&text(&odd), Path::new("x")).is_err(), "no topic's name");
    }
}
