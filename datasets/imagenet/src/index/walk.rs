//! Finds the images of a folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{ENDINGS, Index, Nanoseconds, Stamps, sets::names_a_split};
use crate::ImagenetError;

/// Folders in each other that a class may have.
const DEEPEST: usize = 8;

/// What is in a folder, without what is hidden (`.git`, the `._a.jpg` of some systems).
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// When something was last added, removed or renamed.
    pub changed: Nanoseconds,
    pub folders: Vec<String>,
    /// Files that have the name of an image.
    pub images: Vec<String>,
}

/// Where folders are read: a disk, or what a test makes up.
pub(super) trait Folders {
    fn list(&self, path: &Path) -> Result<Listing, ImagenetError>;
}

/// The folders of the system.
pub(super) struct Disk;

impl Folders for Disk {
    fn list(&self, path: &Path) -> Result<Listing, ImagenetError> {
        // Before its entries: a change while they are read is noticed later.
        let changed = changed(path).map_err(ImagenetError::unreadable(path))?;
        let mut listing = Listing {
            changed,
            ..Listing::default()
        };
        for entry in fs::read_dir(path).map_err(ImagenetError::unreadable(path))? {
            let entry = entry.map_err(ImagenetError::unreadable(path))?;
            let path = || path.join(entry.file_name());
            let Ok(name) = entry.file_name().into_string() else {
                return Err(ImagenetError::OddName { path: path() });
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

/// When something was last added to a folder, removed from it or renamed in it.
pub(super) fn changed(folder: &Path) -> io::Result<Nanoseconds> {
    let metadata = fs::metadata(folder)?;
    match metadata.is_dir() {
        true => Ok(nanoseconds(metadata.modified()?)),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

pub(super) fn nanoseconds(time: SystemTime) -> Nanoseconds {
    let of = |duration: std::time::Duration| duration.as_nanos() as Nanoseconds;
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => of(since),
        Err(before) => -of(before.duration()),
    }
}

/// Whether it is a folder, or a link to one.
pub(super) fn is_folder(entry: &fs::DirEntry) -> io::Result<bool> {
    let kind = entry.file_type()?;
    match kind.is_symlink() {
        // A link to nothing is found out when it is read.
        true => Ok(fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir())),
        false => Ok(kind.is_dir()),
    }
}

pub(super) fn is_image(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    ENDINGS
        .iter()
        .any(|known| known.eq_ignore_ascii_case(ending))
}

/// Each folder in `root` is a class; the images in it, and in folders within it, belong to it.
pub(super) fn by_class(
    folders: &impl Folders,
    root: &Path,
) -> Result<(Index, Stamps), ImagenetError> {
    let mut walk = Walk::new(folders, root);
    let Listing { folders, .. } = walk.list("")?;
    let path = root.to_owned();
    if folders.is_empty() {
        return Err(ImagenetError::NoClasses { path });
    }
    let (mut index, mut empty) = (Index::default(), None);
    for (label, class) in folders.iter().enumerate() {
        let images = match walk.images(class) {
            // Another may be a level too many, which is what is wrong then: `images` beside `annotations`.
            Err(error @ ImagenetError::NoImages { .. }) => {
                empty.get_or_insert(error);
                continue;
            }
            images => images?,
        };
        for name in images {
            // The name in the class's folder: the class is known.
            index.names.push(&name[class.len() + 1..]);
            index.labels.push(label as u32);
        }
    }
    if let [class] = folders.as_slice() {
        let class = class.clone();
        return Err(ImagenetError::OneClass { path, class });
    }
    if let Some(error) = empty {
        return Err(error);
    }
    index.classes = folders;
    index.names.shrink();
    index.labels.shrink_to_fit();
    Ok((index, walk.stamps))
}

/// All images in `root` and the folders within it, sorted by name.
pub(super) fn flat(folders: &impl Folders, root: &Path) -> Result<Vec<String>, ImagenetError> {
    let walk = Walk::new(folders, root);
    Walk {
        levels: true,
        ..walk
    }
    .images("")
}

struct Walk<'a, F> {
    disk: &'a F,
    root: &'a Path,
    stamps: Stamps,
    /// Whether folders may hold nothing but several folders of images.
    levels: bool,
}

impl<'a, F: Folders> Walk<'a, F> {
    fn new(disk: &'a F, root: &'a Path) -> Self {
        let stamps = Stamps {
            folders: Vec::new(),
            read: nanoseconds(SystemTime::now()),
        };
        let levels = false;
        Self {
            disk,
            root,
            stamps,
            levels,
        }
    }

    fn list(&mut self, folder: &str) -> Result<Listing, ImagenetError> {
        let listing = self.disk.list(&self.path(folder))?;
        let stamp = (folder.to_owned(), listing.changed);
        self.stamps.folders.push(stamp);
        Ok(listing)
    }

    /// The images in a folder and the folders within it, sorted; there must be some.
    fn images(&mut self, folder: &str) -> Result<Vec<String>, ImagenetError> {
        let mut names = Vec::new();
        self.gather(folder, DEEPEST, &mut names)?;
        names.sort_unstable();
        match names.is_empty() {
            true => Err(ImagenetError::NoImages {
                path: self.path(folder),
            }),
            false => Ok(names),
        }
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
            return Err(ImagenetError::TooDeep {
                path: self.path(folder),
                most: DEEPEST,
            });
        }
        let mut full = Vec::new();
        for name in listing.folders {
            let before = names.len();
            self.gather(&within(&name), deeper - 1, names)?;
            if names.len() > before {
                full.push(name);
            }
        }
        match full.as_slice() {
            [first, _, ..] if listing.images.is_empty() && !self.levels => {
                Err(self.between(folder, first, full.len()))
            }
            _ => Ok(()),
        }
    }

    /// The error for a folder that lies between the one that was given and the classes.
    fn between(&self, folder: &str, first: &str, folders: usize) -> ImagenetError {
        let path = self.path(folder);
        let name = folder.rsplit('/').next().unwrap_or(folder);
        let meant = match path.parent() {
            // What holds a split is the data set.
            Some(parent) if names_a_split(name) => parent.to_owned(),
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
