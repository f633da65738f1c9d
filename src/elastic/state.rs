//! How newcomers get the state of the job.
//!
//! Whoever has the state says so with its length and digest; those who have it must have the same. They cut it into
//! chunks and share the sending: each chunk goes from one of them to each newcomer. The transfer is a step like any
//! other: if a rank falls within it, the registry's verdict says for all alike whether it is done or is to be done again.

use std::borrow::Cow;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::ledger::Installed;
use super::step::{Again, Manner};
use super::{Changes, Elastic, StepOutcome};
use crate::comm::{Communicator, Handle};
use crate::sys::points::{Point, reach};
use crate::types::{DataType, Error, Generation, Result};

/// What a newcomer needs to go on with the others: parameters, optimiser, sampler, counters. Equal on every rank that is
/// between the same two steps, byte by byte as [`save`](Self::save) writes it.
pub trait State {
    /// The state in bytes: lent where it lies in one piece, which costs no copy, or made. Called once a
    /// [`sync`](Elastic::sync), and again for every time that a rank falls in it.
    fn save(&self) -> Result<Cow<'_, [u8]>>;

    /// Takes over the state that another rank saved.
    fn load(&mut self, bytes: &[u8]) -> Result<()>;

    /// Where the state lies, in this many bytes, if another rank's can be received straight into it: then `load` is not
    /// called. Whatever becomes of the transfer, what was there before is lost.
    fn room(&mut self, _bytes: usize) -> Option<&mut [u8]> {
        None
    }

    /// What may differ between ranks, such as running statistics. When newcomers come, all ranks take over that of the
    /// first one that has the state.
    fn save_own(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// Takes over what [`save_own`](Self::save_own) gave on the first rank that has the state: on that rank too, and after
    /// [`load`](Self::load) on those that lacked it.
    fn load_own(&mut self, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Numbers as they lie in memory: all hosts must have one order of bytes. Costs the rank that has them no copy.
impl<T: bytemuck::Pod> State for Vec<T> {
    fn save(&self) -> Result<Cow<'_, [u8]>> {
        Ok(Cow::Borrowed(bytemuck::cast_slice(self)))
    }

    fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(room) = self.room(bytes.len()) else {
            let (given, size) = (bytes.len(), size_of::<T>());
            return Err(Error::invalid(format_args!(
                "a state of {given} bytes given, elements of {size} bytes expected"
            )));
        };
        room.copy_from_slice(bytes);
        Ok(())
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let size = size_of::<T>();
        let fits = size > 0 && bytes.is_multiple_of(size);
        fits.then(|| {
            self.resize(bytes / size, T::zeroed());
            bytemuck::cast_slice_mut(self)
        })
    }
}

/// What a transfer brought.
struct Received {
    /// The state, where it was lacking and there was no room for it in its place.
    common: Option<Vec<u8>>,
    /// The first holder's own.
    own: Vec<u8>,
}

/// How much one of those who have the state sends at a time. Large enough to run at the links' speed, small enough that
/// a state of some megabytes is shared among several.
const CHUNK: usize = 1 << 20;

/// The tag of the transfer's messages.
const TAG: u32 = u32::MAX;

impl Elastic {
    /// Brings the state to those who do not have it: to newcomers from the ranks that were there before, at the job's
    /// beginning from rank 0 to all others. Every rank calls it: first of all, and whenever a step's outcome says that
    /// members joined. Where nobody lacks anything it costs one small allgather.
    ///
    /// # Errors
    ///
    /// [`Error::StateDiffers`] names ranks whose states differ, though they should be equal. What `state` returns. As
    /// [`step`](Self::step) otherwise.
    pub fn sync(&self, state: &mut dyn State) -> Result<StepOutcome> {
        // Whatever was given up before, this is the way back.
        self.shared.lock().given_up = false;
        let manner = Manner { changes: Changes::Allowed, again: Again::Always };
        loop {
            let mut received = None;
            let mut reached = Generation(0);
            let mut digest = None;
            let outcome = self.run_step(None, manner, &mut |view| {
                received = self.transfer(view, state, &mut digest)?;
                reached = view.joined;
                Ok(())
            })?;
            if let Some(Received { common, own }) = received {
                if let Some(bytes) = common {
                    state.load(&bytes)?;
                    reach(Point::Loaded);
                }
                state.load_own(&own)?;
            }
            let mut ledger = self.shared.lock();
            ledger.has_state = true;
            // Who came at this step's boundary has not got it yet.
            ledger.synced = ledger.synced.max(reached);
            if outcome.left || !ledger.is_sync_due() {
                return Ok(StepOutcome { joined: false, ..outcome });
            }
        }
    }

