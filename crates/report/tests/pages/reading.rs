//! Reads folders of runs, with missing and malformed files.

use crate::common::folder::{SVG, SampleRun, TempRun, png};
use stovepipe_report::{Report, RunImage};

fn check_error(run: &TempRun, expected: &str) {
    let error = Report::read(&run.path()).expect_err(expected).to_string();
    let folder = run.path().display().to_string();
    let error = error.replace(&folder, "RUN");
    assert!(error.starts_with(expected), "{error}\n{expected}");
}

#[test]
fn a_whole_folder_is_read() {
    let report = SampleRun::images(6).report();
    assert_eq!(report.title, "train-1");
    let epsilon = report.settings.get("training", "epsilon");
    assert_eq!(epsilon, Some("0.00000001"));
    assert_eq!(report.epochs.len(), 6);
    let summary = report.summary.unwrap();
    assert_eq!(summary.stages[1].layers[4], "Head");
    assert!(summary.averaged.is_some());
    assert_eq!(report.mistakes.len(), 24);
    assert_eq!(report.mistakes[0].picture.as_ref().unwrap().size(), (8, 8));
    assert!(matches!(report.timeline, Some(RunImage::Embedded(_))));
    assert_eq!(report.remark, None);
}

#[test]
fn missing_files_are_left_out() {
    let mut run = SampleRun::images(3).folder();
    for name in "summary.json timeline.svg mistakes.json config.toml".split(' ') {
        run.remove(name);
        run.report();
    }
    let report = run.report();
    assert!(report.summary.is_none() && report.timeline.is_none());
    assert!(report.mistakes.is_empty() && report.settings.tables.is_empty());
    assert_eq!(report.epochs.len(), 3);
    run.remove("metrics.jsonl");
    check_error(&run, "RUN is not the folder of a run");
    run.name = "elsewhere".to_owned();
    check_error(&run, "RUN is not the folder of a run");
}

#[test]
fn a_running_run_has_its_final_name() {
    let mut run = SampleRun::images(1).folder();
    let before = run.path();
    run.name = "train-2.partial".to_owned();
    std::fs::rename(before, run.path()).unwrap();
    assert_eq!(run.report().title, "train-2");
    let with_slash = run.path().join("");
    assert_eq!(Report::read(&with_slash).unwrap().title, "train-2");
}

/// Checks the epochs read from lines. Each is `epoch:steps`, in and out.
fn check_epochs(lines: &[&str], end: &str, expected: &[(usize, usize)]) {
    let run = SampleRun::images(1).folder();
    let line = |line: &&str| {
        let (epoch, steps) = line.split_once(':').unwrap();
        format!(
            "{{\"epoch\":{epoch},\"steps\":{steps},\"learning_rate\":0.1,\"train_loss\":1,\
             \"train_accuracy\":0,\"test\":{{\"loss\":1,\"accuracy\":0.5,\"top5\":1}},\
             \"samples_per_second\":1,\"bubble\":0,\"seconds\":1}}"
        )
    };
    let lines: Vec<_> = lines.iter().map(line).collect();
    run.write("metrics.jsonl", lines.join("\n") + end);
    let epochs = run.report().epochs.into_iter();
    let found: Vec<_> = epochs.map(|epoch| (epoch.epoch, epoch.steps)).collect();
    assert_eq!(found, expected);
}

#[test]
fn repeated_epochs_replace_the_old_ones() {
    check_epochs(&["1:5", "2:5"], "", &[(1, 5), (2, 5)]);
    check_epochs(&["1:5", "2:5"], "\n\n", &[(1, 5), (2, 5)]);
    let once = ["1:5", "2:3", "2:5", "3:5"];
    check_epochs(&once, "\n", &[(1, 5), (2, 5), (3, 5)]);
    let longer = ["1:5", "2:5", "3:5", "4:5", "3:6"];
    check_epochs(&longer, "\n", &[(1, 5), (2, 5), (3, 6)]);
    check_epochs(&["5:1", "1:2"], "\n", &[(1, 2)]);
}

#[test]
fn an_incomplete_last_line_is_ignored() {
    check_epochs(&["1:5"], "\n{\"epoch\":2,\"ste", &[(1, 5)]);
    check_epochs(&["1:5"], "\n{\"epo", &[(1, 5)]);
}

/// On a GPU, a bubble is of launches.
#[test]
fn host_time_is_named() {
    let run = SampleRun::images(1).folder();
    let named = "in host time: a GPU may do work after it was launched";
    assert!(!run.report().to_html().contains(named));
    let summary = std::fs::read_to_string(run.path().join("summary.json")).unwrap();
    let summary = summary.replacen('{', "{\"host_time\":true,", 1);
    run.write("summary.json", summary);
    assert!(run.report().to_html().contains(named));
}

#[test]
fn null_is_nan() {
    let run = SampleRun::images(1).folder();
    run.write(
        "metrics.jsonl",
        "{\"epoch\":1,\"steps\":1,\"learning_rate\":null,\"train_loss\":null,\"train_accuracy\":null,\
         \"test\":{\"loss\":null,\"accuracy\":0.5,\"top5\":null,\"perplexity\":null},\
         \"samples_per_second\":null,\"bubble\":null,\"seconds\":null,\"later\":\"addition\"}\n",
    );
    let report = run.report();
    let epoch = &report.epochs[0];
    let test = epoch.test.as_ref().unwrap();
    assert!(epoch.train_loss.is_nan() && test.loss.is_nan());
    assert!(test.get("perplexity").unwrap().is_nan());
    assert!(epoch.averaged.is_none());
}

