//! Chooses the tile of each matrix product of a run by measuring on the device, once for each GPU, driver and
//! build, and whether the vendor's library computes it instead (`products`).
//!
//! The first step of a stage runs with the known tiles, and the kernels record the products that have none.
//! Before the second step those products are timed, one after the other, on separate numbers. Measuring
//! neither reads nor changes the run, and no tile changes a bit of a result, so a run is the same with and
//! without it. Where the library may be used, the products of a stage are timed before its first step, in all
//! tiles and by the library, whatever is known from other runs. Without CUDA there is nothing to measure.

use std::io::ErrorKind;
use std::path::PathBuf;

use burn::tensor::Device;
use sparktune_base::files::write_shared;
use sparktune_base::regular_file::read_regular;

use crate::cuda::tuning::{Problem, learn, learned};
use crate::session::Session;

/// The last line of a file while tiles are being measured.
const UNFINISHED: &str = "measuring\n";
/// The most bytes of the file. A tile has a line of less than a hundred.
const MOST_BYTES: u64 = 1 << 20;

/// The file of measured tiles. Its first line names device, driver, compiler and build; each further line is
/// a product.
#[derive(Debug, Clone)]
pub struct TileFile {
    /// The device, driver, compiler and build, in one line.
    pub on: String,
    /// Its path.
    pub path: PathBuf,
}

impl TileFile {
    /// Loads the tiles of the file if it was written on this device and is intact. Returns whether more may
    /// be measured. This is false after a measurement that never finished, because the measurement itself may
    /// have ended that run.
    pub(crate) fn read(&self, session: &Session) -> bool {
        let path = self.path.display();
        let warn_unusable =
            |why: String| session.warn(format!("{path} {why}; tiles will be measured again"), None);
        learn("").expect("an empty file has no wrong line");
        let text = match read_regular(&self.path, MOST_BYTES) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    warn_unusable(format!("cannot be read ({error})"));
                }
                return true;
            }
        };
        let (on, lines) = text.split_once('\n').unwrap_or((&text, ""));
        if on != self.on {
            session.phase(
                "tiles",
                format!("{path} belongs to another GPU, driver or build, and will be rewritten"),
            );
            return true;
        }
        let unfinished = lines.strip_suffix(UNFINISHED);
        if let Err(line) = learn(unfinished.unwrap_or(lines)) {
            warn_unusable(format!(
                "is not used because line {} names a tile that this build does not have",
                line + 1
            ));
        } else if unfinished.is_some() {
            session.warn(
                format!(
                    "no more tiles are measured, nor cuBLASLt, because the last measurement never finished; matrix products that were not measured use the estimated tile. Delete {path} to measure again"
                ),
                None,
            );
            return false;
        }
        true
    }

    /// Measures the tiles of `products` on the device and writes all known tiles. A requested stop ends it
    /// after the current product; then it returns false.
    pub(crate) fn measure(&self, session: &Session, device: &Device, products: &[Problem]) -> bool {
        let total = products.len() as u64;
        session
            .phase("tiles", format!("timing {total} matrix products in several ways each, on {}", self.on));
        self.write(session, UNFINISHED);
        // The buffers of the previous step make room for the operands, and later the operands for the next
        // step.
        device.memory_cleanup();
        let (mut measured, mut improved) = (0, 0);
        for product in products {
            session.progress("tiles", measured, total, "products");
            if session.is_stop_requested() {
                break;
            }
            improved += u64::from(product.measure(device));
            measured += 1;
        }
        device.memory_cleanup();
        self.write(session, "");
        let found = format!(
            "{improved} of {measured} matrix products are faster in another way than with the estimated tile"
        );
        session.phase("tiles", found);
        measured == total
    }

    fn write(&self, session: &Session, last_line: &str) {
        let text = format!("{}\n{}{last_line}", self.on, learned());
        // Another run may read or write it at the same time.
        if let Err(error) = write_shared(&self.path, text) {
            let path = self.path.display();
            session
                .warn(format!("{path} cannot be written, so the next run will measure again: {error}"), None);
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::fs;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use sparktune_runlog::{EventTailer, Kind, Limit, RunsRoot};

    use super::*;
    use crate::ranks::Ranks;

    const ON: &str = "a GPU, driver 1, this build";

    #[test]
    fn a_file_that_cannot_be_trusted_is_not_used_and_written_anew() {
        let root = tempfile::tempdir().unwrap();
        let good = "linear_forward 64,64 1 9 16,64,64,1,4,4\n";
        for (text, says, left) in [
            (format!("another GPU\n{good}"), "another GPU, driver or build", format!("{ON}\n")),
            (
                format!("{ON}\n{good}linear_forward 64,64 1 99 512,512,32,2,2,3\n"),
                "line 3",
                format!("{ON}\n"),
            ),
            (format!("{ON}\n{good}meas"), "line 3", format!("{ON}\n")),
            // The same again would end the same way; what is known stays.
            (format!("{ON}\n{good}measuring\n"), "never finished", format!("{ON}\n{good}measuring\n")),
            (format!("{ON}\n{good}"), "", format!("{ON}\n{good}")),
        ] {
            let run = RunsRoot::new(root.path()).create("tiny", "test").unwrap();
            run.write_plan(include_str!("../../tests/fixtures/run-261c35e/run/plan.toml")).unwrap();
            let stop = AtomicBool::new(false);
            let session = Session::open(&run, &stop, Some(1), Ranks::Alone).unwrap();
            let file = TileFile { on: ON.into(), path: root.path().join(".tiles") };
            fs::write(&file.path, &text).unwrap();
            if file.read(&session) {
                // Of a run whose products are all known, or that is to stop at once.
                file.measure(&session, &Device::flex(), &[]);
            }
            drop(session);
            let limit = Limit { lines: 1000, time: Duration::from_secs(10) };
            let told: Vec<String> = EventTailer::new(&run)
                .poll(limit)
                .unwrap()
                .records
                .into_iter()
                .filter_map(|record| match record.event.kind {
                    Kind::Warning(warning) => Some(warning.message),
                    Kind::Phase(phase) => phase.detail,
                    _ => None,
                })
                .collect();
            assert!(told.iter().any(|words| words.contains(says)), "{says}: {told:?}");
            assert_eq!(fs::read_to_string(&file.path).unwrap(), left, "{says}");
        }
    }
}
