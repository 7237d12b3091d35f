//! Pages in a browser: nothing is cut off, faint, small, on top of something else, or broken, on a phone and
//! on a desk, in the light and in the dark.
//!
//! The pages are measured as they are, in frames, since a browser without a window makes none as narrow as a
//! phone. Without Chromium, the test says that it did nothing; with `STOVEPIPE_REQUIRE_CHROMIUM=1`, it fails. With
//! `STOVEPIPE_PAGES=FOLDER`, it leaves the pages there, to be looked at.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::{env, fs, io::Write, path::Path};

use common::{chromium, dom::Element, folder::Run};
use maud::html;
use serde::Deserialize;
use stovepipe_report::Report;

const SIZES: [(u32, u32); 3] = [(360, 800), (768, 1024), (1280, 900)];

/// What `measure.js` says of a page.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    name: String,
    /// Of the window, and of what is in it.
    width: u32,
    scrolls: u32,
    height: u32,
    is_dark: bool,
    /// Elements that are wrong in some way.
    outside: Vec<String>,
    faint: Vec<String>,
    small: Vec<String>,
    overlapping: Vec<String>,
    broken: Vec<String>,
    unreachable: Vec<String>,
}

/// Pages with much on them, and with little.
fn pages() -> Vec<(&'static str, String)> {
    let long = "Pneumonoultramicroscopicsilicovolcanoconiosis/".repeat(4);
    let mut awkward = Run {
        stages: 16,
        ..Run::images(3)
    }
    .report();
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
        epoch.test.loss *= 1e5;
    }
    awkward.epochs[1].test.accuracy = f64::NAN;
    let reports = [
        ("images", Run::images(8).report()),
        ("language", Run::language(40).report()),
        ("long", Run::images(10_000).report()),
        ("one epoch", Run::images(1).report()),
        ("awkward", awkward),
        ("empty", Report::default()),
    ];
    let mut pages = reports
        .map(|(name, report)| (name, report.to_html()))
        .to_vec();
    let unfolded = pages[0].1.replace("<details>", "<details open>");
    pages.push(("unfolded", unfolded));
    pages
}

/// A page with the others in frames.
fn frames(pages: &[(&str, String)]) -> String {
    let script = include_str!("browser/measure.js");
    let page = html! {
        (maud::DOCTYPE)
        meta charset="utf-8"; // else it is guessed, from as much of the page as has been read
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

fn keep(pages: &[(&str, String)], folder: &Path) {
    for (name, page) in pages {
        fs::write(folder.join(format!("{name}.html")), page).unwrap();
    }
}

#[test]
fn pages_are_legible_everywhere() {
    let pages = pages();
    if let Some(folder) = env::var_os("STOVEPIPE_PAGES") {
        keep(&pages, Path::new(&folder));
    }
    let Some(browser) = chromium::find() else {
        let is_required = env::var_os("STOVEPIPE_REQUIRE_CHROMIUM").is_some_and(|set| set == "1");
        assert!(
            !is_required,
            "there is no Chromium here, and STOVEPIPE_REQUIRE_CHROMIUM is 1"
        );
        // Not by `eprintln`, which tests that pass keep to themselves.
        let said = "skipped: there is no Chromium in PATH to look at pages with";
        writeln!(std::io::stderr(), "{said}").unwrap();
        return;
    };
    let mut wrong = Vec::new();
    for is_dark in [false, true] {
        let document = chromium::document(&browser, &frames(&pages), is_dark);
        let document = Element::parse(&document);
        let found: Vec<Found> = serde_json::from_str(&document.named("pre")[0].text).unwrap();
        assert_eq!(found.len(), pages.len() * SIZES.len());
        for found in found {
            assert_eq!(found.is_dark, is_dark);
            assert!(SIZES.iter().any(|(width, _)| *width == found.width));
            assert!(found.height > 100, "{} is empty", found.name);
            wrong.extend(mistakes(&found));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is wrong with a page, in words.
fn mistakes(found: &Found) -> Vec<String> {
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
        ("not to be reached by keyboard", &found.unreachable),
    ];
    for (what, elements) in lists {
        wrong.extend(elements.iter().map(|element| format!("{what}: {element}")));
    }
    let place = format!("{} at {}, dark: {}", found.name, found.width, found.is_dark);
    wrong
        .iter()
        .map(|wrong| format!("{place}: {wrong}"))
        .collect()
}
