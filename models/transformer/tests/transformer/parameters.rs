//! The published sizes, without allocating a parameter.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::count_parameters;
use stovepipe_transformer::{BlockConfig, LmConfig, Pool, Positions, TransformerError, VitConfig};

struct Allocated(usize);

impl ModuleVisitor for Allocated {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0 += usize::from(param.is_initialized());
    }
}

/// The number of parameters, none of which may be allocated.
fn count<M: Module>(layers: &Vec<M>) -> usize {
    let mut allocated = Allocated(0);
    layers.visit(&mut allocated);
    assert_eq!(allocated.0, 0);
    count_parameters(layers)
}

fn of(config: &LmConfig) -> usize {
    count(&config.init(&Device::flex()).unwrap())
}

fn of_vit(config: &VitConfig) -> usize {
    count(&config.init(&Device::flex()).unwrap())
}

/// L · 50.36M + 131.07M (GPipe's Table 1 and text: 282.2M, 785.8M, 5.3B), within 0.1 %.
#[test]
fn transformer_l_has_the_published_parameters() {
    let largest = 103.0 * 50.36e6 + 131.07e6;
    for (layers, published) in [(3, 282.2e6), (13, 785.8e6), (103, largest)] {
        let found = of(&LmConfig::transformer_l(layers)) as f64;
        assert!((found / published - 1.0).abs() < 1e-3, "{layers}: {found}");
    }
    let largest = of(&LmConfig::transformer_l(103)) as f64;
    assert_eq!((largest / 1e8).round(), 53.0);
}

/// d² and d for each of four projections, 2 · d · w + w + d for the network, 4 · d for two norms.
#[test]
fn language_models_have_the_parameters_of_their_sizes() {
    let (vocabulary, length, layers, d) = (11, 7, 3, 20);
    let block = |wide: usize| 4 * (d * d + d) + 2 * d * wide + wide + d + 4 * d;
    let config = LmConfig::new(vocabulary, length, layers, d, 5);
    let tied = vocabulary * d + length * d + layers * block(4 * d) + 2 * d;
    // A tied table is one parameter in two places, each of which is counted.
    assert_eq!(of(&config), tied + vocabulary * d);
    assert_eq!(of(&config.clone().with_tied(false)), tied + vocabulary * d);
    let sinusoids = config.clone().with_positions(Positions::Sinusoidal);
    assert_eq!(of(&sinusoids), tied + vocabulary * d - length * d);
    let narrow = tied - layers * (block(4 * d) - block(6)) + vocabulary * d;
    assert_eq!(of(&config.with_d_ff(Some(6))), narrow);
}

/// timm's counts, for vit_tiny_patch16_224, vit_small_… and vit_base_….
#[test]
fn vision_transformers_have_the_parameters_of_timms() {
    assert_eq!(of_vit(&VitConfig::tiny(224, 16, 1000)), 5_717_416);
    assert_eq!(of_vit(&VitConfig::small(224, 16, 1000)), 22_050_664);
    assert_eq!(of_vit(&VitConfig::base(224, 16, 1000)), 86_567_656);
    // The class's token and its position.
    let mean = VitConfig::tiny(224, 16, 1000).with_pool(Pool::Mean);
    assert_eq!(of_vit(&mean), 5_717_416 - 2 * 192);
    // 32×32 in patches of 4×4: other patches, 65 positions, 10 classes.
    let small = VitConfig::tiny(32, 4, 10);
    let fewer = 192 * (3 * 16 * 16 - 3 * 4 * 4) + 192 * (197 - 65) + 193 * 990;
    assert_eq!(of_vit(&small), 5_717_416 - fewer);
}

#[test]
fn bad_configurations_are_refused() {
    let device = Device::flex();
    let lm = LmConfig::new(11, 7, 3, 20, 5);
    let vit = VitConfig::new(32, 8, 2, 12, 3, 10);
    let error = |change: fn(&mut LmConfig)| {
        let mut wrong = lm.clone();
        change(&mut wrong);
        wrong.init(&device).unwrap_err().to_string()
    };
    let vit_error = |config: VitConfig| config.init(&device).unwrap_err();
    let none = "the number of blocks must be from 1 to 16777216, not 0";
    assert_eq!(error(|lm| lm.layers = 0), none);
    let heads = "3 heads cannot share a width of 20: it must be a multiple of them";
    assert_eq!(error(|lm| lm.heads = 3), heads);
    let dropout = "the probability of dropout must be at least 0 and less than 1, not 1.0";
    assert_eq!(error(|lm| lm.dropout = 1.0), dropout);
    for found in [
        error(|lm| lm.vocabulary = 0),
        error(|lm| lm.length = 0),
        error(|lm| lm.d_model = 0),
        error(|lm| lm.d_model = usize::MAX),
        error(|lm| lm.heads = 0),
        error(|lm| lm.d_ff = Some(0)),
    ] {
        assert!(found.contains("must be from 1 to"), "{found}");
    }
    let (image, patch) = (32, 5);
    let wrong = VitConfig::new(image, patch, 2, 12, 3, 10);
    let expected = TransformerError::Patches { image, patch };
    assert_eq!(vit_error(wrong), expected);
    let wrong = vit_error(vit.clone().with_drop_path(f64::NAN));
    assert!(matches!(
        wrong,
        TransformerError::Probability("drop-path", _)
    ));
    let what = "the number of classes";
    let wrong = vit_error(VitConfig { classes: 0, ..vit });
    assert_eq!(wrong, TransformerError::Size(what, 0));
}

/// The default width of a block's network, four times the model's, must not overflow.
#[test]
fn a_width_too_large_is_an_error_that_names_it() {
    assert_eq!(BlockConfig::new(usize::MAX, 1).d_ff, usize::MAX);
    let of_model = "the width of the model must be from 1 to 16777216, not 18446744073709551615";
    let of_network = "the width of the network in a block, four times that of the model, \
                      must be from 1 to 16777216, not 67108864";
    let device = Device::flex();
    for (width, expected) in [(usize::MAX, of_model), (1 << 24, of_network)] {
        let lm = LmConfig::new(8, 8, 1, width, 1);
        let vit = VitConfig::new(8, 4, 1, width, 1, 2);
        for error in [
            BlockConfig::new(width, 1).init(&device).map(drop),
            lm.init(&device).map(drop),
            vit.init(&device).map(drop),
        ] {
            assert_eq!(error.unwrap_err().to_string(), expected);
        }
    }
}
