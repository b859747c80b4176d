//! The chapters of the white paper with formats, tables and charts.

use sparktune_base::units::{bytes, count};

use crate::claims::{self, BATCH, Figure, ROW, STEPS};
use crate::document::{Block, Chart, Line, Section};
use crate::pipeline::{Arrangement, Pipeline};
use crate::results::{Results, Training};
use crate::summary::summaries;
use crate::table::{loading_rows, training_rows};
use crate::verdict::three;

/// Bytes around the payload of a v1 packet, and of a token in it.
const V1_OVERHEAD: u64 = 8;
/// Bytes before the tokens of a v2 packet, and what its size is a multiple of.
const V2_HEADER: u64 = 64;
const TOKEN: u64 = 4;

fn v2_packet(tokens: u64) -> u64 {
    V2_HEADER + (TOKEN * tokens + tokens.div_ceil(8)).next_multiple_of(V2_HEADER)
}

pub(crate) fn formats(results: &Results) -> Section {
    let row = |tokens: u64| {
        let payload = TOKEN * tokens;
        let over = |bytes: u64| format!("{:.1} %", 100.0 * (bytes - payload) as f64 / payload as f64);
        vec![
            format!("{} tokens", count(tokens)),
            count(payload),
            count(payload + V1_OVERHEAD),
            over(payload + V1_OVERHEAD),
            count(v2_packet(tokens)),
            over(v2_packet(tokens)),
        ]
    };
    let data = &results.data;
    let per_token = |bytes: u64| format!("{:.2}", bytes as f64 / data.tokens.max(1) as f64);
    let sizes = [
        ("JSON Lines", data.jsonl_bytes),
        ("v1 packets, no mask", data.v1_bytes),
        ("token file, v2", data.token_file_bytes),
    ];
    let blocks = vec![
        Block::text(
            "QubGPU's packet (v1) is sent and read whole. The length has 16 bits, so a packet has at most 16,383 tokens; numbers are big-endian, so today's processors have to swap the bytes of each token; the checksum has 16 bits. QubGPU's figure of 8 bytes of overhead is right.",
        ),
        Block::code(
            "A v1 packet",
            "┌──────┬─────┬─────┬─────┬────────┬──────────────────┬────────┐\n│ 0xAA │ SRC │ DST │ TYP │ LEN    │ PAYLOAD          │ CRC-16 │\n│ 1 B  │ 1 B │ 1 B │ 1 B │ 2 B BE │ 4 B BE per token │ 2 B BE │\n└──────┴─────┴─────┴─────┴────────┴──────────────────┴────────┘",
        ),
        Block::text(
            "This program's token file (v2) is read in place: little-endian, each packet at a multiple of 64 bytes, with a bit per token that says whether it is trained, CRC-32C, the source line, and an index at the end. A damaged packet is never dropped in silence; it stops the reading, and the message names its source line.",
        ),
        Block::code(
            "A v2 packet",
            "┌───────────────────────────────────┬──────────────────┬───────────────┬─────────┐\n│ header with CRC-32C, source, hash │ 4 B LE per token │ 1 bit a token │ to 64 B │\n│ 64 B                              │                  │               │         │\n└───────────────────────────────────┴──────────────────┴───────────────┴─────────┘",
        ),
        Block::Table {
            caption: "Bytes of a packet, by the length of the example".into(),
            head: ["", "payload", "v1", "v1 over", "v2", "v2 over"].map(str::to_owned).into(),
            rows: [16, 64, 128, 512, 4096].map(row).into(),
        },
        Block::Table {
            caption: format!("The {} training examples of this paper on disk", count(data.examples)),
            head: ["", "size", "bytes per token"].map(str::to_owned).into(),
            rows: sizes.map(|(name, size)| vec![name.to_owned(), bytes(size), per_token(size)]).into(),
        },
    ];
    Section { id: "formats", title: "The formats".into(), blocks }
}

pub(crate) fn loading(results: &Results) -> Section {
    let mut blocks = vec![Block::text(
        "Loading without a model: rows are made as a training would make them, and thrown away. JSON Lines are tokenised in each pass, as they are at each step of a training.",
    )];
    for arrangement in Arrangement::ALL {
        let table = loading_rows(results, arrangement);
        if table.head.len() > 1 {
            let caption = format!("Loading alone, {}", arrangement.name());
            blocks.push(Block::Table { caption, head: table.head, rows: table.rows });
        }
    }
    Section { id: "loading", title: "Loading alone".into(), blocks }
}

