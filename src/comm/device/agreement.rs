//! What carries a communicator's device calls: agreed on by all ranks with the first of them of which every rank has
//! elements, and so a device.
//!
//! Each rank tells all others what it has (its [`Record`]), over the host communicator beneath. From the same records
//! [`decide`] makes the same choice on every rank, and says why.

use crate::bootstrap::{DEVICE_COLLECTIVES, DeviceCollectives, Variables, settings};
use crate::comm::call::{Call, Extent};
use crate::device::{Device, DeviceIdentity};
use crate::types::{DataType, Error, Result};

use super::worker::{Failure, Job};

/// Bytes of text that travel in a record: enough for any reason.
pub(super) const TEXT_BYTES: usize = 400;

/// Bytes of a record.
const RECORD_BYTES: usize = 2 + 12 + 12 + 16 + 17 + 2 + TEXT_BYTES;

/// Where in a record the text begins.
const TEXT_AT: usize = RECORD_BYTES - 2 - TEXT_BYTES;

/// What carries calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Pinned host memory, and the host communicator.
    Staged,
    /// NCCL.
    Nccl,
}

/// Whether memory of peers is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverPeersWish {
    /// It is not.
    No,
    /// Where it can be.
    WherePossible,
    /// That it cannot be is an error.
    Insists,
}

/// A communicator of NCCL's from an earlier view, on a rank that has it still and can make another of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heir {
    /// Which communicator: the same number on each of its ranks.
    pub lineage: u64,
    /// This rank in it.
    pub rank: u32,
    /// The number of its ranks.
    pub size: u32,
}

/// NCCL on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HasNccl {
    pub version: [u32; 3],
    /// What it can beside the collectives; a bit for each.
    pub abilities: u8,
}

/// What a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    wish: DeviceCollectives,
    device: DeviceIdentity,
    /// NCCL, or why it cannot be used.
    nccl: Result<HasNccl, String>,
    heir: Option<Heir>,
}

/// What all ranks agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub carrier: Carrier,
    /// Whether NCCL is to carry all that it knows, whatever it rounds otherwise.
    pub insists: bool,
    /// Whether calls that NCCL does not carry go over memory of peers.
    pub peers: OverPeersWish,
    /// Why it is not NCCL, if nobody wished that.
    pub why_not: Option<String>,
    /// What each rank has of an earlier view's NCCL, and what the libraries of all of them can.
    pub heirs: Vec<Option<Heir>>,
    pub abilities: u8,
}

impl Agreed {
    /// What holds when NCCL made no communicator, on any rank.
    #[cfg(feature = "nccl")]
    pub fn without_nccl(self, cause: Error) -> Result<Self, Failure> {
        if self.insists {
            return Err(Failure::Network(cause));
        }
        Ok(Self { carrier: Carrier::Staged, why_not: Some(cause.to_string()), ..self })
    }
}

/// Whether every rank has elements of such a call. Until there is one, calls go by the host: a rank without elements may
/// not know yet on which device it will have some.
pub(super) fn is_due(call: &Call, size: usize) -> bool {
    // Counts of an exchange are known to sender and receiver only.
    let is_known = !matches!(call.extent, Extent::Exchange { .. });
    is_known && (0..size).all(|rank| call.buffer_counts(rank, size) != (0, 0))
}

/// Whether no rank has elements of such a call, as far as all ranks know.
pub(super) fn is_void(call: &Call) -> bool {
    match &call.extent {
        Extent::Whole(count) | Extent::Equal(count) => *count == 0,
        Extent::Blocks(counts) => counts.iter().all(|count| *count == 0),
        Extent::Exchange { .. } => false,
    }
}

/// Tells the other ranks what this one has, and decides.
pub(super) fn agree(job: &Job, nccl: impl FnOnce() -> Result<HasNccl>, heir: Option<Heir>) -> Result<Agreed, Failure> {
    let wish = settings(&Variables::of_process())?.device_collectives;
    let own = Record { heir, ..Record::of(&job.device, wish, nccl) }.encode();
    let size = job.communicator.size();
    let mut all = vec![0; own.len() * size];
    job.tell(Call::allgather(DataType::U8, own.len()), 1, &own, &mut all)?;
    let records: Option<Vec<_>> = all.chunks_exact(own.len()).map(Record::decode).collect();
    let records = records.ok_or_else(|| Error::internal("a rank told something else than what it has"))?;
    decide(&records, &job.communicator.view().hosts).map_err(Failure::Network)
}

