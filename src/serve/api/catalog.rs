//! Models that can be trained: the catalog with what is on this machine and what fits, a check of
//! any other model by its config, and downloads. Also the catalog of data sets.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sparktune_app::model::{self, Cached, ModelFound};
use sparktune_app::models::{DEMO, folders};
use sparktune_app::questions::model::ModelQuestion;
use sparktune_base::regular_file::read_model_json;
use sparktune_base::units::tokens_per_s;
use sparktune_plan::{
    Answer, Answers, Catalog, CatalogDataSet, CatalogModel, ConfigOptions, DataCatalog, MethodOutlook,
    ModelFacts, Outlook, Outlooks,
};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::model_ids;
use crate::problem::{Body, Problem, blocking};
use crate::state::{Served, Shared};
use crate::tasks::Task;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(catalog))
        .routes(routes!(data_catalog))
        .routes(routes!(check))
        .routes(routes!(fetch))
}

/// The models to choose from.
#[derive(Debug, Serialize, ToSchema)]
struct TrainableModels {
    /// The models of the catalog by their size, then those in folders.
    items: Vec<TrainableModel>,
    /// The data that the estimates are for, in words.
    data: String,
    /// Always null: the list is complete.
    next: Option<String>,
}

/// A model and its outlook on this machine.
#[derive(Debug, Serialize, ToSchema)]
struct TrainableModel {
    /// Its id for requests.
    id: String,
    /// A remark.
    note: String,
    /// The family.
    family: String,
    /// The parameters of the text model.
    parameters: u64,
    /// The size of its weights.
    weights_bytes: u64,
    /// Whether everything that training needs is on this machine.
    cached: bool,
    /// The bytes that are on this machine; a download continues there.
    cached_bytes: u64,
    /// Whether it can be trained here in any way.
    fits: bool,
    /// Whether it is the one that is recommended on this machine.
    recommended: bool,
    /// Whether it fits, and the speed, in a sentence.
    outlook: String,
    /// Training with LoRA adapters.
    lora: MethodView,
    /// Training all weights.
    full: MethodView,
}

/// The outlook of a way of training.
#[derive(Debug, Serialize, ToSchema)]
struct MethodView {
    /// Whether it fits into the memory.
    fits: bool,
    /// That in words, with the figures.
    fits_in_words: String,
    /// The memory needed.
    needed_bytes: u64,
    /// The memory that may be used.
    available_bytes: u64,
    /// The pack length that the plan would choose.
    pack_length: Option<u32>,
    /// Tokens per second, if there is a basis for an estimate.
    tokens_per_s: Option<f64>,
    /// The basis of that figure, in words.
    basis: String,
}

impl MethodView {
    fn of(outlook: &MethodOutlook) -> Self {
        Self {
            fits: outlook.fits(),
            fits_in_words: outlook.fit_in_words(),
            needed_bytes: outlook.memory.needed_bytes(),
            available_bytes: outlook.memory.available_bytes,
            pack_length: outlook.pack_length,
            tokens_per_s: outlook.tokens_per_s,
            basis: outlook.basis_in_words.clone(),
        }
    }
}

impl TrainableModel {
    fn new(id: String, note: String, facts: &ModelFacts, cached: Cached, outlook: &Outlook) -> Self {
        let (cached, cached_bytes) = match cached {
            Cached::Nothing => (false, 0),
            Cached::Partial { bytes } => (false, bytes),
            Cached::Whole { bytes } => (true, bytes),
        };
        let lora = &outlook.lora;
        let speed = lora
            .tokens_per_s
            .map(|rate| format!("; about {} tokens/s: {}", tokens_per_s(rate), lora.basis_in_words));
        Self {
            id,
            note,
            family: facts.config.architecture.word().to_owned(),
            parameters: facts.text_parameters(),
            weights_bytes: facts.checkpoint_bytes,
            cached,
            cached_bytes,
            fits: lora.fits() || outlook.full.fits(),
            recommended: false,
            outlook: format!("LoRA: {}{}", lora.fit_in_words(), speed.unwrap_or_default()),
            lora: MethodView::of(lora),
            full: MethodView::of(&outlook.full),
        }
    }
}

/// The models to choose from
///
/// Any other model of a known family can be trained too: check it by its id on the Hugging Face hub.
#[utoipa::path(get, path = "/catalog", tag = "models", responses((status = 200, body = TrainableModels)))]
async fn catalog(State(state): State<Shared>) -> Result<Json<TrainableModels>, Problem> {
    blocking(move || Ok(Json(models(&state)?))).await
}

