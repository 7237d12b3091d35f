//! The levels of links, from where devices are.

use stovepipe_schedule::Link;

use crate::machine::LinkLevel;

impl LinkLevel {
    /// The levels that join devices in these places, innermost first.
    ///
    /// A place names what a device is in, outermost first, such as its computer and its process. `links`
    /// has the link within each of these, innermost first, and then the one between the outermost.
    /// Levels join groups of equal size, which are neighbours. Where places do not, the slower link
    /// stands for both: no link is taken to be faster than it is.
    ///
    /// ```
    /// use stovepipe_plan::LinkLevel;
    /// use stovepipe_schedule::Link;
    ///
    /// let [near, far] = [16e9, 1e9].map(|bandwidth| Link { latency: 1e-5, bandwidth });
    /// let levels = |places: &[&str]| {
    ///     let places: Vec<_> = places.iter().map(|place| [*place]).collect();
    ///     LinkLevel::of_places(&places, [near, far])
    /// };
    /// let two_and_two = levels(&["a", "a", "b", "b"]);
    /// assert_eq!(two_and_two, [LinkLevel::joining(2, near), LinkLevel::joining(2, far)]);
    /// assert_eq!(levels(&["a", "a", "b"]), [LinkLevel::joining(3, far)]);
    /// assert_eq!(levels(&["a", "a", "a"]), [LinkLevel::joining(3, near)]);
    /// ```
    #[must_use]
    pub fn of_places<P: AsRef<[T]>, T: PartialEq>(
        places: &[P],
        links: impl IntoIterator<Item = Link>,
    ) -> Vec<Self> {
        let depth = places.first().map_or(0, |place| place.as_ref().len());
        let mut levels = Vec::new();
        // Devices that the levels so far join, and the slowest link that none of them stands for yet.
        let (mut joined, mut slowest) = (1, None);
        for (level, link) in links.into_iter().take(depth + 1).enumerate() {
            let link = slowest.map_or(link, |slowest: Link| slowest.or_slower(link));
            match group_size(places, depth - level).filter(|size| size % joined == 0) {
                Some(size) if size == joined => {} // nothing to join: no device uses this link
                Some(size) => {
                    levels.push(Self::joining(size / joined, link));
                    (joined, slowest) = (size, None);
                }
                None => slowest = Some(link),
            }
        }
        levels
    }
}

/// The number of devices in each group of those that agree in so many names; `None` if it differs, or
/// those of a group are not neighbours.
fn group_size<P: AsRef<[T]>, T: PartialEq>(places: &[P], names: usize) -> Option<usize> {
    let group = |place: &P| -> usize {
        let own = &place.as_ref()[..names];
        let mut all = places.iter().map(|place| &place.as_ref()[..names]);
        all.position(|first| first == own).unwrap_or_default()
    };
    let groups: Vec<_> = places.iter().map(group).collect();
    let size = groups.iter().take_while(|group| **group == 0).count();
    let starts = (0..groups.len()).map(|device| device / size.max(1) * size);
    let are_equal = groups.len() % size.max(1) == 0 && groups.iter().copied().eq(starts);
    are_equal.then_some(size)
}
