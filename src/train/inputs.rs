//! Whether a run still has the inputs that it started with: adapters, moments and every step so far belong to
//! these base weights, this plan and these tokens, and to no others.
//!
//! Enters: the open base and the run. Leaves: a record of their files for `state.json`, or a refusal that
//! names the file. Every byte of the weights is read once, by the first attempt. Later ones read every
//! tensor's name, type and shape, and pieces of its numbers from the beginning to the end; and all bytes
//! again only of files that were changed since, by their time. Token files are identified by the hash that
//! they contain, which the attempt verifies.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use serde::{Deserialize, Serialize};
use sparktune_base::regular_file::open_regular;
use sparktune_data::token_file::TokenFile;
use sparktune_model::Checkpoint;
use sparktune_plan::plan::EarlierLength;
use sparktune_runlog::RunDir;

use crate::error::TrainError;
use crate::examples::{eval_tokens, train_tokens};

/// Bytes of a piece.
const PIECE: usize = 4096;
/// Pieces of a tensor; a tensor that is no longer than all of them is read whole.
const PIECES: usize = 4;

/// Weight files that are hashed at the same time.
const AT_ONCE: usize = 8;

/// The plan in the folder of a run.
const PLAN: &str = "plan.toml";

/// The files that decide what the weights compute; a model may lack the second.
const SMALL_FILES: [&str; 2] = ["config.json", "tokenizer.json"];

/// The file of a base that has its special tokens, and may have its chat template.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The other files that may have its chat template.
const TEMPLATES: [&str; 2] = ["chat_template.jinja", "chat_template.json"];

/// Those of the other small files of a model that servers and converters read, and of which the first says
/// what ends an answer. A licence or a README may change.
const COPIED: [&str; 8] = [
    "generation_config.json",
    "added_tokens.json",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "video_preprocessor_config.json",
    "vocab.json",
];

/// A file that a run reads, with what distinguishes it from another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputFile {
    /// Its name in the folder of the base or of the run.
    file: String,
    bytes: u64,
    /// BLAKE3 of the names, types, shapes and pieces of all its tensors, or of all its bytes, or the hash
    /// that a token file contains.
    blake3: String,
    /// All bytes of a weight file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    whole: Option<Whole>,
}

/// All bytes of a file when it was last read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Whole {
    blake3: String,
    /// When the file was last changed, in seconds and nanoseconds since the Unix epoch: its ctime, which
    /// nobody can put back as `touch`, `rsync` and archives do with its mtime. Older programs recorded that,
    /// so the file is hashed once more.
    changed: (i64, i64),
}

impl InputFile {
    /// Hashes all bytes of a weight file, unless it has the size and the time of `was`, the file that the run
    /// began with. Older programs recorded no such hash, and then there is nothing to compare with.
    fn hash_whole(&mut self, path: &Path, was: Option<&InputFile>) -> Result<(), TrainError> {
        let meta = fs::metadata(path).map_err(TrainError::io(path))?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        self.whole = match was.map(|was| (was.bytes, &was.whole)) {
            Some((_, None)) => None,
            Some((bytes, Some(known))) if bytes == self.bytes && known.changed == changed => {
                Some(known.clone())
            }
            _ => {
                // It is read, not mapped: a map would count as memory that training takes. What is read now
                // is in the page cache when the weights are loaded.
                let mut hasher = blake3::Hasher::new();
                let read = open_regular(path).and_then(|file| hasher.update_reader(file).map(drop));
                read.map_err(TrainError::io(path))?;
                Some(Whole { blake3: hasher.finalize().to_hex().to_string(), changed })
            }
        };
        Ok(())
    }
}

/// The files of the base and of the run that everything in a checkpoint was trained from. Checkpoints of
/// older programs lack some of the lists, and what is not in a list is not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    /// The weight files of the base, its configuration and its tokenizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_files: Option<Vec<InputFile>>,
    /// The plan and the token files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_files: Option<Vec<InputFile>>,
    /// The files of the base that its prompts are rendered with. Those of its chat template are left out if
    /// the run has its own. They are no part of `base_files`, because an adapter can be trained further with
    /// another template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template_files: Option<Vec<InputFile>>,
    /// The run's own chat template, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own_template: Option<Vec<InputFile>>,
    /// The other small files of the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copied_files: Option<Vec<InputFile>>,
}

impl Inputs {
    /// Returns whether nothing was trained from any base yet, as far as is known.
    pub(crate) fn are_unknown(&self) -> bool {
        self.base_files.is_none()
    }

