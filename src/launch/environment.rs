//! The environment variables a worker is started with.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::place::Place;
use crate::types::{Error, Result};

/// Whose names for rank and size are set beside Phalanx's own, for programs that read those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, ..., as torchrun sets them.
    Torch,
    /// `HOROVOD_RANK`, `HOROVOD_SIZE`, ..., as horovodrun sets them.
    Horovod,
}

/// What is the same for every worker of a job.
#[derive(Clone, Debug, Default)]
pub struct JobEnvironment {
    /// Where the ranks meet, as `host:port`.
    pub rendezvous: Option<String>,
    /// The job's key.
    pub key: Option<String>,
    /// Variables the user sets.
    pub set: Vec<(OsString, OsString)>,
    /// Other launchers' names that are set too.
    pub compat: Vec<Compat>,
    /// Where torch's own store is to listen, for [`Compat::Torch`].
    pub master: Option<(String, u16)>,
    /// How many processors the workers of one host share, for `OMP_NUM_THREADS`.
    pub cores: usize,
}

/// Variables of other launchers that say who a process is, or how many there are. In a worker of ours they would
/// contradict. A name that ends in `*` stands for all that begin so. What describes the allocation or the machine
/// (`SLURM_JOB_ID`, `MASTER_ADDR`) stays.
pub const CONTRADICTING: &[&str] = &[
    "PHALANX_RANK",
    "PHALANX_SIZE",
    "PHALANX_LOCAL_RANK",
    "PHALANX_LOCAL_SIZE",
    "PHALANX_CROSS_RANK",
    "PHALANX_CROSS_SIZE",
    "PHALANX_JOB",
    "PHALANX_RENDEZVOUS",
    "PHALANX_RENDEZVOUS_HOSTED",
    "PHALANX_KEY",
    "PHALANX_KEY_FILE",
    "OMPI_COMM_WORLD_*",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_FIRST_RANKS",
    "OMPI_FILE_LOCATION",
    "OMPI_MCA_ess*",
    "OMPI_MCA_orte_*",
    "OMPI_MCA_prte_*",
    "PMI_*",
    "PMIX_*",
    "PRTE_*",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "MPI_LOCALSIZE",
    "MV2_COMM_WORLD_*",
    "HYDI_CONTROL_FD",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_GTIDS",
    "SLURM_TASK_PID",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_*",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_HOSTNAME",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_GLOO_*",
];

/// Whether a variable of the launcher's own environment must not reach its workers.
pub fn contradicts(name: &OsStr) -> bool {
    CONTRADICTING.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => name.as_bytes().starts_with(start.as_bytes()),
        None => name.as_bytes() == known.as_bytes(),
    })
}

/// Reads `NAME=VALUE`, or `NAME` for a variable that `lookup` knows.
pub fn parse_setting(text: &OsStr, lookup: impl FnOnce(&OsStr) -> Option<OsString>) -> Result<(OsString, OsString)> {
    let bytes = text.as_bytes();
    let shown = text.to_string_lossy();
    let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(index) => {
            let (name, value) = bytes.split_at(index);
            (name, Some(value.get(1..).unwrap_or_default()))
        }
        None => (bytes, None),
    };
    let name = OsStr::from_bytes(name);
    if name.is_empty() {
        return Err(Error::invalid(format!("--env {shown}: the name is empty; write NAME=VALUE")));
    }
    if contradicts(name) {
        // Without the value, which may be a key.
        return Err(Error::invalid(format!(
            "--env {}: which rank a process is, and with which key, the launcher decides",
            name.to_string_lossy()
        )));
    }
    let value = match value {
        Some(value) => OsStr::from_bytes(value).to_owned(),
        None => lookup(name).ok_or_else(|| {
            Error::invalid(format!("--env {shown}: not set here, so there is nothing to pass on; write NAME=VALUE"))
        })?,
    };
    Ok((name.to_owned(), value))
}

