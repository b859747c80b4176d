//! The chapter about facts written into weights, which `sparktune edit --measure` measures.

use sparktune_base::units::{count, counted};

use crate::day::date;
use crate::document::{Block, Section};
use crate::edits::{Drift, EditResults, EditRow, EditScores, MeasuredEdits, Share, Way};

const NONE: &str = "–";

/// The chapter, if something was measured.
pub(crate) fn edited_knowledge(results: &EditResults) -> Option<Section> {
    if results.measured.is_empty() {
        return None;
    }
    let mut scores = vec![
        "Efficacy: the prompts of the facts are answered with their targets, in whole words.",
        "Generalisation: so are the same prompts in other words, which no edit was computed from.",
        "Locality: prompts about something else are answered as before.",
        "Portability: questions whose answers follow from a fact are answered so.",
        "Loss: the relative change of the loss on held-out text.",
    ];
    if results.measured.iter().flat_map(|measured| &measured.rows).any(|row| row.suite.is_some()) {
        scores.push("A general suite: the share of its prompts that pass, whatever was answered before.");
    }
    let mut blocks = vec![
        Block::text(
            "QubGPU's “neural router” injects knowledge into weights without training. Here facts are written into the MLPs of a model, and judged by what the model then writes when it decodes greedily: never by the likelihood of a text that it is given, because most of what that promises is not there when a model writes by itself.",
        ),
        Block::List { items: scores.into_iter().map(str::to_owned).collect() },
        Block::text(
            "Shares have Wilson's 95 % interval and the number of prompts, of which those that stand or fall together count less; the loss has Student's interval over documents. The controls are LoRA on the same facts, and the fact in the prompt without any edit.",
        ),
    ];
    results.measured.iter().for_each(|measured| blocks.extend(one(measured)));
    Some(Section { id: "edited-knowledge", title: "Edited knowledge".into(), blocks })
}

fn one(measured: &MeasuredEdits) -> Vec<Block> {
    let layers: Vec<String> = measured.layers.iter().map(usize::to_string).collect();
    let place = if layers.is_empty() { String::new() } else { format!(" in layer {}", layers.join(", ")) };
    let known = match measured.known {
        0 => String::new(),
        known => format!(" {} that it knew were left out.", counted(known, "fact")),
    };
    let about = measured.about.as_deref().map_or(String::new(), |about| format!(" {about}"));
    let program = measured.program.as_deref().map_or(String::new(), |program| format!(" with {program}"));
    let mut blocks = vec![
        Block::text(format!(
            "{}: up to {} by {}{place}, measured on {}, {}{program}.{about}{known}",
            measured.model,
            counted(measured.facts, "fact"),
            measured.method,
            date(measured.created_us),
            measured.machine
        )),
        table(measured),
    ];
    if let Some(before) = &measured.suite_before {
        let suite = measured.suite_name.as_deref().unwrap_or("the general suite");
        blocks.push(Block::text(format!("Without an edit, the model passes {} of {suite}.", share(before))));
    }
    let failed =
        |row: &EditRow| Some(format!("{}: {}.", name(row), row.error.as_deref()?.trim_end_matches('.')));
    let failed: Vec<String> = measured.rows.iter().filter_map(failed).collect();
    if !failed.is_empty() {
        blocks.push(Block::List { items: failed });
    }
    blocks.push(Block::code("The command that repeats these figures:", measured.command.clone()));
    blocks
}

/// A column: its head, and its cell of a row; none if no row has it.
type Column<'a> = (&'a str, &'a dyn Fn(&EditRow) -> Option<String>);

fn table(measured: &MeasuredEdits) -> Block {
    let of = |pick: fn(&EditScores) -> Option<&Share>| {
        move |row: &EditRow| row.scores.as_ref().and_then(pick).map(share)
    };
    let [efficacy, generalisation] = [of(|s| s.efficacy.as_ref()), of(|s| s.generalisation.as_ref())];
    let [locality, portability] = [of(|s| s.locality.as_ref()), of(|s| s.portability.as_ref())];
    let loss = |row: &EditRow| row.scores.as_ref()?.loss.as_ref().map(drift);
    let suite = |row: &EditRow| row.suite.as_ref().map(share);
    let seconds = |row: &EditRow| row.seconds.map(|seconds| format!("{seconds:.1} s"));
    let suite_name = measured.suite_name.as_deref().unwrap_or("general suite");
    let columns: [Column; 7] = [
        ("efficacy", &efficacy),
        ("generalisation", &generalisation),
        ("locality", &locality),
        ("portability", &portability),
        ("loss", &loss),
        (suite_name, &suite),
        ("time", &seconds),
    ];
    let columns: Vec<Column> =
        columns.into_iter().filter(|(_, cell)| measured.rows.iter().any(|row| cell(row).is_some())).collect();
    let cells = |row: &EditRow| {
        let values = columns.iter().map(|(_, cell)| cell(row).unwrap_or_else(|| NONE.into()));
        std::iter::once(name(row)).chain(values).collect()
    };
    Block::Table {
        caption: format!("{}, {}: what was learned and what else moved", measured.model, measured.method),
        head: std::iter::once("").chain(columns.iter().map(|(head, _)| *head)).map(str::to_owned).collect(),
        rows: measured.rows.iter().map(cells).collect(),
    }
}

