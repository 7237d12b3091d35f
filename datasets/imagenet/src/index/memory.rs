//! Memory of an index of 1.28 million names, counted by the allocator. The test runs itself in a separate process, since the
//! allocator counts a whole process.

use std::{env, io::BufReader, path::Path, process::Command};

use cap::Cap;

use super::{
    cache,
    entries::Index,
    walk::{self, Folders, Listing},
};
use crate::ImagenetError;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const CASE: &str = "STOVEPIPE_INDEX_CASE";

const CLASSES: usize = 1000;
const IMAGES: usize = 1280;

/// Folders like ImageNet's, in memory.
struct FakeFolders;

impl Folders for FakeFolders {
    fn list(&self, path: &Path) -> Result<Listing, ImagenetError> {
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut listing = Listing::default();
        if name == "train" {
            listing.folders = (0..CLASSES).map(|class| format!("n{class:08}")).collect();
        } else {
            let image = |image| format!("{name}_{image}.JPEG");
            listing.images = (0..IMAGES).map(image).collect();
        }
        Ok(listing)
    }
}

fn check(index: &Index) {
    assert_eq!(index.classes.len(), CLASSES);
    assert_eq!(index.names.len(), CLASSES * IMAGES);
    assert_eq!(index.labels[777 * IMAGES], 777);
    assert_eq!(index.names.get(777 * IMAGES), "n00000777_0.JPEG");
}

/// The peak while folders are walked, the size of the index, and the peak while it is read from the cache.
fn bytes() -> [usize; 3] {
    let before = ALLOCATOR.allocated();
    let (index, stamps) = walk::by_class(&FakeFolders, Path::new("train")).unwrap();
    check(&index);
    let walked = ALLOCATOR.max_allocated() - before;
    let kept = ALLOCATOR.allocated() - before;
    let file = tempfile::NamedTempFile::new().unwrap();
    cache::print(file.as_file(), &index, &stamps).unwrap();
    drop((index, stamps));
    // The allocator keeps the first peak, so the second one must be larger.
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
    // 18 to 19 letters, and 12 bytes for the end and the class.
    let needed = CLASSES * IMAGES * (19 + 12);
    println!("{walked} bytes while walking, {kept} kept, {read} while reading; {needed} needed");
    assert!(kept <= needed + (1 << 20), "{kept}");
    // Growing vectors are copied, and have up to twice their length.
    assert!(walked.max(read) <= 3 * needed, "{walked} {read}");
}
