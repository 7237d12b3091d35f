use flate2::read::GzDecoder;

use crate::{CLASSES, Digit, DigitsError};

/// The published data set. `data/README.md` has the credit and the licence.
pub(crate) const ARCHIVE: &[u8] = include_bytes!("../data/digits.csv.gz");

const ROWS: usize = 1_797;

const INK: u8 = 16;

/// Reads gzipped rows of 64 pixels and a label, in file order.
pub(crate) fn parse(archive: &[u8]) -> Result<Vec<Digit>, DigitsError> {
    let digits = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(GzDecoder::new(archive))
        .into_deserialize::<Vec<u8>>()
        .enumerate()
        .map(|(row, values)| digit(&values?).ok_or(DigitsError::NotADigit(row)))
        .collect::<Result<Vec<_>, _>>()?;
    match digits.len() {
        ROWS => Ok(digits),
        found => Err(DigitsError::WrongCount(found, ROWS)),
    }
}

/// A row as a digit, if it is valid.
fn digit(values: &[u8]) -> Option<Digit> {
    let (&label, pixels) = values.split_last()?;
    let pixels = pixels.try_into().ok()?;
    let digit = Digit { pixels, label };
    (usize::from(label) < CLASSES && pixels.iter().all(|&pixel| pixel <= INK)).then_some(digit)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    /// A row of 64 equal pixels and a label.
    fn row(pixel: &str, label: &str) -> String {
        format!("{}{label}\n", format!("{pixel},").repeat(64))
    }

    fn is_unreadable(archive: &[u8]) -> bool {
        matches!(parse(archive), Err(DigitsError::Unreadable(_)))
    }

    #[test]
    fn the_archive_is_the_published_one() {
        let digits = parse(ARCHIVE).unwrap();
        let ink = |digit: &Digit| -> u32 { digit.pixels.map(u32::from).iter().sum() };
        assert_eq!(digits.len(), 1_797);
        assert_eq!((digits[0].label, ink(&digits[0])), (0, 294));
        assert_eq!(digits[0].pixels[..8], [0, 0, 5, 13, 9, 1, 0, 0]);
        assert_eq!((digits[1_796].label, ink(&digits[1_796])), (8, 392));
        assert_eq!(digits.iter().map(ink).sum::<u32>(), 561_718);

        let mut classes = [0; CLASSES];
        for digit in &digits {
            classes[usize::from(digit.label)] += 1;
        }
        assert_eq!(classes, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);

        // All scans are distinct, so no test image is also a training image.
        let distinct: HashSet<_> = digits.iter().map(|digit| digit.pixels).collect();
        assert_eq!(distinct.len(), 1_797);
    }

    #[test]
    fn values_out_of_range_are_not_digits() {
        let limits = parse(&gzip(&(row("16", "9") + &row("0", "0"))));
        let expected = "the archive has 2 digits, not 1797";
        assert_eq!(limits.unwrap_err().to_string(), expected);
        for bad in [&row("17", "9"), &row("16", "10"), "0,1,2\n", "5\n"] {
            let found = parse(&gzip(bad));
            assert!(matches!(found, Err(DigitsError::NotADigit(0))), "{bad}");
        }
    }

    #[test]
    fn the_error_names_the_bad_row() {
        let error = parse(&gzip(&(row("1", "1") + &row("2", "2") + &row("99", "3")))).unwrap_err();
        let expected = "row 2 is not 64 pixels from 0 to 16 and a label from 0 to 9";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn other_text_is_unreadable() {
        let ragged = row("1", "1") + "1,2,3\n";
        for bad in [row("x", "1"), row("-1", "1"), row("256", "1"), ragged] {
            assert!(is_unreadable(&gzip(&bad)), "{bad}");
        }
    }

    #[test]
    fn a_corrupt_archive_is_an_error() {
        assert!(is_unreadable(b""));
        assert!(is_unreadable(b"0,0,5,13"));
        for kept in [5, 10, 100, ARCHIVE.len() / 2, ARCHIVE.len() - 1] {
            assert!(is_unreadable(&ARCHIVE[..kept]), "{kept} bytes kept");
        }
        // One byte changed after the header: the rows, their checksum or their length are wrong.
        let last = [ARCHIVE.len() - 8, ARCHIVE.len() - 1];
        for place in (64..ARCHIVE.len()).step_by(997).chain(last) {
            let mut bytes = ARCHIVE.to_vec();
            bytes[place] ^= 0x55;
            assert!(parse(&bytes).is_err(), "byte {place} changed");
        }
    }
}
