//! What a chat template does to examples that their author may not expect: how it is called, what it leaves
//! out, and where a turn follows a different prompt in training than on a server.

use std::path::Path;

use serde_json::{Value, json};
use sparktune_base::choices::Think;
use sparktune_base::thinking::Opening;
use sparktune_data::{
    ChatTokenizer, CheckOptions, Conversation, Format, MaskPolicy, TemplateFindings, TemplateKwargs, check,
    parse_line,
};

use crate::fixtures;

/// A template that takes text only and writes arguments as JSON, like that of Qwen2.5. It renders no
/// developer turns.
const TEXT_ONLY: &str = "\
{%- for message in messages %}
    {%- if message.role in ['system', 'user', 'tool'] %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}
            {{- call.function.arguments | tojson }}{{ '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A template that writes the reasoning of every turn into a block and does not look for it in the content,
/// like that of Qwen3.8.
const WITH_EFFORT: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {{- '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n') }}
{%- endif %}";

fn tokenizer(template: &str) -> ChatTokenizer {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.jinja");
    std::fs::write(&file, template).unwrap();
    ChatTokenizer::open(&fixtures::qwen35().join("checkpoint"), Some(&file)).unwrap()
}

fn rendered(tokenizer: &ChatTokenizer, messages: Value) -> String {
    let line = json!({ "messages": messages }).to_string();
    let Conversation::Chat(chat) = parse_line(Some(Format::Messages), &line).unwrap() else { panic!() };
    tokenizer.render(&chat).unwrap().text
}

/// Returns what a check finds about the template in these examples.
fn found(tokenizer: &ChatTokenizer, think: Think, examples: &[Value]) -> (TemplateFindings, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data.jsonl");
    let lines: Vec<String> =
        examples.iter().map(|messages| json!({ "messages": messages }).to_string()).collect();
    std::fs::write(&data, lines.join("\n")).unwrap();
    let policy = MaskPolicy::from(think);
    let options = CheckOptions { tokenizer: Some(tokenizer), policy, ..CheckOptions::default() };
    let report = check(&[data], &options, &()).unwrap();
    assert_eq!(report.examples, examples.len() as u64, "{report}");
    let findings = report.findings();
    (report.template.unwrap(), findings)
}

fn thinking(on: bool) -> TemplateKwargs {
    [("enable_thinking".to_owned(), Value::from(on))].into()
}

fn fixture() -> ChatTokenizer {
    ChatTokenizer::from_dir(&fixtures::qwen35().join("checkpoint")).unwrap()
}

#[test]
fn arguments_are_an_object_for_every_template_as_in_vllm() {
    let tokenizer = tokenizer(TEXT_ONLY);
    for (arguments, written) in [
        (json!("{\"day\": \"Mon\"}"), "{\"day\": \"Mon\"}"),
        (json!({ "day": "Mon" }), "{\"day\": \"Mon\"}"),
        (json!(""), "{}"),
        (json!("no JSON"), "\"no JSON\""),
    ] {
        let call = json!([{ "type": "function", "function": { "name": "book", "arguments": arguments } }]);
        let text = rendered(
            &tokenizer,
            json!([{ "role": "user", "content": "u" },
                { "role": "assistant", "content": null, "tool_calls": call }]),
        );
        let expected = format!("<tool_call>{{\"name\": \"book\", \"arguments\": {written}}}</tool_call>");
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn a_template_that_takes_only_the_string_of_arguments_gets_it() {
    let tokenizer =
        tokenizer(&TEXT_ONLY.replace("call.function.arguments | tojson", "'' + call.function.arguments"));
    let call = json!([{ "function": { "name": "book", "arguments": "{\"day\":\"Mon\"}" } }]);
    let messages = json!([{ "role": "user", "content": "u" }, { "role": "assistant", "tool_calls": call }]);
    assert!(rendered(&tokenizer, messages).contains("\"arguments\": {\"day\":\"Mon\"}}</tool_call>"));
}

#[test]
fn parts_become_one_text_for_a_template_that_takes_text_only() {
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] },
        { "role": "assistant", "content": "a" }]);
    let text = rendered(&tokenizer(TEXT_ONLY), messages.clone());
    assert!(text.starts_with("<|im_start|>user\none\ntwo<|im_end|>"), "{text}");
    let text = rendered(&fixture(), messages);
    assert!(text.starts_with("<|im_start|>user\nonetwo<|im_end|>"), "it reads the list itself: {text}");
}

