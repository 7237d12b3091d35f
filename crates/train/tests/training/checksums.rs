//! `checksums.jsonl`.

use std::collections::HashSet;

use serde_json::json;
use stovepipe_pipeline::{Precision, measure::Checksum};
use stovepipe_schedule::Rule;

use super::{
    processes::in_ranks,
    resume::{failing_after, noisy_layers, noisy_of, train},
    *,
};

fn summing(checksums: ChecksumSetting) -> TrainSettings {
    TrainSettings {
        checksums,
        accumulate: 2,
        save_every: 4,
        ..settings(OptimizerSetting::AdamW, 3e-3, 2)
    }
}

/// But for what runs again, which depends on the schedule.
fn sums(run: &Path) -> Vec<Value> {
    let mut lines = json_lines(&run.join("checksums.jsonl"));
    for line in &mut lines {
        if let Some(passes) = line.get_mut("passes") {
            (passes.as_array_mut().unwrap()).retain(|pass| pass[1] != "Recompute");
        }
    }
    lines
}

/// The last sums are those of the parameters that the training ends with.
#[test]
fn sums_are_those_of_parameters_and_the_same_under_any_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    run(1, summing(ChecksumSetting::Passes), &path("1")).unwrap();
    run(3, summing(ChecksumSetting::Passes), &path("3")).unwrap();
    assert!(sums(&path("1")) == sums(&path("3")));
    let away = TrainSettings {
        offload: OffloadSetting::Optimizer,
        offload_to: path("states"),
        ..summing(ChecksumSetting::Steps)
    };
    run(2, away, &path("away")).unwrap();
    let lines = sums(&path("1"));
    let passes = lines[0]["passes"].as_array().unwrap();
    assert_eq!(
        passes.len(),
        2 * 4 * PipelineSettings::default().micro_batches
    );
    let without_passes = lines.iter().map(|line| {
        let mut line = line.clone();
        line.as_object_mut().unwrap().remove("passes").unwrap();
        line
    });
    let away = json_lines(&path("away").join("checksums.jsonl"));
    assert!(without_passes.eq(away));

    let steps = lines.iter().map(|line| line["step"].as_u64().unwrap());
    assert!(steps.eq(1..=26));
    // 13 mini-batches an epoch: the last one has an update of its own.
    let updated = lines.iter().map(|line| line["gradients"] != json!([]));
    assert!(updated.eq((1..=26).map(|step| step % 13 % 2 == 0)));

    // Layers that are not trained have no sums.
    let frozen = TrainSettings {
        freeze: FreezeSetting::Layers(2),
        ..summing(ChecksumSetting::Steps)
    };
    run(2, frozen, &path("frozen")).unwrap();
    let frozen = &sums(&path("frozen"))[1]["gradients"];
    let has_some: Vec<_> = (0..4).map(|layer| frozen[layer].is_string()).collect();
    assert_eq!(has_some, [false, false, true, true]);

    let folder = RunFolder::create(&path("again")).unwrap();
    let mut trainer = trainer(pipeline(2), summing(ChecksumSetting::Steps));
    train_silently(&mut trainer, &usual_data(), &folder).unwrap();
    let of_layers = trainer.pipeline().layers().iter().map(|layer| {
        let mut sum = Parameters::default();
        layer.visit(&mut sum);
        format!("{:016x}", sum.0.finish())
    });
    let last = lines.last().unwrap()["parameters"].clone();
    assert_eq!(last, json!(of_layers.collect::<Vec<_>>()));
}

#[derive(Default)]
struct Parameters(Checksum);

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            self.0.add(&param.val());
        }
    }
}

