//! What all messages over a control connection share: frames with a length before them, and fields that are checked
//! before anything is kept.

use std::fmt;
use std::time::Duration;

/// What a peer sent is not a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Cuts arriving bytes into frames.
#[derive(Debug)]
pub struct Frames {
    arrived: Vec<u8>,
    max_frame: usize,
}

impl Frames {
    /// For a peer whose frames have at most `max_frame` bytes.
    pub fn new(max_frame: usize) -> Self {
        Frames { arrived: Vec::new(), max_frame }
    }

    /// How many more bytes are of use: what is missing of the frame that has begun. Reading no more than this keeps
    /// the buffer within its bound.
    pub fn wanted(&self) -> Result<usize, Malformed> {
        match self.arrived.first_chunk::<4>() {
            None => Ok(4 - self.arrived.len()),
            Some(length) => {
                let length = u32::from_le_bytes(*length) as usize;
                if length == 0 || length > self.max_frame {
                    return Err(Malformed("a frame of a length that no message has"));
                }
                Ok((4 + length).saturating_sub(self.arrived.len()))
            }
        }
    }

    /// Takes bytes that arrived: at most as many as were wanted.
    pub fn push(&mut self, bytes: &[u8]) {
        self.arrived.extend_from_slice(bytes);
    }

    /// The next frame, without its length, if all of it is there.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        if self.wanted()? > 0 || self.arrived.len() <= 4 {
            return Ok(None);
        }
        let length = 4 + self.arrived.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
        let rest = self.arrived.split_off(length.min(self.arrived.len()));
        let mut frame = std::mem::replace(&mut self.arrived, rest);
        frame.drain(..4);
        Ok(Some(frame))
    }
}

/// A message as a frame: `fill` writes its kind and fields.
pub(crate) fn frame(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; 4];
    fill(&mut out);
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_le_bytes());
    out
}

/// The longest start of `text` that has at most `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend(u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str, max: usize) {
    put_bytes(out, cut(text, max).as_bytes());
}

pub(crate) fn put_millis(out: &mut Vec<u8>, length: Duration) {
    out.extend(u64::try_from(length.as_millis()).unwrap_or(u64::MAX).to_le_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend(length.to_le_bytes());
    out.extend(&bytes[..length as usize]);
}

/// What is left of a message's fields.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed("cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed("cut short"))
    }

    /// That nothing is left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes after the end")) }
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<usize, Malformed> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }

    pub(crate) fn millis(&mut self) -> Result<Duration, Malformed> {
        Ok(Duration::from_millis(u64::from_le_bytes(self.array()?)))
    }

    pub(crate) fn bytes(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let length = u16::from_le_bytes(self.array()?) as usize;
        if length > max {
            return Err(Malformed("a field is too long"));
        }
        self.take(length)
    }

    pub(crate) fn text(&mut self, max: usize) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.bytes(max)?).map_err(|_| Malformed("a text is not UTF-8"))?;
        // Texts end up in terminals and logs.
        Ok(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }

    pub(crate) fn list<T>(
        &mut self,
        max: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()?;
        if count > max {
            return Err(Malformed("too many items"));
        }
        // Nothing is reserved for items that did not arrive.
        (0..count).map(|_| item(self)).collect()
    }
}