impl Record {
    fn of(device: &Device, wish: DeviceCollectives, nccl: impl FnOnce() -> Result<HasNccl>) -> Self {
        if matches!(wish, DeviceCollectives::Staged | DeviceCollectives::Peer) {
            // Nothing is loaded that is not wanted.
            return Self { wish, device: DeviceIdentity::default(), nccl: Err("not wanted".into()), heir: None };
        }
        let identity = device.identity();
        let known = identity.clone().unwrap_or_default();
        let nccl = identity.and_then(|_| nccl()).map_err(|error| error.to_string());
        Self { wish, device: known, nccl, heir: None }
    }

    fn encode(&self) -> Vec<u8> {
        let wish = match self.wish {
            DeviceCollectives::Auto => 0,
            DeviceCollectives::Nccl => 1,
            DeviceCollectives::Staged => 2,
            DeviceCollectives::Peer => 3,
        };
        let mut bytes = vec![wish, u8::from(self.nccl.is_ok())];
        let nccl = self.nccl.as_ref().copied().unwrap_or_default();
        nccl.version.iter().chain(&self.device.place).for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(self.device.uuid);
        // Nothing is of a communicator without ranks.
        let heir = self.heir.unwrap_or(Heir { lineage: 0, rank: 0, size: 0 });
        bytes.push(nccl.abilities);
        bytes.extend(heir.lineage.to_le_bytes());
        [heir.rank, heir.size].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(encode_text(self.nccl.as_ref().err().map_or("", String::as_str)));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let wish = match bytes[0] {
            0 => DeviceCollectives::Auto,
            1 => DeviceCollectives::Nccl,
            2 => DeviceCollectives::Staged,
            3 => DeviceCollectives::Peer,
            _ => return None,
        };
        fn numbers<const COUNT: usize>(bytes: &[u8; RECORD_BYTES], from: usize) -> [u32; COUNT] {
            std::array::from_fn(|number| {
                u32::from_le_bytes(std::array::from_fn(|byte| bytes[from + 4 * number + byte]))
            })
        }
        let uuid = std::array::from_fn(|byte| bytes[26 + byte]);
        let nccl = match bytes[1] {
            1 => Ok(HasNccl { version: numbers(bytes, 2), abilities: bytes[42] }),
            _ => Err(decode_text(&bytes[TEXT_AT..])),
        };
        let lineage = u64::from_le_bytes(std::array::from_fn(|byte| bytes[43 + byte]));
        let [rank, size] = numbers(bytes, 51);
        let heir = (size > 0).then_some(Heir { lineage, rank, size });
        Some(Self { wish, device: DeviceIdentity { place: numbers(bytes, 14), uuid }, nccl, heir })
    }
}

