//! Which tile each matrix product of a run is computed in: measured on the device, once for each GPU, driver and build.
//!
//! The first step of a stage runs as what is known makes it, and tells by that what is not known yet; before the second step
//! those products are timed, one after the other, with numbers of their own. Nothing of the run enters or leaves, and no tile
//! changes a bit of a result, so a run goes the same way with and without.

use crate::session::Session;
use burn::tensor::Device;
use sparktune_kernels::linear::tuning::{Problem, learn, learned};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// The last line of a file while tiles are being measured.
const UNFINISHED: &str = "measuring\n";

/// The file that remembers tiles: device, driver, compiler and build in its first line, then a line for each product.
#[derive(Clone, Debug)]
pub struct TileFile {
    /// Device, driver, compiler and build, in one line.
    pub on: String,
    /// Where it is.
    pub path: PathBuf,
}

impl TileFile {
    /// Takes the tiles of the file, where it is this device's and whole. Says whether more may be measured: not where the last
    /// time came to no end, for then measuring itself may be what ended it.
    pub(crate) fn read(&self, session: &Session) -> bool {
        let path = self.path.display();
        let again = |why: String| session.warn(format!("{path} {why}: tiles are measured again"), None);
        learn("").expect("no line is no wrong line");
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    again(format!("cannot be read ({error})"));
                }
                return true;
            }
        };
        let (on, lines) = text.split_once('\n').unwrap_or((&text, ""));
        if on != self.on {
            session.phase("tiles", format!("{path} is of another GPU, driver or build, and is written anew"));
            return true;
        }
        let finished = lines.strip_suffix(UNFINISHED);
        if let Err(line) = learn(finished.unwrap_or(lines)) {
            again(format!("is not used, for line {} names no tile of this build", line + 1));
        } else if finished.is_some() {
            session.warn(
                format!(
                    "no more tiles are measured, for the last time came to no end; products without one take the estimated one. Delete {path} to measure again"
                ),
                None,
            );
            return false;
        }
        true
    }

    /// Measures these products on the device, and writes what is known then. A stop that is asked for ends it after the
    /// product at hand.
    pub(crate) fn measure(&self, session: &Session, device: &Device, products: &[Problem]) {
        let total = products.len() as u64;
        session.phase(
            "tiles",
            format!("timing {total} matrix products in several tiles each, once on {}", self.on),
        );
        self.write(session, UNFINISHED);
        // What the step before left behind makes room, and so does what is measured with.
        device.memory_cleanup();
        let (mut measured, mut others) = (0, 0);
        for product in products {
            session.progress("tiles", measured, total, "products");
            if session.is_to_stop() {
                break;
            }
            others += u64::from(product.measure(device));
            measured += 1;
        }
        device.memory_cleanup();
        self.write(session, "");
        let found =
            format!("{others} of {measured} products are faster in another tile than the estimated one");
        session.phase("tiles", found);
    }

    fn write(&self, session: &Session, end: &str) {
        let text = format!("{}\n{}{end}", self.on, learned());
        // In one piece, whoever else measures here.
        let partial = self.path.with_extension(std::process::id().to_string());
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&partial, &self.path));
        if let Err(error) = written {
            let path = self.path.display();
            session.warn(format!("the next run measures again, for {path} cannot be written: {error}"), None);
        }
    }
}
