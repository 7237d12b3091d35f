//! Files that say the classes of images that lie in one folder. Forms: see `ImageFolder::open_flat`.

use std::{collections::HashMap, fs::File, io::Read, path::Path};

use super::names::Names;
use crate::ImagenetError;

/// More than any file of labels has, in bytes.
const MOST: u64 = 1 << 28;

/// Beside a file of ILSVRC's own numbers: a class's name, its number and a word for it in each line. The development kit of 2012
/// lacks it (`meta.mat` says the same there); that of 2015 has it, and the numbers are the same.
const MAP: &str = "map_clsloc.txt";

/// The first line of Kaggle's file.
const KAGGLE: &str = "ImageId,PredictionString";

/// The label of each image. `names` are sorted.
pub(super) fn read(
    path: &Path,
    names: &Names,
    classes: &[String],
) -> Result<Vec<u32>, ImagenetError> {
    let text = text(path)?;
    let map = path.with_file_name(MAP);
    let map = match map.exists() {
        true => Some(self::text(&map)?),
        false => None,
    };
    let found = Reading {
        names,
        classes,
        map: map.as_deref(),
    };
    found.labels(&text).map_err(|wrong| wrong.in_file(path))
}

fn text(path: &Path) -> Result<String, ImagenetError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(ImagenetError::unreadable(path))?;
    let read = file.take(MOST + 1).read_to_end(&mut bytes);
    read.map_err(ImagenetError::unreadable(path))?;
    let reason = match bytes.len() as u64 > MOST {
        true => format!("is longer than {MOST} bytes, which no file of labels is"),
        false => match String::from_utf8(bytes) {
            Ok(text) => return Ok(text),
            Err(_) => "is no text".to_owned(),
        },
    };
    Err(Wrong::whole(reason).in_file(path))
}

/// What is wrong with a file, and in which line if it is in one.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    line: Option<u64>,
    reason: String,
}

impl Wrong {
    fn whole(reason: impl Into<String>) -> Self {
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
            None => ImagenetError::Labels { path, reason },
        }
    }
}

/// A line: which image it is about, if it says so, and the word for its class.
struct Entry<'a> {
    line: u64,
    image: Option<&'a str>,
    class: &'a str,
}

struct Reading<'a> {
    names: &'a Names,
    classes: &'a [String],
    /// The content of ILSVRC's file of numbers.
    map: Option<&'a str>,
}

