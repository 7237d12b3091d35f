//! What the flags of all subcommands have in common: how people write values, which flags the help shows, and which do nothing.

use std::any::TypeId;

use clap::{
    Arg, ArgAction, ArgMatches, Command,
    builder::{BoolishValueParser, ValueParser},
    parser::ValueSource,
};

use crate::error::{CliError, usage};

/// Flags that only `--help-all` shows.
const RARE: &str = "per-class crop-padding cutout val-labels val-share resize interpolation crop-area \
                    color-jitter rand-augment magnitude mixup skip loaders auxiliary drop-path \
                    feed-forward dropout pool vocabulary tied positions chunks device-memory \
                    decay-rate decay-epochs momentum epsilon beta2 weight-decay-of auxiliary-share layer-decay \
                    lr-of checksums save-every keep-last keep-best on-save-error on-device-lost levels latency optimizer-state";

/// Units of counts and sizes: powers of 1000, or of 1024 with an `i`.
const UNITS: &str = "kmgtp";

/// Lets people write values as they do elsewhere: the last of a repeated flag counts, a bare `--flip` is `--flip true`, names
/// may be in upper case, numbers may have units. A minus begins a number, so that the error says that it is out of range.
pub fn finished(command: Command) -> Command {
    let help = Arg::new("help").short('h').long("help");
    let help = help
        .action(ArgAction::HelpShort)
        .help("Print help")
        .help_heading(None);
    let command = command.mut_args(|arg| {
        let is_rare = RARE.split(' ').any(|rare| arg.get_long() == Some(rare));
        lenient(arg).hide_short_help(is_rare)
    });
    let all = Arg::new("help-all").long("help-all");
    let all = all.action(ArgAction::HelpLong).help_heading(None);
    let all = all.help("Print help of all flags, with what their values mean");
    let command = command.disable_help_flag(true).args_override_self(true);
    command.args([help, all])
}

fn lenient(arg: Arg) -> Arg {
    if !arg.get_action().takes_values() {
        return arg;
    }
    let of_type = arg.get_value_parser().type_id();
    let is = |own: TypeId| of_type == own;
    let parser = if is(TypeId::of::<usize>()) {
        Some(ValueParser::new(whole::<usize>))
    } else if is(TypeId::of::<u64>()) {
        Some(ValueParser::new(whole::<u64>))
    } else if is(TypeId::of::<u32>()) {
        Some(ValueParser::new(whole::<u32>))
    } else if is(TypeId::of::<u16>()) {
        Some(ValueParser::new(whole::<u16>))
    } else if is(TypeId::of::<u8>()) {
        Some(ValueParser::new(whole::<u8>))
    } else if is(TypeId::of::<f64>()) {
        Some(ValueParser::new(if is_bytes(&arg) {
            bytes
        } else {
            number
        }))
    } else {
        None
    };
    let is_bool = is(TypeId::of::<bool>());
    let is_list = arg.get_value_delimiter().is_some();
    let mut arg = arg.allow_negative_numbers(true).ignore_case(true);
    if let Some(parser) = parser {
        arg = arg.value_parser(parser);
    }
    if is_bool {
        let arg = arg.value_parser(BoolishValueParser::new());
        return arg.num_args(0..=1).default_missing_value("true");
    }
    if is_list {
        arg = arg.action(ArgAction::Set);
    }
    arg
}

/// The number of bytes or things that a text such as `80GiB` stands for, in digits, if this flag takes numbers.
pub fn in_digits(arg: &Arg, text: &str) -> Option<String> {
    let of_type = arg.get_value_parser().type_id();
    if of_type == TypeId::of::<f64>() {
        let value = if is_bytes(arg) {
            bytes(text)
        } else {
            number(text)
        };
        return value.ok().map(|value| format!("{value:?}"));
    }
    let is_whole = of_type == TypeId::of::<usize>() || of_type == TypeId::of::<u64>();
    let value = is_whole.then(|| whole::<u64>(text).ok())?;
    value.map(|value| value.to_string())
}

fn is_bytes(arg: &Arg) -> bool {
    (arg.get_value_names()).is_some_and(|names| names[0] == "BYTES")
}

/// The number in a text such as `80GiB`, `16G` or `10m`, and its unit.
fn number_and_unit(text: &str) -> (String, u64) {
    let text = text.to_lowercase().replace(['_', ' '], "");
    let rest = text.strip_suffix('b').unwrap_or(&text);
    let (rest, base) = match rest.strip_suffix('i') {
        Some(rest) => (rest, 1024),
        None => (rest, 1000),
    };
    let unit = rest.chars().last().and_then(|unit| UNITS.find(unit));
    match unit {
        Some(place) => (
            rest[..rest.len() - 1].to_owned(),
            u64::pow(base, place as u32 + 1),
        ),
        None if base == 1000 => (rest.to_owned(), 1),
        None => (text, 1),
    }
}

fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, &'static str> {
    let (number, unit) = number_and_unit(text);
    let exact = number.parse::<u64>().ok();
    let exact = exact.and_then(|number| number.checked_mul(unit));
    let value = match (exact, number.parse::<f64>()) {
        (Some(value), _) => value,
        (None, Ok(value)) if value < 0.0 => return Err("it must be 0 or more"),
        (None, Ok(value)) if value * unit as f64 >= u64::MAX as f64 => {
            return Err("it is too large");
        }
        (None, Ok(value)) if (value * unit as f64).fract() == 0.0 => (value * unit as f64) as u64,
        _ => return Err("write a whole number, such as 8, 10k, 1e6 or 80GiB"),
    };
    T::try_from(value).map_err(|_| "it is too large")
}

fn bytes(text: &str) -> Result<f64, &'static str> {
    let (number, unit) = number_and_unit(text);
    let value = number.parse::<f64>();
    let value = value.map_err(|_| "write a number of bytes, such as 1e9, 16G or 80GiB")?;
    Ok(value * unit as f64)
}

fn number(text: &str) -> Result<f64, &'static str> {
    let value = text.trim().parse();
    value.map_err(|_| "write a number, such as 0.1 or 1e-3")
}

pub fn is_given(matches: &ArgMatches, arg: &Arg) -> bool {
    matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// An error for the first of these flags that is given, without an effect because of what is said with it.
pub fn refuse_idle<'a>(
    matches: &ArgMatches,
    idle: impl IntoIterator<Item = (&'a str, bool, &'a str)>,
) -> Result<(), CliError> {
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let mut idle = idle.into_iter().filter(|(_, is_idle, _)| *is_idle);
    match idle.find(|(flag, ..)| given(&flag.replace('-', "_"))) {
        Some((flag, _, why)) => Err(usage!("--{flag} has no effect {why}: leave it out")),
        None => Ok(()),
    }
}

/// Hides the flags that a subcommand does not use, though it knows them.
pub fn hide(command: Command, is_unused: impl Fn(&Arg) -> bool) -> Command {
    command.mut_args(|arg| {
        let is_hidden = arg.is_hide_set() || is_unused(&arg);
        arg.hide(is_hidden)
    })
}

/// Refuses hidden flags, which would do nothing.
pub fn refuse_hidden(command: &Command, matches: &ArgMatches) -> Result<(), CliError> {
    let hidden = command.get_arguments().filter(|arg| arg.is_hide_set());
    let mut given = hidden.filter(|arg| is_given(matches, arg));
    let Some(arg) = given.next() else {
        return Ok(());
    };
    let (flag, subcommand) = (arg.get_long().unwrap_or_default(), command.get_name());
    let what = match arg.get_help_heading() {
        heading if flag == "data" || heading == Some("Model") => "it is the run's own",
        Some("Pipeline") if subcommand == "export" => "it changes nothing in the file",
        _ => "it is for training",
    };
    Err(usage!(
        "--{flag} is not for {subcommand}, since {what}: leave it out"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_have_units() {
        for (text, expected) in [
            ("8", Ok(8)),
            ("80GiB", Ok(80 << 30)),
            ("80 gib", Ok(80 << 30)),
            ("16G", Ok(16_000_000_000)),
            ("16GB", Ok(16_000_000_000)),
            ("1e9", Ok(1_000_000_000)),
            ("10m", Ok(10_000_000)),
            ("1.5Ki", Ok(1536)),
            ("1_000", Ok(1000)),
            ("512b", Ok(512)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("1e20", Err("it is too large")),
            ("99999999PiB", Err("it is too large")),
            ("inf", Err("it is too large")),
            ("-1", Err("it must be 0 or more")),
            (
                "0.5",
                Err("write a whole number, such as 8, 10k, 1e6 or 80GiB"),
            ),
            (
                "5i",
                Err("write a whole number, such as 8, 10k, 1e6 or 80GiB"),
            ),
            (
                "nan",
                Err("write a whole number, such as 8, 10k, 1e6 or 80GiB"),
            ),
            (
                "",
                Err("write a whole number, such as 8, 10k, 1e6 or 80GiB"),
            ),
            (
                "é",
                Err("write a whole number, such as 8, 10k, 1e6 or 80GiB"),
            ),
        ] {
            assert_eq!(whole::<u64>(text), expected, "{text}");
        }
        assert_eq!(whole::<u16>("1e5"), Err("it is too large"));
        assert_eq!((bytes("-1"), bytes("2KiB")), (Ok(-1.0), Ok(2048.0)));
        assert!(bytes("x").is_err() && number("1k").is_err());
        assert_eq!(number("1e-3"), Ok(1e-3));
    }
}
