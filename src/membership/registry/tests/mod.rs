//! The registry, event by event.

mod changes;
mod evidence;
mod gathering;
mod operators;
mod restarts;

use std::time::{Duration, Instant};

use super::*;
use crate::wire::registry::{
    Condition, Members, Parting, Phase, ProcessRecord, Register, Report, Resume, VERSION, ViewMessage,
};

const SECOND: Duration = Duration::from_secs(1);

/// A registry whose states are durable at once, and what it said, by connection.
struct Bench {
    now: Instant,
    registry: Registry,
    told: BTreeMap<Connection, Vec<FromRegistry>>,
    closed: Vec<Connection>,
    events: Vec<Event>,
    state: Option<State>,
    /// Since when hosts have owed an answer, by connection.
    unanswered: BTreeMap<Connection, Instant>,
    /// Whether states stay on their way to the disk.
    is_disk_slow: bool,
}

fn process(number: usize) -> ProcessRecord {
    ProcessRecord { pid: 100 + number as u32, host: b"h".to_vec(), host_name: "node".into(), addresses: vec![] }
}

fn register(number: usize, wish: Option<usize>, resume: Option<Resume>) -> ToRegistry {
    let token = [number as u8; 16];
    ToRegistry::Register(Register {
        version: VERSION,
        token,
        patience: 60 * SECOND,
        wish,
        process: process(number),
        resume,
    })
}

fn report(generation: u64, text: &str) -> ToRegistry {
    let counted = text.trim_end_matches(['+', '|']).parse().expect("a number");
    let (holds, boundary) = (text.ends_with('+'), text.ends_with('|'));
    ToRegistry::Report(Report { generation: Generation(generation), counted, holds, boundary, closed: false })
}

impl Bench {
    fn new(config: RegistryConfig) -> Self {
        let now = Instant::now();
        Self::over(now, Registry::new(now, config))
    }

    fn over(now: Instant, registry: Registry) -> Self {
        let mut bench = Bench {
            now,
            registry,
            told: BTreeMap::new(),
            closed: vec![],
            events: vec![],
            state: None,
            unanswered: BTreeMap::new(),
            is_disk_slow: false,
        };
        bench.drain();
        bench
    }

    /// A job of `np` whose first view stands: member `i` has connection `i` and slot `i`.
    fn steady(config: RegistryConfig) -> Self {
        let np = config.np;
        let mut bench = Self::new(config);
        for number in 0..np {
            bench.say(number as u64, register(number, Some(number), None));
        }
        for number in 0..np {
            let view = bench.view(number as u64);
            assert_eq!((view.generation, view.counted), (Generation(1), 0));
        }
        bench
    }

    fn say(&mut self, connection: Connection, message: ToRegistry) {
        self.registry.handle_message(self.now, connection, message);
        self.drain();
    }

    fn close(&mut self, connection: Connection, how: Broken) {
        self.registry.handle_closed(self.now, connection, how, "the connection ended");
        self.drain();
    }

    /// The registry does not run for so long.
    fn stop(&mut self, length: Duration) {
        self.now += length;
        self.registry.handle_timeout(self.now);
        self.drain();
    }

