//! Tests of `data` through its public interface, in one binary, because each test binary is linked with the
//! tokenizer and all its dependencies.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

mod chat_template;
mod examples;
mod fixtures;
mod gemma;
mod packed;
mod parquet;
mod parts;
mod prepare;
mod preview;
mod reading;
mod served;
mod tables;
mod template_families;
mod texts;
