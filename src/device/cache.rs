//! Compiled kernels, kept for later runs.
//!
//! `FOLDER/kernels/DIGEST.cubin`, where the folder is `$XDG_CACHE_HOME/phalanx` or `~/.cache/phalanx`. The digest is of
//! everything that the compiled form depends on, so that a file never has to be judged by its age. Each file ends with
//! the digest of its own content: one that was cut short or changed is made again. A cache that cannot be written is
//! said in the log and costs a compilation in every run.
//!
//! The processes of a host all want the same at the same time. Whoever makes a file holds a lock on `DIGEST.lock` beside
//! it, which ends with its process; the others wait for that, and read.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::bootstrap::{self, Variables};
use crate::types::Result;

/// How long another process may take to make what is wanted here: twice what the longest part takes. Then it is made all
/// the same.
const TURN_LIMIT: Duration = Duration::from_secs(120);

/// How often is looked whether it has.
const TURN_PERIOD: Duration = Duration::from_millis(20);

/// Bytes of a digest.
const DIGEST: usize = 32;

/// A folder of compiled kernels; none where there is no home for it.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's.
    ///
    /// # Errors
    ///
    /// When a variable of Phalanx cannot be read.
    pub fn of_user() -> Result<Self> {
        let settings = bootstrap::settings(&Variables::of_process())?;
        Ok(Self { folder: settings.cache.map(|folder| folder.join("kernels")) })
    }

    /// In a folder of one's own.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// The file with what was made of `ingredients` before, if it is there and whole.
    pub fn find(&self, ingredients: &[&[u8]]) -> Option<PathBuf> {
        self.file(ingredients).filter(|file| matches!(read(file), Ok(Some(_))))
    }

    fn file(&self, ingredients: &[&[u8]]) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        Some(folder.join(format!("{}.cubin", in_words(&digest(ingredients)))))
    }

    /// The content that was made of `ingredients` before, or else what `make` makes of them, kept for the next time.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn get(&self, ingredients: &[&[u8]], make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.get_within(TURN_LIMIT, ingredients, make)
    }

    fn get_within(
        &self,
        limit: Duration,
        ingredients: &[&[u8]],
        make: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let (Some(folder), Some(file)) = (&self.folder, self.file(ingredients)) else { return make() };
        match read(&file) {
            Ok(Some(content)) => return Ok(content),
            Ok(None) => {}
            Err(error) => tracing::warn!("compiled kernels in {} are made again: {error}", file.display()),
        }
        // Without a turn, it is made beside others.
        let turn = take_turn(folder, &file, limit);
        if turn.is_some()
            && let Ok(Some(content)) = read(&file)
        {
            return Ok(content);
        }
        let content = make()?;
        if let Err(error) = write(folder, &file, &content) {
            tracing::warn!("compiled kernels could not be kept in {}: {error}", file.display());
        }
        Ok(content)
    }
}

/// A digest of several parts, each with its length, so that no two lists have the same.
fn digest(parts: &[&[u8]]) -> [u8; DIGEST] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn in_words(digest: &[u8; DIGEST]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The content of a file; none if there is none.
fn read(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut content = match fs::read(file) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = content.len().saturating_sub(DIGEST);
    if content.len() < DIGEST || content[length..] != digest(&[&content[..length]]) {
        return Err(io::Error::other("the file is damaged"));
    }
    content.truncate(length);
    Ok(Some(content))
}

/// The lock on making a file, when whoever has it is done. None after `limit`, or where nothing can be locked.
fn take_turn(folder: &Path, file: &Path, limit: Duration) -> Option<File> {
    let lock = fs::create_dir_all(folder).and_then(|()| File::create(file.with_extension("lock"))).ok()?;
    let since = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Some(lock),
            Err(TryLockError::WouldBlock) if since.elapsed() < limit => std::thread::park_timeout(TURN_PERIOD),
            Err(TryLockError::WouldBlock) => {
                tracing::warn!(
                    "another process has been compiling {} for {} s: it is compiled here as well",
                    file.display(),
                    limit.as_secs()
                );
                return None;
            }
            Err(TryLockError::Error(error)) => {
                tracing::debug!("{} cannot be locked: {error}", file.display());
                return None;
            }
        }
    }
}

