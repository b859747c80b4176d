//! Which NCCL is installed, by the name of its file.

use std::fs;
use std::path::Path;

use super::line::{Line, Verdict};
use super::sysfs::names;

/// What its line is called.
pub(super) const NCCL: &str = "NCCL";
/// Where packages put it.
const PLACES: [&str; 6] = [
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
    "usr/local/cuda/lib64",
];
/// The first release that is fast between two Sparks.
const NEEDED: [u32; 3] = [2, 28, 9];

/// Returns the line about NCCL. Ranks over TCP do not use it.
pub(super) fn examine(root: &Path) -> Line {
    let newest = PLACES.iter().flat_map(|place| versions(&root.join(place))).max();
    let Some(newest) = newest else {
        return Line::new(
            NCCL,
            Verdict::Unknown,
            "no libnccl.so.2 with a version in its name was found where packages put it",
        );
    };
    let words = newest.map(|number| number.to_string()).join(".");
    if newest < NEEDED {
        let needed = NEEDED.map(|number| number.to_string()).join(".");
        return Line::new(NCCL, Verdict::Note, format!("version {words}"))
            .advice(format!("Install {needed} or newer (`apt-get install libnccl2`): older ones and development builds reach about 3 instead of 23 GB/s between two Sparks"));
    }
    Line::new(NCCL, Verdict::Ok, format!("version {words}"))
}

/// Returns the versions in the names of libraries in a folder, also of what the plain name is a link to.
fn versions(folder: &Path) -> Vec<[u32; 3]> {
    let of = |name: &str| {
        let numbers: Vec<u32> =
            name.strip_prefix("libnccl.so.")?.split('.').map_while(|part| part.parse().ok()).collect();
        <[u32; 3]>::try_from(numbers).ok()
    };
    let linked = fs::read_link(folder.join("libnccl.so.2")).ok();
    let linked = linked.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    names(folder).iter().chain(&linked).filter_map(|name| of(name)).collect()
}
