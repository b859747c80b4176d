//! The catalog of known data sets of the hub: where each is, its licence, and what its columns stand for. The
//! rows are in `presets/data_sets.toml`, each with its source.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use sparktune_base::field_map::FieldMap;

use crate::error::PlanError;

const DATA_SETS_TOML: &str = include_str!("../../presets/data_sets.toml");

/// The catalog of known data sets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataCatalog {
    /// The data sets by their ids.
    #[serde(rename = "data_set")]
    pub data_sets: Vec<CatalogDataSet>,
}

/// A data set of the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogDataSet {
    /// What the user types.
    pub id: String,
    /// Its name on the hub, `hf:OWNER/NAME`, with the revision, config and split that are meant.
    pub data: String,
    /// What it holds, in a few words.
    pub about: String,
    /// The licence as its card says it, or `none stated`.
    pub licence: String,
    /// The number of examples of the split, as its source says.
    #[serde(default)]
    pub examples: Option<u64>,
    /// The bytes to download for all splits, as its source says.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// The columns that matter.
    pub columns: Vec<String>,
    /// What they stand for, if their names do not say it.
    #[serde(default)]
    pub map: FieldMap,
    /// Where the figures were read.
    pub source: String,
    /// Fields without a source.
    #[serde(default)]
    pub not_known: Vec<String>,
    /// The day on which someone fetched the data set with this program. Without it, the row is unverified.
    #[serde(default)]
    pub fetched: Option<String>,
}

impl DataCatalog {
    /// Reads a catalog.
    ///
    /// # Errors
    /// [`PlanError::Shipped`] with the parser's message.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        toml::from_str(text).map_err(|error| PlanError::Shipped {
            file: "presets/data_sets.toml",
            problem: error.to_string(),
        })
    }

    /// Returns the shipped catalog.
    pub fn shipped() -> &'static Self {
        static CATALOG: OnceLock<DataCatalog> = OnceLock::new();
        CATALOG
            .get_or_init(|| Self::from_toml(DATA_SETS_TOML).expect("the shipped catalog is read in a test"))
    }

    /// Returns the data set with this id.
    pub fn find(&self, id: &str) -> Option<&CatalogDataSet> {
        self.data_sets.iter().find(|data_set| data_set.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_own_id_a_source_and_columns_that_its_map_knows() {
        let data_sets = &DataCatalog::shipped().data_sets;
        assert!(data_sets.len() >= 12);
        assert!(data_sets.is_sorted_by(|a, b| a.id < b.id), "ids are in order and differ");
        for row in data_sets {
            let CatalogDataSet { id, data, source, columns, map, .. } = row;
            assert!(data.starts_with("hf:") && source.starts_with("https://"), "{id}");
            let owner = data[3..].split(['@', ':']).next().unwrap().split('/').next().unwrap();
            assert!(source.contains(owner), "{id}: {source}");
            for (column, _) in map.pairs() {
                assert!(columns.iter().any(|known| known == column), "{id}: {column}");
            }
            assert!(!columns.is_empty() && row.examples != Some(0) && row.bytes != Some(0), "{id}");
            assert_eq!(DataCatalog::shipped().find(id), Some(row));
        }
        assert!(DataCatalog::from_toml("[[data_set]]\nid = 3").is_err());
    }
}
