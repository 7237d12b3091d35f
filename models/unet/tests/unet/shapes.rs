//! Published sizes, images of any size, and errors.

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

/// The parameters of U-Net(B, C) of depth 5, level by level: 9 weights for each pair of channels.
fn parameters(b: usize, c: usize) -> usize {
    let level = |input, inner, output| match b {
        1 => 9 * input * output,
        _ => 9 * (input * inner + (b - 2) * inner * inner + inner * output),
    };
    let down = |k: usize| level(k * c, 2 * k * c, 2 * k * c);
    let up = |k: usize| level(4 * k * c, k * c, k * c);
    let encoder = level(3, c, c) + down(1) + down(2) + down(4) + down(8);
    let decoder = up(8) + up(4) + up(2) + up(1) + level(2 * c, c / 2, c / 2);
    encoder + level(16 * c, 32 * c, 16 * c) + decoder + c / 2
}

struct Allocated(usize);

impl ModuleVisitor for Allocated {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0 += usize::from(param.is_initialized());
    }
}

#[test]
fn the_published_sizes_have_their_parameters_and_none_is_allocated() {
    for (b, c, published, in_torchgpipe) in [
        (5, 64, 232_687_328, 241),
        (6, 72, 362_157_516, 285),
        (11, 128, 2_213_834_176, 505),
        (24, 128, 4_993_859_008, 1077),
        (24, 160, 7_802_903_600, 1077),
        (48, 160, 15_822_206_000, 2133),
    ] {
        let layers = UNetConfig::new(b, c).init(&Device::flex()).unwrap();
        assert_eq!(layers.len(), 11 * b + 5 + 5 + 1);
        // There, a convolution is four layers, and `Down` and `Up` are two each.
        assert_eq!(4 * 11 * b + 2 * 5 + 2 * 5 + 1, in_torchgpipe);
        assert_eq!(count_parameters(&layers), published, "({b}, {c})");
        assert_eq!(parameters(b, c), published, "({b}, {c})");
        let mut allocated = Allocated(0);
        layers.visit(&mut allocated);
        assert_eq!(allocated.0, 0);
    }
    for (b, c) in [(1, 2), (1, 7), (2, 5), (3, 9)] {
        let layers = UNetConfig::new(b, c).init(&Device::flex()).unwrap();
        assert_eq!(count_parameters(&layers), parameters(b, c));
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
    let config = UNetConfig::new(2, 3).with_depth(1);
    let config = config.with_input_channels(1).with_output_channels(4);
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
fn inputs_that_do_not_fit_are_refused() {
    let device = Device::flex();
    let layers = tiny(1);
    let check = |layer: usize, dims: [usize; 4], expected: &str| {
        let skip = Tensor::zeros([1, 4, 6, 6], &device);
        let mut context = Context::new(&(), false).with_skip("level 0", skip);
        let x = Tensor::zeros(dims, &device);
        let error: LayerError = layers[layer].forward(x, &mut context).unwrap_err();
        assert_eq!(error.to_string(), format!("expected {expected}"));
    };
    let small = "(larger images, or less depth)";
    let pixels = format!("maps of more than one pixel {small}, found [1, 3, 1, 1]");
    let halves = format!("maps of 2×2 pixels or more to halve {small}, found [1, 4, 1, 8]");
    let skip = "maps of half the size of the skip, found [1, 4, 4, 3] and [1, 4, 6, 6]";
    check(0, [1, 4, 8, 8], "maps of 3 channels, found [1, 4, 8, 8]");
    check(0, [1, 3, 1, 1], &pixels);
    check(1, [1, 4, 1, 8], &halves);
    check(3, [1, 4, 4, 3], skip);
    check(5, [1, 4, 6, 6], "maps of 2 channels, found [1, 4, 6, 6]");
}

#[test]
fn a_pipeline_says_which_layer_an_image_is_too_small_for() {
    let device = Device::flex();
    let pipeline = Pipeline::builder(tiny(3)).devices(vec![device.clone(); 2]);
    let pipeline = pipeline.build().unwrap();
    let infer = |height, width| pipeline.infer(Tensor::ones([1, 3, height, width], &device));
    assert!(infer(8, 16).is_ok());
    for (width, layer, what) in [
        (8, "layer 6", "more than one pixel"),
        (7, "layer 5", "2×2 pixels or more"),
    ] {
        let error = infer(8, width).unwrap_err().to_string();
        assert!(error.contains(layer) && error.contains(what), "{error}");
    }
    assert!(infer(8, 16).is_ok());
}

#[test]
fn bad_configurations_are_refused() {
    let check = |config: UNetConfig, expected: UNetError, message: &str| {
        let error = config.init(&Device::flex()).unwrap_err();
        assert_eq!((error.to_string().as_str(), error), (message, expected));
    };
    let good = || UNetConfig::new(2, 4);
    let none = "the number of convolutions of a level must be from 1 to 1000, not 0";
    check(UNetConfig::new(0, 4), UNetError::Convolutions(0), none);
    let one = "the number of base channels must be from 2 to 16384, not 1";
    check(UNetConfig::new(2, 1), UNetError::Channels(1), one);
    let deep = "the depth must be from 1 to 10, not 64";
    check(good().with_depth(64), UNetError::Depth(64), deep);
    let (config, error) = (good().with_input_channels(0), UNetError::InputChannels(0));
    let message = "an image must have from 1 to 65536 channels, not 0";
    check(config, error, message);
    let (config, error) = (good().with_output_channels(0), UNetError::OutputChannels(0));
    let message = "the output must have from 1 to 65536 channels, not 0";
    check(config, error, message);
    for dropout in [1.0, -0.1] {
        let message = "the probability of dropout must be at least 0 and less than 1, not";
        let (config, error) = (good().with_dropout(dropout), UNetError::Dropout(dropout));
        check(config, error, &format!("{message} {dropout:?}"));
    }
    let nan = good().with_dropout(f64::NAN).init(&Device::flex());
    assert!(matches!(nan, Err(UNetError::Dropout(_))));
}
