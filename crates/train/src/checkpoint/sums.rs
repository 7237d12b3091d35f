//! Checksums of a checkpoint's files, which `sha256sum --check SHA256SUMS` can read.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use sha2::{Digest, Sha256};

use crate::{
    disk::{Files, paths},
    error::TrainError,
};

/// The file with the checksums of the others.
pub(super) const SUMS: &str = "SHA256SUMS";

const BLOCK: usize = 1 << 20;

/// Writes the checksums of all files in a folder, and syncs everything to the disk.
pub(super) fn seal(folder: &Path, files: &Files) -> Result<(), TrainError> {
    let mut text = String::new();
    for name in names(folder)? {
        let path = folder.join(&name);
        let sum = sum(&path).map_err(TrainError::file(&path))?;
        let _ = writeln!(text, "{sum}  {name}");
    }
    let path = folder.join(SUMS);
    files.write(&path, || {
        fs::write(&path, text).map_err(TrainError::file(&path))
    })?;
    for name in names(folder)?.iter().map(String::as_str).chain([SUMS]) {
        files.sync_file(&folder.join(name))?;
    }
    files.sync_folder(folder)
}

/// Checks that a folder holds exactly the files that it was sealed with. The error says what differs.
pub(super) fn check(folder: &Path) -> Result<(), String> {
    let text = fs::read_to_string(folder.join(SUMS)).map_err(|error| format!("{SUMS}: {error}"))?;
    let mut sealed = Vec::new();
    for line in text.lines() {
        let Some((expected, name)) = line.split_once("  ") else {
            return Err(format!("{SUMS} is damaged"));
        };
        // Never read files of other folders.
        let is_name = Path::new(name).file_name().is_some_and(|own| own == name);
        if !is_name {
            return Err(format!("{SUMS} is damaged"));
        }
        match sum(&folder.join(name)) {
            Err(error) => return Err(format!("{name}: {error}")),
            Ok(found) if found != expected => return Err(format!("{name} is damaged")),
            Ok(_) => sealed.push(name.to_owned()),
        }
    }
    sealed.sort();
    let found = names(folder).map_err(|error| error.to_string())?;
    if sealed != found {
        return Err(format!("{SUMS} is of other files"));
    }
    Ok(())
}

/// The names of a folder's files, sorted, without the checksums. Those that begin with a dot are of other programs,
/// such as editors and file managers.
fn names(folder: &Path) -> Result<Vec<String>, TrainError> {
    let paths = paths(folder)?;
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
    let names = names.filter(|&name| name != SUMS && !name.starts_with('.'));
    Ok(names.map(str::to_owned).collect())
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
        seal(folder.path(), &Files::default()).unwrap();
        folder
    }

    /// FIPS 180-4 has the checksum of "abc" as an example.
    #[test]
    fn sums_are_sha256() {
        let folder = sealed();
        let text = fs::read_to_string(folder.path().join(SUMS)).unwrap();
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n";
        assert!(text.starts_with(of_abc), "{text}");
        check(folder.path()).unwrap();
    }

    /// Every bit counts, those of the checksums too.
    #[test]
    fn damage_is_found() {
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
            // The end of a line does not count.
            assert_eq!(check(folder.path()).is_ok(), name == SUMS);
            fs::remove_file(&path).unwrap();
            check(folder.path()).unwrap_err();
            fs::write(&path, &content).unwrap();
            check(folder.path()).unwrap();
            fs::write(folder.path().join(".other"), "").unwrap();
            check(folder.path()).unwrap();
            fs::write(folder.path().join("other"), "").unwrap();
            check(folder.path()).unwrap_err();
        }
    }
}
