//! `#[derive(Layers)]`.

mod generate;
mod parse;

use proc_macro2::TokenStream;
use syn::{DeriveInput, ExprClosure, Field, Ident, Result, Type, Visibility};

pub(crate) fn expand(input: DeriveInput, krate: &TokenStream) -> Result<TokenStream> {
    Ok(Model::parse(&input, krate)?.generate())
}

struct Model<'a> {
    name: &'a Ident,
    visibility: &'a Visibility,
    krate: &'a TokenStream,
    layers: Vec<LayerField<'a>>,
    shared: Vec<&'a Field>,
    /// The types that pass between layers, each once; the first is the model's input.
    flows: Vec<Type>,
}

/// A field that is a layer, or a `Vec` of layers.
struct LayerField<'a> {
    ident: &'a Ident,
    /// The module: the field's type, or that of an element.
    module: &'a Type,
    is_list: bool,
    variant: Ident,
    /// The shared fields that its closure names.
    uses: Vec<&'a Field>,
    uses_rng: bool,
    closure: Option<ExprClosure>,
    from: Type,
    to: Type,
}
