//! Every interleaving of ranks that show, read, take back and write again, in the small.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::*;

struct Shown {
    numbers: Vec<AtomicU64>,
    cells: Vec<UnsafeCell<u64>>,
}

// SAFETY: the cells are handed over by the numbers; loom reports any access that races.
unsafe impl Sync for Shown {}
// SAFETY: as above.
unsafe impl Send for Shown {}

impl Shown {
    fn new(numbers: usize, cells: usize) -> Self {
        Self {
            numbers: (0..numbers).map(|_| AtomicU64::new(0)).collect(),
            cells: (0..cells).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    fn wait(&self, number: usize, value: u64) {
        while !has_reached(&self.numbers[number], value) {
            thread::yield_now();
        }
    }

    fn put(&self, cell: usize, value: u64) {
        self.cells[cell].with_mut(|cell| {
            // SAFETY: nobody reads the cell now, which is what is being tested.
            unsafe { *cell = value };
        });
    }

    fn get(&self, cell: usize) -> u64 {
        // SAFETY: nobody writes the cell now, which is what is being tested.
        self.cells[cell].with(|cell| unsafe { *cell })
    }
}

/// Two ranks go through calls with two lines in turn. Each writes the line of a call when it has seen the other's of
/// the call before.
#[test]
fn loom_lines_in_turn_are_never_written_while_they_are_read() {
    const CALLS: u64 = 3;
    loom::model(|| {
        let shown: Arc<Vec<Shown>> = Arc::new((0..2).map(|_| Shown::new(2, 2)).collect());
        let rank = |own: usize, shown: Arc<Vec<Shown>>| {
            let (mine, theirs) = (&shown[own], &shown[1 - own]);
            for call in 1..=CALLS {
                let slot = (call % 2) as usize;
                theirs.wait(1 - slot, call - 1);
                mine.put(slot, 10 * call + own as u64);
                publish(&mine.numbers[slot], call);
                theirs.wait(slot, call);
                assert_eq!(theirs.get(slot), 10 * call + 1 - own as u64);
            }
        };
        let other = shown.clone();
        let thread = thread::spawn(move || rank(1, other));
        rank(0, shown);
        thread.join().unwrap();
    });
}

/// Two ranks put chunks up in a stage of one place, and use it again when the other is done with it.
#[test]
fn loom_a_stage_is_not_used_again_before_it_was_read() {
    const CHUNKS: u64 = 2;
    const STAGED: usize = 0;
    const DONE: usize = 1;
    loom::model(|| {
        let shown: Arc<Vec<Shown>> = Arc::new((0..2).map(|_| Shown::new(2, 1)).collect());
        let rank = |own: usize, shown: Arc<Vec<Shown>>| {
            let (mine, theirs) = (&shown[own], &shown[1 - own]);
            for chunk in 1..=CHUNKS {
                theirs.wait(DONE, chunk - 1);
                mine.put(0, 10 * chunk + own as u64);
                publish(&mine.numbers[STAGED], chunk);
                theirs.wait(STAGED, chunk);
                assert_eq!(theirs.get(0), 10 * chunk + 1 - own as u64);
                publish(&mine.numbers[DONE], chunk);
            }
        };
        let other = shown.clone();
        let thread = thread::spawn(move || rank(1, other));
        rank(0, shown);
        thread.join().unwrap();
    });
}

/// What a rank shows of a call whose memory is read where it is: its words, and that memory, which others may read while
/// it is written.
struct Line {
    epoch: AtomicU64,
    given_up: AtomicU64,
    number: AtomicU64,
    memory: AtomicU64,
}

/// The contribution to the call, and what stands there when the call was given up.
const SOUND: u64 = 7;
const SPOILT: u64 = 9;

impl Line {
    /// The line of call 1 in epoch 1.
    fn shown() -> Self {
        let [epoch, number, memory] = [1, 1, SOUND].map(AtomicU64::new);
        Self { epoch, number, memory, given_up: AtomicU64::new(u64::MAX) }
    }

    fn give_up(&self) {
        take_back(&self.given_up, 1);
    }

    /// The part goes over to another communicator, as `Board::take` has it.
    fn take_again(&self) {
        begin(&self.epoch, 2);
        self.given_up.store(u64::MAX, Ordering::Relaxed);
        self.number.store(0, Ordering::Relaxed);
    }

    fn write(&self, value: u64) {
        self.memory.store(value, Ordering::Relaxed);
    }

    /// What a reader finds there.
    fn read(&self) -> Option<u64> {
        shows(&self.number, &self.given_up, 1).then(|| self.memory.load(Ordering::Relaxed))
    }

    fn still_shows(&self) -> bool {
        still_shows(&self.number, &self.given_up, 1)
    }
}

/// A rank gives a call up and uses its memory again, while the other reads it.
#[test]
fn loom_what_is_read_of_a_call_that_was_given_up_is_not_believed() {
    loom::model(|| {
        let line = Arc::new(Line::shown());
        let owner = line.clone();
        let thread = thread::spawn(move || {
            owner.give_up();
            owner.write(SPOILT);
        });
        if let Some(found) = line.read()
            && line.still_shows()
        {
            assert_eq!(found, SOUND);
        }
        thread.join().unwrap();
    });
}

/// A rank takes a part for another communicator, whose line has the same number, while one that it holds for gone reads on.
#[test]
fn loom_what_is_read_of_another_epoch_is_not_believed() {
    loom::model(|| {
        let line = Arc::new(Line::shown());
        let owner = line.clone();
        let thread = thread::spawn(move || {
            owner.take_again();
            owner.write(SPOILT);
            publish(&owner.number, 1);
        });
        if let Some(found) = line.read()
            && is_still(&line.epoch, 1)
        {
            assert_eq!(found, SOUND);
        }
        thread.join().unwrap();
    });
}

/// Both, one after the other; and one that has read too late shows what came of it to a third, who looks at the owner's
/// words himself.
#[test]
fn loom_what_came_of_a_call_that_was_given_up_is_not_believed() {
    loom::model(|| {
        let line = Arc::new(Line::shown());
        let (result, combined) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let owner = line.clone();
        let gives_up = thread::spawn(move || {
            owner.give_up();
            owner.write(SPOILT);
            owner.take_again();
        });
        let (read, shown, counted) = (line.clone(), result.clone(), combined.clone());
        let combines = thread::spawn(move || {
            if let Some(found) = read.read()
                && read.still_shows()
            {
                shown.store(found, Ordering::Relaxed);
                publish(&*counted, 1);
            }
        });
        if has_reached(&*combined, 1) {
            let found = result.load(Ordering::Relaxed);
            if line.still_shows() && is_still(&line.epoch, 1) {
                assert_eq!(found, SOUND);
            }
        }
        gives_up.join().unwrap();
        combines.join().unwrap();
    });
}

/// Two ranks tell each other in lines in turn where the memory of a call is. What is told of one call is read before the
/// next but one is written over it.
#[test]
fn loom_what_a_line_tells_is_that_of_its_call() {
    const CALLS: u64 = 3;
    type Lines = [(AtomicU64, [AtomicU64; 2]); 2];
    loom::model(|| {
        let lines = || -> Lines { std::array::from_fn(|_| (AtomicU64::new(0), [0, 0].map(AtomicU64::new))) };
        let shown: Arc<[Lines; 2]> = Arc::new([lines(), lines()]);
        let rank = |own: usize, shown: Arc<[Lines; 2]>| {
            let wait = |slot: usize, call: u64| {
                while !has_reached(&shown[1 - own][slot].0, call) {
                    thread::yield_now();
                }
            };
            for call in 1..=CALLS {
                let slot = (call % 2) as usize;
                wait(1 - slot, call - 1);
                let (number, words) = &shown[own][slot];
                tell(words.each_ref(), [call, own as u64]);
                publish(number, call);
                wait(slot, call);
                assert_eq!(told(shown[1 - own][slot].1.each_ref()), [call, 1 - own as u64]);
            }
        };
        let other = shown.clone();
        let thread = thread::spawn(move || rank(1, other));
        rank(0, shown);
        thread.join().unwrap();
    });
}
