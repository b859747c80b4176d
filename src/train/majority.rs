//! Who is wrong when ranks have different things that should be the same: those that are not of the majority.
//! With two ranks, or without a majority, it cannot be known.

/// Says whose value differs from that of most ranks; `None` if all are the same. The ranks are named by the
/// numbers that their launcher gave them.
pub(crate) fn who_differs<T: PartialEq>(values: &[(usize, T)]) -> Option<String> {
    let agreeing = |value: &T| values.iter().filter(|(_, other)| other == value).count();
    let (_, of_most) = values.iter().max_by_key(|(_, value)| agreeing(value))?;
    let (alike, all) = (agreeing(of_most), values.len());
    if alike == all {
        return None;
    }
    let named = |values: &mut dyn Iterator<Item = &(usize, T)>| {
        let ranks: Vec<String> = values.map(|(rank, _)| rank.to_string()).collect();
        match ranks.split_last() {
            Some((last, [])) => format!("rank {last}"),
            Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
            None => String::new(),
        }
    };
    let differ = named(&mut values.iter().filter(|(_, value)| value != of_most));
    Some(if 2 * alike > all {
        let each = if all - alike == 1 { "differs" } else { "differ" };
        format!("{differ} {each} from the {alike} others, which agree")
    } else {
        let all = named(&mut values.iter());
        format!("{all} differ, and which of them is wrong cannot be known")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_decides_also_against_rank_0_and_two_ranks_cannot_know() {
        let said = |values: &[(usize, u8)]| who_differs(values).unwrap_or_default();
        assert_eq!(said(&[(0, 7), (1, 7), (4, 7)]), "");
        assert_eq!(said(&[(0, 7)]), "");
        assert_eq!(said(&[(0, 7), (1, 7), (4, 8)]), "rank 4 differs from the 2 others, which agree");
        assert_eq!(said(&[(0, 8), (1, 7), (4, 7)]), "rank 0 differs from the 2 others, which agree");
        assert_eq!(
            said(&[(0, 8), (1, 7), (4, 7), (2, 9), (3, 7)]),
            "ranks 0 and 2 differ from the 3 others, which agree"
        );
        assert_eq!(
            said(&[(0, 8), (3, 7)]),
            "ranks 0 and 3 differ, and which of them is wrong cannot be known"
        );
        assert_eq!(
            said(&[(0, 8), (1, 7), (2, 8), (3, 7)]),
            "ranks 0, 1, 2 and 3 differ, and which of them is wrong cannot be known"
        );
    }
}
