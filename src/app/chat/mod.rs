//! A conversation with one model, or with two side by side.
//!
//! Enters: the models, and what a person says. Leaves: the parts of the answers as they come ([`Said`]), and
//! the turns ([`Chat::kept`]), which [`history`] keeps with a run. Both models are asked the same, and each
//! goes on from its own answers. Two adapters of one base, or an adapter and its base, share one worker and
//! with it the memory.

pub mod history;
pub mod recommended;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use serde_json::{Map, Value, json};
use sparktune_base::escape::escape;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::{Finished, Generate, Prompt, Reply, Request};

use self::history::Kept;
use crate::failure::{Exit, Failure};
use crate::inference::{Decoding, Worker, WorkerOptions};
use crate::models::{OpenableModel, Opening};
use crate::program::Program;
use crate::thought::without_thinking;

/// The most models side by side.
pub const MOST_SIDES: usize = 2;
/// The replies of a worker that are taken at a time.
const REPLIES_AT_ONCE: usize = 64;

/// How answers are made.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What the models are told before the conversation; may be empty.
    pub system: String,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The value of `enable_thinking` for templates that know it; `None` leaves it to the template.
    pub thinking: Option<bool>,
}

/// A part of an answer, or its end.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// More text. `opens_thinking` says whether the answer has begun inside a think block.
    Text {
        /// The side that says it.
        side: usize,
        /// The text, with its think block.
        text: String,
        /// Whether the prompt has opened a think block.
        opens_thinking: bool,
    },
    /// The end of an answer.
    Done {
        /// The side whose answer it is.
        side: usize,
        /// How it ended.
        finished: Finished,
    },
    /// There is no answer, or no more of it.
    Refused {
        /// The side whose answer it is.
        side: usize,
        /// What is wrong and what to do.
        error: String,
    },
}

/// A conversation.
pub struct Chat {
    workers: Vec<Worker>,
    /// How they decode.
    decoding: Decoding,
    sides: Vec<Side>,
    /// The number of questions so far. Ids of answers have it, because a forgotten answer may still go on.
    asked: u64,
}

/// A model of a conversation.
struct Side {
    model: OpenableModel,
    /// Its place among the workers.
    worker: usize,
    adapter: Option<String>,
    template_kwargs: Map<String, Value>,
    /// The turns in OpenAI's form, without the system prompt.
    turns: Vec<Value>,
    /// The answer that is being made.
    answer: Option<Answer>,
}

#[derive(Default)]
struct Answer {
    id: String,
    text: String,
    opens_thinking: bool,
}

impl Chat {
    /// Loads one or two models. `loading` is told the name of each before it is loaded.
    ///
    /// # Errors
    /// A model is incomplete, cannot be loaded, or does not fit into memory.
    pub fn open(
        program: &Program,
        models: &[OpenableModel],
        decoding: Decoding,
        loading: &mut dyn FnMut(&str),
    ) -> Result<Self, Failure> {
        if models.is_empty() || models.len() > MOST_SIDES {
            let text = format!("{} models cannot talk side by side", models.len());
            return Err(Failure::usage(text).hint(format!("Name 1 to {MOST_SIDES} models")));
        }
        let (mut workers, mut opened): (Vec<Worker>, Vec<Opening>) = (Vec::new(), Vec::new());
        let mut sides = Vec::new();
        for (number, model) in models.iter().enumerate() {
            let opening = model.opening()?;
            let known = opened.iter().position(|known| known.model == opening.model);
            let of_model = |failure: Failure| Failure {
                text: format!("{}: {}", escape(&model.name), failure.text),
                ..failure
            };
            let worker = match known {
                Some(worker) => worker,
                None => {
                    loading(&model.name);
                    let options = WorkerOptions {
                        model: opening.model.clone(),
                        base: None,
                        max_sequences: MOST_SIDES,
                        decoding,
                    };
                    workers.push(Worker::start(program, &options).map_err(of_model)?);
                    opened.push(opening.clone());
                    workers.len() - 1
                }
            };
            let adapter = opening.adapter.as_ref().map(|folder| (number.to_string(), folder));
            if let Some((name, folder)) = &adapter {
                let folder = folder.to_string_lossy().into_owned();
                load_adapter(&mut workers[worker], name, folder).map_err(of_model)?;
            }
            sides.push(Side {
                model: model.clone(),
                worker,
                adapter: adapter.map(|(name, _)| name),
                template_kwargs: opening.template_kwargs.into_iter().collect(),
                turns: Vec::new(),
                answer: None,
            });
        }
        share_kwargs(&mut sides);
        Ok(Self { workers, decoding, sides, asked: 0 })
    }

