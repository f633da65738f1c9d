//! Two queue pairs in one process, for tests: what is posted is moved some time later, when either end is asked, or before
//! an end sleeps.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

use super::super::adapter::Adapter;
use super::super::lane::{DEPTHS, RING_BYTES, RdmaLane};
use super::super::registrations::{Register, Registrations};
use crate::sys::verbs::Completion;
use crate::sys::{EventFd, RingMapping, Segment};
use crate::transport::conformance::Random;
use crate::transport::heap::Heap;
use crate::transport::sleep::Sleeper;

/// Statuses of the specification.
const FLUSHED: u32 = 5;
const ACCESS: u32 = 10;
const NO_ANSWER: u32 = 12;

/// A request that was posted and not moved.
struct Request {
    /// Where it is read, if not in the ring.
    source: Option<usize>,
    at: usize,
    bytes: usize,
    word: u32,
    named: Option<u64>,
}

/// Registered memory.
pub struct Range {
    start: usize,
    bytes: usize,
}

/// Registers everything.
struct Anything;

impl Register for Anything {
    type Region = Range;

    unsafe fn register(&self, start: *const u8, bytes: usize) -> io::Result<Range> {
        Ok(Range { start: start.addr(), bytes })
    }

    fn name(&self) -> String {
        "stand-in".into()
    }
}

#[derive(Default)]
struct Queue {
    armed: bool,
    waiting: VecDeque<Completion>,
}

/// One queue pair.
#[derive(Default)]
struct End {
    sent: Queue,
    received: Queue,
    receives: u32,
    requests: VecDeque<Request>,
    /// It has failed, and is taken down.
    broken: bool,
    gone: bool,
}

struct Wire {
    ends: [End; 2],
    events: [EventFd; 2],
    incoming: [Arc<RingMapping>; 2],
    outgoing: [Arc<RingMapping>; 2],
    random: Random,
    /// Nothing moves: the way is cut, and that has not been noticed.
    is_cut: bool,
}

impl Wire {
    fn tell(&mut self, end: usize, of_sent: bool, completion: Completion) {
        let queue = if of_sent { &mut self.ends[end].sent } else { &mut self.ends[end].received };
        queue.waiting.push_back(completion);
        if std::mem::take(&mut queue.armed) {
            self.events[end].signal().unwrap();
        }
    }

    /// Moves what was posted first at this end.
    fn move_one(&mut self, from: usize) {
        if self.is_cut {
            return;
        }
        let Some(request) = self.ends[from].requests.pop_front() else { return };
        let peer = &self.ends[1 - from];
        let status = match (self.ends[from].broken, peer.gone || peer.broken) {
            (true, _) => FLUSHED,
            (false, true) => NO_ANSWER,
            (false, false) => 0,
        };
        let mut completion = Completion { request: request.named.unwrap_or(0), status, ..Completion::default() };
        if status == 0 {
            let to = &mut self.ends[1 - from];
            to.receives = to.receives.checked_sub(1).expect("the receiver was ready");
            // SAFETY: inside both rings, or registered memory, as was checked when it was posted; the lanes see to it that
            // nobody else uses it.
            unsafe {
                let target = self.incoming[1 - from].start().as_ptr().add(request.at);
                let source = match &request.source {
                    Some(start) => std::ptr::with_exposed_provenance(*start),
                    None => self.outgoing[from].start().as_ptr().add(request.at).cast_const(),
                };
                target.copy_from_nonoverlapping(source, request.bytes);
            }
            let came = Completion { bytes: request.bytes as u32, word: request.word, ..Completion::default() };
            self.tell(1 - from, false, came);
        } else {
            self.ends[from].broken = true;
            completion.vendor = 1;
        }
        if status != 0 || request.named.is_some() {
            self.tell(from, true, completion);
        }
    }

    fn move_some(&mut self) {
        for end in [0, 1] {
            for _ in 0..self.random.below(3) {
                self.move_one(end);
            }
        }
    }
}

/// The way from one end to the other.
pub struct Way {
    wire: Arc<Mutex<Wire>>,
    end: usize,
}

impl Way {
    /// Lets nothing through, or everything again. Nobody notices that the way is cut.
    pub fn cut(&self, is_cut: bool) {
        self.wire.lock().unwrap().is_cut = is_cut;
    }

    /// How many requests of this end are still to read from memory that is on loan.
    pub fn under_way(&self) -> usize {
        self.wire.lock().unwrap().ends[self.end].requests.iter().filter(|one| one.source.is_some()).count()
    }
}

/// One end of the pair.
pub struct StandIn {
    wire: Arc<Mutex<Wire>>,
    end: usize,
    incoming: Arc<RingMapping>,
    outgoing: Arc<RingMapping>,
    event: OwnedFd,
    device: EventFd,
    registrations: Arc<Registrations<Anything>>,
    trouble: Arc<Mutex<Option<String>>>,
}

