//! The answers in a request: settings by their names, with values as they are typed after flags.
//!
//! Enters: JSON. Leaves: [`Answers`], merged with those of the preset, the user's file and the environment of
//! the server, as for every interface. Models, data and runs are named by ids; settings that are paths are
//! refused.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sparktune_app::answers::gather;
use sparktune_app::failure::Failure;
use sparktune_app::presets;
use sparktune_plan::setting::Kind;
use sparktune_plan::{Answer, Answers, Origin, PlanError, Setting};
use utoipa::ToSchema;

use crate::data_files::{self, Data, DataFolder};
use crate::model_ids;
use crate::problem::Problem;
use crate::state::Served;

/// The answers of a request.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Asked {
    /// Settings by their names, as GET /settings lists them: `{"model": "Qwen/Qwen3.5-2B", "data":
    /// ["uploads:train.jsonl"], "epochs": "3"}`. A value is text as after a flag, a number, a boolean, or a
    /// list of these. `model` is an id of the catalog or of the hub, `data` and `eval-data` are ids of data
    /// sets, `from` is the id of a run. An empty value is no answer.
    #[schema(value_type = Object)]
    pub answers: Map<String, Value>,
    /// The preset that decides what is not answered.
    pub preset: Option<String>,
}

/// Something that prevents a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Obstacle {
    /// The setting to change, by its name, if it is one.
    pub setting: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Obstacle {
    fn of(setting: &str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { setting: Some(setting.to_owned()), what: what.into(), advice: Some(advice.into()) }
    }

    /// Returns what prevents a plan as obstacles: one for each answer that is missing, otherwise a single
    /// one.
    pub(crate) fn of_error(error: PlanError) -> Vec<Self> {
        let setting = error.setting().map(|setting| setting.name.to_owned());
        if let PlanError::Missing(missing) = &error {
            let named = |key| Setting::of(key).map(|setting| setting.name.to_owned());
            let obstacle = |key, about: &str| Self {
                setting: named(key),
                what: format!("{} is missing", named(key).as_deref().unwrap_or(key)),
                advice: Some(about.to_owned()),
            };
            return missing.iter().map(|missing| obstacle(missing.key, missing.about)).collect();
        }
        vec![Self { setting, ..Self::of_failure(error.into(), None) }]
    }

    /// Returns a failure as an obstacle in this setting.
    pub(crate) fn of_failure(failure: Failure, setting: Option<&str>) -> Self {
        let advice = (!failure.hints.is_empty()).then(|| failure.hints.join(". "));
        Self { setting: setting.map(str::to_owned), what: failure.text, advice }
    }

    fn of_problem(problem: Problem, setting: &str) -> Self {
        Self { setting: Some(setting.to_owned()), what: problem.detail, advice: problem.advice }
    }

    /// Returns the obstacles as the error of a request.
    pub(crate) fn problem(obstacles: Vec<Self>) -> Problem {
        let others = obstacles.len().saturating_sub(1);
        let Some(first) = obstacles.into_iter().next() else { return Problem::bad_request("no plan") };
        let more = if others > 0 { format!(" (and {others} more)") } else { String::new() };
        let problem = Problem::bad_request(format!("{}{more}", first.what));
        let problem = first.setting.into_iter().fold(problem, Problem::at);
        first.advice.into_iter().fold(problem, Problem::advise)
    }
}

/// The answers, and what they name.
#[derive(Debug, Clone)]
pub(crate) struct Gathered {
    /// All answers, merged.
    pub answers: Answers,
    /// Those that apply where the request has no answer, and what the run is made from.
    pub underlying: Answers,
    /// The data that the request names: for training first.
    pub data: Vec<Data>,
}

/// Reads the answers of a request and merges them with the others.
///
/// # Errors
/// Everything that is wrong with them.
pub(crate) fn gathered(state: &Served, asked: &Asked) -> Result<Gathered, Vec<Obstacle>> {
    let mut reader =
        Reader { state, folders: data_files::folders(state), flags: Answers::default(), data: Vec::new() };
    let mut obstacles = Vec::new();
    for (name, value) in &asked.answers {
        if let Err(obstacle) = reader.answer(name, value) {
            obstacles.push(obstacle);
        }
    }
    if let Some(preset) = asked.preset.as_deref().filter(|name| !name.is_empty())
        && let Err(obstacle) = reader.preset(preset)
    {
        obstacles.push(obstacle);
    }
    if !obstacles.is_empty() {
        return Err(obstacles);
    }
    let Reader { mut flags, data, .. } = reader;
    flags.runs_dir = Some(Answer::flag(state.runs.path().to_owned()));
    let refused = |failure| vec![Obstacle::of_failure(failure, None)];
    let underlying = gather(flags.without(|_, setting| !setting.of_one_run), false).map_err(refused)?;
    let answers = gather(flags, false).map_err(refused)?;
    Ok(Gathered { answers, underlying, data })
}

/// Reads answers one at a time.
struct Reader<'a> {
    state: &'a Served,
    folders: Vec<DataFolder>,
    flags: Answers,
    data: Vec<Data>,
}

