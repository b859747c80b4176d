//! The chapter about token files at the speed of the machine, which `bench loading` measures.

use sparktune_base::units::count;

use crate::document::{Block, Section};
use crate::speeds::{Goal, Speed, Speeds};
use crate::verdict::three;

const NONE: &str = "–";

/// The chapter, if something was measured.
pub(crate) fn at_the_machine(speeds: &Speeds) -> Option<Section> {
    let measured_on = speeds.measured_on()?;
    let mut blocks = vec![
        Block::text(
            "How near loading comes to what memory allows. Bytes that are read and bytes that are written are counted together, and a memory copy of the same run moves as many; reading writes what it reads into memory of the caller, and building rows writes positions, borders and masks besides. QubGPU's way is its own: packets of version 1, unpacked, checked and padded in Python.",
        ),
        Block::text(format!("Measured on {measured_on}.")),
        Block::Table {
            caption: "Token files beside a memory copy of the same run".into(),
            head: ["", "measured", "goal", "reached"].map(str::to_owned).into(),
            rows: speeds.rows.iter().filter(|row| row.unit != "cores").map(cells).collect(),
        },
    ];
    if let Some(why) = speeds.no_device() {
        blocks.push(Block::text(format!(
            "The way on to a GPU (pageable, through pinned memory, pages of the file pinned in place, and read in place by a kernel) was not measured: {why}."
        )));
    }
    Some(Section { id: "machine-speed", title: "Loading at the speed of the machine".into(), blocks })
}

fn cells(row: &Speed) -> Vec<String> {
    let with_unit = |value: f64| {
        let digits =
            if value >= 100.0 || value.fract() == 0.0 { count(value.round() as u64) } else { three(value) };
        format!("{digits} {}", row.unit).trim_end().to_owned()
    };
    let goal = row.target.map_or(NONE.into(), |goal| match goal {
        Goal::LessThan(limit) => format!("< {}", with_unit(limit)),
        Goal::AtMost(limit) => format!("≤ {}", with_unit(limit)),
        Goal::AtLeast(limit) => format!("≥ {}", with_unit(limit)),
    });
    let reached = row.met.map_or(NONE, |met| if met { "yes" } else { "no" });
    let indent = if row.what.starts_with(' ') { "· " } else { "" };
    let what = format!("{indent}{}", row.what.trim_start());
    vec![what, row.value.map_or(NONE.into(), with_unit), goal, reached.into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::speeds;

    #[test]
    fn every_row_stands_with_its_goal_and_whether_it_was_reached() {
        let section = at_the_machine(&speeds()).unwrap();
        let tables = section.blocks.iter().filter_map(|block| match block {
            Block::Table { rows, .. } => Some(rows),
            _ => None,
        });
        let rows = tables.flatten().map(|row| row.join(" | ")).collect::<Vec<_>>();
        assert_eq!(
            rows,
            [
                "memory copy | 12,000 MB/s | – | –",
                "· ratio to the memory copy | 0.71 × | ≥ 0.80 × | no",
                "· the first time | 2,400 MB/s | – | –",
                "version 1, read and checked | 1,080 MB/s | ≥ 1,000 MB/s | yes",
                "· QubGPU's way | 27 MB/s | – | –",
                "to the device: pageable | 10,000 MB/s | – | –",
                "· copies on the host | 1 | – | –",
                "to the device: pages of the file pinned in place | – | – | –",
                "to the device: read in place by a kernel | 20,000 MB/s | – | –",
                "· copies on the host | 0 | – | –",
            ]
        );
        assert!(at_the_machine(&Speeds::default()).is_none());
    }

    #[test]
    fn without_a_device_the_chapter_says_so() {
        let mut speeds = speeds();
        speeds.rows.retain(|row| !row.what.starts_with("to the device") && !row.what.contains("copies"));
        let row = Speed {
            what: "to the device".into(),
            value: None,
            unit: "MB/s".into(),
            target: None,
            met: None,
            note: "skipped: no CUDA device responds".into(),
        };
        speeds.rows.push(row);
        let text = serde_json::to_string(&at_the_machine(&speeds)).unwrap();
        assert!(text.contains("was not measured: no CUDA device responds."), "{text}");
    }
}
