//! Starts scenarios, and what they have in common.

use std::ffi::{CString, OsStr, c_char, c_long, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use phalanx::device::{Device, DeviceBuffer, Stream};
use phalanx::sys::library::Library;
use phalanx::types::Deadline;
use phalanx::{Communicator, TransportKind, testing};

pub const SCENARIO: &str = "PHALANX_TEST_SCENARIO";

/// A deadline against hangs.
pub fn soon() -> Deadline {
    Deadline::after(Instant::now(), Duration::from_secs(60))
}

/// The folder with the stand-in of the driver, built once. `None`, with a printed reason, where there is no C++ compiler.
pub fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || stand_in("stand-in", "driver.cpp", "libcuda.so.1", &["-Wl,-soname,libcuda.so.1".as_ref()]);
    let folder = FOLDER.get_or_init(build).as_deref();
    if folder.is_none() {
        println!("skipped: no C++ compiler (c++) for the stand-in of the driver");
    }
    folder
}

/// The kernels on the CPU, as a file that the stand-in of the driver takes for compiled ones. Built once.
fn kernels() -> Option<&'static Path> {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libphalanx_kernels_stand_in.so");
        let new = file.with_extension(format!("new-{}", std::process::id()));
        let flags = "-std=c++17 -O2 -Wall -Wextra -Werror -Wno-unknown-pragmas -ffp-contract=off -shared -fPIC";
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/shim/cpu.cpp");
        match Command::new("c++").args(flags.split(' ')).arg(&source).arg("-o").arg(&new).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("c++ cannot be run: {error}"),
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                std::fs::rename(new, &file).expect("a file below target");
                Some(file)
            }
        }
    };
    FILE.get_or_init(build).as_deref()
}

/// Runs a scenario that launches kernels, which must end well.
pub fn run_with_kernels(scenario: &str) {
    let Some(output) = start_with_kernels(scenario, &[]) else { return };
    assert!(output.status.success(), "{}", text(&output));
}

/// As `start`, with kernels.
pub fn start_with_kernels(scenario: &str, variables: &[(&str, &str)]) -> Option<Output> {
    folder()?;
    let kernels = kernels()?.to_str().expect("a path in UTF-8");
    start(scenario, &[&[("PHALANX_KERNELS", kernels)], variables].concat())
}

/// A folder with a library made of `source`. `None` where there is no C++ compiler.
pub fn stand_in(folder: &str, source: &str, library: &str, more: &[&OsStr]) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).expect("a folder below target");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device").join(source);
    // Written beside and renamed, so that nobody loads half a library.
    let new = folder.join(format!("new-{}", std::process::id()));
    let flags = ["-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"];
    match Command::new("c++").args(flags).arg(&source).arg("-o").arg(&new).args(more).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("c++ cannot be run: {error}"),
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            std::fs::rename(new, folder.join(library)).expect("a file below target");
            Some(folder)
        }
    }
}

/// Runs a scenario in a process of its own, and returns what it printed and how it ended; `None` when it was skipped.
pub fn start(scenario: &str, variables: &[(&str, &str)]) -> Option<Output> {
    let mut command = Command::new("timeout");
    command.arg("100").arg(std::env::current_exe().expect("this program"));
    command.args(["--exact", "scenario", "--nocapture"]).env(SCENARIO, scenario);
    command.env("PHALANX_LIBRARIES", folder()?).envs(variables.iter().copied());
    Some(command.output().expect("timeout of coreutils"))
}

/// Runs a scenario, which must end well.
pub fn run(scenario: &str) {
    if let Some(output) = start(scenario, &[]) {
        assert!(output.status.success(), "{}", text(&output));
    }
}

pub fn text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    format!("{:?}\n{}", output.status, both.concat())
}

/// Runs `body` on every rank of a world of thread-ranks, each with one of two devices and a stream of its own.
pub fn on_world<R: Send>(kind: TransportKind, size: usize, body: impl Fn(Communicator, Stream) -> R + Sync) -> Vec<R> {
    on_devices(kind, size, 2, body)
}

/// As `on_world`, with so many devices.
pub fn on_devices<R: Send>(
    kind: TransportKind,
    size: usize,
    devices: usize,
    body: impl Fn(Communicator, Stream) -> R + Sync,
) -> Vec<R> {
    let world = testing::local_world(kind, &vec![0; size]).expect("a world of threads");
    std::thread::scope(|scope| {
        let rank = |comm: Communicator| {
            let body = &body;
            scope.spawn(move || {
                let device = Device::open(comm.rank() % devices).expect("a device");
                let comm = comm.with_timeout(Duration::from_secs(60));
                // The communicator outlives the others' threads: a rank that hears early of an error stays for the rest.
                (body(comm.clone(), Stream::new(&device).expect("a stream")), comm)
            })
        };
        let ranks: Vec<_> = world.into_iter().map(rank).collect();
        let join = |rank: std::thread::ScopedJoinHandle<'_, (R, Communicator)>| rank.join().expect("no panic");
        let ended: Vec<_> = ranks.into_iter().map(join).collect();
        let (outcomes, worlds): (Vec<R>, Vec<Communicator>) = ended.into_iter().unzip();
        worlds.into_iter().for_each(|comm| drop(scope.spawn(move || drop(comm))));
        outcomes
    })
}

/// A device buffer with these elements.
pub fn buffer<T: phalanx::Element>(stream: &Stream, elements: &[T]) -> DeviceBuffer<T> {
    DeviceBuffer::from_slice(stream, elements, soon()).expect("device memory")
}

/// A stand-in that the test which started this scenario has named.
pub fn library(name: &str) -> Library {
    let folders = std::env::var("PHALANX_LIBRARIES").expect("set by the test that starts the scenario");
    Library::open(&[name], &std::env::split_paths(&folders).collect::<Vec<_>>()).expect("the stand-in")
}

/// The stand-in's own functions.
pub struct StandIn(Library);

impl StandIn {
    pub fn open() -> Self {
        Self(library("libcuda.so.1"))
    }

    /// Allocations, streams, events and contexts that there are.
    pub fn live(&self) -> i64 {
        // SAFETY: the stand-in gives the function this type.
        let live = unsafe { self.0.function::<unsafe extern "C" fn() -> c_long>("phx_stand_in_live\0") };
        // SAFETY: as above.
        unsafe { live.expect("phx_stand_in_live")() }
    }

    /// How often a function was called.
    pub fn calls(&self, function: &str) -> i64 {
        let name = CString::new(function).expect("a name");
        type Count = unsafe extern "C" fn(*const c_char) -> c_long;
        // SAFETY: the stand-in gives the function this type.
        let calls = unsafe { self.0.function::<Count>("phx_stand_in_calls\0") };
        // SAFETY: as above; the name ends with a zero byte.
        unsafe { calls.expect("phx_stand_in_calls")(name.as_ptr()) }
    }

    /// Puts work on a stream that does not end before `release`.
    pub fn stop(&self, stream: &Stream) {
        // SAFETY: the stand-in gives the function this type.
        let stop = unsafe { self.0.function::<unsafe extern "C" fn(*mut c_void)>("phx_stand_in_stop\0") };
        // SAFETY: the stream lives.
        unsafe { stop.expect("phx_stand_in_stop")(std::ptr::with_exposed_provenance_mut(stream.raw() as usize)) }
    }

    pub fn release(&self) {
        // SAFETY: the stand-in gives the function this type.
        let release = unsafe { self.0.function::<unsafe extern "C" fn()>("phx_stand_in_release\0") };
        // SAFETY: as above.
        unsafe { release.expect("phx_stand_in_release")() }
    }
}
