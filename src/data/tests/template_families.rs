//! Tests of masks for templates with other structures than the golden one. Each test writes its own template
//! next to the golden tokenizer.

use serde_json::{Value, json};
use sparktune_base::choices::Think;
use sparktune_data::{
    Chat, ChatTokenizer, Conversation, DataError, Format, MaskPolicy, Rejection, parse_line,
};

use crate::fixtures;

fn with_template(template: &str) -> Result<ChatTokenizer, DataError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures::qwen35().join("checkpoint/tokenizer.json"), folder.path().join("tokenizer.json"))
        .unwrap();
    let config = json!({ "bos_token": "<|endoftext|>", "eos_token": { "content": "<|im_end|>" }, "chat_template": template });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    ChatTokenizer::from_dir(folder.path())
}

/// Returns the rendered text with targets in ⟦brackets⟧.
fn marked(tokenizer: &ChatTokenizer, line: &Value) -> Result<String, Rejection> {
    let line = line.to_string();
    let Conversation::Chat(chat) = parse_line(Some(Format::Messages), &line)? else { panic!("not a chat") };
    let (mut text, targets) = tokenizer.render_targets(&chat, MaskPolicy::default())?;
    for target in targets.into_iter().rev() {
        text.insert(target.end, '⟧');
        text.insert(target.start, '⟦');
    }
    Ok(text)
}

fn turns(turns: &[(&str, &str)]) -> Value {
    let messages: Vec<_> =
        turns.iter().map(|(role, content)| json!({ "role": role, "content": content })).collect();
    json!({ "messages": messages })
}

#[test]
fn a_system_turn_before_the_loop_and_a_sliced_loop() {
    let tokenizer = with_template(
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }};{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{% for message in rest %}
    {{- '<|im_start|>' + message['role'] + '\n\n' + message['content'] | trim + '<|im_end|>' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}",
    )
    .unwrap();
    assert_eq!(
        marked(&tokenizer, &turns(&[("system", "s"), ("user", "u"), ("assistant", " a \n")])).unwrap(),
        "<|endoftext|>s;<|im_start|>user\n\nu<|im_end|><|im_start|>assistant\n\n⟦a<|im_end|>⟧"
    );
}

#[test]
fn the_lines_of_a_template_end_as_in_python_wherever_it_stands() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let hash = |template: &str| with_template(template).unwrap().template_hash().map(str::to_owned);
    for end in ["\r\n", "\r"] {
        assert_eq!(hash(&template.replace('\n', end)), hash(template), "{end:?}");
    }
}

#[test]
fn a_thinking_block_after_the_answer_is_no_block_before_it() {
    let tokenizer = with_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<think></think><|im_end|>\n{% endfor %}",
    )
    .unwrap();
    assert_eq!(tokenizer.thinking().unwrap().empty_block, None);
    assert_eq!(
        marked(&tokenizer, &turns(&[("user", "u"), ("assistant", "a")])).unwrap(),
        "<|im_start|>user\nu<think></think><|im_end|>\n<|im_start|>assistant\n⟦a<think></think><|im_end|>⟧\n"
    );
}

#[test]
fn a_template_of_instructions_without_an_assistant_header() {
    let tokenizer = with_template(
        "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
         {% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    )
    .unwrap();
    assert_eq!(
        marked(&tokenizer, &turns(&[("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b")]))
            .unwrap(),
        "<|endoftext|>[INST] u [/INST] ⟦a<|im_end|>⟧[INST] v [/INST] ⟦b<|im_end|>⟧"
    );
    let refused =
        marked(&tokenizer, &turns(&[("user", "u"), ("user", "v"), ("assistant", "b")])).unwrap_err();
    assert!(refused.reason.ends_with("roles must alternate"), "{refused}");
    assert!(refused.fix.contains("two user turns in a row"), "{refused}");
}

const WITH_TOOLS: &str = "\
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}{% if message.role == 'user' and ns.last < 0 %}{% set ns.last = messages|length - 1 - loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last %}{{ '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function %}
            {{- '<tool_call>' + call.name }}
            {%- for name, value in call.arguments | items %}{{ ' ' + name + '=' + (value if value is string else value | tojson) }}{% endfor %}
            {{- '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n' + message.content }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}";

#[test]
fn tool_calls_and_reasoning_are_trained_and_tool_answers_are_not() {
    let tokenizer = with_template(WITH_TOOLS).unwrap();
    let call = |arguments: Value| json!([{ "type": "function", "function": { "name": "f", "arguments": arguments } }]);
    // Arguments are given as an object, and as a string of JSON like OpenAI's.
    for arguments in [json!({ "x": 1.5, "y": "<b>" }), json!("{\"x\": 1.5, \"y\": \"<b>\"}")] {
        let line = json!({ "tools": [{ "z": 1, "a": "<é>" }], "messages": [
            { "role": "user", "content": "u" },
            { "role": "assistant", "content": null, "tool_calls": call(arguments) },
            { "role": "tool", "content": "r1" }, { "role": "tool", "content": "r2" },
            { "role": "assistant", "content": "a", "reasoning_content": "why" },
        ] });
        assert_eq!(
            marked(&tokenizer, &line).unwrap(),
            "{\"z\": 1, \"a\": \"<é>\"}\n<|im_start|>user\nu<|im_end|>\n\
             <|im_start|>assistant\n⟦<think>\n\n</think>\n\n<tool_call>f x=1.5 y=<b></tool_call><|im_end|>⟧\n\
             <|im_start|>user\nr1\nr2<|im_end|>\n\
             <|im_start|>assistant\n⟦<think>\nwhy\n</think>\n\na<|im_end|>⟧\n"
        );
    }
}

#[test]
fn an_empty_thinking_block_is_skipped_only_where_it_is_empty() {
    let tokenizer = with_template(WITH_TOOLS).unwrap();
    let chat = |reasoning: &str| {
        let line = json!({ "messages": [{ "role": "user", "content": "u" },
            { "role": "assistant", "content": "a", "reasoning_content": reasoning }] })
        .to_string();
        let Conversation::Chat(chat) = parse_line(Some(Format::Messages), &line).unwrap() else { panic!() };
        let (text, targets) = tokenizer.render_targets(&chat, MaskPolicy::from(Think::Skip)).unwrap();
        text[targets[0].clone()].to_owned()
    };
    assert_eq!(chat(""), "a<|im_end|>");
    assert_eq!(chat("r"), "<think>\nr\n</think>\n\na<|im_end|>");
}

#[test]
fn generation_marks_are_honoured() {
    let tokenizer = with_template(
        "{%- for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}

{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}",
    )
    .unwrap();
    assert_eq!(
        marked(&tokenizer, &turns(&[("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b")]))
            .unwrap(),
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n\
         <|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n"
    );
}

#[test]
fn a_turn_without_an_end_token_is_trained_to_the_end_of_its_text() {
    let tokenizer =
        with_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}").unwrap();
    assert_eq!(
        marked(&tokenizer, &turns(&[("user", "u"), ("assistant", "a")])).unwrap(),
        "user: u\n\nassistant: ⟦a⟧\n\n"
    );
}

