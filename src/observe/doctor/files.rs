//! Reading the kernel's files, from the real root or, in tests, from another.

use std::path::{Path, PathBuf};

/// A root directory.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    /// This machine's.
    pub(super) fn of_this_machine() -> Self {
        Self("/".into())
    }

    #[cfg(test)]
    pub(super) fn under(root: &Path) -> Self {
        Self(root.into())
    }

    /// Where `path` really is.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file, trimmed.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = std::fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The number in a file.
    pub(super) fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Whether there is something.
    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The names in a directory, sorted.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The value of a line such as `MemTotal:   100 kB`, without its name.
    pub(super) fn field(&self, path: impl AsRef<Path>, name: &str) -> Option<String> {
        let text = self.text(path)?;

        text.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == name).then(|| value.trim().to_owned())
        })
    }
}

/// A number with `kB` or `K`, `M`, `G` behind it, in bytes.
pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "kB" | "K" | "KB" => 10,
        "M" | "MB" => 20,
        "G" | "GB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_sizes_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/meminfo"), "MemTotal:   12 kB\nMemFree: x\n").unwrap();
        let files = Files::under(dir.path());
        assert_eq!(files.field("/proc/meminfo", "MemTotal").and_then(|text| parse_bytes(&text)), Some(12 << 10));
        assert_eq!(files.field("/proc/meminfo", "Mem"), None);
        assert_eq!(files.names("/proc"), ["meminfo"]);
        assert_eq!(parse_bytes("32K"), Some(32768));
        assert_eq!(parse_bytes("2M"), Some(2 << 20));
        assert_eq!(parse_bytes("many"), None);
    }
}