impl StandIn {
    pub fn pair(seed: u64) -> [Self; 2] {
        let ring = || Arc::new(RingMapping::new(&Segment::create("ring", RING_BYTES).unwrap(), 0, RING_BYTES).unwrap());
        let (incoming, outgoing) = ([ring(), ring()], [ring(), ring()]);
        let events = [EventFd::new().unwrap(), EventFd::new().unwrap()];
        let own = |end: usize| events[end].as_fd().try_clone_to_owned().unwrap();
        let owned = [own(0), own(1)];
        let ends = [(); 2].map(|()| End { receives: DEPTHS.receive, ..End::default() });
        let (rings, random) = ((incoming.clone(), outgoing.clone()), Random(seed));
        let wire = Arc::new(Mutex::new(Wire { ends, events, incoming, outgoing, random, is_cut: false }));
        let mut end = 0;
        owned.map(|event| {
            let (incoming, outgoing) = (rings.0[end].clone(), rings.1[end].clone());
            end += 1;
            let device = EventFd::new().unwrap();
            let registrations = Registrations::new(Anything);
            let (wire, end, trouble) = (wire.clone(), end - 1, Arc::default());
            Self { wire, end, incoming, outgoing, event, device, registrations, trouble }
        })
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap()
    }

    /// Moves everything that was posted on both ends.
    pub fn move_all(&self) {
        let mut wire = self.wire();
        for end in [0, 1] {
            while !wire.is_cut && !wire.ends[end].requests.is_empty() {
                wire.move_one(end);
            }
        }
    }

    /// Lets the queue pair fail. That shows among what was sent.
    pub fn fail(&self) {
        let mut wire = self.wire();
        wire.ends[self.end].broken = true;
        wire.tell(self.end, true, Completion { status: ACCESS, ..Completion::default() });
    }

    /// What happens between the two, for one who has not the lane any more.
    pub fn way(&self) -> Way {
        Way { wire: self.wire.clone(), end: self.end }
    }

    /// How many buffers are registered.
    pub fn registered(&self) -> usize {
        self.registrations.registered().len()
    }

    /// What the device says from now on.
    pub fn trouble_of(&self) -> Arc<Mutex<Option<String>>> {
        self.trouble.clone()
    }

    fn post(&self, request: Request) -> io::Result<()> {
        let mut wire = self.wire();
        assert!(request.at + request.bytes <= RING_BYTES);
        let end = &mut wire.ends[self.end];
        if end.gone || end.requests.len() >= DEPTHS.send as usize {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        end.requests.push_back(request);
        Ok(())
    }

    fn take(&self, found: &mut Vec<Completion>, of: fn(&mut End) -> &mut Queue) {
        let mut wire = self.wire();
        wire.move_some();
        found.extend(of(&mut wire.ends[self.end]).waiting.drain(..));
    }
}

impl Adapter for StandIn {
    type Region = Range;

    fn name(&self) -> String {
        format!("stand-in {}", self.end)
    }

    fn incoming(&self) -> &RingMapping {
        &self.incoming
    }

    fn outgoing(&self) -> &RingMapping {
        &self.outgoing
    }

    fn post_receives(&self, count: u32) -> io::Result<()> {
        self.wire().ends[self.end].receives += count;
        Ok(())
    }

    fn post_write(&self, at: usize, bytes: usize, word: u32, named: Option<u64>) -> io::Result<()> {
        assert!(bytes > 0);
        self.post(Request { source: None, at, bytes, word, named })
    }

    fn region(&self, heap: &Arc<Heap>, bytes: &[u8]) -> Option<Arc<Range>> {
        self.registrations.find(heap, bytes.as_ptr(), bytes.len())
    }

    fn post_write_from(&self, region: &Range, source: &[u8], at: usize, word: u32, named: u64) -> io::Result<()> {
        let start = source.as_ptr().expose_provenance();
        assert!(region.start <= start && start + source.len() <= region.start + region.bytes);
        self.post(Request { source: Some(start), at, bytes: source.len(), word, named: Some(named) })
    }

    fn tear_down(&mut self) {
        let mut wire = self.wire();
        let end = &mut wire.ends[self.end];
        end.gone = true;
        end.requests.clear();
        end.received.waiting.clear();
    }

    fn post_word(&self, word: u32, named: Option<u64>) -> io::Result<()> {
        self.post(Request { source: None, at: 0, bytes: 0, word, named })
    }

    fn poll_sent(&self, found: &mut Vec<Completion>) -> io::Result<()> {
        self.take(found, |end| &mut end.sent);
        Ok(())
    }

    fn poll_received(&self, found: &mut Vec<Completion>) -> io::Result<()> {
        self.take(found, |end| &mut end.received);
        Ok(())
    }

    fn arm(&self, also_sent: bool) -> io::Result<()> {
        let mut wire = self.wire();
        wire.events[self.end].clear();
        // Time passes while an end sleeps.
        while !wire.is_cut && !wire.ends[self.end].requests.is_empty() {
            wire.move_one(self.end);
        }
        let end = &mut wire.ends[self.end];
        (end.received.armed, end.sent.armed) = (true, end.sent.armed || also_sent);
        Ok(())
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn device_events(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap().clone()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let mut wire = self.wire();
        let end = &mut wire.ends[self.end];
        end.gone = true;
        end.requests.clear();
    }
}

/// Two lanes that are connected, and where their owners sleep.
pub fn lanes(seed: u64) -> [(RdmaLane<StandIn>, Arc<Sleeper>); 2] {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut sockets = [Some(OwnedFd::from(ours)), Some(OwnedFd::from(theirs))];
    StandIn::pair(seed).map(|adapter| {
        let (end, sleeper) = (adapter.end, Arc::new(Sleeper::new().unwrap()));
        let socket = sockets[end].take().unwrap();
        (RdmaLane::new(adapter, socket.into(), sleeper.clone(), 1 - end).unwrap(), sleeper)
    })
}
