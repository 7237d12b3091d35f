/// Why the digits could not be loaded.
///
/// The archive is part of the program, so none of these is expected to happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DigitsError {
    /// The archive is not gzip, is cut short, or does not hold comma-separated numbers in rows of one length.
    #[error("the archive of digits cannot be read")]
    Unreadable(#[from] csv::Error),

    /// A row is not 64 pixels from 0 to 16 and then a label from 0 to 9.
    #[error("row {row} is not 64 pixels from 0 to 16 and a label from 0 to 9")]
    NotADigit {
        /// The row, counted from 0.
        row: usize,
    },

    /// The archive does not have as many rows as the data set.
    #[error("the archive has {found} digits, not {expected}")]
    WrongCount {
        /// How many rows the archive has.
        found: usize,
        /// How many rows the data set has.
        expected: usize,
    },
}
