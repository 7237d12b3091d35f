//! Caches indices on disk, so that a million files are listed once.
//!
//! A CSV file: a line with the format and the time of reading, a line for each folder with the time of its last change, and
//! for each class a line with its number of images and its name, then a line for each image.
//!
//! ```text
//! stovepipe-index,1,1763780400000000000
//! folder,1763700000000000000,
//! folder,1763700000000000000,n01440764
//! class,2,n01440764
//! image,n01440764_10026.JPEG
//! image,n01440764_10027.JPEG
//! end,2
//! ```

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufReader, BufWriter, Read, Write},
    path::{Component, Path, PathBuf},
    process,
};

use csv::{ByteRecord, ReaderBuilder, Writer, WriterBuilder};

use super::{
    conventions::is_image,
    entries::{Index, Nanoseconds, Stamps},
    walk::changed,
};

/// Where the index of a folder is cached.
///
/// It is used until a folder in it changes, at any depth: when a file is added, removed or renamed. Folders that changed
/// within two seconds before they were read are read again the next time, since the clocks of file systems are coarse. A
/// cache file that cannot be read or written is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IndexCache {
    /// In a file beside the folder: `train.index.csv` for `train`.
    #[default]
    Beside,
    /// In a file in this folder, for data on a read-only disk.
    In(PathBuf),
    /// No cache: folders are read each time.
    Off,
}

const MAGIC: [&str; 2] = ["stovepipe-index", "1"];

/// The largest size in bytes, enough for a hundred million names.
const MOST: u64 = 1 << 32;

/// The resolution of the clocks of file systems.
const COARSE: Nanoseconds = 2_000_000_000;

impl IndexCache {
    pub(super) fn file(&self, folder: &Path) -> Option<PathBuf> {
        // `.` and `..` have no names, and a folder may have several paths.
        let folder = fs::canonicalize(folder).ok()?;
        let name = folder.file_name()?.to_string_lossy();
        match self {
            Self::Beside => Some(folder.parent()?.join(format!("{name}.index.csv"))),
            Self::In(caches) => {
                let mut hasher = DefaultHasher::new();
                folder.hash(&mut hasher);
                Some(caches.join(format!("{name}-{:016x}.index.csv", hasher.finish())))
            }
            Self::Off => None,
        }
    }
}

/// The cached index of `folder`, if there is one and no folder has changed since.
pub(super) fn read(file: &Path, folder: &Path) -> Option<Index> {
    // Opening a pipe would wait for a writer.
    let opened = file.is_file().then(|| File::open(file))?.ok()?;
    let (index, stamps) = parse(BufReader::new(opened).take(MOST))?;
    is_current(folder, &stamps).then_some(index)
}

fn is_current(folder: &Path, stamps: &Stamps) -> bool {
    stamps.folders.iter().all(|(path, time)| {
        let settled = time.saturating_add(COARSE) < stamps.read;
        settled && changed(&folder.join(path)).is_ok_and(|found| found == *time)
    })
}

pub(super) fn write(file: &Path, index: &Index, stamps: &Stamps) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = file.with_extension(format!("partial-{}", process::id()));
    let written = File::create(&partial)
        .and_then(|opened| print(BufWriter::new(opened), index, stamps))
        .and_then(|()| fs::rename(&partial, file));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

pub(super) fn print(to: impl Write, index: &Index, stamps: &Stamps) -> std::io::Result<()> {
    let mut writer = WriterBuilder::new().flexible(true).from_writer(to);
    let [name, version] = MAGIC;
    writer.write_record([name, version, &stamps.read.to_string()])?;
    for (folder, time) in &stamps.folders {
        writer.write_record(["folder", &time.to_string(), folder])?;
    }
    print_classes(&mut writer, index)?;
    writer.write_record(["end", &index.names.len().to_string()])?;
    writer.flush()
}

