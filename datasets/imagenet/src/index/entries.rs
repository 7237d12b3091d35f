#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// The names of the classes, sorted.
    pub classes: Vec<String>,
    /// The class of each image.
    pub labels: Vec<u32>,
    /// The path of each image in its class's folder, with `/` between its parts.
    pub names: Names,
}

/// The times of folders when they were read, to notice changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamps {
    /// Each folder, by its path in the root, with the time of its last change.
    pub folders: Vec<(String, Nanoseconds)>,
    /// When reading began.
    pub read: Nanoseconds,
}

/// A time, as nanoseconds since 1970.
pub(super) type Nanoseconds = i128;

/// Many names in one string, with the end of each.
///
/// A `String` for each would take 24 bytes and an allocation: a hundred megabytes for ImageNet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    text: String,
    ends: Vec<usize>,
}

impl Names {
    pub fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.ends.push(self.text.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, index: usize) -> &str {
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[begin..self.ends[index]]
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index))
    }

    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}
