//! Maps the tensor names of PyTorch to ours.

use burn::store::KeyRemapper;

use crate::config::UNetConfig;

/// Renames the tensors of a PyTorch U-Net with torchgpipe's names to those of our layers.
#[expect(
    clippy::expect_used,
    reason = "the patterns hold only names and numbers"
)]
pub(crate) fn keys(config: &UNetConfig) -> KeyRemapper {
    let places = names(config).into_iter().enumerate();
    let patterns = places.filter_map(|(index, name)| {
        let pattern = format!(r"\b{}\.", name?);
        Some((pattern, format!("{index}.conv.")))
    });
    KeyRemapper::from_patterns(patterns.collect()).expect("valid patterns")
}

/// PyTorch's name of each layer's convolution, if it has one.
fn names(config: &UNetConfig) -> Vec<Option<String>> {
    let convolutions = |level: String| {
        (0..config.convolutions).map(move |place| Some(format!("{level}_{place}_conv")))
    };
    let mut names = Vec::new();
    for level in 0..config.depth {
        names.extend(convolutions(format!("encoder_{level}_encode")));
        names.push(None);
    }
    names.extend(convolutions("bottleneck_0".to_owned()));
    for place in 0..config.depth {
        names.push(None);
        names.extend(convolutions(format!("decoder_{place}_decode")));
    }
    names.push(Some("segment".to_owned()));
    names
}
