//! What is to be run, and the plan that follows from it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::LaunchError;
use super::binding::{self, Bind};
use super::command;
use super::environment::{Compat, JobEnvironment, contradicts};
use super::fleet::{Elasticity, Sizes};
use super::hosts::{Host, LocalNames};
use super::place::{Place, place};
use super::printer::Prefix;
use super::spawn::{Input, WorkerPlan};
use super::supervise::Policy;
use super::words::plural;
use crate::sys::process;
use crate::types::Error;

/// When ranks have colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What becomes of the ranks' output.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// What stands before each line.
    pub prefix: Prefix,
    /// Whether the time stands before the prefix.
    pub timestamps: bool,
    /// When ranks have colours.
    pub colour: Colour,
    /// Where each rank's output is kept as well.
    pub directory: Option<PathBuf>,
}

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// How many ranks. None: as many as the hosts have slots.
    pub size: Option<usize>,
    /// The hosts. Empty: this machine, with a slot for each rank.
    pub hosts: Vec<Host>,
    /// Whether a host may have more ranks than slots.
    pub oversubscribe: bool,
    /// Variables that are set in the workers' environment.
    pub set: Vec<(OsString, OsString)>,
    /// Whose names for rank and size are set as well.
    pub compat: Vec<Compat>,
    /// Whether ranks are bound to processors.
    pub bind: Bind,
    /// How patient the launcher is.
    pub policy: Policy,
    /// What becomes of the output.
    pub output: Output,
    /// Whether rank 0 reads what the launcher would read.
    pub input: bool,
    /// How much the launcher says itself: 0 only why a job failed, 1 what a user wants to know, 2 everything.
    pub verbosity: u8,
    /// The program and first arguments that start a guard. None: this program with the argument `guard`.
    pub guard: Option<Vec<OsString>>,
    /// Whether this process may adopt the workers' orphans in case a guard is killed. Only for a process whose children
    /// are all the launcher's.
    pub adopt_orphans: bool,
    /// Whether Ctrl-C and other signals to this process are for the job. Only for a process that has no other use for
    /// them.
    pub take_signals: bool,
    /// The address at which the ranks meet. None: loopback while all ranks are on this machine.
    pub rendezvous_address: Option<std::net::IpAddr>,
    /// What makes the job elastic. None: its ranks are all there from the start to the end.
    pub elastic: Option<Elasticity>,
}

impl Job {
    /// A job with this command and size, and the defaults of the command line.
    pub fn new(command: Vec<OsString>, size: usize) -> Self {
        Self {
            command,
            size: Some(size),
            hosts: Vec::new(),
            oversubscribe: false,
            set: Vec::new(),
            compat: Vec::new(),
            bind: Bind::None,
            policy: Policy { grace: Duration::from_secs(5), timeout: None },
            output: Output::default(),
            input: true,
            verbosity: 1,
            guard: None,
            adopt_orphans: false,
            take_signals: false,
            rendezvous_address: None,
            elastic: None,
        }
    }

    /// Decides what can be decided before anything is started. Reads this process's environment and the machine's
    /// processors, and looks for the command.
    ///
    /// # Errors
    ///
    /// The request contradicts itself (exit code 2), or the command cannot be run (126, 127).
    pub fn plan(&self) -> Result<Plan, LaunchError> {
        self.plan_from(std::env::vars_os().collect(), &LocalNames::of_this_machine())
    }

    fn plan_from(&self, own: Vec<(OsString, OsString)>, local: &LocalNames) -> Result<Plan, LaunchError> {
        let (hosts, places, sizes) = match &self.elastic {
            Some(elastic) => self.elastic_places(elastic, local)?,
            None => {
                let (hosts, size) = self.hosts_and_size(local)?;
                let places = place(&hosts, size, self.oversubscribe)?;
                (hosts, places, Sizes { np: size, min_np: size, max_np: size })
            }
        };

        let (removed, kept): (Vec<_>, Vec<_>) = own.into_iter().partition(|(name, _)| contradicts(name));
        let removed = removed.into_iter().map(|(name, _)| name).collect();
        let inherited: BTreeMap<_, _> = kept.into_iter().collect();

        let cores = binding::cores(binding::topology(&process::affinity().unwrap_or_default()));
        let environment = JobEnvironment {
            set: self.set.clone(),
            compat: self.compat.clone(),
            cores: cores.len().min(process::usable_processors()),
            ..JobEnvironment::default()
        };
        let path = self.set.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        let path = path.or_else(|| inherited.get(OsStr::new("PATH")).map(OsString::as_os_str));
        let program = self.command.first().map(OsString::as_os_str).unwrap_or_default();
        let file = command::find(program, path)?;

        // All hosts of a plan are this machine or a part of it: a namespace has no cores of its own.
        let cpus = (0..places.len())
            .map(|turn| match self.bind {
                Bind::None => Vec::new(),
                Bind::Core => binding::bind(&cores, turn),
            })
            .collect();
        let crowded = places.len() > cores.len();
        let note = (self.bind == Bind::Core && crowded)
            .then(|| format!("more ranks than cores ({}): with --bind-to core they share cores in turn", cores.len()));
        Ok(Plan { job: self.clone(), hosts, places, sizes, cores, cpus, inherited, removed, environment, file, note })
    }

