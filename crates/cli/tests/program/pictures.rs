//! Folders of pictures in ImageNet's layout, as a user trains on them.

use std::{fs, path::Path};

use image::{Rgb, RgbImage};
use tempfile::TempDir;

use crate::running::{
    Printed, check_contains, refuse, refuse_and_leave_nothing, run, succeed, summary,
};

const CLASSES: [(&str, [u8; 3]); 2] = [("n01440764", [200, 60, 30]), ("n02102040", [30, 80, 210])];

/// A picture of one colour, darker or lighter from row to row.
fn picture(colour: [u8; 3], number: u32) -> RgbImage {
    let shade =
        |value: u8, x: u32, y: u32| value.saturating_add(((x * 3 + y + 7 * number) % 40) as u8);
    RgbImage::from_fn(320, 240, |x, y| Rgb(colour.map(|value| shade(value, x, y))))
}

/// `imagenet/train/<wnid>/*.JPEG`, and a flat `imagenet/val` with a file of labels.
fn tree() -> TempDir {
    let directory = TempDir::new().unwrap();
    let root = directory.path().join("imagenet");
    let val = root.join("val");
    fs::create_dir_all(&val).unwrap();
    let mut labels = String::new();
    for (class, (wnid, colour)) in CLASSES.into_iter().enumerate() {
        let folder = root.join("train").join(wnid);
        fs::create_dir_all(&folder).unwrap();
        let save = |path: &Path, number| {
            let format = image::ImageFormat::Jpeg;
            picture(colour, number)
                .save_with_format(path, format)
                .unwrap();
        };
        for number in 0..8 {
            save(&folder.join(format!("{wnid}_{number}.JPEG")), number);
        }
        for number in 0..3 {
            let name = format!(
                "ILSVRC2012_val_0000000{}.JPEG",
                3 * class as u32 + number + 1
            );
            save(&val.join(&name), 20 + number);
            labels += &format!("{name} {wnid}\n");
        }
    }
    fs::write(root.join("val.txt"), labels).unwrap();
    directory
}

const SMALL: &str = "train --data imagenet --data-dir imagenet --layers 3 --filters 8 --batch-size 4 \
                     --micro-batches 2 --epochs 2 --out run";

fn train(directory: &Path, more: &str) -> Printed {
    run(&format!("{SMALL} {more}"), directory)
}

/// 224×224, every augmentation, an auxiliary head, averages: all that the recipe for ImageNet has, for a few steps.
#[test]
fn a_tree_in_imagenets_layout_trains_end_to_end() {
    let directory = tree();
    let directory = directory.path();
    let more = "--auxiliary true --drop-path 0.3 --optimizer rmsprop --epsilon 1 --lr 0.05 --ema 0.9 --mixup 0.2 \
                --color-jitter 0.4 --rand-augment 2 --cutout 32 --interpolation bicubic";
    train(directory, more);
    let summary = summary(directory, "run");
    let test = &summary["test"];
    assert!(test["loss"].as_f64().unwrap().is_finite());
    let classes = fs::read_to_string(directory.join("run/classes.txt")).unwrap();
    assert_eq!(classes, "n01440764\nn02102040\n");

    // The saved model, in another number of stages: what it was, to the last bit.
    for (more, expected) in [("", test), ("--averaged", &summary["averaged"])] {
        let evaluated = run(&format!("eval run --stages 1 --json {more}"), directory);
        assert_eq!(&evaluated.json()["test"], expected);
    }
    assert_ne!(test, &summary["averaged"]);

    let file = "imagenet/val/ILSVRC2012_val_00000001.JPEG";
    let said = succeed(&format!("eval run --predict {file}"), directory);
    assert!(
        said.starts_with(&format!("{file}: n0")) && said.matches(" %").count() == 2,
        "{said}"
    );
}

#[test]
fn small_images_are_learned_by_a_vision_transformer() {
    let directory = tree();
    let directory = directory.path();
    let more = "--model vit --image-size 32 --layers 2 --width 32 --heads 2 --patch 8 --epochs 8";
    // AmoebaNet's filters are none of its settings.
    let expected = "filters is for amoebanet-d and amoebanet-b, not for vit";
    refuse(&format!("{SMALL} {more}"), directory, expected);
    let line = "train --data imagenet --data-dir imagenet --batch-size 8 --out run";
    run(&format!("{line} {more}"), directory);
    let accuracy = summary(directory, "run")["test"]["accuracy"]
        .as_f64()
        .unwrap();
    assert!(accuracy > 0.8, "{accuracy}");
}

#[test]
fn damaged_files_are_named_and_a_few_are_skipped() {
    let directory = tree();
    let directory = directory.path();
    let bad = directory.join("imagenet/train/n01440764/bad.JPEG");
    fs::write(bad, b"no picture").unwrap();
    let small = "--image-size 64 --epochs 1";
    let expected = [
        "skipped, 1 of at most 10: imagenet/train/n01440764/bad.JPEG: is not an image",
        "1 file was skipped in all",
    ];
    check_contains(&train(directory, small).err, &expected);
    let strict = format!("{SMALL} {small} --skip 0 --out strict");
    refuse(&strict, directory, "bad.JPEG");
    assert!(!directory.join("strict").exists());
}

