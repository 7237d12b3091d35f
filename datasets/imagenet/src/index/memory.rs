//! Bytes that indices of 1.28 million names take, counted by the allocator. Each case is a process of its own, this program
//! again: what is counted is the process's.

use std::{env, io::BufReader, path::Path, process::Command};

use cap::Cap;

use super::{
    Index, cache,
    walk::{self, Folders, Listing},
};
use crate::ImagenetError;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const CASE: &str = "STOVEPIPE_INDEX_CASE";

const CLASSES: usize = 1000;
const IMAGES: usize = 1280;

/// Folders as ImageNet's, on no disk.
struct Names;

impl Folders for Names {
    fn list(&self, path: &Path) -> Result<Listing, ImagenetError> {
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut listing = Listing::default();
        match name {
            "train" => listing.folders = (0..CLASSES).map(|class| format!("n{class:08}")).collect(),
            class => {
                listing.images = (0..IMAGES)
                    .map(|image| format!("{class}_{image}.JPEG"))
                    .collect()
            }
        }
        Ok(listing)
    }
}

fn check(index: &Index) {
    assert_eq!(
        (index.classes.len(), index.names.len()),
        (CLASSES, CLASSES * IMAGES)
    );
    assert_eq!(index.labels[777 * IMAGES], 777);
    assert_eq!(index.names.get(777 * IMAGES), "n00000777_0.JPEG");
}

/// Bytes at most while folders are walked, of the index itself, and at most while it comes from its file.
fn bytes() -> [usize; 3] {
    let before = ALLOCATOR.allocated();
    let (index, stamps) = walk::by_class(&Names, Path::new("train")).unwrap();
    check(&index);
    let walked = ALLOCATOR.max_allocated() - before;
    let kept = ALLOCATOR.allocated() - before;
    let file = tempfile::NamedTempFile::new().unwrap();
    cache::print(file.as_file(), &index, &stamps).unwrap();
    drop((index, stamps));
    // It must be less than what is counted from now on: the most so far is not forgotten.
    let before = ALLOCATOR.allocated();
    let opened = BufReader::new(file.reopen().unwrap());
    let (index, _) = cache::parse(opened).unwrap();
    check(&index);
    [walked, kept, ALLOCATOR.max_allocated() - before]
}

#[test]
fn a_million_names_take_little_more_than_their_bytes() {
    if env::var(CASE).is_ok() {
        println!("{:?}", bytes());
        return;
    }
    let test = "index::memory::a_million_names_take_little_more_than_their_bytes";
    let output = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CASE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    let (numbers, _) = numbers.unwrap_or_else(|| panic!("{output:?}"));
    let numbers: Vec<usize> = numbers.split(", ").map(|n| n.parse().unwrap()).collect();
    let (walked, kept, read) = (numbers[0], numbers[1], numbers[2]);
    // 18 to 19 letters, and 12 bytes to say where they end and of which class they are.
    let needed = CLASSES * IMAGES * (19 + 12);
    println!("{walked} bytes while walking, {kept} kept, {read} while reading; {needed} needed");
    assert!(kept <= needed + (1 << 20), "{kept}");
    // Vectors that grow are copied, and are up to twice as long as they need be until they end.
    assert!(walked.max(read) <= 3 * needed, "{walked} {read}");
}