impl Reading<'_> {
    fn labels(&self, text: &str) -> Result<Vec<u32>, Wrong> {
        let entries = entries(text)?;
        let labels = self.classes_of(&entries)?;
        match entries.first() {
            None => Err(Wrong::whole("has no labels")),
            Some(Entry { image: None, .. }) => self.in_order(labels),
            Some(_) => self.by_name(&entries, &labels),
        }
    }

    /// Labels without names are in the order of the images.
    fn in_order(&self, labels: Vec<u32>) -> Result<Vec<u32>, Wrong> {
        let (found, images) = (labels.len(), self.names.len());
        match found == images {
            true => Ok(labels),
            false => Err(Wrong::whole(format!(
                "has {found} labels, a line each, but there are {images} images"
            ))),
        }
    }

    fn by_name(&self, entries: &[Entry<'_>], labels: &[u32]) -> Result<Vec<u32>, Wrong> {
        let places = places(self.names);
        let mut found = vec![None; self.names.len()];
        for (entry, &label) in entries.iter().zip(labels) {
            let name = entry.image.unwrap_or_default();
            let wrong = |what: &str| Err(Wrong::at(entry.line, format!("{what} {name}")));
            match places.get(name) {
                None => return wrong("there is no image"),
                Some(None) => return wrong("there are several images"),
                Some(&Some(place)) if found[place].is_some() => {
                    return wrong("this is not the first line for the image");
                }
                Some(&Some(place)) => found[place] = Some(label),
            }
        }
        let without = found.iter().filter(|label| label.is_none()).count();
        match found.iter().position(Option::is_none) {
            None => Ok(found.into_iter().flatten().collect()),
            Some(first) => Err(Wrong::whole(format!(
                "has no label for {without} of {} images; the first is {}",
                found.len(),
                self.names.get(first)
            ))),
        }
    }

    /// The labels that the words for classes mean: all are names, or all are numbers.
    fn classes_of(&self, entries: &[Entry<'_>]) -> Result<Vec<u32>, Wrong> {
        let by_name = |word: &str| {
            self.classes
                .binary_search_by(|class| (**class).cmp(word))
                .ok()
        };
        if let Some(labels) = all(entries, |word| by_name(word)) {
            return Ok(labels);
        }
        let numbers = all(entries, |word| {
            word.parse()
                .ok()
                .filter(|&n: &usize| n <= u32::MAX as usize)
        });
        let Some(numbers) = numbers else {
            let unknown = entries.iter().find(|entry| by_name(entry.class).is_none());
            let (line, word) = unknown.map_or((1, ""), |entry| (entry.line, entry.class));
            return Err(Wrong::at(line, format!("there is no class {word}")));
        };
        match (numbers.contains(&0), self.map) {
            (true, _) => self.counted_from_0(entries, numbers),
            (false, Some(map)) => self.by_ilsvrc(entries, map),
            (false, None) => Err(Wrong::whole(format!(
                "has numbers from 1 for classes; ILSVRC's own are in no order of names: put its file {MAP} beside it \
                 (from the development kit of 2015; that of 2012 lacks it), or use the names of the classes"
            ))),
        }
    }

    fn counted_from_0(&self, entries: &[Entry<'_>], numbers: Vec<u32>) -> Result<Vec<u32>, Wrong> {
        let classes = self.classes.len();
        let beyond = numbers
            .iter()
            .position(|&number| number as usize >= classes);
        match beyond {
            None => Ok(numbers),
            Some(place) => Err(Wrong::at(
                entries[place].line,
                format!(
                    "there is no class {}: there are {classes}, counted from 0",
                    numbers[place]
                ),
            )),
        }
    }

    fn by_ilsvrc(&self, entries: &[Entry<'_>], map: &str) -> Result<Vec<u32>, Wrong> {
        let named = map.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, number) = (words.next()?, words.next()?);
            let label = self
                .classes
                .binary_search_by(|class| (**class).cmp(name))
                .ok()?;
            Some((number.parse::<u32>().ok()?, label as u32))
        });
        let named: HashMap<_, _> = named.collect();
        let labels = entries.iter().map(|entry| {
            let number = entry.class.parse().ok();
            let label = number.and_then(|number: u32| named.get(&number));
            let reason = || format!("number {} is that of no class, by {MAP}", entry.class);
            label
                .copied()
                .ok_or_else(|| Wrong::at(entry.line, reason()))
        });
        labels.collect()
    }
}

/// What each word is, if each is something.
fn all(entries: &[Entry<'_>], what: impl Fn(&str) -> Option<usize>) -> Option<Vec<u32>> {
    let found = entries
        .iter()
        .map(|entry| what(entry.class).map(|n| n as u32));
    found.collect()
}

/// The lines that are not blank. All say their image, or none does.
fn entries(text: &str) -> Result<Vec<Entry<'_>>, Wrong> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let mut lines = lines.filter(|(_, line)| !line.is_empty()).peekable();
    let kaggle = lines.next_if(|(_, line)| *line == KAGGLE).is_some();
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for (line, text) in lines {
        let (image, class) = match split(text) {
            Some((image, class)) if kaggle => (Some(image), class.split(' ').next().unwrap_or("")),
            Some((image, class)) => (Some(image), class),
            None => (None, text),
        };
        let as_others = entries
            .first()
            .is_none_or(|first| first.image.is_some() == image.is_some());
        if class.is_empty() || !as_others || (kaggle && image.is_none()) {
            let reason =
                "is not of the form of the lines before it: an image and its class, or a class";
            return Err(Wrong::at(line, reason));
        }
        entries.push(Entry { line, image, class });
    }
    Ok(entries)
}

/// An image and its class, at a tab, a comma, or else the last blank, since names may have some.
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

