//! Which algorithm a call should use, and why.

use super::super::plan::partials_travel;
use super::super::{Hosts, algorithms_for};
use super::{Basis, ChoiceMode, CostModel, Estimate, boards, estimate};
use crate::types::{Algorithm, Collective, DataType};

/// What the choice depends on. Every field, and the cost model too, must be the same on all ranks, or messages would
/// not meet.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// The collective.
    pub collective: Collective,
    /// Elements of the whole buffer: for collectives of blocks, of all blocks together; for alltoall, of all blocks that
    /// one rank sends. For an alltoall of unequal blocks no rank knows what others exchange: give 0.
    pub elements: usize,
    /// The element type; halves travel as `f32` where partial results do.
    pub dtype: DataType,
    /// The number of ranks.
    pub size: usize,
    /// As [`PlanRequest::hosts`](super::super::PlanRequest::hosts).
    pub hosts: &'a [usize],
    /// For alltoall: whether all blocks have the same length.
    pub equal: bool,
    /// As [`PlanRequest::deterministic`](super::super::PlanRequest::deterministic).
    pub deterministic: bool,
    /// The algorithm the user asked for, if any.
    pub forced: Option<Algorithm>,
    /// Whether the call may go over the boards of ranks on one host.
    pub boards: bool,
    /// Whether the order of a reduction shows in its bits, as with floating point.
    pub inexact: bool,
}

impl<'a> Selection<'a> {
    /// A call of equal blocks that is left to the choice: floating point, in any order, by messages.
    pub fn new(collective: Collective, elements: usize, dtype: DataType, size: usize, hosts: &'a [usize]) -> Self {
        Self {
            collective,
            elements,
            dtype,
            size,
            hosts,
            equal: true,
            deterministic: false,
            forced: None,
            boards: false,
            inexact: true,
        }
    }
}

/// An algorithm, and why it was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The one that a plan is made for: the same, unless the call goes over boards. Then it is what stands in for them where
    /// the ranks find that they do not see each other's.
    pub schedule: Algorithm,
    /// Why, in words.
    pub reason: String,
    /// Elements of a segment, for [`PlanRequest::segment`](super::super::PlanRequest::segment).
    pub segment: usize,
    /// What each algorithm that could serve would cost by formula, the fastest first.
    pub alternatives: Vec<(Algorithm, Estimate)>,
    /// Those that may stand in for it: whose results have the same bits, unless all may. With it.
    pub interchangeable: Vec<Algorithm>,
}

/// The longest buffer for one-shot, in bytes, which needs scratch for n - 1 of it.
const MOST_ONE_SHOT: usize = 1 << 20;

/// Chooses an algorithm by formula. Costs O(size^2) at most; well below a millisecond for 64 ranks.
///
/// A forced algorithm that does not serve the collective is not an error, since it is usually meant for another
/// collective of the same program; the reason says so.
pub fn select(selection: &Selection<'_>, model: &CostModel) -> Choice {
    select_among(selection, model, Among::All)
}

/// Chooses by what the ranks agreed on: the table first, then the figures.
///
/// Where figures were measured, and the order of the reduction would show, only algorithms compete that give the bits of
/// the one which the built-in figures choose, unless all may.
pub fn select_by(selection: &Selection<'_>, basis: &Basis) -> Choice {
    let (mut choice, is_told) = choose_by(selection, basis);
    if is_told {
        choice.interchangeable = vec![choice.algorithm];
    } else if basis.choice == ChoiceMode::Free {
        // Bits may change.
        let hosts = Hosts::new(selection.hosts, selection.size);
        let others = choice.alternatives.iter().map(|(other, _)| *other);
        choice.interchangeable =
            others.filter(|other| *other == choice.algorithm || is_sensible(*other, selection, &hosts)).collect();
    }
    choice
}

