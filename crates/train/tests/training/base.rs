//! What is trained above weights that stay as they are.

use std::collections::BTreeMap;

use burn::store::{ModuleStore, SafetensorsStore, bridge};
use sha2::{Digest, Sha256};
use stovepipe_train::weights::Base;

use super::{
    processes::in_ranks,
    resume::{Noisy, failing, failing_after, noisy_layers},
    *,
};

/// Two of four layers learn.
fn half_frozen() -> TrainSettings {
    TrainSettings {
        freeze: FreezeSetting::Layers(2),
        ema: 0.9,
        save_every: 3,
        ..settings(OptimizerSetting::AdamW, 1e-2, 2)
    }
}

fn built_with(seed: u64, stages: usize) -> Pipeline<Noisy> {
    let layers = half_frozen().freeze.apply(noisy_layers(layers())).unwrap();
    let builder = evenly(stages).builder(layers, sample).unwrap();
    builder.seed(seed).build().unwrap()
}

/// Trains above the weights in a file until the data fail or all is done.
fn train(
    (stages, original): (usize, &Path),
    data: &impl Source<Tensor<2>, Tensor<1, Int>>,
    path: &Path,
) -> Result<Base, TrainError> {
    // What a file gives is not what the seed would.
    let mut pipeline = built_with(3, stages);
    let base = Weights::open(original)?.load_base_into(&mut pipeline)?;
    let folder = RunFolder::resume(path)?;
    let mut trainer = trainer(pipeline, half_frozen()).with_base(base.clone());
    let _ = trainer.resume(&folder)?;
    match train_silently(&mut trainer, data, &folder) {
        Ok(_) => folder.finish().map(drop)?,
        Err(TrainError::Data(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(base)
}

fn tensors(file: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut store = SafetensorsStore::from_file(file);
    let tensors = store.get_all_tensors().unwrap().values();
    let data = |tensor| bridge::to_data(tensor).unwrap().as_bytes().to_vec();
    (tensors.map(|tensor| (tensor.name.clone(), data(tensor)))).collect()
}

fn original(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("original.safetensors");
    save_model(&built_with(9, 1), path.clone()).unwrap();
    path
}

/// The parameters of the frozen layers. Their statistics are not left out: a batch norm may change them.
fn is_of_base(name: &str) -> bool {
    let is_frozen = ["layers.0.", "layers.1."]
        .iter()
        .any(|own| name.starts_with(own));
    is_frozen && !name.contains("running")
}

#[test]
fn a_run_keeps_what_it_trains_and_resumes_above_the_same_weights() {
    let directory = tempfile::tempdir().unwrap();
    let original = original(directory.path());
    let whole = {
        let mut pipeline = built_with(3, 1);
        let weights = Weights::open(&original).unwrap();
        let _ = weights.load_into(&mut pipeline).unwrap();
        let path = directory.path().join("whole");
        let folder = RunFolder::create(&path).unwrap();
        let mut trainer = trainer(pipeline, half_frozen());
        train_silently(&mut trainer, &usual_data(), &folder).unwrap();
        folder.finish().unwrap();
        path
    };
    let path = directory.path().join("run");
    for (stages, batches) in [(2, 7), (3, 11)] {
        train((stages, &original), &failing_after(batches), &path).unwrap();
    }
    let base = train((1, &original), &usual_data(), &path).unwrap();

    // Sums of files, as another program takes them.
    let mut lines = String::new();
    for (name, bytes) in tensors(&original) {
        lines += &format!("{:x}  {name}\n", Sha256::digest(bytes));
    }
    assert_eq!(base.sum(), format!("{:x}", Sha256::digest(lines)));

    for file in [
        "model.safetensors",
        "averaged.safetensors",
        "best.safetensors",
    ] {
        let mut expected = tensors(&whole.join(file));
        expected.retain(|name, _| !is_of_base(name));
        assert!(
            !expected.is_empty() && tensors(&path.join(file)) == expected,
            "{file}"
        );
    }
    let checkpoint = Checkpoints::of(&path).list().unwrap().pop().unwrap();
    assert!(
        tensors(&checkpoint.model(false))
            .keys()
            .all(|name| !is_of_base(name))
    );
    let weights = Weights::open(path.join("model.safetensors")).unwrap();
    assert_eq!(weights.base(), Some(base.sum()));

    // Above the same weights, it is the model. A whole file may be above others.
    let mut again = built_with(5, 2);
    let base = Weights::open(&original)
        .unwrap()
        .load_base_into(&mut again)
        .unwrap();
    base.load_into(&mut again, &path.join("model.safetensors"))
        .unwrap();
    let saved = directory.path().join("saved.safetensors");
    save_model(&again, saved.clone()).unwrap();
    assert!(tensors(&saved) == tensors(&whole.join("model.safetensors")));
    let error = base.load_into(&mut again, &saved).unwrap_err();
    assert!(
        error.to_string().contains(": it has all weights"),
        "{error}"
    );

    // What is thawed is trained, and saved.
    let all = again.unfreeze();
    base.save(&all, &saved).unwrap();
    assert_eq!(
        tensors(&saved).len(),
        tensors(&whole.join("model.safetensors")).len()
    );
}

#[test]
fn other_weights_below_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let original = original(directory.path());
    let path = directory.path().join("run");
    let base = train((2, &original), &failing(usual_data(), 7), &path).unwrap();

    // One bit of one number.
    let other = directory.path().join("other.safetensors");
    let mut bytes = fs::read(&original).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&other, bytes).unwrap();
    match train((2, &other), &usual_data(), &path) {
        Err(TrainError::OtherBase { then, now, .. }) => {
            assert_eq!(then, base.sum());
            assert!(now.len() == 64 && now != then, "{now}");
        }
        found => panic!("{found:?}"),
    }

    // Without any, the file is not the model.
    let checkpoint = Checkpoints::of(&path.with_extension("partial"))
        .list()
        .unwrap()
        .pop();
    let file = checkpoint.unwrap().model(false);
    let error = load_model(&mut built_with(1, 1), &file).unwrap_err();
    assert!(error.to_string().ends_with(": load these first"), "{error}");
    train((1, &original), &usual_data(), &path).unwrap();
}

/// Each process has its own part of the base.
#[test]
fn processes_leave_out_the_base_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let original = original(directory.path());
    let [one, many] = ["one", "many"].map(|name| directory.path().join(name));
    train((2, &original), &usual_data(), &one).unwrap();
    for (devices, batches) in [(["0/cpu", "1/cpu"], 7), (["1/cpu", "0/cpu"], usize::MAX)] {
        let settings = PipelineSettings {
            devices: devices.map(str::to_owned).to_vec(),
            ..evenly(2)
        };
        for ended in in_ranks(2, |comm| {
            let processes = Processes::new(Some(comm.clone()));
            let layers = half_frozen().freeze.apply(noisy_layers(layers())).unwrap();
            let builder = settings.builder(layers, sample).unwrap();
            let mut pipeline = builder.communicator(comm).seed(3).build().unwrap();
            let weights = Weights::open_in(&processes, &original).unwrap();
            let base = weights.load_base_into(&mut pipeline).unwrap();
            let open = || RunFolder::resume(&many);
            let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
            let mut trainer = trainer(pipeline, half_frozen()).with_base(base);
            let _ = trainer.resume(&folder).unwrap();
            let ended = train_silently(&mut trainer, &failing_after(batches), &folder);
            ended.and_then(|_| folder.finish())
        }) {
            assert_eq!(ended.is_ok(), batches == usize::MAX, "{ended:?}");
        }
    }
    for file in ["model.safetensors", "averaged.safetensors"] {
        let [one, many] = [&one, &many].map(|run| fs::read(run.join(file)).unwrap());
        assert!(one == many, "{file}");
    }
}
