//! SplitMix64: reproducible pseudo-random numbers for simulations, and for faults and delays that a test can replay;
//! never for secrets.

/// The seed of a randomized test: `GEOFOLD_SEED`, to replay it or, in dev/soak, to try another one; otherwise constant,
/// so that checking a change twice gives the same result.
///
/// # Panics
///
/// If `GEOFOLD_SEED` is not a number.
pub fn seed_of_test() -> u64 {
    match std::env::var("GEOFOLD_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("GEOFOLD_SEED={seed} is not a number")),
        Err(_) => 1,
    }
}

/// A sequence of pseudo-random numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n` - 1; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits().checked_rem(n).unwrap_or(0)
    }

    /// A number from `-n` to `n`.
    pub fn within(&mut self, n: i64) -> i64 {
        let width = n.unsigned_abs().saturating_mul(2).saturating_add(1);
        i64::try_from(self.below(width)).unwrap_or(0) - n
    }

    /// A number from 0 up to, and without, 1, of the upper 32 bits.
    pub fn share(&mut self) -> f64 {
        let high = u32::try_from(self.bits() >> 32).unwrap_or_default();
        f64::from(high) / 4_294_967_296.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_published_algorithm() {
        // The first three of seed 1234567, as in the tests of many implementations.
        let mut random = Random::new(1_234_567);
        let first = [random.bits(), random.bits(), random.bits()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_stay_in_range() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            assert!(random.below(3) < 3);
            assert!((-2..=2).contains(&random.within(2)));
            assert!((0.0..1.0).contains(&random.share()));
        }
        assert_eq!((random.below(0), random.within(0)), (0, 0));
    }
}
