//! Full disks: told before the first byte where it can be known, and without loss where it cannot.

use std::path::Path;
use std::process::Command;

use sparktune_hub::{Error, Event, Needs, Progress};

use crate::fake_hub::*;

/// A file system of 4 MB, for as long as the value lives. `None`, and said so, where mounting is not
/// permitted.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(dir.path()).output();
        if mount.is_ok_and(|done| done.status.success()) {
            return Some(Self(dir));
        }
        println!("skipped: {test}: mounting a small file system is not permitted here");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(self.path()).status());
    }
}

#[test]
fn a_disk_that_is_too_small_is_told_before_the_first_weight() {
    let Some(disk) = SmallDisk::mount("a_disk_that_is_too_small_is_told_before_the_first_weight") else {
        return;
    };
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.put(WEIGHTS, &noise(6_000_000, 3), true);
    let hub = home.hub_with(&server.endpoint(), &[("HF_HUB_CACHE", disk.path().to_str().unwrap())]);
    let plan = hub.plan_download(ID, Needs::Model, &()).unwrap();
    assert!(plan.disk_available.unwrap() < plan.bytes_missing());
    let error = hub.download(&plan, &()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::DiskFull { needed, available, .. } if needed > available), "{text}");
    assert!(text.contains("6.00 MB needed") && text.contains("HF_HUB_CACHE"), "{text}");
    assert!(server.downloads_of(WEIGHTS).is_empty());
}

#[test]
fn a_disk_that_fills_up_on_the_way_keeps_what_arrived() {
    let Some(disk) = SmallDisk::mount("a_disk_that_fills_up_on_the_way_keeps_what_arrived") else { return };
    struct Filler<'a>(&'a Path);
    impl Progress for Filler<'_> {
        fn on(&self, event: Event<'_>) {
            let filler = self.0.join("someone else's file");
            if matches!(event, Event::Bytes { name: WEIGHTS, .. }) && !filler.exists() {
                // Fails in the end, as it should: it takes all there is.
                drop(std::fs::write(filler, vec![1; 8_000_000]));
            }
        }
    }
    let (server, home) = (FakeHub::with_model(), Home::new());
    let hub = home.hub_with(&server.endpoint(), &[("HF_HUB_CACHE", disk.path().to_str().unwrap())]);
    let error = hub.fetch(ID, Needs::Model, &Filler(disk.path())).unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    let part = disk.path().join(format!("models--org--tiny/blobs/{}.incomplete", sha256(&weights())));
    let have = std::fs::metadata(&part).unwrap().len();
    assert!(have > 0 && have < 3_000_000);

    std::fs::remove_file(disk.path().join("someone else's file")).unwrap();
    server.forget();
    let snapshot = hub.fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    assert_eq!(server.downloads_of(WEIGHTS)[0].start() as u64, have);
}

#[test]
fn a_write_that_finds_no_space_is_a_full_disk() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    std::fs::create_dir_all(home.repo().join("blobs")).unwrap();
    // The kernel's own full disk: every write says ENOSPC.
    std::os::unix::fs::symlink("/dev/full", home.part(&sha256(&weights()))).unwrap();
    let error = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::DiskFull { needed: 3_000_000, .. }), "{text}");
    assert!(text.contains("the disk is full") && text.contains("The same command then continues"), "{text}");
}

#[test]
fn a_cache_that_is_no_folder_is_said_with_its_path() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let file = home.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let hub = home.hub_with(&server.endpoint(), &[("HF_HUB_CACHE", file.to_str().unwrap())]);
    let error = hub.fetch(ID, Needs::Model, &()).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Io { .. })
            && text.contains("/file/models--org--tiny")
            && text.contains("HF_HUB_CACHE"),
        "{text}"
    );
}
