//! `#[derive(Layers)]`.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{
    Attribute, Data, DeriveInput, Error, ExprClosure, Field, Fields, GenericArgument, Ident, Pat,
    PathArguments, Result, ReturnType, Token, Type, Visibility,
    parse::{Parse, ParseStream},
};

pub(crate) fn expand(input: DeriveInput, krate: &TokenStream) -> Result<TokenStream> {
    let model = Model::parse(&input, krate)?;
    let (flow, layers) = (model.flow(), model.layers());
    let (implementation, conversions) = (model.implementation(), model.conversions());
    Ok(quote!(#flow #layers #implementation #conversions))
}

struct Model<'a> {
    name: &'a Ident,
    visibility: &'a Visibility,
    krate: &'a TokenStream,
    layers: Vec<LayerField<'a>>,
    shared: Vec<&'a Field>,
    /// The types that pass between layers, each once; the first is what the model takes.
    flows: Vec<Type>,
}

/// A field that is a layer, or one for each element of a `Vec`.
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

/// What `#[layers(…)]` says of a field.
enum Role {
    Shared,
    Closure(ExprClosure),
}

impl Parse for Role {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(Token![|]) {
            return input.parse().map(Role::Closure);
        }
        let word: Ident = input.parse()?;
        if word == "shared" {
            return Ok(Role::Shared);
        }
        Err(Error::new(
            word.span(),
            "expected `shared` or a closure: `|x: Tensor<4>| …`",
        ))
    }
}

impl<'a> Model<'a> {
    fn parse(input: &'a DeriveInput, krate: &'a TokenStream) -> Result<Self> {
        let Data::Struct(data) = &input.data else {
            return Err(Error::new_spanned(
                &input.ident,
                "Layers is derived for structs",
            ));
        };
        let Fields::Named(fields) = &data.fields else {
            let message = "Layers needs a struct with named fields, in the order in which they run";
            return Err(Error::new_spanned(&input.ident, message));
        };
        if !input.generics.params.is_empty() {
            let message = "Layers is not derived for generic structs: implement `Layer` instead";
            return Err(Error::new_spanned(&input.generics, message));
        }
        let first: Option<Type> = (attribute(&input.attrs)?)
            .map(Attribute::parse_args)
            .transpose()?;

        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for field in &fields.named {
            let role = (attribute(&field.attrs)?).map(Attribute::parse_args::<Role>);
            match role.transpose()? {
                Some(Role::Shared) => shared.push(field),
                Some(Role::Closure(closure)) => own.push((field, Some(closure))),
                None => own.push((field, None)),
            }
        }
        let mut flow = first;
        let mut layers = Vec::new();
        for (field, closure) in own {
            let layer = LayerField::new(field, closure, &shared, flow)?;
            flow = Some(layer.to.clone());
            layers.push(layer);
        }
        let Some(first) = layers.first() else {
            return Err(Error::new_spanned(
                &input.ident,
                "none of the fields is a layer",
            ));
        };
        let mut flows = vec![first.from.clone()];
        for layer in &layers {
            for flow in [&layer.from, &layer.to] {
                if !flows.contains(flow) {
                    flows.push(flow.clone());
                }
            }
        }
        let is_used = |field: &&Field| layers.iter().any(|layer| layer.uses.contains(field));
        if let Some(unused) = shared.iter().find(|field| !is_used(field)) {
            let message = "no layer names this shared field: name it in a closure, or remove it";
            return Err(Error::new_spanned(unused, message));
        }
        let (name, visibility) = (&input.ident, &input.vis);
        Ok(Self {
            name,
            visibility,
            krate,
            layers,
            shared,
            flows,
        })
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
        let texts: Vec<_> = flows.iter().map(text).collect();
        let comment = format!("What passes between the layers of `{}`.", self.name);
        let number: Vec<_> = (0..flows.len()).collect();
        quote! {
            #[doc = #comment]
            #[derive(Clone, Debug)]
            #[allow(missing_docs)]
            #visibility enum #name {
                #(#variants(#flows)),*
            }

            impl #name {
                fn type_name(&self) -> &'static str {
                    [#(#texts),*][match self { #(Self::#variants(_) => #number),* }]
                }
            }

