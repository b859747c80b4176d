//! Tests of Gemma's template and tokenizer: a BPE like SentencePiece's, `<bos>`, and turns of user and model.

use sparktune_data::{ChatTokenizer, Conversation, Format, MaskPolicy, parse_line};

use crate::fixtures;

fn tokenizer() -> Option<ChatTokenizer> {
    let folder = fixtures::root().join("others/gemma3");
    // That of the repository is always there.
    if std::env::var_os("SPARKTUNE_FIXTURES").is_some() && !folder.is_dir() {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others/gemma3`");
        return None;
    }
    Some(ChatTokenizer::from_dir(&folder).unwrap())
}

const CHAT: &str = r#"{"messages": [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello  there"},
    {"role": "assistant", "content": " Grüße, 世界! "}, {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "See you"}]}"#;

#[test]
fn a_chat_is_rendered_as_gemmas_template_does_and_answers_are_trained_to_their_end_of_turn() {
    let Some(tokenizer) = tokenizer() else { return };
    let Conversation::Chat(chat) = parse_line(Some(Format::Messages), CHAT).unwrap() else {
        panic!("a chat")
    };
    let (text, targets) = tokenizer.render_targets(&chat, MaskPolicy::default()).unwrap();
    assert_eq!(
        text,
        "<bos><start_of_turn>user\nBe brief.\n\nHello  there<end_of_turn>\n\
         <start_of_turn>model\nGrüße, 世界!<end_of_turn>\n\
         <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\nSee you<end_of_turn>\n"
    );
    let trained: Vec<&str> = targets.into_iter().map(|range| &text[range]).collect();
    assert_eq!(trained, ["Grüße, 世界!<end_of_turn>", "See you<end_of_turn>"]);

    let tokens = tokenizer.encode_conversation(&Conversation::Chat(chat), MaskPolicy::default()).unwrap();
    assert_eq!(tokens.input_ids[..2], [1, 4], "one <bos>, which the template writes, and no second one");
    assert_eq!(tokenizer.decode(&tokens.input_ids), text);
    let targets = tokens.input_ids.iter().zip(&tokens.loss_mask).filter(|(_, trained)| **trained);
    let targets: Vec<u32> = targets.map(|(id, _)| *id).collect();
    assert_eq!(tokenizer.decode(&targets), "Grüße, 世界!<end_of_turn>See you<end_of_turn>");
    // A generation ends at the end of a text or of a turn.
    assert_eq!(tokenizer.eos_token_ids(), [2, 5]);
}

#[test]
fn a_completion_begins_with_bos_and_ends_with_eos() {
    let Some(tokenizer) = tokenizer() else { return };
    let completion = Conversation::Completion { prompt: "The cat ".into(), completion: "sat.".into() };
    let tokens = tokenizer.encode_conversation(&completion, MaskPolicy::default()).unwrap();
    assert_eq!((tokens.input_ids[0], tokens.input_ids.last()), (1, Some(&2)));
    assert_eq!(tokenizer.decode(&tokens.input_ids), "<bos>The cat sat.<eos>");
    assert!(!tokens.loss_mask[0] && tokens.loss_mask.ends_with(&[true, true]));
}
