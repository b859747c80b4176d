//! The card of a data set: the configs, splits and files that the head of its `README.md` declares.
//!
//! Enters: the text of the file, which is untrusted. Leaves: [`Config`]s with patterns of file names. It must
//! not know which files exist. The forms are those of the library `datasets`:
//!
//! ```yaml
//! configs:
//! - config_name: default        # default: true makes any other config the default one
//!   data_dir: files             # optional: patterns are relative to this folder
//!   data_files: "*.csv"         # of the split train; a list means several patterns
//! - config_name: en
//!   data_files:
//!   - split: test
//!     path: en/test-*           # or a list
//! ```

use saphyr_parser::{Event, Parser};
use sparktune_base::escape::shortened;

/// The largest head in bytes. It also lists the fields of each config, but not their contents.
const LARGEST_HEAD: usize = 4 << 20;
/// The largest depth of lists and mappings.
const DEEPEST: usize = 32;
/// The largest number of patterns of all splits of a config.
const MOST_PATTERNS: usize = 10_000;
/// The longest pattern in bytes.
const LONGEST_PATTERN: usize = 1024;

/// The name of a config that has none.
pub(crate) const DEFAULT: &str = "default";

/// A config as declared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Config {
    pub name: String,
    pub is_default: bool,
    /// The folder that patterns and conventions refer to; empty for the whole repository. It ends in a slash.
    pub folder: String,
    /// The splits with the patterns of their files; empty if the conventions decide.
    pub splits: Vec<(String, Vec<String>)>,
}

/// Returns the declared configs; empty if there are none. The error is the problem in words.
pub(crate) fn configs(readme: &str) -> Result<Vec<Config>, String> {
    let Some(head) = head(readme) else { return Ok(Vec::new()) };
    if head.len() > LARGEST_HEAD {
        return Err(format!("its head is longer than {LARGEST_HEAD} bytes"));
    }
    let head = read(head)?;
    let Some(configs) = head.field("configs") else { return Ok(Vec::new()) };
    configs.items().iter().map(config).collect()
}

/// Returns the text between the first line, `---`, and the next such line.
fn head(readme: &str) -> Option<&str> {
    let text = readme.trim_start_matches('\u{feff}');
    let (first, rest) = text.split_once('\n')?;
    if first.trim_end() != "---" {
        return None;
    }
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some(&rest[..end]);
        }
        end += line.len();
    }
    None
}

fn config(node: &Node) -> Result<Config, String> {
    // A config that is only a name is read from files by the conventions.
    if let Node::Text(name) = node {
        return Ok(Config { name: name.clone(), ..Config::default() });
    }
    let name = node.text_of("config_name").unwrap_or(DEFAULT).to_owned();
    let folder = match node.text_of("data_dir") {
        Some(folder) => format!("{}/", within(folder)?.trim_end_matches('/')),
        None => String::new(),
    };
    let splits = match node.field("data_files") {
        None => Vec::new(),
        Some(files) => splits(files)?,
    };
    if splits.iter().map(|(_, patterns)| patterns.len()).sum::<usize>() > MOST_PATTERNS {
        let name = shortened(&name);
        return Err(format!("the config {name:?} has more than {MOST_PATTERNS} patterns"));
    }
    Ok(Config { name, is_default: node.text_of("default") == Some("true"), folder, splits })
}

fn splits(files: &Node) -> Result<Vec<(String, Vec<String>)>, String> {
    let of_train = |patterns| vec![("train".to_owned(), patterns)];
    match files {
        Node::Text(_) => Ok(of_train(patterns(files)?)),
        Node::Mapping(fields) => {
            fields.iter().map(|(split, files)| Ok((split.clone(), patterns(files)?))).collect()
        }
        Node::List(items) if items.iter().all(|item| matches!(item, Node::Text(_))) => {
            Ok(of_train(patterns(files)?))
        }
        Node::List(items) => {
            let split = |item: &Node| {
                let (Some(split), Some(path)) = (item.text_of("split"), item.field("path")) else {
                    return Err("an entry of `data_files` has no `split` or no `path`".to_owned());
                };
                Ok((split.to_owned(), patterns(path)?))
            };
            items.iter().map(split).collect()
        }
    }
}

fn patterns(node: &Node) -> Result<Vec<String>, String> {
    let pattern = |item: &Node| match item {
        Node::Text(text) => within(text).map(str::to_owned),
        _ => Err("a path in `data_files` is not text".to_owned()),
    };
    match node {
        Node::List(items) => items.iter().map(pattern).collect(),
        one => Ok(vec![pattern(one)?]),
    }
}

/// Returns a path or pattern relative to the repository, which it must not leave.
fn within(path: &str) -> Result<&str, String> {
    let path = path.trim_start_matches("./");
    if path.contains("://") {
        let path = shortened(path);
        return Err(format!("{path:?} is an address outside the repository, which is not read"));
    }
    if path.len() > LONGEST_PATTERN || path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(format!("{:?} leads out of the repository", shortened(path)));
    }
    Ok(path)
}

/// A value of YAML. Only texts matter here, so numbers and booleans are texts too.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<(String, Node)>),
}

