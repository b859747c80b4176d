//! Decides what depends on what the machine and the model can do: the device, fp8, the MTP head and its draft
//! vocabulary, and the variables of the chat template.
//!
//! An answer that the machine or the model cannot follow is refused. One of a preset, which is written for
//! many models, is passed over where the model has no MTP head.

use sparktune_base::escape::escape;
use sparktune_base::units::parameters;

use crate::answer::{Answer, Origin};
use crate::choices::{Device, DeviceChoice, Mtp};
use crate::error::PlanError;
use crate::facts::PackedSettings;
use crate::plan::HeadPlan;
use crate::resolve::{Resolver, setting};
use crate::shown::Shown;
use crate::template_kwargs::TemplateKwargs;

/// The number of tokens that a head learns to draft, unless the user chooses another.
const DRAFT_TOKENS: u32 = 3;

impl Resolver<'_> {
    pub(crate) fn device(&mut self) -> Result<Device, PlanError> {
        let machine = &self.facts.machine;
        let why = || machine.no_gpu_because.clone().unwrap_or_else(|| "no usable GPU was found".into());
        let found = machine.gpus.first().map(|gpu| gpu.name.clone());
        let (asked, origin) = match &self.answers.device {
            Some(answer) => (answer.value, answer.origin),
            None => (DeviceChoice::Auto, Origin::BuiltIn),
        };
        let (device, reason) = match (asked, found) {
            (DeviceChoice::Cuda, None) => {
                return Err(PlanError::Device { place: setting("device").place(origin), why: why() });
            }
            (DeviceChoice::Cuda, Some(name)) => (Device::Cuda, name),
            (DeviceChoice::Cpu, _) => (Device::Cpu, format!("{} cores, fp32", machine.cores)),
            (DeviceChoice::Auto, Some(name)) => (Device::Cuda, format!("{name} was found")),
            (DeviceChoice::Auto, None) => (Device::Cpu, format!("{}; {} cores, fp32", why(), machine.cores)),
        };
        self.record("device", device.shown(), origin, reason);
        Ok(device)
    }

    pub(crate) fn fp8(&mut self, device: Device) -> Result<bool, PlanError> {
        // The first compute capability with e4m3.
        const LEAST: (u32, u32) = (8, 9);
        let answer = &self.answers.fp8;
        let machine = &self.facts.machine;
        let why = match (device, machine.gpus.first()) {
            (Device::Cuda, Some(gpu)) => match gpu.compute_capability {
                Some(found) if found < LEAST => Some(format!(
                    "{} has compute capability {}.{}, and fp8 needs {}.{} or newer",
                    escape(&gpu.name),
                    found.0,
                    found.1,
                    LEAST.0,
                    LEAST.1
                )),
                _ => None,
            },
            _ => Some("fp8 needs a GPU, and this run trains on the CPU".to_owned()),
        };
        match (answer, why) {
            (Some(Answer { value: true, origin }), Some(why)) => Err(PlanError::Conflict {
                key: "fp8",
                what: format!("{} is true, but {why}", setting("fp8").place(*origin)),
                fix: "Omit it: training then uses bf16 on a GPU and fp32 on the CPU".into(),
            }),
            _ => Ok(self.pick(
                "fp8",
                answer,
                false,
                "fp8 (e4m3) is lossy, and its speed is unmeasured; the run measures the loss with and without it at the start and the end",
            )),
        }
    }

    pub(crate) fn mtp(&mut self, model: &str) -> Result<Mtp, PlanError> {
        let answer = &self.answers.mtp;
        if self.facts.model.has_mtp() {
            let reason = format!(
                "the head has {} parameters; once trained, its drafts match what the tuned model writes",
                parameters(self.facts.model.mtp_parameters())
            );
            return Ok(self.pick("mtp", answer, Mtp::Trained, reason));
        }
        match answer {
            // A preset is written for many models, so only the user's own answer is an error for this one.
            Some(Answer { value, origin }) if *value != Mtp::None && *origin > Origin::Preset => {
                Err(PlanError::Conflict {
                    key: "mtp",
                    what: format!(
                        "{} is {value}, but {} has no MTP head (mtp_num_hidden_layers is 0 in its config.json)",
                        setting("mtp").place(*origin),
                        escape(model)
                    ),
                    fix: "Omit it, use --mtp none, take the head of another model with --mtp-from, or choose a model with an MTP head".into(),
                })
            }
            _ => {
                self.record("mtp", Mtp::None.shown(), Origin::BuiltIn, "this model has no MTP head".into());
                Ok(Mtp::None)
            }
        }
    }

    /// Decides how the MTP head is trained; `None` if none is.
    pub(crate) fn head(&mut self, mtp: Mtp) -> Result<Option<HeadPlan>, PlanError> {
        if mtp != Mtp::Trained {
            for key in ["head.learning_rate", "head.epochs", "head.draft_tokens"] {
                self.pass_over(key, "no MTP head is trained", "--mtp trained")?;
            }
            return Ok(None);
        }
        let answers = self.answers;
        Ok(Some(HeadPlan {
            learning_rate: self.pick(
                "head.learning_rate",
                &answers.mtp_learning_rate,
                HeadPlan::OLD.learning_rate,
                "one layer that starts from the base model's weights, whatever the text model's rate",
            ),
            epochs: self.pick(
                "head.epochs",
                &answers.mtp_epochs,
                1,
                "enough for a head that starts from the base model's weights",
            ),
            draft_tokens: self.pick(
                "head.draft_tokens",
                &answers.mtp_draft_tokens,
                DRAFT_TOKENS,
                "servers draft several tokens in a row, and a head that learnt only the first guesses the others badly; 3 as in vLLM's speculators",
            ),
            alone: self.finished.is_some(),
        }))
    }

    /// Decides from which model the MTP head is taken; `None` means the base.
    pub(crate) fn mtp_from(&mut self, mtp: Mtp) -> Result<Option<String>, PlanError> {
        const KEY: &str = "model.mtp_from";
        if mtp == Mtp::None {
            self.pass_over(KEY, "the MTP head is left out", "--mtp trained or default")?;
            return Ok(None);
        }
        let answer = &self.answers.mtp_from;
        Ok(self.pick_optional(KEY, answer, "the base's own head"))
    }

    pub(crate) fn draft_vocab(&mut self, mtp: Mtp) -> Result<Option<u32>, PlanError> {
        const KEY: &str = "draft_vocab";
        let answer = &self.answers.draft_vocab;
        if mtp == Mtp::None {
            self.pass_over(KEY, "the MTP head is left out", "--mtp trained or default")?;
            return Ok(None);
        }
        Ok(self.pick_optional(KEY, answer, "off: drafts are chosen from the whole vocabulary"))
    }

    /// Returns the variables that the data was rendered with.
    pub(crate) fn template_kwargs(&mut self) -> TemplateKwargs {
        const KEY: &str = "data.template_kwargs";
        let rendered_with = &self.facts.data.template_kwargs;
        if self.facts.data.packed.is_some() {
            let packed = |packed: &PackedSettings| packed.template_kwargs.clone();
            return self.pick_packed(KEY, &None, packed, rendered_with.clone(), "");
        }
        if let Some(answer) = &self.answers.template_kwargs {
            let reason = "as given; a server has to set the same ones, for which SERVE.md has the flag";
            self.record(KEY, answer.value.shown(), answer.origin, reason.into());
            return answer.value.clone();
        }
        let reason = if rendered_with.0.is_empty() {
            "none, so the template's own defaults apply"
        } else if *rendered_with == TemplateKwargs::thinking(true) {
            "examples have reasoning, and the template does not think unless it is told to; a server has to be told too, for which SERVE.md has the flag"
        } else {
            "no example has reasoning, so the template is told not to think; a server has to be told too, for which SERVE.md has the flag"
        };
        self.pick(KEY, &None, rendered_with.clone(), reason)
    }

    /// Decides whether the exported template gets these variables as its defaults.
    pub(crate) fn write_template_default(&mut self, kwargs: &TemplateKwargs) -> Result<bool, PlanError> {
        const KEY: &str = "model.write_template_default";
        let answer = &self.answers.write_template_default;
        if kwargs.0.is_empty() {
            self.pass_over(KEY, "no variables of the chat template are set", "--template-kwargs")?;
            return Ok(false);
        }
        let reason = "the exported template stays as it is, and the command in SERVE.md sets the variables";
        Ok(self.pick(KEY, answer, false, reason))
    }
}
