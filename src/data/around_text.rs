//! The tokens around a text that is not rendered by a template.

use tokenizers::Tokenizer;

/// The tokens around every text that is not rendered by a template.
#[derive(Default)]
pub(crate) struct AroundText {
    /// Those that the tokenizer adds before it, such as BOS.
    pub before: Vec<u32>,
    /// Those that the tokenizer adds after it.
    pub after: Vec<u32>,
    /// The end-of-text token, which follows unless it is there already.
    pub end: Option<u32>,
    /// Whether these tokens are known; if not, there are none here.
    pub is_known: bool,
}

impl AroundText {
    /// Finds out what a tokenizer adds, from the tokens of a short text.
    pub(crate) fn of(tokenizer: &Tokenizer, end: Option<u32>) -> Self {
        let ids =
            |add| tokenizer.encode("a", add).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default();
        let (plain, full) = (ids(false), ids(true));
        let at = full.windows(plain.len().max(1)).position(|ids| ids == plain);
        let Some(at) = at else { return Self { end, ..Self::default() } };
        let after = full[at + plain.len()..].to_vec();
        Self { before: full[..at].to_vec(), after, end, is_known: true }
    }
}
