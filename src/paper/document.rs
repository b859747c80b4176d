//! The white paper as blocks, from which the page and the file are made.

use serde::Serialize;

use crate::verdict::Judged;

/// A text with tables and charts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    /// The title.
    pub title: String,
    /// A line below it: when and where it was measured.
    pub about: String,
    /// The parts.
    pub sections: Vec<Section>,
}

/// A part with a heading.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Section {
    /// A short name for links.
    pub id: &'static str,
    /// The heading.
    pub title: String,
    /// What it consists of.
    pub blocks: Vec<Block>,
}

/// A paragraph, a table, a drawing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Block {
    /// A paragraph.
    Text {
        /// Its text.
        text: String,
    },
    /// Sentences below each other.
    List {
        /// The sentences.
        items: Vec<String>,
    },
    /// Something to be read as it is: a command, the layout of bytes.
    Code {
        /// What it is; may be empty.
        caption: String,
        /// Its text.
        text: String,
    },
    /// A table. All columns but the first are numbers.
    Table {
        /// What it shows.
        caption: String,
        /// The heads of the columns.
        head: Vec<String>,
        /// The cells.
        rows: Vec<Vec<String>>,
    },
    /// Lines over a common axis.
    Chart(Chart),
    /// The verdicts on claims.
    Verdicts {
        /// In the order of the claims.
        items: Vec<Judged>,
    },
}

/// Lines over a common axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What the horizontal axis counts.
    pub x: String,
    /// What the vertical axis measures.
    pub y: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line with a band around it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// The colour, by its number; the same pipeline has the same in all charts.
    pub colour: usize,
    /// Points `[x, y]`.
    pub points: Vec<[f64; 2]>,
    /// The smallest and the largest value at each point.
    pub band: Vec<[f64; 2]>,
}

impl Block {
    /// A paragraph.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// A command or a layout.
    pub(crate) fn code(caption: &str, text: impl Into<String>) -> Self {
        Self::Code { caption: caption.to_owned(), text: text.into() }
    }
}
