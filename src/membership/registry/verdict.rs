//! The verdict on the step that was under way when a view ended.
//!
//! A step ends with a commit: an agreement that nobody passes before every member of the view has entered it, and a
//! member enters it only once all results of the step are there. So when members of a view have stopped for good:
//!
//! - if one of them passed the commit of a step, all of them hold that step's results, and it counts;
//! - if all of them hold the results of the step after, it counts as well, whether or not one that is gone passed its
//!   commit: nobody will ever know;
//! - otherwise one of them has not entered the commit, so nobody passed it, gone or not, and the step does not count: it
//!   is run again, by all alike.
//!
//! This needs the reports of all that go on, and no others. It holds for members that are gone, too: one that passed a
//! commit unseen passed one that the verdict counts.

use crate::wire::registry::{Report, Slot};

/// What becomes of the step under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How many steps count.
    pub counted: u64,
    /// Whether all that go on stand between two steps, so that newcomers can join them.
    pub is_boundary: bool,
    /// Members that cannot be where they say: another passed a commit that they say they had not entered.
    pub impossible: Vec<Slot>,
}

/// The verdict from the reports of all that go on, and the reason in words.
pub fn decide(reports: &[(Slot, Report)]) -> (Verdict, String) {
    let most = reports.iter().map(|(_, report)| report.counted).max().unwrap_or(0);
    let all_hold = !reports.is_empty() && reports.iter().all(|(_, report)| report.counted == most && report.holds);
    let counted = if all_hold { most + 1 } else { most };
    let impossible: Vec<Slot> = reports
        .iter()
        .filter(|(_, report)| !(report.counted == most || (report.counted + 1 == most && report.holds)))
        .map(|(slot, _)| *slot)
        .collect();
    let is_boundary = impossible.is_empty()
        && reports.iter().all(|(_, report)| {
            if report.counted == counted {
                report.boundary
            } else {
                report.counted + 1 == counted && report.holds && !report.closed
            }
        });
    let passed = reports.iter().filter(|(_, report)| report.counted == most).count();
    let reason = if all_hold {
        format!("step {counted} counts: all {} hold its results", reports.len())
    } else if passed < reports.len() {
        format!("step {counted} counts: {passed} of {} passed its commit", reports.len())
    } else if is_boundary {
        format!("step {counted} was the last: all {} stopped behind it", reports.len())
    } else {
        let lacking = reports.iter().filter(|(_, report)| !report.holds).count();
        format!("step {} is run again: {lacking} of {} lack results", counted + 1, reports.len())
    };
    (Verdict { counted, is_boundary, impossible }, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Generation;

    /// Reports as words: the number of commits passed, `+` when the next one was entered, `*` when that is of a step
    /// behind which nobody comes in, `|` at a boundary.
    fn reports(text: &str) -> Vec<(Slot, Report)> {
        let report = |(slot, word): (usize, &str)| {
            let counted = word.trim_end_matches(['+', '*', '|']).parse().expect("a number");
            let (closed, boundary) = (word.ends_with('*'), word.ends_with('|'));
            let holds = word.ends_with('+') || closed;
            (slot, Report { generation: Generation(1), counted, holds, boundary, closed })
        };
        text.split_whitespace().enumerate().map(report).collect()
    }

    #[test]
    fn the_table() {
        // What survivors report; the steps that count; whether all stand between two steps; why.
        let table = [
            ("7 7 7", 7, false, "step 8 is run again: 3 of 3 lack results"),
            ("7+ 7+ 7", 7, false, "step 8 is run again: 1 of 3 lack results"),
            ("7+ 7+ 7+", 8, true, "step 8 counts: all 3 hold its results"),
            ("7+", 8, true, "step 8 counts: all 1 hold its results"),
            ("7* 7* 7*", 8, false, "step 8 counts: all 3 hold its results"),
            ("8 7* 7*", 8, false, "step 8 counts: 1 of 3 passed its commit"),
            ("8 7+ 7+", 8, false, "step 8 counts: 1 of 3 passed its commit"),
            ("8+ 7+ 8", 8, false, "step 8 counts: 2 of 3 passed its commit"),
            ("8| 7+ 7+", 8, true, "step 8 counts: 1 of 3 passed its commit"),
            ("8| 8| 8|", 8, true, "step 8 was the last: all 3 stopped behind it"),
            ("0 0", 0, false, "step 1 is run again: 2 of 2 lack results"),
        ];
        for (text, counted, is_boundary, reason) in table {
            let expected = Verdict { counted, is_boundary, impossible: vec![] };
            assert_eq!(decide(&reports(text)), (expected, reason.into()), "{text}");
        }
    }

    #[test]
    fn members_that_cannot_be_where_they_say_are_named() {
        assert_eq!(decide(&reports("8 7 7+")).0.impossible, [1]);
        assert_eq!(decide(&reports("8 6+ 8+ 8")).0.impossible, [1]);
    }
}
