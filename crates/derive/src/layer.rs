//! `#[layer]` on an `impl` block.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{
    Error, FnArg, ImplItem, ImplItemFn, ItemImpl, PathArguments, Result, ReturnType, Type,
    spanned::Spanned,
};

const SIGNATURE: &str = "`#[layer]` needs `fn forward(&self, x: T) -> T`, or with `rng: &mut KeyedRng` as a second argument";

pub(crate) fn expand(
    arguments: TokenStream,
    block: &ItemImpl,
    krate: &TokenStream,
) -> Result<TokenStream> {
    if !arguments.is_empty() {
        let message = "`#[layer]` takes no arguments";
        return Err(Error::new_spanned(arguments, message));
    }
    if let Some((_, path, _)) = &block.trait_ {
        let message = "`#[layer]` goes on the module's own `impl` block, not on that of a trait";
        return Err(Error::new_spanned(path, message));
    }
    let forward = block.items.iter().find_map(|item| match item {
        ImplItem::Fn(function) if function.sig.ident == "forward" => Some(function),
        _ => None,
    });
    let forward = forward.ok_or_else(|| Error::new_spanned(&block.self_ty, SIGNATURE))?;
    let (flow, rng) = signature(forward)?;

    let module = &block.self_ty;
    let (generics, _, where_clause) = block.generics.split_for_impl();
    let rng = rng.then(|| quote!(, context.rng()));
    let context = rng.as_ref().map_or(quote!(_), |_| quote!(context));
    Ok(quote! {
        impl #generics #krate::Layer for #module #where_clause {
            type Input = #flow;
            type Flow = #flow;
            type Output = #flow;
            type Side = ();

            fn enter(input: #flow) -> #flow {
                input
            }

            fn forward(
                &self,
                flow: #flow,
                #context: &mut #krate::Context<'_, Self>,
            ) -> ::std::result::Result<#flow, #krate::LayerError> {
                // The inherent method goes before that of the trait.
                ::std::result::Result::Ok(<#module>::forward(self, flow #rng))
            }

            fn leave(flow: #flow) -> ::std::result::Result<#flow, #krate::LayerError> {
                ::std::result::Result::Ok(flow)
            }
        }
    })
}

/// What `forward` takes and returns, and whether it draws random numbers.
fn signature(forward: &ImplItemFn) -> Result<(&Type, bool)> {
    let wrong = |at: &dyn ToTokens| Error::new(at.span(), SIGNATURE);
    let mut inputs = forward.sig.inputs.iter();
    match inputs.next() {
        Some(FnArg::Receiver(receiver)) if receiver.reference.is_some() => {}
        _ => return Err(wrong(&forward.sig)),
    }
    let Some(FnArg::Typed(flow)) = inputs.next() else {
        return Err(wrong(&forward.sig));
    };
    let rng = match inputs.next() {
        None => false,
        Some(FnArg::Typed(rng)) if is_rng(&rng.ty) && inputs.len() == 0 => true,
        Some(other) => return Err(wrong(other)),
    };
    let ReturnType::Type(_, output) = &forward.sig.output else {
        return Err(wrong(&forward.sig));
    };
    let text = |ty: &Type| ty.to_token_stream().to_string();
    if text(&flow.ty) == text(output) {
        return Ok((&flow.ty, rng));
    }
    let message = "a layer of `#[layer]` returns the type that it takes; where types differ from \
                   layer to layer, use `#[derive(Layers)]` on the model or implement `Layer`";
    Err(Error::new_spanned(output, message))
}

fn is_rng(ty: &Type) -> bool {
    let Type::Reference(reference) = ty else {
        return false;
    };
    let Type::Path(path) = &*reference.elem else {
        return false;
    };
    let last = path.path.segments.last();
    reference.mutability.is_some()
        && last.is_some_and(|last| {
            last.ident == "KeyedRng" && matches!(last.arguments, PathArguments::None)
        })
}