    /// The hosts of an elastic job and the places of its first workers, as far as they are known before a script is
    /// asked.
    fn elastic_places(
        &self,
        elastic: &Elasticity,
        local: &LocalNames,
    ) -> Result<(Vec<Host>, Vec<Place>, Sizes), LaunchError> {
        elastic.check()?;
        if self.compat.contains(&Compat::Torch) {
            let what = "--compat torch sets RANK and WORLD_SIZE, which change while an elastic job runs; leave it out";
            return Err(Error::invalid(what).into());
        }
        if elastic.discovery_script.is_some() {
            return Ok((Vec::new(), Vec::new(), elastic.sizes(self.size, None)?));
        }
        let mut hosts = local_hosts(&self.hosts, local)?;
        let slots = (!hosts.is_empty()).then(|| hosts.iter().fold(0_usize, |sum, host| sum.saturating_add(host.slots)));
        let sizes = elastic.sizes(self.size, slots)?;
        if hosts.is_empty() {
            hosts.push(Host::new("localhost", sizes.np));
        }
        let places = place(&hosts, sizes.np, self.oversubscribe)?;
        for (index, host) in hosts.iter_mut().enumerate() {
            host.slots = host.slots.max(places.iter().filter(|place| place.host == index).count());
        }
        Ok((hosts, places, sizes))
    }

    fn hosts_and_size(&self, local: &LocalNames) -> Result<(Vec<Host>, usize), LaunchError> {
        if self.hosts.is_empty() {
            let size = self.size.ok_or_else(|| Error::invalid("how many ranks? Give -np N, or hosts with slots"))?;
            return Ok((vec![Host::new("localhost", size.max(1))], size));
        }
        let hosts = local_hosts(&self.hosts, local)?;
        let slots = hosts.iter().fold(0_usize, |sum, host| sum.saturating_add(host.slots));
        Ok((hosts, self.size.unwrap_or(slots)))
    }
}

/// The hosts, those with several names once.
///
/// # Errors
///
/// One of them is another machine.
pub(super) fn local_hosts(named: &[Host], local: &LocalNames) -> Result<Vec<Host>, Error> {
    let is_local = |host: &&Host| !host.enter.is_empty() || local.contain(&host.name);
    if let Some(other) = named.iter().find(|host| !is_local(host)) {
        let known: Vec<_> = local.names.iter().filter(|name| !name.is_empty()).cloned().collect();
        return Err(Error::invalid(format!(
            "host {} is not this machine (localhost, {}), and starting ranks on other hosts, through ssh, is \
             not there yet; until then start one rank a process with PHALANX_RANK, PHALANX_SIZE and \
             PHALANX_RENDEZVOUS set, or through mpirun or srun",
            other.name,
            known.join(", ")
        )));
    }
    let mut hosts: Vec<Host> = Vec::new();
    let mut here = None;
    for host in named {
        if !host.enter.is_empty() {
            hosts.push(host.clone());
        } else if let Some(first) = here.and_then(|index: usize| hosts.get_mut(index)) {
            // Two names of one machine are one host.
            first.slots = first.slots.saturating_add(host.slots);
        } else {
            here = Some(hosts.len());
            hosts.push(host.clone());
        }
    }
    Ok(hosts)
}

/// A job about which everything is decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was asked for.
    pub job: Job,
    /// The hosts, those with several names once.
    pub hosts: Vec<Host>,
    /// Where each rank runs; in an elastic job, each of the first ones, if that is known.
    pub places: Vec<Place>,
    /// How many there are, at least, to begin with and at most.
    pub(super) sizes: Sizes,
    /// The cores of this machine, each as its processors.
    pub(super) cores: Vec<Vec<usize>>,
    /// To which processors each rank is bound.
    pub cpus: Vec<Vec<usize>>,
    /// What the workers inherit from this process's environment.
    pub inherited: BTreeMap<OsString, OsString>,
    /// What they do not inherit, because it would contradict.
    pub removed: Vec<OsString>,
    /// What is set for them.
    pub environment: JobEnvironment,
    /// The file that the command names.
    pub file: PathBuf,
    /// Something the user should know.
    pub note: Option<String>,
}

