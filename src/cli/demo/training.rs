//! Data-parallel training: every rank holds the whole network and a share of each step's images.
//!
//! A training step takes `batch` images. Each rank computes the gradient over its share, one bucket a layer, from the
//! last layer to the first; a bucket starts its allreduce as soon as it is full and travels while the layers before
//! it are computed. The sum over the ranks divided by `batch` is the mean over the step's images, however unevenly they
//! are shared, so that any number of ranks walks the same path but for rounding. Every rank then takes the same step
//! from the same weights with the same bits.

use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use phalanx::{Call, Communicator, DataType, Error, ReduceOp, Reduction, Result};

use super::digest;
use super::digits::{CLASSES, Digits, PIXELS};
use super::network::Network;
use super::random::Random;
use super::report::{Begin, Epoch, Message, Summary};

/// Values between the layers: enough to recognise 97 of 100 digits, and three buckets to overlap.
const WIDTHS: [usize; 4] = [PIXELS, 128, 64, CLASSES];

/// The first training step's rate; it falls to zero along a line. Smaller batches are noisier and get less of it, in
/// proportion.
const LEARNING_RATE: f32 = 0.3;

/// The batch that bears the whole rate.
const FULL_RATE_BATCH: usize = 64;

/// How much of a step's velocity is left in the next.
const MOMENTUM: f32 = 0.9;

/// How often a person sees the bar move.
const REPORT_EVERY: Duration = Duration::from_millis(40);

/// Streams of random numbers under one seed.
const WEIGHTS_STREAM: u64 = 0;
const ORDER_STREAM: u64 = 1;

/// What a user may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of the first weights and of the order of the images.
    pub seed: u64,
    /// Passes over the training images.
    pub epochs: usize,
    /// Images in a training step, over all ranks.
    pub batch: usize,
}

impl Settings {
    /// Whether `ranks` ranks can train with these settings on `images` training images.
    pub fn check(&self, ranks: usize, images: usize) -> Result<()> {
        if self.epochs == 0 {
            return Err(Error::invalid("--epochs 0 trains nothing; give at least 1"));
        }
        if self.batch == 0 || self.batch > images {
            return Err(Error::invalid(format!(
                "--batch {} is not between 1 and {images} training images",
                self.batch
            )));
        }
        if ranks > self.batch {
            return Err(Error::invalid(format!(
                "{ranks} ranks cannot share the {} images of a training step; give fewer --ranks or a larger --batch (up \
                 to {images})",
                self.batch
            )));
        }
        Ok(())
    }
}

/// One rank's training.
struct Trainer<'a> {
    comm: &'a Communicator,
    digits: &'a Digits,
    settings: Settings,
    network: Network,
    parameters: Vec<Vec<f32>>,
    velocity: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    /// Time inside Phalanx so far.
    communication: Duration,
}

/// Trains on this rank together with all others, and tells `report` how it goes. The summary is the same on every rank
/// but for the seconds, which are this rank's.
pub fn train(
    comm: &Communicator,
    digits: &Digits,
    settings: Settings,
    report: &mut dyn FnMut(Message),
) -> Result<Summary> {
    settings.check(comm.size(), digits.training.len())?;
    // Sums in rank order give the same bits whichever algorithm and transport carry them.
    let comm = &comm.with_deterministic(true);
    let network = Network::new(&WIDTHS);
    let zeros = network.zeros();
    let mut trainer = Trainer {
        comm,
        digits,
        settings,
        parameters: zeros.clone(),
        velocity: zeros.clone(),
        gradients: zeros,
        network,
        communication: Duration::ZERO,
    };
    trainer.run(report)
}

