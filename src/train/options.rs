//! What the caller of a training may say beside the plan.

use std::fmt;
use std::sync::Arc;

use sparktune_cluster::{Collective, Error as ClusterError, RankCounts};

use crate::self_test::BeforeFirstRun;
use crate::tiles::TileFile;

/// The resources of the machine for a run, in addition to its plan.
#[derive(Debug, Clone, Default)]
pub struct TrainOptions {
    /// The memory to leave to other processes, in bytes; `None` uses the plan's rule.
    pub reserve_bytes: Option<u64>,
    /// The self-tests before the first run on a CUDA device.
    pub before_first_run: Option<BeforeFirstRun>,
    /// The file of measured tiles of matrix products on a CUDA device; `None` measures none.
    pub tiles: Option<TileFile>,
    /// Whether to go on although the plan, the tokens or the base are not those that the run started with.
    pub accept_changes: bool,
    /// The numbers of ranks whose order of sums one process has to keep; `None` adds everything in one sum.
    /// It gives the bits of a cluster of so many.
    pub sum_as: Option<RankCounts>,
    /// What all ranks do together whenever they have met again.
    pub after_meeting: Option<AfterMeeting>,
    /// Whether the GPU rounds gradients, in an arena of the host, where they are summed in the network;
    /// `None` does what is measured to be faster.
    pub arena: Option<bool>,
}

/// What all ranks do together when they have met again, before the run continues: what they did when they met
/// first.
#[derive(Clone)]
pub struct AfterMeeting(pub Arc<WorkTogether>);

/// What a rank does with the others.
pub type WorkTogether = dyn Fn(&mut dyn Collective) -> Result<(), ClusterError> + Send + Sync;

impl fmt::Debug for AfterMeeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AfterMeeting")
    }
}
