//! The program in the kernel: it is loaded, told its job, attached to network interfaces, and asked.

use std::io;
use std::net::Ipv4Addr;

use aya::maps::{Array, DevMap, PerCpuArray};
use aya::programs::{ProgramError, TestRun, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, include_bytes_aligned};

use crate::xdp::frame::{Action, FRAME, Route};
use crate::xdp::slots::{Counts, Job, Slot, Verdict};
use crate::xdp::wire::{Key, MOST_WORKERS, Squares, VALUES};

/// What clang made of `sum.bpf.c`.
static OBJECT: &[u8] = include_bytes_aligned!("sum.bpf.o");
/// The bytes of `struct slot` before the sums of squares, and before the sums.
const SLOT_HEAD: usize = 24;
const SLOT_SUMS: usize = SLOT_HEAD + size_of::<Squares>();
/// The bytes of `struct config`.
const CONFIG: usize = 32;
/// The counters of the kernel, some of which are not used.
const COUNTERS: usize = 16;

/// The reason why the kernel does not add, or does not give results to AF_XDP.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it is")]
pub enum Refusal {
    #[error(
        "the kernel does not let this process load programs for it. They need root, or the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    NoRights,
    #[error("the kernel refuses the program: {0}")]
    Program(String),
    #[error("the program cannot be attached to the interface {interface}: {why}")]
    Interface { interface: String, why: String },
    #[error("AF_XDP cannot take packets from the interface {interface}: {why}")]
    Sockets { interface: String, why: String },
    #[error("the program in the kernel cannot be asked: {0}")]
    Asked(String),
}

/// The program, which is removed from the kernel when this is dropped.
pub struct Kernel {
    ebpf: Ebpf,
}

impl Kernel {
    /// Loads the program for a job. It does nothing before it is attached.
    ///
    /// # Errors
    /// The kernel is too old, or does not let this process do so.
    pub fn load(job: Job, route: Route) -> Result<Self, Refusal> {
        let refused = |why: String| Refusal::Program(why);
        let mut ebpf = Ebpf::load(OBJECT).map_err(|error| refusal(&error))?;
        let mut config = [0_u8; CONFIG];
        config[..8].copy_from_slice(&job.key.0[0].to_le_bytes());
        config[8..16].copy_from_slice(&job.key.0[1].to_le_bytes());
        config[16..18].copy_from_slice(&job.number.to_le_bytes());
        config[18] = job.workers;
        config[20..22].copy_from_slice(&route.port.to_be_bytes());
        config[22..24].copy_from_slice(&route.reply_port.to_be_bytes());
        config[24..28].copy_from_slice(&route.group.octets());
        config[28..30].copy_from_slice(&job.muted.to_le_bytes());
        let map = ebpf.map_mut("config").ok_or_else(|| refused("it has no configuration".into()))?;
        let mut map: Array<_, [u8; CONFIG]> = map.try_into().map_err(|error| refusal(&error))?;
        map.set(0, config, 0).map_err(|error| refusal(&error))?;
        for name in ["sum", "pass"] {
            let program = ebpf.program_mut(name).ok_or_else(|| refused(format!("it has no part {name}")))?;
            let program: &mut Xdp = program.try_into().map_err(|error| refusal(&error))?;
            program.load().map_err(|error| refusal(&error))?;
        }
        Ok(Self { ebpf })
    }

    /// Lets the program see all packets that come in by this interface, and send results out by it.
    ///
    /// # Errors
    /// There is no such interface, or it has another such program.
    pub fn attach(&mut self, interface: &str, number: u32) -> Result<(), Refusal> {
        let refused = |why: String| Refusal::Interface { interface: interface.to_owned(), why };
        let index = index_of(interface).map_err(|error| refused(error.to_string()))?;
        let map = self.ebpf.map_mut("ports").ok_or_else(|| refused("the program has no ports".into()))?;
        let mut ports: DevMap<_> = map.try_into().map_err(|error| refused(in_words(&error)))?;
        ports.set(number, index, None, 0).map_err(|error| refused(in_words(&error)))?;
        self.attach_part("sum", interface)
    }

    /// Loads a program that lets everything through, and attaches it. The end of a virtual Ethernet pair
    /// needs one to receive what the program at the other end sends.
    ///
    /// # Errors
    /// As for [`Kernel::load`] and [`Kernel::attach`].
    pub fn passing(interface: &str) -> Result<Self, Refusal> {
        let job = Job { number: 0, workers: 0, muted: 0, key: Key([0; 2]) };
        let mut kernel = Self::load(job, Route { port: 0, reply_port: 0, group: Ipv4Addr::UNSPECIFIED })?;
        kernel.attach_part("pass", interface)?;
        Ok(kernel)
    }

    fn attach_part(&mut self, part: &str, interface: &str) -> Result<(), Refusal> {
        let refused = |why: String| Refusal::Interface { interface: interface.to_owned(), why };
        let index = index_of(interface).map_err(|error| refused(error.to_string()))?;
        let program =
            self.ebpf.program_mut(part).ok_or_else(|| refused("the program has no such part".into()))?;
        let program: &mut Xdp = program.try_into().map_err(|error| refused(in_words(&error)))?;
        program.attach_to_if_index(index, XdpMode::Default).map_err(|error| refused(in_words(&error)))?;
        Ok(())
    }

