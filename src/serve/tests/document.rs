//! The OpenAPI document, and what it says about every endpoint.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::client::Server;

/// Returns method and path of every endpoint in the document.
fn endpoints(document: &Value) -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            found.push((method.to_ascii_uppercase(), path.clone(), operation.clone()));
        }
    }
    assert!(found.len() >= 20, "{}", found.len());
    found
}

/// Fills in the parameters of a path.
fn filled(path: &str, value: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { value } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn every_endpoint_refuses_strangers_and_paths_in_place_of_names() {
    let server = Server::start();
    let document = server.json("/api/v1/openapi.json");
    for (method, path, _) in endpoints(&document) {
        let request = format!("{method} {}", filled(&path, "x"));
        let stranger = server.send(&request, &[("Host", "localhost")], "{}");
        assert_eq!(stranger.status, 401, "{request} without a token: {}", stranger.body);
        let bearer = format!("Bearer {}", server.token);
        let rebound = server.send(&request, &[("Host", "evil.example"), ("Authorization", &bearer)], "{}");
        assert_eq!(rebound.status, 403, "{request} by another name: {}", rebound.body);
        if !path.contains('{') {
            continue;
        }
        for id in ["..%2f..%2f..%2fetc%2fpasswd", "%2e%2e", "..", "%2fetc%2fpasswd", ".token", "a%5c..%5cb"] {
            let answer = server.ask(&format!("{method} {}", filled(&path, id)), "{}");
            let is_refused = [400, 404, 405].contains(&answer.status);
            assert!(is_refused, "{method} {path} with {id}: {} {}", answer.status, answer.body);
            assert!(!answer.body.contains("root:"), "{}", answer.body);
        }
    }
}

#[test]
fn the_document_is_one_that_generators_of_clients_accept() {
    let server = Server::start();
    let document = server.json("/api/v1/openapi.json");
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    let mut names = BTreeSet::new();
    for (method, path, operation) in endpoints(&document) {
        let place = format!("{method} {path}");
        assert!(
            names.insert(operation["operationId"].as_str().unwrap().to_owned()),
            "{place}: name is taken"
        );
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{place}: no summary");
        assert!(operation["tags"].as_array().is_some_and(|tags| tags.len() == 1), "{place}: no area");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{place}: never succeeds");
        let named: BTreeSet<&str> = operation["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        let in_path: BTreeSet<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        assert_eq!(named, in_path, "{place}: parameters");
    }
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(!document["components"]["schemas"][name].is_null(), "{name} is not described");
    }
}

/// Two types of one name would silently become one in the document.
#[test]
fn no_two_described_types_have_the_same_name() {
    let mut seen = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("tests") {
                folders.push(path);
            } else if path.is_file() && path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for declared in text.split("ToSchema)]").skip(1) {
                    let line =
                        declared.lines().find(|line| line.contains("struct ") || line.contains("enum "));
                    let words = line.unwrap().split(['<', '(', ' ', '{']).collect::<Vec<_>>();
                    let at = words.iter().position(|word| ["struct", "enum"].contains(word)).unwrap();
                    assert!(seen.insert(words[at + 1].to_owned()), "{}: {}", path.display(), words[at + 1]);
                }
            }
        }
    }
    assert!(seen.len() > 10);
}
