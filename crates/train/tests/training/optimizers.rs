//! Settings of optimizers, next to Burn's.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLrScheduler, module::ParamGroup, optim::AdamWConfig,
};

use super::*;

/// Every parameter and statistic by its bits, after so many steps.
fn bits(pipeline: &Pipeline<Dense>) -> Vec<(usize, Vec<u32>)> {
    struct Bits(Vec<(usize, Vec<u32>)>);

    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.val().into_data().try_to_vec::<f32>().unwrap();
            self.0
                .push((D, values.into_iter().map(f32::to_bits).collect()));
        }
    }

    let mut bits = Bits(Vec::new());
    pipeline.visit(&mut bits);
    bits.0
}

fn of_layers(layers: &[Dense]) -> Pipeline<Dense> {
    let builder = Pipeline::builder(layers.to_vec()).devices(vec![Device::flex(); 2]);
    builder.build().unwrap()
}

fn gradients(pipeline: &Pipeline<Dense>) -> burn::optim::GradientsParams {
    let step = pipeline.train_step(forty_points(), &CrossEntropy::new());
    step.unwrap().gradients
}

fn trained(layers: &[Dense], settings: &TrainSettings, steps: usize) -> Vec<(usize, Vec<u32>)> {
    trained_by(StagedOptimizer::new(settings, 2), layers, steps)
}

fn trained_by(
    mut optimizer: StagedOptimizer,
    layers: &[Dense],
    steps: usize,
) -> Vec<(usize, Vec<u32>)> {
    let mut pipeline = of_layers(layers);
    for _ in 0..steps {
        let gradients = gradients(&pipeline);
        optimizer
            .step(0.1, &mut pipeline, gradients, Instant::now())
            .unwrap();
    }
    bits(&pipeline)
}

/// Vectors move as without weight decay, and matrices as with it.
#[test]
fn weight_decay_may_leave_vectors_out() {
    let layers = layers();
    for optimizer in [
        OptimizerSetting::RmsProp,
        OptimizerSetting::Sgd,
        OptimizerSetting::Adam,
        OptimizerSetting::AdamW,
    ] {
        let after = |weight_decay, weight_decay_of| {
            let settings = TrainSettings {
                optimizer,
                weight_decay,
                weight_decay_of,
                clip: 0.0,
                ..TrainSettings::default()
            };
            trained(&layers, &settings, 1)
        };
        let all = after(0.5, DecayedSetting::All);
        let none = after(0.0, DecayedSetting::All);
        let matrices = after(0.5, DecayedSetting::Matrices);
        let mut differ = [0; 3];
        for ((found, all), none) in matrices.iter().zip(&all).zip(&none) {
            differ[found.0] += usize::from(all != none);
            assert!(
                found == if found.0 == 1 { none } else { all },
                "{optimizer:?}"
            );
        }
        assert!(differ[1] > 0 && differ[2] > 0, "{optimizer:?}: {differ:?}");
    }
}

#[test]
fn the_second_beta_is_that_of_burn() {
    let layers = layers();
    for beta2 in [0.95, 0.999] {
        let settings = TrainSettings {
            optimizer: OptimizerSetting::AdamW,
            beta2,
            clip: 0.0,
            ..TrainSettings::default()
        };
        let config = AdamWConfig::new().with_beta_2(beta2 as f32);
        let config = config.with_epsilon(settings.epsilon as f32);
        let mut burns = config
            .with_weight_decay(settings.weight_decay as f32)
            .init();
        let mut pipeline = of_layers(&layers);
        for _ in 0..3 {
            let gradients = gradients(&pipeline);
            pipeline = burns.step(0.1, pipeline, gradients);
        }
        assert!(bits(&pipeline) == trained(&layers, &settings, 3), "{beta2}");
    }
    let refused = TrainSettings {
        beta2: 1.0,
        ..TrainSettings::default()
    };
    let refused = refused.check().unwrap_err().to_string();
    assert_eq!(
        refused,
        "beta2 is 1, but must be at least 0 and less than 1"
    );
}

fn rates(texts: &[&str]) -> Vec<RateSetting> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn groups_have_the_rates_that_burn_gives_them() {
    let layers = layers();
    let settings = |lr_of: &[&str]| TrainSettings {
        lr_of: rates(lr_of),
        clip: 0.0,
        ..TrainSettings::default()
    };
    let groups = || {
        let biases = ParamGroup::from_predicate("bias");
        let third = ParamGroup::from_regex("^layers.3.*weight$").unwrap();
        // Also biases: the last group holds.
        let first = ParamGroup::from_predicate("layers.0.");
        [(biases, 0.5), (third, 4.0), (first, 0.0)]
    };
    let mut scheduler = ModuleLrScheduler::new(0.1);
    let mut by_program = StagedOptimizer::new(&settings(&[]), 2);
    for (group, share) in groups() {
        scheduler = scheduler.with_group(group.clone(), 0.1 * share);
        by_program = by_program.with_group(group, share);
    }
    let of_settings = settings(&["*bias=0.5", "layers.3.*weight=4", "layers.0.*=0"]);
    let mut burns = AdamWConfig::new()
        .with_weight_decay(of_settings.weight_decay as f32)
        .with_epsilon(of_settings.epsilon as f32)
        .init();
    let mut pipeline = of_layers(&layers);
    let begin = bits(&pipeline);
    for _ in 0..3 {
        let gradients = gradients(&pipeline);
        pipeline = burns.step(scheduler.step(), pipeline, gradients);
    }
    let expected = bits(&pipeline);
    assert!(trained(&layers, &of_settings, 3) == expected);
    assert!(trained_by(by_program, &layers, 3) == expected);
    let all = trained(&layers, &settings(&[]), 3);
    let moved = |which: usize| expected[which] != begin[which];
    assert!(!moved(0) && !moved(1), "the first layer's weight and bias");
    assert!(all[0] != begin[0] && all[1] != begin[1]);
    assert!(
        expected
            .iter()
            .skip(6)
            .zip(&all[6..])
            .all(|(own, all)| own != all)
    );
}

#[test]
fn a_rate_that_is_no_parameters_is_an_error() {
    let refused = |text: &str| {
        let settings = TrainSettings {
            lr_of: rates(&[text]),
            ..TrainSettings::default()
        };
        let task = Task::classification(&settings);
        let error = Trainer::new(pipeline(2), task, settings).err().unwrap();
        error.to_string()
    };
    assert_eq!(
        refused("head.*=10"),
        "lr-of: no parameter matches head.*: the first is layers.0.linear.bias, the last is layers.3.linear.weight"
    );
    assert_eq!(refused("*bias=-1"), "lr-of is -1, but must be at least 0");
    for text in ["head.*", "head.*=", "[=1", "head.*=x"] {
        let error = text.parse::<RateSetting>().unwrap_err().to_string();
        assert!(
            error.contains(text) && error.contains("head.*=10"),
            "{error}"
        );
    }
}
