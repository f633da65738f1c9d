//! What a rank does: the training of the quiet demo, as steps of an elastic job.

use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use phalanx::bootstrap::{Variables, settings};
use phalanx::elastic::{Elastic, ElasticSampler, State, StepOutcome};
use phalanx::{Call, DataType, Error, ReduceOp, Result};

use super::super::Demo;
use super::super::digest;
use super::super::digits::Digits;
use super::super::network::Network;
use super::super::random::Random;
use super::super::report::Epoch;
use super::super::training::{MOMENTUM, WEIGHTS_STREAM, WIDTHS, first_rate};
use super::{Ending, Told};

/// The exit code of a rank that the others went on without.
const OUT: u8 = 3;

/// Whether this process was started to be a rank of a chaotic run.
pub fn is_member() -> bool {
    Variables::of_process().get("PHALANX_REGISTRY").is_some()
}

/// Takes part until the training is done, or the others go on without this rank.
pub fn live(demo: &Demo, digits: &Digits) -> Result<ExitCode> {
    let began = Instant::now();
    let mut settings = settings(&Variables::of_process())?;
    settings.transport = demo.transport.or(settings.transport);
    settings.algorithm = demo.algorithm.or(settings.algorithm);
    // Sums in rank order give the same bits whichever algorithm and transport carry them.
    settings.deterministic = true;
    let elastic = Elastic::join(&settings)?;
    let mut training = Training::new(demo, digits)?;
    match training.run(&elastic, began) {
        Ok(()) => {
            elastic.shutdown();
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ Error::Evicted { .. }) => {
            tell(&Told::Out { reason: error.to_string() });
            Ok(ExitCode::from(OUT))
        }
        Err(error) => Err(error),
    }
}

fn tell(told: &Told) {
    if let Ok(mut line) = serde_json::to_vec(told) {
        line.push(b'\n');
        // Whoever started this rank may be gone; then this one is about to be.
        let _ = std::io::stdout().write_all(&line);
    }
}

struct Training<'a> {
    digits: &'a Digits,
    epochs: usize,
    batch: usize,
    network: Network,
    gradients: Vec<Vec<f32>>,
    /// What travels to newcomers, from here on.
    parameters: Vec<Vec<f32>>,
    velocity: Vec<Vec<f32>>,
    sampler: ElasticSampler,
    /// Optimiser steps made.
    steps: u64,
    /// Of this epoch.
    loss: f64,
    seen: f64,
    /// The number of the job's step whose gradients were used last.
    used: u64,
    // Of this process alone.
    repeated: u64,
    agreed: u64,
    communication: Duration,
}

impl<'a> Training<'a> {
    fn new(demo: &Demo, digits: &'a Digits) -> Result<Self> {
        let network = Network::new(&WIDTHS);
        Ok(Self {
            digits,
            epochs: demo.epochs,
            batch: demo.batch,
            gradients: network.zeros(),
            // All draw the same; the first sync makes sure.
            parameters: network.random(&mut Random::new(demo.seed, WEIGHTS_STREAM)),
            velocity: network.zeros(),
            network,
            sampler: ElasticSampler::new(digits.training.len(), Some(demo.seed))?,
            steps: 0,
            loss: 0.0,
            seen: 0.0,
            used: 0,
            repeated: 0,
            agreed: 0,
            communication: Duration::ZERO,
        })
    }

    fn run(&mut self, elastic: &Elastic, began: Instant) -> Result<()> {
        elastic.sync(self)?;
        tell(&Told::Ready { slot: elastic.slot(), since_start_ms: milliseconds(began.elapsed()) });
        let first = self.steps;
        let mut epoch_began = Instant::now();
        let mut accuracy = 0.0;
        while self.sampler.epoch() < self.epochs as u64 {
            let basis = elastic.basis();
            let each = self.batch.div_ceil(basis.len());
            if let Some(images) = self.sampler.next_batch(each, &basis, elastic.slot()) {
                self.step(elastic, &images)?;
                continue;
            }
            accuracy = self.accuracy();
            if elastic.rank() == 0 {
                let seconds = epoch_began.elapsed().as_secs_f64();
                tell(&Told::Epoch(Epoch {
                    epoch: self.sampler.epoch() as usize + 1,
                    steps: self.steps as usize,
                    loss: self.loss / self.seen,
                    accuracy,
                    samples_per_second: self.seen / seconds,
                    communication_share: self.communication.as_secs_f64() / began.elapsed().as_secs_f64(),
                }));
            }
            epoch_began = Instant::now();
            (self.loss, self.seen) = (0.0, 0.0);
            self.sampler.set_epoch(self.sampler.epoch() + 1);
        }
        let comm = elastic.communicator()?;
        let seconds = began.elapsed().as_secs_f64();
        tell(&Told::End(Box::new(Ending {
            slot: elastic.slot(),
            rank: comm.rank(),
            size: comm.size(),
            digest: digest::short(&digest::of_weights(&self.parameters.concat())),
            accuracy,
            steps: self.steps,
            agreed: first + self.agreed,
            repeated: self.repeated,
            seconds,
            communication_share: self.communication.as_secs_f64() / seconds,
            transport: comm.transport_summary(),
            algorithm: self.algorithms(elastic)?,
        })));
        Ok(())
    }

