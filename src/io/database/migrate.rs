//! Creates and changes tables in numbered steps. Each runs once, in one transaction, in the first process that needs it.

use super::{Database, DatabaseError, DatabaseFailure, Lock, Sql, SqlValue};

/// One change of the tables.
#[derive(Debug, Clone, Copy)]
pub struct SchemaStep {
    /// Description, shown in `geofold_schema`.
    pub name: &'static str,
    /// Its statements, in order.
    pub statements: &'static [Sql],
}

/// All steps of one part of geofold, the oldest first; their number is the version of its tables. A step that was ever
/// released does not change.
#[derive(Debug, Clone, Copy)]
pub struct Migrations {
    /// The group of tables: "counts".
    pub tables: &'static str,
    /// The steps.
    pub steps: &'static [SchemaStep],
}

const MAKE_SCHEMA: Sql = Sql {
    postgres: "CREATE TABLE IF NOT EXISTS geofold_schema (\
               tables text NOT NULL, version bigint NOT NULL, name text NOT NULL, \
               applied timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (tables, version))",
    sqlite: "CREATE TABLE IF NOT EXISTS geofold_schema (\
             tables text NOT NULL, version bigint NOT NULL, name text NOT NULL, \
             applied text NOT NULL DEFAULT (datetime('now')), PRIMARY KEY (tables, version))",
};

impl Database {
    /// Carries out the steps that have not been.
    ///
    /// # Errors
    /// If the database says no, or a later geofold was here.
    pub async fn migrate(&self, migrations: &Migrations) -> Result<(), DatabaseError> {
        let Migrations { tables, steps } = *migrations;
        let mut transaction = self.begin("making tables").await?;
        transaction.lock(Lock::Migrate).await?;
        transaction.execute(MAKE_SCHEMA, &[]).await?;
        let sql = "SELECT COALESCE(MAX(version), 0) FROM geofold_schema WHERE tables = $1";
        let rows = transaction.rows(sql, &[SqlValue::Text(tables)]).await?;
        let found = match rows.first() {
            Some(row) => transaction.cell(row.int(0))?,
            None => 0,
        };
        let known = i64::try_from(steps.len()).unwrap_or(i64::MAX);
        if found > known {
            let failure = DatabaseFailure::TooNew { tables, found, known };
            return Err(DatabaseError::with(self.name(), "looking at tables", failure));
        }
        let done = usize::try_from(found).unwrap_or_default();
        for (version, step) in (1i64..).zip(steps).skip(done) {
            for statement in step.statements {
                transaction.execute(*statement, &[]).await?;
            }
            let sql = "INSERT INTO geofold_schema (tables, version, name) VALUES ($1, $2, $3)";
            let values = [SqlValue::Text(tables), SqlValue::Int(version), SqlValue::Text(step.name)];
            transaction.execute(sql, &values).await?;
            tracing::info!(database = self.name(), tables, version, step = step.name, "tables changed");
        }
        transaction.commit().await
    }
}
