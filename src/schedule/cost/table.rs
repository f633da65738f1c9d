//! A table that overrides the choice of algorithms.
//!
//! One rule a line: `allreduce 4 shm 64K: ring` means that an allreduce of up to 64 KiB among 4 ranks of one host that share
//! memory goes by ring. `*` stands for any ranks, any carrier (`shm`, or `tcp` for whatever else), any size. The first rule
//! that fits counts. What follows a `#` is a remark.

use crate::types::{Algorithm, Collective, Digest};

use super::super::algorithms_for;

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    collective: Collective,
    ranks: Option<usize>,
    shared_memory: Option<bool>,
    up_to: Option<usize>,
    algorithm: Algorithm,
}

/// The rules, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmTable(Vec<Rule>);

impl AlgorithmTable {
    /// Reads a table.
    ///
    /// # Errors
    ///
    /// The line, what stands there, and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let rule = line.split('#').next().unwrap_or("").trim();
            if !rule.is_empty() {
                rules.push(parse_rule(rule).map_err(|why| format!("line {}: {rule:?}: {why}", number + 1))?);
            }
        }
        Ok(Self(rules))
    }

    /// The algorithm for a call of `bytes` among so many ranks, if a rule fits.
    pub fn find(&self, collective: Collective, ranks: usize, shared_memory: bool, bytes: usize) -> Option<Algorithm> {
        let fits = |rule: &&Rule| {
            rule.collective == collective
                && rule.ranks.is_none_or(|wanted| wanted == ranks)
                && rule.shared_memory.is_none_or(|wanted| wanted == shared_memory)
                && rule.up_to.is_none_or(|most| bytes <= most)
        };
        self.0.iter().find(fits).map(|rule| rule.algorithm)
    }

    /// A number that tables with other rules do not share. 0 without rules.
    pub fn digest(&self) -> u64 {
        if self.0.is_empty() {
            return 0;
        }
        let mut digest = Digest::new();
        for rule in &self.0 {
            digest.add(&[rule.collective as u8, rule.algorithm as u8, rule.shared_memory.map_or(2, u8::from)]);
            for number in [rule.ranks, rule.up_to] {
                digest.add(&number.map_or(u64::MAX, |number| number as u64).to_le_bytes());
            }
        }
        digest.0.max(1)
    }
}

fn parse_rule(rule: &str) -> Result<Rule, String> {
    const FORM: &str = "expected COLLECTIVE RANKS CARRIER SIZE: ALGORITHM, such as allreduce 4 shm 64K: ring";
    let (left, algorithm) = rule.split_once(':').ok_or(FORM)?;
    let words: Vec<&str> = left.split_whitespace().collect();
    let &[collective, ranks, carrier, size] = words.as_slice() else { return Err(FORM.into()) };
    let collective: Collective = collective.parse()?;
    let algorithm: Algorithm = algorithm.trim().parse()?;
    let serving = algorithms_for(collective);
    if !serving.contains(&algorithm) && (algorithm != Algorithm::Boards || serving.is_empty()) {
        let names: Vec<_> = serving.iter().map(|one| one.name()).chain(["boards"]).collect();
        return Err(format!("{algorithm} does not serve {collective}; expected one of {}", names.join(", ")));
    }
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    Ok(Rule {
        collective,
        ranks: match ranks {
            "*" => None,
            text => Some(number(text).ok_or_else(|| format!("{text:?} is no number of ranks; expected one, or *"))?),
        },
        shared_memory: match carrier {
            "*" => None,
            "shm" => Some(true),
            "tcp" => Some(false),
            other => return Err(format!("{other:?} is no carrier; expected shm, tcp or *")),
        },
        up_to: match size {
            "*" => None,
            text => {
                Some(bytes(text).ok_or_else(|| format!("{text:?} is no size; expected such as 4096, 64K, 1M or *"))?)
            }
        },
        algorithm,
    })
}

/// A number of bytes, with K, M or G for powers of 1,024.
fn bytes(text: &str) -> Option<usize> {
    let (number, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_counts() {
        let text =
            "# mine\nallreduce 4 shm 64K: ring # small\nallreduce * * *: two-shot\n\nbroadcast 2 tcp 1M: linear\n";
        let table = AlgorithmTable::parse(text).expect("a sound table");
        let find = |collective, ranks, shm, bytes| table.find(collective, ranks, shm, bytes);
        assert_eq!(find(Collective::Allreduce, 4, true, 65536), Some(Algorithm::Ring));
        assert_eq!(find(Collective::Allreduce, 4, true, 65537), Some(Algorithm::TwoShot));
        assert_eq!(find(Collective::Allreduce, 4, false, 8), Some(Algorithm::TwoShot));
        assert_eq!(find(Collective::Broadcast, 2, false, 1 << 20), Some(Algorithm::Linear));
        assert_eq!(find(Collective::Broadcast, 3, false, 8), None);
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        for (line, expected) in [
            ("allreduce 4 shm 64K ring", "expected COLLECTIVE RANKS CARRIER SIZE: ALGORITHM"),
            ("allreduce 4 shm: ring", "expected COLLECTIVE RANKS CARRIER SIZE: ALGORITHM"),
            ("allreduce four shm 64K: ring", "\"four\" is no number of ranks"),
            ("allreduce 0 shm 64K: ring", "\"0\" is no number of ranks"),
            ("allreduce 4 ib 64K: ring", "expected shm, tcp or *"),
            ("allreduce 4 shm 64Q: ring", "\"64Q\" is no size"),
            ("allreduce 4 shm 99999999999999999999G: ring", "is no size"),
            ("allreduce 4 shm é: ring", "is no size"),
            ("allreduce 4 shm 64K: bruck", "bruck does not serve allreduce; expected one of two_shot"),
            ("allreduce 4 shm 64K: spiral", "spiral"),
            ("sum 4 shm 64K: ring", "sum"),
        ] {
            let why = AlgorithmTable::parse(&format!("# one\n{line}")).expect_err(line);
            assert!(why.contains("line 2: ") && why.contains(expected), "{why}");
        }
    }

    #[test]
    fn other_rules_have_another_digest() {
        let digest = |text: &str| AlgorithmTable::parse(text).expect("a sound table").digest();
        assert_eq!(digest("# nothing"), 0);
        assert_eq!(digest("allreduce 4 shm 64K: ring"), digest("  allreduce  4 shm 65536 : ring # the same"));
        let tables = [
            "allreduce 4 shm 64K: ring",
            "allreduce 4 tcp 64K: ring",
            "allreduce 4 shm *: ring",
            "allreduce * shm 64K: ring",
        ];
        let mut digests: Vec<u64> = tables.map(digest).to_vec();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), tables.len());
    }
}
