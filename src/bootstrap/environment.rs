//! From environment variables to this process's place in the world. Pure: variables in, a value or an error out.
//!
//! An error names the variables with their values, and says what was expected. `launchers.rs` says which group of
//! variables is believed when there are several.

use std::path::PathBuf;

use super::launchers::{self, GROUPS, Group, Launcher};
use super::settings::Settings;
use super::variables::{self, Variables};
use crate::types::{Error, Result};

/// The largest world that the rendezvous serves.
pub const MAX_SIZE: usize = 1 << 16;

/// Where and how the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// One rank: there is nobody to meet.
    Alone,
    /// At a TCP address. Needs a key.
    Tcp {
        /// `host:port`; an IPv6 address stands in brackets.
        address: String,
        /// Whether the launcher listens there; otherwise rank 0 does.
        hosted_by_launcher: bool,
    },
    /// At an abstract Unix socket with this name, which only processes of this user on this host can use.
    Unix {
        /// The name, without the `@`.
        name: String,
        /// Whether the launcher listens there; otherwise rank 0 does.
        hosted_by_launcher: bool,
    },
    /// Rank 0 writes its address to this file, which all ranks see.
    File(PathBuf),
    /// At an abstract Unix socket whose name follows from the user and the job.
    Local,
    /// Through the launcher's PMI service.
    Pmi,
    /// Through the launcher's PMIx service.
    Pmix,
    /// Nothing says where.
    Unknown {
        /// What is missing.
        why: String,
        /// What to do about it.
        hint: String,
    },
}

/// This process's place in the world, and how it meets the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// Its number among the ranks of its host, if the launcher says so.
    pub local_rank: Option<usize>,
    /// The number of ranks of its host, if the launcher says so.
    pub local_size: Option<usize>,
    /// Who says so.
    pub launcher: Launcher,
    /// How the ranks meet.
    pub rendezvous: Rendezvous,
    /// What tells this job from another of the same user on this host.
    pub job: Option<String>,
    /// The descriptor of the launcher's PMI service.
    pub pmi_fd: Option<i32>,
    /// What was seen and not used, in words.
    pub notes: Vec<String>,
}

impl Default for Launch {
    /// A world of one.
    fn default() -> Self {
        Launch {
            rank: 0,
            size: 1,
            local_rank: Some(0),
            local_size: Some(1),
            launcher: Launcher::None,
            rendezvous: Rendezvous::Alone,
            job: None,
            pmi_fd: None,
            notes: Vec::new(),
        }
    }
}

/// What one group of variables says.
#[derive(Clone, Debug)]
struct Claim {
    launcher: Launcher,
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
    depth: u8,
    /// Rank and size as `NAME=value, NAME=value`.
    shown: String,
}

/// Reads this process's place. `settings` come from the same variables.
///
/// # Errors
///
/// [`Error::Environment`] for a half-set group when no other is complete, values that are not numbers, a rank that is
/// not below the size, groups that contradict each other, and a rendezvous that cannot be read.
pub fn launch(variables: &Variables, settings: &Settings) -> Result<Launch> {
    let ours = claim_of_phalanx(variables)?;
    let (foreign, mut notes) = claim_of_launchers(variables)?;
    let claim = match (ours, foreign) {
        (Some(ours), Some((theirs, _))) if theirs.size > 1 && (theirs.rank, theirs.size) != (ours.rank, ours.size) => {
            return Err(Error::environment(
                format!("{} contradict {}'s {}", ours.shown, theirs.launcher, theirs.shown),
                "unset the variables that are left over from elsewhere; expected the same rank and size from both",
            ));
        }
        // The launcher knows more than the two numbers.
        (Some(ours), Some((theirs, group))) if (theirs.rank, theirs.size) == (ours.rank, ours.size) => {
            let local_rank = ours.local_rank.or(theirs.local_rank);
            let local_size = ours.local_size.or(theirs.local_size);
            Some((Claim { local_rank, local_size, ..ours }, Some(group)))
        }
        (Some(ours), _) => Some((ours, None)),
        (None, Some((theirs, group))) => Some((theirs, Some(group))),
        (None, None) => None,
    };
    let Some((claim, group)) = claim else {
        nothing_half_said(variables)?;
        notes.extend(launchers::note_on_slurm(variables));
        return Ok(Launch { notes, ..Launch::default() });
    };
    check_local(&claim)?;
    let mut launch = Launch {
        rank: claim.rank,
        size: claim.size,
        local_rank: claim.local_rank,
        local_size: claim.local_size,
        launcher: claim.launcher,
        rendezvous: Rendezvous::Alone,
        job: job(variables, group),
        pmi_fd: variables.get(launchers::PMI_FD).and_then(|fd| fd.parse().ok()).filter(|fd| *fd >= 0),
        notes,
    };
    if launch.size == 1 {
        (launch.local_rank, launch.local_size) = (Some(0), Some(1));
    } else {
        launch.rendezvous = rendezvous(variables, settings, &launch)?;
    }
    Ok(launch)
}

