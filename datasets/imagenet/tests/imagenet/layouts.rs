//! Layouts of data sets, cached indices, and folders that are not data sets.

use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, SystemTime},
};

use crate::folder::write;
use stovepipe_imagenet::{FolderSettings, ImageFolder, ImageSets, ImagenetError, IndexCache};
use tempfile::tempdir;

fn touch(folder: &Path, files: &[&str]) {
    for file in files {
        write(folder, &[(file, b"")]);
    }
}

/// The path of each image in the root, and its label.
fn images(folder: &ImageFolder) -> Vec<(String, usize)> {
    let image = |image| {
        let path = folder.path(image);
        assert!(path.is_file(), "{path:?}");
        let name = path.strip_prefix(folder.root()).unwrap();
        (name.to_str().unwrap().to_owned(), folder.label(image))
    };
    (0..folder.len()).map(image).collect()
}

fn named<const N: usize>(images: [(&str, usize); N]) -> Vec<(String, usize)> {
    images.map(|(name, label)| (name.to_owned(), label)).into()
}

fn settings() -> FolderSettings {
    FolderSettings {
        cache: IndexCache::Off,
        ..FolderSettings::default()
    }
}

fn open(root: &Path) -> Result<ImageSets, ImagenetError> {
    ImageSets::open(root, &settings())
}

const TRAIN: &[&str] = &[
    "train/n02/b.JPEG",
    "train/n02/a.jpeg",
    "train/n02/README.txt",
    "train/n02/.hidden.jpg",
    "train/n01/images/c.PNG",
    "train/n01/d.webp",
    "train/.git/e.jpg",
    "train/loose.jpg",
];

fn trained() -> Vec<(String, usize)> {
    let (n01, n02) = (
        ["n01/d.webp", "n01/images/c.PNG"],
        ["n02/a.jpeg", "n02/b.JPEG"],
    );
    [
        named(n01.map(|name| (name, 0))),
        named(n02.map(|name| (name, 1))),
    ]
    .concat()
}

#[test]
fn train_and_val_with_class_folders() {
    for (train, val) in [
        ("train", "val"),
        ("train", "valid"),
        ("train", "validation"),
        ("train", "dev"),
        ("train", "test"),
        ("Train", "Test"),
        ("TRAINING", "Val"),
        ("training_set", "test_set"),
    ] {
        let root = tempdir().unwrap();
        for file in TRAIN {
            touch(root.path(), &[&file.replace("train", train)]);
        }
        let files = ["n01/x.jpg", "n02/y.bmp"].map(|file| format!("{val}/{file}"));
        touch(root.path(), &[&files[0], &files[1]]);
        let sets = open(root.path()).unwrap();
        assert_eq!(sets.held_out, None);
        assert_eq!(sets.train.classes(), ["n01", "n02"]);
        assert_eq!(images(&sets.train), trained());
        let expected = named([("n01/x.jpg", 0), ("n02/y.bmp", 1)]);
        assert_eq!(images(&sets.validation), expected);
    }
}

#[test]
fn a_flat_val_with_a_label_file() {
    let flat = ["val/v1.JPEG", "val/v2.JPEG", "val/v3.JPEG"];
    let expected = named([("v1.JPEG", 1), ("v2.JPEG", 0), ("v3.JPEG", 1)]);
    let kaggle =
        "ImageId,PredictionString\nv1,n02 1 2 3 4 \nv2,n01 1 2 3 4 \nv3,n02 1 2 3 4 n02 5 6 7 8 \n";
    let synsets = "imagenet_2012_validation_synset_labels.txt";
    let tiny = "v1.JPEG\tn02\t0\t0\t9\t9\nv2.JPEG\tn01\t1\nv3.JPEG\tn02\n";
    for (file, content) in [
        ("val.txt", "v3.JPEG n02\nv2.JPEG n01\nv1.JPEG n02\n"),
        ("val.txt", "v3.JPEG 1\nv2.JPEG 0\nv1.JPEG 1\n"),
        ("LOC_val_solution.csv", kaggle),
        (synsets, "n02\nn01\nn02\n"),
        ("val/val_annotations.txt", tiny),
    ] {
        let root = tempdir().unwrap();
        touch(root.path(), TRAIN);
        touch(root.path(), &flat);
        write(root.path(), &[(file, content.as_bytes())]);
        let validation = open(root.path()).unwrap().validation;
        assert_eq!(images(&validation), expected, "{file}");
    }
    // ILSVRC's numbers, which are not sorted by name.
    let root = tempdir().unwrap();
    touch(root.path(), TRAIN);
    touch(root.path(), &flat);
    let truth = "ILSVRC2012_validation_ground_truth.txt";
    write(root.path(), &[(truth, b"1\n2\n1\n")]);
    let error = open(root.path()).unwrap_err().to_string();
    assert!(error.contains(truth), "{error}");
    let expected_error = "put map_clsloc.txt from the development kit of 2015";
    assert!(error.contains(expected_error), "{error}");
    let map = b"n02 1 setter\nn01 2 kit_fox\n";
    write(root.path(), &[("map_clsloc.txt", map)]);
    assert_eq!(images(&open(root.path()).unwrap().validation), expected);
}

