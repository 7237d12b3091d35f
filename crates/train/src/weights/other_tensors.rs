//! Differences between a file's tensors and a model's.

use std::fmt;

use burn::store::ApplyError;

/// Names to show at most, of each kind.
const MOST: usize = 4;

/// How the tensors of a file differ from those of a model. Shows the first four names of each kind.
///
/// ```
/// use stovepipe_train::weights::OtherTensors;
///
/// let tensors = OtherTensors {
///     missing: (0..12).map(|layer| format!("layers.{layer}.bias")).collect(),
///     misshapen: vec!["layers.3.weight is [2, 4], not [4, 4]".to_owned()],
///     ..OtherTensors::default()
/// };
/// let text = tensors.to_string();
/// assert!(text.starts_with("it lacks layers.0.bias, layers.1.bias, "));
/// assert!(text.ends_with("layers.3.bias and 8 more; layers.3.weight is [2, 4], not [4, 4]"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherTensors {
    /// Tensors of the model that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of the file that the model lacks.
    pub extra: Vec<String>,
    /// Tensors of other shapes or types, with both.
    pub misshapen: Vec<String>,
    /// Tensors that cannot be read, with the reason.
    pub unreadable: Vec<String>,
}

impl OtherTensors {
    /// The tensors that Burn could not load.
    pub(super) fn refused(errors: Vec<ApplyError>) -> Self {
        let mut tensors = Self::default();
        errors.into_iter().for_each(|error| tensors.add(error));
        tensors
    }

    fn add(&mut self, error: ApplyError) {
        match error {
            ApplyError::ShapeMismatch {
                path,
                expected,
                found,
            } => {
                let (expected, found) = (expected.as_slice(), found.as_slice());
                self.misshapen
                    .push(format!("{path} is {found:?}, not {expected:?}"));
            }
            ApplyError::DTypeMismatch {
                path,
                expected,
                found,
            } => {
                self.misshapen
                    .push(format!("{path} is {found:?}, not {expected:?}"));
            }
            ApplyError::AdapterError { path, message }
            | ApplyError::LoadError { path, message } => {
                self.unreadable.push(format!("{path}: {message}"));
            }
        }
    }
}

impl fmt::Display for OtherTensors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("it lacks ", &self.missing),
            ("it also has ", &self.extra),
            ("", &self.misshapen),
            ("", &self.unreadable),
        ];
        let kinds = kinds.into_iter().filter(|(_, names)| !names.is_empty());
        let parts = kinds.map(|(verb, names)| verb.to_owned() + &bounded(names));
        formatter.write_str(&parts.collect::<Vec<_>>().join("; "))
    }
}

/// The first names, and the number of the others.
fn bounded(names: &[String]) -> String {
    // Whoever made a file chose the names.
    let shown = names[..names.len().min(MOST)]
        .join(", ")
        .replace('\n', "\\n");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
