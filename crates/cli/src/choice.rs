//! Things that are chosen by name, each with its own settings: `--model vit --patch 4`.
//!
//! A setting is a field of a struct that derives `clap::Args`: its comment is the help, its name the flag and the key in
//! configurations, its `default_value` the default. Things may share a flag, with other words and another default.

use std::{collections::BTreeMap, ops::DerefMut};

use clap::{
    Arg, ArgMatches, Args, Command,
    builder::{PossibleValue, PossibleValuesParser},
};
use serde::{Serialize, de::DeserializeOwned};
use stovepipe::train::settings::flags_of;
use toml::Table;

use crate::{
    config::Section,
    error::{CliError, usage},
    flags::is_given,
    suggest::tip,
};

/// A struct of settings, and what flags and configurations call it. Its comment is the line of help.
pub trait Named: Args + Serialize + DeserializeOwned {
    const NAME: &'static str;
}

/// The settings of a thing, whichever it is.
pub trait Configurable {
    fn name(&self) -> &'static str;

    /// A flag for each setting, of a command whose help is the thing's.
    fn flags(&self) -> Command;

    fn update(&mut self, flags: &ArgMatches) -> Result<(), clap::Error>;

    fn read(&mut self, section: Section) -> Result<(), CliError>;

    fn table(&self) -> Table;

    fn has(&self, key: &str) -> bool {
        let flags = self.flags();
        flags
            .get_arguments()
            .any(|flag| flag.get_long() == Some(key))
    }
}

impl<T: Named> Configurable for T {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn flags(&self) -> Command {
        flags_of::<T>()
    }

    fn update(&mut self, flags: &ArgMatches) -> Result<(), clap::Error> {
        self.update_from_arg_matches(flags)
    }

    fn read(&mut self, section: Section) -> Result<(), CliError> {
        section.read_over(self)
    }

    fn table(&self) -> Table {
        Table::try_from(self).unwrap_or_default()
    }
}

pub trait Choice: Clone + DerefMut<Target: Configurable> {
    /// The flag and the key that name one.
    const KEY: &'static str;
}

/// Makes an enum of things, each of which has the defaults that its flags declare.
macro_rules! choices {
    ($(#[$doc:meta])* $vis:vis enum $Enum:ident: dyn $Trait:ident, $key:literal {
        $($Variant:ident($Type:ty) = $name:literal),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        #[serde(untagged)]
        $vis enum $Enum { $($Variant($Type)),+ }

        impl $crate::choice::Choice for $Enum {
            const KEY: &'static str = $key;
        }

        impl $Enum {
            fn all() -> Vec<Self> {
                vec![$(Self::$Variant(<$Type>::default())),+]
            }
        }

        impl std::ops::Deref for $Enum {
            type Target = dyn $Trait;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$Variant(own) => own),+ }
            }
        }

        impl std::ops::DerefMut for $Enum {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Self::$Variant(own) => own),+ }
            }
        }

        $(impl $crate::choice::Named for $Type {
            const NAME: &'static str = $name;
        }

        impl Default for $Type {
            fn default() -> Self {
                stovepipe::train::settings::defaults()
            }
        })+
    };
}
pub(crate) use choices;

/// The things that there are to choose from, each with its usual settings.
pub struct Choices<C> {
    all: Vec<C>,
    /// What a run would write down of each.
    settled: Vec<Table>,
}

impl<C: Choice> Choices<C> {
    /// `settle` fills in what follows from other settings.
    pub fn new(all: Vec<C>, settle: impl Fn(&mut C)) -> Self {
        let settled = |choice: &C| {
            let mut choice = choice.clone();
            settle(&mut choice);
            choice.table()
        };
        let settled = all.iter().map(settled).collect();
        Self { settled, all }
    }

    pub fn iter(&self) -> impl Iterator<Item = &C> {
        self.all.iter()
    }

    /// The first for which this holds, or else the first.
    pub fn first(&self, is_fitting: impl Fn(&C) -> bool) -> C {
        let found = self.all.iter().find(|choice| is_fitting(choice));
        found.unwrap_or(&self.all[0]).clone()
    }