/// Of training and test images together no more than `--skip` may be damaged; each is reported once.
#[test]
fn damaged_files_count_once_wherever_they_are() {
    let directory = tree();
    let directory = directory.path();
    for file in [
        "train/n01440764/bad.JPEG",
        "train/n02102040/worse.JPEG",
        "val/ILSVRC2012_val_00000002.JPEG",
    ] {
        fs::write(directory.join("imagenet").join(file), b"no picture").unwrap();
    }
    let small = "--image-size 64 --epochs 2";
    let stderr = train(directory, &format!("{small} --skip 3")).err;
    for file in ["bad.JPEG", "worse.JPEG", "val_00000002.JPEG"] {
        assert_eq!(stderr.matches(file).count(), 1, "{stderr}");
    }
    assert!(stderr.contains("3 files were skipped in all"), "{stderr}");
    let strict = format!("{SMALL} {small} --skip 2 --out strict");
    let expected = "more than 2 files cannot be loaded";
    refuse(&strict, directory, expected);
}

/// What is held out of class folders does not depend on the seed: a model is never tested on what it was trained on.
#[test]
fn class_folders_are_split_the_same_under_any_seed() {
    let directory = tree();
    let directory = directory.path();
    let folders = "--image-size 64 --epochs 1 --data-dir imagenet/train";
    let found =
        "imagenet/train: 2 classes, 12 images to train on, 4 kept for testing (a share of 0.2)";
    check_contains(&train(directory, folders).err, &[found]);
    let eval = |more: &str| run(&format!("eval run --json {more}"), directory).json();
    let tested = eval("");
    assert_eq!(tested["test"], summary(directory, "run")["test"]);
    assert_eq!(eval("--seed 3"), tested);
}

#[test]
fn layouts_under_other_names_are_found_and_reported() {
    let directory = tree();
    let directory = directory.path();
    let root = directory.join("imagenet");
    fs::rename(root.join("train"), root.join("Train")).unwrap();
    fs::rename(root.join("val"), root.join("DEV")).unwrap();
    let found = "imagenet: 2 classes, 16 images to train on, 6 to test with from imagenet/DEV";
    check_contains(
        &train(directory, "--image-size 64 --epochs 1").err,
        &[found],
    );
}

#[test]
fn settings_that_would_do_nothing_are_refused() {
    let directory = tree();
    let root = directory.path();
    let fail = |flags: &str, expected: &str| {
        refuse(&format!("{SMALL} {flags}"), root, expected);
    };
    fail(
        "--val-share 0.3",
        "val-share has no use: the images to test with have a folder of their own, imagenet/val",
    );
    fail(
        "--data-dir imagenet/train --val-labels no.txt",
        "no.txt is not used: there is no folder of validation images",
    );
    // Ranges are checked wherever the images are.
    for (flag, value, range) in [
        ("image-size", "0", "from 1 to 16384"),
        ("image-size", "16385", "from 1 to 16384"),
        ("resize", "223", "from image-size to 16384"),
        ("crop-area", "0", "above 0 and up to 1"),
        ("crop-area", "7", "above 0 and up to 1"),
        ("color-jitter", "-1", "0 or above"),
        ("color-jitter", "NaN", "0 or above"),
        ("rand-augment", "101", "from 0 to 100"),
        ("magnitude", "31", "from 0 to 30"),
        ("mixup", "NaN", "0 or above"),
        ("mixup", "-0.5", "0 or above"),
        ("val-share", "5", "above 0 and below 1"),
        ("val-share", "-1", "above 0 and below 1"),
        ("loaders", "1025", "from 0 to 1024"),
    ] {
        let line = format!("train --data imagenet --dry-run --{flag} {value}");
        let expected = format!("error: {flag} is {value}, but must be {range}\n");
        assert_eq!(refuse(&line, root, &expected), expected);
    }
}

#[test]
fn folders_that_hold_no_data_set_are_errors() {
    let directory = tree();
    let root = directory.path();
    let fail = |flags: &str, expected: &str| {
        refuse(&format!("{SMALL} {flags}"), root, expected);
        assert!(!root.join("run").exists());
    };
    fail("--data-dir nowhere", "nowhere");
    refuse_and_leave_nothing("train --data imagenet", "imagenet needs --data-dir");
    fail("--data-dir imagenet/val", "class");
    fail(
        "--resize 100",
        "resize is 100, but must be from image-size to 16384",
    );
    fs::create_dir_all(root.join("one/cat")).unwrap();
    fail("--data-dir one", "one");
    picture([1, 2, 3], 0)
        .save(root.join("one/cat/1.png"))
        .unwrap();
    fail("--data-dir one", "one class");
    fs::write(
        root.join("imagenet/val.txt"),
        "ILSVRC2012_val_00000001.JPEG n00000000\n",
    )
    .unwrap();
    fail("", "n00000000");
    fail(
        "--crop-padding 4",
        "crop-padding is for cifar10 and cifar100, not for imagenet",
    );
}

#[test]
fn other_classes_are_no_test() {
    let directory = tree();
    let root = directory.path();
    train(root, "--image-size 64 --epochs 1");
    fs::rename(
        root.join("imagenet/train/n01440764"),
        root.join("imagenet/train/n00000001"),
    )
    .unwrap();
    let labels = fs::read_to_string(root.join("imagenet/val.txt")).unwrap();
    let labels = labels.replace("n01440764", "n00000001");
    fs::write(root.join("imagenet/val.txt"), labels).unwrap();
    refuse("eval run", root, "trained on 2 classes");
}
