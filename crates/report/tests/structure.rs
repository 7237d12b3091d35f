//! What a page is made of.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{
    dom::Element,
    folder::{Folder, Run, SVG},
};
use stovepipe_report::{Drawing, Report, Timeline};

fn page(report: &Report) -> Element {
    Element::parse(&report.to_html())
}

/// The headings of the sections.
fn sections(page: &Element) -> Vec<&str> {
    page.named("h2")
        .iter()
        .map(|heading| heading.text.as_str())
        .collect()
}

#[test]
fn a_run_on_images_has_its_sections() {
    let page = page(&Run::images(6).report());
    assert_eq!(
        sections(&page),
        [
            "What it came to",
            "How it went",
            "Worst mistakes",
            "One mini-batch",
            "Stages",
            "Settings"
        ]
    );
    let charts: Vec<_> = page
        .named("h3")
        .iter()
        .map(|heading| heading.text.clone())
        .collect();
    assert_eq!(charts[0], "Loss");
    assert_eq!(charts[1], "Accuracy");
}

#[test]
fn a_language_model_has_perplexity_and_a_text() {
    let page = page(&Run::language(6).report());
    assert_eq!(
        sections(&page),
        [
            "What it came to",
            "How it went",
            "Remark",
            "One mini-batch",
            "Stages",
            "Settings"
        ]
    );
    assert!(page.named("h3")[1].text.starts_with("Perplexity"));
    assert!(page.named("dt")[0].text.starts_with("Test perplexity"));
    assert!(page.named("pre")[0].text.contains("Jehovah"));
}

#[test]
fn an_empty_report_is_a_page() {
    let page = page(&Report::default());
    assert_eq!(sections(&page), Vec::<&str>::new());
    assert_eq!(page.named("h1").len(), 1);
    assert!(page.text.contains("after 0 epochs"));
}

/// What anyone who cannot see the page, or not well, needs of it.
#[test]
fn a_page_can_be_read_with_ears() {
    for report in [
        Run::images(6).report(),
        Run::language(2).report(),
        Report::default(),
    ] {
        let page = page(&report);
        assert_eq!(page.named("html")[0].get("lang"), Some("en"));
        assert!(!page.named("title")[0].text.is_empty());
        assert_eq!(page.named("main").len(), 1);
        headings_are_in_order(&page);
        for image in page.named("img") {
            assert!(image.get("alt").is_some_and(|alt| alt.len() > 10));
        }
        for drawing in page.named("svg") {
            assert_eq!(drawing.get("role"), Some("img"));
            assert!(drawing.get("aria-label").unwrap().contains("epoch"));
        }
        for table in page.named("table") {
            assert_eq!(table.children[0].name, "caption");
            assert!(!table.children[0].text.is_empty());
            assert!(
                table
                    .named("th")
                    .iter()
                    .all(|cell| cell.get("scope").is_some())
            );
            let rows = table.named("tr");
            assert!(rows.iter().all(|row| row.named("th").iter().any(|_| true)));
        }
        for section in page.named("section") {
            let heading = page.id(section.get("aria-labelledby").unwrap()).unwrap();
            assert_eq!(heading.name, "h2");
        }
        ids_are_unique(&page);
    }
}

fn headings_are_in_order(page: &Element) {
    let mut before = 0;
    for heading in page.all() {
        let level = match heading.name.as_str() {
            "h1" => 1,
            "h2" => 2,
            "h3" => 3,
            "h4" | "h5" | "h6" => panic!("too deep"),
            _ => continue,
        };
        assert!(level <= before + 1, "{}", heading.text);
        before = level;
    }
}

