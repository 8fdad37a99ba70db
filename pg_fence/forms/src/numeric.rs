//! The binary form of numeric values, as far as a short integer needs it.

// In the header of a numeric: its form, its sign, its places after the point and the weight of its first digit.
const FORM: u16 = 0xC000;
const SHORT: u16 = 0x8000;
const NEGATIVE: u16 = 0x2000;
const PLACES: u16 = 0x1F80;
const WEIGHT: u16 = 0x007F;
const BASE: i64 = 10_000;
/// Four digits of the base have sixteen decimal ones, which an `i64` holds whatever they are.
const MAX_WEIGHT: usize = 3;

/// A number that is written without a point and has at most 16 digits, from the header and the digits to the base of
/// 10000. Others have to be read from their text.
pub fn short_integer(header: u16, digits: &[i16]) -> Option<i64> {
    let weight = usize::from(header & WEIGHT);
    if header & FORM != SHORT || header & PLACES != 0 || weight > MAX_WEIGHT || digits.len() > weight + 1 {
        return None;
    }
    // Zeros at the end are not stored.
    let at = |place| digits.get(place).copied().map_or(0, i64::from);
    let magnitude = (0..=weight).fold(0, |number, place| number * BASE + at(place));
    Some(if header & NEGATIVE == 0 { magnitude } else { -magnitude })
}

#[cfg(test)]
mod tests {
    use super::{NEGATIVE, SHORT, short_integer};

    #[test]
    fn digits_are_added_up_by_their_weight() {
        assert_eq!(short_integer(SHORT, &[]), Some(0));
        assert_eq!(short_integer(SHORT, &[7]), Some(7));
        assert_eq!(short_integer(SHORT | 1, &[1, 2]), Some(10_002));
        assert_eq!(short_integer(SHORT | 1, &[3]), Some(30_000));
        assert_eq!(short_integer(SHORT | 3, &[9_999; 4]), Some(9_999_999_999_999_999));
        assert_eq!(short_integer(SHORT | NEGATIVE, &[5]), Some(-5));
    }

    #[test]
    fn what_is_no_short_integer_is_left_to_the_text() {
        const LONG: u16 = 0;
        const SPECIAL: u16 = 0xC000;
        const TWO_PLACES: u16 = 2 << 7;
        const WEIGHT_OF_A_FRACTION: u16 = 0x7F;
        assert_eq!(short_integer(LONG, &[7]), None);
        assert_eq!(short_integer(SPECIAL, &[]), None);
        assert_eq!(short_integer(SHORT | TWO_PLACES, &[7, 5_000]), None);
        assert_eq!(short_integer(SHORT | WEIGHT_OF_A_FRACTION, &[5_000]), None);
        assert_eq!(short_integer(SHORT | 4, &[1]), None);
        assert_eq!(short_integer(SHORT, &[1, 2]), None);
    }
}
