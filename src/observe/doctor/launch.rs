//! What started this process, and the variables that say so.

use serde::Serialize;

use super::{Finding, State};
use crate::bootstrap::{Config, Launcher, Rendezvous, Variables, foreign_variables, unknown_variables, variables};

/// A variable that is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Its value; secrets are not shown.
    pub value: String,
}

/// How this process was started, as its variables tell it.
#[derive(Clone, Debug, Serialize)]
pub struct LaunchSeen {
    /// The variables of Phalanx and of launchers that are set.
    pub variables: Vec<Seen>,
    /// Who started this process.
    pub launcher: Option<String>,
    /// The rank of this process.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub size: Option<usize>,
    /// How the ranks would meet, in words.
    pub rendezvous: Option<String>,
    /// What was seen and not used.
    pub notes: Vec<String>,
    /// Why the variables cannot be understood.
    pub error: Option<String>,
    /// The names of variables that begin like Phalanx's own and are not known.
    pub unknown: Vec<String>,
    #[serde(skip)]
    config: Option<Config>,
}

impl LaunchSeen {
    pub(super) fn look() -> Self {
        Self::from_variables(&Variables::of_process())
    }

    fn from_variables(set: &Variables) -> Self {
        let own = variables().iter().map(|variable| variable.name);
        let known: Vec<_> = own.chain(foreign_variables()).collect();
        let shown = |name: &str| {
            let text = set.show(name);
            text.split_once('=').map_or(text.clone(), |(_, value)| value.to_owned())
        };
        let seen = known.iter().filter(|name| set.get(name).is_some());
        let seen = seen.map(|name| Seen { name: (*name).to_owned(), value: shown(name) }).collect();
        let unknown = unknown_variables(set).into_iter().map(str::to_owned).collect();
        let empty = Self {
            variables: seen,
            launcher: None,
            rank: None,
            size: None,
            rendezvous: None,
            notes: Vec::new(),
            error: None,
            unknown,
            config: None,
        };
        match Config::from_variables(set) {
            Err(error) => Self { error: Some(error.to_string()), ..empty },
            Ok(config) => Self {
                launcher: Some(config.launch.launcher.name().to_owned()),
                rank: Some(config.launch.rank),
                size: Some(config.launch.size),
                rendezvous: Some(rendezvous_in_words(&config.launch.rendezvous)),
                notes: config.launch.notes.clone(),
                config: Some(config),
                ..empty
            },
        }
    }

    pub(super) fn take_config(&mut self) -> Option<Config> {
        self.config.take()
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let names: Vec<_> = self.variables.iter().map(|seen| format!("{}={}", seen.name, seen.value)).collect();
        let text = if names.is_empty() { "none that matter".into() } else { names.join(" ") };
        findings.push(Finding::new("launch", "variables", State::Ok, text));
        if let Some(error) = &self.error {
            let advice = "correct or unset what the message names; until then nothing can start here";
            findings.push(Finding::problem("launch", "world", error.clone(), advice));
        }
        if let (Some(launcher), Some(rank), Some(size)) = (&self.launcher, self.rank, self.size) {
            let text = if launcher == Launcher::None.name() {
                "nothing suggests one: a program started now is alone, as rank 0 of 1; `phalanx run -np N` makes one"
                    .into()
            } else {
                let meeting = self.rendezvous.as_deref().unwrap_or_default();
                format!("rank {rank} of {size}, from {launcher}; {meeting}")
            };
            findings.push(Finding::ok("launch", "world", text));
        }
        for note in &self.notes {
            findings.push(Finding::new("launch", "seen", State::Note, note.clone()));
        }
        for name in &self.unknown {
            let advice = "it has no effect; `phalanx doctor --variables` lists those that have";
            findings.push(Finding::note("launch", "unknown", format!("{name} is set"), advice));
        }
        findings
    }
}

fn rendezvous_in_words(rendezvous: &Rendezvous) -> String {
    let host = |by_launcher: bool| if by_launcher { "the launcher" } else { "rank 0" };
    match rendezvous {
        Rendezvous::Alone => "nobody to meet".into(),
        Rendezvous::Tcp { address, hosted_by_launcher } => {
            format!("the ranks meet at {address}, where {} listens", host(*hosted_by_launcher))
        }
        Rendezvous::Unix { name, hosted_by_launcher } => {
            format!("the ranks meet at the Unix socket @{name}, where {} listens", host(*hosted_by_launcher))
        }
        Rendezvous::File(path) => format!("the ranks meet through the file {}", path.display()),
        Rendezvous::Local => "the ranks meet on this host".into(),
        Rendezvous::Pmi => "the ranks meet through the launcher's PMI".into(),
        Rendezvous::Pmix => "the ranks meet through the launcher's PMIx".into(),
        Rendezvous::Unknown { why, hint } => format!("where the ranks meet is not known: {why}; {hint}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(variables: &[(&str, &str)]) -> LaunchSeen {
        LaunchSeen::from_variables(&variables.iter().copied().collect())
    }

    #[test]
    fn nothing_is_a_world_of_one() {
        let launch = seen(&[("HOME", "/h")]);
        assert_eq!((launch.rank, launch.size), (Some(0), Some(1)));
        assert!(launch.judge().iter().all(|finding| finding.state == State::Ok));
    }

    #[test]
    fn launchers_are_named_and_secrets_are_not_shown() {
        let key = "ab".repeat(32);
        let launch = seen(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PHALANX_KEY", &key)]);
        assert_eq!(launch.launcher.as_deref(), Some("Open MPI"));
        let text = format!("{:?} {}", launch.judge(), serde_json::to_string(&launch).expect("a value"));
        assert!(
            text.contains("OMPI_COMM_WORLD_RANK") && text.contains("PHALANX_KEY") && !text.contains(&key),
            "{text}"
        );
    }

    #[test]
    fn half_set_variables_are_a_problem_and_misspelt_ones_a_note() {
        let launch = seen(&[("PHALANX_RANK", "1")]);
        assert!(launch.judge().iter().any(|finding| finding.state == State::Problem));
        let misspelt = "PHALANX_TIMEOUT".replace("OUT", "OOT");
        let launch = seen(&[(&misspelt, "1")]);
        assert_eq!(launch.unknown, [misspelt]);
        assert!(launch.judge().iter().any(|finding| finding.state == State::Note));
    }
}
