//! A peer that is mistaken, of another time, or evil (clause 14).

use super::*;
use crate::types::CommunicatorId;
use crate::wire::frame::{HEADER_BYTES, RawSignature};

/// An endpoint whose peer is a script.
struct Victim {
    side: Side,
    /// The script's end of each lane.
    lanes: Vec<InprocLane>,
}

const CALL: usize = 64;

fn header(frame: Frame, length: usize) -> Header {
    Header { generation: Generation::FIRST, credit: 0, length: length as u32, frame }
}

fn eager(sequence: u64) -> Frame {
    Frame::Eager { tag: tag(sequence), signature: RawSignature::from(&signature(CALL)) }
}

fn announce(sequence: u64, total: usize) -> Frame {
    Frame::Announce { tag: tag(sequence), signature: RawSignature::from(&signature(CALL)), total: total as u64 }
}

fn ready(sequence: u64, total: usize, answer: bool) -> Frame {
    let signature = RawSignature::from(&signature(CALL));
    Frame::Ready { tag: tag(sequence), signature, total: total as u64, target: 0, answer }
}

/// The key of the first receive that an endpoint posts.
const FIRST: u64 = 0;

fn config() -> StreamConfig {
    TIGHT.sound()
}

impl Victim {
    /// Without a word from the peer yet.
    fn silent(lanes: usize) -> Self {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..lanes {
            let (lane_a, lane_b) = inproc::pair(bell().0, bell().0);
            ours.push(plain(lane_a));
            theirs.push(lane_b);
        }
        let endpoint = StreamEndpoint::new(ours, Generation::FIRST, config());
        Self { side: Side::new(Box::new(endpoint), |_| ()), lanes: theirs }
    }

    /// After a proper hello.
    fn new(lanes: usize) -> Self {
        let mut victim = Self::silent(lanes);
        for lane in 0..lanes {
            victim.say_on(lane, &header(Frame::Hello(config().hello(lane, lanes)), 0), &[]);
        }
        victim
    }

    fn write(&mut self, lane: usize, mut bytes: &[u8]) {
        let mut turns = 0;
        while !bytes.is_empty() && turns < 10_000 {
            // Whatever the endpoint has to say is not listened to.
            while let Ok([_, ..]) = self.lanes[lane].fill(1) {
                let count = self.lanes[lane].fill(1).map_or(0, |window| window.len());
                self.lanes[lane].consume(count);
            }
            let count = self.lanes[lane].write(bytes, &[]).unwrap_or(bytes.len());
            bytes = &bytes[count..];
            self.side.progress();
            turns += 1;
        }
    }

    fn say_on(&mut self, lane: usize, header: &Header, payload: &[u8]) {
        self.write(lane, &[&header.encode(), payload].concat());
    }

    fn say(&mut self, frame: Frame, payload: &[u8]) {
        self.say_on(0, &header(frame, payload.len()), payload);
    }

    fn recv(&mut self, sequence: u64, bytes: usize) {
        self.side.recv_as(tag(sequence), signature(CALL), Memory::new(bytes, 0), Receive::Store);
    }

    fn send(&mut self, sequence: u64, bytes: usize) {
        self.side.send_as(tag(sequence), signature(CALL), Memory::filled(bytes, 0, 1));
    }

    /// Lets the endpoint take in what was said.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.side.progress();
        }
    }

    /// That the link failed, with this text, and that no memory around a message was written.
    fn must_fail(mut self, wanted: &str) {
        self.settle();
        let text = self.side.failure().unwrap_or("no failure").to_owned();
        assert!(text.contains(wanted), "{wanted:?} is not in {text:?}");
        assert!(text.starts_with("inproc: "), "the link is not in {text:?}");
        self.side.memory.values().for_each(Memory::check_guards);
    }

    fn must_be_well(mut self) {
        self.settle();
        assert_eq!(self.side.failure(), None);
        self.recv(1 << 40, 5);
        self.say(eager(1 << 40), b"hello");
        self.settle();
        assert!(matches!(self.side.events.last(), Some(Event::Received(_))), "{:?}", self.side.events);
    }
}

