//! Charts as SVG, for the file. Its colours are the style sheet's, so that they fit light and dark.

use sparktune_base::units::count;

use crate::document::{Chart, Line};
use crate::markup::escaped;

/// The size of a drawing, and the room around the lines for its axes.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 34.0;

/// An axis from the smallest to the largest tick.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    /// Spans values with about `ticks` round ticks.
    fn over(values: impl Iterator<Item = f64>, ticks: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let span = (high - low).max(high.abs() * 1e-3).max(1e-9);
        let rough = span / ticks;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        Self { low: (low / step).floor() * step, high: (high / step).ceil() * step, step }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (low, step) = (self.low, self.step);
        (0..=((self.high - low) / step).round() as usize).map(move |at| low + at as f64 * step)
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low).max(1e-12)
    }

    /// Formats a tick with as many digits as the step needs.
    fn show(&self, value: f64) -> String {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        if digits == 0 && value >= 0.0 { count(value.round() as u64) } else { format!("{value:.digits$}") }
    }
}

/// Draws a chart.
pub(crate) fn svg(chart: &Chart) -> String {
    let points = || chart.lines.iter().flat_map(|line| line.points.iter());
    let bands = || chart.lines.iter().flat_map(|line| line.band.iter().flatten().copied());
    let x = Axis::over(points().map(|point| point[0]), 7.0);
    let y = Axis::over(points().map(|point| point[1]).chain(bands()), 5.0);
    let across = |value: f64| LEFT + x.share(value) * (WIDTH - LEFT - RIGHT);
    let down = |value: f64| HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escaped(&chart.title)
    );
    for tick in y.ticks() {
        let at = down(tick);
        svg += &format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 7.0,
            at + 4.0,
            y.show(tick)
        );
    }
    for tick in x.ticks() {
        svg += &format!(
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{}\">{}</text>",
            across(tick),
            HEIGHT - BOTTOM + 16.0,
            x.show(tick)
        );
    }
    svg += &format!(
        "<text class=\"tick\" text-anchor=\"end\" x=\"{}\" y=\"{}\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 4.0,
        escaped(&chart.x)
    );
    for line in &chart.lines {
        svg += &drawn(line, &across, &down);
    }
    svg + "</svg>"
}

fn drawn(line: &Line, across: &dyn Fn(f64) -> f64, down: &dyn Fn(f64) -> f64) -> String {
    let at = |x: f64, y: f64| format!("{:.1},{:.1}", across(x), down(y));
    let joined = |points: Vec<String>| points.join(" ");
    let path = joined(line.points.iter().map(|point| at(point[0], point[1])).collect());
    let pairs = || line.points.iter().zip(&line.band);
    let above = pairs().map(|(point, band)| at(point[0], band[1]));
    let below = pairs().rev().map(|(point, band)| at(point[0], band[0]));
    let band = joined(above.chain(below).collect());
    let colour = line.colour;
    format!(
        "<polygon class=\"band c{colour}\" points=\"{band}\"/><polyline class=\"line c{colour}\" points=\"{path}\"/>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_enclose_the_values() {
        let axis = Axis::over([1.23, 3.9, f64::NAN].into_iter(), 5.0);
        assert_eq!((axis.low, axis.high, axis.step), (1.0, 4.0, 1.0));
        let narrow = Axis::over([0.0, 0.013].into_iter(), 5.0);
        assert_eq!(
            narrow.ticks().map(|tick| narrow.show(tick)).collect::<Vec<_>>().join(" "),
            "0.000 0.005 0.010 0.015"
        );
        let flat = Axis::over([2.0, 2.0].into_iter(), 5.0);
        assert!(flat.low <= 2.0 && flat.high >= 2.0 && flat.ticks().count() < 20);
        assert!(Axis::over(std::iter::empty(), 5.0).ticks().count() > 1);
    }

    #[test]
    fn a_line_has_a_point_for_each_of_its_values_inside_the_drawing() {
        let line = Line {
            name: "a".into(),
            colour: 2,
            points: vec![[0.0, 1.0], [10.0, 0.5], [20.0, 0.4]],
            band: vec![[0.9, 1.1], [0.4, 0.6], [0.3, 0.5]],
        };
        let chart = Chart { title: "a < b".into(), x: "steps".into(), y: String::new(), lines: vec![line] };
        let svg = svg(&chart);
        assert!(svg.contains("a &lt; b") && svg.contains("line c2"), "{svg}");
        let path = svg.split("class=\"line c2\" points=\"").nth(1).unwrap().split('"').next().unwrap();
        let places: Vec<(f64, f64)> = path
            .split(' ')
            .map(|point| point.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert_eq!(places.len(), 3);
        assert!(places.iter().all(|(x, y)| (0.0..WIDTH).contains(x) && (0.0..HEIGHT).contains(y)));
        assert!(places[0].1 < places[2].1, "a lower loss is drawn lower: {places:?}");
    }
}
