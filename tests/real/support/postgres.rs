//! A database of the stack's PostgreSQL that no other test uses.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection};
use tokio::runtime::Runtime;

/// Made anew, empty. It stays until the stack is deleted.
pub struct OwnDatabase {
    /// As in `database.url`.
    pub url: String,
    pub password: String,
}

impl OwnDatabase {
    /// `None` if the stack has no PostgreSQL (`dev/stack up --postgresql`).
    pub fn new() -> Option<Self> {
        let url = std::env::var("GEOFOLD_TEST_POSTGRES").ok()?;
        let password = std::env::var("GEOFOLD_TEST_POSTGRES_PASSWORD").unwrap();
        let name = format!("t{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let (server, _) = url.rsplit_once('/').unwrap();
        Runtime::new().unwrap().block_on(async {
            let options: PgConnectOptions = url.parse().unwrap();
            let mut admin = PgConnection::connect_with(&options.password(&password)).await.unwrap();
            let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
            sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
            admin.close().await.unwrap();
        });
        Some(Self { url: format!("{server}/{name}"), password })
    }

    /// Lines of a configuration, as (table, line) pairs.
    pub fn config(&self) -> [(&'static str, String); 3] {
        [
            ("database", format!("url = {:?}", self.url)),
            ("database", format!("password = {:?}", self.password)),
            ("database", "timeout = \"5s\"".to_owned()),
        ]
    }
}