#[test]
fn garbage_is_refused() {
    for (bytes, wanted) in [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), "a frame begins with [47, 45], expected [50, 58]"),
        (vec![0; 80], "a frame begins with [00, 00]"),
        ([&b"PX\x02"[..], &[0; 77]].concat(), "frame version 2, expected 1"),
        ([&b"PX\x01\x0b"[..], &[0; 76]].concat(), "frame kind 11"),
    ] {
        let mut victim = Victim::silent(1);
        victim.write(0, &[&bytes[..], &[0; HEADER_BYTES]].concat());
        victim.must_fail(wanted);
    }
}

#[test]
fn hello_comes_first_and_once_and_must_agree() {
    let mut victim = Victim::silent(1);
    victim.say(Frame::Credit, &[]);
    victim.must_fail("a credit frame before hello on lane 0");
    let mut victim = Victim::new(1);
    victim.say(Frame::Hello(config().hello(0, 1)), &[]);
    victim.must_fail("a hello frame a second time on lane 0");
    let mut victim = Victim::silent(1);
    victim.say(Frame::Hello(StreamConfig { eager_limit: 77, ..config() }.hello(0, 1)), &[]);
    victim.must_fail("the peer's eager limit is 77, ours is 1000");
    let mut victim = Victim::silent(2);
    victim.say(Frame::Hello(config().hello(1, 2)), &[]);
    victim.must_fail("the peer's lane is 1, ours is 0");
    let mut victim = Victim::silent(2);
    victim.say(Frame::Hello(config().hello(0, 3)), &[]);
    victim.must_fail("the peer's number of lanes is 3, ours is 2");
}

#[test]
fn two_ends_with_different_settings_both_say_so() {
    let (lane_a, lane_b) = inproc::pair(bell().0, bell().0);
    let mut events = [Vec::new(), Vec::new()];
    let other = StreamConfig { segment_bytes: 128, ..TIGHT };
    let mut a = StreamEndpoint::new(vec![plain(lane_a)], Generation::FIRST, TIGHT);
    let mut b = StreamEndpoint::new(vec![plain(lane_b)], Generation::FIRST, other);
    for _ in 0..3 {
        a.progress(&mut events[0]);
        b.progress(&mut events[1]);
    }
    let text = |ours: usize, theirs: usize| {
        let text = format!("inproc: protocol violation: the peer's segment length is {theirs}, ours is {ours}");
        vec![Event::Failed(text.into())]
    };
    assert_eq!(events, [text(1088, 128), text(128, 1088)]);
}

#[test]
fn frames_in_the_wrong_place_are_refused() {
    for frame in [eager(1), announce(1, 5000), ready(1, 5000, false), Frame::Credit, Frame::Notice] {
        let mut victim = Victim::new(2);
        victim.say_on(1, &header(frame, 0), &[]);
        victim.must_fail(&format!("a {} frame on lane 1", frame.name()));
    }
    for frame in [eager(1), announce(1, 5000), Frame::Notice, Frame::Goodbye] {
        let mut victim = Victim::new(1);
        victim.say(Frame::Goodbye, &[]);
        victim.say(frame, &[]);
        victim.must_fail(&format!("a {} frame after goodbye on lane 0", frame.name()));
    }
    let mut victim = Victim::new(2);
    victim.say_on(1, &Header { credit: 1, ..header(Frame::Goodbye, 0) }, &[]);
    victim.must_fail("a goodbye frame gives 1 bytes of credit back, of 0 taken");
}

