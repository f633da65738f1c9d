//! Plans as text: a row a paragraph, `0 -> 1 [0..25) reduce`.

use std::fmt::Write;

use super::super::Schedule;
use super::{Message, Row, elements, gathered, letter, ranges, rows};

/// The longest line.
const WIDTH: usize = 100;

/// The widest table, beside the names of the senders. Eight ranks with spans of six digits fit.
const MOST_TABLE_WIDTH: usize = 132;

/// The most ranks for which a row of many messages is drawn as a table of senders and receivers.
const MOST_TABLED: usize = 16;

/// Draws plans that belong together. Spans are those of the sender: `[0..25)` of the output, `i[0..25)` of the input,
/// `s[0..25)` of scratch. No more than `most_rows` rows are drawn.
pub fn text(schedules: &[Schedule], most_rows: usize) -> String {
    let rows = rows(schedules);
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate().take(most_rows.saturating_add(1)) {
        if number > 0 {
            let count = row.messages.len();
            let _ = writeln!(out, "step {number}: {count} message{}", if count == 1 { "" } else { "s" });
            let crowded = count > 2 * schedules.len() && schedules.len() <= MOST_TABLED;
            match crowded.then(|| table(row, schedules.len())).flatten() {
                Some(table) => out.push_str(&table),
                None => arrows(&mut out, row),
            }
        }
        for (work, ranks) in gathered(&row.work) {
            let when = match (number, work.beside) {
                (0, _) => "first",
                (_, true) => " with",
                _ => " then",
            };
            let _ = writeln!(out, "  {when} {}: {}", ranges(&ranks), work.words());
        }
    }
    if rows.len() > most_rows.saturating_add(1) {
        let _ = writeln!(out, "... and {} more steps", rows.len() - 1 - most_rows);
    }
    out
}

fn kind(message: &Message) -> &'static str {
    match (message.reduces, message.finishes) {
        (true, true) => " reduce, finish",
        (true, false) => " reduce",
        _ => "",
    }
}

/// Messages as arrows in columns. What one rank sends alike to several is one arrow.
fn arrows(out: &mut String, row: &Row) {
    let mut grouped: Vec<(Message, Vec<usize>)> = Vec::new();
    for message in &row.messages {
        let alike = |other: &Message| Message { to: other.to, ..*message } == *other;
        match grouped
            .iter_mut()
            .rev()
            .take_while(|(other, _)| other.from == message.from)
            .find(|(other, _)| alike(other))
        {
            Some((_, targets)) => targets.push(message.to),
            None => grouped.push((*message, vec![message.to])),
        }
    }
    let words: Vec<String> = grouped
        .iter()
        .map(|(message, to)| {
            format!("{} -> {} {}{}", message.from, ranges(to), elements(message.source), kind(message))
        })
        .collect();
    let longest = words.iter().map(String::len).max().unwrap_or(0);
    let columns = (WIDTH / (longest + 3)).max(1);
    for line in words.chunks(columns) {
        let padded: Vec<String> = line.iter().map(|word| format!("{word:longest$}")).collect();
        let _ = writeln!(out, "  {}", padded.join("   ").trim_end());
    }
}

/// Messages as a table: senders down, receivers across. `None` when it would be too wide, or two messages would share
/// a cell.
fn table(row: &Row, ranks: usize) -> Option<String> {
    let mut cells = vec![vec![String::new(); ranks]; ranks];
    for message in &row.messages {
        let cell = &mut cells[message.from][message.to];
        if !cell.is_empty() {
            return None;
        }
        let sign = if message.reduces { "+" } else { "" };
        *cell = format!("{sign}{}{}..{}", letter(message.source), message.source.start, message.source.end());
    }
    let column = |to: usize| cells.iter().map(|line| line[to].len()).max().unwrap_or(0).max(to.to_string().len());
    let widths: Vec<usize> = (0..ranks).map(column).collect();
    if widths.iter().sum::<usize>() + 2 * ranks > MOST_TABLE_WIDTH {
        return None;
    }
    let line = |name: String, cells: &[String]| {
        let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}")).collect();
        format!("  {name:>5}  {}", cells.join("  ")).trim_end().to_string() + "\n"
    };
    let names: Vec<String> = (0..ranks).map(|to| to.to_string()).collect();
    let mut table = line("to".into(), &names);
    for (from, cells) in cells.iter().enumerate() {
        table.push_str(&line(format!("{from} ->"), cells));
    }
    Some(table)
}