    /// The names of those for which this holds.
    pub fn names(&self, is_fitting: impl Fn(&C) -> bool) -> Vec<&'static str> {
        let fitting = self.all.iter().filter(|choice| is_fitting(choice));
        fitting.map(|choice| choice.name()).collect()
    }

    /// Without defaults in the help.
    pub fn without_defaults(self) -> Self {
        Self {
            settled: Vec::new(),
            ..self
        }
    }

    /// The thing of a name, with its usual settings.
    pub fn find(&self, name: &str) -> Option<C> {
        let mut all = self.all.iter();
        all.find(|choice| choice.name().eq_ignore_ascii_case(name))
            .cloned()
    }

    /// The thing that flags or a configuration name.
    pub fn named(
        &self,
        flags: &ArgMatches,
        section: Option<&Section>,
    ) -> Result<Option<C>, CliError> {
        if let Some(name) = flags.get_one::<String>(C::KEY) {
            return Ok(self.find(name));
        }
        let Some((section, name)) = section.and_then(|own| Some((own, own.text(C::KEY)?))) else {
            return Ok(None);
        };
        let unknown = || {
            let (key, all) = (C::KEY, self.names(|_| true));
            let tip = tip(name, all.iter().copied());
            let problem = format!("unknown {key} `{name}`, not one of {}{tip}", all.join(", "));
            section.wrong_key(key, problem)
        };
        self.find(name).map(Some).ok_or_else(unknown)
    }

    /// The names of the things that have a setting.
    fn owners(&self, key: &str) -> Vec<&'static str> {
        self.names(|choice| choice.has(key))
    }

    /// Changes the settings that a configuration gives, then those that flags give. All must be settings of the chosen thing.
    pub fn read(
        &self,
        chosen: &mut C,
        section: Option<Section>,
        flags: &ArgMatches,
    ) -> Result<(), CliError> {
        if let Some(section) = section {
            self.read_section(chosen, section)?;
        }
        let all = self.flags();
        let given = all.iter().filter(|arg| is_given(flags, arg));
        let mut given = given.filter_map(Arg::get_long);
        if let Some(key) = given.find(|key| !chosen.has(key)) {
            let (of, named) = (listed(&self.owners(key)), chosen.name());
            return Err(usage!("{key} is for {of}, not for {named}: leave it out"));
        }
        Ok(chosen.update(flags)?)
    }

    fn read_section(&self, chosen: &mut C, mut section: Section) -> Result<(), CliError> {
        section.take(|key| key == C::KEY);
        let owners = |key: &&str| (!chosen.has(key)).then(|| self.owners(key));
        let foreign = section.keys().find_map(|key| Some((key, owners(&key)?)));
        match foreign {
            Some((key, owners)) if !owners.is_empty() => {
                let (path, of, named) = (section.path().display(), listed(&owners), chosen.name());
                let problem = format!("{key}, which is for {of}, not for {named}");
                Err(usage!("{path} has {problem}: remove it there"))
            }
            // Reading says so of a key that nothing has.
            _ => chosen.read(section),
        }
    }

    /// Adds the flag that chooses, and the flags of all things, under one heading.
    pub fn augment(
        &self,
        command: Command,
        heading: &'static str,
        help: &str,
        default: &str,
    ) -> Command {
        let value = |choice: &C| {
            let about = choice.flags().get_about().cloned().unwrap_or_default();
            PossibleValue::new(choice.name()).help(about)
        };
        let default = match self.settled[..] {
            [] => String::new(),
            _ => format!(" [default: {default}]"),
        };
        let chosen = Arg::new(C::KEY)
            .long(C::KEY)
            .value_name("NAME")
            .value_parser(PossibleValuesParser::new(self.all.iter().map(value)))
            .help(format!("{help}{default}"));
        let flags = [chosen].into_iter().chain(self.flags()).enumerate();
        command.args(flags.map(|(place, arg)| arg.help_heading(heading).display_order(place)))
    }

    /// A flag for each setting that some thing has.
    fn flags(&self) -> Vec<Arg> {
        let mut merged: Vec<Arg> = Vec::new();
        let mut helps: BTreeMap<String, Values> = BTreeMap::new();
        for choice in &self.all {
            for flag in choice.flags().get_arguments().cloned() {
                let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
                let known = helps.entry(flag.get_id().to_string()).or_default();
                known.add(help, choice.name());
                if merged.iter().all(|other| other.get_id() != flag.get_id()) {
                    merged.push(flag);
                }
            }
        }
        let with_help = |flag: Arg| match helps.get(flag.get_id().as_str()) {
            Some(found) => {
                let defaults = self.settled.iter().cloned().zip(self.names(|_| true));
                let help = found.help(self.all.len()) + &default_help(&flag, defaults);
                flag.help(help)
            }
            None => flag,
        };
        merged.into_iter().map(with_help).collect()
    }
}

/// Values of a setting, and who has each.
#[derive(Default)]
struct Values(Vec<(String, Vec<&'static str>)>);

impl Values {
    fn add(&mut self, value: String, owner: &'static str) {
        match self.0.iter_mut().find(|(known, _)| *known == value) {
            Some((_, owners)) => owners.push(owner),
            None => self.0.push((value, vec![owner])),
        }
    }

    /// The help of all of them in a line, with the names of those that it is for, unless it is for all.
    fn help(&self, all: usize) -> String {
        let mut line = String::new();
        for (help, owners) in &self.0 {
            // A default that follows from something else is part of the help.
            let (help, default) = help.split_at(help.find(" [default: ").unwrap_or(help.len()));
            if line.is_empty() {
                line += help;
            } else {
                line += "; ";
                line.extend(help.chars().take(1).flat_map(char::to_lowercase));
                line.extend(help.chars().skip(1));
            }
            if owners.len() < all {
                line += &format!(" ({})", owners.join(", "));
            }
            line += default;
        }
        line
    }
}

/// What a flag's help says of its defaults: the first, and who has another.
pub fn default_help(flag: &Arg, tables: impl IntoIterator<Item = (Table, &'static str)>) -> String {
    let (key, mut values) = (flag.get_long().unwrap_or_default(), Values::default());
    for (table, owner) in tables {
        if let Some(value) = table.get(key).map(shown).filter(|value| !value.is_empty()) {
            values.add(value, owner);
        }
    }
    let Some(((first, _), others)) = values.0.split_first() else {
        return String::new();
    };
    let others = others
        .iter()
        .map(|(value, owners)| format!(", {value} for {}", listed(owners)));
    format!(" [default: {first}{}]", others.collect::<String>())
}

/// A value as one would write it in a flag.
fn shown(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(items) => {
            let items: Vec<_> = items.iter().filter_map(toml::Value::as_str).collect();
            items.join(",")
        }
        other => other.to_string(),
    }
}

/// Names as a sentence has them.
pub fn listed(names: &[&str]) -> String {
    match names {
        [names @ .., last] if !names.is_empty() => format!("{} and {last}", names.join(", ")),
        names => names.concat(),
    }
}