#[test]
fn limits_are_enforced() {
    let limits = config();
    let mut victim = Victim::new(1);
    victim.say(eager(1), &vec![0; limits.eager_limit + 1]);
    victim.must_fail("an eager message of 1001 bytes, more than the 1000 agreed on");

    let mut victim = Victim::new(1);
    for i in 0..7 {
        victim.say(eager(i), &[0; 1000]);
    }
    victim.must_fail("more than the 8000 agreed on");

    // Receiving gives the budget back only when it is posted for.
    let mut victim = Victim::new(1);
    for i in 0..100 {
        victim.recv(i, 1000);
        victim.say(eager(i), &[0; 1000]);
    }
    victim.must_be_well();

    let mut victim = Victim::new(1);
    for i in 0..=limits.announce_limit as u64 {
        victim.say(announce(i, 1 << 50), &[]);
    }
    victim.must_fail("10 unanswered announcements, more than the 9 agreed on");

    let mut victim = Victim::new(1);
    for i in 0..=limits.ready_limit as u64 {
        victim.say(ready(i, 5000, false), &[]);
    }
    victim.must_fail("4 offers to receive, more than the 3 agreed on");

    let mut victim = Victim::new(1);
    victim.say(ready(1, 10, false), &[]);
    victim.must_fail("an offer to receive 10 bytes, which need none");

    let mut victim = Victim::new(1);
    victim.say_on(0, &Header { credit: 5, ..header(Frame::Credit, 0) }, &[]);
    victim.must_fail("a credit frame gives 5 bytes of credit back, of 0 taken");
}

#[test]
fn segments_lie_where_the_receive_has_room() {
    let segment = config().segment_bytes;
    let say = |target: u64, offset: usize, length: usize| {
        let mut victim = Victim::new(1);
        victim.recv(1, 3 * segment + 5);
        victim.say(Frame::Segment { target, offset: offset as u64 }, &vec![1; length]);
        victim
    };
    for (offset, length) in [
        (0, segment - 1),
        (0, segment + 1),
        (0, 0),
        (1, segment),
        (3 * segment, 6),
        (3 * segment, segment),
        (4 * segment, 0),
        (4 * segment, segment),
        (usize::MAX, 1),
        (usize::MAX / segment * segment, segment),
    ] {
        say(FIRST, offset, length).must_fail(&format!("a segment of {length} bytes at {offset}, where no segment"));
    }
    say(FIRST + 1, 0, segment).must_fail("a segment for 0x1, which was never offered");
    say(FIRST + (1 << 32), 0, segment).must_fail("which was never offered");
    let mut victim = say(FIRST, segment, segment);
    victim.say(Frame::Segment { target: FIRST, offset: segment as u64 }, &vec![1; segment]);
    victim.must_fail(&format!("the segment at {segment} of a message a second time"));

    // A receive that was not offered has no room for segments.
    let mut victim = Victim::new(1);
    victim.recv(1, 10);
    victim.say(Frame::Segment { target: FIRST, offset: 0 }, &[1; 10]);
    victim.must_fail("a segment of 10 bytes at 0, where no segment");

    // All in their place, in any order, and the announcement at last.
    let mut victim = Victim::new(1);
    victim.recv(1, 3 * segment + 5);
    for (offset, length) in [(3 * segment, 5), (0, segment), (2 * segment, segment), (segment, segment)] {
        victim.say(Frame::Segment { target: FIRST, offset: offset as u64 }, &vec![9; length]);
    }
    victim.settle();
    assert_eq!(victim.side.events, []);
    victim.say(announce(1, 3 * segment + 5), &[]);
    victim.settle();
    assert!(matches!(victim.side.events[..], [Event::Received(_)]));
    victim.must_be_well();
}

#[test]
fn signatures_must_exist_where_they_are_looked_at() {
    let nonsense = {
        let mut bytes = header(eager(1), 0).encode();
        bytes[40] = 99;
        bytes
    };
    let mut victim = Victim::new(1);
    victim.write(0, &nonsense);
    victim.must_fail("a signature that no call has: [63, ");
    let mut victim = Victim::new(1);
    victim.recv(1, 0);
    victim.write(0, &nonsense);
    victim.must_fail("a signature that no call has: [63, ");
}

#[test]
fn answers_to_nothing_do_no_harm() {
    let mut victim = Victim::new(1);
    victim.send(1, 5000);
    victim.settle();
    victim.side.endpoint.cancel(tag(1));
    for frame in [
        ready(1, 5000, true),
        ready(2, 5000, true),
        ready(2, 5, true),
        Frame::Withdraw { tag: tag(3) },
        Frame::Differs { tag: tag(1), signature: RawSignature::from(&signature(1)) },
        Frame::Differs { tag: tag(4), signature: RawSignature::from(&signature(1)) },
    ] {
        victim.say(frame, &[]);
    }
    victim.must_be_well();
}

