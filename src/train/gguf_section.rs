//! The section of `SERVE.md` about llama.cpp and Ollama.

use sparktune_base::program_name;

/// The folder of the files, below that of the other outputs.
pub(crate) const FOLDER: &str = "gguf";

/// Returns the section without its heading. `run` names the run in commands, with a flag for weights other
/// than the planned ones, so that the files are written beside the page that has the section.
pub(crate) fn section_of_gguf(run: &str, has_adapter: bool) -> String {
    let program = program_name();
    let adapter = if has_adapter {
        format!(
            "\n\n`{program} export {run} --gguf-adapter` writes the adapter alone, for a GGUF file of the base: `llama-server -m BASE.gguf --lora {FOLDER}/adapter-f32.gguf`."
        )
    } else {
        String::new()
    };
    format!(
        "A GGUF file is written on request, with `f16`, `bf16` or `q8_0`:\n\n\
         ```\n{program} export {run} --gguf q8_0\n```\n\n\
         Then one of these:\n\n\
         ```\nllama-server -m {FOLDER}/model-q8_0.gguf --jinja\nollama create my-model -f {FOLDER}/Modelfile\n```{adapter}"
    )
}
