//! Screens as files: what tests compare, and what a reviewer can look at.
//!
//! [`check`] draws an app without a terminal and compares it with a snapshot that shows the text and, below
//! it, every run of cells that share a style; and with an SVG in `tests/screens/`. `INSTA_UPDATE=always`
//! writes both anew.

use std::fmt::Write as _;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Size;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

use super::run::{App, Input, draw};
use super::theme::{Colours, Theme};

/// Where the pictures lie.
const SCREENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/screens");

pub(crate) const TRUE_COLOUR: Theme = Theme { colours: Colours::True, unicode: true };
pub(crate) const NO_COLOUR: Theme = Theme { colours: Colours::None, unicode: true };
pub(crate) const ASCII: Theme = Theme { colours: Colours::None, unicode: false };

/// The app at this size.
pub(crate) fn drawn(app: &mut dyn App, width: u16, height: u16, theme: &Theme) -> Buffer {
    app.update(Input::Size(Size { width, height }));
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, frame, theme)).unwrap();
    terminal.backend().buffer().clone()
}

/// A screen: compares the app at 80×24, at 132×40 and without colour with `name`'s snapshots and pictures,
/// and looks that without Unicode no sign is left that such a terminal would garble.
#[track_caller]
pub(crate) fn check(name: &str, app: &mut dyn App) {
    for (width, height, theme, suffix) in
        [(80, 24, TRUE_COLOUR, "80x24"), (132, 40, TRUE_COLOUR, "132x40"), (80, 24, NO_COLOUR, "no-colour")]
    {
        check_one(&format!("{name}-{suffix}"), &drawn(app, width, height, &theme));
    }
    for (width, height) in [(80, 24), (132, 40)] {
        let text = dump(&drawn(app, width, height, &ASCII));
        // Letters, and all that is beyond our own signs, are those of names and data.
        let is_sign = |c: &char| !c.is_ascii() && !c.is_alphabetic() && *c < '\u{3000}';
        let signs: String = text.chars().filter(is_sign).collect();
        assert!(signs.is_empty(), "{signs} in {name} without Unicode:\n{text}");
    }
}

/// A state of a screen: one picture at 80×24 is enough.
#[track_caller]
pub(crate) fn check_state(name: &str, app: &mut dyn App) {
    check_one(name, &drawn(app, 80, 24, &TRUE_COLOUR));
}

/// Compares one buffer with its snapshot and its picture.
#[track_caller]
pub(crate) fn check_one(name: &str, buffer: &Buffer) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "../snapshots" }, {
        insta::assert_snapshot!(name, dump(buffer));
    });
    let path = Path::new(SCREENS).join(format!("{name}.svg"));
    let picture = svg(buffer);
    if matches!(std::env::var("INSTA_UPDATE").as_deref(), Ok("always")) {
        std::fs::create_dir_all(SCREENS).unwrap();
        std::fs::write(&path, &picture).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == picture, "{} shows another screen; INSTA_UPDATE=always writes it anew", path.display());
}

/// The text, line by line, and below it the styles: `row 3: 5..12 blue bold`.
pub(crate) fn dump(buffer: &Buffer) -> String {
    let mut text = String::new();
    let mut styles = String::new();
    for y in 0..buffer.area.height {
        let _ = writeln!(text, "{}", row(buffer, y).trim_end());
        for run in runs(buffer, y).filter(|run| !run.words.is_empty()) {
            let _ = writeln!(styles, "{y:>2}: {}..{} {}", run.from, run.to, run.words);
        }
    }
    format!("{text}---\n{styles}")
}

fn row(buffer: &Buffer, y: u16) -> String {
    let mut text = String::new();
    let mut skip = 0;
    for x in 0..buffer.area.width {
        let symbol = buffer[(x, y)].symbol();
        if skip == 0 {
            text.push_str(symbol);
            skip = symbol.width().max(1);
        }
        skip -= 1;
    }
    text
}

