//! Skips: values that pass over layers and stages.

use stovepipe_plan::{Profile, SkipProfile};

use crate::{models::*, ranks::assert_no_cut_shows};

/// A linear layer that adds what it takes and sends what it makes.
#[derive(Module, Debug)]
pub struct Jumping {
    linear: Linear,
    #[module(skip)]
    uses: Vec<SkipUse>,
    /// What it really does, if that differs.
    #[module(skip)]
    does: Option<Vec<SkipUse>>,
}

impl Layer for Jumping {
    flow!(Tensor<2>);

    fn skips(&self) -> Vec<SkipUse> {
        self.uses.clone()
    }

    fn forward(&self, x: Tensor<2>, context: &mut Context<'_, Self>) -> Forward<Tensor<2>> {
        let mut y = self.linear.forward(x.clone()).tanh();
        for skip in self.does.as_ref().unwrap_or(&self.uses) {
            match skip {
                SkipUse::Take(name) => y = y + context.take(name)?.mul_scalar(0.7),
                // Its input, its output, or something else.
                SkipUse::Send(name) => match name.as_str() {
                    "input" => context.send("input", x.clone()),
                    "output" => context.send("output", y.clone()),
                    name => context.send(name, y.clone() * x.clone()),
                },
            }
        }
        Ok(y)
    }
}

/// Layers as words: `+a` sends, `-a` takes.
pub fn jumping(layers: &[&str]) -> Vec<Jumping> {
    let uses = |layer: &str| {
        let words = layer.split_whitespace().map(|word| match word.split_at(1) {
            ("+", name) => SkipUse::send(name),
            (_, name) => SkipUse::take(name),
        });
        words.collect()
    };
    let layer = |layer: &&str| Jumping {
        linear: linear(4, 4),
        uses: uses(layer),
        does: None,
    };
    layers.iter().map(layer).collect()
}

/// To the next layer, far, to four, to the same stage or not, nested and crossed; from the data itself.
pub const LAYERS: [&str; 8] = [
    "+input",
    "+output +far",
    "-output +c",
    "-output -c",
    "-output +d",
    "-input",
    "-output -far",
    "-d",
];

#[test]
fn skips_leave_every_bit_alone_wherever_the_model_is_cut() {
    for (samples, micro_batches) in [(7, 3), (2, 2)] {
        let inputs = (vectors(samples, 4), vectors(3, 4));
        let seen = assert_no_cut_shows(|| jumping(&LAYERS), micro_batches, inputs, 4);
        assert_eq!(seen[1].len(), 16); // gradients
    }
}

/// Compares with the whole mini-batch in plain Burn.
#[test]
fn gradients_through_skips_are_those_of_the_model_in_one_piece() {
    for stages in [1, 3, 8] {
        let layers = jumping(&LAYERS);
        let pipeline = built(layers, stages, OneForwardOneBackward, 3, Recompute::Always);
        let step = train(&pipeline, vectors(8, 4), 4).unwrap();
        let found = gradients_of(&pipeline, &step.gradients);
        let input = vectors(8, 4).autodiff();
        let expected = plain_gradients(pipeline.layers(), input, 4, |_| KeyedRng::none());
        assert_close(&found, &expected, 1e-5);
    }
}

#[test]
fn skips_are_measured() {
    let profiler = Profiler::new(&Device::flex());
    let layers = jumping(&["+a", "+b -a", "", "-b -a"]);
    let profile = profiler.measure(&layers, vectors(5, 4)).unwrap();
    let skip = |from, to: &[usize]| SkipProfile {
        from,
        to: to.to_vec(),
        bytes: 5 * 4 * 4,
    };
    assert_eq!(profile.skips, [skip(0, &[1, 3]), skip(1, &[3])]);
    assert_eq!(Profile::from_toml(&profile.to_toml()).unwrap(), profile);
}

#[test]
fn what_was_declared_and_what_is_done_must_agree() {
    let failing = |at: usize, does: &[&str], expected: &str| {
        for stages in [1, 4] {
            let mut layers = jumping(&["+a", "", "-a", "+b", "-b"]);
            layers[at].does = jumping(does).pop().map(|layer| layer.uses);
            let pipeline = built(layers, stages, GPipe, 2, Recompute::Always);
            let failure = failure(train(&pipeline, vectors(4, 4), 4));
            assert_eq!(failure.layer, Some((at, "Jumping".to_owned())));
            assert_eq!(failure.cause.to_string(), expected);
        }
    };
    let unsent = "it declares that it sends the skip \"a\", but did not";
    let undeclared = "it sent the skip \"x\" twice, or without declaring it";
    let untaken = "it declares that it takes the skip \"b\", but did not";
    let found_none = "that is declared and not taken yet, found these skips: []";
    let unavailable = |name| format!("expected a skip \"{name}\" {found_none}");
    failing(0, &[""], unsent);
    failing(0, &["+a +x"], undeclared);
    failing(3, &["-a +b"], &unavailable("a"));
    failing(4, &[""], untaken);
    failing(4, &["-b -b"], &unavailable("b"));
}
