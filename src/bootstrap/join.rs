//! Meeting the others, in each of the ways.

use std::time::Duration;

use super::client::{self, Newcomer, Place, Table};
use super::config::Config;
use super::environment::{Launch, Rendezvous};
use super::key;
use super::server::{Bind, Options, RendezvousServer};
use super::variables;
use crate::membership::Roster;
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

/// The session of a rendezvous at a place that all ranks were told: there is nobody to give out a number.
const NO_SESSION: Session = [0; 16];

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
    let meeting = Meeting { config, member, key: key::given(&config.settings.key)?, deadline };
    let table = match rendezvous {
        _ if *size == 1 => meeting.alone()?,
        Rendezvous::Alone => return Err(Error::internal(format!("rank {rank} of {size} was told to be alone"))),
        Rendezvous::Tcp { address, hosted_by_launcher } => meeting.at_address(address, *hosted_by_launcher)?,
        Rendezvous::Unix { name, hosted_by_launcher } => meeting.at_socket(name, *hosted_by_launcher)?,
        Rendezvous::Unknown { why, hint } => return Err(Error::environment(why, hint)),
        _ => return Err(Error::internal("not built yet")),
    };
    Roster::from_records(*rank, *size, table.key, table.generation, table.members).map_err(Error::internal)
}

struct Meeting<'a> {
    config: &'a Config,
    member: MemberRecord,
    key: Option<JobKey>,
    deadline: Deadline,
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
        let detail = format!("rank 0 serves the rendezvous and was not reached: {why}");
        Error::Timeout { operation: "rendezvous".into(), waiting_for: vec![0], waited, detail: detail.into() }
    } else {
        Error::environment(
            format!("the launcher's rendezvous server was not reached within {:.3} s: {why}", waited.as_secs_f64()),
            format!("see that {} names a host that this one reaches", variables::RENDEZVOUS.name),
        )
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
