//! Best-fit packing of lengths, which fills the packs of a run and estimates them for the plan.

use std::collections::BTreeMap;

/// Puts each length, in the given order, into the pack with the least sufficient room, and returns the index
/// of the pack of each length. Packs are numbered in the order in which they are opened; a length over
/// `pack_length` gets a pack of its own.
///
/// O(n log n) time.
pub fn best_fit(lengths: impl IntoIterator<Item = u32>, pack_length: u32) -> Vec<u32> {
    // Packs with room left, by room. Among packs with the same room the latest is used. Any rule would do,
    // but it must never change, because resumed runs must see the same packs.
    let mut open: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut packs = 0;
    let mut place = |length: u32| {
        let (pack, room) = match open.range_mut(length..).next() {
            Some((&room, same_room)) => {
                let pack = same_room.pop().expect("rooms without packs are removed");
                if same_room.is_empty() {
                    open.remove(&room);
                }
                (pack, room)
            }
            None => {
                packs += 1;
                (packs - 1, pack_length.max(length))
            }
        };
        if room > length {
            open.entry(room - length).or_default().push(pack);
        }
        pack
    };
    lengths.into_iter().map(&mut place).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_length_goes_where_the_least_room_is_left() {
        assert_eq!(best_fit([7, 6, 4, 3, 1], 10), [0, 1, 1, 0, 2]);
        assert_eq!(best_fit([12, 10, 5, 5], 10), [0, 1, 2, 2]);
    }

    proptest! {
        #[test]
        fn no_pack_is_overfull_and_no_two_packs_would_be_one(
            lengths in prop::collection::vec(1_u32..300, 0..100), pack_length in 1_u32..200,
        ) {
            let mut longest_first = lengths;
            longest_first.sort_unstable_by(|a, b| b.cmp(a));
            let mut packs: Vec<Vec<u32>> = Vec::new();
            for (length, pack) in longest_first.iter().zip(best_fit(longest_first.iter().copied(), pack_length)) {
                packs.resize(packs.len().max(pack as usize + 1), Vec::new());
                packs[pack as usize].push(*length);
            }
            let tokens = |pack: &Vec<u32>| pack.iter().sum::<u32>();
            prop_assert!(packs.iter().all(|pack| tokens(pack) <= pack_length || pack.len() == 1));
            prop_assert!(packs.iter().filter(|pack| 2 * tokens(pack) <= pack_length).count() <= 1);
        }
    }
}
