//! What the launcher writes: the lines of all ranks, one after another, each with its prefix.
//!
//! Into a file or a pipe, every line goes as it is, behind its prefix, and so does every state of a line that a rank
//! writes over with carriage returns; when another rank speaks in between, it gets a new line. On a terminal, the last
//! row belongs to whatever line is not complete (a prompt, a progress bar): complete lines appear above it.

use super::lines::End;

/// Which of a worker's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A stream of a rank.
    Rank(usize, StreamKind),
    /// The launcher.
    Launcher,
}

/// What stands before each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    /// Nothing.
    None,
    /// `[3] `.
    #[default]
    Rank,
    /// `[3]<stdout> ` or `[3]<stderr> `.
    Stream,
}

/// How lines are dressed for one destination.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// What stands before each line.
    pub prefix: Prefix,
    /// Whether ranks have colours.
    pub colour: bool,
    /// The width of the terminal, if it is one that understands the usual control sequences.
    pub columns: Option<usize>,
}

/// Erases the row the cursor is in.
const ERASE_ROW: &[u8] = b"\r\x1b[K";

/// Colours that can be read on dark and on light ground, without red, which is for errors.
const COLOURS: [&str; 10] = ["36", "32", "33", "35", "34", "96", "92", "93", "95", "94"];

/// Composes the output for one destination.
#[derive(Debug)]
pub struct Printer {
    style: Style,
    /// Whose unfinished line the destination's last row is, and, on a terminal, what it shows.
    row: Option<Row>,
    /// The bytes to be written.
    pub output: Vec<u8>,
}

#[derive(Debug)]
struct Row {
    source: Source,
    shown: Vec<u8>,
    /// Whether the row ends in the middle of a line that is passed on as it comes.
    cut: bool,
}

impl Printer {
    /// Nothing was written yet.
    pub fn new(style: Style) -> Self {
        Self { style, row: None, output: Vec::new() }
    }