impl Trainer<'_> {
    fn run(&mut self, report: &mut dyn FnMut(Message)) -> Result<Summary> {
        let Settings { seed, epochs, batch } = self.settings;
        let images = self.digits.training.len();
        let steps_per_epoch = images / batch;
        let steps = steps_per_epoch * epochs;
        report(Message::Begin(Begin {
            ranks: self.comm.size(),
            network: WIDTHS.map(|width| width.to_string()).join("-"),
            parameters: self.parameters.iter().map(Vec::len).sum(),
            images,
            batch,
            steps,
            epochs,
            local_ranks: self.comm.local_size(),
            processors: available_parallelism().map_or(1, |processors| processors.get()),
        }));

        let began = Instant::now();
        self.begin()?;
        let rate = LEARNING_RATE * (batch as f32 / FULL_RATE_BATCH as f32).min(1.0);
        let mut order: Vec<usize> = (0..images).collect();
        let mut random = Random::new(seed, ORDER_STREAM);
        let mut accuracy = 0.0;
        let mut reported = began;
        let mut taken = 0;
        for number in 1..=epochs {
            let (epoch_began, communication_before) = (Instant::now(), self.communication);
            random.shuffle(&mut order);
            let mut loss = 0.0;
            for images in order.chunks_exact(batch) {
                loss += self.step(images, rate * (1.0 - taken as f32 / steps as f32))?;
                taken += 1;
                if reported.elapsed() >= REPORT_EVERY {
                    reported = Instant::now();
                    report(Message::Step { steps: taken });
                }
            }
            let seconds = epoch_began.elapsed().as_secs_f64();
            let communication = (self.communication - communication_before).as_secs_f64();
            let sums = self.sum([loss, self.recognised() as f64, communication / seconds])?;
            accuracy = sums[1] / self.digits.test.len() as f64;
            let seen = (steps_per_epoch * batch) as f64;
            report(Message::Epoch(Epoch {
                epoch: number,
                steps: taken,
                loss: sums[0] / seen,
                accuracy,
                samples_per_second: seen / seconds,
                communication_share: sums[2] / self.comm.size() as f64,
            }));
        }
        let seconds = began.elapsed().as_secs_f64();
        let [share] = self.sum([self.communication.as_secs_f64() / seconds])?;
        let summary = Summary {
            ranks: self.comm.size(),
            transport: self.comm.transport_summary(),
            algorithm: self.algorithms()?,
            accuracy,
            steps,
            seconds,
            communication_share: share / self.comm.size() as f64,
            seed,
            epochs,
            batch,
            digests: self.digests()?,
        };
        report(Message::End(summary.clone()));
        Ok(summary)
    }

    /// Draws the first weights on rank 0 and gives them to all.
    fn begin(&mut self) -> Result<()> {
        if self.comm.rank() == 0 {
            self.parameters = self.network.random(&mut Random::new(self.settings.seed, WEIGHTS_STREAM));
        }
        let began = Instant::now();
        for layer in &mut self.parameters {
            self.comm.broadcast(layer, 0)?;
        }
        self.communication += began.elapsed();
        Ok(())
    }

    /// One training step on `images`, of which every rank takes its share. Returns the summed loss of that share.
    fn step(&mut self, images: &[usize], rate: f32) -> Result<f64> {
        let share = images.iter().copied().skip(self.comm.rank()).step_by(self.comm.size());
        let share = self.digits.training.select(share);
        let activations = self.network.forward(&self.parameters, &share.pixels);
        let (loss, slopes) = self.network.loss(activations.logits(), &share.labels);

        let mean = self.mean();
        let (comm, communication) = (self.comm, &mut self.communication);
        let mut travelling = Vec::with_capacity(self.gradients.len());
        let ready = |layer, gradient: &mut Vec<f32>| {
            let began = Instant::now();
            travelling.push((layer, comm.start_allreduce(std::mem::take(gradient), mean.clone())?));
            *communication += began.elapsed();
            Ok::<_, Error>(())
        };
        let (parameters, gradients) = (&self.parameters, &mut self.gradients);
        self.network.backward(parameters, &share.pixels, &activations, slopes, gradients, ready)?;

        for (layer, pending) in travelling {
            let began = Instant::now();
            let gradient = pending.wait()?;
            self.communication += began.elapsed();
            let weights = self.parameters[layer].iter_mut().zip(&mut self.velocity[layer]);
            for ((weight, velocity), slope) in weights.zip(&gradient) {
                *velocity = MOMENTUM * *velocity - rate * slope;
                *weight += *velocity;
            }
            self.gradients[layer] = gradient;
        }
        Ok(f64::from(loss))
    }

    /// Turns the ranks' summed slopes into the mean over the images of a training step.
    fn mean(&self) -> Reduction {
        Reduction::new(ReduceOp::Sum).postscale(1.0 / self.settings.batch as f64)
    }

    /// The algorithms that carry the gradients, each once.
    fn algorithms(&self) -> Result<String> {
        let mut names = Vec::new();
        for gradient in &self.gradients {
            let call = Call::allreduce(DataType::F32, gradient.len(), self.mean()).in_place(true);
            let name = self.comm.algorithm_for(&call)?.name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names.join("+"))
    }

    /// How many of this rank's share of the test images are recognised.
    fn recognised(&self) -> usize {
        let test = &self.digits.test;
        let share = test.select((0..test.len()).skip(self.comm.rank()).step_by(self.comm.size()));
        self.network.correct(self.network.forward(&self.parameters, &share.pixels).logits(), &share.labels)
    }

    /// Sums over the ranks.
    fn sum<const N: usize>(&self, mut values: [f64; N]) -> Result<[f64; N]> {
        self.comm.allreduce(&mut values, ReduceOp::Sum)?;
        Ok(values)
    }

    /// The digest of every rank's weights, in rank order.
    fn digests(&self) -> Result<Vec<String>> {
        let mut all = vec![0; 32 * self.comm.size()];
        self.comm.allgather(&digest::of_weights(&self.parameters.concat()), &mut all)?;
        Ok(all.chunks_exact(32).map(digest::short).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx::Algorithm;

    const SETTINGS: Settings = Settings { seed: 1, epochs: 30, batch: 64 };

    /// Trains over threads; rank 0's summary and messages. All ranks' digests are in the summary.
    fn together(ranks: usize, algorithm: Option<Algorithm>, settings: Settings) -> (Summary, Vec<Message>) {
        let digits = &Digits::load().expect("sound digits");
        let world = phalanx::thread_world(ranks).expect("threads");
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let rank = |comm: Communicator| {
                scope.spawn(move || {
                    let mut messages = Vec::new();
                    let comm = comm.with_algorithm(algorithm);
                    let summary = train(&comm, digits, settings, &mut |message| messages.push(message));
                    (summary.expect("sound training"), messages)
                })
            };
            let threads: Vec<_> = world.into_iter().map(rank).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(outcomes.iter().all(|(summary, _)| summary.digests == outcomes[0].0.digests && summary.is_agreed()));
        outcomes.into_iter().next().expect("a rank 0")
    }

    #[test]
    fn one_rank_learns_the_digits() {
        for seed in 1..5 {
            let (summary, messages) = together(1, None, Settings { seed, ..SETTINGS });
            assert!(summary.accuracy >= 0.965, "accuracy {} with seed {seed}", summary.accuracy);
            assert_eq!(summary.steps, 30 * 22);
            assert!(matches!(&messages[0], Message::Begin(begin) if begin.steps == 660 && begin.parameters == 17226));
            assert_eq!(messages.last(), Some(&Message::End(summary.clone())));
            let is_epoch = |message: &Message| match message {
                Message::Epoch(epoch) => Some(epoch.clone()),
                _ => None,
            };
            let epochs: Vec<_> = messages.iter().filter_map(is_epoch).collect();
            assert_eq!(epochs.len(), 30);
            assert!(epochs[29].loss < epochs[0].loss / 20.0);
            assert_eq!(epochs[29].accuracy, summary.accuracy);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_weights() {
        let short = Settings { epochs: 2, ..SETTINGS };
        let digests = |settings| together(1, None, settings).0.digests;
        assert_eq!(digests(short), digests(short));
        assert_ne!(digests(short), digests(Settings { seed: 2, ..short }));
    }

    #[test]
    fn ranks_agree_whatever_carries_the_gradients() {
        let short = Settings { epochs: 1, ..SETTINGS };
        let (summary, _) = together(3, None, short);
        assert_eq!((summary.ranks, summary.digests.len()), (3, 3));
        assert_eq!(summary.transport, "inproc");
        for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::TwoShot] {
            let (other, _) = together(3, Some(algorithm), short);
            assert_eq!((other.algorithm.as_str(), other.digests), (algorithm.name(), summary.digests.clone()));
        }
    }

    #[test]
    fn ranks_share_a_step_without_changing_its_meaning() {
        // The first epoch's loss is the same mean over the same images, but for the order of the additions.
        let loss = |ranks| {
            let (_, messages) = together(ranks, None, Settings { epochs: 1, ..SETTINGS });
            messages
                .iter()
                .find_map(|message| if let Message::Epoch(epoch) = message { Some(epoch.loss) } else { None })
        };
        let (one, five) = (loss(1).expect("an epoch"), loss(5).expect("an epoch"));
        assert!((one - five).abs() < 1e-3 * one, "{one} and {five}");
    }

    #[test]
    fn settings_that_cannot_train_are_refused() {
        let refused = |settings: Settings, ranks| settings.check(ranks, 1438).unwrap_err().to_string();
        assert!(SETTINGS.check(64, 1438).is_ok());
        assert!(refused(SETTINGS, 65).contains("65 ranks cannot share the 64 images"));
        assert!(refused(Settings { epochs: 0, ..SETTINGS }, 1).contains("--epochs 0"));
        assert!(refused(Settings { batch: 0, ..SETTINGS }, 1).contains("--batch 0"));
        assert!(refused(Settings { batch: 1439, ..SETTINGS }, 1).contains("1438 training images"));
    }
}