            impl #krate::Flow for #name {
                fn map<M: #krate::FlowMapper>(self, mapper: &mut M) -> Self {
                    match self {
                        #(Self::#variants(flow) => Self::#variants(#krate::Flow::map(flow, mapper))),*
                    }
                }

                fn batch_sizes(&self, sizes: &mut ::std::vec::Vec<usize>) {
                    match self {
                        #(Self::#variants(flow) => #krate::Flow::batch_sizes(flow, sizes)),*
                    }
                }
            }
        }
    }

    fn flow_variant(&self, flow: &Type) -> Ident {
        let place = self.flows.iter().position(|other| other == flow);
        format_ident!("Type{}", place.unwrap_or_default())
    }

    /// A value of a type as what passes between layers.
    fn wrapped(&self, value: &TokenStream, flow: &Type) -> TokenStream {
        if self.flows.len() == 1 {
            return value.clone();
        }
        let (name, variant) = (self.flow_name(), self.flow_variant(flow));
        quote!(#name::#variant(#value))
    }

    /// The value in what passes between layers, which must be of a type.
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
            let idents = layer.uses.iter().map(|field| &field.ident);
            let types = layer.uses.iter().map(|field| &field.ty);
            let comment = format!("The layer `{ident}` of `{}`.", self.name);
            quote! {
                #[doc = #comment]
                #[derive(::burn::module::Module, Debug)]
                #[allow(missing_docs)]
                #visibility struct #module {
                    #ident: #own,
                    #(#idents: #types),*
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
        if layer.uses.is_empty() {
            layer.module.to_token_stream()
        } else {
            format_ident!("{}{}", self.name, layer.variant).to_token_stream()
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
        let LayerField {
            ident,
            variant,
            closure,
            from,
            to,
            ..
        } = layer;
        let value = self.unwrapped(from);
        let uses: Vec<_> = layer.uses.iter().map(|field| &field.ident).collect();
        let fields = if uses.is_empty() {
            quote!(let #ident = layer;)
        } else {
            quote!(let (#ident, #(#uses),*) = (&layer.#ident, #(&layer.#uses),*);)
        };
        let rng = layer.uses_rng.then(|| {
            let rng = Ident::new("rng", Span::call_site());
            quote!(let #rng = context.rng();)
        });
        let run = match closure {
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

    /// `into_layers` and `from_layers`.
    fn conversions(&self) -> TokenStream {
        let (krate, visibility, model) = (self.krate, self.visibility, self.name);
        let name = self.layer_name();
        let pushes = self.layers.iter().map(|layer| {
            let (ident, variant) = (layer.ident, &layer.variant);
            let uses: Vec<_> = layer.uses.iter().map(|field| &field.ident).collect();
            let module = self.module(layer);
            let made = if uses.is_empty() {
                quote!(#ident)
            } else {
                quote!(#module { #ident, #(#uses: self.#uses.clone()),* })
            };
            if layer.is_list {
                quote!(layers.extend(self.#ident.into_iter().map(|#ident| #name::#variant(#made)));)
            } else {
                quote!({ let #ident = self.#ident; layers.push(#name::#variant(#made)); })
            }
        });
        let begins = self.layers.iter().map(|layer| {
            let ident = layer.ident;
            if layer.is_list {
                quote!(let mut #ident = ::std::vec::Vec::new();)
            } else {
                quote!(let mut #ident = ::std::option::Option::None;)
            }
        });
        let shared: Vec<_> = self.shared.iter().map(|field| &field.ident).collect();
        let arms = self.layers.iter().map(|layer| {
            let (ident, variant) = (layer.ident, &layer.variant);
            let uses: Vec<_> = layer.uses.iter().map(|field| &field.ident).collect();
            let keep = if layer.is_list {
                quote!(#ident.push(own);)
            } else {
                quote!(#ident = ::std::option::Option::Some(own);)
            };
            if uses.is_empty() {
                quote!(#name::#variant(own) => { #keep })
            } else {
                quote!(#name::#variant(layer) => {
                    let own = layer.#ident;
                    #keep
                    #(#uses = ::std::option::Option::Some(layer.#uses);)*
                })
            }
        });
        let missing = |ident: &Ident| {
            let text = format!("the layer `{ident}`");
            quote!(#krate::LayerError::new(#text, "no such layer"))
        };
        let ends = self.layers.iter().map(|layer| {
            let ident = layer.ident;
            if layer.is_list {
                return quote!(#ident);
            }
            let missing = missing(ident);
            quote!(#ident: #ident.ok_or_else(|| #missing)?)
        });
        let shared_ends = self
            .shared
            .iter()
            .filter_map(|field| field.ident.as_ref())
            .map(|ident| {
                let missing = missing(ident);
                quote!(#ident: #ident.ok_or_else(|| #missing)?)
            });
        quote! {
            impl #model {
                /// Its layers in the order in which they run, for a pipeline.
                #[must_use]
                #visibility fn into_layers(self) -> ::std::vec::Vec<#name> {
                    let mut layers = ::std::vec::Vec::new();
                    #(#pushes)*
                    layers
                }

                /// The model of a list of layers, for example those of a trained pipeline.
                ///
                /// # Errors
                ///
                /// If a layer is missing.
                #visibility fn from_layers(
                    layers: ::std::vec::Vec<#name>,
                ) -> ::std::result::Result<Self, #krate::LayerError> {
                    #(#begins)*
                    #(let mut #shared = ::std::option::Option::None;)*
                    for layer in layers {
                        match layer { #(#arms)* }
                    }
                    ::std::result::Result::Ok(Self { #(#ends,)* #(#shared_ends,)* })
                }
            }
        }
    }
}

impl<'a> LayerField<'a> {
    /// `before` is what the field before it returns.
    fn new(
        field: &'a Field,
        closure: Option<ExprClosure>,
        shared: &[&'a Field],
        before: Option<Type>,
    ) -> Result<Self> {
        let Some(ident) = &field.ident else {
            return Err(Error::new_spanned(field, "a layer needs a name"));
        };
        let from = match &closure {
            Some(closure) => argument_type(closure)?.or(before),
            None => before,
        };
        let from = from.ok_or_else(|| {
            let message = "what does the first layer take? Say it above the struct, as in \
                           `#[layers(Tensor<2>)]`, or in a closure: `#[layers(|x: Tensor<2>| …)]`";
            Error::new_spanned(field, message)
        })?;
        let to = match closure.as_ref().map(|closure| &closure.output) {
            Some(ReturnType::Type(_, output)) => Type::clone(output),
            _ => from.clone(),
        };
        let names = |name: &Ident| {
            let body = closure
                .as_ref()
                .map(|closure| closure.body.to_token_stream());
            body.is_some_and(|body| has_ident(body, name))
        };
        let uses = shared.iter().copied();
        let uses = uses
            .filter(|field| field.ident.as_ref().is_some_and(names))
            .collect();
        let uses_rng = names(&Ident::new("rng", Span::call_site()));
        let element = element(&field.ty);
        Ok(Self {
            ident,
            module: element.unwrap_or(&field.ty),
            is_list: element.is_some(),
            variant: camel_case(ident),
            uses,
            uses_rng,
            closure,
            from,
            to,
        })
    }
}

/// The only `#[layers(…)]` among attributes.
fn attribute(attributes: &[Attribute]) -> Result<Option<&Attribute>> {
    let mut found = attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("layers"));
    let first = found.next();
    match found.next() {
        Some(second) => Err(Error::new_spanned(second, "one `#[layers(…)]` is enough")),
        None => Ok(first),
    }
}

/// The type that a closure says its argument has.
fn argument_type(closure: &ExprClosure) -> Result<Option<Type>> {
    match closure.inputs.iter().collect::<Vec<_>>()[..] {
        [Pat::Type(typed)] => Ok(Some(Type::clone(&typed.ty))),
        [_] => Ok(None),
        _ => {
            let message = "a layer's closure takes one argument; other fields and `rng` go by name";
            Err(Error::new_spanned(closure, message))
        }
    }
}

fn untyped(argument: &Pat) -> &Pat {
    match argument {
        Pat::Type(typed) => &typed.pat,
        other => other,
    }
}

/// The `T` of a `Vec<T>`.
fn element(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path
        .path
        .segments
        .last()
        .filter(|last| last.ident == "Vec")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.first() {
        Some(GenericArgument::Type(element)) => Some(element),
        _ => None,
    }
}

fn has_ident(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => has_ident(group.stream(), name),
        _ => false,
    })
}

fn camel_case(ident: &Ident) -> Ident {
    let words = ident.to_string();
    let words = words.trim_start_matches("r#").split('_').map(|word| {
        let mut letters = word.chars();
        let first = letters
            .next()
            .map(|letter| letter.to_uppercase().to_string());
        first.unwrap_or_default() + letters.as_str()
    });
    Ident::new(&words.collect::<String>(), ident.span())
}

fn text(flow: &Type) -> String {
    flow.to_token_stream().to_string().replace(' ', "")
}