    /// Whether the destination is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.style.columns.is_some()
    }

    /// The terminal has another width now.
    pub fn set_columns(&mut self, columns: usize) {
        if self.style.columns.is_some() {
            self.style.columns = Some(columns);
        }
    }

    /// Writes a piece of a stream. `time` stands before the prefix.
    pub fn write(&mut self, source: Source, time: &str, text: &[u8], end: End) {
        match self.style.columns {
            Some(columns) if end == End::Return => self.show(source, time, text, columns),
            Some(columns) => self.write_above(source, time, text, end, columns),
            None => self.write_plain(source, time, text, end),
        }
    }

    /// Shows the unfinished line of a stream, where the destination is a terminal.
    pub fn show_partial(&mut self, source: Source, time: &str, text: &[u8]) {
        if let (Some(columns), false) = (self.style.columns, text.is_empty()) {
            self.show(source, time, text, columns);
        }
    }

    /// Somebody typed the end of a line, and the terminal went to the next row by itself. Returns whose unfinished line,
    /// such as a prompt, was thereby completed.
    pub fn end_row_by_key(&mut self) -> Option<Source> {
        self.style.columns?;
        self.row.take().map(|row| row.source)
    }

    /// Ends an unfinished row, so that what follows begins at the left.
    pub fn finish(&mut self) {
        if self.row.take().is_some() {
            self.output.push(b'\n');
        }
    }

    fn show(&mut self, source: Source, time: &str, text: &[u8], columns: usize) {
        let mut shown = Vec::new();
        self.push_prefix(&mut shown, source, time);
        shown.extend_from_slice(text);
        // One column stays free: a full row would move the cursor to the next.
        let shown = fit(&shown, columns.saturating_sub(1));
        if self.row.as_ref().is_some_and(|row| row.source == source && row.shown == shown && !row.cut) {
            return;
        }
        self.leave_row();
        self.output.extend_from_slice(&shown);
        self.row = Some(Row { source, shown, cut: false });
    }

    /// Clears the row for another use: erases it, or ends it where it cannot be drawn again.
    fn leave_row(&mut self) {
        match self.row.take() {
            Some(row) if row.cut => self.output.push(b'\n'),
            Some(_) => self.output.extend_from_slice(ERASE_ROW),
            None => {}
        }
    }

    fn write_above(&mut self, source: Source, time: &str, text: &[u8], end: End, columns: usize) {
        let goes_on = self.row.as_ref().is_some_and(|row| row.cut && row.source == source);
        let kept = self.row.take_if(|row| row.source != source && !row.cut);
        if kept.is_some() {
            self.output.extend_from_slice(ERASE_ROW);
        } else if !goes_on {
            self.leave_row();
        }
        self.row = None;
        self.push_line(source, time, text, goes_on);
        if end == End::Cut {
            self.row = Some(Row { source, shown: Vec::new(), cut: true });
            return;
        }
        self.output.push(b'\n');
        if let Some(row) = kept {
            let shown = fit(&row.shown, columns.saturating_sub(1));
            self.output.extend_from_slice(&shown);
            self.row = Some(Row { shown, ..row });
        }
    }

    fn write_plain(&mut self, source: Source, time: &str, text: &[u8], end: End) {
        let row = self.row.take();
        let goes_on = row.as_ref().is_some_and(|row| row.source == source && row.cut);
        if row.is_some_and(|row| row.source != source) {
            self.output.push(b'\n');
        }
        self.push_line(source, time, text, goes_on);
        match end {
            End::Newline | End::Stream => self.output.push(b'\n'),
            End::Return => {
                self.output.push(b'\r');
                self.row = Some(Row { source, shown: Vec::new(), cut: false });
            }
            End::Cut => self.row = Some(Row { source, shown: Vec::new(), cut: true }),
        }
    }

    fn push_line(&mut self, source: Source, time: &str, text: &[u8], goes_on: bool) {
        if !goes_on {
            let mut prefix = Vec::new();
            self.push_prefix(&mut prefix, source, time);
            self.output.append(&mut prefix);
        }
        self.output.extend_from_slice(text);
    }

    fn push_prefix(&self, out: &mut Vec<u8>, source: Source, time: &str) {
        let Source::Rank(rank, kind) = source else { return };
        if !time.is_empty() {
            out.extend_from_slice(time.as_bytes());
            out.push(b' ');
        }
        let stream = match (self.style.prefix, kind) {
            (Prefix::None, _) => return,
            (Prefix::Rank, _) => "",
            (Prefix::Stream, StreamKind::Out) => "<stdout>",
            (Prefix::Stream, StreamKind::Err) => "<stderr>",
        };
        let colour = if self.style.colour { COLOURS.get(rank % COLOURS.len()) } else { None };
        out.extend_from_slice(
            match colour {
                Some(colour) => format!("\x1b[{colour}m[{rank}]{stream}\x1b[0m "),
                None => format!("[{rank}]{stream} "),
            }
            .as_bytes(),
        );
    }
}

