//! The structure of a page.

use std::collections::BTreeSet;

use crate::common::{
    dom::Element,
    folder::{SVG, SampleRun},
};
use stovepipe_report::{Comparison, Confusion, Report, RunImage, SvgImage};

fn page(report: &Report) -> Element {
    Element::parse(&report.to_html())
}

/// The texts of all elements of a name.
fn texts<'p>(page: &'p Element, name: &str) -> Vec<&'p str> {
    let elements = page.named(name).into_iter();
    elements.map(|element| element.text.as_str()).collect()
}

#[test]
fn a_run_on_images_has_its_sections() {
    let page = page(&SampleRun::images(6).report());
    let first = [
        "Results",
        "Training curves",
        "Step by step",
        "Worst mistakes",
    ];
    let last = ["Timeline of one mini-batch", "Stages", "Settings"];
    assert_eq!(texts(&page, "h2"), [&first[..], &last].concat());
    assert_eq!(texts(&page, "h3")[..2], ["Loss", "Accuracy"]);
    let by_step = "Loss|Learning rate|Gradient norm before clipping|Speed samples/s|\
                   Memory of the process, MiB|Bubble idle share of a step";
    let by_step: Vec<_> = by_step.split('|').collect();
    let headings = page.section("steps").unwrap().named("h3");
    let found: Vec<_> = headings.iter().map(|heading| heading.text.trim()).collect();
    assert_eq!(found, by_step);
}

#[test]
fn a_language_model_has_perplexity_and_a_text() {
    let page = page(&SampleRun::language(6).report());
    let first = ["Results", "Training curves", "Step by step", "Text"];
    let last = ["Timeline of one mini-batch", "Stages", "Settings"];
    assert_eq!(texts(&page, "h2"), [&first[..], &last].concat());
    assert!(page.section("steps").unwrap().text.contains("tokens/s"));
    assert!(page.named("h3")[1].text.starts_with("Perplexity"));
    assert!(page.named("dt")[0].text.starts_with("Test perplexity"));
    assert!(page.named("pre")[0].text.contains("Jehovah"));
}

#[test]
fn an_empty_report_is_a_page() {
    let page = page(&Report::default());
    assert_eq!(texts(&page, "h2"), Vec::<&str>::new());
    assert_eq!(page.named("h1").len(), 1);
    assert!(page.text.contains("after 0 epochs"));
}

#[test]
fn a_page_works_with_screen_readers() {
    let (images, language) = (SampleRun::images(6), SampleRun::language(2));
    for report in [images.report(), language.report(), Report::default()] {
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
            let label = drawing.get("aria-label").unwrap();
            assert!(label.contains(" by epoch") || label.contains(" by step"));
        }
        for table in page.named("table") {
            assert_eq!(table.children[0].name, "caption");
            assert!(!table.children[0].text.is_empty());
            let headers = table.named("th");
            assert!(headers.iter().all(|cell| cell.get("scope").is_some()));
            let rows = table.named("tr");
            assert!(rows.iter().all(|row| !row.named("th").is_empty()));
        }
        for section in page.named("section") {
            let heading = page.id(section.get("aria-labelledby").unwrap()).unwrap();
            assert_eq!(heading.name, "h2");
        }
        ids_are_unique(&page);
    }
}

fn headings_are_in_order(page: &Element) {
    let mut deepest = 0;
    for heading in page.all() {
        assert!(!["h4", "h5", "h6"].contains(&&*heading.name), "too deep");
        let mut levels = ["h1", "h2", "h3"].iter();
        if let Some(above) = levels.position(|name| *name == heading.name) {
            assert!(above <= deepest, "{}", heading.text);
            deepest = above + 1;
        }
    }
}

fn ids_are_unique(page: &Element) {
    let all = page.all();
    let ids = || all.iter().filter_map(|element| element.get("id"));
    assert_eq!(ids().collect::<BTreeSet<_>>().len(), ids().count());
}

