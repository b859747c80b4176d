//! Changes an input in a way that follows from a seed: bytes and numbers, but above all the pieces that text
//! is made of, because a random byte only ever breaks the syntax.

use sparktune_base::random::SplitMix64;

/// Pieces that formats and their readers treat as special.
const WORDS: [&str; 40] = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "255",
    "65536",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "1e308",
    "-1e400",
    "NaN",
    "inf",
    "0.1",
    "\"\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "{}",
    "[]",
    "[[",
    "{\"a\":",
    "\"messages\"",
    "\"role\"",
    "\\",
    "\"",
    "'",
    ",",
    "\n",
    "\r\n",
    "\t",
    "\u{feff}",
    "\u{202e}",
    "\u{1b}[2J",
    "../",
    "%%%%",
    "{% for m in messages %}",
    "{{ m.content }}",
    "<|im_start|>",
    "\n%%%%\n",
];

/// Returns `input` changed once to four times. `others` are what pieces are taken from.
pub(crate) fn mutate(input: &[u8], others: &[Vec<u8>], longest: usize, random: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut bytes, others, random);
        bytes.truncate(longest);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut SplitMix64) {
    let pieces = pieces(bytes);
    let piece = pieces[below(pieces.len(), random)].clone();
    let (from, to) = range(bytes.len(), random);
    match random.below(12) {
        0 => {
            if let Some(byte) = bytes.get_mut(from) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(from) {
                *byte = random.next_u64() as u8;
            }
        }
        2 => bytes.truncate(from),
        3 => drop(bytes.drain(from..to)),
        4 => {
            let again = bytes[from..to].to_vec();
            insert(bytes, to, &again);
        }
        // An extreme integer of one to eight bytes, in either order.
        5 => {
            let width = 1 << random.below(4);
            let number: u64 = [0, 1, 1 << 31, u64::MAX >> 1, u64::MAX - 1, u64::MAX][below(6, random)];
            let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
            let text = if random.below(2) == 0 { &little[..width] } else { &big[8 - width..] };
            let end = (from + width).min(bytes.len());
            bytes.splice(from..end, text.iter().copied());
        }
        6 => drop(bytes.splice(piece, WORDS[below(WORDS.len(), random)].bytes())),
        7 => insert(bytes, piece.start, WORDS[below(WORDS.len(), random)].as_bytes()),
        8 => drop(bytes.drain(piece)),
        // A piece of this or of another input in place of a piece, or many times over.
        9 | 10 => {
            let other = &others[below(others.len(), random)];
            let taken = self::pieces(other);
            let taken = &other[taken[below(taken.len(), random)].clone()];
            drop(bytes.splice(piece, taken.iter().copied()));
        }
        _ => {
            let many = bytes[piece.clone()].repeat(2 << random.below(9));
            insert(bytes, piece.end, &many);
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, inserted: &[u8]) {
    bytes.splice(at..at, inserted.iter().copied());
}

/// Splits bytes into words, numbers, and single other bytes. There is at least one piece.
fn pieces(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let is_of_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte > 127;
    let mut pieces = Vec::new();
    let mut start = 0;
    for at in 1..=bytes.len() {
        if at == bytes.len() || !(is_of_word(bytes[at - 1]) && is_of_word(bytes[at])) {
            pieces.push(start..at);
            start = at;
        }
    }
    if pieces.is_empty() {
        pieces.push(0..0);
    }
    pieces
}

/// A random range within a length, which is short more often than long.
fn range(length: usize, random: &mut SplitMix64) -> (usize, usize) {
    let from = below(length + 1, random);
    let most = (length - from) >> random.below(6);
    (from, from + below(most + 1, random))
}

fn below(bound: usize, random: &mut SplitMix64) -> usize {
    random.below(bound as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_changes_again_and_few_of_them_change_nothing() {
        let input = br#"{"messages": [{"role": "user", "content": "1 + 1"}]}"#.to_vec();
        let all = |seed| {
            let mut random = SplitMix64::new(seed);
            let others = [input.clone(), b"a,b\n1,2\n".to_vec(), Vec::new()];
            (0..200).map(|_| mutate(&input, &others, 1000, &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(8));
        assert!(all(7).iter().filter(|changed| **changed == input).count() < 20);
        assert!(all(7).iter().all(|changed| changed.len() <= 1000));
    }

    #[test]
    fn text_falls_into_words_and_signs() {
        let text = b"a_1: [\"x\", 20]";
        let words: Vec<_> = pieces(text).into_iter().map(|piece| &text[piece]).collect();
        let expected: [&[u8]; 11] = [b"a_1", b":", b" ", b"[", b"\"", b"x", b"\"", b",", b" ", b"20", b"]"];
        assert_eq!(words, expected);
        assert_eq!(pieces(b"").len(), 1);
    }
}
