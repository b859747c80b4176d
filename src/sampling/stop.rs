//! Finds stop strings in a text that arrives in pieces.

/// Text that arrives in pieces, up to the first stop string. What may be the beginning of one is held back.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
}

impl StopStrings {
    /// Begins a text. No stop string may be empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Adds a piece. Returns the text that certainly comes before every stop string, and the stop string that
    /// was found, if one was; the text ends before it.
    pub fn push(&mut self, piece: &str) -> (String, Option<&str>) {
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return (text, Some(stop));
        }
        let rest = self.held.split_off(self.held.len() - self.held_back());
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// Returns the text that was held back, at the end of the whole text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns how many bytes at the end may be the beginning of a stop string.
    fn held_back(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(1) - 1;
        let first = self.held.ceil_char_boundary(self.held.len().saturating_sub(longest));
        let starts = self.held[first..].char_indices().map(|(at, _)| first + at);
        let may_begin = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        starts.into_iter().find(may_begin).map_or(0, |at| self.held.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_held_back_only_while_it_may_become_a_stop_string() {
        let mut text = StopStrings::new(vec!["###".into(), "END".into()]);
        assert_eq!(text.push("a#"), ("a".into(), None));
        assert_eq!(text.push("#b"), ("##b".into(), None));
        assert_eq!(text.push("E"), (String::new(), None));
        assert_eq!(text.push("N"), (String::new(), None));
        assert_eq!(text.push("ough EN"), ("ENough ".into(), None));
        assert_eq!(text.push("D and ###"), (String::new(), Some("END")));
        let mut unfinished = StopStrings::new(vec!["äöü".into()]);
        assert_eq!(unfinished.push("xäö"), ("x".into(), None));
        assert_eq!(unfinished.finish(), "äö");
        assert_eq!(StopStrings::new(Vec::new()).push("all"), ("all".into(), None));
    }

    proptest! {
        #[test]
        fn the_pieces_give_the_text_before_the_first_stop_string(
            text in "[abä]{0,30}",
            stops in prop::collection::vec("[abä]{1,4}", 0..3),
            cuts in prop::collection::vec(0usize..30, 0..10),
        ) {
            let mut pieces = StopStrings::new(stops.clone());
            let (mut got, mut stopped, mut at) = (String::new(), false, 0);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(*cut)).collect();
            cuts.push(text.len());
            cuts.sort_unstable();
            for cut in cuts {
                let (piece, stop) = pieces.push(&text[at..cut]);
                got.push_str(&piece);
                at = cut;
                if stop.is_some() {
                    stopped = true;
                    break;
                }
            }
            if !stopped {
                got.push_str(&pieces.finish());
            }
            let first = stops.iter().filter_map(|stop| text.find(stop.as_str())).min();
            // A longer stop string that begins earlier may end later than one that is already complete.
            let earliest_end = stops.iter().filter_map(|s| Some(text.find(s.as_str())? + s.len())).min();
            prop_assert_eq!(stopped, first.is_some());
            match (first, earliest_end) {
                (Some(first), Some(end)) => {
                    prop_assert!(text.starts_with(&got));
                    prop_assert!(got.len() >= first && got.len() < end, "{} of {}..{}", got.len(), first, end);
                }
                _ => prop_assert_eq!(got, text),
            }
        }
    }
}
