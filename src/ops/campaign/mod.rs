//! Campaigns: batch jobs that apply one action to a list of document ids, by any number of concurrent runners.
//!
//! A campaign's ids are in a database, in chunks under consecutive tokens. A runner reserves a token, which costs the same
//! for any size of list, sends a record for each id of its chunk to the topic, waits until the broker has
//! acknowledged them, and says that the chunk is done. What the records ask for is done by workers, in the order of each
//! document's other writes; so a record too many does no harm.
//!
//! | state of a token | how the tables say it |
//! |---|---|
//! | fresh | it is not below `next_token` of its campaign |
//! | at work | it has a lease, whose time is not over by the database's clock |
//! | to be done again | it has a lease whose time is over |
//! | done | it is below `next_token` and has no lease |
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the words: actions, states, and what may be done in each |
//! | `chunk.rs` | many ids as one value of the database |
//! | `next.rs` | what a runner that got no token does; how fast a campaign goes; pure |
//! | `schema.rs` | the tables |
//! | `store.rs` | creating campaigns; pause, resume, cancel |
//! | `reserve.rs` | tokens and leases: every statement of the runners |
//! | `intake.rs` | ids sorted, each once, in bounded memory |
//! | `select.rs` | ids from a file or from Elasticsearch |
//! | `create.rs` | from a selection to a campaign that is whole or not there |
//! | `produce.rs` | the records of one chunk, acknowledged |
//! | `run/` | a runner |
//! | `watch.rs` | campaigns that are made every so often, and those that requests have made |
//! | `http/` | requests that make and control campaigns |

pub mod chunk;
pub mod create;
pub mod http;
pub mod intake;
pub mod next;
pub mod produce;
pub mod reserve;
pub mod run;
mod schema;
pub mod select;
pub mod store;
pub mod watch;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use crate::support::config::campaigns::CampaignAction;

/// State of a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CampaignState {
    /// Its list is being written, or was when the process that did so ended. No runner touches it.
    Creating,
    /// Its tokens are handed out.
    Ready,
    /// No token is handed out.
    Paused,
    /// No more tokens are handed out.
    Cancelled,
    /// All its tokens are done.
    Done,
}

impl CampaignState {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Creating, Self::Ready, Self::Paused, Self::Cancelled, Self::Done];

    /// The value in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Done => "done",
        }
    }

    /// Whether no runner will do any more work.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Cancelled | Self::Done)
    }
}

/// An unknown state name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not known")]
pub struct UnknownWord(String);

macro_rules! word {
    ($type:ty) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                let known = Self::ALL.into_iter().find(|known| known.as_str() == word);
                known.ok_or_else(|| UnknownWord(word.to_owned()))
            }
        }
    };
}

word!(CampaignAction);
word!(CampaignState);

/// Commands on a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Hand out no tokens for now.
    Pause,
    /// Hand out tokens again.
    Resume,
    /// Never hand out tokens again.
    Cancel,
    /// Try again the ids that failed.
    Retry,
    /// Forget it.
    Remove,
}

/// A command that the state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it is {state}; {advice}")]
pub struct RefusedCommand {
    state: CampaignState,
    advice: &'static str,
}

impl Command {
    /// The state of a campaign after this, if it may be done in `state`.
    ///
    /// # Errors
    /// If it may not.
    pub fn apply(self, state: CampaignState) -> Result<CampaignState, RefusedCommand> {
        use CampaignState::{Cancelled, Creating, Done, Paused, Ready};
        let refused = |advice| Err(RefusedCommand { state, advice });
        match (self, state) {
            (Self::Pause, Ready | Paused) => Ok(Paused),
            (Self::Resume, Ready | Paused) => Ok(Ready),
            (Self::Cancel, Creating | Ready | Paused | Cancelled) => Ok(Cancelled),
            (Self::Retry, Ready | Done) => Ok(Ready),
            (Self::Retry, Paused) => Ok(Paused),
            (Self::Remove, Cancelled | Done) => Ok(state),
            (Self::Cancel, Done) => refused("there is nothing left to cancel; `campaign remove` forgets it"),
            (Self::Remove, _) => refused("cancel it first, or let it be done"),
            (_, Creating) => refused("wait until its list is there, or cancel it"),
            (_, Cancelled) => refused("make a new one"),
            (_, Done) => refused("there is nothing left to do; `campaign retry` tries failed ids again"),
        }
    }
}

#[cfg(test)]
mod tests;
