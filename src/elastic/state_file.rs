//! The file in which a registry keeps what it needs to go on when it is started again.
//!
//! It has one owner at a time. Whoever uses it holds a lock on it, which the kernel gives back when the process is gone,
//! however that ends. The file is replaced as a whole, so the lock is on the file that is there: the new one is locked
//! before it takes the other's place. Whoever got the lock of one that was replaced or removed meanwhile tries again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::bootstrap::host_name;
use crate::membership::registry::{Keeper, Kept, Registry, RegistryConfig, State};
use crate::sys::points::{Point, reach};
use crate::types::{Error, Generation, Result};
use crate::wire::handshake::JobKey;
use crate::wire::registry::Malformed;

/// How often in a row the file may be replaced by others between its opening and its locking.
const MOST_ATTEMPTS: usize = 100;

/// Whose a registry's file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A registry on its own: its members outlive it, and come back to the next one.
    Alone,
    /// A launcher's registry: its members end with it.
    Launcher,
}

/// A registry's file, which nobody else can use for as long as this value lives.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Whose lock this is.
    held: File,
    keeper: Keeper,
    before: Generation,
    /// The job that goes on.
    state: Option<State>,
    found: Option<String>,
}

impl StateFile {
    /// Takes a file for the registry of the job with this key, and writes into it whose it is now; makes it if there is
    /// none.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] if another registry has it (the error says which process), it cannot be written, it
    /// is not a registry's, it is another job's, or it is a registry's on its own and a launcher wants to have it.
    pub fn open(path: PathBuf, key: &JobKey, owner: Owner) -> Result<Self> {
        let failed = |error: io::Error| {
            let hint = "name a file in a folder that this process may write to, on a file system that has locks";
            Error::environment(format_args!("the registry's state file {} cannot be written: {error}", at(&path)), hint)
        };
        let mut held = take(&path, failed)?;
        let mut bytes = Vec::new();
        held.read_to_end(&mut bytes).map_err(failed)?;
        let wrong = |what: String, hint: &str| {
            Error::environment(format_args!("the registry's state file {}: {what}", at(&path)), hint)
        };
        let kept = match &bytes[..] {
            // As it was made: its maker died before it wrote anything.
            [] => None,
            bytes => Some(Kept::decode(bytes).map_err(|Malformed(what)| {
                wrong(what.into(), "give the file of this job's registry, or a name that does not exist yet")
            })?),
        };
        let is_launcher = owner == Owner::Launcher;
        let job = key.job();
        let keeper = Keeper { job, is_launcher, pid: std::process::id(), host_name: host_name() };
        let (state, before, found) = match kept {
            None => (None, Generation(0), None),
            Some(Kept { state: None, before, .. }) => (None, before, None),
            Some(kept @ Kept { state: Some(_), .. }) if kept.keeper.is_launcher => {
                let before = kept.state.as_ref().map_or(kept.before, |state| state.generation);
                let (what, keeper) = (kept.describe(), &kept.keeper);
                let found = format!(
                    "{}: found {what}; these members are gone with {keeper}, so that the job begins anew, with view {}",
                    at(&path),
                    before.0 + 1
                );
                (None, before, Some(found))
            }
            Some(kept) if is_launcher => {
                return Err(wrong(
                    format!(
                        "{}, of {}, is kept in it, and its members may wait for that",
                        kept.describe(),
                        kept.keeper
                    ),
                    "start `phalanx registry --state` with this file again, or give the launcher another name",
                ));
            }
            Some(kept) if kept.keeper.job != job => {
                return Err(wrong(
                    format!("it is of {}, and the key that was given is that of {job}", kept.describe()),
                    "give the key of that job, or the file of this one",
                ));
            }
            Some(kept) => {
                let found =
                    format!("{}: going on with {}, when its members have come back", at(&path), kept.describe());
                (kept.state, kept.before, Some(found))
            }
        };
        let mut file = StateFile { held, path, keeper, before, state, found };
        file.replace(file.state.clone()).map_err(|error| {
            let hint = "see the rights to its folder, and the room on its disk";
            Error::environment(
                format_args!("the registry's state file {} cannot be written: {error}", at(&file.path)),
                hint,
            )
        })?;
        Ok(file)
    }

