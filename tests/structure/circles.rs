//! Which files may import from which.
//!
//! Cargo keeps the arrows between crates one-way. Inside a crate nobody does, so these tests read the `use`
//! lines of every file outside `#[cfg(test)]` and fail on a circle: files that import from each other can
//! only be read together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::root;

/// The folders of the crates. The binary is `main.rs` and `cli`, next to the others.
const CRATES: [&str; 22] = [
    "kernels",
    "src",
    "src/app",
    "src/base",
    "src/bench",
    "src/cluster",
    "src/commands",
    "src/compare",
    "src/data",
    "src/edit",
    "src/hub",
    "src/infer",
    "src/model",
    "src/ndp",
    "src/paper",
    "src/plan",
    "src/runlog",
    "src/sampling",
    "src/serve",
    "src/telemetry",
    "src/train",
    "src/tui",
];

#[test]
fn no_files_of_a_crate_import_from_each_other_in_a_circle() {
    for folder in CRATES {
        let circles = circles(&Crate::read(folder).imports());
        assert!(circles.is_empty(), "{folder}: files that import from each other:\n{}", listed(&circles));
    }
}

#[test]
fn the_source_folder_holds_crates_and_the_binary_which_is_main_and_cli() {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let is_known = ["cli", "guide"].contains(&name.as_str());
            assert!(is_known || path.join("Cargo.toml").is_file(), "src/{name} is a folder but not a crate");
        } else if name.ends_with(".rs") {
            files.insert(name);
        }
    }
    assert_eq!(files, BTreeSet::from(["main.rs".into()]));
}

#[test]
fn use_lines_are_read_as_the_compiler_reads_them() {
    let modules = ["", "a", "a::b", "c"].map(|path| (module(path), PathBuf::from(format!("{path}.rs"))));
    let sources = Crate { modules: modules.into_iter().collect(), texts: BTreeMap::new() };
    let imported = |from: &str, text: &str| {
        let paths = sources.targets(&module(from), text);
        paths.iter().map(|path| path.join("::")).collect::<Vec<_>>()
    };
    assert_eq!(imported("c", "use crate::a::{self, b::Item, Other as X};"), ["a", "a::b", "a"]);
    assert_eq!(
        imported("a::b", "use super::Item;\nuse super::super::c::{\n    D,\n    E,\n};"),
        ["a", "c", "c"]
    );
    assert_eq!(
        imported("a", "pub(crate) use b::Item;\nuse std::path::Path;\nuse self::b::*;"),
        ["a::b", "a::b"]
    );
    assert!(
        imported("c", "// use crate::a::Item;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n").is_empty()
    );
    assert_eq!(imported("c", "#[cfg(test)]\nmod tests;\nuse crate::a;"), ["a"]);
    let inside = "mod inner {\n    use super::Item;\n    use super::super::a::Item;\n}\nuse super::a;";
    assert_eq!(imported("c", inside), ["c", "a", "a"]);
}

#[test]
fn a_circle_is_found_whatever_leads_into_it() {
    let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "a")];
    let mut imports: Imports = BTreeMap::new();
    for (from, to) in edges {
        imports.entry(module(from)).or_default().insert(module(to));
    }
    assert_eq!(circles(&imports), [BTreeSet::from([module("b"), module("c")])]);
}

/// A module as the names from the root of its crate to it; the root itself has none.
type Module = Vec<String>;

/// The modules that each module imports from.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

fn module(path: &str) -> Module {
    path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The files of a crate by their modules.
struct Crate {
    modules: BTreeMap<Module, PathBuf>,
    texts: BTreeMap<Module, String>,
}

impl Crate {
    /// Reads the files of the crate in this folder, but not those of crates inside it, nor files of tests
    /// alone.
    fn read(folder: &str) -> Self {
        let folder = root().join(folder);
        let mut modules: BTreeMap<Module, PathBuf> = BTreeMap::new();
        let mut folders = vec![folder.clone()];
        while let Some(inside) = folders.pop() {
            for entry in std::fs::read_dir(&inside).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.join("Cargo.toml").is_file() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let relative = path.strip_prefix(&folder).unwrap().with_extension("");
                    let names = relative.iter().map(|name| name.to_string_lossy().into_owned());
                    let is_root = |name: &String| matches!(name.as_str(), "lib" | "main" | "mod");
                    modules.insert(names.filter(|name| !is_root(name)).collect(), path);
                }
            }
        }
        let texts: BTreeMap<Module, String> = modules
            .iter()
            .map(|(module, path)| (module.clone(), std::fs::read_to_string(path).unwrap()))
            .collect();
        let of_tests: BTreeSet<Module> = texts
            .iter()
            .flat_map(|(module, text)| {
                test_modules(text).into_iter().map(|name| [module.as_slice(), &[name]].concat())
            })
            .collect();
        let is_product = |module: &Module| !of_tests.iter().any(|tests| module.starts_with(tests));
        let mut read = Self { modules, texts };
        read.modules.retain(|module, _| is_product(module));
        read.texts.retain(|module, _| is_product(module));
        assert!(!read.modules.is_empty(), "{} holds no source", folder.display());
        read
    }

    fn imports(&self) -> Imports {
        let of = |(module, text): (&Module, &String)| {
            let targets = self.targets(module, text).into_iter().filter(|target| target != module);
            (module.clone(), targets.collect())
        };
        self.texts.iter().map(of).collect()
    }

    /// The modules of this crate that the `use` lines of a text name.
    fn targets(&self, module: &[String], text: &str) -> Vec<Module> {
        let mut targets = Vec::new();
        for (inline, line) in use_lines(&without_tests(text)) {
            let module = [module, &inline].concat();
            for path in paths(&line) {
                targets.extend(self.target(&module, &path));
            }
        }
        targets
    }

    /// The file that a path is imported from: the longest beginning that is a module in a file of its own.
    /// `None` for other crates. `module` may lie inside its file.
    fn target(&self, module: &[String], path: &str) -> Option<Module> {
        let mut names = path.split("::").map(str::trim).peekable();
        let mut at = match *names.peek()? {
            "crate" => {
                names.next();
                Module::new()
            }
            "self" | "super" => module.to_vec(),
            name => {
                let child = [module, &[name.to_owned()]].concat();
                if !self.modules.contains_key(&child) {
                    return None;
                }
                module.to_vec()
            }
        };
        for name in names {
            match name {
                "self" => {}
                "super" => {
                    at.pop();
                }
                name => {
                    let child = [at.as_slice(), &[name.to_owned()]].concat();
                    if !self.modules.contains_key(&child) {
                        break;
                    }
                    at = child;
                }
            }
        }
        while !self.modules.contains_key(&at) {
            at.pop()?;
        }
        Some(at)
    }
}

