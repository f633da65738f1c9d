//! What would be done for a call, why, and what else could be: as a value, as a table, as a drawing.

use std::fmt;

use serde::Serialize;

use super::cost::{self, CostModel, Selection, select};
use super::{Counts, Hosts, JointRequest, PlanError, Schedule, algorithms_for, picture, verify};
use crate::types::{Algorithm, Collective, DataType};

/// What is to be explained.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the whole buffer: for collectives of blocks, of all blocks together; for alltoall, of what one rank
    /// sends. What is no whole element is left out.
    pub bytes: usize,
    /// The element type.
    pub dtype: DataType,
    /// The number of ranks.
    pub size: usize,
    /// As [`PlanRequest::hosts`](super::PlanRequest::hosts); [`spread`] makes one.
    pub hosts: &'a [usize],
    /// The root, for rooted collectives.
    pub root: usize,
    /// As [`PlanRequest::deterministic`](super::PlanRequest::deterministic).
    pub deterministic: bool,
    /// The algorithm to explain instead of the one that would be chosen.
    pub algorithm: Option<Algorithm>,
    /// Whether the call may go over the boards of ranks on one host.
    pub boards: bool,
}

/// An algorithm beside the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// Its name.
    pub algorithm: &'static str,
    /// Predicted seconds.
    pub seconds: f64,
    /// Steps with messages, of the rank that has most.
    pub steps: usize,
    /// Bytes sent by the rank that sends most.
    pub bytes_per_rank: u64,
    /// All bytes between hosts; unknown for worlds too large to simulate.
    pub bytes_between_hosts: Option<u64>,
    /// Whether the figures come from simulating the plans of all ranks, rather than from formulas.
    pub simulated: bool,
    /// Seconds that it took here, if it was measured: see [`Explanation::measure`].
    pub measured_seconds: Option<f64>,
}

/// The answer. Serialises without its drawings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The collective.
    pub collective: &'static str,
    /// Bytes asked about, in whole elements.
    pub bytes: usize,
    /// The element type.
    pub dtype: &'static str,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of hosts.
    pub hosts: usize,
    /// Whether rank order was asked for.
    pub deterministic: bool,
    /// The algorithm.
    pub algorithm: &'static str,
    /// Why this one.
    pub reason: String,
    /// Predicted seconds.
    pub seconds: f64,
    /// Steps with messages, of the rank that has most.
    pub steps: usize,
    /// Messages of all ranks.
    pub messages: usize,
    /// Bytes sent by the rank that sends most.
    pub bytes_per_rank: u64,
    /// Bytes of scratch on the rank that needs most.
    pub scratch_bytes: u64,
    /// Elements of a segment, where the algorithm is pipelined.
    pub segment: Option<usize>,
    /// Whether partial results travel, and halves with them as `f32`.
    pub partials_travel: bool,
    /// Whether the figures come from simulating the plans of all ranks, rather than from formulas, which is done for
    /// worlds too large.
    pub simulated: bool,
    /// Whether the plans were proved sound; not done where they are not simulated.
    pub verified: bool,
    /// Every algorithm that could serve, the fastest first.
    pub alternatives: Vec<Alternative>,
    /// The plan as text; empty for worlds too large.
    #[serde(skip)]
    pub drawing: String,
    /// The plan as SVG; empty for worlds too large.
    #[serde(skip)]
    pub svg: String,
}

/// The most messages for which plans are simulated and proved.
const MOST_MESSAGES: usize = 300_000;
/// The most ranks for which they are, and where everyone speaks to everyone: simulating n messages at a port costs n^2.
const MOST_SIMULATED: usize = 4096;
const MOST_CROWDED: usize = 256;
/// The most ranks for which plans are drawn.
const MOST_DRAWN: usize = 64;
/// The most rows of a drawing: enough for a ring of 32 ranks.
const MOST_ROWS: usize = 64;

/// Which host each of `size` ranks is on when they are spread evenly over `hosts`, neighbours together. At most one
/// host a rank.
pub fn spread(size: usize, hosts: usize) -> Vec<usize> {
    let hosts = hosts.clamp(1, size.max(1));
    (0..hosts).flat_map(|host| vec![host; size / hosts + usize::from(host < size % hosts)]).collect()
}

