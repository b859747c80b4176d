//! Checkpoints that are either complete or do not exist.
//!
//! ```text
//! checkpoints/.tmp-step-001200-9f3a/   files being written; worthless until renamed
//! checkpoints/step-001200/             committed: files, then manifest.json, all flushed before the rename
//! checkpoints/damaged-step-001200/     failed its manifest on a resume; kept for a person to look at
//! checkpoints/later-step-001200/       set aside because the run went back to an earlier step
//! ```
//!
//! If the process is killed or the power fails at any moment, every committed checkpoint is unchanged and at
//! most some `.tmp-` folders are left, which the next [`Checkpoints::clean`] removes. Deleting renames the
//! folder first, so an incomplete deletion never looks like damage. Reading needs no lease; every change
//! takes the [`Lease`] as proof.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sparktune_base::files::{exchange, private_file, private_folder, sync};

use crate::error::{Doing, Error, Result};
use crate::lease::Lease;
use crate::manifest::{Damage, MANIFEST, Manifest};
use crate::run_dir::{RunDir, random_hex};

const TEMP: &str = ".tmp-";
const ASIDE: &str = ".aside-";
const DAMAGED: &str = "damaged-";
const LATER: &str = "later-";

/// A committed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The number of optimizer steps done.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// The size of its files in bytes, without the manifest.
    pub bytes: u64,
}

impl Checkpoint {
    /// Returns the folder name under `checkpoints/`, which events and users use.
    pub fn name(&self) -> String {
        folder_name(self.step)
    }
}

/// A damaged checkpoint that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The step in its folder name.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// The problem.
    pub damage: Damage,
}

/// The checkpoint to continue from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewestValid {
    /// The newest one that matches its manifest completely.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that do not match, newest first.
    pub skipped: Vec<Skipped>,
}

/// What a checkpoint says about itself, for the rule by which old ones are deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointRole {
    /// Whether it was saved between the steps of the plan: after some time, or on request.
    pub is_interim: bool,
    /// The steps in the names of the best checkpoints when it was saved: of the text model, and of the MTP
    /// head.
    pub best: Vec<u64>,
}

/// The checkpoints of one run.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    /// Steps that this process committed or verified, which need not be hashed again when old ones are
    /// deleted.
    sound: BTreeSet<u64>,
}

impl Checkpoints {
    /// Creates access to the checkpoints of a run.
    pub fn new(run: &RunDir) -> Self {
        Checkpoints { folder: run.checkpoints(), sound: BTreeSet::new() }
    }

    /// Returns the steps that have a committed folder, ascending. The contents are not checked.
    ///
    /// # Errors
    /// [`Error::Io`] when `checkpoints/` cannot be listed.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let mut steps: Vec<u64> = self.entries()?.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Checks every byte of one checkpoint against its manifest.
    ///
    /// # Errors
    /// [`Error::DamagedCheckpoint`] names the file that is missing, truncated or corrupt.
    pub fn verify(&mut self, step: u64) -> Result<Checkpoint> {
        let path = self.path_of(step);
        self.check(step).map_err(|damage| Error::DamagedCheckpoint { path, damage })
    }

    /// Finds the newest valid checkpoint, and the newer ones that are damaged.
    ///
    /// # Errors
    /// [`Error::Io`] when `checkpoints/` cannot be listed. Damage is not an error: it is listed in `skipped`.
    pub fn newest_valid(&mut self) -> Result<NewestValid> {
        let mut found = NewestValid::default();
        for step in self.steps()?.into_iter().rev() {
            match self.check(step) {
                Ok(checkpoint) => {
                    found.checkpoint = Some(checkpoint);
                    break;
                }
                Err(damage) => found.skipped.push(Skipped { step, path: self.path_of(step), damage }),
            }
        }
        Ok(found)
    }

