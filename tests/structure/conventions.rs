//! The conventions of `.github/CONTRIBUTING.md` that neither rustfmt nor a lint holds.

use std::path::PathBuf;

use crate::root;

/// The order of derived traits; others come after these.
const TRAITS: [&str; 11] = [
    "Debug",
    "Clone",
    "Copy",
    "Default",
    "PartialEq",
    "Eq",
    "PartialOrd",
    "Ord",
    "Hash",
    "Serialize",
    "Deserialize",
];

/// The widest comment, in characters. rustfmt sees to code.
const WIDTH: usize = 110;

#[test]
fn imports_stand_in_groups_of_std_other_crates_and_this_crate() {
    assert_in_every_file(misplaced_imports);
}

#[test]
fn derived_traits_stand_in_one_order() {
    assert_in_every_file(misplaced_traits);
}

#[test]
fn comments_end_where_code_does() {
    assert_in_every_file(wide_comments);
}

#[test]
fn a_module_with_children_is_a_folder_with_a_mod_rs() {
    for path in sources() {
        assert!(!path.with_extension("").is_dir(), "{}: move it to mod.rs in its folder", path.display());
    }
}

#[test]
fn what_breaks_a_convention_is_found() {
    let imports = |text: &str| misplaced_imports(text).len();
    assert_eq!(
        imports("use std::fmt;\n\nuse serde::{\n    A,\n    B,\n};\n\nuse crate::a;\nuse super::b;\n"),
        0
    );
    assert_eq!(imports("use serde::A;\n\nuse std::fmt;\n"), 1);
    assert_eq!(imports("use std::fmt;\nuse serde::A;\n"), 1);
    assert_eq!(imports("pub use std::fmt;\n\nuse std::io;\n"), 1);
    assert_eq!(imports("use crate::a;\n\nmod b;\n\nuse std::fmt;\n"), 0, "what stands apart is no group");
    assert!(misplaced_traits("#[derive(Debug, Clone, thiserror::Error)]\n").is_empty());
    assert_eq!(misplaced_traits("#[derive(\n    Clone,\n    Debug\n)]\n"), ["1: derive(Clone, Debug)"]);
    let comment = format!("    // {}", "ä".repeat(WIDTH - 7));
    assert_eq!(wide_comments(&format!("{comment}\n{comment}x\n")), [format!("2: {comment}x")]);
}

/// Asserts that `find` finds nothing in any file. It returns what breaks a convention, each with its line.
fn assert_in_every_file(find: fn(&str) -> Vec<String>) {
    let mut found = Vec::new();
    for path in sources() {
        let place = path.strip_prefix(root()).unwrap().display().to_string();
        let text = std::fs::read_to_string(&path).unwrap();
        found.extend(find(&text).iter().map(|line| format!("{place}:{line}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// All Rust files but those of the stand-ins, which are crates of other people's shape.
pub(crate) fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = ["src", "kernels", "tests"].map(|name| root().join(name)).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path != root().join("kernels/stand-ins") {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    assert!(files.iter().any(|file| file.starts_with(root().join("src/plan"))), "no source was found");
    files
}

/// Imports that stand before those of an earlier group, or in one block with those of another.
fn misplaced_imports(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut before: Option<usize> = None;
    let mut is_apart = false;
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let code = line.trim_start();
        let visibility = code.find("use ").map(|at| &code[..at]);
        if code.is_empty() {
            is_apart = true;
        } else if visibility.is_some_and(|word| word.is_empty() || word.starts_with("pub")) {
            let path = code.split_once("use ").map_or("", |(_, path)| path);
            let group = match path.split([':', ';', ' ']).next() {
                Some("std" | "core" | "alloc") => 0,
                Some("crate" | "self" | "super") => 2,
                _ => 1,
            };
            if before.is_some_and(|before| group < before || is_apart == (group == before)) {
                found.push(format!("{}: {code}", number + 1));
            }
            if !line.contains(';') {
                lines.by_ref().find(|(_, line)| line.contains(';'));
            }
            (before, is_apart) = (Some(group), false);
        } else if !code.starts_with("#[") && !code.starts_with("//") {
            before = None;
        }
    }
    found
}

/// Derives in another order than that of [`TRAITS`].
fn misplaced_traits(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, start) in text.match_indices("#[derive(") {
        let list = text[at + start.len()..].split(')').next().unwrap_or_default();
        let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let place = |name: &&str| {
            let name = name.rsplit("::").next().unwrap_or_default();
            TRAITS.iter().position(|known| *known == name).unwrap_or(TRAITS.len())
        };
        if !names.is_sorted_by_key(place) {
            let number = text[..at].matches('\n').count() + 1;
            found.push(format!("{number}: derive({})", names.join(", ")));
        }
    }
    found
}

/// Comments that reach beyond [`WIDTH`].
fn wide_comments(text: &str) -> Vec<String> {
    let is_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > WIDTH;
    let numbered = text.lines().enumerate().filter(|(_, line)| is_wide(line));
    numbered.map(|(number, line)| format!("{}: {line}", number + 1)).collect()
}
