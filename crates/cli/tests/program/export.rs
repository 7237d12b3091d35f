//! Models from elsewhere and for elsewhere.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use safetensors::{SafeTensors, tensor::TensorView};

use crate::running::{Here, check_contains, root};

/// A small vision transformer that timm wrote.
const TIMM: &str = "models/transformer/tests/golden/timm_class_token.safetensors";
const ITS_MODEL: &str = "--model vit --data imagenet --image-size 12 --patch 4 --layers 2 --width 24 --heads 3 \
                         --pool class-token";

type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn tensors(path: &Path) -> Tensors {
    let file = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let owned = |(name, own): (&str, TensorView)| {
        (name.to_owned(), (own.shape().to_vec(), own.data().to_vec()))
    };
    tensors.iter().map(owned).collect()
}

/// A folder with timm's file.
fn with_timms() -> Here {
    let here = Here::new();
    fs::copy(root().join(TIMM), here.join("timm.safetensors")).unwrap();
    here
}

#[test]
fn a_file_of_timms_is_exported_for_burn_and_back() {
    let here = with_timms();
    here.run(&format!(
        "export timm.safetensors {ITS_MODEL} --to burn --out burn.safetensors"
    ));
    let own = tensors(&here.join("burn.safetensors"));
    assert!(own.keys().all(|name| name.starts_with("layers.")));
    here.run(&format!(
        "export burn.safetensors {ITS_MODEL} --to pytorch --out back.safetensors"
    ));
    assert!(tensors(&here.join("back.safetensors")) == tensors(&here.join("timm.safetensors")));
    let head = here.bytes("back.safetensors");
    let format = br#""__metadata__":{"format":"pt"}"#;
    assert!(head.windows(format.len()).any(|window| window == format));
    here.refuse_all(
        "",
        "
        export timm.safetensors --to burn --out x => say with --model what model it is of
        export timm.safetensors --model vit --to burn --out x => of another model
        eval timm.safetensors --model vit --averaged => --averaged and --checkpoint are for a run's folder
        export timm.safetensors --to onnx --out x => pytorch
        ",
    );
}

/// A run, its model alone and its exports are the same model.
#[test]
fn exports_of_a_run_are_evaluated_alike() {
    let here = Here::new();
    let model = "--layers 3 --filters 4";
    here.run(&format!("train {model} --epochs 1 --out run"));
    let expected = here.json_of("eval run");
    here.run("export run --to pytorch --out pytorch.safetensors");
    here.run("export run --to burn --out burn.safetensors");
    assert!(here.bytes("burn.safetensors") == here.model("run"));
    for file in [
        "pytorch.safetensors",
        "burn.safetensors",
        "run/model.safetensors",
    ] {
        let own = here.json_of(&format!("eval {file} --model amoebanet-d {model}"));
        assert_eq!(own, expected, "{file}");
    }
    let names: Vec<_> = tensors(&here.join("pytorch.safetensors"))
        .into_keys()
        .collect();
    let counted = "cell1_normal1.operations.3.module.11.num_batches_tracked".to_owned();
    assert!(names.contains(&counted), "{names:?}");

    here.write(
        "snow.txt",
        "the more it snows, the more it goes. ".repeat(60),
    );
    let model = "--model transformer-lm --layers 1 --width 8 --heads 1 --length 16";
    here.run(&format!(
        "train {model} --text snow.txt --epochs 1 --out text"
    ));
    here.run("export text --to pytorch --out text.safetensors");
    let own = here.json_of(&format!("eval text.safetensors {model} --text snow.txt"));
    assert_eq!(own, here.json_of("eval text"));
}

