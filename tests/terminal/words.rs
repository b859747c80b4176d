//! The words of screens and prompts that tests look for, and the keys that go on from there: all in one place.

/// A page of the wizard: words that only this page shows, and the keys that take its recommended answer.
pub struct Page {
    pub shows: &'static str,
    pub on: &'static str,
}

/// Enter, as a terminal sends it.
pub const ENTER: &str = "\r";

/// The pages in their order, with model and data given as flags. The last one starts the run.
pub const WIZARD: [Page; 6] = [
    Page { shows: "1/6 machine", on: ENTER },
    Page { shows: "2/6 model", on: ENTER },
    Page { shows: "3/6 data", on: ENTER },
    Page { shows: "4/6 plan", on: ENTER },
    Page { shows: "5/6 mtp head", on: ENTER },
    Page { shows: "6/6 review", on: ENTER },
];
/// What leaves the wizard, its question included.
pub const LEAVE_WIZARD: [&str; 2] = ["q", "y"];

/// What only the dashboard shows.
pub const DASHBOARD: &str = "panels";
/// What the dashboard calls the states.
pub const RUNNING: &str = "running";
pub const CRASHED: &str = "crashed";
pub const COMPLETED: &str = "completed";

/// What only the list of runs shows.
pub const RUNS: &str = "sparktune runs";

/// What a screen shows that has no room.
pub const TOO_SMALL: &str = "too small";

/// The prompts of the plain wizard that have no usable default: the beginning of the question, and what is typed.
/// `MODEL` and `DATA` stand for the paths.
pub const PROMPTS: [(&str, &str); 4] =
    [("Model:", "another"), ("Id or folder", MODEL), ("Training data", DATA), ("Data", DATA)];
pub const MODEL: &str = "<model>";
pub const DATA: &str = "<data>";