/// Steps that a resumed run repeated replace the old ones, and many are read thinned.
#[test]
fn steps_are_read_in_order_and_not_too_many() {
    let run = SampleRun::images(1).folder();
    let line = |step: usize| {
        format!(
            "{{\"step\":{step},\"epoch\":1,\"loss\":1,\"learning_rate\":0.1,\
             \"gradient_norm\":null,\"samples_per_second\":1,\"memory\":null,\"bubble\":0}}\n"
        )
    };
    let read = |steps: &[usize], end: &str| {
        run.write(
            "steps.jsonl",
            steps.iter().map(|&step| line(step)).collect::<String>() + end,
        );
        run.report()
            .steps
            .iter()
            .map(|step| step.step)
            .collect::<Vec<_>>()
    };
    assert_eq!(read(&[1, 2, 3, 2, 3], "{\"step\":4"), [1, 2, 3]);
    let many: Vec<_> = (1..=70_000).collect();
    let found = read(&many, "");
    assert!(
        found.is_sorted() && (16_000..33_000).contains(&found.len()),
        "{}",
        found.len()
    );
    assert_eq!((found[0], found[1] - found[0]), (1, 4));
    run.remove("steps.jsonl");
    assert!(run.report().steps.is_empty());
}

#[test]
fn a_malformed_file_is_an_error_with_its_line() {
    let [config, metrics, summary] = ["config.toml", "metrics.jsonl", "summary.json"];
    let [mistakes, picture] = ["mistakes.json", "mistakes/00.png"];
    let outside = b"[\n{\"label\":\"1\",\"said\":\"2\",\n\"picture\":\"../../secret.png\"}]";
    let not_inside = "line 3: the picture \"../../secret.png\" is not inside";
    let not_text = "line 2: this is not UTF-8 text";
    let damaged = b"\x89PNG\r\n\x1a\n\0\0\0\r";
    for (name, content, expected) in [
        (config, &b"[a]\nx = 1\ny = = 2\n"[..], "line 3: "),
        (config, b"[a]\nx = \"\xff\"\n", not_text),
        (metrics, b"{}\n", "line 1: missing field `epoch`"),
        (metrics, b"\n\n{\"epoch\": 1\n", "line 3: EOF"),
        (metrics, b"{\"epoch\": NaN}\n", "line 1: expected value"),
        (
            metrics,
            b"{\"epoch\": 1e999}\n",
            "line 1: number out of range",
        ),
        (summary, b"", "line 1: EOF"),
        (
            summary,
            b"{\n\"parameters\": -1\n}",
            "line 2: invalid value",
        ),
        (summary, b"[]", "line 1: "),
        ("timeline.svg", b"<svg>\n<g></svg>", "line 2: "),
        ("timeline.svg", b"<html/>", "line 1: an SVG file begins"),
        ("remark.txt", b"one\n\xc3", not_text),
        (mistakes, b"{}", "line 1: "),
        (mistakes, b"[\n{\"label\": 1}]", "line 2: invalid type"),
        (
            mistakes,
            b"[\n\n{\"label\": \"1\"}]",
            "line 3: missing field `said`",
        ),
        (mistakes, outside, not_inside),
        (picture, b"<svg/>", "not a PNG, JPEG, GIF or WebP file"),
        (picture, damaged, "the picture's header is damaged"),
    ] {
        let run = SampleRun::images(2).folder();
        run.write(name, content);
        let is_line = expected.starts_with("line");
        let colon = if is_line { "," } else { ":" };
        check_error(&run, &format!("RUN/{name}{colon} {expected}"));
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let run = SampleRun::images(1).folder();
    run.remove("config.toml");
    std::fs::create_dir(run.path().join("config.toml")).unwrap();
    check_error(&run, "RUN/config.toml: ");
}

#[test]
fn a_very_large_timeline_is_not_read() {
    let run = SampleRun::images(1).folder();
    let boxes = "<rect/>".repeat(800_000);
    run.write("timeline.svg", format!("<svg xmlns='{SVG}'>{boxes}</svg>"));
    let report = run.report();
    assert!(matches!(report.timeline, Some(RunImage::Linked { bytes }) if bytes > 5_000_000));
    let page = report.to_html();
    assert!(page.contains("5.3\u{a0}MiB"));
    assert!(page.len() < 200_000);
}

#[test]
fn missing_and_very_large_pictures_are_left_out() {
    let run = SampleRun::images(1).folder();
    run.remove("mistakes/00.png");
    let mut large = png(7);
    large.resize(2 << 20, 0);
    run.write("mistakes/07.png", large);
    let expected = [("0", false), ("7", false), ("4", true)];
    for (mistake, (label, has_picture)) in run.report().mistakes.iter().zip(expected) {
        assert_eq!(mistake.entry.label, label);
        assert_eq!(mistake.picture.is_some(), has_picture, "{label}");
    }
}

#[test]
fn the_size_of_all_pictures_is_limited() {
    let mut run = SampleRun::images(1);
    run.mistakes = 40;
    let run = run.folder();
    for digit in 0..10 {
        let mut large = png(digit);
        large.resize(900_000, 0);
        run.write(&format!("mistakes/{digit:02}.png"), large);
    }
    let report = run.report();
    let pictures = (report.mistakes.iter()).filter(|mistake| mistake.picture.is_some());
    assert_eq!(pictures.count(), 9); // of 900 kB each, in 8 MiB
    assert!(report.to_html().len() < 12 << 20);
}