#[test]
fn inline_thinking_becomes_reasoning_where_the_template_does_not_split_it() {
    let answer = |content: &str| json!([{ "role": "user", "content": "u" }, { "role": "assistant", "content": content }]);
    let thought = answer("<think>\nwhy\n</think>\n\na");
    let expected =
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<think>\nwhy\n</think>\n\na<|im_end|>\n";
    for template in [tokenizer(WITH_EFFORT), fixture()] {
        assert_eq!(rendered(&template, thought.clone()), expected);
    }
    // A template without a field for reasoning gets the text as it is.
    assert_eq!(rendered(&tokenizer(TEXT_ONLY), thought), expected);
    let mentioned = rendered(&tokenizer(WITH_EFFORT), answer("the <think>tag</think>"));
    assert!(mentioned.ends_with("<think>\n\n</think>\n\nthe <think>tag</think><|im_end|>\n"), "{mentioned}");
}

#[test]
fn a_template_of_ones_own_and_its_variables_count_in_the_fingerprint() {
    let mut tokenizer = tokenizer(WITH_EFFORT);
    assert_ne!(tokenizer.fingerprint(), fixture().fingerprint());
    assert_ne!(tokenizer.template_hash(), fixture().template_hash());
    let before = tokenizer.fingerprint();
    tokenizer.set_kwargs(thinking(false));
    assert_ne!(tokenizer.fingerprint(), before);
    let missing = ChatTokenizer::open(&fixtures::qwen35().join("checkpoint"), Some(Path::new("no.jinja")));
    assert!(missing.err().unwrap().to_string().contains("no.jinja"));
}

#[test]
fn what_a_template_leaves_out_is_counted_and_named() {
    let dropped = json!([{ "role": "user", "content": "u" },
        { "role": "assistant", "content": "a", "reasoning_content": "earlier thought" },
        { "role": "user", "content": "v" },
        { "role": "assistant", "content": "b", "reasoning_content": "later thought" }]);
    let (template, findings) = found(&fixture(), Think::Skip, std::slice::from_ref(&dropped));
    assert_eq!((template.reasoning_left_out.examples, template.turns_left_out.examples), (1, 0));
    let line = findings.iter().find(|line| line.contains("leaves out")).unwrap();
    assert!(line.starts_with("1 example with reasoning"), "{line}");
    assert!(line.ends_with("data.jsonl:1 (messages[1])"), "{line}");

    let mut keeping = fixture();
    keeping.set_kwargs([("preserve_thinking".to_owned(), Value::from(true))].into());
    let (template, _) = found(&keeping, Think::Skip, &[dropped]);
    assert_eq!(template.reasoning_left_out.examples, 0);
    assert_eq!(template.kwargs.get("preserve_thinking"), Some(&true.into()));

    let developer = json!([{ "role": "developer", "content": "Be brief." },
        { "role": "user", "content": "u" }, { "role": "assistant", "content": "a" }]);
    let kept = json!([{ "role": "system", "content": " Be brief.\n" },
        { "role": "user", "content": "u" }, { "role": "assistant", "content": "a" }]);
    let (template, findings) = found(&tokenizer(TEXT_ONLY), Think::Skip, &[kept, developer]);
    assert_eq!(template.turns_left_out.examples, 1);
    let line = findings.iter().find(|line| line.contains("leaves out")).unwrap();
    assert!(line.ends_with("data.jsonl:2 (messages[0], role developer)"), "{line}");
}

