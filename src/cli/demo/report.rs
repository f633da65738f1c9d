//! What rank 0 says while it trains, and how a person sees it.

use std::fmt;
use std::io::Write;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::{Deserialize, Serialize};

/// From rank 0 to whoever renders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Message {
    /// Training begins.
    Begin(Begin),
    /// Some training steps are done.
    Step {
        /// How many since the start.
        steps: usize,
    },
    /// An epoch is done.
    Epoch(Epoch),
    /// Training is done.
    End(Summary),
}

/// What is about to be trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// The number of ranks.
    pub ranks: usize,
    /// Values between the layers, such as `64-128-64-10`.
    pub network: String,
    /// Weights and biases.
    pub parameters: usize,
    /// Images to learn from.
    pub images: usize,
    /// Images in a training step, over all ranks.
    pub batch: usize,
    /// All training steps.
    pub steps: usize,
    /// All epochs.
    pub epochs: usize,
    /// The ranks on rank 0's host.
    pub local_ranks: usize,
    /// The processors that they share.
    pub processors: usize,
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Its number, from 1.
    pub epoch: usize,
    /// Training steps since the start.
    pub steps: usize,
    /// The mean loss over the epoch's images, while it was learning.
    pub loss: f64,
    /// The share of test images that are recognised after it.
    pub accuracy: f64,
    /// Training images a second, over all ranks.
    pub samples_per_second: f64,
    /// The mean over the ranks of the share of time spent inside Phalanx.
    pub communication_share: f64,
}

/// The end, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of ranks.
    pub ranks: usize,
    /// The carriers of the gradients, such as `shm` or `shm+tcp`; `none` for one rank.
    pub transport: String,
    /// The algorithm that summed the gradients; several, joined by `+`, when it depends on a layer's size.
    pub algorithm: String,
    /// The share of test images that are recognised.
    pub accuracy: f64,
    /// Training steps.
    pub steps: usize,
    /// From the first broadcast to the last test.
    pub seconds: f64,
    /// The mean over the ranks of the share of those seconds spent inside Phalanx: starting calls and waiting for them.
    pub communication_share: f64,
    /// The seed.
    pub seed: u64,
    /// Passes over the training images.
    pub epochs: usize,
    /// Images in a training step, over all ranks.
    pub batch: usize,
    /// For each rank, the first 16 hexadecimal digits of the SHA-256 of its weights.
    pub digests: Vec<String>,
}

