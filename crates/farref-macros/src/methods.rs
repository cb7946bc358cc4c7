//! The functions of an impl block: `Table::new_on(&peer, 8)` and `table.get(3)`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::{Ident, LitStr, Meta, Type, Visibility};

use crate::attributes;
use crate::block::{Block, Method};
use crate::errors::{Errors, error};
use crate::marker::Marker;
use crate::options::{Options, Place};
use crate::signature::{Receiver, Signature};
use crate::types;

/// What an `RRef` can do itself or by way of the prelude: that would be called instead, or neither could
/// be.
const TAKEN: [&str; 18] = [
    "backward",
    "cast",
    "clone",
    "clone_from",
    "clone_into",
    "confirmed",
    "eq",
    "id",
    "into",
    "is_owner",
    "local",
    "local_mut",
    "ne",
    "owner",
    "owner_gone",
    "to_here",
    "to_owned",
    "try_into",
];

/// What comes next to the block.
pub(crate) fn expand(block: &Block, options: &Options) -> syn::Result<TokenStream> {
    let (name, described) = block.name()?;
    let names = Names {
        this: &block.this,
        described: &described,
        prefix: options.name.as_ref(),
        class: options.python.as_ref().map(LitStr::value),
    };
    let mut errors = Errors::default();
    let mut remotes = Vec::new();
    for method in block.methods() {
        if let Some(Some(remote)) = errors.take(Remote::new(method, &block.this, options)) {
            remotes.push(remote);
        }
    }
    let remotes = errors.finish(remotes)?;
    if remotes.is_empty() {
        return Err(error(
            block.impl_token.span,
            "no function of this block is remote: make one `pub`, or mark it `#[remote]`",
        ));
    }

    let cfg = attributes::cfg(&block.attributes);
    let markers = remotes
        .iter()
        .map(|remote| remote.marker(&names))
        .collect::<syn::Result<TokenStream>>()?;
    let siblings: TokenStream = remotes
        .iter()
        .map(|remote| remote.sibling(&names))
        .collect();
    let trait_name = match &options.trait_name {
        Some(chosen) => chosen.clone(),
        None => format_ident!("{}RRef", name.unraw(), span = name.span()),
    };
    let (definitions, implementations) = far_traits(&trait_name, &remotes, &names, &cfg);
    let this = &block.this;
    let class = names.class.as_ref().map(|class| class_of(class, &names));
    let hint = match (&options.trait_name, definitions.is_empty()) {
        (None, false) => Some(hint(&name, &cfg)),
        _ => None,
    };
    Ok(quote! {
        #hint

        #definitions

        #cfg
        const _: () = {
            #markers
            #class

            impl #this {
                #siblings
            }

            #implementations
        };
    })
}

/// Says what to do if another block of the type has made a trait of the same name, which the compiler's
/// error about it does not: that error is about this one, too.
fn hint(name: &Ident, cfg: &TokenStream) -> TokenStream {
    let hint = format_ident!(
        "__every_further_remote_impl_block_of_{}_here_needs_the_option_trait",
        name.unraw(),
        span = name.span()
    );
    quote! {
        #cfg
        #[doc(hidden)]
        #[allow(dead_code, non_camel_case_types)]
        struct #hint;
    }
}

