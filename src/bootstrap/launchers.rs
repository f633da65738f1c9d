//! The launchers that are understood, and what their variables say about this process.
//!
//! # Which one is believed
//!
//! Launchers nest: `mpirun` runs inside a Slurm job, `torchrun` inside `mpirun`. The innermost one started this
//! process and is believed. The order, innermost first:
//!
//! 1. Phalanx's own variables, whoever set them.
//! 2. torchrun with `TORCHELASTIC_RUN_ID`.
//! 3. Horovod, Open MPI, PMI (MPICH's Hydra and its kin), `RANK` and `WORLD_SIZE` set by hand: these do not nest in
//!    each other, so that two of them that disagree are an error.
//! 4. Slurm's srun, outside everything else.
//!
//! A half-set group is an error unless another group is complete; then it is told as a note. A group that says
//! "one rank" gives way to any other, since a launcher is often itself started by another.

use super::variables::Variables;
use std::fmt;

/// What started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// Nothing that is known: a world of one.
    None,
    /// `phalanx run`, or rank and size given through Phalanx's variables or in code.
    Phalanx,
    /// Open MPI's `mpirun` (and PRRTE).
    OpenMpi,
    /// A launcher that speaks PMI: MPICH's `mpiexec.hydra`, Intel MPI's, `srun --mpi=pmi2`.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
    /// `torchrun`, or `RANK` and `WORLD_SIZE` set in its manner.
    Torchrun,
    /// `horovodrun`.
    Horovod,
}

impl Launcher {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Launcher::None => "no launcher",
            Launcher::Phalanx => "Phalanx",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "PMI",
            Launcher::Slurm => "Slurm",
            Launcher::Torchrun => "torchrun",
            Launcher::Horovod => "Horovod",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The variables of one launcher.
pub(super) struct Group {
    pub launcher: Launcher,
    pub rank: &'static str,
    pub size: &'static str,
    pub local_rank: &'static str,
    pub local_size: &'static str,
    /// What, taken together, is the same for all ranks of a job on one host and differs between jobs.
    pub job: &'static [&'static str],
    /// How deep it nests: a larger number is started by a smaller one.
    pub depth: u8,
}

/// Innermost first. Phalanx's own group stands apart, in `environment.rs`.
pub(super) const GROUPS: &[Group] = &[
    Group {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"],
        depth: 2,
    },
    Group {
        launcher: Launcher::Horovod,
        rank: "HOROVOD_RANK",
        size: "HOROVOD_SIZE",
        local_rank: "HOROVOD_LOCAL_RANK",
        local_size: "HOROVOD_LOCAL_SIZE",
        job: &["HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"],
        depth: 1,
    },
    Group {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: &["PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_hnp_uri"],
        depth: 1,
    },
    Group {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        job: &["PMI_JOBID", "PMI_PORT"],
        depth: 1,
    },
    Group {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        // Not a variable of Slurm's: the number is worked out from the tasks of each node.
        local_size: "SLURM_STEP_TASKS_PER_NODE",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
        depth: 0,
    },
];

/// Other variables that are read, beside those in [`GROUPS`].
pub(super) const TORCH_RUN_ID: &str = "TORCHELASTIC_RUN_ID";
pub(super) const MASTER_ADDR: &str = "MASTER_ADDR";
pub(super) const MASTER_PORT: &str = "MASTER_PORT";
pub(super) const PMI_FD: &str = "PMI_FD";
pub(super) const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";
pub(super) const PMIX_RANK: &str = "PMIX_RANK";
const SLURM_JOB_ID: &str = "SLURM_JOB_ID";
const SLURM_STEP_ID: &str = "SLURM_STEP_ID";
const SLURM_NODEID: &str = "SLURM_NODEID";
const SLURM_NTASKS: &str = "SLURM_NTASKS";

/// The variables that tell a process its place in another launcher's job. A launcher that starts processes of its
/// own removes them, so that they do not contradict what it says.
pub fn foreign_variables() -> Vec<&'static str> {
    let mut names: Vec<_> = GROUPS
        .iter()
        .flat_map(|group| {
            [group.rank, group.size, group.local_rank, group.local_size].into_iter().chain(group.job.iter().copied())
        })
        .chain([PMI_FD, PMIX_RANK])
        // A job of Slurm's stays a job of Slurm's: what it allotted is still true for the children.
        .filter(|name| *name != SLURM_JOB_ID)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Slurm gives `SLURM_PROCID` to batch scripts and to shells in an allocation too. Only a step that `srun` started
/// has tasks; the steps of scripts and shells have reserved numbers.
pub(super) fn is_started_by_srun(variables: &Variables) -> bool {
    const FIRST_RESERVED_STEP: u64 = 0xffff_fff0;
    let Some(step) = variables.get(SLURM_STEP_ID) else { return false };
    variables.get("SLURM_PROCID").is_some() && step.parse::<u64>().is_ok_and(|step| step < FIRST_RESERVED_STEP)
}

/// What to say when this process is inside a Slurm job but no task of it.
pub(super) fn note_on_slurm(variables: &Variables) -> Option<String> {
    let job = variables.get(SLURM_JOB_ID)?;
    if is_started_by_srun(variables) {
        return None;
    }
    let tasks = variables.get(SLURM_NTASKS).filter(|tasks| *tasks != "1")?;
    Some(format!("inside Slurm job {job} with SLURM_NTASKS={tasks}, but not started by srun: a world of one"))
}

/// How many tasks this node has, from Slurm's short form such as `4(x2),3`.
pub(super) fn slurm_local_size(variables: &Variables) -> Option<usize> {
    let node: usize = match variables.get(SLURM_NODEID) {
        Some(node) => node.parse().ok()?,
        None => 0,
    };
    let mut first = 0usize;
    for part in variables.get("SLURM_STEP_TASKS_PER_NODE")?.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1usize),
        };
        first = first.checked_add(nodes)?;
        if node < first {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_short_form_is_read() {
        let size = |node: &str, tasks: &str| {
            slurm_local_size(&[("SLURM_NODEID", node), ("SLURM_STEP_TASKS_PER_NODE", tasks)].into_iter().collect())
        };
        assert_eq!(size("0", "4"), Some(4));
        assert_eq!(size("1", "4(x2),3"), Some(4));
        assert_eq!(size("2", "4(x2),3"), Some(3));
        assert_eq!(size("3", "4(x2),3"), None);
        for garbage in ["", "x", "4(x", "4(x99999999999999999999)", "(x2)"] {
            assert_eq!(size("0", garbage), None, "{garbage}");
        }
    }

    #[test]
    fn foreign_variables_leave_what_is_still_true() {
        let names = foreign_variables();
        assert!(names.contains(&"OMPI_COMM_WORLD_RANK") && names.contains(&"PMI_FD") && names.contains(&"WORLD_SIZE"));
        assert!(!names.contains(&"SLURM_JOB_ID"));
    }
}
