//! Position embeddings for images of another size.

use super::config::{Pool, VitConfig};

impl VitConfig {
    /// The number of tokens in a block: patches, and the class token.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let side = self.image / self.patch;
        side * side + usize::from(self.pool == Pool::ClassToken)
    }

    /// Positions for this model, `[tokens, d]`, from those of the same model for images of another size.
    /// They are resized like timm's: as a picture, bicubic, with antialiasing. The position of the class
    /// token stays. `None` if the others are not of a square.
    ///
    /// ```
    /// use stovepipe_transformer::{Pool, VitConfig};
    ///
    /// let config = VitConfig::new(12, 4, 1, 2, 1, 5).with_pool(Pool::Mean); // 3 × 3 patches
    /// let positions = [1.0; 4 * 2]; // 2 × 2 patches
    /// assert_eq!(config.resized_positions(&positions), Some(vec![1.0; 9 * 2]));
    /// assert_eq!(config.resized_positions(&[1.0; 5 * 2]), None);
    /// ```
    #[must_use]
    pub fn resized_positions(&self, positions: &[f32]) -> Option<Vec<f32>> {
        let (width, side) = (self.d_model, self.image / self.patch);
        let class = width * usize::from(self.pool == Pool::ClassToken);
        let (class, patches) = positions.split_at_checked(class)?;
        let old = (patches.len() / width).isqrt();
        if old == 0 || old * old * width != patches.len() {
            return None;
        }
        let weights = weights(old, side);
        let rows = resized(patches, &weights, width);
        let patches = resized(&rows, &weights, side * width);
        Some([class, &patches].concat())
    }
}

/// Resizes the second of three dimensions; the third has `inner` numbers.
fn resized(values: &[f32], weights: &[Vec<f32>], inner: usize) -> Vec<f32> {
    let old = weights.first().map_or(1, Vec::len);
    let mut resized = Vec::new();
    for block in values.chunks(old * inner) {
        for weights in weights {
            resized.extend((0..inner).map(|place| {
                let line = block[place..].iter().step_by(inner);
                line.zip(weights)
                    .map(|(value, weight)| value * weight)
                    .sum::<f32>()
            }));
        }
    }
    resized
}

/// For each of `new` places, the weights of `old` ones.
fn weights(old: usize, new: usize) -> Vec<Vec<f32>> {
    let scale = old as f64 / new as f64;
    let of_place = |place: usize| {
        let center = scale * (place as f64 + 0.5);
        let distance = |other: usize| (other as f64 + 0.5 - center) / scale.max(1.0);
        let weights = (0..old).map(|other| cubic(distance(other)));
        let sum: f64 = weights.clone().sum();
        weights.map(|weight| (weight / sum) as f32).collect()
    };
    (0..new).map(of_place).collect()
}

/// The cubic kernel of PyTorch and Pillow with antialiasing.
fn cubic(distance: f64) -> f64 {
    const A: f64 = -0.5;
    match distance.abs() {
        x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of timm 1.0.31, `resample_abs_pos_embed`.
    #[test]
    fn positions_are_resized_like_timms() {
        let check = |old: usize, new: usize, pool, expected: &[f32]| {
            let config = VitConfig::new(4 * new, 4, 1, 2, 1, 5).with_pool(pool);
            let tokens = old * old + usize::from(pool == Pool::ClassToken);
            let positions: Vec<_> = (0..2 * tokens)
                .map(|n| (n % 7) as f32 * 0.5 - 1.0)
                .collect();
            let found = config.resized_positions(&positions).unwrap();
            assert_eq!(found.len(), 2 * config.tokens());
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 2e-5, "{found} {expected}");
            }
        };
        let larger = [
            -1.0, -0.5, -0.21252, 0.53289, 0.48355, 1.09868, 1.17962, 1.66447, 1.04934, -0.31579,
            0.625, 0.25, 0.20066, 0.81579, 2.3112, -1.16447, 0.76645, -0.59868, -0.77831, -0.03289,
        ];
        check(2, 3, Pool::ClassToken, &larger);
        let smaller = [
            -0.04894, -0.43641, 0.48617, 1.04095, 0.83127, 0.4438, -0.30098, 0.2538,
        ];
        check(3, 2, Pool::Mean, &smaller);
        let half = [
            -1.0, -0.5, 0.84299, 0.95823, 0.24781, -0.0388, 0.75219, 0.53144, 0.15701, 0.52433,
        ];
        check(4, 2, Pool::ClassToken, &half);
    }
}