#[test]
fn a_turn_that_follows_a_different_prompt_in_training_than_on_a_server_is_found() {
    let one = json!([{ "role": "user", "content": "u" }, { "role": "assistant", "content": "a" }]);
    let two = json!([{ "role": "user", "content": "u" }, { "role": "assistant", "content": "a" },
        { "role": "user", "content": "v" }, { "role": "assistant", "content": "b" }]);
    // Untold, the server opens a think block, and the model was trained to answer after an empty one.
    let mut tokenizer = fixture();
    let (template, findings) = found(&tokenizer, Think::Skip, std::slice::from_ref(&one));
    assert_eq!(template.unlike_served.examples, 1);
    let line = findings.iter().find(|line| line.contains("a different prompt")).unwrap();
    assert!(
        line.contains(
            r#"messages[1] follows "<|im_start|>assistant\n<think>\n\n</think>\n\n" in training, but "<|im_start|>assistant\n<think>\n" on a server"#
        ),
        "{line}"
    );
    // If the block is trained, the model goes on from what the server opened.
    assert_eq!(found(&tokenizer, Think::Train, std::slice::from_ref(&one)).0.unlike_served.examples, 0);
    // Told not to think, the server sends what was trained, but not for earlier turns.
    tokenizer.set_kwargs(thinking(false));
    let (template, findings) = found(&tokenizer, Think::Skip, &[one, two.clone(), two]);
    assert_eq!(template.unlike_served.examples, 0);
    let earlier = &template.earlier_unlike_served;
    assert_eq!((earlier.examples, earlier.occurrences), (2, 2));
    let note = earlier.note.as_deref().unwrap();
    assert!(note.starts_with(r#"messages[1] follows "<|im_start|>assistant\n" in training, but"#), "{note}");
    let is_about_prompts = |line: &String| line.contains("a different prompt");
    assert!(
        !findings.iter().any(is_about_prompts),
        "the template renders them so, whatever is set: {findings:?}"
    );
}

/// The settings that follow from template and data make a server's prompt lead to the trained text.
#[test]
fn with_the_settings_that_follow_from_template_and_data_no_last_turn_follows_a_different_prompt_in_training()
{
    let plain = json!([{ "role": "user", "content": "u" }, { "role": "assistant", "content": "a" }]);
    let thought = json!([{ "role": "user", "content": "u" },
        { "role": "assistant", "content": "a", "reasoning_content": "why" }]);
    // The published templates of Qwen3.5 from 4B on and up to 2B, of Qwen3, and one without think blocks.
    let silent = WITH_EFFORT.replace(
        "('<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n')",
        "('<think>\n\n</think>\n\n' if enable_thinking is false else '')",
    );
    let closed = WITH_EFFORT
        .replace("if enable_thinking is false else '<think>\n'", "if not enable_thinking else '<think>\n'");
    assert!(silent != WITH_EFFORT && closed != WITH_EFFORT);
    for (template, opening) in [
        (WITH_EFFORT, Opening::Open),
        (&closed, Opening::Closed),
        (&silent, Opening::Silent),
        (TEXT_ONLY, Opening::Silent),
    ] {
        for (data, reasons) in [
            (vec![plain.clone(), plain.clone()], false),
            (vec![thought.clone(), thought.clone()], true),
            (vec![plain.clone(), thought.clone()], true),
        ] {
            let mut tokenizer = tokenizer(template);
            let openings = tokenizer.thinking().unwrap().openings;
            assert_eq!(openings.untold, opening);
            if let Some(on) = openings.enable_thinking(reasons) {
                tokenizer.set_kwargs(thinking(on));
            }
            let think = tokenizer.thinking_now().think();
            // A template without a field for reasoning has nowhere to put it.
            let data = if template == TEXT_ONLY { vec![plain.clone()] } else { data };
            let (found, findings) = found(&tokenizer, think, &data);
            assert_eq!(found.unlike_served.examples, 0, "{opening:?}, {reasons}: {findings:?}");
        }
    }
}

#[test]
fn a_prompt_that_differs_in_an_earlier_turn_names_that_turn() {
    let by_position = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + ('LAST ' if loop.last else '') + m.content + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let example = json!([{ "role": "user", "content": "u" }, { "role": "assistant", "content": "a" }]);
    let (template, findings) = found(&tokenizer(by_position), Think::Skip, &[example]);
    assert_eq!(template.unlike_served.examples, 1);
    let line = findings.iter().find(|line| line.contains("a different prompt")).unwrap();
    assert!(line.contains("messages[0] is rendered differently in the prompt of messages[1]"), "{line}");
}

/// minijinja takes such a variable for the template's own. What `--write-template-default` writes is such a
/// tag.
#[test]
fn a_template_reads_the_variables_that_it_gives_defaults() {
    for set in [
        "{%- set level = level if level is defined else 3 %}",
        "{% set level = level | default('low') -%}",
        "{%+set level=(level or 2)%}",
    ] {
        let tokenizer = tokenizer(&format!("{set}\n{WITH_EFFORT}"));
        assert!(tokenizer.reads_variable("level") && tokenizer.reads_variable("enable_thinking"), "{set}");
        assert!(!tokenizer.reads_variable("levels") && !tokenizer.reads_variable("low"), "{set}");
    }
    let own = tokenizer(&format!("{{% set level = 'a level' %}}{WITH_EFFORT}"));
    assert!(!own.reads_variable("levels"));
}
