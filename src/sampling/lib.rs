//! What is asked of a model and what it answers, and how a token is drawn from logits.
//!
//! Owns the parameters of sampling under the names of OpenAI's API and of vLLM's `SamplingParams`, the pure
//! functions from logits to a token, the search for stop strings, and the lines of JSON between an inference
//! worker and the process that started it. Interfaces use it without the tensor library. It must not know
//! models, tokenizers or processes.

mod distribution;
mod draw;
mod params;
mod penalties;
pub mod protocol;
mod stop;

pub use distribution::{distribution, logprobs};
pub use draw::{Draw, Logits, draw};
pub use params::{Invalid, SamplingParams};
pub use penalties::{History, penalise};
pub use stop::StopStrings;
