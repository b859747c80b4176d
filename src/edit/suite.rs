//! A general suite beside facts: what a model can do otherwise, as the share of its prompts that pass.

use serde_json::{Value, json};
use sparktune_compare::{Answer, Answered, Ask, Check, NeedsOf, Suite};
use sparktune_data::Rejection;
use sparktune_infer::{Engine, InferError};
use sparktune_sampling::SamplingParams;

use crate::error::EditError;
use crate::facts::shown;
use crate::judge::decode;
use crate::scores::Share;

/// The most tokens of an answer to a prompt of a suite.
const SUITE_TOKENS: u32 = 128;

/// Returns the share of a suite's prompts whose answers pass, of those that are decided, as `compare` counts
/// them. Checks that run code or measure the loss of a reference are not made, and prompts with tools are not
/// asked.
pub(crate) fn suite_share(
    engine: &mut Engine,
    suite: Option<&Suite>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Share>, EditError> {
    let Some(suite) = suite else { return Ok(None) };
    let is_text = |check: &&Check| matches!(check.needs(), NeedsOf::Text | NeedsOf::Reference);
    let (mut asked, mut prompts) = (Vec::new(), Vec::new());
    for prompt in suite.prompts.iter().filter(|prompt| prompt.checks.iter().any(|check| is_text(&check))) {
        let in_chat = |messages: &Value| {
            engine.render_messages(
                &json!({"messages": messages, "chat_template_kwargs": prompt.template_kwargs}),
            )
        };
        let text = match &prompt.ask {
            Ask::Text(text) => text.clone(),
            Ask::User(text) => {
                in_chat(&json!([{"role": "user", "content": text}])).unwrap_or_else(|_| text.clone())
            }
            Ask::Messages { messages, tools: None } => match in_chat(messages) {
                Err(InferError::Prompt(Rejection { reason, .. })) => {
                    return Err(EditError::request(
                        format!(
                            "the suite {} has chats, and one cannot be asked: {reason}",
                            shown(&suite.name)
                        ),
                        "Name a suite without chats, such as arithmetic, or a model whose chat template takes them",
                    ));
                }
                rendered => rendered?,
            },
            Ask::Messages { tools: Some(_), .. } => continue,
        };
        let most = prompt.sampling.max_tokens.map_or(SUITE_TOKENS, |most| most.min(SUITE_TOKENS));
        prompts.push((engine.encode(&text)?, SamplingParams::greedy(most)));
        asked.push(prompt);
    }
    let answers = decode(engine, prompts, go_on)?;
    let (mut passed, mut decided) = (0, 0);
    for (prompt, answer) in asked.iter().zip(&answers) {
        let answered = Answered {
            text: answer,
            reference: prompt.reference.as_deref(),
            reference_loss: Err(String::new()),
            run: &|_| Err(String::new()),
        };
        let outcomes = prompt.checks.iter().map(|check| check.outcome(&answered)).collect();
        let mut answer = Answer { outcomes, ..Answer::default() };
        answer.settle();
        decided += usize::from(answer.passed.is_some());
        passed += usize::from(answer.passed == Some(true));
    }
    Ok(Share::of(passed, decided))
}
