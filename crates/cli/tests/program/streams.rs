//! Standard output and error that cannot be written, and signals.

use std::{
    fs::{self, File},
    io,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::running::{Here, check_lacks, check_refused};

const SMALL: &str = "train --layers 3 --filters 4 --per-class 40 --balance even --save-every 2";

/// Each call is a stream whose writes fail: on a full disk, and to a pipe that nobody reads.
const UNWRITABLE: [fn() -> Stdio; 2] = [
    || {
        File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
            .into()
    },
    || {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        writer.into()
    },
];

#[test]
fn standard_error_that_cannot_be_written_changes_nothing() {
    let here = Here::new();
    let train = format!("{SMALL} --epochs 1 --out");
    here.run(&format!("{train} usual"));
    for (number, unwritable) in UNWRITABLE.iter().enumerate() {
        let run = format!("run-{number}");
        for (line, expected) in [
            (format!("{train} {run}"), 0),
            (format!("eval {run}"), 0),
            ("train --dry-run --balance time --filters 4".into(), 0),
            ("devices --list".into(), 0),
            (
                "simulate --schedule 1f1b --stages 2 --micro-batches 4 --svg a.svg".into(),
                0,
            ),
            (
                "verify --model unet --samples 1 --stages 1 --micro-batches 1".into(),
                0,
            ),
            (format!("{train} {run}"), 1),
            ("train --epoch 3".into(), 2),
        ] {
            let mut command = here.typed(&line);
            let status = command.stderr(unwritable()).stdout(Stdio::null()).status();
            assert_eq!(status.unwrap().code(), Some(expected), "{line}");
        }
        assert!(here.model(&run) == here.model("usual"));
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error_unless_nobody_reads_it() {
    let here = Here::new();
    here.run(&format!("{SMALL} --epochs 1 --out run"));
    let [full, unread] = UNWRITABLE;
    let check = |line: &str, is_full: bool| {
        let stdout = if is_full { full() } else { unread() };
        let output = here.typed(line).stdout(stdout).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let error = "error: standard output cannot be written: No space left on device";
        assert_eq!(output.status.code(), Some(is_full.into()), "{line}: {said}");
        assert_eq!(said.contains(error), is_full, "{line}: {said}");
        check_lacks(&said, &["panicked"]);
    };
    for line in [
        "--help",
        "train --help",
        "--version",
        "simulate --schedule 1f1b --stages 2 --micro-batches 4",
        "simulate --schedule 1f1b --stages 2 --micro-batches 4 --json",
        "devices --list",
        "eval run",
        "eval run --json",
        "verify --model unet --samples 1 --stages 1 --micro-batches 1",
        "train --dry-run --filters 4",
    ] {
        check(line, false);
        check(line, true);
    }
    check("train --resume --out run --epochs 2", false);
    check("train --resume --out run --epochs 3", true);
    // Nothing was lost.
    assert_eq!(here.summary("run")["epochs"], 3);
}

#[test]
fn a_file_that_cannot_be_written_is_found_before_the_work_for_it() {
    let here = Here::new();
    fs::create_dir(here.join("folder")).unwrap();
    let simulate = "simulate --schedule 1f1b --stages 2000 --micro-batches 2000";
    for (line, says) in [
        (
            "devices --out nowhere/a.toml",
            "nowhere/a.toml: No such file",
        ),
        ("devices --out folder", "folder: Is a directory"),
        (
            "plan --measure --profile nowhere/p.toml",
            "nowhere/p.toml: No such file",
        ),
        ("plan --measure --out folder", "folder: Is a directory"),
        (
            "plan --measure --write-machine folder",
            "folder: Is a directory",
        ),
        (
            &format!("{simulate} --svg folder"),
            "folder: Is a directory",
        ),
        (
            &format!("{simulate} --trace nowhere/t"),
            "nowhere/t: No such file",
        ),
        (
            &format!("{simulate} --csv nowhere/s.csv"),
            "nowhere/s.csv: No such file",
        ),
    ] {
        let said = here.refuse(line, says);
        check_lacks(&said, &["measuring", "this takes"]);
        assert_eq!(here.path().read_dir().unwrap().count(), 1);
    }
}

/// As on a full disk: an error, and no half-written file.
#[test]
fn a_limit_of_file_sizes_is_an_error() {
    let here = Here::new();
    here.write("profile.toml", "");
    for line in [
        "simulate --schedule gpipe --stages 64 --micro-batches 64 --svg a.svg",
        &format!("{SMALL} --epochs 1 --per-class 4 --batch-size 20 --out run"),
    ] {
        let mut command = Command::new("sh");
        let limited = format!(
            "ulimit -f 20; exec {} {line}",
            env!("CARGO_BIN_EXE_stovepipe")
        );
        command.args(["-c", &limited]).current_dir(here.path());
        check_refused(command, "File too large");
        assert_eq!(here.path().read_dir().unwrap().count(), 1, "{line}");
    }
}

/// A check whether a file can be written leaves links as they are.
#[test]
fn links_to_new_files_are_written_through() {
    let here = Here::new();
    std::os::unix::fs::symlink("new.svg", here.join("link.svg")).unwrap();
    here.run("simulate --schedule gpipe --stages 2 --micro-batches 2 --svg link.svg");
    assert!(here.join("link.svg").is_symlink() && here.read("new.svg").starts_with("<svg"));
}

/// A long run that has made a checkpoint. The shell can set signals before it.
fn started(here: &Here, shell: &str, stderr: Stdio) -> Child {
    let mut command = Command::new("env");
    command
        // The tests may run under `nohup`.
        .args(["--default-signal=HUP", "sh", "-c"])
        .arg(format!("{shell} exec \"$0\" \"$@\""))
        .arg(env!("CARGO_BIN_EXE_stovepipe"))
        .args(SMALL.split(' '))
        .args(["--epochs", "1000", "--out", "run"])
        .current_dir(here.path())
        .stdout(Stdio::null())
        .stderr(stderr);
    let mut child = command.spawn().unwrap();
    wait_for_checkpoint(here, &mut child);
    child
}

/// Waits for a checkpoint besides those that are there.
fn wait_for_checkpoint(here: &Here, child: &mut Child) {
    let names = || {
        let entries = here.join("run.partial/checkpoints").read_dir();
        let names = entries.map(|all| all.map(|entry| entry.unwrap().file_name()).max());
        names.ok().flatten()
    };
    let before = names();
    while names() <= before {
        assert_eq!(child.try_wait().unwrap(), None);
        thread::sleep(Duration::from_millis(20));
    }
}

fn send(signal: &str, child: &Child) {
    let mut kill = Command::new("kill");
    let sent = kill.args([signal, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn signals_end_a_training_with_all_its_files_and_need_no_terminal() {
    for (signals, shell) in [
        ("-INT", ""),
        ("-TERM", ""),
        ("-HUP", ""),
        // As a terminal that is closed sends them.
        ("-HUP -HUP", ""),
        // As `nohup` starts programs.
        ("-TERM", "trap '' HUP;"),
    ] {
        for unwritable in UNWRITABLE {
            let here = Here::new();
            let mut child = started(&here, shell, unwritable());
            if !shell.is_empty() {
                send("-HUP", &child);
                wait_for_checkpoint(&here, &mut child);
                wait_for_checkpoint(&here, &mut child);
            }
            signals.split(' ').for_each(|signal| send(signal, &child));
            assert_eq!(child.wait().unwrap().code(), Some(130), "{signals}");
            assert_eq!(here.summary("run")["stopped"], true);
        }
    }
}
