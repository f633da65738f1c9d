//! How large the buffers are: sizes as people write them, and what a size means for each collective.

use std::str::FromStr;

use phalanx::types::Collective;

/// A number of bytes as people write it: in the largest unit in which it is whole.
pub fn in_words(bytes: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// The sizes to run, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// From the first to the last, each a factor larger than the one before.
    Range(usize, usize),
    /// These, in this order.
    List(Vec<usize>),
}

impl Sizes {
    /// Every size; `factor` is at least 2.
    pub fn expand(&self, factor: usize) -> Vec<usize> {
        match self {
            Sizes::List(sizes) => sizes.clone(),
            &Sizes::Range(first, last) => std::iter::successors(Some(first), |size| size.checked_mul(factor.max(2)))
                .take_while(|&size| size <= last)
                .collect(),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((first, last)) = text.split_once(':') else {
            return text.split(',').map(bytes).collect::<Result<_, _>>().map(Sizes::List);
        };
        let (first, last) = (bytes(first)?, bytes(last)?);
        if first == 0 {
            return Err("a range cannot begin at 0 bytes, which no factor makes larger; write 0 in a list".into());
        }
        if first > last {
            return Err(format!("the range begins at {first} bytes, above its end of {last}"));
        }
        Ok(Sizes::Range(first, last))
    }
}

/// Reads `4096`, `4K`, `1M` or `2G`, in powers of 1024; `KiB` and `KB` mean the same.
pub fn bytes(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => {
            return Err(format!("{text:?} is not a number of bytes; write such as 4096, 4K, 1M or 2G"));
        }
    };
    let number: usize =
        number.parse().map_err(|_| format!("{text:?} is not a number of bytes; write such as 4096, 4K, 1M or 2G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more bytes than this machine can count"))
}

/// A size, made whole for a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Elements that the call names: of the whole buffer, or of one rank's block for collectives that cut the buffer
    /// into blocks.
    pub count: usize,
    /// Elements of the larger of input and output.
    pub total: usize,
}

/// Whether the larger buffer is one block for each rank.
pub fn has_blocks(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, Allgather | ReduceScatter | Alltoall | Gather | Scatter)
}

impl Extent {
    /// What `bytes` of the larger buffer mean: rounded down to whole elements, or to equal blocks of whole elements,
    /// but not below one element (a block).
    pub fn of(collective: Collective, bytes: usize, element_bytes: usize, ranks: usize) -> Self {
        let blocks = if has_blocks(collective) { ranks } else { 1 };
        let count = match (collective, bytes) {
            (Collective::Barrier, _) | (_, 0) => 0,
            _ => (bytes / element_bytes / blocks).max(1),
        };
        Extent { count, total: count * blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        let list = |text: &str| text.parse::<Sizes>().unwrap().expand(8);
        assert_eq!(list("8:4K"), [8, 64, 512, 4096]);
        assert_eq!(list("8:5000"), [8, 64, 512, 4096]);
        assert_eq!(list("8:128M").len(), 9);
        assert_eq!(list("1G:1GiB"), [1 << 30]);
        assert_eq!("4:64".parse::<Sizes>().unwrap().expand(2), [4, 8, 16, 32, 64]);
        assert_eq!(list("0, 3,2k,1MB"), [0, 3, 2048, 1 << 20]);
        assert_eq!(Sizes::Range(usize::MAX / 2, usize::MAX).expand(8), [usize::MAX / 2]);
    }

    #[test]
    fn sizes_that_mean_nothing_are_refused() {
        let refused = |text: &str| text.parse::<Sizes>().unwrap_err();
        assert!(refused("").contains("not a number of bytes"));
        assert!(refused("8:").contains("not a number of bytes"));
        assert!(refused("8T").contains("8T"));
        assert!(refused("-8").contains("-8"));
        assert!(refused("0:8").contains("cannot begin at 0"));
        assert!(refused("16:8").contains("above its end"));
        assert!(refused("99999999999999999999").contains("not a number"));
        assert!(refused("99999999999G").contains("more bytes"));
    }

    #[test]
    fn extents_are_whole_blocks() {
        let extent = |collective, bytes| {
            let Extent { count, total } = Extent::of(collective, bytes, 4, 3);
            (count, total)
        };
        assert_eq!(extent(Collective::Allreduce, 30), (7, 7));
        assert_eq!(extent(Collective::Allgather, 30), (2, 6));
        assert_eq!(extent(Collective::Alltoall, 8), (1, 3));
        assert_eq!(extent(Collective::Broadcast, 1), (1, 1));
        assert_eq!(extent(Collective::Scatter, 0), (0, 0));
        assert_eq!(extent(Collective::Barrier, 1 << 20), (0, 0));
    }
}
