//! Screens as files, which tests compare and reviewers can look at.
//!
//! [`check`] draws an app without a terminal and compares its text with a snapshot; `INSTA_UPDATE=always`
//! updates it. Colours are not part of a snapshot: tests check them by role with [`assert_role`]. The
//! pictures that documents show are SVG files in `src/guide/screens/`, written by [`check_svg`].

use std::fmt::Write as _;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Position, Rect, Size};
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

use super::run::{App, Input, draw};
use super::theme::{Colours, Role, Theme};

/// The folder of the pictures.
const SCREENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../guide/screens");

pub(crate) const TRUE_COLOUR: Theme = Theme { colours: Colours::True, unicode: true };
pub(crate) const NO_COLOUR: Theme = Theme { colours: Colours::None, unicode: true };
pub(crate) const ASCII: Theme = Theme { colours: Colours::None, unicode: false };

/// Draws the app at this size.
pub(crate) fn drawn(app: &mut dyn App, width: u16, height: u16, theme: &Theme) -> Buffer {
    app.update(Input::Size(Size { width, height }));
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, frame, theme)).unwrap();
    terminal.backend().buffer().clone()
}

/// Draws the app in the size and theme of most snapshots.
pub(crate) fn usual(app: &mut dyn App) -> Buffer {
    drawn(app, 80, 24, &TRUE_COLOUR)
}

/// Compares the app at 80×24 with the snapshot `name`. Also checks at other sizes that no colours are used
/// where the terminal has none, and no characters that a terminal without Unicode cannot show.
#[track_caller]
pub(crate) fn check(name: &str, app: &mut dyn App) {
    for (width, height) in [(60, 16), (132, 40), (200, 56), (80, 24)] {
        let buffer = drawn(app, width, height, &NO_COLOUR);
        let is_coloured = |cell: &&Cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset);
        let coloured = buffer.content.iter().find(is_coloured);
        assert!(coloured.is_none(), "{name} at {width}×{height} has a colour: {coloured:?}");
        let text = text(&drawn(app, width, height, &ASCII));
        // Letters, and all characters that this program does not draw itself, come from names and data.
        let is_sign = |c: &char| !c.is_ascii() && !c.is_alphabetic() && *c < '\u{3000}';
        let signs: String = text.chars().filter(is_sign).collect();
        assert!(signs.is_empty(), "{signs} in {name} without Unicode:\n{text}");
    }
    check_text(name, &text(&usual(app)));
}

/// Like [`check`], and compares the app at 132×40, too, for screens whose layout differs on wide terminals.
#[track_caller]
pub(crate) fn check_wide(name: &str, app: &mut dyn App) {
    check_text(&format!("{name}-132x40"), &text(&drawn(app, 132, 40, &TRUE_COLOUR)));
    check(name, app);
}

/// Compares only the changed part of the screen with a snapshot: a popup without the page below it, or the
/// rows from the first to the last difference.
#[track_caller]
pub(crate) fn check_change(name: &str, before: &Buffer, after: &Buffer) {
    check_text(name, &text_in(after, changed(before, after)));
}

fn changed(before: &Buffer, after: &Buffer) -> Rect {
    let differs = |at: &Position| before[*at].symbol() != after[*at].symbol();
    let cells: Vec<Position> = after.area.positions().filter(differs).collect();
    let corner = |symbol: &str| cells.iter().rev().find(|at| after[**at].symbol() == symbol);
    if let (Some(from), Some(to)) = (corner("╭"), corner("╯")) {
        return Rect::new(from.x, from.y, to.x + 1 - from.x, to.y + 1 - from.y);
    }
    let (Some(first), Some(last)) = (cells.first(), cells.last()) else { return Rect::ZERO };
    Rect::new(0, first.y, after.area.width, last.y + 1 - first.y)
}

/// Compares text with a snapshot.
#[track_caller]
pub(crate) fn check_text(name: &str, text: &str) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "../snapshots" }, {
        insta::assert_snapshot!(name, text);
    });
}

/// Compares one buffer with a picture in `src/guide/screens/`.
#[track_caller]
pub(crate) fn check_svg(name: &str, buffer: &Buffer) {
    let path = Path::new(SCREENS).join(format!("{name}.svg"));
    let picture = svg(buffer);
    if matches!(std::env::var("INSTA_UPDATE").as_deref(), Ok("always")) {
        std::fs::write(&path, &picture).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == picture, "{} shows another screen; INSTA_UPDATE=always writes it anew", path.display());
}

/// Asserts that these words are on the screen and have the style of this role everywhere, perhaps emphasised.
#[track_caller]
pub(crate) fn assert_role(buffer: &Buffer, words: &str, role: Role) {
    let style = TRUE_COLOUR.style(role);
    let mut found = 0;
    for y in 0..buffer.area.height {
        let line = row(buffer, buffer.area, y);
        for (at, _) in line.match_indices(words) {
            found += 1;
            let from = line[..at].width() as u16;
            for x in (from..).take(words.width()) {
                let cell = &buffer[(x, y)];
                let is_so =
                    cell.fg == style.fg.unwrap_or(Color::Reset) && cell.modifier.contains(style.add_modifier);
                assert!(is_so, "{words:?} is not drawn as {role:?} but {cell:?}:\n{}", text(buffer));
            }
        }
    }
    assert!(found > 0, "{words:?} is not on the screen:\n{}", text(buffer));
}

/// Returns the text of the screen, line by line.
pub(crate) fn text(buffer: &Buffer) -> String {
    text_in(buffer, buffer.area)
}

