//! Writes the white paper: which chapters it has, and the words of those that say what was measured where.

use sparktune_base::units::{bytes, count, counted, percent};

use crate::at_the_machine::at_the_machine;
use crate::chapters::{formats, loading, own_figures, training};
use crate::claims;
use crate::day::date;
use crate::document::{Block, Document, Section};
use crate::edited_knowledge::edited_knowledge;
use crate::edits::EditResults;
use crate::pipeline::Arrangement;
use crate::results::Results;
use crate::speeds::Speeds;
use crate::spread::Spread;
use crate::summary::{Summary, summaries};
use crate::table::answer_rows;
use crate::verdict::{Judged, Verdict, drop_difference, judge};

/// Writes the white paper about these results. The same results give the same document.
pub fn write(results: &Results, speeds: &Speeds, edits: &EditResults) -> Document {
    let judged = judge(results, speeds);
    let mut sections = vec![in_short(results, &judged), method(results), formats(results)];
    sections.push(loading(results));
    sections.extend(at_the_machine(speeds));
    sections.extend(Arrangement::ALL.into_iter().filter_map(|arrangement| training(results, arrangement)));
    sections.extend(answers(results));
    sections.extend(dropping(results));
    sections.extend(edited_knowledge(edits));
    sections.push(own_figures());
    sections.push(Section {
        id: "verdicts",
        title: "The verdict on each claim".into(),
        blocks: vec![
            Block::text(
                "Each claim stands with our figure for the same work, our figure counted as QubGPU counts, and whether it holds here. A speed-up holds if ours is at least nine tenths of the claimed one, and holds in part if it is smaller but more than chance and more than 2 %. Training throughput is judged against packed JSON Lines, because packing needs no token file.",
            ),
            Block::Verdicts { items: judged },
        ],
    });
    sections.push(repeat(results));
    Document {
        title: "Packets against JSON Lines: a training data pipeline, measured".into(),
        about: format!(
            "{} per training, {}, measured on {}, {}.",
            counted(results.settings.steps, "step"),
            counted(results.settings.seeds.len() as u64, "seed"),
            date(results.created_us),
            results.machine.words
        ),
        sections,
    }
}

fn in_short(results: &Results, judged: &[Judged]) -> Section {
    let number = |verdict| judged.iter().filter(|one| one.verdict == verdict).count() as u64;
    let find = |id: &str| judged.iter().find(|one| one.id == id);
    let figure = |id: &str| find(id).map_or("–".into(), |one| one.fair.clone());
    let items = vec![
        format!(
            "Loading alone, tokens per second: a token file is {} as fast as packed JSON Lines.",
            figure("loading-tokens")
        ),
        format!(
            "Share of a training step that waits for data, JSON Lines → token file: {}.",
            figure("waiting")
        ),
        format!(
            "Training with the same tokens in the same order: {} as fast as padded JSON Lines.",
            figure("throughput")
        ),
        format!("Final loss against JSON Lines: {}.", figure("loss")),
        format!(
            "Change of the held-out loss when {} of the examples are dropped: {}.",
            percent(results.settings.drop),
            figure("crc-drop")
        ),
    ];
    Section {
        id: "in-short",
        title: "In short".into(),
        blocks: vec![
            Block::text(
                "QubGPU claims that training data routed as packets, from a mapped file of token ids, trains faster and better than JSON Lines. sparktune has both ways in one program with one trainer, so that only the pipeline differs. This paper puts each claim beside what was measured.",
            ),
            Block::text(format!(
                "Of {}, {} here, {} in part, {}, and {} not be decided on this machine.",
                counted(judged.len() as u64, "claim"),
                with_verb(number(Verdict::Holds), "hold", "holds"),
                with_verb(number(Verdict::InPart), "hold", "holds"),
                with_verb(number(Verdict::DoesNotHold), "do not", "does not"),
                with_verb(number(Verdict::NotMeasured), "could", "could"),
            )),
            Block::List { items },
        ],
    }
}

