//! Writes the layers of a model.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::{Error, Ident, Pat, Type, parse_quote};

use super::{LayerField, Model};
use crate::flow::expand as expand_flow;

impl Model<'_> {
    pub(super) fn generate(&self) -> TokenStream {
        let (flow, layers, implementation) = (self.flow(), self.layers(), self.implementation());
        let (into_layers, from_layers) = (self.write_into_layers(), self.write_from_layers());
        let model = self.name;
        quote! {
            #flow
            #layers
            #implementation
            impl #model { #into_layers #from_layers }
        }
    }

    fn layer_name(&self) -> Ident {
        format_ident!("{}Layer", self.name)
    }

    /// What passes between layers: the only type, or an enum of the types.
    fn flow_name(&self) -> TokenStream {
        match &self.flows[..] {
            [only] => only.to_token_stream(),
            _ => format_ident!("{}Flow", self.name).to_token_stream(),
        }
    }

    fn flow(&self) -> TokenStream {
        if self.flows.len() == 1 {
            return TokenStream::new();
        }
        let (krate, visibility, name) = (self.krate, self.visibility, self.flow_name());
        let flows = &self.flows;
        let variants: Vec<_> = flows.iter().map(|flow| self.flow_variant(flow)).collect();
        let texts = flows.iter().map(text);
        let comment = format!("What passes between the layers of `{}`.", self.name);
        let derived = parse_quote!(enum #name { #(#variants(#flows)),* });
        let derived = expand_flow(derived, krate).unwrap_or_else(Error::into_compile_error);
        quote! {
            #[doc = #comment]
            #[derive(Clone, Debug)]
            #[allow(missing_docs)]
            #visibility enum #name {
                #(#variants(#flows)),*
            }

            impl #name {
                fn type_name(&self) -> &'static str {
                    match self { #(Self::#variants(_) => #texts),* }
                }
            }

            #derived
        }
    }

    fn flow_variant(&self, flow: &Type) -> Ident {
        let place = self.flows.iter().position(|other| other == flow);
        format_ident!("Type{}", place.unwrap_or_default())
    }

    /// Converts a value of a type to what passes between layers.
    fn wrapped(&self, value: &TokenStream, flow: &Type) -> TokenStream {
        if self.flows.len() == 1 {
            return value.clone();
        }
        let (name, variant) = (self.flow_name(), self.flow_variant(flow));
        quote!(#name::#variant(#value))
    }

    /// Converts back to a value of a type, or returns an error.
    fn unwrapped(&self, flow: &Type) -> TokenStream {
        if self.flows.len() == 1 {
            return quote!(flow);
        }
        let (krate, pattern) = (self.krate, self.wrapped(&quote!(flow), flow));
        let text = text(flow);
        quote! {
            match flow {
                #pattern => flow,
                other => {
                    let error = #krate::LayerError::new(#text, other.type_name());
                    return ::std::result::Result::Err(error);
                }
            }
        }
    }

    /// The enum of layers, and a struct for each that holds more than its field.
    fn layers(&self) -> TokenStream {
        let (visibility, name) = (self.visibility, self.layer_name());
        let variants = self.layers.iter().map(|layer| &layer.variant);
        let modules = self.layers.iter().map(|layer| self.module(layer));
        let structs = self.layers.iter().filter(|layer| !layer.uses.is_empty());
        let structs = structs.map(|layer| {
            let (module, ident, own) = (self.module(layer), layer.ident, layer.module);
            let uses = layer.used();
            let types = layer.uses.iter().map(|field| &field.ty);
            let comment = format!("The layer `{ident}` of `{}`.", self.name);
            quote! {
                #[doc = #comment]
                #[derive(::burn::module::Module, Debug)]
                #[allow(missing_docs)]
                #visibility struct #module {
                    #ident: #own,
                    #(#uses: #types),*
                }
            }
        });
        let comment = format!("A layer of `{}`.", self.name);
        quote! {
            #(#structs)*

            #[doc = #comment]
            #[derive(::burn::module::Module, Debug)]
            #[allow(missing_docs, clippy::large_enum_variant)]
            #visibility enum #name {
                #(#variants(#modules)),*
            }
        }
    }

    fn module(&self, layer: &LayerField<'_>) -> TokenStream {
        match layer.uses[..] {
            [] => layer.module.to_token_stream(),
            _ => format_ident!("{}{}", self.name, layer.variant).to_token_stream(),
        }
    }

    fn implementation(&self) -> TokenStream {
        let (krate, name, flow) = (self.krate, self.layer_name(), self.flow_name());
        let arms = self.layers.iter().map(|layer| self.forward_arm(layer));
        let names = self.layers.iter().map(|layer| {
            let (variant, text) = (&layer.variant, layer.ident.to_string());
            quote!(Self::#variant(_) => #text)
        });
        let input = &self.flows[0];
        let output = self.layers.last().map_or(input, |layer| &layer.to);
        let entered = self.wrapped(&quote!(input), input);
        let left = self.unwrapped(output);
        let uses_rng = self.layers.iter().any(|layer| layer.uses_rng);
        let context = if uses_rng { quote!(context) } else { quote!(_) };
        quote! {
            impl #krate::Layer for #name {
                type Input = #input;
                type Flow = #flow;
                type Output = #output;
                type Side = ();

                fn enter(input: #input) -> #flow {
                    #entered
                }

                #[allow(unused_braces, clippy::redundant_closure_call)]
                fn forward(
                    &self,
                    flow: #flow,
                    #context: &mut #krate::Context<'_, Self>,
                ) -> ::std::result::Result<#flow, #krate::LayerError> {
                    ::std::result::Result::Ok(match self { #(#arms)* })
                }

                fn leave(flow: #flow) -> ::std::result::Result<#output, #krate::LayerError> {
                    ::std::result::Result::Ok(#left)
                }

                fn name(&self) -> ::std::string::String {
                    ::std::string::String::from(match self { #(#names),* })
                }
            }
        }
    }

    fn forward_arm(&self, layer: &LayerField<'_>) -> TokenStream {
        let (ident, variant) = (layer.ident, &layer.variant);
        let (from, to, uses) = (&layer.from, &layer.to, layer.used());
        let value = self.unwrapped(from);
        let fields = match uses[..] {
            [] => quote!(let #ident = layer;),
            _ => quote!(let (#ident, #(#uses),*) = (&layer.#ident, #(&layer.#uses),*);),
        };
        let rng = layer.uses_rng.then(|| {
            let rng = Ident::new("rng", Span::call_site());
            quote!(let #rng = context.rng();)
        });
        let run = match &layer.closure {
            Some(closure) => {
                let (argument, body) = (untyped(&closure.inputs[0]), &closure.body);
                quote!((|#argument: #from| -> #to { #body })(value))
            }
            None => quote!(#ident.forward(value)),
        };
        let result = self.wrapped(&quote!(result), to);
        quote! {
            Self::#variant(layer) => {
                let value: #from = #value;
                #fields
                #rng
                let result: #to = #run;
                #result
            }
        }
    }

    fn write_into_layers(&self) -> TokenStream {
        let (visibility, name) = (self.visibility, self.layer_name());
        let additions = self.layers.iter().map(|layer| {
            let (ident, variant, uses) = (layer.ident, &layer.variant, layer.used());
            let own = match layer.is_list {
                true => quote!(self.#ident),
                false => quote!([self.#ident]),
            };
            let module = self.module(layer);
            let made = match uses[..] {
                [] => quote!(#ident),
                _ => quote!(#module { #ident, #(#uses: self.#uses.clone()),* }),
            };
            quote!(for #ident in #own { layers.push(#name::#variant(#made)); })
        });
        quote! {
            /// Its layers in the order in which they run, for a pipeline.
            #[must_use]
            #visibility fn into_layers(self) -> ::std::vec::Vec<#name> {
                let mut layers = ::std::vec::Vec::new();
                #(#additions)*
                layers
            }
        }
    }

    fn write_from_layers(&self) -> TokenStream {
        let (krate, visibility, name) = (self.krate, self.visibility, self.layer_name());
        let own = self.layers.iter().map(|layer| layer.ident);
        let shared = self.shared.iter().filter_map(|field| field.ident.as_ref());
        let fields = own.chain(shared.clone());
        let arms = self.layers.iter().map(|layer| {
            let (ident, variant, uses) = (layer.ident, &layer.variant, layer.used());
            if uses.is_empty() {
                return quote!(#name::#variant(own) => #ident.push(own),);
            }
            quote!(#name::#variant(layer) => {
                #ident.push(layer.#ident);
                #(#uses.push(layer.#uses);)*
            })
        });
        let one = |ident: &Ident| {
            let text = format!("the layer `{ident}`");
            let error = quote!(#krate::LayerError::new(#text, "no such layer"));
            quote!(#ident: #ident.pop().ok_or_else(|| #error)?)
        };
        let values = self.layers.iter().map(|layer| match layer.ident {
            ident if layer.is_list => ident.to_token_stream(),
            ident => one(ident),
        });
        let values = values.chain(shared.map(one));
        quote! {
            /// The model of a list of layers, for example those of a trained pipeline.
            ///
            /// # Errors
            ///
            /// If a layer is missing.
            #visibility fn from_layers(
                layers: ::std::vec::Vec<#name>,
            ) -> ::std::result::Result<Self, #krate::LayerError> {
                #(let mut #fields = ::std::vec::Vec::new();)*
                for layer in layers {
                    match layer { #(#arms)* }
                }
                ::std::result::Result::Ok(Self { #(#values),* })
            }
        }
    }
}

impl LayerField<'_> {
    fn used(&self) -> Vec<&Ident> {
        let uses = self.uses.iter();
        uses.filter_map(|field| field.ident.as_ref()).collect()
    }
}

fn untyped(argument: &Pat) -> &Pat {
    match argument {
        Pat::Type(typed) => &typed.pat,
        other => other,
    }
}

fn text(flow: &Type) -> String {
    flow.to_token_stream().to_string().replace(' ', "")
}
