//! Machines as text, and the links between their devices.

use crate::common::{any_change, check_faults, name};
use proptest::prelude::*;
use stovepipe_plan::{DeviceSpec, LinkLevel, Machine, MachineError};
use stovepipe_schedule::Link;

const GOOD: &str = r#"[[device]]
name = "a"

[[device]]
name = "b"
speed = 0.5
memory = 1000

[[device]]
name = "c"

[[device]]
name = "d"

[[level]]
workers = 2
bandwidth = 16e9

[[level]]
workers = 2
bandwidth = 1e9
latency = 0.001
"#;

#[test]
fn a_machine_is_read() {
    let machine = Machine::from_toml(GOOD).unwrap();
    assert_eq!(machine.devices.len(), 4);
    let [first, second] = [0, 1].map(|device| &machine.devices[device]);
    let name = &second.name[..];
    assert_eq!((name, second.speed, second.memory), ("b", 0.5, Some(1000)));
    assert_eq!((first.speed, first.memory), (1.0, None));
    let links = [(16e9, 0.0), (1e9, 0.001)];
    let [inner, outer] =
        links.map(|(bandwidth, latency)| LinkLevel::joining(2, Link { latency, bandwidth }));
    assert_eq!(machine.levels, [inner, outer]);
    for (a, b, link) in [
        (0, 1, Some(&inner)),
        (3, 2, Some(&inner)),
        (1, 2, Some(&outer)),
        (0, 3, Some(&outer)),
        (2, 2, None),
        (0, 4, None),
    ] {
        assert_eq!(machine.link(a, b), link, "{a} {b}");
    }
    let uniform = Machine::uniform(3);
    assert_eq!(
        (&uniform.devices[1].name[..], uniform.link(0, 2)),
        ("1", None)
    );
}

#[test]
fn a_fault_is_named_with_its_line() {
    check_faults(
        GOOD,
        Machine::from_toml,
        r#"
        name = "a"↵     |                               | 1  | name
        name = "a"      | name = 3                      | 2  |
        name = "a"      | nam = "a"                     | 2  | nam
        speed = 0.5     | speed = 0                     | 6  | speed = 0
        speed = 0.5     | speed = nan                   | 6  | NaN
        speed = 0.5     | speed = inf                   | 6  | inf
        memory = 1000   | memory = -1                   | 7  |
        memory = 1000   | memory = 1000↵store = 0       | 8  | store = 0
        workers = 2     | workers = 0                   | 16 | workers = 0
        workers = 2     | workers = 5                   | 15 | the levels join 5 devices, not 4
        workers = 2     | workers = 1                   | 19 | the levels join 2 devices, not 4
        workers = 2     | workers = 9223372036854775807 | 15 | devices
        bandwidth = 1e9 | bandwidth = -1e9              | 21 | bandwidth = -1
        bandwidth = 1e9↵ |                              | 19 | bandwidth
        latency = 0.001 | latency = -1                  | 22 | latency = -1
        latency = 0.001 | latency = inf                 | 22 | latency = inf
        latency = 0.001 | latency = 0.001↵latency = 1   | 23 | duplicate
        "#,
    );
    let nothing = Err(MachineError::NoDevices { line: 2 });
    assert_eq!(Machine::from_toml("\n\n"), nothing);
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        names in prop::collection::vec(name(), 12),
        speed in 1e-3..1e3,
        memory in prop::option::of(any::<u32>()),
        store in prop::option::of(1e-3..1e12),
        (bandwidth, latency) in (1e-3..1e12, 0.0..1.0),
        workers in prop_oneof![Just(vec![]), Just(vec![12]), Just(vec![3, 4]), Just(vec![2, 2, 3])],
    ) {
        let memory = memory.map(u64::from);
        let devices = names.into_iter().map(|name| DeviceSpec { name, speed, memory, store }).collect();
        let levels = workers.into_iter().map(|workers| LinkLevel { workers, bandwidth, latency }).collect();
        let machine = Machine { devices, levels };
        prop_assert_eq!(Machine::from_toml(&machine.to_toml()).unwrap(), machine);
    }

    #[test]
    fn no_change_causes_a_panic(texts in any_change(GOOD)) {
        for machine in texts.iter().flat_map(|text| Machine::from_toml(text)) {
            prop_assert_eq!(Machine::from_toml(&machine.to_toml()).unwrap(), machine);
        }
    }
}
