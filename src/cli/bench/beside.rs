//! One cell of a sweep for another command: what each algorithm takes, here and now.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use phalanx::launch::LaunchError;
use phalanx::launch::binding::Bind;
use phalanx::types::Collective;
use phalanx::{DataType, Error, Result, TransportKind};

use super::namespaces;
use super::report::Message;
use super::sweep::Cell;
use crate::cli::workers::{self, Start};

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the larger of a rank's buffers.
    pub bytes: usize,
    /// Element type.
    pub dtype: DataType,
    /// The number of ranks.
    pub ranks: usize,
    /// The root, for collectives that have one.
    pub root: usize,
    /// Whether to reduce in rank order.
    pub deterministic: bool,
    /// The carrier within a host.
    pub transport: TransportKind,
    /// Network namespaces that stand for hosts; none for this machine as one host.
    pub namespaces: Vec<String>,
}

/// Starts ranks and measures every algorithm that serves, in alternation. Takes about half a second more than the ranks
/// take to meet.
///
/// # Errors
///
/// When ranks cannot be started, or fail, or get wrong results.
pub fn measure(what: &Beside) -> Result<Cell, LaunchError> {
    let mut arguments: Vec<OsString> = ["bench".into(), format!("--sweep={}", what.collective).into()].to_vec();
    let options = [
        ("--np", what.ranks.to_string()),
        ("--bytes", what.bytes.to_string()),
        ("--dtype", what.dtype.name().into()),
        ("--root", what.root.to_string()),
    ];
    arguments.extend(options.into_iter().flat_map(|(option, value)| [option.into(), value.into()]));
    if what.transport == TransportKind::Tcp {
        arguments.extend(["--transport".into(), "tcp".into()]);
    }
    if what.deterministic {
        arguments.push("--deterministic".into());
    }
    let hosts = if what.namespaces.is_empty() { Vec::new() } else { namespaces::hosts(&what.namespaces, what.ranks)? };
    let address = namespaces::enter_first(&what.namespaces)?;
    let bind = Bind::Core;
    let start = Start { ranks: what.ranks, arguments: Some(arguments), variables: Vec::new(), bind, hosts, address };
    let found: Arc<Mutex<Option<Cell>>> = Arc::default();
    let keep = Arc::clone(&found);
    let code = workers::run(start, move |message: Message| {
        if let Message::Cell(cell) = message {
            *keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(*cell);
        }
    })?;
    let cell = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    match cell {
        Some(cell) if cell.wrong > 0 => {
            Err(Error::internal(format!("{} elements of the results are wrong", cell.wrong)).into())
        }
        Some(cell) if code == 0 => Ok(cell),
        _ => {
            let what = format!("the ranks ended with status {code} before everything was measured");
            Err(Error::environment(what, "what they said is above; `phalanx bench` runs the same").into())
        }
    }
}
