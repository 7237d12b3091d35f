//! Mistakes that `build` finds.

use stovepipe_schedule::ScheduleError;

use crate::models::*;

fn check(build: Result<Pipeline<Dense>, BuildError>, expected: &str) {
    assert_eq!(build.unwrap_err().to_string(), expected);
}

#[test]
fn numbers_that_do_not_add_up() {
    let pipeline = |layers: usize, stages| {
        let widths = vec![2; layers + 1];
        let layers = if layers == 0 { vec![] } else { dense(&widths) };
        Pipeline::builder(layers).devices(vec![cpu(); stages])
    };
    let by_hand = |balance: &[usize]| pipeline(4, 2).balance(Balance::Layers(balance.to_vec()));
    let far_too_many = Balance::Even.cut(3, usize::MAX).unwrap_err().to_string();
    let expected = format!("{} stages are more than the model's 3 layers", usize::MAX);
    assert_eq!(far_too_many, expected);
    for (builder, expected) in [
        (pipeline(0, 1), "the model has no layers"),
        (
            pipeline(3, 0),
            "a pipeline needs at least one stage: give it a device for each worker",
        ),
        (
            pipeline(3, 4),
            "4 stages are more than the model's 3 layers",
        ),
        (
            by_hand(&[2, 3]),
            "the balance [2, 3] adds up to 5 layers, but the model has 4",
        ),
        (
            by_hand(&[1, 1, 2]),
            "the balance [1, 1, 2] is for 3 stages, but there are 2",
        ),
        (by_hand(&[4, 0]), "the balance gives stage 1 no layer"),
        (
            pipeline(2, 1).micro_batches(0),
            "the number of micro-batches must be at least 1",
        ),
        (
            pipeline(2, 1).threads_per_stage(0),
            "a stage can have from 1 to 1024 threads, not 0",
        ),
    ] {
        check(builder.build(), expected);
    }
}

#[test]
fn a_fixed_schedule_must_fit() {
    let schedule = || GPipe.schedule(3, 2).unwrap();
    let with = |layers: usize, workers, micro_batches| {
        let (layers, recompute) = (dense(&vec![2; layers + 1]), Recompute::Always);
        builder(layers, workers, schedule(), micro_batches, recompute).build()
    };
    assert!(with(3, 3, 2).is_ok());
    let workers = "the schedule has 3 workers, but the number of devices is 2: give one for each";
    check(with(3, 2, 2), workers);
    let not = "no schedule: this schedule is for 3 stages and 2 micro-batches, not 3 and";
    check(with(3, 3, 4), &format!("{not} 4"));
    check(with(2, 3, 2), "3 stages are more than the model's 2 layers");
    // `build` cannot know that a batch will have fewer samples than micro-batches.
    let pipeline = with(3, 3, 2).unwrap();
    let step = pipeline.train_step((vectors(1, 2), vectors(1, 2)), &SQUARED);
    assert_eq!(step.unwrap_err().to_string(), format!("{not} 1"));
    assert!(pipeline.infer(vectors(1, 2)).is_ok());
}

/// The engine is tested with `RULES`: a new rule must be added there.
#[test]
fn all_synchronous_rules_are_tested() {
    for rule in Rule::synchronous() {
        assert!(RULES.iter().any(|by| by.0 == rule), "{rule}");
    }
}

