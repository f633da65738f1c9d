//! Fabrics as text: `key = value` lines, with units, in any order; `#` begins a comment.

use std::fmt;
use std::str::FromStr;

use super::Fabric;
use super::presets::{PRESETS, preset};

/// What is wrong with a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricError(String);

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FabricError {}

/// A field, by the unit in which it is written.
enum Field<'a> {
    /// A whole number, and the least it may be.
    Count(&'a mut usize, usize),
    Flag(&'a mut bool),
    /// Seconds, written in us.
    Time(&'a mut f64),
    /// Bytes a second, written in Gbit/s.
    Wire(&'a mut f64),
    /// Bytes a second, written in GB/s.
    Rate(&'a mut f64),
    Ratio(&'a mut f64),
}

/// One key: its name, what it means, and the field behind it.
type Key = (&'static str, &'static str, for<'a> fn(&'a mut Fabric) -> Field<'a>);

/// All keys but `name` and `preset`, in the order in which they are printed.
const KEYS: [Key; 18] = [
    ("ranks-per-host", "they fill hosts one after the other", |f| Field::Count(&mut f.ranks_per_host, 1)),
    ("cores-per-host", "fewer than ranks: they take turns", |f| Field::Count(&mut f.cores_per_host, 1)),
    ("one-machine", "whether all hosts share the cores of one", |f| Field::Flag(&mut f.one_machine)),
    ("eager-bytes", "longer messages wait for their receive", |f| Field::Count(&mut f.eager_bytes, 0)),
    ("memory-latency", "within a host, besides the overheads", |f| Field::Time(&mut f.memory.latency)),
    ("memory-overhead", "of a core at each end, a message", |f| Field::Time(&mut f.memory.overhead)),
    ("memory-rate", "of a core at each end", |f| Field::Rate(&mut f.memory.rate)),
    ("network-latency", "between hosts, besides overheads and hops", |f| Field::Time(&mut f.network.latency)),
    ("network-overhead", "of a core at each end, a message", |f| Field::Time(&mut f.network.overhead)),
    ("network-rate", "of a core at each end", |f| Field::Rate(&mut f.network.rate)),
    ("nics", "network cards of a host", |f| Field::Count(&mut f.nics, 1)),
    ("nic-rate", "of each card, each way", |f| Field::Wire(&mut f.nic_rate)),
    ("nic-overhead", "of the card, a message", |f| Field::Time(&mut f.nic_overhead)),
    ("hosts-per-rack", "0: one switch for all", |f| Field::Count(&mut f.hosts_per_rack, 0)),
    ("oversubscription", "of the links above a rack", |f| Field::Ratio(&mut f.oversubscription)),
    ("hop-latency", "cable and switch; 2 in a rack, 4 between racks", |f| Field::Time(&mut f.hop_latency)),
    ("reduce-rate", "of each operand", |f| Field::Rate(&mut f.reduce_rate)),
    ("copy-rate", "within a rank", |f| Field::Rate(&mut f.copy_rate)),
];

/// To six digits behind the point, so that what is read is printed as it was written.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

impl fmt::Display for Fabric {
    /// Every key on a line of its own, as `FromStr` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "name = {}", self.name)?;
        let mut copy = self.clone();
        for (name, meaning, field) in KEYS {
            let value = match field(&mut copy) {
                Field::Count(count, _) => count.to_string(),
                Field::Flag(flag) => flag.to_string(),
                Field::Time(seconds) => format!("{} us", rounded(*seconds * 1e6)),
                Field::Wire(rate) => format!("{} Gbit/s", rounded(*rate * 8e-9)),
                Field::Rate(rate) => format!("{} GB/s", rounded(*rate * 1e-9)),
                Field::Ratio(ratio) => rounded(*ratio).to_string(),
            };
            writeln!(f, "{:<36} # {meaning}", format!("{name} = {value}"))?;
        }
        Ok(())
    }
}

impl FromStr for Fabric {
    type Err = FabricError;

    /// Reads a description. What it does not say is as in the preset that its line `preset = NAME` names, which comes
    /// first if it is there, or as in `ethernet-10g`.
    fn from_str(text: &str) -> Result<Self, FabricError> {
        let mut fabric = preset("ethernet-10g").ok_or_else(|| FabricError("no preset ethernet-10g".into()))?;
        fabric.name = "unnamed".into();
        let mut seen: Vec<&str> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |why: String| FabricError(format!("line {}: {why}", number + 1));
            let (name, value) =
                line.split_once('=').ok_or_else(|| wrong(format!("{line:?} given, `key = value` expected")))?;
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(wrong(format!("{name} given twice")));
            }
            match name {
                "name" if !value.is_empty() => fabric.name = value.into(),
                "name" => return Err(wrong("a name of no letters given".into())),
                "preset" if !seen.iter().all(|name| *name == "name") => {
                    return Err(wrong("preset given below other keys, which it would undo; put it first".into()));
                }
                "preset" => {
                    let names: Vec<_> = PRESETS.iter().map(|(name, _)| *name).collect();
                    let base = preset(value)
                        .ok_or_else(|| wrong(format!("preset {value:?} given, {} expected", names.join(", "))))?;
                    fabric = Fabric { name: fabric.name, ..base };
                }
                _ => {
                    let (_, _, field) = KEYS.iter().find(|(key, ..)| *key == name).ok_or_else(|| {
                        let names: Vec<_> = KEYS.iter().map(|(name, ..)| *name).collect();
                        wrong(format!("key {name:?} given, name, preset, {} expected", names.join(", ")))
                    })?;
                    set(field(&mut fabric), value).map_err(|why| wrong(format!("{name} = {value}: {why}")))?;
                }
            }
            seen.push(name);
        }
        Ok(fabric)
    }
}

fn set(field: Field<'_>, value: &str) -> Result<(), String> {
    const TIMES: [(&str, f64); 4] = [("ns", 1e9), ("us", 1e6), ("ms", 1e3), ("s", 1.0)];
    const RATES: [(&str, f64); 4] = [("GB/s", 1e9), ("MB/s", 1e6), ("Gbit/s", 1.25e8), ("Mbit/s", 1.25e5)];
    match field {
        Field::Count(count, least) => {
            let number = value.parse().ok().filter(|number| (least..=1 << 30).contains(number));
            *count = number.ok_or(format!("a whole number of at least {least} expected"))?;
        }
        Field::Flag(flag) => *flag = value.parse().map_err(|_| "true or false expected")?,
        Field::Ratio(ratio) => {
            let number = value.parse().ok().filter(|number| (1.0..=1e6).contains(number));
            *ratio = number.ok_or("a number of at least 1 expected")?;
        }
        Field::Time(seconds) => {
            let time = with_unit(value, &TIMES).map(|(number, unit)| number / unit);
            *seconds = time.filter(|time| (0.0..=100.0).contains(time)).ok_or("a time such as 1.5 us expected")?;
        }
        Field::Wire(rate) | Field::Rate(rate) => {
            let bytes = with_unit(value, &RATES).map(|(number, unit)| number * unit);
            *rate = bytes
                .filter(|rate| (1e3..=1e15).contains(rate))
                .ok_or("a rate such as 10 Gbit/s or 5 GB/s expected")?;
        }
    }
    Ok(())
}

/// A number and what its unit stands for.
fn with_unit(value: &str, units: &[(&str, f64)]) -> Option<(f64, f64)> {
    let (number, unit) = value.split_at(value.find(|c: char| c.is_ascii_alphabetic())?);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    Some((number.trim().parse().ok()?, *factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_read() {
        for (name, _) in PRESETS {
            let fabric = preset(name).expect("a preset");
            let text = fabric.to_string();
            let read: Fabric = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(read.to_string(), text);
            assert_eq!((read.ranks_per_host, read.nics, read.name), (fabric.ranks_per_host, fabric.nics, fabric.name));
            assert!((read.nic_rate / fabric.nic_rate - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn units_and_presets_are_understood() {
        let text = "preset = clos-400g\nname = ours # as built\nnic-rate=25GB/s\nhop-latency = 600 ns\n\nnics = 4";
        let fabric: Fabric = text.parse().expect("a fabric");
        let base = preset("clos-400g").expect("a preset");
        assert_eq!(fabric.name, "ours");
        assert_eq!((fabric.nic_rate, fabric.nics, fabric.hosts_per_rack), (25e9, 4, base.hosts_per_rack));
        assert!((fabric.hop_latency - 600e-9).abs() < 1e-18);
        assert_eq!("".parse::<Fabric>().map(|fabric| fabric.nic_rate), Ok(1.25e9));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let refused = |text: &str| text.parse::<Fabric>().expect_err(text).to_string();
        assert!(refused("nics").contains("line 1: \"nics\" given, `key = value` expected"));
        assert!(refused("\nnic = 2").contains("line 2: key \"nic\" given, name, preset, ranks-per-host"));
        assert!(refused("nics = 0").contains("at least 1"));
        assert!(refused("nics = -1").contains("at least 1"));
        assert!(refused("nics = 1\nnics = 2").contains("given twice"));
        assert!(refused("nic-rate = 10").contains("10 Gbit/s"));
        assert!(refused("nic-rate = 0 Gbit/s").contains("a rate"));
        assert!(refused("nic-rate = NaN Gbit/s").contains("a rate"));
        assert!(refused("hop-latency = -1 us").contains("a time"));
        assert!(refused("hop-latency = inf s").contains("a time"));
        assert!(refused("oversubscription = 0.5").contains("at least 1"));
        assert!(refused("one-machine = maybe").contains("true or false"));
        assert!(refused("preset = cloud").contains("laptop, ethernet-1g"));
        assert!(refused("nics = 2\npreset = laptop").contains("put it first"));
        assert!(refused("name =").contains("no letters"));
    }
}
