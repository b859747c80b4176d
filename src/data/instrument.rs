//! Instruments a chat template so that rendering reports where each message's text begins and ends.
//!
//! After every `{% for X in … %}` and `{% endfor %}` a `{% set %}` is inserted that calls back with the
//! loop's number and `X`. The `{% generation %}` tags of transformers become such calls too. Each inserted
//! tag repeats the end marker of the tag before it (`%}`, `-%}`, `+%}`), so that whitespace control works as
//! before and the rendered text stays the same, byte for byte.

/// Name of the callback `(loop, message)`.
pub(crate) const MESSAGE: &str = "__sparktune_message";
/// Name of the callback `(loop, trace)`.
pub(crate) const LOOP_END: &str = "__sparktune_loop_end";
/// Name of the callback `(begins, trace)`.
pub(crate) const GENERATION: &str = "__sparktune_generation";
/// Name of the variable that holds the trace.
pub(crate) const TRACE: &str = "__sparktune_trace";

/// A template with callbacks, and whether it marks the assistant's text itself.
pub(crate) struct Instrumented {
    pub source: String,
    pub has_generation_marks: bool,
}

pub(crate) fn instrument(template: &str) -> Instrumented {
    let mut out = String::with_capacity(template.len() * 5 / 4);
    let mut has_generation_marks = false;
    let mut loops: Vec<Option<u32>> = Vec::new();
    let mut next_loop = 0;
    let mut rest = template;
    while let Some(open) = next_tag(rest) {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let Some(length) = tag_length(rest) else { break };
        let (tag, after) = rest.split_at(length);
        rest = after;
        if !tag.starts_with("{%") {
            out.push_str(tag);
            continue;
        }
        let (body, closing) = parts(tag);
        let (name, arguments) = body.split_once(char::is_whitespace).unwrap_or((body, ""));
        let call = match name {
            "for" => {
                let variable = simple_variable(arguments);
                loops.push(variable.map(|_| next_loop));
                let call = variable.map(|v| format!("{MESSAGE}({next_loop}, {v})"));
                next_loop += 1;
                call
            }
            "endfor" => loops.pop().flatten().map(|id| format!("{LOOP_END}({id}, {TRACE})")),
            "generation" | "endgeneration" => {
                has_generation_marks = true;
                let opening = if tag.starts_with("{%-") { "{%-" } else { "{%" };
                let begins = name == "generation";
                out.push_str(&format!(
                    "{opening} set __sparktune = {GENERATION}({begins}, {TRACE}) {closing}"
                ));
                continue;
            }
            _ => None,
        };
        out.push_str(tag);
        if let Some(call) = call {
            out.push_str(&format!("{{% set __sparktune = {call} {closing}"));
        }
        if name == "raw" {
            let end = end_of_raw(rest);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    Instrumented { source: out, has_generation_marks }
}

/// Returns the position of the first beginning of a tag. Each byte is looked at once, whatever tags follow.
fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    memchr::memchr_iter(b'{', bytes).find(|at| matches!(bytes.get(at + 1), Some(b'%' | b'{' | b'#')))
}

/// Returns the length of the tag at the start of `text`, where strings may contain end markers. `None` if it
/// never ends.
fn tag_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if bytes[1] == b'#' {
        return text.find("#}").map(|at| at + 2);
    }
    let closing: &[u8] = if bytes[1] == b'%' { b"%}" } else { b"}}" };
    let mut at = 2;
    let mut quote = None;
    let mut depth = 0usize;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(q), b) if b == q => quote = None,
            (Some(_), _) => {}
            (None, b @ (b'"' | b'\'')) => quote = Some(b),
            (None, _) if depth == 0 && bytes[at..].starts_with(closing) => return Some(at + 2),
            (None, b'{' | b'[' | b'(') => depth += 1,
            (None, b'}' | b']' | b')') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        at += 1;
    }
    None
}

/// Splits a `{% … %}` tag into its content and its end marker.
fn parts(tag: &str) -> (&str, &str) {
    let inside = &tag[2..tag.len() - 2];
    let closing = match inside.as_bytes().last() {
        Some(b'-') => "-%}",
        Some(b'+') => "+%}",
        _ => "%}",
    };
    (inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim(), closing)
}

/// Returns the loop variable, if the loop has just one.
fn simple_variable(arguments: &str) -> Option<&str> {
    let variable = arguments.split_whitespace().next()?;
    let then_in = arguments.trim_start()[variable.len()..].split_whitespace().next() == Some("in");
    (then_in && variable.chars().all(|c| c.is_alphanumeric() || c == '_')).then_some(variable)
}

/// Returns the position after the `{% endraw %}` of a text, or its length if there is none.
fn end_of_raw(text: &str) -> usize {
    let marks = ['-', '+'];
    let end = text.match_indices("{%").find_map(|(at, _)| {
        let inside = text[at + 2..].trim_start_matches(marks).trim_start().strip_prefix("endraw")?;
        let rest = inside.trim_start().trim_start_matches(marks).strip_prefix("%}")?;
        Some(text.len() - rest.len())
    });
    end.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(template: &str) -> String {
        instrument(template).source
    }

    #[test]
    fn loops_over_one_variable_get_a_call_at_each_turn_and_at_their_end() {
        assert_eq!(
            source("{%- for m in messages -%}x{% endfor %}\ny"),
            "{%- for m in messages -%}{% set __sparktune = __sparktune_message(0, m) -%}x\
             {% endfor %}{% set __sparktune = __sparktune_loop_end(0, __sparktune_trace) %}\ny"
        );
    }

    #[test]
    fn loops_over_pairs_comments_strings_and_raw_text_are_left_alone() {
        for template in [
            "{% for k, v in x|items %}{{ k }}{% endfor %}",
            "{# {% for a in b %} #}text",
            "{{ '{% for a in b %}' }}",
            "{% set x = '%} {% for a in b %}' %}",
            "{% raw %}{% for a in b %}{% endfor %}{%- endraw %}tail",
            "an unfinished {% tag",
        ] {
            assert_eq!(source(template), template);
        }
    }

    #[test]
    fn raw_text_ends_at_its_own_tag_however_that_is_written() {
        for end in ["{% endraw %}", "{%-endraw-%}", "{%+ endraw +%}", "{%\n endraw\t%}"] {
            let template = format!("{{% raw %}}{{% endrawer %}} {{% {{% if %}}{end}tail");
            let within = "{% raw %}".len();
            assert_eq!(&template[within..][end_of_raw(&template[within..])..], "tail", "{end}");
        }
        assert_eq!(end_of_raw("no end {%"), "no end {%".len());
    }

    #[test]
    fn generation_tags_become_calls() {
        let done = instrument("{%- generation -%}a{% endgeneration %}");
        assert!(done.has_generation_marks);
        assert_eq!(
            done.source,
            "{%- set __sparktune = __sparktune_generation(true, __sparktune_trace) -%}a\
             {% set __sparktune = __sparktune_generation(false, __sparktune_trace) %}"
        );
    }

    #[test]
    fn nested_loops_keep_their_numbers() {
        let done = source("{% for a in x %}{% for b in a %}{% endfor %}{% endfor %}");
        let ends: Vec<_> = done.match_indices("loop_end(").map(|(i, _)| &done[i + 9..i + 10]).collect();
        assert_eq!(ends, ["1", "0"]);
    }
}