/// The place of each image by its name, also without its folders or ending; none where several have it.
fn places(names: &Names) -> HashMap<&str, Option<usize>> {
    let mut places = HashMap::new();
    for (place, name) in names.iter().enumerate() {
        let file = name.rsplit('/').next().unwrap_or(name);
        let without_ending = |name| str::rsplit_once(name, '.').map_or(name, |(stem, _)| stem);
        let mut forms = vec![name, file, without_ending(name), without_ending(file)];
        forms.sort_unstable();
        forms.dedup();
        for form in forms {
            let several = |known: &mut Option<usize>| *known = None;
            places
                .entry(form)
                .and_modify(several)
                .or_insert(Some(place));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLASSES: [&str; 3] = ["n01", "n02", "n03"];

    fn names(names: &[&str]) -> Names {
        let mut all = Names::default();
        names.iter().for_each(|name| all.push(name));
        all
    }

    fn labels_with(text: &str, map: Option<&str>) -> Result<Vec<u32>, String> {
        let names = names(&["a b.JPEG", "images/c.png", "v1.jpg"]);
        let classes = CLASSES.map(str::to_owned);
        let reading = Reading {
            names: &names,
            classes: &classes,
            map,
        };
        reading.labels(text).map_err(|wrong| match wrong.line {
            Some(line) => format!("{line}: {}", wrong.reason),
            None => wrong.reason,
        })
    }

    #[test]
    fn forms_that_people_have() {
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
    fn what_does_not_fit_is_named_with_its_line() {
        for (text, expected) in [
            ("", "has no labels"),
            ("\n \n", "has no labels"),
            (
                "n03\nn01\n",
                "has 2 labels, a line each, but there are 3 images",
            ),
            (
                "n03\nn01\nn02\nn02\n",
                "has 4 labels, a line each, but there are 3 images",
            ),
            ("n03\n\nn04\nn02\n", "3: there is no class n04"),
            ("n03\n0\n1\n", "2: there is no class 0"),
            (
                "0\n3\n1\n",
                "2: there is no class 3: there are 3, counted from 0",
            ),
            ("0\n-1\n1\n", "1: there is no class 0"),
            (
                "v1.jpg n02\nc.png n01\nb.JPEG n03\n",
                "3: there is no image b.JPEG",
            ),
            (
                "v1.jpg n02\nc.png n01\nv1 n03\n",
                "3: this is not the first line for the image v1",
            ),
            (
                "v1.jpg n02\nn01\n",
                "2: is not of the form of the lines before it: an image and its class, or a class",
            ),
            (
                "v1.jpg n02\n",
                "has no label for 2 of 3 images; the first is a b.JPEG",
            ),
            (
                "ImageId,PredictionString\nv1,\n",
                "2: is not of the form of the lines before it: an image and its class, or a class",
            ),
        ] {
            assert_eq!(labels_with(text, None), Err(expected.to_owned()), "{text}");
        }
        let error = labels_with("1\n2\n3\n", None).unwrap_err();
        assert!(
            error.contains("put its file map_clsloc.txt beside it"),
            "{error}"
        );
        let error = labels_with("1\n2\n3\n", Some("n01 1 a\nn02 2 b\nn03 4 c\n")).unwrap_err();
        assert_eq!(error, "3: number 3 is that of no class, by map_clsloc.txt");
    }

    #[test]
    fn a_name_that_several_images_have_says_none() {
        let names = names(&["a/1.jpg", "b/1.jpg"]);
        let classes = CLASSES.map(str::to_owned);
        let reading = Reading {
            names: &names,
            classes: &classes,
            map: None,
        };
        let wrong = reading.labels("a/1.jpg n01\n1.jpg n02").unwrap_err();
        assert_eq!(wrong, Wrong::at(2, "there are several images 1.jpg"));
        assert_eq!(reading.labels("a/1.jpg n01\nb/1 n02"), Ok(vec![0, 1]));
    }

    /// Text made of these pieces.
    fn text(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
        proptest::collection::vec(prop::sample::select(pieces), 0..40)
            .prop_map(|text| text.concat())
    }

    proptest! {
        /// Whatever a file has, there is a label below the number of classes for each image, or an error.
        #[test]
        fn no_text_makes_it_panic(
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
