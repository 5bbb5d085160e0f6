//! A database: PostgreSQL, or a file of SQLite, behind one small seam over sqlx.
//!
//! Everything happens in a [`Transaction`], which is over when it is committed or rolled back; one that is dropped, or met
//! an error, takes its connection with it, so that nothing half-done is ever used again. Statements are the same text for
//! both where they can be, and a [`Sql`] of two texts where not. Every answer is waited for a limited time.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | connecting, transactions, statements, rows |
//! | `error.rs` | what can go wrong, whether it passes, what to do |
//! | `migrate.rs` | tables, made and changed in numbered steps |

mod error;
mod migrate;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgRow, PgSslMode};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Connection as _, Postgres, Row as _, Sqlite};

pub use self::error::{DatabaseError, DatabaseFailure};
pub use self::migrate::{Migrations, SchemaStep};
use crate::base::retry::RetryPolicy;
use crate::support::config::counts::DatabaseConfig as Config;
use crate::support::config::database_url::{DatabaseUrl, PostgresUrl, SslMode};

/// Maximum rows per statement: larger changes are split, so that each statement ends in a predictable time.
const ROWS_PER_STATEMENT: usize = 5_000;
/// Extra client timeout: the server times out first and reports why.
const GRACE: Duration = Duration::from_secs(2);
/// Between attempts to open a file of SQLite that others open, too.
const REOPEN: RetryPolicy =
    RetryPolicy { initial: Duration::from_millis(20), max: Duration::from_millis(200) };
/// The first of the two numbers of every advisory lock: "geof".
const LOCK_CLASS: i32 = 0x6765_6f66;

/// A database, and a bounded pool of connections to it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Database {
    pool: Pool,
    /// Where it is, without secrets.
    name: String,
    timeout: Duration,
}

#[derive(Debug, Clone)]
enum Pool {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// One statement in the words of both databases; parameters are `$1`, `$2`, … in each.
#[derive(Debug, Clone, Copy)]
pub struct Sql {
    /// For PostgreSQL.
    pub postgres: &'static str,
    /// For SQLite.
    pub sqlite: &'static str,
}

impl From<&'static str> for Sql {
    fn from(both: &'static str) -> Self {
        Self { postgres: both, sqlite: both }
    }
}

/// A parameter of a statement.
#[derive(Debug, Clone, Copy)]
pub enum SqlValue<'a> {
    /// A number.
    Int(i64),
    /// A text; PostgreSQL takes none with a NUL character.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
}

/// A column of many rows, the parameter of [`Transaction::with_rows`].
#[derive(Debug, Clone, Copy)]
pub enum Column<'a> {
    /// Numbers.
    Int(&'a [i64]),
    /// Texts.
    Text(&'a [&'a str]),
}

impl Column<'_> {
    fn len(self) -> usize {
        match self {
            Column::Int(numbers) => numbers.len(),
            Column::Text(texts) => texts.len(),
        }
    }
}

/// Advisory locks: one transaction per database at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Change tables.
    Migrate = 1,
    /// Merge increments.
    Merge = 2,
    /// Make a periodic campaign.
    Campaign = 3,
}

impl Database {
    /// Connects, with one connection now and more when they are needed.
    ///
    /// # Errors
    /// If there is no database, or it refuses the credentials; [`DatabaseError::is_passing`] says whether waiting helps.
    pub async fn open(config: &Config) -> Result<Self, DatabaseError> {
        let name = config.url.to_string();
        let pool = match &config.url {
            DatabaseUrl::Postgres(url) => Pool::Postgres(open_postgres(config, url, &name).await?),
            DatabaseUrl::Sqlite(path) => Pool::Sqlite(open_sqlite(config, path, &name).await?),
        };
        Ok(Self { pool, name, timeout: config.timeout })
    }

    /// Where it is, without secrets.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts a transaction. On SQLite it is the only writer until it ends.
    ///
    /// `doing` says what for, in errors: "merging increments".
    pub async fn begin(&self, doing: &'static str) -> Result<Transaction, DatabaseError> {
        self.begin_as(doing, "", "BEGIN IMMEDIATE").await
    }

    /// The same for reading alone, beside those that write.
    pub async fn read(&self, doing: &'static str) -> Result<Transaction, DatabaseError> {
        self.begin_as(doing, "READ ONLY", "BEGIN").await
    }

