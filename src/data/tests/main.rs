//! `data` through its public interface, in one binary: each binary of tests is linked with the tokenizer and
//! everything below it.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

mod chat_template;
mod fixtures;
mod gemma;
mod prepare;
mod preview;
mod reading;
mod template_families;
