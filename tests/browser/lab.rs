//! The protocol lab in the page: a packet is edited, one of its bits is flipped by a click, and the checks of
//! both versions say what they noticed.

use serde_json::{Value, json};

use crate::chromium::Page;
use crate::server::Server;

/// Token ids whose bytes occur nowhere else in a packet.
const IDS: &str = "287454020, 7";

/// The versions with the bytes of the first id as they lie in the packet, and the checks that notice a bit of
/// the payload.
const VERSIONS: [(&str, [&str; 4], &str); 2] = [
    ("[data-test=lab-v1]", ["11", "22", "33", "44"], "CRC-16"),
    ("[data-test=lab-v2_tokens]", ["44", "33", "22", "11"], "payload CRC-32C"),
];

#[test]
fn a_packet_is_edited_and_damaged_by_a_click_and_the_checks_of_both_versions_say_so() {
    let Some(mut page) = Page::start() else { return };
    let server = Server::start(|_| {});
    page.open(&server.url());
    page.go("#/protocol-lab");

    page.fill("[data-test=lab-ids]", IDS);
    for (card, bytes, _) in VERSIONS {
        page.wait(&format!("the ids in {card}"), &format!("{} >= 0", place_of(card, bytes)));
        assert_eq!(checks(&mut page, card).iter().filter(|(_, says)| says != "passes").count(), 0, "{card}");
        page.wait("the verdict", &format!("{} === 'Every check passes'", verdict(card)));
    }
    // A code that is chosen goes into both versions.
    page.choose("[data-test=lab-code-DST]", "2");
    for (card, field) in VERSIONS.map(|(card, ..)| (card, "DST")) {
        page.wait(&format!("DST in {card}"), &format!("{} === '02'", byte_of(card, field)));
    }

    for (card, bytes, notices) in VERSIONS {
        // The second byte of the first id, and its lowest bit.
        let at = page.eval(&place_of(card, bytes)).as_u64().unwrap() + 1;
        page.click(&format!("{card} .byte-grid button:nth-of-type({})", at + 1));
        page.click(&format!("{card} [data-test=bit-0]"));
        page.wait("the noticed damage", &format!("{} === 'The damage is noticed'", verdict(card)));
        let failing: Vec<String> = checks(&mut page, card)
            .into_iter()
            .filter(|(_, says)| says == "fails")
            .map(|(name, _)| name)
            .collect();
        assert_eq!(failing, [notices], "{card}");
        let damaged = "[...document.querySelectorAll('CARD .byte-grid .damaged')].map((e) => e.innerText)";
        let value = u8::from_str_radix(bytes[1], 16).unwrap() ^ 1;
        assert_eq!(page.eval(&damaged.replace("CARD", card)), json!([format!("{value:02x}")]), "{card}");
    }
    page.picture("protocol-lab-damaged");
    // One version is mended, the other stays damaged.
    page.click("[data-test=lab-v1] [data-test=lab-mend]");
    page.wait("the mended packet", &format!("{} === 'Every check passes'", verdict(VERSIONS[0].0)));
    assert_eq!(page.eval(&verdict(VERSIONS[1].0)), "The damage is noticed");

    page.click("[data-test=lab-v1] [data-test=lab-every]");
    let every = "document.querySelector('[data-test=lab-v1] [data-test=lab-every-result]')?.innerText";
    let found = page.wait("all flips", every);
    // 6 bytes, 8 of payload, and 2.
    assert!(found.as_str().unwrap().starts_with("128 of 128 flips are noticed"), "{found}");
    page.is_well(server.port);
}

/// The number of the byte from where these lie next to each other; less than zero if they do nowhere.
fn place_of(card: &str, bytes: [&str; 4]) -> String {
    format!(
        "[...document.querySelectorAll('{card} .byte-grid button')].map((e) => e.innerText.trim())\
         .findIndex((_, i, all) => all.slice(i, i + 4).join() === '{}')",
        bytes.join(",")
    )
}

/// The first byte of a field.
fn byte_of(card: &str, field: &str) -> String {
    format!("document.querySelector('{card} .byte-grid button[title^=\"{field} \"]')?.innerText.trim()")
}

fn verdict(card: &str) -> String {
    format!("document.querySelector('{card} [data-test=lab-verdict]')?.innerText")
}

/// The checks of a version, each with whether it passes.
fn checks(page: &mut Page, card: &str) -> Vec<(String, String)> {
    let found = page.eval(&format!(
        "[...document.querySelectorAll('{card} .lab-checks li')].map((e) => [e.querySelector('b').innerText, e.querySelector('.pill').innerText])"
    ));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    found.as_array().unwrap().iter().map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}
