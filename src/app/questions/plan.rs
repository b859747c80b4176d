//! The question about the plan and whether to start: the actions for a plan and for presets.

use sparktune_plan::presets;

/// The actions for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanAction {
    /// Start the run.
    Start,
    /// Change a value.
    Change,
    /// Show every value with its reason.
    Explain,
    /// Show the equivalent command line.
    CommandLine,
    /// Load a preset.
    LoadPreset,
    /// Save the values as a preset.
    SavePreset,
    /// Choose another model.
    OtherModel,
    /// Choose other data.
    OtherData,
}

impl PlanAction {
    /// All of them, the default first.
    pub const ALL: [Self; 8] = [
        Self::Start,
        Self::Change,
        Self::Explain,
        Self::CommandLine,
        Self::LoadPreset,
        Self::SavePreset,
        Self::OtherModel,
        Self::OtherData,
    ];

    /// Returns its label in an interface.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Start => "start: download what is missing, then train",
            Self::Change => "change a value",
            Self::Explain => "show every value with its reason",
            Self::CommandLine => "show the command line that does the same",
            Self::LoadPreset => "load a preset",
            Self::SavePreset => "save these values as a preset",
            Self::OtherModel => "choose another model",
            Self::OtherData => "choose other data",
        }
    }
}

/// Describes the contents of a saved preset.
pub const PRESET_ABOUT: &str =
    "Saves your own values and those from your files and the preset, but not the model and the data.";

/// The question when a preset of the same name exists.
pub const PRESET_EXISTS: &str = "A preset of this name already exists.";

/// Checks the name of a preset as typed.
///
/// # Errors
/// The reason why the name is not allowed.
pub fn check_preset_name(typed: &str) -> Result<(), String> {
    presets::check_name(typed.trim()).map_err(|error| error.to_string())
}
