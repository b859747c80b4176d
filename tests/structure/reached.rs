//! Which files are compiled at all: a file that no `mod` names is read by people and by nobody else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::conventions::sources;
use crate::root;

#[test]
fn every_rust_file_belongs_to_a_target() {
    let mut open: Vec<PathBuf> = packages().iter().flat_map(|folder| targets(folder)).collect();
    let roots: BTreeSet<PathBuf> = open.iter().cloned().collect();
    let mut reached = BTreeSet::new();
    while let Some(file) = open.pop() {
        if reached.insert(file.canonicalize().unwrap()) {
            let text = std::fs::read_to_string(&file).unwrap();
            open.extend(modules(&file, roots.contains(&file), &text));
        }
    }
    let is_lost = |path: &PathBuf| !reached.contains(&path.canonicalize().unwrap());
    let lost: Vec<String> =
        sources().into_iter().filter(is_lost).map(|path| path.display().to_string()).collect();
    assert!(lost.is_empty(), "no `mod` names these files:\n{}", lost.join("\n"));
}

#[test]
fn declared_modules_are_found_where_the_compiler_looks_for_them() {
    let text =
        "#[cfg(test)]\nmod tests;\n#[path = \"../other/c.rs\"]\npub(crate) mod c;\nmod d {\n}\n// mod e;\n";
    assert_eq!(
        declared(text),
        [("tests".to_owned(), None), ("c".to_owned(), Some("../other/c.rs".to_owned()))]
    );
    assert_eq!(children_folder(Path::new("a/b.rs"), false), Path::new("a/b"));
    assert_eq!(children_folder(Path::new("a/b.rs"), true), Path::new("a"));
    assert_eq!(children_folder(Path::new("a/mod.rs"), false), Path::new("a"));
}

/// The folders of the packages: those of the workspace, and the one that feeds parsers by coverage.
fn packages() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(root().join("src")).unwrap().map(|entry| entry.unwrap().path());
    let apart = ["kernels", "tests/fuzz/coverage"].map(|folder| root().join(folder));
    let all = folders.chain([root().to_owned()]).chain(apart);
    all.filter(|folder| folder.join("Cargo.toml").is_file()).collect()
}

/// The files that Cargo hands to the compiler: those that the manifest names, and unless it says otherwise
/// each file in `tests`.
fn targets(package: &Path) -> Vec<PathBuf> {
    let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
    let named = manifest.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
    let mut found: Vec<PathBuf> =
        named.filter(|path| path.ends_with(".rs")).map(|path| package.join(path)).collect();
    if !manifest.lines().any(|line| line == "autotests = false") {
        let tests = std::fs::read_dir(package.join("tests")).into_iter().flatten();
        for path in tests.map(|entry| entry.unwrap().path()) {
            found.push(if path.is_dir() { path.join("main.rs") } else { path });
        }
    }
    found.retain(|path| path.is_file() && path.extension().is_some_and(|end| end == "rs"));
    found
}

/// The files of the modules that a file declares.
fn modules(file: &Path, is_root: bool, text: &str) -> Vec<PathBuf> {
    let beside = file.parent().unwrap();
    let folder = children_folder(file, is_root);
    let place = |(name, path): (String, Option<String>)| match path {
        Some(path) => beside.join(path),
        None => {
            let alone = folder.join(format!("{name}.rs"));
            if alone.is_file() { alone } else { folder.join(name).join("mod.rs") }
        }
    };
    declared(text).into_iter().map(place).filter(|path| path.is_file()).collect()
}

/// Where the modules lie that a file declares.
fn children_folder(file: &Path, is_root: bool) -> PathBuf {
    if is_root || file.ends_with("mod.rs") {
        file.parent().unwrap().to_owned()
    } else {
        file.with_extension("")
    }
}

/// The modules in files of their own, each with the path that it is given.
fn declared(text: &str) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    let mut path = None;
    for line in text.lines().map(str::trim) {
        if let Some(given) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            path = Some(given.to_owned());
        } else if let Some((before, name)) = line.strip_suffix(';').and_then(|line| line.split_once("mod "))
            && (before.is_empty() || before.starts_with("pub"))
        {
            found.push((name.to_owned(), path.take()));
        }
    }
    found
}
