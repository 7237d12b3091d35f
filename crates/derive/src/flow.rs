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
    let pack = (shapes.iter().enumerate()).map(|(choice, shape)| shape.pack_arm(krate, choice));
    let unpack = (shapes.iter().enumerate()).map(|(choice, shape)| shape.unpack_arm(krate, choice));
    let fields = shapes
        .iter()
        .flat_map(|shape| shape.fields.iter().map(|field| &field.ty));

    let mut generics = input.generics.clone();
    for parameter in input.generics.type_params() {
        let (ident, clause) = (&parameter.ident, generics.make_where_clause());
        clause.predicates.push(parse_quote!(#ident: #krate::Flow));
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

            const PACKS: bool = true #(&& <#fields as #krate::Flow>::PACKS)*;

            fn pack(
                self,
                into: &mut #krate::flows::Packed,
            ) -> ::std::result::Result<(), #krate::error::PackError> {
                match self { #(#pack)* }
                ::std::result::Result::Ok(())
            }

            fn unpack(
                from: &mut #krate::flows::Packed,
                device: &::burn::tensor::Device,
            ) -> ::std::result::Result<Self, #krate::error::PackError> {
                match from.number()? {
                    #(#unpack)*
                    other => {
                        let text = ::std::format!("there is no variant {other}");
                        ::std::result::Result::Err(#krate::error::PackError::Other(text))
                    }
                }
            }
        }
    })
}

fn shapes(input: &DeriveInput) -> syn::Result<Vec<Shape<'_>>> {
    let shape = |path, fields| Shape { path, fields };
    match &input.data {
        Data::Struct(data) => Ok(vec![shape(quote!(Self), &data.fields)]),
        Data::Enum(data) => {
            let shapes = data.variants.iter().map(|variant| {
                let ident = &variant.ident;
                shape(quote!(Self::#ident), &variant.fields)
            });
            Ok(shapes.collect())
        }
        Data::Union(data) => Err(syn::Error::new(
            data.union_token.span,
            "Flow can be derived for structs and enums, not for unions",
        )),
    }
}

impl Shape<'_> {
    /// `a`, `b`, … or `field0`, `field1`, …: a variable for each field.
    fn variables(&self) -> Vec<Ident> {
        let fields = self.fields.iter().enumerate();
        let variables = fields.map(|(index, field)| match &field.ident {
            Some(ident) => format_ident!("field_{ident}"),
            None => format_ident!("field_{index}"),
        });
        variables.collect()
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
        let mapped = |v: &Ident| quote!(#krate::Flow::map(#v, mapper));
        let mapped: Vec<_> = self.variables().iter().map(mapped).collect();
        let built = self.filled(&mapped);
        quote!(#pattern => #built,)
    }

    fn batch_sizes_arm(&self, krate: &TokenStream) -> TokenStream {
        let (pattern, variables) = (self.pattern(), self.variables());
        quote!(#pattern => { #(#krate::Flow::batch_sizes(#variables, sizes);)* })
    }

    fn pack_arm(&self, krate: &TokenStream, choice: usize) -> TokenStream {
        let (pattern, variables) = (self.pattern(), self.variables());
        quote!(#pattern => {
            into.push_number(#choice);
            #(#krate::Flow::pack(#variables, into)?;)*
        })
    }

    fn unpack_arm(&self, krate: &TokenStream, choice: usize) -> TokenStream {
        let unpacked = quote!(#krate::Flow::unpack(from, device)?);
        let unpacked: Vec<_> = self.fields.iter().map(|_| unpacked.clone()).collect();
        let built = self.filled(&unpacked);
        quote!(#choice => ::std::result::Result::Ok(#built),)
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
