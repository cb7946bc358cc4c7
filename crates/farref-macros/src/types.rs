//! The types of arguments and outputs: what may be in them, and `Self` made explicit.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    GenericArgument, Lifetime, PathArguments, PathSegment, Type, TypeImplTrait, TypeInfer,
    TypeNever, TypeParamBound, TypeReference,
};

use crate::errors::{Errors, error, error_over};
use crate::text;

/// What a type is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Argument,
    Output,
}

/// Finds what the generated code could not name, or could not send.
pub(crate) fn check(ty: &Type, used: Use, errors: &mut Errors) {
    Check { used, errors }.visit_type(ty);
}

struct Check<'a> {
    used: Use,
    errors: &'a mut Errors,
}

impl<'ast> Visit<'ast> for Check<'_> {
    fn visit_type_reference(&mut self, reference: &'ast TypeReference) {
        let written = text::of(reference.to_token_stream());
        let owned = owned(&reference.elem);
        self.errors.push(error_over(
            reference,
            match self.used {
                Use::Argument => format!(
                    "an argument of a remote function cannot be a reference, since it is sent to \
                     another worker: take an owned value, such as `{owned}` instead of `{written}`"
                ),
                Use::Output => format!(
                    "a remote function cannot return a reference, since what it returns leaves or \
                     outlives the call: return an owned value, such as `{owned}` instead of \
                     `{written}`"
                ),
            },
        ));
    }

    fn visit_lifetime(&mut self, lifetime: &'ast Lifetime) {
        if lifetime.ident != "static" {
            self.errors.push(error(
                lifetime.span(),
                format_args!(
                    "a remote function cannot borrow: use a type without `{lifetime}`, or `'static` \
                     in its place"
                ),
            ));
        }
    }

    fn visit_type_impl_trait(&mut self, ty: &'ast TypeImplTrait) {
        self.errors.push(error_over(
            ty,
            match self.used {
                Use::Argument if is_stream(ty) => {
                    "a remote function cannot take `impl Stream`, since what comes from another worker may \
                     fail on its way: take a `farref::Streaming` of its items, which are results then"
                }
                Use::Argument => {
                    "a remote function cannot take `impl Trait`, since both sides must know the \
                     type: name one"
                }
                Use::Output if is_stream(ty) => {
                    "both sides must know what the stream's items are, and the stream must be all that is \
                     returned, or what is in a `Result`: return `impl Stream<Item = ..>`, or a \
                     `farref::Streaming`"
                }
                Use::Output => {
                    "a remote function cannot return `impl Trait`, since both sides must know the \
                     type: name a type that can be sent, such as a `Vec` of what it yields"
                }
            },
        ));
    }

    fn visit_type_never(&mut self, ty: &'ast TypeNever) {
        self.errors.push(error(
            ty.span(),
            "a remote function must be able to return: use a type such as `()` instead of `!`",
        ));
    }

    fn visit_type_infer(&mut self, ty: &'ast TypeInfer) {
        self.errors.push(error(
            ty.span(),
            "name the type here: both sides must know it",
        ));
    }

    fn visit_type_fn_ptr(&mut self, _: &'ast syn::TypeFnPtr) {
        // Its references and lifetimes are its own affair.
    }

    fn visit_type_trait_object(&mut self, ty: &'ast syn::TypeTraitObject) {
        // As in `dyn Fn(&str) -> &str`.
        for bound in &ty.bounds {
            if let TypeParamBound::Lifetime(lifetime) = bound {
                self.visit_lifetime(lifetime);
            }
        }
    }

    fn visit_expr(&mut self, _: &'ast syn::Expr) {
        // The length of an array.
    }

    fn visit_type(&mut self, ty: &'ast Type) {
        visit::visit_type(self, ty);
    }
}

/// Whether it is some stream.
fn is_stream(ty: &TypeImplTrait) -> bool {
    stream_bound(&ty.bounds).is_some()
}

/// What is said of the stream, if it is one.
fn stream_bound<'a>(
    bounds: impl IntoIterator<Item = &'a TypeParamBound>,
) -> Option<&'a PathSegment> {
    bounds.into_iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => {
            let last = bound.path.segments.last()?;
            (last.ident == "Stream").then_some(last)
        }
        _ => None,
    })
}

/// A stream that is returned as what it is where it is made.
pub(crate) struct StreamType {
    /// What comes from afar in its place: a `farref::Streaming`.
    pub(crate) streaming: Type,
    /// What it is made with.
    pub(crate) made_by: StreamMaker,
}

/// What makes a `farref::Streaming` of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamMaker {
    /// `new`
    Items,
    /// `of_results`: an error is no item, and ends it.
    Results,
}