/// Writes a file that appears whole or not at all, whoever else writes it.
fn write(folder: &Path, file: &Path, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut number = [0u8; 8];
    getrandom::fill(&mut number).map_err(io::Error::other)?;
    let new = folder.join(format!("new-{:016x}", u64::from_le_bytes(number)));
    let whole = [content, &digest(&[content])].concat();
    let written = fs::write(&new, whole).and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        // Nothing to be done if even this fails.
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Error;
    use std::cell::Cell;
    use std::sync::{Barrier, Condvar, Mutex};

    #[test]
    fn what_was_made_once_is_found_again_and_what_is_damaged_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::in_folder(folder.path().join("kernels"));
        let made = Cell::new(0);
        let get = |ingredients: &[&[u8]]| {
            cache.get(ingredients, || {
                made.set(made.get() + 1);
                Ok(b"binary".to_vec())
            })
        };
        assert_eq!(cache.find(&[b"source", b"sm_90"]), None);
        for expected in [1, 1] {
            assert_eq!(get(&[b"source", b"sm_90"]).unwrap(), b"binary");
            assert_eq!(made.get(), expected);
            assert!(cache.find(&[b"source", b"sm_90"]).is_some_and(|file| file.exists()));
        }
        get(&[b"sources", b"m_90"]).unwrap();
        assert_eq!(made.get(), 2, "parts are told apart by their lengths");
        let mut files: Vec<_> = fs::read_dir(folder.path().join("kernels")).unwrap().flatten().collect();
        // But for what they were locked by.
        files.retain(|file| file.path().extension().is_none_or(|extension| extension != "lock"));
        assert_eq!(files.len(), 2, "no file is left over from writing");
        for file in files.drain(..) {
            fs::write(file.path(), b"binary").unwrap();
        }
        assert_eq!(cache.find(&[b"source", b"sm_90"]), None, "a damaged file is none");
        assert_eq!(get(&[b"source", b"sm_90"]).unwrap(), b"binary");
        assert_eq!(made.get(), 3);
    }

    #[test]
    fn of_many_that_want_the_same_one_makes_it_and_the_others_read() {
        let folder = tempfile::tempdir().unwrap();
        let (made, all) = (Mutex::new(0), Condvar::new());
        let begin = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    // A lock is an open file's, so that threads with one each are as processes are.
                    let cache = Cache::in_folder(folder.path());
                    begin.wait();
                    let content = cache.get(&[b"source"], || {
                        let mut made = made.lock().unwrap();
                        *made += 1;
                        all.notify_all();
                        // Another one would come meanwhile.
                        let limit = Duration::from_millis(300);
                        let _others = all.wait_timeout_while(made, limit, |made| *made < 2).unwrap();
                        Ok(b"binary".to_vec())
                    });
                    assert_eq!(content.unwrap(), b"binary");
                });
            }
        });
        assert_eq!(*made.lock().unwrap(), 1);
    }

    #[test]
    fn whoever_waits_too_long_or_for_one_that_failed_makes_it() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::in_folder(folder.path());
        assert!(cache.get(&[b"source"], || Err(Error::internal("cannot"))).is_err());
        let held = take_turn(folder.path(), &cache.file(&[b"source"]).unwrap(), TURN_LIMIT).unwrap();
        let content = cache.get_within(Duration::from_millis(50), &[b"source"], || Ok(b"binary".to_vec()));
        assert_eq!(content.unwrap(), b"binary");
        drop(held);
    }

    #[test]
    fn without_a_place_to_write_kernels_are_made_every_time_and_failures_are_told() {
        let cache = Cache::in_folder("/proc/no-such-folder");
        assert_eq!(cache.get(&[b"a"], || Ok(vec![1])).unwrap(), [1]);
        let cache = Cache { folder: None };
        assert!(cache.get(&[b"a"], || Err(Error::internal("cannot"))).is_err());
    }
}
