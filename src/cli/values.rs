//! Values of arguments, with messages that say what to write.

use std::num::NonZeroU32;

/// A rate per second.
pub(super) fn rate(text: &str) -> Result<NonZeroU32, String> {
    text.parse()
        .map_err(|_| format!("write a whole number from 1 to {}; for no limit leave it out", u32::MAX))
}

/// Degrees of latitude or longitude.
pub(super) fn degrees(text: &str) -> Result<f64, String> {
    text.parse()
        .map_err(|_| "write degrees as a number: latitude, then longitude, like 52.52 13.40".to_owned())
}

/// The number of a campaign.
pub(super) fn campaign(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "write the campaign's number; geofold campaign list shows them".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_answered_with_what_to_write() {
        assert_eq!(rate("7").map(NonZeroU32::get), Ok(7));
        assert!(rate("0").unwrap_err().contains("from 1"));
        assert_eq!(degrees("-3.5"), Ok(-3.5));
        assert!(degrees("berlin").unwrap_err().contains("52.52 13.40"));
        assert_eq!(campaign("12"), Ok(12));
        assert!(campaign("abc").unwrap_err().contains("campaign list"));
    }
}
