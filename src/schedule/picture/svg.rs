//! Plans as SVG: a lane a rank, time downwards, an arrow a message.

use std::fmt::Write;

use super::super::Schedule;
use super::{Row, elements, rows};

/// Between lanes.
const LANE: usize = 110;
/// Left of the first lane, where rows are numbered.
const MARGIN: usize = 90;
/// Above the first row.
const HEAD: usize = 84;
/// Below the last row, for the legend.
const FOOT: usize = 56;

/// A line of labels.
const LABEL: usize = 12;
/// The most spans that are named for one rank and row.
const MOST_LABELS: usize = 2;

const STORE: &str = "#2563a8";
const REDUCE: &str = "#c2571a";
const FINISH: &str = "#2e8540";
const INK: &str = "#1f2933";
const FAINT: &str = "#cbd2d9";

/// Draws plans that belong together as a complete SVG document. No more than `most_rows` rows are drawn.
pub fn svg(title: &str, schedules: &[Schedule], hosts: &[usize], most_rows: usize) -> String {
    let rows = rows(schedules);
    let shown = &rows[..rows.len().min(most_rows.saturating_add(1))];
    let lanes = schedules.len();
    let x = |rank: usize| MARGIN + LANE / 2 + rank * LANE;
    let heights: Vec<usize> = shown.iter().map(|row| height(row, lanes)).collect();
    let width = (MARGIN + lanes * LANE + 20).max(760);
    let total = HEAD + heights.iter().sum::<usize>() + FOOT;
    let mut out = String::new();
    let _ = write!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{total}\" viewBox=\"0 0 {width} {total}\" \
         font-family=\"ui-sans-serif, system-ui, DejaVu Sans, sans-serif\" font-size=\"12\" fill=\"{INK}\">\n\
         <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<defs>\n",
        escape(title)
    );
    for (name, colour) in [("store", STORE), ("reduce", REDUCE), ("finish", FINISH)] {
        let _ = writeln!(
            out,
            "<marker id=\"{name}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
             orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"{colour}\"/></marker>"
        );
    }
    let _ =
        writeln!(out, "</defs>\n<text x=\"20\" y=\"28\" font-size=\"16\" font-weight=\"600\">{}</text>", escape(title));
    let bottom = total - FOOT;
    for rank in 0..lanes {
        let _ = writeln!(
            out,
            "<line x1=\"{0}\" y1=\"{1}\" x2=\"{0}\" y2=\"{bottom}\" stroke=\"{FAINT}\" stroke-width=\"2\"/>\n\
             <text x=\"{0}\" y=\"{2}\" text-anchor=\"middle\" font-weight=\"600\">rank {rank}</text>",
            x(rank),
            HEAD - 12,
            HEAD - 36
        );
        if let Some(host) = hosts.get(rank) {
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\" fill=\"#616e7c\">host {host}</text>",
                x(rank),
                HEAD - 20
            );
        }
    }
    let mut top = HEAD;
    for (number, (row, &height)) in shown.iter().zip(&heights).enumerate() {
        if number > 0 {
            let _ = writeln!(
                out,
                "<line x1=\"16\" y1=\"{top}\" x2=\"{}\" y2=\"{top}\" stroke=\"{FAINT}\" stroke-dasharray=\"2 4\"/>\n\
                 <text x=\"20\" y=\"{}\">step {number}</text>",
                width - 16,
                top + 18
            );
        }
        draw(&mut out, row, top, height, lanes, &x);
        top += height;
    }
    legend(&mut out, bottom, rows.len() - shown.len());
    out.push_str("</svg>\n");
    out
}

/// What each rank sends in a row, each span once: the labels above its arrows. None where there would be too many.
fn labels(row: &Row, lanes: usize) -> Vec<Vec<String>> {
    let mut labels = vec![Vec::new(); lanes];
    for message in &row.messages {
        let label = elements(message.source);
        if !labels[message.from].contains(&label) {
            labels[message.from].push(label);
        }
    }
    if labels.iter().any(|labels| labels.len() > MOST_LABELS) { vec![Vec::new(); lanes] } else { labels }
}

