//! The parameters of a message stream, and why each default is what it is.

use crate::types::TransportKind;
use crate::wire::frame::Hello;

/// What an early message is charged besides its bytes: about the memory that remembering it takes here.
pub(super) const EARLY_COST: usize = 256;

/// How a stream cuts, stores and bounds. Both ends of a link must use the same settings (but for those marked
/// *local*); the first frame on each lane says them, and a difference is a failure of the link that names both values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// The longest message, in bytes, that is sent before it is known that a receive waits for it.
    ///
    /// 64 KiB. Below, the round trip that asking costs is worth more than the copy which an
    /// early message costs: one copy of 64 KiB takes about 5 us, a round trip over TCP 10 to 50 us. Above, memory goes
    /// straight to its place.
    pub eager_limit: usize,
    /// How many bytes of messages may be under way to, or waiting at, a peer that has not posted receives for them.
    /// Each message counts 256 bytes more than it has.
    ///
    /// 1 MiB. A rank in a world of 64 then holds at most 63 MiB for others, and a burst of sixteen of the longest
    /// eager messages or of four thousand tiny ones passes without a question. At least four of the longest eager
    /// messages, since credit returns in quarters.
    pub early_budget: usize,
    /// Bytes of each segment of a long message but its last; a multiple of 64, so that no element is cut.
    ///
    /// 256 KiB for TCP: long enough that a system call and a header cost little beside it, short enough that a small
    /// message waits for at most 0.2 ms behind one at 10 Gbit/s. 64 KiB in memory, where nothing is won by more and
    /// a segment should still be in the cache when its reader comes.
    pub segment_bytes: usize,
    /// How many messages may be announced and not yet have a receive.
    ///
    /// 16,384, which the peer remembers in about 5 MiB. Whoever has more unposted messages than this under way to one
    /// peer waits with the next until the peer posts one.
    pub announce_limit: usize,
    /// How many receives may be offered to the peer before their message is announced. Beyond it, a receive waits for
    /// the announcement, which costs a round trip.
    ///
    /// 1,024: more than any schedule has in flight.
    pub ready_limit: usize,
    /// *Local.* Up to this many bytes, a message is copied beside its header, so that several leave in one write.
    ///
    /// 512: copying them takes 20 ns, less than anything it could save.
    pub copy_limit: usize,
    /// *Local.* How many bytes one call of `progress` reads from, or writes to, one lane.
    ///
    /// 1 MiB: about 0.1 ms, after which other peers get their turn.
    pub turn_bytes: usize,
    /// *Local.* How many frames one call of `progress` reads from one lane.
    ///
    /// 64, for the same reason.
    pub turn_frames: usize,
}

impl StreamConfig {
    /// The defaults for a carrier.
    pub const fn for_kind(kind: TransportKind) -> Self {
        Self {
            eager_limit: 64 << 10,
            early_budget: 1 << 20,
            segment_bytes: match kind {
                TransportKind::Tcp => 256 << 10,
                _ => 64 << 10,
            },
            announce_limit: 16 << 10,
            ready_limit: 1 << 10,
            copy_limit: 512,
            turn_bytes: 1 << 20,
            turn_frames: 64,
        }
    }

    /// The nearest settings that work.
    pub(super) fn sound(self) -> Self {
        let eager_limit = self.eager_limit.min(16 << 20);
        Self {
            eager_limit,
            early_budget: self.early_budget.clamp(4 * (eager_limit + EARLY_COST), 1 << 30),
            segment_bytes: (self.segment_bytes.min(1 << 30) / 64 * 64).max(64),
            announce_limit: self.announce_limit.max(1),
            ready_limit: self.ready_limit,
            copy_limit: self.copy_limit,
            turn_bytes: self.turn_bytes.max(1),
            turn_frames: self.turn_frames.max(1),
        }
    }

    /// What is said about them on lane `lane` of `lanes`.
    pub(super) fn hello(&self, lane: usize, lanes: usize) -> Hello {
        Hello {
            lane: lane as u32,
            lanes: lanes as u32,
            eager_limit: self.eager_limit as u64,
            early_budget: self.early_budget as u64,
            segment_bytes: self.segment_bytes as u64,
            announce_limit: self.announce_limit as u64,
            ready_limit: self.ready_limit as u64,
        }
    }
}

/// In what the peer's settings differ from ours, in words.
pub(super) fn compare(ours: &Hello, theirs: &Hello) -> Result<(), String> {
    let fields = [
        ("number of lanes", u64::from(ours.lanes), u64::from(theirs.lanes)),
        ("lane", u64::from(ours.lane), u64::from(theirs.lane)),
        ("eager limit", ours.eager_limit, theirs.eager_limit),
        ("early budget", ours.early_budget, theirs.early_budget),
        ("segment length", ours.segment_bytes, theirs.segment_bytes),
        ("announcement limit", ours.announce_limit, theirs.announce_limit),
        ("ready limit", ours.ready_limit, theirs.ready_limit),
    ];
    match fields.into_iter().find(|(_, ours, theirs)| ours != theirs) {
        None => Ok(()),
        Some((name, ours, theirs)) => Err(format!("the peer's {name} is {theirs}, ours is {ours}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound_and_nonsense_becomes_so() {
        for &kind in TransportKind::ALL {
            let config = StreamConfig::for_kind(kind);
            assert_eq!(config.sound(), config);
        }
        let nonsense = StreamConfig {
            eager_limit: usize::MAX,
            early_budget: 0,
            segment_bytes: 65,
            announce_limit: 0,
            ready_limit: 0,
            copy_limit: 0,
            turn_bytes: 0,
            turn_frames: 0,
        };
        let sound = nonsense.sound();
        assert_eq!(sound.sound(), sound);
        assert_eq!(sound.segment_bytes, 64);
        assert!(sound.early_budget >= 4 * sound.eager_limit);
    }

    #[test]
    fn a_difference_is_named_with_both_values() {
        let config = StreamConfig::for_kind(TransportKind::Tcp);
        let ours = config.hello(1, 4);
        assert_eq!(compare(&ours, &ours), Ok(()));
        let theirs = StreamConfig { eager_limit: 1000, ..config }.hello(1, 4);
        assert_eq!(compare(&ours, &theirs), Err("the peer's eager limit is 1000, ours is 65536".to_owned()));
    }
}
