//! Pages in a browser: nothing is cut off, faint, small, overlapping or broken, on phones and desktops, in
//! light and dark mode.
//!
//! Pages are measured in frames, since a headless browser has no window as narrow as a phone. Without
//! Chromium, the test is skipped with a message; with `STOVEPIPE_REQUIRE_CHROMIUM=1`, it fails. With

//! `STOVEPIPE_PAGES=FOLDER`, it writes the pages to that folder.

use std::{env, fs, io::Write, path::Path};

use crate::common::{chromium, dom::Element, folder::SampleRun};
use maud::html;
use serde::Deserialize;
use stovepipe_report::{Comparison, Report};

const SIZES: [(u32, u32); 3] = [(360, 800), (768, 1024), (1280, 900)];

/// The findings of `measure.js` for a page.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageFindings {
    name: String,
    /// Widths of the window and of its content.
    width: u32,
    scrolls: u32,
    height: u32,
    is_dark: bool,
    /// Elements with problems.
    outside: Vec<String>,
    faint: Vec<String>,
    small: Vec<String>,
    overlapping: Vec<String>,
    broken: Vec<String>,
    unreachable: Vec<String>,
}

/// Pages with little and with much content.
fn pages() -> Vec<(&'static str, String)> {
    let long = "Pneumonoultramicroscopicsilicovolcanoconiosis/".repeat(4);
    let mut run = SampleRun::images(3);
    run.stages = 16;
    let mut awkward = run.report();
    awkward.title = long.clone();
    for mistake in &mut awkward.mistakes {
        (mistake.entry.label, mistake.entry.said) = (long.clone(), "<script>".to_owned());
        mistake.entry.file = Some(long.clone());
    }
    awkward.mistakes[1].picture = None;
    let settings = &mut awkward.settings.tables[0].entries;
    settings.push((long.clone(), long.clone()));
    let summary = awkward.summary.as_mut().unwrap();
    summary.stages[0].device = long.clone();
    summary.stages[1].layers = vec![long.clone(); 2];
    summary.stopped = true;
    awkward.remark = Some(long.repeat(9));
    for epoch in &mut awkward.epochs {
        epoch.learning_rate *= 1e-9;
        epoch.samples_per_second *= 1e4;
        epoch.test.as_mut().unwrap().loss *= 1e5;
    }
    (awkward.epochs[1].test.as_mut().unwrap().metrics).insert("accuracy".to_owned(), f64::NAN);
    let reports = [
        ("images", SampleRun::images(8).report()),
        ("language", SampleRun::language(40).report()),
        ("long", SampleRun::images(10_000).report()),
        ("one epoch", SampleRun::images(1).report()),
        ("awkward", awkward),
        ("empty", Report::default()),
    ];
    let pages = reports.map(|(name, report)| (name, report.to_html()));
    let compared = |titles: &[&str]| {
        let run = |title: &&str| Report {
            title: (*title).to_owned(),
            ..SampleRun::images(6).report()
        };
        Comparison {
            runs: titles.iter().map(run).collect(),
        }
    };
    let mut many = compared(&["train-1"; 12]);
    many.runs[3].title = long.clone();
    many.runs[4] = SampleRun::language(3).report();
    many.runs[5] = Report::default();
    let comparisons = [
        ("compared", compared(&["first", "second"]).to_html()),
        ("many compared", many.to_html()),
    ];
    let unfolded = pages[0].1.replace("<details>", "<details open>");
    let others = comparisons.into_iter().chain([("unfolded", unfolded)]);
    pages.into_iter().chain(others).collect()
}

/// A page with all pages in frames.
fn frames(pages: &[(&str, String)]) -> String {
    let script = include_str!("browser/measure.js");
    let page = html! {
        (maud::DOCTYPE)
        meta charset="utf-8"; // otherwise the browser guesses
        script { (maud::PreEscaped(script)) }
        body {
            @for (name, page) in pages {
                @for (width, height) in SIZES {
                    iframe title=(name) width=(width) height=(height) style="border: 0" srcdoc=(page) {}
                }
            }
        }
    };
    page.into_string()
}

#[test]
fn pages_are_legible_everywhere() {
    let pages = pages();
    if let Some(folder) = env::var_os("STOVEPIPE_PAGES") {
        for (name, page) in &pages {
            fs::write(Path::new(&folder).join(format!("{name}.html")), page).unwrap();
        }
    }
    let Some(browser) = chromium::find() else {
        let is_required = env::var_os("STOVEPIPE_REQUIRE_CHROMIUM").is_some_and(|set| set == "1");
        let message = "STOVEPIPE_REQUIRE_CHROMIUM is 1, but PATH has no Chromium";
        assert!(!is_required, "{message}");
        // Not by `eprintln`, whose output passing tests hide.
        writeln!(std::io::stderr(), "skipped: there is no Chromium in PATH").unwrap();
        return;
    };
    let mut wrong = Vec::new();
    for is_dark in [false, true] {
        let document = chromium::document(&browser, &frames(&pages), is_dark);
        let document = Element::parse(&document);
        let found = &document.named("pre")[0].text;
        let found: Vec<PageFindings> = serde_json::from_str(found).unwrap();
        assert_eq!(found.len(), pages.len() * SIZES.len());
        for found in found {
            assert_eq!(found.is_dark, is_dark);
            assert!(SIZES.iter().any(|(width, _)| *width == found.width));
            assert!(found.height > 100, "{} is empty", found.name);
            wrong.extend(problems(&found));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The problems of a page, in words.
fn problems(found: &PageFindings) -> Vec<String> {
    let mut wrong = Vec::new();
    if found.scrolls > found.width {
        wrong.push(format!("is {} wide", found.scrolls));
    }
    let lists = [
        ("outside", &found.outside),
        ("faint", &found.faint),
        ("small", &found.small),
        ("overlapping", &found.overlapping),
        ("broken", &found.broken),
        ("not reachable by keyboard", &found.unreachable),
    ];
    for (what, elements) in lists {
        wrong.extend(elements.iter().map(|element| format!("{what}: {element}")));
    }
    let place = format!("{} at {}, dark: {}", found.name, found.width, found.is_dark);
    let wrong = wrong.iter().map(|wrong| format!("{place}: {wrong}"));
    wrong.collect()
}
