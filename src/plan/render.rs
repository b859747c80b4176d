//! Formats the plan as plain text: the table of `plan --explain`, memory, time and the cost curve.
//!
//! Pure: it returns text and must not know a terminal. Text from users, data or models is escaped here.

use std::fmt::Write as _;

use sparktune_base::choices::PackStrategy;
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, count, duration, percent, tokens_per_s};

use crate::answer::Origin;
use crate::memory::Memory;
use crate::plan::{Advice, DurationPlan, Explained, Method, Plan, RateBasis, Time};

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Breaks lines that are wider than `width` columns; what follows stands as far to the right as the line's
/// own text, or below the values of the summary.
pub fn fitted(text: &str, width: usize) -> String {
    let mut fitted = String::new();
    for line in text.lines() {
        if line.chars().count() <= width {
            fitted.push_str(line);
            fitted.push('\n');
            continue;
        }
        let spaces = line.len() - line.trim_start().len();
        let indent = if spaces == 0 { 6 } else { spaces };
        for (at, part) in wrap(line, width.saturating_sub(indent).max(24)).iter().enumerate() {
            let _ = writeln!(fitted, "{:1$}{part}", "", if at == 0 { spaces } else { indent });
        }
    }
    fitted
}

/// Returns the table of `plan --explain`: value, origin and reason of every setting, wrapped to `width`
/// columns. Where no room is left beside the values, each reason stands below its value.
pub fn explain(plan: &Plan, width: usize) -> String {
    /// The least width of a column of reasons, and how far they are indented below the values.
    const REASON: usize = 24;
    const INDENT: usize = 4;
    let Some(advice) = &plan.advice else { return "this plan contains no reasons\n".to_owned() };
    let longest = |column: fn(&Explained) -> usize, most: usize| {
        advice.explain.iter().map(column).max().unwrap_or(0).min(most)
    };
    let key = longest(|row| row.key.chars().count(), 28);
    let value = longest(|row| row.value.chars().count(), 22);
    let origin = Origin::Environment.word().len();
    let beside = key + value + origin + 6;
    let is_below = width < beside + REASON;
    let indent = if is_below { INDENT } else { beside };
    let room = width.saturating_sub(indent).max(REASON);
    let mut text = String::new();
    let head = format!("{:key$}  {:value$}  {:origin$}", "what", "value", "origin");
    let _ = if is_below {
        writeln!(text, "{}\n{:indent$}reason", head.trim_end(), "")
    } else {
        writeln!(text, "{head}  reason")
    };
    for row in &advice.explain {
        let shown = if row.value.is_empty() { "–".into() } else { escape(&row.value) };
        let reason = wrap(&escape(&row.reason), room);
        // A value too wide for its column, such as a path, has a line of its own, so that the columns stay
        // aligned.
        let first = if shown.chars().count() > value {
            let _ = writeln!(text, "{:key$}  {shown}", row.key);
            format!("{:key$}  {:value$}", "", "")
        } else {
            format!("{:key$}  {shown:value$}", row.key)
        };
        let mut lines = reason.iter();
        let line = if is_below { None } else { lines.next() }.map_or("", String::as_str);
        let _ = writeln!(text, "{}", format!("{first}  {:origin$}  {line}", row.origin.word()).trim_end());
        for line in lines {
            let _ = writeln!(text, "{:indent$}{line}", "");
        }
    }
    text
}

