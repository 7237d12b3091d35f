//! Reads folders of the official archives, complete and damaged.

use std::{fs, path::Path};

use crate::folder::{record, write_cifar10, write_cifar100};
use burn::data::dataset::Dataset;
use proptest::{prelude::*, sample::Index};
use stovepipe_cifar::{Cifar, CifarError, CifarLabels};
use tempfile::{TempDir, tempdir};

/// A pixel value that depends on the file and the position.
fn place(file: &str, record: usize, channel: usize, y: usize, x: usize) -> u8 {
    let of_file = file.bytes().map(usize::from).sum::<usize>();
    (of_file + 101 * record + 67 * channel + 8 * y + x) as u8
}

/// Two records per file: labels 0 and 9, pixels from `place`.
fn two(file: &str) -> Vec<u8> {
    let one = |index: usize, label: u8| record(&[label], |c, y, x| place(file, index, c, y, x));
    [one(0, 0), one(1, 9)].concat()
}

/// Three records, with the smallest and largest labels.
fn three(file: &str) -> Vec<u8> {
    let limits = [[0, 99], [19, 0], [7, 42]];
    let one = |index: usize| record(&limits[index], |c, y, x| place(file, index, c, y, x));
    (0..3).flat_map(one).collect()
}

fn images(set: &Cifar) -> Vec<stovepipe_cifar::CifarImage> {
    let indices = 0..set.len();
    indices.map(|index| set.get(index).unwrap()).collect()
}

/// Checks all pixels against `place`.
fn check_pixels(set: &Cifar, files: &[String], records: usize) {
    for (index, image) in images(set).into_iter().enumerate() {
        let (file, record) = (&files[index / records], index % records);
        assert_eq!(image.index(), index);
        let mut pixels = image.pixels().iter();
        for channel in 0..3 {
            for y in 0..32 {
                for x in 0..32 {
                    let expected = place(file, record, channel, y, x);
                    let position = format!("{file} {record} {channel} {y} {x}");
                    assert_eq!(pixels.next(), Some(&expected), "{position}");
                }
            }
        }
        assert_eq!(pixels.next(), None);
    }
}

#[test]
fn cifar10_has_five_training_files_and_a_test_file() {
    let data = tempdir().unwrap();
    write_cifar10(data.path(), two);
    let train = Cifar::train(CifarLabels::Cifar10, data.path()).unwrap();
    let test = Cifar::test(CifarLabels::Cifar10, data.path()).unwrap();
    assert_eq!((train.len(), test.len()), (10, 2));
    let files = [1, 2, 3, 4, 5].map(|file| format!("data_batch_{file}.bin"));
    check_pixels(&train, &files, 2);
    check_pixels(&test, &["test_batch.bin".to_owned()], 2);
    for (index, image) in images(&train).iter().enumerate() {
        let label = [0, 9][index % 2];
        assert_eq!((image.label(), image.all_labels()), (label, &[label][..]));
    }
    assert_eq!(train.names().len(), 10);
    let (first, last) = (&*train.names()[0], &*test.names()[9]);
    assert_eq!((first, last), ("airplane", "truck"));
}

#[test]
fn cifar100_has_coarse_and_fine_labels() {
    let data = tempdir().unwrap();
    write_cifar100(data.path(), three);
    for (labels, expected, last) in [
        (CifarLabels::Cifar100Fine, [99, 0, 42], "fine_99"),
        (CifarLabels::Cifar100Coarse, [0, 19, 7], "coarse_19"),
    ] {
        let train = Cifar::train(labels, data.path()).unwrap();
        let test = Cifar::test(labels, data.path()).unwrap();
        for (set, file) in [(&train, "train.bin"), (&test, "test.bin")] {
            check_pixels(set, &[file.to_owned()], 3);
            let images = images(set);
            let found: Vec<_> = images.iter().map(|image| image.label()).collect();
            assert_eq!(found, expected);
            let both: Vec<_> = images.iter().map(|image| image.all_labels()).collect();
            assert_eq!(both, [[0, 99], [19, 0], [7, 42]]);
            assert_eq!(set.names().len(), labels.classes());
            assert_eq!(set.names().last().unwrap(), last);
        }
    }
}

