//! The tables of campaigns.
//!
//! | table | what a row says |
//! |---|---|
//! | `campaign` | a list of ids with an action, how it stands, the next token, how fast it may go and goes |
//! | `campaign_chunk` | the ids under one token; never changed |
//! | `campaign_lease` | the token is at work, with whom, and until when; no row below `next_token` is done |
//! | `campaign_failed` | an id that could not be sent, and why |
//!
//! Times are microseconds since 1970 by the database's clock; 0 is never.

use crate::io::database::{Migrations, SchemaStep, Sql};

/// A statement with the database's time in place of each comma.
macro_rules! timed {
    ($first:literal $(, $rest:literal)*) => {
        Sql {
            postgres: concat!(
                $first $(, "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint", $rest)*
            ),
            sqlite: concat!($first $(, "CAST(unixepoch('subsec') * 1000000 AS INTEGER)", $rest)*),
        }
    };
}
pub(super) use timed;

/// The tables of campaigns.
pub(super) const MIGRATIONS: Migrations = Migrations {
    tables: "campaigns",
    steps: &[
        SchemaStep {
            name: "campaigns, their chunks, leases and failures",
            statements: &[
                Sql {
                    postgres: "CREATE TABLE campaign (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
                           name text NOT NULL, action text NOT NULL, topic text NOT NULL, selection text NOT NULL, \
                           state text NOT NULL, chunk bigint NOT NULL, tokens bigint NOT NULL DEFAULT 0, \
                           next_token bigint NOT NULL DEFAULT 1, ids bigint NOT NULL DEFAULT 0, \
                           produced bigint NOT NULL DEFAULT 0, failed bigint NOT NULL DEFAULT 0, \
                           rate bigint NOT NULL DEFAULT 0, free_at bigint NOT NULL DEFAULT 0, \
                           created bigint NOT NULL, beat bigint NOT NULL, started bigint NOT NULL DEFAULT 0, \
                           ended bigint NOT NULL DEFAULT 0, window_start bigint NOT NULL DEFAULT 0, \
                           window_ids bigint NOT NULL DEFAULT 0, window_rate bigint NOT NULL DEFAULT 0, \
                           periodic text, period bigint, UNIQUE (periodic, period))",
                    sqlite: "CREATE TABLE campaign (id integer PRIMARY KEY AUTOINCREMENT, \
                         name text NOT NULL, action text NOT NULL, topic text NOT NULL, selection text NOT NULL, \
                         state text NOT NULL, chunk bigint NOT NULL, tokens bigint NOT NULL DEFAULT 0, \
                         next_token bigint NOT NULL DEFAULT 1, ids bigint NOT NULL DEFAULT 0, \
                         produced bigint NOT NULL DEFAULT 0, failed bigint NOT NULL DEFAULT 0, \
                         rate bigint NOT NULL DEFAULT 0, free_at bigint NOT NULL DEFAULT 0, \
                         created bigint NOT NULL, beat bigint NOT NULL, started bigint NOT NULL DEFAULT 0, \
                         ended bigint NOT NULL DEFAULT 0, window_start bigint NOT NULL DEFAULT 0, \
                         window_ids bigint NOT NULL DEFAULT 0, window_rate bigint NOT NULL DEFAULT 0, \
                         periodic text, period bigint, UNIQUE (periodic, period))",
                },
                Sql {
                    postgres: "CREATE TABLE campaign_chunk (campaign bigint NOT NULL, token bigint NOT NULL, \
                           ids bytea NOT NULL, PRIMARY KEY (campaign, token))",
                    sqlite: "CREATE TABLE campaign_chunk (campaign bigint NOT NULL, token bigint NOT NULL, \
                         ids blob NOT NULL, PRIMARY KEY (campaign, token))",
                },
                Sql {
                    postgres: "CREATE TABLE campaign_lease (campaign bigint NOT NULL, token bigint NOT NULL, \
                           runner text NOT NULL, fence bigint NOT NULL, expires bigint NOT NULL, \
                           PRIMARY KEY (campaign, token))",
                    sqlite: "CREATE TABLE campaign_lease (campaign bigint NOT NULL, token bigint NOT NULL, \
                         runner text NOT NULL, fence bigint NOT NULL, expires bigint NOT NULL, \
                         PRIMARY KEY (campaign, token))",
                },
                Sql {
                    postgres: "CREATE INDEX campaign_lease_by_expiry ON campaign_lease (campaign, expires)",
                    sqlite: "CREATE INDEX campaign_lease_by_expiry ON campaign_lease (campaign, expires)",
                },
                Sql {
                    postgres: "CREATE TABLE campaign_failed (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
                           campaign bigint NOT NULL, id bytea NOT NULL, reason text NOT NULL)",
                    sqlite: "CREATE TABLE campaign_failed (number integer PRIMARY KEY AUTOINCREMENT, \
                         campaign bigint NOT NULL, id blob NOT NULL, reason text NOT NULL)",
                },
                Sql {
                    postgres: "CREATE INDEX campaign_failed_by_campaign ON campaign_failed (campaign, number)",
                    sqlite: "CREATE INDEX campaign_failed_by_campaign ON campaign_failed (campaign, number)",
                },
            ],
        },
        SchemaStep {
            name: "the key of the request that made a campaign",
            statements: &[
                Sql {
                    postgres: "ALTER TABLE campaign ADD COLUMN request text",
                    sqlite: "ALTER TABLE campaign ADD COLUMN request text",
                },
                Sql {
                    postgres: "CREATE UNIQUE INDEX campaign_by_request ON campaign (request)",
                    sqlite: "CREATE UNIQUE INDEX campaign_by_request ON campaign (request)",
                },
            ],
        },
    ],
};