    /// Loads all models again, to decode in another way, and goes on with the conversation. Returns the
    /// failure if they cannot be loaded so; they are then loaded as they were.
    ///
    /// # Errors
    /// They cannot be loaded as they were either.
    pub fn decode_otherwise(
        &mut self,
        program: &Program,
        decoding: Decoding,
        loading: &mut dyn FnMut(&str),
    ) -> Result<Option<Failure>, Failure> {
        let models: Vec<OpenableModel> = self.sides.iter().map(|side| side.model.clone()).collect();
        // The memory of the old workers may be what the new ones need.
        self.workers.clear();
        let (mut again, failure) = match Self::open(program, &models, decoding, loading) {
            Ok(again) => (again, None),
            Err(failure) => (Self::open(program, &models, self.decoding, loading)?, Some(failure)),
        };
        again.asked = self.asked;
        for (side, old) in again.sides.iter_mut().zip(&mut self.sides) {
            side.turns = std::mem::take(&mut old.turns);
        }
        *self = again;
        Ok(failure)
    }

    /// Returns how the models decode.
    pub fn decoding(&self) -> Decoding {
        self.decoding
    }

    /// Returns the names of the models, in the order of the sides.
    pub fn names(&self) -> Vec<&str> {
        self.sides.iter().map(|side| side.model.name.as_str()).collect()
    }

    /// Returns the names of the models that have no chat template. They continue what is said as text,
    /// without the turns before it.
    pub fn without_template(&self) -> Vec<&str> {
        let has_none = |side: &&Side| !self.workers[side.worker].ready().has_template;
        self.sides.iter().filter(has_none).map(|side| side.model.name.as_str()).collect()
    }

    /// Returns whether an answer is being made.
    pub fn is_answering(&self) -> bool {
        self.sides.iter().any(|side| side.answer.is_some())
    }

    /// Asks all models. The answers to what was said before have to be complete.
    ///
    /// # Errors
    /// The sampling is out of its range, or a worker has ended.
    pub fn say(&mut self, text: &str, settings: &Settings) -> Result<(), Failure> {
        settings.sampling.check().map_err(|error| Failure::usage(error.to_string()))?;
        let mut sampling = settings.sampling.clone();
        if self.sides.len() > 1 {
            // With the same random numbers, models side by side differ by their weights and not by chance.
            sampling.seed.get_or_insert_with(|| RandomState::new().build_hasher().finish());
        }
        self.asked += 1;
        for (number, side) in self.sides.iter_mut().enumerate() {
            let worker = &mut self.workers[side.worker];
            side.turns.push(json!({"role": "user", "content": text}));
            let prompt = if worker.ready().has_template {
                Prompt::Messages(side.request(settings))
            } else {
                Prompt::Prompt(text.to_owned())
            };
            let id = format!("{number}-{}", self.asked);
            let generate = Generate {
                id: id.clone(),
                prompt,
                adapter: side.adapter.clone(),
                sampling: sampling.clone(),
            };
            side.answer = Some(Answer { id, ..Answer::default() });
            worker.send(&Request::Generate(Box::new(generate)))?;
        }
        Ok(())
    }