/// The chapter of an arrangement in which something was trained.
pub(crate) fn training(results: &Results, arrangement: Arrangement) -> Option<Section> {
    let is_trained = summaries(results, arrangement).iter().any(|one| one.wall_s.is_some());
    if !is_trained {
        return None;
    }
    let table = training_rows(results, arrangement);
    let mut blocks = vec![
        Block::text(arrangement.about()),
        Block::Table {
            caption: format!("Training, {}: means over the seeds with 95 % intervals", arrangement.name()),
            head: table.head,
            rows: table.rows,
        },
    ];
    if arrangement != Arrangement::QubgpuSize {
        let positions: fn(&Training, u64) -> f64 = |_, step| step as f64;
        let tokens: fn(&Training, u64) -> f64 =
            |one, step| one.targets.iter().take(step as usize).sum::<u64>() as f64;
        let seconds: fn(&Training, u64) -> f64 =
            |one, step| one.step_ms.iter().take(step as usize).sum::<f64>() / 1e3;
        for (by, axis, x) in [
            ("by step", "steps", positions),
            ("by token", "trained tokens", tokens),
            ("by second", "seconds of training", seconds),
        ] {
            blocks.extend(held_out_chart(results, arrangement, by, axis, x));
        }
        blocks.extend(training_chart(results, arrangement));
    }
    let title = match arrangement {
        Arrangement::Published => "Training as QubGPU arranges it",
        Arrangement::Fair => "Training with the same tokens in the same order",
        Arrangement::QubgpuSize => "Training at QubGPU's size",
    };
    Some(Section { id: arrangement.name(), title: title.into(), blocks })
}

/// Returns the mean of columns that may have gaps, with the smallest and the largest value.
fn gathered(columns: &[Vec<Option<f64>>], at: usize) -> Option<(f64, [f64; 2])> {
    let values: Vec<f64> = columns.iter().filter_map(|column| column.get(at).copied().flatten()).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (!values.is_empty()).then_some((mean, [low, high]))
}

fn colour(pipeline: Pipeline) -> usize {
    Pipeline::ALL.iter().position(|one| *one == pipeline).unwrap_or(0)
}

/// The held-out loss over something that grows with the steps. Its value is the mean over the seeds.
fn held_out_chart(
    results: &Results,
    arrangement: Arrangement,
    by: &str,
    axis: &str,
    x: fn(&Training, u64) -> f64,
) -> Option<Block> {
    let line = |pipeline: &Pipeline| {
        let found = results.trainings(arrangement, *pipeline);
        let steps: Vec<u64> = found.first()?.evaluations.iter().map(|one| one.step).collect();
        let losses: Vec<Vec<Option<f64>>> =
            found.iter().map(|one| one.evaluations.iter().map(|each| each.loss).collect()).collect();
        let (mut points, mut band) = (Vec::new(), Vec::new());
        for (at, step) in steps.iter().enumerate() {
            let (mean, range) = gathered(&losses, at)?;
            let places = found.iter().map(|one| x(one, *step)).sum::<f64>() / found.len() as f64;
            points.push([places, mean]);
            band.push(range);
        }
        let name = pipeline.name().to_owned();
        (points.len() > 1).then(|| Line { name, colour: colour(*pipeline), points, band })
    };
    let lines: Vec<Line> = arrangement.pipelines().iter().filter_map(line).collect();
    (!lines.is_empty()).then(|| {
        Block::Chart(Chart {
            title: format!("Held-out loss {by}, {}", arrangement.name()),
            x: axis.to_owned(),
            y: "nats per token".to_owned(),
            lines,
        })
    })
}

/// The training loss over steps, with the mean of a few steps at each point.
fn training_chart(results: &Results, arrangement: Arrangement) -> Option<Block> {
    let line = |pipeline: &Pipeline| {
        let found = results.trainings(arrangement, *pipeline);
        let steps = found.first()?.loss.len();
        let width = steps.div_ceil(30).max(1);
        let means = |one: &&Training| {
            one.loss
                .chunks(width)
                .map(|chunk| chunk.iter().copied().sum::<Option<f64>>().map(|sum| sum / chunk.len() as f64))
                .collect::<Vec<_>>()
        };
        let losses: Vec<Vec<Option<f64>>> = found.iter().map(means).collect();
        let (mut points, mut band) = (Vec::new(), Vec::new());
        for at in 0..steps.div_ceil(width) {
            let (mean, range) = gathered(&losses, at)?;
            points.push([((at + 1) * width).min(steps) as f64, mean]);
            band.push(range);
        }
        let name = pipeline.name().to_owned();
        (points.len() > 1).then(|| Line { name, colour: colour(*pipeline), points, band })
    };
    let lines: Vec<Line> = arrangement.pipelines().iter().filter_map(line).collect();
    (!lines.is_empty()).then(|| {
        Block::Chart(Chart {
            title: format!("Training loss by step, {}", arrangement.name()),
            x: "steps".to_owned(),
            y: "nats per token".to_owned(),
            lines,
        })
    })
}

