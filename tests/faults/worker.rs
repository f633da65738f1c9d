//! What a rank does: steps whose exact results are known, until the others agree that it is enough.
//!
//! A step sums, over the contributors, vectors of three sizes whose elements say who gave them, and counts the samples
//! that the contributors took. So each rank can check every element against the names in the step's outcome, and that
//! no sample counts twice in an epoch.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use phalanx::elastic::{Elastic, ElasticSampler, State};
use phalanx::{Error, ReduceOp};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::told::{Step, Told, clock, say};

/// The file whose presence says that it is enough.
pub const DONE: &str = "PHALANX_TEST_DONE";
/// How many bytes of ballast the state has.
pub const BALLAST: &str = "PHALANX_TEST_BALLAST";
/// How many elements the largest vector has.
pub const ELEMENTS: &str = "PHALANX_TEST_ELEMENTS";

/// How it ended, as an exit code.
pub const EVICTED: i32 = 5;
/// As above: any other error.
pub const FAILED: i32 = 6;

const SAMPLES: usize = 997;
const BATCH: usize = 7;

/// What a member puts into element `at` of a step's vector.
fn input(slot: usize, step: u64, at: usize) -> u64 {
    (slot as u64 + 1) * 1_000_003 + step * 31 + at as u64
}

/// The exact sum of an element over the contributors.
pub fn expected(by: &[usize], step: u64, at: usize) -> u64 {
    by.iter().map(|&slot| input(slot, step, at)).sum()
}

/// Set by SIGTERM.
static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_term(_: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// What all ranks have alike.
struct Training {
    /// The last step that is in here.
    step: u64,
    digest: u64,
    sampler: ElasticSampler,
    /// How often each sample of the epoch counted.
    seen: Vec<u32>,
    ballast: Vec<u8>,
}

impl Training {
    fn new(ballast: usize) -> Self {
        let sampler = ElasticSampler::new(SAMPLES, Some(7)).expect("few samples");
        Self { step: 0, digest: 0, sampler, seen: vec![0; SAMPLES], ballast: vec![0; ballast] }
    }

    fn mix(&mut self, word: u64) {
        self.digest = xxh3_64_with_seed(&word.to_le_bytes(), self.digest);
    }
}

impl State for Training {
    fn save(&self) -> phalanx::Result<Cow<'_, [u8]>> {
        let mut bytes: Vec<u8> = [self.step, self.digest].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(self.seen.iter().map(|&times| times as u8));
        let sampler = self.sampler.encode();
        bytes.extend((sampler.len() as u64).to_le_bytes());
        bytes.extend(sampler);
        bytes.extend(&self.ballast);
        Ok(bytes.into())
    }

    fn load(&mut self, bytes: &[u8]) -> phalanx::Result<()> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        (self.step, self.digest) = (word(0), word(8));
        self.seen = bytes[16..16 + SAMPLES].iter().map(|&times| times.into()).collect();
        let at = 16 + SAMPLES;
        let length = word(at) as usize;
        self.sampler = ElasticSampler::decode(&bytes[at + 8..at + 8 + length])?;
        self.ballast = bytes[at + 8 + length..].to_vec();
        Ok(())
    }
}

