//! Asks the database of counts: is it there, are its tables ones that this geofold knows, may this user do what a collector
//! does? Workers need none of it.

use std::path::Path;

use super::CheckFinding;
use crate::io::database::{Database, DatabaseError, Sql};
use crate::ops::tally::collect::store::MIGRATIONS;
use crate::support::config::Config;
use crate::support::config::counts::DatabaseConfig;
use crate::support::config::database_url::DatabaseUrl;

const ABOUT: &str = "database of counts";

/// `None` if nothing is counted.
pub(super) async fn look(config: &Config) -> Option<CheckFinding> {
    if !config.tally.is_on() {
        return None;
    }
    let database = &config.database;
    Some(match &database.url {
        DatabaseUrl::Sqlite(path) if !path.exists() => judge_absent(path),
        _ => look_into(database).await,
    })
}

/// A file that is not there yet is not made by a check.
fn judge_absent(path: &Path) -> CheckFinding {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if folder.is_dir() {
        CheckFinding::ok(
            ABOUT,
            format_args!("{} does not exist yet: geofold collect creates it", path.display()),
        )
    } else {
        CheckFinding::error(
            ABOUT,
            format_args!("the folder {} does not exist: create it, or change database.url", folder.display()),
        )
    }
}

async fn look_into(config: &DatabaseConfig) -> CheckFinding {
    let database = match Database::open(config).await {
        Ok(database) => database,
        Err(error) => return judge(&error),
    };
    let tried = rehearse(&database).await;
    let finding = match tried {
        Ok(None) => CheckFinding::ok(
            ABOUT,
            format_args!("{} answered; geofold collect makes its tables", database.name()),
        ),
        Ok(Some(version)) => match known() {
            known if version > known => CheckFinding::error(
                ABOUT,
                format_args!(
                    "the tables in {} are of version {version}, and this geofold knows versions up to {known}: use the one that \
                     wrote them, or a later one",
                    database.name()
                ),
            ),
            _ => CheckFinding::ok(
                ABOUT,
                format_args!("{} answered, and this user may read and write", database.name()),
            ),
        },
        Err(error) => judge(&error),
    };
    database.close().await;
    finding
}

fn known() -> i64 {
    i64::try_from(MIGRATIONS.steps.len()).unwrap_or(i64::MAX)
}

fn judge(error: &DatabaseError) -> CheckFinding {
    if error.is_passing() {
        CheckFinding::unreachable(ABOUT, error)
    } else {
        CheckFinding::error(ABOUT, error)
    }
}

/// Executes a collector's statements without rows, in a transaction that is rolled back. Returns the tables' version; `None` if
/// they do not exist but could be created.
async fn rehearse(database: &Database) -> Result<Option<i64>, DatabaseError> {
    let mut transaction = database.begin("trying what a collector does").await?;
    let exist = Sql {
        postgres: "SELECT (to_regclass('geofold_schema') IS NOT NULL)::int::bigint",
        sqlite: "SELECT COUNT(*) FROM sqlite_master WHERE name = 'geofold_schema'",
    };
    let rows = transaction.rows(exist, &[]).await?;
    let are_there = match rows.first() {
        Some(row) => transaction.cell(row.int(0))? > 0,
        None => false,
    };
    if !are_there {
        transaction.execute("CREATE TABLE geofold_check (id bigint)", &[]).await?;
        transaction.rollback().await?;
        return Ok(None);
    }
    let sql = "SELECT COALESCE(MAX(version), 0) FROM geofold_schema WHERE tables = 'counts'";
    let rows = transaction.rows(sql, &[]).await?;
    let version = match rows.first() {
        Some(row) => transaction.cell(row.int(0))?,
        None => 0,
    };
    if version > 0 && version <= known() {
        for statement in TRIED {
            transaction.execute(statement, &[]).await?;
        }
    }
    transaction.rollback().await?;
    Ok(Some(version))
}

/// A server checks permissions even if no row is affected.
const TRIED: [&str; 14] = [
    "INSERT INTO tag SELECT * FROM tag WHERE 1 = 0",
    "UPDATE tag SET count = count WHERE 1 = 0",
    "DELETE FROM tag WHERE 1 = 0",
    "INSERT INTO tag_list SELECT * FROM tag_list WHERE 1 = 0",
    "DELETE FROM tag_list WHERE 1 = 0",
    "INSERT INTO increment SELECT * FROM increment WHERE 1 = 0",
    "DELETE FROM increment WHERE 1 = 0",
    "INSERT INTO merged_to SELECT * FROM merged_to WHERE 1 = 0",
    "UPDATE merged_to SET position = position WHERE 1 = 0",
    "INSERT INTO increment_offset SELECT * FROM increment_offset WHERE 1 = 0",
    "UPDATE increment_offset SET next = next WHERE 1 = 0",
    "INSERT INTO increment_topic SELECT * FROM increment_topic WHERE 1 = 0",
    "UPDATE increment_topic SET partitions = partitions WHERE 1 = 0",
    "UPDATE collector SET beat = beat WHERE 1 = 0",
];

