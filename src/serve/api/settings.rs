//! The settings of a run as data, from which a page draws its questions.

use axum::Json;
use serde::Serialize;
use sparktune_plan::setting::{Kind, Limit, Page, Step};
use sparktune_plan::{SETTINGS, Setting};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::state::Shared;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list))
}

/// A setting.
#[derive(Debug, Serialize, ToSchema)]
struct DescribedSetting {
    /// The name, by which requests answer it.
    name: &'static str,
    /// The key in a preset and in `plan.toml`.
    key: &'static str,
    /// The flag on the command line.
    flag: String,
    /// The group.
    heading: &'static str,
    /// `essential`, `all`, or `own` for model, data and preset.
    page: &'static str,
    /// The place among the essential settings.
    position: Option<u8>,
    /// What it decides, as a sentence.
    decides: &'static str,
    /// `choice`, `bool`, `number`, `whole`, `text`, `list`, `model`, `data`, `run`, `preset`, `object`,
    /// `weights`, or `path` for a setting that is answered in a terminal alone.
    r#type: &'static str,
    /// The words that it accepts.
    choices: Vec<SettingChoice>,
    /// The range of a number.
    range: Option<SettingRange>,
    /// How a number is changed in steps.
    step: Option<SettingStep>,
    /// The accepted values, as the end of the sentence "expected …".
    expects: String,
    /// Whether another answer means that data is read again.
    reads_data: bool,
    /// Whether it says what one run is made from and not how, so that presets leave it out.
    of_one_run: bool,
    /// Whether there is no plan without an answer.
    is_required: bool,
}

/// A word that a setting accepts.
#[derive(Debug, Serialize, ToSchema)]
struct SettingChoice {
    /// The answer.
    value: &'static str,
    /// Its label.
    text: String,
}

/// The range of a number.
#[derive(Debug, Serialize, ToSchema)]
struct SettingRange {
    /// The smallest value.
    min: f64,
    /// The largest value.
    max: f64,
    /// What of the model may lower the largest value.
    limit: Option<&'static str>,
}

/// How a number is changed in steps.
#[derive(Debug, Serialize, ToSchema)]
struct SettingStep {
    /// `by`: to the next multiple of `size`; `double`: doubling and halving; `one_two_five`: 1, 2, 5, 10, ….
    kind: &'static str,
    /// The size of a step.
    size: Option<f64>,
    /// The value from which steps start when nothing is set.
    start: Option<&'static str>,
}

/// The settings of a run
///
/// In the order of `plan.toml`.
#[utoipa::path(get, path = "/settings", tag = "plan", responses((status = 200, body = Listed<DescribedSetting>)))]
async fn list() -> Json<Listed<DescribedSetting>> {
    Json(Listed::whole(SETTINGS.iter().map(DescribedSetting::of).collect()))
}

impl DescribedSetting {
    fn of(setting: &Setting) -> Self {
        let (page, position) = match setting.page {
            Page::Essential(position) => ("essential", Some(position)),
            Page::AllSettings => ("all", None),
            Page::Own => ("own", None),
        };
        let number = setting.number;
        Self {
            name: setting.name,
            key: setting.key,
            flag: format!("--{}", setting.name),
            heading: setting.heading.title(),
            page,
            position,
            decides: setting.about,
            r#type: kind(setting),
            choices: setting
                .choices()
                .iter()
                .map(|value| SettingChoice { value, text: value.replace('_', " ") })
                .collect(),
            range: number.map(|number| SettingRange {
                min: number.min,
                max: number.max,
                limit: number.limit.map(Limit::about),
            }),
            step: number.map(|number| {
                let (kind, size) = match number.step {
                    Step::By(size) => ("by", Some(size)),
                    Step::Double => ("double", None),
                    Step::OneTwoFive => ("one_two_five", None),
                };
                SettingStep { kind, size, start: number.start }
            }),
            expects: setting.expects(),
            reads_data: setting.reads_data,
            of_one_run: setting.of_one_run,
            is_required: setting.is_required,
        }
    }
}

/// Returns the kind of answer that a request gives.
fn kind(setting: &Setting) -> &'static str {
    match (setting.name, setting.kind) {
        ("model" | "mtp-from", _) => "model",
        ("data" | "eval-data", _) => "data",
        ("from", _) => "run",
        ("preset", _) => "preset",
        (_, Kind::Path | Kind::Paths) => "path",
        (_, Kind::Names) => "list",
        (_, Kind::Whole) => "whole",
        (_, Kind::Number) => "number",
        (_, Kind::Object) => "object",
        (_, Kind::Weights) => "weights",
        (_, Kind::Switch) => "bool",
        (_, Kind::Choice(_)) => "choice",
        (_, Kind::Text | Kind::Texts | Kind::Map | Kind::Sync) => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_what_a_page_needs_to_ask_for_it() {
        for setting in SETTINGS {
            let described = DescribedSetting::of(setting);
            let shown = &described.r#type;
            assert_eq!(
                matches!(*shown, "number" | "whole"),
                described.range.is_some() && described.step.is_some(),
                "{shown}"
            );
            assert_eq!(
                matches!(*shown, "choice" | "bool"),
                !described.choices.is_empty(),
                "{}",
                setting.name
            );
            assert!(!described.decides.is_empty() && !described.expects.is_empty());
        }
        let paths: Vec<_> =
            SETTINGS.iter().filter(|setting| kind(setting) == "path").map(|s| s.name).collect();
        assert_eq!(paths, ["runs-dir", "chat-template"], "another path needs a decision");
    }
}
