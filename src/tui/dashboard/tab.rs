//! The panels of the dashboard, of which one is open at a time.

/// The panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Charts,
    Events,
    Samples,
    Step,
    Machine,
    Facts,
}

impl Tab {
    pub(super) const ALL: [Tab; 6] =
        [Tab::Charts, Tab::Events, Tab::Samples, Tab::Step, Tab::Machine, Tab::Facts];

    pub(super) fn word(self) -> &'static str {
        match self {
            Tab::Charts => "charts",
            Tab::Events => "events",
            Tab::Samples => "samples",
            Tab::Step => "step",
            Tab::Machine => "machine",
            Tab::Facts => "run",
        }
    }

    /// Returns the title of a panel that is a list.
    pub(super) fn title(self) -> &'static str {
        match self {
            Tab::Charts | Tab::Machine => "",
            Tab::Events => "events, newest first; times are UTC",
            Tab::Samples => "what the model writes, by question and step",
            Tab::Step => "where the time of a step goes",
            Tab::Facts => "what this run is",
        }
    }

    pub(super) fn neighbour(self, by: usize) -> Tab {
        let here = Tab::ALL.iter().position(|tab| *tab == self).unwrap_or(0);
        Tab::ALL[(here + by) % Tab::ALL.len()]
    }
}
