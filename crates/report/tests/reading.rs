//! From a run's folder to a report, and what happens to files that are none.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::folder::{Folder, Run, SVG};
use stovepipe_report::{Report, Timeline};

fn check_error(run: &Folder, expected: &str) {
    let error = Report::read(&run.path()).expect_err(expected).to_string();
    let folder = run.path().display().to_string();
    let error = error.replace(&folder, "RUN");
    assert!(error.starts_with(expected), "{error}\n{expected}");
}

#[test]
fn a_whole_folder_is_read() {
    let report = Run::images(6).report();
    assert_eq!(report.title, "train-1");
    assert_eq!(
        report.settings.get("training", "epsilon"),
        Some("0.00000001")
    );
    assert_eq!(report.epochs.len(), 6);
    let summary = report.summary.unwrap();
    assert_eq!(summary.stages[1].layers[4], "Head");
    assert!(summary.averaged.is_some());
    assert_eq!(report.mistakes.len(), 24);
    assert_eq!(report.mistakes[0].picture.as_ref().unwrap().size(), (8, 8));
    assert!(matches!(report.timeline, Some(Timeline::Drawn(_))));
    assert_eq!(report.remark, None);
}

#[test]
fn what_is_not_there_is_left_out() {
    let run = Run::images(3).folder();
    for name in [
        "summary.json",
        "timeline.svg",
        "mistakes.json",
        "config.toml",
    ] {
        run.remove(name);
        run.report();
    }
    let report = run.report();
    assert!(report.summary.is_none() && report.timeline.is_none());
    assert!(report.mistakes.is_empty() && report.settings.tables.is_empty());
    assert_eq!(report.epochs.len(), 3);
    run.remove("metrics.jsonl");
    check_error(&run, "RUN is no run's folder");
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let mut run = Run::images(1).folder();
    run.name = "elsewhere".to_owned();
    check_error(&run, "RUN is no run's folder");
}

#[test]
fn a_run_under_way_has_its_own_name() {
    let mut run = Run::images(1).folder();
    let before = run.path();
    run.name = "train-2.partial".to_owned();
    std::fs::rename(before, run.path()).unwrap();
    assert_eq!(run.report().title, "train-2");
    let with_slash = run.path().join("");
    assert_eq!(Report::read(&with_slash).unwrap().title, "train-2");
}

