//! Converts facts about this machine to findings, for `doctor` and for the first question of every interface.
//!
//! Enters: facts that telemetry gathered. Leaves: findings, each with a remedy if something is missing or
//! prevents training. Telemetry checks driver, libraries and headers; its results are only added to the
//! others here.

use std::path::Path;

use serde::Serialize;
use sparktune_base::units::bytes;
use sparktune_telemetry::{Check, GpuFacts, GpuUser, Machine, Verdict, cuda_checks, out_of_reach};

const GIB: u64 = 1 << 30;
/// The GPU memory below which other users, such as a desktop, are not mentioned.
const DESKTOP_BYTES: u64 = 2 * GIB;

/// A finding about the machine. Its text may be untrusted and has to be escaped for a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject in a word or two: `GPU`, `CUDA headers`.
    pub what: String,
    /// The finding: `NVIDIA GB10, compute 12.1`.
    pub found: String,
    /// The suggested remedy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The severity.
    pub severity: Severity,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// In order, or just a fact.
    Good,
    /// Not checked; `found` contains the reason.
    Skipped,
    /// Checked, but this machine does not say; `found` contains the reason.
    Unknown,
    /// Training works, but the user should know something or could improve it.
    Note,
    /// Prevents training, or training on the GPU.
    Problem,
}

impl Finding {
    /// Creates a finding that is in order.
    pub fn good(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.into(), found: found.into(), advice: None, severity: Severity::Good }
    }

    /// Returns the same finding with another severity and a suggestion.
    #[must_use]
    pub fn but(self, severity: Severity, advice: impl Into<String>) -> Self {
        Self { severity, advice: Some(advice.into()), ..self }
    }
}

impl From<Check> for Finding {
    fn from(check: Check) -> Self {
        let severity = match check.verdict {
            Verdict::Ok => Severity::Good,
            Verdict::Skipped => Severity::Skipped,
            Verdict::Unknown => Severity::Unknown,
            Verdict::Warning => Severity::Note,
            Verdict::Failed => Severity::Problem,
        };
        Self { what: check.name, found: check.found, advice: check.fix, severity }
    }
}

/// Returns all findings about a machine. `has_cuda` says whether this build can train on a GPU;
/// `disk_free_bytes` is the free space on the disk of `runs_dir`, the folder of the runs.
pub fn findings(
    facts: &Machine,
    has_cuda: bool,
    runs_dir: &Path,
    disk_free_bytes: Option<u64>,
) -> Vec<Finding> {
    let cpu = format!("{}, {} threads usable", known(&facts.cpu_model), facts.cores_usable);
    let mut findings = vec![
        Finding::good("sparktune", format!("{}, {}", env!("CARGO_PKG_VERSION"), facts.arch)),
        Finding::good("system", format!("{}, kernel {}", known(&facts.os), known(&facts.kernel))),
        Finding::good("processor", cpu),
        memory(facts),
    ];
    findings.extend(swap(facts));
    findings.extend(cuda_checks(facts, has_cuda).into_iter().map(Finding::from));
    findings.extend(facts.gpus.iter().filter_map(users));
    findings.push(trains_on(facts, has_cuda));
    findings.push(disk(runs_dir, disk_free_bytes));
    findings
}

/// Returns the same findings without skipped checks, for users who did not ask for a diagnosis.
pub fn at_a_glance(
    facts: &Machine,
    has_cuda: bool,
    runs_dir: &Path,
    disk_free_bytes: Option<u64>,
) -> Vec<Finding> {
    let mut findings = findings(facts, has_cuda, runs_dir, disk_free_bytes);
    findings.retain(|finding| finding.severity != Severity::Skipped);
    findings
}

fn known(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("unknown")
}

fn memory(facts: &Machine) -> Finding {
    let mut found =
        format!("{} of {} available", bytes(facts.mem_available_bytes), bytes(facts.mem_total_bytes));
    if facts.mem_limit_bytes.is_some() {
        found.push_str(", limited by the container");
    }
    if facts.mem_unified {
        found.push_str(", shared by CPU and GPU");
    }
    match facts.mem_pressure {
        Some(pressure) => found.push_str(&format!("; memory pressure {:.0} %", pressure.some_percent)),
        None => found.push_str("; memory pressure unknown"),
    }
    let finding = Finding::good("memory", found);
    if facts.mem_pressure.is_some_and(|pressure| pressure.some_percent >= 10.0) {
        return finding
            .but(Severity::Problem, "programs are waiting for memory: close some of them before training");
    }
    if facts.mem_available_bytes < facts.mem_total_bytes / 2 {
        return finding.but(
            Severity::Note,
            "more than half of the memory is in use: close other programs to leave more of it for training",
        );
    }
    if facts.mem_pressure.is_none() && facts.mem_unified {
        let advice = "the kernel does not report memory pressure, so a run can only watch how much memory is free: boot with psi=1 on the kernel's command line";
        return finding.but(Severity::Note, advice);
    }
    finding
}

