//! Lays a page of the guide out for a terminal.
//!
//! Enters: markdown as the guide is written: headings, paragraphs, lists of one level, tables, code, pictures
//! and links. Leaves: lines of at most a width, apart from code, which stays as it can be copied. A link to
//! another page becomes the words that print it, and one to a file of the clone its path there.

use unicode_width::UnicodeWidthStr;

use crate::wrap::wrap;

/// The most columns of a line. Longer ones are hard to read.
const WIDEST: usize = 100;
/// The space between two columns of a table.
const GAP: usize = 2;

/// Returns the page as lines of at most `width` columns.
pub fn guide_page(page: &str, width: usize) -> String {
    let width = width.min(WIDEST);
    let mut out: Vec<String> = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let take_while = |lines: &mut std::iter::Peekable<std::str::Lines<'_>>, goes_on: fn(&str) -> bool| {
            let mut taken = vec![line.trim().to_owned()];
            while let Some(more) = lines.next_if(|next| goes_on(next)) {
                taken.push(more.trim().to_owned());
            }
            taken
        };
        if line.starts_with("```") {
            out.extend(lines.by_ref().take_while(|code| !code.starts_with("```")).map(code_line));
        } else if let Some((sign, text)) = heading(line) {
            let rows = wrap(&plain(text), width);
            let widest = rows.iter().map(|row| row.width()).max().unwrap_or(0);
            out.extend(rows);
            out.push(sign.repeat(widest));
        } else if line.starts_with('|') {
            table(&take_while(&mut lines, |next| next.starts_with('|')), width, &mut out);
        } else if let Some(marker) = list_marker(line) {
            let text = take_while(&mut lines, |next| next.starts_with(' ')).join(" ");
            hanging(marker, &plain(&text[marker.len()..]), width, &mut out);
        } else if line.is_empty() {
            out.push(String::new());
        } else if line.starts_with("![") {
            out.extend(wrap(&plain(line), width));
        } else {
            let text = take_while(&mut lines, |next| !is_block(next)).join(" ");
            out.extend(wrap(&plain(&text), width));
        }
    }
    out.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn code_line(code: &str) -> String {
    format!("    {code}")
}

fn heading(line: &str) -> Option<(&'static str, &str)> {
    let text = line.trim_start_matches('#');
    let depth = line.len() - text.len();
    (depth > 0 && text.starts_with(' ')).then(|| (if depth == 1 { "=" } else { "-" }, text.trim()))
}

/// Returns the marker of a list's item with the space behind it.
fn list_marker(line: &str) -> Option<&str> {
    let end = line.find(' ')? + 1;
    let number = line[..end].trim_end().strip_suffix('.');
    let is_number = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()));
    (is_number || line.starts_with("- ")).then(|| &line[..end])
}

/// Returns whether a line begins something other than more of a paragraph.
fn is_block(line: &str) -> bool {
    let is_other =
        line.is_empty() || line.starts_with('|') || line.starts_with("```") || line.starts_with("![");
    is_other || heading(line).is_some() || list_marker(line).is_some()
}

/// Adds text that stands behind `head`, on all its lines.
fn hanging(head: &str, text: &str, width: usize, out: &mut Vec<String>) {
    let indent = head.width();
    for (n, line) in wrap(text, width.saturating_sub(indent)).into_iter().enumerate() {
        out.push(if n == 0 { format!("{head}{line}") } else { format!("{:indent$}{line}", "") });
    }
}

/// Adds a table: in columns if they fit, with the last column wrapped if the others leave it enough, and
/// otherwise each row as a paragraph with the other cells below its first one.
fn table(lines: &[String], width: usize, out: &mut Vec<String>) {
    let mut rows: Vec<Vec<String>> = lines.iter().map(|line| cells(line)).collect();
    // The second line only separates the header from the rest.
    if rows.len() > 1 {
        rows.remove(1);
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(widest).collect();
    let before_last: usize = widths.iter().rev().skip(1).map(|width| width + GAP).sum();
    let has_header = rows.first().is_some_and(|header| header.iter().any(|cell| !cell.is_empty()));
    let is_in_columns = before_last <= width / 2 || before_last + widths.last().unwrap_or(&0) <= width;
    let header = if has_header { rows.first().cloned() } else { None };
    for (n, row) in rows.iter().enumerate() {
        let Some((last, first)) = row.split_last() else { continue };
        match &header {
            None if n == 0 => {}
            // The header of rows that are paragraphs would stand far from what it says.
            Some(_) if n == 0 && !is_in_columns => {}
            _ if is_in_columns => {
                let pad = |(cell, width): (&String, &usize)| {
                    let gap = width.saturating_sub(cell.width()) + GAP;
                    format!("{cell}{:gap$}", "")
                };
                let head: String = first.iter().zip(&widths).map(pad).collect();
                hanging(&head, last, width, out);
                if n == 0 {
                    let rule = |width: &usize| "-".repeat(*width);
                    let room = width.saturating_sub(before_last);
                    let mut rules: Vec<String> = widths.iter().map(rule).collect();
                    if let Some(last) = rules.last_mut() {
                        last.truncate(room);
                    }
                    out.push(rules.join(&" ".repeat(GAP)));
                }
            }
            header => {
                out.extend(wrap(&row[0], width));
                for (column, cell) in row.iter().enumerate().skip(1) {
                    let name = header.as_ref().and_then(|header| header.get(column));
                    let name = name.filter(|name| columns > 2 && !name.is_empty());
                    let text = name.map_or_else(|| cell.clone(), |name| format!("{name}: {cell}"));
                    hanging("    ", &text, width, out);
                }
            }
        }
    }
}

/// Returns the cells of a row of a table, as they are shown.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    // A bar that belongs to a cell is written \|.
    let split = inner.replace("\\|", "\0");
    split.split('|').map(|cell| plain(cell.trim()).replace('\0', "|")).collect()
}

