//! A configuration file, with the lines of what is wrong in it.

use std::{
    ffi::OsString,
    fmt,
    ops::Range,
    path::{Path, PathBuf, absolute},
};

use clap::{Arg, Args, Command};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use toml::{
    Spanned, Table,
    de::{DeTable, DeValue},
};

use crate::{
    error::{CliError, usage},
    flags::in_digits,
    output,
    suggest::{tip, words_of},
};

/// The settings that are paths, if they end like this.
const PATHS: [(&str, &str); 6] = [
    ("data-dir", ""),
    ("val-labels", ""),
    ("text", ""),
    ("tokenizer", ""),
    ("from", ""),
    ("schedule", ".csv"),
];

fn is_path(key: &str, value: &str) -> bool {
    let is_key = |(own, ending): &(&str, &str)| *own == key && value.ends_with(ending);
    PATHS.iter().any(is_key) && !value.is_empty()
}

/// Settings as text, with the paths of this folder as any other folder finds them.
pub fn portable(settings: &impl Serialize) -> Result<String, toml::ser::Error> {
    let text = toml::to_string_pretty(settings)?;
    let mut lines = String::new();
    for line in text.lines() {
        let entry = line
            .parse::<Table>()
            .ok()
            .and_then(|table| table.into_iter().next());
        let path = entry.and_then(|(key, value)| {
            let path = value.as_str().filter(|value| is_path(&key, value))?;
            let path = absolute(path).ok()?.into_os_string().into_string().ok()?;
            Some(Table::from_iter([(key, path.into())]))
        });
        match path {
            Some(path) => lines += &toml::to_string(&path)?,
            None => lines += &(line.to_owned() + "\n"),
        }
    }
    Ok(lines)
}

/// Makes sure that a configuration file can hold the numbers of settings: TOML has none above 2⁶³ − 1.
pub fn check_numbers(settings: &impl Serialize) -> Result<(), CliError> {
    let text = toml::to_string(settings).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(" = "));
    let is_too_large = |value: &str| value.parse::<u64>().is_ok_and(|value| value > MOST);
    match lines.find(|(_, value)| is_too_large(value)) {
        Some((key, value)) => Err(usage!("{key} is {value}, but must be at most {MOST}")),
        None => Ok(()),
    }
}

const MOST: u64 = i64::MAX as u64;

pub struct ConfigFile {
    path: PathBuf,
    text: String,
    flag_of: FlagOf,
}

/// Finds the flag of a setting.
type FlagOf = fn(&str) -> Option<Arg>;

#[derive(Clone)]
pub struct Section<'a> {
    file: &'a ConfigFile,
    name: &'static str,
    table: Spanned<DeTable<'a>>,
}

impl ConfigFile {
    pub fn read(path: &Path, flag_of: FlagOf) -> Result<Self, CliError> {
        Ok(Self::of(path, output::read(path)?, flag_of))
    }

    /// The text of a file.
    pub fn of(path: &Path, text: String, flag_of: FlagOf) -> Self {
        Self {
            path: path.to_owned(),
            text: with_digits(text, flag_of),
            flag_of,
        }
    }

    /// The tables of these names, empty where the file has none. It may have no others.
    pub fn sections<const N: usize>(
        &self,
        names: [&'static str; N],
    ) -> Result<[Section<'_>; N], CliError> {
        let document = DeTable::parse(&self.text).map_err(|error| self.malformed(error))?;
        let mut tables = names.map(|_| Spanned::new(document.span(), DeTable::new()));
        for (key, value) in document.into_inner() {
            let span = value.span();
            let found = names.iter().position(|name| *name == key.get_ref());
            let Some(place) = found else {
                let tip = match self.home_of(key.get_ref()) {
                    Some(home) => {
                        format!(": {key} belongs in the table [{home}]", key = key.get_ref())
                    }
                    None => tip(key.get_ref(), names),
                };
                let problem = format!("unknown table `{}`{tip}", key.get_ref());
                return Err(self.wrong(key.span(), problem));
            };
            tables[place] = match value.into_inner() {
                DeValue::Table(mut table) => {
                    table
                        .iter_mut()
                        .for_each(|(key, value)| self.locate(key.get_ref(), value));
                    Spanned::new(span, table)
                }
                _ => return Err(self.wrong(span, format!("`{}` must be a table", names[place]))),
            };
        }
        let mut tables = tables.into_iter();
        Ok(names.map(|name| Section {
            file: self,
            name,
            table: (tables.next()).unwrap_or_else(|| Spanned::new(0..0, DeTable::new())),
        }))
    }

    /// A path is relative to the file's folder, if there is something there.
    fn locate(&self, key: &str, value: &mut Spanned<DeValue>) {
        let value = value.get_mut();
        let path = value.as_str().filter(|value| is_path(key, value));
        let beside = path.and_then(|path| Some(self.path.parent()?.join(path)));
        let beside = beside
            .filter(|beside| beside.exists())
            .map(PathBuf::into_os_string);
        if let Some(Ok(path)) = beside.map(OsString::into_string) {
            *value = DeValue::String(path.into());
        }
    }

    /// All of the file as one value.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, CliError> {
        toml::from_str(&self.text).map_err(|error| self.malformed(error))
    }

    /// The name of the table that has a setting.
    fn home_of(&self, key: &str) -> Option<&'static str> {
        let flag = (self.flag_of)(key)?;
        let heading = flag.get_help_heading()?;
        let mut names = ["data", "model", "pipeline", "training"].into_iter();
        names.find(|name| name.eq_ignore_ascii_case(heading))
    }

    fn malformed(&self, error: toml::de::Error) -> CliError {
        self.wrong(error.span().unwrap_or_default(), error.message().trim())
    }

    fn wrong(&self, span: Range<usize>, problem: impl fmt::Display) -> CliError {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        let (path, line) = (self.path.display(), 1 + before.matches('\n').count());
        usage!("{path}: line {line}: {problem}")
    }
}

