//! Writes `SERVE.md`: how to serve a trained model, and the gain from its MTP head.

use std::fmt::Write;

use sparktune_base::escape::{escape, escape_json};
use sparktune_model::BaseClass;
use sparktune_plan::{Mtp as MtpChoice, Plan};

use crate::adapter_section::section_of_adapter;
use crate::gguf_section::section_of_gguf;
use crate::head_report::{HeadReport, acceptance_table, reading_table};
use crate::vllm::Serving;

/// The contents of the page.
pub(crate) struct Served<'a> {
    pub(crate) plan: &'a Plan,
    /// The name of the run in commands of `export`, with the flag that names these weights.
    pub(crate) run: &'a str,
    /// What the flags of a server depend on.
    pub(crate) serving: Serving<'a>,
    /// The folder of the model to serve, below `outputs/`.
    pub(crate) folder: &'a str,
    /// What is to be known about the weights, a paragraph each.
    pub(crate) notes: &'a [String],
    /// The classes for which an adapter was written.
    pub(crate) adapters: &'a [BaseClass],
    /// Whether the text model is a part of a larger one, which another class of transformers loads.
    pub(crate) is_wrapper: bool,
    /// Whether the output head is the embedding.
    pub(crate) is_tied: bool,
    /// The base's head and the trained one, if there are both.
    pub(crate) compared: Option<[HeadReport; 2]>,
    /// Whether the served head is the trained one.
    pub(crate) is_trained: bool,
    /// Whether a head was trained that could not be measured.
    pub(crate) has_unmeasured_head: bool,
    /// The head that is served.
    pub(crate) last: Option<HeadReport>,
    /// Like `last`, with drafts limited to the ids of the plan's draft vocabulary.
    pub(crate) trimmed: Option<HeadReport>,
    /// Whether these ids are in a file next to the page.
    pub(crate) has_draft_tokens: bool,
}