#[cfg(test)]
mod tests {
    use super::super::CheckLevel;
    use super::*;
    use crate::io::database::tests::{each, postgres};
    use crate::ops::tally::collect::store::CountStore;
    use crate::support::config::Secret;

    fn counting(database: DatabaseConfig) -> Config {
        let mut config = Config { database, ..Config::default() };
        config.tally.geoshard = true;
        config
    }

    async fn found(database: &DatabaseConfig) -> CheckFinding {
        look(&counting(database.clone())).await.unwrap()
    }

    async fn carry_out(database: &Database, sql: &'static str) {
        let mut transaction = database.begin("testing").await.unwrap();
        transaction.execute(sql, &[]).await.unwrap();
        transaction.commit().await.unwrap();
    }

    #[tokio::test]
    async fn no_counting_needs_no_database() {
        assert_eq!(look(&Config::default()).await, None);
    }

    #[tokio::test]
    async fn missing_database_file_passes_if_its_folder_exists() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| DatabaseConfig {
            url: DatabaseUrl::Sqlite(folder.path().join(path)),
            ..DatabaseConfig::default()
        };
        let finding = found(&at("counts.db")).await;
        assert_eq!(finding.level, CheckLevel::Ok, "{finding}");
        assert!(finding.message.contains("geofold collect creates it"), "{finding}");
        assert!(!folder.path().join("counts.db").exists());
        let finding = found(&at("no/such/counts.db")).await;
        assert_eq!(finding.level, CheckLevel::Error, "{finding}");
        assert!(finding.message.contains("change database.url"), "{finding}");
    }

    #[tokio::test]
    async fn database_passes_with_and_without_tables_but_not_newer_ones() {
        for fresh in each().await {
            let finding = found(&fresh.config).await;
            assert_eq!(finding.level, CheckLevel::Ok, "{finding}");
            assert!(finding.message.contains("makes its tables"), "{finding}");
            CountStore::new(fresh.database.clone(), 10, 10).prepare().await.unwrap();
            let finding = found(&fresh.config).await;
            assert_eq!(finding.level, CheckLevel::Ok, "{finding}");
            assert!(finding.message.contains("may read and write"), "{finding}");
            let later =
                "INSERT INTO geofold_schema (tables, version, name) VALUES ('counts', 99, 'of tomorrow')";
            carry_out(&fresh.database, later).await;
            let finding = found(&fresh.config).await;
            assert_eq!(finding.level, CheckLevel::Error, "{finding}");
            assert!(finding.message.contains("version 99"), "{finding}");
        }
    }

    #[tokio::test]
    async fn missing_database_differs_from_refused_login() {
        let nobody = DatabaseConfig {
            url: "postgres://geofold@127.0.0.1:9/counts".parse().unwrap(),
            ..DatabaseConfig::default()
        };
        let finding = found(&nobody).await;
        assert_eq!(finding.level, CheckLevel::Unreachable, "{finding}");
        // The rest where there is a server.
        let Some(fresh) = postgres().await else { return };
        let wrong =
            DatabaseConfig { password: Some(Secret::new("hunter2".to_owned())), ..fresh.config.clone() };
        let finding = found(&wrong).await;
        assert_eq!(finding.level, CheckLevel::Error, "{finding}");
        assert!(finding.message.contains("user and password"), "{finding}");
        assert!(!finding.to_string().contains("hunter2"), "{finding}");
    }

    #[tokio::test]
    async fn a_user_who_may_not_make_or_write_the_tables_is_found_out() {
        let Some(fresh) = postgres().await else { return };
        // The database is the test's own, but a role belongs to the server.
        let role = format!("reader_{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let sql = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
        carry_out(&fresh.database, sql(format!("CREATE ROLE {role} LOGIN PASSWORD 'reader'"))).await;
        let url = fresh.config.url.to_string().replace("geofold@", &format!("{role}@"));
        let reader = DatabaseConfig {
            url: url.parse().unwrap(),
            password: Some(Secret::new("reader".to_owned())),
            ..fresh.config.clone()
        };
        let finding = found(&reader).await;
        assert_eq!(finding.level, CheckLevel::Error, "{finding}");
        assert!(finding.message.contains("what the user may do there"), "{finding}");
        CountStore::new(fresh.database.clone(), 10, 10).prepare().await.unwrap();
        carry_out(&fresh.database, sql(format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")))
            .await;
        let finding = found(&reader).await;
        assert_eq!(finding.level, CheckLevel::Error, "{finding}");
        assert!(finding.message.contains("permission denied"), "{finding}");
    }
}
