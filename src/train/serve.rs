//! Writes `SERVE.md`: how to serve a trained model, and the gain from its MTP head.

use std::fmt::Write;

use sparktune_base::units::{bytes, count, percent};
use sparktune_model::{
    Acceptance, BaseClass, Drafter, Generator, Model, ModelError, Mtp, speculative_greedy,
};
use sparktune_plan::{ModelConfig, Mtp as MtpChoice, Plan};

use crate::adapter_section::section_of_adapter;
use crate::departure::Departure;
use crate::gguf_section::section_of_gguf;
use crate::vllm::Serving;

/// The longest draft length that is measured.
const LONGEST_DRAFT: usize = 4;
/// The number of tokens generated for each prompt when acceptance is measured.
const TOKENS: usize = 32;

/// The amount of memory that drafting reads, in parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reading {
    /// Read for one drafted token: the MTP head, and the rows of the output head from which the token is
    /// chosen.
    draft: f64,
    /// Read in one pass of the model, which verifies a whole draft.
    pass: f64,
}

impl Reading {
    /// Computes the amounts for drafts chosen from `rows` rows of the output head.
    fn from_config(config: &ModelConfig, rows: usize) -> Self {
        let table = config.vocab_size as f64 * config.hidden_size as f64;
        // Of an embedding that is not the output head, only the rows of a pass's tokens are read.
        let embedding = if config.tie_word_embeddings { 0.0 } else { table };
        Self {
            draft: config.mtp_parameters() as f64 + rows as f64 * config.hidden_size as f64,
            pass: config.text_parameters() as f64 - embedding,
        }
    }

    /// Returns the cost of a drafted token as a share of a pass.
    fn share(self) -> f64 {
        self.draft / self.pass
    }

    /// Returns the speed-up over plain decoding when `accepted` of `length` drafted tokens are accepted per
    /// pass and the time is proportional to the bytes read.
    fn speedup(self, length: usize, accepted: f64) -> f64 {
        (1.0 + accepted) / (1.0 + length as f64 * self.share())
    }

    /// Returns the speed-up if every drafted token is accepted.
    fn bound(self, length: usize) -> f64 {
        self.speedup(length, length as f64)
    }
}

/// The number of drafted tokens of a head that are accepted on some prompts, and the gain.
#[derive(Debug, Clone)]
pub(crate) struct HeadReport {
    /// The mean number of drafted tokens accepted per pass, for draft lengths 1, 2, ….
    accepted: Vec<f64>,
    reading: Reading,
    /// The number of token ids it drafted from.
    rows: usize,
    /// The first difference of a speculative text from plain greedy decoding; one that is no tie if there are
    /// several.
    departure: Option<Departure>,
    prompts: usize,
}

