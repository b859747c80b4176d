//! The shipped presets: annotated TOML, part of the program.

use crate::answers::{Answer, Answers, Origin, Setting};
use crate::error::PlanError;

/// A shipped preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// What `--preset` takes.
    pub name: &'static str,
    /// One line for lists.
    pub about: &'static str,
    /// Its text, with comments.
    pub toml: &'static str,
}

/// All shipped presets, in the order they are listed.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "default",
        about: "recommended: everything decided from model, data and machine",
        toml: include_str!("../../presets/default.toml"),
    },
    Preset {
        name: "quick",
        about: "a short trial of 100 steps",
        toml: include_str!("../../presets/quick.toml"),
    },
    Preset {
        name: "recipe",
        about: "the original recipe's settings, for comparison",
        toml: include_str!("../../presets/recipe.toml"),
    },
    Preset {
        name: "demo",
        about: "the shipped tiny model and data, on the CPU, in about two minutes",
        toml: include_str!("../../presets/demo.toml"),
    },
];

impl Preset {
    /// Its answers.
    ///
    /// # Errors
    /// [`PlanError`] when the shipped text is broken.
    pub fn answers(&self) -> Result<Answers, PlanError> {
        Answers::from_toml(self.toml, Origin::Preset, &format!("preset {}", self.name))
    }
}

/// A preset as named by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresetSource {
    /// Shipped.
    Shipped(Preset),
    /// A file that the caller reads; its text goes to [`Answers::from_toml`] with [`Origin::Preset`].
    File(std::path::PathBuf),
}

/// Says what `preset` means: a shipped name, or a path (it ends in `.toml` or has a separator in it).
///
/// # Errors
/// [`PlanError::UnknownPreset`] with the names there are.
pub fn find(preset: &Answer<String>) -> Result<PresetSource, PlanError> {
    let name = preset.value.as_str();
    if let Some(shipped) = PRESETS.iter().find(|shipped| shipped.name == name) {
        return Ok(PresetSource::Shipped(*shipped));
    }
    if name.ends_with(".toml") || name.contains(['/', '\\']) {
        return Ok(PresetSource::File(name.into()));
    }
    let setting = Setting::of("preset").expect("the table has a preset");
    Err(PlanError::UnknownPreset {
        place: setting.place(preset.origin),
        name: name.chars().take(80).collect(),
        known: PRESETS.iter().map(|shipped| shipped.name).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_preset_is_read_and_says_something() {
        for preset in PRESETS {
            let answers = preset.answers().unwrap();
            assert_ne!(answers, Answers::default(), "{}", preset.name);
            assert!(preset.toml.starts_with('#'), "{} has no word of explanation", preset.name);
            assert!(answers.preset.is_none(), "{} names another preset", preset.name);
        }
    }

    #[test]
    fn a_preset_is_a_name_or_a_path_and_anything_else_lists_the_names() {
        let find = |name: &str| find(&Answer::flag(name.to_owned()));
        assert!(matches!(find("recipe"), Ok(PresetSource::Shipped(preset)) if preset.name == "recipe"));
        assert!(matches!(find("./mine"), Ok(PresetSource::File(_))));
        assert!(matches!(find("mine.toml"), Ok(PresetSource::File(_))));
        let error = find("recipie").unwrap_err().to_string();
        assert!(error.contains("--preset") && error.contains("default, quick, recipe, demo"), "{error}");
    }
}
