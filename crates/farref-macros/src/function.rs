//! Free functions: `add::on(&peer, 1, 2)`.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Ident, Visibility};

use crate::attributes;
use crate::errors::Errors;
use crate::marker::Marker;
use crate::options::Options;
use crate::signature::Signature;
use crate::types;

/// A function, but for its body: that is not ours to read, and while it is being edited it may not be
/// readable at all.
pub(crate) struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: syn::Signature,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let function = Self {
            attributes: input.call(Attribute::parse_outer)?,
            visibility: input.parse()?,
            signature: input.parse()?,
        };
        input.parse::<TokenStream>()?;
        Ok(function)
    }
}

/// What comes next to the function.
pub(crate) fn expand(function: &Function, options: &Options) -> syn::Result<TokenStream> {
    let Function {
        attributes,
        visibility,
        ..
    } = function;
    let mut errors = Errors::default();
    // Both are looked at before one of them can end this.
    errors.take(options.mode(function.signature.asyncness.is_some()));
    let signature = errors.take(Signature::new(&function.signature, None));
    let Some(signature) = errors.finish(signature)? else {
        return Ok(TokenStream::new());
    };

    let ident = &signature.ident;
    let plain = ident.unraw().to_string();
    let marker = Marker {
        ident,
        name: match &options.name {
            Some(name) => quote!(#name),
            None => quote!(::core::concat!(::core::module_path!(), "::", #plain)),
        },
        python: options.python.as_ref().map(syn::LitStr::value),
        description: signature.describe(),
        signature: &signature,
        options,
        path: quote!(#ident),
        this: None,
    };
    let implementation = marker.implement()?;

    let last = format!("Calls `{plain}` on another worker.");
    let documentation = attributes::documentation(attributes, &last);
    let carried = attributes::carried(attributes);
    let cfg = attributes::cfg(attributes);
    let of_type = attributes::of_type(attributes);
    let visibility = types::at(Span::call_site(), quote!(#visibility));
    let (parameters, tuple, call) = (signature.parameters(), signature.tuple(), signature.call());
    let to = Ident::new("to", Span::mixed_site());
    Ok(quote! {
        #of_type
        #[doc = #last]
        #[allow(non_camel_case_types, missing_debug_implementations)]
        #visibility struct #ident {}

        #cfg
        const _: () = {
            impl #ident {
                #documentation
                #carried
                #[allow(
                    dead_code,
                    clippy::double_must_use,
                    clippy::too_many_arguments,
                    clippy::used_underscore_binding
                )]
                #[track_caller]
                #visibility fn on(#to: &::farref::Peer, #parameters) -> #call {
                    ::farref::__private::call::<Self, _>(#to, #tuple)
                }
            }

            #implementation
        };
    })
}