    /// One training step on `images`, this rank's share.
    fn step(&mut self, elastic: &Elastic, images: &[usize]) -> Result<()> {
        let share = self.digits.training.select(images.iter().copied());
        let activations = self.network.forward(&self.parameters, &share.pixels);
        let (loss, slopes) = self.network.loss(activations.logits(), &share.labels);
        let mut sums = [f64::from(loss), share.len() as f64];
        let began = Instant::now();
        let mut computed = Duration::ZERO;
        let (network, parameters, gradients) = (&self.network, &self.parameters, &mut self.gradients);
        let outcome = elastic.step(|step| {
            let since = Instant::now();
            network.backward(parameters, &share.pixels, &activations, slopes, gradients, |_, gradient| {
                step.allreduce(gradient.as_mut_slice(), ReduceOp::Sum)
            })?;
            computed = since.elapsed();
            step.allreduce(&mut sums, ReduceOp::Sum)
        })?;
        self.communication += began.elapsed().saturating_sub(computed);

        // It counts: for every rank, once.
        self.agreed += 1;
        self.repeated += u64::from(outcome.step <= self.used);
        self.used = outcome.step;
        self.sampler.commit(&outcome.contributors);
        let [loss, images] = sums;
        let rate = self.rate() / images as f32;
        let layers = self.parameters.iter_mut().zip(&mut self.velocity).zip(&self.gradients);
        for ((weights, velocities), slopes) in layers {
            for ((weight, velocity), slope) in weights.iter_mut().zip(velocities).zip(slopes) {
                *velocity = MOMENTUM * *velocity - rate * slope;
                *weight += *velocity;
            }
        }
        self.steps += 1;
        self.loss += loss;
        self.seen += images;
        if elastic.rank() == 0 {
            tell(&Told::Step { steps: self.steps });
        }
        tell_view(elastic, &outcome);
        if outcome.joined {
            let synced = elastic.sync(self)?;
            tell_view(elastic, &synced);
        }
        Ok(())
    }

    /// The rate falls to zero along a line, over the images of all epochs.
    fn rate(&self) -> f32 {
        let (length, epoch) = (self.digits.training.len(), self.sampler.epoch() as usize);
        let done = (epoch * length + length - self.sampler.remaining()) as f32;
        first_rate(self.batch) * (1.0 - done / (self.epochs * length) as f32)
    }

    fn accuracy(&self) -> f64 {
        let test = &self.digits.test;
        let logits = self.network.forward(&self.parameters, &test.pixels);
        self.network.correct(logits.logits(), &test.labels) as f64 / test.len() as f64
    }

    /// The algorithms that carry the gradients, each once.
    fn algorithms(&self, elastic: &Elastic) -> Result<String> {
        let mut names = Vec::new();
        for gradient in &self.gradients {
            let call = Call::allreduce(DataType::F32, gradient.len(), ReduceOp::Sum);
            let name = elastic.communicator()?.algorithm_for(&call)?.name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names.join("+"))
    }
}

impl State for Training<'_> {
    fn save(&self) -> Result<Cow<'_, [u8]>> {
        let mut bytes = Vec::new();
        for value in self.parameters.iter().chain(&self.velocity).flatten() {
            bytes.extend(value.to_le_bytes());
        }
        for word in [self.steps, self.used, self.loss.to_bits(), self.seen.to_bits()] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.sampler.encode());
        Ok(bytes.into())
    }

    fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let short = || Error::invalid("a state that is too short for this network");
        let mut rest = bytes;
        for value in self.parameters.iter_mut().chain(&mut self.velocity).flatten() {
            let (word, others) = rest.split_first_chunk().ok_or_else(short)?;
            (*value, rest) = (f32::from_le_bytes(*word), others);
        }
        let mut words = [0u64; 4];
        for word in &mut words {
            let (next, others) = rest.split_first_chunk().ok_or_else(short)?;
            (*word, rest) = (u64::from_le_bytes(*next), others);
        }
        (self.steps, self.used) = (words[0], words[1]);
        (self.loss, self.seen) = (f64::from_bits(words[2]), f64::from_bits(words[3]));
        self.sampler = ElasticSampler::decode(rest)?;
        Ok(())
    }
}

fn tell_view(elastic: &Elastic, outcome: &StepOutcome) {
    if outcome.view_changed {
        let held_up_ms = milliseconds(outcome.held_up);
        tell(&Told::View { slot: elastic.slot(), generation: elastic.generation().0, held_up_ms });
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
