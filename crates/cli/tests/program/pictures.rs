//! Folders of pictures in ImageNet's layout, as a user trains on them.

use std::{fs, path::Path};

use image::{Rgb, RgbImage};
use serde_json::Value;

use crate::running::{Here, Printed, check_contains, check_lacks, refuse_and_leave_nothing};

const CLASSES: [(&str, [u8; 3]); 2] = [("n01440764", [200, 60, 30]), ("n02102040", [30, 80, 210])];

/// A picture of one colour, darker or lighter from row to row.
fn picture(colour: [u8; 3], number: u32) -> RgbImage {
    let shade =
        |value: u8, x: u32, y: u32| value.saturating_add(((x * 3 + y + 7 * number) % 40) as u8);
    RgbImage::from_fn(320, 240, |x, y| Rgb(colour.map(|value| shade(value, x, y))))
}

/// `imagenet/train/<wnid>/*.JPEG`, and a flat `imagenet/val` with a file of labels.
fn tree() -> Here {
    let here = Here::new();
    let root = here.join("imagenet");
    let val = root.join("val");
    fs::create_dir_all(&val).unwrap();
    let mut labels = String::new();
    for (class, (wnid, colour)) in CLASSES.into_iter().enumerate() {
        let folder = root.join("train").join(wnid);
        fs::create_dir_all(&folder).unwrap();
        let save = |path: &Path, number| {
            let saved = picture(colour, number).save_with_format(path, image::ImageFormat::Jpeg);
            saved.unwrap();
        };
        for number in 0..8 {
            save(&folder.join(format!("{wnid}_{number}.JPEG")), number);
        }
        for number in 0..3 {
            let place = 3 * class as u32 + number + 1;
            let name = format!("ILSVRC2012_val_0000000{place}.JPEG");
            save(&val.join(&name), 20 + number);
            labels += &format!("{name} {wnid}\n");
        }
    }
    fs::write(root.join("val.txt"), labels).unwrap();
    here
}

const SMALL: &str = "train --data imagenet --data-dir imagenet --layers 3 --filters 8 --batch-size 4 \
                     --micro-batches 2 --epochs 2 --out run";

fn train(here: &Here, more: &str) -> Printed {
    here.run(&format!("{SMALL} {more}"))
}

/// 224×224, every augmentation, an auxiliary head, averages: all that the recipe for ImageNet has, for a few steps.
#[test]
fn a_tree_in_imagenets_layout_trains_end_to_end() {
    let here = tree();
    let more = "--auxiliary true --drop-path 0.3 --optimizer rmsprop --epsilon 1 --lr 0.05 --ema 0.9 --mixup 0.2 \
                --color-jitter 0.4 --rand-augment 2 --cutout 32 --interpolation bicubic";
    train(&here, more);
    let summary = here.summary("run");
    let test = &summary["test"];
    assert!(test["loss"].as_f64().unwrap().is_finite());
    assert_eq!(here.read("run/classes.txt"), "n01440764\nn02102040\n");

    // The saved model, in another number of stages: what it was, to the last bit.
    for (more, expected) in [("", test), ("--averaged", &summary["averaged"])] {
        let evaluated = here.json_of(&format!("eval run --stages 1 {more}"));
        assert_eq!(&evaluated["test"], expected);
    }
    assert_ne!(test, &summary["averaged"]);

    let file = "imagenet/val/ILSVRC2012_val_00000001.JPEG";
    let said = here.succeed(&format!("eval run --predict {file}"));
    check_contains(&said, &[&format!("{file}: n0")]);
    assert_eq!(said.matches(" %").count(), 2, "{said}");
}

#[test]
fn small_images_are_learned_by_a_vision_transformer() {
    let here = tree();
    let more = "--model vit --image-size 32 --layers 2 --width 32 --heads 2 --patch 8 --epochs 8";
    // AmoebaNet's filters are none of its settings.
    let expected = "filters is for amoebanet-d and amoebanet-b, not for vit";
    here.refuse(&format!("{SMALL} {more}"), expected);
    let line = "train --data imagenet --data-dir imagenet --batch-size 8 --out run";
    here.run(&format!("{line} {more}"));
    let accuracy = here.accuracy("run");
    assert!(accuracy > 0.8, "{accuracy}");
}

