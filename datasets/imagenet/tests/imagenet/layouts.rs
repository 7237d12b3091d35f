//! Layouts that people have on disk, what is kept of them, and what is refused.

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

/// The images of a folder by name and label, as its root sees them.
fn images(folder: &ImageFolder) -> Vec<(String, usize)> {
    let image = |image| {
        let path = folder.path(image);
        assert!(path.is_file(), "{path:?}");
        let name = path.strip_prefix(folder.root()).unwrap();
        (name.to_str().unwrap().to_owned(), folder.label(image))
    };
    (0..folder.len()).map(image).collect()
}

fn named(images: &[(&str, usize)]) -> Vec<(String, usize)> {
    images
        .iter()
        .map(|(name, label)| ((*name).to_owned(), *label))
        .collect()
}

fn open(root: &Path) -> Result<ImageSets, ImagenetError> {
    let cache = IndexCache::Off;
    ImageSets::open(
        root,
        &FolderSettings {
            cache,
            ..FolderSettings::default()
        },
    )
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
    named(&[
        ("n01/d.webp", 0),
        ("n01/images/c.PNG", 0),
        ("n02/a.jpeg", 1),
        ("n02/b.JPEG", 1),
    ])
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
        touch(
            root.path(),
            &[&format!("{val}/n01/x.jpg"), &format!("{val}/n02/y.bmp")],
        );
        let sets = open(root.path()).unwrap();
        assert_eq!(sets.held_out, None);
        assert_eq!(sets.train.classes(), ["n01", "n02"]);
        assert_eq!(images(&sets.train), trained());
        assert_eq!(
            images(&sets.validation),
            named(&[("n01/x.jpg", 0), ("n02/y.bmp", 1)])
        );
    }
}

#[test]
fn a_flat_val_with_a_file_of_labels() {
    let flat = ["val/v1.JPEG", "val/v2.JPEG", "val/v3.JPEG"];
    let expected = named(&[("v1.JPEG", 1), ("v2.JPEG", 0), ("v3.JPEG", 1)]);
    for (file, content) in [
        ("val.txt", "v3.JPEG n02\nv2.JPEG n01\nv1.JPEG n02\n"),
        ("val.txt", "v3.JPEG 1\nv2.JPEG 0\nv1.JPEG 1\n"),
        (
            "LOC_val_solution.csv",
            "ImageId,PredictionString\nv1,n02 1 2 3 4 \nv2,n01 1 2 3 4 \nv3,n02 1 2 3 4 n02 5 6 7 8 \n",
        ),
        (
            "imagenet_2012_validation_synset_labels.txt",
            "n02\nn01\nn02\n",
        ),
        (
            "val/val_annotations.txt",
            "v1.JPEG\tn02\t0\t0\t9\t9\nv2.JPEG\tn01\t1\nv3.JPEG\tn02\n",
        ),
    ] {
        let root = tempdir().unwrap();
        touch(root.path(), TRAIN);
        touch(root.path(), &flat);
        write(root.path(), &[(file, content.as_bytes())]);
        assert_eq!(
            images(&open(root.path()).unwrap().validation),
            expected,
            "{file}"
        );
    }
    // ILSVRC's numbers, in another order than the names.
    let root = tempdir().unwrap();
    touch(root.path(), TRAIN);
    touch(root.path(), &flat);
    let truth = "ILSVRC2012_validation_ground_truth.txt";
    write(root.path(), &[(truth, b"1\n2\n1\n")]);
    let error = open(root.path()).unwrap_err().to_string();
    assert!(
        error.contains(truth)
            && error.contains("map_clsloc.txt beside it (from the development kit of 2015;"),
        "{error}"
    );
    write(
        root.path(),
        &[("map_clsloc.txt", b"n02 1 setter\nn01 2 kit_fox\n")],
    );
    assert_eq!(images(&open(root.path()).unwrap().validation), expected);
}

