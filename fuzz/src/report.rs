//! Headers of pictures, and a run's configuration and sums.

use std::path::Path;

use stovepipe_report::{Picture, RunSettings, first_other_sum};

use super::{
    files::{in_folder, parts},
    input::text,
};

/// A picture keeps its bytes.
pub fn picture(bytes: &[u8]) {
    if let Ok(picture) = Picture::new(bytes.to_vec()) {
        assert_eq!(picture.bytes(), bytes);
        assert!(picture.media_type().starts_with("image/"));
    }
}

/// Every setting of a configuration is found by its name.
pub fn configuration(bytes: &[u8]) {
    text(bytes, |text| {
        if let Ok(settings) = RunSettings::parse(text) {
            for table in &settings.tables {
                for (name, _) in &table.entries {
                    assert!(settings.get(&table.name, name).is_some());
                }
            }
        }
    });
}

/// Two runs' sums. Those of a run are the same as its own, and two runs part at the same step whichever is named first.
pub fn sums(bytes: &[u8]) {
    let [first, second] = parts(bytes);
    let names = ["a", "b"].map(|run| format!("{run}/checksums.jsonl"));
    let files = [(names[0].as_str(), first), (names[1].as_str(), second)];
    in_folder(&files, |folder| {
        let [a, b] = ["a", "b"].map(|run| folder.join(run));
        let compared = |runs: [&Path; 2]| first_other_sum(runs).unwrap();
        assert_eq!(compared([&a, &a]).other, None);
        let both = [[&a, &b], [&b, &a]].map(|[one, other]| compared([one, other]));
        assert_eq!(both[0].same, both[1].same);
        let steps = both.map(|own| own.other.map(|(step, _)| step));
        assert_eq!(steps[0], steps[1]);
    });
}
