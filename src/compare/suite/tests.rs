//! Lines of suites that are read, and lines that are refused.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(text: &str) -> Result<Suite, SuiteError> {
    Suite::read("mine.jsonl", text.as_bytes())
}

#[test]
fn the_first_line_holds_for_every_prompt_behind_what_the_prompt_says() {
    let suite = read(concat!(
        "\u{feff}{\"suite\":\"mine\",\"about\":\"A  test.\",\"chat_template_kwargs\":{\"enable_thinking\":false},\"sampling\":{\"max_tokens\":9,\"top_p\":0.5},",
        "\"checks\":[{\"type\":\"lacks\",\"value\":\"sorry\"}]}\n",
        "\n",
        "{\"id\":\"a\",\"prompt\":\"Hi\",\"checks\":[{\"type\":\"contains\",\"value\":\"x\"}]}\r\n",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"tools\":[],\"chat_template_kwargs\":{\"enable_thinking\":true},",
        "\"sampling\":{\"top_p\":1}}\n",
        "{\"text\":\"Once\",\"reference\":\" upon\",\"checks\":[{\"type\":\"perplexity\"}]}",
    ))
    .unwrap();
    assert_eq!((suite.name.as_str(), suite.about.as_str()), ("mine", "A test."));
    let [a, b, c] = &suite.prompts[..] else { panic!("three prompts: {suite:?}") };
    assert_eq!((a.id.as_str(), b.id.as_str(), c.id.as_str()), ("a", "line-4", "line-5"));
    assert_eq!((a.sampling.max_tokens, a.sampling.top_p, a.sampling.temperature), (Some(9), 0.5, 0.0));
    assert_eq!((b.sampling.max_tokens, b.sampling.top_p), (Some(9), 1.0));
    assert_eq!(a.checks.iter().map(Check::kind).collect::<Vec<_>>(), ["contains", "lacks"]);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    assert_eq!(b.ask, Ask::Messages { messages, tools: Some(json!([])) });
    assert_eq!(b.template_kwargs.get("enable_thinking"), Some(&json!(true)));
    assert_eq!(a.template_kwargs.get("enable_thinking"), Some(&json!(false)));
    assert_eq!(b.shown().last_text(), "Hi");
    assert_eq!(c.ask, Ask::Text("Once".into()));
    assert!(c.needs_reference_loss() && !a.needs_reference_loss() && !suite.has_code());
}

#[test]
fn lines_that_cannot_be_used_are_refused_with_their_number_and_what_to_do() {
    for (text, line, words) in [
        ("", 1, "no prompt"),
        ("\n\n{\"prompt\":\"x\"\n", 3, "not JSON"),
        ("[]", 1, "not an object"),
        ("{\"prompt\":\"x\"}\n{\"suite\":\"late\"}", 2, "first line"),
        ("{\"suite\":\"a\"}\n{\"suite\":\"b\"}", 2, "only once"),
        ("{\"suite\":\"\\u001b[31m\"}", 1, "`suite`"),
        (
            "{\"suite\":\"a\",\"checks\":[{\"type\":\"regex\",\"pattern\":\"(\"}]}\n{\"prompt\":\"x\"}",
            1,
            "checks[0]",
        ),
        ("{\"suite\":\"a\",\"sampling\":{\"top_p\":2}}\n{\"prompt\":\"x\"}", 1, "sampling: top_p is 2"),
        ("{\"prompt\":\"x\",\"id\":\"a\"}\n{\"prompt\":\"y\",\"id\":\"a\"}", 2, "another prompt"),
        ("{\"prompt\":\" \"}", 1, "empty"),
        ("{\"id\":\"a\"}", 1, "no prompt"),
        ("{\"prompt\":\"x\",\"text\":\"y\"}", 1, "more than one"),
        ("{\"prompt\":\"x\",\"tools\":[]}", 1, "belong to `messages`"),
        ("{\"messages\":[]}", 1, "not a list"),
        ("{\"messages\":[{\"content\":\"x\"}]}", 1, "messages[0] has no `role`"),
        ("{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}", 1, "nothing to answer"),
        ("{\"prompt\":\"x\",\"colour\":1}", 1, "colour"),
        ("{\"prompt\":\"x\",\"checks\":[{\"type\":\"magic\"}]}", 1, "magic"),
        ("{\"prompt\":\"x\",\"checks\":[{\"type\":\"contains\"}]}", 1, "value"),
        ("{\"prompt\":\"x\",\"checks\":[{\"type\":\"chrf\"}]}", 1, "does not have"),
        ("{\"prompt\":\"x\",\"sampling\":{\"heat\":1}}", 1, "sampling: unknown field `heat`"),
        ("{\"prompt\":\"x\",\"sampling\":{\"max_tokens\":0}}", 1, "max_tokens is 0"),
        ("\u{0}", 1, "not JSON"),
    ] {
        let error = read(text).map(|suite| suite.prompts).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        let shown = error.to_string();
        assert!(shown.starts_with(&format!("mine.jsonl:{line}: ")), "{shown}");
        assert!(shown.contains(words), "{text}: {shown}");
        assert!(!error.fix.is_empty());
    }
    let many = "{\"prompt\":\"x\"}\n".repeat(10_001);
    assert_eq!(read(&many).map(|suite| suite.name).unwrap_err().line, 10_001);
    let long = format!("{{\"prompt\":\"{}\"}}", "x".repeat(1 << 20));
    assert!(read(&long).map(|suite| suite.name).unwrap_err().what.contains("bytes"));
}

#[test]
fn a_limit_keeps_prompts_of_all_parts() {
    let text: String = (0..10).map(|i| format!("{{\"prompt\":\"{i}\",\"id\":\"{i}\"}}\n")).collect();
    for (most, ids) in [(0, ""), (1, "9"), (3, "369"), (10, "0123456789"), (99, "0123456789")] {
        let mut suite = read(&text).unwrap();
        suite.limit(most);
        assert_eq!(suite.prompts.iter().map(|prompt| prompt.id.as_str()).collect::<String>(), ids);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_suite_or_an_error_with_a_line(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = Suite::read("x", &bytes) {
            prop_assert!(error.line >= 1);
        }
    }
}
