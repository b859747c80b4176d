//! Why a Parquet file cannot be read.

/// What is wrong with a file, as the end of the sentence "the file …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    #[error("is not Parquet: it does not begin and end with PAR1")]
    NotParquet,
    #[error("is encrypted, which is not supported")]
    Encrypted,
    #[error("is damaged: what its footer says about the columns makes no sense")]
    Metadata,
    #[error("has a footer of more than 64 MiB")]
    Footer,
    #[error("is damaged: a page of the column {0:?} cannot be read")]
    Page(String),
    #[error("is damaged: it ends in the middle of a page")]
    Short,
    #[error("has more columns, or more deeply nested ones, than a table of examples")]
    Columns,
    #[error("has a page of the column {0:?} that says it is larger than 256 MiB")]
    TooLarge(String),
    #[error("is compressed with {0}, which is not supported")]
    Codec(&'static str),
    #[error("encodes the column {0:?} as {1}, which is not supported")]
    Encoding(String, &'static str),
}

impl Damage {
    /// Returns the suggested remedy.
    pub(crate) fn fix(&self) -> &'static str {
        match self {
            Self::NotParquet | Self::Metadata | Self::Page(_) | Self::Short => "Download or write it again",
            Self::Encrypted => "Write it without encryption",
            Self::Columns | Self::Footer => "Keep only the columns of the examples",
            Self::TooLarge(_) => "Write it with smaller pages or row groups",
            Self::Codec(_) => "Write it with zstd, snappy or gzip, as pyarrow and pandas do by default",
            Self::Encoding(..) => {
                "Write it with the plain and dictionary encodings, as pyarrow and pandas do by default"
            }
        }
    }
}