impl Plan {
    /// How many ranks; in an elastic job, to begin with.
    pub fn size(&self) -> usize {
        self.sizes.np
    }

    /// The name of a rank's host.
    pub fn host_name(&self, rank: usize) -> &str {
        self.places.get(rank).and_then(|place| self.hosts.get(place.host)).map_or("?", |host| host.name.as_str())
    }

    fn settings(&self, place: &Place) -> BTreeMap<OsString, OsString> {
        let is_inherited = |name: &str| self.inherited.contains_key(OsStr::new(name));
        match &self.job.elastic {
            None => self.environment.settings(place, self.size(), is_inherited),
            Some(elastic) => {
                let slots = self.hosts.get(place.host).map_or(1, |host| host.slots);
                let wish = elastic.registry.is_none().then_some(place.rank);
                self.environment.elastic_settings(place.local_rank, slots, wish, is_inherited)
            }
        }
    }

    /// The worker of one rank. `input` is what rank 0 reads.
    pub fn worker(&self, rank: usize, input: Input) -> Option<WorkerPlan> {
        let place = self.places.get(rank)?;
        let mut environment = self.inherited.clone();
        environment.extend(self.settings(place));
        Some(WorkerPlan {
            name: rank.to_string(),
            enter: self.hosts.get(place.host).map(|host| host.enter.clone()).unwrap_or_default(),
            command: self.job.command.clone(),
            environment,
            cpus: self.cpus.get(rank).cloned().unwrap_or_default(),
            input: if rank == 0 { input } else { Input::Null },
        })
    }
}

