//! The variables of the chat template for one model, one set of data and some answers.
//!
//! Enters: a tokenizer, answers, and the sets of data. Leaves: the tokenizer with its variables set.
//! This file must not know what is trained.

use sparktune_base::escape::escape;
use sparktune_base::field_map::FieldMap;
use sparktune_data::{ChatTokenizer, Format, Input, has_reasoning};
use sparktune_plan::{Answers, TemplateKwargs};

use crate::failure::Failure;
use crate::listener::Listener;

/// Gives the chat template the variables of the answers. `inputs` are all data, training and eval, read in
/// this format and with these names of columns. Without such an answer, `enable_thinking` follows from the
/// template and from whether any example reasons, where the template knows that variable.
///
/// # Errors
/// The template does not read a variable of the answers, or gets it from the tokenizer, or the data cannot be
/// read.
pub(crate) fn set_template_kwargs(
    tokenizer: &mut ChatTokenizer,
    answers: &Answers,
    inputs: &[Input],
    read_as: (Option<Format>, &FieldMap),
    listener: &dyn Listener,
) -> Result<(), Failure> {
    let kwargs = match &answers.template_kwargs {
        Some(answer) => {
            if let Some(unread) = answer.value.0.keys().find(|name| !tokenizer.reads_variable(name)) {
                let text =
                    format!("the chat template reads no variable `{}` (--template-kwargs)", escape(unread));
                return Err(Failure::usage(text).hint("Compare its name with those in the template"));
            }
            if let Some(token) = answer.value.0.keys().find(|name| tokenizer.is_special_token(name)) {
                let text = format!(
                    "`{}` is a special token of the tokenizer, which every server sets itself (--template-kwargs)",
                    escape(token)
                );
                return Err(Failure::usage(text).hint("Leave it out, or change tokenizer_config.json"));
            }
            answer.value.clone()
        }
        None => match tokenizer.thinking().map(|thinking| thinking.openings) {
            Some(openings) if openings.can_switch => {
                let enable = openings.enable_thinking(has_reasoning(inputs, read_as, listener)?);
                enable.map(TemplateKwargs::thinking).unwrap_or_default()
            }
            _ => TemplateKwargs::default(),
        },
    };
    tokenizer.set_kwargs(kwargs.0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sparktune_plan::Answer;

    use super::*;
    use crate::listener::Silent;

    /// Returns the variables that are set for a file with this answer in it.
    fn kwargs(answer: &str, said: Option<TemplateKwargs>) -> Result<TemplateKwargs, Failure> {
        kwargs_of(None, answer, said)
    }

    /// The same with another template.
    fn kwargs_of(
        template: Option<&str>,
        answer: &str,
        said: Option<TemplateKwargs>,
    ) -> Result<TemplateKwargs, Failure> {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), template.unwrap_or_default()).unwrap();
        let mut tokenizer = ChatTokenizer::open(&fixture, template.map(|_| file.path())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data.jsonl");
        let line = serde_json::json!({ "messages": [
            { "role": "user", "content": "Question" }, { "role": "assistant", "content": answer } ] });
        std::fs::write(&data, line.to_string()).unwrap();
        let answers = Answers { template_kwargs: said.map(Answer::flag), ..Answers::default() };
        let read_as = (None, &FieldMap::default());
        set_template_kwargs(&mut tokenizer, &answers, &[data.into()], read_as, &Silent)?;
        Ok(TemplateKwargs(tokenizer.kwargs().clone()))
    }

    #[test]
    fn data_without_reasoning_turns_thinking_off_unless_the_user_says_otherwise() {
        assert_eq!(kwargs("Answer", None).unwrap(), TemplateKwargs::without_thinking());
        assert_eq!(kwargs("<think>\nwhy\n</think>\n\nAnswer", None).unwrap(), TemplateKwargs::default());
        let said = TemplateKwargs([("preserve_thinking".to_owned(), true.into())].into());
        assert_eq!(kwargs("Answer", Some(said.clone())).unwrap(), said);
        assert_eq!(kwargs("Answer", Some(TemplateKwargs::default())).unwrap(), TemplateKwargs::default());
    }

    #[test]
    fn data_with_reasoning_turns_thinking_on_where_the_template_leaves_it_off() {
        let template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' + ('' if enable_thinking else '\n</think>\n\n') }}{% endif %}";
        let kwargs = |answer: &str| kwargs_of(Some(template), answer, None).unwrap();
        assert_eq!(kwargs("<think>\nwhy\n</think>\n\nAnswer"), TemplateKwargs::thinking(true));
        assert_eq!(kwargs("Answer"), TemplateKwargs::without_thinking());
    }

    #[test]
    fn a_variable_that_the_template_does_not_read_is_refused() {
        let misspelt = TemplateKwargs([("enable_thinkin".to_owned(), false.into())].into());
        let refused = kwargs("Answer", Some(misspelt)).unwrap_err();
        assert!(refused.text.contains("reads no variable `enable_thinkin`"), "{}", refused.text);
    }
}
