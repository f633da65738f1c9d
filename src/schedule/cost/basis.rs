//! What choices are made by: figures that all ranks share, a table that overrides them, and how freely they may choose.
//!
//! A rank that chose by figures of its own would wait for messages that nobody sends. So nothing here is one rank's: each
//! tells the others what it knows when they meet ([`Told`]), and all reckon the same from what all told ([`agree`]).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::crowd::{Affinity, processors, processors_of_hosts};
use super::{AlgorithmTable, CostModel, HostModel, LinkModel};
use crate::types::{Error, Result};

/// How freely algorithms are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChoiceMode {
    /// By the figures that are built in: the same in every run.
    #[default]
    Builtin,
    /// By figures that were measured, among the algorithms that give the bits of the one that is built in.
    Measured,
    /// By figures that were measured, whatever the bits: another run may add in another order.
    Free,
}

impl ChoiceMode {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            ChoiceMode::Builtin => "builtin",
            ChoiceMode::Measured => "measured",
            ChoiceMode::Free => "free",
        }
    }
}

impl std::str::FromStr for ChoiceMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [ChoiceMode::Builtin, ChoiceMode::Measured, ChoiceMode::Free]
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| "expected builtin, measured or free".into())
    }
}

/// What links cost, as measured: where there are any of the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Between ranks of one host, where each has a processor.
    pub in_host: Option<LinkModel>,
    /// Between hosts.
    pub between_hosts: Option<LinkModel>,
}

impl Figures {
    /// Whether every figure is one that a link can have: no formula goes wrong with it.
    pub fn are_sound(&self) -> bool {
        self.in_host.iter().chain(&self.between_hosts).all(|link| {
            (0.0..=10.0).contains(&link.latency)
                && (0.0..=10.0).contains(&link.overhead)
                && link.overhead > 0.0
                && (1e-13..=1e-3).contains(&link.seconds_per_byte)
        })
    }

    /// Whether there are figures of every kind of link that ranks on these hosts have.
    fn cover(&self, hosts: &[usize]) -> bool {
        let several = hosts.iter().any(|host| *host != hosts[0]);
        let shared = (1..hosts.len()).any(|at| hosts[..at].contains(&hosts[at]));
        (!several || self.between_hosts.is_some()) && (!shared || self.in_host.is_some())
    }

    /// The larger of each: a collective is as slow as its slowest rank.
    fn worse(self, other: Self) -> Self {
        let worse = |one: Option<LinkModel>, other: Option<LinkModel>| match (one, other) {
            (Some(one), Some(other)) => Some(LinkModel {
                latency: one.latency.max(other.latency),
                overhead: one.overhead.max(other.overhead),
                seconds_per_byte: one.seconds_per_byte.max(other.seconds_per_byte),
            }),
            (one, other) => one.or(other),
        };
        Self {
            in_host: worse(self.in_host, other.in_host),
            between_hosts: worse(self.between_hosts, other.between_hosts),
        }
    }
}

/// What a rank tells the others when they meet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The processors that it may run on.
    pub affinity: Affinity,
    /// How many its host has for all its ranks.
    pub host_processors: usize,
    /// Which machine its host is, or is a part of: hosts of one machine share its processors.
    pub machine: u64,
    /// Whether it may share memory with ranks of its host.
    pub shares_memory: bool,
    /// How freely it would choose.
    pub choice: ChoiceMode,
    /// What its table of algorithms comes to as a number.
    pub table: u64,
    /// Whether it would try algorithms while the program runs.
    pub tuning: bool,
    /// What it knows of its links from an earlier run.
    pub figures: Option<Figures>,
}

/// What choices are made by; the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Basis {
    /// The figures that are built in, for this world.
    pub builtin: CostModel,
    /// The figures that were measured, if they were.
    pub measured: Option<CostModel>,
    /// How freely to choose.
    pub choice: ChoiceMode,
    /// What overrides the choice.
    pub table: Arc<AlgorithmTable>,
    /// Whether ranks of one host may share memory.
    pub shares_memory: bool,
    /// Whether to try algorithms while the program runs.
    pub tuning: bool,
    /// What the ranks of a host share, where links are those that were measured. The links that are built in are those
    /// between machines, so that hosts which are parts of one machine take nothing from each other beside them.
    pub measured_host: HostModel,
}

