//! `edit --trace`: causal tracing, and its maps as text.

use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_edit::{Facts, LEAST_GAIN, Trace, TraceRequest, trace};
use sparktune_infer::Render;
use sparktune_tui::output::{columns, note, print, print_json};

use crate::edit_request::{FactsRequest, rendering};
use crate::failure::from_editing;
use crate::infer_worker::room;
use crate::interrupt::Interrupts;

/// The width of a map in columns, if it is not printed on a terminal.
const WIDTH: usize = 110;
/// The most columns of a token's text.
const LABEL: usize = 14;
/// Shares of what the noise took that came back, from nothing to all.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];

/// Traces the facts of a request, and prints a map of each.
///
/// # Errors
/// No fact has a subject, the model cannot be loaded, or it was interrupted.
pub(crate) fn trace_facts(
    request: &FactsRequest,
    facts: &Facts,
    render: Render,
    json: bool,
) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let mut last = None;
    let traces = trace(
        TraceRequest {
            model: &request.model,
            base: request.base.as_deref(),
            facts,
            rendering: rendering(request),
            render,
            room: room(),
        },
        &mut |fact, _, of| {
            if last != Some(fact) {
                note(&format!("tracing fact {} of {of}", fact + 1));
                last = Some(fact);
            }
            interrupts.count() == 0
        },
    )
    .map_err(from_editing)?;
    if json {
        print_json(&traces)?;
    } else {
        print(&traces_in_words(&traces, columns().unwrap_or(WIDTH)))?;
    }
    Ok(Exit::Done)
}

fn traces_in_words(traces: &[Trace], width: usize) -> String {
    let mut text = String::new();
    for trace in traces {
        text.push_str(&format!(
            "`{}` → `{}`: {:.1} %, and {:.1} % with noise on `{}`\n",
            escape(&trace.prompt),
            escape(&trace.answer),
            trace.clean * 100.0,
            trace.corrupted * 100.0,
            escape(&trace.subject)
        ));
        if trace.clean - trace.corrupted < 0.01 {
            text.push_str("the answer hardly depends on the subject, so the map says little\n");
        }
        let around = if trace.window == 1 { String::new() } else { format!(" of {} layers", trace.window) };
        for (name, map) in [
            ("hidden states".to_owned(), &trace.state),
            (format!("MLP outputs{around}"), &trace.mlp),
            (format!("attention or DeltaNet outputs{around}"), &trace.mixer),
        ] {
            text.push_str(&format!("\n{name} restored (% of the answer; columns are layers)\n"));
            text.push_str(&map_in_words(trace, map, width));
        }
        text.push('\n');
    }
    text.push_str(&where_to_edit(traces));
    text
}

/// Draws a map: a row for each token, a column for each layer. Shades say how much of what the noise took
/// came back, and numbers how likely the answer is, where there is room for them.
fn map_in_words(trace: &Trace, map: &[Vec<f64>], width: usize) -> String {
    const WITH_NUMBER: usize = 5;
    let layers = map.len();
    let has_numbers = LABEL + 3 + WITH_NUMBER * layers <= width;
    let mut text = String::new();
    let head: Vec<String> = (0..layers)
        .map(|layer| match (has_numbers, layer % 10) {
            (true, _) => format!("{layer:>WITH_NUMBER$}"),
            (false, 0) => format!("{layer:<10}"),
            (false, _) => String::new(),
        })
        .collect();
    text.push_str(&format!("{:LABEL$}   {}\n", "", head.concat().trim_end()));
    for (token, piece) in trace.tokens.iter().enumerate() {
        let [first, end] = trace.subject_tokens;
        let mark = if (first..end).contains(&token) { '*' } else { ' ' };
        let label: String = escape(piece).chars().take(LABEL).collect();
        text.push_str(&format!("{label:<LABEL$} {mark} "));
        for row in map {
            let shade = SHADES[shade(trace, row[token])];
            if has_numbers {
                text.push_str(&format!(" {shade}{:>3.0}", row[token] * 100.0));
            } else {
                text.push(shade);
            }
        }
        text.push('\n');
    }
    text
}

/// Returns which shade a probability has.
fn shade(trace: &Trace, probability: f64) -> usize {
    let taken = trace.clean - trace.corrupted;
    let back = if taken > 0.0 { (probability - trace.corrupted) / taken } else { 0.0 };
    (back.clamp(0.0, 1.0) * (SHADES.len() - 1) as f64).round() as usize
}

/// Returns the layer whose MLPs restore most at the last token of the subject, over all facts.
fn where_to_edit(traces: &[Trace]) -> String {
    let layers = traces.first().map_or(0, |trace| trace.mlp.len());
    let gain = |layer: usize| {
        let gains = traces.iter().map(|trace| trace.mlp[layer][trace.best.token] - trace.corrupted);
        gains.sum::<f64>() / traces.len() as f64
    };
    let Some(best) = (0..layers).max_by(|a, b| gain(*a).total_cmp(&gain(*b))) else { return String::new() };
    if gain(best) < LEAST_GAIN {
        return format!(
            "* is the subject. At its last token, no MLPs restore much (at most {:+.1} percentage points on average, around layer {best}), so this does not say where to edit\n",
            gain(best) * 100.0
        );
    }
    format!(
        "* is the subject. At its last token, the MLPs around layer {best} restore most ({:+.1} percentage points on average): try --layer {best}\n",
        gain(best) * 100.0
    )
}

#[cfg(test)]
mod tests {
    use sparktune_edit::Best;

    use super::*;

    fn traced() -> Trace {
        let map = vec![vec![0.1, 0.1], vec![0.9, 0.5], vec![0.3, 0.1]];
        Trace {
            fact: 0,
            prompt: "Ada is".into(),
            subject: "Ada".into(),
            answer: " old".into(),
            tokens: vec!["Ada".into(), "\u{1b} is".into()],
            subject_tokens: [0, 1],
            samples: 10,
            noise: 0.1,
            window: 1,
            clean: 0.9,
            corrupted: 0.1,
            state: map.clone(),
            mlp: map.clone(),
            mixer: map,
            best: Best { layer: 1, token: 0, restored: 1.0 },
        }
    }

    #[test]
    fn a_map_has_a_row_for_each_token_and_shades_and_numbers_for_each_layer() {
        let text = map_in_words(&traced(), &traced().mlp, 80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].trim(), "0    1    2");
        assert!(lines[1].starts_with("Ada            * ") && lines[1].ends_with("   10 █ 90 ░ 30"), "{text}");
        assert!(lines[2].contains("▒ 50") && !text.contains('\u{1b}'), "{text}");
        let narrow = map_in_words(&traced(), &traced().mlp, 20);
        assert!(narrow.lines().nth(1).unwrap().ends_with("*  █░"), "{narrow}");
        assert!(where_to_edit(&[traced()]).contains("try --layer 1"));
        let little = Trace { mlp: vec![vec![0.12, 0.1]; 3], ..traced() };
        let words = where_to_edit(&[little]);
        assert!(words.contains("at most +2.0 percentage") && !words.contains("--layer"), "{words}");
    }
}
