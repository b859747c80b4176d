//! NVML, loaded at run time if there is a driver. A query that a device does not support returns `None`.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use serde::{Deserialize, Serialize};
use sparktune_runlog::GpuSample;

use crate::process;

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFacts {
    /// The index used by the driver.
    pub index: u32,
    /// Its name.
    pub name: Option<String>,
    /// The compute capability, as `12.1`.
    pub compute_capability: Option<String>,
    /// The dedicated memory in bytes; `None` on GB10, which shares the system's.
    pub mem_total_bytes: Option<u64>,
    /// The part of it that is free now, in bytes.
    pub mem_free_bytes: Option<u64>,
    /// The current SM clock; low while idle.
    pub sm_clock_mhz: Option<u32>,
    /// The highest SM clock of this model.
    pub sm_clock_max_mhz: Option<u32>,
    /// Core temperature.
    pub temperature_celsius: Option<u32>,
    /// Power draw.
    pub power_watts: Option<f64>,
    /// The power limit.
    pub power_limit_watts: Option<f64>,
    /// The reason why the driver limits the clocks, if it does.
    pub throttle: Option<String>,
    /// Other processes that use it; `None` if the driver does not report them.
    pub users: Option<Vec<GpuUser>>,
}

/// The reason why NVML is installed but does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverFault {
    /// The library has another version than the driver in the kernel, because it was updated and not loaded
    /// yet.
    Mismatch,
    /// The kernel has no driver loaded.
    NotLoaded,
    /// This process has no permission to use it.
    NoPermission,
    /// Any other error, with NVML's message.
    Other(String),
}

/// Another process on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuUser {
    /// The process id used by the driver; in a container that may be the host's.
    pub pid: u32,
    /// The program's name, which is untrusted and has to be escaped for a terminal.
    pub name: Option<String>,
    /// Whether it computes; otherwise it only draws, like a desktop.
    pub computes: bool,
    /// The GPU memory it uses in bytes; not known on GB10.
    pub mem_used_bytes: Option<u64>,
}

/// The driver, if there is one.
#[derive(Debug)]
pub(crate) struct Gpus {
    nvml: Option<Nvml>,
    fault: Option<DriverFault>,
}

impl Gpus {
    pub(crate) fn find() -> Self {
        match Nvml::init() {
            Ok(nvml) => Gpus { nvml: Some(nvml), fault: None },
            Err(error) => Gpus { nvml: None, fault: fault(&error) },
        }
    }

    /// Returns the reason why an installed driver does not answer.
    pub(crate) fn fault(&self) -> Option<DriverFault> {
        self.fault.clone()
    }

    pub(crate) fn driver_version(&self) -> Option<String> {
        self.nvml.as_ref()?.sys_driver_version().ok()
    }