#[test]
fn tiny_imagenet() {
    let root = tempdir().unwrap();
    let first = ["train/n01/images/n01_0.JPEG", "train/n01/n01_boxes.txt"];
    touch(root.path(), &first);
    touch(root.path(), &["train/n02/images/n02_0.JPEG"]);
    let validation = ["val/images/val_0.JPEG", "val/images/val_1.JPEG"];
    touch(root.path(), &validation);
    touch(root.path(), &["test/images/test_0.JPEG"]);
    let labels = b"val_0.JPEG\tn02\t0\t32\t44\t62\nval_1.JPEG\tn01\t5\t0\t57\t58\n";
    write(root.path(), &[("val/val_annotations.txt", labels)]);
    let sets = open(root.path()).unwrap();
    assert_eq!(sets.train.len(), 2);
    let expected = named([("images/val_0.JPEG", 1), ("images/val_1.JPEG", 0)]);
    assert_eq!(images(&sets.validation), expected);
}

#[test]
fn a_label_file_may_be_named() {
    let root = tempdir().unwrap();
    touch(root.path(), TRAIN);
    touch(root.path(), &["val/v1.JPEG", "val/v2.JPEG"]);
    let other = ("val.txt", &b"of something else"[..]);
    write(root.path(), &[other, ("mine", b"v2 n01\nv1 n02\n")]);
    let settings = FolderSettings {
        labels: Some(root.path().join("mine")),
        ..FolderSettings::default()
    };
    let sets = ImageSets::open(root.path(), &settings).unwrap();
    let expected = named([("v1.JPEG", 1), ("v2.JPEG", 0)]);
    assert_eq!(images(&sets.validation), expected);
}

fn split(root: &Path, validation: f64) -> Result<ImageSets, ImagenetError> {
    let settings = FolderSettings {
        validation,
        ..settings()
    };
    ImageSets::open(root, &settings)
}

#[test]
fn a_share_of_each_class_is_held_out() {
    let root = tempdir().unwrap();
    for image in 0..40 {
        // A class may be named train.
        for class in ["car", "train"] {
            touch(root.path(), &[&format!("{class}/{image}.jpg")]);
        }
    }
    touch(root.path(), &["rare/1.jpg", "rare/2.jpg", "single/1.jpg"]);
    let sets = split(root.path(), 0.25).unwrap();
    assert_eq!(sets.held_out, Some(0.25));
    let count =
        |set: &ImageFolder, class| (0..set.len()).filter(|&i| set.label(i) == class).count();
    let counts = |set| [0, 1, 2, 3].map(|class| count(set, class));
    assert_eq!(counts(&sets.validation), [10, 1, 0, 10]);
    assert_eq!(counts(&sets.train), [30, 1, 1, 30]);
    let mut all = [images(&sets.train), images(&sets.validation)].concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 83);
    for share in [0.0, 1.0, -0.5, 5.0, f64::NAN] {
        let error = split(root.path(), share).unwrap_err();
        assert!(matches!(error, ImagenetError::Setting { .. }), "{error}");
    }
}

#[test]
fn held_out_images_depend_only_on_names() {
    let root = tempdir().unwrap();
    for image in 0..10 {
        for class in ["cat", "dog"] {
            touch(root.path(), &[&format!("{class}/{image}.jpg")]);
        }
    }
    let held_out = || -> Vec<String> {
        let sets = split(root.path(), 0.2).unwrap();
        let images = images(&sets.validation).into_iter();
        images.map(|(name, _)| name).collect()
    };
    // The lowest by SipHash-2-4, from another implementation.
    let expected = ["cat/6.jpg", "cat/9.jpg", "dog/0.jpg", "dog/2.jpg"];
    assert_eq!(held_out(), expected);
    // An added class changes nothing for the others. Each added image moves at most one other image.
    touch(root.path(), &["ant/1.jpg", "ant/2.jpg"]);
    let mut before = held_out();
    assert_eq!(before[1..], expected);
    for image in 10..40 {
        touch(root.path(), &[&format!("cat/{image}.jpg")]);
        let now = held_out();
        let gone = before.iter().filter(|name| !now.contains(name)).count();
        let come = now.iter().filter(|name| !before.contains(name)).count();
        assert!(gone + come <= 2, "{before:?} {now:?}");
        assert!(now.ends_with(&["dog/0.jpg".to_owned(), "dog/2.jpg".to_owned()]));
        before = now;
    }
    assert_eq!(before.len(), 1 + 8 + 2);
}

