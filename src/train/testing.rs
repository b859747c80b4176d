//! Plans and configs for the tests of this crate.

use sparktune_plan::{
    Answer, Answers, Catalog, DataFacts, Facts, MachineFacts, ModelConfig, Plan, Rates, resolve,
};

/// Returns the config of a model of the catalog.
pub(crate) fn config(id: &str) -> ModelConfig {
    let catalog = Catalog::shipped();
    catalog.model_facts(catalog.find(id).unwrap()).config
}

/// Returns the plan for a model on a large CPU machine.
pub(crate) fn plan(id: &str) -> Plan {
    let catalog = Catalog::shipped();
    let memory = 1 << 40;
    let machine = MachineFacts {
        mem_total_bytes: memory,
        mem_available_bytes: memory,
        cores: 8,
        ..MachineFacts::default()
    };
    let data = DataFacts {
        examples: 100,
        total_tokens: 50_000,
        target_tokens: 25_000,
        p50: 500,
        p90: 500,
        p99: 500,
        max: 500,
        ..DataFacts::default()
    };
    let model = catalog.model_facts(catalog.find(id).unwrap());
    let facts = Facts { machine, model, data, rates: Rates::default(), parent: None };
    let answers = Answers {
        model: Some(Answer::flag(id.to_owned())),
        data: Some(Answer::flag(vec!["data.jsonl".into()])),
        ..Answers::default()
    };
    resolve(&answers, &facts).unwrap()
}
