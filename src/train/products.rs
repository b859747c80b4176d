//! By whom the matrix products of a run are computed: by our kernels, or by the vendor's library where that
//! was measured to be faster.
//!
//! The two differ in the last bits, so what was decided is kept in the run's folder, and an attempt that
//! continues the run decides as the record says. It must not measure; `tiles` does.

use std::fs;
use std::path::PathBuf;

use burn::tensor::Device;
use sparktune_base::files::write_shared;
use sparktune_plan::Products;
use sparktune_runlog::RunDir;

use crate::cuda::cublaslt::{seek, version_in_words};
use crate::cuda::tuning::{by_library, decide_as, decisions, settle_decisions, use_library};
use crate::session::Session;

/// The file in the run's folder: a line with the library's version, then a line for each product.
fn file(run: &RunDir) -> PathBuf {
    run.path().join("products")
}

/// Says for an attempt whether products may be left to the library, and decides as the run did before. The
/// machine's measurements have been read.
pub(crate) fn prepare(session: &Session, device: &Device, may_use: bool) {
    use_library(None);
    let before = fs::read_to_string(file(session.run)).ok();
    let before = before.as_deref().and_then(|text| {
        let (version, lines) = text.split_once('\n')?;
        Some((version.parse::<usize>().ok()?, lines))
    });
    let may_use = may_use && session.plan.products == Products::Auto;
    let found = may_use.then(|| seek(device, &[])).flatten();
    match (before, found) {
        (None, None) => return,
        (None, version) => use_library(version),
        (Some((of, lines)), Some(version)) if of == version && decide_as(lines).is_ok() => {
            use_library(Some(version));
            // What the run has not decided by now it would not decide either without the interruption.
            settle_decisions();
        }
        (Some((of, _)), found) => {
            let why = match found {
                _ if !may_use => "this attempt may not use it".to_owned(),
                None => "it was not found".to_owned(),
                Some(version) if version != of => format!("cuBLASLt {} was found", version_in_words(version)),
                Some(_) => "the file `products` in the run's folder is damaged".to_owned(),
            };
            session.warn(
                format!(
                    "cuBLASLt {} has computed matrix products of this run, but {why}: from here on sparktune's kernels compute all of them. The results are as exact, but their last bits differ from those of a run that was not interrupted",
                    version_in_words(of)
                ),
                None,
            );
            return;
        }
    }
    record(session);
}

/// Keeps what has been decided so far with the run.
pub(crate) fn record(session: &Session) {
    let decided = decisions();
    let Some(version) = library_of(&decided) else { return };
    let (of_library, all) = by_library();
    session.phase(
        "products",
        format!(
            "cuBLASLt {} computes {of_library} of {all} kinds of matrix products, where it was measured to be faster; sparktune's kernels compute the others",
            version_in_words(version)
        ),
    );
    let path = file(session.run);
    if let Err(error) = write_shared(&path, format!("{version}\n{decided}")) {
        session.warn(
            format!(
                "{} cannot be written, so a continued run may have other last bits: {error}",
                path.display()
            ),
            None,
        );
    }
}

/// The version that decisions were made with.
fn library_of(decisions: &str) -> Option<usize> {
    let by = decisions.lines().next()?.rsplit(' ').next()?;
    by.split(':').find_map(|part| part.parse().ok())
}
