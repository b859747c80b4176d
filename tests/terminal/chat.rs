//! A chat as a full screen, with a real model.

use crate::sparktune::checkpoint;
use crate::words::{CTRL_C, ENTER};
use crate::world::World;

#[test]
fn a_model_is_talked_to_on_a_full_screen_and_the_terminal_is_given_back() {
    let world = World::new();
    let model = checkpoint();
    let args = ["chat", model.to_str().unwrap(), "--temperature", "0", "--max-tokens", "6"];
    let mut pty = world.open(args);
    pty.wait_for("chat with checkpoint");
    pty.press("Say river.");
    pty.wait_for("> Say river.");
    pty.wait_until("the model to be loaded", |text| !text.contains("loading"));
    pty.press(ENTER);
    pty.wait_for("6 tokens, ");
    pty.press(CTRL_C);
    pty.left().exits(0);
}

#[test]
fn a_model_that_cannot_be_loaded_is_explained_on_the_ordinary_screen() {
    let world = World::new();
    let broken = world.place.join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::copy(checkpoint().join("config.json"), broken.join("config.json")).unwrap();
    let left = world.open(["chat", broken.to_str().unwrap()]).left().exits(2);
    assert!(left.text.contains("tokenizer") || left.text.contains("safetensors"), "{}", left.text);
}
