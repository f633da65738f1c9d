//! Meeting the others, in each of the ways.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::client::{self, Failure, Newcomer, Place, Table};
use super::config::Config;
use super::environment::{Launch, Rendezvous};
use super::pmi::{Pmi, PmiError};
use super::pmix::{self, PmixError};
use super::publication::{self, Publication};
use super::server::{Bind, Options, RendezvousServer};
use super::{file, key, local, variables};
use crate::membership::Roster;
use crate::sys::HostIdentity;
use crate::transport::listen::ListenAddresses;
use crate::types::{Deadline, Error, Generation, Result};
use crate::wire::handshake::JobKey;
use crate::wire::rendezvous::{self, MemberRecord, Session};

/// What this member tells the others about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// Where it listens, in the transports' own form; at most 4 KiB.
    pub addresses: Vec<u8>,
    /// Equal for two members exactly when they share a host; at most 256 bytes.
    pub host: Vec<u8>,
}

impl Introduction {
    /// That of a member that can be reached at `addresses`.
    pub fn new(addresses: &ListenAddresses) -> Self {
        Introduction { addresses: addresses.encode(), host: Self::host_bytes(&addresses.host) }
    }

    /// A host's identity in the form in which members tell it.
    pub fn host_bytes(host: &HostIdentity) -> Vec<u8> {
        format!("{host:?}").into_bytes()
    }
}

/// The session of a rendezvous at a place that all ranks were told: there is nobody to give out a number.
const NO_SESSION: Session = [0; 16];

/// The most bytes that are put into PMIx.
const MAX_PMIX_LINE: usize = 4096;

/// Meets all other ranks and returns the table of all, at the latest at `deadline`.
///
/// Every connection proves the job's key both ways before anything else it says is read.
///
/// # Errors
///
/// [`Error::Timeout`] names the ranks that did not come; [`Error::PeerFailed`] one that came and went;
/// [`Error::Environment`] says what contradicts what, or what is missing to meet.
pub fn join(config: &Config, introduction: Introduction, deadline: Deadline) -> Result<Roster> {
    let Launch { rank, size, rendezvous, .. } = &config.launch;
    if introduction.addresses.len() > rendezvous::MAX_ADDRESSES || introduction.host.len() > rendezvous::MAX_HOST {
        return Err(Error::internal(format!(
            "{} bytes of addresses and {} of host identity; at most {} and {} travel",
            introduction.addresses.len(),
            introduction.host.len(),
            rendezvous::MAX_ADDRESSES,
            rendezvous::MAX_HOST
        )));
    }
    let member = MemberRecord {
        rank: *rank,
        pid: std::process::id(),
        host: introduction.host,
        host_name: host_name(),
        addresses: introduction.addresses,
    };
    let meeting = Meeting { config, member, key: key::given(&config.settings.key)?, deadline, began: Instant::now() };
    let table = match rendezvous {
        _ if *size == 1 => meeting.alone()?,
        Rendezvous::Alone => return Err(Error::internal(format!("rank {rank} of {size} was told to be alone"))),
        Rendezvous::Tcp { address, hosted_by_launcher } => meeting.at_address(address, *hosted_by_launcher)?,
        Rendezvous::Unix { name, hosted_by_launcher } => meeting.at_socket(name, *hosted_by_launcher)?,
        Rendezvous::Local => meeting.at_socket(&local::socket_name(&config.launch), false)?,
        Rendezvous::File(path) => meeting.through_file(path)?,
        Rendezvous::Pmi => meeting.through_pmi()?,
        Rendezvous::Pmix => meeting.through_pmix()?,
        Rendezvous::Unknown { why, hint } => return Err(Error::environment(why, hint)),
    };
    Roster::from_records(*rank, *size, table.key, table.generation, table.members).map_err(Error::internal)
}

struct Meeting<'a> {
    config: &'a Config,
    member: MemberRecord,
    key: Option<JobKey>,
    deadline: Deadline,
    began: Instant,
}