fn text_in(buffer: &Buffer, area: Rect) -> String {
    let lines: Vec<String> =
        (area.top()..area.bottom()).map(|y| row(buffer, area, y).trim_end().to_owned()).collect();
    lines.join("\n")
}

fn row(buffer: &Buffer, area: Rect, y: u16) -> String {
    let mut text = String::new();
    let mut skip = 0;
    for x in area.left()..area.right() {
        let symbol = buffer[(x, y)].symbol();
        if skip == 0 {
            text.push_str(symbol);
            skip = symbol.width().max(1);
        }
        skip -= 1;
    }
    text
}

/// The width and height of a cell in pixels.
const CELL: (u16, u16) = (9, 19);
const MARGIN: u16 = 10;
/// The distance of the baseline from the top of a cell, in pixels.
const BASELINE: u16 = 15;
const TEXT: &str = "#d5dae1";
const GROUND: &str = "#12161c";

/// Draws the screen as SVG, light text on dark.
///
/// Fonts differ in width, and box and block characters often come from a fallback font with another width.
/// Therefore each run of cells with one style and one kind of characters is an element that is fitted to the
/// width of its cells. Braille is drawn dot by dot, because many machines have no font for it.
fn svg(buffer: &Buffer) -> String {
    let (columns, rows) = (buffer.area.width, buffer.area.height);
    let (width, height) = (columns * CELL.0 + 2 * MARGIN, rows * CELL.1 + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{GROUND}\"/>\n\
         <g font-family=\"'DejaVu Sans Mono','Menlo','Consolas',monospace\" font-size=\"15\" fill=\"{TEXT}\" stroke-width=\"3\" stroke-linecap=\"round\" xml:space=\"preserve\">\n"
    );
    for y in 0..rows {
        for run in runs(buffer, y) {
            run_svg(&run, y, &mut svg);
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Neighbouring cells of a row that one element draws.
struct Run {
    from: u16,
    to: u16,
    style: Style,
    glyphs: Glyphs,
    text: String,
}

/// The kinds of characters that usually come from one font.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Glyphs {
    Ascii,
    Braille,
    Other,
}

impl Glyphs {
    fn of(symbol: &str) -> Self {
        match symbol.chars().next() {
            Some('\u{2800}'..='\u{28ff}') => Self::Braille,
            _ if symbol.is_ascii() => Self::Ascii,
            _ => Self::Other,
        }
    }
}

/// Splits a row into runs. A space ends a run only where the style changes or where two spaces meet.
fn runs(buffer: &Buffer, y: u16) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut x = 0;
    while x < buffer.area.width {
        let cell = &buffer[(x, y)];
        let (symbol, style, from) = (cell.symbol(), cell.style(), x);
        let glyphs = Glyphs::of(symbol);
        x += symbol.width().max(1) as u16;
        match runs.last_mut() {
            Some(run)
                if run.style == style
                    && run.glyphs == glyphs
                    && !(symbol == " " && run.text.ends_with(' ')) =>
            {
                run.text.push_str(symbol);
                run.to = x;
            }
            _ => runs.push(Run { from, to: x, style, glyphs, text: symbol.to_owned() }),
        }
    }
    runs
}

fn run_svg(run: &Run, y: u16, svg: &mut String) {
    let modifiers = run.style.add_modifier;
    let hex = |colour: Option<Color>, usual: &str| match colour {
        Some(Color::Rgb(r, g, b)) => format!("#{r:02x}{g:02x}{b:02x}"),
        _ => usual.to_owned(),
    };
    let (mut fg, mut bg) = (hex(run.style.fg, TEXT), hex(run.style.bg, "none"));
    if modifiers.contains(Modifier::REVERSED) {
        (fg, bg) = (if bg == "none" { GROUND.into() } else { bg }, fg);
    }
    let top = MARGIN + y * CELL.1;
    if bg != "none" {
        let (left, wide) = (MARGIN + run.from * CELL.0, (run.to - run.from) * CELL.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{wide}\" height=\"{}\" fill=\"{bg}\"/>",
            CELL.1
        );
    }
    if run.glyphs == Glyphs::Braille {
        let _ = writeln!(svg, "<path stroke=\"{fg}\" d=\"{}\"/>", dots(run, top));
        return;
    }
    let mut look = if fg == TEXT { String::new() } else { format!(" fill=\"{fg}\"") };
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
    let words = run.text.trim_end();
    let shown = words.trim_start();
    if shown.is_empty() {
        return;
    }
    let x = MARGIN + (run.from + (words.len() - shown.len()) as u16) * CELL.0;
    let (length, baseline) = (shown.width() * usize::from(CELL.0), top + BASELINE);
    let shown = shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{baseline}\" textLength=\"{length}\" lengthAdjust=\"spacingAndGlyphs\"{look}>{shown}</text>"
    );
}

/// Draws the dots of a run of braille, each as a line of length zero with round ends. The bits of a character
/// are numbered down the left column of three, then down the right one, then the two dots below them.
fn dots(run: &Run, top: u16) -> String {
    const PLACES: [(u16, u16); 8] = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)];
    let mut path = String::new();
    for (cell, symbol) in (run.from..).zip(run.text.chars()) {
        for (bit, (column, row)) in PLACES.iter().enumerate() {
            if u32::from(symbol) >> bit & 1 == 1 {
                let (x, y) = (MARGIN + cell * CELL.0 + 2 + column * 4, top + 2 + row * 5);
                let _ = write!(path, "M{x} {y}h0");
            }
        }
    }
    path
}
