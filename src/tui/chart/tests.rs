//! Charts as cells.

use proptest::prelude::*;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_runlog::{Bucket, Series};

use super::columns::tests::series;
use super::*;
use crate::screen::picture::{self, ASCII, NO_COLOUR, TRUE_COLOUR};

fn chart<'a>(curves: Vec<Curve<'a>>, from: u64, to: u64) -> Chart<'a> {
    Chart {
        title: Line::raw("loss"),
        unit: Unit::Nats,
        window: Window { from, to },
        log: false,
        curves,
        marks: Vec::new(),
        level: None,
        crosshair: None,
        empty: "nothing yet",
    }
}

fn envelope(buckets: &[Bucket]) -> Curve<'_> {
    Curve { name: "each step", buckets, shape: Shape::Envelope, role: Role::Curve }
}

fn drawn(chart: &Chart<'_>, width: u16, height: u16, theme: &Theme) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    chart.draw(buffer.area, &mut buffer, theme);
    buffer
}

/// A training loss of 900 steps with a spike, a stretch of NaN, evaluations, and 60 steps that were repeated.
fn course() -> (Series, Series, Series) {
    let (mut loss, mut evals, mut discarded) = (Series::default(), Series::default(), Series::default());
    let mut noise = 7_u64;
    for step in 1..=900_u64 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let wobble = (noise >> 40) as f64 / (1 << 24) as f64 - 0.5;
        let value = 1.1 + 1.6 * (-(step as f64) / 160.0).exp() + wobble * 0.35;
        let value = match step {
            610 => 2.9,
            400..=412 => f64::NAN,
            _ => value,
        };
        loss.push(step, value);
        if (701..=760).contains(&step) {
            discarded.push(step, value + 0.4);
        }
        if step.is_multiple_of(100) {
            evals.push(step, value.max(1.2));
        }
    }
    (loss, evals, discarded)
}

#[test]
fn a_chart_shows_envelope_average_evals_gaps_marks_and_what_was_discarded() {
    let (loss, evals, discarded) = course();
    let mut chart = chart(
        vec![
            Curve {
                name: "discarded",
                buckets: discarded.buckets(),
                shape: Shape::Envelope,
                role: Role::Discarded,
            },
            envelope(loss.buckets()),
            Curve { name: "average", buckets: loss.buckets(), shape: Shape::Average, role: Role::Average },
            Curve { name: "eval", buckets: evals.buckets(), shape: Shape::Points, role: Role::Eval },
        ],
        1,
        1000,
    );
    chart.marks = vec![
        Mark { step: 300, kind: MarkKind::Checkpoint },
        Mark { step: 600, kind: MarkKind::Best },
        Mark { step: 700, kind: MarkKind::Resume },
    ];
    chart.crosshair = Some(800);
    for (name, theme, log) in
        [("colour", TRUE_COLOUR, false), ("no-colour", NO_COLOUR, true), ("ascii", ASCII, false)]
    {
        chart.log = log;
        picture::check_text(&format!("chart-{name}"), &picture::text(&drawn(&chart, 100, 22, &theme)));
    }
    let buffer = drawn(&chart, 100, 22, &TRUE_COLOUR);
    for role in [Role::Curve, Role::Average, Role::Eval, Role::Discarded, Role::Line] {
        let colour = TRUE_COLOUR.style(role).fg.unwrap();
        assert!(buffer.content.iter().any(|cell| cell.fg == colour), "nothing is drawn as {role:?}");
    }
}

#[test]
fn a_level_is_a_line_across_the_chart_and_belongs_to_its_range() {
    let mut series = Series::default();
    (1..=50).for_each(|step| series.push(step, 1.0));
    let mut chart = chart(vec![envelope(series.buckets())], 1, 50);
    chart.level = Some((2.0, "base"));
    for (theme, glyph) in [(TRUE_COLOUR, "╌"), (ASCII, "-")] {
        let screen = picture::text(&drawn(&chart, 60, 12, &theme));
        // The first line is the border.
        let across = screen.lines().skip(1).position(|line| line.matches(glyph).count() > 30);
        assert!(across.is_some_and(|row| row < 4), "above the curve: {screen}");
        assert!(screen.contains("base"), "{screen}");
    }
    chart.curves.clear();
    assert!(picture::text(&drawn(&chart, 60, 12, &TRUE_COLOUR)).contains("nothing yet"));
}

#[test]
fn nothing_to_draw_is_said_in_words() {
    let screen = picture::text(&drawn(&chart(Vec::new(), 0, 0), 30, 5, &TRUE_COLOUR));
    assert!(screen.contains("nothing yet"), "{screen}");
    let only_nan = series(&[(1, f64::NAN)]);
    let screen = picture::text(&drawn(&chart(vec![envelope(only_nan.buckets())], 0, 5), 30, 5, &TRUE_COLOUR));
    assert!(screen.contains("nothing yet"), "{screen}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_size_and_no_values_do_harm(
        values in proptest::collection::vec((any::<u64>(), any::<f64>()), 0..40),
        near in proptest::collection::vec((0_u64..300, -2.0..5.0_f64), 0..40),
        from: u64, to: u64, small: bool, width in 0_u16..120, height in 0_u16..40,
        log: bool, crosshair: Option<u64>, theme in 0_usize..3,
    ) {
        let series = series(if small { &near } else { &values });
        let (from, to) = if small { (from % 300, to % 400) } else { (from, to) };
        let curves = [Shape::Envelope, Shape::Average, Shape::Points]
            .map(|shape| Curve { name: "x", buckets: series.buckets(), shape, role: Role::Curve });
        let mut chart = chart(curves.to_vec(), from.min(to), from.max(to));
        (chart.log, chart.crosshair) = (log, crosshair);
        let kinds = [MarkKind::Checkpoint, MarkKind::Best, MarkKind::Resume];
        chart.marks = kinds.map(|kind| Mark { step: from, kind }).to_vec();
        drawn(&chart, width, height, &[TRUE_COLOUR, NO_COLOUR, ASCII][theme]);
    }

    #[test]
    fn the_cells_of_a_column_reach_from_its_smallest_to_its_largest_value(
        values in proptest::collection::vec((0_u64..500, -50.0..50.0_f64), 1..400), colour: bool,
    ) {
        let series = series(&values);
        let chart = chart(vec![envelope(series.buckets())], 0, 499);
        let theme = if colour { TRUE_COLOUR } else { NO_COLOUR };
        let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
        let inner = buffer.area.inner(Margin::new(1, 1));
        let plot = chart.plot(inner).unwrap();
        chart.curves(&plot, &mut buffer, &theme);
        let cells = usize::from(plot.area.width);
        let (rows, dots) = (f64::from(plot.area.height), f64::from(plot.area.height) * 4.0);
        let row = |value: f64| {
            let dot = ((1.0 - plot.axis.fraction(value)) * (dots - 1.0)).round();
            plot.area.y + (dot * rows / dots) as u16
        };
        for bucket in series.buckets() {
            let x = plot.area.x + chart.window.column(bucket.first_step, cells).unwrap() as u16;
            for y in row(bucket.max)..=row(bucket.min) {
                let glyph = buffer[(x, y)].symbol().chars().next().unwrap();
                prop_assert!(('\u{2801}'..='\u{28ff}').contains(&glyph), "{bucket:?} at {x},{y}: {glyph:?}");
            }
        }
    }
}
