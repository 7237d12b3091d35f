//! Whatever stands in a run's files, it stays text.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{dom::Element, folder::Run};
use proptest::prelude::*;
use stovepipe_report::{
    Mistake, MistakeEntry, Report, Scores, Settings, SettingsTable, Stage, Summary,
};

/// Strings that mean something to someone who reads HTML, and any others.
fn hostile() -> impl Strategy<Value = String> {
    let pieces = [
        "<script>alert(1)</script>",
        "</title>",
        "</style>",
        "</pre>",
        "</main></body></html>",
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
        "\"",
        "'",
        "\" onload=\"x",
        "'>",
        "&",
        "&lt;",
        "&#60;",
        "<",
        ">",
        "=",
        "`",
        "\\",
        "\0",
        "\r\n",
        "\t",
        "\u{202e}",
        "\u{feff}",
        "java\tscript:",
        "<img src=x onerror=x>",
        "é",
        "数",
        "🙂",
        "a",
        " ",
    ];
    let piece = prop_oneof![
        4 => prop::sample::select(pieces.to_vec()).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat())
}

/// A report in which every text is this one.
fn report_of(text: &str) -> Report {
    let text = || text.to_owned();
    let scores = Scores {
        loss: 1.0,
        accuracy: 0.5,
        top5: 1.0,
        perplexity: None,
    };
    let stage = Stage {
        worker: 0,
        device: text(),
        layers: vec![text(), text()],
        parameters: 2,
    };
    let table = |name: String| SettingsTable {
        name,
        entries: vec![(text(), text())],
    };
    let entry = MistakeEntry {
        file: Some(text()),
        label: text(),
        said: text(),
        probability: Some(0.5),
        loss: Some(1.0),
        picture: None,
    };
    Report {
        title: text(),
        settings: Settings {
            tables: vec![table(text()), table("model".to_owned())],
        },
        summary: Some(Summary {
            parameters: 2,
            stages: vec![stage],
            test: scores,
            ..Summary::default()
        }),
        remark: Some(text()),
        mistakes: vec![Mistake {
            entry,
            picture: None,
        }],
        ..Report::default()
    }
}

/// What is replaced, and what it is replaced by.
fn is_odd(letter: char) -> bool {
    let turns = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_none =
        matches!(letter, '\u{fdd0}'..='\u{fdef}' | '\u{fffd}') || letter as u32 & 0xfffe == 0xfffe;
    letter.is_control() || turns || is_none
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn texts_change_nothing_but_texts(text in hostile()) {
        // Empty texts leave things out; so no text here is nothing but space.
        let text = format!("x{text}x");
        let plain = Element::parse(&report_of("x").to_html());
        let page = Element::parse(&report_of(&text).to_html());
        prop_assert_eq!(page.shape(), plain.shape());
    }

    #[test]
    fn short_texts_are_shown_as_they_are(text in hostile()) {
        let text = format!("x{text}x");
        prop_assume!(text.chars().count() <= 100);
        let expected: String = text.chars().filter(|c| !is_odd(*c)).collect();
        let page = Element::parse(&report_of(&text).to_html());
        let settings = page.section("settings").unwrap();
        for shown in [page.named("h1")[0], page.named("pre")[0], settings.named("td")[0]] {
            let shown = shown.text.chars().filter(|c| !is_odd(*c));
            prop_assert_eq!(&shown.collect::<String>(), &expected);
        }
    }

    /// The same from files: names in JSON and TOML, each escaped in their own way.
    #[test]
    fn texts_of_files_stay_texts(text in hostile()) {
        prop_assume!(!text.contains('\0'));
        let json = serde_json::to_string(&format!("x{text}x")).unwrap();
        let folder = Run { mistakes: 1, ..Run::images(1) }.folder();
        let benign = Element::parse(&folder.report().to_html());
        let entry = format!(
            "[{{\"label\":{json},\"said\":{json},\"file\":{json},\"probability\":0.5,\"loss\":1,\
             \"picture\":\"mistakes/01.png\"}}]"
        );
        folder.write("mistakes.json", entry);
        let page = Element::parse(&folder.report().to_html());
        prop_assert_eq!(page.shape(), benign.shape());
    }
}