/// The choice, and whether the user made it.
fn choose_by(selection: &Selection<'_>, basis: &Basis) -> (Choice, bool) {
    let one_host = selection.hosts.iter().all(|host| *host == selection.hosts[0]);
    let bytes = selection.elements.saturating_mul(selection.dtype.size());
    let shared = basis.shares_memory && one_host;
    let ruled = basis.table.find(selection.collective, selection.size, shared, bytes);
    for forced in [selection.forced, ruled].into_iter().flatten() {
        let mut choice = select(&Selection { forced: Some(forced), ..*selection }, basis.model());
        if choice.algorithm == forced {
            if selection.forced != Some(forced) {
                choice.reason = "the table says so".into();
            }
            return (choice, true);
        }
    }
    let choice = match (&basis.measured, basis.choice) {
        (None, _) | (_, ChoiceMode::Builtin) => select(selection, &basis.builtin),
        (Some(measured), ChoiceMode::Measured) if selection.inexact => {
            let usual = select(selection, &basis.builtin);
            if usual.algorithm == Algorithm::Boards {
                usual
            } else {
                let scheduled = Selection { boards: false, ..*selection };
                select_among(&scheduled, measured, Among::SameBits(usual.algorithm))
            }
        }
        (Some(measured), _) => select_among(selection, measured, Among::All),
    };
    (choice, false)
}

/// Whether an algorithm may be taken unasked.
fn is_sensible(algorithm: Algorithm, selection: &Selection<'_>, hosts: &Hosts) -> bool {
    match algorithm {
        Algorithm::OneShot if selection.collective == Collective::Allreduce => {
            selection.elements.saturating_mul(selection.dtype.size()) <= MOST_ONE_SHOT
        }
        // Without several ranks on several hosts it is a flat algorithm by another name.
        Algorithm::Hierarchical => hosts.count() > 1 && hosts.most() > 1,
        _ => true,
    }
}

/// Which algorithms compete.
#[derive(Clone, Copy)]
enum Among {
    /// Those that give the bits of this one.
    SameBits(Algorithm),
    All,
}

fn select_among(selection: &Selection<'_>, model: &CostModel, among: Among) -> Choice {
    let hosts = Hosts::new(selection.hosts, selection.size);
    let mut alternatives: Vec<(Algorithm, Estimate)> = algorithms_for(selection.collective)
        .iter()
        .filter(|&&algorithm| {
            algorithm != Algorithm::Bruck || selection.collective != Collective::Alltoall || selection.equal
        })
        .map(|&algorithm| {
            let moved = (selection.elements, width_on_the_wire(selection, algorithm, &hosts));
            (algorithm, estimate(selection.collective, algorithm, moved, &hosts, selection.deterministic, model))
        })
        .collect();
    alternatives.sort_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
    let (schedule, mut reason) = decide(selection, &hosts, &alternatives, among);
    let cost_of = |algorithm| alternatives.iter().find(|(other, _)| *other == algorithm).map(|(_, cost)| *cost);
    let planned = cost_of(schedule).unwrap_or_default();
    let width = width_on_the_wire(selection, schedule, &hosts) as f64;
    let segment = if planned.segment > 0.0 { (planned.segment / width).ceil() as usize } else { selection.elements };
    let mut algorithm = schedule;
    if selection.boards && selection.collective != Collective::SendRecv {
        let bytes = selection.elements as f64 * selection.dtype.size() as f64;
        let boards = boards::estimate(selection.collective, bytes, selection.size, model);
        let at = alternatives.partition_point(|(_, cost)| cost.seconds < boards.seconds);
        alternatives.insert(at, (Algorithm::Boards, boards));
        let (ours, theirs) = (micros(boards.seconds), micros(planned.seconds));
        match selection.forced {
            Some(Algorithm::Boards) => (algorithm, reason) = (Algorithm::Boards, "asked for".into()),
            Some(forced) if forced == schedule => {}
            _ if boards.seconds <= planned.seconds => {
                algorithm = Algorithm::Boards;
                reason = format!("straight through shared memory; {ours} by formula, against {theirs} for {schedule}");
            }
            _ => reason = format!("{reason}; boards would take {ours}"),
        }
    }
    let partial = |algorithm| partials_travel(selection.collective, algorithm, &hosts, selection.deterministic);
    let raw = |algorithm| algorithm == Algorithm::Boards || !partial(algorithm);
    let same_bits = |other| !selection.inexact || raw(other) && raw(algorithm);
    let same = |other: &Algorithm| *other == algorithm || is_sensible(*other, selection, &hosts) && same_bits(*other);
    let interchangeable = alternatives.iter().map(|(other, _)| *other).filter(same).collect();
    Choice { algorithm, schedule, reason, segment: segment.max(1), alternatives, interchangeable }
}

