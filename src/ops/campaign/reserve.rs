//! Tokens and leases of runners, in the database.
//!
//! A token is reserved by one update of one row, for any size of campaign; with it comes a lease. The holder of a
//! lease whose time is over loses it to the next who asks, once no fresh token is left. A lease's fence grows each time that
//! it is given, so that a runner that was frozen finds out: what it says then changes nothing.

use std::time::Duration;

use super::next::{Next, SeenCampaign, WINDOW, next};
use super::schema::timed;
use super::store::{CampaignStore, Failed, first_int, lock_state, micros, word, write_failed};
use super::{CampaignState, chunk};
use crate::io::database::{DatabaseError, Sql, SqlValue, Transaction};

/// A chunk that is this runner's for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Of this campaign.
    pub campaign: i64,
    /// The chunk.
    pub token: i64,
    /// Who has it.
    pub runner: String,
    /// How often the token was given.
    pub fence: i64,
    /// Ids per second that the campaign may do now; 0: any number.
    pub rate: i64,
}

/// Result of reserving a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reservation {
    /// This one.
    Chunk(Lease),
    /// None now: retry after this time.
    Wait(Duration),
    /// None any more.
    Over(CampaignState),
    /// There is no such campaign.
    Unknown,
}

/// State returned by a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseStanding {
    /// The campaign's state.
    pub state: CampaignState,
    /// Ids per second that it may do now; 0: any number.
    pub rate: i64,
}

/// The next fresh token, if the campaign is ready and its rate allows it. A second's worth of ids may be made up for.
const NEXT_TOKEN: Sql = timed!(
    "UPDATE campaign SET next_token = next_token + 1, \
     free_at = CASE WHEN rate = 0 THEN 0 WHEN free_at > ",
    " - 1000000 THEN free_at + chunk * 1000000 / rate ELSE ",
    " - 1000000 + chunk * 1000000 / rate END, \
     started = CASE WHEN started = 0 THEN ",
    " ELSE started END, window_start = CASE WHEN window_start = 0 THEN ",
    " ELSE window_start END WHERE id = $1 AND state = 'ready' AND next_token <= tokens AND free_at <= ",
    " RETURNING next_token - 1, rate"
);

const LEASE: Sql = timed!(
    "INSERT INTO campaign_lease (campaign, token, runner, fence, expires) VALUES ($1, $2, $3, 1, ",
    " + $4)"
);

/// The same, by the rate, for a token that was given before.
const ADMIT_AGAIN: Sql = timed!(
    "UPDATE campaign SET free_at = CASE WHEN rate = 0 THEN 0 WHEN free_at > ",
    " - 1000000 THEN free_at + chunk * 1000000 / rate ELSE ",
    " - 1000000 + chunk * 1000000 / rate END \
     WHERE id = $1 AND state = 'ready' AND next_token > tokens AND free_at <= ",
    " RETURNING rate"
);

const TAKE_OVER: Sql = timed!(
    "UPDATE campaign_lease SET runner = $2, fence = fence + 1, expires = ",
    " + $3 WHERE campaign = $1 AND expires <= ",
    " AND token = (SELECT token FROM campaign_lease WHERE campaign = $1 AND expires <= ",
    " ORDER BY expires, token LIMIT 1) RETURNING token, fence"
);

const LOOK: Sql = timed!(
    "SELECT state, next_token, tokens, free_at, \
     (SELECT MIN(expires) FROM campaign_lease WHERE campaign = $1), ",
    " FROM campaign WHERE id = $1"
);

const EXTEND: Sql = timed!(
    "UPDATE campaign_lease SET expires = ",
    " + $5 WHERE campaign = $1 AND token = $2 AND runner = $3 AND fence = $4"
);

/// Adds progress and measures the speed.
const COUNT: Sql = timed!(
    "UPDATE campaign SET produced = produced + $2, failed = failed + $3, \
     window_rate = CASE WHEN ",
    " - window_start >= $4 THEN window_ids * 1000000 / (",
    " - window_start) ELSE window_rate END, \
     window_ids = CASE WHEN ",
    " - window_start >= $4 THEN $2 + $3 ELSE window_ids + $2 + $3 END, \
     window_start = CASE WHEN ",
    " - window_start >= $4 THEN ",
    " ELSE window_start END WHERE id = $1"
);

