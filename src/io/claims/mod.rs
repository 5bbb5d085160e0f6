//! Who may write for a partition: its claim, one document in the meta index (protocol, "Claims").
//!
//! | file | what it holds |
//! |---|---|
//! | `record.rs` | the claim as it is stored |
//! | `slot.rs` | one partition's claim as its owner sees it: what to ask, what an answer means; pure |
//! | `keeper.rs` | takes and renews the claims of all partitions of a worker; what a partition task may ask |

mod keeper;
pub mod record;
mod slot;

pub use keeper::{Claimed, Claims, Keeper};
pub use record::{Claim, claim_key};
pub use slot::{ClaimStanding, Taken};
