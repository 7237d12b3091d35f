//! What templates may use of Python, where minijinja differs from it.

use std::fmt::Write as _;

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Rest, Tuple, ValueKind, from_args},
};
use minijinja_contrib::pycompat;

use crate::limits::LONGEST_OUTPUT;

/// Values in values in `tojson`. Lines of JSON have at most 128.
const DEEPEST: usize = 200;

/// `str.isspace` of Python: separators of files and records, too.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// The filter `trim`.
pub(crate) fn trim(value: &Value, characters: Option<String>) -> String {
    let text = value.to_string();
    strip(&text, characters.as_deref(), true, true).to_owned()
}

/// `str.strip`, or one side of it.
fn strip<'a>(text: &'a str, characters: Option<&str>, start: bool, end: bool) -> &'a str {
    let is_removed = |character: char| match characters {
        Some(characters) => characters.contains(character),
        None => is_space(character),
    };
    let text = if start {
        text.trim_start_matches(is_removed)
    } else {
        text
    };
    if end {
        text.trim_end_matches(is_removed)
    } else {
        text
    }
}

/// The test `sequence`: Python can index strings and dictionaries, too.
pub(crate) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::Seq | ValueKind::Map | ValueKind::String
    )
}

/// Methods of Python's values.
pub(crate) fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match method {
            "strip" | "lstrip" | "rstrip" => {
                let (characters,): (Option<&str>,) = from_args(args)?;
                let stripped = strip(text, characters, method != "rstrip", method != "lstrip");
                return Ok(Value::from(stripped));
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "title" => {
                let () = from_args(args)?;
                return Ok(Value::from(title(text)));
            }
            "split" if args.is_empty() => {
                let words = text.split(is_space).filter(|word| !word.is_empty());
                return Ok(words.map(Value::from).collect());
            }
            "splitlines" => {
                let (keep_ends,): (Option<bool>,) = from_args(args)?;
                let lines = lines(text).into_iter().map(|(line, end)| match keep_ends {
                    Some(true) => [line, end].concat(),
                    _ => line.to_owned(),
                });
                return Ok(lines.collect());
            }
            "partition" | "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                let from_end = method == "rpartition";
                return Ok(partition(text, separator, from_end));
            }
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// `str.title`: a letter after anything but a letter is large.
fn title(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut after_letter = false;
    for character in text.chars() {
        if after_letter {
            written.extend(character.to_lowercase());
        } else {
            // One letter may become two, of which the first is large.
            let mut letters = character.to_uppercase();
            written.extend(letters.next());
            written.extend(letters.flat_map(char::to_lowercase));
        }
        after_letter = character.is_lowercase() || character.is_uppercase();
    }
    written
}

/// `str.splitlines`: lines, and what ends them.
fn lines(text: &str) -> Vec<(&str, &str)> {
    let mut lines = Vec::new();
    let mut rest = text;
    let is_end = |character: char| {
        matches!(
            character,
            '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
        let end = match after.chars().next() {
            Some('\r') if after.starts_with("\r\n") => 2,
            Some(end) => end.len_utf8(),
            None => 0,
        };
        let (end, after) = after.split_at(end);
        lines.push((line, end));
        rest = after;
    }
    lines
}

/// The filter `indent(width=4, first=False, blank=False)`.
pub(crate) fn indent_lines(
    text: &Value,
    width: Option<Value>,
    first: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = width.map_or_else(|| named.get("width"), |width| Ok(Some(width)))?;
    let indent = width.map_or_else(|| Ok(" ".repeat(4)), indent)?;
    let first = first.map_or_else(|| named.get("first"), |first| Ok(Some(first)))?;
    let blank = named.get::<Option<bool>>("blank")?.unwrap_or(false);
    named.assert_all_used()?;

    // Jinja adds this end of a line, too.
    let text = text.to_string() + "\n";
    let mut written = String::with_capacity(text.len());
    for (index, (line, _)) in lines(&text).into_iter().enumerate() {
        if index > 0 {
            written.push('\n');
        }
        let is_indented = match index {
            0 => first.unwrap_or(false),
            _ => blank || !line.is_empty(),
        };
        if is_indented {
            written += &indent;
        }
        written += line;
    }
    Ok(written)
}

/// The text before the separator, the separator, and the text after it.
fn partition(text: &str, separator: &str, from_end: bool) -> Value {
    let parts = if from_end {
        text.rsplit_once(separator)
    } else {
        text.split_once(separator)
    };
    let parts = match parts {
        Some((before, after)) => [before, separator, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// The filter `tojson` of transformers, which is `json.dumps`:
/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn to_json(
    state: &State,
    value: &Value,
    rest: Rest<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match rest.get(place) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none()))
    };
    let ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = argument(1, "indent")?.map(indent).transpose()?;
    let separators = argument(2, "separators")?.map(separators).transpose()?;
    let sorted = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;

    // In lines of their own, items need no space after their comma.
    let comma = if indent.is_some() { "," } else { ", " };
    let default = || (comma.to_owned(), ": ".to_owned());
    let (item, key) = separators.unwrap_or_else(default);
    let mut json = Json {
        state,
        ascii,
        indent,
        item,
        key,
        sorted,
        written: String::new(),
    };
    json.value(value, 0)?;
    Ok(json.written)
}

/// A number of spaces, or a text.
fn indent(value: Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = i64::try_from(value)?;
    // Python takes a negative number for 0.
    let spaces = usize::try_from(spaces).unwrap_or(0);
    if spaces > 1024 {
        return Err(invalid("an indent of more than 1024 spaces"));
    }
    Ok(" ".repeat(spaces))
}

fn separators(value: Value) -> Result<(String, String), Error> {
    let both: Vec<Value> = value.try_iter()?.collect();
    match both.as_slice() {
        [item, key] => Ok((item.to_string(), key.to_string())),
        _ => Err(invalid("tojson: separators must be a pair")),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Writes values as `json.dumps` of Python does.
struct Json<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    /// Escape other characters than those of ASCII.
    ascii: bool,
    indent: Option<String>,
    /// Between items.
    item: String,
    /// After keys.
    key: String,
    sorted: bool,
    written: String,
}

impl Json<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // A value may be small and hold another one many times.
        self.state.consume_fuel(1)?;
        if depth > DEEPEST || self.written.len() > LONGEST_OUTPUT {
            return Err(invalid("tojson: the value is too large or too deep"));
        }
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            _ => self.written += &scalar(value)?,
        }
        Ok(())
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        let mut is_first = true;
        self.written.push('[');
        for item in list.try_iter()? {
            self.separate(is_first, depth + 1);
            is_first = false;
            self.value(&item, depth + 1)?;
        }
        self.close(is_first, depth, ']');
        Ok(())
    }

    fn map(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        let object = map.as_object();
        let pairs = object.and_then(|object| object.try_iter_pairs());
        let mut pairs: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
        if self.sorted {
            pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        let is_empty = pairs.is_empty();
        self.written.push('{');
        for (index, (key, value)) in pairs.iter().enumerate() {
            self.separate(index == 0, depth + 1);
            match key.as_str() {
                Some(key) => self.string(key),
                None => {
                    let key = scalar(key)?;
                    self.string(&key);
                }
            }
            self.written += &self.key;
            self.value(value, depth + 1)?;
        }
        self.close(is_empty, depth, '}');
        Ok(())
    }

    /// Before an item.
    fn separate(&mut self, is_first: bool, depth: usize) {
        if !is_first {
            self.written += &self.item;
        }
        self.new_line(depth);
    }

    fn close(&mut self, is_empty: bool, depth: usize, bracket: char) {
        if !is_empty {
            self.new_line(depth);
        }
        self.written.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.written.push('\n');
            (0..depth).for_each(|_| self.written += indent);
        }
    }

    fn string(&mut self, text: &str) {
        self.written.push('"');
        for character in text.chars() {
            match character {
                '"' => self.written += "\\\"",
                '\\' => self.written += "\\\\",
                '\n' => self.written += "\\n",
                '\r' => self.written += "\\r",
                '\t' => self.written += "\\t",
                '\u{8}' => self.written += "\\b",
                '\u{c}' => self.written += "\\f",
                _ if character < ' ' || self.ascii && character > '~' => {
                    for &mut unit in character.encode_utf16(&mut [0; 2]) {
                        // Writing to a string never fails.
                        let _ = write!(self.written, "\\u{unit:04x}");
                    }
                }
                _ => self.written.push(character),
            }
        }
        self.written.push('"');
    }
}

/// A value without other values.
fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool if value.is_true() => Ok("true".to_owned()),
        ValueKind::Bool => Ok("false".to_owned()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => Ok(float(f64::try_from(value.clone())?)),
        kind => Err(invalid(format!("tojson: JSON has no {kind}"))),
    }
}

/// `float.__repr__`, and the names that `json.dumps` has for what is not a number.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        let name = if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        };
        return name.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{number:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
