//! Where the ranks of a swarm have met, as a rank other than 0 keeps it, in its hidden folder: if it is
//! killed and started again, another rank may have taken rank 0's place, and lets it in where it listened.
//!
//! Nothing here has to be true. Whoever listens at such a place must prove the token.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sparktune_base::files::write_shared_and_sync;
use sparktune_base::regular_file::read_regular;
use sparktune_cluster::{Collective, Placement};
use sparktune_runlog::RunDir;

/// The name of the file.
const FILE: &str = "meeting.json";
/// The most bytes of one that is read.
const MOST_BYTES: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Meeting {
    /// What the launcher said, and the number that it gave to this rank: with others, this is another job, or
    /// another rank of this machine.
    first: (String, u16),
    launched_as: usize,
    places: Vec<(String, u16)>,
}

/// Keeps where the ranks have met. Without it, only rank 0 can let this rank in again.
pub(crate) fn keep(run: &RunDir, placement: &Placement, ranks: &dyn Collective) {
    let Placement { host, port, rank, .. } = placement;
    let meeting = Meeting { first: (host.clone(), *port), launched_as: *rank, places: ranks.addresses() };
    let text = serde_json::to_vec(&meeting).expect("plain fields serialise");
    let _ = write_shared_and_sync(&run.path().join(FILE), text);
}

/// Returns where the ranks of this job have met last, as far as this rank knows.
pub(crate) fn known(runs_dir: &Path, placement: &Placement) -> Vec<(String, u16)> {
    let newest = folders(runs_dir, placement).into_iter().max_by_key(|folder| folder.met);
    newest.map(|folder| folder.places).unwrap_or_default()
}

/// A hidden folder of a rank that has met others.
pub(crate) struct Folder {
    pub path: PathBuf,
    met: SystemTime,
    places: Vec<(String, u16)>,
}

/// Returns the folders of this rank of this job.
pub(crate) fn folders(runs_dir: &Path, placement: &Placement) -> Vec<Folder> {
    let entries = fs::read_dir(runs_dir).into_iter().flatten().flatten();
    let hidden = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".rank-"));
    let own = hidden.filter_map(|entry| {
        let path = entry.path().join(FILE);
        let met = fs::symlink_metadata(&path).ok()?.modified().ok()?;
        let meeting: Meeting = serde_json::from_slice(&read_regular(&path, MOST_BYTES).ok()?).ok()?;
        let is_own = meeting.first == (placement.host.clone(), placement.port)
            && meeting.launched_as == placement.rank;
        is_own.then(|| Folder { path: entry.path(), met, places: meeting.places })
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use sparktune_cluster::{Launcher, Traffic};
    use sparktune_runlog::RunsRoot;

    use super::*;

    struct Ranks(Vec<(String, u16)>);

    impl Collective for Ranks {
        fn rank(&self) -> usize {
            1
        }
        fn world_size(&self) -> usize {
            2
        }
        fn all_reduce(&mut self, _: &mut [f32]) -> Result<(), sparktune_cluster::Error> {
            Ok(())
        }
        fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, sparktune_cluster::Error> {
            Ok(vec![own.to_vec(); 2])
        }
        fn leave(&mut self, _: Option<&str>) {}
        fn traffic(&self) -> Traffic {
            Traffic::default()
        }
        fn addresses(&self) -> Vec<(String, u16)> {
            self.0.clone()
        }
    }

    #[test]
    fn a_rank_that_is_started_again_knows_where_its_job_met_last_and_no_other_job() {
        let root = tempfile::tempdir().unwrap();
        let place = |port: u16| ("10.0.0.2".to_owned(), port);
        let placement = |rank, port| Placement {
            rank,
            world_size: 3,
            local_rank: 0,
            host: "spark1".into(),
            port,
            launcher: Launcher::Torchrun,
        };
        let (run, _) = RunsRoot::new(root.path()).of_rank("run", 1).unwrap();
        assert!(known(root.path(), &placement(1, 29_500)).is_empty());
        keep(&run, &placement(1, 29_500), &Ranks(vec![place(1)]));
        keep(&run, &placement(1, 29_500), &Ranks(vec![place(2), place(3)]));
        assert_eq!(known(root.path(), &placement(1, 29_500)), [place(2), place(3)]);
        assert!(known(root.path(), &placement(1, 29_501)).is_empty());
        assert!(known(root.path(), &placement(2, 29_500)).is_empty());
        let path = run.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let changes = ["", "0", "-", "\"", "{", "]", "\\", "\u{1b}", "99999999999999999999"];
        for (at, change) in (0..text.len()).flat_map(|at| changes.map(|change| (at, change))) {
            std::fs::write(&path, format!("{}{change}{}", &text[..at], &text[at + 1..])).unwrap();
            assert!(known(root.path(), &placement(1, 29_500)).len() <= 3, "{at} {change}");
        }
    }
}
