//! What a misspelled word may have been meant to be.

use clap::{
    Arg, Command,
    error::{ContextKind, ContextValue},
};
use stovepipe::{
    pipeline::{NamedDevice, device::DeviceError},
    schedule::Rule,
};

use crate::error::CliError;

/// How similar, from 0 to 1, a misspelled word is at least. clap uses the same number.
const SIMILAR: f64 = 0.7;

/// The candidate that is most similar to a word, if one is.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let similarity = |candidate: &str| match strsim::osa_distance(&word, candidate) {
        0 => 2.0,
        // The other measure rates swapped letters in short words too low.
        1 if word.len() > 2 => 1.0,
        _ => strsim::jaro(&word, candidate),
    };
    let all = candidates.into_iter().map(|word| (similarity(word), word));
    let similar = all.filter(|(similarity, _)| *similarity > SIMILAR);
    Some(similar.max_by(|a, b| a.0.total_cmp(&b.0))?.1)
}

/// The end of an error about a word: what was probably meant.
pub fn tip<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(word, candidates) {
        Some(nearest) => format!(": did you mean `{nearest}`?"),
        None => String::new(),
    }
}

/// What libraries call the values of settings, and what people do.
const KINDS: [(&str, &str); 23] = [
    ("u64 value was too large", "the number is too large"),
    ("expected struct Tokenizer", "expected an object"),
    ("invalid type: map", "found a table"),
    ("invalid type: sequence", "found a list"),
    ("unknown variant ", "found "),
    ("expected literal string", "such as \"text\""),
    (
        "stream did not contain valid UTF-8",
        "not a text file in UTF-8",
    ),
    ("expected usize", "expected a whole number from 0"),
    ("expected u64", "expected a whole number from 0"),
    ("expected u32", "expected a whole number from 0"),
    ("expected u16", "expected a whole number from 0"),
    ("expected u8", "expected a whole number from 0"),
    ("expected f64", "expected a number"),
    ("expected a boolean", "expected true or false"),
    ("expected a sequence", "expected a list"),
    ("expected path string", "expected a path in quotation marks"),
    ("expected a string", "expected text in quotation marks"),
    ("invalid type: ", "found "),
    ("invalid value: ", "found "),
    ("floating point ", "number "),
    ("wanted string or table", "expected text in quotation marks"),
    (" as i128", ""),
    (" as u128", ""),
];

/// An error of a library that reads files, without its types, and with what a misspelled key was probably meant to be.
pub fn plain(message: &str) -> String {
    let mut text = message.to_owned();
    for (kind, words) in KINDS {
        text = text.replace(kind, words);
    }
    let Some((_, fields)) = message.split_once("unknown field ") else {
        return text;
    };
    let mut names = fields.split('`').skip(1).step_by(2);
    let name = names.next().unwrap_or_default();
    text + &tip(name, names)
}

pub fn words_of(arg: &Arg) -> Vec<String> {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let names = possible.iter().map(|value| value.get_name().to_owned());
        return names.collect();
    }
    let words: &[&str] = match arg.get_long().unwrap_or_default() {
        "schedule" | "schedules" => return Rule::ALL.map(|rule| rule.name().to_owned()).to_vec(),
        "recompute" => &["always", "except-last", "never", "by-layer"],
        "balance" => &["auto", "time", "size", "even"],
        "precision" => &["f32", "bf16", "f16"],
        "freeze" => &["body"],
        "devices" => &["cpu", "wgpu", "cuda"],
        "checkpoint" => &["newest", "best"],
        _ => &[],
    };
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Adds to clap's error what a value that we parse was probably meant to be.
pub fn with_tip(mut error: clap::Error, command: &Command) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let given = word(ContextKind::InvalidArg).zip(word(ContextKind::InvalidValue));
    let Some((flag, value)) = given else {
        return error;
    };
    if error.get(ContextKind::SuggestedValue).is_some() {
        return error;
    }
    let flag = flag.trim_start_matches('-');
    let name = flag.split([' ', '=']).next().unwrap_or(flag);
    let arguments = command.get_subcommands().flat_map(Command::get_arguments);
    let arguments = arguments.filter(|arg| arg.get_long() == Some(name));
    let words: Vec<_> = arguments.flat_map(words_of).collect();
    if let Some(nearest) = nearest(&value, words.iter().map(String::as_str)) {
        let nearest = ContextValue::String(nearest.to_owned());
        error.insert(ContextKind::SuggestedValue, nearest);
    }
    error
}

pub fn devices(names: &[String]) -> Result<Vec<NamedDevice>, CliError> {
    let device = |name: &String| {
        name.parse().map_err(|source| {
            let kind = name.split(':').next().unwrap_or(name);
            let is_unknown = matches!(source, DeviceError::Unknown(_));
            let candidates = ["cpu", "wgpu", "cuda"].into_iter().filter(|_| is_unknown);
            let tip = tip(kind, candidates);
            CliError::Device { tip, source }
        })
    };
    names.iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_suggested_if_one_is_near() {
        let words = ["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved"];
        for (word, expected) in [
            ("gpip", Some("gpipe")),
            ("GPipe", Some("gpipe")),
            ("interleave", Some("interleaved")),
            ("zbh1", Some("zb-h1")),
            ("zb-g", Some("zb-v")),
            ("fast", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, words), expected, "{word}");
        }
        assert_eq!(tip("gpip", words), ": did you mean `gpipe`?");
        assert_eq!(tip("fast", words), "");
    }
}
