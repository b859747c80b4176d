//! Training speeds that `tests/gpu/run.sh` measured on various machines, converted to this device.
//!
//! Enters: the page `kernels/RESULTS.md`, whose TOML blocks are read by people and by this file, and a
//! [`Probe`] of the device if there is one. Leaves: tokens per second, with the formula in words. Without
//! measurements the page has no block.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use sparktune_base::units::{flops, tokens_per_s};

use crate::choices::MethodKind;
use crate::error::PlanError;

/// The shipped page as text.
const RESULTS_MD: &str = include_str!("../../kernels/RESULTS.md");

/// All measurements.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The machines, newest measurement first.
    #[serde(default, rename = "machine")]
    pub machines: Vec<MeasuredMachine>,
}

/// One run of the GPU tests.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredMachine {
    /// The name reported by the driver.
    pub device: String,
    /// The date of the run.
    pub date: String,
    /// The commit that was measured.
    pub commit: String,
    /// The copy bandwidth in 10⁹ bytes per second, where bytes read and bytes written both count.
    pub copy_gb_per_s: f64,
    /// The rate of the vendor's bf16 matrix product, in 10¹² FLOP per second.
    pub bf16_tflops: f64,
    /// The result of sparktune's own probe in the same run, if there is one.
    pub probe: Option<Probe>,
    /// The measured training steps.
    pub training: Vec<MeasuredTraining>,
}

/// The speed of the training steps of one model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredTraining {
    /// The name of the shape in the catalog.
    pub size: String,
    /// Which parameters were trained.
    pub method: MethodKind,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// FLOPs per token as counted by the plan.
    pub flops_per_token: f64,
}

/// The speed of a device, measured for two seconds, for comparison with the same measurement on another
/// device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// The rate of sparktune's bf16 matrix product, in 10¹² FLOP per second.
    pub bf16_tflops: f64,
    /// The copy bandwidth in 10⁹ bytes per second, where bytes read and bytes written both count.
    pub copy_gb_per_s: f64,
}

/// A speed derived from a measurement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Derived {
    pub tokens_per_s: f64,
    /// Whether this size was measured on a device of this name, so that nothing was converted.
    pub is_of_this_kind: bool,
    pub words: String,
}

fn usable(x: f64) -> bool {
    x.is_finite() && x > 0.0
}

impl Probe {
    fn is_usable(self) -> bool {
        usable(self.bf16_tflops) && usable(self.copy_gb_per_s)
    }
}

impl Measured {
    /// Reads a page: its fenced `toml` blocks, in order, and ignores everything else.
    ///
    /// # Errors
    /// [`PlanError::Shipped`] when a block does not have the form of [`Measured`] or contains an invalid
    /// rate.
    pub fn from_page(page: &str) -> Result<Self, PlanError> {
        let broken = |problem: String| PlanError::Shipped { file: "kernels/RESULTS.md", problem };
        let mut blocks = String::new();
        let mut inside = false;
        for line in page.lines() {
            match line.trim_end() {
                "```toml" => inside = true,
                "```" => inside = false,
                line if inside => blocks.extend([line, "\n"]),
                _ => {}
            }
        }
        let measured: Self = toml::from_str(&blocks).map_err(|error| broken(error.to_string()))?;
        for machine in &measured.machines {
            let rates = machine.training.iter().flat_map(|row| [row.tokens_per_s, row.flops_per_token]);
            let probe = machine.probe.is_none_or(Probe::is_usable);
            if !probe || !rates.chain([machine.copy_gb_per_s, machine.bf16_tflops]).all(usable) {
                return Err(broken(format!("{} of {} has an invalid rate", machine.device, machine.date)));
            }
        }
        Ok(measured)
    }