const END_IF_DONE: Sql = timed!(
    "UPDATE campaign SET state = 'done', ended = ",
    " WHERE id = $1 AND state = 'ready' AND next_token > tokens \
     AND NOT EXISTS (SELECT 1 FROM campaign_lease WHERE campaign = $1)"
);

const GIVE_BACK: &str =
    "UPDATE campaign_lease SET expires = 0 WHERE campaign = $1 AND token = $2 AND runner = $3 AND fence = $4";

const DONE: &str =
    "DELETE FROM campaign_lease WHERE campaign = $1 AND token = $2 AND runner = $3 AND fence = $4";

impl Lease {
    fn key(&self) -> [SqlValue<'_>; 4] {
        let Self { campaign, token, runner, fence, .. } = self;
        [SqlValue::Int(*campaign), SqlValue::Int(*token), SqlValue::Text(runner), SqlValue::Int(*fence)]
    }
}

impl CampaignStore {
    /// Reserves a token of a campaign as `runner`, for `time` from now.
    pub async fn reserve(
        &self,
        campaign: i64,
        runner: &str,
        time: Duration,
    ) -> Result<Reservation, DatabaseError> {
        let mut transaction = self.database.begin("reserving a token").await?;
        let fresh = take_fresh(&mut transaction, campaign, runner, time).await?;
        let lease = match fresh {
            Some(lease) => Some(lease),
            None => take_over(&mut transaction, campaign, runner, time).await?,
        };
        if let Some(lease) = lease {
            transaction.commit().await?;
            return Ok(Reservation::Chunk(lease));
        }
        // Refund the rate charged for a token that does not exist.
        transaction.rollback().await?;
        self.look(campaign).await
    }

    async fn look(&self, campaign: i64) -> Result<Reservation, DatabaseError> {
        let mut transaction = self.database.begin("looking at a campaign").await?;
        let rows = transaction.rows(LOOK, &[SqlValue::Int(campaign)]).await?;
        let Some(row) = rows.first() else {
            transaction.rollback().await?;
            return Ok(Reservation::Unknown);
        };
        let int = |column| transaction.cell(row.int(column));
        let seen = SeenCampaign {
            state: word(&transaction, transaction.cell(row.text(0))?)?,
            has_fresh: int(1)? <= int(2)?,
            free_at: int(3)?,
            first_expiry: transaction.cell(row.maybe_int(4))?,
            now: int(5)?,
        };
        match next(&seen) {
            Next::Wait(time) => {
                transaction.rollback().await?;
                Ok(Reservation::Wait(time))
            }
            Next::Over(state) => {
                transaction.rollback().await?;
                Ok(Reservation::Over(state))
            }
            Next::Finish => {
                // Lock first: the reads then include all leases granted meanwhile.
                lock_state(&mut transaction, campaign).await?;
                let ended = transaction.execute(END_IF_DONE, &[SqlValue::Int(campaign)]).await? == 1;
                transaction.commit().await?;
                Ok(if ended {
                    Reservation::Over(CampaignState::Done)
                } else {
                    Reservation::Wait(super::next::REST)
                })
            }
        }
    }

    /// The ids of a chunk; `None` if the campaign was removed.
    pub async fn chunk(&self, lease: &Lease) -> Result<Option<Vec<Vec<u8>>>, DatabaseError> {
        let mut transaction = self.database.read("reading the ids of a chunk").await?;
        let sql = "SELECT ids FROM campaign_chunk WHERE campaign = $1 AND token = $2";
        let values = [SqlValue::Int(lease.campaign), SqlValue::Int(lease.token)];
        let rows = transaction.rows(sql, &values).await?;
        let bytes = match rows.first() {
            Some(row) => transaction.cell(row.maybe_bytes(0))?,
            None => None,
        };
        let Some(bytes) = bytes else {
            transaction.rollback().await?;
            return Ok(None);
        };
        let ids = chunk::ids(&bytes).map_err(|broken| transaction.unreadable(broken.to_string()))?;
        let ids = ids.into_iter().map(<[u8]>::to_vec).collect();
        transaction.rollback().await?;
        Ok(Some(ids))
    }

