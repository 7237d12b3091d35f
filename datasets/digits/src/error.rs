/// Why the digits could not be loaded. The archive is embedded, so this should not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DigitsError {
    /// The archive is not gzip, is truncated, or has no rows of comma-separated numbers of one length.
    #[error("the archive of digits cannot be read")]
    Unreadable(#[from] csv::Error),
    /// The row of this index is invalid.
    #[error("row {0} is not 64 pixels from 0 to 16 and a label from 0 to 9")]
    NotADigit(usize),
    /// The archive has so many rows, but the data set so many.
    #[error("the archive has {0} digits, not {1}")]
    WrongCount(usize, usize),
}