/// Bytes of an element as it travels: halves are twice as wide where partial results are.
pub(in crate::schedule) fn width_on_the_wire(selection: &Selection<'_>, algorithm: Algorithm, hosts: &Hosts) -> usize {
    let wide =
        selection.dtype.is_half() && partials_travel(selection.collective, algorithm, hosts, selection.deterministic);
    selection.dtype.size() * if wide { 2 } else { 1 }
}

/// The choice among alternatives that are sorted by time.
fn decide(
    selection: &Selection<'_>,
    hosts: &Hosts,
    alternatives: &[(Algorithm, Estimate)],
    among: Among,
) -> (Algorithm, String) {
    let Selection { collective, size, .. } = *selection;
    let Some(&(fastest, _)) = alternatives.first() else {
        return (Algorithm::Linear, format!("{collective} is one instruction"));
    };
    let mut ignored = String::new();
    if let Some(forced) = selection.forced {
        if alternatives.iter().any(|(algorithm, _)| *algorithm == forced) {
            return (forced, "asked for".into());
        }
        ignored = format!("{forced} was asked for and cannot serve {collective}; ");
    }
    let choose = |algorithm: Algorithm, reason: String| (algorithm, format!("{ignored}{reason}"));
    if size == 1 {
        return choose(algorithms_for(collective)[0], "one rank has nothing to exchange".into());
    }
    let partial = |algorithm| partials_travel(collective, algorithm, hosts, selection.deterministic);
    let allowed = |algorithm| match among {
        Among::SameBits(usual) => algorithm == usual || !partial(algorithm) && !partial(usual),
        _ => true,
    };
    let mut candidates =
        alternatives.iter().filter(|(algorithm, _)| allowed(*algorithm) && is_sensible(*algorithm, selection, hosts));
    let Some(&(algorithm, cost)) = candidates.next() else {
        return choose(fastest, "the only one that serves".into());
    };
    let beaten = candidates.next().map(|(next, other)| {
        format!("{} by formula, against {} for {next}", micros(cost.seconds), micros(other.seconds))
    });
    let why = match beaten {
        None => "the only one that serves".into(),
        Some(beaten) => beaten,
    };
    choose(algorithm, why)
}

