//! A whole cluster in one thread and virtual time.
//!
//! The registry and the members are the real state machines; what surrounds them is modelled: processes that crash, stop
//! and come (`process`), connections that break, delay and hold messages back (`network`), the host of the registry
//! with its disk (`judge`), and the work that members share, steps of collectives that end with a commit (`work`).
//! A seed decides everything: the size of the cluster, the settings, every delay, and which faults strike when
//! (`plan`). [`World`] runs it event by event (`world`), and `checks` watches all of it at once, as nobody inside can:
//!
//! - one view a generation: whoever installs, stores or publishes a generation does so with the same members;
//! - one verdict a step: whoever counts a step, counts it with the same contributors, once, in order; and at least the
//!   fewest members the job needs have contributed;
//! - generations only grow, at each member and in the state on the disk; nothing is said before it is on the disk;
//! - a slot is one process's for ever;
//! - a member that no fault has touched is never out, and the job never fails while enough of those are left;
//! - when the faults have stopped, all that live are in the same view and steps count again, or all have ended, and
//!   know why, within a stated time.
//!
//! Messages are delayed, held back while their ends cannot reach each other, lost with the connection that carried them,
//! and doubled. They are not put into another order within a connection, nor lost out of its middle: connections are
//! ordered, and what is not proven to come from a peer is not read. Across connections there is no order, and there it
//! arises: each process has its own delays, and one that comes back says again, over a new connection, what may
//! still be on its way over the old one, or has been heard. Members and the registry die, stop and continue, and begin
//! again, alone and together, at random moments and at the numbered points of the protocol (`plan::Point`).
//!
//! `PHALANX_TEST_SEED=n cargo test --lib sim::` runs one seed and prints what happened. `bugs` are known mistakes, made on
//! purpose between the machines and the model; a test wants each of them caught.

mod bugs;
mod checks;
mod judge;
mod large;
mod network;
mod plan;
mod process;
mod random;
mod tests;
mod work;
mod world;
