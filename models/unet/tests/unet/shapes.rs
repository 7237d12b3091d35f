//! Published sizes, images of any size, and what is refused.

use crate::common::{run, unchanged};
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{
    Context, KeyedRng, Layer, LayerError, Pipeline, SkipUse, count_parameters,
};
use stovepipe_unet::{UNetConfig, UNetError, UNetLayer};

fn tiny(depth: usize) -> Vec<UNetLayer> {
    let config = UNetConfig::new(1, 4).with_depth(depth);
    config.init(&Device::flex()).unwrap()
}

/// U-Net(B, C) of depth 5 level by level: 9 weights for each pair of channels.
fn parameters_by_hand(b: usize, c: usize) -> usize {
    let level = |input, inner, output| match b {
        1 => 9 * input * output,
        _ => 9 * (input * inner + (b - 2) * inner * inner + inner * output),
    };
    let down = level(3, c, c)
        + level(c, 2 * c, 2 * c)
        + level(2 * c, 4 * c, 4 * c)
        + level(4 * c, 8 * c, 8 * c)
        + level(8 * c, 16 * c, 16 * c);
    let bottom = level(16 * c, 32 * c, 16 * c);
    let up = level(32 * c, 8 * c, 8 * c)
        + level(16 * c, 4 * c, 4 * c)
        + level(8 * c, 2 * c, 2 * c)
        + level(4 * c, c, c)
        + level(2 * c, c / 2, c / 2);
    down + bottom + up + c / 2
}

/// Counts the parameters that have been allocated.
struct Allocated(usize);

impl ModuleVisitor for Allocated {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0 += usize::from(param.is_initialized());
    }
}

#[test]
fn the_published_sizes_have_their_parameters_and_none_is_allocated() {
    for (b, c, parameters, in_torchgpipe) in [
        (5, 64, 232_687_328, 241),
        (6, 72, 362_157_516, 285),
        (11, 128, 2_213_834_176, 505),
        (24, 128, 4_993_859_008, 1077),
        (24, 160, 7_802_903_600, 1077),
        (48, 160, 15_822_206_000, 2133),
    ] {
        let layers = UNetConfig::new(b, c).init(&Device::flex()).unwrap();
        assert_eq!(layers.len(), 11 * b + 5 + 5 + 1);
        // There, a convolution is four layers, and the ways down and up are two each.
        assert_eq!(4 * 11 * b + 2 * 5 + 2 * 5 + 1, in_torchgpipe);
        assert_eq!(count_parameters(&layers), parameters, "({b}, {c})");
        assert_eq!(parameters_by_hand(b, c), parameters, "({b}, {c})");
        let mut allocated = Allocated(0);
        layers.visit(&mut allocated);
        assert_eq!(allocated.0, 0);
    }
    for (b, c) in [(1, 2), (1, 7), (2, 5), (3, 9)] {
        let layers = UNetConfig::new(b, c).init(&Device::flex()).unwrap();
        assert_eq!(count_parameters(&layers), parameters_by_hand(b, c));
    }
}

#[test]
fn layers_have_names_and_skips() {
    let layers = tiny(2);
    let names: Vec<_> = layers.iter().map(Layer::name).collect();
    let expected =
        "Convolution Down Convolution Down Convolution Up Convolution Up Convolution Segment";
    assert_eq!(names.join(" "), expected);
    let skips: Vec<_> = layers.iter().flat_map(Layer::skips).collect();
    let expected = [
        SkipUse::send("level 0"),
        SkipUse::send("level 1"),
        SkipUse::take("level 1"),
        SkipUse::take("level 0"),
    ];
    assert_eq!(skips, expected);
}

#[test]
fn an_output_has_the_size_of_its_image() {
    let device = Device::flex();
    for (depth, height, width) in [(1, 3, 4), (2, 8, 8), (2, 11, 14), (3, 9, 31), (5, 64, 33)] {
        let images = Tensor::ones([2, 3, height, width], &device);
        let output = run(&tiny(depth), images, |_| KeyedRng::none(), unchanged).unwrap();
        assert_eq!(output.dims(), [2, 1, height, width]);
    }
    let config = UNetConfig::new(2, 3)
        .with_depth(1)
        .with_input_channels(1)
        .with_output_channels(4);
    let layers = config.init(&device).unwrap();
    let images = Tensor::ones([1, 1, 6, 4], &device);
    let output = run(&layers, images, |_| KeyedRng::none(), unchanged).unwrap();
    assert_eq!(output.dims(), [1, 4, 6, 4]);
}

