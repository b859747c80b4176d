//! The requests to the data worker and its replies. Each is one line of JSON. Both ends are the same program,
//! so there are no versions.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparktune_base::field_map::FieldMap;
use sparktune_base::thinking::Thinking;
use sparktune_data::token_file::OnDamage;
use sparktune_data::{
    ExampleOptions, Format, Input, MaskPolicy, PackOptions, Packed, PrepareOptions, Prepared, Preview,
    PreviewOptions, Rejection, Report, Step, TemplateKwargs, Wanted,
};

use crate::failure::Failure;

/// A line to the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    Request(Box<Request>),
    /// Ends the present request early.
    Cancel,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Reads the tokenizer of a folder, with a chat template of its own if one is given.
    Open {
        #[serde(with = "sparktune_data::path_text")]
        folder: PathBuf,
        #[serde(with = "sparktune_data::path_text::optional")]
        template: Option<PathBuf>,
    },
    /// Sets the variables of the template.
    SetKwargs(TemplateKwargs),
    /// Sets the variables of the template that suit the data: those that the user gave, or those that follow
    /// from whether an example reasons.
    ChooseKwargs {
        given: Option<TemplateKwargs>,
        inputs: Vec<Input>,
        format: Option<Format>,
        map: FieldMap,
    },
    Check(CheckRequest),
    Prepare(PrepareRequest),
    Preview(PreviewRequest),
    Pack(PackRequest),
    /// Renders what a user says to the model as a server does, and tokenises it.
    Prompts(Vec<String>),
    /// Renders messages in OpenAI's form with these variables of the template.
    Render {
        messages: Value,
        kwargs: TemplateKwargs,
    },
}

/// A check of data with a model.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CheckRequest {
    pub inputs: Vec<Input>,
    pub eval_data: Vec<Input>,
    pub format: Option<Format>,
    pub map: FieldMap,
    pub policy: MaskPolicy,
    pub examples: ExampleOptions,
    pub max_example_tokens: Option<u32>,
    pub vocabulary: Option<u32>,
    pub on_damage: OnDamage,
    #[serde(with = "sparktune_data::path_text::optional")]
    pub rejected_path: Option<PathBuf>,
}

/// Data to be tokenised into a folder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PrepareRequest {
    pub inputs: Vec<Input>,
    pub options: PrepareOptions,
    #[serde(with = "sparktune_data::path_text")]
    pub folder: PathBuf,
}

/// Examples to be shown.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PreviewRequest {
    pub inputs: Vec<Input>,
    pub options: PreviewOptions,
    /// What is looked for, instead of the first examples.
    pub wanted: Option<Wanted>,
}

/// Data to be packed into a token file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PackRequest {
    pub inputs: Vec<Input>,
    pub options: PackOptions,
    #[serde(with = "sparktune_data::path_text")]
    pub output: PathBuf,
}

/// A line from the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// The progress of a request, which is not answered yet.
    Step(Step),
    /// The answer.
    Done(Box<Reply>),
    /// Why there is none.
    Failed(Failure),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The tokenizer was read; what is odd about it.
    Opened {
        oddities: Vec<String>,
        now: Now,
    },
    Now(Now),
    Checked(Report),
    Prepared(Prepared),
    Preview(Preview),
    Packed(Packed),
    /// The token ids of each prompt.
    Prompts(Vec<Vec<u32>>),
    /// The text of messages.
    Rendered(Result<String, Rejection>),
}

/// The tokenizer with the variables of its template as they are now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Now {
    pub thinking: Thinking,
    /// Equal fingerprints tokenise equally.
    pub fingerprint: String,
    /// The variables.
    pub kwargs: TemplateKwargs,
}
