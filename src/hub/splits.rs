//! Selects the files of a split of a data set, from the names of all its files and its card.
//!
//! Enters: names, which are untrusted, and the text of `README.md`. Leaves: paths that can be joined to a
//! folder. It must not know what the files hold. Where the card does not say which files belong to a split,
//! `conventions` do.
//!
//! The hub's conversions (`refs/convert/parquet`) have a layout of their own: `CONFIG/SPLIT/0000.parquet`.

use std::collections::{BTreeMap, BTreeSet};

use globset::{GlobBuilder, GlobSetBuilder};

use crate::card::{self, Config, DEFAULT};
use crate::conventions::{Splits, TRAIN, by_convention, is_data, is_parquet, keep_one_kind};
use crate::data_set_name::{DataSetName, is_part};
use crate::error::Error;
use crate::model_name::is_data_path;

/// The revision with the hub's own conversion of a data set.
const CONVERTED: &str = "refs/convert/parquet";
/// The largest number of files of a split.
const MOST_FILES: usize = 10_000;

/// Returns the files of the split that `name` means, in order of their names.
pub(crate) fn select(
    name: &DataSetName,
    names: &BTreeSet<String>,
    readme: Option<&str>,
) -> Result<Vec<String>, Error> {
    let repo = name.repo().to_string();
    let declared = card::configs(readme.unwrap_or_default());
    let declared = declared.map_err(|why| Error::BadCard { repo: repo.clone(), why })?;
    if !names.iter().any(|file| is_data(file)) {
        return Err(nothing_in(name, names));
    }
    let configs = match (declared.is_empty(), name.revision == CONVERTED) {
        (true, true) => converted(names),
        (true, false) => {
            let all: Vec<&str> = names.iter().map(String::as_str).collect();
            vec![(DEFAULT.to_owned(), by_convention(&all, ""))]
        }
        (false, _) => {
            let chosen = choose(name, &declared, |config| &config.name, |config| config.is_default)?;
            vec![(chosen.name.clone(), declared_splits(chosen, names, &repo)?)]
        }
    };
    let (config, splits) = choose(name, &configs, |(config, _)| config, |_| false)?;
    let split = name.split.as_deref().unwrap_or(TRAIN);
    if splits.is_empty() {
        return Err(Error::NoDataFiles { repo });
    }
    let Some(files) = splits.get(split) else {
        return Err(Error::NoSplit {
            repo,
            config: config.clone(),
            split: split.to_owned(),
            splits: splits.keys().cloned().collect(),
        });
    };
    if files.len() > MOST_FILES {
        return Err(Error::TooManyFiles { repo, files: files.len(), most: MOST_FILES });
    }
    if let Some(evil) = files.iter().find(|file| !is_data_path(file)) {
        return Err(Error::UnsafeName { repo, name: (*evil).to_owned() });
    }
    Ok(files.iter().map(|file| (*file).to_owned()).collect())
}

/// Returns the config that is meant: the named one, the only one, `default`, or the one that the card marks.
fn choose<'a, T>(
    name: &DataSetName,
    configs: &'a [T],
    of: impl Fn(&T) -> &String,
    is_default: impl Fn(&T) -> bool,
) -> Result<&'a T, Error> {
    let repo = name.repo();
    let named = |sought: &str| configs.iter().find(|config| of(config) == sought);
    let all = || configs.iter().map(|config| of(config).clone()).collect::<Vec<_>>();
    if let Some(config) = &name.config {
        return named(config).ok_or_else(|| Error::NoConfig {
            repo: repo.to_string(),
            config: config.clone(),
            configs: all(),
        });
    }
    let only = configs.first().filter(|_| configs.len() == 1);
    let default = || configs.iter().find(|config| is_default(config)).or_else(|| named(DEFAULT));
    only.or_else(default).ok_or_else(|| {
        let first = configs.first().map(&of).filter(|config| is_part(config)).cloned();
        let config = Some(first.unwrap_or_else(|| "CONFIG".to_owned()));
        let example = DataSetName { config, ..name.clone() }.to_string();
        Error::ConfigNeeded { repo: repo.to_string(), configs: all(), example }
    })
}

/// Returns the error for a data set without data files.
fn nothing_in(name: &DataSetName, names: &BTreeSet<String>) -> Error {
    let repo = name.repo().to_string();
    match names.iter().find(|file| file.ends_with(".py") && !file.contains('/')) {
        Some(script) => {
            let converted = DataSetName { revision: CONVERTED.into(), ..name.clone() }.to_string();
            Error::ScriptOnly { repo, script: script.clone(), converted }
        }
        None => Error::NoDataFiles { repo },
    }
}