#[test]
fn damaged_files_are_named_and_a_few_are_skipped() {
    let here = tree();
    here.write("imagenet/train/n01440764/bad.JPEG", "no picture");
    let small = "--image-size 64 --epochs 1";
    let expected = [
        "skipped, 1 of at most 10: imagenet/train/n01440764/bad.JPEG: is not an image",
        "skipped 1 file in all",
    ];
    check_contains(&train(&here, small).err, &expected);
    let strict = format!("{SMALL} {small} --skip 0 --out strict");
    here.refuse(&strict, "bad.JPEG");
    assert!(!here.join("strict").exists());
}

/// Of training and test images together no more than `--skip` may be damaged; each is reported once.
#[test]
fn damaged_files_count_once_wherever_they_are() {
    let here = tree();
    for file in [
        "train/n01440764/bad.JPEG",
        "train/n02102040/worse.JPEG",
        "val/ILSVRC2012_val_00000002.JPEG",
    ] {
        here.write(&format!("imagenet/{file}"), "no picture");
    }
    let small = "--image-size 64 --epochs 2";
    let stderr = train(&here, &format!("{small} --skip 3")).err;
    for file in ["bad.JPEG", "worse.JPEG", "val_00000002.JPEG"] {
        assert_eq!(stderr.matches(file).count(), 1, "{stderr}");
    }
    check_contains(&stderr, &["skipped 3 files in all"]);
    let strict = format!("{SMALL} {small} --skip 2 --out strict");
    here.refuse(&strict, "more than 2 files cannot be loaded");
}

/// What is held out of class folders does not depend on the seed: a model is never tested on what it was trained on.
#[test]
fn class_folders_are_split_the_same_under_any_seed() {
    let here = tree();
    let folders = "--image-size 64 --epochs 1 --data-dir imagenet/train";
    let found =
        "imagenet/train: 2 classes, 12 images to train on, 4 kept for testing (a share of 0.2)";
    check_contains(&train(&here, folders).err, &[found]);
    let eval = |more: &str| here.json_of(&format!("eval run {more}"));
    let tested = eval("");
    assert_eq!(tested["test"], here.summary("run")["test"]);
    assert_eq!(eval("--seed 3"), tested);
}

#[test]
fn layouts_under_other_names_are_found_and_reported() {
    let here = tree();
    let root = here.join("imagenet");
    fs::rename(root.join("train"), root.join("Train")).unwrap();
    fs::rename(root.join("val"), root.join("DEV")).unwrap();
    let found = "imagenet: 2 classes, 16 images to train on, 6 to test with from imagenet/DEV";
    check_contains(&train(&here, "--image-size 64 --epochs 1").err, &[found]);
}

#[test]
fn settings_that_would_do_nothing_are_refused() {
    let here = tree();
    here.refuse_all(
        SMALL,
        "
        --val-share 0.3 => val-share has no use: the images to test with have a folder of their own, imagenet/val
        --data-dir imagenet/train --val-labels no.txt => no.txt is not used: there is no folder of validation images
        ",
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
        assert_eq!(here.refuse(&line, &expected), expected);
    }
}

#[test]
fn folders_that_hold_no_data_set_are_errors() {
    let here = tree();
    refuse_and_leave_nothing("train --data imagenet", "imagenet needs --data-dir");
    fs::create_dir_all(here.join("one/cat")).unwrap();
    here.refuse_all(
        SMALL,
        "
        --data-dir nowhere => nowhere
        --data-dir imagenet/val => class
        --data-dir one => one
        --resize 100 => resize is 100, but must be from image-size to 16384
        --crop-padding 4 => crop-padding is for cifar10 and cifar100, not for imagenet
        ",
    );
    let saved = picture([1, 2, 3], 0).save(here.join("one/cat/1.png"));
    saved.unwrap();
    here.refuse(&format!("{SMALL} --data-dir one"), "one class");
    here.write(
        "imagenet/val.txt",
        "ILSVRC2012_val_00000001.JPEG n00000000\n",
    );
    here.refuse(SMALL, "n00000000");
    assert!(!here.join("run").exists());
}

