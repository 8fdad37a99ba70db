//! The text form of arrays and composites.

/// Appends an element in quotes, as the text forms of arrays and composites read it alike.
pub fn quote_element(text: &mut Vec<u8>, value: &[u8]) {
    text.push(b'"');
    for &byte in value {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    text.push(b'"');
}

/// Whether a text that stands for an array is a JSON array. One of the server can begin with a bracket too, where it
/// names its bounds: `[0:1]={1,2}`.
pub fn is_json_array(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let is_of_bounds = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace() || b"[]:+-".contains(byte);
    text.first() == Some(&b'[') && text.iter().find(|byte| !is_of_bounds(byte)) != Some(&b'=')
}

#[cfg(test)]
mod tests {
    use super::{is_json_array, quote_element};

    #[test]
    fn quotes_and_backslashes_are_escaped_in_an_element() {
        let mut text = b"{".to_vec();
        quote_element(&mut text, b"a \"b\" \\ {c}, NULL");
        assert_eq!(text, br#"{"a \"b\" \\ {c}, NULL""#);
    }

    #[test]
    fn an_empty_element_is_not_null() {
        let mut text = Vec::new();
        quote_element(&mut text, b"");
        assert_eq!(text, b"\"\"");
    }

    #[test]
    fn the_bounds_of_an_array_are_no_json() {
        for json in ["[1]", " [ 1, 2 ]", "[]", "[[1]]", "[-1]", "[\"a=b\"]", "[1", "["] {
            assert!(is_json_array(json.as_bytes()), "{json}");
        }
        for array in ["[0:1]={1,2}", " [ -1 : +0 ] [1:1] = {{1},{2}}", "[2]={1,2}", "{1}", "={1}", ""] {
            assert!(!is_json_array(array.as_bytes()), "{array}");
        }
    }
}
