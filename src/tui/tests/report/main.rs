//! Tests of the report page, from run folders to a page that an XML parser and a real browser read.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test, in its helpers too")]

mod browser;
mod page;
mod runs;
