//! The blind arena: two answers of a comparison without the names of their models, and the votes.
//!
//! A token stands for a model until the vote. It is a keyed hash, whose key is made anew at each start of the
//! server, so nobody can tell from it which model it is.

use std::sync::OnceLock;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparktune_compare::Comparison;
use sparktune_runlog::now_us;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::comparisons::find;
use crate::ids::{self, Id};
use crate::problem::{Body, Problem, blocking};
use crate::state::Shared;
use crate::votes::{self, Vote, Winner};

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(blind)).routes(routes!(tally, vote))
}

/// An answer without the name of its model.
#[derive(Debug, Serialize, ToSchema)]
struct BlindAnswer {
    /// What stands for the model in the vote.
    token: String,
    /// The answer.
    text: String,
}

/// Two answers to the same prompt.
#[derive(Debug, Serialize, ToSchema)]
struct Pair {
    /// The position of the prompt in the comparison.
    prompt: usize,
    /// The turns of the prompt.
    #[schema(value_type = Vec<Object>)]
    messages: Value,
    /// The answer on the left. The sides are drawn.
    left: BlindAnswer,
    /// The answer on the right.
    right: BlindAnswer,
}

/// What there is to judge.
#[derive(Debug, Serialize, ToSchema)]
struct Blind {
    /// A pair that was not judged yet; `null` if all were.
    pair: Option<Pair>,
    /// The number of pairs that were not judged yet.
    left_to_judge: usize,
    /// The number of votes.
    votes: usize,
}

/// Two answers to judge, without the names of their models
#[utoipa::path(get, path = "/comparisons/{id}/blind", tag = "comparisons", params(("id" = String, Path)),
    responses((status = 200, body = Blind), (status = 404, body = Problem)))]
async fn blind(State(state): State<Shared>, Id(id): Id) -> Result<Json<Blind>, Problem> {
    blocking(move || {
        let comparison = find(&state, &id)?;
        let votes = votes::read(&state, &id)?;
        let open = open_pairs(&comparison, &votes);
        let random = hash("draw", &ids::new());
        let number = u64::from_le_bytes(random.as_bytes()[..8].try_into().expect("a hash has 32 bytes"));
        let chosen = open.get((number % open.len().max(1) as u64) as usize).copied();
        let pair = chosen.map(|(prompt, one, other)| {
            let (left, right) = if random.as_bytes()[8] & 1 == 0 { (one, other) } else { (other, one) };
            let answer = |model: usize| BlindAnswer {
                token: token(&comparison, prompt, model),
                text: comparison.models[model].answers[prompt].text.clone(),
            };
            let messages = comparison.prompts[prompt].messages.clone();
            Pair { prompt, messages, left: answer(left), right: answer(right) }
        });
        Ok(Json(Blind { pair, left_to_judge: open.len(), votes: votes.len() }))
    })
    .await
}

/// Returns the pairs that were not judged: a prompt and two models with different answers to it.
fn open_pairs(comparison: &Comparison, votes: &[Vote]) -> Vec<(usize, usize, usize)> {
    let models = &comparison.models;
    let text = |model: usize, prompt: usize| models[model].answers.get(prompt).map(|answer| &answer.text);
    let is_judged = |prompt: usize, one: usize, other: usize| {
        let (one, other) = (&models[one].model.id, &models[other].model.id);
        votes.iter().any(|vote| vote.judges(prompt, one, other))
    };
    let mut open = Vec::new();
    for prompt in 0..comparison.prompts.len() {
        for one in 0..models.len() {
            for other in one + 1..models.len() {
                let differ = text(one, prompt).is_some_and(|text_of_one| {
                    text(other, prompt).is_some_and(|text_of_other| text_of_other != text_of_one)
                });
                if differ && !is_judged(prompt, one, other) {
                    open.push((prompt, one, other));
                }
            }
        }
    }
    open
}

/// A vote.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GivenVote {
    /// The position of the prompt.
    prompt: usize,
    /// The token of the left answer.
    left: String,
    /// The token of the right answer.
    right: String,
    /// Which was better.
    winner: Winner,
}

/// The models whose answers were judged.
#[derive(Debug, Serialize, ToSchema)]
struct Revealed {
    /// The name of the model on the left.
    left: String,
    /// The name of the model on the right.
    right: String,
}

