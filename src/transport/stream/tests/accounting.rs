//! That nothing is lost: credit, announcements, offers, places.

use std::sync::Mutex;

use super::*;
use crate::transport::conformance::checks;

/// An endpoint whose counters can be looked at from outside.
struct Watched {
    inner: StreamEndpoint,
    seen: Arc<Mutex<Seen>>,
}

/// The counters now, and the most there ever was.
#[derive(Default)]
struct Seen {
    now: StreamStatistics,
    early_bytes: usize,
    announcements: usize,
    offers: usize,
    /// Of the peer's early budget, what is taken; of ours, what is to be given back.
    credit: (usize, usize),
    /// Unanswered announcements, and offers without an announcement.
    waiting: (usize, usize),
}

impl Watched {
    fn look(&mut self) {
        let mut seen = self.seen.lock().unwrap();
        seen.now = self.inner.statistics();
        seen.early_bytes = seen.early_bytes.max(seen.now.early_bytes);
        seen.announcements = seen.announcements.max(seen.now.announcements);
        seen.offers = seen.offers.max(seen.now.offers);
        seen.credit = (self.inner.core.early_used, self.inner.core.credit_due);
        seen.waiting = (self.inner.core.announced, self.inner.core.offered);
    }
}

impl Endpoint for Watched {
    fn kind(&self) -> TransportKind {
        self.inner.kind()
    }

    fn link(&self) -> Arc<str> {
        self.inner.link()
    }

    unsafe fn post_send(&mut self, request: SendRequest) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.post_send(request) };
    }

    unsafe fn post_recv(&mut self, request: RecvRequest) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.post_recv(request) };
        self.look();
    }

    fn notify(&mut self, notice: Notice) {
        self.inner.notify(notice);
    }

    fn cancel(&mut self, tag: Tag) {
        self.inner.cancel(tag);
        self.look();
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        let moved = self.inner.progress(events);
        self.look();
        moved
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn say_goodbye(&mut self) {
        self.inner.say_goodbye();
    }

    fn is_drained(&self) -> bool {
        self.inner.is_drained()
    }
}

type Watch = Arc<Mutex<Seen>>;

fn watched_pair(config: StreamConfig) -> (Pair, [Watch; 2]) {
    let ((wake_a, sleep_a), (wake_b, sleep_b)) = (bell(), bell());
    let (lane_a, lane_b) = inproc::pair(wake_a, wake_b);
    let watches: [Watch; 2] = Default::default();
    let endpoint = |lane: InprocLane, seen: &Watch| {
        let inner = StreamEndpoint::new(vec![Box::new(lane)], Generation::FIRST, config);
        Box::new(Watched { inner, seen: seen.clone() })
    };
    let a = Side::new(endpoint(lane_a, &watches[0]), sleep_a);
    let b = Side::new(endpoint(lane_b, &watches[1]), sleep_b);
    (Pair { a, b }, watches)
}

#[test]
fn a_storm_of_cancels_leaves_nothing_behind() {
    for config in [StreamConfig::for_kind(TransportKind::Inproc), TIGHT] {
        let (mut pair, watches) = watched_pair(config);
        checks::cancel_storm(&carrier(1, config, plain), &mut pair);
        let config = config.sound();
        let seen = watches.each_ref().map(|watch| watch.lock().unwrap());
        for (own, peer) in [(&seen[0], &seen[1]), (&seen[1], &seen[0])] {
            let now = own.now;
            assert_eq!((now.early_bytes, now.announcements, now.offers, now.requests), (0, 0, 0, 0));
            assert_eq!(own.waiting, (0, 0), "unanswered announcements, unannounced offers");
            assert_eq!(own.credit.0, peer.credit.1, "credit is lost");
            assert!(own.early_bytes <= config.early_budget);
            assert!(own.announcements <= config.announce_limit);
            assert!(own.offers <= config.ready_limit);
        }
    }
}

/// One side gives up what the other has never heard of but through it.
#[test]
fn what_was_told_is_withdrawn() {
    let (mut pair, watches) = watched_pair(TIGHT);
    let counts = |watch: &Watch| {
        let now = watch.lock().unwrap().now;
        (now.announcements, now.offers, now.early_bytes > 0)
    };
    pair.a.send(tag(1), Memory::filled(100, 0, 1));
    pair.a.send(tag(1), Memory::filled(5000, 0, 1));
    pair.a.recv(tag(1), Memory::new(5000, 0));
    pair.a.recv(tag(1), Memory::new(5000, 0));
    pair.settle();
    assert_eq!(counts(&watches[1]), (1, 2, true));
    pair.a.endpoint.cancel(tag(1));
    pair.settle();
    assert_eq!(counts(&watches[1]), (0, 0, true), "a message that has left is not taken back");
    assert_eq!(watches[0].lock().unwrap().waiting, (0, 0));
    pair.b.endpoint.cancel(tag(1));
    pair.settle();
    assert_eq!(counts(&watches[1]), (0, 0, false));
}

#[test]
fn a_flood_is_held_within_the_limits() {
    for config in [StreamConfig::for_kind(TransportKind::Inproc), TIGHT] {
        let config = config.sound();
        let watches = Arc::new(Mutex::new(Vec::new()));
        let kept = watches.clone();
        let carrier = Carrier {
            pair: Box::new(move || {
                let (pair, watches) = watched_pair(config);
                kept.lock().unwrap().extend(watches);
                pair
            }),
            ..carrier(1, config, plain)
        };
        checks::a_flood_stays_with_its_sender(&carrier);
        checks::many_receives_may_wait(&carrier);
        let mut most = (0, 0);
        for watch in watches.lock().unwrap().iter() {
            let seen = watch.lock().unwrap();
            assert!(seen.early_bytes <= config.early_budget && seen.announcements <= config.announce_limit);
            assert!(seen.offers <= config.ready_limit);
            most = (most.0.max(seen.early_bytes), most.1.max(seen.offers));
        }
        assert!(most.0 > config.early_budget / 2, "the flood did not come near its limit");
        assert_eq!(most.1, config.ready_limit);
    }
}

/// Tags come and go; what is remembered of them does not grow.
#[test]
fn tags_are_forgotten() {
    let (lane_a, lane_b) = inproc::pair(bell().0, bell().0);
    let endpoint = |lane| StreamEndpoint::new(vec![plain(lane)], Generation::FIRST, TIGHT);
    let (mut a, mut b) = (endpoint(lane_a), endpoint(lane_b));
    let mut events = Vec::new();
    for sequence in 0..3000 {
        let (tag, signature) = (tag(sequence), signature(0));
        let (source, target, token) = (std::ptr::null(), std::ptr::null_mut(), Token(sequence));
        // SAFETY: no bytes are read or written.
        unsafe {
            a.post_send(SendRequest { tag, signature, source, bytes: 0, token });
            b.post_recv(RecvRequest { tag, signature, target, bytes: 0, mode: Receive::Store, token });
        }
        while !events.contains(&Event::Received(token)) {
            a.progress(&mut events);
            b.progress(&mut events);
        }
        events.clear();
    }
    assert!(a.core.tags.len() < 100 && b.core.tags.len() < 100);
}