impl Section<'_> {
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// In the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let mut keys: Vec<_> = self.table.get_ref().keys().collect();
        keys.sort_by_key(|key| key.span().start);
        keys.into_iter().map(|key| &**key.get_ref())
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        let mut all = self.table.get_ref().iter();
        let (_, value) = all.find(|(own, _)| own.get_ref() == key)?;
        value.get_ref().as_str()
    }

    /// Takes out the keys for which this holds.
    pub fn take(&mut self, is_taken: impl Fn(&str) -> bool) -> Self {
        let all = std::mem::take(self.table.get_mut());
        let mut taken = Self {
            table: Spanned::new(self.table.span(), DeTable::new()),
            ..self.clone()
        };
        for (key, value) in all {
            let is_taken = is_taken(key.get_ref());
            let into = if is_taken { &mut taken } else { &mut *self };
            into.table.get_mut().insert(key, value);
        }
        taken
    }

    pub fn take_for<T: Args>(&mut self) -> Self {
        let flags = T::augment_args(Command::new(""));
        self.take(|key| flags.get_arguments().any(|arg| arg.get_long() == Some(key)))
    }

    /// Removes empty texts, such as an empty path: they set nothing.
    fn without_empty(&mut self) {
        let empty = |key: &&str| self.text(key) == Some("");
        let empty: Vec<_> = self.keys().filter(empty).map(str::to_owned).collect();
        self.take(|key| empty.iter().any(|empty| empty == key));
    }

    pub fn wrong_key(&self, key: &str, problem: impl fmt::Display) -> CliError {
        let mut all = self.table.get_ref().keys();
        let span = all.find(|own| own.get_ref() == key).map(Spanned::span);
        self.file.wrong(span.unwrap_or_default(), problem)
    }

    pub fn read_over<T>(mut self, settings: &mut T) -> Result<(), CliError>
    where
        T: Args + Serialize + DeserializeOwned,
    {
        let flags = T::augment_args(Command::new(""));
        let known = || flags.get_arguments().filter_map(|arg| arg.get_long());
        if let Some(key) = self.keys().find(|key| known().all(|known| known != *key)) {
            let (name, mut tip) = (self.name, tip(key, known()));
            if let Some(home) = self.file.home_of(key) {
                tip = format!(": it belongs in [{home}]");
            }
            return Err(self.wrong_key(key, format!("unknown key `{key}` in [{name}]{tip}")));
        }
        self.without_empty();
        // Flags take their words in any case, too.
        let is_word = |key: &str, word: &String| {
            let mut all = flags.get_arguments();
            all.any(|arg| arg.get_long() == Some(key) && words_of(arg).contains(word))
        };
        for (key, value) in self.table.get_mut() {
            if let DeValue::String(text) = value.get_mut()
                && let word = text.to_lowercase()
                && is_word(key.get_ref(), &word)
            {
                *text = word.into();
            }
        }
        // The first reading finds errors and their lines; the second adds the settings that were set before.
        T::deserialize(toml::Deserializer::from(self.table.clone()))
            .map_err(|error| self.wrong_value(error, &flags))?;
        let made = || {
            let mut all = Table::try_from(&*settings).map_err(serde::de::Error::custom)?;
            let own = toml::Deserializer::from(self.table.clone());
            all.extend(Table::deserialize(own)?);
            all.try_into()
        };
        *settings = made().map_err(|error| self.file.malformed(error))?;
        Ok(())
    }

    /// Says which key has the value, and what that was probably meant to be.
    fn wrong_value(&self, error: toml::de::Error, flags: &Command) -> CliError {
        let span = error.span().unwrap_or_default();
        let mut all = self.table.get_ref().iter();
        let holds = |own: Range<usize>| own.start <= span.start && span.end <= own.end;
        let found = all.find(|(_, value)| holds(value.span()));
        let message = error.message().trim();
        let Some((key, value)) = found else {
            return self.file.malformed(error);
        };
        let key = key.get_ref();
        let mut arguments = flags.get_arguments();
        let arg = arguments.find(|arg| arg.get_long() == Some(&**key));
        let words = arg.map(words_of).unwrap_or_default();
        // Text where something else is expected is no misspelled word.
        let word = (value.get_ref().as_str()).filter(|_| !message.starts_with("invalid type"));
        let value = word.unwrap_or_default();
        let tip = tip(value, words.iter().map(String::as_str));
        self.file.wrong(span, format!("{key}: {message}{tip}"))
    }
}

/// The text of a configuration with numbers such as `"80GiB"` in digits, as flags take them.
fn with_digits(text: String, flag_of: FlagOf) -> String {
    let mut found = Vec::new();
    let document = DeTable::parse(&text).map(Spanned::into_inner);
    for (_, table) in document.unwrap_or_default() {
        for (key, value) in table.get_ref().as_table().into_iter().flatten() {
            let items = match value.get_ref() {
                DeValue::Array(items) => items.iter().collect(),
                _ => vec![value],
            };
            let flag = flag_of(key.get_ref());
            let digits = |text: &str| in_digits(flag.as_ref()?, text);
            found.extend(
                items.into_iter().filter_map(|item| {
                    Some((item.span(), item.get_ref().as_str().and_then(digits)?))
                }),
            );
        }
    }
    found.sort_by_key(|(span, _)| span.start);
    let mut text = text;
    for (span, digits) in found.into_iter().rev() {
        text.replace_range(span, &digits);
    }
    text
}
