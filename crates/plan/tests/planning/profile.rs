//! Profiles as text: good files, bad files, and any bytes.

use std::error::Error;

use crate::common::{any_change, check_faults, name};
use proptest::prelude::*;
use stovepipe_plan::{LayerProfile, Profile, ProfileError, SkipProfile};

const GOOD: &str = r#"samples = 4
input = 64

[[layer]]
name = "first"
forward = 0.5
backward = 1
parameters = 10
output = 32

[[layer]]
name = "second"
forward = 0.25
quiet = 0.2
backward = 0.75
weight = 0.3
forward-fixed = 0.05
backward-fixed = 0.15
parameters = 20
output = 16
kept = 48
context = 30
workspace = 25

[[layer]]
name = "third"
forward = 1
backward = 2
parameters = 0
output = 4

[[skip]]
from = 0
to = [1, 2]
bytes = 12
"#;

#[test]
fn a_profile_is_read() {
    let profile = Profile::from_toml(GOOD).unwrap();
    assert_eq!((profile.samples, profile.input), (4, 64));
    let first = LayerProfile {
        name: "first".into(),
        forward: 0.5,
        backward: 1.0,
        parameters: 10,
        output: 32,
        ..LayerProfile::default()
    };
    let second = LayerProfile {
        name: "second".into(),
        forward: 0.25,
        quiet: Some(0.2),
        backward: 0.75,
        weight: Some(0.3),
        forward_fixed: 0.05,
        backward_fixed: 0.15,
        parameters: 20,
        cast: None,
        output: 16,
        trained: None,
        kept: Some(48),
        bookkeeping: None,
        context: Some(30),
        workspace: Some(25),
    };
    assert_eq!(profile.layers[..2], [first, second]);
    let skip = SkipProfile {
        from: 0,
        to: vec![1, 2],
        bytes: 12,
    };
    assert_eq!(profile.skips, [skip]);
}

#[test]
fn a_fault_is_named_with_its_line() {
    check_faults(
        GOOD,
        Profile::from_toml,
        r#"
        samples = 4           | samples = 0                   | 1  | at least one sample
        samples = 4           | samples = -4                  | 1  |
        samples = 4↵          |                               | 1  | samples
        input = 64            | input = 6.5                   | 2  |
        input = 64            | input = 64↵speed = 3          | 3  | speed
        backward = 1↵         |                               | 4  | backward
        backward = 1↵         | backward = -1↵                | 7  | backward = -1
        backward = 1↵         | backward = nan↵               | 7  | NaN
        forward = 0.5         | forward = inf                 | 6  | forward = inf
        forward = 0.5         | forward = "fast"              | 6  |
        forward = 0.5         | forward = 1e308↵quiet = 1e308 | 4  | seconds
        weight = 0.3          | weight = 0.8                  | 16 | backward = 0.75
        quiet = 0.2           | quiet = -0.2                  | 14 | second
        forward-fixed = 0.05  | forward-fixed = 0.3           | 17 | forward = 0.25
        backward-fixed = 0.15 | backward-fixed = 0.8          | 18 | backward = 0.75
        backward-fixed = 0.15 | backward_fixed = 0.15         | 18 | backward_fixed
        kept = 48             | kept = 99999999999999999999   | 21 |
        kept = 48             | kept =                        | 21 |
        [[layer]]             | [[layers]]                    | 4  | layers
        to = [1, 2]           | to = []                       | 34 | to later ones
        to = [1, 2]           | to = [2, 1]                   | 34 | in order
        to = [1, 2]           | to = [0, 1]                   | 34 | not from 0
        to = [1, 2]           | to = [1, 3]                   | 34 | a model of 3 layers
        from = 0              | from = 1                      | 34 | not from 1
        to = [1, 2]↵          |                               | 32 | to
        "#,
    );
    let many = "9223372036854775800";
    let much_kept = GOOD.replacen("48", many, 1);
    let table = format!("parameters = 20 | parameters = {many} | 11 | bytes");
    check_faults(&much_kept, Profile::from_toml, &table);
    let table = format!("bytes = 12 | bytes = {many} | 11 | bytes");
    check_faults(&much_kept, Profile::from_toml, &table);
    let none = Profile::from_toml("samples = 1\ninput = 0\n").unwrap_err();
    assert_eq!(none, ProfileError::NoLayers { line: 2 });
    let empty = Profile::from_toml("").unwrap_err();
    assert!(empty.to_string().starts_with("line 1: "));
    assert!(empty.source().is_some());
}

