//! Copying past the caches, and fetching into them.
//!
//! A store to a line that is not in the cache first fetches it, which for memory that is written whole and not read soon
//! is a third of all traffic. Streaming stores do without, and leave the caches to what is read next.

/// Copies `bytes` from `source` to `target`, which is written past the caches where the processor can do that. Worth it for
/// memory that is not in a cache and will not be read at once. On other processors than x86-64 it is an ordinary copy: their
/// hints for this have not been measured.
///
/// # Safety
///
/// `source` must be valid for reads and `target` for writes of `bytes` bytes, and they must not overlap.
pub unsafe fn copy_streaming(source: *const u8, target: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        x86::copy_streaming(source, target, bytes);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        target.copy_from_nonoverlapping(source, bytes);
    }
}

/// Begins to fetch `bytes` from `start` into the nearest cache, where the processor can be told so. Touches nothing: any
/// address will do.
pub fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes).step_by(64) {
        // SAFETY: a prefetch of an address that is not mapped does nothing, and SSE is part of every x86-64.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(start.wrapping_add(offset).cast())
        }
    }
    #[cfg(target_arch = "aarch64")]
    for offset in (0..bytes).step_by(64) {
        let line = start.wrapping_add(offset);
        // SAFETY: a prefetch of an address that is not mapped does nothing, and nothing else is done.
        unsafe { std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags)) }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (start, bytes);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;

    /// # Safety
    ///
    /// As for [`super::copy_streaming`].
    pub(super) unsafe fn copy_streaming(source: *const u8, target: *mut u8, bytes: usize) {
        // Streaming stores want whole lines: what is before the first and after the last goes the usual way.
        let head = target.align_offset(LINE).min(bytes);
        let lines = (bytes - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: head, lines and tail are the whole, each part once; SSE2 is part of every x86-64; the targets of
        // streaming stores are multiples of 16. The fence makes them visible before whatever is stored next, which the
        // language's own ordering does not cover.
        unsafe {
            target.copy_from_nonoverlapping(source, head);
            for line in 0..lines {
                let (from, to) = (source.add(head + line * LINE), target.add(head + line * LINE));
                let parts: [__m128i; 4] = std::array::from_fn(|part| _mm_loadu_si128(from.cast::<__m128i>().add(part)));
                for (part, value) in parts.into_iter().enumerate() {
                    _mm_stream_si128(to.cast::<__m128i>().add(part), value);
                }
            }
            target.add(tail).copy_from_nonoverlapping(source.add(tail), bytes - tail);
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_and_none_beside() {
        let source: Vec<u8> = (0..1000).map(|byte| byte as u8).collect();
        for (offset, bytes) in [(0, 0), (0, 1), (1, 62), (1, 63), (3, 64), (0, 128), (5, 600), (63, 900)] {
            for from in [0, 7] {
                let mut target = [0xee_u8; 1100];
                // SAFETY: both have room for `bytes` from their offsets, and are apart.
                unsafe { copy_streaming(source.as_ptr().add(from), target.as_mut_ptr().add(offset), bytes) };
                assert_eq!(target[offset..offset + bytes], source[from..from + bytes]);
                assert!(target[..offset].iter().chain(&target[offset + bytes..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
