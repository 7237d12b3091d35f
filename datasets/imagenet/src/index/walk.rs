//! Finds the images of a folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    conventions::{ENDINGS, is_image, is_split},
    entries::{Index, Nanoseconds, Stamps},
};
use crate::ImagenetError;

const DEEPEST: usize = 8;

/// The contents of a folder, without hidden files.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The time of the last change.
    pub changed: Nanoseconds,
    pub folders: Vec<String>,
    /// Files with the name of an image.
    pub images: Vec<String>,
}

/// Lists folders, on disk or in a test.
pub(super) trait Folders {
    fn list(&self, path: &Path) -> Result<Listing, ImagenetError>;
}

pub(super) struct Disk;

impl Folders for Disk {
    fn list(&self, path: &Path) -> Result<Listing, ImagenetError> {
        // Read before the entries, so that a change in between is noticed later.
        let changed = changed(path).map_err(ImagenetError::unreadable(path))?;
        let mut listing = Listing {
            changed,
            ..Listing::default()
        };
        for entry in fs::read_dir(path).map_err(ImagenetError::unreadable(path))? {
            let entry = entry.map_err(ImagenetError::unreadable(path))?;
            let path = || path.join(entry.file_name());
            let name = entry.file_name().into_string();
            let Some(name) = name.ok().filter(|name| !name.contains(['\n', '\r'])) else {
                return Err(ImagenetError::OddName(path()));
            };
            if name.starts_with('.') {
                continue;
            }
            if is_folder(&entry).map_err(|error| ImagenetError::unreadable(&path())(error))? {
                listing.folders.push(name);
            } else if is_image(&name) {
                listing.images.push(name);
            }
        }
        listing.folders.sort_unstable();
        Ok(listing)
    }
}

/// When a file was last added to a folder, removed from it or renamed in it.
pub(super) fn changed(folder: &Path) -> io::Result<Nanoseconds> {
    let metadata = fs::metadata(folder)?;
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(nanoseconds(metadata.modified()?))
}

fn nanoseconds(time: SystemTime) -> Nanoseconds {
    let of = |duration: std::time::Duration| duration.as_nanos() as Nanoseconds;
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => of(since),
        Err(before) => -of(before.duration()),
    }
}

/// Whether an entry is a folder, or a link to one.
pub(super) fn is_folder(entry: &fs::DirEntry) -> io::Result<bool> {
    let kind = entry.file_type()?;
    if !kind.is_symlink() {
        return Ok(kind.is_dir());
    }
    // A broken link is noticed when it is read.
    Ok(fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir()))
}

/// The images of class folders: each folder in `root` is a class, with the images in it and its subfolders.
pub(super) fn by_class(
    folders: &impl Folders,
    root: &Path,
) -> Result<(Index, Stamps), ImagenetError> {
    let mut walk = Walk::new(folders, root);
    let Listing { folders, .. } = walk.list("")?;
    let path = root.to_owned();
    if folders.is_empty() {
        return Err(ImagenetError::NoClasses(path));
    }
    let (mut index, mut empty) = (Index::default(), None);
    for (label, class) in folders.iter().enumerate() {
        let images = match walk.images(class) {
            // Another folder may be one level too many (`images` beside `annotations`), which is the better error.
            Err(error @ ImagenetError::NoImages { .. }) => {
                empty.get_or_insert(error);
                continue;
            }
            images => images?,
        };
        for name in images {
            // Without the class's folder.
            index.names.push(&name[class.len() + 1..]);
            index.labels.push(label as u32);
        }
    }
    if let [class] = folders.as_slice() {
        return Err(ImagenetError::OneClass(path, class.clone()));
    }
    if let Some(error) = empty {
        return Err(error);
    }
    index.classes = folders;
    index.names.shrink();
    index.labels.shrink_to_fit();
    Ok((index, walk.stamps))
}

/// All images in `root` and its subfolders, sorted by name.
pub(super) fn flat(folders: &impl Folders, root: &Path) -> Result<Vec<String>, ImagenetError> {
    let mut walk = Walk::new(folders, root);
    walk.levels = true;
    walk.images("")
}

struct Walk<'a, F> {
    disk: &'a F,
    root: &'a Path,
    stamps: Stamps,
    /// Whether a folder may contain only several folders of images.
    levels: bool,
}

impl<'a, F: Folders> Walk<'a, F> {
    fn new(disk: &'a F, root: &'a Path) -> Self {
        let (folders, read) = (Vec::new(), nanoseconds(SystemTime::now()));
        Self {
            disk,
            root,
            stamps: Stamps { folders, read },
            levels: false,
        }
    }

    fn list(&mut self, folder: &str) -> Result<Listing, ImagenetError> {
        let listing = self.disk.list(&self.path(folder))?;
        let stamp = (folder.to_owned(), listing.changed);
        self.stamps.folders.push(stamp);
        Ok(listing)
    }

    /// The images in a folder and its subfolders, sorted. There must be some.
    fn images(&mut self, folder: &str) -> Result<Vec<String>, ImagenetError> {
        let mut names = Vec::new();
        self.gather(folder, DEEPEST, &mut names)?;
        names.sort_unstable();
        if names.is_empty() {
            return Err(ImagenetError::NoImages(self.path(folder), ENDINGS));
        }
        Ok(names)
    }

    fn gather(
        &mut self,
        folder: &str,
        deeper: usize,
        names: &mut Vec<String>,
    ) -> Result<(), ImagenetError> {
        let listing = self.list(folder)?;
        let within = |name: &str| match folder {
            "" => name.to_owned(),
            _ => format!("{folder}/{name}"),
        };
        names.extend(listing.images.iter().map(|name| within(name)));
        if deeper == 0 && !listing.folders.is_empty() {
            return Err(ImagenetError::TooDeep(self.path(folder), DEEPEST));
        }
        let mut with_images = Vec::new();
        for name in listing.folders {
            let before = names.len();
            self.gather(&within(&name), deeper - 1, names)?;
            if names.len() > before {
                with_images.push(name);
            }
        }
        match with_images.as_slice() {
            [first, _, ..] if listing.images.is_empty() && !self.levels => {
                Err(self.between(folder, first, with_images.len()))
            }
            _ => Ok(()),
        }
    }

    /// The error for a folder between the given one and the classes.
    fn between(&self, folder: &str, first: &str, folders: usize) -> ImagenetError {
        let path = self.path(folder);
        let name = folder.rsplit('/').next().unwrap_or(folder);
        let meant = match path.parent() {
            // The parent of a split is the data set.
            Some(parent) if is_split(name) => parent.to_owned(),
            _ => path.clone(),
        };
        ImagenetError::Between {
            path,
            folders,
            first: first.to_owned(),
            meant,
        }
    }

    fn path(&self, folder: &str) -> PathBuf {
        match folder {
            "" => self.root.to_owned(),
            _ => self.root.join(folder),
        }
    }
}