#[test]
fn a_page_has_no_scripts_and_loads_nothing() {
    let page = page(&SampleRun::images(6).report());
    let links = "src srcset href xlink:href data action poster";
    let links: Vec<_> = links.split(' ').collect();
    for element in page.all() {
        assert!(!["script", "iframe", "object", "embed", "form", "base"].contains(&&*element.name));
        for (name, value) in &element.attributes {
            assert!(!name.starts_with("on") && name != "style", "{name}");
            if links.contains(&name.as_str()) {
                let is_link = element.name == "a" && value == "timeline.svg";
                let is_allowed = is_link || value.starts_with("data:image/");
                assert!(is_allowed, "{name}={value}");
            }
        }
    }
    let style = &page.named("style")[0].text;
    assert!(!style.contains("url(") && !style.contains("@import"));
    let mut metas = page.named("meta").into_iter();
    let policy = metas.find(|meta| meta.get("http-equiv").is_some()).unwrap();
    let policy = policy.get("content").unwrap();
    assert!(policy.starts_with("default-src 'none'"));
}

#[test]
fn a_page_tells_whether_the_run_finished() {
    let check = |report: &Report, expected: &str| {
        let page = page(report);
        let all = page.all().into_iter();
        let states = all.filter(|element| element.has_class("state"));
        let states: Vec<_> = states.map(|state| state.text.clone()).collect();
        assert_eq!(states, [expected]);
    };
    let mut report = SampleRun::images(6).report();
    check(&report, "Finished after 6 epochs");
    let summary = report.summary.as_mut().unwrap();
    (summary.stopped, summary.epochs) = (true, 4);
    check(&report, "Stopped early after 4 of 6 epochs");
    report.summary = None;
    report.epochs.truncate(1);
    let open = |epochs| format!("Not finished after {epochs}: interrupted, or still running");
    check(&report, &open("1 of 6 epochs"));
    report.settings.tables.clear();
    check(&report, &open("1 epoch"));
}

#[test]
fn an_interrupted_run_has_the_results_of_its_epochs() {
    let mut report = SampleRun::images(6).report();
    report.summary = None;
    for (epoch, (speed, seconds)) in report.epochs.iter_mut().zip([(100.0, 3.0), (200.0, 1.0)]) {
        (epoch.samples_per_second, epoch.seconds) = (speed, seconds);
    }
    report.epochs.truncate(2);
    let page = page(&report);
    assert!(page.section("stages").is_none());
    let numbers = page.section("results").unwrap();
    let value = |name: &str| {
        let pairs = numbers.named("div");
        let pair = pairs.iter().find(|pair| pair.children[0].text == name);
        pair.unwrap().children[1].text.clone()
    };
    assert_eq!(value("Samples per second"), "125");
    assert_eq!(value("Duration"), "4.0\u{a0}s");
}

#[test]
fn the_best_epoch_is_named_if_it_was_not_the_last() {
    let mut report = SampleRun::images(6).report();
    let scores = &mut report.epochs[2].test.as_mut().unwrap().metrics;
    scores.insert("accuracy".to_owned(), 0.9991);
    let results = page(&report).section("results").unwrap().text.clone();
    let best = "best 99.9\u{a0}% (epoch\u{a0}3)";
    assert!(results.contains(best), "{results}");
    assert!(results.contains("averaged weights"));
}

#[test]
fn the_scaling_of_the_loss_is_in_the_table() {
    let run = SampleRun::images(2).folder();
    assert!(!texts(&page(&run.report()), "th").contains(&"loss scale"));
    let metrics = std::fs::read_to_string(run.path().join("metrics.jsonl")).unwrap();
    let scaling = "{\"loss_scale\":{\"scale\":512.0,\"skipped\":3},\"averaged\"";
    let scaled = metrics.replacen("{\"averaged\"", scaling, 1);
    assert_ne!(scaled, metrics);
    run.write("metrics.jsonl", scaled);
    let page = page(&run.report());
    for (name, first, second) in [("th", "loss scale", "skipped updates"), ("td", "512", "3")] {
        let texts = texts(&page, name);
        let place = texts.iter().position(|text| *text == first).unwrap();
        assert_eq!(texts[place + 1], second);
    }
}