    /// Returns the figures of the page that is part of the program.
    pub fn shipped() -> &'static Self {
        static MEASURED: OnceLock<Measured> = OnceLock::new();
        MEASURED.get_or_init(|| Self::from_page(RESULTS_MD).expect("the shipped page is read in a test"))
    }

    /// Returns the speed of a model on `device` in tokens per second, from the newest run on such a device.
    /// If there is none and the device was probed, the newest run on any device is used. `size` is the
    /// model's shape in the catalog; without it, or if it was not measured, the size with the nearest work
    /// per token is used.
    pub(crate) fn speed(
        &self,
        device: &str,
        size: Option<&str>,
        method: MethodKind,
        flops_per_token: f64,
        probe: Option<Probe>,
    ) -> Option<Derived> {
        let probe = probe.filter(|probe| probe.is_usable());
        let mut machines = self.machines.iter().filter(|machine| machine.of(method).next().is_some());
        let same = machines.clone().find(|machine| machine.device == device);
        let machine =
            same.or_else(|| probe.and_then(|_| machines.find(|machine| machine.probe.is_some())))?;
        let distance = |row: &MeasuredTraining| {
            let work = (row.flops_per_token / flops_per_token).ln().abs();
            if size == Some(row.size.as_str()) { -1.0 } else { work }
        };
        let row = machine.of(method).min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        let probes = probe.zip(machine.probe);
        let slower = probes.map_or(1.0, |(here, there)| machine.slower(row, here, there));
        let mut words = format!(
            "tests/gpu measured {} tokens/s with {} on {} ({}, commit {}) with {} per token; this run has {}",
            tokens_per_s(row.tokens_per_s),
            row.size,
            machine.device,
            machine.date,
            machine.commit,
            flops(row.flops_per_token),
            flops(flops_per_token)
        );
        if let Some((here, there)) = probes {
            words.push_str(&format!(
                "; a token takes {slower:.2} times as long here, because a probe reached {:.0} TFLOP/s and {:.0} GB/s here, and {:.0} and {:.0} there",
                here.bf16_tflops, here.copy_gb_per_s, there.bf16_tflops, there.copy_gb_per_s
            ));
        }
        Some(Derived {
            tokens_per_s: row.tokens_per_s * row.flops_per_token / flops_per_token / slower,
            is_of_this_kind: same.is_some() && size == Some(row.size.as_str()),
            words,
        })
    }
}

impl MeasuredMachine {
    fn of(&self, method: MethodKind) -> impl Iterator<Item = &MeasuredTraining> {
        self.training.iter().filter(move |row| row.method == method)
    }