    async fn begin_as(
        &self,
        doing: &'static str,
        mode: &str,
        in_sqlite: &str,
    ) -> Result<Transaction, DatabaseError> {
        let failed = |failure| DatabaseError::with(&self.name, doing, failure);
        let connection = match &self.pool {
            Pool::Postgres(pool) => pool.acquire().await.map(Connection::Postgres),
            Pool::Sqlite(pool) => pool.acquire().await.map(Connection::Sqlite),
        };
        let connection = connection.map_err(|error| failed(DatabaseFailure::from(error)))?;
        let mut transaction = Transaction {
            connection: Some(connection),
            name: self.name.clone(),
            doing,
            timeout: self.timeout + GRACE,
        };
        // A client that freezes in the middle must not hold its locks for ever.
        let limit = self.timeout.as_millis();
        let begin = match &self.pool {
            Pool::Postgres(_) => format!(
                "BEGIN {mode}; SET LOCAL statement_timeout = {limit}; SET LOCAL lock_timeout = {limit}; \
                 SET LOCAL idle_in_transaction_session_timeout = {limit}"
            ),
            Pool::Sqlite(_) => in_sqlite.to_owned(),
        };
        transaction.raw(begin).await?;
        Ok(transaction)
    }

    /// Closes all connections that are not in use.
    pub async fn close(&self) {
        let close = async {
            match &self.pool {
                Pool::Postgres(pool) => pool.close().await,
                Pool::Sqlite(pool) => pool.close().await,
            }
        };
        // Connections that are still open end with the process.
        let _ = tokio::time::timeout(GRACE, close).await;
    }
}

/// Opens a SQLite file, with retries up to its timeout: while another process creates the file, or the last one closes it,
/// SQLite refuses without waiting.
async fn open_sqlite(config: &Config, path: &Path, name: &str) -> Result<SqlitePool, DatabaseError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(config.timeout);
    let began = Instant::now();
    let mut delays = REOPEN.delays();
    loop {
        let pool =
            SqlitePoolOptions::new().max_connections(config.max_connections).acquire_timeout(config.timeout);
        let error = match pool.connect_with(options.clone()).await {
            Ok(pool) => return Ok(pool),
            Err(error) => DatabaseError::new(name, "connecting", error),
        };
        if !error.is_passing() || began.elapsed() >= config.timeout {
            return Err(error);
        }
        tokio::time::sleep(delays.next(None)).await;
    }
}

async fn open_postgres(config: &Config, url: &PostgresUrl, name: &str) -> Result<PgPool, DatabaseError> {
    let mode = match url.ssl_mode() {
        SslMode::Disable => PgSslMode::Disable,
        SslMode::Prefer => PgSslMode::Prefer,
        SslMode::Require => PgSslMode::Require,
        SslMode::VerifyCa => PgSslMode::VerifyCa,
        SslMode::VerifyFull => PgSslMode::VerifyFull,
    };
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(url.host().trim_matches(['[', ']']))
        .port(url.port())
        .username(url.user())
        .database(url.database())
        .ssl_mode(mode)
        .application_name("geofold");
    if let Some(password) = &config.password {
        options = options.password(password.expose());
    }
    if let Some(file) = &config.ca_file {
        options = options.ssl_root_cert(file);
    }
    // The pool would hide why it has no connection, so the first one is made by hand.
    let failed = |failure| DatabaseError::with(name, "connecting", failure);
    let first = tokio::time::timeout(config.timeout, PgConnection::connect_with(&options)).await;
    let first = first.map_err(|_| failed(DatabaseFailure::NoAnswer(config.timeout)))?;
    let first = first.map_err(|error| failed(DatabaseFailure::from(error)))?;
    // It was of use already; how it ends changes nothing.
    let _ = tokio::time::timeout(GRACE, first.close()).await;
    let pool = PgPoolOptions::new().max_connections(config.max_connections).acquire_timeout(config.timeout);
    Ok(pool.connect_lazy_with(options))
}

#[derive(Debug)]
enum Connection {
    Postgres(PoolConnection<Postgres>),
    Sqlite(PoolConnection<Sqlite>),
}

/// A transaction under way. Dropped before [`Transaction::commit`], it has not happened.
#[derive(Debug)]
pub struct Transaction {
    /// `None` once it is over.
    connection: Option<Connection>,
    name: String,
    doing: &'static str,
    timeout: Duration,
}

/// One row of an answer.
#[derive(Debug)]
pub struct DatabaseRow(RowOf);

