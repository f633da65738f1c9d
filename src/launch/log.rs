//! What is kept of each rank's output: files where the user wants them, and the last lines for the closing words.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::printer::StreamKind;

/// How many digits rank numbers have in file names, so that they sort.
pub(super) fn width(size: usize) -> usize {
    size.saturating_sub(1).to_string().len()
}

/// Creates `directory/folder/stdout` (or `stderr`): empty, or, to continue what another wrote, as it is.
pub(super) fn create(directory: &Path, folder: &str, kind: StreamKind, continues: bool) -> io::Result<File> {
    let directory = directory.join(folder);
    fs::create_dir_all(&directory)?;
    let path = directory.join(match kind {
        StreamKind::Out => "stdout",
        StreamKind::Err => "stderr",
    });
    match continues {
        true => File::options().create(true).append(true).open(path),
        false => File::create(path),
    }
}

/// The file of one stream. An error ends the file, not the job.
#[derive(Debug)]
pub(super) struct Log(Option<File>);

impl Log {
    pub(super) fn new(file: Option<File>) -> Self {
        Self(file)
    }

    /// Keeps the bytes as they are. Returns the error that made it give up.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Option<io::Error> {
        let error = self.0.as_mut()?.write_all(bytes).err()?;
        self.0 = None;
        Some(error)
    }
}

/// The last lines of a stream.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<Vec<u8>>,
}

impl Tail {
    const LINES: usize = 10;
    const LINE_BYTES: usize = 500;

    /// Takes a complete line.
    pub(super) fn push(&mut self, line: &[u8]) {
        // A rank that says the same in many lines is quoted by its last ones only; blank lines say nothing.
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let mut kept = match self.lines.len() {
            Self::LINES => self.lines.pop_front().unwrap_or_default(),
            _ => Vec::new(),
        };
        kept.clear();
        kept.extend_from_slice(line.get(..Self::LINE_BYTES).unwrap_or(line));
        self.lines.push_back(kept);
    }

    /// The lines, oldest first.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().map(Vec::as_slice)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let mut tail = Tail::default();
        for number in 0..25 {
            tail.push(format!("line {number}").as_bytes());
            tail.push(b"  ");
        }
        tail.push(&[b'x'; 1000]);
        let lines: Vec<_> = tail.lines().collect();
        assert_eq!(lines.len(), Tail::LINES);
        assert_eq!(lines[0], b"line 16");
        assert_eq!(lines[9].len(), Tail::LINE_BYTES);
    }

    #[test]
    fn files_are_begun_or_continued() {
        let dir = tempfile::tempdir().unwrap();
        for (continues, expected) in [(false, &b"a\xff"[..]), (true, b"a\xffa\xff"), (false, b"a\xff")] {
            let mut log = Log::new(Some(create(dir.path(), "rank.03", StreamKind::Err, continues).unwrap()));
            assert!(log.write(b"a\xff").is_none());
            assert_eq!(fs::read(dir.path().join("rank.03/stderr")).unwrap(), expected);
        }
        assert_eq!((width(1), width(10), width(11)), (1, 1, 2));
    }
}
