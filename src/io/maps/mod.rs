//! Which maps are in force, known to every worker while they are changed (protocol, "Changing the map").
//!
//! | file | what it holds |
//! |---|---|
//! | `record.rs` | the record of the maps in force, and what may follow what; pure |
//! | `store.rs` | the record, in the meta index |
//! | `watch.rs` | what this process knows of the record, and since when |
//!
//! `ops/migrate/` takes the record from step to step; here is what workers need to follow it.

pub mod record;
pub mod store;
pub mod watch;

pub use record::{BadStep, MapChangeStage, MapsRecord, MapsState, OffsetFloor};
pub use store::{MapsStore, Stored};
pub use watch::{MapsReader, Watcher};