struct Run {
    from: u16,
    to: u16,
    style: Style,
    words: String,
}

fn runs(buffer: &Buffer, y: u16) -> impl Iterator<Item = Run> {
    let mut runs: Vec<Run> = Vec::new();
    for x in 0..buffer.area.width {
        let style = buffer[(x, y)].style();
        match runs.last_mut() {
            Some(run) if run.style == style => run.to = x + 1,
            _ => runs.push(Run { from: x, to: x + 1, style, words: words(style) }),
        }
    }
    runs.into_iter()
}

fn words(style: Style) -> String {
    let colour = |colour: Option<Color>| colour.filter(|colour| *colour != Color::Reset);
    let fg = colour(style.fg).map(|colour| colour.to_string().to_lowercase());
    let bg = colour(style.bg).map(|colour| format!("on {}", colour.to_string().to_lowercase()));
    let modifiers = (!style.add_modifier.is_empty()).then(|| {
        style.add_modifier.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(" ")
    });
    [fg, bg, modifiers].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

const CELL: (u16, u16) = (9, 19);

/// A picture of the screen, light text on dark, in any font with equal widths.
pub(crate) fn svg(buffer: &Buffer) -> String {
    let (columns, rows) = (buffer.area.width, buffer.area.height);
    let (width, height) = (columns * CELL.0 + 20, rows * CELL.1 + 20);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#12161c\"/>\n\
         <g font-family=\"'DejaVu Sans Mono','Menlo','Consolas',monospace\" font-size=\"15\" fill=\"#d5dae1\" xml:space=\"preserve\">\n"
    );
    for y in 0..rows {
        for run in runs(buffer, y) {
            run_svg(buffer, y, &run, &mut svg);
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

fn run_svg(buffer: &Buffer, y: u16, run: &Run, svg: &mut String) {
    let modifiers = run.style.add_modifier;
    let hex = |colour: Option<Color>, usual: &str| match colour {
        Some(Color::Rgb(r, g, b)) => format!("#{r:02x}{g:02x}{b:02x}"),
        _ => usual.to_owned(),
    };
    let (mut fg, mut bg) = (hex(run.style.fg, "#d5dae1"), hex(run.style.bg, "none"));
    if modifiers.contains(Modifier::REVERSED) {
        (fg, bg) = (if bg == "none" { "#12161c".into() } else { bg }, fg);
    }
    let (top, left) = (10 + y * CELL.1, 10 + run.from * CELL.0);
    if bg != "none" {
        let wide = (run.to - run.from) * CELL.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{wide}\" height=\"{}\" fill=\"{bg}\"/>",
            CELL.1
        );
    }
    let mut look = if fg == "#d5dae1" { String::new() } else { format!(" fill=\"{fg}\"") };
    for (modifier, attribute) in [
        (Modifier::BOLD, " font-weight=\"bold\""),
        (Modifier::DIM, " opacity=\"0.6\""),
        (Modifier::UNDERLINED, " text-decoration=\"underline\""),
        (Modifier::ITALIC, " font-style=\"italic\""),
    ] {
        if modifiers.contains(modifier) {
            look.push_str(attribute);
        }
    }
    // Words are placed one by one, so that the columns hold in a font whose width is a little different.
    let baseline = top + 15;
    let mut x = run.from;
    while x < run.to {
        let start = x;
        let mut word = String::new();
        while x < run.to && buffer[(x, y)].symbol() != " " {
            let symbol = buffer[(x, y)].symbol();
            word.push_str(symbol);
            x += symbol.width().max(1) as u16;
        }
        if word.is_empty() {
            x += 1;
            continue;
        }
        let word = word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let (at, length) = (10 + start * CELL.0, (x - start) * CELL.0);
        let _ =
            writeln!(svg, "<text x=\"{at}\" y=\"{baseline}\" textLength=\"{length}\"{look}>{word}</text>");
    }
}
