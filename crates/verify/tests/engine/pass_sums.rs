//! Sums of what passes compute.

use std::collections::HashMap;

use crate::{
    models::*,
    skips::{LAYERS, jumping},
};

type Place = (usize, usize);

/// By kind, micro-batch and layer.
fn sums_of(step: &Step<impl Layer>) -> HashMap<(SpanKind, Place), u64> {
    let place = |own: &PassSum| (own.kind, (own.micro_batch, own.layer));
    let sums = step.passes.iter().map(|own| (place(own), own.sum));
    let by_place: HashMap<_, _> = sums.collect();
    assert_eq!(by_place.len(), step.passes.len(), "one sum a pass");
    by_place
}

#[test]
fn sums_of_passes_are_the_same_under_any_cut() {
    let layers = jumping(&LAYERS);
    let step = |by: By, workers, recompute| {
        let pipeline = built(layers.clone(), workers, by, 3, recompute);
        let quiet = train(&pipeline, vectors(7, 4), 4).unwrap();
        assert!(quiet.passes.is_empty());
        pipeline.set_pass_sums(true);
        let step = train(&pipeline, vectors(7, 4), 4).unwrap();
        let found = gradient_bits(&pipeline, &step.gradients);
        assert!(found == gradient_bits(&pipeline, &quiet.gradients));
        sums_of(&step)
    };
    let alone = step(RULES[0], 1, Recompute::Never);
    assert_eq!(alone.len(), 2 * 3 * LAYERS.len());
    for (by, workers, recompute) in cuts(4) {
        let of_cut = step(by, workers, recompute.clone());
        let mut of_kind: HashMap<_, usize> = HashMap::new();
        for (&(kind, place), sum) in &of_cut {
            *of_kind.entry(kind).or_default() += 1;
            let expected = match kind {
                SpanKind::Recompute => alone[&(SpanKind::Forward, place)],
                // A half has a part of the gradients.
                SpanKind::InputGradient | SpanKind::WeightGradient => continue,
                kind => alone[&(kind, place)],
            };
            assert_eq!(*sum, expected, "{by:?}, {workers}, {kind}, {place:?}");
        }
        let backward = of_kind.get(&SpanKind::Backward).copied().unwrap_or(0);
        let input = of_kind.get(&SpanKind::InputGradient).copied().unwrap_or(0);
        assert_eq!(of_kind[&SpanKind::Forward], 3 * LAYERS.len());
        assert_eq!(backward + input, 3 * LAYERS.len(), "{by:?}");
    }
}

/// A layer that errs for samples that are marked by their side input.
#[derive(Module, Debug)]
struct Erring {
    linear: Linear,
    #[module(skip)]
    errs: Option<SpanKind>,
}

impl Layer for Erring {
    flow!(Tensor<2>, side: Tensor<2>);

    fn forward(&self, x: Tensor<2>, context: &mut Context<'_, Self>) -> Forward<Tensor<2>> {
        let y = self.linear.forward(x).tanh();
        let error = y.clone() * context.side().clone() * 1e-3;
        Ok(match self.errs {
            Some(SpanKind::Forward) => y + error,
            // Adds zero.
            Some(_) => y + (error.clone() - error.detach()),
            None => y,
        })
    }
}

/// The first sum that differs is that of the pass in which the layer errs.
#[test]
fn the_first_other_sum_is_where_a_layer_errs() {
    let layers: Vec<_> = (0..5)
        .map(|_| Erring {
            linear: linear(4, 4),
            errs: None,
        })
        .collect();
    let passes = |errs: Option<(usize, SpanKind)>, workers, by: By| {
        let mut layers = layers.clone();
        if let Some((layer, kind)) = errs {
            layers[layer].errs = Some(kind);
        }
        let pipeline = built(layers, workers, by, 4, Recompute::Always);
        pipeline.set_pass_sums(true);
        // The fourth of eight samples: in the second of four micro-batches.
        let marks = Tensor::<2>::from_floats([0., 0., 0., 1., 0., 0., 0., 0.].map(|x| [x]), &cpu());
        let batch = (vectors(8, 4), labels(8, 4), marks);
        let step = pipeline.train_step(batch, &CrossEntropy::new());
        step.unwrap().passes
    };
    for by in [RULES[0], RULES[1], RULES[4]] {
        let right = passes(None, 2, by);
        for (layer, kind) in [
            (0, SpanKind::Forward),
            (3, SpanKind::Forward),
            (4, SpanKind::Backward),
            (1, SpanKind::Backward),
        ] {
            let wrong = passes(Some((layer, kind)), 2, by);
            let mut differ = right.iter().zip(&wrong).filter(|(one, other)| one != other);
            let (first, _) = differ.next().unwrap();
            assert_eq!(
                (first.micro_batch, first.layer),
                (1, layer),
                "{by:?}, {kind}"
            );
            let is_forward = first.kind == SpanKind::Forward;
            assert_eq!(is_forward, kind == SpanKind::Forward, "{by:?}");
            assert!(differ.all(|(other, _)| other.micro_batch == 1));
        }
    }
}