/// What all ranks choose by, from what each told, in rank order. `hosts` has the host of each rank, `own` is this rank,
/// `table` the table that it told of, and `begins` whether it has been in no view before.
///
/// # Errors
///
/// When this rank told another table, or another way to choose, than rank 0.
pub fn agree(told: &[Told], hosts: &[usize], own: usize, table: Arc<AlgorithmTable>, begins: bool) -> Result<Basis> {
    let (Some(first), Some(mine)) = (told.first(), told.get(own)) else {
        return Err(Error::internal("nobody told what to choose by"));
    };
    let differ = |what: &str, variable: &str, is_same: &dyn Fn(&Told) -> bool| {
        let others: Vec<String> =
            told.iter().enumerate().filter(|(_, one)| !is_same(one)).map(|(rank, _)| rank.to_string()).collect();
        Error::environment(
            format_args!(
                "rank 0 has another {what} than rank{} {}",
                if others.len() == 1 { "" } else { "s" },
                others.join(", ")
            ),
            format_args!("give all ranks the same {variable}"),
        )
    };
    // A rank that agrees with rank 0 goes on, so that a newcomer who does not stops itself and not the others; where all
    // begin together, all stop.
    let speaks_for_all = own == 0 && begins;
    let tables = |one: &Told| one.table == first.table;
    let choices = |one: &Told| (one.choice, one.tuning) == (first.choice, first.tuning);
    if !tables(mine) || speaks_for_all && !told.iter().all(tables) {
        return Err(differ("table of algorithms", "PHALANX_ALGORITHM_TABLE", &tables));
    }
    if !choices(mine) || speaks_for_all && !told.iter().all(choices) {
        return Err(differ("way to choose", "PHALANX_CHOICE and PHALANX_TUNING", &choices));
    }
    let shares_memory = told.iter().all(|one| one.shares_memory);
    let mut basis = Basis { choice: first.choice, table, tuning: first.tuning, ..Basis::usual(shares_memory) };
    basis.builtin.host = Some(HostModel::of(shares_memory, processors_of_hosts(told, hosts)));
    basis.measured_host = HostModel::of(shares_memory, processors(told, hosts));
    let known: Option<Vec<Figures>> = told.iter().map(|one| one.figures.filter(Figures::are_sound)).collect();
    let known = known.map(|known| known.into_iter().fold(Figures::default(), Figures::worse));
    Ok(match known.filter(|known| known.cover(hosts)) {
        Some(known) if first.choice != ChoiceMode::Builtin => basis.measured_as(known),
        _ => basis,
    })
}

impl Basis {
    /// That of ranks which know nothing of each other but whether they may share memory.
    pub fn usual(shares_memory: bool) -> Self {
        Self { builtin: CostModel::within(shares_memory), shares_memory, ..Self::default() }
    }

    /// The same with measured figures, which must be those of all ranks.
    pub fn measured_as(&self, figures: Figures) -> Self {
        let measured = CostModel {
            in_host: figures.in_host.unwrap_or(self.builtin.in_host),
            between_hosts: figures.between_hosts.unwrap_or(self.builtin.between_hosts),
            host: self.builtin.host.map(|_| self.measured_host),
            ..self.builtin
        };
        Self { measured: Some(measured), ..self.clone() }
    }

    /// The figures that predictions are made by.
    pub fn model(&self) -> &CostModel {
        self.measured.as_ref().unwrap_or(&self.builtin)
    }
}

#[cfg(test)]
mod tests {
    use super::super::crowd::tests::told;
    use super::*;
    use crate::schedule::cost::{Selection, select_by};
    use crate::types::{Algorithm, Collective, DataType};

    fn link(factor: f64) -> LinkModel {
        LinkModel { latency: 1e-5 * factor, overhead: 2e-6 * factor, seconds_per_byte: 1e-9 * factor }
    }

    fn figures(factor: f64) -> Option<Figures> {
        Some(Figures { in_host: None, between_hosts: Some(link(factor)) })
    }

    #[test]
    fn ranks_that_measured_differently_choose_alike() {
        let hosts = [0, 1, 2, 3];
        let all: Vec<Told> = [1.0, 400.0, 0.01, 7.0].map(|factor| Told { figures: figures(factor), ..told() }).to_vec();
        let bases: Vec<Basis> =
            (0..4).map(|own| agree(&all, &hosts, own, Arc::default(), true).expect("they agree")).collect();
        assert_eq!(bases[0].measured.expect("all have figures").between_hosts, link(400.0));
        assert!(bases.iter().all(|basis| *basis == bases[0]));
        for (collective, elements) in [(Collective::Allreduce, 3000), (Collective::Broadcast, 1 << 18)] {
            let selection = Selection::new(collective, elements, DataType::F32, 4, &hosts);
            let choices: Vec<_> = bases.iter().map(|basis| select_by(&selection, basis)).collect();
            assert!(choices.iter().all(|choice| *choice == choices[0]));
        }
    }

    #[test]
    fn figures_that_one_rank_lacks_or_that_cannot_be_count_for_nobody() {
        let whole = Told { figures: figures(1.0), ..told() };
        let broken = Figures { between_hosts: Some(LinkModel { latency: f64::NAN, ..link(1.0) }), in_host: None };
        for other in [told(), Told { figures: Some(broken), ..told() }, Told { figures: figures(-1.0), ..told() }] {
            assert_eq!(agree(&[whole, other], &[0, 1], 0, Arc::default(), true).expect("they agree").measured, None);
        }
        let builtin = Told { choice: ChoiceMode::Builtin, ..whole };
        assert_eq!(agree(&[builtin, builtin], &[0, 1], 1, Arc::default(), true).expect("they agree").measured, None);
    }

