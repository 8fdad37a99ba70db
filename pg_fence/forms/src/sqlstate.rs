//! SQLSTATEs as the server packs them.

/// The five characters of an SQLSTATE in the six bits each that the server packs them in.
pub const fn packed_sqlstate(sqlstate: &str) -> i32 {
    let bytes = sqlstate.as_bytes();
    assert!(bytes.len() == 5, "an SQLSTATE has five characters");
    let mut packed = 0;
    let mut n = 0;
    while n < bytes.len() {
        packed |= (bytes[n].wrapping_sub(b'0') as i32 & 0x3F) << (6 * n);
        n += 1;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::packed_sqlstate;

    /// As `ERRCODE_TO_CATEGORY` and `unpack_sql_state()` of the server take them apart.
    fn unpacked(mut packed: i32) -> String {
        let mut text = String::new();
        for _ in 0..5 {
            text.push(char::from((packed & 0x3F) as u8 + b'0'));
            packed >>= 6;
        }
        text
    }

    #[test]
    fn five_characters_come_back_as_they_were() {
        for sqlstate in ["00000", "LF001", "P0002", "XX001", "42P01", "ZZZZZ", "99999"] {
            assert_eq!(unpacked(packed_sqlstate(sqlstate)), sqlstate);
        }
    }

    #[test]
    fn the_class_is_in_the_low_bits() {
        const TWO_CHARACTERS: i32 = (1 << 12) - 1;
        assert_eq!(packed_sqlstate("LF002") & TWO_CHARACTERS, packed_sqlstate("LF000"));
        assert_eq!(packed_sqlstate("00000"), 0);
    }
}
