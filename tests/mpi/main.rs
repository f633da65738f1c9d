//! Worlds over MPI. A world's ranks are processes that MPI's launcher starts, so that this is a program and not a list of
//! tests: `mpirun -np 4 THIS NAME` runs one check on all ranks, and ends with 0 if it holds on this one.
//! `tests/parts/mpi.sh` runs them all, under Open MPI and MPICH.

#[cfg(feature = "mpi")]
mod checks;
#[cfg(feature = "mpi")]
#[allow(dead_code, unused_imports, reason = "only the cases are needed here, not their worlds of threads")]
#[path = "../collectives/matrix.rs"]
mod matrix;
#[cfg(feature = "mpi")]
#[allow(dead_code, reason = "as above")]
#[path = "../collectives/support.rs"]
mod support;

#[cfg(feature = "mpi")]
fn main() {
    let Some(name) = std::env::args().nth(1).filter(|name| !name.starts_with('-')) else {
        println!("not run: ranks over MPI are started by its launcher; bash tests/run.sh mpi does so");
        return;
    };
    match checks::ALL.iter().find(|(known, _)| *known == name) {
        Some((_, check)) => check(),
        None => panic!("no check has the name {name:?}; there are {:?}", checks::ALL.map(|(name, _)| name)),
    }
    println!("check {name} held");
}

#[cfg(not(feature = "mpi"))]
fn main() {
    use phalanx::{Config, Error, TransportKind};

    let config = Config::default().with_transport(Some(TransportKind::Mpi));
    let error = config.connect().expect_err("a world over MPI in a build without MPI");
    let text = error.to_string();
    assert!(matches!(error, Error::Environment { .. }) && text.contains("--features mpi"), "{text}");
    println!("this build has no MPI, and says how to get one; the other checks need the feature mpi");
}