/// Explains. An error says why there is no such plan. Costs up to a few seconds for large worlds.
pub fn explain(question: &Question<'_>, model: &CostModel) -> Result<Explanation, PlanError> {
    let Question { collective, dtype, size, deterministic, .. } = *question;
    let serving = algorithms_for(collective);
    let asked = question.algorithm.or(serving.first().copied()).unwrap_or(Algorithm::Linear);
    let boards = question.boards && !serving.is_empty();
    if size == 0 || !(serving.contains(&asked) || asked == Algorithm::Boards && boards) {
        let why = if size == 0 { "there are no ranks" } else { "the algorithm does not serve this collective" };
        return Err(PlanError { collective, algorithm: asked, size, why: why.into(), possible: serving.to_vec() });
    }
    let hosts = question.hosts;
    if !hosts.is_empty() && hosts.len() != size {
        let why = format!("hosts are given for {} ranks", hosts.len());
        return Err(PlanError { collective, algorithm: asked, size, why, possible: Vec::new() });
    }
    let elements = if collective == Collective::Barrier { 0 } else { question.bytes / dtype.size() };
    let selection = Selection {
        deterministic,
        forced: question.algorithm,
        boards,
        ..Selection::new(collective, elements, dtype, size, hosts)
    };
    let choice = select(&selection, model);
    let layout = Hosts::new(hosts, size);
    let call = Call::new(question, &selection);
    let mut alternatives = Vec::new();
    let mut chosen = None;
    for &(algorithm, cost) in &choice.alternatives {
        if algorithm == Algorithm::Boards {
            alternatives.push(Alternative {
                algorithm: algorithm.name(),
                seconds: cost.seconds,
                steps: 0,
                bytes_per_rank: 0,
                bytes_between_hosts: Some(0),
                simulated: false,
                measured_seconds: None,
            });
            continue;
        }
        let width = cost::width_on_the_wire(&selection, algorithm, &layout);
        let segment = ((cost.segment / width as f64).ceil() as usize).max(1);
        if !can_be_simulated(collective, algorithm, cost.steps, size) {
            alternatives.push(Alternative {
                algorithm: algorithm.name(),
                seconds: cost.seconds,
                steps: cost.steps,
                bytes_per_rank: cost.bytes.round() as u64,
                bytes_between_hosts: None,
                simulated: false,
                measured_seconds: None,
            });
            continue;
        }
        let request = call.request(algorithm, segment);
        let schedules = request.plan_all()?;
        let prediction = cost::simulate(&schedules, hosts, width, model);
        alternatives.push(Alternative {
            algorithm: algorithm.name(),
            // The simulation does not know that ranks wait for processors; the formula does.
            seconds: if model.shares_processors(layout.most()) { cost.seconds } else { prediction.seconds },
            steps: prediction.steps,
            bytes_per_rank: prediction.bytes,
            bytes_between_hosts: Some(prediction.bytes_between_hosts),
            simulated: true,
            measured_seconds: None,
        });
        if algorithm == choice.schedule {
            let verified = verify(&request, &schedules).is_ok();
            chosen = Some((schedules, prediction.transfers.len(), verified, (cost.segment > 0.0).then_some(segment)));
        }
    }
    alternatives.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let figures = alternatives.iter().find(|other| other.algorithm == choice.algorithm.name()).cloned();
    let Some(figures) = figures else {
        let (algorithm, why) = (choice.algorithm, "the blocks or the sizes rule it out".into());
        return Err(PlanError { collective, algorithm, size, why, possible: serving.to_vec() });
    };
    let mut explanation = Explanation {
        collective: collective.name(),
        bytes: selection.elements * dtype.size(),
        dtype: dtype.name(),
        ranks: size,
        hosts: layout.count(),
        deterministic,
        algorithm: choice.algorithm.name(),
        reason: choice.reason,
        seconds: figures.seconds,
        steps: figures.steps,
        messages: 0,
        bytes_per_rank: figures.bytes_per_rank,
        scratch_bytes: 0,
        segment: None,
        partials_travel: false,
        simulated: figures.simulated,
        verified: false,
        alternatives,
        drawing: String::new(),
        svg: String::new(),
    };
    if let Some((schedules, messages, verified, segment)) = chosen {
        let width = cost::width_on_the_wire(&selection, choice.algorithm, &layout);
        explanation.draw(&schedules, hosts, width);
        (explanation.messages, explanation.verified, explanation.segment) = (messages, verified, segment);
    }
    Ok(explanation)
}

