//! `#[derive(Flow)]`: lets a struct or an enum of flows travel through a pipeline.
//!
//! Use it through `stovepipe::Flow` (or `stovepipe_pipeline::Flow`), which names the trait and the
//! derive at once.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Fields, Ident, parse_macro_input, parse_quote};

/// Derives `Flow` for a struct or an enum, all of whose fields are flows.
///
/// Fields are visited in the order in which they are written. A batch is cut field by field, so a
/// field whose type brings its own `split` (such as `Replicated`) keeps it.
#[proc_macro_derive(Flow)]
pub fn derive_flow(input: TokenStream) -> TokenStream {
    derive(input, quote!(::stovepipe_pipeline))
}

/// The same for those who depend on the facade, which exports it as `Flow`: a derive cannot know
/// by which of the two crates its user knows the trait.
#[proc_macro_derive(FacadeFlow)]
pub fn derive_facade_flow(input: TokenStream) -> TokenStream {
    derive(input, quote!(::stovepipe))
}

fn derive(input: TokenStream, krate: Tokens) -> TokenStream {
    expand(parse_macro_input!(input as DeriveInput), &krate)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// One struct body or one enum variant: the path that builds it and its fields.
struct Shape<'a> {
    path: Tokens,
    fields: &'a Fields,
}

fn expand(input: DeriveInput, krate: &Tokens) -> syn::Result<Tokens> {
    let name = &input.ident;
    let shapes = shapes(&input)?;
    let map = shapes.iter().map(|shape| shape.map_arm(krate));
    let sizes = shapes.iter().map(|shape| shape.batch_sizes_arm(krate));
    let split = shapes.iter().map(|shape| shape.split_arm(krate));

    let mut generics = input.generics.clone();
    for parameter in input.generics.type_params() {
        let ident = &parameter.ident;
        generics
            .make_where_clause()
            .predicates
            .push(parse_quote!(#ident: #krate::Flow));
    }
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();

    Ok(quote! {
        impl #impl_generics #krate::Flow for #name #type_generics #where_clause {
            fn map<M: #krate::FlowMapper>(self, mapper: &mut M) -> Self {
                match self { #(#map)* }
            }

            fn batch_sizes(&self, sizes: &mut ::std::vec::Vec<usize>) {
                match self { #(#sizes)* }
            }

            fn split(self, sizes: &[usize]) -> ::std::vec::Vec<Self> {
                match self { #(#split)* }
            }
        }
    })
}

fn shapes(input: &DeriveInput) -> syn::Result<Vec<Shape<'_>>> {
    match &input.data {
        Data::Struct(data) => Ok(vec![Shape {
            path: quote!(Self),
            fields: &data.fields,
        }]),
        Data::Enum(data) => Ok(data
            .variants
            .iter()
            .map(|variant| {
                let ident = &variant.ident;
                Shape {
                    path: quote!(Self::#ident),
                    fields: &variant.fields,
                }
            })
            .collect()),
        Data::Union(data) => Err(syn::Error::new(
            data.union_token.span,
            "Flow can be derived for structs and enums, not for unions",
        )),
    }
}

impl Shape<'_> {
    /// `a`, `b`, … or `field0`, `field1`, …: a variable for each field.
    fn variables(&self) -> Vec<Ident> {
        self.fields
            .iter()
            .enumerate()
            .map(|(index, field)| match &field.ident {
                Some(ident) => format_ident!("field_{ident}"),
                None => format_ident!("field_{index}"),
            })
            .collect()
    }

    /// The shape as a pattern or as an expression, its fields filled by `values`.
    fn filled(&self, values: &[Tokens]) -> Tokens {
        let path = &self.path;
        match self.fields {
            Fields::Unit => quote!(#path),
            Fields::Unnamed(_) => quote!(#path(#(#values),*)),
            Fields::Named(fields) => {
                let names = fields.named.iter().map(|field| &field.ident);
                quote!(#path { #(#names: #values),* })
            }
        }
    }

    fn pattern(&self) -> Tokens {
        let variables: Vec<_> = self.variables().iter().map(|v| quote!(#v)).collect();
        self.filled(&variables)
    }

    fn map_arm(&self, krate: &Tokens) -> Tokens {
        let pattern = self.pattern();
        let mapped: Vec<_> = self
            .variables()
            .iter()
            .map(|v| quote!(#krate::Flow::map(#v, mapper)))
            .collect();
        let built = self.filled(&mapped);
        quote!(#pattern => #built,)
    }

    fn batch_sizes_arm(&self, krate: &Tokens) -> Tokens {
        let (pattern, variables) = (self.pattern(), self.variables());
        quote!(#pattern => { #(#krate::Flow::batch_sizes(#variables, sizes);)* })
    }

    fn split_arm(&self, krate: &Tokens) -> Tokens {
        let (pattern, variables) = (self.pattern(), self.variables());
        // Nested pairs `(((), a), b)`: `zip` takes two at a time.
        let mut parts = quote!(::std::iter::repeat_n((), sizes.len()));
        let mut tuple = quote!(());
        for variable in &variables {
            parts = quote!(#parts.zip(#krate::Flow::split(#variable, sizes)));
            tuple = quote!((#tuple, #variable));
        }
        let built = self.pattern();
        quote!(#pattern => #parts.map(|#tuple| #built).collect(),)
    }
}
