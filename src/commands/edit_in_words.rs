//! What `edit` prints: scores as a table, unexpected answers, and the patches of a
//! folder.

use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::units::counted;
use sparktune_edit::scores::{LossDrift, Scores, Share};
use sparktune_edit::{AboutPatch, Edited, Exported, Facts, Method, Stack, SuiteScore};
use sparktune_plan::adapter::MOST_VLLM_RANK;

/// The most answers that are shown.
const MOST_ANSWERS: usize = 10;
/// The most characters of a text that are shown.
const MOST_CHARACTERS: usize = 60;

/// What `list` prints of a patch.
#[derive(Debug, Serialize)]
pub(crate) struct Listed<'a> {
    #[serde(flatten)]
    pub(crate) about: &'a AboutPatch,
    pub(crate) id: String,
    /// Whether it is switched off.
    pub(crate) is_off: bool,
    /// Whether other patches lie below it than those that it was made on.
    pub(crate) is_displaced: bool,
    /// The later patch that answers one of its prompts in another way.
    pub(crate) overwritten_by: Option<&'a str>,
}

/// Returns what an edit came to.
pub(crate) fn edited_in_words(edited: &Edited, facts: &Facts) -> String {
    let mut text = format!(
        "{} of {} by {} in {}{}\n\n",
        counted(edited.facts as u64, "fact"),
        facts.file(),
        edited.method.name(),
        layers(&edited.layers),
        edited.why_layers.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    );
    text.push_str(&table(&edited.scores));
    let failed: Vec<_> = edited.answers.iter().filter(|answer| !answer.holds).collect();
    if !failed.is_empty() {
        text.push_str("\nunexpected answers:\n");
    }
    for answer in failed.iter().take(MOST_ANSWERS) {
        text.push_str(&format!(
            "  {}: `{}` → `{}`, before the edit `{}`\n",
            answer.fact.map_or_else(|| "held-out text".to_owned(), |fact| facts.place(fact)),
            shown(&answer.prompt),
            shown(&answer.after),
            shown(&answer.before)
        ));
    }
    if failed.len() > MOST_ANSWERS {
        text.push_str(&format!("  and {} more; --json has all\n", failed.len() - MOST_ANSWERS));
    }
    text.push_str(&not_learned(edited));
    if !edited.conflicts.is_empty() {
        text.push_str("\nconflicts:\n");
        edited.conflicts.iter().for_each(|conflict| text.push_str(&format!("  {}\n", conflict.words())));
    }
    let output = escape(&edited.output.display().to_string()).into_owned();
    text.push_str(&match &edited.refused {
        None => {
            let damage = edited.damage.as_ref();
            let damage = damage.map_or_else(String::new, |damage| format!(", kept although {damage}"));
            format!("\npatch {} is in {output}{damage}\n", edited.name)
        }
        Some(why) => {
            let fewer = if edited.facts > 1 { "Edit fewer facts, use" } else { "Use" };
            format!(
                "\nthe edit is not kept: {why}. {fewer} another method or layer, or keep it with --force\n"
            )
        }
    });
    text
}

/// `layer 0`, `layers 2 and 3`, `layers 1, 2 and 3`.
pub(crate) fn layers(layers: &[usize]) -> String {
    let names: Vec<String> = layers.iter().map(usize::to_string).collect();
    match &names[..] {
        [] => "no layer".to_owned(),
        [layer] => format!("layer {layer}"),
        [first @ .., last] => format!("layers {} and {last}", first.join(", ")),
    }
}

/// Returns what to do if the model does not say some of the facts.
fn not_learned(edited: &Edited) -> String {
    let Some(share) = edited.scores.efficacy.filter(|share| share.hits < share.of) else {
        return String::new();
    };
    let elsewhere = match edited.method {
        Method::Memory => "",
        Method::Ultraedit => "fewer facts or one at a time, ",
        Method::Rome | Method::Memit => {
            "another --layer (--trace shows where the model recalls the subjects), "
        }
    };
    let other = if edited.method == Method::Memory { "memit" } else { "memory" };
    let missed = share.of - share.hits;
    let of = counted(share.of as u64, "fact");
    format!(
        "\nnot learned: {missed} of {of}; try {elsewhere}other words for the prompt, or --method {other}\n"
    )
}

