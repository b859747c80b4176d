//! Base64, in which the DevTools protocol passes bytes.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte).expect("a digit") as u32;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four.iter().fold(0_u32, |bits, byte| bits << 6 | digit(byte));
        let whole = (bits << (6 * (4 - four.len()))).to_be_bytes();
        bytes.extend_from_slice(&whole[1..four.len()]);
    }
    bytes
}

pub(crate) fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at > three.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

#[test]
fn bytes_of_any_length_come_back() {
    for length in 0..10 {
        let bytes: Vec<u8> = (0..length).map(|at| 250_u8.wrapping_add(at * 7)).collect();
        assert_eq!(from_base64(&to_base64(&bytes)), bytes);
    }
    assert_eq!(to_base64(b"sparks"), "c3Bhcmtz");
    assert_eq!(to_base64(b"spar"), "c3Bhcg==");
}
