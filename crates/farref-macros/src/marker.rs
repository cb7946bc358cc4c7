//! The type that stands for a remote function, and how it is one.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Ident, Type};

use crate::options::{Mode, Options};
use crate::signature::{Argument, ErrorType, MOST_ARGUMENTS, Receiver, Signature};
use crate::types::{self, StreamMaker};

/// All that `farref` must know of a function.
pub(crate) struct Marker<'a> {
    /// The type that stands for it.
    pub(crate) ident: &'a Ident,
    /// What callers ask for: an expression.
    pub(crate) name: TokenStream,
    /// What Python workers call it.
    pub(crate) python: Option<String>,
    /// How it is declared, for people.
    pub(crate) description: String,
    pub(crate) signature: &'a Signature,
    pub(crate) options: &'a Options,
    /// How to call it.
    pub(crate) path: TokenStream,
    /// The type in whose impl block it is.
    pub(crate) this: Option<&'a Type>,
}

impl Marker<'_> {
    /// Implements `Function` for the type, and puts it on the program's list.
    pub(crate) fn implement(&self) -> syn::Result<TokenStream> {
        let Self {
            ident,
            name,
            description,
            signature,
            ..
        } = self;
        let mode = self.mode()?;
        let timeout = self.timeout();
        let python = self.python.as_ref().map(|python| {
            quote! {
                const FOREIGN_NAME: ::core::option::Option<&'static ::core::primitive::str> =
                    ::core::option::Option::Some(#python);
            }
        });
        let parameters = signature
            .arguments
            .iter()
            .map(|argument| argument.name.unraw().to_string());
        let (access, arguments, returned) = (self.access(), self.arguments(), self.output());
        let each_argument = self.each_argument();
        let output = &signature.output;
        let run = self.run();
        let error = self.signature.error.as_ref().filter(|error| error.is_owned);
        let error = error.map(|ErrorType { ty, .. }| {
            quote! {
                fn error_type() -> ::core::option::Option<::farref::__private::ErrorType> {
                    use ::farref::__private::{CanRaise as _, CannotRaise as _};
                    (&::farref::__private::Probe::<#ty>::new()).error_type()
                }
            }
        });
        let each_vector = self.each_vector();
        Ok(quote! {
            #[allow(deprecated, private_interfaces, clippy::all, clippy::pedantic, clippy::nursery)]
            impl ::farref::__private::Function for #ident {
                const NAME: &'static ::core::primitive::str = #name;
                const SIGNATURE: &'static ::core::primitive::str = #description;
                const TIMEOUT: ::core::option::Option<::core::time::Duration> = #timeout;
                const MODE: ::farref::__private::Mode = #mode;
                #python
                const PARAMETERS: &'static [&'static ::core::primitive::str] = &[#(#parameters),*];
                #access
                #arguments
                #returned

                #run

                fn encoder() -> ::core::option::Option<::farref::__private::Encode<#output>> {
                    use ::farref::__private::{CanEncode as _, CannotEncode as _};
                    (&::farref::__private::Probe::<#output>::new()).encoder()
                }

                fn trace_output() {
                    use ::farref::__private::{CanTrace as _, CannotTrace as _};
                    (&::farref::__private::Probe::<#output>::new()).trace()
                }

                #each_vector
                #error
            }

            ::farref::__private::inventory::submit! {
                ::farref::__private::FunctionRegistration::of::<#ident>()
            }

            #each_argument
        })
    }

    /// Of a tuple each element may be a vector of numbers, which only this macro can see.
    fn each_vector(&self) -> Option<TokenStream> {
        let Type::Tuple(output) = &self.signature.output else {
            return None;
        };
        let is_short = (1..=MOST_ARGUMENTS).contains(&output.elems.len());
        is_short.then(|| {
            quote! {
                fn each_vector(output: &mut #output, look: ::farref::__private::Look<'_>) {
                    ::farref::__private::ArgumentList::each_vector(output, look)
                }
            }
        })
    }

    fn mode(&self) -> syn::Result<TokenStream> {
        let mode = match self.options.mode(self.signature.is_async)? {
            Mode::Task => quote!(Task),
            Mode::Blocking => quote!(Blocking),
        };
        Ok(quote!(::farref::__private::Mode::#mode))
    }

    fn timeout(&self) -> TokenStream {
        match self.options.timeout {
            None => quote!(::core::option::Option::None),
            Some(limit) => {
                let (seconds, nanoseconds) = (limit.as_secs(), limit.subsec_nanos());
                quote! {
                    ::core::option::Option::Some(
                        ::core::time::Duration::new(#seconds, #nanoseconds)
                    )
                }
            }
        }
    }

    // The compiler finds fault with these types rather than with what they are made of: each is placed
    // where the user can mend it.

    fn access(&self) -> TokenStream {
        let this = self.this;
        let access = match self.signature.receiver {
            Receiver::None => quote!(NoReceiver),
            Receiver::Shared => quote!(Shared<#this>),
            Receiver::Exclusive => quote!(Exclusive<#this>),
        };
        let at = this.map_or_else(Span::call_site, Spanned::span);
        types::at(at, quote!(type Access = ::farref::__private::#access;))
    }

    fn arguments(&self) -> TokenStream {
        let types = self.signature.arguments.iter().map(|argument| &argument.ty);
        let at = match &self.signature.arguments[..] {
            [only] => only.ty.span(),
            _ => self.signature.ident.span(),
        };
        quote_spanned!(at=> type Arguments = (#(#types,)*);)
    }

    /// Asks of every argument alone what is asked of all of them: the compiler does not say which one
    /// cannot be sent.
    fn each_argument(&self) -> Option<TokenStream> {
        let arguments = &self.signature.arguments[..];
        if arguments.len() < 2 {
            return None;
        }
        let asked = arguments.iter().map(|Argument { ty, .. }| {
            quote_spanned!(ty.span()=> ::farref::__private::is_sent::<#ty>();)
        });
        Some(quote! {
            const _: fn() = || {
                #(#asked)*
            };
        })
    }

    fn output(&self) -> TokenStream {
        let output = &self.signature.output;
        quote_spanned!(output.span()=> type Output = #output;)
    }

    fn run(&self) -> TokenStream {
        let Signature {
            ident,
            receiver,
            arguments,
            output,
            ..
        } = self.signature;
        let path = &self.path;
        // Names of our own: those of the user could hide the function.
        let names: Vec<_> = (0..arguments.len())
            .map(|i| Ident::new(&format!("argument{i}"), Span::mixed_site()))
            .collect();
        let this = self.this;
        let (receiver, lent) = match receiver {
            Receiver::None => (quote!((): ()), quote!()),
            Receiver::Shared => (quote!(receiver: ::farref::Ref<#this>), quote!(&receiver,)),
            Receiver::Exclusive => (
                quote!(mut receiver: ::farref::RefMut<#this>),
                quote!(&mut receiver,),
            ),
        };
        let wait = self.signature.is_async.then(|| quote!(.await));
        let called = quote!(#path(#lent #(#names),*) #wait);
        // Placed at the type, because that is what is wrong if the stream or its items cannot be sent.
        let sent = |value: TokenStream| match self.signature.stream {
            Some(StreamMaker::Items) => {
                quote_spanned!(output.span()=> ::farref::Streaming::new(#value))
            }
            Some(StreamMaker::Results) => {
                quote_spanned!(output.span()=> ::farref::Streaming::of_results(#value))
            }
            None => value,
        };
        let result = match &self.signature.error {
            None => {
                let output = sent(called);
                quote!(::core::result::Result::Ok(#output))
            }
            Some(ErrorType {
                ty, is_owned, at, ..
            }) => {
                // Placed at the error, because that is what is wrong if it cannot be converted.
                let error = Ident::new("error", *at);
                let write = Ident::new("write", Span::mixed_site());
                let failure = quote_spanned!(*at=> ::farref::__private::returned(#error, #write));
                let writer = match is_owned {
                    true => quote! {{
                        use ::farref::__private::{CanLookInside as _, CannotLookInside as _};
                        use ::farref::__private::{CanRaise as _, CannotRaise as _};
                        let probe = &::farref::__private::Probe::<#ty>::new();
                        probe.error_writer().or_else(|| probe.cause_writer())
                    }},
                    false => quote!(::core::option::Option::None),
                };
                let output = sent(quote!(output));
                quote! {
                    match #called {
                        ::core::result::Result::Ok(output) => ::core::result::Result::Ok(#output),
                        ::core::result::Result::Err(#error) => {
                            let #write = #writer;
                            ::core::result::Result::Err(#failure)
                        }
                    }
                }
            }
        };
        // Placed at the function's name, because its body is wrong if its future is not `Send`.
        let future = quote_spanned! {ident.span()=>
            impl ::core::future::Future<
                Output = ::core::result::Result<#output, ::farref::__private::Failure>,
            > + ::core::marker::Send + 'static
        };
        quote! {
            fn run(#receiver, (#(#names,)*): Self::Arguments) -> #future {
                async move { #result }
            }
        }
    }
}