fn ids_are_unique(page: &Element) {
    let all = page.all();
    let mut ids: Vec<_> = all.iter().filter_map(|element| element.get("id")).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

/// Nothing is asked of any network, and nothing runs.
#[test]
fn a_page_stands_alone() {
    let report = Run::images(6).report();
    let page = page(&report);
    let addresses = [
        "src",
        "srcset",
        "href",
        "xlink:href",
        "data",
        "action",
        "poster",
    ];
    for element in page.all() {
        assert!(!["script", "iframe", "object", "embed", "form", "base"].contains(&&*element.name));
        for (name, value) in &element.attributes {
            assert!(!name.starts_with("on") && name != "style", "{name}");
            if addresses.contains(&name.as_str()) {
                let is_link = element.name == "a" && value == "timeline.svg";
                assert!(
                    value.starts_with("data:image/") || is_link,
                    "{name}={value}"
                );
            }
        }
    }
    let style = &page.named("style")[0].text;
    assert!(!style.contains("url(") && !style.contains("@import"));
    let policy = page
        .named("meta")
        .into_iter()
        .find(|meta| meta.get("http-equiv").is_some());
    assert!(
        policy
            .unwrap()
            .get("content")
            .unwrap()
            .starts_with("default-src 'none'")
    );
}

#[test]
fn a_run_says_how_it_ended() {
    let check = |report: &Report, expected: &str| {
        let page = page(report);
        let states = page
            .all()
            .into_iter()
            .filter(|element| element.has_class("state"));
        let states: Vec<_> = states.map(|state| state.text.clone()).collect();
        assert_eq!(states, [expected]);
    };
    let mut report = Run::images(6).report();
    check(&report, "Ended after 6 epochs");
    let summary = report.summary.as_mut().unwrap();
    (summary.stopped, summary.epochs) = (true, 4);
    check(&report, "Stopped before its end, after 4 of 6 epochs");
    report.summary = None;
    report.epochs.truncate(1);
    check(
        &report,
        "No summary after 1 of 6 epochs: interrupted, or still under way",
    );
    report.settings.tables.clear();
    check(
        &report,
        "No summary after 1 epoch: interrupted, or still under way",
    );
}

/// Numbers of a run without a summary are those of its epochs.
#[test]
fn an_interrupted_run_has_numbers() {
    let mut report = Run::images(6).report();
    report.summary = None;
    for (epoch, (speed, seconds)) in report.epochs.iter_mut().zip([(100.0, 3.0), (200.0, 1.0)]) {
        (epoch.samples_per_second, epoch.seconds) = (speed, seconds);
    }
    report.epochs.truncate(2);
    let page = page(&report);
    assert!(page.section("stages").is_none());
    let numbers = page.section("outcome").unwrap();
    let value = |name: &str| {
        let pairs = numbers.named("div");
        let pair = pairs.iter().find(|pair| pair.children[0].text == name);
        pair.unwrap().children[1].text.clone()
    };
    assert_eq!(value("Samples a second"), "125");
    assert_eq!(value("Duration"), "4.0\u{a0}s");
}

#[test]
fn the_best_epoch_is_told_if_it_was_not_the_last() {
    let mut report = Run::images(6).report();
    report.epochs[2].test.accuracy = 0.9991;
    let outcome = page(&report).section("outcome").unwrap().text.clone();
    assert!(
        outcome.contains("best 99.9\u{a0}% (epoch\u{a0}3)"),
        "{outcome}"
    );
    assert!(outcome.contains("averaged weights"));
}

/// In f16, by the second epoch's line.
#[test]
fn the_scale_of_the_loss_is_among_the_numbers() {
    let run = Run::images(2).folder();
    let heads = |run: &Folder| {
        let page = page(&run.report());
        let heads = page.named("th").into_iter();
        let heads: Vec<_> = heads.map(|head| head.text.clone()).collect();
        let cells = page.named("td").into_iter();
        (
            heads,
            cells.map(|cell| cell.text.clone()).collect::<Vec<_>>(),
        )
    };
    let (without, _) = heads(&run);
    assert!(!without.contains(&"loss scale".to_owned()));
    let metrics = std::fs::read_to_string(run.path().join("metrics.jsonl")).unwrap();
    let scaled = metrics.replacen(
        "{\"averaged\"",
        "{\"loss_scale\":{\"scale\":512.0,\"skipped\":3},\"averaged\"",
        1,
    );
    assert_ne!(scaled, metrics);
    run.write("metrics.jsonl", scaled);
    let (with, cells) = heads(&run);
    let at = |name: &str| with.iter().position(|head| head == name).unwrap();
    assert_eq!(at("skipped updates"), at("loss scale") + 1);
    let number = cells.iter().position(|cell| cell == "512").unwrap();
    assert_eq!(cells[number + 1], "3");
}

#[test]
fn mistakes_say_what_is_and_what_was_said() {
    let mut report = Run::images(1).report();
    report.mistakes[1].picture = None;
    report.mistakes[1].entry.probability = None;
    let page = page(&report);
    let list = page.section("mistakes").unwrap();
    let (first, second) = (list.named("li")[0], list.named("li")[1]);
    assert!(first.text.contains("is 0") && first.text.contains("said 1"));
    let text = &first.text;
    assert!(text.ends_with("97.0\u{a0}% sureloss 4.80test/3"), "{text}");
    let image = first.named("img")[0];
    assert_eq!(image.get("alt"), Some("A sample of class 0, taken for 1"));
    assert!(
        image
            .get("src")
            .unwrap()
            .starts_with("data:image/png;base64,iVBOR")
    );
    assert!(second.named("img").is_empty() && second.text.contains("no picture"));
}

/// A drawing is the whole file, and its scripts are as dead as those of any picture.
#[test]
fn a_drawing_is_embedded_as_a_picture() {
    let svg = format!(
        "<svg xmlns='{SVG}' aria-label='a &quot;b&quot; &lt;c>'><script>alert(1)</script></svg>"
    );
    let timeline = Timeline::Drawn(Drawing::parse(svg).unwrap());
    let report = Report {
        timeline: Some(timeline),
        ..Report::default()
    };
    let html = report.to_html();
    assert!(!html.contains("alert(1)"));
    let page = Element::parse(&html);
    let image = page.named("img")[0];
    assert!(
        image
            .get("alt")
            .unwrap()
            .ends_with("in one mini-batch: a \"b\" <c>")
    );
    assert!(
        image
            .get("src")
            .unwrap()
            .starts_with("data:image/svg+xml;base64,")
    );
}