    /// Returns the record for another run with the same base, which has its own plan, tokens and template.
    pub(crate) fn of_base(self) -> Self {
        Self { base_files: self.base_files, ..Self::default() }
    }

    /// Describes the first file of the base that is not the same in both records.
    pub(crate) fn base_difference(&self, other: &Self) -> Option<String> {
        self.base_files
            .as_ref()
            .zip(other.base_files.as_ref())
            .and_then(|(one, other)| difference(one, other))
    }

    /// Returns the length of the run by the plan that was trained by, if that is not the plan that the run
    /// has now but one that it had `before`.
    pub(crate) fn earlier_length<'a>(&self, before: &'a [EarlierLength]) -> Option<&'a EarlierLength> {
        match self.run_files.as_ref().and_then(|files| files.iter().find(|file| file.file == PLAN)) {
            Some(plan) => before.iter().find(|earlier| earlier.plan == plan.blake3),
            // Older programs recorded no plan.
            None => before.last().filter(|_| self.base_files.is_some()),
        }
    }

    /// Forgets the files that are copied into outputs: a rank other than 0 writes none, and its folder need
    /// not have them.
    pub(crate) fn leave_out_copied_files(&mut self) {
        self.copied_files = None;
    }

    /// Compares the inputs with those that the run has now, and returns the record of the latter. With
    /// `accept`, differences are passed to `warn`. A plan that differs from an earlier one only in the length
    /// of the run, as `before` says, is no difference.
    ///
    /// # Errors
    /// [`TrainError::OtherInputs`] with the first file that differs; when a file cannot be read.
    pub(crate) fn check(
        &self,
        run: &RunDir,
        base: &Checkpoint,
        before: &[EarlierLength],
        accept: bool,
        mut warn: impl FnMut(String),
    ) -> Result<Self, TrainError> {
        let own = run.chat_template();
        let templates = if own.exists() { &[][..] } else { &TEMPLATES[..] };
        let mut base_files = of_base(base)?;
        hash_whole(base, self.base_files.as_deref(), &mut base_files)?;
        let now = Self {
            base_files: Some(base_files),
            run_files: Some(of_run(run)?),
            template_files: Some(whole(base.dir(), [TOKENIZER_CONFIG].iter().chain(templates))?),
            own_template: Some(whole(run.path(), own.file_name().and_then(OsStr::to_str).iter())?),
            copied_files: Some(whole(base.dir(), COPIED.iter())?),
        };
        let mut run_files = self.run_files.clone();
        if self.earlier_length(before).is_some() {
            let plan = now.run_files.iter().flatten().find(|file| file.file == PLAN);
            let was = run_files.iter_mut().flatten().find(|file| file.file == PLAN);
            if let Some((was, plan)) = was.zip(plan) {
                *was = plan.clone();
            }
        }
        let lists = [
            (base.dir(), &self.base_files, &now.base_files),
            (run.path(), &run_files, &now.run_files),
            (run.path(), &self.own_template, &now.own_template),
            (base.dir(), &self.template_files, &now.template_files),
            (base.dir(), &self.copied_files, &now.copied_files),
        ];
        for (folder, began_with, found) in lists {
            let (Some(began_with), Some(found)) = (began_with, found) else { continue };
            match difference(began_with, found) {
                None => {}
                Some(reason) if accept => warn(format!(
                    "the run goes on with other files in {} than it started with: {reason}",
                    folder.display()
                )),
                Some(reason) => return Err(TrainError::OtherInputs { path: folder.to_owned(), reason }),
            }
        }
        Ok(now)
    }
}

/// Describes the plan and the token files of a run.
fn of_run(run: &RunDir) -> Result<Vec<InputFile>, TrainError> {
    let path = run.plan();
    let plan = fs::read(&path).map_err(TrainError::io(&path))?;
    let name = |path: &PathBuf| path.strip_prefix(run.path()).unwrap_or(path).to_string_lossy().into_owned();
    let mut files = vec![InputFile {
        file: name(&path),
        bytes: plan.len() as u64,
        blake3: blake3::hash(&plan).to_hex().to_string(),
        whole: None,
    }];
    for path in [train_tokens(run), eval_tokens(run)] {
        let bytes = match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            found => found.map_err(TrainError::io(&path))?.len(),
        };
        let blake3 = TokenFile::open(&path)?.file_hash();
        files.push(InputFile { file: name(&path), bytes, blake3, whole: None });
    }
    Ok(files)
}