    /// What was found in it, and what follows from that, in words; nothing where no job was kept.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Whether the job that was kept goes on.
    pub fn is_continued(&self) -> bool {
        self.state.is_some()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The registry that goes on from the file.
    pub(super) fn registry(&self, now: Instant, config: RegistryConfig) -> Registry {
        match &self.state {
            Some(state) => Registry::restore(now, config, state.clone()),
            None => Registry::anew(now, config, self.before),
        }
    }

    /// Makes a state durable, in place of the one before.
    pub(super) fn write(&mut self, state: State) -> io::Result<()> {
        self.replace(Some(state))
    }

    /// The job is over: what was kept is of no more use, and would be in the way of the next one.
    pub(super) fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(file = %at(&self.path), %error, "the registry's state file cannot be removed");
        }
    }

    /// Replaces the file as a whole, and waits until the disk has it.
    fn replace(&mut self, state: Option<State>) -> io::Result<()> {
        let beside = beside(&self.path);
        // What a registry left that died while it wrote. Nobody else has one there: this is the file's owner.
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut new = options().create_new(true).open(&beside)?;
        rustix::fs::flock(&new, FlockOperation::NonBlockingLockExclusive)?;
        let kept = Kept { keeper: self.keeper.clone(), before: self.before, state };
        new.write_all(&kept.encode())?;
        new.sync_all()?;
        reach(Point::Beside);
        std::fs::rename(&beside, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.held = new;
        File::open(folder)?.sync_all()
    }
}

fn at(path: &Path) -> std::path::Display<'_> {
    path.display()
}

/// It has the tokens of the members: it is nobody else's business.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// Where a state is written that is to replace the one in `file`.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// The file, locked; made if there is none.
fn take(path: &Path, failed: impl Fn(io::Error) -> Error) -> Result<File> {
    for _ in 0..MOST_ATTEMPTS {
        let mut file = options().create(true).truncate(false).open(path).map_err(&failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(path, &mut file)),
            Err(error) => return Err(failed(error.into())),
        }
        let ours = file.metadata().map_err(&failed)?;
        match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            // It was replaced or removed between the opening and the locking.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(io::Error::other("others replace it again and again")))
}