#[test]
fn tiny_imagenet_as_it_unpacks() {
    let root = tempdir().unwrap();
    touch(
        root.path(),
        &[
            "train/n01/images/n01_0.JPEG",
            "train/n01/n01_boxes.txt",
            "train/n02/images/n02_0.JPEG",
        ],
    );
    touch(
        root.path(),
        &[
            "val/images/val_0.JPEG",
            "val/images/val_1.JPEG",
            "test/images/test_0.JPEG",
        ],
    );
    write(
        root.path(),
        &[(
            "val/val_annotations.txt",
            b"val_0.JPEG\tn02\t0\t32\t44\t62\nval_1.JPEG\tn01\t5\t0\t57\t58\n",
        )],
    );
    let sets = open(root.path()).unwrap();
    assert_eq!(sets.train.len(), 2);
    assert_eq!(
        images(&sets.validation),
        named(&[("images/val_0.JPEG", 1), ("images/val_1.JPEG", 0)])
    );
}

#[test]
fn a_file_of_labels_may_be_named() {
    let root = tempdir().unwrap();
    touch(root.path(), TRAIN);
    touch(root.path(), &["val/v1.JPEG", "val/v2.JPEG"]);
    write(
        root.path(),
        &[
            ("val.txt", b"of something else"),
            ("mine", b"v2 n01\nv1 n02\n"),
        ],
    );
    let labels = Some(root.path().join("mine"));
    let settings = FolderSettings {
        labels,
        ..FolderSettings::default()
    };
    let sets = ImageSets::open(root.path(), &settings).unwrap();
    assert_eq!(
        images(&sets.validation),
        named(&[("v1.JPEG", 1), ("v2.JPEG", 0)])
    );
}

fn split(root: &Path, validation: f64) -> Result<ImageSets, ImagenetError> {
    let cache = IndexCache::Off;
    let settings = FolderSettings {
        validation,
        cache,
        ..FolderSettings::default()
    };
    ImageSets::open(root, &settings)
}