/// The lines without comments.
fn without_comments(text: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    text.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// The code without comments and without items for tests alone. Items are formatted, so that one ends where
/// its indentation does.
fn without_tests(text: &str) -> String {
    let code = without_comments(text);
    let mut kept = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push(line);
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        for line in lines.by_ref() {
            let is_last = line.len() - line.trim_start().len() == indent && line.ends_with([';', '}']);
            if is_last {
                break;
            }
        }
    }
    kept.join("\n")
}

/// The names of modules in files of their own that are for tests alone.
fn test_modules(text: &str) -> Vec<String> {
    let code = without_comments(text);
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let declared = |pair: &[&str]| {
        let name = pair[1].strip_suffix(';')?.rsplit_once("mod ")?.1;
        (pair[0] == "#[cfg(test)]").then(|| name.to_owned())
    };
    lines.windows(2).filter_map(declared).collect()
}

/// What stands between `use` and `;`, wherever that is a statement of its own, with the modules around it in
/// the same file.
fn use_lines(code: &str) -> Vec<(Module, String)> {
    let mut found = Vec::new();
    let mut around: Vec<(usize, String)> = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some((_, name)) = line.strip_suffix(" {").and_then(|line| line.rsplit_once("mod ")) {
            around.push((indent, name.to_owned()));
        }
        if line == "}" && around.last().is_some_and(|(at, _)| *at == indent) {
            around.pop();
        }
        let Some((before, after)) = line.split_once("use ") else { continue };
        if !before.is_empty() && !before.starts_with("pub") {
            continue;
        }
        let mut statement = after.to_owned();
        while !statement.contains(';') {
            let Some(line) = lines.next() else { break };
            statement.push_str(line.trim());
        }
        let tree = statement.split(';').next().unwrap_or_default().to_owned();
        found.push((around.iter().map(|(_, name)| name.clone()).collect(), tree));
    }
    found
}

/// The single paths of a tree: `a::{b, c as d}` is `a::b` and `a::c`.
fn paths(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.trim().to_owned()];
    };
    let inner = rest.trim().strip_suffix('}').unwrap_or(rest);
    let (mut parts, mut depth, mut part) = (Vec::new(), 0, String::new());
    for c in inner.chars() {
        match c {
            ',' if depth == 0 => parts.push(std::mem::take(&mut part)),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                part.push(c);
            }
        }
    }
    parts.push(part);
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(paths).map(|path| format!("{}{path}", prefix.trim())).collect()
}

/// The sets of modules from each of which every other one is reached.
fn circles(imports: &Imports) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|module| (module, reachable(imports, module))).collect();
    let mut found: Vec<BTreeSet<Module>> = Vec::new();
    for (module, all) in &reached {
        if !all.contains(*module) || found.iter().any(|circle| circle.contains(*module)) {
            continue;
        }
        let is_mutual = |other: &&Module| reached.get(other).is_some_and(|back| back.contains(*module));
        found.push(all.iter().filter(is_mutual).cloned().collect());
    }
    found
}

fn reachable(imports: &Imports, from: &Module) -> BTreeSet<Module> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.clone()];
    while let Some(module) = open.pop() {
        for next in imports.get(&module).into_iter().flatten() {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    reached
}

fn listed(circles: &[BTreeSet<Module>]) -> String {
    let name = |module: &Module| if module.is_empty() { "(root)".to_owned() } else { module.join("::") };
    let line = |circle: &BTreeSet<Module>| circle.iter().map(name).collect::<Vec<_>>().join(", ");
    circles.iter().map(line).collect::<Vec<_>>().join("\n")
}
