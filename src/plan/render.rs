//! The plan as plain text: the table of `plan --explain`, memory, time, the cost curve, and how figures are written.
//!
//! Pure: text out, no terminal asked. Words that come from users, data or models are escaped here.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::answers::Origin;
use crate::memory::Memory;
use crate::plan::{Advice, DurationPlan, Explained, Method, Plan, RateBasis, Time};

/// Bytes with a decimal unit: `4.4 GB`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "kB", "MB", "GB", "TB", "PB"] {
        if value < 999.5 || unit == "PB" {
            let digits = usize::from(unit != "B" && value < 99.95);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    unreachable!("the last unit returns")
}

/// A whole number with thousands separated: `24,315`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn scaled(value: f64, units: [&str; 4]) -> String {
    let mut value = value;
    for unit in &units[..3] {
        if value < 999.5 {
            let digits = if value < 9.995 && unit != &units[0] {
                2
            } else {
                usize::from(value < 99.95 && unit != &units[0])
            };
            return format!("{value:.digits$}{unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.2}{}", units[3])
}

/// A speed without its unit: `3,568`, `0.42`.
pub fn tokens_per_s(rate: f64) -> String {
    if rate >= 10.0 { count(rate.round() as u64) } else { format!("{rate:.2}") }
}

/// A number of parameters: `1.88 B`, `61.0 M`.
pub fn parameters(n: u64) -> String {
    scaled(n as f64, ["", " k", " M", " B"])
}

/// A number of FLOPs: `8.21 GFLOP`.
pub fn flops(n: f64) -> String {
    scaled(n / 1e3, [" kFLOP", " MFLOP", " GFLOP", " TFLOP"])
}

/// A share as a percentage: `2 %`, `0.4 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 9.95 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

/// A duration in its two largest units: `10 h 25 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "–".to_owned();
    }
    let s = seconds.round() as u64;
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", (s + 30) / 60),
        7200..=172_799 => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
        _ => format!("{} days {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// A character that a terminal, or the bidirectional algorithm, would obey instead of showing, or that hides.
pub fn is_active(c: char) -> bool {
    c.is_control() // C0, DEL and C1 (which some terminals take for ESC sequences)
        || matches!(c,
            '\u{ad}'                      // soft hyphen
            | '\u{61c}'                   // Arabic letter mark
            | '\u{180e}'                  // Mongolian vowel separator
            | '\u{200b}'                  // zero-width space
            | '\u{200e}' | '\u{200f}'     // left-to-right and right-to-left marks
            | '\u{2028}' | '\u{2029}'     // line and paragraph separators
            | '\u{202a}'..='\u{202e}'     // bidi embeddings and overrides
            | '\u{2060}'..='\u{206f}'     // invisible operators, bidi isolates, deprecated formats
            | '\u{feff}'                  // byte order mark
            | '\u{fff9}'..='\u{fffb}'     // interlinear annotation
            | '\u{e0000}'..='\u{e007f}'   // tags, which spell invisible text
        )
    // Zero-width joiner and non-joiner (200c, 200d) stay: Persian, Indic scripts and emoji need them.
}

/// The text with active characters spelled out: `\n`, `\t`, `\u{1b}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c if is_active(c) => {
                let _ = write!(safe, "\\u{{{:x}}}", u32::from(c)); // a String takes everything
            }
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

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

/// The table of `plan --explain`: value, origin and reason of everything, wrapped to `width` columns.
pub fn explain(plan: &Plan, width: usize) -> String {
    let Some(advice) = &plan.advice else { return "this plan carries no reasons\n".to_owned() };
    let longest = |column: fn(&Explained) -> usize, most: usize| {
        advice.explain.iter().map(column).max().unwrap_or(0).min(most)
    };
    let key = longest(|row| row.key.chars().count(), 28);
    let value = longest(|row| row.value.chars().count(), 22);
    let origin = Origin::Environment.word().len();
    let indent = key + value + origin + 6;
    let room = width.saturating_sub(indent).max(24);
    let mut text = String::new();
    let head = format!("{:key$}  {:value$}  {:origin$}  reason", "what", "value", "origin");
    let _ = writeln!(text, "{}", head.trim_end());
    for row in &advice.explain {
        let shown = if row.value.is_empty() { "–".into() } else { escape(&row.value) };
        let reason = wrap(&escape(&row.reason), room);
        // A value too wide for its column (a path) has a line of its own, so that the columns stay straight.
        let first = if shown.chars().count() > value {
            let _ = writeln!(text, "{:key$}  {shown}", row.key);
            format!("{:key$}  {:value$}", "", "")
        } else {
            format!("{:key$}  {shown:value$}", row.key)
        };
        for (i, line) in reason.iter().enumerate() {
            let _ = if i == 0 {
                writeln!(text, "{}", format!("{first}  {:origin$}  {line}", row.origin.word()).trim_end())
            } else {
                writeln!(text, "{:indent$}{line}", "")
            };
        }
    }
    text
}

