//! `phalanx explain`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use phalanx::bootstrap::MAX_SIZE;
use phalanx::schedule::cost::MOST_RANKS_OF_BOARDS as MOST_RANKS;
use phalanx::schedule::cost::{CostModel, HostModel, LinkModel, Selection, select};
use phalanx::schedule::explain::{Question, explain, spread};
use phalanx::sys::process::usable_processors;
use phalanx::types::Collective;
use phalanx::{Algorithm, DataType, TransportKind};

use super::bench::beside::{self, Beside};
use super::bench::sizes;
use super::bench::sweep::Cell;

/// Show which algorithm a collective would use and why, what each would cost, and the plan as a drawing.
///
/// Plans are values, priced by a model of the links: times are predictions of that model, and nothing is run. With
/// --measure, ranks are started here, and what each algorithm takes stands beside what is predicted.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  phalanx explain allreduce --bytes 1M -np 8\n  phalanx explain allreduce --bytes 64M -np 8 \
                        --hosts 2 --svg plan.svg\n  phalanx explain broadcast --bytes 4K -np 6 --algorithm binomial\n  phalanx explain allreduce --bytes 64K -np 4 \
                        --transport tcp --measure"
)]
pub struct Explain {
    /// allreduce, reduce, broadcast, allgather, reduce_scatter, alltoall, gather, scatter or barrier
    #[arg(required_unless_present = "table")]
    collective: Option<Collective>,
    /// Print which algorithm each collective would use up to which size, in the form that PHALANX_ALGORITHM_TABLE takes
    #[arg(long, conflicts_with_all = ["svg", "json"])]
    table: bool,
    /// Bytes of the whole buffer, with K, M or G for powers of 1,024
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = sizes::bytes)]
    bytes: usize,
    /// Number of ranks
    #[arg(short = 'n', long = "np", alias = "np-with-one-dash", value_name = "N", default_value_t = 4)]
    np: usize,
    /// Number of hosts over which the ranks are spread evenly
    #[arg(long, value_name = "HOSTS", default_value_t = 1)]
    hosts: usize,
    /// Root of rooted collectives
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// Processors that the ranks of a host share [default: one each]
    #[arg(long, value_name = "N", value_parser = super::workers::at_least(1))]
    processors: Option<usize>,
    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: DataType,
    /// Explain this algorithm instead of the one that would be chosen
    #[arg(long, env = "PHALANX_ALGORITHM")]
    algorithm: Option<Algorithm>,
    /// Reduce in rank order whatever the algorithm
    #[arg(long)]
    deterministic: bool,
    /// Carrier within a host: shm or tcp
    #[arg(long, value_name = "TRANSPORT", default_value = "shm")]
    transport: TransportKind,
    /// Speed of the link between hosts, in Gbit/s
    #[arg(long, value_name = "GBIT", default_value_t = 10.0)]
    network: f64,
    /// Also write the drawing as SVG to FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also start the ranks on this machine, and measure what each algorithm takes
    #[arg(long, conflicts_with = "table")]
    measure: bool,
    /// With --measure: network namespaces that stand for hosts, each with a block of the ranks (needs root)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "measure", conflicts_with = "hosts")]
    namespaces: Vec<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Explain {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        match self.explain() {
            Ok(text) => super::print(&text, ExitCode::SUCCESS),
            Err(message) => {
                eprintln!("phalanx explain: {message}");
                ExitCode::from(2)
            }
        }
    }

    fn explain(&self) -> Result<String, String> {
        if self.collective == Some(Collective::SendRecv) {
            return Err("send_recv is one message between two ranks: there is nothing to choose".into());
        }
        let count = if self.namespaces.is_empty() { self.hosts } else { self.namespaces.len() };
        for (option, given) in [("-np", self.np), ("--hosts", self.hosts)] {
            if given == 0 {
                return Err(format!("{option} 0 given, at least 1 expected"));
            }
        }
        if self.measure && self.hosts > 1 {
            return Err(format!(
                "--measure and --hosts {} given, but this machine is one host; --namespaces names network namespaces that \
                 stand for several",
                self.hosts
            ));
        }
        if count > self.np {
            let (ranks, hosts) = (self.np, count);
            return Err(format!("-np {ranks} and --hosts {hosts} given, at least one rank for each host expected"));
        }
        if self.np > MAX_SIZE {
            return Err(format!("{} ranks given, at most {MAX_SIZE} expected", self.np));
        }
        if !self.network.is_finite() || self.network <= 0.0 {
            return Err(format!("a network of {} Gbit/s given, a speed above 0 expected", self.network));
        }
        let hosts = spread(self.np, count);
        let boards = count == 1 && self.transport == TransportKind::Shm && (2..=MOST_RANKS).contains(&self.np);
        // Measured, all ranks share the processors of this machine.
        let each = self.np.div_ceil(count) as f64;
        let here = each / (self.np as f64 / usable_processors() as f64).max(1.0);
        let shares = self.processors.map_or(if self.measure { here } else { each }, |number| number as f64);
        let shares_memory = self.transport != TransportKind::Tcp;
        let model = CostModel {
            between_hosts: LinkModel::ethernet(self.network),
            host: Some(HostModel::of(shares_memory, shares)),
            ..CostModel::within(shares_memory)
        };
        let Some(collective) = self.collective.filter(|_| !self.table) else {
            return Ok(self.as_table(&hosts, boards, &model));
        };
        let question = Question {
            collective,
            bytes: self.bytes,
            dtype: self.dtype,
            size: self.np,
            hosts: &hosts,
            root: self.root,
            deterministic: self.deterministic,
            algorithm: self.algorithm,
            boards,
        };
        let mut explanation = explain(&question, &model).map_err(|error| error.to_string())?;
        if self.measure {
            let cell = self.measured(collective)?;
            cell.ways.iter().for_each(|way| explanation.measure(&way.algorithm, way.measured_us * 1e-6));
        }
        if let Some(path) = &self.svg {
            if explanation.svg.is_empty() {
                return Err(format!("{} ranks have too many messages to draw", self.np));
            }
            std::fs::write(path, &explanation.svg)
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        if self.json {
            let json = serde_json::to_string(&explanation).map_err(|error| error.to_string())?;
            return Ok(json + "\n");
        }
        Ok(explanation.to_string())
    }

    /// What each algorithm takes among ranks that are started here.
    fn measured(&self, collective: Collective) -> Result<Cell, String> {
        let bar = ProgressBar::new_spinner();
        bar.set_message(format!("measuring among {} ranks", self.np));
        bar.enable_steady_tick(Duration::from_millis(100));
        let found = beside::measure(&Beside {
            collective,
            bytes: self.bytes,
            dtype: self.dtype,
            ranks: self.np,
            root: self.root,
            deterministic: self.deterministic,
            transport: self.transport,
            namespaces: self.namespaces.clone(),
        });
        bar.finish_and_clear();
        found.map_err(|error| format!("--measure: {error}"))
    }

    /// Which algorithm each collective uses up to which size, and the time predicted for that size.
    fn as_table(&self, hosts: &[usize], boards: bool, model: &CostModel) -> String {
        let carrier = if self.hosts == 1 && self.transport == TransportKind::Shm { "shm" } else { "tcp" };
        let mut out = String::from("# collective ranks carrier up-to: algorithm  # predicted\n");
        let asked = |collective: &Collective| self.collective.is_none_or(|one| one == *collective);
        for collective in Collective::ALL.iter().copied().filter(|one| *one != Collective::SendRecv).filter(asked) {
            let choose = |bytes: usize| {
                let elements = if collective == Collective::Barrier { 0 } else { bytes / self.dtype.size() };
                let selection = Selection {
                    deterministic: self.deterministic,
                    boards,
                    ..Selection::new(collective, elements, self.dtype, self.np, hosts)
                };
                let choice = select(&selection, model);
                let cost = choice.alternatives.iter().find(|(one, _)| *one == choice.algorithm);
                (choice.algorithm, cost.map_or(0.0, |(_, cost)| cost.seconds))
            };
            let sizes: Vec<usize> = match collective {
                Collective::Barrier => vec![1 << 30],
                _ => (3..=30).map(|power| 1 << power).collect(),
            };
            for (at, &bytes) in sizes.iter().enumerate() {
                let (algorithm, seconds) = choose(bytes);
                let last = at + 1 == sizes.len();
                if last || choose(sizes[at + 1]).0 != algorithm {
                    let size = if last { "*".into() } else { size_in_short(bytes) };
                    let rule = format!("{collective} {} {carrier} {size}: {algorithm}", self.np);
                    out += &format!("{rule:<52} # {:.1} us at {}\n", seconds * 1e6, size_in_short(bytes));
                }
            }
        }
        out
    }
}