/// Hashes all bytes of the weight files of a base, which come first in `files`.
fn hash_whole(
    base: &Checkpoint,
    began_with: Option<&[InputFile]>,
    files: &mut [InputFile],
) -> Result<(), TrainError> {
    let paths: Vec<&Path> = base.shards().collect();
    let was: Vec<Option<&InputFile>> = (0..paths.len()).map(|at| same_file(files, at, began_with?)).collect();
    let chunks = paths.chunks(AT_ONCE).zip(was.chunks(AT_ONCE)).zip(files.chunks_mut(AT_ONCE));
    for ((paths, was), files) in chunks {
        thread::scope(|scope| {
            let files = paths.iter().zip(was).zip(files);
            let started: Vec<_> =
                files.map(|((path, was), file)| scope.spawn(move || file.hash_whole(path, *was))).collect();
            started.into_iter().try_for_each(|thread| thread.join().expect("hashing does not panic"))
        })?;
    }
    Ok(())
}

/// Describes the files of a base, without all bytes of its weights.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn of_base(base: &Checkpoint) -> Result<Vec<InputFile>, TrainError> {
    let paths: Vec<&Path> = base.shards().collect();
    let mut hashers = vec![blake3::Hasher::new(); paths.len()];
    for (name, info) in base.tensors() {
        let (hasher, bytes) = (&mut hashers[info.shard], base.bytes(info));
        hasher.update(format!("{name} {:?} {:?} {}\n", info.dtype, info.shape, bytes.len()).as_bytes());
        for piece in pieces(bytes) {
            hasher.update(piece);
        }
    }
    let files = paths.into_iter().zip(hashers).map(|(path, hasher)| {
        let bytes = fs::metadata(path).map_err(TrainError::io(path))?.len();
        let file = path.file_name().expect("a shard is a file").to_string_lossy().into_owned();
        let blake3 = hasher.finalize().to_hex().to_string();
        Ok::<_, TrainError>(InputFile { file, bytes, blake3, whole: None })
    });
    let mut files = files.collect::<Result<Vec<_>, _>>()?;
    files.extend(whole(base.dir(), SMALL_FILES.iter())?);
    Ok(files)
}

/// Describes the files of a base like [`of_base`], without those of an MTP head that is another model's.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn of_text_model(base: &Checkpoint) -> Result<Vec<InputFile>, TrainError> {
    let mut is_foreign = base.shards().map(|path| path.parent() != Some(base.dir()));
    let mut files = of_base(base)?;
    // `of_base` lists the weight files first, in the order of the shards.
    files.retain(|_| !is_foreign.next().unwrap_or(false));
    Ok(files)
}

/// Describes those of the named files of a folder that exist, by all of their bytes.
fn whole<'a>(folder: &Path, names: impl Iterator<Item = &'a &'a str>) -> Result<Vec<InputFile>, TrainError> {
    let describe = |name: &&str| {
        let path = folder.join(name);
        let mut hasher = blake3::Hasher::new();
        match open_regular(&path).and_then(|file| hasher.update_reader(file).map(drop)) {
            Ok(()) => Some(Ok(InputFile {
                file: (*name).to_owned(),
                bytes: hasher.count(),
                blake3: hasher.finalize().to_hex().to_string(),
                whole: None,
            })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => Some(Err(TrainError::io(&path)(error))),
        }
    };
    names.filter_map(describe).collect()
}

/// Returns the entry of another record for the file `of[at]`. A base and the model that its MTP head comes
/// from may have weight files of the same name. Both records list those of the base first, so the first file
/// of a name in one record is the first of that name in the other one.
fn same_file<'a>(of: &[InputFile], at: usize, among: &'a [InputFile]) -> Option<&'a InputFile> {
    let has_its_name = |file: &&InputFile| file.file == of[at].file;
    among.iter().filter(has_its_name).nth(of[..at].iter().filter(has_its_name).count())
}

/// Describes the first file that is not the same in both records.
pub(crate) fn difference(began_with: &[InputFile], found: &[InputFile]) -> Option<String> {
    let changed = began_with.iter().enumerate().find_map(|(at, was)| {
        let InputFile { file, bytes, blake3, whole } = was;
        let all = |file: &Option<Whole>| file.as_ref().map(|whole| whole.blake3.clone());
        match same_file(began_with, at, found) {
            None => Some(format!("{file} is missing")),
            Some(is) if is.bytes != *bytes => {
                Some(format!("{file} has {} bytes instead of {bytes}", is.bytes))
            }
            Some(is) if is.blake3 != *blake3 => Some(format!("{file} has changed")),
            Some(is) if all(whole).zip(all(&is.whole)).is_some_and(|(was, is)| was != is) => {
                Some(format!("{file} has changed"))
            }
            Some(_) => None,
        }
    });
    let is_new = |at: &usize| same_file(found, *at, began_with).is_none();
    changed.or_else(|| (0..found.len()).find(is_new).map(|at| format!("{} is new", found[at].file)))
}