/// Whether there are few enough messages. In each step, every rank sends one at least, or one to all others.
fn can_be_simulated(collective: Collective, algorithm: Algorithm, steps: usize, size: usize) -> bool {
    let crowd = matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Hierarchical)
        || collective == Collective::Alltoall;
    let each = if crowd { size } else { 1 };
    size <= if crowd { MOST_CROWDED } else { MOST_SIMULATED }
        && steps.saturating_mul(size) <= MOST_MESSAGES
        && each.saturating_mul(size) <= MOST_MESSAGES
}

/// The counts of a call, owned.
struct Call<'a> {
    question: &'a Question<'a>,
    hosts: &'a [usize],
    elements: usize,
    blocks: Vec<usize>,
    matrix: Vec<usize>,
    in_place: Vec<bool>,
}

impl<'a> Call<'a> {
    fn new(question: &'a Question<'a>, selection: &Selection<'a>) -> Self {
        let (size, elements) = (question.size, selection.elements);
        let matrix = match question.collective {
            Collective::Alltoall if size <= MOST_CROWDED => vec![elements / size; size * size],
            _ => Vec::new(),
        };
        Self {
            question,
            hosts: selection.hosts,
            elements,
            blocks: (0..size).map(|rank| elements / size + usize::from(rank < elements % size)).collect(),
            matrix,
            // In place, drawings are plainest; an alltoall would have to move its blocks out of the way first.
            in_place: vec![question.collective != Collective::Alltoall; size],
        }
    }

    fn request(&self, algorithm: Algorithm, segment: usize) -> JointRequest<'_> {
        let Question { collective, size, root, deterministic, .. } = *self.question;
        JointRequest {
            collective,
            algorithm,
            size,
            root,
            counts: match collective {
                Collective::Alltoall => Counts::Matrix(&self.matrix),
                Collective::Allgather | Collective::ReduceScatter | Collective::Gather | Collective::Scatter => {
                    Counts::Blocks(&self.blocks)
                }
                _ => Counts::Whole(self.elements),
            },
            in_place: &self.in_place,
            hosts: self.hosts,
            segment,
            deterministic,
        }
    }
}

impl Explanation {
    /// Puts what an algorithm took beside what is predicted of it. One that is no alternative is left out.
    pub fn measure(&mut self, algorithm: &str, seconds: f64) {
        if let Some(other) = self.alternatives.iter_mut().find(|other| other.algorithm == algorithm) {
            other.measured_seconds = Some(seconds);
        }
    }

