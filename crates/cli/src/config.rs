//! A configuration file, with the lines of what is wrong in it.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use clap::{Args, Command};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use toml::{Spanned, Table, de::DeTable};

use crate::{
    error::CliError,
    output,
    suggest::{tip, words_of},
};

/// A file that was read.
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

/// A table of a file.
#[derive(Clone)]
pub struct Section<'a> {
    file: &'a ConfigFile,
    name: &'static str,
    table: Spanned<DeTable<'a>>,
}

impl ConfigFile {
    pub fn read(path: &Path) -> Result<Self, CliError> {
        Ok(Self {
            path: path.to_owned(),
            text: output::read(path)?,
        })
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
                let tip = tip(key.get_ref(), names);
                let problem = format!("unknown table `{}`{tip}", key.get_ref());
                return Err(self.wrong(key.span(), problem));
            };
            tables[place] = match value.into_inner() {
                toml::de::DeValue::Table(table) => Spanned::new(span, table),
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

    /// All of the file as one value.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, CliError> {
        toml::from_str(&self.text).map_err(|error| self.malformed(error))
    }

    fn malformed(&self, error: toml::de::Error) -> CliError {
        self.wrong(error.span().unwrap_or_default(), error.message().trim())
    }

    fn wrong(&self, span: Range<usize>, problem: impl Into<String>) -> CliError {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        CliError::Config {
            path: self.path.clone(),
            line: 1 + before.matches('\n').count(),
            problem: problem.into(),
        }
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
        all.find(|(own, _)| own.get_ref() == key)?
            .1
            .get_ref()
            .as_str()
    }

    /// Takes out the keys for which this holds.
    pub fn take(&mut self, is_taken: impl Fn(&str) -> bool) -> Self {
        let all = std::mem::take(self.table.get_mut());
        let mut taken = Self {
            table: Spanned::new(self.table.span(), DeTable::new()),
            ..self.clone()
        };
        for (key, value) in all {
            let into = if is_taken(key.get_ref()) {
                &mut taken
            } else {
                &mut *self
            };
            into.table.get_mut().insert(key, value);
        }
        taken
    }

    /// Takes out the keys of settings.
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

    /// The error about a key.
    pub fn wrong_key(&self, key: &str, problem: impl Into<String>) -> CliError {
        let mut all = self.table.get_ref().keys();
        let span = all.find(|own| own.get_ref() == key).map(Spanned::span);
        self.file.wrong(span.unwrap_or_default(), problem)
    }

    /// The error about a key that nothing has.
    pub fn unknown_key<'k>(&self, key: &str, known: impl IntoIterator<Item = &'k str>) -> CliError {
        let problem = format!("unknown key `{key}` in [{}]{}", self.name, tip(key, known));
        self.wrong_key(key, problem)
    }

    /// Reads this table over the settings that are there.
    pub fn read_over<T>(mut self, settings: &mut T) -> Result<(), CliError>
    where
        T: Args + Serialize + DeserializeOwned,
    {
        let flags = T::augment_args(Command::new(""));
        let known = || flags.get_arguments().filter_map(|arg| arg.get_long());
        if let Some(key) = self.keys().find(|key| known().all(|known| known != *key)) {
            return Err(self.unknown_key(key, known()));
        }
        self.without_empty();
        // The first reading finds errors and their lines; the second adds the settings that were set before.
        T::deserialize(toml::Deserializer::from(self.table.clone()))
            .map_err(|error| self.wrong_value(error, &flags))?;
        let made = || {
            let mut all = Table::try_from(&*settings).map_err(serde::de::Error::custom)?;
            all.extend(Table::deserialize(toml::Deserializer::from(
                self.table.clone(),
            ))?);
            all.try_into()
        };
        *settings = made().map_err(|error| self.file.malformed(error))?;
        Ok(())
    }

    /// Says which key has the value, and what that was probably meant to be.
    fn wrong_value(&self, error: toml::de::Error, flags: &Command) -> CliError {
        let span = error.span().unwrap_or_default();
        let mut all = self.table.get_ref().iter();
        let found =
            all.find(|(_, value)| value.span().start <= span.start && span.end <= value.span().end);
        let message = error.message().trim();
        let Some((key, value)) = found else {
            return self.file.malformed(error);
        };
        let key = key.get_ref();
        let mut arguments = flags.get_arguments();
        let arg = arguments.find(|arg| arg.get_long() == Some(&**key));
        let words = arg.map(words_of).unwrap_or_default();
        let value = value.get_ref().as_str().unwrap_or_default();
        let tip = tip(value, words.iter().map(String::as_str));
        self.file.wrong(span, format!("{key}: {message}{tip}"))
    }
}