/// The epochs that are read from lines: `epoch:steps`, without quotes to write.
fn check_epochs(lines: &[&str], end: &str, expected: &[(usize, usize)]) {
    let run = Run::images(1).folder();
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
    let epochs = run.report().epochs;
    let found: Vec<_> = epochs
        .iter()
        .map(|epoch| (epoch.epoch, epoch.steps))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn epochs_that_are_done_again_replace_what_came_of_the_first_try() {
    check_epochs(&["1:5", "2:5"], "", &[(1, 5), (2, 5)]);
    check_epochs(&["1:5", "2:5"], "\n\n", &[(1, 5), (2, 5)]);
    check_epochs(
        &["1:5", "2:3", "2:5", "3:5"],
        "\n",
        &[(1, 5), (2, 5), (3, 5)],
    );
    check_epochs(
        &["1:5", "2:5", "3:5", "4:5", "3:6"],
        "\n",
        &[(1, 5), (2, 5), (3, 6)],
    );
    check_epochs(&["5:1", "1:2"], "\n", &[(1, 2)]);
}

#[test]
fn a_line_that_was_cut_off_is_left_out() {
    check_epochs(&["1:5"], "\n{\"epoch\":2,\"ste", &[(1, 5)]);
    check_epochs(&["1:5"], "\n{\"epo", &[(1, 5)]);
}

#[test]
fn numbers_that_are_none_are_read() {
    let run = Run::images(1).folder();
    run.write(
        "metrics.jsonl",
        "{\"epoch\":1,\"steps\":1,\"learning_rate\":null,\"train_loss\":null,\"train_accuracy\":null,\
         \"test\":{\"loss\":null,\"accuracy\":0.5,\"top5\":null,\"perplexity\":null},\
         \"samples_per_second\":null,\"bubble\":null,\"seconds\":null,\"later\":\"addition\"}\n",
    );
    let epoch = run.report().epochs[0];
    assert!(epoch.train_loss.is_nan() && epoch.test.loss.is_nan());
    assert!(epoch.test.perplexity.unwrap().is_nan());
    assert!(epoch.averaged.is_none());
}

#[test]
fn a_malformed_file_is_an_error_with_a_place() {
    let check = |name: &str, content: &[u8], expected: &str| {
        let run = Run::images(2).folder();
        run.write(name, content);
        check_error(&run, &format!("RUN/{name}{expected}"));
    };
    check("config.toml", b"[a]\nx = 1\ny = = 2\n", ", line 3: ");
    check(
        "config.toml",
        b"[a]\nx = \"\xff\"\n",
        ", line 2: this is no UTF-8 text",
    );
    check("metrics.jsonl", b"{}\n", ", line 1: missing field `epoch`");
    check("metrics.jsonl", b"\n\n{\"epoch\": 1\n", ", line 3: EOF");
    check(
        "metrics.jsonl",
        b"{\"epoch\": NaN}\n",
        ", line 1: expected value",
    );
    check(
        "metrics.jsonl",
        b"{\"epoch\": 1e999}\n",
        ", line 1: number out of range",
    );
    check("summary.json", b"", ", line 1: EOF");
    check(
        "summary.json",
        b"{\n\"parameters\": -1\n}",
        ", line 2: invalid value",
    );
    check("summary.json", b"[]", ", line 1: ");
    check("timeline.svg", b"<svg>\n<g></svg>", ", line 2: ");
    check("timeline.svg", b"<html/>", ", line 1: an SVG file begins");
    check(
        "remark.txt",
        b"one\n\xc3",
        ", line 2: this is no UTF-8 text",
    );
    check("mistakes.json", b"{}", ", line 1: ");
    check(
        "mistakes.json",
        b"[\n{\"label\": 1}]",
        ", line 2: invalid type",
    );
    check(
        "mistakes.json",
        b"[\n\n{\"label\": \"1\"}]",
        ", line 3: missing field `said`",
    );
    let outside = b"[\n{\"label\":\"1\",\"said\":\"2\",\n\"picture\":\"../../secret.png\"}]";
    check(
        "mistakes.json",
        outside,
        ", line 3: the picture \"../../secret.png\" is not inside",
    );
    check(
        "mistakes/00.png",
        b"<svg/>",
        ": this is no PNG, JPEG, GIF or WebP file",
    );
    check(
        "mistakes/00.png",
        b"\x89PNG\r\n\x1a\n\0\0\0\r",
        ": the picture's header is damaged",
    );
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let run = Run::images(1).folder();
    run.remove("config.toml");
    std::fs::create_dir(run.path().join("config.toml")).unwrap();
    check_error(&run, "RUN/config.toml: ");
}

#[test]
fn an_enormous_drawing_is_not_read() {
    let run = Run::images(1).folder();
    let boxes = "<rect/>".repeat(800_000);
    run.write("timeline.svg", format!("<svg xmlns='{SVG}'>{boxes}</svg>"));
    let report = run.report();
    assert!(matches!(report.timeline, Some(Timeline::Large { bytes }) if bytes > 5_000_000));
    let page = report.to_html();
    assert!(page.contains("5.3\u{a0}MiB"));
    assert!(page.len() < 200_000);
}

#[test]
fn pictures_that_are_missing_or_enormous_are_left_out() {
    let run = Run::images(1).folder();
    run.remove("mistakes/00.png");
    let mut large = common::digits::png(7);
    large.resize(2 << 20, 0);
    run.write("mistakes/07.png", large);
    let has_picture: Vec<_> = (run.report().mistakes.iter())
        .map(|mistake| (mistake.entry.label.clone(), mistake.picture.is_some()))
        .take(3)
        .collect();
    let label = |label: &str, has| (label.to_owned(), has);
    assert_eq!(
        has_picture,
        [label("0", false), label("7", false), label("4", true)]
    );
}

#[test]
fn all_pictures_together_are_bounded() {
    let run = Run {
        mistakes: 40,
        ..Run::images(1)
    }
    .folder();
    for digit in 0..10 {
        let mut large = common::digits::png(digit);
        large.resize(900_000, 0);
        run.write(&format!("mistakes/{digit:02}.png"), large);
    }
    let report = run.report();
    let pictures = report
        .mistakes
        .iter()
        .filter(|mistake| mistake.picture.is_some());
    assert_eq!(pictures.count(), 9); // of 8 MiB
    assert!(report.to_html().len() < 12 << 20);
}
