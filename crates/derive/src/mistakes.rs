//! The errors for code that the macros cannot expand.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Result, parse_str};

use crate::{flow, layer, layers};

/// Expands each piece of code, and looks for the message in the error.
fn check(expand: impl Fn(&str) -> Result<TokenStream>, cases: &[(&str, &str)]) {
    for (code, message) in cases {
        match expand(code) {
            Ok(expanded) => panic!("{code} expanded to {expanded}"),
            Err(error) => assert!(error.to_string().contains(message), "{code}: {error}"),
        }
    }
}

#[test]
fn of_layers() {
    let two_attributes = "struct Model { #[layers(|x: T| x)] #[layers(shared)] a: Linear }";
    let unused = "#[layers(Tensor<2>)] struct Model { a: Linear, #[layers(shared)] b: Relu }";
    let only_shared = "#[layers(Tensor<2>)] struct Model { #[layers(shared)] a: Relu }";
    let two_arguments = "struct Model { #[layers(|x, y| a.forward(x))] a: Linear }";
    let no_input = "what does the first layer take?";
    let unknown = "struct Model { #[layers(skip)] a: Linear }";
    check(
        |code| layers::expand(parse_str(code)?, &quote!(krate)),
        &[
            ("enum Model { A(Linear) }", "derived for structs"),
            ("struct Model(Linear);", "named fields"),
            ("struct Model<T> { a: T }", "generic"),
            ("struct Model { a: Linear }", no_input),
            (only_shared, "none of the fields"),
            (unused, "no layer names this shared field"),
            (unknown, "expected `shared` or a closure"),
            (two_arguments, "takes one argument"),
            (two_attributes, "one `#[layers(…)]` is enough"),
        ],
    );
}

#[test]
fn of_layer() {
    let of_trait = "impl Layer for A { fn forward(&self, x: T) -> T { x } }";
    let other_output = "impl A { fn forward(&self, x: T) -> U { x } }";
    let two_inputs = "impl A { fn forward(&self, x: T, y: T) -> T { x } }";
    let signature = "needs `fn forward";
    check(
        |code| layer::expand(TokenStream::new(), &parse_str(code)?, &quote!(krate)),
        &[
            (of_trait, "own `impl` block"),
            (other_output, "returns the type that it takes"),
            ("impl A { fn run(&self, x: T) -> T { x } }", signature),
            ("impl A { fn forward(self, x: T) -> T { x } }", signature),
            ("impl A { fn forward(&self) -> T { x } }", signature),
            ("impl A { fn forward(&self, x: T) {} }", signature),
            (two_inputs, signature),
        ],
    );
}

#[test]
fn of_flow() {
    check(
        |code| flow::expand(parse_str(code)?, &quote!(krate)),
        &[("union A { a: u8 }", "not for unions")],
    );
}
