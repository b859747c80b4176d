//! sparktune-plan decides what is trained and how, and estimates the cost, before anything is downloaded or
//! allocated.
//!
//! Enters: [`Answers`] (the user's choices, in layers) and [`Facts`] (about machine, model, data and past
//! speeds). Leaves: a [`Plan`] in which each value has its origin and its reason, or a [`PlanError`] that
//! says what would work. Pure: this crate must not open files, query devices or know screens; the same input
//! gives the same plan.

mod abilities;
pub mod adapter;
mod answer;
mod answers;
pub mod architecture;
pub mod catalog;
pub mod choices;
mod command_line;
pub mod cost;
pub mod data_catalog;
pub mod elsewhere;
pub mod error;
mod eta;
pub mod facts;
mod fit;
mod head_of_another;
mod judgement;
mod length;
mod lora;
pub mod measured;
pub mod memory;
pub mod model_config;
mod outlook;
mod packed;
pub mod packing;
pub mod plan;
pub mod presets;
pub mod products;
mod ranges;
mod remedies;
pub mod render;
mod resolve;
mod schedule;
pub mod setting;
mod settings;
mod shares;
mod shown;
mod sizing;
mod sync;
mod targets;
mod template_kwargs;
mod turns;
mod values;
mod weights;
mod without_kernels;

#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod resolve_tests;

pub use answer::{Answer, Origin};
pub use catalog::{Catalog, CatalogModel};
pub use choices::{
    Architecture, CombineRanks, DataFormat, Device, DeviceChoice, Exported, MethodKind, Mtp, OnDamage,
    Products, Sentry,
};
pub use command_line::command_line;
pub use data_catalog::{CatalogDataSet, DataCatalog};
pub use error::{Missing, PlanError, Remedy, Shortage};
pub use facts::{
    CpuSpeed, DataFacts, EvalSetFacts, Facts, Gpu, GpuMemory, LengthBucket, MachineFacts, ModelFacts,
    PackedFacts, PackedSettings, ParentFacts, ParentWeights, Rate, Rates, SetFacts, TooLong,
};
pub use fit::CostPoint;
pub use judgement::too_little_to_judge;
pub use measured::{Measured, Probe};
pub use memory::Memory;
pub use model_config::{ConfigOptions, ModelConfig};
pub use outlook::{MethodOutlook, Outlook, Outlooks, assumed_data};
pub use plan::{
    Advice, Explained, HeadPlan, Method, OptimizerPlan, Plan, RanksPlan, RateBasis, SetShare, Time,
};
pub use ranges::check_range;
pub use resolve::{missing, resolve, resolve_head};
pub use setting::{ENV_PREFIX, Setting};
pub use settings::{Answers, SETTINGS};
pub use sync::SyncPlan;
pub use targets::TargetModules;
pub use template_kwargs::TemplateKwargs;
pub use values::Texts;
pub use weights::{Weights, weights_of};
