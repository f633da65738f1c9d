//! Seeded randomness: the same seed gives the same numbers on every machine.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
pub struct Random(u64);

impl Random {
    /// Starts from `seed`; `stream` keeps the numbers of different uses apart.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.next() ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
        random
    }

    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from -1 up to but not including 1, one of 2^24 equally likely.
    pub fn symmetric(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// A number below `limit`, which is not zero. The bias is below `limit` / 2^64.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// Shuffles in place (Fisher, Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_seed_and_stream_alone() {
        let numbers = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.next()]
        };
        assert_eq!(numbers(1, 2), numbers(1, 2));
        assert_ne!(numbers(1, 2), numbers(1, 3));
        assert_ne!(numbers(1, 2), numbers(2, 2));
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<_> = (0..1000).collect();
        Random::new(7, 0).shuffle(&mut items);
        assert!(items.windows(2).any(|pair| pair[0] > pair[1]));
        items.sort_unstable();
        assert!(items.into_iter().eq(0..1000));
    }

    #[test]
    fn symmetric_numbers_stay_in_range_and_reach_both_sides() {
        let mut random = Random::new(0, 0);
        let numbers: Vec<_> = (0..1000).map(|_| random.symmetric()).collect();
        assert!(numbers.iter().all(|number| (-1.0..1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < -0.9) && numbers.iter().any(|number| *number > 0.9));
    }
}