#[test]
fn the_folder_may_be_the_unpacked_one_or_its_parent() {
    let data = tempdir().unwrap();
    let ten = write_cifar10(data.path(), two);
    let hundred = write_cifar100(data.path(), three);
    for path in [data.path(), &ten] {
        assert_eq!(Cifar::train(CifarLabels::Cifar10, path).unwrap().len(), 10);
    }
    for path in [data.path(), &hundred] {
        let train = Cifar::train(CifarLabels::Cifar100Fine, path).unwrap();
        assert_eq!(train.len(), 3);
    }
    // With another name, and with other files.
    let renamed = data.path().join("mine");
    fs::rename(&ten, &renamed).unwrap();
    fs::write(renamed.join("readme.html"), "").unwrap();
    let test = Cifar::test(CifarLabels::Cifar10, &renamed).unwrap();
    assert_eq!(test.len(), 2);
}

#[test]
fn names_may_have_blanks_and_windows_line_ends() {
    let data = tempdir().unwrap();
    let folder = write_cifar10(data.path(), two);
    let names = "a b\r\nc\r\nd\r\n e \r\nf\r\ng\r\nh\r\ni\r\nj\r\nk";
    fs::write(folder.join("batches.meta.txt"), names).unwrap();
    let test = Cifar::test(CifarLabels::Cifar10, data.path()).unwrap();
    assert_eq!(test.names()[0], "a b");
    assert_eq!(test.names()[3], "e");
}

#[test]
fn sets_and_images_print_without_their_pixels() {
    let data = tempdir().unwrap();
    write_cifar10(data.path(), two);
    let test = Cifar::test(CifarLabels::Cifar10, data.path()).unwrap();
    let set = format!("{test:?}");
    assert_eq!(set, "Cifar { labels: Cifar10, images: 2, .. }");
    let image = format!("{:?}", test.get(1).unwrap());
    assert_eq!(image, "CifarImage { index: 1, label: 9, .. }");
}

#[test]
#[should_panic(expected = "image 2 of 2 is out of bounds")]
fn get_out_of_bounds_panics() {
    let data = tempdir().unwrap();
    write_cifar10(data.path(), two);
    let test = Cifar::test(CifarLabels::Cifar10, data.path()).unwrap();
    let _ = test.get(2);
}

