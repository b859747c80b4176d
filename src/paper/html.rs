//! The white paper as one HTML file: no scripts, nothing loaded from elsewhere, light and dark.

use crate::document::{Block, Chart, Document};
use crate::drawing::svg;
use crate::markup::escaped;
use crate::verdict::{Judged, Verdict};

const STYLE: &str = include_str!("style.css");

/// Writes the document as a whole page.
pub fn html(document: &Document) -> String {
    let title = escaped(&document.title);
    let links: String = document
        .sections
        .iter()
        .map(|section| format!("<li><a href=\"#{}\">{}</a></li>", section.id, escaped(&section.title)))
        .collect();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header><h1>{title}</h1><p>{}</p></header>\n<nav aria-label=\"Contents\"><ol>{links}</ol></nav>\n<main>\n",
        escaped(&document.about)
    );
    for section in &document.sections {
        page += &format!("<section id=\"{}\">\n<h2>{}</h2>\n", section.id, escaped(&section.title));
        section.blocks.iter().for_each(|one| page += &(block(one) + "\n"));
        page += "</section>\n";
    }
    page + "</main>\n</body>\n</html>\n"
}

fn block(block: &Block) -> String {
    match block {
        Block::Text { text } => format!("<p>{}</p>", escaped(text)),
        Block::List { items } => {
            let items: String = items.iter().map(|item| format!("<li>{}</li>", escaped(item))).collect();
            format!("<ul>{items}</ul>")
        }
        Block::Code { caption, text } => {
            let caption = if caption.is_empty() {
                String::new()
            } else {
                format!("<figcaption>{}</figcaption>", escaped(caption))
            };
            format!("<figure>{caption}<pre>{}</pre></figure>", escaped(text))
        }
        Block::Table { caption, head, rows } => table(caption, head, rows),
        Block::Chart(chart) => figure(chart),
        Block::Verdicts { items } => items.iter().map(verdict).collect(),
    }
}

fn table(caption: &str, head: &[String], rows: &[Vec<String>]) -> String {
    let cells = |row: &[String], tag: &str| -> String {
        row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
    };
    let body: String = rows
        .iter()
        .filter_map(|row| row.split_first())
        .map(|(first, rest)| {
            format!("<tr><th scope=\"row\">{}</th>{}</tr>", escaped(first), cells(rest, "td"))
        })
        .collect();
    format!(
        "<div class=\"scroll\"><table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>{body}</tbody></table></div>",
        escaped(caption),
        cells(head, "th")
    )
}

fn figure(chart: &Chart) -> String {
    let key: String = chart
        .lines
        .iter()
        .map(|line| format!("<span class=\"key c{}\">{}</span>", line.colour, escaped(&line.name)))
        .collect();
    format!(
        "<figure><figcaption><b>{}</b> {} <span class=\"keys\">{key}</span></figcaption>{}</figure>",
        escaped(&chart.title),
        escaped(&chart.y),
        svg(chart)
    )
}

fn verdict(judged: &Judged) -> String {
    let class = match judged.verdict {
        Verdict::Holds => "good",
        Verdict::InPart => "part",
        Verdict::DoesNotHold => "bad",
        Verdict::NotMeasured => "none",
    };
    format!(
        "<article class=\"verdict\"><h3><span class=\"pill {class}\">{}</span> {}</h3><dl><dt>the same work</dt><dd>{}</dd><dt>as QubGPU counts</dt><dd>{}</dd></dl><p>{}</p></article>",
        judged.verdict.in_words(),
        escaped(judged.claim),
        escaped(&judged.fair),
        escaped(&judged.published),
        escaped(&judged.why)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edits::EditResults;
    use crate::testing::{results, speeds};
    use crate::write::write;

    #[test]
    fn the_file_loads_nothing_and_has_no_script() {
        let page = html(&write(&results(), &speeds(), &EditResults::default()));
        for word in ["http:", "https:", "<script", "src=", "url(", "@import", "<link"] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("<svg") && page.contains("does not hold"));
        let (opened, closed) = (page.matches("<section").count(), page.matches("</section>").count());
        assert_eq!(opened, closed);
    }

    #[test]
    fn names_of_strangers_are_text() {
        let mut results = results();
        results.model.name = "<script>alert(1)</script>\u{1b}[31m".into();
        results.data.name = "a\"b".into();
        let page = html(&write(&results, &speeds(), &EditResults::default()));
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;") && !page.contains('\u{1b}'));
        assert!(page.contains("a&quot;b"));
    }
}
