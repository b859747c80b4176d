//! What several crates need and none of them owns.
//!
//! It must not know runs, plans, models or screens.

mod program_name;

pub use program_name::{program_name, set_program_name};