/// The parts of a memory estimate in one line, without those that are nothing.
pub fn memory_parts(memory: &Memory) -> String {
    let parts = memory.parts();
    let parts = parts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {}", bytes(*n)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Memory as a bar of `width` cells and a legend, one part a line. A cell shows the part that most of it belongs to.
pub fn memory_bar(memory: &Memory, width: usize) -> String {
    const MARKS: [char; 7] = ['W', 'A', 'G', 'O', 'x', 'L', 'r'];
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

/// Duration, speed and what they rest on, in two lines.
pub fn eta(time: &Time) -> String {
    let total = time.train_s.map(|s| s + time.mtp_s.unwrap_or(0.0));
    let Some((total, rate)) = total.zip(time.tokens_per_s) else {
        return format!("time  unknown until the first steps have been measured\n      {}\n", time.formula);
    };
    let label = match time.basis {
        RateBasis::MeasuredHere => "measured here",
        RateBasis::Measured => "measured on such a device, not yet here",
        RateBasis::OriginalRecipe => "by the original recipe's measurement, not yet measured here",
        RateBasis::Estimate | RateBasis::Unknown => "estimate",
    };
    let rate = tokens_per_s(rate);
    format!("time  {} at {rate} tokens/s ({label})\n      {}\n", duration(total), escape(&time.formula))
}

/// The cost curve as a table, with the chosen pack length (`>`) and the recipe's rule marked.
pub fn cost_curve(plan: &Plan) -> String {
    let Some(advice) = &plan.advice else { return String::new() };
    let mut text = "  pack length    speed   empty       rows  own rows     memory\n".to_owned();
    for point in &advice.curve {
        let mark = if point.pack_length == plan.pack.length { '>' } else { ' ' };
        let notes = [
            (point.pack_length == advice.recipe_pack_length, "the recipe's rule"),
            (point.recompute, "recompute"),
            (!point.fits, "does not fit"),
        ];
        let notes: Vec<&str> = notes.iter().filter(|(on, _)| *on).map(|(_, note)| *note).collect();
        let line = format!(
            "{mark} {:>11} {:>7.0} % {:>7} {:>10} {:>9} {:>10}  {}",
            count(point.pack_length.into()),
            point.tokens_per_s_relative * 100.0,
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

/// How many epochs the steps make: `39 an epoch, 3 epochs`, or where `max_steps` ends the run before them.
pub fn epochs_in_words(time: &Time, duration: DurationPlan) -> String {
    let an_epoch = count(time.steps_per_epoch);
    let whole = time.steps_per_epoch.saturating_mul(duration.epochs.into());
    let epochs =
        if duration.epochs == 1 { "1 epoch".to_owned() } else { format!("{} epochs", duration.epochs) };
    if time.steps >= whole {
        return format!("{an_epoch} an epoch, {epochs}");
    }
    let ends = time.steps as f64 / time.steps_per_epoch.max(1) as f64;
    // Two digits below a tenth, so that a short trial does not read as no epoch at all.
    let digits = if ends < 0.1 { 2 } else { 1 };
    format!("{an_epoch} an epoch; max_steps ends the run after about {ends:.digits$} of {epochs}")
}

/// The plan in a few lines, for `--dry-run` and the head of a run.
pub fn summary(plan: &Plan) -> String {
    let method = match plan.method {
        Method::Lora { rank, alpha, rslora } => {
            format!("LoRA, rank {rank}, alpha {alpha}{}", if rslora { ", rank-stabilised" } else { "" })
        }
        Method::Full => "full fine-tuning".to_owned(),
    };
    let mut text = format!(
        "model {}\nhow   {method}, on {}{}{}\nrows  {} tokens ({}), {} to an optimizer step{}\n",
        escape(&plan.model.id),
        plan.device,
        if plan.recompute { ", with recompute" } else { "" },
        if plan.fp8 { ", linear layers in fp8 (not lossless)" } else { "" },
        count(plan.pack.length.into()),
        plan.pack.strategy,
        count(plan.batch.packs_per_step()),
        plan.pack
            .mtp_length
            .map_or(String::new(), |length| format!("; {} for the MTP head", count(length.into()))),
    );
    if let Some(Advice { memory, time, .. }) = &plan.advice {
        let _ = writeln!(
            text,
            "steps {} ({}), {} tokens each",
            count(time.steps),
            epochs_in_words(time, plan.duration),
            count(time.tokens_per_step)
        );
        text.push_str(&eta(time));
        text.push_str(&memory_bar(memory, 60));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_a_person_reads_them() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4_400_000_000), "4.4 GB");
        assert_eq!(bytes(999_960_000), "1.0 GB");
        assert_eq!(bytes(128_500_000_000), "128 GB");
        assert_eq!(bytes(u64::MAX), "18447 PB");
        assert_eq!(count(24_315), "24,315");
        assert_eq!(count(100), "100");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(parameters(1_881_800_000), "1.88 B");
        assert_eq!(parameters(640), "640");
        assert_eq!(flops(8.21e9), "8.21 GFLOP");
        assert_eq!(percent(0.02), "2.0 %");
        assert_eq!(duration(37_500.0), "10 h 25 min");
        assert_eq!(duration(f64::NAN), "–");
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
