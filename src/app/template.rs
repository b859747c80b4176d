//! The variables of the chat template for one model, one set of data and some answers.
//!
//! Enters: a tokenizer, the variables that the user gave, and the sets of data. Leaves: the tokenizer with
//! its variables set. The data worker does this. This file must not know what is trained.

use sparktune_base::escape::escape;
use sparktune_base::field_map::FieldMap;
use sparktune_data::{ChatTokenizer, Format, Input, Progress, TemplateKwargs, has_reasoning};
use sparktune_plan::TemplateKwargs as Kwargs;

use crate::failure::Failure;

/// Gives the chat template the variables that the user gave. `inputs` are all data, training and eval, read
/// in this format and with these names of columns. If the user gave none, `enable_thinking` follows from the
/// template and from whether any example reasons, where the template knows that variable.
///
/// # Errors
/// The template does not read a variable that was given, or gets it from the tokenizer, or the data cannot be
/// read.
pub(crate) fn set_template_kwargs(
    tokenizer: &mut ChatTokenizer,
    given: Option<TemplateKwargs>,
    inputs: &[Input],
    read_as: (Option<Format>, &FieldMap),
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let kwargs = match given {
        Some(given) => {
            if let Some(unread) = given.keys().find(|name| !tokenizer.reads_variable(name)) {
                let text =
                    format!("the chat template reads no variable `{}` (--template-kwargs)", escape(unread));
                return Err(Failure::usage(text).hint("Compare its name with those in the template"));
            }
            if let Some(token) = given.keys().find(|name| tokenizer.is_special_token(name)) {
                let text = format!(
                    "`{}` is a special token of the tokenizer, which every server sets itself (--template-kwargs)",
                    escape(token)
                );
                return Err(Failure::usage(text).hint("Leave it out, or change tokenizer_config.json"));
            }
            given
        }
        None => match tokenizer.thinking().map(|thinking| thinking.openings) {
            Some(openings) if openings.can_switch => {
                let enable = openings.enable_thinking(has_reasoning(inputs, read_as, progress)?);
                enable.map(Kwargs::thinking).unwrap_or_default().0
            }
            _ => TemplateKwargs::default(),
        },
    };
    tokenizer.set_kwargs(kwargs);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the variables that are set for a file with this answer in it.
    fn kwargs(answer: &str, said: Option<Kwargs>) -> Result<Kwargs, Failure> {
        kwargs_of(None, answer, said)
    }

    /// The same with another template.
    fn kwargs_of(template: Option<&str>, answer: &str, said: Option<Kwargs>) -> Result<Kwargs, Failure> {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), template.unwrap_or_default()).unwrap();
        let mut tokenizer = ChatTokenizer::open(&fixture, template.map(|_| file.path())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data.jsonl");
        let line = serde_json::json!({ "messages": [
            { "role": "user", "content": "Question" }, { "role": "assistant", "content": answer } ] });
        std::fs::write(&data, line.to_string()).unwrap();
        let read_as = (None, &FieldMap::default());
        set_template_kwargs(&mut tokenizer, said.map(|said| said.0), &[data.into()], read_as, &())?;
        Ok(Kwargs(tokenizer.kwargs().clone()))
    }

    #[test]
    fn data_without_reasoning_turns_thinking_off_unless_the_user_says_otherwise() {
        assert_eq!(kwargs("Answer", None).unwrap(), Kwargs::without_thinking());
        assert_eq!(kwargs("<think>\nwhy\n</think>\n\nAnswer", None).unwrap(), Kwargs::default());
        let said = Kwargs([("preserve_thinking".to_owned(), true.into())].into());
        assert_eq!(kwargs("Answer", Some(said.clone())).unwrap(), said);
        assert_eq!(kwargs("Answer", Some(Kwargs::default())).unwrap(), Kwargs::default());
    }

    #[test]
    fn data_with_reasoning_turns_thinking_on_where_the_template_leaves_it_off() {
        let template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' + ('' if enable_thinking else '\n</think>\n\n') }}{% endif %}";
        let kwargs = |answer: &str| kwargs_of(Some(template), answer, None).unwrap();
        assert_eq!(kwargs("<think>\nwhy\n</think>\n\nAnswer"), Kwargs::thinking(true));
        assert_eq!(kwargs("Answer"), Kwargs::without_thinking());
    }

    #[test]
    fn a_variable_that_the_template_does_not_read_is_refused() {
        let misspelt = Kwargs([("enable_thinkin".to_owned(), false.into())].into());
        let refused = kwargs("Answer", Some(misspelt)).unwrap_err();
        assert!(refused.text.contains("reads no variable `enable_thinkin`"), "{}", refused.text);
    }
}