fn swap(facts: &Machine) -> Option<Finding> {
    let (total, used) = facts.swap_total_bytes.zip(facts.swap_used_bytes)?;
    if total == 0 {
        return Some(Finding::good("swap", "none"));
    }
    let finding = Finding::good("swap", format!("{} of {} used", bytes(used), bytes(total)));
    Some(if used > GIB {
        finding.but(
            Severity::Note,
            "programs have needed more memory than the machine has: close some, or run `swapoff -a && swapon -a`",
        )
    } else {
        finding
    })
}

/// Returns a finding about the other users of a GPU, if the driver reports them.
fn users(gpu: &GpuFacts) -> Option<Finding> {
    const LISTED: usize = 4;
    let users = gpu.users.as_ref()?;
    let what = format!("GPU {} used by", gpu.index);
    if users.is_empty() {
        return Some(Finding::good(&what, "no other program"));
    }
    let word = |user: &GpuUser| {
        let memory = user.mem_used_bytes.map_or(String::new(), |used| format!(", {}", bytes(used)));
        format!("{} ({}{memory})", user.name.as_deref().unwrap_or("a process"), user.pid)
    };
    let mut found = users.iter().take(LISTED).map(word).collect::<Vec<_>>().join("; ");
    if users.len() > LISTED {
        found.push_str(&format!("; {} more", users.len() - LISTED));
    }
    let finding = Finding::good(&what, found);
    let heavy =
        |user: &GpuUser| user.computes || user.mem_used_bytes.is_some_and(|used| used > DESKTOP_BYTES);
    Some(match users.iter().find(|user| heavy(user)) {
        Some(user) => finding.but(
            Severity::Note,
            format!(
                "they share the GPU's memory and time: for full speed, end those that you do not need (`kill {}` ends the first)",
                user.pid
            ),
        ),
        None => finding,
    })
}

fn trains_on(facts: &Machine, has_cuda: bool) -> Finding {
    const FIX: &str = "fix the failed checks, or train a small model with --device cpu";
    let found = match (has_cuda, facts.gpus.is_empty()) {
        (true, true) => "the CPU: this build has CUDA, but no GPU was found",
        (true, false) => "GPU 0, or the CPU with --device cpu",
        (false, true) => "the CPU: this build has no CUDA, and no GPU was found",
        (false, false) => "the CPU: this build has no CUDA; build it with ./run.sh to train on the GPU",
    };
    let finding = Finding::good("trains on", found);
    match (has_cuda, facts.gpus.is_empty()) {
        (true, false) => match out_of_reach(facts, has_cuda) {
            None => finding,
            Some(_) => finding.but(Severity::Problem, FIX),
        },
        (false, false) => {
            finding.but(Severity::Problem, "run ./run.sh once: it builds with CUDA if it finds a driver")
        }
        (_, true) => finding.but(Severity::Note, "try the demo, or choose a small model: the CPU is slow"),
    }
}

