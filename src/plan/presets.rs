//! Presets: the shipped ones, which are annotated TOML in the program, and the user's own.

use std::path::PathBuf;

use sparktune_base::escape::escape;

use crate::answer::{Answer, Origin};
use crate::error::PlanError;
use crate::setting::Setting;
use crate::settings::Answers;

/// A shipped preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// The argument of `--preset`.
    pub name: &'static str,
    /// The description in lists, one line.
    pub about: &'static str,
    /// The text, with comments.
    pub toml: &'static str,
}

/// All shipped presets in display order.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "default",
        about: "recommended: everything is decided from the model, the data and the machine",
        toml: include_str!("../../presets/default.toml"),
    },
    Preset {
        name: "quick",
        about: "a short trial of 100 steps",
        toml: include_str!("../../presets/quick.toml"),
    },
    Preset {
        name: "recipe",
        about: "the settings of the Qwen3.5 recipe, for comparison",
        toml: include_str!("../../presets/recipe.toml"),
    },
    Preset {
        name: "demo",
        about: "a tiny model and its data, which are included; takes about half a minute on a CPU",
        toml: include_str!("../../presets/demo.toml"),
    },
];

impl Preset {
    /// Returns the preset's answers.
    ///
    /// # Errors
    /// [`PlanError`] when the shipped text is invalid.
    pub fn answers(&self) -> Result<Answers, PlanError> {
        Answers::from_toml(self.toml, Origin::Preset, &format!("preset {}", self.name))
    }
}

/// The user's own presets: `<name>.toml` files in one folder. The caller lists and reads them; nothing is
/// opened here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserPresets {
    /// The folder of the files.
    pub folder: PathBuf,
    /// The names without the extension.
    pub names: Vec<String>,
}

impl UserPresets {
    /// Creates the list from the names of the files in a folder. Files that are not presets are ignored.
    pub fn new(folder: PathBuf, files: impl IntoIterator<Item = String>) -> Self {
        let name = |file: String| file.strip_suffix(ENDING).map(str::to_owned);
        let mut names: Vec<String> = files.into_iter().filter_map(name).collect();
        names.retain(|name| check_name(name).is_ok());
        names.sort_unstable();
        names.dedup();
        Self { folder, names }
    }

    /// Returns the file of a preset, which need not exist yet.
    ///
    /// # Errors
    /// The name is not allowed for a preset, see [`check_name`].
    pub fn path(&self, name: &str) -> Result<PathBuf, PlanError> {
        check_name(name)?;
        Ok(self.folder.join(format!("{name}{ENDING}")))
    }
}

const ENDING: &str = ".toml";
/// The longest name in bytes. With the extension it is a valid file name on every system.
const LONGEST_NAME: usize = 64;

/// Checks the name of a user's preset: a plain word that is neither a path nor the name of a shipped preset.
///
/// # Errors
/// [`PlanError::BadValue`] says which names are allowed.
pub fn check_name(name: &str) -> Result<(), PlanError> {
    let plain = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let expects = if PRESETS.iter().any(|shipped| shipped.name == name) {
        "another name, because an included preset already has this one"
    } else if name.is_empty()
        || name.len() > LONGEST_NAME
        || !name.chars().all(plain)
        || name.starts_with('-')
    {
        "a name of letters, digits, - and _ (at most 64 bytes, no - in front)"
    } else {
        return Ok(());
    };
    Err(PlanError::BadValue {
        key: "preset",
        place: "the preset's name".into(),
        value: escape(&name.chars().take(80).collect::<String>()).into_owned(),
        expects: expects.into(),
    })
}

/// An entry of a list of presets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The argument of `--preset`.
    pub name: String,
    /// The description, one line. For a preset of the user this is its first line of comment, which has to
    /// be escaped for a terminal.
    pub about: String,
    /// Whether it is part of the program and therefore cannot be overwritten or removed.
    pub is_shipped: bool,
}

/// Lists the shipped presets, then the user's, each of which is given by name and text.
pub fn list<'a>(user: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Listed> {
    let shipped = PRESETS.iter().map(|preset| Listed {
        name: preset.name.into(),
        about: preset.about.into(),
        is_shipped: true,
    });
    let own = user.into_iter().map(|(name, text)| {
        let about = text.lines().map(str::trim).find(|line| !line.is_empty());
        let about = about.and_then(|line| line.strip_prefix('#')).unwrap_or_default().trim();
        Listed { name: name.into(), about: about.chars().take(120).collect(), is_shipped: false }
    });
    shipped.chain(own).collect()
}

