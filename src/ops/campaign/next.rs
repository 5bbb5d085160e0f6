//! Decides what a runner without a token does, and measures a campaign's speed, from the database's state, without I/O.
//!
//! Times are microseconds of the database's clock. No machine's clock decides about leases.

use std::time::Duration;

use super::CampaignState;

/// Maximum wait of a runner without a token, to notice a new rate, a resume or an expired lease.
pub const LOOK: Duration = Duration::from_secs(1);

/// Minimum wait, to avoid a busy loop.
pub const REST: Duration = Duration::from_millis(10);

/// Interval of speed measurements.
pub const WINDOW: Duration = Duration::from_secs(5);

/// A campaign, as a runner that got no token finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenCampaign {
    /// The campaign's state.
    pub state: CampaignState,
    /// Whether a token was never handed out.
    pub has_fresh: bool,
    /// When the rate allows the next token.
    pub free_at: i64,
    /// When the first of its leases is over; `None` if it has none.
    pub first_expiry: Option<i64>,
    /// Now.
    pub now: i64,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Retry after this time.
    Wait(Duration),
    /// Nothing is left: say so in the database.
    Finish,
    /// End.
    Over(CampaignState),
}

/// The next step of a runner without a token.
pub fn next(seen: &SeenCampaign) -> Next {
    let until = |time: i64| {
        let micros = u64::try_from(time.saturating_sub(seen.now)).unwrap_or_default();
        Next::Wait(Duration::from_micros(micros).clamp(REST, LOOK))
    };
    match seen.state {
        CampaignState::Creating | CampaignState::Paused => Next::Wait(LOOK),
        CampaignState::Cancelled | CampaignState::Done => Next::Over(seen.state),
        CampaignState::Ready if seen.has_fresh => until(seen.free_at),
        CampaignState::Ready => match seen.first_expiry {
            None => Next::Finish,
            Some(expiry) => until(expiry.max(seen.free_at)),
        },
    }
}

/// A campaign's measured speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Speed {
    /// When the present window began.
    pub window_start: i64,
    /// Ids done in it.
    pub window_ids: i64,
    /// Ids per second in the one before.
    pub window_rate: i64,
}

/// Ids per second, lately. The last whole window counts the less the longer the present one lasts.
#[expect(clippy::cast_precision_loss, reason = "it is shown to people")]
pub fn rate(speed: &Speed, now: i64) -> f64 {
    let elapsed = now.saturating_sub(speed.window_start).max(0) as f64 / 1e6;
    let window = WINDOW.as_secs_f64();
    let (before, ids) = (speed.window_rate.max(0) as f64, speed.window_ids.max(0) as f64);
    if elapsed >= window { ids / elapsed } else { (before * (window - elapsed) + ids) / window }
}

/// Seconds until `left` ids are done at `rate`; `None` if nothing moves.
#[expect(clippy::cast_precision_loss, reason = "it is shown to people")]
pub fn seconds_left(left: i64, rate: f64) -> Option<f64> {
    let left = left.max(0) as f64;
    if left == 0.0 {
        return Some(0.0);
    }
    (rate > 0.01).then(|| left / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> SeenCampaign {
        SeenCampaign {
            state: CampaignState::Ready,
            has_fresh: true,
            free_at: 0,
            first_expiry: None,
            now: 1_000_000,
        }
    }

    #[test]
    fn a_runner_waits_for_the_rate_or_a_lease_and_never_in_a_hot_loop() {
        let half = Duration::from_millis(500);
        assert_eq!(next(&SeenCampaign { free_at: 1_500_000, ..seen() }), Next::Wait(half));
        assert_eq!(next(&SeenCampaign { free_at: 60_000_000, ..seen() }), Next::Wait(LOOK));
        // Another runner was faster.
        assert_eq!(next(&seen()), Next::Wait(REST));
        let leased =
            |first_expiry| SeenCampaign { has_fresh: false, first_expiry: Some(first_expiry), ..seen() };
        assert_eq!(next(&leased(1_500_000)), Next::Wait(half));
        assert_eq!(next(&leased(0)), Next::Wait(REST));
        assert_eq!(next(&SeenCampaign { free_at: 1_500_000, ..leased(0) }), Next::Wait(half));
        for state in [CampaignState::Creating, CampaignState::Paused] {
            assert_eq!(next(&SeenCampaign { state, ..seen() }), Next::Wait(LOOK));
        }
    }

    #[test]
    fn a_campaign_is_over_when_no_token_is_fresh_and_none_has_a_lease() {
        assert_eq!(next(&SeenCampaign { has_fresh: false, ..seen() }), Next::Finish);
        for state in [CampaignState::Cancelled, CampaignState::Done] {
            assert_eq!(next(&SeenCampaign { state, ..seen() }), Next::Over(state));
        }
    }

    #[test]
    fn rate_moves_to_the_current_window_and_falls_when_idle() {
        let speed = Speed { window_start: 0, window_ids: 0, window_rate: 100 };
        assert_eq!(rate(&speed, 0), 100.0);
        assert_eq!(rate(&Speed { window_ids: 250, ..speed }, 2_500_000), 100.0);
        assert_eq!(rate(&Speed { window_ids: 1000, ..speed }, 10_000_000), 100.0);
        assert!(rate(&speed, 60_000_000) < 0.01);
        assert_eq!(seconds_left(500, 100.0), Some(5.0));
        assert_eq!((seconds_left(1, 0.0), seconds_left(0, 0.0)), (None, Some(0.0)));
    }
}