/// A method that tells Python workers which of their classes the value stands for.
fn class_of(class: &str, names: &Names<'_>) -> TokenStream {
    let Names {
        this, described, ..
    } = names;
    let foreign = format!("{class}.__class__");
    let signature = format!("{described}::__class__(&self)");
    quote! {
        #[allow(non_camel_case_types)]
        struct __farref_class {}

        impl ::farref::__private::Function for __farref_class {
            const NAME: &'static ::core::primitive::str =
                ::core::concat!(::core::module_path!(), "::", #described, "::__class__");
            const SIGNATURE: &'static ::core::primitive::str = #signature;
            const TIMEOUT: ::core::option::Option<::core::time::Duration> =
                ::core::option::Option::None;
            const MODE: ::farref::__private::Mode = ::farref::__private::Mode::Task;
            const FOREIGN_NAME: ::core::option::Option<&'static ::core::primitive::str> =
                ::core::option::Option::Some(#foreign);
            type Access = ::farref::__private::Shared<#this>;
            type Arguments = ();
            type Output = ::farref::__private::ForeignClass;

            async fn run(
                _: ::farref::Ref<#this>,
                (): (),
            ) -> ::core::result::Result<Self::Output, ::farref::__private::Failure> {
                ::core::result::Result::Ok(::farref::__private::ForeignClass(#class))
            }

            fn encoder() -> ::core::option::Option<::farref::__private::Encode<Self::Output>> {
                use ::farref::__private::{CanEncode as _, CannotEncode as _};
                (&::farref::__private::Probe::<Self::Output>::new()).encoder()
            }
        }

        ::farref::__private::inventory::submit! {
            ::farref::__private::FunctionRegistration::of::<__farref_class>()
        }
    }
}

/// What the functions of the block are called after.
struct Names<'a> {
    this: &'a Type,
    /// The type, for people.
    described: &'a str,
    /// What names begin with, if the user said so.
    prefix: Option<&'a LitStr>,
    /// What Python workers call the type.
    class: Option<String>,
}

/// A function that is to be remote.
struct Remote<'a> {
    method: &'a Method,
    signature: Signature,
    options: Options,
    /// The type that stands for it.
    marker: Ident,
}

impl<'a> Remote<'a> {
    /// Looks at a function of a block; `None` if it is not to be remote.
    fn new(method: &'a Method, this: &Type, block: &Options) -> syn::Result<Option<Self>> {
        let options = match &method.ours[..] {
            [] if matches!(method.visibility, Visibility::Inherited) => return Ok(None),
            [] => Options::default(),
            [ours] => match &ours.meta {
                Meta::Path(_) => Options::default(),
                Meta::List(list) => Options::parse(list.tokens.clone(), Place::Method)?,
                Meta::NameValue(meta) => {
                    return Err(error(
                        meta.eq_token.span,
                        "put options in parentheses: `#[remote(..)]`",
                    ));
                }
            },
            [_, second, ..] => {
                return Err(error(
                    second.pound_token.span,
                    "this attribute is there twice: put all options into one",
                ));
            }
        };
        if options.skip {
            return Ok(None);
        }
        let options = options.within(block);
        let mut errors = Errors::default();
        errors.take(options.mode(method.signature.asyncness.is_some()));
        let signature = errors.take(Signature::new(&method.signature, Some(this)));
        let ident = &method.signature.ident;
        if method.signature.receiver().is_some() && TAKEN.iter().any(|taken| ident == taken) {
            errors.push(error(
                ident.span(),
                format_args!(
                    "`RRef` has a method `{ident}` of its own, which would be called instead: \
                     rename this one, or leave it out with `#[remote(skip)]`"
                ),
            ));
        }
        let marker = format_ident!("__farref_{}", ident.unraw(), span = Span::call_site());
        let remote = signature.map(|signature| Self {
            method,
            signature,
            options,
            marker,
        });
        errors.finish(remote)
    }

    /// The type that stands for the function.
    fn marker(&self, names: &Names<'_>) -> syn::Result<TokenStream> {
        let Names {
            this,
            described,
            prefix,
            class,
        } = names;
        let (ident, marker) = (&self.signature.ident, &self.marker);
        let plain = ident.unraw().to_string();
        let name = match (&self.options.name, prefix) {
            (Some(name), _) => quote!(#name),
            (None, Some(prefix)) => quote!(::core::concat!(#prefix, "::", #plain)),
            (None, None) => {
                quote!(::core::concat!(::core::module_path!(), "::", #described, "::", #plain))
            }
        };
        // A class is called to make an object of it, which here is what `new` does.
        let is_constructor = plain == "new" && self.signature.receiver == Receiver::None;
        let python = match (&self.options.python, class) {
            (Some(python), _) => Some(python.value()),
            (None, Some(class)) if is_constructor => Some(class.clone()),
            (None, Some(class)) => Some(format!("{class}.{plain}")),
            (None, None) => None,
        };
        let cfg = attributes::cfg(&self.method.attributes);
        let implementation = Marker {
            ident: marker,
            name,
            python,
            description: format!("{described}::{}", self.signature.describe()),
            signature: &self.signature,
            options: &self.options,
            path: quote!(<#this>::#ident),
            this: Some(this),
        }
        .implement()?;
        Ok(quote! {
            #cfg
            const _: () = {
                #implementation
            };

            #cfg
            #[allow(non_camel_case_types)]
            struct #marker {}
        })
    }

    /// The associated function next to the function.
    fn sibling(&self, names: &Names<'_>) -> TokenStream {
        let Self {
            method,
            signature,
            marker,
            ..
        } = self;
        let ident = format_ident!(
            "{}_on",
            signature.ident.unraw(),
            span = signature.ident.span()
        );
        let plain = signature.ident.unraw();
        let this = names.this;
        let (to, to_type, call, last) = match signature.receiver {
            Receiver::None => (
                "to",
                quote!(::farref::Peer),
                quote!(::farref::__private::call),
                format!("Calls [`{plain}`](Self::{plain}) on another worker."),
            ),
            _ => (
                "on",
                quote!(::farref::RRef<#this>),
                quote!(::farref::__private::call_method),
                format!("Calls [`{plain}`](Self::{plain}) on a far value."),
            ),
        };
        let to = Ident::new(to, Span::mixed_site());
        let documentation = attributes::documentation(&method.attributes, &last);
        let carried = attributes::carried(&method.attributes);
        let visibility = moved(&method.visibility);
        let (parameters, tuple) = (signature.parameters(), signature.tuple());
        let returns = signature.call();
        quote! {
            #documentation
            #carried
            #[allow(dead_code, clippy::double_must_use, clippy::too_many_arguments)]
            #[track_caller]
            #visibility fn #ident(#to: &#to_type, #parameters) -> #returns {
                #call::<#marker, _>(#to, #tuple)
            }
        }
    }

    /// The method of the far reference, without a body.
    fn method(&self) -> TokenStream {
        let ident = &self.signature.ident;
        let (parameters, returns) = (self.signature.parameters(), self.signature.call());
        quote! {
            #[allow(clippy::double_must_use, clippy::too_many_arguments)]
            #[track_caller]
            fn #ident(&self, #parameters) -> #returns
        }
    }
}

/// The traits with the methods of the far reference, and their implementations. A trait has one
/// visibility, so there is one for each: those who may not call a method do not get it with another one.
fn far_traits(
    name: &Ident,
    remotes: &[Remote<'_>],
    names: &Names<'_>,
    cfg: &TokenStream,
) -> (TokenStream, TokenStream) {
    let mut methods: Vec<_> = remotes
        .iter()
        .filter(|remote| remote.signature.receiver != Receiver::None)
        .map(|remote| (Reach::of(&remote.method.visibility), remote))
        .collect();
    // The widest ones have the name that everybody knows. Otherwise they stay in their order.
    methods.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut all = (TokenStream::new(), TokenStream::new());
    for (index, methods) in methods
        .chunk_by(|(one, _), (other, _)| one == other)
        .enumerate()
    {
        let name = match (index, methods) {
            (1.., [(reach, _), ..]) => &format_ident!("{name}{}", reach.word()),
            _ => name,
        };
        let methods: Vec<_> = methods.iter().map(|(_, remote)| *remote).collect();
        let (definition, implementation) = far_trait(name, &methods, names);
        all.0.extend(quote!(#cfg #definition));
        all.1.extend(implementation);
    }
    all
}

/// One trait with methods of one visibility, and its implementation.
fn far_trait(
    name: &Ident,
    methods: &[&Remote<'_>],
    names: &Names<'_>,
) -> (Option<TokenStream>, Option<TokenStream>) {
    let Some(first) = methods.first() else {
        return (None, None);
    };
    let Names {
        this, described, ..
    } = names;
    let declared = methods.iter().map(|remote| {
        let attributes = &remote.method.attributes;
        let last = format!(
            "Calls `{described}::{}` where the value is.",
            remote.signature.ident.unraw()
        );
        let documentation = attributes::documentation(attributes, &last);
        let carried = attributes::carried(attributes);
        let method = remote.method();
        quote!(#documentation #carried #method;)
    });
    let defined = methods.iter().map(|remote| {
        let cfg = attributes::cfg(&remote.method.attributes);
        let (method, marker) = (remote.method(), &remote.marker);
        let tuple = remote.signature.tuple();
        quote! {
            #cfg
            #method {
                ::farref::__private::call_method::<#marker, _>(self, #tuple)
            }
        }
    });
    let visibility = moved(&first.method.visibility);
    let about = format!("The methods of `{described}` on a far reference to one.");
    let definition = quote! {
        #[doc = #about]
        #[allow(dead_code)]
        #visibility trait #name {
            #(#declared)*
        }
    };
    let implementation = quote! {
        impl #name for ::farref::RRef<#this> {
            #(#defined)*
        }
    };
    (Some(definition), Some(implementation))
}

/// From where a method can be called: the widest first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Reach {
    Everywhere,
    Crate,
    /// In a module, by its path.
    In(Vec<String>),
    Parent,
    Here,
}

impl Reach {
    fn of(visibility: &Visibility) -> Self {
        let within = match visibility {
            Visibility::Public(_) => return Self::Everywhere,
            Visibility::Inherited => return Self::Here,
            Visibility::Restricted(within) => within,
        };
        let path = &within.path;
        if path.is_ident("crate") {
            Self::Crate
        } else if path.is_ident("super") {
            Self::Parent
        } else if path.is_ident("self") {
            Self::Here
        } else {
            let segments = path.segments.iter();
            Self::In(segments.map(|one| one.ident.unraw().to_string()).collect())
        }
    }

    /// What the trait with such methods has at the end of its name, if wider ones are there.
    fn word(&self) -> String {
        match self {
            Self::Everywhere => String::new(),
            Self::Crate => "Crate".to_owned(),
            Self::In(path) => format!(
                "In{}",
                path.iter().map(|one| capital(one)).collect::<String>()
            ),
            Self::Parent => "Super".to_owned(),
            Self::Here => "Private".to_owned(),
        }
    }
}

/// `parameter_server` becomes `ParameterServer`.
fn capital(word: &str) -> String {
    word.split('_')
        .map(|part| {
            let (first, rest) = part.split_at(part.chars().next().map_or(0, char::len_utf8));
            first.to_uppercase() + rest
        })
        .collect()
}

/// Lints about visibility are for what the user wrote.
fn moved(visibility: &Visibility) -> TokenStream {
    types::at(Span::call_site(), visibility.to_token_stream())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The methods of `RRef` itself, read from where they are defined: in the files of `farref`'s `api`.
    fn methods_of_rref() -> Vec<String> {
        let api = Path::new(env!("CARGO_MANIFEST_DIR")).join("../farref/src/api");
        let (mut folders, mut items) = (vec![api], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("the crate next to this one") {
                let path = entry.expect("a file or a folder").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(path).expect("text");
                items.extend(syn::parse_file(&text).expect("Rust").items);
            }
        }
        let mut found = Vec::new();
        for item in items {
            let syn::Item::Impl(block) = item else {
                continue;
            };
            let this = &block.self_ty;
            if !quote!(#this).to_string().starts_with("RRef <") {
                continue;
            }
            for item in block.items {
                if let syn::ImplItem::Fn(method) = item
                    && method.sig.receiver().is_some()
                    && matches!(method.vis, Visibility::Public(_))
                {
                    found.push(method.sig.ident.to_string());
                }
            }
        }
        found
    }

    #[test]
    fn no_method_of_rref_can_hide_a_remote_one() {
        let found = methods_of_rref();
        assert!(found.contains(&"to_here".to_owned()), "{found:?}");
        for method in found {
            assert!(
                TAKEN.contains(&&*method),
                "`RRef::{method}` would be called instead of a remote `{method}`: add it to `TAKEN`"
            );
        }
    }

    #[test]
    fn visibilities_are_told_apart_and_the_widest_come_first() {
        let reach = |text: &str| Reach::of(&syn::parse_str(text).unwrap());
        let sorted = [
            ("pub", ""),
            ("pub(crate)", "Crate"),
            ("pub(in crate::table_store::rows)", "InCrateTableStoreRows"),
            ("pub(super)", "Super"),
            ("pub(self)", "Private"),
        ];
        for pair in sorted.windows(2) {
            assert!(reach(pair[0].0) < reach(pair[1].0), "{pair:?}");
        }
        for (visibility, word) in sorted {
            assert_eq!(reach(visibility).word(), word);
        }
        for (one, other) in [
            ("pub(in crate)", "pub(crate)"),
            ("pub(in super)", "pub(super)"),
            ("pub(in self)", "pub(self)"),
            ("", "pub(self)"),
        ] {
            assert_eq!(reach(one), reach(other));
        }
    }
}
