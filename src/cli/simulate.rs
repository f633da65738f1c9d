//! `phalanx simulate`.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use phalanx::schedule::algorithms_for;
use phalanx::schedule::fabric::{Fabric, Forecast, PRESETS, Question, choice, forecast, preset};
use phalanx::types::Collective;
use phalanx::{Algorithm, DataType};
use serde::Serialize;

use super::bench::sizes::{Sizes, in_words};

/// What stands below the options.
const MORE: &str = "\
The plans are the real ones; the network is described. A fabric says how many ranks, cores and network cards a host has, how \
many hosts share a leaf switch, by how much the links above the leaves are oversubscribed, and what messages cost. Print a \
preset, change it, and give the file:

  phalanx simulate --print --fabric clos-400g-4to1 > ours.fabric
  phalanx simulate --ranks 8:16384 --bytes 1M,64M --fabric ours.fabric
  phalanx simulate --ranks 1024 --bytes 64K:1G --algorithms ring,double_tree --csv

Each table is for one size. `*` marks the fastest algorithm of a row, `!` the one that selection by formula would take \
where that is another; `limited by` says which link the fastest one keeps busiest, and for what share of the time. \
`-` is a forecast that would take too many messages (--most). Times are of a quiet network; docs/large-worlds.md says what \
the model leaves out, and how near it comes where it can be checked.";

/// Predict how long a collective takes on a network that is only described, for up to a million ranks.
#[derive(Debug, clap::Args)]
#[command(after_help = MORE)]
pub struct Simulate {
    /// allreduce, reduce, broadcast, allgather, reduce_scatter, alltoall, gather, scatter or barrier
    #[arg(default_value = "allreduce")]
    collective: Collective,
    /// Numbers of ranks: FROM:TO, each --factor times the one before, or a list with commas
    #[arg(long, short = 'n', value_name = "RANKS", default_value = "8:16384")]
    ranks: Sizes,
    /// Sizes in bytes: FROM:TO, or a list with commas; K, M and G are powers of 1024
    #[arg(long, short, value_name = "SIZES", default_value = "1M,64M")]
    bytes: Sizes,
    /// How much larger each of a range is than the one before
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = super::workers::at_least(2))]
    factor: usize,
    /// The network: the name of a preset (see --presets), or a file that describes it
    #[arg(long, value_name = "PRESET|FILE", default_value = "clos-400g-4to1")]
    fabric: String,
    /// Algorithms to compare [default: for allreduce ring, double_tree, hierarchical, recursive_doubling,
    /// halving_doubling; otherwise all that serve]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    algorithms: Vec<Algorithm>,
    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: DataType,
    /// The most messages to run for one forecast; a million take about a second
    #[arg(long, value_name = "MESSAGES", default_value_t = 100_000_000)]
    most: u64,
    /// Print one JSON object for each forecast
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values, one line for each forecast
    #[arg(long)]
    csv: bool,
    /// Print the fabric's description and end
    #[arg(long, conflicts_with_all = ["json", "csv", "presets"])]
    print: bool,
    /// Print the names of the presets and end
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    presets: bool,
}

/// One forecast, or why there is none.
#[derive(Debug, Serialize)]
struct Cell {
    fabric: String,
    collective: &'static str,
    algorithm: &'static str,
    ranks: usize,
    /// As asked for.
    bytes: usize,
    seconds: Option<f64>,
    messages: Option<u64>,
    bytes_sent: Option<u64>,
    /// Bytes made up to a multiple of the ranks, where that was needed.
    bytes_run: Option<usize>,
    ranks_run: Option<usize>,
    busiest: Option<&'static str>,
    busiest_share: Option<f64>,
    /// Whether this is the fastest of its row.
    fastest: bool,
    /// Whether selection by formula would take it.
    selected: bool,
    /// Why there is no forecast.
    missing: Option<String>,
}

