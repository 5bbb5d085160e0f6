//! Checks the source of truth by fetching one document.

use bytes::Bytes;

use super::{CheckFinding, CheckLevel};
use crate::core::decode::Decoder;
use crate::support::config::Config;
use crate::worker::refeed::{DocumentSource, FetchAnswer};

const ABOUT: &str = "source of truth";

/// Whether the source answers; nothing if there is none. That it does not keeps no worker from starting: only what needs
/// it waits.
pub(super) async fn look_at_source(config: &Config) -> Option<CheckFinding> {
    config.source.kind?;
    let source = match DocumentSource::open(config) {
        Ok(source) => source,
        Err(error) => return Some(CheckFinding::error(ABOUT, error)),
    };
    let is_named = config.source.probe_id.is_some();
    Some(match source.probe().await {
        Err(failure) | Ok(FetchAnswer::Failed(failure)) => CheckFinding::unreachable(
            ABOUT,
            format_args!("{} gave no usable answer: {failure}", source.name()),
        ),
        Ok(FetchAnswer::Gone) if !is_named => CheckFinding::ok(
            ABOUT,
            format_args!("{} answers; set source.probe_id to see a document", source.name()),
        ),
        Ok(FetchAnswer::Gone) => CheckFinding::error(
            ABOUT,
            format_args!(
                "{} answers, and has no document with the id in source.probe_id: check source.url or source.query, and that the \
                 document exists; until then no other document counts as missing",
                source.name()
            ),
        ),
        Ok(FetchAnswer::Found(_)) if !is_named => CheckFinding::error(
            ABOUT,
            format_args!(
                "{} has a document for an id that should not exist: it answers 200 (or gives a row) for anything; \
                 missing documents would never be detected",
                source.name()
            ),
        ),
        Ok(FetchAnswer::Found(document)) => match judge(config, &source, document) {
            good if good.level == CheckLevel::Ok && source.has_everything().await => CheckFinding::error(
                ABOUT,
                format_args!(
                    "{} has the document of source.probe_id, and one for an id that should not exist: missing documents would \
                     never be detected",
                    source.name()
                ),
            ),
            finding => finding,
        },
        Ok(FetchAnswer::Unusable { detail, .. }) if !is_named => CheckFinding::warning(
            ABOUT,
            format_args!("{detail}; or set source.probe_id to an id that it takes"),
        ),
        Ok(FetchAnswer::Unusable { detail, .. }) => CheckFinding::error(
            ABOUT,
            format_args!("{detail} (this was the id in source.probe_id, which has to be that of a document)"),
        ),
    })
}

/// Whether a document of the source could be placed.
fn judge(config: &Config, source: &DocumentSource, document: Bytes) -> CheckFinding {
    let path = match config.documents.location_path() {
        Ok(path) => path,
        Err(error) => return CheckFinding::error(ABOUT, error),
    };
    let decoder = Decoder::new(path, config.positions.epoch, config.documents.max_bytes.as_usize());
    match decoder.document(document) {
        Ok(_) => {
            CheckFinding::ok(ABOUT, format_args!("{} has the document of source.probe_id", source.name()))
        }
        Err(error) => CheckFinding::error(
            ABOUT,
            format_args!(
                "{} has the document of source.probe_id, but it cannot be placed: {error}",
                source.name()
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::config::{SourceKind, SourceUrl};
    use crate::testkit::testing::source::{Reply, TestSource};

    async fn found(url: String, probe_id: &str) -> (CheckLevel, String) {
        let mut config = Config::default();
        config.source.kind = Some(SourceKind::Http);
        config.source.url = Some(url.parse::<SourceUrl>().unwrap());
        config.source.probe_id = Some(probe_id.to_owned());
        let finding = look_at_source(&config).await.unwrap();
        (finding.level, finding.message)
    }

    #[tokio::test]
    async fn check_fetches_one_document_from_the_source() {
        assert_eq!(look_at_source(&Config::default()).await, None);
        let server = TestSource::start().await;
        server.put("good", Reply::Document(r#"{"location":[1,2]}"#));
        server.put("bad", Reply::Document("{}"));
        server.put("down", Reply::Status(500));
        server.put("odd", Reply::Status(400));
        for (probe_id, level, text) in [
            ("good", CheckLevel::Ok, "has the document"),
            ("bad", CheckLevel::Error, "no location"),
            ("none", CheckLevel::Error, "no document with the id"),
            ("odd", CheckLevel::Error, "400"),
            ("down", CheckLevel::Unreachable, "500"),
        ] {
            let (found, message) = found(server.template(), probe_id).await;
            assert_eq!(found, level, "{probe_id:?}: {message}");
            assert!(message.contains(text), "{probe_id:?}: {message}");
        }
        server.put(crate::worker::refeed::UNLIKELY_ID, Reply::Document("{}"));
        let (level, message) = found(server.template(), "good").await;
        assert!(level == CheckLevel::Error && message.contains("should not exist"), "{message}");
        let elsewhere = server.template().replace("documents", "document");
        let (level, message) = found(elsewhere, "good").await;
        assert!(
            level == CheckLevel::Error && message.contains("source.url"),
            "a wrong path passes: {message}"
        );
    }
}