fn number(variables: &Variables, name: &str) -> Result<Option<usize>> {
    let Some(value) = variables.get(name) else { return Ok(None) };
    value.parse().map(Some).map_err(|_| {
        Error::environment(
            format!("{} is not a number", variables.show(name)),
            format!("set {name} to a whole number from 0"),
        )
    })
}

/// Both numbers, or neither; an error if one is missing or if they cannot be.
fn pair(variables: &Variables, rank_name: &str, size_name: &str) -> Result<Option<(usize, usize)>> {
    let shown = || format!("{}, {}", variables.show(rank_name), variables.show(size_name));
    match (number(variables, rank_name)?, number(variables, size_name)?) {
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => Err(Error::environment(
            format!("only half is set: {}", shown()),
            format!("set both {rank_name} and {size_name}, or neither"),
        )),
        (Some(rank), Some(size)) if rank >= size => Err(Error::environment(
            format!("{}: the rank is not below the size", shown()),
            format!("expected {rank_name} from 0 to {size_name} - 1"),
        )),
        (Some(_), Some(size)) if size > MAX_SIZE => {
            Err(Error::environment(shown(), format!("expected at most {MAX_SIZE} ranks")))
        }
        (Some(rank), Some(size)) => Ok(Some((rank, size))),
    }
}

fn claim_of_phalanx(variables: &Variables) -> Result<Option<Claim>> {
    let (rank_name, size_name) = (variables::RANK.name, variables::SIZE.name);
    let Some((rank, size)) = pair(variables, rank_name, size_name)? else { return Ok(None) };
    let local = pair(variables, variables::LOCAL_RANK.name, variables::LOCAL_SIZE.name)?;
    Ok(Some(Claim {
        launcher: Launcher::Phalanx,
        rank,
        size,
        local_rank: local.map(|local| local.0),
        local_size: local.map(|local| local.1),
        depth: u8::MAX,
        shown: format!("{}, {}", variables.show(rank_name), variables.show(size_name)),
    }))
}

