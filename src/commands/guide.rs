//! `guide`: the pages of the user's guide, for a terminal without a browser or a network. A person reads them
//! laid out for the terminal or its pager; a file gets them as they were written.

use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_tui::guide_page;
use sparktune_tui::output::{print, reading_columns};

/// The pages by name, in the order in which they are listed.
const PAGES: [(&str, &str); 15] = [
    ("first-model", include_str!("../guide/first-model.md")),
    ("data", include_str!("../guide/data.md")),
    ("planning", include_str!("../guide/planning.md")),
    ("runs", include_str!("../guide/runs.md")),
    ("outputs", include_str!("../guide/outputs.md")),
    ("chat", include_str!("../guide/chat.md")),
    ("compare", include_str!("../guide/compare.md")),
    ("editing", include_str!("../guide/editing.md")),
    ("serve", include_str!("../guide/serve.md")),
    ("cluster", include_str!("../guide/cluster.md")),
    ("pipelines", include_str!("../guide/pipelines.md")),
    ("packets", include_str!("../guide/packets.md")),
    ("container", include_str!("../guide/container.md")),
    ("security", include_str!("../guide/security.md")),
    ("troubleshooting", include_str!("../guide/troubleshooting.md")),
];

/// Runs `sparktune guide`: lists the pages, or prints one.
///
/// # Errors
/// There is no such page.
pub fn guide(page: Option<&str>) -> Result<Exit, Failure> {
    let Some(name) = page else {
        let row = |(name, text): &(&str, &str)| format!("  {name:<16} {}\n", title(text));
        let rows: String = PAGES.iter().map(row).collect();
        print(&format!("{rows}\n`{} guide PAGE | less` prints one of them\n", program_name()))?;
        return Ok(Exit::Done);
    };
    // As links of the guide spell it, too.
    let wanted = name.split('#').next().unwrap_or(name).trim_end_matches(".md");
    let Some((_, text)) = PAGES.iter().find(|(page, _)| *page == wanted) else {
        let names = PAGES.map(|(page, _)| page).join(", ");
        let text = format!("there is no page {} in the guide", escape(name));
        return Err(Failure::usage(text).hint(format!("There are: {names}")));
    };
    match reading_columns() {
        Some(width) => print(&guide_page(text, width))?,
        None => print(text)?,
    }
    Ok(Exit::Done)
}

/// Returns the title of a page.
fn title(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches("# ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_the_guide_is_in_the_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../guide");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| name.strip_suffix(".md").map(str::to_owned))
            .filter(|name| name != "README")
            .collect();
        files.sort();
        let mut pages = PAGES.map(|(page, _)| page).to_vec();
        pages.sort_unstable();
        assert_eq!(files, pages);
        assert!(PAGES.iter().all(|(_, text)| text.starts_with("# ")));
        assert!(guide(Some("no-such-page")).unwrap_err().to_string().contains("troubleshooting"));
    }
}
