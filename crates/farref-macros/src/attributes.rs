//! What the generated items take over of the attributes of the original.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

/// Whether an attribute is ours, on a function inside of an impl block.
pub(crate) fn is_ours(attribute: &Attribute) -> bool {
    let segments = &attribute.path().segments;
    segments.last().is_some_and(|last| last.ident == "remote")
        && (segments.len() == 1 || segments.len() == 2 && segments[0].ident == "farref")
}

/// The attributes without which the item does not exist.
pub(crate) fn cfg(attributes: &[Attribute]) -> TokenStream {
    all(attributes, &["cfg"])
}

/// The attributes for the function that callers use, documentation apart.
pub(crate) fn carried(attributes: &[Attribute]) -> TokenStream {
    all(attributes, &["cfg", "allow", "deprecated"])
}

fn all(attributes: &[Attribute], wanted: &[&str]) -> TokenStream {
    attributes
        .iter()
        .filter(|attribute| {
            wanted
                .iter()
                .any(|wanted| attribute.path().is_ident(wanted))
        })
        .map(ToTokens::to_token_stream)
        .collect()
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
    fn both_ways_to_write_our_attribute_are_known() {
        assert!(is_ours(&parse_quote!(#[remote])));
        assert!(is_ours(&parse_quote!(#[remote(skip)])));
        assert!(is_ours(&parse_quote!(#[farref::remote(skip)])));
        assert!(!is_ours(&parse_quote!(#[other::remote])));
        assert!(!is_ours(&parse_quote!(#[remotely])));
    }
}
