//! Which samples a rank takes, across any change of ranks.
//!
//! An epoch is a line of sample numbers in an order that the seed and the epoch give. Each step takes a window from its
//! front, one slice a rank. When the step counts, the slices of the ranks that contributed are done; those of ranks that
//! fell meanwhile go back to the front, for the others. So every sample counts at most once in an epoch, and once exactly
//! if the epoch is run to its end. All ranks take the same windows from the same line, since they agree on who was asked
//! and who contributed; nothing is sent.

use crate::types::{Error, Result};

/// Hands out sample numbers, a part to each rank. Its state is the same on every rank, and a few bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElasticSampler {
    length: usize,
    /// Shuffles if given.
    seed: Option<u64>,
    epoch: u64,
    /// How much of the epoch's order has been taken.
    taken: usize,
    /// Samples that were handed out and did not count, in the order in which they come again.
    returned: Vec<usize>,
    /// The slices of the step under way: each asked member and its samples.
    asked: Vec<(usize, Vec<usize>)>,
    /// The order of `epoch`, made on first use.
    order: Option<Vec<u32>>,
}

impl ElasticSampler {
    /// A sampler over `length` samples, shuffled anew in each epoch with a seed, in their order without one.
    ///
    /// # Errors
    ///
    /// For more than 2^32 - 1 samples.
    pub fn new(length: usize, seed: Option<u64>) -> Result<Self> {
        if u32::try_from(length).is_err() {
            return Err(Error::invalid(format_args!("a sampler over {length} samples; at most {} expected", u32::MAX)));
        }
        Ok(Self { length, seed, epoch: 0, taken: 0, returned: Vec::new(), asked: Vec::new(), order: None })
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many samples of the epoch have not counted yet.
    pub fn remaining(&self) -> usize {
        let asked: usize = self.asked.iter().map(|(_, samples)| samples.len()).sum();
        self.length - self.taken + self.returned.len() + asked
    }

    /// Begins an epoch from its first sample.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.order = None;
        (self.epoch, self.taken) = (epoch, 0);
        self.returned.clear();
        self.asked.clear();
    }

    /// This member's samples for the next step, of at most `batch`; `None` when the epoch is over, on every rank alike.
    /// `members` are the slots that take part, in rank order, and `slot` is this one's. Near the end of an epoch some
    /// ranks get fewer, or none: they take part in the step all the same.
    ///
    /// Asking again before [`commit`](Self::commit) hands out the same samples, as far as the members are the same.
    pub fn next_batch(&mut self, batch: usize, members: &[usize], slot: usize) -> Option<Vec<usize>> {
        self.hand_back(&[]);
        let window = self.take(batch.saturating_mul(members.len()));
        if window.is_empty() {
            return None;
        }
        // As even as possible: nobody's slice is more than one longer than another's.
        let (each, longer) = (window.len() / members.len(), window.len() % members.len());
        let mut rest = window.as_slice();
        for (rank, &member) in members.iter().enumerate() {
            let (slice, others) = rest.split_at(each + usize::from(rank < longer));
            self.asked.push((member, slice.to_vec()));
            rest = others;
        }
        self.asked.iter().find(|(member, _)| *member == slot).map(|(_, samples)| samples.clone())
    }

    /// The step counted, with what `contributors` brought.
    pub fn commit(&mut self, contributors: &[usize]) {
        self.hand_back(contributors);
    }

    /// Puts the slices of all but `contributors` to the front of the line.
    fn hand_back(&mut self, contributors: &[usize]) {
        let asked = std::mem::take(&mut self.asked);
        let mut back: Vec<usize> =
            asked.into_iter().filter(|(member, _)| !contributors.contains(member)).flat_map(|(_, of)| of).collect();
        if !back.is_empty() {
            back.append(&mut self.returned);
            self.returned = back;
        }
    }

    fn take(&mut self, count: usize) -> Vec<usize> {
        let again = count.min(self.returned.len());
        let mut window: Vec<usize> = self.returned.drain(..again).collect();
        let fresh = (count - again).min(self.length - self.taken);
        if fresh > 0 {
            let (length, seed, epoch) = (self.length, self.seed, self.epoch);
            let order = self.order.get_or_insert_with(|| epoch_order(length as u32, seed, epoch));
            window.extend(order[self.taken..self.taken + fresh].iter().map(|&sample| sample as usize));
            self.taken += fresh;
        }
        window
    }

    /// The state in bytes, to travel with the rest of the training state.
    pub fn encode(&self) -> Vec<u8> {
        // Samples under way have not counted.
        let back: Vec<usize> = self.asked.iter().flat_map(|(_, samples)| samples).copied().collect();
        let words = [self.length as u64, u64::from(self.seed.is_some()), self.seed.unwrap_or(0), self.epoch];
        let lists = [self.taken as u64].into_iter().chain(back.iter().chain(&self.returned).map(|&at| at as u64));
        words.into_iter().chain(lists).flat_map(u64::to_le_bytes).collect()
    }

    /// The sampler that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    ///
    /// When the bytes are not that.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::invalid("these bytes are not the state of a sampler");
        let words: Vec<u64> =
            bytes.chunks(8).map_while(|word| Some(u64::from_le_bytes(word.try_into().ok()?))).collect();
        let [length, seeded, seed, epoch, taken, returned @ ..] = words.as_slice() else { return Err(wrong()) };
        let (length, taken) = (*length as usize, *taken as usize);
        let returned: Vec<usize> = returned.iter().map(|&at| at as usize).collect();
        if !bytes.len().is_multiple_of(8)
            || taken > length
            || returned.len() > taken
            || returned.iter().any(|&at| at >= length)
        {
            return Err(wrong());
        }
        let mut sampler = Self::new(length, (*seeded != 0).then_some(*seed))?;
        (sampler.epoch, sampler.taken, sampler.returned) = (*epoch, taken, returned);
        Ok(sampler)
    }
}