fn name(row: &EditRow) -> String {
    let facts = counted(row.count, "fact");
    match row.how {
        // Many facts share a patch, in which they are written at once.
        Way::Sequential if (2..row.count).contains(&row.patches) => {
            format!("{facts}, in {} patches one after the other", count(row.patches))
        }
        how => format!("{facts}, {}", how.in_words()),
    }
}

fn share(share: &Share) -> String {
    let Share { hits, of, value, low, high } = share;
    format!(
        "{:.1} % ({:.1} to {:.1}), {} of {}",
        100.0 * value,
        100.0 * low,
        100.0 * high,
        count(*hits),
        count(*of)
    )
}

fn drift(drift: &Drift) -> String {
    let signed = |value: f64| format!("{:+.2}", 100.0 * value).replace('-', "−");
    let range = drift
        .interval
        .map_or_else(String::new, |(low, high)| format!(" ({} to {})", signed(low), signed(high)));
    format!("{} %{range}", signed(drift.drift))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = r#"[{"created_us": 1764000000000000, "machine": "2 cores", "command": "prove.sh", "model": "proof",
        "about": "It knows 1,000 people.", "method": "memit", "layers": [4], "known": 3, "suite_before": {"hits": 8, "of": 8, "value": 1.0, "low": 0.6, "high": 1.0}, "rendering": "raw", "facts": 1000, "rows": [
        {"count": 100, "how": "batched", "seconds": 12.34, "suite": {"hits": 7, "of": 8, "value": 0.875, "low": 0.5, "high": 0.98},
         "scores": {"efficacy": {"hits": 96, "of": 100, "value": 0.96, "low": 0.902, "high": 0.984}, "generalisation": null,
         "locality": null, "portability": null, "loss": {"before": 2.0, "after": 2.01, "drift": -0.005, "interval": [-0.01, 0.002], "tokens": 9}}},
        {"count": 100, "how": "prompt", "scores": {"efficacy": {"hits": 1, "of": 1, "value": 1.0, "low": 0.2, "high": 1.0}}},
        {"count": 1000, "how": "sequential", "patches": 100, "scores": null, "error": "it ran out of time."}]}]"#;

    #[test]
    fn without_results_there_is_no_chapter_and_with_them_every_number_is_read() {
        assert!(edited_knowledge(&EditResults::from_json("[]").unwrap()).is_none());
        let section = edited_knowledge(&EditResults::from_json(MEASURED).unwrap()).unwrap();
        let tables: Vec<_> = section
            .blocks
            .iter()
            .filter_map(|block| match block {
                Block::Table { head, rows, .. } => {
                    Some((head.join(" | "), rows.iter().map(|row| row.join(" | "))))
                }
                _ => None,
            })
            .collect();
        let (head, rows) = tables.into_iter().next().unwrap();
        assert_eq!(head, " | efficacy | loss | general suite | time");
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                "100 facts, at once | 96.0 % (90.2 to 98.4), 96 of 100 | −0.50 % (−1.00 to +0.20) | 87.5 % (50.0 to 98.0), 7 of 8 | 12.3 s",
                "100 facts, the fact in the prompt instead | 100.0 % (20.0 to 100.0), 1 of 1 | – | – | –",
                "1,000 facts, in 100 patches one after the other | – | – | – | –",
            ]
        );
        let text = serde_json::to_string(&section).unwrap();
        for words in [
            "by memit in layer 4, measured on 2025-11-24, 2 cores. It knows 1,000 people. 3 facts that it knew were left out.",
            "passes 100.0 % (60.0 to 100.0), 8 of 8 of the general suite",
            "it ran out of time.",
            "prove.sh",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
