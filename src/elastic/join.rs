//! How a process becomes a member.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::client::{Client, ClientConfig};
use super::control::Control;
use super::ledger::Shared;
use super::{Elastic, GoOn, Keep};
use crate::bootstrap::{self, Launch, Rendezvous, Settings, Variables};
use crate::comm::{policy, told};
use crate::membership::member::{Member, MemberConfig};
use crate::sys::points;
use crate::transport::listen::{ListenConfig, Listeners};
use crate::types::{Error, Generation, Result};
use crate::wire::registry::ProcessRecord;

/// Joins the elastic job that this process's environment names (`PHALANX_REGISTRY`, which `phalanx run` sets for elastic
/// jobs), and waits for a view with it in: the job's first, or the next one between two steps. [`Elastic::sync`] comes
/// next.
///
/// # Errors
///
/// [`Error::Environment`] when no registry is named, it cannot be reached, it refuses, or there is no view in time.
pub fn join() -> Result<Elastic> {
    let variables = Variables::of_process();
    bootstrap::unknown_in_words(&variables).for_each(|note| tracing::warn!("{note}"));
    Elastic::join(&bootstrap::settings(&variables)?)
}

impl Elastic {
    /// As [`join`], with settings from elsewhere.
    ///
    /// # Errors
    ///
    /// As [`join`].
    pub fn join(settings: &Settings) -> Result<Self> {
        Self::join_while(settings, None)
    }

    pub(super) fn join_while(settings: &Settings, go_on: Option<GoOn>) -> Result<Self> {
        points::arm_from_environment()?;
        let Some(place) = settings.registry.clone() else {
            return Err(Error::environment(
                "no registry is named, so that there is no elastic job to join",
                "start the program with `phalanx run --min-np N ...`, or set PHALANX_REGISTRY and PHALANX_KEY_FILE",
            ));
        };
        let policy = policy(settings.transport)?;
        let rendezvous = match place.strip_prefix("unix:@") {
            Some(name) => Rendezvous::Unix { name: name.into(), hosted_by_launcher: true },
            None => Rendezvous::Tcp { address: place.clone(), hosted_by_launcher: true },
        };
        // Sizes and ranks are the registry's business: only the way to it matters here.
        let launch = Launch { size: 2, rendezvous, ..Launch::default() };
        let listeners = Listeners::bind(&ListenConfig {
            address: bootstrap::listen_address(&launch)?,
            interface: settings.interface.clone(),
            ports: settings.ports.clone(),
            shared_memory: policy.shares_memory(),
            rdma: policy.rdma(&settings.rdma),
        })?;
        let table = told::table(settings)?;
        let introduction = told::introduce(listeners.addresses(), settings, &table, policy.shares_memory())?;
        let process = ProcessRecord {
            pid: std::process::id(),
            host: introduction.host,
            host_name: bootstrap::host_name(),
            addresses: introduction.addresses,
        };
        let config = MemberConfig { wish: settings.slot, ..MemberConfig::new(bootstrap::random()?, process) };
        let key = bootstrap::given(&settings.key)?;
        let failed = |error: std::io::Error| {
            Error::environment(format_args!("cannot join: {error}"), "raise the limit on open files (ulimit -n)")
        };
        let (shared, control) = (Arc::new(Shared::default()), Control::new().map_err(failed)?);
        let views = Arc::default();
        let member = Member::new(Instant::now(), config);
        let config = ClientConfig { place, key, settings: settings.clone(), table, policy, listeners };
        let client = Client::start(config, member, shared.clone(), control.clone(), Arc::clone(&views))?;
        let elastic = Self {
            shared,
            control,
            client: Mutex::new(Some(client)),
            views,
            keep: Keep::default(),
            staging: Mutex::default(),
            settings: settings.clone(),
            go_on: Mutex::new(go_on),
        };
        let view = elastic.wait_for_view(Generation(0))?;
        elastic.see(view.generation);
        Ok(elastic)
    }
}