/// As much of `text` as fits in `columns`, counting characters and leaving out control sequences. Other control bytes
/// that would move the cursor become spaces.
fn fit(text: &[u8], columns: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut width = 0;
    let mut bytes = text.iter().copied().peekable();
    let mut has_escape = false;
    while let Some(byte) = bytes.next() {
        match byte {
            0x1b => {
                has_escape = true;
                out.push(byte);
                if bytes.next_if_eq(&b'[').is_some() {
                    out.push(b'[');
                    for next in bytes.by_ref() {
                        out.push(next);
                        if (0x40..=0x7e).contains(&next) {
                            break;
                        }
                    }
                }
            }
            // The later bytes of a UTF-8 character take no room of their own.
            0x80..=0xbf => out.push(byte),
            _ if width >= columns => break,
            _ => {
                width += 1;
                out.push(if byte < 0x20 || byte == 0x7f { b' ' } else { byte });
            }
        }
    }
    if has_escape {
        out.extend_from_slice(b"\x1b[0m");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Source = Source::Rank(0, StreamKind::Out);
    const B: Source = Source::Rank(1, StreamKind::Err);

    fn plain(pieces: &[(Source, &str, End)]) -> String {
        composed(Style::default(), pieces)
    }

    fn terminal(pieces: &[(Source, &str, End)]) -> String {
        composed(Style { columns: Some(20), ..Style::default() }, pieces)
    }

    fn composed(style: Style, pieces: &[(Source, &str, End)]) -> String {
        let mut printer = Printer::new(style);
        for (source, text, end) in pieces {
            printer.write(*source, "", text.as_bytes(), *end);
        }
        printer.finish();
        String::from_utf8(printer.output).unwrap()
    }

    #[test]
    fn lines_have_prefixes() {
        let pieces =
            [(A, "hello", End::Newline), (B, "x", End::Stream), (Source::Launcher, "phalanx: y", End::Newline)];
        assert_eq!(plain(&pieces), "[0] hello\n[1] x\nphalanx: y\n");
        let style = Style { prefix: Prefix::Stream, ..Style::default() };
        assert_eq!(composed(style, &pieces), "[0]<stdout> hello\n[1]<stderr> x\nphalanx: y\n");
        let style = Style { prefix: Prefix::None, ..Style::default() };
        assert_eq!(composed(style, &pieces), "hello\nx\nphalanx: y\n");
        let style = Style { colour: true, ..Style::default() };
        assert_eq!(composed(style, &pieces[..1]), "\x1b[36m[0]\x1b[0m hello\n");
        let mut printer = Printer::new(Style::default());
        printer.write(A, "12:00", b"x", End::Newline);
        assert_eq!(printer.output, b"12:00 [0] x\n");
    }

    #[test]
    fn in_a_file_states_of_a_line_stay_apart_from_other_ranks() {
        assert_eq!(
            plain(&[
                (A, "10%", End::Return),
                (A, "20%", End::Return),
                (B, "x", End::Newline),
                (A, "30%", End::Newline)
            ]),
            "[0] 10%\r[0] 20%\r\n[1] x\n[0] 30%\n"
        );
        assert_eq!(plain(&[(A, "10%", End::Return)]), "[0] 10%\r\n");
    }

    #[test]
    fn a_cut_line_goes_on_unless_another_rank_speaks() {
        for style in [Style::default(), Style { columns: Some(20), ..Style::default() }] {
            assert_eq!(composed(style, &[(A, "aa", End::Cut), (A, "bb", End::Newline)]), "[0] aabb\n");
            assert_eq!(
                composed(style, &[(A, "aa", End::Cut), (B, "x", End::Newline), (A, "bb", End::Newline)]),
                "[0] aa\n[1] x\n[0] bb\n"
            );
        }
    }

    #[test]
    fn on_a_terminal_complete_lines_appear_above_the_unfinished_one() {
        assert_eq!(
            terminal(&[(A, "10%", End::Return), (B, "x", End::Newline), (A, "100%", End::Newline)]),
            "[0] 10%\r\x1b[K[1] x\n[0] 10%\r\x1b[K[0] 100%\n"
        );
        let mut printer = Printer::new(Style { columns: Some(20), ..Style::default() });
        printer.show_partial(A, "", b"name? ");
        printer.show_partial(A, "", b"name? ");
        printer.finish();
        assert_eq!(printer.output, b"[0] name? \n");
    }

    #[test]
    fn an_answer_completes_a_prompt() {
        let mut printer = Printer::new(Style { columns: Some(20), ..Style::default() });
        printer.show_partial(A, "", b"name? ");
        assert_eq!(printer.end_row_by_key(), Some(A));
        printer.write(A, "", b"hello", End::Newline);
        assert_eq!(printer.output, b"[0] name? [0] hello\n");
        assert_eq!(Printer::new(Style::default()).end_row_by_key(), None);
    }

    #[test]
    fn the_row_fits_the_terminal() {
        assert_eq!(fit(b"abcdef", 4), b"abcd");
        assert_eq!(fit(b"\x1b[31mabcdef", 4), b"\x1b[31mabcd\x1b[0m");
        assert_eq!(fit("äöüß".as_bytes(), 3), "äöü".as_bytes());
        assert_eq!(fit(b"a\tb", 9), b"a b");
        assert_eq!(terminal(&[(A, "0123456789012345678901234", End::Return)]), "[0] 012345678901234\n");
    }
}
