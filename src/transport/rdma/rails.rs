//! Opened devices, and a link from its making to the moment when both sides know it.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use super::lane::{self, RdmaLane};
use super::registrations::Registrations;
use super::{Card, Place, RAISE_MEMLOCK, RdmaAddress, RdmaSettings, choice};
use crate::sys::verbs::{Context, Domain, Link, Local, Remote, status_in_words};
use crate::sys::{RingMapping, Segment, Uninherited};
use crate::transport::lane::Lane;
use crate::transport::sleep::Sleeper;

/// One device that is used, with the port and the identifier.
#[derive(Debug)]
struct Rail {
    domain: Arc<Domain>,
    registrations: Arc<Registrations<Arc<Domain>>>,
    place: Place,
}

/// The devices of a member.
#[derive(Debug)]
pub(in crate::transport) struct Rails {
    rails: Vec<Rail>,
    traffic_class: u8,
    mtu: Option<u16>,
}

impl Rails {
    /// Opens what is to be used by a member that listens on `near`; or why nothing can be.
    pub(in crate::transport) fn open(settings: &RdmaSettings, near: IpAddr) -> Result<Self, String> {
        let open = |place: Place| {
            let context = Context::open(&place.device)?;
            let domain = Domain::new(context)
                .map_err(|error| format!("the device {} gives no protection domain: {error}", place.device))?;
            let registrations = Registrations::new(domain.clone());
            Ok(Rail { domain, registrations, place })
        };
        let places = choice::choose(&choice::devices(Path::new("/")), settings, near)?;
        let rails = places.into_iter().map(open).collect::<Result<_, String>>()?;
        Ok(Self { rails, traffic_class: settings.traffic_class, mtu: settings.mtu })
    }

    /// What the other members are told.
    pub(in crate::transport) fn address(&self) -> RdmaAddress {
        let rails = u8::try_from(self.rails.len()).unwrap_or(u8::MAX);
        RdmaAddress { rails, ethernet: self.rails.first().is_some_and(|rail| rail.place.ethernet) }
    }

    /// Makes this side of a link over a rail.
    pub(in crate::transport) fn offer(&self, rail: u8) -> Result<Offered, String> {
        let rail = self.rails.get(usize::from(rail)).ok_or_else(|| format!("there is no rail {rail}"))?;
        let (place, context) = (&rail.place, rail.domain.context().clone());
        let at = format!("port {} of {}", place.port, place.device);
        let port = context.port(place.port).map_err(|error| format!("{at} cannot be asked: {error}"))?;
        if !port.active {
            return Err(format!("{at} is down"));
        }
        let ring = || {
            let segment = Segment::create("phalanx-rdma", lane::RING_BYTES)?;
            RingMapping::new(&segment, 0, lane::RING_BYTES)
        };
        let rings = ring().and_then(|incoming| Ok((incoming, ring()?)));
        let (incoming, outgoing) = rings.map_err(|error| format!("no memory for the rings of a link: {error}"))?;
        let link = Link::new(rail.domain.clone(), incoming, outgoing, lane::DEPTHS, place.port)
            .map_err(|(what, error)| no_link(what, &error, &place.device))?;
        link.post_receives(lane::DEPTHS.receive)
            .map_err(|error| format!("no receives can be posted on {at}: {error}"))?;
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|error| format!("no random numbers: {error}"))?;
        let local = Local {
            port: place.port,
            gid_index: place.gid.as_ref().map_or(0, |gid| gid.index),
            global: place.ethernet || place.gid.is_some(),
            traffic_class: self.traffic_class,
            first_packet: u32::from_le_bytes(random) >> 8,
        };
        let (address, key) = link.target();
        let card = Card {
            ethernet: port.ethernet,
            queue_pair: link.number(),
            first_packet: local.first_packet,
            lid: port.lid,
            mtu: self.mtu.map_or(port.mtu, |mtu| code_of(mtu).min(port.mtu)),
            messages: lane::MESSAGES,
            gid: place.gid.as_ref().map_or([0; 16], |gid| gid.address.octets()),
            address,
            key,
            ring_bytes: lane::RING_BYTES as u32,
        };
        let registrations = rail.registrations.clone();
        Ok(Offered { link, context, registrations, local, card })
    }
}

/// The code of the specification for a packet of so many bytes.
fn code_of(mtu: u16) -> u8 {
    match mtu {
        0..512 => 1,
        512..1024 => 2,
        1024..2048 => 3,
        2048..4096 => 4,
        4096.. => 5,
    }
}

/// Why a link could not be made, with the limit, the need and the remedy where memory is what is missing.
fn no_link(what: &str, error: &io::Error, device: &str) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let need = 2 * lane::RING_BYTES;
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM | libc::EPERM), Some(limit)) => format!(
            "{device} gives no {what}: {error}. A link locks {need} bytes of memory and the adapter's own queues; the limit \
             of this process is {limit} bytes. Raise it: {RAISE_MEMLOCK}"
        ),
        _ => format!("{device} gives no {what}: {error}"),
    }
}

