//! NCCL's library, loaded when it is asked for, and the calls that are made of it.
//!
//! cudarc's own loader looks for `libnccl.so` only, which packages for developers have, and ends the process
//! where a function is missing. Here the library has the name that all packages give it, a missing library
//! is an answer, and what only newer ones have is optional.

use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library as Loaded;

/// The variable that names the library's file, if it lies where the loader does not look.
pub const VARIABLE: &str = "SPARKTUNE_NCCL_LIBRARY";
/// The names that packages give it.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The result of a call.
pub(super) type Code = c_int;
pub(super) const SUCCESS: Code = 0;
/// The call goes on; `ncclCommGetAsyncError` says when it has ended.
pub(super) const IN_PROGRESS: Code = 7;
/// `ncclFloat32` and `ncclSum`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;
/// `NCCL_CONFIG_UNDEF_INT`: the library decides.
const UNDEFINED: c_int = c_int::MIN;

/// A communicator.
pub(super) type Comm = *mut c_void;
/// A stream of the driver.
pub(super) type Stream = *mut c_void;

/// What the ranks of a communicator know each other by.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId {
    pub(super) bytes: [u8; super::ID_BYTES],
}

/// `ncclConfig_t` as it was in 2.17, which is as far as it is used. Newer libraries read older ones.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once, and may be polled and aborted.
    fn polled() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_700,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

type InitRank = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Code;
type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
type OfComm = unsafe extern "C" fn(Comm) -> Code;

/// The loaded library. It stays loaded, because its threads may outlive communicators.
pub struct Library {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    init_rank: InitRank,
    async_error: unsafe extern "C" fn(Comm, *mut Code) -> Code,
    abort: OfComm,
    finalize: OfComm,
    destroy: OfComm,
    all_reduce: AllReduce,
    group_start: unsafe extern "C" fn() -> Code,
    group_end: unsafe extern "C" fn() -> Code,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    last_error: Option<unsafe extern "C" fn(Comm) -> *const c_char>,
    version: u32,
    name: String,
}

