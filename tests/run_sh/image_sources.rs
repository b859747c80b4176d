//! The files that the image is built from, as the Dockerfile, `run.sh --docker` and the program's code name
//! them.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the files of Rust in a folder with the paths that they include, outside of tests. Fixtures are for
/// tests alone.
fn included_files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("tests") {
            found.extend(included_files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            // The modules of tests come last; other items for tests may come before.
            let is_module = |at: &usize| text[*at..].split('{').next().unwrap().contains("mod ");
            let end = text.match_indices("#[cfg(test)]").map(|(at, _)| at).find(is_module);
            let code = &text[..end.unwrap_or(text.len())];
            let macros = ["include_str!(\"", "include_bytes!(\""];
            let includes = macros.iter().flat_map(|include| code.split(include).skip(1));
            let paths = includes
                .filter_map(|rest| rest.split('"').next())
                .filter(|path| path.contains("../") && !path.contains("/fixtures/"));
            found.extend(paths.map(|included| (path.clone(), included.to_owned())));
        }
    }
    found
}

#[test]
fn whatever_goes_into_the_image_makes_it_old_when_it_changes() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dockerfile = fs::read_to_string(repository.join("docker/Dockerfile")).unwrap();
    // The image is built from the sources of the program, and from some more files.
    let [sources, more] =
        [("run.sh", "\nsources=("), ("docker/engine.sh", "\nimage_sources=(")].map(|(file, list)| {
            let script = fs::read_to_string(repository.join(file)).unwrap();
            script.split(list).nth(1).and_then(|rest| rest.split(')').next()).unwrap().to_owned()
        });
    let looked_at: Vec<&str> = more.split_whitespace().chain(sources.split_whitespace()).collect();
    assert!(looked_at.contains(&"\"${sources[@]}\""), "{looked_at:?}");
    let copies = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY "));
    let sources = copies.filter(|copy| !copy.starts_with("--from")).flat_map(|copy| {
        let words: Vec<&str> = copy.split_whitespace().collect();
        words[..words.len() - 1].to_vec()
    });
    let mut count = 0;
    let mut copied = Vec::new();
    for source in sources {
        let first = source.split('/').next().unwrap();
        assert!(
            looked_at.contains(&first) || looked_at.contains(&source),
            "{source} is in neither list of sources"
        );
        copied.push(repository.join(source));
        count += 1;
    }
    assert!(count > 5, "the Dockerfile was not understood");
    // What the program's own code takes into itself is there when the image is built.
    let included = included_files(&repository.join("src"));
    let peers = included.iter().filter(|(_, path)| path.contains("tests/peers/")).count();
    assert!(peers >= 2, "the peers of `bench` are compiled in: {included:?}");
    for (file, included) in included {
        let path = file.with_file_name(&included).canonicalize().unwrap();
        assert!(
            copied.iter().any(|source| path.starts_with(source)),
            "{} includes {included}, which the Dockerfile does not copy",
            file.display()
        );
    }
}