impl Simulate {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        match self.simulate() {
            Ok(text) => super::print(&text, ExitCode::SUCCESS),
            Err(message) => {
                eprintln!("phalanx simulate: {message}");
                ExitCode::from(2)
            }
        }
    }

    fn simulate(&self) -> Result<String, String> {
        if self.presets {
            let mut text = String::new();
            for (name, meaning) in PRESETS {
                let _ = writeln!(text, "{name:<16} {meaning}");
            }
            return Ok(text);
        }
        let fabric = read(&self.fabric)?;
        if self.print {
            return Ok(fabric.to_string());
        }
        let algorithms = self.algorithms()?;
        let ranks = self.ranks.expand(self.factor);
        if let Some(wrong) = ranks.iter().find(|ranks| **ranks == 0) {
            return Err(format!("--ranks {wrong} given, at least 1 expected"));
        }
        let sizes = if self.collective == Collective::Barrier { vec![0] } else { self.bytes.expand(self.factor) };
        let rows: Vec<(usize, usize)> =
            sizes.iter().flat_map(|&bytes| ranks.iter().map(move |&ranks| (bytes, ranks))).collect();
        let cells = self.cells(&fabric, &rows, &algorithms);
        if self.json {
            let lines: Result<Vec<String>, _> = cells.iter().flatten().map(serde_json::to_string).collect();
            return lines.map(|lines| lines.join("\n") + "\n").map_err(|error| error.to_string());
        }
        if self.csv {
            return Ok(csv(&cells));
        }
        Ok(tables(&fabric, self.collective, &cells))
    }

    fn algorithms(&self) -> Result<Vec<Algorithm>, String> {
        use Algorithm::{DoubleTree, HalvingDoubling, Hierarchical, RecursiveDoubling, Ring};
        let there = algorithms_for(self.collective);
        if there.is_empty() {
            return Err(format!("{} is one message between two ranks: there is nothing to compare", self.collective));
        }
        if let Some(wrong) = self.algorithms.iter().find(|algorithm| !there.contains(algorithm)) {
            let names: Vec<_> = there.iter().map(|algorithm| algorithm.name()).collect();
            let (names, collective) = (names.join(", "), self.collective);
            return Err(format!("--algorithms {wrong} given, {names} expected for {collective}"));
        }
        Ok(match self.collective {
            _ if !self.algorithms.is_empty() => self.algorithms.clone(),
            Collective::Allreduce => vec![Ring, DoubleTree, Hierarchical, RecursiveDoubling, HalvingDoubling],
            _ => there.to_vec(),
        })
    }

    /// All forecasts, a row for each size and number of ranks. As many at once as there are cores.
    fn cells(&self, fabric: &Fabric, rows: &[(usize, usize)], algorithms: &[Algorithm]) -> Vec<Vec<Cell>> {
        let jobs: Vec<(usize, usize, Algorithm)> =
            rows.iter().flat_map(|&(bytes, ranks)| algorithms.iter().map(move |&name| (bytes, ranks, name))).collect();
        let bar = ProgressBar::new(jobs.len() as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos} of {len} forecasts, {elapsed}") {
            bar.set_style(style);
        }
        let done: Vec<Mutex<Option<Cell>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
        // The longest are last in a row of growing worlds: they go first.
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(place) = jobs.len().checked_sub(next.fetch_add(1, Ordering::Relaxed) + 1) {
                let (bytes, ranks, algorithm) = jobs[place];
                let cell = self.cell(fabric, bytes, ranks, algorithm);
                *done[place].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(cell);
                bar.inc(1);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(jobs.len()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        bar.finish_and_clear();
        let cells = done.into_iter().filter_map(|cell| cell.into_inner().ok().flatten());
        let mut rows: Vec<Vec<Cell>> = Vec::new();
        for (place, cell) in cells.enumerate() {
            if place % algorithms.len() == 0 {
                rows.push(Vec::new());
            }
            if let Some(row) = rows.last_mut() {
                row.push(cell);
            }
        }
        for row in &mut rows {
            let times = row.iter().enumerate().filter_map(|(place, cell)| Some((place, cell.seconds?)));
            if let Some((place, _)) = times.min_by(|a, b| a.1.total_cmp(&b.1)) {
                row[place].fastest = true;
            }
        }
        rows
    }

    fn cell(&self, fabric: &Fabric, bytes: usize, ranks: usize, algorithm: Algorithm) -> Cell {
        let (collective, dtype) = (self.collective, self.dtype);
        let question = Question { collective, algorithm, ranks, bytes, dtype, fabric };
        let (forecast, missing): (Option<Forecast>, _) = match forecast(&question, self.most) {
            Ok(forecast) => (Some(forecast), None),
            Err(why) => (None, Some(why)),
        };
        let forecast = forecast.as_ref();
        Cell {
            fabric: fabric.name.clone(),
            collective: collective.name(),
            algorithm: algorithm.name(),
            ranks,
            bytes,
            seconds: forecast.map(|forecast| forecast.seconds),
            messages: forecast.map(|forecast| forecast.messages),
            bytes_sent: forecast.map(|forecast| forecast.bytes_sent),
            bytes_run: forecast.map(|forecast| forecast.bytes),
            ranks_run: forecast.map(|forecast| forecast.ranks_run),
            busiest: forecast.map(|forecast| forecast.busiest.0.name()),
            busiest_share: forecast.map(|forecast| forecast.busiest.1),
            fastest: false,
            selected: choice(&question, None).algorithm == algorithm,
            missing,
        }
    }
}

