//! Figures of an earlier run, in a file.
//!
//! `$XDG_CACHE_HOME/phalanx/figures-KEY.json`, or under `~/.cache`. The key is made of what the figures depend on and a rank
//! knows before it meets the others: the host, the carriers, the interface, the sockets, the version. Not with whom: the
//! figures of all ranks are compared when they meet, and the worst count. A file that cannot be
//! used is as good as none, and is said so in the log once.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::bootstrap::{self, FiguresFile, Settings};
use crate::schedule::cost::Figures;
use crate::types::Digest;

/// Links are not what they were a week ago.
const MOST_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Nothing of ours is longer.
const MOST_BYTES: u64 = 16 << 10;

#[derive(Serialize, Deserialize)]
struct Content {
    version: String,
    figures: Figures,
}

/// The figures that an earlier run left.
pub(super) fn read(settings: &Settings, shares_memory: bool) -> Option<Figures> {
    if settings.figures != FiguresFile::On {
        return None;
    }
    let path = path(settings, shares_memory)?;
    match read_from(&path, SystemTime::now()) {
        Ok(figures) => figures,
        Err(why) => {
            tracing::warn!("figures in {} are not used: {why}", path.display());
            None
        }
    }
}

/// Leaves figures for later runs, beside what the file has of other kinds of links.
pub(super) fn write(settings: &Settings, shares_memory: bool, figures: Figures) {
    if settings.figures == FiguresFile::Off {
        return;
    }
    let Some(path) = path(settings, shares_memory) else { return };
    let before = read_from(&path, SystemTime::now()).ok().flatten().unwrap_or_default();
    let figures = Figures {
        in_host: figures.in_host.or(before.in_host),
        between_hosts: figures.between_hosts.or(before.between_hosts),
    };
    if let Err(error) = write_to(&path, figures) {
        tracing::warn!("figures could not be written to {}: {error}", path.display());
    }
}

fn path(settings: &Settings, shares_memory: bool) -> Option<PathBuf> {
    let mut digest = Digest::new();
    digest.add(bootstrap::host_name().as_bytes());
    digest.add(&[u8::from(shares_memory)]);
    digest.add(settings.interface.as_deref().unwrap_or("").as_bytes());
    digest.add(&(settings.sockets.unwrap_or(0) as u64).to_le_bytes());
    digest.add(env!("CARGO_PKG_VERSION").as_bytes());
    Some(settings.cache.as_ref()?.join(format!("figures-{:016x}.json", digest.0)))
}

fn read_from(path: &Path, now: SystemTime) -> Result<Option<Figures>, String> {
    let about = match std::fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if about.len() > MOST_BYTES {
        return Err(format!("it has {} bytes, at most {MOST_BYTES} expected", about.len()));
    }
    let age = about.modified().ok().and_then(|then| now.duration_since(then).ok()).unwrap_or_default();
    if age > MOST_AGE {
        return Err(format!("they are {} days old", age.as_secs() / 86_400));
    }
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let content: Content = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if content.version != env!("CARGO_PKG_VERSION") {
        return Err(format!("they are of version {}, {} expected", content.version, env!("CARGO_PKG_VERSION")));
    }
    if !content.figures.are_sound() {
        return Err("they are not those of any link".into());
    }
    Ok(Some(content.figures))
}

/// Writes beside the place and moves it there, so that nobody reads a half of it.
fn write_to(path: &Path, figures: Figures) -> std::io::Result<()> {
    let content = Content { version: env!("CARGO_PKG_VERSION").into(), figures };
    let text = serde_json::to_vec(&content)?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::cost::LinkModel;

    #[test]
    fn figures_come_back_and_what_is_garbled_or_stale_does_not() {
        let folder = std::env::temp_dir().join(format!("phalanx-figures-{}", std::process::id()));
        let path = folder.join("deeper/figures.json");
        let now = SystemTime::now();
        assert_eq!(read_from(&path, now), Ok(None));
        // Decimals have every digit of these: others may come back with another last bit, the same for all who read them.
        let link = LinkModel { latency: 0.5f64.powi(20), overhead: 0.5f64.powi(19), seconds_per_byte: 0.5f64.powi(32) };
        let figures = Figures { in_host: Some(link), between_hosts: None };
        write_to(&path, figures).expect("a file");
        assert_eq!(read_from(&path, now), Ok(Some(figures)));
        let left = std::fs::read_dir(folder.join("deeper")).expect("a folder").count();
        assert_eq!(left, 1, "nothing is left beside it");
        let old = read_from(&path, now + MOST_AGE + Duration::from_secs(86_400)).expect_err("stale");
        assert!(old.contains("days old"), "{old}");
        let sound = std::fs::read_to_string(&path).expect("text");
        for (garbled, why) in [
            ("", "EOF"),
            ("{\"version\":", "EOF"),
            (&*sound.replace(env!("CARGO_PKG_VERSION"), "0.0.0-other"), "of version 0.0.0-other"),
            (&*sound.replace("\"overhead\":", "\"overhead\":-"), "not those of any link"),
            (&*"x".repeat(20_000), "20000 bytes"),
        ] {
            std::fs::write(&path, garbled).expect("written");
            let said = read_from(&path, now).expect_err(garbled);
            assert!(said.contains(why), "{said:?} lacks {why:?}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
