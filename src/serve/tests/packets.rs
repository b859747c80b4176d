//! The protocol lab through the API.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Server;

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let answer = server.ask(&format!("POST /api/v1/{path}"), &body.to_string());
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

#[test]
fn a_packet_is_made_taken_apart_and_damaged_in_both_versions() {
    let server = Server::start();
    for (version, bytes, check) in [(1, 16, "CRC-16"), (2, 128, "payload CRC-32C")] {
        let wish = json!({"version": version, "src": 2, "dst": 42, "ids": [1, 248_319]});
        let (status, made) = post(&server, "packets", &wish);
        assert_eq!(
            (status, &made["bytes"], &made["is_intact"]),
            (200, &json!(bytes), &json!(true)),
            "{made}"
        );
        let value = |name: &str| {
            let fields = made["fields"].as_array().unwrap();
            fields.iter().find(|field| field["name"] == name).unwrap()["value"].clone()
        };
        assert_eq!((value("SRC"), value("DST")), (json!("code (2)"), json!("unknown (42)")));
        let hex = made["hex"].as_str().unwrap();
        // Version 1 names what it carries by its place alone.
        let is_payload = |field: &&Value| field["name"] == "payload" || field["name"] == "tokens";
        let payload = made["fields"].as_array().unwrap().iter().find(is_payload);
        let bit = 8 * payload.unwrap()["offset"].as_u64().unwrap() + 3;
        let (_, hurt) = post(&server, "packets/inspect", &json!({"hex": hex, "flip": [bit]}));
        assert_eq!(hurt["is_intact"], false);
        let failing: Vec<&Value> =
            hurt["checks"].as_array().unwrap().iter().filter(|check| check["passes"] == false).collect();
        assert_eq!(failing.len(), 1, "{hurt}");
        assert_eq!(failing[0]["name"], check);
        let (_, mended) = post(&server, "packets/inspect", &json!({"hex": hurt["hex"], "flip": [bit]}));
        assert_eq!((&mended["hex"], &mended["is_intact"]), (&made["hex"], &json!(true)));
        let (_, every) = post(&server, "packets/flips", &json!({ "hex": hex }));
        assert_eq!((&every["bits"], &every["noticed"]), (&json!(8 * bytes), &json!(8 * bytes)));
    }
}

#[test]
fn hostile_names_are_escaped_and_bad_wishes_are_refused_in_words() {
    let server = Server::start();
    let tensor = json!({"name": "<img src=x>\u{1b}[2J\u{202e}", "dtype": "F32", "shape": [2, 3]});
    let (status, made) = post(&server, "packets", &json!({"version": 2, "tensor": tensor}));
    assert_eq!(status, 200, "{made}");
    let text = made["fields"].to_string();
    assert!(
        text.contains("<img src=x>") && !text.contains("\\u001b") && !text.contains('\u{202e}'),
        "{text}"
    );
    for (path, body, says) in [
        ("packets", json!({"version": 3, "ids": [1]}), "there is no version 3"),
        ("packets", json!({"version": 2}), "one of ids, text, hex and tensor"),
        ("packets", json!({"version": 2, "ids": [1], "text": "x"}), "one of ids"),
        ("packets", json!({"version": 1, "hex": "0g"}), "not hex digits"),
        ("packets", json!({"version": 1, "hex": "00".repeat(9000)}), "at most 8192 bytes"),
        (
            "packets",
            json!({"version": 2, "tensor": {"name": "x", "dtype": "F4", "shape": []}}),
            "no such dtype",
        ),
        (
            "packets",
            json!({"version": 2, "tensor": {"name": "x", "dtype": "F32", "shape": [u64::MAX, 2]}}),
            "at most",
        ),
        ("packets", json!({"version": 2, "tensor": {"name": "", "dtype": "F32", "shape": [1]}}), "no name"),
        ("packets", json!({"version": 1, "ids": [4_000_000_000u32]}), "does not fit the signed"),
        ("packets/inspect", json!({"hex": "aa", "flip": [8]}), "there is no bit 8"),
        ("packets/flips", json!({"hex": "00".repeat(3000)}), "at most 2048 bytes"),
        ("packets/rates", json!({"tokens": 0}), "1 to 16,383 tokens"),
    ] {
        let (status, problem) = post(&server, path, &body);
        assert_eq!(status, 400, "{path} {body} {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
}

#[test]
fn codes_sizes_and_rates_are_told() {
    let server = Server::start();
    let codes = server.json("/api/v1/packets/codes");
    assert_eq!(codes["dst"][3], json!({"code": 5, "word": "lora", "name": "LoRA"}));
    let sizes = server.json("/api/v1/packets/sizes");
    let items = sizes["items"].as_array().unwrap();
    assert_eq!(
        items[0],
        json!({"payload_bytes": 4, "v1_bytes": 12, "v2_token_bytes": 128, "v2_typed_bytes": 128})
    );
    let last_of_v1 = items.iter().rfind(|item| !item["v1_bytes"].is_null()).unwrap();
    assert_eq!(last_of_v1["payload_bytes"], 65_532);
    // One process measures once at a time, and another test may do so now.
    let (status, rates) = loop {
        let answer = post(&server, "packets/rates", &json!({"tokens": 512}));
        if answer.0 != 409 {
            break answer;
        }
        sleep(Duration::from_millis(100));
    };
    assert_eq!(status, 200, "{rates}");
    let items = rates["items"].as_array().unwrap();
    assert_eq!(items.len(), 5);
    assert!(items.iter().all(|rate| rate["bytes_per_s"].as_f64().unwrap() > 1e6), "{rates}");
}
