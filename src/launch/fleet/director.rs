//! Carries the fleet's words: between processes and registry, and to and from the host discovery script.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::process::Pid;

use super::Elasticity;
use super::discovery::{self, Answer, Discovery};
use super::machine::{Exit, Fleet, Limits};
use super::script::{Printed, Script};
use super::watch::Watch;
use crate::bootstrap::{Bind, Introduction, Variables, control, new_key, settings};
use crate::elastic::{Owner, RegistryService, StateFile};
use crate::launch::binding;
use crate::launch::director::Director;
use crate::launch::environment::JobEnvironment;
use crate::launch::hosts::{Host, LocalNames};
use crate::launch::job::{Plan, local_hosts};
use crate::launch::operator::own_socket;
use crate::launch::spawn::{Input, LocalSpawner, WorkerPlan};
use crate::launch::supervise::{Action, Cause, Event};
use crate::launch::tree;
use crate::membership::registry::{Event as News, Who};
use crate::sys::HostIdentity;
use crate::types::{Error, Result};
use crate::wire::registry::{ProcessRecord, Slot};

/// Directs an elastic job.
pub(in crate::launch) struct FleetDirector<'a> {
    plan: &'a Plan,
    environment: JobEnvironment,
    fleet: Fleet,
    registry: Option<Registry>,
    /// The registry, when it runs elsewhere.
    watch: Option<Watch>,
    /// Of workers that run, the process and its host's identity.
    processes: BTreeMap<usize, Process>,
    /// Who registered, and is not known to be a worker yet.
    strangers: Vec<(Slot, Arc<ProcessRecord>)>,
    hosts: Option<Asked>,
}

/// The registry, when it is the launcher's own.
struct Registry {
    service: RegistryService,
    news: Arc<Mutex<Vec<News>>>,
    wake: Arc<OwnedFd>,
}

struct Process {
    pid: u32,
    host: Vec<u8>,
}

/// Hosts that are asked of a script.
struct Asked {
    discovery: Discovery,
    run: Option<Script>,
    spawner: LocalSpawner,
    script: String,
    environment: BTreeMap<OsString, OsString>,
    local: LocalNames,
    has_answer: bool,
    /// Hosts of which it was said that nothing can be started there.
    foreign: Vec<String>,
}

impl<'a> FleetDirector<'a> {
    /// Starts the registry, if it is the launcher's own.
    pub(in crate::launch) fn new(now: Instant, plan: &'a Plan, elastic: &Elasticity) -> Result<Self> {
        let mut environment = plan.environment.clone();
        let mut watch = None;
        let registry = match &elastic.registry {
            Some(address) => {
                environment.registry = Some(address.clone());
                environment.key = std::env::var("PHALANX_KEY").ok();
                environment.key_file = std::env::var("PHALANX_KEY_FILE").ok();
                watch = Some(Watch::start(address, settings(&Variables::of_process())?.key)?);
                None
            }
            None => Some(start_registry(plan, elastic, &mut environment)?),
        };
        let (registry, found) = registry.unzip();
        let limits = Limits {
            sizes: plan.sizes,
            policy: plan.job.policy,
            respawn: elastic.respawn,
            leave_grace: elastic.leave_grace,
            cooldown: elastic.cooldown,
            respawn_limit: elastic.respawn_limit,
            elastic_timeout: elastic.elastic_timeout,
            owns_registry: registry.is_some(),
        };
        let mut fleet = Fleet::new(now, limits);
        found.flatten().into_iter().for_each(|found| fleet.warn(found));
        let hosts = elastic.discovery_script.as_ref().map(|script| Asked {
            discovery: Discovery::new(now, elastic.slots_per_host),
            run: None,
            spawner: LocalSpawner { guard: plan.job.guard.clone(), grace: plan.job.policy.grace, files: None },
            script: script.clone(),
            environment: std::env::vars_os().collect(),
            local: LocalNames::of_this_machine(),
            has_answer: false,
            foreign: Vec::new(),
        });
        if hosts.is_none() {
            fleet.set_hosts(now, &plan.hosts, false);
        }
        let (processes, strangers) = (BTreeMap::new(), Vec::new());
        Ok(Self { plan, environment, fleet, registry, watch, processes, strangers, hosts })
    }

    /// The job is over, for this reason. Whoever is a member and not a worker hears it.
    pub(in crate::launch) fn close(self, cause: Cause) {
        let Some(Registry { service, .. }) = self.registry else { return };
        if service.outcome().is_none() {
            service.end(match cause {
                Cause::Done => "the job has finished",
                Cause::Signal(_) => "the launcher was told to end by a signal",
                Cause::Timeout => "the job's time is over",
                _ => "the launcher ended the job",
            });
        }
    }

    /// Hears the registry.
    fn take_news(&mut self, now: Instant) {
        let Some(registry) = &self.registry else { return };
        let _ = rustix::io::read(&*registry.wake, &mut [0; 8]);
        let news = std::mem::take(&mut *registry.news.lock().unwrap_or_else(PoisonError::into_inner));
        for event in news {
            if let News::Registered { slot, process } = &event {
                self.strangers.push((*slot, process.clone()));
                self.recognise();
            }
            self.fleet.handle_news(now, &event);
        }
        self.tell_exits();
    }

