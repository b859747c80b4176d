//! The chat template of exported models: the one that the run was trained with.
//!
//! Enters: the run's own template, if it has one, and the variables of the plan. Leaves: a template. This
//! file must not know how one is rendered.

use std::fs;
use std::path::Path;

use sparktune_data::chat_template_of;
use sparktune_plan::Plan;
use sparktune_runlog::RunDir;

use crate::error::TrainError;

/// Returns the chat template of the exported models, if it is another than the base's: the run's own, with
/// the defaults of its variables if the plan says so.
///
/// # Errors
/// When a template cannot be read.
pub(crate) fn exported_template(
    run: &RunDir,
    plan: &Plan,
    base: &Path,
) -> Result<Option<String>, TrainError> {
    let own = run.chat_template();
    let has_defaults = plan.model.write_template_default;
    let source = if own.exists() {
        Some(fs::read_to_string(&own).map_err(TrainError::io(&own))?)
    } else if has_defaults {
        chat_template_of(base)?
    } else {
        None
    };
    let defaults = if has_defaults { plan.data.template_kwargs.as_defaults() } else { String::new() };
    Ok(source.map(|source| defaults + &source))
}

#[cfg(test)]
mod tests {
    use sparktune_data::{Chat, ChatTokenizer, Message};
    use sparktune_plan::TemplateKwargs;
    use sparktune_runlog::RunsRoot;

    use super::*;
    use crate::testing::plan;

    #[test]
    fn the_exported_template_is_the_runs_and_has_the_defaults_of_its_variables() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let mut plan = plan("Qwen/Qwen3.5-2B");
        assert_eq!(exported_template(&run, &plan, &base).unwrap(), None);

        plan.data.template_kwargs = TemplateKwargs::without_thinking();
        plan.model.write_template_default = true;
        let folder = root.path().join("exported");
        fs::create_dir(&folder).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(base.join(name), folder.join(name)).unwrap();
        }
        let template = exported_template(&run, &plan, &base).unwrap().unwrap();
        fs::write(folder.join("chat_template.jinja"), template).unwrap();
        let chat = Chat { messages: vec![Message::text("user", "u")], tools: None };
        let prompt = |kwargs: TemplateKwargs| {
            let mut tokenizer = ChatTokenizer::from_dir(&folder).unwrap();
            tokenizer.set_kwargs(kwargs.0);
            tokenizer.render_prompt(&chat).unwrap().text
        };
        let opening = "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<think>\n";
        assert_eq!(prompt(TemplateKwargs::default()), format!("{opening}\n</think>\n\n"));
        let on = TemplateKwargs([("enable_thinking".to_owned(), true.into())].into());
        assert_eq!(prompt(on), opening, "a caller still overrides the default");

        plan.model.write_template_default = false;
        fs::write(run.chat_template(), "{{ messages }}").unwrap();
        assert_eq!(exported_template(&run, &plan, &base).unwrap().as_deref(), Some("{{ messages }}"));

        fs::write(folder.join("chat_template.jinja"), "{% broken").unwrap();
        assert!(ChatTokenizer::from_dir(&folder).is_err());
        assert!(ChatTokenizer::without_template(&folder).is_ok(), "the trainer runs no template");
    }
}
