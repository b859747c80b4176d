//! Holds the shape of the source tree: which files may import from which, and the conventions that no lint
//! knows.

#![expect(clippy::unwrap_used, reason = "a file that cannot be read fails the test")]

mod circles;
mod conventions;
mod reached;

use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