impl HeadReport {
    /// Runs the head on prompts with frozen models, drafting from the ids `among` or from all. Returns `None`
    /// without a prompt.
    pub(crate) fn measure(
        model: &Model,
        mtp: &Mtp,
        among: Option<&[u32]>,
        prompts: &[Vec<u32>],
        stops: &[u32],
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, ModelError> {
        if prompts.is_empty() {
            return Ok(None);
        }
        let may_go_on = || if go_on() { Ok(()) } else { Err(ModelError::Stopped) };
        let stop = |id: u32| stops.contains(&id);
        let mut greedy: Vec<Vec<u32>> = Vec::new();
        for prompt in prompts {
            may_go_on()?;
            let mut plain: Vec<u32> = Generator::new(model, prompt).take(TOKENS).collect();
            if let Some(end) = plain.iter().position(|id| stop(*id)) {
                plain.truncate(end + 1);
            }
            greedy.push(plain);
        }
        let drafter = among.map_or_else(|| Drafter::new(model, mtp), |ids| Drafter::among(model, mtp, ids));
        let mut departure: Option<Departure> = None;
        let mut accepted = Vec::new();
        for length in 1..=LONGEST_DRAFT {
            let mut all = Acceptance::default();
            for (number, (prompt, greedy)) in (1..).zip(prompts.iter().zip(&greedy)) {
                may_go_on()?;
                let (text, run) = speculative_greedy(&drafter, prompt, TOKENS, length, stop);
                if departure.as_ref().is_none_or(Departure::is_tie) {
                    departure = Departure::find(model, number, prompt, greedy, &text).or(departure.take());
                }
                all.accepted.extend(run.accepted);
            }
            accepted.push(all.mean());
        }
        let config = model.config();
        let rows = among.map_or(config.vocab_size, <[u32]>::len);
        let reading = Reading::from_config(config, rows);
        Ok(Some(Self { accepted, reading, rows, departure, prompts: prompts.len() }))
    }

    /// Returns the estimated speed-up of serving with drafts of `length` tokens over plain decoding.
    fn speedup(&self, length: usize) -> f64 {
        match length {
            0 => 1.0,
            _ => self.reading.speedup(length, self.accepted[length - 1]),
        }
    }

    /// Returns the difference that speculative decoding must not have, if there is one.
    pub(crate) fn defect(&self) -> Option<&Departure> {
        self.departure.as_ref().filter(|departure| !departure.is_tie())
    }

    /// Returns the draft length with the best estimate, or 0 if drafting gains nothing.
    fn recommended(&self) -> usize {
        if self.defect().is_some() {
            return 0;
        }
        (0..=self.accepted.len()).max_by(|a, b| self.speedup(*a).total_cmp(&self.speedup(*b))).unwrap_or(0)
    }

    /// Formats the report in one line, for the log.
    pub(crate) fn in_a_line(&self) -> String {
        let accepted: Vec<String> = self.accepted.iter().map(|mean| format!("{mean:.2}")).collect();
        format!(
            "{} drafted tokens accepted per pass for drafts of 1 to {LONGEST_DRAFT} ({} prompts of the eval set); drafting from {} tokens reads {} of the model, so {LONGEST_DRAFT} drafts give a speed-up of at most {:.2}× (estimate)",
            accepted.join(", "),
            self.prompts,
            count(self.rows as u64),
            percent(self.reading.share()),
            self.reading.bound(LONGEST_DRAFT),
        )
    }
}

/// The contents of the page.
pub(crate) struct Served<'a> {
    pub(crate) plan: &'a Plan,
    /// The name of the run in commands.
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
    pub(crate) before: Option<HeadReport>,
    pub(crate) last: Option<HeadReport>,
    /// Like `last`, with drafts limited to the ids of the plan's draft vocabulary.
    pub(crate) trimmed: Option<HeadReport>,
    /// Whether these ids are in a file next to the page.
    pub(crate) has_draft_tokens: bool,
}

