//! The macros of Stovepipe: `#[derive(Flow)]`, `#[layer]` and `#[derive(Layers)]`.
//!
//! Use them through `stovepipe` or `stovepipe_pipeline`. Each macro exists twice, since it cannot know
//! which of the two crates a program uses.

mod flow;
mod layer;
mod layers;

#[cfg(test)]
mod mistakes;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{DeriveInput, ItemImpl, parse_macro_input};

/// Derives `Flow` for a struct or an enum whose fields are flows.
///
/// Fields are visited in order. A batch is split field by field, so a type with its own `split` (such as
/// `Replicated`) keeps it.
#[proc_macro_derive(Flow)]
pub fn derive_flow(input: TokenStream) -> TokenStream {
    derive(flow::expand, input, quote!(::stovepipe_pipeline))
}

#[doc(hidden)]
#[proc_macro_derive(FacadeFlow)]
pub fn derive_facade_flow(input: TokenStream) -> TokenStream {
    derive(flow::expand, input, quote!(::stovepipe))
}

/// Implements `Layer` for a module that has a `forward` from a type to the same type.
///
/// `forward` may take the layer's random numbers as a second argument, `rng: &mut KeyedRng`. Where
/// types differ from layer to layer, see `#[derive(Layers)]`. For side inputs and skips, implement
/// `Layer`.
#[proc_macro_attribute]
pub fn layer(arguments: TokenStream, input: TokenStream) -> TokenStream {
    attribute(arguments, input, quote!(::stovepipe_pipeline))
}

#[doc(hidden)]
#[proc_macro_attribute]
pub fn facade_layer(arguments: TokenStream, input: TokenStream) -> TokenStream {
    attribute(arguments, input, quote!(::stovepipe))
}

/// Turns a module whose fields run in order into a list of layers.
///
/// For a struct `Model` it writes an enum `ModelLayer` that implements `Layer`, and two methods:
/// `Model::into_layers(self) -> Vec<ModelLayer>` and
/// `Model::from_layers(Vec<ModelLayer>) -> Result<Model, LayerError>`.
///
/// The fields:
///
/// - A field without an attribute runs `field.forward(x)`, from a type to the same type.
/// - A closure is run instead. It may name its field, `shared` fields, and `rng`, the layer's random
///   numbers. It returns the argument's type, unless it names another.
/// - A `shared` field is not a layer. Each layer that names it has a clone, which shares its parameters.
#[proc_macro_derive(Layers, attributes(layers))]
pub fn derive_layers(input: TokenStream) -> TokenStream {
    derive(layers::expand, input, quote!(::stovepipe_pipeline))
}

#[doc(hidden)]
#[proc_macro_derive(FacadeLayers, attributes(layers))]
pub fn derive_facade_layers(input: TokenStream) -> TokenStream {
    derive(layers::expand, input, quote!(::stovepipe))
}

fn derive(
    expand: fn(DeriveInput, &Tokens) -> syn::Result<Tokens>,
    input: TokenStream,
    krate: Tokens,
) -> TokenStream {
    expand(parse_macro_input!(input as DeriveInput), &krate)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

fn attribute(arguments: TokenStream, input: TokenStream, krate: Tokens) -> TokenStream {
    let block = parse_macro_input!(input as ItemImpl);
    // The block always stays, so that a mistake gives one error and not ten.
    let layer = layer::expand(arguments.into(), &block, &krate)
        .unwrap_or_else(syn::Error::into_compile_error);
    quote!(#block #layer).into()
}
