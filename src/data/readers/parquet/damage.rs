//! Why a Parquet file cannot be read.

use sparktune_base::units::{bytes, counted};

/// What is wrong with a file, as the end of the sentence "the file …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    #[error("is not Parquet: it does not begin and end with PAR1")]
    NotParquet,
    #[error("is a pointer of Git LFS in the place of the data")]
    NotFetched,
    #[error("is encrypted, which is not supported")]
    Encrypted,
    #[error("is damaged: what its footer says about the columns makes no sense")]
    Metadata,
    #[error("has a footer of more than 64 MiB")]
    Footer,
    #[error("is damaged: a page of the column {0:?} cannot be read")]
    Page(String),
    #[error("is damaged: a page of the column {0:?} does not have its checksum")]
    Checksum(String),
    #[error("is damaged: it ends in the middle of a page")]
    Short,
    #[error("is damaged: it says that it has {}, and its row groups have {}", counted(*.said, "row"), counted(*.found, "row"))]
    Rows { said: u64, found: u64 },
    #[error(
        "claims {} in {}: so small a file can only repeat the same rows, or have empty ones",
        counted(*.rows, "row"), bytes(*.size)
    )]
    Claims { rows: u64, size: u64 },
    #[error(
        "has rows that are more than 1,000 times as large as the file: they are the same again and again"
    )]
    Growth,
    #[error("has more columns, or more deeply nested ones, than a table of examples")]
    Columns,
    #[error("has a page of the column {0:?} that says it is larger than 256 MiB")]
    TooLarge(String),
    #[error("needs more than 1 GiB for the pages and dictionaries of its columns")]
    Memory,
    #[error("is compressed with {0}, which is not supported")]
    Codec(&'static str),
    #[error("encodes the column {0:?} as {1}, which is not supported")]
    Encoding(String, &'static str),
}

impl Damage {
    /// Returns the suggested remedy.
    pub(crate) fn fix(&self) -> &'static str {
        match self {
            Self::NotParquet
            | Self::Metadata
            | Self::Page(_)
            | Self::Checksum(_)
            | Self::Short
            | Self::Rows { .. } => "Download or write it again",
            Self::NotFetched => "Fetch the data: git lfs pull",
            Self::Encrypted => "Write it without encryption",
            Self::Columns | Self::Footer => "Keep only the columns of the examples",
            Self::Claims { .. } | Self::Growth => {
                "Download or write it again; leave out rows that are empty or copies of others"
            }
            Self::TooLarge(_) | Self::Memory => "Write it with smaller pages or row groups",
            Self::Codec(_) => {
                "Convert it with Python: `import pyarrow.parquet as pq; pq.write_table(pq.read_table(\"OLD.parquet\"), \"NEW.parquet\", compression=\"zstd\")`"
            }
            Self::Encoding(..) => "Write it again with pyarrow, pandas, polars, DuckDB or Spark",
        }
    }
}
