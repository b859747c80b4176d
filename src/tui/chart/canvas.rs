//! A grid of dots drawn into terminal cells. A later layer hides an earlier one in the cells they share: a
//! cell has only one colour, and merged dots would look like a curve that does not exist.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// The bits of the eight dots of a braille pattern, by column and row.
const BRAILLE: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// The look of the dots of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ink {
    pub style: Style,
    /// The character of a cell that contains a dot, on terminals without Unicode.
    pub ascii: char,
    /// Sets only every other dot of an area, so that areas and lines differ even without colours.
    pub sparse: bool,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    dots: u8,
    layer: usize,
}

/// A grid of dots.
pub(super) struct Canvas {
    columns: usize,
    rows: usize,
    /// The number of dots in a cell, horizontally and vertically.
    per_cell: (usize, usize),
    cells: Vec<Cell>,
    inks: Vec<Ink>,
}

impl Canvas {
    /// Creates a canvas of `columns` × `rows` cells. A cell has 2 × 4 dots in Unicode, otherwise one.
    pub(super) fn new(columns: u16, rows: u16, unicode: bool) -> Self {
        let (columns, rows) = (usize::from(columns), usize::from(rows));
        let per_cell = if unicode { (2, 4) } else { (1, 1) };
        Self { columns, rows, per_cell, cells: vec![Cell::default(); columns * rows], inks: Vec::new() }
    }

    /// Returns the width in dots.
    pub(super) fn width(&self) -> usize {
        self.columns * self.per_cell.0
    }

    /// Returns the height in dots.
    pub(super) fn height(&self) -> usize {
        self.rows * self.per_cell.1
    }

    /// Starts a new layer, which hides the layers drawn before.
    pub(super) fn layer(&mut self, ink: Ink) {
        self.inks.push(ink);
    }

    /// Sets a dot of the newest layer. Dots outside the canvas are ignored.
    pub(super) fn dot(&mut self, x: usize, y: usize) {
        if x >= self.width() || y >= self.height() {
            return;
        }
        let cell = &mut self.cells[y / self.per_cell.1 * self.columns + x / self.per_cell.0];
        if cell.layer != self.inks.len() {
            *cell = Cell { dots: 0, layer: self.inks.len() };
        }
        cell.dots |= BRAILLE[x % self.per_cell.0][y % self.per_cell.1];
    }

    /// Draws a vertical bar from one height to another. Both ends are set even when the ink is sparse.
    pub(super) fn bar(&mut self, x: usize, top: usize, bottom: usize) {
        let sparse = self.inks.last().is_some_and(|ink| ink.sparse);
        for y in top..=bottom {
            if !sparse || y == top || y == bottom || (x + y).is_multiple_of(2) {
                self.dot(x, y);
            }
        }
    }

    /// Draws a line between two points in dots, clipped to the canvas.
    pub(super) fn line(&mut self, (xa, ya): (f64, f64), (xb, yb): (f64, f64)) {
        let last = self.width().saturating_sub(1) as f64;
        let (from, to) = (xa.floor().clamp(0.0, last), xb.floor().clamp(0.0, last));
        if xb < 0.0 || xa > last + 1.0 || from > to {
            return;
        }
        let height = |x: f64| {
            let share = if xb > xa {
                ((x - xa.floor()) / (xb.floor() - xa.floor()).max(1.0)).clamp(0.0, 1.0)
            } else {
                1.0
            };
            (ya * (1.0 - share) + yb * share).round().max(0.0) as usize
        };
        let mut before = height(from);
        for x in from as usize..=to as usize {
            let y = height(x as f64);
            // Each column starts next to the previous dot, so that the line has no holes and no steps two
            // dots wide.
            let (top, bottom) = match y.cmp(&before) {
                std::cmp::Ordering::Greater => (before + 1, y),
                std::cmp::Ordering::Less => (y, before - 1),
                std::cmp::Ordering::Equal => (y, y),
            };
            for y in top..=bottom {
                self.dot(x, y);
            }
            before = y;
        }
    }

    /// Draws the cells that contain dots, with the canvas's top left corner at that of `area`.
    pub(super) fn draw(&self, area: Rect, buffer: &mut Buffer) {
        for (i, cell) in self.cells.iter().enumerate().filter(|(_, cell)| cell.dots != 0) {
            let (x, y) = ((i % self.columns) as u16, (i / self.columns) as u16);
            let ink = self.inks[cell.layer - 1];
            let glyph = match self.per_cell {
                (1, 1) => ink.ascii,
                _ => char::from_u32(0x2800 + u32::from(cell.dots)).unwrap_or(' '),
            };
            if x < area.width && y < area.height {
                buffer[(area.x + x, area.y + y)].set_char(glyph).set_style(ink.style);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Ink = Ink { style: Style::new(), ascii: '*', sparse: false };
    const AREA: Ink = Ink { style: Style::new(), ascii: '.', sparse: true };

    fn shown(canvas: &Canvas) -> Vec<String> {
        let area = Rect::new(0, 0, canvas.columns as u16, canvas.rows as u16);
        let mut buffer = Buffer::empty(area);
        canvas.draw(area, &mut buffer);
        (0..area.height)
            .map(|y| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>())
            .collect()
    }

    #[test]
    fn a_later_layer_hides_the_earlier_one_in_a_cell_and_does_not_merge_with_it() {
        let mut canvas = Canvas::new(2, 1, true);
        canvas.layer(LINE);
        canvas.bar(0, 0, 3);
        canvas.bar(2, 0, 3);
        canvas.layer(LINE);
        canvas.dot(1, 0);
        assert_eq!(shown(&canvas), ["⠈⡇"]);
    }

    #[test]
    fn without_colours_an_area_is_thinner_than_a_line_and_keeps_its_ends() {
        let mut canvas = Canvas::new(2, 2, true);
        canvas.layer(AREA);
        canvas.bar(0, 0, 6);
        canvas.bar(1, 1, 6);
        canvas.bar(3, 5, 5);
        assert_eq!(shown(&canvas), ["⢕⠀".replace('⠀', " "), "⠵⠐".to_owned()]);
    }

    #[test]
    fn a_line_has_no_holes_and_ends_at_the_border() {
        let mut canvas = Canvas::new(3, 3, false);
        canvas.layer(LINE);
        canvas.line((-5.0, 0.0), (0.0, 0.0));
        canvas.line((0.0, 0.0), (2.0, 2.0));
        canvas.line((2.0, 2.0), (1e300, 2.0));
        assert_eq!(shown(&canvas), ["*  ", " * ", "  *"]);
    }
}
