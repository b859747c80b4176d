//! The commands that serve a trained model with vLLM, and the reason for each flag.
//!
//! Enters: the plan, the exported chat template, and the lengths of the training data. Leaves: text for
//! `SERVE.md`. The names of parsers and the ranks of adapters are those of vLLM's own registries
//! (`vllm/reasoning`, `vllm/tool_parsers`, `vllm/config/lora.py`).

use std::ffi::OsStr;

use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::regular_file::read_regular;
use sparktune_base::shell::shown_word;
use sparktune_base::units::count;
use sparktune_data::Report;
use sparktune_plan::adapter::{MOST_VLLM_RANK, max_lora_rank};
use sparktune_plan::{Architecture, ModelConfig, Plan};
use sparktune_runlog::RunDir;

/// The tokens that an answer may have beyond the longest example.
const ROOM: u64 = 2048;
/// `--max-model-len` is a multiple of this.
const STEP: u64 = 1024;
/// The most bytes of the report on a run's data.
const MOST_REPORT_BYTES: u64 = 64 << 20;

/// What the flags of a server depend on.
pub(crate) struct Serving<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) config: &'a ModelConfig,
    /// The exported chat template, if there is one.
    pub(crate) template: Option<&'a str>,
    /// Whether the exported template is another than the base's.
    pub(crate) is_own_template: bool,
    /// The length of the longest training example, in tokens.
    pub(crate) longest: u32,
}

/// A flag with its value, and the reason for it.
struct Flag {
    text: String,
    reason: String,
}

impl Serving<'_> {
    /// Returns the command that serves a folder of the outputs, with more flags at its end.
    pub(crate) fn command(&self, folder: &str, more: &[String]) -> String {
        let flags = self.flags().into_iter().map(|flag| flag.text).chain(more.iter().cloned());
        lines(format!("vllm serve ./{folder}"), flags)
    }

    /// Returns the command that serves the base with the adapter, or the reason why vLLM cannot. Returns
    /// `None` for a run without an adapter.
    pub(crate) fn adapter_command(&self) -> Option<Result<String, String>> {
        let rank = self.plan.method.rank();
        if rank == 0 {
            return None;
        }
        let Some(most) = max_lora_rank(rank.into()) else {
            return Some(Err(format!(
                "vLLM serves adapters up to rank {MOST_VLLM_RANK}, and this one has rank {rank}. Serve the merged model."
            )));
        };
        let adapter = format!("--enable-lora --max-lora-rank {most} --lora-modules tuned=./adapter");
        let template =
            self.is_own_template.then(|| "--chat-template ./merged/chat_template.jinja".to_owned());
        let flags = std::iter::once(adapter).chain(template);
        let flags = flags.chain(self.flags().into_iter().map(|flag| flag.text));
        let reference = self.plan.model.reference();
        let base = shown_word(OsStr::new(reference.as_ref()));
        Some(Ok(lines(format!("vllm serve {base}"), flags)))
    }

    /// Returns a list of the flags with their reasons.
    pub(crate) fn reasons(&self) -> String {
        self.flags().iter().map(|flag| format!("- `{}`: {}.\n", flag.text, flag.reason)).collect()
    }

    fn flags(&self) -> Vec<Flag> {
        let flag = |text: String, reason: String| Flag { text, reason };
        let mut flags = Vec::new();
        let kwargs = &self.plan.data.template_kwargs;
        if !kwargs.0.is_empty() && !self.plan.model.write_template_default {
            let json = shown_word(OsStr::new(&kwargs.to_string()));
            flags.push(flag(
                format!("--default-chat-template-kwargs {json}"),
                "the training data was rendered with these variables of the chat template. Without them the template's own defaults apply, and the model gets prompts that it was not trained on".into(),
            ));
        }
        if self.thinks() {
            flags.push(flag(
                "--reasoning-parser qwen3".into(),
                "returns the text of the think block as reasoning, separate from the answer".into(),
            ));
        }
        if let Some(parser) = self.tool_parser() {
            flags.push(flag(
                format!("--enable-auto-tool-choice --tool-call-parser {parser}"),
                "returns tool calls, in the form in which this template writes them, as calls and not as text".into(),
            ));
        }
        let limit = self.config.max_position_embeddings as u64;
        let length = (u64::from(self.longest) + ROOM).next_multiple_of(STEP).min(limit);
        flags.push(flag(
            format!("--max-model-len {length}"),
            format!(
                "the longest training example has {} tokens, and {} more are room for the answer. The model's own limit is {}, for which the server would reserve memory",
                count(self.longest.into()),
                count(ROOM),
                count(limit)
            ),
        ));
        let is_gb10 = self.plan.advice.as_ref().is_some_and(|advice| advice.time.device.contains("GB10"));
        if is_gb10 {
            flags.push(flag(
                "--gpu-memory-utilization 0.85".into(),
                "on a GB10, GPU and system share one memory, and the default leaves the system too little"
                    .into(),
            ));
        }
        flags
    }

    /// Returns whether the model was trained to think, in the form of Qwen's think blocks.
    fn thinks(&self) -> bool {
        let is_qwen = matches!(self.config.architecture, Architecture::Qwen3 | Architecture::Qwen35);
        let is_off = self.plan.data.template_kwargs.0.get("enable_thinking") == Some(&false.into());
        is_qwen && !is_off && self.template.is_some_and(|template| template.contains("<think>"))
    }

    /// Returns the name of vLLM's parser for the calls that the template writes, if it has one.
    fn tool_parser(&self) -> Option<&'static str> {
        let template = self.template?;
        match self.config.architecture {
            Architecture::Qwen35 | Architecture::Qwen3 if template.contains("<function=") => {
                Some("qwen3_coder")
            }
            Architecture::Qwen35 | Architecture::Qwen3 | Architecture::Qwen2
                if template.contains("<tool_call>") =>
            {
                Some("hermes")
            }
            Architecture::Llama if template.contains("<|python_tag|>") => Some("llama3_json"),
            Architecture::Mistral if template.contains("[TOOL_CALLS]") => Some("mistral"),
            _ => None,
        }
    }
}

