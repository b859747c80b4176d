//! The targets under libFuzzer, which is told by `SPARKTUNE_FUZZ_TARGET` which of them to feed.
#![no_main]

#[path = "../targets/mod.rs"]
mod targets;
#[cfg(feature = "model")]
#[path = "../weights.rs"]
mod weights;

use std::sync::OnceLock;

use targets::{LONGEST, TARGETS, Target, panics};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    if input.len() <= LONGEST {
        TARGET.get_or_init(chosen)(input);
    }
});

fn chosen() -> fn(&[u8]) {
    // libFuzzer's own hook ends the program at once, also where a panic is expected and caught. Those that
    // nobody catches end it without the hook too.
    drop(std::panic::take_hook());
    panics::watch();
    let name = std::env::var("SPARKTUNE_FUZZ_TARGET").unwrap_or_default();
    #[cfg(feature = "model")]
    let more: &[Target] = weights::TARGETS;
    #[cfg(not(feature = "model"))]
    let more: &[Target] = &[];
    let known: Vec<&Target> = TARGETS.iter().chain(more).collect();
    let names: Vec<&str> = known.iter().map(|target| target.name).collect();
    let found = known.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("SPARKTUNE_FUZZ_TARGET is {name:?}, and must be one of {names:?}")).run
}
