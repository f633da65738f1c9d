//! How a person or a program sees the figures.

use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::measure::Row;
use super::sizes::in_words;
use super::sweep::{self, Cell};

/// From rank 0 to whoever renders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Message {
    /// A size is being measured.
    Size {
        /// Bytes of the larger buffer, as asked for.
        bytes: usize,
        /// How many were measured before.
        done: usize,
        /// How many there are.
        of: usize,
    },
    /// A size was measured.
    Row(Box<Row>),
    /// A cell of a sweep was measured.
    Cell(Box<Cell>),
    /// All sizes were measured.
    End,
}

/// Shows messages: a table or JSON lines on `output`, and progress on standard error if that is a terminal.
pub struct Renderer<W> {
    output: W,
    bar: ProgressBar,
    json: bool,
    rows: usize,
    wrong: u64,
    cells: Vec<Cell>,
}

/// The columns of the table, with their units.
const HEADER: &str = "      bytes       count  transport  algorithm              p50 us       p99 us  algbw GB/s  busbw GB/s   \
                      iters  wrong";

impl<W: Write> Renderer<W> {
    /// Writes to `output`: with `json` one object a size, without a table.
    pub fn new(output: W, json: bool) -> Self {
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos} of {len} sizes, now {msg}") {
            bar.set_style(style);
        }
        Self { output, bar, json, rows: 0, wrong: 0, cells: Vec::new() }
    }

    /// Shows one message.
    pub fn show(&mut self, message: &Message) {
        match message {
            Message::Size { bytes, done, of } => {
                self.bar.set_length(*of as u64);
                self.bar.set_position(*done as u64);
                self.bar.set_message(in_words(*bytes));
            }
            Message::Row(row) if self.json => {
                if let Ok(object) = serde_json::to_string(row) {
                    self.line(&object);
                }
            }
            Message::Row(row) => {
                if self.rows == 0 {
                    self.line(&title(row));
                    self.line(HEADER);
                }
                self.rows += 1;
                self.wrong += row.wrong;
                self.line(&table_row(row));
            }
            Message::Cell(cell) => {
                if self.json {
                    if let Ok(object) = serde_json::to_string(cell) {
                        self.line(&object);
                    }
                } else {
                    if self.cells.is_empty() {
                        self.line(sweep::HEADER);
                    }
                    self.line(&sweep::line(cell));
                }
                self.rows += 1;
                self.wrong += cell.wrong;
                self.cells.push(Cell::clone(cell));
            }
            Message::End => {
                self.bar.finish_and_clear();
                if self.json {
                    return;
                }
                if !self.cells.is_empty() {
                    self.line(&sweep::summary(&self.cells));
                }
                match self.wrong {
                    _ if self.rows == 0 => {}
                    0 => self.line("# every element of every checked result is right"),
                    wrong => self.line(&format!("# {wrong} ELEMENTS ARE WRONG")),
                }
            }
        }
    }

    /// A reader that is gone is no reason to stop.
    fn line(&mut self, line: &str) {
        let output = &mut self.output;
        self.bar.suspend(|| {
            let _ = writeln!(output, "{line}");
            let _ = output.flush();
        });
    }
}

/// What all rows have in common.
fn title(row: &Row) -> String {
    let mut title = format!("# {}", row.collective);
    if row.count > 0 {
        title += &format!(" of {}", row.dtype);
    }
    if row.op != "none" {
        title += &format!(", {}", row.op);
    }
    if row.root >= 0 {
        title += &format!(", root {}", row.root);
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    title += &format!(", {} rank{} on {} host{}", row.ranks, plural(row.ranks), row.hosts, plural(row.hosts));
    title += if row.in_place { ", in place" } else { "" };
    title += if row.memory == "device" { ", in device memory" } else { "" };
    title + "; times are those of the slowest rank in each iteration"
}

fn table_row(row: &Row) -> String {
    format!(
        "{:>11} {:>11}  {:<9}  {:<19} {:>9} {:>12}  {:>10.3}  {:>10.3} {:>7}  {:>5}",
        row.bytes,
        row.count,
        row.transport,
        row.algorithm,
        time(row.time_us_p50),
        time(row.time_us_p99),
        row.algbw_gbs,
        row.busbw_gbs,
        row.iterations,
        row.wrong
    )
}

/// Microseconds with as many digits as mean something.
fn time(microseconds: f64) -> String {
    if microseconds < 100.0 { format!("{microseconds:.2}") } else { format!("{microseconds:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            collective: "allreduce".into(),
            bytes: 1 << 20,
            count: 1 << 18,
            dtype: "f32".into(),
            op: "sum".into(),
            root: -1,
            ranks: 4,
            hosts: 1,
            transport: "shm".into(),
            algorithm: "recursive_doubling".into(),
            in_place: false,
            memory: "host".into(),
            iterations: 200,
            time_us_min: 90.0,
            time_us_p50: 99.5,
            time_us_p99: 2048.25,
            algbw_gbs: 10.54,
            busbw_gbs: 15.81,
            checked: 2,
            wrong: 0,
        }
    }

    fn shown(rows: &[Row], json: bool) -> Vec<String> {
        let mut output = Vec::new();
        let mut renderer = Renderer::new(&mut output, json);
        renderer.show(&Message::Size { bytes: 8, done: 0, of: rows.len() });
        rows.iter().for_each(|row| renderer.show(&Message::Row(Box::new(row.clone()))));
        renderer.show(&Message::End);
        String::from_utf8(output).expect("text").lines().map(ToString::to_string).collect()
    }

    #[test]
    fn figures_stand_under_their_headings() {
        let lines = shown(&[row()], false);
        assert_eq!(
            lines,
            [
                "# allreduce of f32, sum, 4 ranks on 1 host; times are those of the slowest rank in each iteration",
                "      bytes       count  transport  algorithm              p50 us       p99 us  algbw GB/s  busbw GB/s   \
                 iters  wrong",
                "    1048576      262144  shm        recursive_doubling      99.50         2048      10.540      15.810     \
                 200      0",
                "# every element of every checked result is right",
            ]
        );
    }

    #[test]
    fn wrong_elements_are_told() {
        let lines = shown(&[row(), Row { wrong: 3, ..row() }], false);
        assert_eq!(lines.last().map(String::as_str), Some("# 3 ELEMENTS ARE WRONG"));
    }

    #[test]
    fn json_is_one_object_a_line_and_nothing_else() {
        let lines = shown(&[row(), row()], true);
        assert_eq!(lines.len(), 2);
        let object: serde_json::Value = serde_json::from_str(&lines[0]).expect("an object");
        for key in [
            "collective",
            "bytes",
            "count",
            "dtype",
            "op",
            "ranks",
            "transport",
            "algorithm",
            "time_us_p50",
            "time_us_p99",
            "algbw_gbs",
            "busbw_gbs",
            "wrong",
        ] {
            assert!(!object[key].is_null(), "{key}");
        }
        assert_eq!(object["time_us_p50"], 99.5);
    }

    #[test]
    fn sizes_are_said_in_whole_units() {
        assert_eq!([8, 4096, 3 << 20, 1 << 30].map(in_words), ["8 B", "4 KiB", "3 MiB", "1 GiB"]);
    }
}