/// Vote on a pair, and learn whose answers they were
#[utoipa::path(post, path = "/comparisons/{id}/votes", tag = "comparisons", params(("id" = String, Path)),
    request_body = GivenVote,
    responses((status = 200, body = Revealed), (status = 404, body = Problem), (status = 409, body = Problem)))]
async fn vote(
    State(state): State<Shared>,
    Id(id): Id,
    Body(given): Body<GivenVote>,
) -> Result<Json<Revealed>, Problem> {
    blocking(move || {
        let comparison = find(&state, &id)?;
        let model_of = |given_token: &str| {
            let mut models = 0..comparison.models.len();
            models.find(|model| token(&comparison, given.prompt, *model) == given_token).ok_or_else(|| {
                Problem::new(StatusCode::CONFLICT, "these tokens are not those of a pair")
                    .advise("Ask for a pair again: the server has been restarted since it gave this one")
            })
        };
        let (left, right) = (model_of(&given.left)?, model_of(&given.right)?);
        if left == right {
            let problem = Problem::bad_request("both answers are of the same model").at("right");
            return Err(problem.advise("Send the tokens of a pair as they were given"));
        }
        let model = |at: usize| &comparison.models[at].model;
        let vote = Vote {
            time_us: now_us(),
            prompt: given.prompt,
            left: model(left).id.clone(),
            right: model(right).id.clone(),
            winner: given.winner,
        };
        votes::add(&state, &id, &vote)?;
        Ok(Json(Revealed { left: model(left).name.clone(), right: model(right).name.clone() }))
    })
    .await
}

/// The votes on the answers of a model.
#[derive(Debug, Serialize, ToSchema)]
struct Standing {
    /// The id of the model.
    id: String,
    /// Its name.
    name: String,
    /// How often its answer was the better one.
    wins: usize,
    /// How often it was the worse one.
    losses: usize,
    /// How often both were equally good.
    ties: usize,
    /// How often both were bad.
    bad: usize,
}

/// The votes on a comparison.
#[derive(Debug, Serialize, ToSchema)]
struct Votes {
    /// Their number.
    votes: usize,
    /// What they say of each model.
    models: Vec<Standing>,
}

/// The votes on a comparison
#[utoipa::path(get, path = "/comparisons/{id}/votes", tag = "comparisons", params(("id" = String, Path)),
    responses((status = 200, body = Votes), (status = 404, body = Problem)))]
async fn tally(State(state): State<Shared>, Id(id): Id) -> Result<Json<Votes>, Problem> {
    blocking(move || {
        let comparison = find(&state, &id)?;
        let votes = votes::read(&state, &id)?;
        let standing = |model: &sparktune_compare::ModelAnswers| {
            let id = &model.model.id;
            let count = |is_counted: &dyn Fn(&Vote) -> bool| {
                let mine = votes.iter().filter(|vote| &vote.left == id || &vote.right == id);
                mine.filter(|vote| is_counted(vote)).count()
            };
            let won = |vote: &Vote| match vote.winner {
                Winner::Left => Some(&vote.left == id),
                Winner::Right => Some(&vote.right == id),
                Winner::Tie | Winner::Bad => None,
            };
            Standing {
                id: id.clone(),
                name: model.model.name.clone(),
                wins: count(&|vote| won(vote) == Some(true)),
                losses: count(&|vote| won(vote) == Some(false)),
                ties: count(&|vote| vote.winner == Winner::Tie),
                bad: count(&|vote| vote.winner == Winner::Bad),
            }
        };
        Ok(Json(Votes { votes: votes.len(), models: comparison.models.iter().map(standing).collect() }))
    })
    .await
}

/// Returns what stands for a model in a pair.
fn token(comparison: &Comparison, prompt: usize, model: usize) -> String {
    let text = format!("{}\n{prompt}\n{model}", comparison.id);
    hash("model", &text).to_hex()[..24].to_owned()
}

/// Returns a hash that nobody else can compute, for this purpose.
fn hash(purpose: &str, text: &str) -> blake3::Hash {
    static KEY: OnceLock<[u8; 32]> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        let mut key = [0; 32];
        // Without randomness the names could be guessed from the tokens, which harms nobody.
        let _ = rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty());
        key
    });
    blake3::keyed_hash(key, format!("{purpose}\n{text}").as_bytes())
}