/// All of few bytes; of many, pieces at even distances, the first and the last among them.
fn pieces(bytes: &[u8]) -> Vec<&[u8]> {
    if bytes.len() <= PIECE * PIECES {
        return vec![bytes];
    }
    let last = bytes.len() - PIECE;
    let starts = (0..PIECES).map(|i| last * i / (PIECES - 1));
    starts.map(|start| &bytes[start..start + PIECE]).collect()
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    fn file(name: &str, bytes: u64, blake3: &str) -> InputFile {
        InputFile { file: name.into(), bytes, blake3: blake3.into(), whole: None }
    }

    #[test]
    fn pieces_reach_from_the_first_byte_to_the_last() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
        for length in [0, 1, PIECE * PIECES] {
            assert_eq!(pieces(&bytes[..length]), [&bytes[..length]], "few bytes are read whole");
        }
        for length in [PIECE * PIECES + 1, 99_999, 100_000] {
            let pieces = pieces(&bytes[..length]);
            assert!(pieces.iter().all(|piece| piece.len() == PIECE));
            assert_eq!(pieces[0].as_ptr(), bytes.as_ptr());
            assert_eq!(pieces.last().unwrap().as_ptr_range().end, bytes[..length].as_ptr_range().end);
        }
    }

    #[test]
    fn a_byte_between_the_pieces_is_found_in_a_file_that_was_changed_and_a_copy_is_the_same() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let root = tempfile::tempdir().unwrap();
        let shard = root.path().join("model.safetensors");
        for file in ["config.json", "model.safetensors"] {
            fs::write(root.path().join(file), fs::read(fixture.join(file)).unwrap()).unwrap();
        }
        let seen = |began_with: Option<&[InputFile]>| {
            let base = Checkpoint::open(root.path()).unwrap();
            let mut files = of_base(&base).unwrap();
            hash_whole(&base, began_with, &mut files).unwrap();
            files
        };
        let began_with = seen(None);
        assert_eq!(seen(Some(&began_with)), began_with);
        // In the middle of the largest tensor, and in none of its pieces.
        let (start, length) = {
            let base = Checkpoint::open(root.path()).unwrap();
            let bytes =
                base.tensors().values().map(|info| base.bytes(info)).max_by_key(|bytes| bytes.len()).unwrap();
            let file = fs::read(&shard).unwrap();
            (file.windows(bytes.len()).position(|window| window == bytes).unwrap(), bytes.len())
        };
        assert!(length > 4 * PIECES * PIECE, "{length}");
        let mut bytes = fs::read(&shard).unwrap();
        let modified = fs::metadata(&shard).unwrap().modified().unwrap();
        fs::write(&shard, &bytes).unwrap();
        assert_eq!(difference(&began_with, &seen(Some(&began_with))), None, "another time, the same bytes");
        bytes[start + length / 2] ^= 1;
        fs::write(&shard, &bytes).unwrap();
        fs::File::options().write(true).open(&shard).unwrap().set_modified(modified).unwrap();
        let found = seen(Some(&began_with));
        assert_eq!(found[0].blake3, began_with[0].blake3, "the pieces are equal");
        assert_eq!(difference(&began_with, &found).unwrap(), "model.safetensors has changed");
        let older: Vec<_> = began_with.iter().map(|file| InputFile { whole: None, ..file.clone() }).collect();
        assert_eq!(difference(&older, &seen(Some(&older))), None);
    }

    #[test]
    fn another_chat_template_than_the_trained_one_is_refused_and_older_records_do_not_know_it() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("base");
        fs::create_dir(&folder).unwrap();
        for file in fs::read_dir(fixture).unwrap() {
            let path = file.unwrap().path();
            fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
        let base = Checkpoint::open(&folder).unwrap();
        let run = sparktune_runlog::RunsRoot::new(root.path()).create("m", "lora").unwrap();
        fs::write(run.plan(), "").unwrap();
        let check = |inputs: &Inputs| inputs.check(&run, &base, &[], false, |_| ());
        let began_with = check(&Inputs::default()).unwrap();
        check(&began_with).unwrap();
        let refused = |what: &str| {
            let error = check(&began_with).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };

        let config = fs::read(folder.join(TOKENIZER_CONFIG)).unwrap();
        fs::write(folder.join(TOKENIZER_CONFIG), "{}").unwrap();
        refused("tokenizer_config.json has 2 bytes");
        let older =
            Inputs { template_files: None, own_template: None, copied_files: None, ..began_with.clone() };
        check(&older).unwrap();
        fs::write(folder.join(TOKENIZER_CONFIG), config).unwrap();
        fs::write(folder.join("chat_template.json"), "{}").unwrap();
        refused("chat_template.json is new");
        fs::remove_file(folder.join("chat_template.json")).unwrap();
        let generation = fs::read(folder.join("generation_config.json")).unwrap();
        fs::write(folder.join("generation_config.json"), "{}").unwrap();
        refused("generation_config.json has 2 bytes");
        check(&older).unwrap();
        fs::write(folder.join("generation_config.json"), generation).unwrap();
        fs::write(folder.join("vocab.json"), "{}").unwrap();
        refused("vocab.json is new");
        fs::remove_file(folder.join("vocab.json")).unwrap();

        fs::write(run.chat_template(), "{{ messages }}").unwrap();
        refused("chat_template.jinja is new");
        let with_own = check(&older).unwrap();
        fs::write(folder.join("chat_template.json"), "{}").unwrap();
        check(&with_own).unwrap();
        fs::write(run.chat_template(), "{{ messages[0] }}").unwrap();
        let error = check(&with_own).unwrap_err().to_string();
        assert!(error.contains("chat_template.jinja has 17 bytes instead of 14"), "{error}");
    }

    #[test]
    fn the_file_that_differs_is_named() {
        let was = [file("a", 10, "x"), file("b", 20, "y")];
        assert_eq!(difference(&was, &was), None);
        let said = |found: &[InputFile]| difference(&was, found).unwrap();
        assert_eq!(said(&was[..1]), "b is missing");
        assert_eq!(said(&[file("a", 10, "x"), file("b", 21, "y")]), "b has 21 bytes instead of 20");
        assert_eq!(said(&[file("a", 10, "z"), file("b", 20, "y")]), "a has changed");
        assert_eq!(said(&[was[0].clone(), was[1].clone(), file("c", 1, "z")]), "c is new");
    }

    #[test]
    fn files_of_the_same_name_are_compared_in_their_order() {
        let [base, head, config] = [file("a", 10, "base"), file("a", 20, "head"), file("b", 1, "x")];
        let was = [base.clone(), head.clone(), config.clone()];
        assert_eq!(difference(&was, &was), None);
        let said = |found: &[InputFile]| difference(&was, found).unwrap();
        assert_eq!(said(&[base.clone(), file("a", 20, "other"), config.clone()]), "a has changed");
        assert_eq!(said(&[head, base.clone(), config.clone()]), "a has 20 bytes instead of 10");
        assert_eq!(said(&[base.clone(), config.clone()]), "a is missing");
        assert_eq!(difference(&[base, config], &was).unwrap(), "a is new");
    }

    #[test]
    fn the_weight_file_of_a_foreign_head_has_a_hash_of_its_own_and_is_no_part_of_the_text_model() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let bytes = fs::read(fixture.join("model.safetensors")).unwrap();
        let root = tempfile::tempdir().unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let text_model = stored.iter().filter(|(name, _)| !name.starts_with("mtp."));
        let shard = root.path().join("model.safetensors");
        safetensors::serialize_to_file(text_model, None, &shard).unwrap();
        fs::copy(fixture.join("config.json"), root.path().join("config.json")).unwrap();

        let base = Checkpoint::open(root.path()).unwrap();
        let alone = of_base(&base).unwrap();
        let base = base.with_head_of(&fixture).unwrap();
        assert_eq!(of_text_model(&base).unwrap(), alone);
        let seen = |began_with: Option<&[InputFile]>| {
            let mut files = of_base(&base).unwrap();
            hash_whole(&base, began_with, &mut files).unwrap();
            files
        };
        let began_with = seen(None);
        let hash = |at: usize| began_with[at].whole.as_ref().unwrap().blake3.clone();
        assert_eq!(hash(1), blake3::hash(&bytes).to_hex().to_string());
        assert!(began_with[0].file == began_with[1].file && hash(0) != hash(1));
        assert_eq!(seen(Some(&began_with)), began_with);
    }
}
