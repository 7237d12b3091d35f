//! Headers of pictures, and the configuration of a run.

use stovepipe_report::{Picture, RunSettings};

use super::input::text;

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