impl Library {
    /// Loads the library from where the system's loader looks, or from the file that [`VARIABLE`] names.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn load() -> Result<Self, String> {
        let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let names = named.map_or_else(|| NAMES.map(OsString::from).to_vec(), |name| vec![name]);
        let mut why = String::new();
        for name in names {
            // SAFETY: loading runs the library's initialisers. It is the vendor's, or one that the user has
            // named.
            #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
            let loaded = unsafe { Loaded::new(&name) };
            match loaded {
                Ok(loaded) => return Self::of(loaded, name.to_string_lossy().into_owned()),
                Err(error) if why.is_empty() => why = error.to_string(),
                Err(_) => {}
            }
        }
        Err(why)
    }

    fn of(loaded: Loaded, name: String) -> Result<Self, String> {
        // SAFETY: the types are those of nccl.h; the functions stay, because the library is never unloaded.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            fn get<F: Copy>(from: &Loaded, symbol: &str) -> Result<F, String> {
                // SAFETY: the caller names the type of nccl.h.
                #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
                let found = unsafe { from.get::<F>(symbol.as_bytes()) };
                found.map(|function| *function).map_err(|error| error.to_string())
            }
            let get_version: unsafe extern "C" fn(*mut c_int) -> Code = get(&loaded, "ncclGetVersion")?;
            let mut version = 0;
            if get_version(&raw mut version) != SUCCESS {
                return Err("it does not say its version".into());
            }
            let library = Self {
                get_unique_id: get(&loaded, "ncclGetUniqueId")?,
                init_rank: get(&loaded, "ncclCommInitRankConfig")?,
                async_error: get(&loaded, "ncclCommGetAsyncError")?,
                abort: get(&loaded, "ncclCommAbort")?,
                finalize: get(&loaded, "ncclCommFinalize")?,
                destroy: get(&loaded, "ncclCommDestroy")?,
                all_reduce: get(&loaded, "ncclAllReduce")?,
                group_start: get(&loaded, "ncclGroupStart")?,
                group_end: get(&loaded, "ncclGroupEnd")?,
                error_string: get(&loaded, "ncclGetErrorString")?,
                last_error: get(&loaded, "ncclGetLastError").ok(),
                version: u32::try_from(version).unwrap_or(0),
                name,
            };
            std::mem::forget(loaded);
            Ok(library)
        }
    }

    /// Returns the version as the library says it: 22809 is 2.28.9.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the name that it was loaded by.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId { bytes: [0; super::ID_BYTES] };
        // SAFETY: the function writes an id, for which there is room.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let code = unsafe { (self.get_unique_id)(&raw mut id) };
        self.checked(code, ptr::null_mut()).map(|()| id)
    }

    /// Begins to connect. The communicator must be polled before it is used.
    pub(super) fn connect(&self, id: UniqueId, rank: usize, ranks: usize) -> Result<Comm, String> {
        let (rank, ranks) = (number(rank)?, number(ranks)?);
        let (mut comm, mut config) = (ptr::null_mut(), Config::polled());
        // SAFETY: the caller has made the device's context current; what the function reads and writes lives
        // until it returns.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let code = unsafe { (self.init_rank)(&raw mut comm, ranks, id, rank, &raw mut config) };
        self.checked(code, ptr::null_mut()).map(|()| comm)
    }

    /// Returns whether nothing is in progress any more.
    ///
    /// # Errors
    /// Something has failed since the communicator was made.
    pub(super) fn is_idle(&self, comm: Comm) -> Result<bool, String> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is one of this library's and was not destroyed.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let code = unsafe { (self.async_error)(comm, &raw mut state) };
        self.checked(code, comm)?;
        self.checked(state, comm).map(|()| state == SUCCESS)
    }

    /// Queues sums of f32 numbers over all ranks, each in its place: `(address, count)`.
    ///
    /// # Safety
    /// The numbers lie in memory of the communicator's device, which nothing else uses until the stream has
    /// done this.
    #[expect(unsafe_code, reason = "the caller vouches for addresses")]
    pub(super) unsafe fn sum(
        &self,
        numbers: impl Iterator<Item = (u64, usize)>,
        comm: Comm,
        stream: Stream,
    ) -> Result<(), String> {
        // SAFETY: the caller vouches for the numbers; every group that is started is ended.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            self.checked((self.group_start)(), comm)?;
            let mut queued = SUCCESS;
            for (address, count) in numbers {
                let at = address as usize as *mut c_void;
                let code = (self.all_reduce)(at, at, count, FLOAT32, SUM, comm, stream);
                if code != SUCCESS && code != IN_PROGRESS {
                    queued = code;
                    break;
                }
            }
            let ended = (self.group_end)();
            self.checked(queued, comm)?;
            self.checked(ended, comm)
        }
    }

    /// Begins to end a communicator whose ranks have done everything.
    pub(super) fn finalize(&self, comm: Comm) -> Result<(), String> {
        // SAFETY: the communicator is one of this library's and was not destroyed.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let code = unsafe { (self.finalize)(comm) };
        self.checked(code, comm)
    }

    /// Frees a communicator: one that has been finalised, or whatever it does.
    pub(super) fn free(&self, comm: Comm, is_finalized: bool) {
        let free = if is_finalized { self.destroy } else { self.abort };
        // SAFETY: the communicator is one of this library's and is not used after this.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let _ = unsafe { free(comm) };
    }

    fn checked(&self, code: Code, comm: Comm) -> Result<(), String> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both functions return texts that live as long as the library, or nothing; a null
        // communicator is allowed.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let (what, more) = unsafe {
            (text((self.error_string)(code)), self.last_error.and_then(|last_error| text(last_error(comm))))
        };
        let what = what.unwrap_or_else(|| format!("error {code}"));
        Err(more
            .filter(|more| !more.is_empty())
            .map_or_else(|| what.clone(), |more| format!("{what}: {more}")))
    }
}

fn number(of: usize) -> Result<c_int, String> {
    c_int::try_from(of).map_err(|_| format!("{of} ranks are too many"))
}

/// # Safety
/// The text, if there is one, ends with a zero.
#[expect(unsafe_code, reason = "the caller vouches for the text")]
unsafe fn text(from: *const c_char) -> Option<String> {
    // SAFETY: the caller vouches for it.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let text = (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) });
    text.map(|text| text.to_string_lossy().trim().to_owned())
}