fn models(state: &Served) -> Result<TrainableModels, Problem> {
    let (machine, rates) = state.facts.machine(&state.program, &with_runs_dir(state))?;
    let question = ModelQuestion::new(&machine, &rates, None, None);
    let (catalog, cached) = (Catalog::shipped(), model::cached_models());
    let of_catalog = |model: &CatalogModel| {
        let found =
            cached.iter().find(|found| found.id == model.id).map_or(Cached::Nothing, |found| found.cached);
        let outlook = question.outlook(&model.id)?;
        Some(TrainableModel::new(
            model.id.clone(),
            model.note.clone(),
            &catalog.model_facts(model),
            found,
            outlook,
        ))
    };
    let mut items: Vec<TrainableModel> = catalog.models.iter().filter_map(of_catalog).collect();
    let outlooks = Outlooks::new(&machine, &rates, None);
    for folder in folders(&state.models) {
        // A folder that cannot be read or trained is told when somebody checks it.
        let Ok(text) = read_model_json(&folder.path.join("config.json")) else { continue };
        let Ok(facts) = ModelFacts::from_config_json(&text) else { continue };
        let note = if folder.id == DEMO {
            "a tiny model that comes with the program, to try everything"
        } else {
            "a folder"
        };
        let outlook = outlooks.of(&folder.path.display().to_string(), &facts);
        let cached = Cached::Whole { bytes: facts.checkpoint_bytes };
        items.push(TrainableModel::new(folder.id, note.to_owned(), &facts, cached, &outlook));
    }
    let recommended = question.recommended();
    items.iter_mut().for_each(|model| model.recommended = Some(model.id.as_str()) == recommended);
    Ok(TrainableModels { items, data: question.data, next: None })
}

/// Returns answers that name the folder of the runs alone.
fn with_runs_dir(state: &Served) -> Answers {
    Answers { runs_dir: Some(Answer::flag(state.runs.path().to_owned())), ..Answers::default() }
}

/// The data sets of the catalog
///
/// A plan names one as `data`, and `map` says what its columns stand for.
#[utoipa::path(get, path = "/catalog/data", tag = "datasets", responses((status = 200, body = Listed<Object>)))]
async fn data_catalog() -> Json<Listed<&'static CatalogDataSet>> {
    Json(Listed::whole(DataCatalog::shipped().data_sets.iter().collect()))
}

/// A model by its id.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Named {
    /// `OWNER/NAME` with an optional `@REVISION`, or an id of the catalog.
    model: String,
}

/// Check a model
///
/// By its `config.json` alone; besides that, only the tokenizer is downloaded. The result of the task has the
/// model's facts, what is still to be downloaded, and whether it fits on this machine.
#[utoipa::path(post, path = "/models/check", tag = "models", request_body = Named,
    responses((status = 202, body = Task), (status = 400, body = Problem)))]
async fn check(
    State(state): State<Shared>,
    Body(named): Body<Named>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    let served = state.clone();
    let name = blocking(move || model_ids::answer(&served.models, &named.model)).await?;
    let served = state.clone();
    let task = state.tasks.start("model_check", move |work| {
        let reporter = work.listener();
        let found = model::look_up(&name, None, ConfigOptions::default(), &reporter)?;
        described(&served, ModelFound { notes: reporter.take_notes(), ..found })
    })?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

fn described(state: &Served, found: ModelFound) -> Result<Value, Problem> {
    let (machine, rates) = state.facts.machine(&state.program, &with_runs_dir(state))?;
    let outlook = Outlooks::new(&machine, &rates, None).of(&found.name, &found.facts);
    let facts = &found.facts;
    Ok(json!({
        "model": model_ids::of_answer(&state.models, &found.name),
        "commit": found.commit,
        "family": facts.config.architecture.word(),
        "unknown_family": found.unknown_architecture,
        "parameters": facts.text_parameters(),
        "mtp_parameters": facts.mtp_parameters(),
        "has_mtp": facts.has_mtp(),
        "weights_bytes": facts.checkpoint_bytes,
        "missing_bytes": found.missing_bytes,
        "context_tokens": facts.config.max_example_tokens(),
        "fits": outlook.lora.fits() || outlook.full.fits(),
        "lora": MethodView::of(&outlook.lora),
        "full": MethodView::of(&outlook.full),
        "notes": found.notes,
    }))
}

/// Download a model
///
/// Everything that training it needs, into the cache that other programs use too. A download that was cut or
/// cancelled continues where it was.
#[utoipa::path(post, path = "/fetches", tag = "models", request_body = Named,
    responses((status = 202, body = Task), (status = 400, body = Problem)))]
async fn fetch(
    State(state): State<Shared>,
    Body(named): Body<Named>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    let served = state.clone();
    let name = blocking(move || model_ids::answer(&served.models, &named.model)).await?;
    let task = state.tasks.start("fetch", move |work| {
        let answers = Answers { model: Some(Answer::flag(name)), ..Answers::default() };
        let reporter = work.listener();
        let downloaded = model::download(&answers, &reporter)?;
        Ok(json!(model::Downloaded { notes: reporter.take_notes(), ..downloaded }))
    })?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}
