//! By whom the matrix products of a run are computed: by our kernels, or by the vendor's library where that
//! was measured to be faster.
//!
//! The two differ in the last bits, so what was decided is kept in the run's folder, and an attempt that
//! continues the run decides as the record says. **A stage decides before it computes anything**, for the
//! products of its longest micro-batch, with nothing known from other runs; what it has not decided then, our
//! kernels compute. So every step of a stage is computed by the same record. It must not measure; `tiles`
//! does.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use sparktune_base::files::{sync, write_and_sync};
use sparktune_base::regular_file::read_regular;
use sparktune_base::units::counted;
use sparktune_plan::Products;
use sparktune_runlog::RunDir;

use crate::cuda::cublaslt::{seek, version_in_words};
use crate::cuda::tuning::{by_library, decide_as, decisions, refusals, settle_decisions, use_library};
use crate::error::TrainError;
use crate::session::Session;
use crate::state::Stage;

/// The first line of a record by which our kernels compute everything, because a user has accepted that.
const OWN: &str = "own";
/// The most bytes of a record.
const MOST_BYTES: u64 = 16 << 20;

/// The file in the run's folder: a line with the library's version and the GPU, then a line for each product.
fn file(run: &RunDir, stage: Stage) -> PathBuf {
    run.path().join(match stage {
        Stage::Main => "products",
        Stage::Mtp => "products-head",
    })
}

/// Who may compute the products of an attempt beside our kernels.
pub(crate) struct Library {
    version: usize,
    gpu: String,
    /// Whether a stage without a record may decide.
    may_decide: bool,
    /// How many products the library has refused, as far as that is recorded.
    refused: usize,
}

/// What an attempt may do, beside what the plan says.
pub(crate) struct Allowed {
    /// It may leave products to the library: several ranks have to compute the same bits.
    pub(crate) to_use: bool,
    /// It may measure, and so decide.
    pub(crate) to_decide: bool,
    /// It goes on by our kernels where a record cannot be followed.
    pub(crate) to_differ: bool,
}

/// Finds out whether products may be left to the library, and whether what the run has decided before can be
/// followed. `None` leaves all products to our kernels.
///
/// # Errors
/// The record is of another GPU or version of the library, or damaged.
pub(crate) fn prepare(
    session: &Session,
    device: &Device,
    allowed: &Allowed,
) -> Result<Option<Library>, TrainError> {
    use_library(None);
    settle_decisions();
    decide_as("").expect("no line is wrong");
    let may_use = allowed.to_use && session.plan.products == Products::Auto;
    let found = may_use.then(|| seek(device, &[])).flatten();
    let gpu = session.gpu_name();
    for stage in [Stage::Main, Stage::Mtp] {
        let path = file(session.run, stage);
        let Some(text) = read(&path)? else { continue };
        let (of, lines) = text.split_once('\n').unwrap_or((&text, ""));
        if of == OWN {
            return Ok(None);
        }
        let Some(why) = cannot_follow(of, lines, session.plan.products, allowed, found, &gpu) else {
            continue;
        };
        // That several ranks train the run from here on was said, and gives other bits anyway.
        if allowed.to_use && !allowed.to_differ {
            return Err(TrainError::OtherProducts { path, reason: why });
        }
        session.warn(
            format!(
                "cuBLASLt has computed matrix products of this run, but {why}: from here on sparktune's kernels compute all of them. The results are as exact, but their last bits differ from those of a run that was not interrupted"
            ),
            None,
        );
        for stage in [Stage::Main, Stage::Mtp] {
            write(session, stage, &format!("{OWN}\n"))?;
        }
        return Ok(None);
    }
    let Some(version) = found else {
        if may_use {
            session.phase(
                "products",
                "cuBLASLt was not found, so sparktune's kernels compute all matrix products",
            );
        }
        return Ok(None);
    };
    use_library(Some(version));
    // An attempt that has trained the text model already exports it.
    follow(session.run, Stage::Main)?;
    Ok(Some(Library { version, gpu, may_decide: allowed.to_decide, refused: 0 }))
}

/// Lets products be computed as the record of a stage says, and returns whether it has one. It has been read
/// before.
fn follow(run: &RunDir, stage: Stage) -> Result<bool, TrainError> {
    let text = read(&file(run, stage))?;
    let lines = text.as_deref().and_then(|text| text.split_once('\n')).map_or("", |(_, lines)| lines);
    decide_as(lines).expect("the record was read before");
    Ok(text.is_some())
}

