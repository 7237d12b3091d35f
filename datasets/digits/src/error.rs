/// Why the digits could not be loaded. The archive is embedded, so this should not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DigitsError {
    /// The archive is not gzip, is truncated, or has no rows of comma-separated numbers of one length.
    #[error("the archive of digits cannot be read")]
    Unreadable(#[from] csv::Error),

    /// A row is invalid.
    #[error("row {row} is not 64 pixels from 0 to 16 and a label from 0 to 9")]
    NotADigit {
        /// The row, counted from 0.
        row: usize,
    },

    /// The archive has a wrong number of rows.
    #[error("the archive has {found} digits, not {expected}")]
    WrongCount {
        /// Rows in the archive.
        found: usize,
        /// Rows in the data set.
        expected: usize,
    },
}
