//! The words of screens and prompts that tests look for, and the keys that go on from there: all in one
//! place.

/// Keys as a terminal sends them.
pub(crate) const ENTER: &str = "\r";
pub(crate) const ESCAPE: &str = "\x1b";
pub(crate) const END: &str = "\x1b[F";
pub(crate) const CTRL_C: &str = "\x03";
pub(crate) const CTRL_Z: &str = "\x1a";

/// The questions of the wizard, one to a page, in their order. Enter takes what is recommended; on the last
/// one it starts the run.
pub(crate) const WIZARD: [&str; 6] = [
    "Your machine",
    "Which model do you want to fine-tune?",
    "Which data do you want to train on?",
    "Training plan",
    "Train the MTP head?",
    "Review and start",
];
/// What the page of the data shows once it has been read. Before, Enter does not go on.
pub(crate) const DATA_IS_READ: &str = "examples accepted";
/// What the page of the plan shows once there is one.
pub(crate) const THERE_IS_A_PLAN: [&str; 2] = ["memory", "B of "];
/// What the wizard asks before it is left, and the key that says yes.
pub(crate) const LEAVE_WIZARD: &str = "leave the wizard?";
pub(crate) const YES: &str = "y";

/// What only the dashboard shows.
pub(crate) const DASHBOARD: &str = "2 events";
/// What the dashboard calls the states.
pub(crate) const RUNNING: &str = "running";
pub(crate) const CRASHED: &str = "crashed";
pub(crate) const COMPLETED: &str = "completed";

/// What only the list of runs shows.
pub(crate) const RUNS: &str = "sparktune runs";

/// What a screen shows that has no room.
pub(crate) const TOO_SMALL: &str = "too small";

/// The prompts of the plain wizard that have no usable default: the beginning of the question, and what is
/// typed. `MODEL` and `DATA` stand for the paths.
pub(crate) const PROMPTS: [(&str, &str); 3] =
    [(WIZARD[1], "another model"), ("Id or folder", MODEL), (WIZARD[2], DATA)];
/// The plain question under what was found in the data; Enter goes on.
pub(crate) const DATA_IS_RIGHT: &str = "Use this data?";
pub(crate) const MODEL: &str = "<model>";
pub(crate) const DATA: &str = "<data>";
