//! Numbers by their decimal digits.

/// Whether both digits are one number.
pub fn is_same_number(one: &str, other: &str) -> bool {
    plain(one) == plain(other)
}

/// The shortest digits that are read as this float.
pub fn shortest(float: impl Into<f64> + std::fmt::Display + Copy) -> String {
    let value: f64 = float.into();
    match value {
        _ if value.is_nan() => "NaN".into(),
        _ if value.is_infinite() => if value > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        _ => float.to_string(),
    }
}

/// The integer that the digits are, whatever zeros follow the point.
pub fn integer(digits: &str) -> Option<i128> {
    let (whole, places) = digits.split_once('.').unwrap_or((digits, ""));
    if !places.bytes().all(|digit| digit == b'0') {
        return None;
    }
    whole.parse().ok()
}

/// The digits without those that say nothing.
fn plain(digits: &str) -> (bool, &str, &str) {
    let (is_negative, digits) = digits.strip_prefix('-').map_or((false, digits), |digits| (true, digits));
    let (whole, places) = digits.split_once('.').unwrap_or((digits, ""));
    let (whole, places) = (whole.trim_start_matches('0'), places.trim_end_matches('0'));
    (is_negative && !(whole.is_empty() && places.is_empty()), whole, places)
}

#[cfg(test)]
mod tests {
    use super::{integer, is_same_number, plain, shortest};

    #[test]
    fn zeros_after_the_point_are_no_part_of_an_integer() {
        assert_eq!(integer("7.000"), Some(7));
        assert_eq!(integer("-0.0"), Some(0));
        assert_eq!(integer("7.5"), None);
        assert_eq!(integer("NaN"), None);
        assert_eq!(integer("Infinity"), None);
    }

    #[test]
    fn digits_that_say_nothing_are_left_out() {
        assert_eq!(plain("007.50"), plain("7.5"));
        assert_eq!(plain("-0.00"), plain("0"));
        assert_ne!(plain("-7"), plain("7"));
        assert_ne!(plain("70"), plain("7"));
        assert!(is_same_number("1.10", "1.1") && !is_same_number("1.01", "1.1"));
    }

    #[test]
    fn a_float_stands_for_the_shortest_number_that_is_read_as_it() {
        assert_eq!(shortest(0.1_f64), "0.1");
        assert_eq!(shortest(0.1_f32), "0.1");
        assert_eq!(shortest(1e15_f64), "1000000000000000");
        assert_eq!(shortest(f64::NEG_INFINITY), "-Infinity");
    }
}
