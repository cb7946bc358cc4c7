//! An impl block as far as it is ours to read: everything but the bodies of its functions.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Generics, Ident, ImplItem, PathArguments, Token, Type, Visibility, braced};

use crate::attributes;
use crate::errors::{Errors, error_over};
use crate::text;

/// An impl block.
pub(crate) struct Block {
    pub(crate) attributes: Vec<Attribute>,
    unsafety: Option<Token![unsafe]>,
    pub(crate) impl_token: Token![impl],
    generics: Generics,
    /// `Trait for`, if there.
    implemented: Option<(Type, Token![for])>,
    pub(crate) this: Type,
    where_clause: Option<syn::WhereClause>,
    brace: syn::token::Brace,
    items: Vec<Item>,
}

/// One item of a block.
#[expect(
    clippy::large_enum_variant,
    reason = "a few for each attribute, while compiling"
)]
enum Item {
    Function(Method),
    Other(TokenStream),
}

/// A function of a block.
pub(crate) struct Method {
    /// All but ours.
    pub(crate) attributes: Vec<Attribute>,
    /// Ours.
    pub(crate) ours: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: syn::Signature,
    body: TokenTree,
}

impl Block {
    /// The functions of the block.
    pub(crate) fn methods(&self) -> impl Iterator<Item = &Method> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(method) => Some(method),
            Item::Other(_) => None,
        })
    }

    /// The block as the compiler is to see it.
    pub(crate) fn without_our_attributes(&self) -> TokenStream {
        let Self {
            attributes,
            unsafety,
            impl_token,
            generics,
            this,
            where_clause,
            ..
        } = self;
        let implemented = self
            .implemented
            .as_ref()
            .map(|(path, token)| quote!(#path #token));
        let items = self.items.iter().map(|item| match item {
            Item::Other(tokens) => tokens.clone(),
            Item::Function(Method {
                attributes,
                visibility,
                signature,
                body,
                ..
            }) => {
                quote!(#(#attributes)* #visibility #signature #body)
            }
        });
        let mut tokens = quote! {
            #(#attributes)* #unsafety #impl_token #generics #implemented #this #where_clause
        };
        self.brace
            .surround(&mut tokens, |inside| inside.extend(items));
        tokens
    }

    /// The name of the type, and the name with its arguments for people; unless the block's methods
    /// cannot be remote.
    pub(crate) fn name(&self) -> syn::Result<(Ident, String)> {
        let mut errors = Errors::default();
        if let Some((path, _)) = &self.implemented {
            errors.push(error_over(
                path,
                "the methods of a trait cannot be remote: write an `impl` block of the type's own, \
                 with methods that call them",
            ));
        }
        if !self.generics.params.is_empty() {
            errors.push(error_over(
                &self.generics.params,
                "the methods of a generic type cannot be remote, since callers find them by their \
                 names: write an `impl` block for each type that is needed, such as `impl Table<f32>`",
            ));
        } else if let Some(clause) = &self.where_clause {
            errors.push(error_over(
                clause.where_token,
                "a remote `impl` block cannot be generic: remove the `where` clause",
            ));
        }
        let name = last_name(&self.this).ok_or_else(|| {
            error_over(
                &self.this,
                "a remote `impl` block is for a type with a name, such as `impl Table`",
            )
        });
        errors.finish_with(name)
    }
}

fn last_name(ty: &Type) -> Option<(Ident, String)> {
    let Type::Path(path) = ty else {
        return None;
    };
    let last = path.path.segments.last().filter(|_| path.qself.is_none())?;
    match &last.arguments {
        PathArguments::Parenthesized(_) => None,
        _ => Some((last.ident.clone(), text::of(last.to_token_stream()))),
    }
}

impl Parse for Block {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let unsafety = input.parse()?;
        let impl_token = input.parse()?;
        let generics = if input.peek(Token![<]) {
            input.parse()?
        } else {
            Generics::default()
        };
        let first: Type = input.parse()?;
        let (implemented, this) = if input.peek(Token![for]) {
            (Some((first, input.parse()?)), input.parse()?)
        } else {
            (None, first)
        };
        let where_clause = input.parse()?;
        let content;
        let brace = braced!(content in input);
        let mut items = Vec::new();
        while !content.is_empty() {
            items.push(content.parse()?);
        }
        Ok(Self {
            attributes,
            unsafety,
            impl_token,
            generics,
            implemented,
            this,
            where_clause,
            brace,
            items,
        })
    }
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let ahead = input.fork();
        let is_function = ahead.call(Attribute::parse_outer).is_ok()
            && ahead.parse::<Visibility>().is_ok()
            && ahead.parse::<syn::Signature>().is_ok();
        if !is_function {
            let other: ImplItem = input.parse()?;
            return Ok(Self::Other(other.to_token_stream()));
        }
        let attributes = input.call(Attribute::parse_outer)?;
        let (ours, attributes) = attributes.into_iter().partition(attributes::is_ours);
        Ok(Self::Function(Method {
            attributes,
            ours,
            visibility: input.parse()?,
            signature: input.parse()?,
            body: input.parse()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> Block {
        syn::parse_str(text).unwrap()
    }

    #[test]
    fn a_block_comes_out_as_it_went_in_without_our_attributes() {
        let text = |ours: &str, named: &str| {
            format!(
                "#[cfg(unix)] impl a::Table<f32> {{
                    pub const N: usize = 3;
                    {ours} #[inline] pub fn new() -> Self {{ this is not even + Rust }}
                    {named} fn get(&self) {{ loop {{}} }}
                    helper!();
                }}"
            )
        };
        let found = block(&text("#[remote(timeout = \"5s\")]", "#[farref::remote]"));
        let expected: TokenStream = text("", "").parse().unwrap();
        assert_eq!(
            found.without_our_attributes().to_string(),
            expected.to_string()
        );
        assert_eq!(found.methods().count(), 2);
        let (name, described) = found.name().unwrap();
        assert_eq!(
            (name.to_string().as_str(), described.as_str()),
            ("Table", "Table<f32>")
        );
    }

    #[test]
    fn blocks_without_a_name_of_their_own_are_refused() {
        for text in [
            "impl Display for Table {}",
            "impl<T> Table<T> {}",
            "impl [u8] {}",
        ] {
            let found = block(text);
            assert!(found.name().is_err(), "{text}");
            let expected: TokenStream = text.parse().unwrap();
            assert_eq!(
                found.without_our_attributes().to_string(),
                expected.to_string()
            );
        }
    }
}
