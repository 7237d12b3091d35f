//! Cross-entropy in blocks of rows on a GPU.

use burn::tensor::{Device, Int, Tensor, TensorData};
use stovepipe_kernels::linear_cross_entropy;
use stovepipe_pipeline::device::device_facts;

use crate::{
    beside_cpu::{cpu, tolerance, two_devices},
    models::relative_difference,
};

fn numbers(count: usize, salt: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + salt * 104_729) % 20_011) as f32 / 3335.0 - 3.0;
    (0..count).map(number).collect()
}

/// The loss, both counts, and the gradients of the states and of the table, if it is trained.
fn losses_and_gradients(
    device: &Device,
    [rows, width, classes]: [usize; 3],
    is_frozen: bool,
) -> [Vec<f32>; 3] {
    let values = |count: usize, salt: usize| {
        let data = TensorData::new(numbers(count * width, salt), [count, width]);
        Tensor::<2>::from_data(data, device)
    };
    let target = |row: usize| {
        if row % 3 == 1 {
            -1
        } else {
            (row * 7919 % classes) as i64
        }
    };
    let target: Vec<_> = (0..rows).map(target).collect();
    let x = values(rows, 1).autodiff().require_grad();
    let table = match is_frozen {
        true => values(classes, 2),
        false => values(classes, 2).autodiff().require_grad(),
    };
    let target = Tensor::<1, Int>::from_data(target.as_slice(), device);
    let (loss, right) = linear_cross_entropy(x.clone(), table.clone(), target, 0.1, Some(-1));
    let gradients = loss.backward();
    let mut found: Vec<f32> = loss.into_data().iter().collect();
    found.extend(right.into_data().iter::<f32>());
    let of = |leaf: Tensor<2>| {
        let gradient = leaf.grad(&gradients).unwrap();
        gradient.into_data().iter().collect::<Vec<f32>>()
    };
    let of_table = if is_frozen { Vec::new() } else { of(table) };
    [found, of(x), of_table]
}

/// One block and two: of 33,001 classes, 127 rows at once. Not the latter on a graphics driver in software: there, one
/// of the kernels that Burn may choose for these products is wrong by 8 %.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn blocks_of_rows() {
    let Some([gpu, _]) = two_devices() else {
        return;
    };
    let mut wrong = Vec::new();
    let is_software = device_facts(&gpu).unwrap().software;
    let shapes = [[9, 5, 4], [40, 6, 1000], [150, 3, 33_001]];
    for &shape in &shapes[..shapes.len() - usize::from(is_software)] {
        for is_frozen in [false, true] {
            let expected = losses_and_gradients(&cpu().device, shape, is_frozen);
            let found = losses_and_gradients(&gpu.device, shape, is_frozen);
            let of = ["losses", "the states' gradient", "the table's gradient"];
            for (of, (found, expected)) in of.into_iter().zip(found.iter().zip(&expected)) {
                assert_eq!(found.len(), expected.len());
                let difference = relative_difference(found, expected);
                if !expected.is_empty() && (difference.is_nan() || difference > tolerance(&gpu)) {
                    wrong.push(format!(
                        "{shape:?}, frozen: {is_frozen}, {of}: {difference}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
