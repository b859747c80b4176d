//! How the value of a setting is written in tables: the plan, its reasons and the list of settings.
//!
//! Enters: a value of any type that a setting can have. Leaves: its text, without units. This file must not
//! know which setting it belongs to.

use std::path::PathBuf;

use sparktune_base::choices::{Overlong, PackStrategy, Think, TrainOn};
use sparktune_base::field_map::FieldMap;

use crate::choices::{
    Architecture, CombineRanks, DataFormat, Device, Exported, MethodKind, Mtp, OnDamage, Products, Sentry,
};
use crate::sync::SyncPlan;
use crate::values::Texts;

/// Formats a value for tables.
pub(crate) trait Shown {
    fn shown(&self) -> String;
}

macro_rules! shown_as_displayed {
    ($($kind:ty),+) => { $(impl Shown for $kind { fn shown(&self) -> String { self.to_string() } })+ };
}
shown_as_displayed!(
    String,
    bool,
    u32,
    u64,
    MethodKind,
    PackStrategy,
    Mtp,
    Exported,
    Device,
    Think,
    TrainOn,
    Overlong,
    OnDamage,
    Products,
    DataFormat,
    Architecture,
    Sentry,
    CombineRanks,
    SyncPlan
);

impl Shown for f64 {
    fn shown(&self) -> String {
        if *self != 0.0 && self.abs() < 1e-2 { format!("{self:e}") } else { format!("{self}") }
    }
}

impl Shown for FieldMap {
    fn shown(&self) -> String {
        if self.is_empty() { "none".to_owned() } else { self.to_string() }
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> String {
        self.display().to_string()
    }
}

impl Shown for Vec<String> {
    fn shown(&self) -> String {
        self.join(", ")
    }
}

impl Shown for Texts {
    fn shown(&self) -> String {
        self.0.join(" | ")
    }
}

impl Shown for Vec<PathBuf> {
    fn shown(&self) -> String {
        self.iter().map(Shown::shown).collect::<Vec<_>>().join(", ")
    }
}