/// A text in so many bytes, whatever its length; what does not fit is cut off.
pub(super) fn encode_text(text: &str) -> [u8; 2 + TEXT_BYTES] {
    let mut bytes = [0; 2 + TEXT_BYTES];
    let length = text.len().min(TEXT_BYTES);
    bytes[..2].copy_from_slice(&(length as u16).to_le_bytes());
    bytes[2..][..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

/// Reads such a text. Whatever the bytes are, it is one.
pub(super) fn decode_text(bytes: &[u8]) -> String {
    let length = bytes.first_chunk().map_or(0, |length| usize::from(u16::from_le_bytes(*length)));
    let text = bytes.get(2..).unwrap_or_default();
    String::from_utf8_lossy(&text[..length.min(text.len())]).into_owned()
}

/// Chooses, from what all ranks have and which host each is on.
///
/// # Errors
///
/// The same on every rank: wishes that contradict each other, or NCCL wished for where it cannot be.
pub(super) fn decide(records: &[Record], hosts: &[usize]) -> Result<Agreed> {
    let name = DEVICE_COLLECTIVES.name;
    let with = |wish| (0..records.len()).filter(|&rank| records[rank].wish == wish).collect::<Vec<_>>();
    let wishes = [
        ("nccl", with(DeviceCollectives::Nccl)),
        ("peer", with(DeviceCollectives::Peer)),
        ("staged", with(DeviceCollectives::Staged)),
    ];
    let mut wished = wishes.iter().filter(|(_, with)| !with.is_empty());
    if let (Some((one, with_one)), Some((other, with_other))) = (wished.next(), wished.next()) {
        return Err(Error::environment(
            format_args!("{name} is {one} on {} and {other} on {}", ranks(with_one), ranks(with_other)),
            "set it alike on all ranks",
        ));
    }
    let staged = |why_not, peers| Agreed {
        carrier: Carrier::Staged,
        insists: false,
        peers,
        why_not,
        heirs: Vec::new(),
        abilities: 0,
    };
    let [(_, insisting), (_, by_peers), (_, refusing)] = wishes;
    if !refusing.is_empty() {
        return Ok(staged(None, OverPeersWish::No));
    }
    if !by_peers.is_empty() {
        return Ok(staged(None, OverPeersWish::Insists));
    }
    let insists = !insisting.is_empty();
    let peers = if insists { OverPeersWish::No } else { OverPeersWish::WherePossible };
    match obstacle(records, hosts) {
        None => Ok(Agreed {
            carrier: Carrier::Nccl,
            insists,
            peers,
            why_not: None,
            heirs: records.iter().map(|record| record.heir).collect(),
            abilities: records.iter().flat_map(|record| &record.nccl).fold(!0, |all, nccl| all & nccl.abilities),
        }),
        Some(why) if insists => Err(Error::environment(
            format_args!("{name} is nccl on {}, but NCCL cannot be used: {why}", ranks(&insisting)),
            format_args!("mend that, or set {name} to auto"),
        )),
        Some(why) => Ok(staged(Some(why), peers)),
    }
}

/// Why NCCL cannot carry the calls of these ranks.
fn obstacle(records: &[Record], hosts: &[usize]) -> Option<String> {
    let lacking: Vec<_> = (0..records.len()).filter(|&rank| records[rank].nccl.is_err()).collect();
    if let Some(Err(reason)) = lacking.first().map(|&rank| &records[rank].nccl) {
        return Some(format!("{} cannot: {reason}", ranks(&lacking)));
    }
    let version =
        |rank: usize| records[rank].nccl.as_ref().map(|nccl| nccl.version.map(|part| part.to_string()).join("."));
    if let Some(other) = (1..records.len()).find(|&rank| version(rank) != version(0))
        && let (Ok(first), Ok(second)) = (version(0), version(other))
    {
        return Some(format!("rank 0 has version {first}, rank {other} has {second}"));
    }
    for (rank, record) in records.iter().enumerate() {
        let has_the_same = |other: usize| {
            let (device, here) = (&records[other].device, hosts.get(other) == hosts.get(rank));
            (here && device.place == record.device.place)
                || (device.uuid != [0; 16] && device.uuid == record.device.uuid)
        };
        if let Some(other) = (0..rank).find(|&other| has_the_same(other)) {
            return Some(format!("ranks {other} and {rank} have the same device, and NCCL wants one for each rank"));
        }
    }
    None
}

/// Ranks in words: all of a few, some of many.
fn ranks(ranks: &[usize]) -> String {
    const NAMED: usize = 8;
    let named: Vec<_> = ranks.iter().take(NAMED).map(ToString::to_string).collect();
    let rest = ranks.len().saturating_sub(NAMED);
    let others = if rest == 0 { String::new() } else { format!(" and {rest} others") };
    format!("rank{} {}{others}", if ranks.len() == 1 { "" } else { "s" }, named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(wish: DeviceCollectives, number: u32) -> Record {
        let mut uuid = [0; 16];
        uuid[0] = number as u8 + 1;
        let nccl = Ok(HasNccl { version: [2, 27, 3], abilities: 3 });
        Record { wish, device: DeviceIdentity { place: [0, number, 0], uuid }, nccl, heir: None }
    }

    fn four(wish: DeviceCollectives) -> Vec<Record> {
        (0..4).map(|number| record(wish, number)).collect()
    }

    const ONE_HOST: [usize; 4] = [0; 4];

    fn why_not(records: &[Record], hosts: &[usize]) -> String {
        let agreed = decide(records, hosts).unwrap();
        assert_eq!(agreed.carrier, Carrier::Staged);
        let why = agreed.why_not.unwrap();
        // Whoever insists hears the same as an error.
        let insisting: Vec<_> =
            records.iter().cloned().map(|record| Record { wish: DeviceCollectives::Nccl, ..record }).collect();
        let error = decide(&insisting, hosts).unwrap_err().to_string();
        assert!(error.contains(&why) && error.contains("PHALANX_DEVICE_COLLECTIVES is nccl on ranks 0"), "{error}");
        why
    }

    #[test]
    fn nccl_is_chosen_where_every_rank_has_it_and_a_device_of_its_own() {
        let agreed = decide(&four(DeviceCollectives::Auto), &ONE_HOST).unwrap();
        let expected = Agreed {
            carrier: Carrier::Nccl,
            insists: false,
            peers: OverPeersWish::WherePossible,
            why_not: None,
            heirs: vec![None; 4],
            abilities: 3,
        };
        assert_eq!(agreed, expected);
        let mut records = four(DeviceCollectives::Auto);
        let heir = Some(Heir { lineage: 7, rank: 2, size: 5 });
        records[1].heir = heir;
        records[2].nccl = Ok(HasNccl { version: [2, 27, 3], abilities: 1 });
        let agreed = decide(&records, &ONE_HOST).unwrap();
        assert_eq!((agreed.heirs, agreed.abilities), (vec![None, heir, None, None], 1), "what all of them can");
        records[2].wish = DeviceCollectives::Nccl;
        assert!(decide(&records, &ONE_HOST).unwrap().insists, "one rank's wish is enough");
        // The same place on two hosts is two devices.
        records[3].device.place = records[0].device.place;
        assert_eq!(decide(&records, &[0, 0, 1, 1]).unwrap().carrier, Carrier::Nccl);
    }

    #[test]
    fn what_keeps_nccl_away_is_said_with_the_ranks() {
        let mut records = four(DeviceCollectives::Auto);
        records[2].nccl = Err("NCCL was not found".into());
        assert_eq!(why_not(&records, &ONE_HOST), "rank 2 cannot: NCCL was not found");
        records[3].nccl = Err("NCCL 2.17.1 is too old".into());
        assert_eq!(why_not(&records, &ONE_HOST), "ranks 2, 3 cannot: NCCL was not found");
        let mut records = four(DeviceCollectives::Auto);
        records[3].nccl = Ok(HasNccl { version: [2, 30, 1], abilities: 3 });
        assert_eq!(why_not(&records, &ONE_HOST), "rank 0 has version 2.27.3, rank 3 has 2.30.1");
        let mut records = four(DeviceCollectives::Auto);
        records[3].device.place = records[1].device.place;
        assert!(why_not(&records, &ONE_HOST).starts_with("ranks 1 and 3 have the same device"));
        // Two containers of one machine look like two hosts; the device knows better.
        records[3].device = records[1].device;
        assert!(why_not(&records, &[0, 0, 1, 1]).starts_with("ranks 1 and 3 have the same device"));
        // A driver without ids in the world tells none apart.
        records.iter_mut().for_each(|record| record.device.uuid = [0; 16]);
        assert_eq!(decide(&records, &[0, 0, 1, 1]).unwrap().carrier, Carrier::Nccl);
    }

    #[test]
    fn wishes_hold_for_all_ranks_and_must_not_contradict() {
        let mut records = four(DeviceCollectives::Auto);
        records[1].wish = DeviceCollectives::Staged;
        let agreed = decide(&records, &ONE_HOST).unwrap();
        assert_eq!(
            (agreed.carrier, agreed.peers, agreed.insists, agreed.why_not),
            (Carrier::Staged, OverPeersWish::No, false, None)
        );
        records[3].wish = DeviceCollectives::Nccl;
        let text = decide(&records, &ONE_HOST).unwrap_err().to_string();
        assert!(text.starts_with("PHALANX_DEVICE_COLLECTIVES is nccl on rank 3 and staged on rank 1"), "{text}");
        records[3].wish = DeviceCollectives::Peer;
        let text = decide(&records, &ONE_HOST).unwrap_err().to_string();
        assert!(text.starts_with("PHALANX_DEVICE_COLLECTIVES is peer on rank 3 and staged on rank 1"), "{text}");
        records[1].wish = DeviceCollectives::Auto;
        let agreed = decide(&records, &ONE_HOST).unwrap();
        assert_eq!((agreed.carrier, agreed.peers), (Carrier::Staged, OverPeersWish::Insists));
        assert_eq!(ranks(&(0..12).collect::<Vec<_>>()), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 others");
    }

    #[test]
    fn a_record_survives_the_way_and_nonsense_is_no_record() {
        for record in [
            record(DeviceCollectives::Nccl, 7),
            Record {
                heir: Some(Heir { lineage: u64::MAX - 1, rank: 3, size: 9 }),
                ..record(DeviceCollectives::Auto, 1)
            },
            Record { nccl: Err("é".repeat(300)), ..record(DeviceCollectives::Auto, 0) },
        ] {
            let bytes = record.encode();
            assert_eq!(bytes.len(), RECORD_BYTES);
            let read = Record::decode(&bytes).unwrap();
            assert_eq!((read.wish, read.device, read.heir), (record.wish, record.device, record.heir));
            match (read.nccl, record.nccl) {
                (Err(read), Err(whole)) => assert_eq!(read, whole[..TEXT_BYTES]),
                (read, whole) => assert_eq!(read, whole),
            }
        }
        assert_eq!(Record::decode(&[9; RECORD_BYTES]), None);
        assert_eq!(Record::decode(&[0; 3]), None);
        // A length beyond the text is the text's.
        assert_eq!(decode_text(&[0xff, 0xff, b'a', b'b']), "ab");
        assert_eq!(decode_text(&[7]), "");
    }
}