fn settle(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            settle(&path);
        }
    }
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    File::open(folder).unwrap().set_modified(hour_ago).unwrap();
}

#[test]
fn an_index_is_cached_until_a_folder_changes() {
    let root = tempdir().unwrap();
    let train = root.path().join("train");
    touch(root.path(), TRAIN);
    settle(&train);
    let open = || ImageFolder::open(&train, &IndexCache::Beside).unwrap();
    assert_eq!(images(&open()), trained());
    // The cache file is changed, to see whether it is read.
    let file = root.path().join("train.index.csv");
    let spoil = || {
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("a.jpeg", "a0.jpeg")).unwrap();
    };
    let from_file = || {
        let opened = open();
        (0..opened.len()).any(|image| opened.path(image).ends_with("a0.jpeg"))
    };
    assert!(!from_file());
    spoil();
    assert!(from_file());
    // Adds, removes and renames a file, at any depth, and adds a class.
    let images_of = train.join("n01/images");
    let changes: [&dyn Fn(); 4] = [
        &|| touch(&train, &["n02/0.jpg"]),
        &|| fs::remove_file(train.join("n02/0.jpg")).unwrap(),
        &|| fs::rename(images_of.join("c.PNG"), images_of.join("cc.PNG")).unwrap(),
        &|| touch(&train, &["n03/1.jpg"]),
    ];
    for change in changes {
        change();
        assert!(!from_file());
        settle(&train);
        // The times have changed.
        assert!(!from_file());
        spoil();
        assert!(from_file());
    }
    assert_eq!(open().classes(), ["n01", "n02", "n03"]);
    // A folder that changed just before it was read may have changed again within the clock's resolution.
    touch(&train, &["n03/2.jpg"]);
    assert!(!from_file());
    spoil();
    assert!(!from_file());
}

#[test]
fn a_damaged_or_unwritable_cache_is_ignored() {
    let root = tempdir().unwrap();
    let train = root.path().join("train");
    touch(root.path(), TRAIN);
    settle(&train);
    let file = root.path().join("train.index.csv");
    fs::write(&file, "stovepipe-index,1,99999999999999999999\nfolder,1").unwrap();
    let images_with = |cache: IndexCache| images(&ImageFolder::open(&train, &cache).unwrap());
    assert_eq!(images_with(IndexCache::Beside), trained());
    assert!(fs::read_to_string(&file).unwrap().ends_with("end,4\n"));
    // A folder for caches, and one that cannot be created because it is a file.
    let caches = root.path().join("some/caches");
    assert_eq!(images_with(IndexCache::In(caches.clone())), trained());
    assert_eq!(fs::read_dir(&caches).unwrap().count(), 1);
    assert_eq!(images_with(IndexCache::In(file)), trained());
    fs::remove_file(root.path().join("train.index.csv")).unwrap();
    assert_eq!(images_with(IndexCache::Off), trained());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
}

