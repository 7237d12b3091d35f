//! Data that are not the same any more, or not in the same place.

use std::{fs, path::Path};

use image::{Rgb, RgbImage};

use crate::{
    folder::{record, write_cifar10},
    running::{Here, check_contains, succeeds},
};

/// A data set of each kind, and a run on it.
const RUNS: [(&str, &str); 3] = [
    ("cifar", "--data cifar10 --data-dir cifar"),
    ("pets", "--data imagenet --data-dir pets --image-size 32"),
    (
        "text",
        "--text text --model transformer-lm --layers 1 --width 8 --heads 1 --length 16",
    ),
];

fn small(name: &str, flags: &str) -> String {
    let sizes = if name == "text" {
        ""
    } else {
        "--layers 3 --filters 4"
    };
    format!("train --out runs/{name} --epochs 1 --batch-size 4 --balance even {sizes} {flags}")
}

/// Trains on each. Returns the folder, and what each run says.
fn trained() -> (Here, String) {
    let here = Here::new();
    fs::create_dir(here.join("cifar")).unwrap();
    write_cifar10(&here.join("cifar"), |_| {
        record(&[3], |channel, y, x| (channel + y + x) as u8).repeat(2)
    });
    for (class, shade) in [("cat", 60), ("dog", 200), ("owl", 120)] {
        for set in ["train", "val"] {
            let folder = here.join(format!("pets/{set}/{class}"));
            fs::create_dir_all(&folder).unwrap();
            for number in 0..2 {
                let picture = RgbImage::from_pixel(40, 40, Rgb([shade, 9 * number, 9]));
                let file = format!("{class}{number}.png");
                picture.save(folder.join(file)).unwrap();
            }
        }
    }
    fs::create_dir(here.join("text")).unwrap();
    here.write("text/a.txt", "so it goes, and so it went. ".repeat(40));
    let said = RUNS.map(|(name, flags)| here.run(&small(name, flags)).err);
    (here, said.concat())
}

/// Gives each of two files or folders the name of the other.
fn swap(a: &Path, b: &Path) {
    let other = a.with_extension("other");
    for (from, to) in [(a, &*other), (b, a), (&*other, b)] {
        // One of them may not be there.
        let _ = fs::rename(from, to);
    }
}

/// Changes the last byte of a file.
fn touch(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

type Change = fn(&Here);

#[test]
fn other_data_are_named_and_refused() {
    let (here, said) = trained();
    check_contains(
        &said,
        &[
            "cifar: 10 classes, 10 images to train on, 2 to test with\n",
            "pets: 3 classes, 6 images to train on, 6 to test with from pets/val\n",
            "text: 1008 tokens to train on, 112 kept for testing\n",
        ],
    );
    // What changes, and what resuming and scoring say of it. A change is undone by itself.
    let cases: [(&str, Change, &str, &str); 7] = [
        (
            "cifar",
            |here| {
                let names = here.join("cifar/cifar-10-batches-bin/batches.meta.txt");
                let text = fs::read_to_string(&names).unwrap();
                let (swapped, back) = ("cat\nbird", "bird\ncat");
                let is_swapped = text.contains(swapped);
                let (from, to) = if is_swapped {
                    (swapped, back)
                } else {
                    (back, swapped)
                };
                fs::write(&names, text.replace(from, to)).unwrap();
            },
            "class 2: bird then, cat now (and 1 more)",
            "other classes: class 2: bird then, cat now (and 1 more)",
        ),
        (
            "cifar",
            |here| touch(&here.join("cifar/cifar-10-batches-bin/data_batch_4.bin")),
            "training images: 30730 bytes ",
            "",
        ),
        (
            "cifar",
            |here| touch(&here.join("cifar/cifar-10-batches-bin/test_batch.bin")),
            "test images: 6146 bytes ",
            "test images: 6146 bytes ",
        ),
        (
            "pets",
            |here| swap(&here.join("pets/train/cat"), &here.join("pets/train/owl")),
            "training images of cat: 2 files ",
            "",
        ),
        (
            "pets",
            |here| swap(&here.join("pets/val/dog/dog0.png"), &here.join("pets/dog0")),
            "test images of dog: 2 files ",
            "test images of dog: 2 files ",
        ),
        (
            "pets",
            |here| {
                swap(&here.join("pets/train/owl"), &here.join("pets/train/bee"));
                swap(&here.join("pets/val/owl"), &here.join("pets/val/bee"));
            },
            "class 0: cat then, bee now (and 6 more)",
            "other classes: class 0: cat then, bee now (and 2 more)",
        ),
        (
            "text",
            |here| touch(&here.join("text/a.txt")),
            "text: 1120 bytes ",
            "text: 1120 bytes ",
        ),
    ];
    for (name, change, resumed, scored) in cases {
        let (resume, eval) = (
            format!("train --resume --out runs/{name} --epochs 2"),
            format!("eval runs/{name}"),
        );
        change(&here);
        here.refuse(
            &resume,
            &format!("since the checkpoint was made: {resumed}"),
        );
        if scored.is_empty() {
            here.run(&eval);
        } else {
            here.refuse(&eval, scored);
        }
        change(&here);
    }
    for (name, _) in RUNS {
        here.run(&format!("eval runs/{name}"));
        here.run(&format!("train --resume --out runs/{name} --epochs 2"));
    }
    // Data that are named are scored, if their classes are the same.
    touch(&here.join("cifar/cifar-10-batches-bin/test_batch.bin"));
    here.run("eval runs/cifar --data-dir cifar");
}

/// Paths are found from any folder, and in a configuration also beside it.
#[test]
fn a_run_is_evaluated_and_resumed_from_any_folder() {
    let (here, _) = trained();
    fs::create_dir(here.join("elsewhere")).unwrap();
    let elsewhere = |line: &str| {
        let mut command = here.typed(line);
        command.current_dir(here.join("elsewhere"));
        succeeds(command)
    };
    here.write("two.csv", "0F0,0B0\n");
    let more = "--from runs/cifar --stages 1 --micro-batches 1 --schedule two.csv";
    let line = format!("{} {more} --out runs/more", small("cifar", RUNS[0].1));
    here.run(&line);
    // Whoever types the same again means the same weights.
    here.run(&format!("{line} --resume --epochs 2"));
    for (name, _) in RUNS.into_iter().chain([("more", "")]) {
        elsewhere(&format!("eval ../runs/{name}"));
        elsewhere(&format!("train --resume --out ../runs/{name} --epochs 3"));
    }

    let config = here.read("runs/cifar/config.toml");
    let own = here.join("cifar").display().to_string();
    check_contains(&config, &[&format!("data-dir = \"{own}\"")]);
    here.write("own.toml", config.replace(&own, "cifar"));
    elsewhere("train --config ../own.toml --dry-run");
}