    /// Starts a checkpoint: write its files into [`CheckpointWriter::path`], then commit. If it is dropped
    /// without a commit, nothing is left.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be created.
    pub fn begin(&mut self, step: u64, lease: &Lease) -> Result<CheckpointWriter<'_>> {
        self.assert_leased(lease);
        let temp = self.folder.join(format!("{TEMP}{}-{}", folder_name(step), random_hex::<4>()));
        private_folder().create(&temp).doing("create", &temp)?;
        Ok(CheckpointWriter { checkpoints: self, step, temp, committed: false })
    }

    /// Deletes old checkpoints. The newest `keep` (at least one) that are not interim are kept, and the
    /// newest of all, and in addition the best of each that is kept, because the run may go back to any. The
    /// newest valid one is determined by its contents and always kept; newer damaged ones are kept too and do
    /// not count. Returns the deleted steps.
    ///
    /// Interim checkpoints never cost one of the others its place, so that where a run can go back to follows
    /// from its steps and not from the clock.
    ///
    /// # Errors
    /// [`Error::Io`] when a folder cannot be listed or deleted.
    pub fn retain(
        &mut self,
        keep: usize,
        role_of: impl Fn(&Path) -> CheckpointRole,
        lease: &Lease,
    ) -> Result<Vec<u64>> {
        self.assert_leased(lease);
        let mut newest_first = self.steps()?.into_iter().rev();
        let is_sound = |step: &u64| self.sound.contains(step) || self.check(*step).is_ok();
        let Some(newest) = newest_first.by_ref().find(is_sound) else { return Ok(Vec::new()) };
        let role = role_of(&self.path_of(newest));
        let mut best: BTreeSet<u64> = role.best.into_iter().collect();
        let mut kept = usize::from(!role.is_interim);
        let mut others = Vec::new();
        for step in newest_first {
            let role = role_of(&self.path_of(step));
            // The best of a checkpoint is never newer than it, so those of all newer ones are known here.
            if best.contains(&step) {
                continue;
            }
            if kept < keep.max(1) && !role.is_interim && self.looks_whole(step) {
                kept += 1;
                best.extend(role.best);
            } else {
                others.push(step);
            }
        }
        let mut deleted = Vec::new();
        for step in others {
            self.delete(&self.path_of(step))?;
            self.sound.remove(&step);
            deleted.push(step);
        }
        Ok(deleted)
    }

    /// Renames damaged checkpoints to `damaged-step-…`, so that the resumed run can commit these steps again
    /// and the damaged files remain available. Returns the new folders.
    ///
    /// # Errors
    /// [`Error::Io`] when one cannot be renamed.
    pub fn set_aside(&self, skipped: &[Skipped], lease: &Lease) -> Result<Vec<PathBuf>> {
        self.assert_leased(lease);
        skipped.iter().map(|skipped| self.rename_aside(skipped.step, DAMAGED)).collect()
    }

    /// Checks every byte of the checkpoint of this step.
    ///
    /// # Errors
    /// [`Error::NoSuchCheckpoint`] lists the steps that have one; [`Error::DamagedCheckpoint`].
    pub fn named(&mut self, run: &RunDir, step: u64) -> Result<Checkpoint> {
        let existing = self.steps()?;
        if !existing.contains(&step) {
            return Err(Error::NoSuchCheckpoint { run: run.path().to_owned(), step, existing });
        }
        self.verify(step)
    }

    /// Makes the checkpoint of this step the newest: renames the later ones to `later-step-…`, from where a
    /// person can take them back. Returns the new folders.
    ///
    /// # Errors
    /// As [`named`](Self::named), before anything is renamed; [`Error::Io`] when one cannot be renamed.
    pub fn go_back_to(&mut self, step: u64, lease: &Lease) -> Result<Vec<PathBuf>> {
        self.assert_leased(lease);
        self.named(lease.run(), step)?;
        let later = self.steps()?.into_iter().filter(|other| *other > step);
        later.map(|step| self.rename_aside(step, LATER)).collect()
    }

    fn rename_aside(&self, step: u64, prefix: &str) -> Result<PathBuf> {
        let (from, name) = (self.path_of(step), folder_name(step));
        let mut to = self.folder.join(format!("{prefix}{name}"));
        while to.exists() {
            to = self.folder.join(format!("{prefix}{name}-{}", random_hex::<2>()));
        }
        fs::rename(&from, &to).doing("rename", from)?;
        Ok(to)
    }

    /// Removes the unfinished checkpoints and incomplete deletions of killed processes. Returns their number.
    /// A trainer calls this once after taking the lease, before it looks for the newest checkpoint.
    ///
    /// # Errors
    /// [`Error::Io`] when one cannot be removed.
    pub fn clean(&self, lease: &Lease) -> Result<usize> {
        self.assert_leased(lease);
        let mut removed = 0;
        for name in self.entries()? {
            let path = self.folder.join(&name);
            if let Some(original) = name.strip_prefix(ASIDE)
                && !self.folder.join(original).exists()
            {
                // The process was killed between the two renames of `replace`, so the old checkpoint is still
                // valid.
                fs::rename(&path, self.folder.join(original)).doing("restore", &path)?;
            } else if name.starts_with(TEMP) || name.starts_with(ASIDE) {
                fs::remove_dir_all(&path).doing("remove", &path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn assert_leased(&self, lease: &Lease) {
        // The same run may be reached by two paths.
        let same = self.folder == lease.checkpoints()
            || fs::canonicalize(&self.folder).ok() == fs::canonicalize(lease.checkpoints()).ok();
        assert!(same, "a lease is proof for its own run only");
    }

    fn entries(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).doing("list", &self.folder)? {
            names.extend(entry.doing("list", &self.folder)?.file_name().into_string());
        }
        Ok(names)
    }

    /// Returns the folder of the checkpoint of a step, whether it exists or not.
    pub fn path_of(&self, step: u64) -> PathBuf {
        self.folder.join(folder_name(step))
    }

    fn check(&mut self, step: u64) -> Result<Checkpoint, Damage> {
        self.sound.remove(&step);
        let path = self.path_of(step);
        let manifest = Manifest::read(&path)?;
        if manifest.step != step {
            return Err(Damage::BadManifest { reason: format!("it is of step {}", manifest.step) });
        }
        manifest.check_contents(&path)?;
        self.sound.insert(step);
        Ok(Checkpoint { step, path, bytes: manifest.total_bytes() })
    }

    fn looks_whole(&self, step: u64) -> bool {
        let path = self.path_of(step);
        Manifest::read(&path).and_then(|manifest| manifest.check_sizes(&path)).is_ok()
    }

    fn delete(&self, path: &Path) -> Result<()> {
        let doomed = self.folder.join(format!("{TEMP}deleted-{}", random_hex::<4>()));
        fs::rename(path, &doomed).doing("delete", path)?;
        fs::remove_dir_all(&doomed).doing("delete", &doomed)
    }

    /// Replaces the checkpoint of the same step by `temp`, so that one of the two exists at any moment.
    fn replace(&self, temp: &Path, step: u64) -> Result<()> {
        let path = self.path_of(step);
        if exchange(temp, &path).doing("replace", &path)? {
            sync(&self.folder).doing("flush to disk", &self.folder)?;
            return self.delete(temp);
        }
        // Two renames, which `clean` completes after a kill.
        let aside = self.folder.join(format!("{ASIDE}{}", folder_name(step)));
        fs::rename(&path, &aside).doing("replace", &path)?;
        fs::rename(temp, &path).doing("commit", &path)?;
        sync(&self.folder).doing("flush to disk", &self.folder)?;
        self.delete(&aside)
    }
}

/// A checkpoint being written.
#[derive(Debug)]
pub struct CheckpointWriter<'a> {
    checkpoints: &'a mut Checkpoints,
    step: u64,
    temp: PathBuf,
    committed: bool,
}

impl CheckpointWriter<'_> {
    /// Returns the folder for its files. Subfolders are allowed.
    pub fn path(&self) -> &Path {
        &self.temp
    }

    /// Flushes and hashes the files, writes the manifest, and makes the checkpoint visible. An existing
    /// checkpoint of the same step, possible after a resume, is replaced.
    ///
    /// # Errors
    /// [`Error::Io`] describes a full or read-only disk; nothing visible has changed then.
    pub fn commit(mut self) -> Result<Checkpoint> {
        let (step, temp) = (self.step, self.temp.clone());
        let manifest =
            Manifest::of_folder(&temp, step).map_err(|(path, e)| Error::io("flush to disk", path, e))?;
        let manifest_path = temp.join(MANIFEST);
        let mut file =
            private_file().create_new(true).open(&manifest_path).doing("create", &manifest_path)?;
        file.write_all(&manifest.to_json()).and_then(|()| file.sync_all()).doing("write", &manifest_path)?;
        sync(&temp).doing("flush to disk", &temp)?;
        let path = self.checkpoints.path_of(step);
        // A plain rename would replace an empty folder, and NOREPLACE is not supported everywhere, so this
        // checks first. Only the holder of the lease creates checkpoints.
        if path.exists() {
            self.checkpoints.replace(&temp, step)?;
        } else {
            fs::rename(&temp, &path).doing("commit", &path)?;
            let folder = &self.checkpoints.folder;
            sync(folder).doing("flush to disk", folder)?;
        }
        self.committed = true;
        self.checkpoints.sound.insert(step);
        Ok(Checkpoint { step, path, bytes: manifest.total_bytes() })
    }
}

