//! Flows: structs, enums, options, vectors, integers, and the derive.

use burn::tensor::{Bool, FloatDType};
use stovepipe_pipeline::{
    FlowMapper,
    flows::{Packed, pack, unpack},
};

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
    let (left, right) = (pattern([5]), pattern([5]));
    let parts = everything(Choice::Two { left, right }).split(&[3, 2]);
    assert_eq!(parts.len(), 2);
    let second = &parts[1];
    assert_eq!(second.floats.dims(), [2, 2, 3]);
    assert_eq!(second.pair.1.dims(), [2, 1]);
    assert_eq!(second.maybe.as_ref().unwrap().dims(), [2]);
    let list: Vec<_> = second.list.iter().map(Tensor::dims).collect();
    assert_eq!(list, [[2], [2]]);
    assert_eq!(second.whole.0.dims(), [7]);
    let Choice::Two { left, .. } = &second.choice else {
        panic!("the variant stays");
    };
    let expected = pattern([5]).narrow(0, 3, 2);
    assert_eq!(tensor_bits(left.clone()), tensor_bits(expected));
    let floats = pattern([5, 2, 3]).narrow(0, 3, 2);
    assert_eq!(tensor_bits(second.floats.clone()), tensor_bits(floats));
}

/// As for another process.
#[test]
fn a_derived_flow_is_rebuilt_from_what_it_consists_of() {
    let [left, right] = [pattern([5]), pattern([5]) * 2];
    let choices = [
        Choice::Nothing,
        Choice::One(pattern([5])),
        Choice::Two { left, right },
    ];
    for choice in choices {
        let flow = everything(choice);
        let packed = pack(flow).unwrap();
        let mut left = packed.clone();
        let again: Everything = unpack(&mut left, &Device::flex()).unwrap();
        assert_eq!(left, Packed::default());
        assert_eq!(pack(again).unwrap(), packed);
    }
    const { assert!(Everything::PACKS && !<(Tensor<1>, ByHand)>::PACKS) };
}

#[derive(Clone)]
struct ByHand;

impl Flow for ByHand {
    fn map<M: FlowMapper>(self, _: &mut M) -> Self {
        self
    }

    fn batch_sizes(&self, _: &mut Vec<usize>) {}
}

#[test]
fn what_is_no_such_flow_is_an_error() {
    let of = |flow: (Tensor<2>, Option<Tensor<1>>)| pack(flow).unwrap();
    let packed = of((pattern([2, 3]), None));
    let error = |packed: &Packed| {
        unpack::<(Tensor<1>, Option<Tensor<1>>)>(&mut packed.clone(), &Device::flex())
            .unwrap_err()
            .to_string()
    };
    let other = "what was packed is another flow";
    assert_eq!(
        error(&packed),
        format!("{other}: a tensor has rank 2, not 1")
    );
    let one = pack(pattern([2])).unwrap();
    assert_eq!(error(&one), format!("{other}: a number is missing"));
    assert_eq!(
        error(&Packed::default()),
        format!("{other}: a tensor is missing")
    );
    let mut choice = Packed::default();
    choice.push_number(3);
    let choice = unpack::<Choice<Tensor<1>>>(&mut choice, &Device::flex()).unwrap_err();
    assert_eq!(
        choice.to_string(),
        format!("{other}: there is no variant 3")
    );
    let error = pack(ByHand).unwrap_err().to_string();
    assert!(error.ends_with("ByHand cannot be sent to another process: derive `Flow`, or write `pack` and `unpack` for it"), "{error}");
}

#[test]
fn half_precision_and_its_bits_stay() {
    let half = pattern::<2>([4, 3]).cast(FloatDType::BF16);
    let packed = pack(half.clone()).unwrap();
    let again: Tensor<2> = unpack(&mut packed.clone(), &Device::flex()).unwrap();
    assert_eq!(
        (again.dtype(), pack(again).unwrap()),
        (half.dtype(), packed)
    );
}

#[test]
fn batch_sizes_leave_out_what_is_replicated() {
    let sizes = |flow: &Everything| {
        let mut sizes = Vec::new();
        flow.batch_sizes(&mut sizes);
        sizes
    };
    assert_eq!(sizes(&everything(Choice::Nothing)), [5; 6]);
    let one = everything(Choice::One(pattern([4])));
    assert_eq!(sizes(&one), [5, 5, 5, 5, 5, 5, 4]);
}