/// Returns scores as a table.
fn table(scores: &Scores) -> String {
    let Scores { efficacy, generalisation, locality, locality_of_text, portability, loss, suite } = scores;
    let others = match (locality_of_text, locality) {
        (true, _) => "held-out text is continued as before; no fact has neighbours",
        (false, Some(_)) => "other answers are unchanged",
        (false, None) => "other answers are unchanged; not judged, for no fact has neighbours",
    };
    let rows = [
        ("efficacy", "answers with the target", efficacy),
        ("generalisation", "also when asked in other words", generalisation),
        ("locality", others, locality),
        ("portability", "answers what follows from it", portability),
    ];
    let mut text = String::new();
    for (name, meaning, value) in rows {
        text.push_str(&format!("{name:<15} {:<34} {meaning}\n", share(value.as_ref())));
    }
    text.push_str(&format!("{:<15} {:<34} on held-out text\n", "loss", drift(loss.as_ref())));
    if let Some(SuiteScore { name, before, after }) = suite {
        let before = share(Some(before));
        text.push_str(&format!(
            "{:<15} {:<34} prompts of {} pass; before the edit {}\n",
            "suite",
            share(Some(after)),
            escape(name),
            before.trim_start()
        ));
    }
    text
}

fn share(share: Option<&Share>) -> String {
    let Some(Share { hits, of, value, low, high }) = share else { return "–".to_owned() };
    format!("{:5.1} % ({:.1} to {:.1}), {hits} of {of}", value * 100.0, low * 100.0, high * 100.0)
}

fn drift(loss: Option<&LossDrift>) -> String {
    let Some(LossDrift { drift, interval, .. }) = loss else { return "–".to_owned() };
    let percent = |value: f64| format!("{:+.2}", value * 100.0).replace('-', "−");
    let range =
        interval.map_or_else(String::new, |(low, high)| format!(" ({} to {})", percent(low), percent(high)));
    format!("{} %{range}", percent(*drift))
}

/// Returns the patches of a folder.
pub(crate) fn list_in_words(stack: &Stack, listed: &[Listed<'_>]) -> String {
    let base = escape(&stack.base.display().to_string()).into_owned();
    if listed.is_empty() {
        return format!("no patches; the base is {base}\n");
    }
    let mut text = format!("on {base}:\n");
    for Listed { about, id, is_off, is_displaced, overwritten_by } in listed {
        let scores = about.scores.clone().unwrap_or_default();
        let mut note = match (is_off, is_displaced) {
            (true, _) => "; switched off",
            (false, true) => "; made on top of other patches",
            (false, false) => "",
        }
        .to_owned();
        if let Some(other) = overwritten_by {
            note.push_str(&format!("; overwritten by {other}, so its scores are those of before"));
        }
        text.push_str(&format!(
            "  {} ({id}): {} by {} in {}; efficacy {}, locality {}, loss {}{note}\n",
            about.name,
            counted(about.facts.len() as u64, "fact"),
            about.method.name(),
            layers(&about.layers),
            share(scores.efficacy.as_ref()).trim_start(),
            share(scores.locality.as_ref()).trim_start(),
            drift(scores.loss.as_ref()),
        ));
    }
    text
}

/// Returns what was exported, and who accepts it.
pub(crate) fn exported_in_words(exported: &Exported) -> String {
    let mut text = format!(
        "{} as an adapter of rank {} on down_proj, {}\n",
        exported.patches.join(", "),
        exported.rank,
        layers(&exported.layers)
    );
    for adapter in &exported.adapters {
        text.push_str(&format!("  {}\n", escape(&adapter.display().to_string())));
    }
    if !exported.left_out.is_empty() {
        let names = exported.left_out.join(", ");
        text.push_str(&format!(
            "left out, because an adapter cannot hold corrections beside the weights: {names}\n"
        ));
    }
    text.push_str(&match exported.max_lora_rank {
        Some(most) => format!("vLLM serves it on the base with --enable-lora --max-lora-rank {most}\n"),
        None => {
            format!("vLLM serves adapters up to rank {MOST_VLLM_RANK}, so serve the edited folder itself\n")
        }
    });
    text.push_str("PEFT and llama.cpp's converter read any rank\n");
    text
}

/// Returns the start of a text of others as one line.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(MOST_CHARACTERS).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", escape(&start))
}
