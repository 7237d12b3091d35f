/// Many names in one run of text: for each, its bytes and where they end.
///
/// A `String` each would take 24 bytes and a piece of the heap: a hundred megabytes for ImageNet.
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

    /// The name at a place below [`len`](Self::len).
    pub fn get(&self, place: usize) -> &str {
        let begin = match place {
            0 => 0,
            _ => self.ends[place - 1],
        };
        &self.text[begin..self.ends[place]]
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|place| self.get(place))
    }

    /// Gives back what was allocated ahead.
    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}
