//! Reads label files. See `ImageFolder::open_flat` for their forms.

use std::{collections::HashMap, fs::File, io::Read, path::Path};

use super::entries::Names;
use crate::ImagenetError;

const MOST: u64 = 1 << 28;

/// ILSVRC's numbers of classes: a class's name, its number and a word for it in each line. The development kit of 2015 has
/// this file; that of 2012 has the same numbers in `meta.mat`.
const MAP: &str = "map_clsloc.txt";

const KAGGLE: &str = "ImageId,PredictionString";

const OTHER_FORM: &str =
    "has another form than the lines before: an image and its class, or a class";

/// The label of each image. `names` are sorted.
pub(super) fn read(
    path: &Path,
    names: &Names,
    classes: &[String],
) -> Result<Vec<u32>, ImagenetError> {
    let text = text(path)?;
    let map = Some(path.with_file_name(MAP)).filter(|map| map.exists());
    let map = map.map(|map| self::text(&map)).transpose()?;
    let reader = LabelReader {
        names,
        classes,
        map: map.as_deref(),
    };
    let labels = reader.labels(&text);
    labels.map_err(|problem| problem.in_file(path))
}

fn text(path: &Path) -> Result<String, ImagenetError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(ImagenetError::unreadable(path))?;
    let read = file.take(MOST + 1).read_to_end(&mut bytes);
    read.map_err(ImagenetError::unreadable(path))?;
    if bytes.len() as u64 > MOST {
        let reason = format!("has more than {MOST} bytes, too many for a label file");
        return Err(Problem::new(reason).in_file(path));
    }
    String::from_utf8(bytes).map_err(|_| Problem::new("is not UTF-8 text").in_file(path))
}

#[derive(Debug, PartialEq, Eq)]
struct Problem {
    line: Option<u64>,
    reason: String,
}

impl Problem {
    fn new(reason: impl Into<String>) -> Self {
        let (line, reason) = (None, reason.into());
        Self { line, reason }
    }

    fn at(line: u64, reason: impl Into<String>) -> Self {
        let (line, reason) = (Some(line), reason.into());
        Self { line, reason }
    }

    fn in_file(self, path: &Path) -> ImagenetError {
        let (path, reason) = (path.to_owned(), self.reason);
        match self.line {
            Some(line) => ImagenetError::Label { path, line, reason },
            None => ImagenetError::Labels(path, reason),
        }
    }
}

/// A line: its image, unless labels are in the order of images, and the name or number of its class.
struct LabelLine<'a> {
    line: u64,
    image: Option<&'a str>,
    class: &'a str,
}

struct LabelReader<'a> {
    names: &'a Names,
    classes: &'a [String],
    /// The text of ILSVRC's file of numbers.
    map: Option<&'a str>,
}

