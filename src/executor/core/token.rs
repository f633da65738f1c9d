//! A token is a slot (20 bits), its uses (24 bits), and an instruction of the current step or the one that is posted ahead
//! (20 bits): its number, and a bit that tells the two apart.

use crate::transport::Token;

pub const MAX_SLOTS: usize = 1 << 20;
pub const MAX_INSTRUCTIONS: usize = 1 << 19;

pub fn new(slot: usize, uses: u32, instruction: usize) -> Token {
    Token((slot as u64) << 44 | u64::from(uses & 0xff_ffff) << 20 | instruction as u64)
}

pub fn parts(token: Token) -> (usize, u32, usize) {
    ((token.0 >> 44) as usize, (token.0 >> 20) as u32 & 0xff_ffff, token.0 as usize & 0xf_ffff)
}