    /// Asks all models to end their answers. What was said until then is part of the conversation.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn cancel(&mut self) -> Result<(), Failure> {
        for side in &self.sides {
            if let Some(answer) = &side.answer {
                self.workers[side.worker].send(&Request::Cancel { id: answer.id.clone() })?;
            }
        }
        Ok(())
    }

    /// Returns the next parts of answers, or none if there are none within `timeout`.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn next(&mut self, timeout: Duration) -> Result<Vec<Said>, Failure> {
        let mut all = Vec::new();
        for worker in 0..self.workers.len() {
            // All workers share the time, so that none is late because another one is silent.
            let share = timeout / u32::try_from(self.workers.len()).unwrap_or(1);
            let mut patience = share;
            // A model that always has more to say must not keep its asker from stopping it.
            for _ in 0..REPLIES_AT_ONCE {
                let Some(reply) = self.workers[worker].next(patience)? else { break };
                all.extend(self.note(reply)?);
                patience = Duration::ZERO;
            }
        }
        Ok(all)
    }

    fn note(&mut self, reply: Reply) -> Result<Option<Said>, Failure> {
        let side_of = |sides: &[Side], id: &str| {
            sides.iter().position(|side| side.answer.as_ref().is_some_and(|answer| answer.id == id))
        };
        Ok(match reply {
            Reply::Accepted { id, opens_thinking, .. } => {
                if let Some(side) = side_of(&self.sides, &id)
                    && let Some(answer) = &mut self.sides[side].answer
                {
                    answer.opens_thinking = opens_thinking;
                }
                None
            }
            Reply::Text(piece) => side_of(&self.sides, &piece.id).and_then(|side| {
                let answer = self.sides[side].answer.as_mut()?;
                answer.text.push_str(&piece.text);
                let opens_thinking = answer.opens_thinking;
                Some(Said::Text { side, text: piece.text, opens_thinking })
            }),
            Reply::Done { id, finished } => side_of(&self.sides, &id).map(|side| {
                self.sides[side].complete();
                Said::Done { side, finished }
            }),
            Reply::Error { id: Some(id), error, .. } => side_of(&self.sides, &id).map(|side| {
                // Without an answer the question would have to be answered first by the next one.
                self.sides[side].answer = None;
                self.sides[side].turns.pop();
                Said::Refused { side, error }
            }),
            Reply::Error { id: None, error, .. } | Reply::Failed { error } => {
                return Err(Failure::new(Exit::Device, error));
            }
            Reply::Ready(_) | Reply::Scored { .. } | Reply::Adapters { .. } => None,
        })
    }

    /// Begins a new conversation. Answers that are being made are forgotten.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn begin_again(&mut self) -> Result<(), Failure> {
        self.cancel()?;
        for side in &mut self.sides {
            side.turns.clear();
            side.answer = None;
        }
        Ok(())
    }

    /// Goes on from turns that were kept, with all models.
    pub fn go_on(&mut self, turns: &[Value]) {
        self.sides.iter_mut().for_each(|side| side.turns = turns.to_vec());
    }

    /// Returns the conversation with each model, for [`history`].
    pub fn kept(&self, settings: &Settings) -> Vec<Kept> {
        let kept = |side: &Side| Kept {
            messages: side.messages(settings),
            title: history::title(&side.turns),
            model: side.model.id.clone(),
        };
        self.sides.iter().filter(|side| !side.turns.is_empty()).map(kept).collect()
    }
}

impl Side {
    /// Puts the answer behind the turns, without what was thought. A question without an answer is taken
    /// back.
    fn complete(&mut self) {
        if let Some(answer) = self.answer.take() {
            let (_, text) = without_thinking(&answer.text, answer.opens_thinking);
            let text = text.trim_end();
            if text.is_empty() {
                // A question that was not answered would teach a model, and everyone who trains on what is
                // kept, to say nothing.
                self.turns.pop();
            } else {
                self.turns.push(json!({"role": "assistant", "content": text}));
            }
        }
    }

    fn messages(&self, settings: &Settings) -> Vec<Value> {
        let system =
            (!settings.system.is_empty()).then(|| json!({"role": "system", "content": settings.system}));
        system.into_iter().chain(self.turns.iter().cloned()).collect()
    }

    fn request(&self, settings: &Settings) -> Value {
        let mut kwargs = self.template_kwargs.clone();
        if let Some(thinking) = settings.thinking {
            kwargs.insert("enable_thinking".to_owned(), Value::Bool(thinking));
        }
        json!({"messages": self.messages(settings), "chat_template_kwargs": kwargs})
    }
}

/// Gives a base the variables of the template that an adapter beside it was trained with: both are asked the
/// same.
fn share_kwargs(sides: &mut [Side]) {
    for at in 0..sides.len() {
        let is_of_base = |other: &&Side| other.worker == sides[at].worker && other.adapter.is_some();
        if sides[at].adapter.is_none()
            && let Some(adapted) = sides.iter().find(is_of_base)
        {
            sides[at].template_kwargs = adapted.template_kwargs.clone();
        }
    }
}

