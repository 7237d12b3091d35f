//! The data set: points on three arms of a spiral. Put your own in its place.

use burn::{
    data::{dataloader::batcher::Batcher, dataset::InMemDataset},
    tensor::{Device, Int, Tensor},
};

#[derive(Clone, Debug)]
pub struct Point {
    pub at: [f32; 2],
    pub arm: i64,
}

/// So many points. Another `turn` gives others.
pub fn spirals(turn: usize, points: usize) -> InMemDataset<Point> {
    let point = |index: usize| {
        let arm = (index % 3) as i64;
        // From 0 to 1 along an arm, with steps that do not repeat.
        let along = ((2 * index + turn) as f32 * 0.618_034).fract();
        let angle = 5.0 * along + arm as f32 * std::f32::consts::TAU / 3.0;
        let at = [along * angle.cos(), along * angle.sin()];
        Point { at, arm }
    };
    InMemDataset::new((0..points).map(point).collect())
}

#[derive(Clone)]
pub struct PointBatcher;

impl Batcher<Point, (Tensor<2>, Tensor<1, Int>)> for PointBatcher {
    fn batch(&self, points: Vec<Point>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let at: Vec<f32> = points.iter().flat_map(|point| point.at).collect();
        let arms: Vec<i64> = points.iter().map(|point| point.arm).collect();
        let at = Tensor::<1>::from_floats(at.as_slice(), device).reshape([points.len(), 2]);
        (at, Tensor::from_ints(arms.as_slice(), device))
    }
}
