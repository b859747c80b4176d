//! Puts the chat template that a run was trained with into the models that it exports.
//!
//! Enters: the run's own template, if it has one, and the variables of the plan. Leaves: the template file of
//! an exported folder. This file must not know how a template is rendered.

use std::fs;
use std::path::Path;

use sparktune_base::files::write_and_sync;
use sparktune_data::chat_template_of;
use sparktune_plan::Plan;
use sparktune_runlog::RunDir;

use crate::error::TrainError;

/// The file in which servers look for a template first.
const FILE: &str = "chat_template.jinja";

/// Returns whether the exported template is another than the base's.
pub(crate) fn differs_from_base(run: &RunDir, plan: &Plan) -> bool {
    run.chat_template().exists() || plan.model.write_template_default
}

/// Writes the run's template into a folder that holds the small files of the base, and the defaults of its
/// variables, if the plan says so.
///
/// # Errors
/// When a template cannot be read or written.
pub(crate) fn place(run: &RunDir, plan: &Plan, folder: &Path) -> Result<(), TrainError> {
    if !differs_from_base(run, plan) {
        return Ok(());
    }
    let own = run.chat_template();
    let source = if own.exists() {
        Some(fs::read_to_string(&own).map_err(TrainError::io(&own))?)
    } else {
        chat_template_of(folder)?
    };
    let Some(source) = source else { return Ok(()) };
    let defaults = plan.model.write_template_default.then(|| plan.data.template_kwargs.as_defaults());
    let path = folder.join(FILE);
    write_and_sync(&path, defaults.unwrap_or_default() + &source).map_err(TrainError::io(&path))
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
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let folder = root.path().join("exported");
        fs::create_dir(&folder).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json", FILE] {
            fs::copy(fixture.join(name), folder.join(name)).unwrap();
        }
        let base = fs::read_to_string(folder.join(FILE)).unwrap();
        let mut plan = plan("Qwen/Qwen3.5-2B");
        place(&run, &plan, &folder).unwrap();
        assert_eq!(fs::read_to_string(folder.join(FILE)).unwrap(), base);

        plan.data.template_kwargs = TemplateKwargs::without_thinking();
        plan.model.write_template_default = true;
        place(&run, &plan, &folder).unwrap();
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
        assert!(differs_from_base(&run, &plan));
        place(&run, &plan, &folder).unwrap();
        assert_eq!(fs::read_to_string(folder.join(FILE)).unwrap(), "{{ messages }}");
    }
}