#[test]
fn other_classes_are_no_test() {
    let here = tree();
    train(&here, "--image-size 64 --epochs 1");
    let train = here.join("imagenet/train");
    fs::rename(train.join("n01440764"), train.join("n00000001")).unwrap();
    let labels = here.read("imagenet/val.txt");
    here.write("imagenet/val.txt", labels.replace("n01440764", "n00000001"));
    here.refuse(
        "eval run",
        "other classes: class 0: n01440764 then, n00000001 now",
    );
}

/// Files, folders and patterns; what cannot be read is left out.
#[test]
fn many_pictures_are_classified_even_if_some_are_damaged() {
    let here = tree();
    train(&here, "--image-size 32 --epochs 1");
    let folder = "imagenet/train/n01440764";
    let all = here.succeed(&format!("eval run --predict {folder} --top 1"));
    assert_eq!(all.lines().count(), 8, "{all}");
    assert!(
        all.lines().all(|line| line.matches(" %").count() == 1),
        "{all}"
    );
    // In batches or alone, the same.
    let first = all.lines().next().unwrap();
    let file = format!("{folder}/n01440764_0.JPEG");
    assert_eq!(
        here.succeed(&format!("eval run --predict {file} --top 1")),
        format!("{first}\n")
    );

    here.write(&format!("{folder}/bad.JPEG"), "no picture");
    let missing = format!("{folder}/*.JPEG imagenet/nothing.png");
    let lines = |format: &str, expected: &str| {
        let mut command = here.typed(&format!("eval run --predict {missing} {format}"));
        let output = command.output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        let bad = [
            "skipped: ",
            "bad.JPEG: is not an image",
            "nothing.png",
            "2 of 10 pictures could not be read",
        ];
        check_contains(&said, &bad);
        let text = String::from_utf8(output.stdout).unwrap();
        check_contains(&text, &[expected]);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let csv = lines(
        "--format csv",
        "file,class_1,probability_1,class_2,probability_2\n",
    );
    assert_eq!(csv.len(), 9);
    assert!(
        csv[1].starts_with(&format!("{file},n0")) && csv[1].contains(",0."),
        "{csv:?}"
    );
    let objects = lines("--format jsonl --top 9", "\"probability\":");
    let objects = objects
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let objects: Vec<_> = objects.collect();
    assert_eq!(objects.len(), 8);
    assert_eq!(objects[0]["file"], file);
    assert_eq!(objects[0]["classes"].as_array().unwrap().len(), 2);
    here.refuse_all(
        "eval run",
        "
        --predict *.gif => no file matches *.gif
        --predict [ => pattern
        --top 3 => --predict
        --predict x.png --top 0 => --top is 0: give 1 or more
        --format csv => --predict
        --predict x.png --json --format csv => cannot be used with
        ",
    );
}

/// There is no top-5 of two classes.
#[test]
fn each_class_has_an_accuracy() {
    let here = tree();
    let said = train(&here, "--image-size 32 --epochs 1");
    let eval = here.json_of("eval run --by-class");
    for text in [
        &said.out,
        &said.err,
        &here.read("run/metrics.jsonl"),
        &eval.to_string(),
    ] {
        check_lacks(text, &["top-5", "top5"]);
    }
    let classes = eval["by_class"].as_array().unwrap();
    let samples = classes
        .iter()
        .map(|class| class["samples"].as_u64().unwrap());
    assert_eq!(samples.sum::<u64>(), 6);
    let right = classes
        .iter()
        .map(|class| class["accuracy"].as_f64().unwrap() / 2.0);
    let accuracy = eval["test"]["accuracy"].as_f64().unwrap();
    assert!((right.sum::<f64>() - accuracy).abs() < 1e-9, "{eval}");
    assert_eq!(here.json("run/confusion.json")["counts"], eval["confusion"]);
    check_contains(
        &here.succeed("eval run --by-class"),
        &["#  class", "accuracy  as 0  as 1"],
    );
    check_contains(
        &here.read("run/report.html"),
        &["id=\"classes\"", "n02102040"],
    );
}