impl Drop for CheckpointWriter<'_> {
    fn drop(&mut self) {
        if !self.committed {
            // This frees disk space for the retry; `clean` removes what is left here.
            let _ = fs::remove_dir_all(&self.temp);
        }
    }
}

fn folder_name(step: u64) -> String {
    format!("step-{step:06}")
}

fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    // Otherwise `step-12` and `step-000012` would be the same step twice.
    (folder_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scene {
        _root: tempfile::TempDir,
        lease: Lease,
        checkpoints: Checkpoints,
    }

    fn scene() -> Scene {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        let lease = Lease::acquire(&run).unwrap();
        Scene { _root: root, checkpoints: Checkpoints::new(&run), lease }
    }

    impl Scene {
        fn commit(&mut self, step: u64) -> Checkpoint {
            let writer = self.checkpoints.begin(step, &self.lease).unwrap();
            fs::write(writer.path().join("weights.bin"), vec![step as u8; 1000]).unwrap();
            fs::create_dir(writer.path().join("state")).unwrap();
            fs::write(writer.path().join("state/cursor.json"), format!("{{\"step\":{step}}}")).unwrap();
            writer.commit().unwrap()
        }

        fn newest(&mut self) -> (Option<u64>, Vec<String>) {
            // A new reader, which has verified nothing yet.
            let found = Checkpoints::new(self.lease.run()).newest_valid().unwrap();
            let skipped = found.skipped.iter().map(|s| format!("{}: {}", s.step, s.damage)).collect();
            (found.checkpoint.map(|c| c.step), skipped)
        }
    }

    #[test]
    fn the_newest_whole_checkpoint_is_found() {
        let mut s = scene();
        assert_eq!(s.newest(), (None, vec![]));
        s.commit(100);
        let second = s.commit(200);
        assert_eq!(second.name(), "step-000200");
        assert_eq!(second.bytes, 1000 + 12);
        assert_eq!(s.newest(), (Some(200), vec![]));
    }

    #[test]
    fn every_kind_of_damage_is_named_and_the_previous_checkpoint_is_used() {
        type Harm = fn(&Path);
        let harms: [(&str, Harm); 7] = [
            ("manifest.json is missing", |p| fs::remove_file(p.join(MANIFEST)).unwrap()),
            ("manifest.json is damaged", |p| fs::write(p.join(MANIFEST), "{").unwrap()),
            ("weights.bin is missing", |p| fs::remove_file(p.join("weights.bin")).unwrap()),
            ("weights.bin is truncated: it has 10 of 1000 bytes", |p| {
                fs::write(p.join("weights.bin"), [2; 10]).unwrap();
            }),
            ("weights.bin has 1001 bytes instead of 1000", |p| {
                fs::write(p.join("weights.bin"), [2; 1001]).unwrap();
            }),
            ("weights.bin is corrupt", |p| flip(&p.join("weights.bin"), 500)),
            ("state/cursor.json is corrupt", |p| flip(&p.join("state/cursor.json"), 3)),
        ];
        for (words, harm) in harms {
            let mut s = scene();
            s.commit(1);
            harm(&s.commit(2).path);
            let (newest, skipped) = s.newest();
            assert_eq!(newest, Some(1), "{words}");
            assert!(skipped.len() == 1 && skipped[0].contains(words), "{words}: {skipped:?}");
            let error = s.checkpoints.verify(2).unwrap_err().to_string();
            assert!(error.contains("step-000002") && error.contains(words), "{error}");
        }
    }

    fn flip(path: &Path, at: usize) {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn a_flipped_bit_anywhere_in_the_manifest_is_found() {
        let mut s = scene();
        s.commit(1);
        let manifest = s.commit(2).path.join(MANIFEST);
        let good = fs::read(&manifest).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            // The same values with other white space are the same manifest (a newline that became a tab).
            let same = serde_json::from_slice::<Manifest>(&bytes).ok() == serde_json::from_slice(&good).ok();
            fs::write(&manifest, &bytes).unwrap();
            let (newest, _) = s.newest();
            assert_eq!(newest, Some(if same { 2 } else { 1 }), "byte {at}");
        }
    }

    #[test]
    fn a_checkpoint_that_is_not_committed_leaves_nothing() {
        let mut s = scene();
        s.commit(1);
        let writer = s.checkpoints.begin(2, &s.lease).unwrap();
        fs::write(writer.path().join("weights.bin"), "half").unwrap();
        drop(writer);
        assert_eq!(fs::read_dir(s.lease.checkpoints()).unwrap().count(), 1);
        assert_eq!(s.newest(), (Some(1), vec![]));
    }

    #[test]
    fn a_step_committed_again_replaces_the_old_folder() {
        let mut s = scene();
        s.commit(5);
        let writer = s.checkpoints.begin(5, &s.lease).unwrap();
        fs::write(writer.path().join("weights.bin"), "new").unwrap();
        let again = writer.commit().unwrap();
        assert_eq!(fs::read(again.path.join("weights.bin")).unwrap(), b"new");
        assert_eq!(s.newest(), (Some(5), vec![]));
        assert_eq!(fs::read_dir(s.lease.checkpoints()).unwrap().count(), 1);
    }

    #[test]
    fn retention_keeps_the_newest_and_the_best() {
        let mut s = scene();
        for step in 1..=6 {
            s.commit(step);
        }
        let best = |best| move |_: &Path| CheckpointRole { best: vec![best], ..CheckpointRole::default() };
        assert_eq!(s.checkpoints.retain(3, best(2), &s.lease).unwrap(), [3, 1]);
        assert_eq!(s.checkpoints.steps().unwrap(), [2, 4, 5, 6]);
        assert_eq!(s.checkpoints.retain(0, best(99), &s.lease).unwrap(), [5, 4, 2]);
        assert_eq!(s.checkpoints.steps().unwrap(), [6]);
    }

    #[test]
    fn retention_keeps_the_best_of_every_checkpoint_that_a_run_may_go_back_to() {
        let mut s = scene();
        for step in 1..=6 {
            s.commit(step);
        }
        // The weights of step 2 were the best until step 6, so a run that goes back to step 5 exports them.
        let role = |path: &Path| {
            let best = if path.ends_with("step-000006") { 6 } else { 2 };
            CheckpointRole { best: vec![best], ..CheckpointRole::default() }
        };
        assert_eq!(s.checkpoints.retain(2, role, &s.lease).unwrap(), [4, 3, 1]);
        assert_eq!(s.checkpoints.steps().unwrap(), [2, 5, 6]);
        assert_eq!(s.checkpoints.retain(1, role, &s.lease).unwrap(), [5, 2]);
    }

    /// The plan of a run counts on it when it asks whether the disk suffices.
    #[test]
    fn at_most_twice_as_many_as_are_to_be_kept_and_two_more_are_there_at_a_time() {
        for keep in 1..4 {
            let (mut s, mut most) = (scene(), 0);
            // Every other planned step is the best so far, and the clock saves between all of them.
            let role = |path: &Path| {
                let step = step_of(&path.file_name().unwrap().to_string_lossy()).unwrap();
                CheckpointRole { is_interim: !step.is_multiple_of(10), best: vec![step / 20 * 20] }
            };
            for step in (1..16).flat_map(|step| [step * 10, step * 10 + 4, step * 10 + 7]) {
                s.commit(step);
                // The new one is written before others are deleted.
                most = most.max(s.checkpoints.steps().unwrap().len());
                s.checkpoints.retain(keep, role, &s.lease).unwrap();
            }
            assert_eq!(most, 2 * keep + 2);
        }
    }

    #[test]
    fn an_interim_checkpoint_is_kept_while_it_is_the_newest_and_takes_no_place() {
        let mut s = scene();
        let role = |path: &Path| CheckpointRole {
            is_interim: !["step-000010", "step-000020", "step-000030"]
                .iter()
                .any(|name| path.ends_with(name)),
            best: Vec::new(),
        };
        for (step, kept) in [
            (10, &[10][..]),
            (13, &[10, 13]),
            (16, &[10, 16]),
            (20, &[10, 20]),
            (24, &[10, 20, 24]),
            (30, &[20, 30]),
        ] {
            s.commit(step);
            s.checkpoints.retain(2, role, &s.lease).unwrap();
            assert_eq!(s.checkpoints.steps().unwrap(), kept);
        }
    }

    #[test]
    fn retention_never_deletes_the_newest_valid_checkpoint_behind_a_damaged_one() {
        let mut s = scene();
        s.commit(1);
        s.commit(2);
        let damaged = s.commit(3).path;
        flip(&damaged.join("weights.bin"), 0);
        // This stands for a resumed process, which committed none of them.
        s.checkpoints = Checkpoints::new(s.lease.run());
        assert_eq!(s.checkpoints.retain(1, |_| CheckpointRole::default(), &s.lease).unwrap(), [1]);
        assert_eq!(s.newest().0, Some(2));
        flip(&s.checkpoints.path_of(2).join("weights.bin"), 0);
        s.checkpoints = Checkpoints::new(s.lease.run());
        assert_eq!(
            s.checkpoints.retain(1, |_| CheckpointRole::default(), &s.lease).unwrap(),
            [] as [u64; 0],
            "nothing valid, nothing deleted"
        );
    }

    #[test]
    fn damaged_checkpoints_are_set_aside_and_not_taken_again() {
        let mut s = scene();
        s.commit(1);
        for _ in 0..2 {
            flip(&s.commit(2).path.join("weights.bin"), 0);
            let found = s.checkpoints.newest_valid().unwrap();
            s.checkpoints.set_aside(&found.skipped, &s.lease).unwrap();
        }
        assert_eq!(s.checkpoints.steps().unwrap(), [1]);
        assert_eq!(fs::read_dir(s.lease.checkpoints()).unwrap().count(), 3);
    }

    #[test]
    fn a_run_goes_back_to_a_named_checkpoint_and_loses_none() {
        let mut s = scene();
        for step in [10, 20, 30] {
            s.commit(step);
        }
        let error = s.checkpoints.go_back_to(15, &s.lease).unwrap_err().to_string();
        assert!(error.contains("no checkpoint of step 15; choose one of these steps: 10, 20, 30"), "{error}");
        flip(&s.checkpoints.path_of(20).join("weights.bin"), 0);
        assert!(matches!(s.checkpoints.go_back_to(20, &s.lease), Err(Error::DamagedCheckpoint { .. })));
        assert_eq!(s.checkpoints.steps().unwrap(), [10, 20, 30], "a refusal changes nothing");
        // Twice, because the same steps are trained again.
        for times in 1..=2 {
            s.commit(20);
            s.commit(30);
            let aside = s.checkpoints.go_back_to(10, &s.lease).unwrap();
            assert_eq!(aside.len(), 2);
            assert!(aside.iter().all(|path| path.join("weights.bin").is_file()), "{aside:?}");
            assert_eq!(s.newest(), (Some(10), vec![]));
            let folders = fs::read_dir(s.lease.checkpoints()).unwrap().count();
            assert_eq!(folders, 1 + 2 * times, "the later ones are kept under another name");
        }
    }

    #[test]
    fn leftovers_of_a_kill_are_cleaned_and_a_half_replacement_is_undone() {
        let mut s = scene();
        s.commit(1);
        let folder = s.lease.checkpoints();
        fs::create_dir(folder.join(".tmp-step-000002-abcd")).unwrap();
        fs::rename(folder.join("step-000001"), folder.join(".aside-step-000001")).unwrap();
        assert_eq!(s.newest().0, None);
        assert_eq!(s.checkpoints.clean(&s.lease).unwrap(), 1);
        assert_eq!(s.newest(), (Some(1), vec![]));
    }

    #[test]
    fn a_link_in_a_checkpoint_is_refused() {
        let mut s = scene();
        let writer = s.checkpoints.begin(1, &s.lease).unwrap();
        std::os::unix::fs::symlink("/dev/zero", writer.path().join("weights.bin")).unwrap();
        assert!(writer.commit().unwrap_err().to_string().contains("plain files only"));
        assert_eq!(s.newest(), (None, vec![]));
    }
}