/// Draws the memory as a bar of `width` cells with a legend of one part per line. A cell shows the part that
/// covers most of it.
pub fn memory_bar(memory: &Memory, width: usize) -> String {
    const MARKS: [char; 8] = ['W', 'A', 'G', 'O', 'x', 'L', 'r', 'E'];
    let width = width.clamp(10, 200);
    let whole = memory.available_bytes.max(memory.needed_bytes()).max(1) as f64;
    let mut bar = String::new();
    for cell in 0..width {
        let middle = (cell as f64 + 0.5) / width as f64 * whole;
        let mut sum = 0.0;
        let mark = memory.parts().iter().zip(MARKS).find_map(|((_, n), mark)| {
            sum += *n as f64;
            (middle < sum).then_some(mark)
        });
        bar.push(mark.unwrap_or('·'));
    }
    let mut text = format!(
        "memory {} of {} {}\n[{bar}]\n",
        bytes(memory.needed_bytes()),
        bytes(memory.available_bytes),
        memory.budget
    );
    for ((name, n), mark) in memory.parts().iter().zip(MARKS).filter(|((_, n), _)| *n > 0) {
        let _ = writeln!(text, "  {mark} {name:<13}{:>9}", bytes(*n));
        if *name == "reserve" && !memory.reserve_reason.is_empty() {
            let _ = writeln!(text, "    {}", escape(&memory.reserve_reason));
        }
    }
    let _ = writeln!(text, "  · {:<13}{:>9}", "free", bytes(memory.spare_bytes()));
    text
}

/// Describes duration, speed and their basis in two lines.
pub fn eta(time: &Time) -> String {
    let Some((total, rate)) = time.total_s().zip(time.tokens_per_s) else {
        return format!("time  unknown until the first steps have been measured\n      {}\n", time.formula);
    };
    let label = match time.basis {
        RateBasis::MeasuredHere => "measured here",
        RateBasis::Measured => "measured on a device of this kind, not here yet",
        RateBasis::OriginalRecipe => "measured by the Qwen3.5 recipe, not here yet",
        RateBasis::Estimate | RateBasis::Unknown => "estimate",
    };
    let rate = tokens_per_s(rate);
    format!("time  {} at {rate} tokens/s ({label})\n      {}\n", duration(total), escape(&time.formula))
}

