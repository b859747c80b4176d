//! The user's guide, which is part of the program: its pages as they were written, and the pictures in them.

use std::borrow::Cow;

use rust_embed::Embed;

/// The files of the guide.
#[derive(Embed)]
#[folder = "../guide/"]
struct Files;

/// The folder of the pictures, in the guide and in addresses behind `guide/`.
const PICTURES: &str = "screens/";
/// The page that lists the others.
const CONTENTS: &str = "README";

/// Returns the text of a page, or that of the contents for no name. `None` if there is no such page.
pub(crate) fn page(name: Option<&str>) -> Option<String> {
    let name = name.unwrap_or(CONTENTS);
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let file = name.chars().all(is_name).then(|| Files::get(&format!("{name}.md")))??;
    String::from_utf8(file.data.into_owned()).ok()
}

/// Returns a picture of the guide and its hash, by its path behind the server's name: `guide/screens/…`.
pub(crate) fn picture(path: &str) -> Option<(Cow<'static, [u8]>, [u8; 32])> {
    let name = path.strip_prefix("guide/").filter(|name| name.starts_with(PICTURES))?;
    let file = Files::get(name).filter(|_| name.ends_with(".svg") || name.ends_with(".png"))?;
    Some((file.data, file.metadata.sha256_hash()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use regex::Regex;

    use super::*;

    /// The most bytes of all pictures, which everybody downloads with the program.
    const PICTURE_BYTES: usize = 300_000;

    #[test]
    fn every_link_leads_to_a_page_or_a_file_and_to_a_heading_of_it_and_every_picture_is_there() {
        let link = Regex::new(r"(!?)\[[^\]]*\]\(([^)#\s]*)(#[^)]*)?\)").unwrap();
        let contents = page(None).unwrap();
        let mut listed = BTreeSet::new();
        let mut shown = BTreeSet::new();
        let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guide");
        let mut places = 0;
        for name in Files::iter().filter(|name| name.ends_with(".md") && !name.contains('/')) {
            let name = name.trim_end_matches(".md").to_owned();
            let text = page(Some(&name)).unwrap();
            assert!(text.starts_with("# "), "{name} has no title");
            for found in link.captures_iter(&text) {
                let target = &found[2];
                if &found[1] == "!" {
                    assert!(picture(&format!("guide/{target}")).is_some(), "{name} shows {target}");
                    shown.insert(target.to_owned());
                    continue;
                }
                if target.contains("://") {
                    continue;
                }
                // Other files of the clone are not part of the program, which says so where they are named.
                let led_to = match target.strip_suffix(".md").filter(|name| !name.contains('/')) {
                    _ if target.is_empty() => Some(text.clone()),
                    Some(other) => page(Some(other)),
                    None => std::fs::read_to_string(clone.join(target)).ok(),
                };
                let led_to = led_to.unwrap_or_else(|| panic!("{name} leads to {target}"));
                if let Some(place) = found.get(3) {
                    let place = place.as_str().trim_start_matches('#');
                    places += 1;
                    assert!(places_in(&led_to).contains(place), "{name} leads to {target}#{place}");
                }
            }
            if name != CONTENTS && contents.contains(&format!("]({name}.md)")) {
                listed.insert(name);
            }
        }
        let pages = Files::iter().filter(|name| name.ends_with(".md") && !name.contains('/')).count();
        assert_eq!(listed.len() + 1, pages, "the contents list {listed:?}");
        assert!(shown.len() >= 6, "{shown:?}");
        assert!(places >= 10, "{places} links to places in pages");
    }

    /// Returns the names of the places under the headings of a page, as links spell them (`placeOf` in
    /// `web/parts/guide-text.js`).
    fn places_in(page: &str) -> BTreeSet<String> {
        let mut in_code = false;
        let headings = page.lines().filter(|line| {
            in_code ^= line.starts_with("```");
            !in_code && line.starts_with('#')
        });
        let kept = |letter: &char| letter.is_alphanumeric() || *letter == ' ' || *letter == '-';
        let place = |line: &str| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            heading.chars().filter(kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
        };
        headings.map(place).collect()
    }

    #[test]
    fn pictures_are_few_bytes_and_nothing_but_pages_and_pictures_can_be_had() {
        let bytes: usize =
            Files::iter().filter_map(|name| Some(picture(&format!("guide/{name}"))?.0.len())).sum();
        assert!((1000..PICTURE_BYTES).contains(&bytes), "{bytes} bytes");
        for name in ["", "../serve/lib", "screens/README", "no-such-page", "/etc/passwd"] {
            assert_eq!(page(Some(name)), None, "{name}");
            assert_eq!(picture(name), None, "{name}");
        }
        for way in [
            "screens/../chat.svg",
            "screens/../../serve/web/index.html",
            "/etc/passwd",
            "screens/../../../x.png",
        ] {
            assert_eq!(picture(&format!("guide/{way}")), None, "{way}");
        }
        assert_eq!(picture("guide/screens/README.md"), None);
        assert_eq!(picture("guide/runs.md"), None);
    }
}