    /// Hears of a registry that runs elsewhere.
    fn take_seen(&mut self, now: Instant) {
        let Some(seen) = self.watch.as_ref().and_then(Watch::take) else { return };
        match seen {
            Ok(there) => {
                self.fleet.handle_reached(now);
                // Those of other hosts are other launchers'.
                let is_here = |record: &ProcessRecord| self.processes.values().any(|it| it.host == record.host);
                self.strangers = there.into_iter().filter(|(_, record)| is_here(record)).collect();
                self.recognise();
                self.strangers.clear();
                if let Some(watch) = &self.watch
                    && self.processes.keys().all(|worker| self.fleet.slot(*worker).is_some())
                {
                    watch.rest();
                }
            }
            Err(what) => self.fleet.handle_unreached(now, what),
        }
    }

    /// Finds out which of the workers registered: it is a worker's process, or one that it started.
    fn recognise(&mut self) {
        let processes = &self.processes;
        let fleet = &mut self.fleet;
        self.strangers.retain(|(slot, record)| {
            let here = || processes.iter().filter(|(_, process)| process.host == record.host);
            let found = here().find(|(_, process)| process.pid == record.pid).or_else(|| {
                let above = tree::ancestors(record.pid);
                here().find(|(_, process)| above.contains(&process.pid))
            });
            if let Some((worker, _)) = found.filter(|(worker, _)| fleet.slot(**worker) != Some(*slot)) {
                fleet.handle_registered(*worker, *slot);
            }
            found.is_none()
        });
        // Those that somebody else started.
        let surplus = self.strangers.len().saturating_sub(MOST_STRANGERS);
        self.strangers.drain(..surplus);
    }

    fn tell_exits(&mut self) {
        if self.fleet.poll_done()
            && let Some(registry) = &self.registry
        {
            registry.service.done();
        }
        while let Some(Exit { worker, slot, how }) = self.fleet.poll_exit() {
            let process = self.processes.remove(&worker);
            let who = match (slot, process) {
                (Some(slot), _) => Who::Slot(slot),
                (None, Some(Process { pid, host })) => Who::Process { host, pid },
                (None, None) => continue,
            };
            if let Some(registry) = &self.registry {
                registry.service.exited(who, &how);
            }
        }
    }

    /// Asks for the hosts when it is time.
    fn ask_for_hosts(&mut self, now: Instant) {
        let Some(asked) = &mut self.hosts else { return };
        match asked.discovery.handle_timeout(now) {
            None => {}
            Some(discovery::Action::Kill) => asked.run.iter().for_each(Script::kill),
            Some(discovery::Action::Run) => {
                match Script::start(&mut asked.spawner, &asked.script, &asked.environment) {
                    Ok(run) => asked.run = Some(run),
                    Err(error) => self.hear_of_hosts(now, &Err((error.to_string(), false))),
                }
            }
        }
    }

    fn hear_of_hosts(&mut self, now: Instant, printed: &Printed) {
        let Some(asked) = &mut self.hosts else { return };
        asked.run = None;
        let printed = printed.as_ref().map(String::as_str).map_err(Clone::clone);
        match asked.discovery.handle_end(now, printed) {
            Answer::Same => {}
            Answer::Warning(what) => self.fleet.warn(format!("--host-discovery-script {}: {what}", asked.script)),
            Answer::Useless(what) => {
                let why = format!("--host-discovery-script {} cannot be run: {what}", asked.script);
                self.fleet.give_up(now, why);
            }
            Answer::Hosts(hosts) => match asked.usable(&hosts) {
                Ok((hosts, warning)) => {
                    warning.into_iter().for_each(|warning| self.fleet.warn(warning));
                    let is_news = std::mem::replace(&mut asked.has_answer, true);
                    self.fleet.set_hosts(now, &hosts, is_news);
                }
                Err(error) => self.fleet.give_up(now, error.to_string()),
            },
        }
    }
}

/// How many processes are remembered that registered and are no workers.
const MOST_STRANGERS: usize = 256;

impl Asked {
    /// The hosts on which workers can be started, and a word about those on which they cannot. In the first answer these
    /// are an error.
    fn usable(&mut self, hosts: &[Host]) -> Result<(Vec<Host>, Option<String>)> {
        match local_hosts(hosts, &self.local) {
            Ok(hosts) => Ok((hosts, None)),
            Err(error) if !self.has_answer => Err(error),
            Err(error) => {
                let (usable, foreign): (Vec<Host>, Vec<Host>) =
                    hosts.iter().cloned().partition(|host| self.local.contain(&host.name));
                let is_new = foreign.iter().any(|host| !self.foreign.contains(&host.name));
                self.foreign = foreign.into_iter().map(|host| host.name).collect();
                let warning = is_new.then(|| format!("not used: {error}"));
                Ok((local_hosts(&usable, &self.local)?, warning))
            }
        }
    }
}

