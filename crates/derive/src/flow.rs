//! `#[derive(Flow)]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Fields, Ident, parse_quote};

/// One struct body or one enum variant: the path that builds it and its fields.
struct Shape<'a> {
    path: TokenStream,
    fields: &'a Fields,
}

pub(crate) fn expand(input: DeriveInput, krate: &TokenStream) -> syn::Result<TokenStream> {
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
    fn filled(&self, values: &[TokenStream]) -> TokenStream {
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

    fn pattern(&self) -> TokenStream {
        let variables: Vec<_> = self.variables().iter().map(|v| quote!(#v)).collect();
        self.filled(&variables)
    }

    fn map_arm(&self, krate: &TokenStream) -> TokenStream {
        let pattern = self.pattern();
        let mapped: Vec<_> = self
            .variables()
            .iter()
            .map(|v| quote!(#krate::Flow::map(#v, mapper)))
            .collect();
        let built = self.filled(&mapped);
        quote!(#pattern => #built,)
    }

    fn batch_sizes_arm(&self, krate: &TokenStream) -> TokenStream {
        let (pattern, variables) = (self.pattern(), self.variables());
        quote!(#pattern => { #(#krate::Flow::batch_sizes(#variables, sizes);)* })
    }

    fn split_arm(&self, krate: &TokenStream) -> TokenStream {
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