/// The order of an epoch's samples: from 0 on without a seed, shuffled with one. The same everywhere.
pub fn epoch_order(length: u32, seed: Option<u64>, epoch: u64) -> Vec<u32> {
    // Fisher and Yates' shuffle, with numbers from SplitMix64 (Steele, Lea, Flood 2014).
    let mut order: Vec<u32> = (0..length).collect();
    if let Some(seed) = seed {
        let mut state = seed ^ epoch.wrapping_mul(0xd134_2543_de82_ef95);
        for last in (1..order.len()).rev() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            // The high half of a product: as even as 2^64 / length allows.
            order.swap(last, ((u128::from(word) * (last as u128 + 1)) >> 64) as usize);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run over one epoch in which members come and go; returns what counted.
    fn run(length: usize, seed: u64) -> Vec<usize> {
        let mut noise = seed;
        let mut below = |limit: usize| {
            noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (noise >> 33) as usize % limit
        };
        let mut members: Vec<usize> = (0..4).collect();
        let mut next_slot = 4;
        let mut samplers: Vec<ElasticSampler> =
            members.iter().map(|_| ElasticSampler::new(length, Some(seed)).unwrap()).collect();
        let mut counted = Vec::new();
        loop {
            let batch = 1 + below(7);
            let slices: Vec<_> = members
                .iter()
                .zip(&mut samplers)
                .map(|(&slot, sampler)| sampler.next_batch(batch, &members, slot))
                .collect();
            if slices.iter().any(Option::is_none) {
                assert!(slices.iter().all(Option::is_none), "all see the end alike");
                return counted;
            }
            // Some fall within the step.
            let mut left: Vec<usize> = members.clone();
            while left.len() > 1 && below(4) == 0 {
                left.remove(below(left.len()));
            }
            for (slot, slice) in members.iter().zip(slices) {
                if left.contains(slot) {
                    counted.extend(slice.unwrap());
                }
            }
            let mut stay = members.iter().map(|slot| left.contains(slot));
            samplers.retain(|_| stay.next().unwrap());
            members = left.clone();
            samplers.iter_mut().for_each(|sampler| sampler.commit(&left));
            // Some come between the steps, with the state of the others.
            while members.len() < 6 && below(3) == 0 {
                members.push(next_slot);
                next_slot += 1;
                samplers.push(ElasticSampler::decode(&samplers[0].encode()).unwrap());
            }
            assert!(samplers.iter().all(|sampler| sampler.encode() == samplers[0].encode()));
        }
    }

    #[test]
    fn every_sample_counts_once_whoever_comes_and_goes() {
        for seed in 0..200 {
            let length = [0, 1, 5, 97, 1000][seed as usize % 5];
            let mut counted = run(length, seed);
            counted.sort_unstable();
            assert_eq!(counted, (0..length).collect::<Vec<_>>(), "seed {seed}");
        }
    }

    #[test]
    fn a_step_that_did_not_count_hands_out_the_same_again() {
        let mut sampler = ElasticSampler::new(20, Some(3)).unwrap();
        let first = sampler.next_batch(4, &[0, 1], 1);
        assert_eq!(sampler.remaining(), 20);
        assert_eq!(sampler.next_batch(4, &[0, 1], 1), first);
        sampler.commit(&[0, 1]);
        assert_eq!(sampler.remaining(), 12);
        assert_ne!(sampler.next_batch(4, &[0, 1], 1), first);
    }

    #[test]
    fn epochs_and_seeds_differ_and_without_a_seed_the_order_stays() {
        let epoch = |seed, epoch| epoch_order(50, seed, epoch);
        assert_eq!(epoch(None, 3), (0..50).collect::<Vec<_>>());
        assert_eq!(epoch(Some(1), 0), epoch(Some(1), 0));
        assert_ne!(epoch(Some(1), 0), epoch(Some(1), 1));
        assert_ne!(epoch(Some(1), 0), epoch(Some(2), 0));
        let mut sampler = ElasticSampler::new(4, Some(1)).unwrap();
        assert!(sampler.next_batch(4, &[0], 0).is_some());
        sampler.commit(&[0]);
        assert_eq!(sampler.next_batch(4, &[0], 0), None);
        sampler.set_epoch(1);
        assert_eq!(sampler.next_batch(4, &[0], 0).unwrap().len(), 4);
    }

    #[test]
    fn bytes_that_are_no_state_are_refused() {
        let mut sampler = ElasticSampler::new(9, None).unwrap();
        sampler.next_batch(2, &[4, 7], 4);
        let bytes = sampler.encode();
        assert_eq!(ElasticSampler::decode(&bytes).unwrap().encode(), bytes);
        for cut in 0..bytes.len() {
            let decoded = ElasticSampler::decode(&bytes[..cut]);
            assert!(decoded.is_err() || cut >= 40 && cut % 8 == 0, "{cut} bytes");
        }
        let mut beyond = bytes.clone();
        beyond.extend(99u64.to_le_bytes());
        assert!(ElasticSampler::decode(&beyond).is_err());
    }
}