/// The error of reading a folder after `spoil`, which must begin with the path of `file`.
fn error(labels: CifarLabels, file: &str, spoil: impl Fn(&Path)) -> CifarError {
    let data = tempdir().unwrap();
    let folder = match labels {
        CifarLabels::Cifar10 => write_cifar10(data.path(), two),
        _ => write_cifar100(data.path(), three),
    };
    let path = folder.join(file);
    spoil(&path);
    let train = Cifar::train(labels, data.path());
    let error = train.and_then(|_| Cifar::test(labels, data.path()));
    let error = error.expect_err("no error");
    let text = error.to_string();
    assert!(text.starts_with(path.to_str().unwrap()), "{text}");
    error
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

#[test]
fn a_missing_file_is_named_with_its_archive() {
    let ten = "data_batch_1.bin data_batch_5.bin test_batch.bin batches.meta.txt";
    let hundred = "train.bin test.bin fine_label_names.txt coarse_label_names.txt";
    for (labels, files, archive) in [
        (CifarLabels::Cifar10, ten, "cifar-10-binary"),
        (CifarLabels::Cifar100Coarse, hundred, "cifar-100-binary"),
    ] {
        let source = "the binary version from https://www.cs.toronto.edu/~kriz/cifar.html";
        let expected = format!("unpack {archive}.tar.gz, {source}");
        for file in files.split(' ') {
            let error = error(labels, file, remove);
            assert!(matches!(error, CifarError::Missing { .. }), "{error}");
            assert!(error.to_string().ends_with(&expected), "{error}");
        }
    }
}

#[test]
fn a_wrong_folder_is_named() {
    let data = tempdir().unwrap();
    let check = |path: &Path, expected: &str| {
        let error = Cifar::train(CifarLabels::Cifar10, path).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        assert!(error.contains(expected), "{error}");
    };
    let missing = "is missing: unpack cifar-10-binary.tar.gz";
    check(&data.path().join("nowhere"), missing);
    // An empty folder, one of the other data set, the archive itself, and a path through it.
    let other = "has no file of CIFAR-10: give the folder cifar-10-batches-bin";
    check(data.path(), other);
    let hundred = write_cifar100(data.path(), three);
    check(&hundred, "has no file of CIFAR-10");
    let archive = data.path().join("cifar-10-binary.tar.gz");
    fs::write(&archive, "").unwrap();
    let file = "is not a folder: give the folder cifar-10-batches-bin";
    check(&archive, file);
    check(&archive.join("x"), "ot a directory");
    // Unpacked, but empty: the first file is missing.
    fs::create_dir(data.path().join("cifar-10-batches-bin")).unwrap();
    let missing = "cifar-10-batches-bin/batches.meta.txt is missing";
    check(data.path(), missing);
}

#[test]
fn a_file_that_is_a_folder_is_unreadable() {
    let error = error(CifarLabels::Cifar10, "data_batch_3.bin", |path| {
        remove(path);
        fs::create_dir(path).unwrap();
    });
    assert!(matches!(error, CifarError::Unreadable { .. }), "{error}");
}

#[test]
fn a_truncated_file_is_named_with_the_record() {
    let cut = |length: usize| move |path: &Path| fs::write(path, &three("")[..length]).unwrap();
    for (length, record, found) in [
        (1, 0, 1),
        (3073, 0, 3073),
        (3074 + 2, 1, 2),
        (2 * 3074 + 3073, 2, 3073),
    ] {
        let error = error(CifarLabels::Cifar100Fine, "test.bin", cut(length));
        assert!(matches!(error, CifarError::Truncated { .. }), "{error}");
        let expected = format!("record {record}, counted from 0, has {found} of 3074 bytes");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    let error = error(CifarLabels::Cifar10, "data_batch_2.bin", cut(0));
    assert!(matches!(error, CifarError::Empty { .. }), "{error}");
}

/// Files with as many records as the published ones are read. Longer ones are refused, by one byte or by more than fits
/// into memory.
#[test]
fn a_file_that_is_too_long_is_not_read_to_its_end() {
    for (labels, file, records, bytes) in [
        (CifarLabels::Cifar10, "data_batch_1.bin", 10_000, 3073),
        (CifarLabels::Cifar10, "test_batch.bin", 10_000, 3073),
        (CifarLabels::Cifar100Fine, "train.bin", 50_000, 3074),
        (CifarLabels::Cifar100Fine, "test.bin", 10_000, 3074),
    ] {
        // Sparse files of zeros.
        let set_length = |length: u64| {
            move |path: &Path| fs::File::create(path).unwrap().set_len(length).unwrap()
        };
        for length in [records * bytes + 1, (records + 1) * bytes, 1 << 40] {
            let error = error(labels, file, set_length(length));
            assert!(matches!(error, CifarError::Oversized { .. }), "{error}");
            let expected =
                format!("is too long: it must have at most {records} records of {bytes} bytes");
            assert!(error.to_string().ends_with(&expected), "{error}");
        }
    }
    let data = tempdir().unwrap();
    let folder = write_cifar10(data.path(), two);
    let file = fs::File::create(folder.join("test_batch.bin")).unwrap();
    file.set_len(10_000 * 3073).unwrap();
    let test = Cifar::test(CifarLabels::Cifar10, data.path()).unwrap();
    assert_eq!(test.len(), 10_000);
}

#[test]
fn a_label_out_of_range_is_named_with_its_record() {
    let set = |place: usize, value: u8| {
        move |path: &Path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[place] = value;
            fs::write(path, bytes).unwrap();
        }
    };
    let (ten, fine) = (CifarLabels::Cifar10, CifarLabels::Cifar100Fine);
    let coarse = CifarLabels::Cifar100Coarse;
    for (labels, file, place, value, record, kind, classes) in [
        (ten, "data_batch_4.bin", 0, 10, 0, "label", 10),
        (ten, "test_batch.bin", 3073, 255, 1, "label", 10),
        (fine, "train.bin", 2 * 3074, 20, 2, "coarse label", 20),
        (coarse, "test.bin", 3074 + 1, 100, 1, "fine label", 100),
    ] {
        let error = error(labels, file, set(place, value));
        assert!(matches!(error, CifarError::Label { .. }), "{error}");
        let expected = format!(
            "record {record}, counted from 0, has the {kind} {value}, but there are {classes} classes"
        );
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
}

#[test]
fn a_file_of_names_has_a_line_for_each_class() {
    let error_of = |labels, file: &str, content: &[u8]| {
        error(labels, file, |path| fs::write(path, content).unwrap())
    };
    let of_ten = |content| error_of(CifarLabels::Cifar10, "batches.meta.txt", content);
    let eleven = "x\n".repeat(11);
    for (content, found) in [("", 0), ("\n\n \n", 0), ("a\nb\n\nc", 3), (&eleven, 11)] {
        let error = of_ten(content.as_bytes());
        let expected =
            format!("must have a class name per line for each of 10 classes, but has {found}");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    let error = of_ten(b"a\nb\xff\n");
    assert!(matches!(error, CifarError::NotText { .. }), "{error}");
    // The names of other labels are checked too.
    for (kind, classes) in [("coarse", 20), ("fine", 100)] {
        let file = format!("{kind}_label_names.txt");
        let error = error_of(CifarLabels::Cifar100Fine, &file, b"one\n");
        let is_named = matches!(error, CifarError::Names { expected, .. } if expected == classes);
        assert!(is_named, "{error}");
    }
}

/// A CIFAR-100 folder whose test file is `bytes`.
fn hundred(bytes: &[u8]) -> TempDir {
    let data = tempdir().unwrap();
    write_cifar100(data.path(), |_| bytes.to_vec());
    data
}

fn are_records(bytes: &[u8]) -> bool {
    let is_record = |record: &[u8]| record.len() == 3074 && record[0] < 20 && record[1] < 100;
    !bytes.is_empty() && bytes.chunks(3074).all(is_record)
}

#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Insert(Index, u8),
    Cut(Index),
}

impl Change {
    fn make(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Insert(at, value) => bytes.insert(at.index(bytes.len() + 1), *value),
            Self::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Self::Set(at, value) if !bytes.is_empty() => *at.get_mut(bytes) = *value,
            Self::Set(..) => {}
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let (at, value) = (any::<Index>, any::<u8>);
    prop_oneof![
        (at(), value()).prop_map(|(at, value)| Change::Set(at, value)),
        (at(), value()).prop_map(|(at, value)| Change::Insert(at, value)),
        at().prop_map(Change::Cut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_are_records_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..7000)) {
        let data = hundred(&bytes);
        let set = Cifar::test(CifarLabels::Cifar100Fine, data.path());
        prop_assert_eq!(set.is_ok(), are_records(&bytes));
    }

    #[test]
    fn arbitrary_names_are_names_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let data = hundred(&three(""));
        fs::write(data.path().join("cifar-100-binary/coarse_label_names.txt"), bytes).unwrap();
        if let Ok(set) = Cifar::test(CifarLabels::Cifar100Coarse, data.path()) {
            prop_assert_eq!(set.names().len(), 20);
        }
    }

    #[test]
    fn a_changed_file_is_records_or_an_error(changes in prop::collection::vec(change(), 0..4)) {
        let mut bytes = three("test.bin");
        changes.iter().for_each(|change| change.make(&mut bytes));
        let data = hundred(&bytes);
        let set = Cifar::test(CifarLabels::Cifar100Fine, data.path());
        prop_assert_eq!(set.is_ok(), are_records(&bytes));
    }

    #[test]
    fn records_are_read_as_written(labels in prop::collection::vec((0..20u8, 0..100u8), 1..5), seed in any::<u8>()) {
        let pixel = |c: usize, y: usize, x: usize| seed.wrapping_mul((c + 3 * y + 96 * x) as u8);
        let records: Vec<_> = labels.iter().map(|&(coarse, fine)| record(&[coarse, fine], pixel)).collect();
        let data = hundred(&records.concat());
        let set = Cifar::test(CifarLabels::Cifar100Fine, data.path()).unwrap();
        prop_assert_eq!(set.len(), records.len());
        for (image, record) in images(&set).iter().zip(&records) {
            prop_assert_eq!(&[image.all_labels(), image.pixels()].concat(), record);
        }
    }
}
