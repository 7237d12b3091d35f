//! Reads the struct and its attributes.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{
    Attribute, Data, DeriveInput, Error, ExprClosure, Field, Fields, GenericArgument, Ident, Pat,
    PathArguments, Result, ReturnType, Token, Type,
    parse::{Parse, ParseStream},
};

use super::{LayerField, Model};

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
        let message = "expected `shared` or a closure: `|x: Tensor<4>| …`";
        Err(Error::new(word.span(), message))
    }
}

impl<'a> Model<'a> {
    pub(super) fn parse(input: &'a DeriveInput, krate: &'a TokenStream) -> Result<Self> {
        let name = &input.ident;
        let Data::Struct(data) = &input.data else {
            return Err(Error::new_spanned(name, "Layers is derived for structs"));
        };
        let Fields::Named(fields) = &data.fields else {
            let message = "Layers needs a struct with named fields, in the order in which they run";
            return Err(Error::new_spanned(name, message));
        };
        if !input.generics.params.is_empty() {
            let message = "Layers is not derived for generic structs: implement `Layer` instead";
            return Err(Error::new_spanned(&input.generics, message));
        }
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for field in &fields.named {
            match attribute(&field.attrs)? {
                Some(Role::Shared) => shared.push(field),
                Some(Role::Closure(closure)) => own.push((field, Some(closure))),
                None => own.push((field, None)),
            }
        }
        let mut flow: Option<Type> = attribute(&input.attrs)?;
        let mut layers = Vec::new();
        for (field, closure) in own {
            let layer = LayerField::new(field, closure, &shared, flow)?;
            flow = Some(layer.to.clone());
            layers.push(layer);
        }
        if layers.is_empty() {
            return Err(Error::new_spanned(name, "none of the fields is a layer"));
        }
        let mut flows = Vec::new();
        for flow in layers.iter().flat_map(|layer| [&layer.from, &layer.to]) {
            if !flows.contains(flow) {
                flows.push(flow.clone());
            }
        }
        let is_used = |field: &&Field| layers.iter().any(|layer| layer.uses.contains(field));
        if let Some(unused) = shared.iter().find(|field| !is_used(field)) {
            let message = "no layer names this shared field: name it in a closure, or remove it";
            return Err(Error::new_spanned(unused, message));
        }
        Ok(Self {
            name,
            visibility: &input.vis,
            krate,
            layers,
            shared,
            flows,
        })
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
        let argument = closure.as_ref().map(argument_type).transpose()?.flatten();
        let from = argument.or(before).ok_or_else(|| {
            let message = "what does the first layer take? Say it above the struct, as in \
                           `#[layers(Tensor<2>)]`, or in a closure: `#[layers(|x: Tensor<2>| …)]`";
            Error::new_spanned(field, message)
        })?;
        let to = match closure.as_ref().map(|closure| &closure.output) {
            Some(ReturnType::Type(_, output)) => Type::clone(output),
            _ => from.clone(),
        };
        let body = closure.as_ref().map(|closure| &closure.body);
        let body = body.map(ToTokens::to_token_stream).unwrap_or_default();
        let names = |name: &Ident| has_ident(body.clone(), name);
        let uses = shared.iter().copied();
        let uses = uses.filter(|field| field.ident.as_ref().is_some_and(names));
        let element = element(&field.ty);
        Ok(Self {
            ident,
            module: element.unwrap_or(&field.ty),
            is_list: element.is_some(),
            variant: camel_case(ident),
            uses: uses.collect(),
            uses_rng: names(&Ident::new("rng", Span::call_site())),
            closure,
            from,
            to,
        })
    }
}

/// The content of the only `#[layers(…)]` among attributes.
fn attribute<T: Parse>(attributes: &[Attribute]) -> Result<Option<T>> {
    let is_ours = |attribute: &&Attribute| attribute.path().is_ident("layers");
    let mut found = attributes.iter().filter(is_ours);
    match (found.next(), found.next()) {
        (_, Some(second)) => Err(Error::new_spanned(second, "one `#[layers(…)]` is enough")),
        (first, None) => first.map(Attribute::parse_args).transpose(),
    }
}

/// The type that a closure names for its argument.
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

fn element(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) if last.ident == "Vec" => {
            match arguments.args.first() {
                Some(GenericArgument::Type(element)) => Some(element),
                _ => None,
            }
        }
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
        let first = letters.next().map(char::to_uppercase);
        first.into_iter().flatten().chain(letters).collect()
    });
    Ident::new(&words.collect::<Vec<String>>().concat(), ident.span())
}
