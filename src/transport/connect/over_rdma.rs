//! Connecting queue pairs: the exchange over an authenticated connection, and the trial packets that show whether the
//! adapters reach each other at all.
//!
//! ```text
//!   dialler                          the other
//!   Offer       ---- TCP ---->
//!               <--- TCP -----       Reply, its queue pair being connected
//!   a packet    ---- RDMA --->
//!               <--- RDMA ----       a packet
//!   Commit      ---- TCP ---->
//! ```
//!
//! Two hosts can have adapters that no packet gets between: separate networks, a VLAN, a firewall before RoCE's port. So
//! nothing is committed before a packet went each way; without one the dialler says so and takes TCP.

use std::time::{Duration, Instant};

use super::TransportPolicy;
use super::connection::{Connection, Stage};
use super::driver::{Driver, End, LISTENS};
use crate::transport::rdma::{Message, Offered};

/// How long a packet may take to the peer and back: an adapter repeats it each second. At most half of the time that is left
/// to connect, so that there is some for TCP.
const TRIAL: Duration = Duration::from_secs(4);

const NO_WAY: &str = "the adapters do not reach each other: look at network, VLAN and firewall (UDP port 4791), and at the \
                      devices and GIDs that are used (PHALANX_RDMA_DEVICE, PHALANX_RDMA_GID_INDEX)";

impl Driver {
    fn make_offer(&self, rail: u8) -> Result<Offered, String> {
        self.listeners.rails.as_ref().ok_or("this rank has no RDMA")?.offer(rail)
    }

    pub(super) fn offer_rdma(&mut self, connection: &mut Connection) -> Result<(), End> {
        match self.make_offer(connection.lane) {
            Ok(offered) => {
                connection.queue(&Message::Offer(offered.card()).encode());
                connection.stage = Stage::RdmaOffered(Box::new(offered));
                Ok(())
            }
            Err(why) => {
                // So that the other side knows before it would find the connection closed.
                connection.queue(&Message::NoOffer.encode());
                let _ = connection.flush();
                Err(End::Rdma(why))
            }
        }
    }

    /// A message of the exchange has come.
    pub(super) fn exchange_rdma(
        &mut self,
        key: u64,
        connection: &mut Connection,
        message: Option<Message>,
        now: Instant,
    ) -> Result<(), End> {
        self.end_trial(connection);
        let stage = std::mem::replace(&mut connection.stage, Stage::Lingering);
        connection.stage = match (stage, message) {
            (Stage::RdmaOffered(offered), Some(Message::Reply(card))) => {
                let connected = offered.connect(&card).map_err(End::Rdma)?;
                connected.send_trial().map_err(End::Rdma)?;
                let left = connection.deadline.saturating_duration_since(now);
                Stage::RdmaOnTrial(Box::new(connected), now + TRIAL.min(left / 2))
            }
            (Stage::RdmaOffered(_) | Stage::RdmaOnTrial(..), Some(Message::NoReply)) => {
                return Err(End::Rdma("the other side could not use its queue pair: its log says why".into()));
            }
            (Stage::RdmaAwaitsOffer, Some(Message::Offer(card))) => {
                let replied = self.make_offer(connection.lane).and_then(|own| {
                    let reply = Message::Reply(own.card());
                    Ok((reply, own.connect(&card)?))
                });
                match replied {
                    Ok((reply, connected)) => {
                        connection.queue(&reply.encode());
                        Stage::RdmaAwaitsTrial(Box::new(connected))
                    }
                    Err(why) => {
                        connection.queue(&Message::NoReply.encode());
                        let _ = connection.flush();
                        return Err(End::Rdma(why));
                    }
                }
            }
            (Stage::RdmaAwaitsOffer, Some(Message::NoOffer)) => {
                return Err(End::Rdma("the other side has no queue pair to offer: its log says why".into()));
            }
            (Stage::RdmaAwaitsTrial(tried) | Stage::RdmaAwaitsCommit(tried), Some(Message::NoCommit)) => {
                return Err(End::Rdma(format!("no packet got {} and back; {NO_WAY}", tried.way())));
            }
            (Stage::RdmaAwaitsCommit(connected), Some(Message::Commit)) => Stage::Up(Some(connected)),
            _ => return Err(End::Rdma("the other side sent something else than agreed".into())),
        };
        if let Some(events) = connection.on_trial().and_then(|tried| tried.events()) {
            self.epoll.add(events, key, LISTENS)?;
        }
        // It may have come already.
        self.hear_trial(connection)
    }

    /// Looks whether the peer's packet has come, and goes on if so.
    pub(super) fn hear_trial(&mut self, connection: &mut Connection) -> Result<(), End> {
        let Some(tried) = connection.on_trial() else { return Ok(()) };
        match tried.hear_trial() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(why) => {
                Self::tell_of_failure(connection);
                return Err(End::Rdma(why));
            }
        }
        self.end_trial(connection);
        connection.stage = match std::mem::replace(&mut connection.stage, Stage::Lingering) {
            Stage::RdmaOnTrial(connected, _) => {
                connection.queue(&Message::Commit.encode());
                Stage::Up(Some(connected))
            }
            Stage::RdmaAwaitsTrial(connected) => {
                connected.send_trial().map_err(End::Rdma)?;
                Stage::RdmaAwaitsCommit(connected)
            }
            stage => stage,
        };
        Ok(())
    }

    /// Waits for the adapter no more on behalf of this connection.
    pub(super) fn end_trial(&self, connection: &Connection) {
        if let Some(events) = connection.on_trial().and_then(|tried| tried.events()) {
            // It is in the set as long as the connection is in that stage.
            let _ = self.epoll.remove(events);
        }
    }

    /// So that the other side knows why before it would find the connection closed.
    fn tell_of_failure(connection: &mut Connection) {
        let message = match connection.stage {
            Stage::RdmaOnTrial(..) => Message::NoCommit,
            _ => Message::NoReply,
        };
        connection.queue(&message.encode());
        let _ = connection.flush();
    }

    /// Gives up links that no packet has come over.
    pub(super) fn handle_trial_timeouts(&mut self, now: Instant) {
        let is_late = |connection: &Connection| connection.trial_deadline().is_some_and(|until| until <= now);
        let late: Vec<u64> =
            self.connections.iter().filter(|(_, connection)| is_late(connection)).map(|(&key, _)| key).collect();
        for key in late {
            let Some(mut connection) = self.remove(key) else { continue };
            let way = connection.on_trial().map(|tried| tried.way()).unwrap_or_default();
            Self::tell_of_failure(&mut connection);
            self.handle_end(connection, End::Rdma(format!("no packet got {way} and back; {NO_WAY}")), now);
        }
    }

    /// Says why there is no RDMA with a peer although this side has it: with a warning the first time, since others
    /// are likely to follow for the same reason.
    pub(super) fn say_no_rdma(&mut self, rank: usize, why: &str) {
        let first = !std::mem::replace(&mut self.said_no_rdma, true);
        match (first, self.config.transport) {
            (true, TransportPolicy::Rdma) => tracing::warn!(rank, %why, "no RDMA with this rank, which asked for it"),
            (true, _) => {
                tracing::warn!(rank, %why, "no RDMA with this rank, and perhaps others: TCP is used, which is slower");
            }
            (false, _) => tracing::debug!(rank, %why, "no RDMA with this rank"),
        }
    }
}