    /// Returns the factor by which a step is slower on a device with the probe `here` than on the measured
    /// one with the probe `there`. The share of the time that the matrix units would need at their peak rate
    /// is scaled by the matrix rate, the rest by the copy bandwidth.
    fn slower(&self, row: &MeasuredTraining, here: Probe, there: Probe) -> f64 {
        let matrix = (row.tokens_per_s * row.flops_per_token / (self.bf16_tflops * 1e12)).min(1.0);
        matrix * there.bf16_tflops / here.bf16_tflops
            + (1.0 - matrix) * there.copy_gb_per_s / here.copy_gb_per_s
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A made-up page: 45 % of the matrix rate with 2B, which is realistic for such a machine.
    pub(crate) const PAGE: &str = r#"# Measured times

```toml
[[machine]]
device = "NVIDIA Made-up"
date = "2026-02-03"
commit = "0123456789ab"
copy_gb_per_s = 1000.0
bf16_tflops = 200.0
probe = { bf16_tflops = 160.0, copy_gb_per_s = 900.0 }

[[machine.training]]
size = "0.8B"
method = "lora"
tokens_per_s = 15000.0
flops_per_token = 4.2e9

[[machine.training]]
size = "2B"
method = "lora"
tokens_per_s = 10000.0
flops_per_token = 9e+09
```

| kernel | µs |
|---|---|
| a | 1 |

```toml
[[machine]]
device = "NVIDIA Made-up"
date = "2026-01-01"
commit = "older"
copy_gb_per_s = 1.0
bf16_tflops = 1.0
training = [{ size = "2B", method = "full", tokens_per_s = 1.0, flops_per_token = 1.0 }]
```
"#;

    fn measured() -> Measured {
        Measured::from_page(PAGE).unwrap()
    }

    #[test]
    fn the_shipped_page_is_read() {
        for machine in &Measured::from_page(RESULTS_MD).unwrap().machines {
            assert!(!machine.training.is_empty(), "{} of {}", machine.device, machine.date);
        }
    }

    /// The self-test of tests/gpu compares the output of `results.py` with this page.
    #[test]
    fn a_page_as_the_gpu_tests_write_it_is_read() {
        let page = include_str!("../../tests/gpu/selftest/recorded.md");
        let measured = Measured::from_page(page).unwrap();
        let [machine] = measured.machines.as_slice() else { panic!("{measured:?}") };
        assert_eq!((machine.device.as_str(), machine.bf16_tflops), ("Made-up GPU", 200.0));
        let speed = measured.speed("Made-up GPU", Some("2B"), MethodKind::Lora, 8.98e9, None).unwrap();
        assert!((speed.tokens_per_s - 10_000.0).abs() < 1.0, "{speed:?}");
    }

    #[test]
    fn a_page_with_a_wrong_block_names_the_file() {
        for (good, bad) in [
            ("tokens_per_s = 10000.0", "tokens_per_s = nan"),
            ("bf16_tflops = 160.0", "bf16_tflops = 0.0"),
            ("size = \"0.8B\"\n", ""),
        ] {
            let error = Measured::from_page(&PAGE.replacen(good, bad, 1)).unwrap_err().to_string();
            assert!(error.contains("kernels/RESULTS.md"), "{error}");
        }
    }

    #[test]
    fn without_a_block_nothing_is_known() {
        let nothing = Measured::from_page("# Measured times\n\nNot measured yet.\n").unwrap();
        let probe = Some(Probe { bf16_tflops: 100.0, copy_gb_per_s: 200.0 });
        assert_eq!(nothing.speed("NVIDIA Made-up", Some("2B"), MethodKind::Lora, 9e9, probe), None);
    }

    #[test]
    fn the_same_size_on_such_a_device_is_taken_as_it_is_and_carried_over_by_work() {
        let speed = |size, flops| {
            measured().speed("NVIDIA Made-up", Some(size), MethodKind::Lora, flops, None).unwrap()
        };
        let two = speed("2B", 4.5e9);
        assert_eq!((two.tokens_per_s, two.is_of_this_kind), (20_000.0, true));
        for part in ["10,000 tokens/s with 2B", "2026-02-03, commit 0123456789ab", "9.00 GFLOP", "4.50 GFLOP"]
        {
            assert!(two.words.contains(part), "{}", two.words);
        }
        // A size that was not measured uses the nearest one and is an estimate.
        let four = speed("4B", 18e9);
        assert_eq!((four.tokens_per_s, four.is_of_this_kind), (5000.0, false));
        assert!(speed("?", 4e9).words.contains("with 0.8B"));
    }

    #[test]
    fn a_method_is_only_known_from_runs_that_measured_it() {
        let full = measured().speed("NVIDIA Made-up", Some("2B"), MethodKind::Full, 1.0, None).unwrap();
        assert!(full.words.contains("commit older"), "{}", full.words);
    }

    #[test]
    fn another_device_is_only_estimated_from_a_probe_and_each_part_of_the_time_follows_its_own_rate() {
        let speed = |probe| measured().speed("NVIDIA GB10", Some("2B"), MethodKind::Lora, 9e9, probe);
        assert_eq!(speed(None), None);
        // 45 % of the time belongs to the matrix units at 200 TFLOP/s. This device has half the matrix rate
        // and a quarter of the bandwidth.
        let slower = speed(Some(Probe { bf16_tflops: 80.0, copy_gb_per_s: 225.0 })).unwrap();
        assert!((slower.tokens_per_s - 10_000.0 / (0.45 * 2.0 + 0.55 * 4.0)).abs() < 1e-6, "{slower:?}");
        assert!(
            !slower.is_of_this_kind && slower.words.contains("takes 3.10 times as long here"),
            "{slower:?}"
        );
        let same = speed(Some(Probe { bf16_tflops: 160.0, copy_gb_per_s: 900.0 })).unwrap();
        assert!((same.tokens_per_s - 10_000.0).abs() < 1e-6);
        assert_eq!(speed(Some(Probe { bf16_tflops: f64::NAN, copy_gb_per_s: 250.0 })), None);
        // A run without a probe cannot be converted to another device.
        let without = Measured::from_page(&PAGE.replace("probe = {", "# ")).unwrap();
        let probe = Some(Probe { bf16_tflops: 80.0, copy_gb_per_s: 225.0 });
        assert_eq!(without.speed("NVIDIA GB10", Some("2B"), MethodKind::Lora, 9e9, probe), None);
        let same = without.speed("NVIDIA Made-up", Some("2B"), MethodKind::Lora, 9e9, probe).unwrap();
        assert_eq!(same.tokens_per_s, 10_000.0);
    }
}
