//! One suite for both databases. PostgreSQL's part runs where `GEOFOLD_TEST_POSTGRES` says where one is (`dev/stack`).

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::support::config::Secret;

/// A new database of its own, and what has to live as long.
pub(crate) struct Fresh {
    pub(crate) database: Database,
    pub(crate) config: Config,
    _folder: tempfile::TempDir,
}

/// A fresh SQLite, and a fresh PostgreSQL where there is one.
pub(crate) async fn each() -> Vec<Fresh> {
    let mut all = vec![sqlite().await];
    all.extend(postgres().await);
    all
}

async fn sqlite() -> Fresh {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { url: DatabaseUrl::Sqlite(folder.path().join("test.db")), ..Config::default() };
    Fresh { database: Database::open(&config).await.unwrap(), config, _folder: folder }
}

/// With a database of its own on the server of the tests.
pub(crate) async fn postgres() -> Option<Fresh> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let url = std::env::var("GEOFOLD_TEST_POSTGRES").ok()?;
    let password = std::env::var("GEOFOLD_TEST_POSTGRES_PASSWORD").ok().map(Secret::new);
    let mut config = Config { url: url.parse().unwrap(), password, ..Config::default() };
    let name = format!("t{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let admin = Database::open(&config).await.unwrap();
    let Pool::Postgres(pool) = &admin.pool else { panic!("{url} is no PostgreSQL") };
    for sql in [format!("DROP DATABASE IF EXISTS {name}"), format!("CREATE DATABASE {name}")] {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.unwrap();
    }
    admin.close().await;
    let (start, _) = url.rsplit_once('/').unwrap();
    config.url = format!("{start}/{name}").parse().unwrap();
    Some(Fresh {
        database: Database::open(&config).await.unwrap(),
        config,
        _folder: tempfile::tempdir().unwrap(),
    })
}

const MAKE: Migrations = Migrations {
    tables: "test",
    steps: &[SchemaStep {
        name: "a table",
        statements: &[Sql {
            postgres: "CREATE TABLE thing (name text COLLATE \"C\" PRIMARY KEY, n bigint NOT NULL, data bytea)",
            sqlite: "CREATE TABLE thing (name text PRIMARY KEY, n bigint NOT NULL, data blob)",
        }],
    }],
};

const PUT: Sql = Sql {
    postgres: "INSERT INTO thing (name, n) SELECT * FROM UNNEST($1::text[], $2::bigint[]) \
               ON CONFLICT (name) DO UPDATE SET n = thing.n + EXCLUDED.n RETURNING name, n",
    sqlite: "INSERT INTO thing (name, n) SELECT value ->> 0, value ->> 1 FROM json_each($1) WHERE true \
             ON CONFLICT (name) DO UPDATE SET n = n + EXCLUDED.n RETURNING name, n",
};

async fn things(database: &Database) -> Vec<(String, i64)> {
    let mut transaction = database.begin("looking").await.unwrap();
    let rows = transaction.rows("SELECT name, n FROM thing ORDER BY name", &[]).await.unwrap();
    transaction.rollback().await.unwrap();
    rows.iter().map(|row| (row.text(0).unwrap(), row.int(1).unwrap())).collect()
}

#[tokio::test]
async fn a_transaction_happens_whole_or_not_at_all() {
    for Fresh { database, .. } in &each().await {
        database.migrate(&MAKE).await.unwrap();
        let sql = "INSERT INTO thing (name, n, data) VALUES ($1, $2, $3)";
        let values = |n| [SqlValue::Text("é\u{1F600}"), SqlValue::Int(n), SqlValue::Bytes(b"\0\xff")];

        let mut dropped = database.begin("dropping").await.unwrap();
        assert_eq!(dropped.execute(sql, &values(1)).await.unwrap(), 1);
        drop(dropped);
        let mut back = database.begin("rolling back").await.unwrap();
        back.execute(sql, &values(2)).await.unwrap();
        back.rollback().await.unwrap();
        assert_eq!(things(database).await, []);

        let mut failed = database.begin("failing").await.unwrap();
        failed.execute(sql, &values(3)).await.unwrap();
        let error = failed.execute(sql, &values(3)).await.unwrap_err();
        assert!(error.to_string().starts_with("failing in the database "), "{error}");
        assert!(failed.execute(sql, &values(4)).await.is_err(), "it is over");
        assert!(failed.commit().await.is_err());
        assert_eq!(things(database).await, []);

        let mut kept = database.begin("keeping").await.unwrap();
        kept.execute(sql, &values(i64::MAX)).await.unwrap();
        kept.commit().await.unwrap();
        assert_eq!(things(database).await, [("é\u{1F600}".to_owned(), i64::MAX)]);
        let mut look = database.begin("looking").await.unwrap();
        let rows = look.rows("SELECT data, n, name FROM thing", &[]).await.unwrap();
        assert_eq!(rows[0].maybe_bytes(0).unwrap().unwrap(), b"\0\xff");
        assert!(rows[0].int(2).is_err());
    }
}