/// A power of two of bytes as the table has it.
fn size_in_short(bytes: usize) -> String {
    match bytes.ilog2() {
        0..10 => bytes.to_string(),
        10..20 => format!("{}K", bytes >> 10),
        20..30 => format!("{}M", bytes >> 20),
        _ => format!("{}G", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx::schedule::cost::AlgorithmTable;

    fn explained(arguments: &[&str]) -> Result<String, String> {
        #[derive(clap::Parser)]
        struct Alone {
            #[command(flatten)]
            explain: Explain,
        }
        let parsed: Alone =
            clap::Parser::try_parse_from([&["explain"], arguments].concat()).map_err(|e| e.to_string())?;
        parsed.explain.explain()
    }

    #[test]
    fn the_table_that_is_printed_can_be_read() {
        for arguments in
            [&["--table", "-n", "4"][..], &["--table", "-n", "12", "--hosts", "3"], &["--table", "-n", "1"]]
        {
            let text = explained(arguments).expect("a table");
            let table = AlgorithmTable::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
            assert_ne!(table.digest(), 0);
        }
        let four = AlgorithmTable::parse(&explained(&["--table", "-n", "4"]).expect("a table")).expect("sound");
        assert_eq!(four.find(Collective::Allreduce, 4, true, 1 << 35), Some(Algorithm::Boards));
        assert!(explained(&[]).is_err(), "neither a collective nor a table");
    }

    #[test]
    fn boards_are_named_where_they_run() {
        let text = explained(&["allreduce", "--bytes", "8", "-n", "2"]).expect("an explanation");
        assert!(text.contains("algorithm   boards") && text.contains("straight through shared memory"), "{text}");
        let text = explained(&["allreduce", "--bytes", "8", "-n", "2", "--transport", "tcp"]).expect("an explanation");
        assert!(text.contains("algorithm   one_shot") && !text.contains("boards"), "{text}");
    }
}