/// A preset, or the description in a file.
fn read(name: &str) -> Result<Fabric, String> {
    if let Some(fabric) = preset(name) {
        return Ok(fabric);
    }
    let names: Vec<_> = PRESETS.iter().map(|(name, _)| *name).collect();
    let text = std::fs::read_to_string(Path::new(name)).map_err(|error| {
        format!("--fabric {name} is neither a preset ({}) nor a file that can be read: {error}", names.join(", "))
    })?;
    text.parse().map_err(|error| format!("--fabric {name}: {error}"))
}

/// Seconds in a unit that people read.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

fn tables(fabric: &Fabric, collective: Collective, rows: &[Vec<Cell>]) -> String {
    let mut text = String::new();
    let mut last_size = None;
    let mut last_winner = None;
    let mut missing: Vec<&str> = Vec::new();
    for row in rows {
        let Some(first) = row.first() else { continue };
        if last_size != Some(first.bytes) {
            if last_size.is_some() {
                text.push('\n');
            }
            let size = in_words(first.bytes);
            let _ = writeln!(text, "# {collective} of {size} on {}", fabric.name);
            let _ = write!(text, "{:>8}", "ranks");
            for cell in row {
                let _ = write!(text, "  {:>18}", cell.algorithm);
            }
            text.push_str("  limited by\n");
            (last_size, last_winner) = (Some(first.bytes), None);
        }
        let _ = write!(text, "{:>8}", first.ranks);
        for cell in row {
            let mark = match (cell.fastest, cell.selected) {
                (true, _) => '*',
                (false, true) => '!',
                _ => ' ',
            };
            let _ = write!(text, "  {:>17}{mark}", cell.seconds.map_or("-".into(), time));
            if let Some(why) = cell.missing.as_deref()
                && !missing.contains(&why)
            {
                missing.push(why);
            }
        }
        let winner = row.iter().find(|cell| cell.fastest);
        if let Some((winner, share)) = winner.and_then(|cell| Some((cell.busiest?, cell.busiest_share?))) {
            let _ = write!(text, "  {winner} {:.0} %", share * 100.0);
        }
        let name = winner.map(|cell| cell.algorithm);
        if last_winner.is_some() && last_winner != name {
            let _ = write!(text, ", {} from here on", name.unwrap_or("none"));
        }
        last_winner = name;
        text.push('\n');
    }
    if !missing.is_empty() {
        let _ = writeln!(text, "\n# -: {}", missing.join("\n# -: "));
    }
    text
}

fn csv(rows: &[Vec<Cell>]) -> String {
    let mut text = String::from(
        "fabric,collective,algorithm,ranks,bytes,seconds,messages,bytes_sent,bytes_run,ranks_run,busiest,busiest_share,\
         fastest,selected\n",
    );
    fn or_nothing<T: ToString>(value: Option<T>) -> String {
        value.map_or(String::new(), |value| value.to_string())
    }
    for cell in rows.iter().flatten() {
        let fields = [
            // A name is the user's: what would break a line of fields is left out.
            cell.fabric.replace([',', '"'], " "),
            cell.collective.into(),
            cell.algorithm.into(),
            cell.ranks.to_string(),
            cell.bytes.to_string(),
            or_nothing(cell.seconds),
            or_nothing(cell.messages),
            or_nothing(cell.bytes_sent),
            or_nothing(cell.bytes_run),
            or_nothing(cell.ranks_run),
            or_nothing(cell.busiest),
            or_nothing(cell.busiest_share),
            cell.fastest.to_string(),
            cell.selected.to_string(),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}