    /// Lets time pass, timer by timer.
    fn pass(&mut self, length: Duration) {
        let end = self.now + length;
        while let Some(next) = self.registry.deadline().filter(|next| next.has_passed(end)) {
            self.now += next.remaining(self.now);
            self.registry.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
    }

    /// The disk has the state with this number.
    fn persisted(&mut self, number: u64) {
        self.registry.handle_persisted(self.now, number);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(action) = self.registry.poll_action() {
            match action {
                Action::Tell { connections, message } => {
                    for connection in connections {
                        self.told.entry(connection).or_default().push(message.clone());
                    }
                }
                Action::Close { connection } => self.closed.push(connection),
                Action::Persist { number, state } => {
                    self.state = Some(state);
                    if !self.is_disk_slow {
                        self.registry.handle_persisted(self.now, number);
                    }
                }
                Action::LookAtHost { connection } => {
                    if let Some(unanswered) = self.unanswered.get(&connection) {
                        self.registry.handle_host(self.now, connection, self.now - *unanswered);
                    }
                }
                Action::Event(event) => self.events.push(event),
            }
        }
    }

    /// What a connection was told since it was last asked, without welcomes.
    fn heard(&mut self, connection: Connection) -> Vec<FromRegistry> {
        let mut heard = self.told.remove(&connection).unwrap_or_default();
        heard.retain(|message| !matches!(message, FromRegistry::Welcome { .. } | FromRegistry::Probe));
        heard
    }

    /// The one view that a connection was told.
    fn view(&mut self, connection: Connection) -> ViewMessage {
        let heard = self.heard(connection);
        match &heard[..] {
            [FromRegistry::View(view)] => view.clone(),
            _ => panic!("connection {connection} heard {heard:?}"),
        }
    }

    /// The view that a connection was told after it was told to stop.
    fn view_after_prepare(&mut self, connection: Connection) -> ViewMessage {
        let heard = self.heard(connection);
        match &heard[..] {
            [FromRegistry::Prepare { .. }, FromRegistry::View(view)] => view.clone(),
            _ => panic!("connection {connection} heard {heard:?}"),
        }
    }

    /// Connections are told to stop, because of these slots.
    fn assert_prepared(&mut self, connections: &[Connection], generation: u64, slots: &[Slot]) {
        for &connection in connections {
            let heard = self.heard(connection);
            let [FromRegistry::Prepare { generation: told, gone }] = &heard[..] else {
                panic!("connection {connection} heard {heard:?}");
            };
            assert_eq!(told.0, generation);
            assert_eq!(gone.iter().map(|gone| gone.slot).collect::<Vec<_>>(), slots);
        }
    }

    /// Members report.
    fn report_all(&mut self, members: &[usize], generation: u64, text: &str) {
        for member in members {
            self.say(*member as u64, report(generation, text));
        }
    }

    /// The process of a slot ends, as its host and the launcher see it.
    fn kill(&mut self, slot: usize) {
        self.registry.handle_exit(self.now, &Who::Slot(slot), "signal 9");
        self.drain();
        self.close(slot as u64, Broken::Closed);
    }

    /// What happened to a slot, in words, as events tell it.
    fn lost(&self) -> Vec<(Slot, Why)> {
        let lost = |event: &Event| match event {
            Event::Lost(gone) => Some((gone.slot, gone.why)),
            _ => None,
        };
        self.events.iter().filter_map(lost).collect()
    }

    fn named(&self) -> Vec<Slot> {
        let named = |event: &Event| match event {
            Event::Named { slot, .. } => Some(*slot),
            _ => None,
        };
        self.events.iter().filter_map(named).collect()
    }

    fn assert_members(&self, generation: u64, members: &[Slot]) {
        assert_eq!(self.registry.generation(), Some(Generation(generation)));
        assert_eq!(self.registry.members(), members);
    }
}

#[test]
fn a_newcomer_has_the_slot_that_it_wishes_if_nobody_had_it() {
    let mut bench = Bench::steady(RegistryConfig { max_np: 9, ..RegistryConfig::new(2) });
    let mut slot_of = |number: usize, wish| {
        bench.say(number as u64, register(number, wish, None));
        match bench.events.last() {
            Some(Event::Registered { slot, process: who }) if **who == process(number) => *slot,
            other => panic!("{other:?}"),
        }
    };
    // In another order than they were started in, and one that never comes.
    assert_eq!(slot_of(10, Some(4)), 4);
    assert_eq!(slot_of(11, Some(2)), 2);
    assert_eq!(slot_of(12, None), 5);
    assert_eq!(slot_of(13, Some(4)), 6, "somebody has it");
    assert_eq!(slot_of(14, Some(0)), 7, "somebody had it in the first view");
    assert_eq!(slot_of(15, Some(2)), 8, "somebody has it");
    assert_eq!(slot_of(16, Some(usize::MAX)), 9, "too far ahead");
    assert_eq!(slot_of(17, Some(3)), 3);
}
