//! `phalanx status` and `phalanx evict`.

use std::fmt::Write;
use std::process::ExitCode;

use phalanx::bootstrap::{Variables, settings};
use phalanx::launch::operator::{Operator, only_registry};
use phalanx::types::{Error, Result};
use phalanx::wire::registry::{MemberStatus, Status as JobStatus, Whom};
use serde_json::json;

/// Which registry is meant.
#[derive(Debug, clap::Args)]
struct Place {
    /// Where the job's registry listens [default: PHALANX_REGISTRY, or this user's only elastic job on this machine].
    #[arg(long, value_name = "ADDRESS")]
    registry: Option<String>,
}

impl Place {
    fn dial(&self) -> Result<Operator> {
        let settings = settings(&Variables::of_process())?;
        let place = match self.registry.clone().or(settings.registry) {
            Some(place) => place,
            None => only_registry()?,
        };
        Operator::dial(&place, &settings.key)
    }
}

/// Show how an elastic job is: its members, what each does, what is waited for.
///
/// A job that `phalanx run` started on this machine is found by itself. For a registry elsewhere give its address and, in
/// PHALANX_KEY or PHALANX_KEY_FILE, its key.
#[derive(Debug, clap::Args)]
#[command(after_long_help = STATUS_HELP)]
pub struct Status {
    #[command(flatten)]
    place: Place,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

const STATUS_HELP: &str = "\
Examples:
  phalanx status
      The job that runs here.
  PHALANX_KEY_FILE=key phalanx status --registry node1:29500 --json
      One whose registry is elsewhere, for a program.

What is shown:
  A member is known by its slot, which it keeps; its rank changes with the view. A view is a generation of the job's
  members. How a member is:
    live    it gives signs of life
    slow    so it does, but its work does not advance, and others wait for it
    silent  its host answers, but it gives no sign of life: it may be stopped
    away    its connection is broken; it may come back
    left    it said goodbye
    gone    it is out; the next view says so
  Last sign is when it was last heard, work how many operations it finished, idle since when that has not grown.
  How many steps count is what the members told with their last signs of life.";

/// Take a member out of an elastic job. The others go on without it.
///
/// It learns that it is out, can do the others no harm, and is replaced if the job has a launcher that does so. A member
/// that is to go between two steps gets SIGTERM instead.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EVICT_HELP)]
pub struct Evict {
    /// The member with this rank in the present view.
    #[arg(value_name = "RANK", required_unless_present = "slot")]
    rank: Option<usize>,
    /// The member in this slot, which stays the same when ranks change.
    #[arg(long, value_name = "N", conflicts_with = "rank")]
    slot: Option<usize>,
    /// Why, for the member and the others.
    #[arg(long, value_name = "TEXT", default_value = "an operator wanted it out")]
    reason: String,
    #[command(flatten)]
    place: Place,
}

const EVICT_HELP: &str = "\
Examples:
  phalanx evict --slot 5 --reason 'its host has a failing disk'
      `phalanx status` shows the slots.
  phalanx evict 2
      The rank that is 2 at this moment.

Exit codes:
  0  it is out
  1  the registry cannot be reached
  2  there is no such member";

impl Status {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let status = self.place.dial().and_then(|mut operator| operator.status());
        match status {
            Ok(status) if self.json => super::print(&format!("{:#}\n", as_json(&status)), ExitCode::SUCCESS),
            Ok(status) => super::print(&as_text(&status), ExitCode::SUCCESS),
            Err(error) => failed(&error),
        }
    }
}

impl Evict {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let whom = match (self.rank, self.slot) {
            (_, Some(slot)) => Whom::Slot(slot),
            (rank, None) => Whom::Rank(rank.unwrap_or(0)),
        };
        let done = self.place.dial().and_then(|mut operator| operator.evict(whom, &self.reason));
        match done {
            Ok(what) => super::print(&format!("{what}\n"), ExitCode::SUCCESS),
            Err(error) => failed(&error),
        }
    }
}

fn failed(error: &Error) -> ExitCode {
    eprintln!("phalanx: {error}");
    ExitCode::from(if matches!(error, Error::InvalidArgument { .. }) { 2 } else { 1 })
}