/// The cut changes no sum in bf16 and f16, with replicas, and where two layers have one tensor.
#[test]
fn no_cut_shows_in_sums() {
    let directory = tempfile::tempdir().unwrap();
    let with_one_tensor = || {
        let mut layers = layers();
        layers[2].linear = layers[1].linear.clone();
        layers
    };
    let in_precision = |precision| PipelineSettings {
        precision,
        ..evenly(1)
    };
    let replicas = PipelineSettings {
        replicas: vec![2],
        ..evenly(1)
    };
    let mut all = HashSet::new();
    for (name, of_pipeline, layers) in [
        ("plain", evenly(1), layers()),
        ("bf16", in_precision(Precision::Bf16), layers()),
        ("f16", in_precision(Precision::F16), layers()),
        ("replicas", replicas, layers()),
        ("tied", evenly(1), with_one_tensor()),
    ] {
        let sums = [1, 2, 4].map(|stages| {
            let path = directory.path().join(format!("{name}-{stages}"));
            let of_pipeline = PipelineSettings {
                stages,
                ..of_pipeline.clone()
            };
            let folder = RunFolder::create(&path).unwrap();
            let mut trainer = trainer(
                built(&of_pipeline, layers.clone()),
                summing(ChecksumSetting::Passes),
            );
            train_silently(&mut trainer, &usual_data(), &folder).unwrap();
            sums(&folder.finish().unwrap())
        });
        assert!(sums.iter().all(|own| *own == sums[0]), "{name}");
        assert_eq!(sums[0].len(), 26);
        let is_other = all.insert(sums[0][1].to_string());
        assert!(is_other || name == "replicas", "{name}: those of others");
    }
}

#[test]
fn sums_of_a_resumed_training_are_those_of_an_unbroken_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let settings = summing(ChecksumSetting::Steps);
    let piped = |stages| noisy_of(layers(), &evenly(stages));
    let (_, whole) = train(piped(1), &settings, &failing_after(1000), &path("whole"));
    whole.unwrap();
    let (_, ended) = train(piped(3), &settings, &failing_after(7), &path("broken"));
    assert_matches!(ended, Err(TrainError::Data(_)));
    // Two steps after the checkpoint, which are trained again.
    let left = json_lines(
        &RunFolder::find(&path("broken"))
            .unwrap()
            .join("checksums.jsonl"),
    );
    assert_eq!(left.len(), 7);
    let (resumed, ended) = train(piped(2), &settings, &failing_after(1000), &path("broken"));
    ended.unwrap();
    assert_eq!(resumed.batches, 4);
    assert!(sums(&path("whole")) == sums(&path("broken")));
}

#[test]
fn processes_write_one_file_of_sums() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("several");
    in_ranks(2, |comm| {
        let processes = Processes::new(Some(comm.clone()));
        let open = || RunFolder::create(&path);
        let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
        let pipeline = PipelineSettings {
            devices: vec!["0/cpu".to_owned(), "1/cpu".to_owned()],
            ..evenly(2)
        };
        let builder = pipeline.builder(noisy_layers(layers()), sample).unwrap();
        let pipeline = builder.communicator(comm).seed(3).build().unwrap();
        let mut trainer = trainer(pipeline, summing(ChecksumSetting::Passes));
        train_silently(&mut trainer, &usual_data(), &folder).unwrap();
        folder.finish().unwrap();
    });
    let alone = directory.path().join("alone");
    let folder = RunFolder::create(&alone).unwrap();
    let builder = evenly(1).builder(noisy_layers(layers()), sample).unwrap();
    let pipeline = builder.seed(3).build().unwrap();
    let mut trainer = trainer(pipeline, summing(ChecksumSetting::Passes));
    train_silently(&mut trainer, &usual_data(), &folder).unwrap();
    folder.finish().unwrap();
    assert!(sums(&path) == sums(&alone));
}

#[test]
fn windows_have_sums_of_their_updates_but_not_of_passes() {
    let directory = tempfile::tempdir().unwrap();
    let asynchronous = PipelineSettings {
        schedule: ScheduleSetting::Rule(Rule::PipeDream),
        micro_batches: 2,
        ..evenly(2)
    };
    let windows = |checksums| TrainSettings {
        checksums,
        window: Some(4),
        ..settings(OptimizerSetting::AdamW, 3e-3, 1)
    };
    let folder = directory.path().join("run");
    let piped = noisy_of(layers(), &asynchronous);
    let steps = windows(ChecksumSetting::Steps);
    let (_, ended) = train(piped, &steps, &failing_after(1000), &folder);
    ended.unwrap();
    let lines = json_lines(&folder.join("checksums.jsonl"));
    let layers = lines
        .iter()
        .map(|line| line["parameters"].as_array().unwrap().len());
    assert!(layers.eq([4; 13]));
    let all: HashSet<_> = lines.iter().map(|line| &line["parameters"][3]).collect();
    assert_eq!(all.len(), 13, "each update changes the last layer");
    let refused = windows(ChecksumSetting::Passes).check_windows(true, 13);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.starts_with("--checksums passes"), "{refused}");
}
