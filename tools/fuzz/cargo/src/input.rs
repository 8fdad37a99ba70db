//! Bytes as choices: what drives a sequence of operations.
//!
//! Invariant: a sequence ends where its bytes end.

/// The bytes not read yet.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u8) -> Option<u8> {
        Some(self.byte()? % end)
    }

    /// One of two.
    pub fn flag(&mut self) -> Option<bool> {
        Some(self.byte()? & 1 == 1)
    }

    /// A number of two bytes: a place in a list of whatever length.
    pub fn place(&mut self) -> Option<usize> {
        Some(usize::from(self.byte()?) << 8 | usize::from(self.byte()?))
    }

    /// The next eight bytes as a number.
    pub fn number(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    /// A span below 2^`bits`: a first byte says of how many bits, so that every size is as likely as another.
    pub fn span(&mut self, bits: u8) -> Option<u64> {
        let bits = u32::from(self.below(bits + 1)?);
        let mut span = 0;
        for _ in 0..bits.div_ceil(8) {
            span = span << 8 | u64::from(self.byte()?);
        }
        Some(span & ((1 << bits) - 1))
    }
}
