//! Lists in a line, of which only as many elements are kept as a conversation may have.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::conversation::MOST_MESSAGES;

/// The first elements of a list, at most [`MOST_MESSAGES`]: an element of three bytes of text takes a hundred
/// times that in memory.
pub(super) struct Few<T> {
    pub(super) first: Vec<T>,
    /// The number of all elements. Those that are not kept are valid JSON.
    pub(super) count: usize,
}

impl<T> Few<T> {
    pub(super) fn read<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error>
    where
        T: Deserialize<'de>,
    {
        let mut few = Self { first: Vec::new(), count: 0 };
        while few.count < MOST_MESSAGES
            && let Some(element) = list.next_element()?
        {
            few.first.push(element);
            few.count += 1;
        }
        while few.count >= MOST_MESSAGES && list.next_element::<IgnoredAny>()?.is_some() {
            few.count += 1;
        }
        Ok(few)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfList<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfList<T> {
            type Value = Few<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Few::read(list)
            }
        }
        deserializer.deserialize_seq(OfList(PhantomData))
    }
}