#[test]
fn mistakes_have_their_label_and_prediction() {
    let mut report = SampleRun::images(1).report();
    report.mistakes[1].picture = None;
    report.mistakes[1].entry.probability = None;
    let page = page(&report);
    let list = page.section("mistakes").unwrap();
    let (first, second) = (list.named("li")[0], list.named("li")[1]);
    assert!(first.text.contains("label 0") && first.text.contains("predicted 1"));
    let text = &first.text;
    assert!(text.ends_with("97.0\u{a0}% sureloss 4.80test/3"), "{text}");
    let image = first.named("img")[0];
    let alt = "A sample of class 0, predicted as 1";
    assert_eq!(image.get("alt"), Some(alt));
    let src = image.get("src").unwrap();
    assert!(src.starts_with("data:image/png;base64,iVBOR"));
    assert!(second.named("img").is_empty() && second.text.contains("no picture"));
}

/// As an image, the SVG file cannot run scripts.
#[test]
fn timeline_and_memory_are_embedded_as_images() {
    let svg = format!(
        "<svg xmlns='{SVG}' aria-label='a &quot;b&quot; &lt;c>'><script>alert(1)</script></svg>"
    );
    let image = RunImage::Embedded(SvgImage::parse(svg).unwrap());
    let html = Report {
        timeline: Some(image.clone()),
        memory: Some(image),
        ..Report::default()
    }
    .to_html();
    assert!(!html.contains("alert(1)"));
    let page = Element::parse(&html);
    let images = page.named("img");
    assert_eq!(images.len(), 2);
    for image in images {
        let (alt, src) = (image.get("alt").unwrap(), image.get("src").unwrap());
        assert!(alt.ends_with("in one mini-batch: a \"b\" <c>"));
        assert!(src.starts_with("data:image/svg+xml;base64,"));
    }
}

/// Few classes have a matrix; of many, the worst are listed.
#[test]
fn classes_have_their_accuracy() {
    for (classes, headers, rows) in [(3, 3 + 3, 3), (60, 3, 50)] {
        let names = (0..classes).map(|class| format!("<b>{class}")).collect();
        let counts = (0..classes).flat_map(|class| [((class, class), 3), ((class, 0), 1)]);
        let confusion = Some(Confusion::new(names, counts));
        let page = page(&Report {
            confusion,
            ..Report::default()
        });
        assert_eq!(texts(&page, "h2"), ["Classes"]);
        assert_eq!(texts(&page, "th").len(), headers + rows);
        assert_eq!(texts(&page, "tr").len(), 1 + rows);
        let note = texts(&page, "p").concat();
        assert_eq!(
            note.contains("Most often wrong: <b>1 as <b>0 (1)"),
            classes > 20,
            "{note}"
        );
    }
}

/// Three runs: the second is the best, and the last has not finished.
fn three_runs() -> Comparison {
    let run = |title: &str, loss: f64, rate: f64| {
        let mut report = SampleRun::images(4).report();
        report.title = title.to_owned();
        let summary = report.summary.as_mut().unwrap();
        summary.averaged = None;
        summary.test.loss = loss;
        summary
            .test
            .metrics
            .insert("accuracy".to_owned(), 1.0 - loss);
        summary.samples_per_second = rate;
        report
    };
    let mut open = run("open", 0.0, 0.0);
    open.summary = None;
    for epoch in &mut open.epochs {
        epoch.averaged = None;
        epoch.test = None;
    }
    let tables = &mut open.settings.tables;
    tables[0].entries.push(("extra".to_owned(), "1".to_owned()));
    Comparison {
        runs: vec![run("slow", 0.5, 10.0), run("good", 0.25, 40.0), open],
    }
}

