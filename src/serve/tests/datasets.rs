//! Data sets through the API, as far as nothing is read.

use serde_json::json;

use super::client::Server;

#[test]
fn a_check_of_data_elsewhere_is_not_known_to_be_current_and_its_list_goes_on() {
    let server = Server::start();
    let data = "/api/v1/datasets/hf:org%2Fset";
    assert_eq!(server.ask(&format!("GET {data}/report"), "").status, 404);
    let name = blake3::hash(b"hf:org/set").to_hex();
    let kept = server.runs_dir().join(format!(".serve/checks/{}.json", &name[..16]));
    let result = json!({"accepted": true, "listed_lines": 0});
    std::fs::write(kept, json!({"stamp": null, "result": result}).to_string()).unwrap();
    assert_eq!(server.json(&format!("{data}/report"))["is_current"], false);
    let later = server.json(&format!("{data}/rejected?offset=50"));
    assert_eq!(later, json!({"items": [], "next": null, "total": 0}));
}