/// Returns a text without emphasis, and with links as words.
fn plain(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[', '!']) {
        shown.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = if let Some(code) = rest.strip_prefix('`') {
            let end = code.find('`').map_or(rest.len(), |end| end + 2);
            shown.push_str(&rest[..end]);
            end
        } else if rest.starts_with('*') {
            1
        } else if let Some((length, alt, _)) = link(rest.strip_prefix('!').unwrap_or_default()) {
            shown.push_str(&format!("[picture: {alt}]"));
            length + 1
        } else if let Some((length, text, target)) = link(rest) {
            shown.push_str(&led_to(&plain(text), target));
            length
        } else {
            shown.push_str(&rest[..1]);
            1
        };
        rest = &rest[taken..];
    }
    shown + rest
}

/// Returns the length of a link at the beginning of the text, its words and its target.
fn link(text: &str) -> Option<(usize, &str, &str)> {
    let inner = text.strip_prefix('[')?;
    let (words, behind) = inner.split_once("](")?;
    let (target, _) = behind.split_once(')')?;
    (!words.contains(['[', ']'])).then(|| (words.len() + target.len() + "[]()".len(), words, target))
}

/// Returns the words of a link with the way to its target.
fn led_to(words: &str, target: &str) -> String {
    let (file, _) = target.split_once('#').unwrap_or((target, ""));
    let page = file.strip_suffix(".md").filter(|page| !page.contains(['/', ':']) && !page.is_empty());
    match page {
        _ if file.is_empty() => words.to_owned(),
        Some(page) if words == file => format!("`guide {page}`"),
        Some(page) => format!("{words} (`guide {page}`)"),
        None if file.contains("://") => format!("{words} ({target})"),
        None => {
            let ups = file.matches("../").count();
            let folder = ["src/guide/", "src/", ""][ups.min(2)];
            format!("{words} ({folder}{} in the clone)", file.trim_start_matches("../"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_wrapped_and_its_links_say_how_to_follow_them() {
        let page = "# A *page*\n\nSee [data.md](data.md#x), [runs](runs.md), [below](#y),\n[presets](../../presets/README.md) and \
                    `a[b](c) *`.\n\n![A picture](screens/a.svg)\n\n- one two three four five\n  six\n2. seven\n\n```\n\
                    sparktune train --model a-long-name --data a-long-name\n```\n";
        let shown = "A page\n======\n\nSee `guide data`, runs\n(`guide runs`), below,\npresets\n(presets/README.md in\n\
                     the clone) and\n`a[b](c) *`.\n\n[picture: A picture]\n\n- one two three four\n  five six\n2. seven\n\n    \
                     sparktune train --model a-long-name --data a-long-name\n";
        assert_eq!(guide_page(page, 22), shown);
    }

    #[test]
    fn a_table_has_columns_if_they_fit_and_is_paragraphs_otherwise() {
        let page = "| a | what it is |\n|---|---|\n| `x\\|y` | one two three four |\n";
        assert_eq!(
            guide_page(page, 40),
            "a      what it is\n-----  ------------------\n`x|y`  one two three four\n"
        );
        assert_eq!(
            guide_page(page, 18),
            "a      what it is\n-----  -----------\n`x|y`  one two\n       three four\n"
        );
        let wide = "| | |\n|---|---|\n| a first cell that is long | one two |\n";
        assert_eq!(guide_page(wide, 20), "a first cell that is\nlong\n    one two\n");
        let three = "| name | size | what it is for |\n|---|---|---|\n| a first cell | some | all of it |\n";
        assert_eq!(
            guide_page(three, 22),
            "a first cell\n    size: some\n    what it is for:\n    all of it\n"
        );
    }

    #[test]
    fn every_page_of_the_guide_fits_and_shows_no_markdown() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../guide");
        let mut pages = 0;
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.path().extension().is_none_or(|ending| ending != "md") {
                continue;
            }
            pages += 1;
            let page = std::fs::read_to_string(entry.path()).unwrap();
            let mut is_code = false;
            for line in page.lines() {
                is_code ^= line.starts_with("```");
                // A line of JSON Lines cannot be continued on the next one.
                let fits = line.starts_with('{') || code_line(line).width() <= 80;
                assert!(!is_code || fits, "{}: {line}", entry.path().display());
            }
            let code: Vec<String> = page.lines().map(code_line).collect();
            for width in [40, 80] {
                for line in
                    guide_page(&page, width).lines().filter(|line| !code.iter().any(|code| code == line))
                {
                    let place = entry.path().display().to_string();
                    assert!(line.width() <= width, "{place}: {line}");
                    assert!(!line.contains("](") && !line.starts_with(['#', '|']), "{place}: {line}");
                }
            }
        }
        assert!(pages > 12, "{pages} pages");
    }
}
