//! The real program in real pseudo-terminals: what a person sees and types, and that the terminal is given
//! back.
//!
//! A terminal is `portable-pty`, its screen is `vt100`. Nothing here is timed: a test waits until the screen
//! shows what it expects, and fails, with the screen, only when that has not come for a long while.
//! Everything that depends on the wording of a page stands in `words`.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test, in its helpers too")]

mod chat;
mod first_week;
mod piped;
mod plain;
mod pty;
mod restored;
mod sizes;
#[expect(dead_code, reason = "shared with end_to_end, which uses all of it")]
#[path = "../end_to_end/sparktune.rs"]
mod sparktune;
mod walk;
mod words;
mod world;