impl Node {
    fn field(&self, name: &str) -> Option<&Self> {
        let Self::Mapping(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    fn text_of(&self, name: &str) -> Option<&str> {
        match self.field(name)? {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the items of a list; another value counts as a list of one.
    fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            one => std::slice::from_ref(one),
        }
    }
}

/// A list or mapping that is not complete yet.
enum Open {
    List(Vec<Node>),
    /// The fields so far, and the key of the next value.
    Mapping(Vec<(String, Node)>, Option<String>),
}

/// Reads a YAML document. An alias stands for an empty text: no card needs one in its configs, and a few of
/// them could stand for any amount of text.
fn read(text: &str) -> Result<Node, String> {
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|error| {
            let place = error.marker();
            format!("its head is not YAML (line {}, column {})", place.line() + 1, place.col() + 1)
        })?;
        let done = match event {
            Event::Scalar(text, ..) => Node::Text(text.into_owned()),
            Event::Alias(_) => Node::Text(String::new()),
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() == DEEPEST => {
                return Err(format!("its head is more than {DEEPEST} levels deep"));
            }
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Mapping(Vec::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(items)) => Node::List(items),
                Some(Open::Mapping(fields, _)) => Node::Mapping(fields),
                None => return Err("its head is not YAML".to_owned()),
            },
            _ => continue,
        };
        match open.last_mut() {
            // The head is one value; a second document would be an odd way to hide something.
            None => return Ok(done),
            Some(Open::List(items)) => items.push(done),
            Some(Open::Mapping(fields, key @ Some(_))) => {
                fields.extend(key.take().map(|key| (key, done)));
            }
            Some(Open::Mapping(_, key)) => {
                *key = Some(match done {
                    Node::Text(text) => text,
                    // A list or mapping as a key has no use here.
                    _ => String::new(),
                });
            }
        }
    }
    Ok(Node::Mapping(Vec::new()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(yaml: &str) -> Result<Vec<Config>, String> {
        configs(&format!("---\n{yaml}\n---\n# Title\n"))
    }

    fn split(name: &str, patterns: &[&str]) -> (String, Vec<String>) {
        (name.to_owned(), patterns.iter().map(|pattern| (*pattern).to_owned()).collect())
    }

    #[test]
    fn every_form_of_a_config_is_read() {
        let yaml = r#"
license: mit
dataset_info: {features: [{name: text, dtype: string}], splits: [{name: train, num_bytes: 12.0}]}
configs:
- config_name: main
  data_files: "main.csv"
  default: true
- config_name: several
  data_files: ["a.csv", ./b.csv]
- config_name: splits
  data_dir: there/
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path:
    - x/*.jsonl
    - "y/[0-9].jsonl"
- config_name: mapping
  data_files: {validation: v.jsonl}
- just_a_name
- data_dir: folder
"#;
        let all = of(yaml).unwrap();
        let names: Vec<&str> = all.iter().map(|config| config.name.as_str()).collect();
        assert_eq!(names, ["main", "several", "splits", "mapping", "just_a_name", "default"]);
        assert!(all[0].is_default && !all[1].is_default);
        assert_eq!(all[0].splits, [split("train", &["main.csv"])]);
        assert_eq!(all[1].splits, [split("train", &["a.csv", "b.csv"])]);
        assert_eq!(all[2].folder, "there/");
        assert_eq!(
            all[2].splits,
            [split("train", &["data/train-*"]), split("test", &["x/*.jsonl", "y/[0-9].jsonl"])]
        );
        assert_eq!(all[3].splits, [split("validation", &["v.jsonl"])]);
        assert_eq!((all[5].folder.as_str(), all[5].splits.len()), ("folder/", 0));
    }

    #[test]
    fn a_card_without_configs_declares_none() {
        for readme in
            ["", "# Title\n", "---\nlicense: mit\n---\n", "---\nlicense: mit\n", "---\n---\n", "--- x\n"]
        {
            assert_eq!(configs(readme), Ok(Vec::new()), "{readme:?}");
        }
        assert_eq!(configs("\u{feff}---\r\nconfigs:\r\n- a\r\n---\r\n").unwrap()[0].name, "a");
    }

    #[test]
    fn what_leads_out_of_the_repository_is_refused() {
        for path in ["../x.jsonl", "/etc/passwd", "a/../../x", "https://x.invalid/a", "hf://datasets/o/n/a"] {
            for yaml in [
                format!("configs:\n- data_files: \"{path}\""),
                format!("configs:\n- data_files:\n  - split: train\n    path: [\"{path}\"]"),
                format!("configs:\n- data_dir: \"{path}\""),
            ] {
                assert!(of(&yaml).is_err(), "{yaml}");
            }
        }
    }

    #[test]
    fn a_head_that_is_not_yaml_says_where_and_one_that_grows_is_refused() {
        let error = of("configs:\n- a: [").unwrap_err();
        assert!(error.contains("line "), "{error}");
        let deep = format!("configs: {}{}", "[".repeat(100), "]".repeat(100));
        assert!(of(&deep).unwrap_err().contains("levels deep"));
        // A billion of anything, with aliases.
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nconfigs: *c";
        assert_eq!(of(bomb).unwrap().len(), 1);
        let many = format!("configs:\n- data_files: [{}]", "a,".repeat(MOST_PATTERNS + 1));
        assert!(of(&many).unwrap_err().contains("patterns"));
    }

    #[test]
    fn long_names_are_cut_in_the_words_about_them() {
        let long = "x".repeat(1 << 20);
        let many = "a,".repeat(MOST_PATTERNS + 1);
        for yaml in [
            format!("configs:\n- data_files: \"https://{long}\""),
            format!("configs:\n- data_dir: \"{long}\""),
            format!("configs:\n- config_name: {long}\n  data_files: [{many}]"),
        ] {
            let error = of(&yaml).unwrap_err();
            assert!(error.len() < 300 && error.contains("…\""), "{} bytes", error.len());
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-a-z:\\[\\]{}&*\\n \"|>!#,'%@]{0,80}|\\PC{0,40}") {
            drop(configs(&format!("---\n{text}\n---\n")));
            drop(configs(&text));
        }
    }
}
