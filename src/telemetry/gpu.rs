//! NVML, loaded at run time where there is a driver. Every query may be unsupported on some device; that is a `None`.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use sparktune_runlog::GpuSample;

use crate::facts::GpuFacts;

/// The driver, when there is one.
#[derive(Debug)]
pub(crate) struct Gpus {
    nvml: Option<Nvml>,
}

impl Gpus {
    pub(crate) fn find() -> Self {
        Gpus { nvml: Nvml::init().ok() }
    }

    pub(crate) fn driver_version(&self) -> Option<String> {
        self.nvml.as_ref()?.sys_driver_version().ok()
    }

    /// Newest CUDA the driver can run, as `13.0`.
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
            })
            .collect()
    }

    /// Some GPU says that it has no memory of its own to report, as GB10 does.
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
                    power_watts: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
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

/// Reasons that cost speed, in words; idling and a user's own clock setting are none.
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
        let none = Gpus { nvml: None };
        assert!(none.facts().is_empty() && none.sample().is_empty() && !none.share_system_memory());
        assert_eq!((none.driver_version(), none.cuda_version()), (None, None));
    }

    #[test]
    fn whatever_machine_this_is_facts_and_samples_agree_on_its_gpus() {
        let gpus = Gpus::find();
        assert_eq!(gpus.facts().len(), gpus.sample().len());
    }

    #[test]
    fn only_reasons_that_cost_speed_are_named() {
        assert_eq!(throttle_words(ThrottleReasons::GPU_IDLE), None);
        let hot =
            ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::SW_POWER_CAP | ThrottleReasons::GPU_IDLE;
        assert_eq!(throttle_words(hot).as_deref(), Some("power cap, thermal (software)"));
    }
}