    /// The algorithm that was measured as fastest, and what it took.
    pub fn fastest(&self) -> Option<(&'static str, f64)> {
        let measured = self.alternatives.iter().filter_map(|other| Some((other.algorithm, other.measured_seconds?)));
        measured.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What was measured of the chosen algorithm, in words.
    fn measured_in_words(&self) -> Option<String> {
        let chosen = self.alternatives.iter().find(|other| other.algorithm == self.algorithm)?.measured_seconds?;
        let (fastest, least) = self.fastest()?;
        let mut words = format!("{}, {:.2} times what is predicted", cost::micros(chosen), chosen / self.seconds);
        if fastest != self.algorithm {
            words += &format!("; {fastest} took {}, {:.0} % less", cost::micros(least), 100.0 * (1.0 - least / chosen));
        }
        Some(words)
    }

    fn draw(&mut self, schedules: &[Schedule], hosts: &[usize], width: usize) {
        let scratch = schedules.iter().map(|schedule| schedule.scratch).max().unwrap_or(0);
        self.scratch_bytes = scratch as u64 * width as u64;
        self.partials_travel = schedules.iter().any(|schedule| schedule.partials_travel);
        if self.ranks > MOST_DRAWN {
            return;
        }
        self.drawing = picture::text(schedules, MOST_ROWS);
        let title = format!(
            "{} by {}: {} of {}, {} ranks",
            self.collective,
            self.algorithm,
            size_in_words(self.bytes as u64),
            self.dtype,
            self.ranks
        );
        self.svg = picture::svg(&title, schedules, hosts, MOST_ROWS);
    }
}

impl fmt::Display for Explanation {
    /// What is chosen and why, the alternatives as a table, the drawing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        write!(
            f,
            "{} of {} ({}) among {}",
            self.collective,
            size_in_words(self.bytes as u64),
            self.dtype,
            plural(self.ranks, "rank")
        )?;
        if self.hosts > 1 {
            write!(f, " on {}", plural(self.hosts, "host"))?;
        }
        writeln!(f, "{}", if self.deterministic { ", in rank order" } else { "" })?;
        writeln!(f, "\n  algorithm   {}", self.algorithm)?;
        writeln!(f, "  why         {}", self.reason)?;
        writeln!(f, "  predicted   {}", cost::micros(self.seconds))?;
        let measured = self.measured_in_words();
        if let Some(words) = &measured {
            writeln!(f, "  measured    {words}")?;
        }
        writeln!(f, "  steps       {}", self.steps)?;
        writeln!(f, "  sent        {} by the busiest rank", size_in_words(self.bytes_per_rank))?;
        if self.algorithm == Algorithm::Boards.name() {
            writeln!(
                f,
                "  (by formula: boards are no schedule; below is the one that stands in where they cannot be had)"
            )?;
        } else if !self.simulated {
            writeln!(f, "  (by formula: too many messages to simulate, prove and draw)")?;
        } else {
            writeln!(f, "  messages    {}", self.messages)?;
            writeln!(f, "  scratch     {} on the rank that needs most", size_in_words(self.scratch_bytes))?;
            if let Some(segment) = self.segment {
                writeln!(f, "  segment     {}", plural(segment, "element"))?;
            }
            let travels = if self.partials_travel {
                "partial results, halves as f32"
            } else {
                "contributions and results as they are"
            };
            writeln!(f, "  what moves  {travels}")?;
            writeln!(
                f,
                "  proof       {}",
                if self.verified {
                    "every result holds each contribution once; no race, no deadlock"
                } else {
                    "FAILED"
                }
            )?;
        }
        writeln!(
            f,
            "\n  {:<20} {:>12}{} {:>7} {:>12} {:>14}",
            "alternatives",
            "predicted",
            if measured.is_some() { format!(" {:>12}", "measured") } else { String::new() },
            "steps",
            "sent",
            "between hosts"
        )?;
        for other in &self.alternatives {
            let between = other.bytes_between_hosts.map_or("?".into(), size_in_words);
            let took = other.measured_seconds.map_or("-".into(), cost::micros);
            writeln!(
                f,
                "{} {:<20} {:>12}{} {:>7} {:>12} {:>14}{}",
                if other.algorithm == self.algorithm { "*" } else { " " },
                other.algorithm,
                cost::micros(other.seconds),
                if measured.is_some() { format!(" {took:>12}") } else { String::new() },
                other.steps,
                size_in_words(other.bytes_per_rank),
                between,
                if other.simulated { "" } else { "  by formula" }
            )?;
        }
        if !self.drawing.is_empty() {
            write!(f, "\n{}", self.drawing)?;
        }
        Ok(())
    }
}