fn disk(runs_dir: &Path, free: Option<u64>) -> Finding {
    let found = free.map_or_else(|| "unknown".into(), bytes);
    let finding = Finding::good("disk", format!("{found} free for {}", runs_dir.display()));
    match free {
        Some(free) if free < GIB => {
            finding.but(Severity::Problem, "no run fits there: free some space, or choose a folder on a larger disk with --runs-dir")
        }
        Some(free) if free < 20 * GIB => finding.but(
            Severity::Note,
            "checkpoints and outputs of a run take several times the model's size: free some space, or choose a folder on a larger disk with --runs-dir",
        ),
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use sparktune_telemetry::{CudaHeaders, CudaLibraries, Library, Pressure};

    use super::*;

    fn library(version: &str) -> Option<Library> {
        Some(Library {
            path: format!("/usr/lib/{version}"),
            version: Some(version.into()),
            out_of_sight: false,
        })
    }

    fn spark() -> Machine {
        Machine {
            arch: "aarch64".into(),
            cores_usable: 20,
            mem_total_bytes: 120 * GIB,
            mem_available_bytes: 110 * GIB,
            mem_unified: true,
            mem_pressure: Some(Pressure::default()),
            swap_total_bytes: Some(16 * GIB),
            swap_used_bytes: Some(0),
            gpu_driver: Some("580.95".into()),
            cuda: Some("13.0".into()),
            cuda_libraries: CudaLibraries { driver: library("580.95"), nvrtc: library("13.0.88") },
            cuda_headers: Some(CudaHeaders {
                folder: "/usr/local/cuda/include".into(),
                cuda_path: None,
                version: Some("13.0".into()),
                cccl: true,
                crt: true,
            }),
            gpus: vec![GpuFacts {
                name: Some("NVIDIA GB10".into()),
                compute_capability: Some("12.1".into()),
                users: Some(Vec::new()),
                ..GpuFacts::default()
            }],
            ..Machine::default()
        }
    }

    fn of(facts: &Machine, has_cuda: bool) -> Vec<Finding> {
        findings(facts, has_cuda, Path::new("runs"), Some(900 * GIB))
    }

    fn one(facts: &Machine, what: &str) -> Finding {
        of(facts, true).into_iter().find(|finding| finding.what == what).unwrap()
    }

    #[test]
    fn a_spark_in_order_has_nothing_to_advise() {
        for finding in of(&spark(), true) {
            assert_eq!((finding.severity, &finding.advice), (Severity::Good, &None), "{finding:?}");
        }
        assert!(one(&spark(), "memory").found.contains("shared by CPU and GPU"));
    }

    #[test]
    fn whatever_is_not_in_order_says_what_to_do() {
        let worst = |facts: &Machine, what: &str| {
            let finding = one(facts, what);
            assert!(finding.advice.is_some(), "{finding:?}");
            (finding.severity, finding.advice.unwrap())
        };
        let none = Machine { cuda_headers: None, ..spark() };
        let (severity, advice) = worst(&none, "CUDA headers");
        assert!(severity == Severity::Problem && advice.contains("cuda-cudart-dev-13-0"), "{advice}");
        assert_eq!(worst(&none, "trains on").0, Severity::Problem);

        let mut shared = spark();
        let user = GpuUser { pid: 4711, name: Some("ollama".into()), computes: true, mem_used_bytes: None };
        shared.gpus[0].users = Some(vec![user]);
        let (severity, advice) = worst(&shared, "GPU 0 used by");
        assert!(severity == Severity::Note && advice.contains("kill 4711"), "{advice}");
        assert_eq!(one(&shared, "GPU 0 used by").found, "ollama (4711)");

        let mut pressed = spark();
        pressed.mem_pressure = Some(Pressure { some_percent: 30.0, full_percent: 10.0 });
        assert_eq!(worst(&pressed, "memory").0, Severity::Problem);
        assert_eq!(worst(&Machine { mem_pressure: None, ..spark() }, "memory").0, Severity::Note);
        assert_eq!(worst(&Machine { swap_used_bytes: Some(8 * GIB), ..spark() }, "swap").0, Severity::Note);
        assert_eq!(worst(&Machine { gpus: Vec::new(), ..spark() }, "trains on").0, Severity::Note);
        let without = of(&spark(), false).into_iter().find(|finding| finding.what == "trains on").unwrap();
        assert!(without.severity == Severity::Problem && without.found.contains("./run.sh"));
        let full = findings(&spark(), true, Path::new("runs"), Some(5));
        assert_eq!(full.last().unwrap().severity, Severity::Problem);
    }

    #[test]
    fn what_was_not_looked_at_is_for_the_doctor_alone() {
        let none = Machine { gpus: Vec::new(), ..spark() };
        let skipped = |findings: Vec<Finding>| {
            findings.iter().filter(|finding| finding.severity == Severity::Skipped).count()
        };
        assert_eq!(skipped(of(&none, true)), 4);
        assert_eq!(skipped(at_a_glance(&none, true, Path::new("runs"), None)), 0);
    }

    #[test]
    fn a_desktop_on_the_gpu_is_listed_without_a_warning() {
        let mut facts = spark();
        let user =
            GpuUser { pid: 9, name: Some("Xorg".into()), computes: false, mem_used_bytes: Some(80 << 20) };
        facts.gpus[0].users = Some(vec![user]);
        let finding = one(&facts, "GPU 0 used by");
        assert_eq!((finding.found.as_str(), finding.severity), ("Xorg (9, 83.9 MB)", Severity::Good));
        facts.gpus[0].users = None;
        assert!(of(&facts, true).iter().all(|finding| finding.what != "GPU 0 used by"), "nobody knows");
    }
}
