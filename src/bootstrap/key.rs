//! Where the job's key comes from.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::settings::KeySource;
use super::variables;
use crate::types::{Error, Result};
use crate::wire::handshake::JobKey;

/// A new random key.
///
/// # Errors
///
/// [`Error::Environment`] if the kernel gives no random bytes.
pub fn new_key() -> Result<JobKey> {
    random().map(JobKey::from_bytes)
}

/// Random bytes from the kernel.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::environment(format!("no random bytes: {error}"), "see that getrandom(2) is allowed"))?;
    Ok(bytes)
}

/// The key that was given, if one was.
///
/// # Errors
///
/// [`Error::Environment`] for a file that cannot be read, that others may read, or that holds no key.
pub(super) fn given(source: &KeySource) -> Result<Option<JobKey>> {
    match source {
        KeySource::None => Ok(None),
        KeySource::Given(key) => Ok(Some(key.clone())),
        KeySource::File(path) => from_file(path).map(Some),
    }
}

fn from_file(path: &Path) -> Result<JobKey> {
    let name = variables::KEY_FILE.name;
    let shown = path.display();
    let failed = |what: String| {
        Error::environment(
            format!("{name}={shown}: {what}"),
            "expected a file with 64 hexadecimal digits, readable by its owner alone",
        )
    };
    // Without waiting: the start-up deadline does not reach a pipe that nobody writes to.
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = file.map_err(|error| failed(error.to_string()))?;
    let about = file.metadata().map_err(|error| failed(error.to_string()))?;
    if !about.is_file() {
        return Err(failed("it is not a regular file".into()));
    }
    // The open file is asked, not the path, so that nobody can swap it in between.
    if about.mode() & 0o077 != 0 {
        return Err(Error::environment(
            format!("{name}={shown}: others than its owner may use it (mode {:04o})", about.mode() & 0o7777),
            format!("chmod 600 {shown}, and give the job a new key if others may have read it"),
        ));
    }
    let mut text = String::new();
    file.by_ref().take(4096).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    JobKey::from_hex(&text).map_err(failed)
}

/// What to do when there is no key and there must be one.
pub(super) fn hint() -> String {
    format!(
        "give all ranks the same key: {} as 64 hexadecimal digits (openssl rand -hex 32), or {} with a file that only you can read",
        variables::KEY.name,
        variables::KEY_FILE.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, format!("{}\n", "0f".repeat(32))).unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = from_file(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && error.contains(&format!("{mode:04o}")), "{error}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(from_file(&path).unwrap(), JobKey::from_bytes([0x0f; 32]));
    }

    #[test]
    fn a_file_without_a_key_says_so_and_does_not_repeat_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "hunter2").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = from_file(&path).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits") && !error.contains("hunter2"), "{error}");
        assert!(from_file(&folder.path().join("none")).unwrap_err().to_string().contains("PHALANX_KEY_FILE="));
    }

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        for path in [pipe.as_path(), folder.path()] {
            assert!(from_file(path).unwrap_err().to_string().contains("not a regular file"));
        }
    }

    #[test]
    fn keys_differ_and_are_not_printed() {
        let key = new_key().unwrap();
        assert_ne!(key, new_key().unwrap());
        assert!(!format!("{key:?}").contains(&key.to_hex()[..8]));
    }
}