/// A link that waits for the peer's side.
#[derive(Debug)]
pub(in crate::transport) struct Offered {
    link: Link,
    context: Arc<Context>,
    registrations: Arc<Registrations<Arc<Domain>>>,
    local: Local,
    card: Card,
}

impl Offered {
    /// What the peer is told of it.
    pub(in crate::transport) fn card(&self) -> Card {
        self.card
    }

    /// Connects it to the peer's side; or why that cannot be.
    pub(in crate::transport) fn connect(self, peer: &Card) -> Result<Connected, String> {
        let own = &self.card;
        if peer.ethernet != own.ethernet {
            return Err("one side is Ethernet, the other InfiniBand".into());
        }
        if (peer.messages, peer.ring_bytes) != (own.messages, own.ring_bytes) {
            return Err(format!(
                "the peer's ring has {} bytes and takes {} messages, ours {} and {}",
                peer.ring_bytes, peer.messages, own.ring_bytes, own.messages
            ));
        }
        let remote = Remote {
            queue_pair: peer.queue_pair,
            first_packet: peer.first_packet,
            lid: peer.lid,
            gid: peer.gid,
            mtu: peer.mtu.min(own.mtu),
            address: peer.address,
            key: peer.key,
        };
        self.link
            .connect(&self.local, &remote)
            .map_err(|error| format!("the queue pair on {} cannot be connected: {error}", self.context.name()))?;
        let Self { link, context, registrations, local, .. } = self;
        Ok(Connected { link, context, registrations, port: local.port, remote })
    }
}

/// A link both of whose sides are known.
#[derive(Debug)]
pub(in crate::transport) struct Connected {
    pub(super) link: Link,
    pub(super) context: Arc<Context>,
    pub(super) registrations: Arc<Registrations<Arc<Domain>>>,
    pub(super) port: u8,
    pub(super) remote: Remote,
}

impl Connected {
    /// Becomes readable when there is something to hear.
    pub(in crate::transport) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.link.events()
    }

    /// From where to where its packets go, in words.
    pub(in crate::transport) fn way(&self) -> String {
        let (name, port) = (self.context.name(), self.port);
        match Ipv6Addr::from(self.remote.gid) {
            gid if gid.is_unspecified() => format!("from {name} port {port} to LID {}", self.remote.lid),
            gid => {
                let ip = gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4);
                format!("from {name} port {port} to GID {ip}")
            }
        }
    }

    /// Sends the peer's adapter a packet, which shows it that there is a way.
    pub(in crate::transport) fn send_trial(&self) -> Result<(), String> {
        let sent = self.link.post_word(lane::TRIAL, Some(0));
        sent.map_err(|error| format!("{} refused a packet: {error}", self.context.name()))
    }

    /// Whether the peer's packet has come. If not, the next event is to be waited for.
    pub(in crate::transport) fn hear_trial(&self) -> Result<bool, String> {
        let device = |error: io::Error| format!("{} cannot be listened to: {error}", self.context.name());
        let (mut came, mut sent) = (Vec::new(), Vec::new());
        // Armed first, then looked: what comes between is not missed.
        self.link.arm(true).map_err(device)?;
        self.link.poll_received(&mut came).map_err(device)?;
        self.link.poll_sent(&mut sent).map_err(device)?;
        if let Some(failed) = came.iter().chain(&sent).find(|one| one.status != 0) {
            let words = status_in_words(failed.status);
            return Err(format!("no packet got {}: {words} (status {})", self.way(), failed.status));
        }
        match came.as_slice() {
            [] => Ok(false),
            [one] if (one.word, one.bytes) == (lane::TRIAL, 0) => {
                self.link.post_receives(1).map_err(device)?;
                Ok(true)
            }
            _ => Err("the peer's adapter sent something else than a trial packet".into()),
        }
    }

    /// The lane over it, whose end is told by `socket`.
    pub(in crate::transport) fn into_lane(
        self,
        socket: Uninherited<OwnedFd>,
        sleeper: Arc<Sleeper>,
        peer: usize,
    ) -> io::Result<Box<dyn Lane>> {
        Ok(Box::new(RdmaLane::new(self, socket, sleeper, peer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_locked_memory_is_told_with_limit_need_and_remedy() {
        let text = no_link("registered memory", &io::Error::from_raw_os_error(libc::ENOMEM), "mlx5_0");
        if rustix::process::getrlimit(rustix::process::Resource::Memlock).current.is_some() {
            assert!(text.contains("1048576 bytes") && text.contains("ulimit -l unlimited"), "{text}");
        } else {
            assert!(text.starts_with("mlx5_0 gives no registered memory"), "{text}");
        }
        let other = no_link("a queue pair", &io::Error::from_raw_os_error(libc::EINVAL), "mlx5_0");
        assert!(!other.contains("ulimit"), "{other}");
    }

    #[test]
    fn packets_are_never_longer_than_asked_for() {
        assert_eq!([256, 512, 1024, 2048, 4096].map(code_of), [1, 2, 3, 4, 5]);
    }
}
