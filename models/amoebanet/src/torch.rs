//! Maps the tensor names of PyTorch to ours.

use std::collections::BTreeSet;

use burn::store::KeyRemapper;

/// Renames the tensors of a PyTorch AmoebaNet with torchgpipe's names to those of our layers.
#[expect(
    clippy::expect_used,
    reason = "the patterns hold only names and numbers"
)]
pub(crate) fn keys(normal_cells: usize) -> KeyRemapper {
    let layers = layers(normal_cells).into_iter().enumerate();
    let layers = layers.map(|(index, name)| (format!(r"\b{name}\."), format!("{index}.")));
    let places = [(r"\.module\.".to_owned(), ".".to_owned())].into_iter();
    // torchgpipe's pipeline adds its stages as a prefix.
    let stages = [(r"^partitions\.\d+\.".to_owned(), String::new())].into_iter();
    let patterns = (stages.chain(layers).chain(places).chain(units())).collect();
    KeyRemapper::from_patterns(patterns).expect("valid patterns")
}

/// Gives tensors the names of a PyTorch AmoebaNet with torchgpipe's, the way back from [`keys`].
pub(crate) fn rename(normal_cells: usize, tensors: &mut [(String, Vec<usize>)]) {
    let layers = layers(normal_cells);
    let all = tensors
        .iter()
        .filter_map(|(name, _)| name.split_once(".depthwise."));
    let separable: BTreeSet<_> = all.map(|(unit, _)| unit.to_owned()).collect();
    for (name, _) in tensors {
        let parts: Vec<_> = name.split('.').collect();
        let ["layers", index, rest @ ..] = &parts[..] else {
            continue;
        };
        let Some(layer) = index
            .parse()
            .ok()
            .and_then(|index: usize| layers.get(index))
        else {
            continue;
        };
        // A unit's convolution and batch norm have a place each.
        let place = |unit: &str, part: &str| match (unit.parse::<usize>(), part) {
            (Ok(unit), "conv") => Some(3 * unit + 1),
            (Ok(unit), "bn") => Some(3 * unit + 2),
            _ => None,
        };
        let rest = match *rest {
            ["operations", operation, unit, ref part @ ..]
                if separable.contains(&format!("layers.{index}.operations.{operation}.{unit}")) =>
            {
                format!("operations.{operation}.module.{unit}.{}", part.join("."))
            }
            ["operations", operation, unit, part, parameter] => match place(unit, part) {
                Some(place) => format!("operations.{operation}.module.{place}.{parameter}"),
                None => rest.join("."),
            },
            [reduce @ ("reduce1" | "reduce2"), unit, part, parameter] => match place(unit, part) {
                Some(place) => format!("{reduce}.{place}.{parameter}"),
                None => rest.join("."),
            },
            _ => rest.join("."),
        };
        *name = format!("{layer}.{rest}");
    }
}

fn layers(normal_cells: usize) -> Vec<String> {
    let mut names: Vec<String> = (1..=3).map(|i| format!("stem{i}")).collect();
    for group in [1, 3, 5] {
        if group > 1 {
            names.push(format!("cell{}_reduction", group - 1));
        }
        names.extend((1..=normal_cells / 3).map(|i| format!("cell{group}_normal{i}")));
    }
    names.push("classify".to_owned());
    names
}

/// In PyTorch a chain is a flat list of ReLU, convolution, batch norm, ReLU, …: unit k has its
/// convolution at 3k + 1 and its batch norm at 3k + 2. The parts of a separable convolution have names
/// there, too, and keep them.
fn units() -> impl Iterator<Item = (String, String)> {
    const LONGEST_CHAIN: usize = 4;
    (0..LONGEST_CHAIN).flat_map(|unit| {
        [(3 * unit + 1, "conv"), (3 * unit + 2, "bn")].map(|(place, part)| {
            let pattern = format!(r"\.(operations\.\d+|reduce[12])\.{place}\.(\w+)$");
            (pattern, format!(".${{1}}.{unit}.{part}.${{2}}"))
        })
    })
}