#[test]
fn a_template_whose_turns_cannot_be_told_apart_is_refused_at_once() {
    let template = "{% macro all(list) %}{% for m in list %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}{% endmacro %}{{ all(messages) }}";
    let error = with_template(template).err().unwrap();
    assert!(error.to_string().contains("cannot be identified"), "{error}");
    let error = with_template("{% for m in messages %}").err().unwrap();
    assert!(matches!(error, DataError::Model { .. }), "{error}");
}

#[test]
fn values_print_as_python_prints_them() {
    let tokenizer = with_template(
        "{% for m in messages %}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}{{ none }} {{ true }} {{ 1.0 }} {{ [1, 'a', none] }} {{ strftime_now('%d') | length }}",
    )
    .unwrap();
    let line = turns(&[("user", "u"), ("assistant", "a")]).to_string();
    let Conversation::Chat(chat) = parse_line(Some(Format::Messages), &line).unwrap() else { panic!() };
    let text = tokenizer.render(&chat).unwrap().text;
    assert_eq!(text, "useru<|im_end|>assistanta<|im_end|>None True 1.0 [1, 'a', None] 2");
}

#[test]
fn a_named_template_is_found_in_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures::qwen35().join("checkpoint/tokenizer.json"), folder.path().join("tokenizer.json"))
        .unwrap();
    let simple = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}";
    let config = json!({ "chat_template": [{ "name": "rag", "template": "x" }, { "name": "default", "template": simple }] });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = ChatTokenizer::from_dir(folder.path()).unwrap();
    let chat = Chat { messages: vec![sparktune_data::Message::text("user", "u")], tools: None };
    assert_eq!(tokenizer.render(&chat).unwrap().text, "user:u<|im_end|>");
}

#[test]
fn values_are_printed_and_tested_as_in_python() {
    let tokenizer = with_template(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}\
         {% for name, value in call.function.arguments | items %} {{ value }},{{ value | string }}\
         {{ ',none' if value is none and value is not iterable }}{{ ',sequence' if value is sequence }}{% endfor %}\
         {% endfor %};{% endfor %}",
    )
    .unwrap();
    let arguments = json!({ "tiny": 2.5e-7, "huge": 1e22, "one": 1.0, "whole": 3, "none": null, "text": "ab", "map": {} });
    let line = json!({ "messages": [
        { "role": "user", "content": "u" },
        { "role": "assistant", "content": null, "tool_calls": [{ "function": { "name": "f", "arguments": arguments } }] },
        { "role": "tool", "content": [{ "type": "text", "text": "x" }, { "type": "text", "text": "y" }] },
        { "role": "assistant", "content": "a" },
    ] });
    let text = marked(&tokenizer, &line).unwrap().replace(['⟦', '⟧'], "");
    let expected = "user: u;assistant:  2.5e-07,2.5e-07 1e+22,1e+22 1.0,1.0 3,3 None,None,none ab,ab,sequence {},{},sequence;\
                    tool: x\ny;assistant: a;";
    assert_eq!(text, expected);
}

#[test]
fn reasoning_has_all_names_that_templates_know() {
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let tokenizer = with_template(&format!(
            "{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.{name} }}}}{{{{ m.content }}}};{{% endfor %}}"
        ))
        .unwrap();
        let line = json!({ "messages": [
            { "role": "user", "content": "u" },
            { "role": "assistant", "content": "a", "reasoning_content": "r" },
        ] });
        assert_eq!(marked(&tokenizer, &line).unwrap().replace(['⟦', '⟧'], ""), "user: u;assistant: ra;");
    }
}
