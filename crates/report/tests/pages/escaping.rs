//! Text in a run's files stays text on the page.

use crate::common::{dom::Element, folder::SampleRun};
use proptest::prelude::*;
use stovepipe_report::{
    Mistake, MistakeEntry, Report, RunSettings, RunSummary, SettingsTable, StageSummary,
};

/// Strings with a meaning in HTML, mixed with any characters.
fn hostile() -> impl Strategy<Value = String> {
    let tags = "<script>alert(1)</script>|<img src=x onerror=x>|</main></body></html>";
    let ends = "</title>|</style>|</pre>|<!--|-->|<![CDATA[|]]>";
    let quotes = "\"|'|\" onload=\"x|'>|`|\\|java\tscript:";
    let marks = "&|&lt;|&#60;|<|>|=|\0|\r\n|\t";
    let letters = "\u{202e}|\u{feff}|é|数|🙂|a| ";
    let pieces = [tags, ends, quotes, marks, letters].map(|pieces| pieces.split('|'));
    let pieces: Vec<_> = pieces.into_iter().flatten().collect();
    let piece = prop_oneof![
        4 => prop::sample::select(pieces).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat())
}

/// A report in which every text is `text`.
fn report_of(text: &str) -> Report {
    let text = || text.to_owned();
    let stage = StageSummary {
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
    let picture = None;
    Report {
        title: text(),
        settings: RunSettings {
            tables: vec![table(text()), table("model".to_owned())],
        },
        summary: Some(RunSummary {
            parameters: 2,
            stages: vec![stage],
            ..RunSummary::default()
        }),
        remark: Some(text()),
        mistakes: vec![Mistake { entry, picture }],
        ..Report::default()
    }
}

/// Whether a character is replaced, or is the replacement.
fn is_odd(letter: char) -> bool {
    let turns = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_no_character =
        matches!(letter, '\u{fdd0}'..='\u{fdef}' | '\u{fffd}') || letter as u32 & 0xfffe == 0xfffe;
    letter.is_control() || turns || is_no_character
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn texts_do_not_change_the_structure(text in hostile()) {
        // Sections with empty texts are left out, so no text here is blank.
        let text = format!("x{text}x");
        let plain = Element::parse(&report_of("x").to_html());
        let page = Element::parse(&report_of(&text).to_html());
        prop_assert_eq!(page.shape(), plain.shape());
    }

    #[test]
    fn short_texts_are_shown_unchanged(text in hostile()) {
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

    #[test]
    fn texts_from_files_do_not_change_the_structure(text in hostile()) {
        prop_assume!(!text.contains('\0'));
        let json = serde_json::to_string(&format!("x{text}x")).unwrap();
        let folder = SampleRun { mistakes: 1, ..SampleRun::images(1) }.folder();
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
