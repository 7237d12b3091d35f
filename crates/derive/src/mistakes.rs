//! What the macros say of code that they cannot expand.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Result, parse2};

use crate::{flow, layer, layers};

/// Expands each piece of code, and looks for the message in the error.
fn check(expand: impl Fn(TokenStream) -> Result<TokenStream>, cases: &[(TokenStream, &str)]) {
    for (code, message) in cases {
        match expand(code.clone()) {
            Ok(expanded) => panic!("{code} expanded to {expanded}"),
            Err(error) => assert!(error.to_string().contains(message), "{code}: {error}"),
        }
    }
}

#[test]
fn of_layers() {
    check(
        |code| layers::expand(parse2(code)?, &quote!(krate)),
        &[
            (
                quote!(
                    enum Model {
                        A(Linear),
                    }
                ),
                "derived for structs",
            ),
            (
                quote!(
                    struct Model(Linear);
                ),
                "named fields",
            ),
            (
                quote!(
                    struct Model<T> {
                        a: T,
                    }
                ),
                "generic",
            ),
            (
                quote!(
                    struct Model {
                        a: Linear,
                    }
                ),
                "what does the first layer take?",
            ),
            (
                quote!(
                    #[layers(Tensor<2>)]
                    struct Model {
                        #[layers(shared)]
                        a: Relu,
                    }
                ),
                "none of the fields",
            ),
            (
                quote!(
                    #[layers(Tensor<2>)]
                    struct Model {
                        a: Linear,
                        #[layers(shared)]
                        b: Relu,
                    }
                ),
                "no layer names this shared field",
            ),
            (
                quote!(
                    struct Model {
                        #[layers(skip)]
                        a: Linear,
                    }
                ),
                "expected `shared` or a closure",
            ),
            (
                quote!(
                    struct Model {
                        #[layers(|x, y| a.forward(x))]
                        a: Linear,
                    }
                ),
                "takes one argument",
            ),
            (
                quote!(
                    struct Model {
                        #[layers(|x: T| x)]
                        #[layers(shared)]
                        a: Linear,
                    }
                ),
                "one `#[layers(…)]` is enough",
            ),
        ],
    );
}

#[test]
fn of_layer() {
    check(
        |code| layer::expand(TokenStream::new(), &parse2(code)?, &quote!(krate)),
        &[
            (
                quote!(impl Layer for A { fn forward(&self, x: T) -> T { x } }),
                "own `impl` block",
            ),
            (
                quote!(impl A { fn run(&self, x: T) -> T { x } }),
                "needs `fn forward",
            ),
            (
                quote!(impl A { fn forward(self, x: T) -> T { x } }),
                "needs `fn forward",
            ),
            (
                quote!(impl A { fn forward(&self) -> T { x } }),
                "needs `fn forward",
            ),
            (
                quote!(impl A { fn forward(&self, x: T) {} }),
                "needs `fn forward",
            ),
            (
                quote!(impl A { fn forward(&self, x: T, y: T) -> T { x } }),
                "needs `fn forward",
            ),
            (
                quote!(impl A { fn forward(&self, x: T) -> U { x } }),
                "returns the type that it takes",
            ),
        ],
    );
}

#[test]
fn of_flow() {
    check(
        |code| flow::expand(parse2(code)?, &quote!(krate)),
        &[(quote!(union A { a: u8 }), "not for unions")],
    );
}
