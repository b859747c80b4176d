//! The terminal's clipboard, which also programs on the other side of an SSH connection reach: OSC 52. A
//! terminal that does not know it, or does not allow it, ignores it.

/// The longest text that is copied, in bytes. Terminals drop longer ones.
const LONGEST: usize = 64 * 1024;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns what a terminal takes as the request to put this text into the clipboard; nothing for a text that
/// is too long.
pub(super) fn request(text: &str) -> Option<String> {
    (text.len() <= LONGEST).then(|| format!("\u{1b}]52;c;{}\u{7}", base64(text.as_bytes())))
}

/// Writes bytes in base64 (RFC 4648), whose letters cannot command a terminal.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let is_there = digit <= group.len();
            let six = (bits >> (18 - 6 * digit)) & 63;
            text.push(if is_there { char::from(ALPHABET[six as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_encoded_as_in_the_examples_of_the_standard() {
        for (text, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
            ("\u{fb}\u{ff}", "w7vDvw=="),
        ] {
            assert_eq!(base64(text.as_bytes()), encoded, "{text}");
        }
        assert_eq!(request("foo").as_deref(), Some("\u{1b}]52;c;Zm9v\u{7}"));
        assert_eq!(request(&"x".repeat(LONGEST + 1)), None);
    }
}
