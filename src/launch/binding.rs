//! Which processors a rank may use.

use std::path::Path;

/// Whether ranks are bound to processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// The system decides.
    #[default]
    None,
    /// Each rank has one core, with all its hardware threads, for itself as far as the cores go.
    Core,
}

/// A processor as the system numbers it, and the core it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processor {
    /// The socket.
    pub package: usize,
    /// The core in the socket.
    pub core: usize,
    /// The number by which a process is bound to it.
    pub cpu: usize,
}

/// Where the processors in `cpus` sit, as the system describes it. One it does not describe counts as a core.
pub fn topology(cpus: &[usize]) -> Vec<Processor> {
    let read = |cpu: usize, name: &str| -> Option<usize> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        std::fs::read_to_string(Path::new(&path)).ok()?.trim().parse().ok()
    };
    let place = |&cpu: &usize| Processor {
        package: read(cpu, "physical_package_id").unwrap_or(0),
        core: read(cpu, "core_id").unwrap_or(cpu),
        cpu,
    };
    cpus.iter().map(place).collect()
}

/// The cores, in order, each as the list of its processors.
pub fn cores(mut processors: Vec<Processor>) -> Vec<Vec<usize>> {
    processors.sort_unstable();
    let mut cores: Vec<(usize, usize, Vec<usize>)> = Vec::new();
    for Processor { package, core, cpu } in processors {
        match cores.last_mut() {
            Some((same_package, same_core, cpus)) if (*same_package, *same_core) == (package, core) => cpus.push(cpu),
            _ => cores.push((package, core, vec![cpu])),
        }
    }
    cores.into_iter().map(|(_, _, cpus)| cpus).collect()
}

/// The processors of one rank: its own core, or, with more ranks than cores, one shared in turn. None without cores.
pub fn bind(cores: &[Vec<usize>], turn: usize) -> Vec<usize> {
    cores.get(turn % cores.len().max(1)).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_threads_stay_together() {
        // Two sockets of two cores of two threads, numbered as many machines do.
        let at = |package, core, cpu| Processor { package, core, cpu };
        let list = vec![
            at(0, 0, 0),
            at(0, 1, 1),
            at(1, 0, 2),
            at(1, 1, 3),
            at(0, 0, 4),
            at(0, 1, 5),
            at(1, 0, 6),
            at(1, 1, 7),
        ];
        let cores = cores(list);
        assert_eq!(cores, [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(bind(&cores, 1), [1, 5]);
        assert_eq!(bind(&cores, 5), [1, 5], "in turn");
        assert_eq!(bind(&[], 5), [0; 0]);
    }

    #[test]
    fn this_machine_has_a_core() {
        let allowed = crate::sys::process::affinity().expect("a system that tells");
        assert!(!allowed.is_empty());
        let mut all: Vec<_> = cores(topology(&allowed)).concat();
        all.sort_unstable();
        assert_eq!(all, allowed);
    }
}