/// The pixels that labels take above the arrows.
fn labels_height(row: &Row, lanes: usize) -> usize {
    LABEL * labels(row, lanes).iter().map(Vec::len).max().unwrap_or(0)
}

/// Rows with more messages are given more room, so that arrows can fan out.
fn height(row: &Row, lanes: usize) -> usize {
    let messages = match row.messages.len() {
        0 => 0,
        count => 48 + labels_height(row, lanes) + 6 * count.div_ceil(lanes) + 2 * lanes,
    };
    messages + if row.work.is_empty() { 0 } else { 26 }
}

fn draw(out: &mut String, row: &Row, top: usize, height: usize, lanes: usize, x: &impl Fn(usize) -> usize) {
    let room = if row.work.is_empty() { height } else { height - 26 };
    for (rank, labels) in labels(row, lanes).into_iter().enumerate() {
        for (line, label) in labels.into_iter().enumerate() {
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\" fill=\"#52606d\" stroke=\"#ffffff\" \
                 stroke-width=\"4\" paint-order=\"stroke\">{label}</text>",
                x(rank),
                top + 14 + LABEL * line
            );
        }
    }
    let first = top + 8 + labels_height(row, lanes);
    let mut sent = vec![0usize; lanes];
    for message in &row.messages {
        let (name, colour) = match (message.reduces, message.finishes) {
            (true, true) => ("finish", FINISH),
            (true, false) => ("reduce", REDUCE),
            _ => ("store", STORE),
        };
        let end = top + room - 8;
        let begin = (first + 6 * sent[message.from]).min(end - 24);
        sent[message.from] += 1;
        let _ = writeln!(
            out,
            "<line x1=\"{}\" y1=\"{begin}\" x2=\"{}\" y2=\"{end}\" stroke=\"{colour}\" stroke-width=\"1.5\" \
             marker-end=\"url(#{name})\"><title>{} to {}: {}</title></line>",
            x(message.from),
            x(message.to),
            message.from,
            message.to,
            elements(message.source)
        );
    }
    let middle = top + height - 14;
    for &(rank, work) in &row.work {
        let at = x(rank);
        let colour = if work.finishes { FINISH } else { REDUCE };
        let _ = match work.operands {
            0 | 1 if !work.finishes => writeln!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"#ffffff\" stroke=\"{INK}\">\
                 <title>rank {rank}: {}</title></rect>",
                at - 5,
                middle - 5,
                work.words()
            ),
            operands => writeln!(
                out,
                "<circle cx=\"{at}\" cy=\"{middle}\" r=\"9\" fill=\"{colour}\"><title>rank {rank}: {}</title></circle>\n\
                 <text x=\"{at}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\" fill=\"#ffffff\">{operands}</text>",
                work.words(),
                middle + 4
            ),
        };
    }
}

/// What colours and signs mean, and how many rows were left out.
fn legend(out: &mut String, bottom: usize, left_out: usize) {
    let y = bottom + 28;
    let arrows =
        [("store", STORE, "stored"), ("reduce", REDUCE, "reduced on arrival"), ("finish", FINISH, "and finished")];
    for (index, (name, colour, words)) in arrows.into_iter().enumerate() {
        let x = 20 + 160 * index;
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"1.5\" \
             marker-end=\"url(#{name})\"/>\n<text x=\"{}\" y=\"{}\">{words}</text>",
            x + 26,
            x + 34,
            y + 4
        );
    }
    let _ = writeln!(
        out,
        "<circle cx=\"520\" cy=\"{y}\" r=\"9\" fill=\"{REDUCE}\"/>\n\
         <text x=\"520\" y=\"{0}\" text-anchor=\"middle\" font-size=\"10\" fill=\"#ffffff\">4</text>\n\
         <text x=\"534\" y=\"{0}\">4 operands reduced</text>\n\
         <rect x=\"672\" y=\"{1}\" width=\"10\" height=\"10\" fill=\"#ffffff\" stroke=\"{INK}\"/>\n\
         <text x=\"688\" y=\"{0}\">copied</text>",
        y + 4,
        y - 5
    );
    if left_out > 0 {
        let _ = writeln!(out, "<text x=\"20\" y=\"{}\">{left_out} more steps are not drawn</text>", y + 22);
    }
}

/// Text as XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
