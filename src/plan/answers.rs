//! The user's answers: how their layers are read, merged and written.
//!
//! Enters: TOML text, environment pairs, single words from flags or a screen. Leaves: [`Answers`], whose
//! fields are the rows of `settings`, and TOML text again for drafts and presets. No file is opened here.

use crate::answer::Origin;
use crate::error::PlanError;
use crate::setting::{ENV_PREFIX, Kind, Setting};
use crate::settings::{Answers, Given, SETTINGS};
use crate::template_kwargs::TemplateKwargs;

/// The only table of a `plan.toml` that holds no answers. It is skipped, so that a plan can serve as a
/// preset.
const ADVICE: &str = "advice";

/// Where the model of that plan was found, which is no answer either: `model.id` takes a folder.
pub(crate) const MODEL_PATH: &str = "model.path";

/// The same for the model of its MTP head.
const MTP_PATH: &str = "model.mtp_path";

/// Whether the ranks of that plan were clipped, which depends on the version that wrote it.
const CLIPPED: &str = "method.clipped";
/// What the run was planned to last before it was made longer.
const EARLIER_LENGTHS: &str = "duration.before";

/// These with the types that a plan gives them. With another type, they are unknown like any other key.
const OF_PLAN: [(&str, &str); 4] =
    [(MODEL_PATH, "string"), (MTP_PATH, "string"), (CLIPPED, "boolean"), (EARLIER_LENGTHS, "array")];

fn unknown(source: &str, key: &str) -> PlanError {
    // A single word is also compared with the last part: `rank` at the top level means `method.rank`.
    let tail = key.rsplit('.').next().unwrap_or(key);
    let dashed = tail.replace('_', "-");
    let is_meant = |setting: &&Setting| {
        let mut names = [setting.name].into_iter().chain(setting.aliases.iter().copied());
        names.any(|name| name == dashed) || setting.key.ends_with(&format!(".{tail}"))
    };
    let last_part = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
    let distance = |setting: &&Setting| {
        let whole = strsim::damerau_levenshtein(key, setting.key);
        let parts =
            [last_part(setting.key), setting.name].map(|name| strsim::damerau_levenshtein(tail, name));
        parts.into_iter().fold(whole, usize::min)
    };
    let meant = SETTINGS.iter().find(is_meant).or_else(|| SETTINGS.iter().min_by_key(distance));
    let near = meant.map_or("model.id", |setting| setting.key);
    PlanError::UnknownKey { source_name: source.into(), key: key.into(), nearest: near.into() }
}

/// Describes the accepted values of a setting, and what is wrong with the one that was given.
fn with_problem(setting: &Setting, problem: Option<String>) -> String {
    setting.expects() + &problem.map_or(String::new(), |problem| format!("; {problem}"))
}