/// The number of a run in the order by a column: `--by-COLUMN:NUMBER;` in its row.
fn place(row: &Element, column: usize) -> usize {
    let style = &row.attributes["style"];
    let (_, rest) = style.split_once(&format!("--by-{column}:")).unwrap();
    rest.split_once(';').unwrap().0.parse().unwrap()
}

#[test]
fn a_table_has_the_order_of_runs_by_each_column() {
    let comparison = three_runs();
    let page = Element::parse(&comparison.to_html());
    let section = page.section("runs").unwrap();
    let columns: Vec<_> = section
        .named("label")
        .iter()
        .map(|own| own.text.trim().to_owned())
        .collect();
    let expected = [
        "run",
        "test loss",
        "test accuracy",
        "test top-5 accuracy",
        "samples/s",
        "bubble",
        "memory, MiB",
        "time",
        "device-hours",
    ];
    assert_eq!(columns, expected);
    let rows = &section.named("tr")[1..];
    let order = |column| {
        rows.iter()
            .map(|row| place(row, column))
            .collect::<Vec<_>>()
    };
    assert_eq!(order(0), [0, 1, 2]);
    assert_eq!(order(1), [1, 0, 2], "the lowest loss first, none last");
    assert_eq!(order(2), [1, 0, 2], "the highest accuracy first");
    assert_eq!(order(4), [1, 0, 2], "the fastest first");
    assert!(rows[1].text.contains("good") && rows[1].text.contains("0.2500"));
    assert!(rows[2].text.contains("not finished"));
    // Each order has a rule of the style sheet.
    let style = page.named("style")[0].text.clone();
    for column in 0..expected.len() {
        assert!(style.contains(&format!("#by-{column}:checked")), "{column}");
    }
    let checked = section.named("input");
    let checked: Vec<_> = checked
        .iter()
        .filter(|own| own.attributes.contains_key("checked"))
        .collect();
    assert_eq!(checked.len(), 1);
}

#[test]
fn settings_and_curves_of_runs_are_side_by_side() {
    let comparison = three_runs();
    let page = Element::parse(&comparison.to_html());
    let settings = page.section("settings").unwrap();
    let rows: Vec<_> = settings
        .named("tr")
        .iter()
        .map(|row| row.text.trim().to_owned())
        .collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(
        rows[1].contains("extra") && rows[1].ends_with("––1"),
        "{rows:?}"
    );
    let curves = page.section("curves").unwrap();
    let titles: Vec<_> = curves
        .named("h3")
        .iter()
        .map(|own| own.text.trim().to_owned())
        .collect();
    assert_eq!(titles[..3], ["Test loss", "Test accuracy", "Training loss"]);
    // The run that was not tested has no curve there.
    let names = |chart: usize| {
        let chart = &curves.named("figure")[chart];
        let names = chart.named("text").into_iter();
        let names = names.filter(|text| text.attributes["class"].starts_with("name"));
        names.map(|text| text.text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["1", "2"]);
    assert_eq!(names(2), ["1", "2", "3"]);
    let same = Comparison {
        runs: vec![SampleRun::images(2).report(); 2],
    };
    assert!(same.to_html().contains("The runs have the same settings."));
}

#[test]
fn runs_of_one_name_and_too_many_are_told_apart() {
    let runs = [SampleRun::images(1).folder(), SampleRun::images(1).folder()];
    let folders: Vec<_> = runs.iter().map(|run| run.path()).collect();
    let comparison = Comparison::read(&folders).unwrap();
    for (run, folder) in comparison.runs.iter().zip(&folders) {
        assert_eq!(run.title, format!("train-1 ({})", folder.display()));
    }
    let many = Comparison::read(&[&folders[0]; 13])
        .unwrap_err()
        .to_string();
    assert_eq!(many, "13 runs are too many for one page: name at most 12");
}
