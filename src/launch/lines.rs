//! Cutting a worker's output into lines, so that lines of different ranks are never mixed.

/// The longest line that is kept whole while its end is awaited. It bounds the memory a stream can take.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// How a piece of output ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With a newline, which is not part of the piece.
    Newline,
    /// With a carriage return: what follows is to be written over it. The return is not part of the piece.
    Return,
    /// Nowhere: the line is longer than [`MAX_LINE_BYTES`] and goes on in the next piece.
    Cut,
    /// With the end of the stream, without a newline.
    Stream,
}

/// The unfinished line of one stream.
#[derive(Debug, Default)]
pub struct LineBuffer {
    buffer: Vec<u8>,
}

impl LineBuffer {
    /// Takes bytes as they arrive, and gives `each` the pieces that are now complete. Bytes are passed on as they are,
    /// whatever their encoding, except that a return at the beginning of a line, which moves nothing, is dropped.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8], End)) {
        while !bytes.is_empty() {
            // A return that ended the last bytes: only now can it be told from the first half of "\r\n".
            if self.buffer.last() == Some(&b'\r') && !matches!(bytes.first(), Some(b'\n' | b'\r')) {
                self.give_return(&mut each);
            }
            let end = bytes.iter().position(|&byte| byte == b'\n' || byte == b'\r');
            let take = match end {
                Some(index) => index + 1,
                None => bytes.len(),
            };
            let room = MAX_LINE_BYTES.saturating_sub(self.buffer.len()).max(1);
            let (now, later) = bytes.split_at(take.min(room));
            bytes = later;
            match now.split_last() {
                Some((b'\n', text)) if self.buffer.is_empty() => each(text, End::Newline),
                Some((b'\n', text)) => {
                    self.buffer.extend_from_slice(text);
                    each(&self.buffer, End::Newline);
                    self.buffer.clear();
                }
                _ => {
                    self.buffer.extend_from_slice(now);
                    if self.buffer.len() >= MAX_LINE_BYTES {
                        each(&self.buffer, End::Cut);
                        self.buffer.clear();
                    }
                }
            }
        }
        self.buffer.shrink_to(1 << 16);
    }

    /// The stream has ended: gives what is left.
    pub fn finish(&mut self, mut each: impl FnMut(&[u8], End)) {
        if self.buffer.last() == Some(&b'\r') {
            self.give_return(&mut each);
        } else if !self.buffer.is_empty() {
            each(&self.buffer, End::Stream);
        }
        self.buffer.clear();
    }

    /// What has arrived of the line that is not complete: a prompt, or the newest state of a progress bar.
    pub fn partial(&self) -> &[u8] {
        let end = self.buffer.iter().rposition(|&byte| byte != b'\r').map_or(0, |index| index + 1);
        self.buffer.get(..end).unwrap_or_default()
    }

    /// Forgets the line that is not complete: it has been completed elsewhere.
    pub fn clear(&mut self) {
        self.buffer.clear();
    }

    fn give_return(&mut self, each: &mut impl FnMut(&[u8], End)) {
        let text = self.partial();
        if !text.is_empty() {
            each(text, End::Return);
        }
        self.buffer.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces(chunks: &[&[u8]]) -> Vec<(Vec<u8>, End)> {
        let mut out = Vec::new();
        let mut buffer = LineBuffer::default();
        for chunk in chunks {
            buffer.push(chunk, |text, end| out.push((text.to_vec(), end)));
        }
        buffer.finish(|text, end| out.push((text.to_vec(), end)));
        out
    }

    fn text(chunks: &[&str]) -> Vec<(String, End)> {
        let chunks: Vec<_> = chunks.iter().map(|chunk| chunk.as_bytes()).collect();
        pieces(&chunks).into_iter().map(|(text, end)| (String::from_utf8(text).unwrap(), end)).collect()
    }

    fn piece(text: &str, end: End) -> (String, End) {
        (text.into(), end)
    }

    #[test]
    fn lines_are_put_together() {
        use End::{Newline, Stream};
        assert_eq!(
            text(&["a\nb", "c\n\nd"]),
            [piece("a", Newline), piece("bc", Newline), piece("", Newline), piece("d", Stream)]
        );
        assert_eq!(text(&["", "a\n"]), [piece("a", Newline)]);
    }

    #[test]
    fn returns_end_a_state_of_a_line() {
        use End::{Newline, Return, Stream};
        assert_eq!(
            text(&["\r10%\r20%", "\r", "100%\nx"]),
            [piece("10%", Return), piece("20%", Return), piece("100%", Newline), piece("x", Stream)]
        );
        assert_eq!(text(&["a\r"]), [piece("a", Return)]);
        // A network's or a terminal's line ends are line ends.
        assert_eq!(
            text(&["a\r\nb\r", "\nc\r\r\n"]),
            [piece("a\r", Newline), piece("b\r", Newline), piece("c\r\r", Newline)]
        );
    }

    #[test]
    fn the_partial_line_can_be_seen() {
        let mut buffer = LineBuffer::default();
        buffer.push(b"done\nname? ", |_, _| {});
        assert_eq!(buffer.partial(), b"name? ");
        buffer.push(b"\r", |_, _| {});
        assert_eq!(buffer.partial(), b"name? ");
    }

    #[test]
    fn endless_lines_take_bounded_memory() {
        let chunk = vec![b'x'; 100_000];
        let mut buffer = LineBuffer::default();
        let mut bytes = 0;
        for _ in 0..100 {
            buffer.push(&chunk, |text, end| {
                assert_eq!((text.len(), end), (MAX_LINE_BYTES, End::Cut));
                bytes += text.len();
            });
            assert!(buffer.buffer.capacity() <= 2 * MAX_LINE_BYTES);
        }
        buffer.finish(|text, _| bytes += text.len());
        assert_eq!(bytes, 100 * chunk.len());
    }

    proptest! {
        /// However the stream is cut into chunks, the pieces are the same, and no byte is lost or added.
        #[test]
        fn chunks_do_not_matter(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..200),
            cuts in prop::collection::vec(0_usize..200, 0..10),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<_> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let whole = pieces(&[&bytes]);
            prop_assert_eq!(pieces(&chunks), whole.clone());
            let kept = |bytes: &[u8]| bytes.iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect::<Vec<_>>();
            let joined: Vec<u8> = whole.iter().flat_map(|(text, _)| text.clone()).collect();
            prop_assert_eq!(kept(&joined), kept(&bytes));
            let newlines = whole.iter().filter(|(_, end)| *end == End::Newline).count();
            prop_assert_eq!(newlines, bytes.iter().filter(|&&byte| byte == b'\n').count());
        }
    }
}
