//! The launcher's standard output and error as destinations of what the ranks write.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::job::{Colour, Output};
use super::lines::End;
use super::printer::{Printer, Source, StreamKind, Style};
use super::sink::{Closed, Sink};

/// Both destinations; they are one where both lead to the same place, so that the order of lines is kept.
#[derive(Debug)]
pub(super) struct Console {
    out: Destination,
    err: Option<Destination>,
    timestamps: bool,
}

#[derive(Debug)]
struct Destination {
    printer: Printer,
    sink: Sink,
}

impl Console {
    pub(super) fn new(output: &Output) -> io::Result<Self> {
        let out = Destination::new(io::stdout().as_fd(), output)?;
        let err = Destination::new(io::stderr().as_fd(), output)?;
        let err = if out.sink.is_same_as(&err.sink) { None } else { Some(err) };
        Ok(Self { out, err, timestamps: output.timestamps })
    }

    fn destination(&mut self, source: Source) -> &mut Destination {
        match (&mut self.err, source) {
            (Some(err), Source::Launcher | Source::Rank(_, StreamKind::Err)) => err,
            _ => &mut self.out,
        }
    }

    fn both(&mut self) -> impl Iterator<Item = &mut Destination> {
        std::iter::once(&mut self.out).chain(self.err.as_mut())
    }

    fn time(&self) -> String {
        if !self.timestamps {
            return String::new();
        }
        utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// Writes a piece of a stream.
    pub(super) fn write(&mut self, source: Source, text: &[u8], end: End) {
        let time = self.time();
        self.destination(source).printer.write(source, &time, text, end);
    }

    /// Shows what a stream has not completed, where somebody watches.
    pub(super) fn show_partial(&mut self, source: Source, text: &[u8]) {
        if self.destination(source).printer.is_terminal() {
            let time = self.time();
            self.destination(source).printer.show_partial(source, &time, text);
        }
    }

    /// Somebody typed the end of a line. Returns whose unfinished line was completed by that.
    pub(super) fn end_row_by_key(&mut self) -> Option<Source> {
        self.both().filter_map(|destination| destination.printer.end_row_by_key()).last()
    }

    /// The terminal may have another width now.
    pub(super) fn look_at_width(&mut self) {
        for destination in self.both() {
            if let Some(columns) = columns(destination.sink.as_fd()) {
                destination.printer.set_columns(columns);
            }
        }
    }

    /// Says something in the launcher's own name.
    pub(super) fn say(&mut self, text: &str) {
        for line in text.lines() {
            self.write(Source::Launcher, format!("phalanx: {line}").as_bytes(), End::Newline);
        }
    }

    /// Quotes a line of a rank.
    pub(super) fn quote(&mut self, line: &[u8]) {
        self.write(Source::Launcher, &[b"    ", line].concat(), End::Newline);
    }

    /// Ends unfinished rows.
    pub(super) fn finish(&mut self) {
        self.both().for_each(|destination| destination.printer.finish());
    }

    /// Writes what can be written without waiting.
    pub(super) fn try_flush(&mut self) {
        for destination in self.both() {
            destination.sink.push(&mut destination.printer.output);
            destination.sink.try_flush();
        }
    }

    /// Whether the ranks' output should be left where it is for now.
    pub(super) fn is_full(&self) -> bool {
        self.out.sink.is_full() || self.err.as_ref().is_some_and(|err| err.sink.is_full())
    }

    /// Whether everything is written, or cannot be.
    pub(super) fn is_empty(&self) -> bool {
        self.out.sink.is_empty() && self.err.as_ref().is_none_or(|err| err.sink.is_empty())
    }

    /// Forgets what is not written. Returns how many bytes that were.
    pub(super) fn give_up(&mut self) -> usize {
        self.both().map(|destination| destination.sink.clear()).sum()
    }

    /// Why standard output takes no more.
    pub(super) fn closed(&self) -> Option<Closed> {
        self.out.sink.closed()
    }

    /// What is to be watched for being writable.
    pub(super) fn waiting(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sinks = std::iter::once(&self.out.sink).chain(self.err.as_ref().map(|err| &err.sink));
        sinks.filter(|sink| !sink.is_empty()).map(AsFd::as_fd)
    }
}

impl Destination {
    fn new(fd: BorrowedFd<'_>, output: &Output) -> io::Result<Self> {
        // A dumb terminal knows no control sequences.
        let is_terminal = rustix::termios::isatty(fd) && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = match output.colour {
            Colour::Auto => is_terminal && !no_colour,
            Colour::Always => true,
            Colour::Never => false,
        };
        let style = Style { prefix: output.prefix, colour, columns: is_terminal.then(|| columns(fd).unwrap_or(80)) };
        Ok(Self { printer: Printer::new(style), sink: Sink::new(fd)? })
    }
}

/// The width of a terminal that says it.
fn columns(fd: BorrowedFd<'_>) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(fd).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// A time since 1970 as `2026-02-03T04:05:06.789Z`. The calendar is the proleptic Gregorian one, its years beginning in
/// March, so that the leap day is the last of a year.
fn utc(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (days, seconds) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year_of_era, month + 3),
        _ => (era * 400 + year_of_era + 1, month - 9),
    };
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since_epoch.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), text);
        }
        assert!(utc(Duration::from_millis(1_234)).ends_with("01.234Z"));
    }
}