fn print_classes(writer: &mut Writer<impl Write>, index: &Index) -> std::io::Result<()> {
    let mut names = index.names.iter();
    // Images are in the order of their classes.
    let classes = index.labels.chunk_by(|a, b| a == b);
    for (class, labels) in index.classes.iter().zip(classes) {
        writer.write_record(["class", &labels.len().to_string(), class])?;
        for name in names.by_ref().take(labels.len()) {
            writer.write_record(["image", name])?;
        }
    }
    Ok(())
}

/// Parses an index. Anything else is `None`, for instance a name that leads out of the folder.
pub(super) fn parse(from: impl Read) -> Option<(Index, Stamps)> {
    let mut reader = ReaderBuilder::new();
    let mut lines = Lines {
        reader: reader.has_headers(false).flexible(true).from_reader(from),
        record: ByteRecord::new(),
    };
    let [name, version, read] = lines.next()?;
    if [name, version] != MAGIC {
        return None;
    }
    let mut stamps = Stamps {
        folders: Vec::new(),
        read: read.parse().ok()?,
    };
    let mut index = Index::default();
    loop {
        match lines.next()? {
            ["folder", time, path] if path.is_empty() || leads_inside(path) => {
                stamps.folders.push((path.to_owned(), time.parse().ok()?));
            }
            ["class", count, class] if leads_inside(class) => {
                let (count, class) = (count.parse().ok()?, class.to_owned());
                parse_class(&mut lines, &mut index, count, class)?;
            }
            ["end", count, ""] if count.parse() == Ok(index.names.len()) => break,
            _ => return None,
        }
    }
    let is_whole = index.classes.len() >= 2 && !stamps.folders.is_empty() && lines.ended();
    index.names.shrink();
    index.labels.shrink_to_fit();
    is_whole.then_some((index, stamps))
}

/// Parses the images of a class. There must be some, in ascending order, and classes must ascend too.
fn parse_class(
    lines: &mut Lines<impl Read>,
    index: &mut Index,
    count: usize,
    class: String,
) -> Option<()> {
    let label = u32::try_from(index.classes.len()).ok()?;
    let ascends = index.classes.last().is_none_or(|last| *last < class);
    if count == 0 || !ascends {
        return None;
    }
    index.classes.push(class);
    for place in 0..count {
        let ["image", name, ""] = lines.next()? else {
            return None;
        };
        let names = &mut index.names;
        let ascends = place == 0 || names.get(names.len() - 1) < name;
        if !(ascends && leads_inside(name) && is_image(name)) {
            return None;
        }
        names.push(name);
        index.labels.push(label);
    }
    Some(())
}

/// Whether a relative path stays in its folder.
fn leads_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

struct Lines<R> {
    reader: csv::Reader<R>,
    record: ByteRecord,
}

impl<R: Read> Lines<R> {
    /// The two or three fields of the next line; a missing third one is empty.
    fn next(&mut self) -> Option<[&str; 3]> {
        if !self.reader.read_byte_record(&mut self.record).ok()? {
            return None;
        }
        let field = |place| str::from_utf8(self.record.get(place).unwrap_or_default()).ok();
        match self.record.len() {
            2 | 3 => Some([field(0)?, field(1)?, field(2)?]),
            _ => None,
        }
    }

    fn ended(&mut self) -> bool {
        matches!(self.reader.read_byte_record(&mut self.record), Ok(false))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn text(
        pieces: &'static [&'static str],
        count: std::ops::Range<usize>,
    ) -> impl Strategy<Value = String> {
        vec(prop::sample::select(pieces), count).prop_map(|text| text.concat())
    }

    const PIECES: &[&str] = &["a", "Z", "0", " ", ",", "\"", "\n", "\r", "_", "ä", "-"];

    fn index() -> impl Strategy<Value = (Index, Stamps)> {
        let name = || text(PIECES, 1..7);
        let images = vec(name().prop_map(|name| format!("x{name}.JPEG")), 1..5);
        let class = name().prop_map(|name| format!("c{name}"));
        let classes = proptest::collection::btree_map(class, images, 2..6);
        let folders = vec((text(&["a", "b", ",", "\""], 1..6), any::<i64>()), 1..5);
        (classes, folders, any::<i64>()).prop_map(|(classes, folders, read)| {
            let mut index = Index::default();
            for (label, (class, mut names)) in classes.into_iter().enumerate() {
                names.sort();
                names.dedup();
                for name in names {
                    index.names.push(&name);
                    index.labels.push(label as u32);
                }
                index.classes.push(class);
            }
            let folders = folders.into_iter();
            let folders = folders.map(|(path, time)| (path, time.into())).collect();
            let read = read.into();
            (index, Stamps { folders, read })
        })
    }