#[test]
fn of_class_folders_alone_a_share_of_each_is_held_out() {
    let root = tempdir().unwrap();
    for image in 0..40 {
        // A class may be called train.
        touch(
            root.path(),
            &[&format!("car/{image}.jpg"), &format!("train/{image}.jpg")],
        );
    }
    touch(root.path(), &["rare/1.jpg", "rare/2.jpg", "single/1.jpg"]);
    let sets = split(root.path(), 0.25).unwrap();
    assert_eq!(sets.held_out, Some(0.25));
    let count =
        |set: &ImageFolder, class| (0..set.len()).filter(|&i| set.label(i) == class).count();
    assert_eq!(
        [0, 1, 2, 3].map(|class| count(&sets.validation, class)),
        [10, 1, 0, 10]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|class| count(&sets.train, class)),
        [30, 1, 1, 30]
    );
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
fn what_is_held_out_the_names_say_alone() {
    let root = tempdir().unwrap();
    for image in 0..10 {
        touch(
            root.path(),
            &[&format!("cat/{image}.jpg"), &format!("dog/{image}.jpg")],
        );
    }
    let held_out = || -> Vec<String> {
        let sets = split(root.path(), 0.2).unwrap();
        let images = images(&sets.validation).into_iter();
        images.map(|(name, _)| name).collect()
    };
    // The lowest by SipHash-2-4, as another implementation has it.
    assert_eq!(
        held_out(),
        ["cat/6.jpg", "cat/9.jpg", "dog/0.jpg", "dog/2.jpg"]
    );
    // A class more, before them; of another, images more: one other at most changes its side for each.
    touch(root.path(), &["ant/1.jpg", "ant/2.jpg"]);
    let mut before = held_out();
    assert_eq!(
        before[1..],
        ["cat/6.jpg", "cat/9.jpg", "dog/0.jpg", "dog/2.jpg"]
    );
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

/// Sets the times of folders, as if nothing had been changed for an hour.
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
fn an_index_is_kept_until_a_folder_changes() {
    let root = tempdir().unwrap();
    let train = root.path().join("train");
    touch(root.path(), TRAIN);
    settle(&train);
    let open = || ImageFolder::open(&train, &IndexCache::Beside).unwrap();
    assert_eq!(images(&open()), trained());
    // Whether the file is read shows where it says something else.
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
    // A file more, a file less, one renamed, at any depth; a class more.
    let changes: [&dyn Fn(); 4] = [
        &|| touch(&train, &["n02/0.jpg"]),
        &|| fs::remove_file(train.join("n02/0.jpg")).unwrap(),
        &|| {
            fs::rename(
                train.join("n01/images/c.PNG"),
                train.join("n01/images/cc.PNG"),
            )
            .unwrap()
        },
        &|| touch(&train, &["n03/1.jpg"]),
    ];
    for change in changes {
        change();
        assert!(!from_file());
        settle(&train);
        // The times are others now.
        assert!(!from_file());
        spoil();
        assert!(from_file());
    }
    assert_eq!(open().classes(), ["n01", "n02", "n03"]);
    // What was changed a moment before it was read might have changed since, within the clock's tick.
    touch(&train, &["n03/2.jpg"]);
    assert!(!from_file());
    spoil();
    assert!(!from_file());
}

#[test]
fn a_damaged_or_unwritable_index_is_done_without() {
    let root = tempdir().unwrap();
    let train = root.path().join("train");
    touch(root.path(), TRAIN);
    settle(&train);
    let file = root.path().join("train.index.csv");
    fs::write(&file, "stovepipe-index,1,99999999999999999999\nfolder,1").unwrap();
    let images_with = |cache: IndexCache| images(&ImageFolder::open(&train, &cache).unwrap());
    assert_eq!(images_with(IndexCache::Beside), trained());
    assert!(fs::read_to_string(&file).unwrap().ends_with("end,4\n"));
    // A folder of its own for indices, and one that cannot be, since it is a file.
    let caches = root.path().join("some/caches");
    assert_eq!(images_with(IndexCache::In(caches.clone())), trained());
    assert_eq!(fs::read_dir(&caches).unwrap().count(), 1);
    assert_eq!(images_with(IndexCache::In(file)), trained());
    fs::remove_file(root.path().join("train.index.csv")).unwrap();
    assert_eq!(images_with(IndexCache::Off), trained());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
}

#[test]
fn what_is_no_data_set_is_named() {
    let check = |files: &[&str], expected: &str| {
        let root = tempdir().unwrap();
        touch(root.path(), files);
        let error = open(root.path()).unwrap_err().to_string();
        let error = error.replace(root.path().to_str().unwrap(), "ROOT");
        assert!(error.starts_with(expected), "{error}");
    };
    check(&[], "ROOT has no folders of classes");
    check(&["1.jpg", "2.jpg"], "ROOT has no folders of classes");
    check(
        &["images/1.jpg"],
        "ROOT has one class, images: there is nothing to tell apart",
    );
    check(
        &["a/1.jpg", "b/2.txt"],
        "ROOT/b has no images (files that end in jpg, jpeg",
    );
    check(&["a/1.jpg", "b/1.jpg"], "2 images of ROOT cannot be split");
    // Splits under other names, or of no classes.
    check(
        &["cat/1.jpg", "dog/1.jpg", "Test/1.jpg"],
        "ROOT has a folder Test, but none called train with a folder for each class",
    );
    check(
        &["train/1.jpg", "val/1.jpg"],
        "ROOT has a folder val, but none called train",
    );
    check(
        &["val/cat/1.jpg", "val/dog/1.jpg", "mine/cat/1.jpg"],
        "ROOT has a folder val, but none called train",
    );
    check(
        &["training/1.jpg", "cat/1.jpg"],
        "ROOT has a folder training, but none called train",
    );
    // Two data sets; a data set beside its notes; one folder too many around it.
    check(
        &[
            "pets/cat/1.jpg",
            "pets/dog/1.jpg",
            "tv/old/1.jpg",
            "tv/new/1.jpg",
        ],
        "ROOT/pets has no images of its own, but 2 folders with some, such as cat: if these are the classes, give ROOT/pets;",
    );
    check(
        &[
            "annotations/1.txt",
            "images/cake/1.jpg",
            "images/pie/1.jpg",
            "images/pie/2.jpg",
        ],
        "ROOT/images has no images of its own, but 2 folders with some, such as cake: if these are the classes, give ROOT/images;",
    );
    check(
        &["images/cake/1.jpg", "images/pie/1.jpg", "meta/train.txt"],
        "ROOT/images has no images of its own",
    );
    check(
        &[
            "CLS/train/n01/1.jpg",
            "CLS/train/n02/1.jpg",
            "CLS/val/1.jpg",
            "lists/1.txt",
        ],
        "ROOT/CLS/train has no images of its own, but 2 folders with some, such as n01: if these are the classes, give ROOT/CLS;",
    );
    check(
        &[
            "train/animal/cat/1.jpg",
            "train/animal/dog/1.jpg",
            "train/car/1.jpg",
        ],
        "ROOT/train/animal has no images of its own, but 2",
    );
    check(
        &["train/a/1.jpg", "val/a/1.jpg"],
        "ROOT/train has one class, a",
    );
    check(
        &[
            "train/a/1.jpg",
            "train/b/1.jpg",
            "val/a/1.jpg",
            "val/c/1.jpg",
        ],
        "ROOT/val has the class c, which",
    );
    check(
        &[
            "train/a/1.jpg",
            "train/b/1.jpg",
            "train/c/1.jpg",
            "val/a/1.jpg",
            "val/b/1.jpg",
        ],
        "ROOT/val lacks the class c, which",
    );
    check(
        &["train/a/1.jpg", "train/b/1.jpg", "val/1.jpg"],
        "ROOT/val has images but no class folders, and there is no file",
    );
    check(
        &["train/a/1.jpg", "train/b/1.jpg", "val/1.jpg", "val.txt"],
        "ROOT/val.txt: has no labels",
    );
    check(
        &["a/1.jpg", "b/1/2/3/4/5/6/7/8/9/1.jpg"],
        "ROOT/b/1/2/3/4/5/6/7/8 lies more than 8 folders deep",
    );
    let root = tempdir().unwrap();
    let missing = open(&root.path().join("nowhere")).unwrap_err();
    assert!(
        matches!(missing, ImagenetError::Unreadable { .. }),
        "{missing}"
    );
    touch(root.path(), &["file"]);
    let file = open(&root.path().join("file")).unwrap_err();
    assert!(matches!(file, ImagenetError::NotAFolder { .. }), "{file}");
}

#[test]
fn labels_need_images_that_they_are_of() {
    let root = tempdir().unwrap();
    touch(
        root.path(),
        &["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg"],
    );
    let settings = FolderSettings {
        labels: Some("nowhere.txt".into()),
        cache: IndexCache::Off,
        ..FolderSettings::default()
    };
    let error = ImageSets::open(root.path(), &settings).unwrap_err();
    assert!(
        error.to_string().starts_with("nowhere.txt has no use: "),
        "{error}"
    );
}

#[test]
fn a_label_that_does_not_fit_is_named_with_its_line() {
    let root = tempdir().unwrap();
    touch(root.path(), TRAIN);
    touch(root.path(), &["val/v1.JPEG", "val/v2.JPEG"]);
    let check = |content: &[u8], expected: &str| {
        write(root.path(), &[("val.txt", content)]);
        let error = open(root.path()).unwrap_err().to_string();
        let file = root.path().join("val.txt").display().to_string();
        assert_eq!(error, format!("{file}{expected}"));
    };
    check(
        b"v1.JPEG n01\nv2.JPEG n09\n",
        ", line 2: there is no class n09",
    );
    check(
        b"v1.JPEG n01\n\nv3.JPEG n02\n",
        ", line 3: there is no image v3.JPEG",
    );
    check(
        b"v1.JPEG n01\n",
        ": has no label for 1 of 2 images; the first is v2.JPEG",
    );
    check(b"\xff\xfe", ": is no text");
}

#[cfg(unix)]
#[test]
fn odd_names_and_links_are_handled() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let root = tempdir().unwrap();
    touch(
        root.path(),
        &["far/1.jpg", "set/a/1.jpg", "set/b/1.jpg", "set/b/2.jpg"],
    );
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