fn plural(count: u64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn as_text(status: &JobStatus) -> String {
    let mut text = String::new();
    let ranks = status.members.iter().filter(|member| member.rank.is_some()).count();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{}, view {}: {} (at least {}, at most {}), {} {}, members changed {}",
        status.phase.name(),
        status.generation.0,
        plural(ranks as u64, "rank"),
        status.min_np,
        status.max_np,
        plural(status.counted, "step"),
        if status.counted == 1 { "counts" } else { "count" },
        plural(status.changes, "time")
    );
    if !status.waits_for.is_empty() {
        let _ = writeln!(text, "waits for {}", status.waits_for);
    }
    if !status.members.is_empty() {
        let _ = writeln!(
            text,
            "\n{:>5} {:>5}  {:<20} {:>8}  {:<7} {:>10} {:>10} {:>10}",
            "rank", "slot", "host", "pid", "is", "last sign", "work", "idle"
        );
    }
    for member in &status.members {
        let MemberStatus { slot, process, condition, quiet, progress, idle, .. } = member;
        let rank = member.rank.map_or("waits".into(), |rank| rank.to_string());
        let _ = writeln!(
            text,
            "{rank:>5} {slot:>5}  {:<20} {:>8}  {:<7} {:>9.1}s {progress:>10} {:>9.1}s",
            process.host_name,
            process.pid,
            condition.name(),
            quiet.as_secs_f64(),
            idle.as_secs_f64()
        );
    }
    text
}

fn as_json(status: &JobStatus) -> serde_json::Value {
    let member = |member: &MemberStatus| {
        json!({
            "slot": member.slot,
            "rank": member.rank,
            "host": member.process.host_name,
            "pid": member.process.pid,
            "condition": member.condition.name(),
            "quiet_seconds": member.quiet.as_secs_f64(),
            "operations": member.progress,
            "idle_seconds": member.idle.as_secs_f64(),
            "has_reported": member.has_reported,
        })
    };
    json!({
        "phase": status.phase.name(),
        "generation": status.generation.0,
        "counted_steps": status.counted,
        "changes": status.changes,
        "min_np": status.min_np,
        "max_np": status.max_np,
        "waits_for": status.waits_for,
        "members": status.members.iter().map(member).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use phalanx::types::Generation;
    use phalanx::wire::registry::{Condition, Phase, ProcessRecord};

    use super::*;

    fn status() -> JobStatus {
        let process = ProcessRecord { pid: 4711, host_name: "node1".into(), ..ProcessRecord::default() };
        let member = MemberStatus {
            slot: 3,
            rank: Some(0),
            process: process.into(),
            condition: Condition::Silent,
            quiet: Duration::from_millis(6500),
            progress: 12,
            idle: Duration::from_secs(7),
            has_reported: false,
        };
        let newcomer = MemberStatus { slot: 4, rank: None, condition: Condition::Live, ..member.clone() };
        JobStatus {
            phase: Phase::Waiting,
            generation: Generation(5),
            counted: 120,
            changes: 4,
            min_np: 2,
            max_np: 6,
            waits_for: "at least 2 members".into(),
            members: vec![member, newcomer],
        }
    }

    #[test]
    fn a_person_sees_who_is_how() {
        let text = as_text(&status());
        assert!(text.starts_with(
            "waiting, view 5: 1 rank (at least 2, at most 6), 120 steps count, members changed 4 times\n\
             waits for at least 2 members\n\n"
        ));
        let rows: Vec<Vec<&str>> = text.lines().skip(4).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["0", "3", "node1", "4711", "silent", "6.5s", "12", "7.0s"]);
        assert_eq!(rows[1][..2], ["waits", "4"]);
    }

    #[test]
    fn a_program_sees_the_same() {
        let value = as_json(&status());
        assert_eq!((&value["phase"], &value["generation"]), (&json!("waiting"), &json!(5)));
        assert_eq!(value["members"][0]["condition"], json!("silent"));
        assert_eq!(value["members"][0]["quiet_seconds"], json!(6.5));
        assert_eq!(value["members"][1]["rank"], json!(null));
    }
}
