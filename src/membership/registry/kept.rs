//! What stands in a registry's file: whose it is, and what the registry needs to go on.

use std::fmt;

use sha2::{Digest, Sha256};

use super::State;
use crate::membership::gathering::list;
use crate::types::Generation;
use crate::wire::fields::{Input, put_text};
use crate::wire::handshake::JobDigest;
use crate::wire::registry::{MAX_TEXT, Malformed, Slot};

/// The registry that writes a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// Its job.
    pub job: JobDigest,
    /// Whether it runs in a launcher: then its members end with it.
    pub is_launcher: bool,
    /// Its process.
    pub pid: u32,
    /// Where that runs.
    pub host_name: String,
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_launcher { "launcher" } else { "registry" };
        write!(f, "the {kind} that was process {} on {}", self.pid, self.host_name)
    }
}

/// A registry's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Who wrote it.
    pub keeper: Keeper,
    /// The last generation of another job that was kept here before; zero if there was none.
    pub before: Generation,
    /// What is to be known of the job; nothing before its first view.
    pub state: Option<State>,
}

const MAGIC: [u8; 8] = *b"PHALANXR";
const VERSION: u8 = 2;
const DIGEST_BYTES: usize = 32;

impl Kept {
    /// What is known of the job, in words.
    pub fn describe(&self) -> String {
        let job = self.keeper.job;
        let Some(State { generation, members, counted, .. }) = &self.state else {
            return format!("{job}, which had no view yet");
        };
        let slots: Vec<Slot> = members.iter().filter(|member| !member.has_left).map(|member| member.slot).collect();
        format!("{job} at view {}, slots {}, {counted} steps counted", generation.0, list(&slots))
    }

    /// The bytes of a file: magic, version, fields, digest of all before.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        let Keeper { job, is_launcher, pid, host_name } = &self.keeper;
        out.extend(job.0);
        out.push(u8::from(*is_launcher));
        out.extend(pid.to_le_bytes());
        put_text(&mut out, host_name, MAX_TEXT);
        out.extend(self.before.0.to_le_bytes());
        out.push(u8::from(self.state.is_some()));
        self.state.iter().for_each(|state| state.put(&mut out));
        let digest = Sha256::digest(&out);
        out.extend(digest);
        out
    }

    /// What stands in the bytes of a file.
    ///
    /// # Errors
    ///
    /// What is wrong with them: not a registry's, of another version, or spoilt.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let fields = bytes.strip_prefix(&MAGIC).ok_or(Malformed("it does not begin like a registry's state"))?;
        let (&version, _) = fields.split_first().ok_or(Malformed("cut short"))?;
        if version != VERSION {
            return Err(Malformed("a state of another version of Phalanx"));
        }
        let (body, digest) =
            bytes.split_at_checked(bytes.len().wrapping_sub(DIGEST_BYTES)).ok_or(Malformed("cut short"))?;
        if Sha256::digest(body).as_slice() != digest {
            return Err(Malformed("its digest does not fit: it is cut short or spoilt"));
        }
        let input = &mut Input(body.get(MAGIC.len() + 1..).unwrap_or_default());
        let keeper = Keeper {
            job: JobDigest(input.array()?),
            is_launcher: input.bool()?,
            pid: u32::from_le_bytes(input.array()?),
            host_name: input.text(MAX_TEXT)?,
        };
        let before = Generation(input.u64()?);
        let state = if input.bool()? { Some(State::read(input)?) } else { None };
        input.end()?;
        Ok(Kept { keeper, before, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::registry::StoredMember;
    use crate::wire::registry::{Gone, ProcessRecord, Why};

    fn state() -> State {
        let member = |slot, joined, has_left| StoredMember {
            slot,
            token: [slot as u8; 16],
            process: ProcessRecord { pid: 7, host: b"h".to_vec(), host_name: "node".into(), addresses: vec![1, 2] },
            joined,
            has_left,
        };
        State {
            generation: Generation(9),
            counted: 100,
            changes: 8,
            is_ending: true,
            next_slot: 12,
            members: vec![member(0, None, false), member(3, Some(50), true), member(11, Some(0), false)],
            gone: vec![Gone { slot: 1, why: Why::Exited, detail: "killed".into() }],
            broken: vec![(3, 11)],
        }
    }

    fn kept() -> Kept {
        let keeper = Keeper { job: JobDigest([9; 32]), is_launcher: true, pid: 4711, host_name: "node".into() };
        Kept { keeper, before: Generation(4), state: Some(state()) }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        assert_eq!(Kept::decode(&kept().encode()), Ok(kept()));
        let empty = Kept { state: None, ..kept() };
        assert_eq!(Kept::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn what_stands_there_is_said_in_words() {
        let words = "job 09090909 at view 9, slots 0, 11, 100 steps counted";
        assert_eq!(kept().describe(), words, "the one that said goodbye is not waited for");
        assert_eq!(Kept { state: None, ..kept() }.describe(), "job 09090909, which had no view yet");
        assert_eq!(kept().keeper.to_string(), "the launcher that was process 4711 on node");
    }

    #[test]
    fn a_file_that_is_cut_or_spoilt_anywhere_is_refused() {
        let bytes = kept().encode();
        for end in 0..bytes.len() {
            assert!(Kept::decode(&bytes[..end]).is_err(), "cut at {end}");
            let mut spoilt = bytes.clone();
            spoilt[end] ^= 1;
            assert!(Kept::decode(&spoilt).is_err(), "spoilt at {end}");
        }
    }
}
