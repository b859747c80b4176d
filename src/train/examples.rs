//! The examples of a token file, packed for training, in groups if the objective needs several at once.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sparktune_data::packing::{Mixture, Pack, Packing, Packs, Piece};
use sparktune_data::token_file::TokenFile;
use sparktune_model::PackedSequence;
use sparktune_runlog::RunDir;

use crate::error::TrainError;

/// Returns the token file that a run trains on.
pub(crate) fn train_tokens(run: &RunDir) -> PathBuf {
    run.data().join("train.qubgpu")
}

/// Returns the token file of a run's eval set, which may not exist.
pub(crate) fn eval_tokens(run: &RunDir) -> PathBuf {
    run.data().join("eval.qubgpu")
}

/// Opens a token file and checks that every token is in the model's vocabulary.
pub(crate) fn open_tokens(path: &Path, vocabulary: usize) -> Result<TokenFile, TrainError> {
    let file = TokenFile::open(path)?;
    if file.max_token_id() as usize >= vocabulary {
        let token = file.max_token_id();
        return Err(TrainError::ForeignTokens { path: path.to_owned(), token, vocabulary });
    }
    Ok(file)
}

/// A token file whose examples are packed in groups of `group_size`.
pub(crate) struct Examples {
    file: TokenFile,
    group_size: usize,
    /// The row that was built last. The next is built in its memory.
    row: Mutex<Pack>,
}

impl Examples {
    /// Opens a token file whose examples are packed in groups of `group_size`.
    ///
    /// # Errors
    /// When the file cannot be read, was made for another vocabulary, or ends in the middle of a group.
    pub(crate) fn open(path: &Path, vocabulary: usize, group_size: usize) -> Result<Self, TrainError> {
        let file = open_tokens(path, vocabulary)?;
        if file.len() % group_size != 0 {
            let defect =
                format!("its {} examples are not a whole number of groups of {group_size}", file.len());
            return Err(TrainError::DamagedTokens { path: path.to_owned(), defect });
        }
        Ok(Self { file, group_size, row: Mutex::default() })
    }

    pub(crate) fn file(&self) -> &TokenFile {
        &self.file
    }

    pub(crate) fn group_size(&self) -> usize {
        self.group_size
    }

    /// Packs the groups of one epoch. The `example` of a piece in the result is the index of a group.
    pub(crate) fn pack(&self, packing: &Packing, epoch: u64) -> Packs {
        packing.epoch(&self.group_lengths(), epoch)
    }

    /// Like [`pack`](Self::pack), with each group as often as the mixture says.
    pub(crate) fn pack_mixed(&self, packing: &Packing, mixture: &Mixture, epoch: u64) -> Packs {
        packing.mixed_epoch(&self.group_lengths(), mixture, epoch)
    }

    /// Returns how often an epoch trains each group, given the weights of the data sets. A group belongs to
    /// the set of its first example. Returns `None` if every group is trained once.
    ///
    /// # Errors
    /// When the file does not say which set an example belongs to, or a weight makes no sense.
    pub(crate) fn mixture(&self, weights: &[f64]) -> Result<Option<Mixture>, TrainError> {
        let groups = self.file.len() / self.group_size;
        let set_of = |group: usize| match weights.len() {
            1 => Some(0),
            sets => {
                let set = self.file.header().set_of(self.file.origin(group * self.group_size));
                set.map(|set| set as usize).filter(|set| *set < sets)
            }
        };
        if weights.iter().all(|weight| *weight == 1.0) {
            return Ok(None);
        }
        let sets: Option<Vec<usize>> = (0..groups).map(set_of).collect();
        let sets = sets.ok_or_else(|| TrainError::DamagedTokens {
            path: self.file.path().to_owned(),
            defect: "it does not say to which data set each example belongs".to_owned(),
        })?;
        Ok(Mixture::new(sets, weights)?)
    }

    /// Returns the number of tokens in each group.
    fn group_lengths(&self) -> Cow<'_, [u32]> {
        if self.group_size == 1 {
            return Cow::Borrowed(self.file.lengths());
        }
        Cow::Owned(self.file.lengths().chunks(self.group_size).map(|group| group.iter().sum()).collect())
    }

    /// Reads pieces of packed groups into one sequence, in which every example is separate.
    ///
    /// # Errors
    /// When an example is damaged.
    pub(crate) fn sequence(&self, pieces: &[Piece]) -> Result<PackedSequence, TrainError> {
        let mut pack = self.row.lock().unwrap_or_else(PoisonError::into_inner);
        if self.group_size == 1 {
            pack.refill(&self.file, pieces)?;
        } else {
            let members: Vec<Piece> = pieces.iter().flat_map(|group| self.members(group)).collect();
            pack.refill(&self.file, &members)?;
        }
        Ok(PackedSequence::new(&pack.input_ids, &pack.cu_seqlens, &pack.loss_mask))
    }

    /// Returns the whole examples of a group.
    fn members(&self, group: &Piece) -> impl Iterator<Item = Piece> {
        let first = group.example as usize * self.group_size;
        (first..first + self.group_size).map(|example| Piece {
            example: example as u32,
            start: 0,
            len: self.file.lengths()[example],
        })
    }
}
