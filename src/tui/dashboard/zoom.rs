//! The range of steps that the charts show.

use crate::chart::Window;

/// The smallest number of steps in a chart.
const LEAST: u64 = 8;

/// The visible part of a run. It follows the newest step unless it was panned away from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Zoom {
    /// The number of visible steps; all of them if `None`.
    width: Option<u64>,
    /// The last visible step; the newest if `None`.
    end: Option<u64>,
}

impl Zoom {
    /// Returns the visible range of a run that has reached step `newest`.
    pub(super) fn window(&self, newest: u64) -> Window {
        let newest = newest.max(LEAST);
        let to = self.end.map_or(newest, |end| end.clamp(LEAST, newest));
        let width = self.width.unwrap_or(u64::MAX).clamp(LEAST, to);
        Window { from: to - width + 1, to }
    }

    /// Returns whether the whole run is visible.
    pub(super) fn is_whole(&self) -> bool {
        self.width.is_none()
    }

    /// Returns whether the newest step is visible and stays visible.
    pub(super) fn follows(&self) -> bool {
        self.end.is_none()
    }

    /// Halves the visible range, around `at` if there is a crosshair.
    pub(super) fn zoom_in(&mut self, newest: u64, at: Option<u64>) {
        let window = self.window(newest);
        let width = (steps(window) / 2).max(LEAST);
        self.width = Some(width);
        match at {
            Some(at) => self.end_at(at.saturating_add(width / 2), newest),
            None if self.end.is_some() => self.end_at(window.to - width / 2, newest),
            None => {}
        }
    }

    /// Doubles the visible range, up to the whole run.
    pub(super) fn zoom_out(&mut self, newest: u64) {
        let window = self.window(newest);
        let width = steps(window).saturating_mul(2);
        // After zooming in, the same number of keys shows the whole run again, even if it has grown
        // meanwhile.
        if width >= newest / 4 * 3 {
            *self = Self::default();
            return;
        }
        self.width = Some(width);
        if self.end.is_some() {
            self.end_at(window.to.saturating_add(width / 4), newest);
        }
    }

    /// Moves by a quarter of the visible range, backward or ahead. At the newest step it follows again.
    pub(super) fn pan(&mut self, newest: u64, ahead: bool) {
        if self.width.is_none() {
            return;
        }
        let window = self.window(newest);
        let by = (steps(window) / 4).max(1);
        let end = if ahead { window.to.saturating_add(by) } else { window.to.saturating_sub(by) };
        self.end_at(end.max(steps(window)), newest);
    }

    /// Follows the newest step again.
    pub(super) fn follow(&mut self) {
        self.end = None;
    }

    fn end_at(&mut self, end: u64, newest: u64) {
        self.end = (end < newest).then_some(end);
    }
}

fn steps(window: Window) -> u64 {
    (window.to - window.from).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_zoomed_window_follows_the_newest_step_until_it_is_panned_away_and_again_at_the_end() {
        let mut zoom = Zoom::default();
        assert_eq!(zoom.window(1000), Window { from: 1, to: 1000 });
        zoom.zoom_in(1000, None);
        assert_eq!(zoom.window(1000), Window { from: 501, to: 1000 });
        assert_eq!(zoom.window(1100), Window { from: 601, to: 1100 });
        zoom.pan(1100, false);
        assert_eq!(zoom.window(1100), Window { from: 476, to: 975 });
        assert_eq!(zoom.window(5000), Window { from: 476, to: 975 });
        zoom.pan(1100, true);
        assert_eq!((zoom.follows(), zoom.window(2000)), (true, Window { from: 1501, to: 2000 }));
        zoom.zoom_in(2000, Some(1600));
        assert_eq!(zoom.window(2000), Window { from: 1476, to: 1725 });
        for _ in 0..3 {
            zoom.zoom_out(2000);
        }
        assert!(zoom.is_whole());
    }

    #[test]
    fn zooming_out_as_often_as_in_shows_the_whole_of_a_run_that_went_on_meanwhile() {
        let mut zoom = Zoom::default();
        zoom.zoom_in(475, None);
        zoom.zoom_in(475, None);
        zoom.zoom_out(490);
        assert!(!zoom.is_whole());
        zoom.zoom_out(499);
        assert!(zoom.is_whole());
    }

    #[test]
    fn a_run_that_has_hardly_begun_has_a_window_too() {
        assert_eq!(Zoom::default().window(0), Window { from: 1, to: 8 });
    }

    proptest! {
        #[test]
        fn any_keys_keep_the_window_within_the_run(
            keys in proptest::collection::vec((0_u8..5, any::<u64>(), any::<Option<u64>>()), 0..60),
        ) {
            let mut zoom = Zoom::default();
            for (key, newest, at) in keys {
                match key {
                    0 => zoom.zoom_in(newest, at),
                    1 => zoom.zoom_out(newest),
                    2 => zoom.pan(newest, true),
                    3 => zoom.pan(newest, false),
                    _ => zoom.follow(),
                }
                let window = zoom.window(newest);
                prop_assert!(1 <= window.from && window.from < window.to && window.to <= newest.max(LEAST));
            }
        }
    }
}
