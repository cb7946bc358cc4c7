//! What a function takes and returns, and whether it can be remote.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{FnArg, GenericArgument, Ident, Pat, PatType, PathArguments, ReceiverKind, ReturnType};
use syn::{Safety, Type};

use crate::errors::{Errors, error, error_over};
use crate::text;
use crate::types::{self, StreamMaker, Use};

/// serde implements its traits for tuples up to this size.
pub(crate) const MOST_ARGUMENTS: usize = 16;

/// A function that can be remote.
pub(crate) struct Signature {
    pub(crate) ident: Ident,
    pub(crate) is_async: bool,
    pub(crate) receiver: Receiver,
    pub(crate) arguments: Vec<Argument>,
    /// What it returns; of a `Result`, the good part; of a stream, what it is from afar.
    pub(crate) output: Type,
    /// Whether the function itself returns a stream in its place.
    pub(crate) stream: Option<StreamMaker>,
    /// If it returns a `Result`, what its errors are.
    pub(crate) error: Option<ErrorType>,
    /// The return type as declared, for people.
    returns: String,
}

/// What a function is called on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receiver {
    None,
    Shared,
    Exclusive,
}

/// The errors of a function.
pub(crate) struct ErrorType {
    /// Their type.
    pub(crate) ty: TokenStream,
    /// Whether the signature says what it is, and not only an alias elsewhere.
    is_said: bool,
    /// Whether they may be sent as what they are: nothing that is borrowed is, nor what has no name.
    pub(crate) is_owned: bool,
    /// Where it is declared.
    pub(crate) at: Span,
}

/// An argument other than `self`.
pub(crate) struct Argument {
    /// What the generated functions call it.
    pub(crate) name: Ident,
    pub(crate) ty: Type,
}

impl Signature {
    /// Looks at a declaration. `this` is the type in whose impl block it is.
    pub(crate) fn new(declared: &syn::Signature, this: Option<&Type>) -> syn::Result<Self> {
        let mut errors = Errors::default();
        refuse_qualifiers(declared, this.is_some(), &mut errors);
        let receiver = receiver(declared, this, &mut errors);
        let arguments = arguments(declared, this, &mut errors);

        let returned = match &declared.output {
            ReturnType::Default => syn::parse2(types::at(declared.ident.span(), quote!(())))?,
            ReturnType::Type(_, ty) => explicit(ty, this)?,
        };
        let returns = match &declared.output {
            ReturnType::Default => String::new(),
            ReturnType::Type(..) => format!(" -> {}", text::of(returned.to_token_stream())),
        };
        let (returned, stream) = with_stream(returned);
        let (output, error) = match good_part(&returned) {
            Some((output, error)) => (output.clone(), Some(error)),
            None => (returned, None),
        };
        types::check(&output, Use::Output, &mut errors);

        errors.finish(Self {
            ident: declared.ident.clone(),
            is_async: declared.asyncness.is_some(),
            receiver,
            arguments,
            output,
            stream,
            error,
            returns,
        })
    }

    /// How it is declared, for people: `add(a: i64, b: i64) -> i64`.
    pub(crate) fn describe(&self) -> String {
        let receiver = match self.receiver {
            Receiver::None => None,
            Receiver::Shared => Some("&self".to_owned()),
            Receiver::Exclusive => Some("&mut self".to_owned()),
        };
        let arguments = self.arguments.iter().map(|argument| {
            format!(
                "{}: {}",
                argument.name,
                text::of(argument.ty.to_token_stream())
            )
        });
        let all: Vec<_> = receiver.into_iter().chain(arguments).collect();
        format!("{}({}){}", self.ident.unraw(), all.join(", "), self.returns)
    }