#[derive(Debug)]
enum RowOf {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

macro_rules! column {
    ($(#[$doc:meta])* $name:ident, $type:ty) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// If there is no such column, or it is of another type.
        pub fn $name(&self, column: usize) -> Result<$type, sqlx::Error> {
            match &self.0 {
                RowOf::Postgres(row) => row.try_get(column),
                RowOf::Sqlite(row) => row.try_get(column),
            }
        }
    };
}

impl DatabaseRow {
    column!(/** A number (`bigint`), by the place of its column. */ int, i64);
    column!(/** A number that may be null. */ maybe_int, Option<i64>);
    column!(/** A text. */ text, String);
    column!(/** A text that may be null. */ maybe_text, Option<String>);
    column!(/** Bytes that may be null. */ maybe_bytes, Option<Vec<u8>>);
}

/// `query`, with each parameter bound as its type.
macro_rules! bind {
    ($query:expr, $values:expr) => {
        $values.iter().fold($query, |query, value| match *value {
            SqlValue::Int(number) => query.bind(number),
            SqlValue::Text(text) => query.bind(text),
            SqlValue::Bytes(bytes) => query.bind(bytes),
        })
    };
}

impl Transaction {
    /// Waits for a lock that lasts until the transaction is over. With SQLite every transaction has it.
    pub async fn lock(&mut self, lock: Lock) -> Result<(), DatabaseError> {
        if self.is_postgres() {
            let key = [SqlValue::Int(LOCK_CLASS.into()), SqlValue::Int(lock as i64)];
            self.rows("SELECT pg_advisory_xact_lock($1::int, $2::int)::text", &key).await?;
        }
        Ok(())
    }

    /// The same without waiting; false if another transaction has it.
    pub async fn try_lock(&mut self, lock: Lock) -> Result<bool, DatabaseError> {
        if !self.is_postgres() {
            return Ok(true);
        }
        let key = [SqlValue::Int(LOCK_CLASS.into()), SqlValue::Int(lock as i64)];
        let rows = self.rows("SELECT pg_try_advisory_xact_lock($1::int, $2::int)::int::bigint", &key).await?;
        match rows.first() {
            Some(row) => Ok(self.cell(row.int(0))? == 1),
            None => Ok(false),
        }
    }

    /// Carries out a statement, and says how many rows it changed.
    pub async fn execute(
        &mut self,
        sql: impl Into<Sql>,
        values: &[SqlValue<'_>],
    ) -> Result<u64, DatabaseError> {
        let sql = sql.into();
        let timeout = self.timeout;
        let work = async {
            match self.connection.as_mut() {
                Some(Connection::Postgres(connection)) => {
                    let done = bind!(sqlx::query(sql.postgres), values).execute(&mut **connection).await?;
                    Ok(done.rows_affected())
                }
                Some(Connection::Sqlite(connection)) => {
                    let done = bind!(sqlx::query(sql.sqlite), values).execute(&mut **connection).await?;
                    Ok(done.rows_affected())
                }
                None => Err(DatabaseFailure::Over),
            }
        };
        let done = in_time(timeout, work).await;
        self.end_if_failed(done)
    }

    /// Carries out a statement that answers with rows.
    pub async fn rows(
        &mut self,
        sql: impl Into<Sql>,
        values: &[SqlValue<'_>],
    ) -> Result<Vec<DatabaseRow>, DatabaseError> {
        let sql = sql.into();
        let timeout = self.timeout;
        let work = async {
            match self.connection.as_mut() {
                Some(Connection::Postgres(connection)) => {
                    let rows = bind!(sqlx::query(sql.postgres), values).fetch_all(&mut **connection).await?;
                    Ok(rows.into_iter().map(|row| DatabaseRow(RowOf::Postgres(row))).collect())
                }
                Some(Connection::Sqlite(connection)) => {
                    let rows = bind!(sqlx::query(sql.sqlite), values).fetch_all(&mut **connection).await?;
                    Ok(rows.into_iter().map(|row| DatabaseRow(RowOf::Sqlite(row))).collect())
                }
                None => Err(DatabaseFailure::Over),
            }
        };
        let rows = in_time(timeout, work).await;
        self.end_if_failed(rows)
    }

    /// Carries out a statement over many rows, in as many statements as it takes, and gives all answers.
    ///
    /// For PostgreSQL the columns are arrays, `$1`, `$2`, …, for `UNNEST`. For SQLite they are one JSON array of rows, `$1`,
    /// each an array, for `json_each`: `value ->> 0`, `value ->> 1`, …. Columns are of one length.
    pub async fn with_rows(
        &mut self,
        sql: Sql,
        columns: &[Column<'_>],
    ) -> Result<Vec<DatabaseRow>, DatabaseError> {
        let length = columns.iter().map(|column| column.len()).min().unwrap_or_default();
        let mut answers = Vec::new();
        let mut from = 0;
        while from < length {
            let to = length.min(from + ROWS_PER_STATEMENT);
            answers.append(&mut self.with_some_rows(sql, columns, from..to).await?);
            from = to;
        }
        Ok(answers)
    }

    async fn with_some_rows(
        &mut self,
        sql: Sql,
        columns: &[Column<'_>],
        range: std::ops::Range<usize>,
    ) -> Result<Vec<DatabaseRow>, DatabaseError> {
        let timeout = self.timeout;
        let work = async {
            match self.connection.as_mut() {
                Some(Connection::Postgres(connection)) => {
                    let query = sqlx::query(sql.postgres);
                    let query = columns.iter().fold(query, |query, column| match *column {
                        Column::Int(numbers) => query.bind(&numbers[range.clone()]),
                        Column::Text(texts) => query.bind(&texts[range.clone()]),
                    });
                    let rows = query.fetch_all(&mut **connection).await?;
                    Ok(rows.into_iter().map(|row| DatabaseRow(RowOf::Postgres(row))).collect())
                }
                Some(Connection::Sqlite(connection)) => {
                    let query = sqlx::query(sql.sqlite).bind(as_json(columns, range));
                    let rows = query.fetch_all(&mut **connection).await?;
                    Ok(rows.into_iter().map(|row| DatabaseRow(RowOf::Sqlite(row))).collect())
                }
                None => Err(DatabaseFailure::Over),
            }
        };
        let rows = in_time(timeout, work).await;
        self.end_if_failed(rows)
    }

    /// Carries out a query of the configuration; with PostgreSQL only. `$1` are the texts, `$2` is the number. `take` gets the
    /// rows one by one, so that not all of them have to be held; once it breaks, the transaction is over.
    pub async fn each_row(
        &mut self,
        query: String,
        texts: &[&str],
        number: i64,
        mut take: impl FnMut(DatabaseRow) -> Result<ControlFlow<()>, sqlx::Error>,
    ) -> Result<(), DatabaseError> {
        let timeout = self.timeout;
        let work = async {
            let Some(Connection::Postgres(connection)) = self.connection.as_mut() else {
                return Err(DatabaseFailure::Over);
            };
            let query = sqlx::query(AssertSqlSafe(query)).bind(texts).bind(number);
            let mut rows = query.fetch(&mut **connection);
            while let Some(row) = rows.try_next().await? {
                if take(DatabaseRow(RowOf::Postgres(row)))?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        let done = in_time(timeout, work).await;
        if self.end_if_failed(done)?.is_break() {
            self.abandon();
        }
        Ok(())
    }

    /// Unwraps a cell, with an error that says what was being done.
    pub fn cell<T>(&self, cell: Result<T, sqlx::Error>) -> Result<T, DatabaseError> {
        cell.map_err(|error| DatabaseError::new(&self.name, self.doing, error))
    }

    /// The error for data that this version of geofold does not write.
    pub fn unreadable(&self, what: String) -> DatabaseError {
        DatabaseError::with(&self.name, self.doing, DatabaseFailure::Unreadable(what))
    }

    /// Makes it happen. After an error it may have happened, or not.
    pub async fn commit(mut self) -> Result<(), DatabaseError> {
        self.raw("COMMIT".to_owned()).await?;
        self.connection = None;
        Ok(())
    }

    /// Makes it not have happened, and gives the connection back.
    pub async fn rollback(mut self) -> Result<(), DatabaseError> {
        self.raw("ROLLBACK".to_owned()).await?;
        self.connection = None;
        Ok(())
    }

    fn is_postgres(&self) -> bool {
        matches!(self.connection, Some(Connection::Postgres(_)))
    }

    async fn raw(&mut self, sql: String) -> Result<(), DatabaseError> {
        let timeout = self.timeout;
        let work = async {
            let sql = sqlx::raw_sql(AssertSqlSafe(sql));
            match self.connection.as_mut() {
                Some(Connection::Postgres(connection)) => {
                    sql.execute(&mut **connection).await?;
                }
                Some(Connection::Sqlite(connection)) => {
                    sql.execute(&mut **connection).await?;
                }
                None => return Err(DatabaseFailure::Over),
            }
            Ok(())
        };
        let done = in_time(timeout, work).await;
        self.end_if_failed(done)
    }

    /// An error ends the transaction, so that half of it is never committed.
    fn end_if_failed<T>(&mut self, result: Result<T, DatabaseFailure>) -> Result<T, DatabaseError> {
        result.map_err(|failure| {
            self.abandon();
            DatabaseError::with(&self.name, self.doing, failure)
        })
    }

    /// Closes the connection, which takes the transaction back.
    fn abandon(&mut self) {
        match self.connection.take() {
            Some(Connection::Postgres(mut connection)) => connection.close_on_drop(),
            Some(Connection::Sqlite(mut connection)) => connection.close_on_drop(),
            None => {}
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.abandon();
    }
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, DatabaseFailure>>,
) -> Result<T, DatabaseFailure> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(DatabaseFailure::NoAnswer(limit)))
}

/// Rows as a JSON array of arrays.
fn as_json(columns: &[Column<'_>], range: std::ops::Range<usize>) -> String {
    use serde_json::Value;
    let row = |row: usize| -> Value {
        let cells = columns.iter().map(|column| match *column {
            Column::Int(numbers) => Value::from(numbers[row]),
            Column::Text(texts) => Value::from(texts[row]),
        });
        Value::Array(cells.collect())
    };
    Value::Array(range.map(row).collect()).to_string()
}
