//! `SERVE.md`: how to serve what was trained, and what the MTP head is worth.

use sparktune_model::{Generator, Model, Mtp, measure_acceptance, speculative_greedy};
use sparktune_plan::{Mtp as MtpChoice, Plan};
use std::fmt::Write;

/// Longest draft that is measured.
const LONGEST_DRAFT: usize = 4;
/// Tokens generated for each prompt when acceptance is measured.
const TOKENS: usize = 32;

/// What a head's drafts are worth on some prompts.
#[derive(Clone, Debug)]
pub(crate) struct HeadReport {
    /// Mean number of drafted tokens kept in a pass, for draft lengths 1, 2, ….
    accepted: Vec<f64>,
    /// Cost of one drafted token as a share of one pass of the model: parameters read by each.
    draft_cost: f64,
    /// Every speculative text equalled plain greedy decoding.
    pub(crate) equal_to_greedy: bool,
    prompts: usize,
}

impl HeadReport {
    /// Runs the head on prompts with frozen models; nothing when there is no prompt.
    pub(crate) fn measure(model: &Model, mtp: &Mtp, prompts: &[Vec<u32>], stops: &[u32]) -> Option<Self> {
        if prompts.is_empty() {
            return None;
        }
        let stop = |id: u32| stops.contains(&id);
        let accepted = measure_acceptance(model, mtp, prompts, TOKENS, LONGEST_DRAFT, stop);
        let equal_to_greedy = prompts.iter().all(|prompt| {
            let mut plain: Vec<u32> = Generator::new(model, prompt).take(TOKENS).collect();
            if let Some(end) = plain.iter().position(|id| stop(*id)) {
                plain.truncate(end + 1);
            }
            (1..=LONGEST_DRAFT)
                .all(|length| speculative_greedy(model, mtp, prompt, TOKENS, length, stop).0 == plain)
        });
        let config = model.config();
        let head = config.vocab_size as f64 * config.hidden_size as f64;
        let draft_cost = (config.mtp_parameters() as f64 + head) / config.text_parameters() as f64;
        Some(Self { accepted, draft_cost, equal_to_greedy, prompts: prompts.len() })
    }

    /// Estimated speed-up of serving with drafts of `length` tokens over none.
    fn speedup(&self, length: usize) -> f64 {
        match length {
            0 => 1.0,
            _ => (1.0 + self.accepted[length - 1]) / (1.0 + length as f64 * self.draft_cost),
        }
    }

    /// The draft length with the best estimate; 0 when drafting does not pay.
    fn recommended(&self) -> usize {
        if !self.equal_to_greedy {
            return 0;
        }
        (0..=self.accepted.len()).max_by(|a, b| self.speedup(*a).total_cmp(&self.speedup(*b))).unwrap_or(0)
    }
}

/// What the page is about.
pub(crate) struct Served<'a> {
    pub(crate) plan: &'a Plan,
    /// Folder name of the model to serve, below `outputs/`.
    pub(crate) folder: &'a str,
    pub(crate) has_adapter: bool,
    pub(crate) before: Option<HeadReport>,
    pub(crate) last: Option<HeadReport>,
}

/// The page's text.
pub(crate) fn serve_page(served: &Served) -> String {
    let Served { plan, folder, has_adapter, before, last } = served;
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
    line("## vLLM\n".into());
    let speculative = if draft > 0 {
        format!(" \\\n  --speculative-config '{{\"method\": \"mtp\", \"num_speculative_tokens\": {draft}}}'")
    } else {
        String::new()
    };
    line(format!("```\nvllm serve ./{folder}{speculative}\n```\n"));
    line("Written for vLLM 0.33 or newer (the version whose model code this layout was checked against); older ones may know \
          neither the architecture nor the MTP head."
        .into());
    line("\n## transformers\n".into());
    line(format!(
        "```\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\nmodel = AutoModelForCausalLM.from_pretrained(\"./{folder}\")\n\
         tokenizer = AutoTokenizer.from_pretrained(\"./{folder}\")\n```\n\ntransformers ignores the MTP head."
    ));
    if *has_adapter {
        line("\n## The adapter alone (PEFT)\n".into());
        line(format!(
            "```\nfrom peft import PeftModel\nmodel = PeftModel.from_pretrained(base_model, \"./adapter\")\n```\n\n\
             `base_model` is `{}`, loaded with the class its config.json names.",
            plan.model.id
        ));
    }
    line("\n## The MTP head\n".into());
    match (plan.mtp, last) {
        (MtpChoice::None, _) => line("Left out, as the plan says.".into()),
        (_, None) => line("Not measured: the model has no MTP head, or no example was held out.".into()),
        (_, Some(last)) => {
            line(format!(
                "Drafted tokens kept in a pass (mean over {} held-out prompts, {TOKENS} tokens each, greedy; measured):\n",
                last.prompts
            ));
            line(acceptance_table(before.as_ref(), last));
            line(format!(
                "Recommended draft length: **{draft}**{}. The speed-up is an estimate: (1 + kept) / (1 + length × {:.2}), where {:.2} is \
                 the share of the model's parameters that one draft reads. Measure it on your server.",
                if draft == 0 { " (drafting does not pay)" } else { "" },
                last.draft_cost,
                last.draft_cost
            ));
            line(format!(
                "\nSpeculative text equal to plain greedy decoding on these prompts: {}.",
                if last.equal_to_greedy { "yes" } else { "NO; do not use the head and report this" }
            ));
        }
    }
    page
}

fn acceptance_table(before: Option<&HeadReport>, last: &HeadReport) -> String {
    let mut table = String::from("| draft length |");
    let which = if before.is_some() { "trained head" } else { "base's head" };
    if before.is_some() {
        table.push_str(" base's head |");
    }
    let _ = write!(table, " {which} | estimated speed-up |\n|---|---|---|");
    table.push_str(if before.is_some() { "---|\n" } else { "\n" });
    for length in 1..=last.accepted.len() {
        let _ = write!(table, "| {length} |");
        if let Some(before) = before {
            let _ = write!(table, " {:.2} |", before.accepted[length - 1]);
        }
        let _ = writeln!(table, " {:.2} | {:.2}× |", last.accepted[length - 1], last.speedup(length));
    }
    table
}