    /// The arguments as a generated function declares them.
    pub(crate) fn parameters(&self) -> TokenStream {
        let names = self.arguments.iter().map(|argument| &argument.name);
        let types = self.arguments.iter().map(|argument| &argument.ty);
        quote!(#(#names: #types),*)
    }

    /// What building a call of it returns.
    pub(crate) fn call(&self) -> TokenStream {
        let output = &self.output;
        match &self.error {
            // `anyhow::Result<T>` and its like say nothing that a caller could use, and of what is borrowed a call
            // would borrow, too.
            Some(ErrorType {
                ty,
                is_said: true,
                is_owned: true,
                ..
            }) => quote!(::farref::Call<#output, #ty>),
            _ => quote!(::farref::Call<#output>),
        }
    }

    /// The arguments as a tuple.
    pub(crate) fn tuple(&self) -> TokenStream {
        let names = self.arguments.iter().map(|argument| &argument.name);
        quote!((#(#names,)*))
    }
}

fn refuse_qualifiers(declared: &syn::Signature, in_block: bool, errors: &mut Errors) {
    let otherwise = if in_block {
        ", or leave it out with `#[remote(skip)]`"
    } else {
        ""
    };
    let mut refuse =
        |at: Span, what: &str| errors.push(error(at, format_args!("{what}{otherwise}")));

    if let Some(token) = &declared.constness {
        refuse(
            token.span(),
            "a remote function cannot be `const`: remove `const`",
        );
    }
    if let Safety::Unsafe(token) = &declared.safety {
        refuse(
            token.span(),
            "a remote function cannot be `unsafe`, since its callers are other processes: mark a safe \
             function that calls it instead",
        );
    }
    if let Some(abi) = &declared.abi {
        refuse(
            abi.extern_token.span(),
            "a remote function cannot be `extern`: remove the `extern`",
        );
    }
    if let Some(variadic) = &declared.variadic {
        refuse(
            variadic.dots.span(),
            "a remote function cannot be variadic: take a `Vec` instead of `...`",
        );
    }
    if !declared.generics.params.is_empty() {
        errors.push(error_over(
            &declared.generics.params,
            format_args!(
                "a remote function cannot be generic, since callers find it by its name: write one \
                 function for each type that is needed{otherwise}"
            ),
        ));
    } else if let Some(clause) = &declared.generics.where_clause {
        refuse(
            clause.where_token.span(),
            "a remote function cannot be generic: remove the `where` clause",
        );
    }
}

fn receiver(declared: &syn::Signature, this: Option<&Type>, errors: &mut Errors) -> Receiver {
    let Some(receiver) = declared.receiver() else {
        return Receiver::None;
    };
    if this.is_none() {
        errors.push(error(
            receiver.self_token.span(),
            "to make a method remote, put `#[farref::remote]` on its `impl` block",
        ));
        return Receiver::None;
    }
    match &receiver.kind {
        ReceiverKind::Reference(_, None, None) => return Receiver::Shared,
        ReceiverKind::Reference(_, None, Some(_)) => return Receiver::Exclusive,
        ReceiverKind::Reference(_, Some(lifetime), _) => errors.push(error(
            lifetime.span(),
            format_args!("a remote method cannot borrow from its value: remove `{lifetime}`"),
        )),
        _ => errors.push(error(
            receiver.self_token.span(),
            "a remote method is called on a value that stays where it is: take `&self` or \
             `&mut self`, or leave the method out with `#[remote(skip)]`",
        )),
    }
    Receiver::None
}

fn arguments(declared: &syn::Signature, this: Option<&Type>, errors: &mut Errors) -> Vec<Argument> {
    let mut arguments = Vec::new();
    for input in &declared.inputs {
        let FnArg::Typed(input) = input else {
            continue;
        };
        if let Some(attribute) = input.attrs.iter().find(|attribute| {
            attribute.path().is_ident("cfg") || attribute.path().is_ident("cfg_attr")
        }) {
            errors.push(error_over(
                attribute,
                "all builds must agree on the arguments of a remote function: put the `#[cfg]` on the \
                 function",
            ));
        }
        if arguments.len() == MOST_ARGUMENTS {
            errors.push(error_over(
                input,
                format_args!(
                    "a remote function has at most {MOST_ARGUMENTS} arguments: put some of them into \
                     a struct"
                ),
            ));
            break;
        }
        let Some(ty) = errors.take(explicit(&input.ty, this)) else {
            continue;
        };
        types::check(&ty, Use::Argument, errors);
        arguments.push(Argument {
            name: name(input, arguments.len()),
            ty,
        });
    }
    arguments
}

/// What the generated functions call an argument. Where the function takes it apart, it has no name.
fn name(argument: &PatType, position: usize) -> Ident {
    match &*argument.pat {
        Pat::Ident(pattern) => pattern.ident.clone(),
        _ => format_ident!("argument{position}", span = Span::mixed_site()),
    }
}

fn explicit(ty: &Type, this: Option<&Type>) -> syn::Result<Type> {
    match this {
        Some(this) => types::without_self(ty, this),
        None => Ok(ty.clone()),
    }
}

/// A type that is returned, with what a stream is from afar in the stream's place; and what makes that of it, if there is
/// one.
fn with_stream(mut returned: Type) -> (Type, Option<StreamMaker>) {
    if let Some(stream) = types::streaming(&returned) {
        return (stream.streaming, Some(stream.made_by));
    }
    if let Type::Path(path) = &mut returned
        && let Some(last) = path.path.segments.last_mut()
        && last.ident == "Result"
        && let PathArguments::AngleBracketed(arguments) = &mut last.arguments
        && let Some(GenericArgument::Type(output)) = arguments.args.first_mut()
        && let Some(stream) = types::streaming(output)
    {
        *output = stream.streaming;
        return (returned, Some(stream.made_by));
    }
    (returned, None)
}

/// If a type is called `Result`, what it holds if all is well, and its errors.
fn good_part(ty: &Type) -> Option<(&Type, ErrorType)> {
    let path = match ty {
        Type::Path(path) => path,
        Type::Group(group) => return good_part(&group.elem),
        Type::Paren(paren) => return good_part(&paren.elem),
        _ => return None,
    };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    if last.ident != "Result" {
        return None;
    }
    let mut types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    let output = types.next()?;
    let error = match types.next() {
        Some(error) => ErrorType {
            ty: error.to_token_stream(),
            is_said: true,
            is_owned: is_owned(error.to_token_stream()),
            at: error.span(),
        },
        // Only where the alias is declared it says what they are.
        None => ErrorType {
            ty: quote_spanned!(ty.span()=> <#ty as ::farref::__private::Fallible>::Error),
            is_said: false,
            is_owned: true,
            at: ty.span(),
        },
    };
    Some((output, error))
}

/// Whether a type has a name, and no reference somewhere in it, nor a lifetime other than `'static`.
fn is_owned(tokens: TokenStream) -> bool {
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        let is_owned = match token {
            TokenTree::Punct(punct) => match punct.as_char() {
                '&' => false,
                '\'' => tokens
                    .next()
                    .is_some_and(|name| name.to_string() == "static"),
                _ => true,
            },
            TokenTree::Group(group) => is_owned(group.stream()),
            TokenTree::Ident(ident) => ident != "impl",
            TokenTree::Literal(_) => true,
        };
        if !is_owned {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(declared: &str) -> Signature {
        Signature::new(&syn::parse_str(declared).unwrap(), None).unwrap()
    }

    fn method(declared: &str) -> Signature {
        let this = syn::parse_str("Table").unwrap();
        Signature::new(&syn::parse_str(declared).unwrap(), Some(&this)).unwrap()
    }

    fn messages(declared: &str, this: Option<&str>) -> Vec<String> {
        let this = this.map(|this| syn::parse_str(this).unwrap());
        match Signature::new(&syn::parse_str(declared).unwrap(), this.as_ref()) {
            Ok(_) => Vec::new(),
            Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
        }
    }

    #[test]
    fn a_signature_is_described_as_it_is_declared() {
        assert_eq!(signature("fn nothing()").describe(), "nothing()");
        assert_eq!(
            signature("async fn add(a: i64, mut b: i64) -> i64").describe(),
            "add(a: i64, b: i64) -> i64"
        );
        assert_eq!(
            signature("fn norm((x, y): (f64, f64), _: u8) -> f64").describe(),
            "norm(argument0: (f64, f64), argument1: u8) -> f64"
        );
        assert_eq!(
            signature("fn r#type(r#in: u8)").describe(),
            "type(r#in: u8)"
        );
        assert_eq!(
            method("fn merge(&mut self, other: Self) -> Result<Option<Self>, Full>").describe(),
            "merge(&mut self, other: Table) -> Result<Option<Table>, Full>"
        );
    }

    #[test]
    fn the_output_of_a_result_is_its_good_part() {
        for (declared, output, fallible) in [
            ("fn f()", "()", false),
            ("fn f() -> Vec<u8>", "Vec<u8>", false),
            ("fn f() -> Result<Vec<u8>, String>", "Vec<u8>", true),
            ("fn f() -> std::io::Result<()>", "()", true),
            (
                "fn f() -> Option<Result<u8, String>>",
                "Option<Result<u8, String>>",
                false,
            ),
            ("fn f() -> Result<u8, &'static str>", "u8", true),
            ("fn f() -> my::Result", "my::Result", false),
        ] {
            let signature = signature(declared);
            assert_eq!(
                text::of(signature.output.to_token_stream()),
                output,
                "{declared}"
            );
            assert_eq!(signature.error.is_some(), fallible, "{declared}");
        }
    }

    #[test]
    fn a_call_names_errors_that_are_said_and_borrow_nothing() {
        for (error, named) in [
            ("Refusal", true),
            ("Cow<'static, str>", true),
            ("Vec<(u8, String)>", true),
            ("&'static str", false),
            ("&str", false),
            ("Cow<'_, str>", false),
            ("Box<dyn Error + Send + '_>", false),
            ("(u8, &'static str)", false),
            ("impl Error + Send + Sync", false),
        ] {
            let call = method(&format!("fn f(&self) -> Result<u8, {error}>")).call();
            let call = text::of(call);
            let says = match named {
                true => format!("::farref::Call<u8, {error}>"),
                false => "::farref::Call<u8>".to_owned(),
            };
            assert_eq!(call, says);
        }
    }

    #[test]
    fn a_stream_is_described_as_it_is_declared_and_comes_as_a_streaming() {
        for (declared, output) in [
            (
                "fn f() -> impl Stream<Item = u8>",
                "::farref::Streaming<u8>",
            ),
            (
                "fn f() -> Result<impl Stream<Item = u8> + Send, String>",
                "::farref::Streaming<u8>",
            ),
            (
                "fn f() -> farref::Result<impl Stream<Item = u8>>",
                "::farref::Streaming<u8>",
            ),
        ] {
            let signature = signature(declared);
            assert_eq!(signature.stream, Some(StreamMaker::Items), "{declared}");
            assert_eq!(text::of(signature.output.to_token_stream()), output);
            assert_eq!(format!("fn {}", signature.describe()), declared);
        }
        assert_eq!(signature("fn f() -> Streaming<u8>").stream, None);
        let results = signature("fn f() -> farref::Result<BoxStream<'static, farref::Result<u8>>>");
        assert_eq!(results.stream, Some(StreamMaker::Results));
    }

    #[test]
    fn the_receiver_decides_who_else_may_use_the_value() {
        assert_eq!(method("fn new()").receiver, Receiver::None);
        assert_eq!(method("fn get(&self)").receiver, Receiver::Shared);
        assert_eq!(method("fn set(&mut self)").receiver, Receiver::Exclusive);
    }

    #[test]
    fn what_cannot_be_remote_is_refused_with_one_error_each() {
        for declared in [
            "const fn f()",
            "unsafe fn f()",
            "extern \"C\" fn f()",
            "fn f<T>(a: T)",
            "fn f<'a>()",
            "fn f() where u8: Copy",
            "fn f(a: impl Copy)",
            "fn f(a: &str)",
            "fn f() -> &'static str",
            "fn f() -> impl Copy",
            "fn f(#[cfg(unix)] a: u8)",
            "fn f(&self)",
        ] {
            assert_eq!(messages(declared, None).len(), 1, "{declared}");
        }
        for declared in [
            "fn f(self)",
            "fn f(mut self)",
            "fn f(self: Arc<Self>)",
            "fn f<'a>(&'static self)",
        ] {
            assert!(!messages(declared, Some("Table")).is_empty(), "{declared}");
        }
        assert_eq!(
            messages("const unsafe fn f(a: &str) -> &str", None).len(),
            4
        );
    }

    #[test]
    fn sixteen_arguments_are_taken_and_no_more() {
        let declared = |n: usize| {
            let all: Vec<_> = (0..n).map(|i| format!("a{i}: u8")).collect();
            format!("fn f({})", all.join(", "))
        };
        assert!(messages(&declared(16), None).is_empty());
        assert_eq!(messages(&declared(17), None).len(), 1);
        assert_eq!(messages(&declared(20), None).len(), 1);
    }
}
