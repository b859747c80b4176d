//! The question for the model: one of the catalog with its outlook on this machine, the demo, or any other.

use sparktune_plan::{
    Architecture, Catalog, CatalogModel, DataFacts, MachineFacts, Outlook, Outlooks, Rates,
};

use crate::model::ModelFound;

/// The label of the choice of a model that is not in the catalog.
pub const OTHER: &str = "another model: type an id or a folder";

/// Describes which models can be chosen by [`OTHER`].
pub fn other_about() -> String {
    let families: Vec<&str> = Architecture::ALL.iter().map(|family| family.word()).collect();
    format!(
        "Any dense model of one of the families {}: its id on the Hugging Face hub (org/name), or a folder with \
         config.json, tokenizer and safetensors. Its config.json is checked before anything else is downloaded.",
        families.join(", ")
    )
}

/// The label of the demo's model in a list of models. Its name is `demo`.
pub const INCLUDED: &str = "demo (included)";

/// The label of the choice of the demo.
pub const DEMO: &str = "fill in the demo: a tiny model and its data, about half a minute";

/// The message after the model or the data of the demo was replaced.
pub const DEMO_LEFT: &str = "the settings of the demo were reset to the recommended ones";

/// A model with its outlook on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// The Hugging Face id, or the folder.
    pub name: String,
    /// The entry in the catalog, if it has one.
    pub catalog: Option<&'static CatalogModel>,
    /// Whether it fits, the possible pack lengths, and the speed of training.
    pub outlook: Outlook,
}

/// The models to choose from. The default value has none, for a machine that is not known yet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelQuestion {
    /// The catalog in its order, then the model that was looked up, if it is another one.
    pub offers: Vec<Offer>,
    /// The data that the outlooks are for, in words.
    pub data: String,
    has_gpu: bool,
}

impl ModelQuestion {
    /// Computes the outlook of each model. Ordinary data is assumed if `data` is `None`; `found` is a model
    /// that was looked up.
    pub fn new(
        machine: &MachineFacts,
        rates: &Rates,
        data: Option<&DataFacts>,
        found: Option<&ModelFound>,
    ) -> Self {
        let outlooks = Outlooks::new(machine, rates, data);
        let catalog = Catalog::shipped();
        let known = catalog.models.iter().map(|model| Offer {
            name: model.id.clone(),
            catalog: Some(model),
            outlook: outlooks.of(&model.id, &catalog.model_facts(model)),
        });
        let other = found.filter(|found| catalog.find(&found.name).is_none()).map(|found| Offer {
            name: found.name.clone(),
            catalog: None,
            outlook: outlooks.of(&found.name, &found.facts),
        });
        Self {
            offers: known.chain(other).collect(),
            data: outlooks.data_in_words(),
            has_gpu: !machine.gpus.is_empty(),
        }
    }

    /// Returns the outlook of a model here, if it is known.
    pub fn outlook(&self, name: &str) -> Option<&Outlook> {
        self.offers.iter().find(|offer| offer.name == name).map(|offer| &offer.outlook)
    }

    /// Returns the id of the default model: the recommended one if it fits on a GPU, otherwise the first that
    /// fits, otherwise the first.
    pub fn recommended(&self) -> Option<&'static str> {
        let fits = |id: &str| self.outlook(id).is_some_and(|outlook| outlook.lora.fits());
        let ids = || Catalog::shipped().models.iter().map(|model| model.id.as_str());
        if self.has_gpu && fits(Catalog::RECOMMENDED) {
            return Some(Catalog::RECOMMENDED);
        }
        ids().find(|id| fits(id)).or_else(|| ids().next())
    }
}

/// Checks an id or a folder as typed.
///
/// # Errors
/// The problem with the name.
pub fn check_name(typed: &str) -> Result<(), String> {
    if typed.trim().is_empty() { Err("type an id or a folder".into()) } else { Ok(()) }
}

/// A model of an untested family. It is trained only if the user confirms this.
pub struct UnknownFamily<'a> {
    /// The name of the model.
    pub name: &'a str,
    /// Its family, from its config.
    pub family: &'a str,
    /// The known family that it would be treated as.
    pub treated_as: Architecture,
}

impl UnknownFamily<'_> {
    /// The choice of another model, which is the default.
    pub const TAKE_ANOTHER: &'static str = "choose another model";

    /// Returns what the user has to know before confirming.
    pub fn explanation(&self) -> String {
        format!(
            "{} belongs to the family {}, which sparktune does not know. It can be treated as {}, but only its authors' code shows whether that is correct.",
            self.name, self.family, self.treated_as
        )
    }

    /// Returns the label of the choice to train it anyway.
    pub fn train_anyway(&self) -> String {
        format!("treat it as {} anyway", self.treated_as)
    }
}

#[cfg(test)]
mod tests {
    use sparktune_plan::{Gpu, GpuMemory};

    use super::*;

    fn machine(gb: u64, has_gpu: bool) -> MachineFacts {
        let gpu = Gpu { name: "GPU".into(), memory: GpuMemory::Unified, compute_capability: Some((12, 1)) };
        MachineFacts {
            mem_total_bytes: gb * 1_000_000_000,
            mem_available_bytes: gb * 1_000_000_000,
            cores: 20,
            gpus: has_gpu.then_some(gpu).into_iter().collect(),
            ..MachineFacts::default()
        }
    }

    #[test]
    fn the_recommended_model_needs_a_gpu_and_otherwise_the_first_that_fits_is_offered() {
        let recommended = |machine: &MachineFacts| {
            ModelQuestion::new(machine, &Rates::default(), None, None).recommended().unwrap()
        };
        let first = Catalog::shipped().models[0].id.as_str();
        assert_eq!(recommended(&machine(120, true)), Catalog::RECOMMENDED);
        assert_eq!(recommended(&machine(120, false)), first);
        assert_eq!(ModelQuestion::default().recommended(), Some(first), "the machine is not known yet");
    }

    #[test]
    fn a_model_that_is_not_in_the_catalog_is_offered_after_it() {
        let catalog = Catalog::shipped();
        let found = ModelFound {
            name: "org/mine".into(),
            revision: None,
            commit: None,
            facts: catalog.model_facts(&catalog.models[0]),
            missing_bytes: 0,
            notes: Vec::new(),
            unknown_architecture: None,
        };
        let question = ModelQuestion::new(&machine(120, true), &Rates::default(), None, Some(&found));
        assert_eq!(question.offers.len(), catalog.models.len() + 1);
        assert!(question.outlook("org/mine").is_some());
    }
}
