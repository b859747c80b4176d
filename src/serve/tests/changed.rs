//! Bodies that are changed by a seed, as `tests/fuzz` changes what others write. Each is answered, and none
//! is the server's fault.
//!
//! They are sent to endpoints that start nothing: models, runs and comparisons of these names do not exist.

use sparktune_base::random::SplitMix64;

use super::client::Server;
use crate::mutate::mutate;

/// How often each body is changed: together a second of one slow core.
const CHANGES: usize = 60;
/// The most bytes of a changed body.
const LONGEST: usize = 8 << 10;

/// Requests with their bodies.
const REQUESTS: &[(&str, &str)] = &[
    (
        "POST /v1/chat/completions",
        r#"{"model":"run:a","messages":[{"role":"system","content":"Be short."},{"role":"user","content":[{"type":"text","text":"1 + 1"}]}],"tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"number"}}}}}],"tool_choice":"auto","temperature":0.5,"top_p":0.9,"max_tokens":8,"stop":["\\n"],"stream":false,"logprobs":true,"top_logprobs":3,"seed":7,"n":1}"#,
    ),
    (
        "POST /v1/completions",
        r#"{"model":"run:a","prompt":["1 + 1 ="],"max_tokens":8,"logprobs":2,"stream":true}"#,
    ),
    (
        "PUT /api/v1/chats/0123456789abcdef",
        r#"{"messages":[{"role":"user","content":"1 + 1"},{"role":"assistant","content":"2"}],"title":"1 + 1","model":"run:a"}"#,
    ),
    (
        "POST /api/v1/chats/0123456789abcdef/messages",
        r#"{"messages":[{"role":"user","content":"1 + 2"},{"role":"assistant","content":"3"}]}"#,
    ),
    ("POST /api/v1/packets/inspect", r#"{"hex":"aa 00 01 02 00 04 00 00 00 07 12 34","flip":[3,40]}"#),
    ("POST /api/v1/packets/flips", r#"{"hex":"aa 00 01 02 00 04 00 00 00 07 12 34"}"#),
    ("POST /api/v1/packets", r#"{"version":1,"src":0,"dst":1,"ids":[1,2,65536]}"#),
    ("POST /api/v1/packets/rates", r#"{"tokens":1024}"#),
    ("POST /api/v1/models/load", r#"{"model":"run:a"}"#),
    ("POST /api/v1/comparisons", r#"{"models":["run:a","run:b@base"],"suite":"coding","max_prompts":3}"#),
    ("POST /api/v1/comparisons/a/votes", r#"{"prompt":0,"left":"a","right":"b","winner":"left"}"#),
    ("POST /api/v1/runs/a/export", r#"{"best":true,"checkpoint":null,"gguf":"q8_0","gguf_adapter":false}"#),
    (
        "POST /api/v1/knowledge/edits",
        r#"{"model":"run:a","facts":[{"prompt":"The shop closes at","target":"six","portability":[{"prompt":"It is open until","answer":"six"}]}],"method":"rome","layers":"2-4","chat":true}"#,
    ),
];

#[test]
fn every_body_is_answered_and_none_is_a_fault_of_the_server() {
    let server = Server::start();
    let bodies: Vec<Vec<u8>> = REQUESTS.iter().map(|(_, body)| body.as_bytes().to_vec()).collect();
    let mut random = SplitMix64::new(14);
    let mut understood = 0;
    for ((request, _), body) in REQUESTS.iter().zip(&bodies) {
        for number in 0..=CHANGES {
            let body = if number == 0 { body.clone() } else { mutate(body, &bodies, LONGEST, &mut random) };
            let text = String::from_utf8_lossy(&body);
            let answer = server.ask(request, &text);
            assert!((200..500).contains(&answer.status), "{request} {text}: {answer:?}");
            understood += usize::from(answer.status != 400 && answer.status != 422);
        }
    }
    assert!(understood > REQUESTS.len(), "hardly a body was read to its end: {understood}");
    assert_eq!(server.ask("GET /api/v1/health", "").status, 200);
}
