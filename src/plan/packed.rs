//! The settings that are decided already if the data is token files.

use crate::answer::{Answer, Origin};
use crate::facts::PackedSettings;
use crate::resolve::Resolver;
use crate::shown::Shown;

impl Resolver<'_> {
    /// Like [`pick`](Self::pick), for a setting that determines tokens: if the data is token files, the value
    /// is that which made them. The caller has refused an answer of the user that differs.
    pub(crate) fn pick_packed<T: Shown + Clone + PartialEq>(
        &mut self,
        key: &str,
        answer: &Option<Answer<T>>,
        packed: impl Fn(&PackedSettings) -> T,
        recommended: T,
        reason: impl Into<String>,
    ) -> T {
        let Some(facts) = &self.facts.data.packed else {
            return self.pick(key, answer, recommended, reason);
        };
        let Some(settings) = &facts.settings else {
            let reason = "the token file does not say; its tokens and loss masks are used as they are";
            self.record(key, String::new(), Origin::BuiltIn, reason.into());
            return recommended;
        };
        let value = packed(settings);
        self.record(key, value.shown(), Origin::BuiltIn, "as the token file was made".into());
        value
    }
}