#[test]
fn other_folders_are_errors() {
    let check = |files: &str, expected: &str| {
        let root = tempdir().unwrap();
        touch(root.path(), &files.split_whitespace().collect::<Vec<_>>());
        let error = open(root.path()).unwrap_err().to_string();
        let error = error.replace(root.path().to_str().unwrap(), "ROOT");
        assert!(error.starts_with(expected), "{error}");
    };
    check("", "ROOT has no class folders");
    check("1.jpg 2.jpg", "ROOT has no class folders");
    let one = "ROOT has only one class, images: training needs two or more";
    check("images/1.jpg", one);
    let no_images = "ROOT/b has no images (files that end in jpg, jpeg";
    check("a/1.jpg b/2.txt", no_images);
    check(
        "a/1.jpg b/1.jpg",
        "the images of ROOT cannot be split: a share of 0.2 of 2",
    );
    // Splits with other names, or without classes.
    let no_train = |name: &str| {
        format!("ROOT has a folder {name}, but no folder train with a folder for each class")
    };
    check("cat/1.jpg dog/1.jpg Test/1.jpg", &no_train("Test"));
    check("train/1.jpg val/1.jpg", &no_train("val"));
    let mine = "val/cat/1.jpg val/dog/1.jpg mine/cat/1.jpg";
    check(mine, &no_train("val"));
    check("training/1.jpg cat/1.jpg", &no_train("training"));
    // Two data sets, a data set beside its annotations, and one level too many.
    let between = |folder: &str, first: &str, meant: &str| {
        format!(
            "ROOT/{folder} has no images of its own, but 2 folders with images, such as {first}: \
                 if these are the classes, give ROOT/{meant};"
        )
    };
    let two_sets = "pets/cat/1.jpg pets/dog/1.jpg tv/old/1.jpg tv/new/1.jpg";
    check(two_sets, &between("pets", "cat", "pets"));
    let annotated = "annotations/1.txt images/cake/1.jpg images/pie/1.jpg images/pie/2.jpg";
    check(annotated, &between("images", "cake", "images"));
    let annotated = "images/cake/1.jpg images/pie/1.jpg meta/train.txt";
    check(annotated, "ROOT/images has no images of its own");
    let nested = "CLS/train/n01/1.jpg CLS/train/n02/1.jpg CLS/val/1.jpg lists/1.txt";
    check(nested, &between("CLS/train", "n01", "CLS"));
    let groups = "train/animal/cat/1.jpg train/animal/dog/1.jpg train/car/1.jpg";
    check(groups, "ROOT/train/animal has no images of its own, but 2");
    let one = "ROOT/train has only one class, a";
    check("train/a/1.jpg val/a/1.jpg", one);
    let extra = "ROOT/val has the class c, which the training images lack";
    check("train/a/1.jpg train/b/1.jpg val/a/1.jpg val/c/1.jpg", extra);
    let files = "train/a/1.jpg train/b/1.jpg train/c/1.jpg val/a/1.jpg val/b/1.jpg";
    let missing = "ROOT/val lacks the class c, which the training images have";
    check(files, missing);
    let flat = "train/a/1.jpg train/b/1.jpg val/1.jpg";
    let no_labels = "ROOT/val has images but no class folders and no label file";
    check(flat, no_labels);
    check(&format!("{flat} val.txt"), "ROOT/val.txt: has no labels");
    let deep = "a/1.jpg b/1/2/3/4/5/6/7/8/9/1.jpg";
    check(deep, "ROOT/b/1/2/3/4/5/6/7/8 is more than 8 folders deep");
    let root = tempdir().unwrap();
    let missing = open(&root.path().join("nowhere")).unwrap_err();
    let is_unreadable = matches!(missing, ImagenetError::Unreadable { .. });
    assert!(is_unreadable, "{missing}");
    touch(root.path(), &["file"]);
    let file = open(&root.path().join("file")).unwrap_err();
    assert!(matches!(file, ImagenetError::NotAFolder { .. }), "{file}");
}

#[test]
fn a_label_file_without_validation_images_is_an_error() {
    let root = tempdir().unwrap();
    let files = ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg"];
    touch(root.path(), &files);
    let settings = FolderSettings {
        labels: Some("nowhere.txt".into()),
        ..settings()
    };
    let error = ImageSets::open(root.path(), &settings).unwrap_err();
    let expected = "nowhere.txt is not used: ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn a_wrong_label_is_named_with_its_line() {
    let root = tempdir().unwrap();
    touch(root.path(), TRAIN);
    touch(root.path(), &["val/v1.JPEG", "val/v2.JPEG"]);
    let no_class = ", line 2: there is no class n09";
    let no_image = ", line 3: there is no image v3.JPEG";
    let no_label = ": has no label for 1 of 2 images; the first is v2.JPEG";
    for (content, expected) in [
        (&b"v1.JPEG n01\nv2.JPEG n09\n"[..], no_class),
        (b"v1.JPEG n01\n\nv3.JPEG n02\n", no_image),
        (b"v1.JPEG n01\n", no_label),
        (b"\xff\xfe", ": is not UTF-8 text"),
    ] {
        write(root.path(), &[("val.txt", content)]);
        let error = open(root.path()).unwrap_err().to_string();
        let file = root.path().join("val.txt").display().to_string();
        assert_eq!(error, format!("{file}{expected}"));
    }
}

#[cfg(unix)]
#[test]
fn odd_names_and_links_are_handled() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let root = tempdir().unwrap();
    let files = ["far/1.jpg", "set/a/1.jpg", "set/b/1.jpg", "set/b/2.jpg"];
    touch(root.path(), &files);
    let set = root.path().join("set");
    std::os::unix::fs::symlink(root.path().join("far"), set.join("c")).unwrap();
    let opened = ImageFolder::open(&set, &IndexCache::Off).unwrap();
    assert_eq!(opened.classes(), ["a", "b", "c"]);
    let back = set.join("b/back");
    std::os::unix::fs::symlink(&set, &back).unwrap();
    let error = ImageFolder::open(&set, &IndexCache::Off).unwrap_err();
    assert!(matches!(error, ImagenetError::TooDeep { .. }), "{error}");
    fs::remove_file(back).unwrap();
    fs::write(set.join("a").join(OsStr::from_bytes(b"\xff.jpg")), "").unwrap();
    let error = ImageFolder::open(&set, &IndexCache::Off).unwrap_err();
    assert!(matches!(error, ImagenetError::OddName { .. }), "{error}");
}