/// Returns the splits of a config from the card.
fn declared_splits<'a>(
    config: &Config,
    names: &'a BTreeSet<String>,
    repo: &str,
) -> Result<Splits<'a>, Error> {
    let inside: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| name.starts_with(&config.folder)).collect();
    if config.splits.is_empty() {
        return Ok(by_convention(&inside, &config.folder));
    }
    let mut splits = Splits::new();
    for (split, patterns) in &config.splits {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            // The folder is a name and not a pattern.
            let pattern = format!("{}{pattern}", globset::escape(&config.folder));
            let glob = GlobBuilder::new(&pattern).literal_separator(true).backslash_escape(false).build();
            let bad =
                |_| Error::BadCard { repo: repo.into(), why: format!("{pattern:?} is no pattern of files") };
            set.add(glob.map_err(bad)?);
        }
        let too_large = |_| Error::BadCard { repo: repo.into(), why: "its patterns are too large".into() };
        let set = set.build().map_err(too_large)?;
        let matching = inside.iter().copied().filter(|name| set.is_match(name));
        splits.entry(split.clone()).or_default().extend(matching);
    }
    splits.values_mut().for_each(keep_one_kind);
    splits.retain(|_, files| !files.is_empty());
    Ok(splits)
}

/// Returns the configs and splits of the hub's conversion. `partial-train` is the beginning of `train`.
fn converted(names: &BTreeSet<String>) -> Vec<(String, Splits<'_>)> {
    let mut configs: BTreeMap<&str, Splits<'_>> = BTreeMap::new();
    for name in names {
        let mut parts = name.split('/');
        if let (Some(config), Some(split), Some(file), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
            && is_parquet(file)
        {
            configs.entry(config).or_default().entry(split.to_owned()).or_default().push(name);
        }
    }
    configs.into_iter().map(|(config, splits)| (config.to_owned(), splits)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(name: &str, files: &[&str], yaml: &str) -> Result<Vec<String>, Error> {
        let names = files.iter().map(|file| (*file).to_owned()).collect();
        let readme = format!("---\n{yaml}\n---\n");
        select(&DataSetName::parse(name).unwrap(), &names, (!yaml.is_empty()).then_some(readme.as_str()))
    }

    fn error(name: &str, files: &[&str], yaml: &str) -> String {
        of(name, files, yaml).unwrap_err().to_string()
    }

    const CARD_OF_TWO: &str = "configs:\n- config_name: en\n  data_files:\n  - {split: train, path: en/train-*}\n  - {split: test, path: en/test.jsonl}\n- config_name: de\n  data_files: de/**";

    #[test]
    fn the_card_decides_where_it_says_something() {
        let files = [
            "README.md",
            "de/a/x.jsonl",
            "de/y.jsonl",
            "en/test.jsonl",
            "en/train-1.jsonl",
            "en/train-2.jsonl",
        ];
        let select = |name| of(name, &files, CARD_OF_TWO).unwrap();
        assert_eq!(select("hf:o/n/en"), ["en/train-1.jsonl", "en/train-2.jsonl"]);
        assert_eq!(select("hf:o/n/en:test"), ["en/test.jsonl"]);
        assert_eq!(select("hf:o/n/de"), ["de/a/x.jsonl", "de/y.jsonl"]);
        let text = error("hf:o/n", &files, CARD_OF_TWO);
        assert!(text.contains(r#""en", "de""#) && text.contains("`hf:o/n/en`"), "{text}");
        let text = error("hf:o/n/fr", &files, CARD_OF_TWO);
        assert!(text.contains("no config \"fr\"") && text.contains(r#""en", "de""#), "{text}");
        let text = error("hf:o/n/en:dev", &files, CARD_OF_TWO);
        assert!(text.contains("no split \"dev\"") && text.contains(r#""test", "train""#), "{text}");
        let marked = CARD_OF_TWO.replace("config_name: de", "config_name: de\n  default: true");
        assert_eq!(of("hf:o/n", &files, &marked).unwrap().len(), 2);
        let called = CARD_OF_TWO.replace("config_name: de", "config_name: default");
        assert_eq!(of("hf:o/n", &files, &called).unwrap(), ["de/a/x.jsonl", "de/y.jsonl"]);
    }

    #[test]
    fn a_star_stays_in_its_folder_and_a_split_without_files_does_not_exist() {
        let files = ["a.jsonl", "b/c.jsonl"];
        let card = "configs:\n- data_files:\n  - {split: train, path: '*'}\n  - {split: test, path: no/*}";
        assert_eq!(of("hf:o/n", &files, card).unwrap(), ["a.jsonl"]);
        let text = error("hf:o/n:test", &files, card);
        assert!(text.contains("Its splits are: \"train\""), "{text}");
    }

    #[test]
    fn the_folder_of_a_config_limits_its_files() {
        let files = ["a[1]/train.jsonl", "a[1]/test.jsonl", "a1/train.jsonl", "b/train.jsonl"];
        let card = "configs:\n- {config_name: x, data_dir: 'a[1]'}\n- {config_name: y, data_dir: 'a[1]', data_files: 't*'}";
        assert_eq!(of("hf:o/n/x", &files, card).unwrap(), ["a[1]/train.jsonl"]);
        assert_eq!(of("hf:o/n/y", &files, card).unwrap(), ["a[1]/test.jsonl", "a[1]/train.jsonl"]);
    }

    #[test]
    fn without_a_card_names_of_files_decide_then_those_of_folders() {
        let shards = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"];
        let odd = ["data/my_split-00000-of-00001-0123456789abcdef.parquet", "train.jsonl"];
        let all: Vec<&str> = shards.iter().chain(&odd).copied().collect();
        assert_eq!(of("hf:o/n", &all, "").unwrap(), shards);
        assert_eq!(of("hf:o/n:my_split", &all, "").unwrap(), odd[..1]);

        let files =
            ["LICENSE.txt", "notes.md", "en-train.jsonl.gz", "dev.jsonl", "test_2.jsonl", "more.jsonl"];
        assert_eq!(of("hf:o/n", &files, "").unwrap(), ["en-train.jsonl.gz"]);
        assert_eq!(of("hf:o/n:validation", &files, "").unwrap(), ["dev.jsonl"]);
        assert_eq!(of("hf:o/n:test", &files, "").unwrap(), ["test_2.jsonl"]);

        let folders = ["x/train/1.csv", "x/train/2.csv", "x/test/1.csv", "trainer/3.csv"];
        assert_eq!(of("hf:o/n", &folders, "").unwrap(), ["x/train/1.csv", "x/train/2.csv"]);
        assert_eq!(
            of("hf:o/n", &["b.jsonl", "a.jsonl", ".git/x.jsonl"], "").unwrap(),
            ["a.jsonl", "b.jsonl"]
        );
        assert_eq!(of("hf:o/n/default:train", &["b.jsonl"], "").unwrap(), ["b.jsonl"]);
        let text = error("hf:o/n", &["test.jsonl"], "");
        assert!(text.contains("no split \"train\"") && text.contains("\"test\""), "{text}");
    }

    /// Layouts of data sets that people use, with their cards shortened.
    #[test]
    fn the_layouts_of_published_data_sets_are_found() {
        let questions = "configs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: test\n    path: main/test-*\n- config_name: socratic\n  data_files:\n  - split: train\n    path: socratic/train-*";
        let files = [
            "main/test-00000-of-00001.parquet",
            "main/train-00000-of-00001.parquet",
            "socratic/train-00000-of-00001.parquet",
        ];
        assert_eq!(of("hf:o/n/main", &files, questions).unwrap(), files[1..2]);
        assert!(error("hf:o/n", &files, questions).contains(r#""main", "socratic""#));

        // Shards without a folder, a mapping of splits with lists, globs over folders, and one array of JSON.
        let shards: Vec<String> = (0..3).map(|i| format!("train-0000{i}-of-00003.parquet")).collect();
        let mut files: Vec<&str> = shards.iter().map(String::as_str).collect();
        files.push("test-00000-of-00001.parquet");
        assert_eq!(of("hf:o/n", &files, "license: mit").unwrap(), shards);
        let mapping = "configs:\n- config_name: default\n  data_files:\n    train: [train-*, more/**/*.parquet]\n    test: test-*";
        files.push("more/a/b/x.parquet");
        assert_eq!(of("hf:o/n", &files, mapping).unwrap().len(), 4);
        assert_eq!(of("hf:o/n:test", &files, mapping).unwrap(), files[3..4]);
        let list =
            "configs:\n- config_name: default\n  data_files:\n  - 'train-0000[01]*'\n  - more/a/b/x.parquet";
        assert_eq!(of("hf:o/n", &files, list).unwrap().len(), 3);
        let array = ["README.md", ".gitattributes", "alpaca_data_cleaned.json"];
        assert_eq!(of("hf:o/n", &array, "license: cc-by-4.0\ntags:\n- instruct").unwrap(), array[2..]);
        let csv = ["README.md", "prompts.csv"];
        assert_eq!(of("hf:o/n", &csv, "").unwrap(), csv[1..]);
        // The fields of each config are in the card too, and the newest config is the default.
        let many = "dataset_info:\n- config_name: v1\n  features:\n  - {name: text, dtype: string}\n  splits:\n  - {name: train, num_bytes: 5, num_examples: 1}\nconfigs:\n- config_name: v1\n  data_files: v1/*.jsonl\n- config_name: v2\n  default: true\n  data_files:\n  - {split: train_sft, path: v2/sft*}\n  - {split: train_gen, path: v2/gen*}";
        let files = ["v1/a.jsonl", "v2/gen.jsonl", "v2/sft.jsonl"];
        assert_eq!(of("hf:o/n:train_sft", &files, many).unwrap(), ["v2/sft.jsonl"]);
        assert!(error("hf:o/n", &files, many).contains(r#""train_gen", "train_sft""#));
    }

    #[test]
    fn one_kind_of_file_is_read_and_text_only_where_there_is_nothing_else() {
        let files = ["a.csv", "a.jsonl", "b.jsonl", "x.txt", "y.txt", "z.txt", "image.png"];
        assert_eq!(of("hf:o/n", &files, "").unwrap(), ["a.jsonl", "b.jsonl"]);
        assert_eq!(of("hf:o/n", &["a.jsonl", "a.parquet", "dataset_infos.json"], "").unwrap(), ["a.parquet"]);
        assert_eq!(of("hf:o/n", &["README.md", "x.txt.zst", "chapter.md"], "").unwrap().len(), 2);
    }

    #[test]
    fn the_hubs_conversion_has_its_configs_in_folders() {
        let files = ["en/train/0000.parquet", "en/train/0001.parquet", "de/partial-train/0000.parquet"];
        let select = |name: &str| of(&format!("hf:o/n@refs/convert/parquet{name}"), &files, "");
        assert_eq!(select("/en").unwrap(), files[..2]);
        assert_eq!(select("/de:partial-train").unwrap(), files[2..]);
        assert!(matches!(select(""), Err(Error::ConfigNeeded { .. })));
    }

    #[test]
    fn a_program_is_not_run_and_its_conversion_is_named() {
        let text = error("hf:o/n/en", &["n.py", "README.md", "dataset_infos.json"], "");
        assert!(text.contains("\"n.py\"") && text.contains("`hf:o/n@refs/convert/parquet/en`"), "{text}");
        let text = error("hf:o/n", &["model.safetensors", "README.md"], "");
        assert!(text.contains("no data file of a known kind"), "{text}");
    }

    #[test]
    fn hostile_names_and_numbers_are_refused() {
        for evil in ["../train.jsonl", "/etc/train.jsonl", "a/../../train.jsonl", "train\u{1b}[2J.jsonl"] {
            let error = of("hf:o/n", &[evil], "").unwrap_err();
            assert!(matches!(error, Error::UnsafeName { .. }), "{evil}: {error}");
            assert!(!error.to_string().contains('\u{1b}'));
        }
        let many: Vec<String> = (0..=MOST_FILES).map(|i| format!("train-{i}.jsonl")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(matches!(of("hf:o/n", &many, ""), Err(Error::TooManyFiles { .. })));
        let text = error("hf:o/n", &["a.jsonl"], "configs:\n- data_files: 'a[.jsonl'");
        assert!(text.contains("README.md") && text.contains("no pattern"), "{text}");
        let text = error("hf:o/n", &["a.jsonl"], "configs:\n- {config_name: \"\\e[2J\"}\n- {config_name: b}");
        assert!(!text.contains('\u{1b}') && text.contains("`hf:o/n/CONFIG`"), "{text}");
    }

    proptest! {
        #[test]
        fn whatever_is_selected_stays_in_the_folder(
            files in prop::collection::btree_set("[a-z./~ -]{0,10}(train|test)?[.]jsonl|\\PC{0,6}[.]csv", 0..6),
            pattern in "[a-z*?./\\[\\]{}!-]{0,8}", split in "train|test",
        ) {
            for readme in [None, Some(format!("---\nconfigs:\n- data_files: {pattern:?}\n---\n"))] {
                let name = DataSetName::parse(&format!("hf:o/n:{split}")).unwrap();
                if let Ok(chosen) = select(&name, &files, readme.as_deref()) {
                    prop_assert!(!chosen.is_empty());
                    for file in chosen {
                        prop_assert!(files.contains(&file) && is_data_path(&file));
                    }
                }
            }
        }
    }
}