/// Seconds in a unit that people read.
pub(in crate::schedule) fn micros(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::cost::HostModel;

    fn selection(collective: Collective, elements: usize, size: usize) -> Selection<'static> {
        Selection::new(collective, elements, DataType::F32, size, &[])
    }

    fn chosen(selection: &Selection<'_>) -> Algorithm {
        select(selection, &CostModel::default()).algorithm
    }

    #[test]
    fn few_ranks_speak_directly_unless_that_crowds_a_link_or_a_processor() {
        for size in 2..=4 {
            assert_eq!(chosen(&selection(Collective::Allreduce, 1, size)), Algorithm::OneShot);
        }
        // Four hosts: several streams into one port hold each other up.
        let apart = |elements| Selection { hosts: &[0, 1, 2, 3], ..selection(Collective::Allreduce, elements, 4) };
        assert_eq!(chosen(&apart(1 << 18)), Algorithm::HalvingDoubling);
        // With both, each link carries one stream of the least bytes; the ring combines a little less.
        assert!(matches!(chosen(&apart(1 << 24)), Algorithm::Ring | Algorithm::HalvingDoubling));
        // Four ranks on two processors: each message costs a turn.
        let crowded = CostModel { host: Some(HostModel::of(false, 2.0)), ..CostModel::within(false) };
        let short = selection(Collective::Allreduce, 2, 4);
        assert_eq!(select(&short, &crowded).algorithm, Algorithm::RecursiveDoubling);
        let roomy = CostModel { host: Some(HostModel::of(false, 4.0)), ..CostModel::within(false) };
        let seconds = |model: &CostModel| select(&short, model).alternatives[0].1.seconds;
        assert!(seconds(&crowded) > 1.5 * seconds(&roomy));
    }

    #[test]
    fn hosts_of_one_machine_wait_for_its_processors() {
        let hosts = [0, 1, 2, 3];
        let short = Selection { hosts: &hosts, ..selection(Collective::Allreduce, 2, 4) };
        let with = |processors| CostModel { host: Some(HostModel::of(true, processors)), ..CostModel::default() };
        assert_eq!(select(&short, &with(1.0)).algorithm, Algorithm::OneShot);
        // Four hosts on two processors: a message costs both of its ends a turn.
        assert_eq!(select(&short, &with(0.5)).algorithm, Algorithm::RecursiveDoubling);
    }

    #[test]
    fn many_ranks_take_few_steps_for_little_and_few_bytes_for_much() {
        let hosts: Vec<usize> = (0..64).collect();
        let spread = |elements| Selection { hosts: &hosts, ..selection(Collective::Allreduce, elements, 64) };
        assert_eq!(chosen(&spread(1)), Algorithm::RecursiveDoubling);
        let much = chosen(&spread(1 << 26));
        assert!(matches!(much, Algorithm::Ring | Algorithm::TwoShot | Algorithm::HalvingDoubling), "{much}");
    }

    #[test]
    fn ranks_that_share_hosts_go_by_host() {
        let hosts: Vec<usize> = (0..16).map(|rank| rank / 8).collect();
        let layered = Selection { hosts: &hosts, ..selection(Collective::Allreduce, 1 << 22, 16) };
        assert_eq!(chosen(&layered), Algorithm::Hierarchical);
    }

    #[test]
    fn what_is_asked_for_is_taken_where_it_can_serve() {
        let forced = Selection { forced: Some(Algorithm::Ring), ..selection(Collective::Allreduce, 1, 4) };
        let choice = select(&forced, &CostModel::default());
        assert_eq!((choice.algorithm, &*choice.reason), (Algorithm::Ring, "asked for"));
        let elsewhere = Selection { forced: Some(Algorithm::Ring), ..selection(Collective::Barrier, 0, 4) };
        let choice = select(&elsewhere, &CostModel::default());
        assert_eq!(choice.algorithm, Algorithm::Dissemination);
        assert!(choice.reason.contains("ring was asked for and cannot serve barrier"), "{}", choice.reason);
        let unequal =
            Selection { forced: Some(Algorithm::Bruck), equal: false, ..selection(Collective::Alltoall, 0, 4) };
        assert_ne!(chosen(&unequal), Algorithm::Bruck);
    }

    #[test]
    fn halves_travel_wider_where_partial_results_do() {
        let hosts = Hosts::new(&[], 16);
        let halves = Selection { dtype: DataType::BF16, ..selection(Collective::Allreduce, 1 << 20, 16) };
        assert_eq!(width_on_the_wire(&halves, Algorithm::Ring, &hosts), 4);
        assert_eq!(width_on_the_wire(&halves, Algorithm::TwoShot, &hosts), 2);
        let ordered = Selection { deterministic: true, ..halves };
        assert_eq!(width_on_the_wire(&ordered, Algorithm::Ring, &hosts), 2);
    }

    #[test]
    fn pipelined_algorithms_get_a_segment() {
        let choice = select(
            &Selection { forced: Some(Algorithm::Ring), ..selection(Collective::Broadcast, 1 << 22, 8) },
            &CostModel::default(),
        );
        assert!((1024..1 << 21).contains(&choice.segment), "{}", choice.segment);
        assert_eq!(select(&selection(Collective::Barrier, 0, 8), &CostModel::default()).segment, 1);
    }
}
