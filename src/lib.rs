//! geofold keeps a geosharded Elasticsearch index exactly in step with a Kafka topic.
//!
//! The way of one write: librdkafka → [`worker::consumer`] (the poll thread) → [`worker::partition`] (one task each) →
//! [`decode`] → [`dirty_set`] (fold) → [`mover`] (rounds) → [`elastic`] → outcomes → watermark → commit. `ARCHITECTURE.md`
//! has the map with its invariants, `docs/protocol.md` the rules by which documents move.
//!
//! | module | its story |
//! |---|---|
//! | [`position`], [`ids`], [`geo`], [`mod@write`], [`clock`] | the words that everything else is written in |
//! | [`decode`] | from a Kafka record to a write |
//! | [`registry`] | records in Avro, JSON Schema and Protobuf, by the schemas of a registry |
//! | [`dirty_set`] | the folding queue with two-phase hand-out |
//! | [`geoshard`], [`points`] | the map: ranges of S2's curve, each with an owner; planning it from points with a load |
//! | [`placement`] | where a document is, and the owner's cache of that |
//! | [`mover`] | the move protocol, a state machine without I/O |
//! | [`invariants`], [`sabotage`] | what must hold, as functions; rules not kept on purpose, in test builds |
//! | [`elastic`], [`retry`] | Elasticsearch behind one trait; rounds, retries, nodes |
//! | [`maps`], [`migrate`] | which maps are in force, known to every worker; changing them while writes go on |
//! | [`worker`], [`dead_letter`], [`meta`] | the member of the consumer group |
//! | [`claims`] | who may write for a partition |
//! | [`database`] | PostgreSQL or SQLite behind one small seam: transactions, migrations |
//! | [`tally`] | live counts of what documents say, by increments |
//! | [`dry_run`] | what a worker would do with the topic's records, without doing it |
//! | [`visibility`] | refreshes, for all that wait until searches find something |
//! | [`distribution`] | what follows every change: refreshes, webhooks, records |
//! | [`kafka`] | what rust-rdkafka does not give |
//! | [`campaign`] | lists of ids in a database, to each of which the same is done by any number of runners |
//! | [`audit`] | everything that is stored, compared and mended |
//! | [`refeed`] | documents fetched again from the source of truth |
//! | [`indices`], [`check`] | the indices, and whether everything is as it must be |
//! | [`config`] | one file, overridden by the environment |
//! | [`telemetry`], [`admin`] | metrics, events, logs, traces; HTTP and the status page |
//! | [`supervisor`] | background tasks, and what happens when one is lost |
//! | [`send`], [`search`] | lines to records; the documents in a circle |
//! | [`embedded`], [`demo`] | stand-ins inside the process, and the demo on them |
//! | [`cli`] | the command line |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod admin;
pub mod audit;
pub mod campaign;
mod causes;
pub mod check;
pub mod claims;
pub mod cli;
pub mod clock;
pub mod config;
pub mod database;
pub mod dead_letter;
pub mod decode;
pub mod demo;
pub mod dirty_set;
pub mod distribution;
pub mod dry_run;
pub mod elastic;
pub mod embedded;
mod fnv;
pub mod geo;
pub mod geoshard;
pub mod ids;
pub mod indices;
pub mod invariants;
pub mod kafka;
pub mod maps;
pub mod meta;
pub mod migrate;
pub mod mover;
pub mod placement;
pub mod points;
pub mod position;
#[doc(hidden)]
pub mod random;
pub mod refeed;
pub mod registry;
pub mod requests;
pub mod retry;
pub mod sabotage;
pub mod schemas;
pub mod search;
pub mod send;
pub mod supervisor;
pub mod tally;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod visibility;
pub mod worker;
pub mod write;