impl LabelReader<'_> {
    fn labels(&self, text: &str) -> Result<Vec<u32>, Problem> {
        let entries = entries(text)?;
        let labels = self.classes_of(&entries)?;
        match entries.first() {
            None => Err(Problem::new("has no labels")),
            Some(LabelLine { image: None, .. }) => self.in_order(labels),
            Some(_) => self.by_name(&entries, &labels),
        }
    }

    /// Labels without names, in the order of the images.
    fn in_order(&self, labels: Vec<u32>) -> Result<Vec<u32>, Problem> {
        let (found, images) = (labels.len(), self.names.len());
        if found == images {
            return Ok(labels);
        }
        let reason =
            format!("must have a label per line for each image, {images} in all, but has {found}");
        Err(Problem::new(reason))
    }

    fn by_name(&self, entries: &[LabelLine<'_>], labels: &[u32]) -> Result<Vec<u32>, Problem> {
        let places = places(self.names);
        let mut found = vec![None; self.names.len()];
        for (entry, &label) in entries.iter().zip(labels) {
            let name = entry.image.unwrap_or_default();
            let wrong = |what: &str| Err(Problem::at(entry.line, format!("{what} {name}")));
            match places.get(name) {
                None => return wrong("there is no image"),
                Some(None) => return wrong("there are several images"),
                Some(&Some(place)) if found[place].is_some() => {
                    return wrong("this is a second line for the image");
                }
                Some(&Some(place)) => found[place] = Some(label),
            }
        }
        let Some(first) = found.iter().position(Option::is_none) else {
            return Ok(found.into_iter().flatten().collect());
        };
        let without = found.iter().filter(|label| label.is_none()).count();
        let (images, first) = (found.len(), self.names.get(first));
        let reason = format!("has no label for {without} of {images} images; the first is {first}");
        Err(Problem::new(reason))
    }

    /// The labels of the lines. Classes are all names, or all numbers.
    fn classes_of(&self, entries: &[LabelLine<'_>]) -> Result<Vec<u32>, Problem> {
        if let Some(labels) = all(entries, |name| self.label(name)) {
            return Ok(labels);
        }
        let Some(numbers) = all(entries, |number| number.parse().ok()) else {
            let unknown = (entries.iter()).find(|entry| self.label(entry.class).is_none());
            let (line, word) = unknown.map_or((1, ""), |entry| (entry.line, entry.class));
            return Err(Problem::at(line, format!("there is no class {word}")));
        };
        match (numbers.contains(&0), self.map) {
            (true, _) => self.counted_from_0(entries, numbers),
            (false, Some(map)) => self.by_ilsvrc(entries, map),
            (false, None) => Err(Problem::new(format!(
                "has numbers from 1 for classes. ILSVRC's numbers are not sorted by name: put {MAP} from the development \
                 kit of 2015 beside it (that of 2012 lacks it), or use the names of the classes"
            ))),
        }
    }

    fn label(&self, name: &str) -> Option<u32> {
        let label = self.classes.binary_search_by(|class| (**class).cmp(name));
        label.ok().map(|label| label as u32)
    }

    fn counted_from_0(
        &self,
        entries: &[LabelLine<'_>],
        numbers: Vec<u32>,
    ) -> Result<Vec<u32>, Problem> {
        let classes = self.classes.len();
        let beyond = (numbers.iter()).position(|&number| number as usize >= classes);
        let Some(place) = beyond else {
            return Ok(numbers);
        };
        let (line, number) = (entries[place].line, numbers[place]);
        let reason = format!("there is no class {number}: there are {classes}, counted from 0");
        Err(Problem::at(line, reason))
    }

    fn by_ilsvrc(&self, entries: &[LabelLine<'_>], map: &str) -> Result<Vec<u32>, Problem> {
        let named = map.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, number) = (words.next()?, words.next()?);
            Some((number.parse::<u32>().ok()?, self.label(name)?))
        });
        let named: HashMap<_, _> = named.collect();
        let labels = entries.iter().map(|entry| {
            let number = entry.class.parse().ok();
            let label = number.and_then(|number: u32| named.get(&number));
            let reason = || format!("{MAP} has no class with number {}", entry.class);
            label
                .copied()
                .ok_or_else(|| Problem::at(entry.line, reason()))
        });
        labels.collect()
    }
}

/// `parse` applied to the class of each line, if all succeed.
fn all(entries: &[LabelLine<'_>], parse: impl Fn(&str) -> Option<u32>) -> Option<Vec<u32>> {
    entries.iter().map(|entry| parse(entry.class)).collect()
}

/// The lines that are not blank. All have an image, or none has.
fn entries(text: &str) -> Result<Vec<LabelLine<'_>>, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let mut lines = lines.filter(|(_, line)| !line.is_empty()).peekable();
    let kaggle = lines.next_if(|(_, line)| *line == KAGGLE).is_some();
    let mut entries: Vec<LabelLine<'_>> = Vec::new();
    for (line, text) in lines {
        let (image, class) = match split(text) {
            Some((image, class)) if kaggle => (Some(image), class.split(' ').next().unwrap_or("")),
            Some((image, class)) => (Some(image), class),
            None => (None, text),
        };
        let first = entries.first();
        let is_same = first.is_none_or(|first| first.image.is_some() == image.is_some());
        if class.is_empty() || !is_same || (kaggle && image.is_none()) {
            return Err(Problem::at(line, OTHER_FORM));
        }
        entries.push(LabelLine { line, image, class });
    }
    Ok(entries)
}

/// Splits an image and its class at a tab, a comma, or else the last space, since names may contain spaces.
fn split(line: &str) -> Option<(&str, &str)> {
    let (image, class) = if let Some((image, rest)) = line.split_once('\t') {
        (image, rest.split('\t').next().unwrap_or(""))
    } else if let Some(both) = line.split_once(',') {
        both
    } else {
        line.rsplit_once(char::is_whitespace)?
    };
    Some((image.trim(), class.trim()))
}

