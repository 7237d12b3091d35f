//! Levels of links, compared with the link between each two devices.

use proptest::prelude::*;
use stovepipe_plan::{LinkLevel, Machine};
use stovepipe_schedule::Link;

/// Within a process, a computer, and between computers.
const LINKS: [Link; 3] = [
    Link {
        latency: 1e-6,
        bandwidth: 64e9,
    },
    Link {
        latency: 1e-5,
        bandwidth: 8e9,
    },
    Link {
        latency: 1e-4,
        bandwidth: 1e9,
    },
];

fn machine(places: &[[usize; 2]]) -> Machine {
    let levels = LinkLevel::of_places(places, LINKS);
    Machine {
        levels,
        ..Machine::uniform(places.len())
    }
}

/// The link between two devices, by where they are.
fn link(a: [usize; 2], b: [usize; 2]) -> Link {
    LINKS[usize::from(a != b) + usize::from(a[0] != b[0])]
}

fn found(machine: &Machine, a: usize, b: usize) -> Link {
    machine.link(a, b).copied().map(Link::from).unwrap()
}

proptest! {
    #[test]
    fn groups_of_equal_size_have_their_links((hosts, processes, devices) in (1..4_usize, 1..4_usize, 1..4_usize)) {
        let all = (0..hosts * processes * devices).map(|device| {
            let process = device / devices;
            [process / processes, process]
        });
        let places: Vec<_> = all.collect();
        let machine = machine(&places);
        prop_assert!(Machine::from_toml(&machine.to_toml()).is_ok());
        for (a, b) in (0..places.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            prop_assert_eq!(found(&machine, a, b), link(places[a], places[b]));
        }
    }

    #[test]
    fn no_link_is_taken_to_be_faster_than_it_is(
        places in proptest::collection::vec([0..3_usize, 0..3], 1..9),
    ) {
        let machine = machine(&places);
        prop_assert!(Machine::from_toml(&machine.to_toml()).is_ok());
        for (a, b) in (0..places.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let (found, real) = (found(&machine, a, b), link(places[a], places[b]));
            prop_assert_eq!(found.or_slower(real), found);
        }
    }
}
