//! Presets: the shipped ones and the user's own, which a terminal on this machine sees too.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sparktune_app::presets::{self, Preset, Saved};
use sparktune_plan::{Answers, Origin, SETTINGS};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::asked::{Asked, Obstacle, gathered};
use crate::ids::Id;
use crate::problem::{Body, Problem, blocking};
use crate::state::Shared;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(read, save))
}

/// A preset.
#[derive(Debug, Serialize, ToSchema)]
struct DescribedPreset {
    /// The name by which requests choose it.
    name: String,
    /// What it is, in a line.
    label: String,
    /// Its text; null if it cannot be read, and `label` says why.
    toml: Option<String>,
    /// Whether it is part of the program and not the user's own.
    is_builtin: bool,
}

impl From<Preset> for DescribedPreset {
    fn from(preset: Preset) -> Self {
        let label = preset.label();
        Self { name: preset.name, label, toml: preset.toml.ok(), is_builtin: preset.is_shipped }
    }
}

/// What to save: a text, or answers.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Contents {
    /// The text of the preset.
    toml: Option<String>,
    /// Answers as in a plan. Those that belong to one run, such as model and data, are left out.
    #[schema(value_type = Object)]
    answers: Option<serde_json::Map<String, serde_json::Value>>,
    /// Whether an existing preset of this name is replaced.
    #[serde(default)]
    replace: bool,
}

/// The presets, the shipped ones first
#[utoipa::path(get, path = "/presets", tag = "plan", responses((status = 200, body = Listed<DescribedPreset>)))]
async fn list() -> Result<Json<Listed<DescribedPreset>>, Problem> {
    blocking(|| Ok(Json(Listed::whole(presets::list(None).into_iter().map(DescribedPreset::from).collect()))))
        .await
}

/// A preset
#[utoipa::path(get, path = "/presets/{name}", tag = "plan", params(("name" = String, Path)),
    responses((status = 200, body = DescribedPreset), (status = 404, body = Problem)))]
async fn read(Id(name): Id) -> Result<Json<DescribedPreset>, Problem> {
    blocking(move || Ok(Json(found(&name)?.into()))).await
}

fn found(name: &str) -> Result<Preset, Problem> {
    let found = presets::list(None).into_iter().find(|preset| preset.name == name);
    found.ok_or_else(|| Problem::not_found("preset", name).advise("GET /api/v1/presets lists them"))
}

/// Save a preset
///
/// The user's presets are files in the folder of settings, which `--preset` on the command line finds too.
#[utoipa::path(put, path = "/presets/{name}", tag = "plan", params(("name" = String, Path)),
    request_body = Contents, responses((status = 200, body = DescribedPreset), (status = 400, body = Problem),
    (status = 409, body = Problem, description = "There is one of this name")))]
async fn save(
    State(state): State<Shared>,
    Id(name): Id,
    Body(contents): Body<Contents>,
) -> Result<Json<DescribedPreset>, Problem> {
    blocking(move || {
        // As it is written, so that it is found again.
        let name = name.trim();
        let Contents { toml, answers, replace } = contents;
        let toml = match (toml, answers) {
            (Some(toml), None) => checked(toml, name)?,
            (None, Some(answers)) => {
                let asked = Asked { answers, preset: None };
                let answers = gathered(&state, &asked).map_err(Obstacle::problem)?.answers;
                presets::text(&answers.only(Origin::Flag), None)?
            }
            _ => {
                let problem = Problem::bad_request("a preset is a text or answers").at("body");
                return Err(problem.advise("Send either `toml` or `answers`"));
            }
        };
        match presets::save(name, &toml, replace)? {
            Saved::Written { .. } => Ok(Json(found(name)?.into())),
            Saved::Exists { .. } => {
                let problem =
                    Problem::new(StatusCode::CONFLICT, format!("there is a preset '{name}' already"));
                Err(problem.at("name").advise("Give another name, or replace it with `\"replace\": true`"))
            }
        }
    })
    .await
}

/// Returns the text of a preset if it has answers and none of them is a path or belongs to one run.
fn checked(toml: String, name: &str) -> Result<String, Problem> {
    let answers = Answers::from_toml(&toml, Origin::Preset, name)
        .map_err(|error| Obstacle::problem(Obstacle::of_error(error)))?;
    let of_run = SETTINGS.iter().find(|setting| setting.of_one_run && answers.origin(setting.key).is_some());
    match of_run {
        None => Ok(toml),
        Some(setting) => {
            let text = format!("`{}` belongs to one run, so a preset does not contain it", setting.key);
            Err(Problem::bad_request(text).at("toml").advise("Remove it, and answer it in the plan"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_from_a_request_names_no_files() {
        assert!(checked("[method]\nrank = 8\n".into(), "x").is_ok());
        for (toml, key) in [
            ("runs_dir = \"/etc\"\n", "runs_dir"),
            ("[data]\ntrain = [\"/etc/passwd\"]\n", "data.train"),
            ("[model]\nchat_template = \"/etc/passwd\"\n", "model.chat_template"),
            ("[model]\nfrom = \"/x\"\n", "model.from"),
        ] {
            let problem = checked(toml.into(), "x").unwrap_err();
            assert!(problem.detail.contains(key), "{problem:?}");
        }
        assert_eq!(checked("no toml".into(), "x").unwrap_err().status, 400);
    }
}
