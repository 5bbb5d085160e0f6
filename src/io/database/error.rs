//! Database errors: what was being done, to which database, and what to do next.

use std::time::Duration;

use thiserror::Error;

/// A failed operation. Nothing of it was applied; after a failed commit that is unknown.
#[derive(Debug, Error)]
#[error("{doing} in the database {name}: {failure}; {}", failure.advice())]
pub struct DatabaseError {
    name: String,
    doing: &'static str,
    failure: DatabaseFailure,
}

/// The reason of a failure.
#[derive(Debug, Error)]
pub enum DatabaseFailure {
    /// The database or the connection refused.
    #[error("{0}")]
    Refused(Box<sqlx::Error>),
    /// No response in time.
    #[error("no answer in {}", humantime::format_duration(*.0))]
    NoAnswer(Duration),
    /// An earlier error ended the transaction.
    #[error("the transaction is over")]
    Over,
    /// Data that this version of geofold did not write.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// Its tables were made by a later version of geofold.
    #[error("the tables of {tables} are of version {found}, and this geofold knows versions up to {known}")]
    TooNew {
        /// Whose.
        tables: &'static str,
        /// The version there.
        found: i64,
        /// The latest one known.
        known: i64,
    },
}

impl From<sqlx::Error> for DatabaseFailure {
    fn from(error: sqlx::Error) -> Self {
        Self::Refused(Box::new(error))
    }
}

/// How an error is to be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It passes: a restart, a conflict, a full disk.
    Passing,
    /// Authentication or permissions.
    Access,
    /// The database or file does not exist.
    Missing,
    /// The two sides do not agree on TLS.
    Tls,
    /// Permanent errors of other kinds.
    Other,
}

impl DatabaseFailure {
    fn kind(&self) -> Kind {
        use std::io::ErrorKind as Io;
        match self {
            Self::NoAnswer(_) | Self::Over => Kind::Passing,
            Self::TooNew { .. } | Self::Unreadable(_) => Kind::Other,
            Self::Refused(error) => match &**error {
                sqlx::Error::Database(error) => of_code(&error.code().unwrap_or_default()),
                sqlx::Error::Io(error) => match error.kind() {
                    Io::NotFound | Io::PermissionDenied | Io::InvalidInput => Kind::Missing,
                    _ => Kind::Passing,
                },
                sqlx::Error::Tls(_) => Kind::Tls,
                sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed | sqlx::Error::PoolClosed => {
                    Kind::Passing
                }
                // A connection that was cut in the middle of an answer.
                sqlx::Error::Protocol(_) => Kind::Passing,
                _ => Kind::Other,
            },
        }
    }

    fn advice(&self) -> &'static str {
        match (self, self.kind()) {
            (Self::TooNew { .. }, _) => "use the geofold that wrote them, or a later one",
            (Self::Refused(error), _) if is_full(error) => {
                "its disk is full, or its file may not grow: make room there; nothing is lost meanwhile"
            }
            (_, Kind::Passing) => {
                "this may be temporary; if it lasts, check that the server runs, and its log"
            }
            (_, Kind::Access) => {
                "check user and password in the configuration, and what the user may do there"
            }
            (_, Kind::Missing) => {
                "check its url in the configuration; the database, or the file's folder, has to exist"
            }
            (_, Kind::Tls) => "check sslmode in its url, and its ca_file, in the configuration",
            (_, Kind::Other) => "this does not get better by waiting",
        }
    }
}

/// PostgreSQL's `disk_full`, and SQLite's.
fn is_full(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            code == "53100" || code.parse::<i32>().is_ok_and(|code| code & 0xff == FULL && code < 1 << 16)
        }
        _ => false,
    }
}

const FULL: i32 = 13;

/// Classifies a code: PostgreSQL's has five characters; SQLite's is a number whose last byte is the kind.
fn of_code(code: &str) -> Kind {
    if code.len() == 5 && !code.starts_with('-') {
        return match (&code[..2], code) {
            (_, "42501") | ("28", _) => Kind::Access,
            (_, "3D000") => Kind::Missing,
            // Connections, idle timeouts, conflicts, resources, locks, operators, the system.
            ("08" | "25" | "40" | "53" | "55" | "57" | "58", _) => Kind::Passing,
            _ => Kind::Other,
        };
    }
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const NO_MEMORY: i32 = 7;
    const READ_ONLY: i32 = 8;
    const IO_ERROR: i32 = 10;
    const CAN_NOT_OPEN: i32 = 14;
    match code.parse::<i32>().map(|code| code & 0xff) {
        Ok(BUSY | LOCKED | NO_MEMORY | IO_ERROR | FULL) => Kind::Passing,
        Ok(READ_ONLY) => Kind::Access,
        Ok(CAN_NOT_OPEN) => Kind::Missing,
        _ => Kind::Other,
    }
}

impl DatabaseError {
    pub(super) fn new(name: &str, doing: &'static str, error: sqlx::Error) -> Self {
        Self::with(name, doing, error.into())
    }

    pub(super) fn with(name: &str, doing: &'static str, failure: DatabaseFailure) -> Self {
        Self { name: name.to_owned(), doing, failure }
    }

    /// Whether the server refused a supplied value (SQLSTATE class 22).
    pub fn is_of_a_value(&self) -> bool {
        match &self.failure {
            DatabaseFailure::Refused(error) => matches!(
                &**error, sqlx::Error::Database(error) if error.code().is_some_and(|code| code.len() == 5 && code.starts_with("22"))
            ),
            _ => false,
        }
    }

    /// Whether a retry may succeed: restart of the server, conflict, full disk.
    pub fn is_passing(&self) -> bool {
        self.failure.kind() == Kind::Passing
    }
}

#[cfg(test)]
mod tests {
    use sqlx::ConnectOptions;
    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;

    #[test]
    fn transient_errors_differ_from_permanent_ones() {
        for (code, kind) in [
            ("40001", Kind::Passing),
            ("40P01", Kind::Passing),
            ("57P01", Kind::Passing),
            ("57014", Kind::Passing),
            ("25P03", Kind::Passing),
            ("53100", Kind::Passing),
            ("28P01", Kind::Access),
            ("42501", Kind::Access),
            ("3D000", Kind::Missing),
            ("42P01", Kind::Other),
            ("23505", Kind::Other),
            ("5", Kind::Passing),
            ("517", Kind::Passing),
            ("13", Kind::Passing),
            ("14", Kind::Missing),
            ("1", Kind::Other),
            ("", Kind::Other),
        ] {
            assert_eq!(of_code(code), kind, "{code}");
        }
        assert!(
            DatabaseError::with("d", "x", DatabaseFailure::NoAnswer(Duration::from_secs(1))).is_passing()
        );
        assert!(
            !DatabaseError::with("d", "x", DatabaseFailure::TooNew { tables: "t", found: 2, known: 1 })
                .is_passing()
        );
    }

    #[tokio::test]
    async fn full_disk_is_said_and_passes() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("d")).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        // As if the disk had no more pages.
        sqlx::raw_sql("CREATE TABLE t (x); PRAGMA max_page_count = 3")
            .execute(&mut connection)
            .await
            .unwrap();
        let fill = "INSERT INTO t VALUES (zeroblob(100000))";
        let error = sqlx::raw_sql(fill).execute(&mut connection).await.unwrap_err();
        let error = DatabaseError::new("d", "filling", error);
        assert!(error.is_passing());
        assert!(error.to_string().contains("its disk is full"), "{error}");
    }
}
