//! Flows: structs, enums, options, vectors, integers, and the derive.

use burn::tensor::{Bool, Int, Tensor};
use stovepipe_pipeline::{Flow, Replicated};

use crate::models::*;

#[derive(Clone, Debug, Flow)]
struct Everything {
    floats: Tensor<3>,
    pair: (Tensor<1>, Tensor<2, Int>),
    maybe: Option<Tensor<1, Bool>>,
    list: Vec<Tensor<1>>,
    whole: Replicated<Tensor<1>>,
    choice: Choice<Tensor<1>>,
}

#[derive(Clone, Debug, Flow)]
enum Choice<F> {
    Nothing,
    One(F),
    Two { left: F, right: F },
}

fn everything(choice: Choice<Tensor<1>>) -> Everything {
    Everything {
        floats: pattern([5, 2, 3]),
        pair: (pattern([5]), labels(5, 9).reshape([5, 1])),
        maybe: Some(labels(5, 2).equal_elem(0)),
        list: vec![pattern([5]), pattern([5])],
        whole: Replicated(pattern([7])),
        choice,
    }
}

#[test]
fn a_derived_flow_is_cut_field_by_field() {
    let parts = everything(Choice::Two {
        left: pattern([5]),
        right: pattern([5]),
    })
    .split(&[3, 2]);
    assert_eq!(parts.len(), 2);
    let second = &parts[1];
    assert_eq!(second.floats.dims(), [2, 2, 3]);
    assert_eq!(second.pair.1.dims(), [2, 1]);
    assert_eq!(second.maybe.as_ref().unwrap().dims(), [2]);
    assert_eq!(
        second.list.iter().map(|t| t.dims()[0]).collect::<Vec<_>>(),
        [2, 2]
    );
    assert_eq!(second.whole.0.dims(), [7]);
    let Choice::Two { left, .. } = &second.choice else {
        panic!("the variant stays");
    };
    assert_eq!(
        tensor_bits(left.clone()),
        tensor_bits(pattern([5]).narrow(0, 3, 2))
    );
    let floats = pattern([5, 2, 3]).narrow(0, 3, 2);
    assert_eq!(tensor_bits(second.floats.clone()), tensor_bits(floats));
}

#[test]
fn batch_sizes_leave_out_what_is_replicated() {
    let sizes = |flow: &Everything| {
        let mut sizes = Vec::new();
        flow.batch_sizes(&mut sizes);
        sizes
    };
    assert_eq!(sizes(&everything(Choice::Nothing)), [5; 6]);
    assert_eq!(
        sizes(&everything(Choice::One(pattern([4])))),
        [5, 5, 5, 5, 5, 5, 4]
    );
}