    #[test]
    fn figures_of_one_kind_of_link_say_nothing_of_another() {
        let known = Told { figures: figures(1.0), ..told() };
        let measured = |hosts: &[usize]| {
            let all = vec![known; hosts.len()];
            agree(&all, hosts, 0, Arc::default(), true).expect("they agree").measured.is_some()
        };
        assert!(measured(&[0, 1]) && !measured(&[0, 0]) && !measured(&[0, 1, 1]));
    }

    #[test]
    fn the_table_goes_before_everything_but_what_cannot_serve() {
        let rules = "allreduce * * *: ring\nbroadcast * * *: boards";
        let table = Arc::new(AlgorithmTable::parse(rules).expect("sound"));
        let measured = Some(CostModel::default());
        let basis = Basis { table, measured, choice: ChoiceMode::Free, ..Basis::default() };
        let call = |collective| Selection::new(collective, 1 << 10, DataType::F32, 4, &[0; 4]);
        let choice = select_by(&call(Collective::Allreduce), &basis);
        assert_eq!((choice.algorithm, &*choice.interchangeable), (Algorithm::Ring, &[Algorithm::Ring][..]));
        assert_eq!(choice.reason, "the table says so");
        let choice = select_by(&call(Collective::Broadcast), &basis);
        assert!(choice.algorithm != Algorithm::Boards && choice.reason != "the table says so", "{}", choice.reason);
        let forced = Selection { forced: Some(Algorithm::TwoShot), ..call(Collective::Allreduce) };
        assert_eq!(select_by(&forced, &basis).algorithm, Algorithm::TwoShot);
        let useless = Selection { forced: Some(Algorithm::Bruck), ..call(Collective::Allreduce) };
        assert_eq!(select_by(&useless, &basis).algorithm, Algorithm::Ring);
    }

    #[test]
    fn what_is_ruled_out_stands_in_for_nothing() {
        let basis = Basis { choice: ChoiceMode::Free, ..Basis::default() };
        let long = Selection::new(Collective::Allreduce, 1 << 28, DataType::F32, 8, &[0; 8]);
        let stand_in = select_by(&long, &basis).interchangeable;
        assert!(stand_in.contains(&Algorithm::Ring), "{stand_in:?}");
        for out in [Algorithm::OneShot, Algorithm::Hierarchical] {
            assert!(!stand_in.contains(&out), "{stand_in:?}");
        }
    }

    #[test]
    fn another_table_is_an_error_that_names_the_ranks() {
        let other = Told { table: 7, ..told() };
        let said =
            |own| agree(&[told(), other, told(), other], &[0; 4], own, Arc::default(), true).map_err(|e| e.to_string());
        let words = said(1).expect_err("another table");
        assert!(words.contains("rank 0 has another table of algorithms than ranks 1, 3"), "{words}");
        assert!(said(0).is_err() && said(2).is_ok());
        let goes_on = agree(&[told(), other], &[0; 2], 0, Arc::default(), false);
        assert!(goes_on.is_ok(), "a newcomer does not stop those who are at work");
        let freely = Told { choice: ChoiceMode::Free, ..told() };
        let words = agree(&[told(), freely], &[0; 2], 1, Arc::default(), true).expect_err("another choice").to_string();
        assert!(words.contains("another way to choose than rank 1"), "{words}");
    }

    #[test]
    fn a_view_that_changes_is_agreed_on_by_those_who_are_in_it() {
        let known = |factor| Told { figures: figures(factor), ..told() };
        let before = agree(&[known(1.0), known(9.0)], &[0, 1], 0, Arc::default(), true).expect("they agree");
        let after = agree(&[known(1.0), known(2.0)], &[0, 1], 0, Arc::default(), true).expect("they agree");
        let newcomer = agree(&[known(1.0), told()], &[0, 1], 0, Arc::default(), true).expect("they agree");
        let between = |basis: &Basis| basis.measured.map(|model| model.between_hosts);
        assert_eq!((between(&before), between(&after)), (Some(link(9.0)), Some(link(2.0))));
        assert_eq!(between(&newcomer), None, "who knows nothing would choose apart from the others");
    }

    #[test]
    fn what_may_not_change_bits_keeps_to_rank_order() {
        // Three messages at once are dear here, so that recursive doubling would win.
        let dear = LinkModel { latency: 1e-6, overhead: 100e-6, seconds_per_byte: 1e-9 };
        let hosts = [0, 1, 2, 3];
        let one = Told { figures: Some(Figures { in_host: None, between_hosts: Some(dear) }), ..told() };
        let each = [0, 1, 2, 3].map(|machine| Told { machine, ..one });
        let basis = agree(&each, &hosts, 0, Arc::default(), true).expect("they agree");
        let floats = Selection::new(Collective::Allreduce, 2, DataType::F32, 4, &hosts);
        assert_eq!(select_by(&floats, &basis).algorithm, Algorithm::OneShot);
        let integers = Selection { dtype: DataType::I64, inexact: false, ..floats };
        assert_eq!(select_by(&integers, &basis).algorithm, Algorithm::RecursiveDoubling);
        let free = Basis { choice: ChoiceMode::Free, ..basis };
        assert_eq!(select_by(&floats, &free).algorithm, Algorithm::RecursiveDoubling);
    }
}
