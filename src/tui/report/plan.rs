//! The section about the plan: its costs as estimated and as measured, and every value with its reason.

use sparktune_base::units::{self, UNKNOWN, count, milliseconds, or_unknown};
use sparktune_plan::{Advice, Explained, Memory, Origin, Plan, RateBasis};

use super::input::ReportInput;
use super::markup::Markup;
use super::{MOST_ROWS, absent, bars, left_out, section, table, untrusted};

pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    section(page, "Plan", |page| match &run.plan {
        Err(problem) => absent(page, problem),
        Ok(plan) => match &plan.advice {
            None => absent(page, "The plan of this run contains no reasons and no estimates."),
            Some(advice) => {
                time(page, run, advice);
                memory(page, run, &advice.memory);
                bars::cost_curve(page, advice, plan.pack.length);
                values(page, plan, advice);
            }
        },
    });
}

/// Returns the basis of the estimated speed.
fn basis(advice: &Advice) -> &'static str {
    match advice.time.basis {
        RateBasis::MeasuredHere => "from a speed measured here in an earlier run",
        RateBasis::Measured => "from a speed measured on a device of this kind",
        RateBasis::OriginalRecipe => "from the speed measured by the Qwen3.5 recipe, another program",
        RateBasis::Estimate => "an estimate",
        RateBasis::Unknown => "no basis for an estimate",
    }
}

fn time(page: &mut Markup, run: &ReportInput, advice: &Advice) {
    let (time, times) = (&advice.time, &run.times);
    page.leaf("h3", &[], "Planned and measured");
    let duration = |seconds: Option<f64>| or_unknown(seconds, units::duration);
    let speed = |rate: Option<f64>| or_unknown(rate, units::tokens_per_s);
    let rows = [
        ("Tokens per second", speed(time.tokens_per_s), speed(times.tokens_per_s())),
        ("Optimizer steps", count(time.steps), count(run.view.steps_done())),
        ("Training", duration(time.text_model_s()), duration(times.phase_s("train"))),
        ("MTP head", duration(time.mtp_s), duration(times.phase_s("mtp"))),
    ];
    table(
        page,
        "rows compare",
        &["", "Planned", "Measured"],
        rows.into_iter(),
        |page, (name, planned, measured)| {
            page.element("tr", &[], |page| {
                page.leaf("th", &[("scope", "row")], name);
                page.leaf("td", &[("class", "number")], &planned);
                page.leaf("td", &[("class", "number")], &measured);
            });
        },
    );
    page.element("p", &[("class", "note"), ("dir", "auto")], |page| {
        page.text(&format!("The planned time is {}: ", basis(advice)));
        page.text(&super::markup::clip(&time.formula, super::LINE_CHARS));
        page.text(". The measured time covers all attempts, including evaluations and checkpoints; the measured speed covers the steps only.");
    });
    let phases: Vec<String> =
        times.phases.iter().map(|(name, s)| format!("{name} {}", milliseconds(*s * 1e3))).collect();
    if !phases.is_empty() {
        untrusted(page, "p", "note", &format!("Measured by phase: {}.", phases.join(", ")));
    }
}

fn memory(page: &mut Markup, run: &ReportInput, memory: &Memory) {
    page.leaf("h3", &[], "Memory by part");
    let of = format!(
        "{} of {} {} (estimate).",
        units::bytes(memory.needed_bytes()),
        units::bytes(memory.available_bytes),
        memory.budget
    );
    let most = run.view.charts.mem_used_bytes.buckets().iter().map(|b| b.max).fold(f64::NAN, f64::max);
    let in_steps = most.is_finite().then_some(most.max(0.0) as u64);
    let measured = match run.view.mem_peak_bytes().or(in_steps) {
        Some(peak) => {
            format!(" The run used {} at most.", units::bytes(peak))
        }
        None => String::new(),
    };
    untrusted(page, "p", "note", &format!("{of}{measured}"));
    let part = |name, bytes: u64| bars::Part { name, size: bytes as f64, shown: units::bytes(bytes) };
    let parts: Vec<bars::Part> = memory.parts().into_iter().map(|(name, bytes)| part(name, bytes)).collect();
    let whole = memory.available_bytes.max(memory.needed_bytes()).max(1) as f64;
    bars::stacked(page, "Memory by part", &parts, whole, Some(part("free", memory.spare_bytes())));
}

fn values(page: &mut Markup, plan: &Plan, advice: &Advice) {
    page.leaf("h3", &[], "Every value with its reason");
    if let Some(preset) = &plan.preset {
        untrusted(page, "p", "note", &format!("It is based on the preset {preset}."));
    }
    let columns = ["Setting", "Value", "Origin", "Reason"];
    table(page, "rows explain", &columns, advice.explain.iter().take(MOST_ROWS), |page, row: &Explained| {
        page.element("tr", &[], |page| {
            untrusted(page, "th", "key", &row.key);
            untrusted(page, "td", "value", if row.value.is_empty() { UNKNOWN } else { &row.value });
            let class = if row.origin == Origin::BuiltIn { "origin" } else { "origin chosen" };
            page.leaf("td", &[("class", class)], row.origin.word());
            untrusted(page, "td", "said", &row.reason);
        });
    });
    left_out(page, advice.explain.len(), MOST_ROWS);
}
