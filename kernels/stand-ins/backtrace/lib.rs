//! An empty crate in the place of `backtrace`.
//!
//! `cubecl-environment` 0.11 depends on `backtrace` in every build, but uses it only in its own tests: its build script
//! defines `cfg(backtrace)` as `all(test, feature = "std")`. The real crate and the four that it needs took 16 seconds of
//! a first build. If a later version does use it, that version does not compile with this one: delete it then, and its
//! line in `[patch.crates-io]`.