#[test]
fn another_generation_is_fenced() {
    let mut victim = Victim::new(1);
    victim.recv(1, 100);
    let old = |frame, length| Header { generation: Generation(9), credit: 7, ..header(frame, length) };
    victim.say_on(0, &old(eager(1), 100), &[1; 100]);
    victim.say_on(0, &old(announce(1, 5000), 0), &[]);
    victim.say_on(0, &old(Frame::Segment { target: 5, offset: 0 }, 3000), &[1; 3000]);
    victim.say_on(0, &old(Frame::Goodbye, 0), &[]);
    victim.settle();
    assert_eq!(victim.side.events, []);
    victim.say(eager(1), &[2; 100]);
    victim.settle();
    assert!(matches!(victim.side.events[..], [Event::Received(_)]));
    let memory = victim.side.memory.values().next().unwrap();
    assert_eq!(memory.slice(), [2; 100]);
    victim.must_be_well();
}

/// What a turn leaves in the lane's window is not seen by the lane when it is asked whether anything can be read.
#[test]
fn a_turn_that_ended_early_is_no_reason_to_sleep() {
    let mut victim = Victim::new(1);
    victim.settle();
    assert!(victim.side.endpoint.prepare_sleep());
    let many = header(Frame::Credit, 0).encode().repeat(3 * config().turn_frames);
    assert_eq!(victim.lanes[0].write(&many, &[]), Ok(many.len()));
    for turn in 0..3 {
        assert!(!victim.side.endpoint.prepare_sleep(), "asleep before turn {turn}");
        assert!(victim.side.progress());
    }
    victim.settle();
    assert!(victim.side.endpoint.prepare_sleep());
}

#[test]
fn an_end_in_the_middle_is_told_as_such() {
    let mut victim = Victim::new(2);
    victim.write(0, &header(Frame::Credit, 0).encode()[..40]);
    victim.lanes.clear();
    victim.must_fail("the peer closed in the middle of a message (lane 0 of 2)");
    let mut victim = Victim::new(2);
    victim.lanes.remove(1);
    victim.must_fail("the peer closed without goodbye (lane 1 of 2)");
}

/// A proper conversation, as bytes: what each test below spoils in its own way. The receives that it is for are
/// posted by `listen`.
fn conversation() -> Vec<u8> {
    let segment = config().segment_bytes;
    let mut bytes = Vec::new();
    let mut say = |frame: Frame, payload: &[u8]| {
        bytes.extend_from_slice(&header(frame, payload.len()).encode());
        bytes.extend_from_slice(payload);
    };
    say(Frame::Hello(config().hello(0, 1)), &[]);
    say(announce(1, 2 * segment + 8), &[]);
    say(Frame::Segment { target: FIRST, offset: 0 }, &vec![1; segment]);
    say(eager(2), &[2; 100]);
    say(Frame::Segment { target: FIRST, offset: segment as u64 }, &vec![1; segment]);
    say(Frame::Notice, b"notice");
    say(eager(9), &[3; 200]);
    say(announce(10, 1 << 40), &[]);
    say(Frame::Segment { target: FIRST, offset: 2 * segment as u64 }, &[1; 8]);
    say(ready(11, 5000, false), &[]);
    say(Frame::Withdraw { tag: tag(10) }, &[]);
    say(Frame::Differs { tag: tag(12), signature: RawSignature::from(&signature(3)) }, &[]);
    say(eager(3), &[4; 16]);
    say(Frame::Goodbye, &[]);
    bytes
}

fn listen(victim: &mut Victim) {
    victim.recv(1, 2 * config().segment_bytes + 8);
    victim.recv(2, 100);
    let sum = crate::transport::conformance::reducing(
        crate::types::DataType::U32,
        crate::types::ReduceOp::Sum,
        crate::types::Order::HereFirst,
        crate::types::Finish::NONE,
    );
    victim.side.recv_as(tag(3), signature(CALL), Memory::new(16, 1), sum);
    victim.send(12, 10);
}

