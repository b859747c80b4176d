//! The whole program through its real binary: what people and scripts type, and what happens when things go
//! wrong.
//!
//! Models are the fixture checkpoint (`tests/fixtures`, or the set named by `SPARKTUNE_FIXTURES`); data is
//! written here.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test, in its helpers too")]

mod bench;
mod chat;
mod cluster;
mod cluster_members;
mod compare;
mod crashes;
mod data;
mod data_fetch;
mod data_serve;
mod data_sets;
mod disk;
mod edit;
mod edit_facts;
mod formats;
mod gemma;
mod generate;
mod gguf;
mod gpu;
mod head;
mod hostile_models;
mod hub;
mod kills;
mod knowledge;
mod machine;
mod moved_clock;
mod nccl_gpu;
mod old_runs;
mod packed_data;
mod packets;
mod parents;
mod pipelines;
mod planning;
mod power_cuts;
mod python_reader;
mod runs;
mod serve;
mod serve_openai;
mod server;
mod signals;
mod sparktune;
mod swarm;
mod token_files;
mod trace;
mod training;
mod trouble;
mod usage;
