//! What is said in a prompt or an answer, without the marks of the chat template around it. All of this text
//! is untrusted, and still is when it leaves.

/// Markers of chat templates that are not of the form `<|…|>`.
const MARKERS: [&str; 8] =
    ["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<s>", "</s>", "[INST]", "[/INST]"];
/// The longest marker of the form `<|…|>`, in bytes.
const LONGEST_MARKER: usize = 40;
/// The marks with which models end an answer.
const ENDS: [&str; 7] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>", "</s>"];
/// Stands where a mark was.
const BEHIND_MARK: char = '\0';
/// What templates call those who speak.
const SPEAKERS: [&str; 5] = ["system", "developer", "user", "assistant", "model"];

/// Returns the length of the mark that a text begins with, in bytes.
fn mark_at(text: &str) -> Option<usize> {
    let named = MARKERS.iter().find(|marker| text.starts_with(**marker)).map(|marker| marker.len());
    named.or_else(|| {
        let end = text.strip_prefix("<|")?.find("|>")? + 4;
        (end <= LONGEST_MARKER && !text[..end].contains(char::is_whitespace)).then_some(end)
    })
}

/// Returns an answer without the mark that ends it. More of them, other ones, and an answer of marks alone
/// are what the model said.
pub(crate) fn answered(text: &str) -> &str {
    let whole = text.trim_end();
    let said = ENDS.iter().find_map(|end| whole.strip_suffix(end)).map(str::trim_end);
    said.filter(|said| !said.is_empty()).unwrap_or(text)
}

/// Returns what is said in a prompt, without the marks of its template. The speakers are named if there are
/// several.
pub(crate) fn spoken(prompt: &str) -> String {
    let mut plain = String::with_capacity(prompt.len());
    let mut rest = prompt;
    while let Some(c) = rest.chars().next() {
        match mark_at(rest) {
            // A mark in the place where a speaker is named stands for a line break.
            Some(length) => {
                plain.extend(['\n', BEHIND_MARK]);
                rest = &rest[length..];
            }
            None => {
                plain.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    if plain == prompt {
        return plain;
    }
    let mut turns: Vec<(&str, Vec<&str>)> = vec![("", Vec::new())];
    for line in plain.lines() {
        let (line, is_behind_mark) =
            line.strip_prefix(BEHIND_MARK).map_or((line, false), |line| (line, true));
        match line.trim() {
            "<think>" | "</think>" => {}
            who if is_behind_mark && SPEAKERS.contains(&who) => turns.push((who, Vec::new())),
            _ => turns.last_mut().expect("there is the first").1.push(line),
        }
    }
    let mut turns: Vec<_> =
        turns.into_iter().map(|(who, lines)| (who, lines.join("\n").trim().to_owned())).collect();
    turns.retain(|(_, said)| !said.is_empty());
    match turns.as_slice() {
        [] => String::new(),
        [(_, said)] => said.clone(),
        _ => {
            let turns = turns.iter().map(|(who, said)| match *who {
                "" => said.clone(),
                who => format!("{who}: {said}"),
            });
            turns.collect::<Vec<_>>().join("\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_shown_without_the_marks_of_its_template() {
        let empty_thought = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
        let one = format!("<|im_start|>user\nIs 1 <| 2 |> 0?\nYes?<|im_end|>\n{empty_thought}");
        assert_eq!(spoken(&one), "Is 1 <| 2 |> 0?\nYes?");
        let many = format!(
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n\
             Hello.<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n{empty_thought}"
        );
        assert_eq!(spoken(&many), "system: Be brief.\nuser: Hi.\nassistant: Hello.\nuser: And now?");
        assert_eq!(spoken("<bos><start_of_turn>user\nHi.<end_of_turn>\n<start_of_turn>model\n"), "Hi.");
        assert_eq!(spoken("<s>[INST] Hi. [/INST]"), "Hi.");
        // Raw text is what it is, with its spaces.
        assert_eq!(spoken("  user\n text"), "  user\n text");
        assert_eq!(spoken("<|im_start|>"), "");
        // Only behind a mark the word names who speaks.
        let asked = "<|im_start|>user\nWhich word?\nmodel<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(spoken(asked), "Which word?\nmodel");
    }

    #[test]
    fn an_answer_is_shown_without_the_marks_that_end_it() {
        assert_eq!(answered("12 crowns.<|im_end|>"), "12 crowns.");
        assert_eq!(answered(" 12 < 13 <end_of_turn>\n"), " 12 < 13");
        assert_eq!(answered("12<|im_start|><|im_start|><|im_end|>"), "12<|im_start|><|im_start|>");
        for as_it_is in
            ["<|im_end|>", "", "a <|b c|>", "cut <|im", "[INST] is what it said", "Use <s>old[/INST]"]
        {
            assert_eq!(answered(as_it_is), as_it_is);
        }
    }
}