impl Reader<'_> {
    fn answer(&mut self, name: &str, value: &Value) -> Result<(), Obstacle> {
        let setting = Setting::named(name).or_else(|| Setting::of(name));
        let Some(setting) = setting else {
            let unknown = self.flags.set(name, "", Origin::Flag).err().map(|error| error.to_string());
            let what = unknown.unwrap_or_else(|| format!("`{name}` is not a known setting"));
            return Err(Obstacle::of(name, what, "GET /api/v1/settings lists them"));
        };
        let words = words(setting.kind, value).ok_or_else(|| {
            Obstacle::of(
                setting.name,
                "the value is neither text nor a number, nor a list of these",
                "Give it as after the flag",
            )
        })?;
        if words.is_empty() {
            return Ok(());
        }
        match setting.name {
            "model" | "mtp-from" => {
                let id = words.join(" ");
                let model = model_ids::answer(&self.state.models, &id);
                let model = model.map_err(|problem| Obstacle::of_problem(problem, setting.name))?;
                self.set(setting, &[model])
            }
            "data" | "eval-data" => {
                let found =
                    words.iter().map(|id| data_files::find(&self.folders, id)).collect::<Result<Vec<_>, _>>();
                let found = found.map_err(|problem| Obstacle::of_problem(problem, setting.name))?;
                let paths = Some(Answer::flag(found.iter().map(Data::answer).collect()));
                if setting.name == "data" {
                    self.flags.data = paths;
                    self.data.splice(0..0, found);
                } else {
                    self.flags.eval_data = paths;
                    self.data.extend(found);
                }
                Ok(())
            }
            "weight" => {
                let weights = words.iter().map(|word| self.weight(word)).collect::<Result<Vec<_>, _>>()?;
                self.set(setting, &weights)
            }
            "from" => {
                let id = words.join(" ");
                let runs = self.state.runs.list().unwrap_or_default();
                let run = runs.into_iter().find(|run| run.name() == id);
                let run = run.ok_or_else(|| {
                    Obstacle::of(
                        setting.name,
                        format!("there is no run '{}'", id.escape_debug()),
                        "GET /api/v1/runs lists them",
                    )
                })?;
                self.set(setting, &[run.path().display().to_string()])
            }
            "preset" => self.preset(&words.join(" ")),
            _ if matches!(setting.kind, Kind::Path | Kind::Paths) => Err(Obstacle::of(
                setting.name,
                format!("{} is a path, which this server takes from nobody", setting.name),
                format!("Start the run in a terminal with --{}", setting.name),
            )),
            _ => self.set(setting, &words),
        }
    }

    fn set(&mut self, setting: &Setting, words: &[String]) -> Result<(), Obstacle> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.flags.set_words(setting.name, &words, Origin::Flag).map_err(|error| Obstacle {
            setting: Some(setting.name.to_owned()),
            ..Obstacle::of_failure(error.into(), None)
        })
    }

    /// Returns `ID=2` with the path of the data in place of the id, because sets are called as they are
    /// given.
    fn weight(&self, word: &str) -> Result<String, Obstacle> {
        let Some((id, weight)) = word.rsplit_once('=') else { return Ok(word.to_owned()) };
        let found = data_files::find(&self.folders, id.trim());
        let found = found.map_err(|problem| Obstacle::of_problem(problem, "weight"))?;
        Ok(format!("{}={}", found.answer().display(), weight.trim()))
    }

    /// Chooses a preset of the list. A path would also be one in a terminal.
    fn preset(&mut self, name: &str) -> Result<(), Obstacle> {
        if presets::list(None).iter().any(|preset| preset.name == name) {
            self.flags.preset = Some(Answer::flag(name.to_owned()));
            return Ok(());
        }
        let what = format!("there is no preset '{}'", name.escape_debug());
        Err(Obstacle::of("preset", what, "GET /api/v1/presets lists them"))
    }
}

/// Returns a value as the words after a flag; none for an empty value.
fn words(kind: Kind, value: &Value) -> Option<Vec<String>> {
    let one = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(on) => Some(on.to_string()),
        _ => None,
    };
    let words = match value {
        Value::Null => Vec::new(),
        Value::Array(values) => values.iter().map(one).collect::<Option<_>>()?,
        Value::Object(pairs) if kind == Kind::Weights => {
            let pair = |(name, number): (&String, &Value)| Some(format!("{name}={}", one(number)?));
            pairs.iter().map(pair).collect::<Option<_>>()?
        }
        Value::Object(_) => vec![value.to_string()],
        value => vec![one(value)?],
    };
    Some(words.into_iter().filter(|word| !word.trim().is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_the_words_after_a_flag() {
        let of = |value: Value| words(Kind::Text, &value);
        assert_eq!(of(json!("3")), Some(vec!["3".into()]));
        assert_eq!(of(json!(0.5)), Some(vec!["0.5".into()]));
        assert_eq!(of(json!(true)), Some(vec!["true".into()]));
        assert_eq!(of(json!(["a", "b"])), Some(vec!["a".into(), "b".into()]));
        assert_eq!(words(Kind::Weights, &json!({"a.jsonl": 2})), Some(vec!["a.jsonl=2".into()]));
        assert_eq!(of(json!({"enable_thinking": false})), Some(vec!["{\"enable_thinking\":false}".into()]));
        for empty in [json!(null), json!(""), json!(" "), json!([])] {
            assert_eq!(of(empty), Some(Vec::new()));
        }
        assert_eq!(of(json!([{"a": 1}])), None);
    }

    #[test]
    fn what_is_missing_is_told_by_the_name_of_each_setting() {
        let missing = sparktune_plan::missing(&Answers::default());
        let obstacles = Obstacle::of_error(PlanError::Missing(missing));
        let names: Vec<&str> = obstacles.iter().filter_map(|obstacle| obstacle.setting.as_deref()).collect();
        assert_eq!(names, ["model", "data"]);
        let problem = Obstacle::problem(obstacles);
        assert!(problem.detail.contains("model is missing (and 1 more)"), "{problem:?}");
        assert_eq!(problem.r#where.as_deref(), Some("model"));
    }
}
