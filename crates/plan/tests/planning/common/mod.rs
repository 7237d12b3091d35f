//! Machines, and checks of readers of text.

use std::fmt::{Debug, Display};

use proptest::prelude::*;
use stovepipe_plan::{LinkLevel, Machine};
use stovepipe_schedule::Link;

/// A machine with the workers and the bandwidth of each level.
pub fn machine(levels: &[(usize, f64)]) -> Machine {
    let latency = 0.0;
    let level = |&(workers, bandwidth)| LinkLevel::joining(workers, Link { latency, bandwidth });
    Machine {
        levels: levels.iter().map(level).collect(),
        ..Machine::uniform(levels.iter().map(|level| level.0).product())
    }
}

/// A line of a graph: a node with its milliseconds forward and backward, and bytes of its output and its
/// parameters.
pub fn node(id: usize, name: &str, figures: (f64, f64, u64, u64)) -> String {
    let (forward, backward, output, parameters) = figures;
    format!(
        "node{id} -- {name} -- forward_compute_time={forward}, backward_compute_time={backward}, \
         activation_size={output}, parameter_size={parameters}\n"
    )
}

/// A line of a graph.
pub fn edge(from: usize, to: usize) -> String {
    format!("\tnode{from} -- node{to}\n")
}

/// Reads a good text with one part replaced. Each row of the table has the part, its replacement, the
/// line that the error must name, and words that it must contain. `↵` is a line end.
pub fn check_faults<T: Debug, E: Display>(
    good: &str,
    read: impl Fn(&str) -> Result<T, E>,
    table: &str,
) {
    for row in table.lines().filter(|row| !row.trim().is_empty()) {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim_matches(' ')).collect();
        let [part, bad, line, said] = cells[..] else {
            panic!("{row}");
        };
        let [part, bad] = [part, bad].map(|cell| cell.replace('↵', "\n"));
        let text = good.replacen(&part, &bad, 1);
        assert_ne!(text, good, "{row}");
        let error = read(&text).err().unwrap().to_string();
        let is_named = ["", ":"].map(|end| format!("line {line}{end} "));
        let is_named = is_named.iter().any(|named| error.starts_with(named));
        assert!(is_named, "{row}: {error}");
        assert!(error.contains(said), "{row}: {error}");
    }
}

/// A text with some changed bytes, and both parts of it after a cut.
pub fn any_change(good: &'static str) -> impl Strategy<Value = [String; 3]> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(&b"\n\t92"[..]),];
    let changes = prop::collection::vec((0..good.len(), byte), 1..8);
    (changes, 0..good.len()).prop_map(move |(changes, cut)| {
        let mut bytes = good.as_bytes().to_vec();
        for (place, byte) in changes {
            bytes[place] = byte;
        }
        [&bytes[..], &bytes[..cut], &bytes[cut..]]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    })
}

/// A text of any bytes.
pub fn any_text() -> impl Strategy<Value = String> {
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    bytes.prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A name with characters that TOML must escape.
pub fn name() -> impl Strategy<Value = String> {
    let any = prop_oneof![any::<char>(), Just('"'), Just('\n'), Just('\\')];
    prop::collection::vec(any, 0..8).prop_map(String::from_iter)
}