/// If a type is `impl Stream<Item = T>`, or a box of one: what comes from afar in its place.
pub(crate) fn streaming(ty: &Type) -> Option<StreamType> {
    let item = match ty {
        Type::Group(group) => return streaming(&group.elem),
        Type::Paren(paren) => return streaming(&paren.elem),
        Type::ImplTrait(ty) => item_of(stream_bound(&ty.bounds)?)?,
        Type::Path(path) => boxed_item(path.path.segments.last()?)?,
        _ => return None,
    };
    let (item, made_by) = match result_of_farref(item) {
        Some(item) => (item, StreamMaker::Results),
        None => (item, StreamMaker::Items),
    };
    let streaming = syn::parse2(quote_spanned!(ty.span()=> ::farref::Streaming<#item>)).ok()?;
    Some(StreamType { streaming, made_by })
}

/// `T` of `Stream<Item = T>`.
fn item_of(stream: &PathSegment) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = &stream.arguments else {
        return None;
    };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(item) if item.ident == "Item" => Some(&item.ty),
        _ => None,
    })
}

/// `T` of `BoxStream<'static, T>`, `Pin<Box<dyn Stream<Item = T> + Send>>`, and without the `Pin`.
fn boxed_item(outer: &PathSegment) -> Option<&Type> {
    let inner = *types_in(outer).first()?;
    if outer.ident == "BoxStream" {
        return Some(inner);
    }
    match inner {
        Type::Path(path) if outer.ident == "Pin" => {
            let inner = path.path.segments.last()?;
            (inner.ident == "Box").then(|| boxed_item(inner))?
        }
        Type::TraitObject(object) if outer.ident == "Box" => item_of(stream_bound(&object.bounds)?),
        _ => None,
    }
}

/// `T` of `farref::Result<T>` and `Result<T, farref::Error>`. What else is called `Result` may have errors that can be
/// sent, which are items like others.
fn result_of_farref(item: &Type) -> Option<&Type> {
    let Type::Path(path) = item else {
        return None;
    };
    let last = path.path.segments.last()?;
    if last.ident != "Result" {
        return None;
    }
    let is_farrefs = |path: &syn::Path| {
        let mut segments = path.segments.iter().rev().skip(1);
        segments.next().is_some_and(|of| of.ident == "farref")
    };
    match types_in(last)[..] {
        [item] => is_farrefs(&path.path).then_some(item),
        [item, Type::Path(error)] => {
            let last = error.path.segments.last()?;
            (last.ident == "Error" && is_farrefs(&error.path)).then_some(item)
        }
        _ => None,
    }
}

/// The types in the angle brackets.
fn types_in(segment: &PathSegment) -> Vec<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return Vec::new();
    };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

/// What to write instead of a reference to something.
fn owned(target: &Type) -> String {
    match target {
        Type::Slice(slice) => format!("Vec<{}>", text::of(slice.elem.to_token_stream())),
        Type::TraitObject(_) => format!("Box<{}>", text::of(target.to_token_stream())),
        _ => match text::of(target.to_token_stream()).as_str() {
            "str" => "String".to_owned(),
            "Path" => "PathBuf".to_owned(),
            other => other.to_owned(),
        },
    }
}

/// Replaces `Self`, which means something else in the generated code.
pub(crate) fn without_self(ty: &Type, this: &Type) -> syn::Result<Type> {
    syn::parse2(replace_self(ty.to_token_stream(), this))
}

fn replace_self(tokens: TokenStream, this: &Type) -> TokenStream {
    let mut replaced = TokenStream::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(ident) if ident == "Self" => {
                let this = at(ident.span(), this.to_token_stream());
                let is_path =
                    matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == ':');
                replaced.extend(if is_path { quote!(<#this>) } else { this });
            }
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), replace_self(group.stream(), this));
                inner.set_span(group.span());
                replaced.extend([TokenTree::Group(inner)]);
            }
            other => replaced.extend([other]),
        }
    }
    replaced
}