impl Meeting<'_> {
    fn rank(&self) -> usize {
        self.config.launch.rank
    }

    fn size(&self) -> usize {
        self.config.launch.size
    }

    fn alone(self) -> Result<Table> {
        let key = self.key.map_or_else(key::new_key, Ok)?;
        Ok(Table { key, generation: Generation::FIRST, members: vec![self.member] })
    }

    /// At a place that all were told.
    fn at_address(self, address: &str, hosted_by_launcher: bool) -> Result<Table> {
        let key = self.key_for_network(&format!("{}={address}", variables::RENDEZVOUS.name))?;
        let server = self.serve_if(!hosted_by_launcher, key.clone(), Bind::Tcp(address.into()), NO_SESSION, None)?;
        let table = self.meet(Place::Tcp(address.into()), Some(key), NO_SESSION, !hosted_by_launcher);
        drop(server);
        table
    }

    /// At an abstract Unix socket.
    fn at_socket(self, name: &str, hosted_by_launcher: bool) -> Result<Table> {
        let serves = !hosted_by_launcher && self.rank() == 0;
        let server = match serves {
            true => {
                let key = self.key.clone().map_or_else(key::new_key, Ok)?;
                self.serve_if(true, key, Bind::Unix(name.into()), NO_SESSION, None)?
            }
            false => None,
        };
        let table = self.meet(Place::Unix(name.into()), self.key.clone(), NO_SESSION, !hosted_by_launcher);
        drop(server);
        table
    }

    /// Through a file that all ranks see.
    fn through_file(self, path: &Path) -> Result<Table> {
        if self.rank() == 0 {
            let (server, publication) = self.serve_and_tell(|publication| file::write(path, publication))?;
            let table = self.meet(Place::AnyOf(publication.addresses), Some(server.1), publication.session, true);
            drop(server.0);
            return table;
        }
        // What is in the file may be left over from an earlier run: until the deadline it is read again.
        client::until_deadline(
            self.deadline,
            || {
                let publication = file::read(path).map_err(Failure::Again)?;
                let key = self.key.clone().or(publication.key);
                let key = key.ok_or_else(|| Failure::Again(format!("{} has no key", path.display())))?;
                let newcomer = self.newcomer(Some(key), publication.session, true);
                client::meet(&Place::AnyOf(publication.addresses), &newcomer, self.deadline).map_err(|failure| {
                    match failure {
                        Failure::Stranger(error) => Failure::Again(error.to_string()),
                        failure => failure,
                    }
                })
            },
            |why, waited| unreached(true, why, waited),
        )
    }

    /// Through the launcher's PMI service.
    fn through_pmi(self) -> Result<Table> {
        let fd = self.config.launch.pmi_fd.ok_or_else(|| self.no_service("PMI", "PMI_FD is not set"))?;
        let failed = |error| match error {
            PmiError::Unusable(why) => self.no_service("PMI", &why),
            PmiError::Barrier => self.not_all_entered("PMI"),
        };
        let mut pmi = Pmi::begin(fd, self.deadline).map_err(failed)?;
        let served = if self.rank() == 0 {
            Some(self.serve_and_tell(|publication| pmi.put(&publication.encode(pmi.max_value())).map_err(failed))?)
        } else {
            None
        };
        let line = pmi.meet().map_err(failed)?;
        pmi.finish().map_err(failed)?;
        let table = self.meet_as_told("PMI", &line);
        drop(served);
        table
    }

    /// Through the launcher's PMIx service.
    fn through_pmix(self) -> Result<Table> {
        let failed = |error| match error {
            PmixError::Unusable(why) => self.no_service("PMIx", &why),
            PmixError::Fence => self.not_all_entered("PMIx"),
        };
        let mut line = None;
        let served = if self.rank() == 0 {
            Some(self.serve_and_tell(|publication| {
                line = Some(publication.encode(MAX_PMIX_LINE));
                Ok(())
            })?)
        } else {
            None
        };
        let line = pmix::exchange(line, self.deadline).map_err(failed)?;
        let table = self.meet_as_told("PMIx", &line);
        drop(served);
        table
    }

    fn meet_as_told(&self, service: &str, line: &str) -> Result<Table> {
        let publication = Publication::decode(line).map_err(|why| self.no_service(service, &why))?;
        let key = self.key.clone().or(publication.key);
        let key = key.ok_or_else(|| self.no_service(service, "rank 0 was given a key, this rank was not"))?;
        self.meet(Place::AnyOf(publication.addresses), Some(key), publication.session, true)
    }

    fn no_service(&self, service: &str, why: &str) -> Error {
        Error::environment(
            format!("the ranks cannot meet through the launcher's {service} service: {why}"),
            format!(
                "set {}=host:port, which all ranks reach and where rank 0 listens, and {}; on one host set {0}=local",
                variables::RENDEZVOUS.name,
                variables::KEY_FILE.name
            ),
        )
    }

    /// The service does not say who is missing.
    fn not_all_entered(&self, service: &str) -> Error {
        Error::Timeout {
            operation: "rendezvous".into(),
            waiting_for: (0..self.size()).filter(|&rank| rank != self.rank()).collect(),
            waited: self.began.elapsed(),
            detail: format!("some of these did not come; {service} does not say which").into(),
        }
    }

    /// Rank 0's part where it tells the others itself: a server somewhere, and `tell` with how to reach it.
    fn serve_and_tell<T: Send + 'static>(
        &self,
        tell: impl FnOnce(&Publication) -> Result<T>,
    ) -> Result<((RendezvousServer, JobKey), Publication)> {
        let settings = &self.config.settings;
        let session: Session = key::random()?;
        let made = if self.key.is_some() { None } else { Some(key::new_key()?) };
        let key = made.clone().or_else(|| self.key.clone()).ok_or_else(|| Error::internal("no key"))?;
        // What was told is taken back before anybody knows that all are there: whoever comes again then must not
        // find it.
        let told: Arc<Mutex<Option<T>>> = Arc::default();
        let taken_back = told.clone();
        let on_complete = Box::new(move || drop(taken_back.lock().unwrap_or_else(PoisonError::into_inner).take()));
        let server = RendezvousServer::start_with(Options {
            size: self.size(),
            key: key.clone(),
            bind: publication::bind(settings)?,
            session,
            deadline: None,
            repeat: false,
            on_complete: Some(on_complete),
        })?;
        let port = server.port().ok_or_else(|| Error::internal("a TCP server without a port"))?;
        let addresses = publication::reachable(settings, server.address(), port)?;
        let publication = Publication { session, key: made, addresses };
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell(&publication)?);
        Ok(((server, key), publication))
    }

    fn key_for_network(&self, place: &str) -> Result<JobKey> {
        self.key.clone().ok_or_else(|| {
            Error::environment(
                format!("the ranks meet at {place}, where strangers can connect, and no key was given"),
                key::hint(),
            )
        })
    }

    /// Starts the server, if this is rank 0 and rank 0 serves.
    fn serve_if(
        &self,
        rank_0_serves: bool,
        key: JobKey,
        bind: Bind,
        session: Session,
        on_complete: Option<Box<dyn FnOnce() + Send>>,
    ) -> Result<Option<RendezvousServer>> {
        if !rank_0_serves || self.rank() != 0 {
            return Ok(None);
        }
        let options = Options { size: self.size(), key, bind, session, deadline: None, repeat: false, on_complete };
        RendezvousServer::start_with(options).map(Some)
    }

    fn newcomer(&self, key: Option<JobKey>, session: Session, rank_0_serves: bool) -> Newcomer {
        Newcomer { size: self.size(), session, member: self.member.clone(), key, rank_0_serves }
    }

    fn meet(&self, place: Place, key: Option<JobKey>, session: Session, rank_0_serves: bool) -> Result<Table> {
        let newcomer = self.newcomer(key, session, rank_0_serves);
        client::until_deadline(
            self.deadline,
            || client::meet(&place, &newcomer, self.deadline),
            |why, waited| unreached(rank_0_serves, why, waited),
        )
    }
}

/// The error when the server was never reached.
fn unreached(rank_0_serves: bool, why: String, waited: Duration) -> Error {
    if rank_0_serves {
        let scope =
            if why.starts_with("unix:") { "; such sockets are seen only within one network namespace" } else { "" };
        let detail = format!("rank 0 serves the rendezvous and was not reached: {why}{scope}");
        Error::Timeout { operation: "rendezvous".into(), waiting_for: vec![0], waited, detail: detail.into() }
    } else {
        Error::environment(
            format!("the launcher's rendezvous server was not reached within {:.3} s: {why}", waited.as_secs_f64()),
            format!("see that {} names a host that this one reaches", variables::RENDEZVOUS.name),
        )
    }
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
