//! The handwritten digits: real images, built into the binary.
//!
//! `examples/data/README.md` says where they come from and under which licence.

use phalanx::{Error, Result};

/// The file as it is in the repository.
const TEXT: &str = include_str!("../../../examples/data/digits.csv");

/// Pixels of an image.
pub const PIXELS: usize = 64;

/// Classes: the digits 0 to 9.
pub const CLASSES: usize = 10;

/// The darkest pixel in the file.
const DARKEST: u8 = 16;

/// One line in this many is a test image: the last of each group.
const TEST_EVERY: usize = 5;

/// Images with their digits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Images {
    /// Pixels from 0 to 1, one image after the other.
    pub pixels: Vec<f32>,
    /// The digit of each image.
    pub labels: Vec<u8>,
}

impl Images {
    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The pixels of one image.
    pub fn image(&self, index: usize) -> &[f32] {
        &self.pixels[index * PIXELS..][..PIXELS]
    }

    /// The images at `indices`, in that order.
    pub fn select(&self, indices: impl Iterator<Item = usize>) -> Images {
        let mut selected = Images::default();
        for index in indices {
            selected.pixels.extend_from_slice(self.image(index));
            selected.labels.push(self.labels[index]);
        }
        selected
    }
}

/// The data set in its two parts. The split is fixed.
#[derive(Clone, Debug)]
pub struct Digits {
    /// 1,438 images to learn from.
    pub training: Images,
    /// 359 images to be tested on.
    pub test: Images,
}

impl Digits {
    /// Reads the images that are built in.
    pub fn load() -> Result<Digits> {
        let mut digits = Digits { training: Images::default(), test: Images::default() };
        for (number, line) in TEXT.lines().enumerate() {
            let part = if number % TEST_EVERY == TEST_EVERY - 1 { &mut digits.test } else { &mut digits.training };
            parse(line, part)
                .ok_or_else(|| Error::internal(format!("line {} of the built-in digits is damaged", number + 1)))?;
        }
        Ok(digits)
    }
}

/// Appends one line to `part`; `None` when it is not 64 pixels and a digit.
fn parse(line: &str, part: &mut Images) -> Option<()> {
    let mut fields = line.split(',').map(|field| field.parse::<u8>().ok());
    for _ in 0..PIXELS {
        let level = fields.next()??;
        if level > DARKEST {
            return None;
        }
        part.pixels.push(f32::from(level) / f32::from(DARKEST));
    }
    let label = fields.next()??;
    part.labels.push(label);
    (usize::from(label) < CLASSES && fields.next().is_none()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::digest::hex;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_file_is_the_one_that_is_described() {
        let digest = hex(&Sha256::digest(TEXT.as_bytes()));
        assert_eq!(digest, "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8");
        assert!(include_str!("../../../examples/data/README.md").contains(&digest));
        assert_eq!(TEXT.lines().count(), 1797);
    }

    #[test]
    fn every_line_is_an_image_and_the_parts_share_none() {
        let digits = Digits::load().expect("sound digits");
        assert_eq!((digits.training.len(), digits.test.len()), (1438, 359));
        assert_eq!(digits.training.pixels.len(), 1438 * PIXELS);
        let mut by_digit = [0; CLASSES];
        for &label in digits.training.labels.iter().chain(&digits.test.labels) {
            by_digit[usize::from(label)] += 1;
        }
        assert_eq!(by_digit, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        // The file's fifth line is the first test image.
        let fifth = TEXT.lines().nth(4).expect("sound digits");
        let first: Vec<_> = digits.test.image(0).iter().map(|pixel| (pixel * 16.0).to_string()).collect();
        assert_eq!(format!("{},{}", first.join(","), digits.test.labels[0]), fifth);
    }

    #[test]
    fn damaged_lines_are_refused() {
        let good = TEXT.lines().next().expect("sound digits");
        let parses = |line: &str| parse(line, &mut Images::default()).is_some();
        assert!(parses(good));
        assert!(!parses(""));
        assert!(!parses(&format!("{good},1")));
        assert!(!parses(&good.replacen("13", "17", 1)));
        assert!(!parses(&format!("{}10", &good[..good.len() - 1])));
    }
}