/// The tokens as if they stood at another place.
pub(crate) fn at(place: Span, tokens: TokenStream) -> TokenStream {
    let moved = tokens.into_iter().map(|token| {
        let mut token = match token {
            TokenTree::Group(group) => {
                TokenTree::Group(Group::new(group.delimiter(), at(place, group.stream())))
            }
            other => other,
        };
        token.set_span(place);
        token
    });
    moved.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(ty: &str, used: Use) -> Vec<String> {
        let mut errors = Errors::default();
        check(&syn::parse_str(ty).unwrap(), used, &mut errors);
        match errors.finish(()) {
            Ok(()) => Vec::new(),
            Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
        }
    }

    #[test]
    fn owned_types_may_be_arguments_and_outputs() {
        for ty in [
            "i64",
            "Vec<(u8, [f32; 4])>",
            "Cow<'static, str>",
            "Box<dyn Fn(&str) -> u8>",
        ] {
            assert!(messages(ty, Use::Argument).is_empty(), "{ty}");
            assert!(messages(ty, Use::Output).is_empty(), "{ty}");
        }
    }

    #[test]
    fn references_are_refused_wherever_they_are_and_answered_with_an_owned_type() {
        for (ty, advice) in [
            ("&str", "`String` instead of `&str`"),
            ("Option<&'static str>", "`String` instead of `&'static str`"),
            ("(u8, &[Vec<u8>])", "`Vec<Vec<u8>>` instead of `&[Vec<u8>]`"),
            ("&mut Config", "`Config` instead of `&mut Config`"),
            ("&dyn Error", "`Box<dyn Error>` instead of `&dyn Error`"),
        ] {
            for used in [Use::Argument, Use::Output] {
                let found = messages(ty, used);
                assert_eq!(found.len(), 1, "{ty}: {found:?}");
                assert!(found[0].ends_with(advice), "{ty}: {found:?}");
            }
        }
    }

    #[test]
    fn types_that_cannot_be_named_are_refused() {
        for ty in [
            "Cow<'a, str>",
            "Ref<'_, u8>",
            "impl Fn()",
            "Vec<impl Copy>",
            "!",
            "Vec<_>",
        ] {
            assert_eq!(messages(ty, Use::Argument).len(), 1, "{ty}");
        }
    }

    #[test]
    fn a_stream_of_known_items_comes_from_afar_as_one() {
        let streaming = |ty: &str| {
            let stream = streaming(&syn::parse_str(ty).unwrap())?;
            Some((text::of(stream.streaming.to_token_stream()), stream.made_by))
        };
        let (items, results) = (StreamMaker::Items, StreamMaker::Results);
        for (ty, expected, made_by) in [
            ("impl Stream<Item = u64>", "::farref::Streaming<u64>", items),
            (
                "impl Send + futures::Stream<Item = Result<Vec<u8>, E>> + use<>",
                "::farref::Streaming<Result<Vec<u8>, E>>",
                items,
            ),
            (
                "impl Stream<Item = Result<u64>>",
                "::farref::Streaming<Result<u64>>",
                items,
            ),
            (
                "impl Stream<Item = farref::Result<u64>>",
                "::farref::Streaming<u64>",
                results,
            ),
            (
                "impl Stream<Item = std::result::Result<u64, farref::Error>> + Send",
                "::farref::Streaming<u64>",
                results,
            ),
            (
                "impl Stream<Item = farref::Result<u64, String>>",
                "::farref::Streaming<farref::Result<u64, String>>",
                items,
            ),
            (
                "futures::stream::BoxStream<'static, u64>",
                "::farref::Streaming<u64>",
                items,
            ),
            (
                "Pin<Box<dyn Stream<Item = farref::Result<u64>> + Send>>",
                "::farref::Streaming<u64>",
                results,
            ),
            (
                "Box<dyn Stream<Item = u64> + Send + Unpin>",
                "::farref::Streaming<u64>",
                items,
            ),
        ] {
            assert_eq!(streaming(ty), Some((expected.to_owned(), made_by)), "{ty}");
        }
        for ty in [
            "impl Stream",
            "impl Iterator<Item = u8>",
            "Stream<Item = u8>",
            "Pin<Box<dyn Iterator<Item = u8>>>",
            "Vec<Box<dyn Stream<Item = u8>>>",
            "BoxStream",
            "Box<u8>",
            "u8",
        ] {
            assert_eq!(streaming(ty), None, "{ty}");
        }
        for (ty, used, advice) in [
            (
                "impl Stream<Item = u8>",
                Use::Argument,
                "`farref::Streaming`",
            ),
            ("impl Stream", Use::Output, "`impl Stream<Item = ..>`"),
            (
                "Vec<impl Stream<Item = u8>>",
                Use::Output,
                "`farref::Streaming`",
            ),
        ] {
            let found = messages(ty, used);
            assert_eq!(found.len(), 1, "{ty}: {found:?}");
            assert!(found[0].contains(advice), "{ty}: {found:?}");
        }
    }

    #[test]
    fn self_becomes_the_type() {
        let this = syn::parse_str("Table<f32>").unwrap();
        for (ty, expected) in [
            ("Self", "Table<f32>"),
            ("Option<(Self, u8)>", "Option<(Table<f32>, u8)>"),
            ("[f32; Self::ROWS]", "[f32; <Table<f32>>::ROWS]"),
            ("Selfish", "Selfish"),
        ] {
            let replaced = without_self(&syn::parse_str(ty).unwrap(), &this).unwrap();
            assert_eq!(text::of(replaced.to_token_stream()), expected);
        }
    }
}
