//! From a few numbers to a list of layers.

use burn::tensor::Device;

use crate::{
    config::UNetConfig, convolution::Convolution, down::Down, layer::UNetLayer, segment::Segment,
    up::Up,
};

/// The channels that go into a level's convolutions, are between them, and come out.
struct Widths {
    input: usize,
    inner: usize,
    output: usize,
}

/// Makes the layers of numbers that have been checked.
pub(crate) fn layers(config: &UNetConfig, device: &Device) -> Vec<UNetLayer> {
    let convolutions = |widths: Widths| {
        let steps = steps(widths, config.convolutions).into_iter();
        steps.map(|step| UNetLayer::Convolution(Convolution::new(step, config.dropout, device)))
    };
    let mut layers = Vec::new();
    for level in 0..config.depth {
        layers.extend(convolutions(on_the_way_down(config, level)));
        layers.push(UNetLayer::Down(Down::new(level)));
    }
    layers.extend(convolutions(at_the_bottom(config)));
    for level in (0..config.depth).rev() {
        layers.push(UNetLayer::Up(Up::new(level)));
        layers.extend(convolutions(on_the_way_up(config, level)));
    }
    let channels = [on_the_way_up(config, 0).output, config.output_channels];
    layers.push(UNetLayer::Segment(Segment::new(channels, device)));
    layers
}

/// The channels before and after each of a level's convolutions.
fn steps(widths: Widths, convolutions: usize) -> Vec<[usize; 2]> {
    let mut channels = vec![widths.input];
    channels.extend(vec![widths.inner; convolutions - 1]);
    channels.push(widths.output);
    let pairs = channels.windows(2);
    pairs.map(|pair| [pair[0], pair[1]]).collect()
}

/// The channels of a level's skip.
fn width(config: &UNetConfig, level: usize) -> usize {
    config.channels << level
}

fn on_the_way_down(config: &UNetConfig, level: usize) -> Widths {
    let above = level.checked_sub(1).map(|above| width(config, above));
    let own = width(config, level);
    Widths {
        input: above.unwrap_or(config.input_channels),
        inner: own,
        output: own,
    }
}

/// Narrow again at the end, since what comes up is doubled by a skip.
fn at_the_bottom(config: &UNetConfig) -> Widths {
    let above = width(config, config.depth - 1);
    Widths {
        input: above,
        inner: width(config, config.depth),
        output: above,
    }
}

/// What comes up and the skip go in. As wide as the level above, whose skip comes next.
fn on_the_way_up(config: &UNetConfig, level: usize) -> Widths {
    let own = width(config, level);
    Widths {
        input: 2 * own,
        inner: own / 2,
        output: own / 2,
    }
}
