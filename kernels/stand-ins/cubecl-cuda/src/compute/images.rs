//! What NVRTC makes of a source, and the folder that keeps it. Not cubecl's; README.md says why.
//!
//! NVRTC has compiled for the GPU when it returns, so its cubin is loaded and the driver compiles nothing.

use std::ffi::c_char;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::nvrtc::{result, sys};

/// The variable with the folder in which images are kept. What is read there runs on the GPU, so it must be a
/// folder into which nobody else can write.
const FOLDER: &str = "SPARKTUNE_KERNEL_IMAGES";
const MAGIC: &[u8] = b"sparktune kernel image 1\n";
const SEED: u64 = 0xcbf2_9ce4_8422_2325;
/// The line of `DYNAMIC_SHARED` in `kernels/device/cuda.cuh`.
const SHARED: &str = "// dynamic shared memory: ";

/// A module that the driver loads: a cubin, or PTX with a NUL at its end.
pub(crate) struct Image {
    pub(crate) bytes: Vec<c_char>,
    pub(crate) dynamic_shared_bytes: usize,
}

/// An image, the key that it is kept by, and whether it was read from the folder.
pub(crate) struct Kept {
    pub(crate) image: Image,
    pub(crate) key: String,
    pub(crate) is_kept: bool,
}

/// Everything that decides what a compiler makes: its version, options with the architecture, the function, and
/// the source. Files hold it whole, so no image can be taken for that of another source or function.
pub(crate) fn key(source: &str, entry: &str, options: &[&str]) -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both out-parameters outlive the call.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    format!("NVRTC {major}.{minor} {}\n{entry}\n{source}", options.join(" "))
}

/// Returns the image of a program that has been compiled.
///
/// # Safety
/// `program` is a program of NVRTC.
pub(crate) unsafe fn of_program(program: sys::nvrtcProgram) -> Result<Image, result::NvrtcError> {
    let (ptx, cubin) = unsafe {
        let ptx = result::get_ptx(program)?;
        let mut size = 0;
        let has_cubin = sys::nvrtcGetCUBINSize(program, &mut size).result().is_ok() && size > 0;
        let mut cubin = vec![0 as c_char; if has_cubin { size } else { 0 }];
        if has_cubin {
            sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr()).result()?;
        }
        result::destroy_program(program)?;
        (ptx, cubin)
    };
    let text: Vec<u8> = ptx.iter().map(|byte| *byte as u8).collect();
    let text = String::from_utf8_lossy(&text);
    let sizes = text.split(SHARED).skip(1);
    let sizes = sizes.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    let dynamic_shared_bytes = sizes.max().unwrap_or(0);
    Ok(Image { bytes: if cubin.is_empty() { ptx } else { cubin }, dynamic_shared_bytes })
}

fn path(key: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty())?;
    let name = [SEED, !SEED].map(|seed| hash(key.as_bytes(), seed));
    Some(PathBuf::from(folder).join(format!("{:016x}{:016x}.image", name[0], name[1])))
}

/// FNV-1a, from a start value.
fn hash(bytes: &[u8], seed: u64) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the image that is kept for a key, if it is whole.
pub(crate) fn kept(key: &str) -> Option<Image> {
    let file = fs::read(path(key)?).ok()?;
    let rest = file.strip_prefix(MAGIC)?;
    let (numbers, rest) = rest.split_at_checked(24)?;
    let number = |at: usize| u64::from_le_bytes(numbers[at..at + 8].try_into().expect("eight bytes"));
    let (found, image) = rest.split_at_checked(usize::try_from(number(0)).ok()?)?;
    if found != key.as_bytes() || hash(image, SEED) != number(16) {
        return None;
    }
    let bytes = image.iter().map(|byte| *byte as c_char).collect();
    Some(Image { bytes, dynamic_shared_bytes: usize::try_from(number(8)).ok()? })
}

/// Keeps an image. A folder that cannot be written keeps nothing.
pub(crate) fn keep(key: &str, image: &Image) {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let Some(path) = path(key) else { return };
    let bytes: Vec<u8> = image.bytes.iter().map(|byte| *byte as u8).collect();
    let numbers = [key.len() as u64, image.dynamic_shared_bytes as u64, hash(&bytes, SEED)];
    let mut file = MAGIC.to_vec();
    file.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    file.extend(key.as_bytes());
    file.extend(&bytes);
    // Whole or not at all: another process may read it.
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let part = path.with_extension(format!("{}-{number}", std::process::id()));
    if fs::write(&part, file).and_then(|()| fs::rename(&part, &path)).is_err() {
        let _ = fs::remove_file(part);
    }
}

/// Removes what is kept for a key.
pub(crate) fn forget(key: &str) {
    let _ = path(key).map(fs::remove_file);
}