/// Returns the text of the page.
pub(crate) fn serve_page(served: &Served) -> String {
    let Served { plan, serving, folder, notes, is_tied, before, last, trimmed, has_draft_tokens, .. } =
        served;
    let mut page = String::new();
    let draft = last.as_ref().map_or(0, HeadReport::recommended);
    let mut line = |text: String| {
        page.push_str(&text);
        page.push('\n');
    };
    line(format!(
        "# Serving this model\n\nTrained from `{}`. Run these commands in this folder.\n",
        plan.model.id
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
        (_, None) => line("Not measured: the model has no MTP head, or there is no eval set.".into()),
        (_, Some(last)) => {
            line(format!(
                "Drafted tokens accepted per pass (mean over {} prompts of the eval set, {TOKENS} tokens each, greedy; measured):\n",
                last.prompts
            ));
            line(acceptance_table(before.as_ref(), last, trimmed.as_ref()));
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
        "The chat template was rendered with `{kwargs}`. {who}. A request can set others as `chat_template_kwargs`.\n"
    )
}

fn acceptance_table(before: Option<&HeadReport>, last: &HeadReport, trimmed: Option<&HeadReport>) -> String {
    let which = if before.is_some() { "trained head" } else { "base's head" };
    let mut columns = vec!["draft length".to_owned()];
    columns.extend(before.map(|_| "base's head".to_owned()));
    columns.extend([which.to_owned(), "estimated speed-up".to_owned()]);
    columns.extend(
        trimmed
            .into_iter()
            .flat_map(|report| [format!("{which}, {}", tokens(report)), "estimated speed-up".to_owned()]),
    );
    let mut table = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for length in 1..=last.accepted.len() {
        let _ = write!(table, "| {length} |");
        if let Some(before) = before {
            let _ = write!(table, " {:.2} |", before.accepted[length - 1]);
        }
        for report in [Some(last), trimmed].into_iter().flatten() {
            let _ = write!(table, " {:.2} | {:.2}× |", report.accepted[length - 1], report.speedup(length));
        }
        table.push('\n');
    }
    table
}

/// Describes the number of token ids that a head drafted from.
fn tokens(report: &HeadReport) -> String {
    format!("{} tokens", count(report.rows as u64))
}

/// Returns a table of the memory read by a pass and by a drafted token, and of the largest possible gain.
fn reading_table(last: &HeadReport, trimmed: Option<&HeadReport>) -> String {
    let bf16 = |parameters: f64| bytes((2.0 * parameters) as u64);
    let lengths: Vec<String> = (1..=LONGEST_DRAFT).map(|length| length.to_string()).collect();
    let mut table = format!(
        "Bytes read from memory (calculated, not measured: parameters in bf16, one request at a time). The last column is the \
         speed-up if every draft of {} tokens were accepted: (1 + length) / (1 + length × share).\n\n\
         | | reads | share of a pass | at most |\n|---|---|---|---|\n| a pass of the model | {} | | |\n",
        lengths.join(", "),
        bf16(last.reading.pass)
    );
    for report in [Some(last), trimmed].into_iter().flatten() {
        let bounds: Vec<String> =
            (1..=LONGEST_DRAFT).map(|length| format!("{:.2}×", report.reading.bound(length))).collect();
        let _ = writeln!(
            table,
            "| a draft from {} | {} | {} | {} |",
            tokens(report),
            bf16(report.reading.draft),
            percent(report.reading.share()),
            bounds.join(", ")
        );
    }
    table
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
            before: None,
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
    fn a_draft_of_the_2b_reads_30_percent_of_a_pass_and_an_eighth_of_the_vocabulary_frees_most_of_it() {
        let config = config("Qwen/Qwen3.5-2B");
        let full = Reading::from_config(&config, config.vocab_size);
        assert!((full.share() - 0.30).abs() < 0.01, "{}", full.share());
        assert!((full.bound(3) - 2.1).abs() < 0.05, "{}", full.bound(3));
        let trimmed = Reading::from_config(&config, 32_768);
        assert!((trimmed.share() - 0.068).abs() < 0.001, "{}", trimmed.share());
        assert!(trimmed.bound(3) > 3.3 && trimmed.pass == full.pass);
        assert_eq!(full.speedup(2, 0.0), 1.0 / (1.0 + 2.0 * full.share()));
    }

    #[test]
    fn a_pass_reads_next_to_nothing_of_an_embedding_that_is_not_the_head() {
        let config = config("Qwen/Qwen3.5-9B");
        let table = (config.vocab_size * config.hidden_size) as f64;
        let pass = Reading::from_config(&config, 1).pass;
        assert_eq!(pass, config.text_parameters() as f64 - table);
    }

    #[test]
    fn a_head_that_is_the_embedding_gets_no_command_that_would_go_wrong() {
        let untied = trimmed_page("merged-mtp", false, None);
        assert!(untied.contains("--speculative-token-map ./draft-tokens.pt"), "{untied}");
        let tied = trimmed_page("merged-mtp", true, None);
        assert!(tied.contains("Do not use the list") && !tied.contains("launch_server"), "{tied}");
    }
}
