//! How a checkpoint is known to be whole: the sums of its files, as `sha256sum --check SHA256SUMS` reads them.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use sha2::{Digest, Sha256};

use crate::error::TrainError;

/// The file that holds the sums of the others.
pub(super) const SUMS: &str = "SHA256SUMS";

/// Read at a time.
const BLOCK: usize = 1 << 20;

/// Writes the sums of all files in a folder, and has the system put all of them on the disk.
pub(super) fn seal(folder: &Path) -> Result<(), TrainError> {
    let mut text = String::new();
    for name in names(folder)? {
        let path = folder.join(&name);
        let sum = sum(&path).map_err(TrainError::file(&path))?;
        let _ = writeln!(text, "{sum}  {name}");
    }
    let path = folder.join(SUMS);
    fs::write(&path, text).map_err(TrainError::file(&path))?;
    for name in names(folder)?.iter().map(String::as_str).chain([SUMS]) {
        let path = folder.join(name);
        let file = File::open(&path).map_err(TrainError::file(&path))?;
        file.sync_all().map_err(TrainError::file(&path))?;
    }
    sync_folder(folder)
}

/// Makes sure that a folder holds the files that it was sealed with, and none other. Says what is wrong, if it is.
pub(super) fn check(folder: &Path) -> Result<(), String> {
    let text = fs::read_to_string(folder.join(SUMS)).map_err(|error| format!("{SUMS}: {error}"))?;
    let mut sealed = Vec::new();
    for line in text.lines() {
        let Some((expected, name)) = line.split_once("  ") else {
            return Err(format!("{SUMS} is damaged"));
        };
        // Names are of this folder, whatever the file says.
        let is_name = Path::new(name).file_name().is_some_and(|own| own == name);
        let path = folder.join(name);
        match sum(&path) {
            _ if !is_name => return Err(format!("{SUMS} is damaged")),
            Err(error) => return Err(format!("{name}: {error}")),
            Ok(found) if found != expected => return Err(format!("{name} is damaged")),
            Ok(_) => sealed.push(name.to_owned()),
        }
    }
    sealed.sort();
    let found = names(folder).map_err(|error| error.to_string())?;
    match sealed == found {
        true => Ok(()),
        false => Err(format!("{SUMS} is of other files")),
    }
}

/// Has the system put the names in a folder on the disk.
pub(super) fn sync_folder(folder: &Path) -> Result<(), TrainError> {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    // Only Unix opens folders like files.
    match cfg!(unix) {
        true => File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(TrainError::file(folder)),
        false => Ok(()),
    }
}

/// The files of a folder but for the sums, in order.
fn names(folder: &Path) -> Result<Vec<String>, TrainError> {
    let entries = fs::read_dir(folder).map_err(TrainError::file(folder))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(TrainError::file(folder))?.file_name();
        names.extend(
            name.to_str()
                .filter(|&name| name != SUMS)
                .map(str::to_owned),
        );
    }
    names.sort();
    Ok(names)
}

fn sum(path: &Path) -> io::Result<String> {
    let (mut file, mut digest) = (File::open(path)?, Sha256::new());
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(format!("{:x}", digest.finalize())),
            count => digest.update(&block[..count]),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sealed() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "abc").unwrap();
        fs::write(folder.path().join("b"), vec![7; 3 * BLOCK + 1]).unwrap();
        seal(folder.path()).unwrap();
        folder
    }

    /// The sum of "abc" is the example of FIPS 180-4.
    #[test]
    fn sums_are_sha256() {
        let folder = sealed();
        let text = fs::read_to_string(folder.path().join(SUMS)).unwrap();
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n";
        assert!(text.starts_with(of_abc), "{text}");
        check(folder.path()).unwrap();
    }

    /// Every bit counts, those of the sums too.
    #[test]
    fn what_is_damaged_is_found() {
        for name in ["a", "b", SUMS] {
            let folder = sealed();
            let path = folder.path().join(name);
            let content = fs::read(&path).unwrap();
            for place in [0, content.len() / 2, content.len() - 1] {
                let mut damaged = content.clone();
                damaged[place] ^= 1;
                fs::write(&path, damaged).unwrap();
                check(folder.path()).unwrap_err();
            }
            fs::write(&path, &content[..content.len() - 1]).unwrap();
            // A line's end is nothing that counts.
            assert_eq!(check(folder.path()).is_ok(), name == SUMS);
            fs::remove_file(&path).unwrap();
            check(folder.path()).unwrap_err();
            fs::write(&path, &content).unwrap();
            check(folder.path()).unwrap();
            fs::write(folder.path().join("other"), "").unwrap();
            check(folder.path()).unwrap_err();
        }
    }
}