    /// Heartbeat: extends the lease to `time` from now. `None` if another runner holds it.
    pub async fn extend(
        &self,
        lease: &Lease,
        time: Duration,
    ) -> Result<Option<LeaseStanding>, DatabaseError> {
        let mut transaction = self.database.begin("extending a lease").await?;
        let [campaign, token, runner, fence] = lease.key();
        let values = [campaign, token, runner, fence, SqlValue::Int(micros(time))];
        if transaction.execute(EXTEND, &values).await? == 0 {
            transaction.rollback().await?;
            return Ok(None);
        }
        let rows = transaction.rows("SELECT rate, state FROM campaign WHERE id = $1", &[campaign]).await?;
        let Some(row) = rows.first() else {
            transaction.rollback().await?;
            return Ok(None);
        };
        let rate = transaction.cell(row.int(0))?;
        let state = word(&transaction, transaction.cell(row.text(1))?)?;
        transaction.commit().await?;
        Ok(Some(LeaseStanding { state, rate }))
    }

    /// Finishes the chunk: `produced` ids are in the topic, and these have failed. False, without a change, if another runner
    /// holds the lease.
    pub async fn finish(
        &self,
        lease: &Lease,
        produced: usize,
        failed: &[Failed],
    ) -> Result<bool, DatabaseError> {
        let mut transaction = self.database.begin("marking a chunk as done").await?;
        if transaction.execute(DONE, &lease.key()).await? == 0 {
            transaction.rollback().await?;
            return Ok(false);
        }
        write_failed(&mut transaction, lease.campaign, failed).await?;
        let count = |count: usize| SqlValue::Int(i64::try_from(count).unwrap_or(i64::MAX));
        let campaign = SqlValue::Int(lease.campaign);
        // Concurrent finishers serialize on this row, so that the last one sees that nothing is left.
        let values = [campaign, count(produced), count(failed.len()), SqlValue::Int(micros(WINDOW))];
        transaction.execute(COUNT, &values).await?;
        transaction.execute(END_IF_DONE, &[campaign]).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Releases an unfinished chunk before its lease expires.
    pub async fn give_back(&self, lease: &Lease) -> Result<(), DatabaseError> {
        let mut transaction = self.database.begin("giving a lease back").await?;
        transaction.execute(GIVE_BACK, &lease.key()).await?;
        transaction.commit().await
    }
}

async fn take_fresh(
    transaction: &mut Transaction,
    campaign: i64,
    runner: &str,
    time: Duration,
) -> Result<Option<Lease>, DatabaseError> {
    let rows = transaction.rows(NEXT_TOKEN, &[SqlValue::Int(campaign)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (token, rate) = (transaction.cell(row.int(0))?, transaction.cell(row.int(1))?);
    let values =
        [SqlValue::Int(campaign), SqlValue::Int(token), SqlValue::Text(runner), SqlValue::Int(micros(time))];
    transaction.execute(LEASE, &values).await?;
    Ok(Some(Lease { campaign, token, runner: runner.to_owned(), fence: 1, rate }))
}

async fn take_over(
    transaction: &mut Transaction,
    campaign: i64,
    runner: &str,
    time: Duration,
) -> Result<Option<Lease>, DatabaseError> {
    let admitted = transaction.rows(ADMIT_AGAIN, &[SqlValue::Int(campaign)]).await?;
    if admitted.is_empty() {
        return Ok(None);
    }
    let rate = first_int(transaction, &admitted)?;
    let values = [SqlValue::Int(campaign), SqlValue::Text(runner), SqlValue::Int(micros(time))];
    let rows = transaction.rows(TAKE_OVER, &values).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (token, fence) = (transaction.cell(row.int(0))?, transaction.cell(row.int(1))?);
    Ok(Some(Lease { campaign, token, runner: runner.to_owned(), fence, rate }))
}