/// Bytes in a unit that people read.
fn size_in_words(bytes: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        None => format!("{bytes} B"),
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(collective: Collective, size: usize) -> Question<'static> {
        Question {
            collective,
            bytes: 1 << 20,
            dtype: DataType::F32,
            size,
            hosts: &[],
            root: 0,
            deterministic: false,
            algorithm: None,
            boards: false,
        }
    }

    #[test]
    fn every_collective_can_be_explained() {
        for &collective in Collective::ALL.iter().filter(|collective| **collective != Collective::SendRecv) {
            for size in [1, 2, 5, 8] {
                for algorithm in algorithms_for(collective).iter().copied().map(Some).chain([None]) {
                    let hosts = spread(size, 2);
                    let asked = Question { algorithm, hosts: &hosts, ..question(collective, size) };
                    let explanation = explain(&asked, &CostModel::default()).unwrap_or_else(|error| panic!("{error}"));
                    assert!(explanation.verified, "{asked:?}");
                    assert!(algorithm.is_none_or(|algorithm| algorithm.name() == explanation.algorithm));
                    assert_eq!(explanation.alternatives.len(), algorithms_for(collective).len());
                    assert!(explanation.to_string().contains(explanation.algorithm));
                }
            }
        }
    }

    #[test]
    fn an_answer_reads_well_and_serialises() {
        let asked = Question { algorithm: Some(Algorithm::Ring), ..question(Collective::Allreduce, 4) };
        let explanation = explain(&asked, &CostModel::default()).unwrap_or_else(|error| panic!("{error}"));
        let words = explanation.to_string();
        for expected in [
            "allreduce of 1 MiB (f32) among 4 ranks",
            "algorithm   ring",
            "why         asked for",
            "sent        1.5 MiB by the busiest rank",
            "* ring",
            "step 6: 4 messages",
            "0 -> 1 [196608..262144) reduce",
        ] {
            assert!(words.contains(expected), "{expected:?} is missing from\n{words}");
        }
        let json = serde_json::to_value(&explanation).unwrap_or_default();
        assert_eq!(
            (&json["algorithm"], &json["steps"], &json["bytes_per_rank"]),
            (&"ring".into(), &6.into(), &1_572_864.into())
        );
        assert!(json.get("drawing").is_none());
    }

    #[test]
    fn measurements_stand_beside_predictions() {
        let asked = Question { algorithm: Some(Algorithm::Ring), ..question(Collective::Allreduce, 4) };
        let mut explanation = explain(&asked, &CostModel::default()).unwrap_or_else(|error| panic!("{error}"));
        assert!(!explanation.to_string().contains("measured"));
        explanation.measure("ring", 0.02);
        explanation.measure("two_shot", 0.005);
        explanation.measure("bruck", 0.001);
        assert_eq!(explanation.fastest(), Some(("two_shot", 0.005)));
        let words = explanation.to_string();
        let lines: Vec<&str> = words.lines().collect();
        let line =
            |start: &str| *lines.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{words}"));
        assert!(
            line("  measured").contains("20.00 ms") && line("  measured").contains("two_shot took 5.00 ms, 75 % less")
        );
        assert!(line("  alternatives").contains("predicted     measured   steps"));
        assert!(line("* ring").contains("     20.00 ms") && line("  one_shot").contains("            -"), "{words}");
        let json = serde_json::to_value(&explanation).unwrap_or_default();
        let others = json["alternatives"].as_array().expect("a list");
        let of = |name: &str| others.iter().find(|other| other["algorithm"] == name).expect("an alternative");
        assert_eq!(of("ring")["measured_seconds"], 0.02);
        assert!(of("one_shot")["measured_seconds"].is_null());
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        let asked = Question { algorithm: Some(Algorithm::Bruck), ..question(Collective::Allreduce, 4) };
        let words = explain(&asked, &CostModel::default()).map_err(|error| error.to_string());
        let expected = "no plan for allreduce by bruck among 4 ranks: the algorithm does not serve this collective; \
                        possible: two_shot, one_shot, recursive_doubling, halving_doubling, ring, double_tree, hierarchical";
        assert_eq!(words.map(|_| ()), Err(expected.into()));
        assert!(explain(&question(Collective::Allreduce, 0), &CostModel::default()).is_err());
        assert!(
            explain(&Question { hosts: &[0], ..question(Collective::Broadcast, 2) }, &CostModel::default()).is_err()
        );
        assert!(explain(&question(Collective::SendRecv, 2), &CostModel::default()).is_err());
        assert!(explain(&Question { root: 9, ..question(Collective::Broadcast, 2) }, &CostModel::default()).is_err());
    }

    #[test]
    fn large_worlds_are_explained_by_formula() {
        let explanation = explain(&question(Collective::Alltoall, 2000), &CostModel::default());
        let explanation = explanation.unwrap_or_else(|error| panic!("{error}"));
        assert!(!explanation.simulated && explanation.to_string().contains("by formula"));
        let drawn = |size| explain(&question(Collective::Broadcast, size), &CostModel::default());
        assert!(drawn(64).is_ok_and(|explanation| !explanation.drawing.is_empty()));
        assert!(drawn(65).is_ok_and(|explanation| explanation.verified && explanation.drawing.is_empty()));
    }

    #[test]
    fn ranks_are_spread_evenly() {
        assert_eq!(spread(5, 2), [0, 0, 0, 1, 1]);
        assert_eq!(spread(2, 5), [0, 1]);
        assert_eq!(spread(3, 0), [0, 0, 0]);
    }
}