    /// One attempt, in one view. Returns what this rank received, if any rank lacked the state. `digest` is that of this
    /// rank's state, once it is known.
    fn transfer(&self, view: &Installed, state: &mut dyn State, digest: &mut Option<u64>) -> Result<Option<Received>> {
        let comm = &view.communicator;
        let mut has = vec![0u8; comm.size()];
        let here = self.shared.lock().has_state;
        comm.allgather(&[u8::from(here)], &mut has)?;
        let mut holders: Vec<usize> = (0..comm.size()).filter(|&rank| has[rank] != 0).collect();
        if holders.len() == comm.size() {
            return Ok(None);
        }
        if holders.is_empty() {
            let counted = self.shared.lock().counted;
            if counted > 0 {
                return Err(Error::environment(
                    format_args!("all ranks that had the state are gone, after {counted} steps"),
                    "start the job again from its last checkpoint",
                ));
            }
            holders.push(0);
        }
        let (place, first) = (holders.iter().position(|&rank| rank == comm.rank()), holders[0]);
        let mut own = if place == Some(0) { state.save_own()? } else { Vec::new() };
        let saved = if place.is_some() { state.save()? } else { Cow::default() };
        let mut lengths = vec![[0u64; 2]; comm.size()].concat();
        comm.allgather(&[saved.len() as u64, own.len() as u64], &mut lengths)?;
        let length_of = |rank: usize| lengths[2 * rank];
        if let Some(&other) = holders.iter().find(|&&rank| length_of(rank) != length_of(first)) {
            return Err(Error::StateDiffers { ranks: [first, other] });
        }
        if place != Some(0) {
            own = room(lengths[2 * first + 1])?;
        }
        comm.broadcast(&mut own, first)?;
        reach(Point::Transfer);
        let way = Way { elastic: self, comm, holders: &holders };
        if let Some(place) = place {
            way.give(place, &saved, digest)?;
            return Ok(Some(Received { common: None, own }));
        }
        drop(saved);
        let length = usize::try_from(length_of(first)).map_err(|_| no_memory(length_of(first)))?;
        let mut memory = None;
        let target = match state.room(length) {
            Some(place) if place.len() == length => place,
            _ => memory.insert(room(length as u64)?).as_mut_slice(),
        };
        way.take(target)?;
        Ok(Some(Received { common: memory, own }))
    }
}

/// From those that have the state to those that lack it.
struct Way<'a> {
    elastic: &'a Elastic,
    comm: &'a Communicator,
    /// The ranks that have the state.
    holders: &'a [usize],
}

impl Way<'_> {
    /// Sends the chunks that fall to the holder at this place among them.
    fn give(&self, place: usize, saved: &[u8], digest: &mut Option<u64>) -> Result<()> {
        let lacking: Vec<usize> = (0..self.comm.size()).filter(|rank| !self.holders.contains(rank)).collect();
        let mut flight = Flight::default();
        for (_, part) in saved.chunks(CHUNK).enumerate().filter(|(number, _)| number % self.holders.len() == place) {
            for &to in &lacking {
                let keep = Some(Box::new(()) as Box<_>);
                // SAFETY: borrowed for longer than the flight lasts, which is dropped only when every operation has ended.
                let handle =
                    unsafe { self.comm.submit_send(DataType::U8, part.as_ptr(), part.len(), (to, TAG), keep)? };
                flight.0.push(handle);
            }
        }
        self.compare(*digest.get_or_insert_with(|| xxh3_64(saved)))?;
        flight.land(self.elastic, || ())
    }

    /// Receives all chunks.
    fn take(&self, target: &mut [u8]) -> Result<()> {
        let (base, length) = (target.as_mut_ptr(), target.len());
        let mut starts = (0..length).step_by(CHUNK);
        let part = |start: usize| CHUNK.min(length - start);
        let mut flight = Flight::default();
        for (number, start) in starts.clone().enumerate() {
            let from = (self.holders[number % self.holders.len()], TAG);
            let keep = Some(Box::new(()) as Box<_>);
            // SAFETY: a part of the target that no other receive has. The target is borrowed for longer than the flight
            // lasts, which is dropped only when every receive has ended; until then it is reached through `base` alone.
            let handle = unsafe { self.comm.submit_recv(DataType::U8, base.add(start), part(start), from, keep)? };
            flight.0.push(handle);
        }
        let expected = self.compare(0)?;
        let mut arrived = Xxh3::new();
        flight.land(self.elastic, || {
            if let Some(start) = starts.next() {
                // SAFETY: the part's receive has ended, so that nobody writes there any more; those that are still on
                // their way write elsewhere.
                arrived.update(unsafe { std::slice::from_raw_parts(base.add(start), part(start)) });
            }
        })?;
        if arrived.digest() != expected {
            return Err(Error::internal("the state arrived with another digest than it was sent with"));
        }
        Ok(())
    }

    /// Compares the states of those that have one, while they are on their way. Returns their digest.
    fn compare(&self, own: u64) -> Result<u64> {
        let mut digests = vec![0; self.comm.size()];
        self.comm.allgather(&[own], &mut digests)?;
        let first = self.holders[0];
        match self.holders.iter().find(|&&rank| digests[rank] != digests[first]) {
            Some(&other) => Err(Error::StateDiffers { ranks: [first, other] }),
            None => Ok(digests[first]),
        }
    }
}

/// Memory for what is to come.
fn room(length: u64) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    let length = usize::try_from(length).map_err(|_| no_memory(length))?;
    room.try_reserve_exact(length).map_err(|_| no_memory(length as u64))?;
    room.resize(length, 0);
    Ok(room)
}

fn no_memory(length: u64) -> Error {
    Error::environment(format_args!("no memory for {length} bytes of state"), "use a larger host")
}

/// Operations in flight, on memory that outlives this.
#[derive(Default)]
struct Flight(Vec<Handle>);

impl Flight {
    /// Waits for all of them, and calls `each` when the next in their order has ended.
    fn land(&self, elastic: &Elastic, mut each: impl FnMut()) -> Result<()> {
        for (at, handle) in self.0.iter().enumerate() {
            if at == self.0.len() / 2 {
                reach(Point::TransferHalf);
            }
            elastic.wait(handle)?;
            each();
        }
        reach(Point::TransferHere);
        Ok(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        for handle in &self.0 {
            handle.give_up("the transfer of the state was given up");
            let _ = handle.wait();
        }
    }
}