/// The worker itself. It is a test so that this very program can be a worker.
#[test]
#[ignore = "a rank of the jobs in the other tests, which start it"]
fn rank_of_a_job() {
    // SAFETY: the handler does nothing but set a flag.
    unsafe { libc::signal(libc::SIGTERM, on_term as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    let done = std::env::var(DONE).expect("a file");
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let mut slot = usize::MAX;
    let ended = live(&mut slot, Path::new(&done), number(BALLAST, 0), number(ELEMENTS, 60_000));
    let code = match &ended {
        Ok(()) => 0,
        Err(error) => {
            let kind = match error {
                Error::Evicted { .. } => "evicted",
                Error::Environment { .. } => "environment",
                _ => "other",
            };
            say(&Told::Out { slot, kind: kind.into(), reason: error.to_string() });
            if kind == "evicted" { EVICTED } else { FAILED }
        }
    };
    // Without the harness's own last words.
    std::process::exit(code);
}

fn live(slot: &mut usize, done: &Path, ballast: usize, elements: usize) -> phalanx::Result<()> {
    let elastic = phalanx::elastic::join()?;
    *slot = elastic.slot();
    say(&Told::In { slot: *slot, pid: std::process::id(), generation: elastic.generation().0 });
    let mut training = Training::new(ballast);
    sync(&elastic, &mut training)?;
    loop {
        if training.sampler.remaining() == 0 {
            assert!(training.seen.iter().all(|&times| times == 1), "a sample is missing at the epoch's end");
            let next = training.sampler.epoch() + 1;
            training.sampler.set_epoch(next);
            training.seen.fill(0);
        }
        if ASKED.load(Ordering::Relaxed) {
            elastic.request_leave();
        }
        let (is_over, joined) = match step(&elastic, &mut training, done, elements) {
            // With too few ranks left the step was given up, on all alike, and newcomers are there.
            Err(Error::ViewChanged { .. }) => (false, true),
            outcome => outcome?,
        };
        if joined {
            sync(&elastic, &mut training)?;
        }
        if is_over {
            say(&Told::End { slot: *slot, step: training.step, digest: training.digest });
            elastic.shutdown();
            return Ok(());
        }
    }
}

fn sync(elastic: &Elastic, training: &mut Training) -> phalanx::Result<()> {
    elastic.sync(training)?;
    training.step = elastic.counted();
    assert!(training.ballast.iter().all(|&byte| byte == 0), "the state was spoilt on its way");
    say(&Told::Synced { slot: elastic.slot(), step: training.step, digest: training.digest });
    Ok(())
}

/// A step. Returns whether it was the last, and whether members joined.
fn step(elastic: &Elastic, training: &mut Training, done: &Path, elements: usize) -> phalanx::Result<(bool, bool)> {
    let number = training.step + 1;
    let slot = elastic.slot();
    let count = [1, 3_000, elements][number as usize % 3];
    let given: Vec<u64> = (0..count).map(|at| input(slot, number, at)).collect();
    let mut data = given.clone();
    let samples = training.sampler.next_batch(BATCH, &elastic.basis(), slot).unwrap_or_default();
    let mut taken = vec![0u32; SAMPLES];
    samples.iter().for_each(|&sample| taken[sample] += 1);
    let taken_by_this = taken.clone();
    let mut enough = [u64::from(done.exists())];
    let outcome = elastic.step(|step| {
        step.allreduce(&mut data, ReduceOp::Sum)?;
        step.allreduce(&mut taken, ReduceOp::Sum)?;
        step.allreduce(&mut enough, ReduceOp::Max)
    });
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Whoever is out has changed nothing, not even at home.
            assert!(data == given && taken == taken_by_this, "the inputs of a step that failed were spoilt");
            return Err(error);
        }
    };
    assert_eq!(outcome.step, number, "a step is missing, or was made twice");
    let by = outcome.contributors.to_vec();
    let wrong = data.iter().enumerate().filter(|&(at, &sum)| sum != expected(&by, number, at)).count();
    assert_eq!(wrong, 0, "wrong elements in step {number} of {by:?}");
    for (seen, taken) in training.seen.iter_mut().zip(&taken) {
        *seen += taken;
        assert!(*seen <= 1, "a sample counts twice in an epoch");
    }
    training.sampler.commit(&by);
    assert_eq!(training.seen.iter().filter(|&&times| times == 0).count(), training.sampler.remaining());
    training.step = number;
    by.iter().for_each(|&slot| training.mix(slot as u64));
    data.iter().chain([&enough[0]]).for_each(|&word| training.digest = training.digest.rotate_left(5) ^ word);
    training.mix(number);
    let step = Step {
        slot,
        step: number,
        generation: outcome.generation.0,
        by,
        sum: data[0],
        digest: training.digest,
        at: clock(),
        size: elastic.size(),
    };
    say(&Told::Step(step));
    Ok((enough[0] > 0 || outcome.left, outcome.joined))
}