    fn printed(index: &Index, stamps: &Stamps) -> Vec<u8> {
        let mut text = Vec::new();
        print(&mut text, index, stamps).unwrap();
        text
    }

    fn small() -> (Index, Stamps) {
        let text = "stovepipe-index,1,99\nfolder,-5,\nfolder,7,a\nclass,2,a\nimage,1.jpg\nimage,d/2.PNG\n\
                    class,1,b\nimage,1.jpg\nend,3\n";
        let (index, stamps) = parse(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(printed(&index, &stamps)).unwrap(), text);
        (index, stamps)
    }

    #[test]
    fn an_index_is_text() {
        let (index, stamps) = small();
        assert_eq!(index.classes, ["a", "b"]);
        assert_eq!(index.labels, [0, 0, 1]);
        assert!(index.names.iter().eq(["1.jpg", "d/2.PNG", "1.jpg"]));
        assert_eq!(stamps.folders, [(String::new(), -5), ("a".to_owned(), 7)]);
        assert_eq!(stamps.read, 99);
    }

    #[test]
    fn invalid_text_is_none() {
        let (index, stamps) = small();
        let text = String::from_utf8(printed(&index, &stamps)).unwrap();
        for (from, to) in [
            ("index,1", "index,2"),
            ("1.jpg\nimage,d", "../1.jpg\nimage,d"),
            ("image,d/2.PNG", "image,/etc/2.png"),
            ("image,d/2.PNG", "image,d/2.txt"),
            ("image,d/2.PNG", "image,1.jpg"),
            ("class,1,b", "class,1,../b"),
            ("class,1,b", "class,1,a"),
            ("class,1,b", "class,2,b"),
            ("class,1,b", "class,0,b"),
            ("class,1,b\nimage,1.jpg\nend,3", "end,2"),
            ("end,3", "end,4"),
            ("end,3\n", ""),
            ("end,3\n", "end,3\nend,3\n"),
            ("folder,7,a", "folder,7,../a"),
            ("folder,7,a", "folder,x,a"),
            ("folder,7,a", "folder,7"),
        ] {
            // A line with two fields has an empty path: the root.
            let replaced = text.replace(from, to);
            assert_ne!(replaced, text);
            let found = parse(replaced.as_bytes());
            assert_eq!(found.is_none(), to != "folder,7", "{from:?} {to:?}");
        }
    }

    proptest! {
        #[test]
        fn an_index_is_parsed_as_printed(index in index()) {
            let text = printed(&index.0, &index.1);
            prop_assert_eq!(parse(text.as_slice()), Some(index));
        }

        #[test]
        fn damage_is_noticed_or_harmless(
            index in index(), at in any::<prop::sample::Index>(), bytes in vec(any::<u8>(), 0..4), cut in 0..4_usize,
        ) {
            let mut text = printed(&index.0, &index.1);
            let at = at.index(text.len());
            let cut = (at + cut).min(text.len());
            text.splice(at..cut, bytes);
            if let Some((index, stamps)) = parse(text.as_slice()) {
                prop_assert_eq!(parse(printed(&index, &stamps).as_slice()), Some((index.clone(), stamps)));
                prop_assert!(index.labels.is_sorted() && index.labels.len() == index.names.len());
                prop_assert!(index.names.iter().all(leads_inside));
            }
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(
            bytes in vec(any::<u8>(), 0..200),
            text in text(&["image", "class", "folder", "end", ",", "\n", "\"", "0", "1", "2", "a", "b.jpg"], 0..60),
        ) {
            let _ = parse(bytes.as_slice());
            let _ = parse(format!("stovepipe-index,1,5\n{text}").as_bytes());
        }
    }
}