#[test]
fn maps_are_halved_on_the_way_down() {
    let mut x = Tensor::ones([1, 3, 11, 14], &Device::flex());
    for (layer, expected) in tiny(2).iter().zip([
        [1, 4, 11, 14],
        [1, 4, 5, 7],
        [1, 8, 5, 7],
        [1, 8, 2, 3],
        [1, 8, 2, 3],
    ]) {
        x = layer.forward(x, &mut Context::new(&(), false)).unwrap();
        assert_eq!(x.dims(), expected);
    }
}

#[test]
fn what_does_not_fit_is_miswired() {
    let device = Device::flex();
    let layers = tiny(1);
    let check = |layer: usize, dims: [usize; 4], expected: &str| {
        let mut context =
            Context::new(&(), false).with_skip("level 0", Tensor::zeros([1, 4, 6, 6], &device));
        let x = Tensor::zeros(dims, &device);
        let error: LayerError = layers[layer].forward(x, &mut context).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(
        0,
        [1, 4, 8, 8],
        "expected maps of 3 channels, found [1, 4, 8, 8]",
    );
    check(
        0,
        [1, 3, 1, 1],
        "expected maps of more than one pixel (larger images, or less depth), found [1, 3, 1, 1]",
    );
    check(
        1,
        [1, 4, 1, 8],
        "expected maps of 2×2 pixels or more to halve (larger images, or less depth), \
         found [1, 4, 1, 8]",
    );
    check(
        3,
        [1, 4, 4, 3],
        "expected maps of half the size of the skip, found [1, 4, 4, 3] and [1, 4, 6, 6]",
    );
    check(
        5,
        [1, 4, 6, 6],
        "expected maps of 2 channels, found [1, 4, 6, 6]",
    );
}

#[test]
fn a_pipeline_says_which_layer_an_image_is_too_small_for() {
    let device = Device::flex();
    let pipeline = Pipeline::builder(tiny(3)).devices(vec![device.clone(); 2]);
    let pipeline = pipeline.build().unwrap();
    let infer = |height, width| pipeline.infer(Tensor::ones([1, 3, height, width], &device));
    assert!(infer(8, 16).is_ok());
    let error = infer(8, 8).unwrap_err().to_string();
    assert!(
        error.contains("layer 6") && error.contains("more than one pixel"),
        "{error}"
    );
    let error = infer(8, 7).unwrap_err().to_string();
    assert!(
        error.contains("layer 5") && error.contains("2×2 pixels or more"),
        "{error}"
    );
    assert!(infer(8, 16).is_ok());
}

#[test]
fn bad_configurations_are_refused() {
    let check = |config: UNetConfig, expected: UNetError, message: &str| {
        let error = config.init(&Device::flex()).unwrap_err();
        assert_eq!(error, expected);
        assert_eq!(error.to_string(), message);
    };
    let good = || UNetConfig::new(2, 4);
    check(
        UNetConfig::new(0, 4),
        UNetError::Convolutions(0),
        "the number of convolutions of a level must be from 1 to 1000, not 0",
    );
    check(
        UNetConfig::new(2, 1),
        UNetError::Channels(1),
        "the number of base channels must be from 2 to 16384, not 1",
    );
    check(
        good().with_depth(64),
        UNetError::Depth(64),
        "the depth must be from 1 to 10, not 64",
    );
    check(
        good().with_input_channels(0),
        UNetError::InputChannels(0),
        "an image must have from 1 to 65536 channels, not 0",
    );
    check(
        good().with_output_channels(0),
        UNetError::OutputChannels(0),
        "the output must have from 1 to 65536 channels, not 0",
    );
    for dropout in [1.0, -0.1] {
        check(
            good().with_dropout(dropout),
            UNetError::Dropout(dropout),
            &format!(
                "the probability of dropout must be at least 0 and less than 1, not {dropout}"
            ),
        );
    }
    let not_a_number = good().with_dropout(f64::NAN).init(&Device::flex());
    assert!(matches!(not_a_number, Err(UNetError::Dropout(_))));
}