impl Answers {
    /// Reads a preset, a user file, or the `plan.toml` of an earlier run (whose `[advice]`, `model.path` and
    /// `method.clipped` are ignored).
    ///
    /// `source` names the text in messages (a file name).
    ///
    /// # Errors
    /// The text is not TOML, a key is unknown (the error names the closest known one), or a value has the
    /// wrong type.
    pub fn from_toml(text: &str, origin: Origin, source: &str) -> Result<Self, PlanError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| PlanError::NotToml {
            source_name: source.into(),
            problem: error.to_string().trim_end().into(),
        })?;
        let mut answers = Self::default();
        for (name, value) in &table {
            match value {
                toml::Value::Table(_) if name == ADVICE => {}
                toml::Value::Table(group) => {
                    let keys = group.iter().map(|(field, value)| (format!("{name}.{field}"), value));
                    for (key, value) in keys {
                        let of_plan = OF_PLAN.iter().find(|(name, _)| *name == key);
                        match of_plan {
                            Some((_, kind)) if value.type_str() == *kind => {}
                            _ => answers.set_toml(&key, value, origin, source)?,
                        }
                    }
                }
                value => answers.set_toml(name, value, origin, source)?,
            }
        }
        Ok(answers)
    }

    fn set_toml(
        &mut self,
        key: &str,
        value: &toml::Value,
        origin: Origin,
        source: &str,
    ) -> Result<(), PlanError> {
        let Some(setting) = Setting::of(key) else { return Err(unknown(source, key)) };
        if self.store(setting, Given::Toml(value), origin) {
            return Ok(());
        }
        let problem = match setting.kind {
            Kind::Object => TemplateKwargs::problem_of_toml(value),
            _ => None,
        };
        let value = value.to_string();
        Err(PlanError::BadValue {
            key: setting.key,
            place: format!("{source}: `{key}`"),
            value: value.chars().take(80).collect(),
            expects: with_problem(setting, problem),
        })
    }

    /// Reads the `SPARKTUNE_*` variables of an environment.
    ///
    /// Other variables are ignored, even unknown ones with this prefix. The exception is a name that differs
    /// by at most two letters from a known one, because ignoring such a typing error would silently change
    /// the run.
    ///
    /// # Errors
    /// A name is mistyped, or a value cannot be read.
    pub fn from_env(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, PlanError> {
        let mut answers = Self::default();
        for (variable, text) in pairs {
            if !variable.starts_with(ENV_PREFIX) {
                continue;
            }
            if let Some(setting) = SETTINGS.iter().find(|setting| setting.env() == variable) {
                answers.set(setting.name, &text, Origin::Environment)?;
                continue;
            }
            let known = SETTINGS.iter().map(Setting::env);
            let near = known.map(|name| (strsim::damerau_levenshtein(&variable, &name), name)).min();
            if let Some((1..=2, nearest)) = near {
                return Err(PlanError::UnknownKey {
                    source_name: "environment".into(),
                    key: variable,
                    nearest,
                });
            }
        }
        Ok(answers)
    }

    /// Sets one answer from text, by its command-line name (`pack-length`).
    ///
    /// # Errors
    /// The name is unknown, or the value cannot be read or is out of its range.
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), PlanError> {
        self.take(name, Given::Text(text), text, origin)
    }

    /// Sets one answer from the words after its flag: one or several paths, or a single value.
    ///
    /// # Errors
    /// The same as for [`set`](Self::set).
    pub fn set_words(&mut self, name: &str, words: &[&str], origin: Origin) -> Result<(), PlanError> {
        self.take(name, Given::Words(words), &words.join(" "), origin)
    }

    /// Sets one answer. `shown` is the value as it appears in messages.
    fn take(&mut self, name: &str, given: Given<'_>, shown: &str, origin: Origin) -> Result<(), PlanError> {
        let Some(setting) = Setting::named(name) else { return Err(unknown("settings", name)) };
        if self.store(setting, given, origin) {
            return Ok(());
        }
        Err(PlanError::BadValue {
            key: setting.key,
            place: setting.place(origin),
            value: shown.chars().take(80).collect(),
            expects: match setting.kind {
                Kind::Object => with_problem(setting, TemplateKwargs::problem_of_text(shown)),
                _ => setting.expects_instead_of(shown),
            },
        })
    }

    /// Returns the answer with this command-line name as text that [`set`](Self::set) reads back, and its
    /// origin. Returns `None` if there is no answer, or one that cannot be written as text (a path that is
    /// not UTF-8); [`origin`](Self::origin) distinguishes the two.
    pub fn get(&self, name: &str) -> Option<(String, Origin)> {
        let setting = Setting::named(name)?;
        self.text(setting.key).zip(self.origin(setting.key))
    }

    /// Removes the answer with this command-line name, so that the plan decides.
    pub fn clear(&mut self, name: &str) {
        if let Some(setting) = Setting::named(name) {
            self.forget(setting.key);
        }
    }

    /// Returns the answers except those for which `is_out` is true.
    #[must_use]
    pub fn without(&self, is_out: impl Fn(Origin, &Setting) -> bool) -> Self {
        let mut kept = self.clone();
        for setting in SETTINGS {
            if self.origin(setting.key).is_some_and(|origin| is_out(origin, setting)) {
                kept.forget(setting.key);
            }
        }
        kept
    }

    /// Returns the answers of one origin. With [`Origin::Flag`] these are the answers from the command line
    /// and from screens, which a draft contains.
    #[must_use]
    pub fn only(&self, origin: Origin) -> Self {
        self.without(|other, _| other != origin)
    }

    /// Writes the answers as a preset, grouped like `plan.toml` and without unanswered settings. Origins are
    /// not written: [`from_toml`](Self::from_toml) assigns the origin of the file to every answer.
    ///
    /// # Errors
    /// [`PlanError::NotWritable`] names the answer that TOML cannot represent: a path that is not UTF-8, or
    /// an infinite number.
    pub fn to_toml(&self) -> Result<String, PlanError> {
        let mut groups: Vec<(&str, String)> = Vec::new();
        for setting in SETTINGS.iter().filter(|setting| self.origin(setting.key).is_some()) {
            let value = self.toml(setting.key).ok_or_else(|| {
                PlanError::NotWritable(format!("the answer to `{}` has no text", setting.key))
            })?;
            let (group, field) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
            let at = groups.iter().position(|(name, _)| *name == group).unwrap_or_else(|| {
                groups.push((group, String::new()));
                groups.len() - 1
            });
            groups[at].1.push_str(&format!("{field} = {value}\n"));
        }
        // Settings without a group must come before all groups.
        groups.sort_by_key(|(name, _)| !name.is_empty());
        let text = |(name, lines): &(&str, String)| match *name {
            "" => lines.clone(),
            name => format!("[{name}]\n{lines}"),
        };
        Ok(groups.iter().map(text).collect::<Vec<_>>().join("\n"))
    }

    /// Merges layers. For each answer the highest origin wins, and among equal origins the later layer.
    pub fn layered(layers: impl IntoIterator<Item = Self>) -> Self {
        layers.into_iter().fold(Self::default(), Self::merge)
    }
}