/// As `--dry-run` shows it. The key is not shown.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(elastic) = &self.job.elastic {
            let Sizes { np, min_np, max_np } = self.sizes;
            writeln!(f, "elastic: {} to begin with, at least {min_np}, at most {max_np}", plural(np, "rank"))?;
            if let Some(script) = &elastic.discovery_script {
                writeln!(f, "hosts: as `{script}` says")?;
            }
        } else {
            let is_used = |index: usize| self.places.iter().any(|place| place.host == index);
            let used = (0..self.hosts.len()).filter(|index| is_used(*index)).count();
            writeln!(f, "{} on {}", plural(self.size(), "rank"), plural(used, "host"))?;
        }
        writeln!(f, "command: {}  ({})", shell_words(&self.job.command), self.file.display())?;
        if !self.places.is_empty() {
            writeln!(f, "\n{:>5}  {:<20} {:>7} {:>7}  processors", "rank", "host", "local", "cross")?;
        }
        for place in &self.places {
            let cpus: Vec<_> = self.cpus.get(place.rank).into_iter().flatten().map(ToString::to_string).collect();
            writeln!(
                f,
                "{:>5}  {:<20} {:>7} {:>7}  {}",
                place.rank,
                self.host_name(place.rank),
                format!("{}/{}", place.local_rank, place.local_size),
                format!("{}/{}", place.cross_rank, place.cross_size),
                if cpus.is_empty() { "any".into() } else { cpus.join(",") }
            )?;
        }
        if let Some(first) = self.places.first() {
            writeln!(f, "\nset for rank 0, beside what it inherits:")?;
            for (name, value) in self.settings(first) {
                writeln!(f, "  {}={}", name.to_string_lossy(), shell_word(&value))?;
            }
            match &self.job.elastic {
                None if self.size() > 1 => {
                    writeln!(f, "  PHALANX_RENDEZVOUS=<chosen at start>\n  PHALANX_KEY=<random>")?;
                }
                None => {}
                Some(Elasticity { registry: Some(registry), .. }) => writeln!(f, "  PHALANX_REGISTRY={registry}")?,
                Some(_) => writeln!(f, "  PHALANX_REGISTRY=<chosen at start>\n  PHALANX_KEY=<random>")?,
            }
        }
        if !self.removed.is_empty() {
            let names: Vec<_> = self.removed.iter().map(|name| name.to_string_lossy()).collect();
            writeln!(f, "\nnot inherited, because another launcher set it: {}", names.join(" "))?;
        }
        if let Some(directory) = &self.job.output.directory {
            let width = super::log::width(self.size());
            let rank = if self.job.elastic.is_some() { "slot.0".into() } else { format!("rank.{:0width$}", 0) };
            writeln!(f, "\noutput also in {}", directory.join(rank).join("stdout").display())?;
        }
        if let Some(note) = &self.note {
            writeln!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

/// A command as one would type it.
pub(super) fn shell_words(words: &[OsString]) -> String {
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

fn shell_word(word: &OsStr) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%^".contains(byte);
    if !word.is_empty() && word.as_bytes().iter().all(plain) {
        return word.to_string_lossy().into_owned();
    }
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job::new(vec!["sh".into(), "-c".into(), "exit 0".into()], 3)
    }

    fn plan(job: &Job, own: &[(&str, &str)]) -> Result<Plan, LaunchError> {
        let mut own: Vec<_> = own.iter().map(|(name, value)| (name.into(), value.into())).collect();
        own.push(("PATH".into(), "/usr/bin:/bin".into()));
        job.plan_from(own, &LocalNames { names: vec!["box".into()], addresses: Vec::new() })
    }

    #[test]
    fn a_plan_says_who_runs_where_with_what() {
        let plan = plan(&job(), &[("SLURM_PROCID", "7"), ("HOME", "/h"), ("OMP_NUM_THREADS", "3")]).unwrap();
        assert_eq!(plan.size(), 3);
        assert_eq!(plan.removed, ["SLURM_PROCID"]);
        let worker = plan.worker(1, Input::Inherit).unwrap();
        let get = |name: &str| worker.environment.get(OsStr::new(name)).and_then(|value| value.to_str());
        assert_eq!(get("PHALANX_RANK"), Some("1"));
        assert_eq!(get("HOME"), Some("/h"));
        assert_eq!(get("OMP_NUM_THREADS"), Some("3"));
        assert_eq!(get("SLURM_PROCID"), None);
        assert_eq!(worker.input, Input::Null, "only rank 0 reads");
        assert_eq!(plan.worker(0, Input::Inherit).unwrap().input, Input::Inherit);
        let text = plan.to_string();
        assert!(text.contains("3 ranks on 1 host\ncommand: sh -c 'exit 0'"), "{text}");
        assert!(text.contains("another launcher set it: SLURM_PROCID"), "{text}");
    }

    #[test]
    fn names_of_this_machine_are_one_host() {
        let hosts = super::super::hosts::parse_list("localhost:2,127.0.0.1:1,box").unwrap();
        let plan = plan(&Job { hosts, size: None, ..job() }, &[]).unwrap();
        assert_eq!((plan.size(), plan.hosts.len()), (4, 1));
        assert!(plan.places.iter().all(|place| place.local_size == 4));
    }

    #[test]
    fn other_hosts_are_refused_clearly() {
        let hosts = super::super::hosts::parse_list("localhost,far").unwrap();
        let error = plan(&Job { hosts, ..job() }, &[]).unwrap_err();
        assert_eq!(error.code, 2);
        assert!(error.to_string().contains("host far is not this machine (localhost, box)"), "{error}");
        assert!(error.to_string().contains("ssh"));
    }

    #[test]
    fn an_elastic_job_is_planned_as_far_as_it_can_be() {
        let elastic = Elasticity { min_np: Some(2), max_np: Some(6), ..Elasticity::default() };
        let job = Job { elastic: Some(elastic.clone()), ..job() };
        let fixed_hosts = plan(&job, &[]).unwrap();
        let text = fixed_hosts.to_string();
        for part in [
            "elastic: 3 ranks to begin with, at least 2, at most 6\n",
            "    2  localhost                2/3     0/1  any\n",
            "  PHALANX_SLOT=0\n",
            "  PHALANX_REGISTRY=<chosen at start>\n  PHALANX_KEY=<random>\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        let discovery_script = Some("cat hosts".to_string());
        let elastic = Some(Elasticity { discovery_script, ..elastic });
        let asked = plan(&Job { elastic: elastic.clone(), ..job.clone() }, &[]).unwrap();
        assert_eq!((asked.places.len(), asked.hosts.len(), asked.size()), (0, 0, 3));
        assert!(asked.to_string().contains("hosts: as `cat hosts` says\n"), "{asked}");
        let error = plan(&Job { elastic, compat: vec![Compat::Torch], ..job }, &[]).unwrap_err();
        assert_eq!(error.code, 2);
        assert!(error.to_string().contains("WORLD_SIZE"), "{error}");
    }

    #[test]
    fn more_ranks_than_slots_are_dealt_out_in_an_elastic_job_too() {
        let hosts = super::super::hosts::parse_list("localhost:2").unwrap();
        let job = Job { hosts, elastic: Some(Elasticity::default()), ..job() };
        assert!(plan(&job, &[]).unwrap_err().to_string().contains("--oversubscribe"));
        assert_eq!(plan(&Job { oversubscribe: true, ..job }, &[]).unwrap().hosts[0].slots, 3);
    }

    #[test]
    fn a_size_is_needed() {
        let error = plan(&Job { size: None, ..job() }, &[]).unwrap_err();
        assert!(error.to_string().contains("-np"), "{error}");
        assert_eq!(plan(&Job { size: Some(0), ..job() }, &[]).unwrap_err().code, 2);
    }
}