    /// Returns the newest CUDA that the driver supports, as `13.0`.
    pub(crate) fn cuda_version(&self) -> Option<String> {
        let version = self.nvml.as_ref()?.sys_cuda_driver_version().ok()?;
        Some(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    fn devices(&self) -> impl Iterator<Item = (u32, nvml_wrapper::Device<'_>)> {
        self.nvml.iter().flat_map(|nvml| {
            let count = nvml.device_count().unwrap_or(0);
            (0..count).filter_map(|index| Some((index, nvml.device_by_index(index).ok()?)))
        })
    }

    /// Returns the name of the first GPU.
    pub(crate) fn name(&self) -> Option<String> {
        self.devices().next()?.1.name().ok()
    }

    pub(crate) fn facts(&self) -> Vec<GpuFacts> {
        self.devices()
            .map(|(index, device)| GpuFacts {
                index,
                name: device.name().ok(),
                compute_capability: device
                    .cuda_compute_capability()
                    .ok()
                    .map(|capability| format!("{}.{}", capability.major, capability.minor)),
                mem_total_bytes: device.memory_info().ok().map(|memory| memory.total),
                mem_free_bytes: device.memory_info().ok().map(|memory| memory.free),
                sm_clock_mhz: device.clock_info(Clock::SM).ok(),
                sm_clock_max_mhz: device.max_clock_info(Clock::SM).ok(),
                temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
                power_watts: device.power_usage().ok().map(watts),
                power_limit_watts: device.enforced_power_limit().ok().map(watts),
                throttle: device.current_throttle_reasons().ok().and_then(throttle_words),
                users: users(
                    device.running_compute_processes().ok(),
                    device.running_graphics_processes().ok(),
                    |pid| self.name_of(pid),
                ),
            })
            .collect()
    }

    fn name_of(&self, pid: u32) -> Option<String> {
        // The driver knows the whole path, even of processes outside of a container.
        let known = self.nvml.as_ref().and_then(|nvml| nvml.sys_process_name(pid, 256).ok());
        let program = known.as_deref().and_then(|path| path.split(' ').next()?.rsplit('/').next());
        program.filter(|name| !name.is_empty()).map(str::to_owned).or_else(|| process::name_of(pid))
    }

    /// Returns whether some GPU reports no memory of its own, like GB10.
    pub(crate) fn share_system_memory(&self) -> bool {
        self.devices().any(|(_, device)| matches!(device.memory_info(), Err(NvmlError::NotSupported)))
    }

    pub(crate) fn sample(&self) -> Vec<GpuSample> {
        self.devices()
            .map(|(index, device)| {
                let memory = device.memory_info().ok();
                GpuSample {
                    index,
                    busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
                    temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
                    power_watts: device.power_usage().ok().map(watts),
                    sm_clock_mhz: device.clock_info(Clock::SM).ok(),
                    sm_clock_max_mhz: device.max_clock_info(Clock::SM).ok(),
                    mem_clock_mhz: device.clock_info(Clock::Memory).ok(),
                    mem_used_bytes: memory.as_ref().map(|memory| memory.used),
                    mem_total_bytes: memory.as_ref().map(|memory| memory.total),
                    throttle: device.current_throttle_reasons().ok().and_then(throttle_words),
                }
            })
            .collect()
    }
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1e3
}

/// Returns the problem of an installed driver, if there is one.
fn fault(error: &NvmlError) -> Option<DriverFault> {
    Some(match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => return None,
        NvmlError::LibRmVersionMismatch => DriverFault::Mismatch,
        NvmlError::DriverNotLoaded => DriverFault::NotLoaded,
        NvmlError::NoPermission => DriverFault::NoPermission,
        other => DriverFault::Other(other.to_string()),
    })
}

/// Returns the other processes on a GPU, each once; `None` if the driver reports neither kind.
fn users(
    computing: Option<Vec<ProcessInfo>>,
    drawing: Option<Vec<ProcessInfo>>,
    name_of: impl Fn(u32) -> Option<String>,
) -> Option<Vec<GpuUser>> {
    if computing.is_none() && drawing.is_none() {
        return None;
    }
    let kinds = [(computing, true), (drawing, false)];
    let processes = kinds.into_iter().flat_map(|(list, computes)| {
        list.unwrap_or_default().into_iter().map(move |process| (process, computes))
    });
    let mut users: Vec<GpuUser> = Vec::new();
    for (ProcessInfo { pid, used_gpu_memory, .. }, computes) in processes {
        let mem_used_bytes = match used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        match users.iter_mut().find(|user| user.pid == pid) {
            // The driver lists a process's memory once for each list that contains it.
            Some(user) => user.mem_used_bytes = user.mem_used_bytes.max(mem_used_bytes),
            None if pid == std::process::id() => {}
            None => users.push(GpuUser { pid, name: name_of(pid), computes, mem_used_bytes }),
        }
    }
    users.sort_by_key(|user| (!user.computes, std::cmp::Reverse(user.mem_used_bytes), user.pid));
    Some(users)
}

/// Describes throttle reasons that reduce the speed. Idling and a user's own clock setting are not included.
fn throttle_words(reasons: ThrottleReasons) -> Option<String> {
    let words = [
        (ThrottleReasons::SW_POWER_CAP, "power cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync boost"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "thermal (software)"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "thermal (hardware)"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    ];
    let active: Vec<&str> =
        words.iter().filter(|(bit, _)| reasons.contains(*bit)).map(|(_, word)| *word).collect();
    (!active.is_empty()).then(|| active.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_has_no_gpus_and_no_panic() {
        let none = Gpus { nvml: None, fault: None };
        assert!(none.facts().is_empty() && none.sample().is_empty() && !none.share_system_memory());
        assert_eq!((none.driver_version(), none.cuda_version()), (None, None));
    }

    #[test]
    fn a_driver_that_does_not_answer_is_told_from_none() {
        assert_eq!(fault(&NvmlError::LibraryNotFound), None);
        assert_eq!(fault(&NvmlError::LibRmVersionMismatch), Some(DriverFault::Mismatch));
        assert_eq!(fault(&NvmlError::DriverNotLoaded), Some(DriverFault::NotLoaded));
        let lost = fault(&NvmlError::GpuLost);
        assert!(matches!(lost, Some(DriverFault::Other(words)) if words.contains("fell off the bus")));
    }

    #[test]
    fn facts_and_samples_agree_on_the_gpus_of_this_machine() {
        let gpus = Gpus::find();
        assert_eq!(gpus.facts().len(), gpus.sample().len());
    }

    #[test]
    fn each_other_process_on_a_gpu_is_listed_once_and_those_that_compute_come_first() {
        let process = |pid, used_gpu_memory| ProcessInfo {
            pid,
            used_gpu_memory,
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        let own = std::process::id();
        let computing = vec![
            process(own, UsedGpuMemory::Used(9)),
            process(7, UsedGpuMemory::Used(5)),
            process(8, UsedGpuMemory::Unavailable),
        ];
        let drawing = vec![process(7, UsedGpuMemory::Used(6)), process(3, UsedGpuMemory::Used(99))];
        let users = users(Some(computing), Some(drawing), |pid| Some(format!("p{pid}"))).unwrap();
        let short: Vec<(u32, bool, Option<u64>)> =
            users.iter().map(|user| (user.pid, user.computes, user.mem_used_bytes)).collect();
        assert_eq!(short, [(7, true, Some(6)), (8, true, None), (3, false, Some(99))]);
        assert_eq!(users[0].name.as_deref(), Some("p7"));
        assert_eq!(super::users(None, None, |_| None), None);
        assert_eq!(super::users(None, Some(Vec::new()), |_| None), Some(Vec::new()));
    }

    #[test]
    fn only_reasons_that_cost_speed_are_named() {
        assert_eq!(throttle_words(ThrottleReasons::GPU_IDLE), None);
        let hot =
            ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::SW_POWER_CAP | ThrottleReasons::GPU_IDLE;
        assert_eq!(throttle_words(hot).as_deref(), Some("power cap, thermal (software)"));
    }
}