fn in_use(path: &Path, file: &mut File) -> Error {
    let mut bytes = Vec::new();
    let kept = file.read_to_end(&mut bytes).ok().and_then(|_| Kept::decode(&bytes).ok());
    let who = kept.map_or(
        "another process".into(),
        |Kept { keeper: Keeper { job, pid, host_name, is_launcher }, .. }| {
            let kind = if is_launcher { "launcher" } else { "registry" };
            format!("process {pid} on {host_name}, the {kind} of {job}")
        },
    );
    Error::environment(
        format_args!("the registry's state file {} is in use by {who}", path.display()),
        "give each job a file of its own; to take this job over, end that process first",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::registry::StoredMember;
    use crate::wire::registry::ProcessRecord;

    fn key(digit: char) -> JobKey {
        JobKey::from_hex(&digit.to_string().repeat(64)).expect("a key")
    }

    fn state(generation: u64) -> State {
        let process = ProcessRecord { pid: 7, host: b"h".to_vec(), host_name: "node".into(), addresses: vec![] };
        let member = |slot| StoredMember {
            slot,
            token: [slot as u8; 16],
            process: process.clone(),
            joined: None,
            has_left: false,
        };
        State {
            generation: Generation(generation),
            counted: 100,
            changes: 0,
            is_ending: false,
            next_slot: 2,
            members: vec![member(0), member(1)],
            gone: vec![],
            broken: vec![],
        }
    }

    /// What a registry with this owner leaves that dies.
    fn left(path: &Path, owner: Owner) {
        let mut file = StateFile::open(path.into(), &key('a'), owner).expect("free");
        assert_eq!((file.found(), file.is_continued()), (None, false));
        file.write(state(6)).expect("room");
        file.write(state(7)).expect("room");
    }

    #[test]
    fn a_file_has_one_owner_through_all_its_replacements() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        let mut file = StateFile::open(path.clone(), &key('a'), Owner::Alone).expect("free");
        for _ in 0..2 {
            let error = StateFile::open(path.clone(), &key('a'), Owner::Alone).expect_err("taken").to_string();
            let who = format!("f is in use by process {} on {}, the registry of job ", std::process::id(), host_name());
            assert!(error.contains(&who), "{error}");
            file.write(state(1)).expect("room");
        }
        // A look at what was there before its replacement is of no use.
        let mut old = File::open(&path).expect("there");
        file.write(state(2)).expect("room");
        rustix::fs::flock(&old, FlockOperation::NonBlockingLockExclusive).expect("nobody's any more");
        let mut bytes = Vec::new();
        old.read_to_end(&mut bytes).expect("readable");
        assert_eq!(Kept::decode(&bytes).expect("whole").state, Some(state(1)));
        StateFile::open(path.clone(), &key('a'), Owner::Alone).expect_err("taken");
        file.remove();
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
        StateFile::open(path, &key('a'), Owner::Alone).expect("free again");
    }

    #[test]
    fn a_job_goes_on_where_its_members_outlive_the_registry() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        left(&path, Owner::Alone);
        let error = StateFile::open(path.clone(), &key('a'), Owner::Launcher).expect_err("not its").to_string();
        assert!(error.contains("view 7, slots 0-1, 100 steps counted, of the registry that was process"), "{error}");
        let error = StateFile::open(path.clone(), &key('b'), Owner::Alone).expect_err("another job's").to_string();
        assert!(error.contains("the key that was given is that of job "), "{error}");
        let file = StateFile::open(path.clone(), &key('a'), Owner::Alone).expect("its");
        assert!(file.is_continued());
        let found = file.found().expect("a job");
        assert!(found.contains("going on with job ") && found.contains("at view 7, slots 0-1"), "{found}");
        let registry = file.registry(Instant::now(), RegistryConfig::new(2));
        assert_eq!((registry.generation(), registry.members()), (Some(Generation(7)), &[0, 1][..]));
    }

    #[test]
    fn a_job_begins_anew_where_its_members_are_gone_with_the_launcher() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        left(&path, Owner::Launcher);
        // Also after one that died before it had a view.
        for owner in [Owner::Launcher, Owner::Alone] {
            let file = StateFile::open(path.clone(), &key('b'), owner).expect("free");
            let found = file.found().map(str::to_owned);
            if owner == Owner::Launcher {
                let found = found.expect("a job");
                assert!(found.contains("view 7, slots 0-1, 100 steps counted; these members are gone"), "{found}");
                assert!(found.ends_with("so that the job begins anew, with view 8"), "{found}");
            } else {
                assert_eq!(found, None);
            }
            assert!(!file.is_continued());
            assert_eq!(file.before, Generation(7));
            assert_eq!(file.registry(Instant::now(), RegistryConfig::new(2)).generation(), None);
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |path: PathBuf| StateFile::open(path, &key('a'), Owner::Alone).expect_err("of no use").to_string();
        let error = open(folder.path().join("no folder").join("f"));
        assert!(error.contains("no folder/f cannot be written: No such file"), "{error}");
        let error = open(folder.path().into());
        assert!(error.contains("cannot be written: Is a directory"), "{error}");
        // It cannot be replaced.
        std::fs::create_dir(folder.path().join("f.new")).expect("room");
        let error = open(folder.path().join("f"));
        assert!(error.contains("f cannot be written: "), "{error}");
        std::fs::write(folder.path().join("g"), "a letter").expect("room");
        let error = open(folder.path().join("g"));
        assert!(error.contains("g: it does not begin like a registry's state"), "{error}");
        assert_eq!(std::fs::read(folder.path().join("g")).expect("there"), b"a letter");
    }
}