/// Returns the cost curve as a table, in which the chosen pack length (`>`) and the recipe's are marked.
pub fn cost_curve(plan: &Plan) -> String {
    let Some(advice) = &plan.advice else { return String::new() };
    let mut text = "  pack length    speed   empty      packs   longer     memory\n".to_owned();
    for point in &advice.curve {
        let mark = if point.pack_length == plan.pack.length { '>' } else { ' ' };
        let notes = [
            (point.pack_length == advice.recipe_pack_length, "the recipe's rule"),
            (point.recompute, "recompute"),
            (!point.fits, "does not fit"),
        ];
        let notes: Vec<&str> = notes.iter().filter(|(on, _)| *on).map(|(_, note)| *note).collect();
        let line = format!(
            "{mark} {:>11} {:>8} {:>7} {:>10} {:>8} {:>10}  {}",
            count(point.pack_length.into()),
            percent(point.tokens_per_s_relative),
            percent(point.waste),
            count(point.rows),
            count(point.own_rows),
            bytes(point.needed_bytes),
            notes.join(", ")
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Counts epochs: `3 epochs`, `1 epoch`, `0.5 epochs`.
pub fn counted_epochs(epochs: f64) -> String {
    format!("{epochs} epoch{}", if epochs == 1.0 { "" } else { "s" })
}

/// Describes the number of epochs: `about 39 per epoch, 3 epochs`, or the fraction at which `max_steps` ends
/// the run. The steps are counted when the examples are packed.
pub fn epochs_in_words(time: &Time, duration: &DurationPlan) -> String {
    let an_epoch = count(time.steps_per_epoch);
    let whole = DurationPlan::of_epochs(duration.epochs).steps(time.steps_per_epoch);
    let epochs = counted_epochs(duration.epochs);
    if time.steps >= whole {
        return format!("about {an_epoch} per epoch, {epochs}");
    }
    let ends = time.steps as f64 / time.steps_per_epoch.max(1) as f64;
    // Two digits below a tenth, so that a short trial is not shown as zero epochs.
    let digits = if ends < 0.1 { 2 } else { 1 };
    format!("about {an_epoch} per epoch; max_steps ends the run after about {ends:.digits$} of {epochs}")
}

/// What a run of `head` trains.
const OF_HEAD: &str = "only the MTP head, on the finished text model";

/// Summarises the plan in a few lines, for `--dry-run` and the head of a run.
pub fn summary(plan: &Plan) -> String {
    let alone = plan.is_of_head_alone();
    let plan = &if alone { plan.for_head() } else { plan.clone() };
    let method = match plan.method {
        _ if alone => OF_HEAD.to_owned(),
        Method::Lora { rank, alpha, rslora, target_modules, dropout, .. } => {
            let rslora = if rslora { ", rank-stabilised" } else { "" };
            let targets =
                if target_modules.is_all() { String::new() } else { format!(", on {target_modules}") };
            let dropout = if dropout > 0.0 { format!(", dropout {dropout}") } else { String::new() };
            format!("LoRA, rank {rank}, alpha {alpha}{rslora}{targets}{dropout}")
        }
        Method::Full => "full fine-tuning".to_owned(),
        Method::Head => OF_HEAD.to_owned(),
    };
    let mut text = format!(
        "model {}\n{}how   {method}, on {}{}{}\npacks {} tokens each, of {}; {} per optimizer step{}\n",
        escape(&plan.model.id),
        plan.model.from.as_ref().map_or(String::new(), |from| format!(
            "from  the weights of {}, which the loss before the first step belongs to\n",
            escape(from)
        )),
        plan.device,
        if plan.recompute && !alone {
            ", with recompute (layers are computed twice to save memory)"
        } else {
            ""
        },
        if plan.fp8 { ", linear layers in fp8 (not lossless)" } else { "" },
        count(plan.pack.length.into()),
        match plan.pack.strategy {
            PackStrategy::Bfd => "several whole examples (bfd)",
            PackStrategy::Stream => "concatenated examples, cut at the end (stream)",
        },
        count(plan.batch.packs_per_step()),
        plan.pack
            .mtp_length
            .filter(|_| !alone)
            .map_or(String::new(), |length| format!("; {} for the MTP head", count(length.into()))),
    );
    if let Some(Advice { memory, time, sets, .. }) = &plan.advice {
        for set in sets {
            let _ = writeln!(text, "data  {}: {}", escape(&set.name), set.in_words());
        }
        let _ = writeln!(
            text,
            "steps {}{} ({}), {} tokens each",
            plan.duration.about(time.steps),
            count(time.steps),
            epochs_in_words(time, &plan.duration),
            count(time.tokens_per_step)
        );
        text.push_str(&eta(time));
        text.push_str(&memory_bar(memory, 60));
    }
    for warning in plan.warnings() {
        let _ = writeln!(text, "warning: {}", escape(warning));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_the_width_and_what_follows_stands_below_the_text() {
        let text = "run   here\ntime  18 s at 8,015 tokens/s (estimate)\n      78,658 tokens ÷ 8,015 tokens/s + 1 s\n";
        let fits = fitted(text, 30);
        assert_eq!(
            fits,
            "run   here\ntime 18 s at 8,015\n      tokens/s (estimate)\n      78,658 tokens ÷ 8,015\n      tokens/s + 1 s\n"
        );
        assert_eq!(fitted(text, 80), text);
    }

    #[test]
    fn the_memory_bar_shows_each_part_by_its_share() {
        let memory = Memory {
            weights: 40_000_000_000,
            activations: 20_000_000_000,
            available_bytes: 100_000_000_000,
            budget: "free".into(),
            ..Memory::default()
        };
        let bar = memory_bar(&memory, 10);
        assert!(bar.contains("[WWWWxx····]"), "{bar}");
        assert!(bar.contains("free           40.0 GB"), "{bar}");
        assert!(!bar.contains("gradients"), "{bar}");
    }
}
