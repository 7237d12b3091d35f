//! Unusual runs: their pages are valid, and small enough for a phone.

use crate::common::{dom::Element, folder::SampleRun};
use stovepipe_report::{Epoch, Report, SettingsTable, TestScores};

fn page(report: &Report) -> (Element, usize) {
    let html = report.to_html();
    (Element::parse(&html), html.len())
}

#[test]
fn a_run_without_epochs_has_no_curves() {
    let mut report = SampleRun::images(2).report();
    report.epochs.clear();
    let (page, _) = page(&report);
    assert!(page.section("curves").is_none() && page.section("results").is_some());
}

#[test]
fn one_epoch_is_a_point() {
    let (page, _) = page(&SampleRun::images(1).report());
    let curves = page.section("curves").unwrap();
    assert!(curves.named("polyline").is_empty());
    assert_eq!(curves.named("circle").len(), 2); // the test set's
    assert_eq!(curves.named("table")[0].named("tr").len(), 2);
}

#[test]
fn ten_thousand_epochs_make_a_short_page() {
    let report = SampleRun::images(10_000).report();
    let (page, length) = page(&report);
    assert!(length < 400_000, "{length}");
    let table = page.section("curves").unwrap().named("table")[0];
    assert_eq!(table.named("tr").len(), 61);
    assert!(table.children[0].text.starts_with("60 of 10,000 epochs"));
    assert_eq!(table.named("th").last().unwrap().text, "10,000");
}

#[test]
fn any_number_makes_a_page() {
    let not_finite = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let finite = [0.0, -0.0, -1.0, 5e-324, 1e300, f64::MAX, 0.5];
    let numbers = [&not_finite[..], &finite].concat();
    for &a in &numbers {
        for &b in &numbers {
            let metrics = [
                ("accuracy", b),
                ("top5", a),
                ("perplexity", b),
                ("other", a),
            ];
            let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
            let scores = TestScores { loss: a, metrics };
            let epoch = |epoch, value| Epoch {
                epoch,
                learning_rate: value,
                train_loss: value,
                train: scores.metrics.clone(),
                test: Some(scores.clone()),
                averaged: Some(scores.clone()),
                samples_per_second: value,
                bubble: value,
                seconds: value,
                ..Epoch::default()
            };
            let epochs = vec![epoch(0, a), epoch(1, b), epoch(usize::MAX, a)];
            let (page, _) = page(&Report {
                epochs,
                ..Report::default()
            });
            for element in page.named("svg").into_iter().flat_map(Element::all) {
                for (name, value) in &element.attributes {
                    let is_number = !value.contains("NaN") && !value.contains("inf");
                    assert!(is_number, "{a} {b}: {} {name}={value}", element.name);
                }
            }
        }
    }
}

#[test]
fn epochs_without_finite_values_are_a_gap_with_a_note() {
    let mut report = SampleRun::language(6).report();
    for epoch in [2, 3] {
        report.epochs[epoch].test.as_mut().unwrap().loss = f64::NAN;
    }
    let (page, _) = page(&report);
    let loss = page.named("figure")[0];
    assert_eq!(loss.named("polyline").len(), 3); // training, and test twice
    let note = "Not shown because NaN or infinite: 2 epochs between 3 and 4.";
    assert!(loss.text.contains(note));
    for epoch in &mut report.epochs {
        (epoch.test.as_mut().unwrap().loss, epoch.train_loss) = (f64::NAN, f64::INFINITY);
    }
    assert!(report.to_html().contains("No finite values."));
}

#[test]
fn losses_with_a_wide_range_have_a_logarithmic_axis() {
    let mut report = SampleRun::images(6).report();
    assert!(!report.to_html().contains("(logarithmic)"));
    report.epochs[0].test.as_mut().unwrap().loss = 900.0;
    assert!(report.to_html().contains("(logarithmic)"));
}

#[test]
fn long_names_are_clipped() {
    let long = "ÄÖ名🙂".repeat(50_000);
    let mut report = SampleRun::images(2).report();
    report.title = long.clone();
    for mistake in &mut report.mistakes {
        (mistake.entry.label, mistake.entry.said) = (long.clone(), long.clone());
        mistake.entry.file = Some(long.clone());
    }
    let summary = report.summary.as_mut().unwrap();
    summary.stages[0].device = long.clone();
    summary.stages[1].layers = (0..5000).map(|layer| format!("Layer{layer}")).collect();
    summary.stages[1].layers[0] = long.clone();
    let settings = &mut report.settings.tables[0].entries;
    settings.push((long.clone(), long.clone()));
    report.remark = Some(long);
    let (page, length) = page(&report);
    assert!(length < 500_000, "{length}");
    assert_eq!(page.named("h1")[0].text.chars().count(), 121);
}

#[test]
fn all_settings_and_stages_are_shown() {
    let mut run = SampleRun::images(2);
    run.stages = 16;
    let mut report = run.report();
    let entry = |index: usize| (format!("setting-{index}"), index.to_string());
    let (name, entries) = ("many".to_owned(), (0..400).map(entry).collect());
    report.settings.tables.push(SettingsTable { name, entries });
    let (page, _) = page(&report);
    let settings = page.section("settings").unwrap();
    assert_eq!(settings.named("caption").len(), 5);
    assert!(settings.text.contains("setting-399"));
    assert_eq!(page.section("stages").unwrap().named("tr").len(), 17);
}

#[test]
fn only_the_first_mistakes_are_shown() {
    let mut run = SampleRun::images(1);
    run.mistakes = 100;
    let (page, _) = page(&run.report());
    let mistakes = page.section("mistakes").unwrap();
    assert_eq!(mistakes.named("li").len(), 60);
    assert!(mistakes.text.contains("The first 60 of 100."));
}