#[test]
fn the_conversation_is_a_proper_one() {
    let mut victim = Victim::silent(1);
    listen(&mut victim);
    victim.write(0, &conversation());
    victim.lanes.clear();
    victim.settle();
    assert_eq!(victim.side.count(|event| matches!(event, Event::Received(_))), 3, "{:?}", victim.side.events);
    assert_eq!(victim.side.count(|event| matches!(event, Event::Early { .. })), 2);
    assert_eq!(victim.side.count(|event| matches!(event, Event::Mismatch { .. })), 1);
    assert_eq!(victim.side.events.last(), Some(&Event::Goodbye));
}

/// Whatever bytes come: no panic, no byte outside the messages, no more memory than agreed on, one failure at most.
#[test]
fn a_spoilt_conversation_does_no_harm() {
    let good = conversation();
    let headers: Vec<usize> = {
        let mut at = 0;
        std::iter::from_fn(|| {
            let bytes: &[u8; HEADER_BYTES] = good.get(at..at + HEADER_BYTES)?.try_into().ok()?;
            let here = at;
            at += HEADER_BYTES + Header::decode(bytes).ok()?.length as usize;
            Some(here)
        })
        .collect()
    };
    assert_eq!(headers.len(), 14);
    for seed in 0..3000 {
        let mut random = Random(seed);
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(3) {
            match random.below(6) {
                // A byte of a header, which is where it hurts.
                0..=2 => {
                    let at = headers[random.below(headers.len())] + random.below(HEADER_BYTES);
                    if at < bytes.len() {
                        bytes[at] = if random.below(2) == 0 { random.next() as u8 } else { bytes[at] ^ 1 };
                    }
                }
                // A whole frame again, somewhere else.
                3 => {
                    let (from, to) = (headers[random.below(14)], headers[random.below(14)].min(bytes.len()));
                    let end = headers.iter().copied().find(|&at| at > from).unwrap_or(good.len());
                    bytes.splice(to..to, good[from..end].iter().copied());
                }
                // A frame less.
                4 => {
                    let from = headers[random.below(14)].min(bytes.len());
                    let end = headers.iter().copied().find(|&at| at > from).unwrap_or(good.len()).min(bytes.len());
                    bytes.drain(from..end.max(from));
                }
                // The end.
                _ => bytes.truncate(random.below(bytes.len() + 1)),
            }
        }
        let mut victim = Victim::silent(1);
        listen(&mut victim);
        victim.write(0, &bytes);
        victim.lanes.clear();
        victim.settle();
        let ends = victim.side.count(|event| matches!(event, Event::Failed(_) | Event::Goodbye));
        assert!(ends >= 1, "seed {seed}: neither a failure nor goodbye: {:?}", victim.side.events);
        assert!(victim.side.count(|event| matches!(event, Event::Failed(_))) <= 1);
        victim.side.memory.values().for_each(Memory::check_guards);
    }
}

/// Bytes without any sense, behind a proper hello.
#[test]
fn noise_does_no_harm() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let mut victim = Victim::new(1);
        listen(&mut victim);
        let noise: Vec<u8> = (0..random.below(2000)).map(|_| random.next() as u8).collect();
        victim.write(0, &noise);
        if noise.len() >= HEADER_BYTES {
            victim.must_fail("protocol violation");
        }
    }
}

#[test]
fn no_lane_is_a_failure_and_no_panic() {
    let mut endpoint = StreamEndpoint::new(Vec::new(), Generation::FIRST, TIGHT);
    let mut events = Vec::new();
    assert!(endpoint.progress(&mut events));
    assert_eq!(events, [Event::Failed("no lane: protocol violation: there is no lane".into())]);
    endpoint.cancel(Tag { communicator: CommunicatorId::WORLD, sequence: 1 });
    assert!(!endpoint.progress(&mut events));
}