/// Says how many examples of a run have turns that follow a different prompt in training than on a server, if
/// the report on its data counts some.
pub(crate) fn other_prompts(run: &RunDir) -> Option<String> {
    // Runs of older programs have another report or none.
    let report = read_regular(&run.data().join("report.json"), MOST_REPORT_BYTES).ok()?;
    let report: Report = serde_json::from_slice(&report).ok()?;
    let found = report.template.map(|template| template.unlike_served).filter(|found| found.examples > 0)?;
    let first = found.note.map(|note| format!(" (for example: {})", escape(&note))).unwrap_or_default();
    Some(format!(
        "{} of {} examples have turns that follow a different prompt in training than on a server{first}. `{} check` with `--model` names the first line. A request sets variables of the chat template as `chat_template_kwargs`; a new run with `--split-turns` renders the turns before each trained one as a server does.",
        count(found.examples),
        count(report.examples),
        program_name()
    ))
}

/// Joins a command and its flags, one flag a line.
fn lines(command: String, flags: impl Iterator<Item = String>) -> String {
    std::iter::once(command).chain(flags).collect::<Vec<_>>().join(" \\\n  ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sparktune_plan::TemplateKwargs;

    use super::*;
    use crate::testing::{config, plan};

    /// Returns the command for a plan and a template.
    fn command(id: &str, template: &str, change: impl FnOnce(&mut Plan)) -> String {
        let (config, mut plan) = (config(id), plan(id));
        change(&mut plan);
        let serving = Serving {
            plan: &plan,
            config: &config,
            template: Some(template),
            is_own_template: false,
            longest: 3000,
        };
        serving.command("merged", &[])
    }

    fn off(plan: &mut Plan) {
        plan.data.template_kwargs = TemplateKwargs::without_thinking();
    }

    #[test]
    fn a_model_that_was_trained_without_thinking_is_served_without_it() {
        let template = "<think> <tool_call>\n<function=";
        assert_eq!(
            command("Qwen/Qwen3.5-9B", template, off),
            "vllm serve ./merged \\\n  --default-chat-template-kwargs '{\"enable_thinking\":false}' \\\n  \
             --enable-auto-tool-choice --tool-call-parser qwen3_coder \\\n  --max-model-len 5120"
        );
        let written = command("Qwen/Qwen3.5-9B", template, |plan| {
            off(plan);
            plan.model.write_template_default = true;
        });
        assert!(!written.contains("kwargs") && !written.contains("--reasoning-parser"), "{written}");
        let thinks = command("Qwen/Qwen3.5-9B", template, |_| ());
        assert!(thinks.contains("--reasoning-parser qwen3") && !thinks.contains("kwargs"), "{thinks}");
    }

    #[test]
    fn the_parser_of_calls_is_that_of_the_templates_form_and_none_where_there_is_none() {
        let hermes = command("Qwen/Qwen3.5-2B", "<tool_call>{\"name\"", |_| ());
        assert!(hermes.contains("--tool-call-parser hermes"), "{hermes}");
        let none = command("Qwen/Qwen3.5-2B", "{{ messages }}", |_| ());
        assert!(!none.contains("parser"), "{none}");
    }

    #[test]
    fn a_gb10_keeps_memory_for_its_system() {
        let command = command("Qwen/Qwen3.5-2B", "", |plan| {
            plan.advice.as_mut().unwrap().time.device = "NVIDIA GB10".into();
        });
        assert!(command.contains("--gpu-memory-utilization 0.85"), "{command}");
    }

    #[test]
    fn an_adapter_is_served_with_the_next_rank_that_the_server_knows() {
        let id = "Qwen/Qwen3.5-2B";
        let (config, mut plan) = (config(id), plan(id));
        let mut served = |rank, is_own_template| {
            plan.method = sparktune_plan::Method::Lora {
                rank,
                alpha: 1.0,
                rslora: false,
                clipped: true,
                target_modules: sparktune_plan::TargetModules::ALL,
                dropout: 0.0,
            };
            let serving =
                Serving { plan: &plan, config: &config, template: None, is_own_template, longest: 10 };
            serving.adapter_command().unwrap()
        };
        let command = served(100, false).unwrap();
        assert!(command.starts_with("vllm serve Qwen/Qwen3.5-2B \\\n"), "{command}");
        assert!(command.contains("--max-lora-rank 128 --lora-modules tuned=./adapter"), "{command}");
        assert!(!command.contains("--chat-template "), "{command}");
        assert!(served(8, true).unwrap().contains("--max-lora-rank 8 "));
        assert!(served(8, true).unwrap().contains("--chat-template ./merged/chat_template.jinja"));
        assert!(served(600, false).unwrap_err().contains("up to rank 512"));
    }

    #[test]
    fn turns_that_follow_a_different_prompt_on_a_server_are_told_with_their_number() {
        let root = tempfile::tempdir().unwrap();
        let run = sparktune_runlog::RunsRoot::new(root.path()).create("m", "lora").unwrap();
        assert_eq!(other_prompts(&run), None, "a run of an older program");
        let mut report = Report { examples: 320, template: Some(Default::default()), ..Report::default() };
        let mut write = |examples: u64| {
            let found = &mut report.template.as_mut().unwrap().unlike_served;
            (found.examples, found.note) = (examples, Some("messages[2] \u{1b}".into()));
            fs::create_dir_all(run.data()).unwrap();
            fs::write(run.data().join("report.json"), serde_json::to_string(&report).unwrap()).unwrap();
        };
        write(0);
        assert_eq!(other_prompts(&run), None);
        write(298);
        let words = other_prompts(&run).unwrap();
        assert!(words.starts_with("298 of 320 examples") && words.contains("messages[2] \\u{1b}"), "{words}");
        // Whoever opens a pipe waits for its other end.
        let path = run.data().join("report.json");
        let report = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        std::thread::spawn(move || fs::write(path, report));
        assert_eq!(other_prompts(&run), None, "only a file is read");
    }
}
