//! What the generated items take over of the attributes of the original.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Lit, Meta, Token};

/// Whether an attribute is ours, on a function inside of an impl block.
pub(crate) fn is_ours(attribute: &Attribute) -> bool {
    let segments = &attribute.path().segments;
    segments.last().is_some_and(|last| last.ident == "remote")
        && (segments.len() == 1 || segments.len() == 2 && segments[0].ident == "farref")
}

/// The attributes without which the item does not exist.
pub(crate) fn cfg(attributes: &[Attribute]) -> TokenStream {
    all(attributes, |meta| meta.path().is_ident("cfg"))
}

/// The attributes for the function that callers use, documentation apart.
pub(crate) fn carried(attributes: &[Attribute]) -> TokenStream {
    all(attributes, |meta| {
        let carried = ["cfg", "allow", "deprecated", "must_use"];
        carried.iter().any(|name| meta.path().is_ident(name)) || hides(meta)
    })
}

/// The attributes for the type next to a function: whether it exists, and whether it is shown.
pub(crate) fn of_type(attributes: &[Attribute]) -> TokenStream {
    all(attributes, |meta| {
        meta.path().is_ident("cfg") || hides(meta)
    })
}

/// `doc(hidden)`
fn hides(meta: &Meta) -> bool {
    let Meta::List(list) = meta else {
        return false;
    };
    list.path.is_ident("doc") && list.tokens.to_string() == "hidden"
}

/// The attributes that are wanted, also where they depend on something: those of a block's functions
/// come here before the compiler has looked at their conditions.
fn all(attributes: &[Attribute], wanted: impl Fn(&Meta) -> bool) -> TokenStream {
    attributes
        .iter()
        .filter_map(|attribute| filter(&attribute.meta, &wanted))
        .map(|meta| quote!(#[#meta]))
        .collect()
}

fn filter(meta: &Meta, wanted: &impl Fn(&Meta) -> bool) -> Option<TokenStream> {
    let Meta::List(list) = meta else {
        return wanted(meta).then(|| quote!(#meta));
    };
    if !list.path.is_ident("cfg_attr") {
        return wanted(meta).then(|| quote!(#meta));
    }
    let parts = |input: ParseStream<'_>| {
        let condition: Meta = input.parse()?;
        input.parse::<Token![,]>()?;
        let rest = Punctuated::<Meta, Token![,]>::parse_terminated(input)?;
        Ok((condition, rest))
    };
    // One that cannot be read is an error of the original, which has it too.
    let (condition, rest) = parts.parse2(list.tokens.clone()).ok()?;
    let rest: Vec<_> = rest
        .iter()
        .filter_map(|meta| filter(meta, wanted))
        .collect();
    (!rest.is_empty()).then(|| quote!(cfg_attr(#condition, #(#rest),*)))
}

/// The documentation for the function that callers use: that of the original up to its first heading
/// or code block (examples would be tested once more), and a last sentence.
pub(crate) fn documentation(attributes: &[Attribute], last: &str) -> TokenStream {
    let mut lines: Vec<String> = attributes.iter().filter_map(line).flat_map(split).collect();
    let end = lines.iter().position(|line| {
        let line = line.trim_start();
        line.starts_with('#') || line.starts_with("```") || line.starts_with("~~~")
    });
    lines.truncate(end.unwrap_or(lines.len()));
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines.push(format!(" {last}"));
    quote!(#(#[doc = #lines])*)
}

fn line(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// A block comment is one attribute with many lines.
fn split(text: String) -> Vec<String> {
    text.split('\n').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn documentation_ends_before_the_examples() {
        let attributes: [Attribute; 6] = [
            parse_quote!(#[doc = " Adds."]),
            parse_quote!(#[inline]),
            parse_quote!(#[doc = ""]),
            parse_quote!(#[doc = " Twice if need be."]),
            parse_quote!(#[doc = ""]),
            parse_quote!(#[doc = " # Examples"]),
        ];
        let expected = quote! {
            #[doc = " Adds."] #[doc = ""] #[doc = " Twice if need be."] #[doc = ""] #[doc = " There."]
        };
        assert_eq!(
            documentation(&attributes, "There.").to_string(),
            expected.to_string()
        );
        let expected = quote!(#[doc = " There."]);
        assert_eq!(
            documentation(&[], "There.").to_string(),
            expected.to_string()
        );
    }

    #[test]
    fn what_callers_should_know_is_carried_over_and_nothing_else() {
        let attributes: [Attribute; 9] = [
            parse_quote!(#[cfg(unix)]),
            parse_quote!(#[inline(always)]),
            parse_quote!(#[must_use = "it is the point"]),
            parse_quote!(#[doc(hidden)]),
            parse_quote!(#[doc(alias = "x")]),
            parse_quote!(#[deprecated(since = "2", note = "no")]),
            parse_quote!(#[cfg_attr(unix, inline, must_use, cfg_attr(x, doc(hidden)))]),
            parse_quote!(#[cfg_attr(unix, inline)]),
            parse_quote!(#[tracing::instrument]),
        ];
        let expected = quote! {
            #[cfg(unix)]
            #[must_use = "it is the point"]
            #[doc(hidden)]
            #[deprecated(since = "2", note = "no")]
            #[cfg_attr(unix, must_use, cfg_attr(x, doc(hidden)))]
        };
        assert_eq!(carried(&attributes).to_string(), expected.to_string());
        let expected = quote!(#[cfg(unix)]);
        assert_eq!(cfg(&attributes).to_string(), expected.to_string());
        let expected = quote! {
            #[cfg(unix)]
            #[doc(hidden)]
            #[cfg_attr(unix, cfg_attr(x, doc(hidden)))]
        };
        assert_eq!(of_type(&attributes).to_string(), expected.to_string());
    }

    #[test]
    fn both_ways_to_write_our_attribute_are_known() {
        assert!(is_ours(&parse_quote!(#[remote])));
        assert!(is_ours(&parse_quote!(#[remote(skip)])));
        assert!(is_ours(&parse_quote!(#[farref::remote(skip)])));
        assert!(!is_ours(&parse_quote!(#[other::remote])));
        assert!(!is_ours(&parse_quote!(#[remotely])));
    }
}