/// Says in words why a record cannot be followed; `None` if it can.
fn cannot_follow(
    of: &str,
    lines: &str,
    plan: Products,
    allowed: &Allowed,
    found: Option<usize>,
    gpu: &str,
) -> Option<String> {
    let made = of.split_once(' ').and_then(|(version, gpu)| Some((version.parse::<usize>().ok()?, gpu)));
    let Some((version, on)) = made else { return Some("the record of who computes them is damaged".into()) };
    let was = version_in_words(version);
    match found {
        _ if !allowed.to_use => Some("the ranks of a cluster may not use it".to_owned()),
        _ if plan == Products::Own => Some("the plan now says that it may not".to_owned()),
        None => Some(format!("cuBLASLt {was} was not found")),
        Some(found) if found != version => {
            Some(format!("that was cuBLASLt {was}, and cuBLASLt {} was found", version_in_words(found)))
        }
        Some(_) if on != gpu => Some(format!("that was on {on}, and this is {gpu}")),
        Some(_) => {
            let damaged = decide_as(lines).err();
            decide_as("").expect("no line is wrong");
            damaged.map(|line| format!("line {} of the record of who computes them is damaged", line + 1))
        }
    }
}

impl Library {
    /// Lets the products of a stage be computed as its record says. Returns whether it has none and is to
    /// decide, which a stage may only before its first step.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn begin(&mut self, session: &Session, stage: Stage, step: u64) -> Result<bool, TrainError> {
        if !follow(session.run, stage)? {
            return Ok(self.may_decide && step == 0);
        }
        self.refused = refusals();
        self.tell(session);
        Ok(false)
    }

    /// Keeps what has been decided for a stage with the run.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(crate) fn record(&mut self, session: &Session, stage: Stage) -> Result<(), TrainError> {
        self.refused = refusals();
        self.tell(session);
        write(session, stage, &format!("{} {}\n{}", self.version, self.gpu, decisions()))
    }

    /// Keeps what the library has refused since the last record: those products are ours in every attempt.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(crate) fn record_refusals(&mut self, session: &Session, stage: Stage) -> Result<(), TrainError> {
        if refusals() > self.refused {
            self.record(session, stage)?;
        }
        Ok(())
    }

    fn tell(&self, session: &Session) {
        let (of_library, all) = by_library();
        let version = version_in_words(self.version);
        let refused = match self.refused {
            0 => String::new(),
            refused => {
                format!(", and {} in which it refuses its algorithm", counted(refused as u64, "case"))
            }
        };
        session.phase(
            "products",
            format!(
                "cuBLASLt {version} computes {of_library} of {} of matrix products: those in which it was faster and its numbers differ by rounding alone; sparktune's kernels compute the others{refused}",
                counted(all as u64, "kind")
            ),
        );
    }
}

fn read(path: &Path) -> Result<Option<String>, TrainError> {
    match read_regular(path, MOST_BYTES) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TrainError::io(path)(error)),
    }
}

/// Writes a record so that it survives a power cut: without it, a continued run would have other bits.
fn write(session: &Session, stage: Stage, text: &str) -> Result<(), TrainError> {
    let path = file(session.run, stage);
    let written = write_and_sync(&path, text).and_then(|()| sync(session.run.path()));
    written.map_err(TrainError::io(path))
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::fs;
    use std::sync::atomic::AtomicBool;

    use sparktune_runlog::RunsRoot;

    use super::*;
    use crate::ranks::Ranks;

    /// What a stage computes depends on its own record, also when a run returns to the one before.
    #[test]
    fn each_stage_decides_once_and_follows_its_own_record() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("tiny", "test").unwrap();
        run.write_plan(include_str!("../../tests/fixtures/run-261c35e/run/plan.toml")).unwrap();
        let stop = AtomicBool::new(false);
        let session = Session::open(&run, &stop, Some(1), Ranks::Alone).unwrap();
        let mut library = Library { version: 130_002, gpu: "a GPU".into(), may_decide: true, refused: 0 };
        use_library(Some(130_002));
        let of_main = "linear_forward 8,8 1 9 by own:130002\nlinear_forward 8,8 1 11 refused\n".to_owned();
        let of_head = "linear_forward 16,8 1 9 by own:130002\n".to_owned();
        for (stage, lines) in [(Stage::Main, &of_main), (Stage::Mtp, &of_head)] {
            assert!(!library.begin(&session, stage, 1).unwrap(), "steps have been computed by ours");
            assert!(library.begin(&session, stage, 0).unwrap());
            assert_eq!(decisions(), "", "nothing holds of the stage before");
            decide_as(lines).unwrap();
            library.record(&session, stage).unwrap();
        }
        for (stage, lines) in [(Stage::Main, &of_main), (Stage::Mtp, &of_head), (Stage::Main, &of_main)] {
            assert!(!library.begin(&session, stage, 0).unwrap());
            assert_eq!(&decisions(), lines);
            let kept = fs::read_to_string(file(&run, stage)).unwrap();
            assert_eq!(kept, format!("130002 a GPU\n{lines}"));
        }
        // What is known to be refused is not written again.
        fs::remove_file(file(&run, Stage::Main)).unwrap();
        library.record_refusals(&session, Stage::Main).unwrap();
        assert!(!file(&run, Stage::Main).exists());
        library.refused = 0;
        library.record_refusals(&session, Stage::Main).unwrap();
        assert_eq!(fs::read_to_string(file(&run, Stage::Main)).unwrap(), format!("130002 a GPU\n{of_main}"));
        use_library(None);
    }
}