/// Returns the text of a preset to save: `about` as its first line, then the answers except those that belong
/// to one run (its name, and the preset it started from).
///
/// # Errors
/// The same as for [`Answers::to_toml`].
pub fn text(about: &str, answers: &Answers) -> Result<String, PlanError> {
    let about: Vec<&str> =
        about.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    let mut answers = answers.clone();
    answers.clear("preset");
    answers.clear("name");
    Ok(format!("# {}\n\n{}", about.join(" "), answers.to_toml()?))
}

/// A preset as named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresetSource {
    /// A shipped preset.
    Shipped(Preset),
    /// A file. The caller reads it and passes its text to [`Answers::from_toml`] with [`Origin::Preset`].
    File(PathBuf),
}

/// Finds the preset: by a shipped name, by the name of one of the user's, or by a path (which ends in `.toml`
/// or contains a separator).
///
/// # Errors
/// [`PlanError::UnknownPreset`] lists the existing names.
pub fn find(preset: &Answer<String>, user: &UserPresets) -> Result<PresetSource, PlanError> {
    let name = preset.value.as_str();
    if let Some(shipped) = PRESETS.iter().find(|shipped| shipped.name == name) {
        return Ok(PresetSource::Shipped(*shipped));
    }
    if user.names.iter().any(|own| own == name) {
        return user.path(name).map(PresetSource::File);
    }
    if name.ends_with(ENDING) || name.contains(['/', '\\']) {
        return Ok(PresetSource::File(name.into()));
    }
    let setting = Setting::of("preset").expect("the table has a preset");
    let known = PRESETS.iter().map(|shipped| shipped.name).chain(user.names.iter().map(String::as_str));
    Err(PlanError::UnknownPreset {
        place: setting.place(preset.origin),
        name: escape(&name.chars().take(80).collect::<String>()).into_owned(),
        known: known.collect::<Vec<_>>().join(", "),
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
        let user = UserPresets::new(
            "own".into(),
            ["b.toml", "a.toml", "a", "recipe.toml", ".x.toml"].map(String::from),
        );
        assert_eq!(user.names, ["a", "b"], "neither what is no preset nor what a shipped one hides");
        let find = |name: &str| find(&Answer::flag(name.to_owned()), &user);
        assert_eq!(find("a").unwrap(), PresetSource::File("own/a.toml".into()));
        assert!(matches!(find("recipe"), Ok(PresetSource::Shipped(preset)) if preset.name == "recipe"));
        assert!(matches!(find("./mine"), Ok(PresetSource::File(_))));
        assert!(matches!(find("mine.toml"), Ok(PresetSource::File(_))));
        let error = find("recipie").unwrap_err().to_string();
        assert!(
            error.contains("--preset") && error.contains("default, quick, recipe, demo, a, b"),
            "{error}"
        );
    }

    #[test]
    fn a_preset_is_never_saved_outside_its_folder_or_over_a_shipped_one() {
        let user = UserPresets { folder: "own".into(), names: Vec::new() };
        for name in
            ["../x", "a/b", "", ".", "..", "a.toml", "a b", "-x", "a\\b", "a\0", "\u{1b}[2J", &"x".repeat(65)]
        {
            let error = user.path(name).unwrap_err().to_string();
            assert!(error.contains("letters, digits, - and _") && !error.contains('\u{1b}'), "{error}");
        }
        assert!(
            check_name("recipe").unwrap_err().to_string().contains("an included preset already has this one")
        );
        assert_eq!(user.path("größe_2-final").unwrap(), PathBuf::from("own/größe_2-final.toml"));
    }

    #[test]
    fn a_saved_preset_is_listed_with_its_word_and_gives_the_same_answers() {
        let mut answers = Answers::default();
        for (name, text) in
            [("rank", "16"), ("data", r#"["a", "b"]"#), ("name", "monday"), ("preset", "quick")]
        {
            answers.set(name, text, Origin::Flag).unwrap();
        }
        let saved = text("short\nchats [rank] \u{1b}", &answers).unwrap();
        assert!(saved.starts_with("# short chats [rank]\n"), "{saved}");
        let read = Answers::from_toml(&saved, Origin::Preset, "mine.toml").unwrap();
        assert_eq!(read.rank, Some(Answer::new(16, Origin::Preset)));
        assert_eq!((read.name, read.preset), (None, None));
        let listed = list([("mine", saved.as_str()), ("bare", "seed = 1")]);
        assert_eq!(listed.len(), PRESETS.len() + 2);
        assert!(listed[0].is_shipped && !listed[PRESETS.len()].is_shipped);
        assert_eq!(listed[PRESETS.len()].about, "short chats [rank]");
        assert_eq!(listed[PRESETS.len() + 1].about, "");
    }
}