fn with_verb(number: u64, many: &str, one: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Returns the range of the load averages of all measurements.
fn load(results: &Results) -> Option<Spread> {
    let loading = results.loading.iter().filter_map(|one| one.load_average);
    Spread::of(loading.chain(results.training.iter().filter_map(|one| one.load_average)))
}

fn method(results: &Results) -> Section {
    let (settings, data) = (&results.settings, &results.data);
    let mut blocks = vec![
        Block::text(format!(
            "Model: {}, {}. Data: {}, {} for training with {} tokens, of which the settings train {}, and {} held out.",
            results.model.name,
            results.model.method,
            data.name,
            counted(data.examples, "example"),
            count(data.tokens),
            count(data.target_tokens),
            count(data.eval_examples),
        )),
        Block::text(format!(
            "Each training makes {} optimizer steps of {} in rows of {} tokens, with {}. A seed decides the order of the examples and the adapters' initial values. Every training is a process of its own, which opens its file, makes the rows of each step when it needs them and without reading ahead, and takes the step. The pipelines of a seed follow each other, and each seed begins with another one, so that a slow minute of the machine does not always meet the same pipeline; ratios are taken seed by seed.",
            settings.steps,
            counted(settings.batch, "example"),
            settings.max_tokens,
            counted(settings.seeds.len() as u64, "seed"),
        )),
        Block::List {
            items: [Arrangement::Published, Arrangement::Fair, Arrangement::QubgpuSize]
                .map(|one| format!("{}: {}", one.name(), one.about()))
                .into(),
        },
        Block::text(
            "Intervals are 95 % intervals of the mean over the seeds by Student's distribution. The final loss is that of the last tenth of the steps, weighted by targets; the held-out loss is that of the eval set, on the tokens that the settings train, for all pipelines alike. Speeds leave the first step out. “Cold” means that the system was asked to forget the file before.",
        ),
    ];
    if let Some(load) = load(results) {
        let cores = f64::from(results.machine.cores);
        let says = if load.mean > cores + 1.0 {
            "so other programs took processor time, speeds are lower than on a quiet machine, and only ratios should be trusted"
        } else {
            "which leaves little room for other programs"
        };
        blocks.push(Block::text(format!(
            "While it was measured, the system had {:.1} running processes on average ({:.1} to {:.1}) for its {} cores, {says}.",
            load.mean, load.low, load.high, results.machine.cores
        )));
    }
    if settings.max_tokens as f64 != claims::ROW || settings.batch as f64 != claims::BATCH {
        blocks.push(Block::text(format!(
            "QubGPU's batches have {} rows of {} tokens. The shorter the rows, the less of them is padding, and the less it changes to count it.",
            claims::BATCH,
            claims::ROW
        )));
    }
    if data.cut_examples > 0 {
        blocks.push(Block::text(format!(
            "{} longer than a row; every pipeline cuts them there.",
            with_verb(data.cut_examples, "examples are", "example is")
        )));
    }
    if !results.notes.is_empty() {
        blocks.push(Block::List { items: results.notes.clone() });
    }
    Section { id: "method", title: "How it was measured".into(), blocks }
}

fn answers(results: &Results) -> Option<Section> {
    if results.quality.is_empty() {
        return None;
    }
    let mut blocks = vec![Block::text(
        "Every trained model and the untuned base answered the prompts of a suite, one at a time, and checks decided. Passed answers are summed over the seeds.",
    )];
    let has_run = results.quality.iter().any(|quality| quality.code_ran);
    if !has_run {
        blocks.push(Block::text(
            "Code in the answers was not run, so the checks that need that did not count.",
        ));
    }
    for arrangement in Arrangement::ALL {
        let is_measured = |one: &Summary| !one.scores.is_empty();
        if summaries(results, arrangement).iter().any(is_measured) {
            let table = answer_rows(results, arrangement);
            let caption = format!("Answers, {}", arrangement.name());
            blocks.push(Block::Table { caption, head: table.head, rows: table.rows });
        }
    }
    Some(Section { id: "answers", title: "Quality and speed of the answers".into(), blocks })
}

fn dropping(results: &Results) -> Option<Section> {
    let row = |arrangement: Arrangement| {
        let Spread { mean, low, high, half_width, count } = drop_difference(results, arrangement)?;
        let interval =
            half_width.map_or("–".into(), |half| format!("{:+.4} to {:+.4}", mean - half, mean + half));
        let cells = [format!("{mean:+.4}"), interval, format!("{low:+.4} to {high:+.4}"), count.to_string()];
        let cells = cells.into_iter().map(|cell| cell.replace('-', "−"));
        Some(std::iter::once(arrangement.name().to_owned()).chain(cells).collect::<Vec<_>>())
    };
    let rows: Vec<_> = [Arrangement::Published, Arrangement::Fair].into_iter().filter_map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let head = ["", "mean, nats", "95 % interval", "seeds from, to", "seeds"].map(str::to_owned).into();
    let blocks = vec![
        Block::text(format!(
            "QubGPU explains that dropping {} of the packets is a regularisation that damaged packets provide. No packet is damaged here: examples are left out at random, which is subsampling. A training of {} steps then sees other examples, of which there are fewer in an epoch. Whether that helps is a question about the held-out loss, and the seeds answer it.",
            percent(results.settings.drop),
            results.settings.steps
        )),
        Block::Table {
            caption: "Held-out loss with dropping, less that without, seed by seed".into(),
            head,
            rows,
        },
    ];
    Some(Section { id: "dropping", title: "Dropping examples is subsampling".into(), blocks })
}

fn repeat(results: &Results) -> Section {
    let blocks = vec![
        Block::code("All figures of this paper:", results.command.clone()),
        Block::code(
            "The paper from a file of results, and from those that come with the program:",
            "sparktune bench white-paper --results results.json --output white-paper.html\nsparktune bench white-paper --output white-paper.html",
        ),
        Block::code(
            "Loading beside a memory copy of the same run, and a token file's packets one by one:",
            "sparktune bench loading --peers python3 --output loading.json\nsparktune bench white-paper --loading loading.json --output white-paper.html\nsparktune verify train.qubgpu",
        ),
        Block::text(format!(
            "Measurements that have ended are kept, so the same command continues after an interruption. Results of {}; the file of results has {}.",
            results.program,
            bytes(results.to_json().len() as u64)
        )),
    ];
    Section { id: "repeat", title: "The commands that repeat the figures".into(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Chart;
    use crate::testing::{results, speeds};

    #[test]
    fn the_same_results_give_the_same_paper_and_other_results_other_numbers() {
        let results = results();
        assert_eq!(
            write(&results, &speeds(), &EditResults::default()),
            write(&results, &speeds(), &EditResults::default())
        );
        let mut slower = results.clone();
        for training in &mut slower.training {
            training.step_ms.iter_mut().for_each(|ms| *ms *= 3.0);
        }
        assert_ne!(
            write(&results, &speeds(), &EditResults::default()),
            write(&slower, &speeds(), &EditResults::default())
        );
    }

    #[test]
    fn the_paper_has_all_chapters_a_verdict_per_claim_and_the_command() {
        let paper = write(&results(), &speeds(), &EditResults::default());
        let ids: Vec<&str> = paper.sections.iter().map(|section| section.id).collect();
        let expected = [
            "in-short",
            "method",
            "formats",
            "loading",
            "machine-speed",
            "published",
            "fair",
            "answers",
            "dropping",
            "own-figures",
            "verdicts",
            "repeat",
        ];
        assert_eq!(ids, expected);
        let json = serde_json::to_string(&paper).unwrap();
        assert!(json.contains("bench pipelines --demo") && json.contains("2025-11-24"), "{json}");
        assert!(!json.contains("NaN") && !json.contains("null"), "{json}");
    }

    #[test]
    fn every_line_of_a_chart_has_a_band_at_each_point() {
        for section in write(&results(), &speeds(), &EditResults::default()).sections {
            for block in section.blocks {
                let Block::Chart(Chart { lines, title, .. }) = block else { continue };
                assert!(!lines.is_empty(), "{title}");
                for line in lines {
                    assert!(
                        line.points.len() > 1 && line.points.len() == line.band.len(),
                        "{title}: {line:?}"
                    );
                }
            }
        }
    }
}