#[test]
fn other_numbers_of_samples_scale_what_grows() {
    let profile = Profile::from_toml(GOOD).unwrap();
    assert_eq!(profile.for_samples(4), profile);
    let twice = profile.for_samples(8);
    assert_eq!((twice.samples, twice.input), (8, 128));
    assert_eq!(twice.skips[0].bytes, 24);
    let layer = &twice.layers[1];
    assert!((layer.forward - 0.45).abs() < 1e-12);
    assert!((layer.backward - 1.35).abs() < 1e-12);
    assert!((layer.weight.unwrap() - 0.3 / 0.75 * 1.35).abs() < 1e-12);
    assert!((layer.quiet.unwrap() - 0.2 / 0.25 * 0.45).abs() < 1e-12);
    assert_eq!((layer.forward_fixed, layer.backward_fixed), (0.05, 0.15));
    let bytes = (layer.parameters, layer.output, layer.kept);
    assert_eq!(bytes, (20, 32, Some(96)));
    assert_eq!(layer.context, Some(60));
    assert_eq!(layer.workspace, Some(20 + 2 * 5)); // the gradients do not grow
    assert_eq!(profile.for_samples(1).input, 16);
    let mut odd = profile.clone();
    (odd.samples, odd.input) = (3, 10);
    assert_eq!(odd.for_samples(2).input, 7); // 6.67, rounded up
    assert_eq!(profile.for_samples(3).layers[1].output, 12);
    assert_eq!(profile.for_samples(usize::MAX).input, u64::MAX);
}

fn time() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..1e3, Just(0.0), Just(f64::MIN_POSITIVE), Just(0.1)]
}

prop_compose! {
    fn layer()(
        name in name(), forward in time(), backward in time(), quiet in prop::option::of(time()),
        weight in prop::option::of(0.0..=1.0), fixed in [0.0..=1.0, 0.0..=1.0],
        [parameters, output] in [0..1_u64 << 50, 0..1_u64 << 50], kept in prop::option::of(0..1_u64 << 50),
        trained in prop::option::of(0.0..=1.0),
        cast in prop::option::of(0..1_u64 << 50),
        bookkeeping in prop::option::of(0..1_u64 << 50),
        context in prop::option::of(0..1_u64 << 50),
        workspace in prop::option::of(0..1_u64 << 50),
    ) -> LayerProfile {
        LayerProfile {
            name,
            forward,
            quiet,
            backward,
            weight: weight.map(|share: f64| share * backward),
            forward_fixed: fixed[0] * forward,
            backward_fixed: fixed[1] * backward,
            parameters,
            trained: trained.map(|share: f64| (share * parameters as f64) as u64),
            cast,
            output,
            kept,
            bookkeeping,
            context,
            workspace,
        }
    }
}

fn layers() -> impl Strategy<Value = Vec<LayerProfile>> {
    prop::collection::vec(layer(), 1..6)
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        samples in 1usize..1 << 40, input in 0..1_u64 << 60, layers in layers(), bytes in 0..1_u64 << 60,
    ) {
        let to: Vec<_> = (1..layers.len()).collect();
        let skips = match to.is_empty() {
            true => vec![],
            false => vec![SkipProfile { from: 0, to, bytes }; 2],
        };
        let profile = Profile { samples, input, layers, skips };
        prop_assert_eq!(Profile::from_toml(&profile.to_toml()).unwrap(), profile);
    }

    #[test]
    fn scaling_there_keeps_parts_within_the_whole(samples in 1usize..100, layers in layers()) {
        let profile = Profile { samples: 7, input: 1, layers, skips: vec![] };
        let scaled = profile.for_samples(samples);
        for layer in &scaled.layers {
            prop_assert!(layer.weight.is_none_or(|weight| weight <= layer.backward));
        }
    }

    #[test]
    fn no_change_causes_a_panic(texts in any_change(GOOD)) {
        for profile in texts.iter().flat_map(|text| Profile::from_toml(text)) {
            prop_assert_eq!(Profile::from_toml(&profile.to_toml()).unwrap(), profile);
        }
    }
}
