//! The section of `SERVE.md` about the adapter alone.
//!
//! `tests/peers/load_outputs.py` runs each of its snippets.

use std::fmt::Write;

use sparktune_base::escape::escape_json;
use sparktune_model::BaseClass;

/// Returns a snippet for each class that an adapter on this base was written for.
pub(crate) fn section_of_adapter(base: &str, adapters: &[BaseClass], is_wrapper: bool) -> String {
    let of_config = if is_wrapper { "AutoModelForImageTextToText" } else { "AutoModelForCausalLM" };
    // A JSON string is a Python string too.
    let base = serde_json::Value::from(base).to_string();
    let base = escape_json(&base);
    let mut section = String::new();
    for class in adapters {
        let (auto, when) = match class {
            BaseClass::OfConfig => (of_config, "On the class that the base's config.json names"),
            BaseClass::CausalLm => (
                "AutoModelForCausalLM",
                "\nOn `AutoModelForCausalLM`, which loads only the text model of this base and gives the modules other names. With `adapter/`, \
                 PEFT would only warn and answer with the base",
            ),
        };
        let folder = class.folder();
        let _ = writeln!(
            section,
            "{when}:\n\n```python\nfrom peft import PeftModel\nfrom transformers import {auto}\n\n\
             base = {auto}.from_pretrained({base}, dtype=\"auto\")\n\
             model = PeftModel.from_pretrained(base, \"./{folder}\")\n```"
        );
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_adapter_is_shown_on_the_class_whose_modules_it_names() {
        let both = section_of_adapter("Qwen/Qwen3.5-2B", &[BaseClass::OfConfig, BaseClass::CausalLm], true);
        let snippets: Vec<&str> = both.split("```python").skip(1).collect();
        assert_eq!(snippets.len(), 2, "{both}");
        let shows = |snippet: &str, class: &str, folder: &str| {
            let base = format!("base = {class}.from_pretrained(\"Qwen/Qwen3.5-2B\", dtype=\"auto\")\n");
            let adapter = format!("PeftModel.from_pretrained(base, \"./{folder}\")\n```");
            assert!(snippet.contains(&base) && snippet.contains(&adapter), "{snippet}");
        };
        shows(snippets[0], "AutoModelForImageTextToText", "adapter");
        shows(snippets[1], "AutoModelForCausalLM", "adapter-causal-lm");

        let one = section_of_adapter("a\"b", &[BaseClass::OfConfig], false);
        assert!(one.contains(r#"AutoModelForCausalLM.from_pretrained("a\"b", "#), "{one}");
        assert!(!one.contains("causal-lm") && !one.contains("ImageText"), "{one}");
        let odd = section_of_adapter("a\n\u{1b}\u{202e}", &[BaseClass::OfConfig], false);
        assert!(odd.contains(r#"from_pretrained("a\n\u001b\u202e", "#), "{odd}");
    }
}