impl JobEnvironment {
    /// What is set for one worker, beside what it inherits. `inherited` tells which variables it has from the launcher.
    pub fn settings(
        &self,
        place: &Place,
        size: usize,
        inherited: impl Fn(&str) -> bool,
    ) -> BTreeMap<OsString, OsString> {
        let mut set = BTreeMap::new();
        let mut put = |name: &str, value: String| set.insert(name.into(), value.into());
        put("PHALANX_RANK", place.rank.to_string());
        put("PHALANX_SIZE", size.to_string());
        put("PHALANX_LOCAL_RANK", place.local_rank.to_string());
        put("PHALANX_LOCAL_SIZE", place.local_size.to_string());
        put("PHALANX_CROSS_RANK", place.cross_rank.to_string());
        put("PHALANX_CROSS_SIZE", place.cross_size.to_string());
        if let Some(rendezvous) = &self.rendezvous {
            put("PHALANX_RENDEZVOUS", rendezvous.clone());
            put("PHALANX_RENDEZVOUS_HOSTED", "launcher".into());
        }
        if let Some(key) = &self.key {
            put("PHALANX_KEY", key.clone());
        }
        if self.compat.contains(&Compat::Horovod) {
            put("HOROVOD_RANK", place.rank.to_string());
            put("HOROVOD_SIZE", size.to_string());
            put("HOROVOD_LOCAL_RANK", place.local_rank.to_string());
            put("HOROVOD_LOCAL_SIZE", place.local_size.to_string());
            put("HOROVOD_CROSS_RANK", place.cross_rank.to_string());
            put("HOROVOD_CROSS_SIZE", place.cross_size.to_string());
        }
        if self.compat.contains(&Compat::Torch) {
            put("RANK", place.rank.to_string());
            put("WORLD_SIZE", size.to_string());
            put("LOCAL_RANK", place.local_rank.to_string());
            put("LOCAL_WORLD_SIZE", place.local_size.to_string());
            put("GROUP_RANK", place.host.to_string());
            if let Some((address, port)) = &self.master {
                put("MASTER_ADDR", address.clone());
                put("MASTER_PORT", port.to_string());
            }
        }
        // Without this, each of the ranks of a host would start a thread for every processor of it.
        if place.local_size > 1 && !inherited("OMP_NUM_THREADS") {
            put("OMP_NUM_THREADS", (self.cores / place.local_size).max(1).to_string());
        }
        // Python holds back what it writes to a pipe: lines would come late, and the last ones of a killed rank never.
        if !inherited("PYTHONUNBUFFERED") {
            put("PYTHONUNBUFFERED", "1".into());
        }
        set.extend(self.set.iter().cloned());
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { rank: 3, host: 1, local_rank: 1, local_size: 2, cross_rank: 1, cross_size: 2 };

    fn get<'a>(set: &'a BTreeMap<OsString, OsString>, name: &str) -> Option<&'a str> {
        set.get(OsStr::new(name)).and_then(|value| value.to_str())
    }

    #[test]
    fn a_worker_knows_who_it_is() {
        let job = JobEnvironment {
            rendezvous: Some("127.0.0.1:4000".into()),
            key: Some("aa".into()),
            cores: 8,
            ..JobEnvironment::default()
        };
        let set = job.settings(&PLACE, 4, |_| false);
        for (name, value) in [
            ("PHALANX_RANK", "3"),
            ("PHALANX_SIZE", "4"),
            ("PHALANX_LOCAL_RANK", "1"),
            ("PHALANX_LOCAL_SIZE", "2"),
            ("PHALANX_CROSS_RANK", "1"),
            ("PHALANX_CROSS_SIZE", "2"),
            ("PHALANX_RENDEZVOUS", "127.0.0.1:4000"),
            ("PHALANX_KEY", "aa"),
            ("OMP_NUM_THREADS", "4"),
            ("PYTHONUNBUFFERED", "1"),
        ] {
            assert_eq!(get(&set, name), Some(value), "{name}");
        }
        assert_eq!(get(&set, "RANK"), None);
        assert_eq!(get(&set, "HOROVOD_RANK"), None);
    }

    #[test]
    fn other_names_are_set_when_asked_for() {
        let job = JobEnvironment {
            compat: vec![Compat::Torch, Compat::Horovod],
            master: Some(("127.0.0.1".into(), 29500)),
            ..JobEnvironment::default()
        };
        let set = job.settings(&PLACE, 4, |_| true);
        for (name, value) in [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("GROUP_RANK", "1"),
            ("MASTER_PORT", "29500"),
            ("HOROVOD_CROSS_SIZE", "2"),
        ] {
            assert_eq!(get(&set, name), Some(value), "{name}");
        }
        assert_eq!(get(&set, "OMP_NUM_THREADS"), None, "the user's own stays");
    }

    #[test]
    fn foreign_launchers_are_recognised() {
        for name in ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_NAMESPACE", "SLURM_PROCID", "RANK", "HOROVOD_RANK"] {
            assert!(contradicts(OsStr::new(name)), "{name}");
        }
        for name in
            ["PATH", "OMPI_MCA_btl", "SLURM_JOB_ID", "MASTER_ADDR", "PHALANX_TIMEOUT", "HOROVOD_FUSION_THRESHOLD"]
        {
            assert!(!contradicts(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn every_launcher_that_is_understood_is_recognised() {
        // These say where something is, or which job this is, and not who a process is in it.
        let stay = ["MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"];
        for name in crate::bootstrap::foreign_variables() {
            assert_ne!(contradicts(OsStr::new(name)), stay.contains(&name), "{name}");
        }
    }

    #[test]
    fn what_a_worker_finds_is_understood() {
        use crate::bootstrap::{Config, Launcher, Rendezvous};
        let job = JobEnvironment {
            rendezvous: Some("127.0.0.1:4000".into()),
            key: Some("ab".repeat(32)),
            compat: vec![Compat::Torch, Compat::Horovod],
            ..JobEnvironment::default()
        };
        let set = job.settings(&PLACE, 4, |_| false);
        let set: Vec<_> = set.iter().map(|(name, value)| (name.to_str().unwrap(), value.to_str().unwrap())).collect();
        let config = Config::from_variables(&set.into_iter().collect()).unwrap();
        assert_eq!((config.launch.rank, config.launch.size), (3, 4));
        assert_eq!((config.launch.local_rank, config.launch.local_size), (Some(1), Some(2)));
        assert_eq!(config.launch.launcher, Launcher::Phalanx);
        let meeting = Rendezvous::Tcp { address: "127.0.0.1:4000".into(), hosted_by_launcher: true };
        assert_eq!(config.launch.rendezvous, meeting);
    }

    #[test]
    fn settings_are_read() {
        let parse = |text: &str| parse_setting(OsStr::new(text), |name| (name == "HOME").then(|| "/h".into()));
        assert_eq!(parse("A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(parse("A=").unwrap(), ("A".into(), "".into()));
        assert_eq!(parse("HOME").unwrap(), ("HOME".into(), "/h".into()));
        assert!(parse("NOPE").unwrap_err().to_string().contains("not set here"));
        assert!(parse("=x").unwrap_err().to_string().contains("name is empty"));
        assert!(parse("PHALANX_RANK=1").unwrap_err().to_string().contains("the launcher decides"));
        assert!(!parse("PHALANX_KEY=secret").unwrap_err().to_string().contains("secret"));
    }
}