/// A launcher's claim, with the group it was read from.
type Known = (Claim, &'static Group);

/// The claim of the innermost launcher, and notes on what was passed over.
fn claim_of_launchers(variables: &Variables) -> Result<(Option<Known>, Vec<String>)> {
    let mut claims: Vec<Known> = Vec::new();
    let mut half_set = Vec::new();
    for group in GROUPS {
        if group.launcher == Launcher::Slurm && !launchers::is_started_by_srun(variables) {
            continue;
        }
        match claim_of_group(variables, group) {
            Ok(Some(claim)) => claims.push((claim, group)),
            Ok(None) => {}
            Err(error) => half_set.push(error),
        }
    }
    if claims.is_empty() {
        if let Some(error) = half_set.into_iter().next() {
            return Err(error);
        }
        if variables.get(launchers::PMIX_RANK).is_some() {
            return Err(Error::environment(
                format!(
                    "{} says that a PMIx launcher started this process, but nothing says the size",
                    variables.show(launchers::PMIX_RANK)
                ),
                format!("set {} and {}", variables::RANK.name, variables::SIZE.name),
            ));
        }
        return Ok((None, Vec::new()));
    }
    let mut notes: Vec<_> = half_set.iter().map(|error| format!("not used: {error}")).collect();
    // A world of one around or inside a larger one says nothing about it.
    let mut best = 0;
    for (at, (claim, _)) in claims.iter().enumerate().skip(1) {
        let (chosen, _) = &claims[best];
        if (claim.size > 1, claim.depth) > (chosen.size > 1, chosen.depth) {
            best = at;
        }
    }
    let (mut chosen, group) = claims.swap_remove(best);
    for (claim, _) in &claims {
        let differs = (claim.rank, claim.size) != (chosen.rank, chosen.size);
        if !differs {
            // One of them may know more.
            chosen.local_rank = chosen.local_rank.or(claim.local_rank);
            chosen.local_size = chosen.local_size.or(claim.local_size);
        }
        if differs && claim.size > 1 && claim.depth == chosen.depth {
            return Err(Error::environment(
                format!("{}'s {} contradict {}'s {}", chosen.launcher, chosen.shown, claim.launcher, claim.shown),
                "unset those that are left over from elsewhere",
            ));
        }
        if differs {
            notes.push(format!(
                "{}'s {} are inside {}'s {}",
                chosen.launcher, chosen.shown, claim.launcher, claim.shown
            ));
        }
    }
    Ok((Some((chosen, group)), notes))
}

fn claim_of_group(variables: &Variables, group: &Group) -> Result<Option<Claim>> {
    let Some((rank, size)) = pair(variables, group.rank, group.size)? else {
        if group.launcher == Launcher::Pmi && variables.get(launchers::PMI_FD).is_some() {
            return Err(Error::environment(
                format!(
                    "only half is set: {}, {}, {}",
                    variables.show(launchers::PMI_FD),
                    variables.show(group.rank),
                    variables.show(group.size)
                ),
                format!("set both {} and {}, or unset {}", group.rank, group.size, launchers::PMI_FD),
            ));
        }
        return Ok(None);
    };
    let (local_rank, local_size) = if group.launcher == Launcher::Slurm {
        (number(variables, group.local_rank)?, launchers::slurm_local_size(variables))
    } else {
        (number(variables, group.local_rank)?, number(variables, group.local_size)?)
    };
    let is_torchrun = group.launcher == Launcher::Torchrun && variables.get(launchers::TORCH_RUN_ID).is_some();
    Ok(Some(Claim {
        launcher: group.launcher,
        rank,
        size,
        local_rank,
        local_size,
        depth: if group.launcher == Launcher::Torchrun && !is_torchrun { group.depth - 1 } else { group.depth },
        shown: format!("{}, {}", variables.show(group.rank), variables.show(group.size)),
    }))
}

/// A rendezvous or a local rank without a rank is half a world, not a world of one.
fn nothing_half_said(variables: &Variables) -> Result<()> {
    if variables.get(variables::REGISTRY.name).is_some() {
        return Err(Error::environment(
            format!(
                "{} says that this job is elastic: it has no fixed ranks and size",
                variables.show(variables::REGISTRY.name)
            ),
            "join it with phalanx::elastic::join (phalanx.elastic in Python), or start a job with a fixed number of ranks",
        ));
    }
    let lonely = [variables::RENDEZVOUS, variables::RENDEZVOUS_HOSTED, variables::LOCAL_RANK, variables::LOCAL_SIZE];
    match lonely.iter().find(|variable| variables.get(variable.name).is_some()) {
        None => Ok(()),
        Some(variable) => Err(Error::environment(
            format!("{} is set, but nothing says this process's rank and the size", variables.show(variable.name)),
            format!("set {} and {}, or unset {}", variables::RANK.name, variables::SIZE.name, variable.name),
        )),
    }
}

fn check_local(claim: &Claim) -> Result<()> {
    let Claim { size, local_rank, local_size, launcher, shown, .. } = claim;
    let wrong = match (local_rank, local_size) {
        (Some(local_rank), Some(local_size)) => local_rank >= local_size || local_size > size,
        (Some(local_rank), None) => local_rank >= size,
        (None, Some(local_size)) => local_size > size,
        (None, None) => false,
    };
    let show = |value: &Option<usize>| value.map_or("not known".to_string(), |value| value.to_string());
    if wrong {
        return Err(Error::environment(
            format!(
                "{launcher}'s local rank ({}) and local size ({}) cannot be with {shown}",
                show(local_rank),
                show(local_size)
            ),
            "expected local rank < local size <= size",
        ));
    }
    Ok(())
}

fn job(variables: &Variables, group: Option<&Group>) -> Option<String> {
    if let Some(job) = variables.get(variables::JOB.name) {
        return Some(format!("named {job}"));
    }
    let group = group?;
    let known: Vec<_> =
        group.job.iter().filter(|name| variables.get(name).is_some()).map(|name| variables.show(name)).collect();
    (!known.is_empty()).then(|| known.join(" "))
}

fn rendezvous(variables: &Variables, settings: &Settings, launch: &Launch) -> Result<Rendezvous> {
    let hosted = variables.get(variables::RENDEZVOUS_HOSTED.name);
    let hosted_by_launcher = match hosted {
        None | Some("rank0") => false,
        Some("launcher") => true,
        Some(_) => {
            return Err(Error::environment(
                variables.show(variables::RENDEZVOUS_HOSTED.name),
                format!("set {} to rank0 or launcher", variables::RENDEZVOUS_HOSTED.name),
            ));
        }
    };
    if let Some(text) = variables.get(variables::RENDEZVOUS.name) {
        return parse_rendezvous(text, hosted_by_launcher).map_err(|what| {
            Error::environment(
                format!("{}: {what}", variables.show(variables::RENDEZVOUS.name)),
                "expected host:port, [ipv6]:port, unix:@name, file:///path, local, pmi or pmix",
            )
        });
    }
    if hosted.is_some() {
        return Err(Error::environment(
            format!("{} is set without an address", variables.show(variables::RENDEZVOUS_HOSTED.name)),
            format!("set {} too", variables::RENDEZVOUS.name),
        ));
    }
    Ok(choose(variables, settings, launch))
}

fn parse_rendezvous(text: &str, hosted_by_launcher: bool) -> Result<Rendezvous, String> {
    match text {
        "local" => return Ok(Rendezvous::Local),
        "pmi" => return Ok(Rendezvous::Pmi),
        "pmix" => return Ok(Rendezvous::Pmix),
        _ => {}
    }
    if let Some(rest) = text.strip_prefix("unix:") {
        let name = rest.strip_prefix('@').ok_or("only abstract sockets, which start with @, are understood")?;
        // The kernel takes 107 bytes after the leading zero.
        if name.is_empty() || name.len() > 107 || name.contains('\0') {
            return Err("the name must have 1 to 107 bytes".into());
        }
        return Ok(Rendezvous::Unix { name: name.to_string(), hosted_by_launcher });
    }
    if let Some(rest) = text.strip_prefix("file:") {
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if !path.starts_with('/') || path.ends_with('/') {
            return Err("the file's path must be absolute".into());
        }
        return Ok(Rendezvous::File(path.into()));
    }
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let (host, port) = address.rsplit_once(':').ok_or("there is no port")?;
    if port.parse::<u16>().ok().filter(|port| *port > 0).is_none() {
        return Err(format!("the port {port:?} is not a number from 1 to 65535"));
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if host.is_empty() || (bracketed.is_none() && host.contains([':', '/', '[', ']'])) {
        return Err("the host cannot be read; an IPv6 address stands in brackets".into());
    }
    if bracketed.is_some_and(|host| host.split('%').next().is_none_or(|ip| ip.parse::<std::net::Ipv6Addr>().is_err())) {
        return Err("there is no IPv6 address in the brackets".into());
    }
    Ok(Rendezvous::Tcp { address: address.to_string(), hosted_by_launcher })
}

/// How to meet when nobody said where.
fn choose(variables: &Variables, settings: &Settings, launch: &Launch) -> Rendezvous {
    let master = variables.get(launchers::MASTER_ADDR);
    let is_loopback =
        |host: &str| host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if launch.local_size == Some(launch.size)
        || (launch.launcher == Launcher::Torchrun && launch.local_size.is_none() && master.is_some_and(is_loopback))
    {
        return Rendezvous::Local;
    }
    let address = variables::RENDEZVOUS.name;
    let key = variables::KEY_FILE.name;
    match launch.launcher {
        Launcher::OpenMpi => Rendezvous::Pmix,
        Launcher::Pmi | Launcher::Slurm if launch.pmi_fd.is_some() => Rendezvous::Pmi,
        Launcher::Slurm if variables.get(launchers::PMIX_NAMESPACE).is_some() => Rendezvous::Pmix,
        Launcher::Torchrun => {
            // The port itself belongs to torch's own store; the next one is ours.
            let port = variables.get(launchers::MASTER_PORT).and_then(|port| port.parse::<u16>().ok()?.checked_add(1));
            match (master, port) {
                (Some(master), Some(port)) if settings.key.is_given() => {
                    let host = if master.contains(':') { format!("[{master}]") } else { master.to_string() };
                    Rendezvous::Tcp { address: format!("{host}:{port}"), hosted_by_launcher: false }
                }
                _ => Rendezvous::Unknown {
                    why: format!(
                        "the ranks are on several hosts, and torchrun hands no secret to them: {}, {}, no key",
                        variables.show(launchers::MASTER_ADDR),
                        variables.show(launchers::MASTER_PORT)
                    ),
                    hint: format!(
                        "give all ranks the same key by {key} or {}; rank 0 then listens at MASTER_ADDR, port MASTER_PORT + 1, or at {address}",
                        variables::KEY.name
                    ),
                },
            }
        }
        launcher => Rendezvous::Unknown {
            why: format!(
                "{} ranks, {}, and nothing says where they meet",
                launch.size,
                match launch.local_size {
                    Some(local) => format!("{local} of them on this host"),
                    None => "not known to share one host".to_string(),
                }
            ),
            hint: match launcher {
                Launcher::Slurm => format!("use srun --mpi=pmi2 or --mpi=pmix, or set {address}=host:port and {key}"),
                _ => format!(
                    "set {address}=host:port (a host that all ranks reach; rank 0 listens there) and {key}; on one host set {address}=local"
                ),
            },
        },
    }
}
