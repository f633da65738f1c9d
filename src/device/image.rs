//! Compiled kernels as the driver takes them, looked through before it does.
//!
//! The driver is given an address and no length: it reads as far as the content says. So the content has to be whole: a
//! file that was cut short, or is something else, would let it read what is not there. Two forms are known. A cubin is
//! an ELF file. A fatbin is a header and, behind each other, parts for one architecture each, every one with its
//! length.

use std::ops::Range;

use crate::types::{Error, Result};

/// The first bytes of both.
const ELF: [u8; 4] = *b"\x7fELF";
const FATBIN: [u8; 4] = [0x50, 0xed, 0x55, 0xba];

/// Where an ELF file of 64 bits says where its tables are: the offset, the size of an entry, the number of them.
const PROGRAM_HEADERS: (usize, usize, usize) = (0x20, 0x36, 0x38);
const SECTION_HEADERS: (usize, usize, usize) = (0x28, 0x3a, 0x3c);
const ELF_HEADER: usize = 64;

/// A section that has a length and no content.
const NO_CONTENT: u64 = 8;

/// A fatbin's header, and the least that each part's header has.
const FATBIN_HEADER: usize = 16;
const PART_HEADER: usize = 16;

/// Checks that everything that the content speaks of lies in it.
///
/// # Errors
///
/// [`Error::Environment`] when it is neither a cubin nor a fatbin, or is not whole.
pub(super) fn check(content: &[u8]) -> Result<()> {
    let outcome = if content.starts_with(&FATBIN) {
        fatbin(content)
    } else if content.starts_with(&ELF) {
        elf(content)
    } else {
        return Err(Error::environment(
            format_args!("{} bytes given as compiled kernels are neither a cubin nor a fatbin", content.len()),
            "build the kernels again",
        ));
    };
    outcome.ok_or_else(|| {
        Error::environment(
            format_args!("compiled kernels of {} bytes are not whole: they speak of more", content.len()),
            "build the kernels again, or copy the file again",
        )
    })
}

/// A header: magic, version (2 bytes), the header's length (2), the length of the parts (8).
fn fatbin(content: &[u8]) -> Option<()> {
    let header = usize::try_from(number(content, 6..8)?).ok()?;
    let parts = usize::try_from(number(content, 8..16)?).ok()?;
    if header < FATBIN_HEADER || header.checked_add(parts)? != content.len() {
        return None;
    }
    let mut rest = content.get(header..)?;
    while !rest.is_empty() {
        // Kind and version (2 bytes each), the header's length (4), the content's (8).
        let header = usize::try_from(number(rest, 4..8)?).ok().filter(|&header| header >= PART_HEADER)?;
        let length = usize::try_from(number(rest, 8..16)?).ok()?;
        rest = rest.get(header.checked_add(length)?..)?;
    }
    Some(())
}

fn elf(content: &[u8]) -> Option<()> {
    // 64 bits, little-endian.
    if content.len() < ELF_HEADER || content[4..6] != [2, 1] {
        return None;
    }
    let within = |start: u64, length: u64| start.checked_add(length).is_some_and(|end| end <= content.len() as u64);
    for (entry, is_section) in table(content, PROGRAM_HEADERS)?
        .map(|entry| (entry, false))
        .chain(table(content, SECTION_HEADERS)?.map(|entry| (entry, true)))
    {
        let (start, length) = if is_section { (0x18, 0x20) } else { (0x08, 0x20) };
        let (start, length) = (number(entry, start..start + 8)?, number(entry, length..length + 8)?);
        let has_content = !is_section || number(entry, 4..8)? != NO_CONTENT;
        if has_content && !within(start, length) {
            return None;
        }
    }
    Some(())
}

/// The entries of one of the tables; none where one lies outside.
fn table(content: &[u8], (start, size, count): (usize, usize, usize)) -> Option<std::slice::ChunksExact<'_, u8>> {
    let start = usize::try_from(number(content, start..start + 8)?).ok()?;
    let size = usize::try_from(number(content, size..size + 2)?).ok()?;
    let count = usize::try_from(number(content, count..count + 2)?).ok()?;
    let all = content.get(start..start.checked_add(size.checked_mul(count)?)?)?;
    Some(all.chunks_exact(size.max(1)))
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8], at: Range<usize>) -> Option<u64> {
    let bytes = bytes.get(at)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fatbin_of(parts: &[usize]) -> Vec<u8> {
        let mut body = Vec::new();
        for &length in parts {
            body.extend([2, 0, 1, 1]);
            body.extend(64u32.to_le_bytes());
            body.extend((length as u64).to_le_bytes());
            body.resize(body.len() + 48 + length, 7);
        }
        let mut whole = FATBIN.to_vec();
        whole.extend([1, 0, 16, 0]);
        whole.extend((body.len() as u64).to_le_bytes());
        whole.extend(body);
        whole
    }

    #[test]
    fn a_fatbin_is_as_long_as_it_says_and_so_is_each_part() {
        for parts in [&[][..], &[8], &[1000, 8, 24]] {
            let whole = fatbin_of(parts);
            check(&whole).unwrap();
            for length in 4..whole.len() {
                assert!(check(&whole[..length]).is_err(), "{length} bytes of {}", whole.len());
            }
            assert!(check(&[&whole[..], &[0]].concat()).is_err());
        }
        // A part that reaches beyond the end, and one whose header is no header.
        let mut whole = fatbin_of(&[1000, 8]);
        whole[16 + 8] += 9;
        assert!(check(&whole).is_err());
        let mut whole = fatbin_of(&[1000]);
        whole[16 + 4] = 0;
        assert!(check(&whole).unwrap_err().to_string().contains("not whole"));
    }

    #[test]
    fn an_elf_file_holds_all_that_it_speaks_of() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        check(&whole).unwrap();
        // The table of sections stands last.
        for cut in [1, 64, whole.len() / 2, whole.len() - 64, whole.len() - 5] {
            assert!(check(&whole[..whole.len() - cut]).is_err(), "{cut} bytes less");
        }
        // A table that lies elsewhere, a segment and a section that reach beyond the end.
        let at = |field: usize| number(&whole, field..field + 8).unwrap() as usize;
        let section = at(0x28) + 64;
        assert_ne!(number(&whole, section + 4..section + 8), Some(NO_CONTENT));
        for place in [0x28, at(0x20) + 0x20, section + 0x20] {
            let mut wild = whole.clone();
            wild[place..place + 8].copy_from_slice(&(whole.len() as u64 + 1).to_le_bytes());
            assert!(check(&wild).is_err(), "{place:#x}");
            wild[place..place + 8].fill(0xff);
            assert!(check(&wild).is_err(), "{place:#x}");
        }
    }

    /// One that NVIDIA's tools have made, where a file is named.
    #[test]
    fn a_real_fatbin_is_whole_and_a_part_of_it_is_not() {
        let Ok(file) = std::env::var("PHALANX_TEST_FATBIN") else {
            return println!("skipped: PHALANX_TEST_FATBIN names no file of kernels/build.py");
        };
        let whole = std::fs::read(file).unwrap();
        assert!(whole.starts_with(&FATBIN));
        check(&whole).unwrap();
        for cut in [1, 8, 4096, whole.len() / 2] {
            assert!(check(&whole[..whole.len() - cut]).is_err(), "{cut} bytes less");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for content in [&b""[..], b"\x7fEL", b".version 8.0\n.target sm_90\0"] {
            assert!(check(content).unwrap_err().to_string().contains("neither a cubin nor a fatbin"));
        }
    }
}
