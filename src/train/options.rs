//! What the caller of a training may say beside the plan.

use crate::self_test::BeforeFirstRun;
use crate::tiles::TileFile;

/// The resources that the machine offers a run, beyond its plan.
#[derive(Debug, Clone, Default)]
pub struct TrainOptions {
    /// Bytes of memory to be left to others; without it, as many as the plan's rule says.
    pub reserve_bytes: Option<u64>,
    /// The self-tests before the first run on a CUDA device.
    pub before_first_run: Option<BeforeFirstRun>,
    /// Where the tiles of matrix products on a CUDA device are remembered; without it none are measured.
    pub tiles: Option<TileFile>,
}
