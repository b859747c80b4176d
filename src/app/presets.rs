//! Presets: the shipped ones and the user's own, listed, loaded and saved in the same way by every interface.

use std::fs;
use std::path::PathBuf;

use sparktune_plan::presets::{self, PRESETS, PresetSource, UserPresets};
use sparktune_plan::{Answer, Answers, Method, Origin, Plan};

use crate::failure::Failure;
use crate::folders::{config_folder, write_private_file};

/// A preset that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preset {
    /// The argument for `--preset`: a shipped name, the name of one of the user's, or the path of a file.
    pub name: String,
    /// A description of one line, which may be empty.
    pub about: String,
    /// The text, or why it cannot be read.
    pub toml: Result<String, String>,
    /// Whether it is part of the program and not the user's own.
    pub is_shipped: bool,
}

impl Preset {
    /// Returns one line for a list of presets. It may contain text from a file and has to be escaped for a
    /// terminal.
    pub fn label(&self) -> String {
        match (&self.toml, self.is_shipped) {
            (Err(problem), _) => format!("cannot be read: {problem}"),
            (Ok(_), true) => self.about.clone(),
            (Ok(_), false) if self.about.is_empty() => "your own".to_owned(),
            (Ok(_), false) => format!("your own: {}", self.about),
        }
    }

    /// Returns its answers.
    ///
    /// # Errors
    /// The preset cannot be read or does not contain answers.
    pub fn answers(&self) -> Result<Answers, Failure> {
        let toml = self
            .toml
            .as_ref()
            .map_err(|problem| Failure::usage(format!("{} cannot be read: {problem}", self.name)))?;
        Ok(Answers::from_toml(toml, Origin::Preset, &self.name)?)
    }
}

/// Returns the user's own presets. A folder that does not exist or cannot be listed contains none.
pub fn user_presets() -> UserPresets {
    let Some(folder) = config_folder().map(|folder| folder.join("presets")) else {
        return UserPresets::default();
    };
    let files = fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
    let names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    UserPresets::new(folder, names)
}

/// Returns the shipped presets, then the user's, then `also` if that is another file, because a draft may
/// name one by its path.
pub fn list(also: Option<String>) -> Vec<Preset> {
    let user = user_presets();
    let read = |path: PathBuf| {
        fs::read_to_string(&path).map_err(|error| Failure::io("read", &path, &error).to_string())
    };
    let own: Vec<(&String, Result<String, String>)> = user
        .names
        .iter()
        .map(|name| (name, user.path(name).map_err(|error| error.to_string()).and_then(read)))
        .collect();
    let readable = own.iter().filter_map(|(name, text)| Some((name.as_str(), text.as_deref().ok()?)));
    let listed = presets::list(readable);
    let shipped = PRESETS.iter().map(|preset| Preset {
        name: preset.name.into(),
        about: preset.about.into(),
        toml: Ok(preset.toml.into()),
        is_shipped: true,
    });
    let own = own.iter().map(|(name, text)| Preset {
        name: (*name).clone(),
        about: listed.iter().find(|one| one.name == **name).map(|one| one.about.clone()).unwrap_or_default(),
        toml: text.clone(),
        is_shipped: false,
    });
    let mut all: Vec<Preset> = shipped.chain(own).collect();
    if let Some(name) = also.filter(|name| all.iter().all(|preset| preset.name != *name))
        && let Ok(PresetSource::File(path)) = presets::find(&Answer::flag(name.clone()), &user)
    {
        all.push(Preset { name, about: String::new(), toml: read(path), is_shipped: false });
    }
    all
}

/// The result of saving a preset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// It was written to this file.
    Written {
        /// The file, as an argument for `--preset`.
        path: PathBuf,
    },
    /// A preset of this name exists and nothing was written. The interface asks, and saves again with
    /// `replace`.
    Exists {
        /// The existing file.
        path: PathBuf,
    },
}

/// Saves a preset of the user. `name` is as typed; `replace` says whether an existing one of the same name
/// may be replaced.
///
/// # Errors
/// The name is not allowed, or the folder cannot be written.
pub fn save(name: &str, toml: &str, replace: bool) -> Result<Saved, Failure> {
    let user = user_presets();
    if user.folder.as_os_str().is_empty() {
        return Err(Failure::usage("presets cannot be saved: neither XDG_CONFIG_HOME nor HOME is set"));
    }
    let path = user.path(name.trim())?;
    if path.exists() && !replace {
        return Ok(Saved::Exists { path });
    }
    write_private_file(&path, toml)?;
    Ok(Saved::Written { path })
}

/// Returns the text of a preset with these answers, without those that belong to one run.
///
/// # Errors
/// TOML cannot represent an answer.
pub fn text(answers: &Answers, plan: Option<&Plan>) -> Result<String, Failure> {
    let answers = answers.without(|_, setting| setting.of_one_run);
    Ok(presets::text(&about(plan), &answers)?)
}

/// Returns the description by which the user recognises a preset in a list.
fn about(plan: Option<&Plan>) -> String {
    match plan {
        Some(plan) => match plan.method {
            Method::Lora { rank, .. } => format!("LoRA of rank {rank}, pack length {}", plan.pack.length),
            Method::Full => format!("full fine-tuning, pack length {}", plan.pack.length),
            Method::Head => format!("only the MTP head, pack length {}", plan.pack.length),
        },
        None => "saved before a plan was made".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_of_each_preset_what_it_is() {
        let preset = |about: &str, toml: Result<String, String>, is_shipped| Preset {
            name: "x".into(),
            about: about.into(),
            toml,
            is_shipped,
        };
        assert_eq!(preset("a trial", Ok(String::new()), true).label(), "a trial");
        assert_eq!(preset("chats", Ok(String::new()), false).label(), "your own: chats");
        assert_eq!(preset("", Ok(String::new()), false).label(), "your own");
        let broken = preset("chats", Err("no permission".into()), false);
        assert_eq!(broken.label(), "cannot be read: no permission");
        assert!(broken.answers().unwrap_err().text.contains("x cannot be read: no permission"));
    }

    #[test]
    fn a_saved_preset_leaves_out_what_belongs_to_one_run() {
        let mut answers = Answers::default();
        let of_one_run =
            [("model", "Qwen/Qwen3.5-2B"), ("name", "monday"), ("ignore-config-field", "new_scale")];
        for (name, text) in [("rank", "16")].into_iter().chain(of_one_run) {
            answers.set(name, text, Origin::Flag).unwrap();
        }
        let toml = text(&answers, None).unwrap();
        assert!(toml.contains("rank"), "{toml}");
        assert!(of_one_run.iter().all(|(_, text)| !toml.contains(text)), "{toml}");
    }
}