#[test]
fn stages_are_as_many_as_the_schedule_wants() {
    let with = |rule, workers, balance| {
        builder(dense(&[2; 8]), workers, rule, 2, Recompute::Always).balance(balance)
    };
    let interleaved = |chunks| By(Rule::Interleaved, chunks);
    let check_stages = |rule, balance, cut: &[usize], workers: &[usize]| {
        let builder = with(rule, 2, balance);
        assert_eq!(builder.cut().unwrap(), cut);
        assert_eq!(builder.workers().unwrap(), workers);
        let stages = builder.build().unwrap().stages();
        let found: Vec<_> = stages.iter().map(|stage| stage.layers.len()).collect();
        assert_eq!(found, cut);
        let found: Vec<_> = stages.iter().map(|stage| stage.worker).collect();
        assert_eq!(found, workers);
    };
    let (even, even_cut) = (Balance::Even, [2, 2, 2, 1]);
    let (six_cut, six_workers) = ([2, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1]);
    check_stages(interleaved(2), even.clone(), &even_cut, &[0, 1, 0, 1]);
    check_stages(interleaved(3), even.clone(), &six_cut, &six_workers);
    let zero_bubble_v = By(Rule::ZeroBubbleV, 1);
    check_stages(zero_bubble_v, even.clone(), &even_cut, &[0, 1, 1, 0]);
    let by_hand = Balance::Layers(vec![1, 3, 2, 1]);
    check_stages(interleaved(2), by_hand, &[1, 3, 2, 1], &[0, 1, 0, 1]);
    let too_many = "8 stages are more than the model's 7 layers";
    check(with(interleaved(2), 4, even.clone()).build(), too_many);
    let none = "no schedule: an interleaved schedule needs at least one chunk a worker";
    check(with(interleaved(0), 2, even).build(), none);
    let of_workers = with(interleaved(2), 2, Balance::Layers(vec![4, 3])).build();
    check(
        of_workers,
        "the balance [4, 3] is for 2 stages, but there are 4",
    );
}

/// Returns another schedule than the requested one.
#[derive(Debug)]
struct Careless(fn(usize, usize) -> Schedule);

impl Scheduler for Careless {
    fn name(&self) -> &str {
        "careless"
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        Ok((self.0)(stages, micro_batches))
    }
}

#[test]
fn a_scheduler_that_makes_something_else() {
    let bad: [fn(usize, usize) -> Schedule; 4] = [
        |stages, micro_batches| GPipe.schedule(stages + 1, micro_batches).unwrap(),
        |stages, micro_batches| GPipe.schedule(stages - 1, micro_batches).unwrap(),
        |stages, micro_batches| GPipe.schedule(stages, micro_batches - 1).unwrap(),
        |stages, micro_batches| Schedule::inference(stages, micro_batches).unwrap(),
    ];
    for schedule in bad {
        let careless = Careless(schedule);
        let build = builder(dense(&[2, 2, 2]), 2, careless, 4, Recompute::Always);
        assert!(matches!(build.build(), Err(BuildError::WrongSchedule(_))));
    }
    // Right for four micro-batches, wrong for a smaller batch.
    let late = Careless(|stages, micro_batches| {
        let made = if micro_batches == 4 { 4 } else { 1 };
        GPipe.schedule(stages, made).unwrap()
    });
    let pipeline = built(dense(&[2, 2, 2]), 2, late, 4, Recompute::Always);
    let step = |samples| pipeline.train_step((vectors(samples, 2), vectors(samples, 2)), &SQUARED);
    assert!(step(4).is_ok());
    assert!(matches!(step(3), Err(StepError::WrongSchedule(_))));
}

#[test]
fn a_balance_that_overflows() {
    let by_hand = Balance::Layers(vec![usize::MAX, 5]);
    let cut = by_hand.cut(4, 2);
    assert!(matches!(cut, Err(BuildError::BalanceSum { .. })));
}

#[test]
fn a_sample_finds_the_layer_that_is_wired_wrongly() {
    let mut layers = conv_net();
    layers.swap(5, 6);
    let rule = OneForwardOneBackward;
    let builder = || builder(layers.clone(), 3, rule, 2, Recompute::Always);
    let error = builder().sample(images(1), ()).build().unwrap_err();
    assert_contains(&error, "layer 6 (Block)");
    assert_contains(&error, "expected a feature map, found logits");
    // Without a sample, the first use fails.
    let error = builder().build().unwrap().infer(images(1));
    assert_contains(error.unwrap_err(), "layer 6 (Block)");
}

#[test]
fn a_sample_of_the_wrong_shape_names_the_layer() {
    let build = builder(dense(&[4, 3, 2]), 2, GPipe, 2, Recompute::Always)
        .sample(Tensor::zeros([1, 5], &cpu()), ())
        .build();
    assert_contains(build.unwrap_err(), "layer 0 (Dense)");
}