/// Loads an adapter, and waits until it is loaded.
fn load_adapter(worker: &mut Worker, name: &str, folder: String) -> Result<(), Failure> {
    worker.send(&Request::LoadAdapter { name: name.to_owned(), folder, makes_room: false })?;
    loop {
        match worker.next(Duration::from_secs(1))? {
            Some(Reply::Adapters { .. }) => return Ok(()),
            Some(Reply::Error { error, no_room: true, .. } | Reply::Failed { error }) => {
                return Err(Failure::new(Exit::Device, error));
            }
            Some(Reply::Error { error, .. }) => return Err(Failure::usage(error)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::tests::{READY, start};
    use crate::models::ModelKind;

    fn side(turns: &[(&str, &str)]) -> Side {
        let turns = turns.iter().map(|(role, content)| json!({"role": role, "content": content}));
        let model = OpenableModel {
            id: "dir:m".into(),
            name: "m".into(),
            kind: ModelKind::Base,
            base: None,
            parameters: None,
            path: "m".into(),
        };
        Side {
            model,
            worker: 0,
            adapter: None,
            template_kwargs: Map::new(),
            turns: turns.collect(),
            answer: None,
        }
    }

    #[test]
    fn a_base_is_asked_as_the_adapter_beside_it() {
        let kwargs = Map::from_iter([("enable_thinking".to_owned(), Value::Bool(false))]);
        let adapted = Side { adapter: Some("1".into()), template_kwargs: kwargs.clone(), ..side(&[]) };
        let mut sides = [side(&[]), adapted, Side { worker: 1, ..side(&[]) }];
        share_kwargs(&mut sides);
        assert_eq!(sides.each_ref().map(|side| side.template_kwargs.len()), [1, 1, 0]);
        assert_eq!(sides[0].template_kwargs, kwargs);
    }

    #[test]
    fn a_model_goes_on_from_what_it_said_and_not_from_what_it_thought() {
        let mut side = side(&[("user", "2 + 2?")]);
        side.answer =
            Some(Answer { id: "0-1".into(), text: "easy</think>\n\n4\n".into(), opens_thinking: true });
        side.complete();
        let settings = Settings {
            system: "Be brief.".into(),
            sampling: SamplingParams::default(),
            thinking: Some(true),
        };
        let request = side.request(&settings);
        let said: Vec<&str> = request["messages"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|turn| turn["content"].as_str())
            .collect();
        assert_eq!(said, ["Be brief.", "2 + 2?", "4"]);
        assert_eq!(request["chat_template_kwargs"], json!({"enable_thinking": true}));
        let silent = Settings { system: String::new(), thinking: None, ..settings };
        assert_eq!(side.messages(&silent).len(), 2);
        // It only thinks, until its tokens are used up: the question is taken back.
        side.turns.push(json!({"role": "user", "content": "and 3 + 3?"}));
        side.answer = Some(Answer { id: "0-2".into(), text: "hard".into(), opens_thinking: true });
        side.complete();
        assert_eq!(side.messages(&silent).len(), 2);
        assert_eq!(side.request(&silent)["chat_template_kwargs"], json!({}));
    }

    #[test]
    fn an_adapter_without_room_is_a_matter_of_the_machine_and_a_damaged_one_of_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let errors = [r#""error":"too large","no_room":true"#, r#""error":"damaged""#]
            .map(|error| format!(r#"{{"event":"error","id":"0",{error}}}"#));
        let script =
            format!("echo '{READY}'; read a; echo '{}'; read b; echo '{}'; read c", errors[0], errors[1]);
        let mut worker = start(&folder, &script).unwrap();
        let mut load = || load_adapter(&mut worker, "0", "/adapter".into()).unwrap_err();
        let (room, damage) = (load(), load());
        assert_eq!((room.exit, room.text.as_str()), (Exit::Device, "too large"));
        assert_eq!((damage.exit, damage.text.as_str()), (Exit::Usage, "damaged"));
    }

    #[test]
    fn a_model_that_always_has_more_to_say_does_not_keep_its_asker() {
        let folder = tempfile::tempdir().unwrap();
        let piece = r#"{"event":"text","id":"0-1","text":"x","tokens":[]}"#;
        let script = format!(
            "echo '{READY}'; read -r line; i=0; while [ $i -lt 500 ]; do echo '{piece}'; i=$((i+1)); done; touch {}/said; read -r line",
            folder.path().display()
        );
        let workers = vec![start(&folder, &script).unwrap()];
        let mut chat = Chat { workers, decoding: Decoding::default(), sides: vec![side(&[])], asked: 0 };
        let settings =
            Settings { system: String::new(), sampling: SamplingParams::default(), thinking: None };
        chat.say("hello", &settings).unwrap();
        // All of it is there before the first part is asked for.
        let begun = std::time::Instant::now();
        while !folder.path().join("said").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not say it");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500));
        let mut pieces = 0;
        while pieces < 500 {
            let said = chat.next(Duration::from_secs(60)).unwrap();
            assert!((1..=REPLIES_AT_ONCE).contains(&said.len()), "{} at once", said.len());
            pieces += said.len();
        }
        assert_eq!(pieces, 500);
    }
}