/// Returns the text of the page.
pub(crate) fn serve_page(served: &Served) -> String {
    let Served { plan, serving, folder, notes, is_tied, compared, last, trimmed, has_draft_tokens, .. } =
        served;
    let mut page = String::new();
    let draft = last.as_ref().map_or(0, HeadReport::recommended);
    let mut line = |text: String| {
        page.push_str(&text);
        page.push('\n');
    };
    line(format!(
        "# Serving this model\n\nTrained from {}. Run these commands in this folder.\n",
        code(&escape(&plan.model.id))
    ));
    notes.iter().for_each(|note| line(format!("{note}\n")));
    line("## vLLM\n".into());
    let speculative = (draft > 0).then(|| {
        format!("--speculative-config '{{\"method\": \"mtp\", \"num_speculative_tokens\": {draft}}}'")
    });
    line(format!("```\n{}\n```\n", serving.command(folder, speculative.as_slice())));
    line(serving.reasons());
    if !plan.data.template_kwargs.0.is_empty() {
        line(template_paragraph(plan));
    }
    match serving.adapter_command() {
        Some(Ok(command)) => line(format!("The adapter alone, on top of its base:\n\n```\n{command}\n```\n")),
        Some(Err(why)) => line(format!("{why}\n")),
        None => {}
    }
    line("These files are for vLLM 0.33 or newer (their layout was checked against the model code of that version). Older versions may support neither the architecture nor the MTP head."
        .into());
    line("\n## transformers\n".into());
    line(format!(
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n\
         model = AutoModelForCausalLM.from_pretrained(\"./{folder}\", dtype=\"auto\")\n\
         tokenizer = AutoTokenizer.from_pretrained(\"./{folder}\")\n```\n\ntransformers ignores the MTP head."
    ));
    if !served.adapters.is_empty() {
        line("\n## The adapter alone (PEFT)\n".into());
        line(section_of_adapter(&plan.model.reference(), served.adapters, served.is_wrapper));
    }
    line("\n## llama.cpp and Ollama\n".into());
    line(section_of_gguf(served.run, !served.adapters.is_empty()));
    line("\n## The MTP head\n".into());
    match (plan.mtp, last) {
        (MtpChoice::None, _) => line("Not exported, as set in the plan.".into()),
        (MtpChoice::Trained, None) if served.has_unmeasured_head => line(
            "Not measured, because no example has a prompt for the model to answer. A trained head that was not measured is not served: these outputs have the base's.".into(),
        ),
        (_, None) => line("Not measured: the model has no MTP head, or there is no eval set.".into()),
        (_, Some(last)) => {
            last.caution().into_iter().for_each(|caution| line(format!("{caution}\n")));
            if let Some([base, trained]) = compared {
                line(trained.compared_in_a_table(base, served.is_trained));
            }
            line(format!(
                "Drafted tokens accepted per pass of a server with the head that is served (measured on {}):\n",
                last.basis()
            ));
            let which = if served.is_trained { "trained head" } else { "base's head" };
            line(acceptance_table(which, last, trimmed.as_ref()));
            line(format!(
                "Recommended draft length: **{draft}**{}. The speed-up is estimated as (1 + accepted) / (1 + length × share), with the share given below. Measure it on your server.\n",
                if draft == 0 { " (drafting does not pay)" } else { "" },
            ));
            line(reading_table(last, trimmed.as_ref()));
            let reports = || [Some(last), trimmed.as_ref()].into_iter().flatten();
            let defect = reports().find_map(HeadReport::defect);
            let tie = reports().find_map(|report| report.departure.as_ref());
            let equal = match (defect, tie) {
                (Some(defect), _) => {
                    format!("NO; do not use the head, and report this: {}", defect.in_words())
                }
                (None, Some(tie)) => {
                    format!("yes, except for two tokens that are equally likely in bf16: {}", tie.in_words())
                }
                (None, None) => "yes".to_owned(),
            };
            line(format!("Speculative text equal to plain greedy decoding on these prompts: {equal}."));
        }
    }
    if *has_draft_tokens {
        line("\n## Drafting from a part of the vocabulary\n".into());
        line(trimmed_page(folder, *is_tied, trimmed.as_ref()));
    }
    page
}

/// Describes how servers get the variables of the chat template.
fn template_paragraph(plan: &Plan) -> String {
    let kwargs = &plan.data.template_kwargs;
    let who = if plan.model.write_template_default {
        "The exported chat template has these variables as its defaults, so no server needs a flag for them"
    } else {
        "Other servers and `apply_chat_template` of transformers need the same variables; `--write-template-default` of a run writes them into the exported template"
    };
    format!(
        "The chat template was rendered with {}. {who}. A request can set others as `chat_template_kwargs`.\n",
        code(&escape_json(&kwargs.to_string()))
    )
}

/// Returns a span of code in Markdown. A text with backticks takes more of them around it than it has in a
/// row.
fn code(text: &str) -> String {
    let most = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let (fence, space) = ("`".repeat(most + 1), if most > 0 { " " } else { "" });
    format!("{fence}{space}{text}{space}{fence}")
}

/// Describes which servers can draft from the list of token ids, and how.
fn trimmed_page(folder: &str, is_tied: bool, trimmed: Option<&HeadReport>) -> String {
    let mut page = String::from(
        "`draft-tokens.pt` holds the ids of the tokens to draft from, the most frequent trained tokens of the data and the special ones, as a list that `torch.load` reads. Drafts are only proposals: the text is always the model's own. The head \
         was trained on the whole vocabulary, and nothing is cut from the weights.\n\n\
         SGLang takes the list as `--speculative-token-map`. The following comes from its source (commit 008b79d2) and was not run here. ",
    );
    if is_tied {
        page.push_str(
            "This model's output head is its embedding, and for such models that version still drafts from the whole head but already maps ids through the list, which gives wrong ids. Do not use the list until `set_embed_and_head` in its `qwen3_5_mtp.py` supports a reduced head with tied embeddings.\n\n",
        );
    } else {
        let draft = trimmed.map_or(1, HeadReport::recommended).max(1);
        let _ = write!(
            page,
            "On one GPU:\n\n```\npython -m sglang.launch_server --model-path ./{folder} --speculative-algorithm NEXTN \\\n  \
             --speculative-num-steps {draft} --speculative-eagle-topk 1 --speculative-num-draft-tokens {} \\\n  \
             --speculative-token-map ./draft-tokens.pt\n```\n\n",
            draft + 1
        );
    }
    page.push_str("vLLM's MTP (commit 01d99805) has no such option and drafts from the whole vocabulary.");
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{config, plan};

    #[test]
    fn the_page_has_the_command_with_its_reasons_and_how_the_template_was_rendered() {
        let (config, mut plan) = (config("Qwen/Qwen3.5-2B"), plan("Qwen/Qwen3.5-2B"));
        plan.data.template_kwargs = sparktune_plan::TemplateKwargs::without_thinking();
        let serving = Serving {
            plan: &plan,
            config: &config,
            template: Some("<think>"),
            is_own_template: false,
            longest: 500,
        };
        let page = serve_page(&Served {
            plan: &plan,
            run: "latest",
            serving,
            notes: &[],
            folder: "merged",
            adapters: &[BaseClass::OfConfig],
            is_wrapper: true,
            is_tied: true,
            compared: None,
            is_trained: false,
            has_unmeasured_head: false,
            last: None,
            trimmed: None,
            has_draft_tokens: false,
        });
        for part in [
            "```\nvllm serve ./merged \\\n  --default-chat-template-kwargs '{\"enable_thinking\":false}' \\\n",
            "- `--max-model-len 3072`: the longest training example has 500 tokens",
            "The chat template was rendered with `{\"enable_thinking\":false}`. Other servers",
            "vllm serve Qwen/Qwen3.5-2B \\\n  --enable-lora",
            "export latest --gguf q8_0\n```",
            "llama-server -m gguf/model-q8_0.gguf --jinja\nollama create my-model -f gguf/Modelfile",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }

    #[test]
    fn code_on_the_page_is_one_span_whatever_is_in_it() {
        assert_eq!(code("a"), "`a`");
        assert_eq!(code("a`` `b`"), "``` a`` `b` ```");
        let mut plan = plan("Qwen/Qwen3.5-2B");
        let kwargs = [("a".to_owned(), "x\u{2028}\u{202e}y".into())];
        plan.data.template_kwargs = sparktune_plan::TemplateKwargs(kwargs.into());
        let paragraph = template_paragraph(&plan);
        assert!(paragraph.contains(r#"`{"a":"x\u2028\u202ey"}`"#), "{paragraph}");
    }

    #[test]
    fn a_head_that_is_the_embedding_gets_no_command_that_would_go_wrong() {
        let untied = trimmed_page("merged-mtp", false, None);
        assert!(untied.contains("--speculative-token-map ./draft-tokens.pt"), "{untied}");
        let tied = trimmed_page("merged-mtp", true, None);
        assert!(tied.contains("Do not use the list") && !tied.contains("launch_server"), "{tied}");
    }
}