/// The index of each image by its name, also without folders or ending; `None` for names of several images.
fn places(names: &Names) -> HashMap<&str, Option<usize>> {
    let mut places = HashMap::new();
    for (place, name) in names.iter().enumerate() {
        let file = name.rsplit('/').next().unwrap_or(name);
        let without_ending = |name| str::rsplit_once(name, '.').map_or(name, |(stem, _)| stem);
        let mut forms = vec![name, file, without_ending(name), without_ending(file)];
        forms.sort_unstable();
        forms.dedup();
        for form in forms {
            let entry = places.entry(form).and_modify(|known| *known = None);
            entry.or_insert(Some(place));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLASSES: [&str; 3] = ["n01", "n02", "n03"];

    fn labels_of(images: &[&str], text: &str, map: Option<&str>) -> Result<Vec<u32>, String> {
        let mut names = Names::default();
        images.iter().for_each(|name| names.push(name));
        let reader = LabelReader {
            names: &names,
            classes: &CLASSES.map(str::to_owned),
            map,
        };
        reader.labels(text).map_err(|problem| match problem.line {
            Some(line) => format!("{line}: {}", problem.reason),
            None => problem.reason,
        })
    }

    fn labels_with(text: &str, map: Option<&str>) -> Result<Vec<u32>, String> {
        labels_of(&["a b.JPEG", "images/c.png", "v1.jpg"], text, map)
    }

    #[test]
    fn all_forms_are_read() {
        for text in [
            "a b.JPEG n03\nimages/c.png n01\nv1.jpg n02\n",
            "v1.jpg n02\r\n\r\n  c.png   n01 \r\na b n03",
            "c.png\tn01\t0\t32\t44\t62\na b.JPEG\tn03\t1\nv1.jpg\tn02\n",
            "\u{feff}ImageId,PredictionString\nv1,n02 85 1 499 272\nc,n01 1 2 3 4 n01 5 6 7 8 \na b,n03 \n",
            "v1.jpg,n02\nc.png,n01\na b.JPEG,n03\n",
            "v1.jpg 1\nc.png 0\na b.JPEG 2\n",
            "n03\nn01\nn02\n",
            "2\n0\n1\n",
        ] {
            assert_eq!(labels_with(text, None), Ok(vec![2, 0, 1]), "{text}");
        }
        let map = "n01 2 kit_fox\nn02 3 setter\nn03 1 hound\nn09 4 other\n";
        assert_eq!(labels_with("1\n2\n3\n", Some(map)), Ok(vec![2, 0, 1]));
    }

    #[test]
    fn a_problem_is_named_with_its_line() {
        let form = &format!("2: {OTHER_FORM}");
        let count = |labels| {
            format!("must have a label per line for each image, 3 in all, but has {labels}")
        };
        let beyond = "2: there is no class 3: there are 3, counted from 0";
        let missing = "has no label for 2 of 3 images; the first is a b.JPEG";
        let unknown = "3: there is no image b.JPEG";
        let second = "3: this is a second line for the image v1";
        for (text, expected) in [
            ("", "has no labels"),
            ("\n \n", "has no labels"),
            ("n03\nn01\n", &count(2)),
            ("n03\nn01\nn02\nn02\n", &count(4)),
            ("n03\n\nn04\nn02\n", "3: there is no class n04"),
            ("n03\n0\n1\n", "2: there is no class 0"),
            ("0\n3\n1\n", beyond),
            ("0\n-1\n1\n", "1: there is no class 0"),
            ("v1.jpg n02\nc.png n01\nb.JPEG n03\n", unknown),
            ("v1.jpg n02\nc.png n01\nv1 n03\n", second),
            ("v1.jpg n02\nn01\n", form),
            ("v1.jpg n02\n", missing),
            ("ImageId,PredictionString\nv1,\n", form),
        ] {
            assert_eq!(labels_with(text, None), Err(expected.to_owned()), "{text}");
        }
        let error = labels_with("1\n2\n3\n", None).unwrap_err();
        assert!(error.contains("put map_clsloc.txt from the"), "{error}");
        let error = labels_with("1\n2\n3\n", Some("n01 1 a\nn02 2 b\nn03 4 c\n")).unwrap_err();
        assert_eq!(error, "3: map_clsloc.txt has no class with number 3");
    }

    #[test]
    fn a_name_of_several_images_is_an_error() {
        let labels = |text| labels_of(&["a/1.jpg", "b/1.jpg"], text, None);
        let error = labels("a/1.jpg n01\n1.jpg n02").unwrap_err();
        assert_eq!(error, "2: there are several images 1.jpg");
        assert_eq!(labels("a/1.jpg n01\nb/1 n02"), Ok(vec![0, 1]));
    }

    fn text(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
        let pieces = proptest::collection::vec(prop::sample::select(pieces), 0..40);
        pieces.prop_map(|text| text.concat())
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(
            text in text(&["v1", "c.png", "a b", "n01", "n02", "n03", "0", "1", "2", "3", " ", "\t", ",", "\n", KAGGLE, "\u{feff}"]),
            map in proptest::option::of(text(&["n01", "n02", "n04", "0", "1", "2", " ", "\n"])),
            any in any::<Vec<char>>().prop_map(|text| text.into_iter().collect::<String>()),
        ) {
            for text in [text, any] {
                if let Ok(labels) = labels_with(&text, map.as_deref()) {
                    prop_assert!(labels.len() == 3 && labels.iter().all(|&label| label < 3));
                }
            }
        }
    }
}