#[test]
fn positions_are_resized_and_other_tensors_allowed_by_name() {
    let here = with_timms();
    let model = "--model vit --patch 4 --layers 2 --width 24 --heads 3 --pool class-token";
    let train = format!("train {model} --epochs 1 --balance even --lr 1e-9");
    let said = here
        .run(&format!("{train} --from timm.safetensors --out resized"))
        .err;
    check_contains(
        &said,
        &["timm.safetensors, with resized positions, with a new head\n"],
    );
    let deeper =
        train.replace("--layers 2", "--layers 3") + " --from resized --new-head false --out more";
    here.refuse(&deeper, "it lacks layers.");
    let moved =
        "--allow-missing layers.3.*,layers.4.* --allow-extra layers.3.norm.*,layers.3.classes.*";
    let said = here.run(&format!("{deeper} {moved}")).err;
    check_contains(&said, &[", without 16 tensors, leaving out 4 tensors\n"]);
    let config = here.read("more/config.toml");
    check_contains(&config, &["allow-missing = [", "\"layers.3.*\""]);
    here.refuse_all(
        &format!("{train} --out no"),
        "
        --allow-extra x => allow-missing and allow-extra are for the weights of --from
        --from resized --allow-extra y* => allow-extra: no such tensor of resized/model.safetensors matches y*
        --from resized --allow-missing [ => [ is not a pattern of names
        ",
    );
    assert!(!here.join("no").exists());
    // As if it were not over.
    fs::rename(here.join("resized"), here.join("early.partial")).unwrap();
    fs::remove_file(here.join("early.partial/model.safetensors")).unwrap();
    for command in ["eval early", "export early --to burn --out early.bpk"] {
        let why = "early.partial is not over, so it has no model yet: use a checkpoint, such as";
        here.refuse(command, why);
        here.refuse(&format!("{command} --averaged"), why);
    }
    here.run("export early --checkpoint newest --to burn --out early.bpk");
    fs::remove_dir_all(here.join("early.partial/checkpoints")).unwrap();
    here.refuse("eval early", "so it has no model yet, and no checkpoint");
    let own = "--allow-extra is not for eval, since it is the run's own";
    here.refuse("eval more --allow-extra x", own);
}

/// The script of the documentation, where Python has timm.
#[test]
fn timm_loads_what_was_exported() {
    let imports = Command::new("python3")
        .args(["-c", "import timm, safetensors"])
        .output();
    if !imports.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: python3 has no timm");
        return;
    }
    let here = Here::new();
    let page = fs::read_to_string(root().join("docs/src/how-to/weights.md")).unwrap();
    let script = page
        .split("```python\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    here.write("load.py", script);
    let vit = "--model vit --layers 2 --width 24 --heads 3 --pool class-token";
    here.run(&format!("train {vit} --epochs 1 --out run"));
    here.run("export run --to pytorch --out vit.safetensors");
    let output = Command::new("python3")
        .arg("load.py")
        .current_dir(here.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    println!("{}", String::from_utf8_lossy(&output.stdout));
}

/// A saved file replaces what is there, which must not be a device.
#[test]
#[cfg(unix)]
fn an_export_replaces_files_alone() {
    use std::os::unix::fs::{FileTypeExt, symlink};

    let here = Here::new();
    here.run("train --filters 4 --epochs 1 --per-class 4 --batch-size 20 --balance even --out run");
    let made = Command::new("mkfifo").arg(here.join("pipe")).status();
    assert!(made.unwrap().success());
    here.write("file", "");
    symlink("file", here.join("link")).unwrap();
    symlink("nowhere", here.join("dangling")).unwrap();
    for to in ["burn", "pytorch"] {
        here.refuse_all(
            &format!("export run --to {to}"),
            "
            --out pipe => pipe is a pipe or a device: name a file
            --out dangling => dangling is a link to nothing: make the file that it names
            --out run => run: Is a directory
            --out new --stages 3 => --stages is not for export, since it changes nothing in the file
            --out new --batch-size 3 => --batch-size is not for export
            ",
        );
        here.run(&format!("export run --to {to} --out link"));
        assert!(!tensors(&here.join("file")).is_empty());
    }
    let kind = |name: &str| fs::symlink_metadata(here.join(name)).unwrap().file_type();
    assert!(kind("pipe").is_fifo());
    assert!(kind("link").is_symlink() && kind("dangling").is_symlink());
    assert!(!here.join("new").exists() && !here.join("nowhere").exists());
}