    /// Gives the program a frame as if it had come in, and returns what it does with it. The frame becomes
    /// what the program made of it, and is not sent.
    ///
    /// # Errors
    /// The kernel does not do this.
    pub fn run(&self, frame: &mut Vec<u8>) -> Result<Action, Refusal> {
        self.run_often(frame, 1).map(|(action, _)| action)
    }

    /// Does so several times in a row, and also returns the mean time in nanoseconds.
    ///
    /// # Errors
    /// As for [`Kernel::run`].
    pub fn run_often(&self, frame: &mut Vec<u8>, times: u32) -> Result<(Action, u64), Refusal> {
        let refused = |why: String| Refusal::Asked(why);
        let program = self.ebpf.program("sum").ok_or_else(|| refused("it has no part that adds".into()))?;
        let program: &Xdp = program.try_into().map_err(|error| refused(in_words(&error)))?;
        let mut out = [0_u8; FRAME * 4];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat: times,
            ..TestRunOptions::default()
        };
        let result = program.test_run(options).map_err(|error| refused(in_words(&error)))?;
        let action = match result.return_value {
            1 => Action::Drop,
            2 => Action::Pass,
            3 => Action::Back,
            4 => Action::ToAll,
            other => return Err(refused(format!("it answers {other}"))),
        };
        let length = (result.data_size_out as usize).min(out.len());
        frame.clear();
        frame.extend_from_slice(&out[..length]);
        Ok((action, u64::try_from(result.duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns what became of the packets so far.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn counts(&self) -> Result<Counts, Refusal> {
        let refused = |why: String| Refusal::Asked(why);
        let map = self.ebpf.map("counters").ok_or_else(|| refused("it counts nothing".into()))?;
        let map: PerCpuArray<_, [u64; COUNTERS]> =
            map.try_into().map_err(|error| refused(in_words(&error)))?;
        let of_processors = map.get(&0, 0).map_err(|error| refused(in_words(&error)))?;
        let mut counts = Counts::default();
        for verdict in Verdict::ALL {
            counts.0[verdict as usize] = of_processors.iter().map(|of| of[verdict as usize]).sum();
        }
        Ok(counts)
    }

    /// Returns one version of a slot, by its place in [`Slots::versions`](super::slots::Slots::versions).
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn version(&self, place: u32) -> Result<Slot, Refusal> {
        let refused = |why: String| Refusal::Asked(why);
        let map = self.ebpf.map("slots").ok_or_else(|| refused("it has no slots".into()))?;
        let map: Array<_, [u8; SLOT_SUMS + 2 * VALUES]> =
            map.try_into().map_err(|error| refused(in_words(&error)))?;
        let bytes = map.get(&place, 0).map_err(|error| refused(in_words(&error)))?;
        let round = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        let contributors = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
        let mut squares = [0; MOST_WORKERS];
        let words = bytes[SLOT_HEAD..SLOT_SUMS].as_chunks().0;
        squares.iter_mut().zip(words).for_each(|(squares, word)| *squares = u32::from_le_bytes(*word));
        let mut sums = [0; VALUES];
        let values = bytes[SLOT_SUMS..].chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]]));
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = value);
        Ok(Slot { round, contributors, squares, sums })
    }
}

/// Returns the kernel's number of an interface.
pub(super) fn index_of(interface: &str) -> io::Result<u32> {
    let is_name = !interface.is_empty() && !interface.contains(['/', '\0']) && !interface.starts_with('.');
    let unknown = || io::Error::new(io::ErrorKind::NotFound, "there is no such interface");
    if !is_name {
        return Err(unknown());
    }
    let text =
        std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).map_err(|_| unknown())?;
    text.trim().parse().map_err(|_| unknown())
}

/// Says in words why a program is not in the kernel.
pub(super) fn refusal(error: &(dyn std::error::Error + 'static)) -> Refusal {
    let mut source = Some(error);
    while let Some(cause) = source {
        let code = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        // EPERM and EACCES. The verifier also answers EACCES, and then says why.
        let is_verifier = matches!(cause.downcast_ref(), Some(ProgramError::LoadError { verifier_log, .. })
            if !verifier_log.to_string().trim().is_empty());
        if is_verifier {
            break;
        }
        if matches!(code, Some(1 | 13)) {
            return Refusal::NoRights;
        }
        source = cause.source();
    }
    Refusal::Program(in_words(error))
}

/// Joins an error and its causes, of which only the first lines are kept: the verifier's log is long.
pub(super) fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = Vec::new();
    let mut source = Some(error);
    while let Some(cause) = source {
        let text: String = cause.to_string().lines().next().unwrap_or_default().chars().take(300).collect();
        words.push(text);
        source = cause.source();
    }
    words.dedup();
    words.join(": ")
}
