//! The columns and cells of the model table, and what they say in words.

use ratatui::text::Line;
use sparktune_app::model::Cached;
use sparktune_base::units::{bytes, count, percent, tokens_per_s};
use sparktune_plan::{CatalogModel, MethodOutlook, RateBasis};

use super::lines::{inked, left, right};
use crate::screen::{Role, Theme};

/// Widths of the table's columns; 0 is left out.
pub(super) struct Columns {
    pub id: usize,
    pub size: usize,
    pub lora: usize,
    pub full: usize,
    pub speed: usize,
    pub here: usize,
}

impl Columns {
    pub(super) fn for_width(width: usize) -> Self {
        let (lora, full, speed, here) = match width {
            0..72 => (9, 0, 0, 9),
            72..90 => (9, 9, 14, 9),
            _ => (11, 11, 18, 20),
        };
        let size = 7;
        let spaces = 2 + 1 + [lora, full, speed].iter().filter(|w| **w > 0).count() + 2;
        let used = size + lora + full + speed + here + spaces;
        Self { id: width.saturating_sub(used).clamp(12, 44), size, lora, full, speed, here }
    }

    pub(super) fn head(&self, theme: &Theme) -> Line<'static> {
        let mut text = format!("  {} {}", left("model", self.id, theme), right("weights", self.size, theme));
        for (width, name) in [(self.lora, "LoRA ≤"), (self.full, "full ≤"), (self.speed, "tokens/s")] {
            if width > 0 {
                text.push_str(&format!(" {}", right(&ascii(name, theme), width, theme)));
            }
        }
        text.push_str("  here");
        inked(theme, Role::Dim, text)
    }
}

/// The longest row that fits.
pub(super) fn row_cell(outlook: Option<&MethodOutlook>, theme: &Theme) -> (Role, String) {
    match outlook {
        None => (Role::Dim, theme.glyph("–", "-").to_owned()),
        Some(outlook) => match outlook.longest_pack {
            Some(longest) if outlook.fits() => (Role::Good, count(longest.into())),
            // It fits, but not the longest example.
            Some(longest) => (Role::Warn, format!("!{}", count(longest.into()))),
            None => (Role::Bad, "no".to_owned()),
        },
    }
}

pub(super) fn speed_cell(outlook: &MethodOutlook) -> String {
    let word = match outlook.basis {
        RateBasis::MeasuredHere | RateBasis::Measured => "measured",
        RateBasis::OriginalRecipe => "recipe",
        RateBasis::Estimate => "estimate",
        RateBasis::Unknown => return "unknown".into(),
    };
    match outlook.tokens_per_s {
        Some(rate) => format!("{} {word}", tokens_per_s(rate)),
        None => "–".into(),
    }
}

pub(super) fn cache_cell(cached: Cached, model: &CatalogModel, theme: &Theme) -> String {
    match cached {
        Cached::Whole { .. } => missing_cell(0, theme),
        Cached::Partial { bytes: part } => {
            let share = (part as f64 / model.weight_bytes.max(1) as f64).min(0.99);
            format!("{} here", percent(share))
        }
        Cached::Nothing => missing_cell(model.weight_bytes, theme),
    }
}

/// Describes how much is still to be downloaded.
pub(super) fn missing_cell(missing_bytes: u64, theme: &Theme) -> String {
    match missing_bytes {
        0 => format!("{}here", theme.glyph("✓ ", "")),
        bytes_left if theme.unicode => format!("↓ {}", bytes(bytes_left)),
        _ => "not here".to_owned(),
    }
}

/// Describes the needs of one way of training in one line.
pub(super) fn method_in_words(outlook: &MethodOutlook) -> String {
    let name = match outlook.rank {
        0 => "full".to_owned(),
        rank => format!("LoRA, rank {rank}"),
    };
    match outlook.pack_length {
        Some(length) => format!(
            "{name}: {} of {} at pack length {}{}",
            bytes(outlook.memory.needed_bytes()),
            bytes(outlook.memory.available_bytes),
            count(length.into()),
            if outlook.recompute { ", with recompute" } else { "" }
        ),
        None => format!("{name}: {}", outlook.fit_in_words()),
    }
}

/// The text with the one sign spelled out that plain terminals lack.
pub(super) fn ascii(text: &str, theme: &Theme) -> String {
    if theme.unicode { text.to_owned() } else { text.replace('≤', "<=") }
}
