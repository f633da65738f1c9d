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
use crate::comm::Handle;
use crate::sys::points::{Point, reach};
use crate::types::{DataType, Error, Generation, Result};

/// What a newcomer needs to go on with the others: parameters, optimiser, sampler, counters. Equal on every rank that is
/// between the same two steps, byte by byte as [`save`](Self::save) writes it.
pub trait State {
    /// The state in bytes: lent where it lies in one piece, which costs no copy, or made. Called at most once a
    /// [`sync`](Elastic::sync).
    fn save(&self) -> Result<Cow<'_, [u8]>>;

    /// Takes over the state that another rank saved.
    fn load(&mut self, bytes: &[u8]) -> Result<()>;

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
        let size = size_of::<T>();
        if size == 0 || !bytes.len().is_multiple_of(size) {
            let what = format_args!("a state of {} bytes given, elements of {size} bytes expected", bytes.len());
            return Err(Error::invalid(what));
        }
        self.resize(bytes.len() / size, T::zeroed());
        bytemuck::cast_slice_mut(self).copy_from_slice(bytes);
        Ok(())
    }
}

/// The state of a rank that has it, as it was when the transfer began: every attempt is made of it.
struct Saved<'s> {
    bytes: Cow<'s, [u8]>,
    digest: u64,
}

impl<'s> Saved<'s> {
    fn new(bytes: Cow<'s, [u8]>) -> Self {
        let digest = xxh3_64(&bytes);
        Self { bytes, digest }
    }
}

/// What a transfer brought.
struct Received {
    /// The state, where it was lacking.
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
            let mut saved = None;
            let outcome = self.run_step(None, manner, &mut |view| {
                received = self.transfer(view, state, &mut saved)?;
                reached = view.joined;
                Ok(())
            })?;
            drop(saved);
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

    /// One attempt, in one view. Returns what this rank received, if any rank lacked the state.
    fn transfer<'s>(
        &self,
        view: &Installed,
        state: &'s dyn State,
        kept: &mut Option<Saved<'s>>,
    ) -> Result<Option<Received>> {
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
        let is_holder = holders.contains(&comm.rank());
        if is_holder && kept.is_none() {
            *kept = Some(Saved::new(state.save()?));
        }
        let (saved, digest) =
            kept.as_ref().filter(|_| is_holder).map_or((&[][..], 0), |kept| (&kept.bytes, kept.digest));
        let mut own = if comm.rank() == holders[0] { state.save_own()? } else { Vec::new() };
        let mut told = vec![[0u64; 3]; comm.size()].concat();
        comm.allgather(&[saved.len() as u64, digest, own.len() as u64], &mut told)?;
        let of = |rank: usize| (told[3 * rank], told[3 * rank + 1]);
        if let Some(&other) = holders.iter().find(|&&rank| of(rank) != of(holders[0])) {
            return Err(Error::StateDiffers { ranks: [holders[0], other] });
        }
        let (length, digest) = of(holders[0]);
        if comm.rank() != holders[0] {
            own = room(told[3 * holders[0] + 2])?;
        }
        comm.broadcast(&mut own, holders[0])?;
        let lacking: Vec<usize> = (0..comm.size()).filter(|rank| !holders.contains(rank)).collect();
        let chunks = |length: usize| {
            (0..length.div_ceil(CHUNK)).map(move |number| number * CHUNK..length.min((number + 1) * CHUNK))
        };
        let mut flight = Flight::default();
        reach(Point::Transfer);
        if is_holder {
            let me = holders.iter().position(|&rank| rank == comm.rank()).unwrap_or(0);
            for (_, chunk) in chunks(saved.len()).enumerate().filter(|(number, _)| number % holders.len() == me) {
                let part = &saved[chunk];
                for &to in &lacking {
                    // SAFETY: `saved` is borrowed for longer than the flight lasts, which is dropped only when every
                    // operation has ended.
                    let handle = unsafe {
                        comm.submit_send(DataType::U8, part.as_ptr(), part.len(), (to, TAG), Some(Box::new(())))?
                    };
                    flight.handles.push(handle);
                }
            }
            flight.land(self, || ())?;
            return Ok(Some(Received { common: None, own }));
        }
        flight.received = room(length)?;
        let base: *mut u8 = flight.received.as_mut_ptr();
        let mut parts = chunks(flight.received.len());
        for (number, chunk) in parts.clone().enumerate() {
            let from = (holders[number % holders.len()], TAG);
            // SAFETY: a part of the flight's memory that no other receive has. It is neither looked at nor freed before
            // every receive has ended: `land` returns it when they have, and dropping the flight waits for them first.
            let handle = unsafe {
                comm.submit_recv(DataType::U8, base.add(chunk.start), chunk.len(), from, Some(Box::new(())))?
            };
            flight.handles.push(handle);
        }
        let mut arrived = Xxh3::new();
        let received = flight.land(self, || {
            if let Some(part) = parts.next() {
                // SAFETY: the part's receive has ended, so that nobody writes there any more; those that are still on
                // their way write elsewhere.
                arrived.update(unsafe { std::slice::from_raw_parts(base.add(part.start), part.len()) });
            }
        })?;
        if arrived.digest() != digest {
            return Err(Error::internal("the state arrived with another digest than it was sent with"));
        }
        Ok(Some(Received { common: Some(received), own }))
    }
}

/// Memory for what is to come.
fn room(length: u64) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    let fits = usize::try_from(length).is_ok_and(|length| room.try_reserve_exact(length).is_ok());
    if !fits {
        let what = format_args!("no memory for {length} bytes of state");
        return Err(Error::environment(what, "use a larger host"));
    }
    room.resize(length as usize, 0u8);
    Ok(room)
}

/// Operations in flight, and the memory that they receive into, which must outlive them.
#[derive(Default)]
struct Flight {
    handles: Vec<Handle>,
    received: Vec<u8>,
}

impl Flight {
    /// Waits for all of them, and calls `each` when the next in their order has ended. Returns the memory.
    fn land(&mut self, elastic: &Elastic, mut each: impl FnMut()) -> Result<Vec<u8>> {
        for (at, handle) in self.handles.iter().enumerate() {
            if at == self.handles.len() / 2 {
                reach(Point::TransferHalf);
            }
            elastic.wait(handle)?;
            each();
        }
        reach(Point::TransferHere);
        Ok(std::mem::take(&mut self.received))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Before the memory is freed, as all fields are, behind this.
        for handle in &self.handles {
            handle.give_up("the transfer of the state was given up");
            let _ = handle.wait();
        }
    }
}
