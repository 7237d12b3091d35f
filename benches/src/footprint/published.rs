//! Table 1 of the GPipe paper, and torchgpipe's.

use super::{
    GB,
    case::{Network, Strategy},
};

/// A column of the table: AmoebaNet-D at 224², batch 128, with RMSProp.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    pub strategy: Strategy,
    /// The largest network that trained.
    pub network: Network,
    pub paper: PublishedMemory,
    pub torchgpipe: PublishedMemory,
}

/// Bytes of all devices together.
#[derive(Clone, Copy, Debug)]
pub struct PublishedMemory {
    /// Parameters and optimizer state.
    pub model: f64,
    /// The peak of activations; `None` if it ran out of memory.
    pub activations: Option<f64>,
}

const GIB: f64 = (1 << 30) as f64;

/// Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019, Table 1; and
/// Kim et al., "torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models", 2020.
#[rustfmt::skip] // a line for each column of the paper
pub const TABLE_1: [Published; 5] = [
    entry(Strategy::Naive, (18, 208), (1.05, 6.26), (0.91, None)),
    entry(Strategy::Pipeline(1), (18, 416), (3.8, 3.46), (3.57, Some(0.91))),
    entry(Strategy::Pipeline(2), (18, 544), (6.45, 8.11), (6.07, Some(3.39))),
    entry(Strategy::Pipeline(4), (36, 544), (12.53, 15.21), (11.80, Some(6.91))),
    entry(Strategy::Pipeline(8), (72, 512), (24.62, 26.24), (20.62, Some(10.83))),
];

/// Values in GB of the paper and GiB of torchgpipe.
const fn entry(
    strategy: Strategy,
    (layers, filters): (usize, usize),
    paper: (f64, f64),
    torchgpipe: (f64, Option<f64>),
) -> Published {
    Published {
        strategy,
        network: Network { layers, filters },
        paper: PublishedMemory {
            model: paper.0 * GB,
            activations: Some(paper.1 * GB),
        },
        torchgpipe: PublishedMemory {
            model: torchgpipe.0 * GIB,
            activations: match torchgpipe.1 {
                Some(gib) => Some(gib * GIB),
                None => None,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Three numbers of four bytes for each parameter: itself and two of RMSProp's, or itself, its
    /// gradient and one.
    #[test]
    fn torchgpipes_models_have_twelve_bytes_a_parameter() {
        for published in TABLE_1 {
            let parameters = published.network.parameters().unwrap();
            let bytes = published.torchgpipe.model / parameters as f64;
            assert!((11.9..12.1).contains(&bytes), "{bytes}");
        }
    }
}
