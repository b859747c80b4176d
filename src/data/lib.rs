//! The data pipeline: lines, rows and texts → conversations → tokens → token file → packs, and a report of
//! the findings.
//!
//! Owns everything between the user's files and the trainer's batches. Each step is a function: `Line` →
//! [`Conversation`] | [`Rejection`] → rendered text with target ranges → [`Tokens`] → [`token_file`] →
//! [`packing`]. It must not know models, devices or screens.

mod around_text;
mod asked_messages;
mod at_work;
mod byte_bpe;
mod chat_tokenizer;
mod check;
mod chunk;
mod chunks;
mod conversation;
mod documents;
mod error;
mod examine;
mod examples;
mod explain;
mod file_kind;
mod foreign;
mod format;
mod input;
mod inputs;
mod instrument;
mod json_tree;
mod lengths;
mod mapped;
mod mapped_lines;
mod pack_text;
pub mod packets;
pub mod packing;
mod parse;
pub mod path_text;
mod policy;
mod prepare;
mod preview;
mod preview_tokens;
mod progress;
mod python_json;
mod readers;
mod reasoning;
mod rejected_file;
mod rejected_list;
mod rejection;
mod report;
mod served;
mod source;
mod split;
mod tally;
mod template;
mod text_border;
pub mod token_file;
mod token_file_report;
mod token_inputs;
mod token_lines;
mod token_room;
mod tokenizer_files;
mod tokenizer_oddities;
mod tokens;
mod trace;
mod turns;
mod wanted;
mod word_cache;
mod word_merges;
mod word_scanner;

pub use at_work::{ModelFile, Observer, Work, observe};
pub use chat_tokenizer::ChatTokenizer;
pub use check::{CheckOptions, check};
pub use chunk::{Line, lines};
pub use conversation::{Chat, Content, Conversation, Document, Json, Message};
pub use error::DataError;
pub use examples::ExampleOptions;
pub use file_kind::{DATA_ENDINGS, FileKind};
pub use foreign::Foreign;
pub use format::Format;
pub use input::{Input, InputFile};
pub use inputs::packed_data;
pub use lengths::{Bin, LengthReport, Unit};
pub use mapped_lines::{MappedLines, write_mapped_lines};
pub use pack_text::{PackOptions, Packed, pack_text};
pub use parse::parse_line;
pub use policy::{Policy, SAME_TOKENS_SINCE};
pub use prepare::{EvalData, PrepareOptions, Prepared, prepare};
pub use preview::{Pick, Preview, PreviewOptions, Previewed, Rendering, Span};
pub use preview_tokens::{find_examples, preview};
pub use progress::{Phase, Progress, Step};
pub use readers::has_plain_lines;
pub use reasoning::has_reasoning;
pub use rejected_file::{is_list_of_rejected, list_is_taken};
pub use rejected_list::{KeptLine, RejectedList};
pub use rejection::{Kind, Rejected, Rejection};
pub use report::{
    FileReport, Finding, OverlongReport, Place, RejectionCount, Report, SetReport, SplitLines, SplitReport,
    TemplateFindings, TokenCounts, TokenFileReport,
};
pub use source::{Source, SourceFile};
pub use split::EvalSplit;
pub use template::{Rendered, TemplateKwargs};
pub use token_inputs::PackedData;
pub use tokenizer_files::chat_template_of;
pub use tokens::Tokens;
pub use turns::{MaskPolicy, ThinkingSupport};
pub use wanted::Wanted;