/// Starts the registry, and puts what members need to find it into `environment`. Also returns what was found in its
/// state file, in words.
fn start_registry(
    plan: &Plan,
    elastic: &Elasticity,
    environment: &mut JobEnvironment,
) -> Result<(Registry, Option<String>)> {
    let config = elastic.config(plan.sizes);
    let address = plan.job.rendezvous_address;
    if address.is_none() && plan.hosts.iter().any(|host| !host.enter.is_empty()) {
        return Err(Error::invalid("workers on several hosts need an address at which they all reach this one"));
    }
    let addresses = match address {
        Some(address) => vec![address],
        // A machine without IPv4 still has a loopback.
        None => vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
    };
    let members = Bind::FirstOf(addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect());
    // Operators of this user need no key there: the kernel says who they are.
    let bind = Bind::All(vec![members, Bind::Unix(own_socket())]);
    let key = new_key()?;
    environment.key = Some(key.to_hex());
    let news = Arc::<Mutex<Vec<News>>>::default();
    let wake = control::new_wake().map_err(|error| {
        Error::environment(format!("no event descriptor: {error}"), "see the limits of this process")
    })?;
    let wake = Arc::new(wake);
    let (told, bell) = (news.clone(), wake.clone());
    let on_event = Box::new(move |event: &News| {
        told.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
        // The counter cannot be full: it is read before it is.
        let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
    });
    let file = elastic.state_file.clone().map(|file| StateFile::open(file, &key, Owner::Launcher)).transpose()?;
    let found = file.as_ref().and_then(StateFile::found).map(str::to_owned);
    let service = RegistryService::start(config, key, &bind, file, on_event)?;
    environment.registry = Some(service.address().into());
    Ok((Registry { service, news, wake }, found))
}

impl Director for FleetDirector<'_> {
    fn handle_event(&mut self, now: Instant, event: Event) {
        // What the registry said before a process ended is heard before its end: it tells what that means.
        self.take_news(now);
        if let Event::Started { rank, pid } = event {
            let pid = pid.unsigned_abs();
            if let Ok(host) = HostIdentity::of_process(pid) {
                self.processes.insert(rank, Process { pid, host: Introduction::host_bytes(&host) });
                self.recognise();
            }
            self.watch.iter().for_each(Watch::ask);
        }
        self.fleet.handle_event(now, event);
        self.tell_exits();
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.fleet.handle_timeout(now);
        if self.fleet.is_hiring() {
            self.ask_for_hosts(now);
        } else if let Some(asked) = &mut self.hosts {
            asked.run = None;
        }
        self.tell_exits();
    }

    fn poll_deadline(&self) -> Option<Instant> {
        let asked = self.hosts.as_ref().filter(|_| self.fleet.is_hiring());
        let asked = asked.and_then(|asked| asked.discovery.poll_deadline());
        self.fleet.poll_deadline(Instant::now()).into_iter().chain(asked).min()
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.fleet.poll_action()
    }

    fn is_spawning(&self) -> bool {
        self.fleet.is_spawning()
    }

    fn outcome(&self) -> Option<Cause> {
        self.fleet.outcome()
    }

    fn worker(&self, worker: usize, input: Input) -> Option<WorkerPlan> {
        let placement = self.fleet.placement(worker)?;
        let is_inherited = |name: &str| self.plan.inherited.contains_key(OsStr::new(name));
        let (local_rank, slots) = (placement.local_rank, placement.host.slots);
        let mut environment = self.plan.inherited.clone();
        environment.extend(self.environment.elastic_settings(local_rank, slots, placement.wish, is_inherited));
        Some(WorkerPlan {
            name: self.fleet.label(worker).to_string(),
            enter: placement.host.enter.clone(),
            command: self.plan.job.command.clone(),
            environment,
            cpus: match self.plan.job.bind {
                binding::Bind::None => Vec::new(),
                binding::Bind::Core => binding::bind(&self.plan.cores, local_rank),
            },
            input: if worker == 0 { input } else { Input::Null },
        })
    }

    fn label(&self, worker: usize) -> usize {
        self.fleet.label(worker)
    }

    fn name(&self, worker: usize) -> String {
        self.fleet.name(worker)
    }

    fn host_name(&self, worker: usize) -> String {
        self.fleet.host_name(worker).into()
    }

    fn folder(&self, worker: usize) -> String {
        self.fleet.name(worker).replace(' ', ".")
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        let registry = self.registry.iter().map(|registry| registry.wake.as_fd());
        let run = self.hosts.iter().filter_map(|asked| asked.run.as_ref());
        registry.chain(self.watch.iter().map(Watch::watched)).chain(run.flat_map(Script::watched)).collect()
    }

    fn handle_readable(&mut self, now: Instant) {
        self.take_news(now);
        self.take_seen(now);
        if let Some(printed) = self.hosts.as_mut().and_then(|asked| asked.run.as_mut()?.read()) {
            self.hear_of_hosts(now, &printed);
            self.tell_exits();
        }
    }

    fn own_processes(&self) -> Vec<Pid> {
        let run = self.hosts.iter().filter_map(|asked| asked.run.as_ref());
        run.map(Script::guard).collect()
    }
}