/// What follows from QubGPU's own figures, by arithmetic.
pub(crate) fn own_figures() -> Section {
    let Figure { jsonl, ndp, drop } = claims::TRAINING;
    let wall = claims::WALL;
    let row_tokens = |speed: f64, seconds: f64| speed * seconds / STEPS;
    let (of_jsonl, of_ndp) = (row_tokens(jsonl, wall.jsonl), row_tokens(ndp, wall.ndp));
    let per_sample = |tokens: f64, samples: f64| tokens / samples;
    let (loaded, samples) = (claims::LOADING_TOKENS, claims::LOADING_SAMPLES);
    let number = |value: f64| count(value.round() as u64);
    let rows = [
        ("tokens of a training step (speed × time ÷ 200)", number(of_jsonl), number(of_ndp)),
        (
            "tokens of a loaded sample (tokens/s ÷ samples/s)",
            number(per_sample(loaded.jsonl, samples.jsonl)),
            number(per_sample(loaded.ndp, samples.ndp)),
        ),
        ("steps per second (200 ÷ time)", three(STEPS / wall.jsonl), three(STEPS / wall.ndp)),
    ];
    let items = vec![
        format!(
            "Both sides train {BATCH} rows of {ROW} tokens at a time. {} tokens a step are {} full batches: of the token file every position is counted, padding included. Of the JSON Lines {} tokens a step are counted, which are their real tokens. One side is counted {} × as high as the other.",
            number(of_ndp),
            number(of_ndp / (BATCH * ROW)),
            number(of_jsonl),
            three(of_ndp / of_jsonl),
        ),
        format!(
            "The same happens in loading: {} tokens a sample on one side are the length of a row, {} on the other are a text. Counted alike, {} × as many tokens per second become {} ×, which is the ratio of samples.",
            number(per_sample(loaded.ndp, samples.ndp)),
            number(per_sample(loaded.jsonl, samples.jsonl)),
            three(loaded.ratio()),
            three(samples.ratio()),
        ),
        format!(
            "The speed-up that the same 200 steps show is {} × ({} s against {} s), and {} × with dropping.",
            three(wall.jsonl / wall.ndp),
            wall.jsonl,
            wall.ndp,
            three(wall.jsonl / wall.drop)
        ),
        format!(
            "{} × is {} divided by {}. It is quoted with {}, which would be {} ×.",
            claims::TITLE,
            number(ndp),
            number(jsonl),
            number(drop),
            three(drop / jsonl)
        ),
        format!(
            "With {} of a step spent on data, no faster file can shorten the training by more than that, and wall time falls by {}. Something else differs too.",
            crate::verdict::fine_percent(claims::WAIT.jsonl),
            crate::verdict::fine_percent(1.0 - wall.ndp / wall.jsonl)
        ),
    ];
    let blocks = vec![
        Block::text("These numbers are QubGPU's; nothing of ours enters."),
        Block::Table {
            caption: "What QubGPU's figures say about its comparison".into(),
            head: ["", "JSON Lines", "token file"].map(str::to_owned).into(),
            rows: rows.map(|(what, jsonl, ndp)| vec![what.to_owned(), jsonl, ndp]).into(),
        },
        Block::List { items },
    ];
    Section { id: "own-figures", title: "What QubGPU's own figures say".into(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qubgpus_figures_contain_eight_full_batches_on_one_side() {
        let text = serde_json::to_string(&own_figures()).unwrap();
        for expected in ["8,194 tokens a step are 8 full batches", "4.90 × as high", "1.13 ×", "5.94 ×"] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
    }

    #[test]
    fn packets_have_the_sizes_of_the_formats() {
        // 100 tokens: 400 bytes and 13 of mask, which is 448 with padding, behind a header of 64.
        assert_eq!((v2_packet(100), v2_packet(16)), (512, 192));
    }
}
