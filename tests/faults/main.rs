//! Faults of real processes in elastic jobs: each rank and the registry are processes of their own, which are killed,
//! stopped and cut off, at every numbered point of the protocol and at random moments, while an oracle reads what each
//! of them says about every step.
//!
//! `worker` is what a rank does, `told` what it says, `oracle` holds it against what all others say, `job` starts and
//! harms processes one by one, `launched` has the launcher start them, `leftovers` looks for what they left behind.
//! The rest are the tests.

mod churn;
mod crowd;
mod job;
mod launched;
mod leftovers;
mod matrix;
mod oracle;
mod registry;
mod told;
mod worker;