#[tokio::test]
async fn a_statement_over_many_rows_is_several_and_gives_all_answers() {
    for Fresh { database, .. } in &each().await {
        database.migrate(&MAKE).await.unwrap();
        let names: Vec<String> = (0..ROWS_PER_STATEMENT * 2 + 7).map(|n| format!("\"{n:06}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let numbers: Vec<i64> = (0..).take(names.len()).map(|n| n - 3).collect();
        for times in 1..3 {
            let mut transaction = database.begin("writing").await.unwrap();
            let columns = [Column::Text(&names), Column::Int(&numbers)];
            let mut answers: Vec<_> = transaction
                .with_rows(PUT, &columns)
                .await
                .unwrap()
                .iter()
                .map(|row| (row.text(0).unwrap(), row.int(1).unwrap()))
                .collect();
            transaction.commit().await.unwrap();
            answers.sort();
            assert_eq!(answers.len(), names.len());
            assert_eq!(answers[5], (names[5].to_owned(), 2 * times));
            assert_eq!(answers, things(database).await);
        }
    }
}

#[tokio::test]
async fn tables_are_created_once_and_newer_schemas_refused() {
    for Fresh { database, config, .. } in &each().await {
        let others: Vec<Database> =
            futures::future::try_join_all((0..3).map(|_| Database::open(config))).await.unwrap();
        futures::future::try_join_all(others.iter().map(|database| database.migrate(&MAKE))).await.unwrap();
        database.migrate(&MAKE).await.unwrap();
        assert_eq!(things(database).await, []);

        let mut newer = database.begin("being newer").await.unwrap();
        let sql = "INSERT INTO geofold_schema (tables, version, name) VALUES ('test', 2, 'later')";
        newer.execute(sql, &[]).await.unwrap();
        newer.commit().await.unwrap();
        let error = database.migrate(&MAKE).await.unwrap_err();
        assert!(error.to_string().contains("version 2") && !error.is_passing(), "{error}");
    }
}

#[tokio::test]
async fn one_transaction_at_a_time_has_a_lock() {
    for Fresh { database, .. } in &each().await {
        let mut first = database.begin("locking").await.unwrap();
        assert!(first.try_lock(Lock::Merge).await.unwrap());
        if first.is_postgres() {
            let mut second = database.begin("locking").await.unwrap();
            assert!(!second.try_lock(Lock::Merge).await.unwrap());
            assert!(second.try_lock(Lock::Migrate).await.unwrap(), "another lock");
            second.rollback().await.unwrap();
        }
        first.rollback().await.unwrap();
        let mut second = database.begin("locking").await.unwrap();
        assert!(second.try_lock(Lock::Merge).await.unwrap());
        // With SQLite the lock is the transaction; it is given back when it is dropped, too.
        drop(second);
        let mut third = database.begin("locking").await.unwrap();
        third.lock(Lock::Merge).await.unwrap();
    }
}

#[tokio::test]
async fn an_error_says_what_was_being_done_and_never_the_password() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { url: DatabaseUrl::Sqlite(folder.path().join("no/such/x.db")), ..Config::default() };
    let error = Database::open(&config).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("connecting in the database sqlite:") && text.contains("has to exist"), "{text}");
    assert!(!error.is_passing());

    // Nothing listens on the discard port.
    let config = Config {
        url: "postgres://geofold@127.0.0.1:9/counts".parse().unwrap(),
        password: Some(Secret::new("hunter2")),
        timeout: Duration::from_secs(5),
        ..Config::default()
    };
    let error = Database::open(&config).await.unwrap_err();
    assert!(error.is_passing(), "{error}");
    assert!(error.to_string().contains("postgres://geofold@127.0.0.1:9/counts"), "{error}");
    assert!(!format!("{error} {error:?} {config:?}").contains("hunter2"));

    let Some(Fresh { config, .. }) = postgres().await else { return };
    let mut missing = config.clone();
    missing.url = "postgres://nobody@127.0.0.1/no_such".parse().unwrap();
    let (start, _) =
        config.url.to_string().rsplit_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    missing.url = format!("{start}/no_such_database").parse().unwrap();
    let error = Database::open(&missing).await.unwrap_err();
    assert!(!error.is_passing() && error.to_string().contains("has to exist"), "{error}");
    let wrong = Config { password: Some(Secret::new("hunter2")), ..config };
    let error = Database::open(&wrong).await.unwrap_err();
    assert!(!error.is_passing() && error.to_string().contains("check user and password"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_client_that_freezes_in_a_transaction_loses_its_lock() {
    let Some(Fresh { config, .. }) = postgres().await else { return };
    let mut quick = Database::open(&config).await.unwrap();
    quick.timeout = Duration::from_millis(300);
    let mut frozen = quick.begin("freezing").await.unwrap();
    assert!(frozen.try_lock(Lock::Merge).await.unwrap());
    let mut waiting = Database::open(&config).await.unwrap().begin("waiting").await.unwrap();
    waiting.lock(Lock::Merge).await.unwrap();
    let error = frozen.execute("SELECT 1", &[]).await.unwrap_err();
    assert!(error.is_passing(), "{error}");
}

#[tokio::test]
async fn file_locked_by_a_writer_is_opened_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.db");
    let other = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut other = sqlx::SqliteConnection::connect_with(&other).await.unwrap();
    for sql in ["CREATE TABLE other (n bigint)", "BEGIN IMMEDIATE"] {
        sqlx::raw_sql(sql).execute(&mut other).await.unwrap();
    }
    // It writes no log ahead yet, and to change that is what SQLite refuses without waiting.
    let config = Config { url: DatabaseUrl::Sqlite(path), ..Config::default() };
    let brief = Config { timeout: Duration::from_millis(100), ..config.clone() };
    let refused = Database::open(&brief).await.unwrap_err();
    assert!(refused.is_passing() && refused.to_string().contains("locked"), "{refused}");
    let over = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    };
    let (opened, ()) = tokio::join!(Database::open(&config), over);
    opened.unwrap().migrate(&MAKE).await.unwrap();
}