impl Summary {
    /// Whether every rank ended with the same weights.
    pub fn is_agreed(&self) -> bool {
        self.digests.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// Shows messages to a person: rows on standard output, and a bar on standard error if that is a terminal.
pub struct Renderer<W> {
    output: W,
    bar: ProgressBar,
    json: bool,
}

impl<W: Write> Renderer<W> {
    /// Writes rows to `output`. With `json` the last line is the summary as one object.
    pub fn new(output: W, json: bool) -> Self {
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{bar:32} {pos}/{len} steps, {rate}, {eta} left") {
            let rate = |state: &ProgressState, to: &mut dyn fmt::Write| {
                let _ = write!(to, "{:.0}/s", state.per_sec());
            };
            bar.set_style(style.with_key("rate", rate));
        }
        Self { output, bar, json }
    }

    /// Shows one message.
    pub fn show(&mut self, message: &Message) {
        match message {
            Message::Begin(begin) => {
                let Begin { ranks, network, parameters, images, batch, steps, epochs, local_ranks, processors } = begin;
                self.bar.set_length(*steps as u64);
                self.line(&format!(
                    "{ranks} rank{} train{} a {network} network ({parameters} weights) on {images} images: {epochs} \
                     epoch{} of {} steps of {batch} images",
                    if *ranks == 1 { "" } else { "s" },
                    if *ranks == 1 { "s" } else { "" },
                    if *epochs == 1 { "" } else { "s" },
                    steps / epochs.max(&1),
                ));
                if local_ranks > processors {
                    self.line(&format!(
                        "{local_ranks} ranks take turns on {processors} processor{}: waiting for a turn counts as \
                         communication",
                        if *processors == 1 { "" } else { "s" },
                    ));
                }
                self.line(&format!(
                    "{:>5}  {:>8}  {:>13}  {:>9}  {:>13}",
                    "epoch", "loss", "test accuracy", "samples/s", "communication"
                ));
            }
            Message::Step { steps } => self.bar.set_position(*steps as u64),
            Message::Epoch(row) => {
                self.bar.set_position(row.steps as u64);
                self.line(&format!(
                    "{:>5}  {:>8.5}  {:>13.4}  {:>9.0}  {:>12.1}%",
                    row.epoch,
                    row.loss,
                    row.accuracy,
                    row.samples_per_second,
                    100.0 * row.communication_share
                ));
            }
            Message::End(summary) => {
                self.bar.finish_and_clear();
                self.end(summary);
            }
        }
    }

    fn end(&mut self, summary: &Summary) {
        self.line(&format!(
            "test accuracy {:.4} after {} steps in {:.2} s, {:.1}% of it in communication",
            summary.accuracy,
            summary.steps,
            summary.seconds,
            100.0 * summary.communication_share
        ));
        if summary.ranks > 1 {
            self.line(&format!("gradients travelled over {}, summed by {}", summary.transport, summary.algorithm));
        } else {
            self.line("no gradients travelled: one rank trained alone");
        }
        if summary.is_agreed() {
            let digest = summary.digests.first().map_or("", String::as_str);
            let ranks = summary.ranks;
            self.line(&format!(
                "digest of the weights: {digest} on {}",
                match ranks {
                    1 => "the one rank".into(),
                    2 => "both ranks".into(),
                    _ => format!("all {ranks} ranks"),
                }
            ));
        }
        for (rank, digest) in summary.digests.iter().enumerate() {
            self.line(&format!("  rank {rank}: {digest}"));
        }
        if !summary.is_agreed() {
            self.line("THE RANKS DISAGREE: their weights should have the same digest");
        }
        if self.json
            && let Ok(object) = serde_json::to_string(summary)
        {
            self.line(&object);
        }
    }

    /// A reader that is gone is no reason to stop training.
    fn line(&mut self, line: &str) {
        let output = &mut self.output;
        self.bar.suspend(|| {
            let _ = writeln!(output, "{line}");
            let _ = output.flush();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(digests: &[&str]) -> Summary {
        Summary {
            ranks: digests.len(),
            transport: "shm".into(),
            algorithm: "two_shot".into(),
            accuracy: 0.975,
            steps: 660,
            seconds: 2.5,
            communication_share: 0.25,
            seed: 1,
            epochs: 30,
            batch: 64,
            digests: digests.iter().map(ToString::to_string).collect(),
        }
    }

    fn shown(messages: &[Message], json: bool) -> Vec<String> {
        let mut output = Vec::new();
        let mut renderer = Renderer::new(&mut output, json);
        messages.iter().for_each(|message| renderer.show(message));
        String::from_utf8(output).unwrap().lines().map(ToString::to_string).collect()
    }

    #[test]
    fn rows_stand_under_their_headings() {
        let begin = Begin {
            ranks: 4,
            network: "64-10".into(),
            parameters: 650,
            images: 1438,
            batch: 64,
            steps: 44,
            epochs: 2,
            local_ranks: 4,
            processors: 4,
        };
        let crowded = Begin { processors: 2, ..begin.clone() };
        let epoch = Epoch {
            epoch: 1,
            steps: 22,
            loss: 1.25,
            accuracy: 0.9,
            samples_per_second: 41234.4,
            communication_share: 0.125,
        };
        let lines = shown(&[Message::Begin(begin), Message::Step { steps: 3 }, Message::Epoch(epoch)], false);
        assert_eq!(
            lines,
            [
                "4 ranks train a 64-10 network (650 weights) on 1438 images: 2 epochs of 22 steps of 64 images",
                "epoch      loss  test accuracy  samples/s  communication",
                "    1   1.25000         0.9000      41234          12.5%",
            ]
        );
        assert_eq!(
            shown(&[Message::Begin(crowded)], false)[1],
            "4 ranks take turns on 2 processors: waiting for a turn counts as communication"
        );
    }

    #[test]
    fn one_rank_alone_sends_nothing() {
        assert_eq!(
            shown(&[Message::End(summary(&["ab"]))], false)[1],
            "no gradients travelled: one rank trained alone"
        );
    }

    #[test]
    fn the_last_line_is_the_summary_as_one_object() {
        let lines = shown(&[Message::End(summary(&["ab", "ab"]))], true);
        assert_eq!(lines[2], "digest of the weights: ab on both ranks");
        let object: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        for (key, value) in [
            ("ranks", serde_json::json!(2)),
            ("transport", "shm".into()),
            ("algorithm", "two_shot".into()),
            ("accuracy", 0.975.into()),
            ("steps", 660.into()),
            ("seconds", 2.5.into()),
            ("communication_share", 0.25.into()),
            ("digests", serde_json::json!(["ab", "ab"])),
        ] {
            assert_eq!(object[key], value, "{key}");
        }
    }

    #[test]
    fn ranks_that_disagree_are_shown() {
        let summary = summary(&["ab", "cd", "ab"]);
        assert!(!summary.is_agreed());
        let lines = shown(&[Message::End(summary)], false);
        assert_eq!(lines[2..5], ["  rank 0: ab", "  rank 1: cd", "  rank 2: ab"]);
        assert!(lines[5].contains("DISAGREE"));
    }

    #[test]
    fn messages_survive_the_way_between_processes() {
        for message in [Message::Step { steps: 7 }, Message::End(summary(&["ab"]))] {
            let line = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
        }
    }
}
