//! The attribute [`#[farref::remote]`](macro@remote), which makes functions and methods callable
//! from other workers.
//!
//! Users reach it as `farref::remote`. The code it generates refers to `::farref::Peer`,
//! `::farref::RRef`, `::farref::Call` and the hidden module `::farref::__private`, so a crate that
//! uses it must depend on `farref` under that name.

#![forbid(unsafe_code)]

mod attributes;
mod block;
mod errors;
mod function;
mod marker;
mod methods;
mod options;
mod signature;
mod text;
mod timeout;
mod types;

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Token};

use crate::block::Block;
use crate::errors::error;
use crate::function::Function;
use crate::options::{Options, Place};

/// Makes a function, or the methods of a type, callable from other workers.
///
/// What is marked stays what it was and can be called as before.
///
/// # Functions
///
/// ```ignore
/// #[farref::remote]
/// pub async fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// let three = add(1, 2).await;                    // here
/// let three = add::on(&peer, 1, 2).await?;        // there
/// ```
///
/// A type of the same name is made next to the function, with one function `on`. It takes a
/// `&farref::Peer` and the function's arguments, and returns a `farref::Call` of its output. Arguments
/// are sent, so they are owned and implement serde's `Serialize` and `DeserializeOwned`. The output is
/// `Send + Sync + 'static`; it implements them too if it is to come back rather than stay there. All of
/// serde's attributes work, and types such as `serde_json::Value` do: what is sent arrives as it was sent, or
/// the call is an `Error::Codec`. A type must write all that it reads, so `#[serde(skip_serializing)]` is
/// an error without `skip_deserializing`.
///
/// If the return type is called `Result`, the output is its first argument, and an error reaches the
/// caller as the text of it and of its sources. It must convert into
/// `Box<dyn std::error::Error + Send + Sync>`, as all errors, `String` and `anyhow::Error` do. If it implements
/// serde's traits, it also comes as what it is to who asks for it: `add::on(&peer, 1, 2).result().await?` of a
/// function whose signature says what it is, `Result<i64, Overflow>`; `error.downcast::<Overflow>()` of any error.
///
/// # Streams
///
/// ```ignore
/// #[farref::remote]
/// async fn numbers(below: u64) -> impl Stream<Item = u64> { .. }
///
/// #[farref::remote]
/// async fn sum(numbers: Streaming<u64>) -> farref::Result<u64> { .. }
///
/// let mut far: Streaming<u64> = numbers::on(&peer, 100).await?;
/// let sum = sum::on(&peer, Streaming::new(numbers_from_here)).await?;
/// ```
///
/// A function that returns `impl Stream<Item = T>`, or a `Result` of one, is called for a `farref::Streaming<T>`. The stream
/// is `Send` and borrows nothing: a method of edition 2024 says `impl Stream<Item = T> + use<>`, or returns a
/// `farref::Streaming<T>` itself. A boxed one (`BoxStream<'static, T>`, `Pin<Box<dyn Stream<Item = T> + Send>>`) is the same.
///
/// A function that reads a stream and makes another one of it hands errors on with `?`: it says
/// `impl Stream<Item = farref::Result<T>>`, so written, is called for a `farref::Streaming<T>` all the same, and its first
/// error ends that one. (An alias that hides the `farref::` does not do: the macro sees only what is written.) Results with
/// errors that can be sent are items like others.
///
/// One that takes a stream takes a `farref::Streaming<T>`, whose items are results, since what
/// comes from another worker may fail on its way.
///
/// # Methods
///
/// ```ignore
/// pub struct Table {
///     rows: Vec<f32>,
/// }
///
/// #[farref::remote]
/// impl Table {
///     pub fn new(n: usize) -> Self {
///         Table { rows: vec![0.0; n] }
///     }
///
///     pub fn get(&self, i: usize) -> Option<f32> {
///         self.rows.get(i).copied()
///     }
///
///     pub async fn push(&mut self, i: usize, gradient: f32) {
///         self.rows[i] += gradient;
///     }
/// }
///
/// let table: RRef<Table> = Table::new_on(&peer, 1024).remote();
/// table.push(3, 0.5).await?;
/// let row = table.get(3).await?;
/// ```
///
/// - A function without `self` gets a sibling with `_on` at the end of its name: `Table::new_on`.
/// - A method becomes a method of `RRef<Table>`, by way of a trait called `TableRRef`. Import the trait
///   to use it in other modules, or call `Table::get_on(&table, 3)`, which needs no import. Calls with
///   `&mut self` have the value to themselves; calls with `&self` share it.
/// - Who may call a method may call it from afar, and nobody else. A trait has one visibility, so methods
///   with a narrower one than the widest are in traits of their own, for which the end of the name says:
///   `TableRRefCrate` for `pub(crate)`, `TableRRefSuper` for `pub(super)`, `TableRRefPrivate` for private
///   ones.
/// - `#[cfg]`, `#[deprecated]`, `#[must_use]`, `#[doc(hidden)]`, `#[allow]` and the documentation hold for
///   what is generated, too.
/// - A method cannot be called what a method of `RRef` is called, such as `owner` or `cast`.
/// - The `pub` (also `pub(crate)` and so on) functions of the block are remote. Mark a private one
///   `#[remote]` to include it, a public one `#[remote(skip)]` to leave it out.
///
/// # Options
///
/// `#[farref::remote(..)]` on a function or an impl block, `#[remote(..)]` on a function inside of a
/// block. What a block says holds for its functions unless they say otherwise.
///
/// | option | meaning |
/// | --- | --- |
/// | `name = "add"` | what callers ask for, instead of the path of the function. On a block: what its functions' names begin with, instead of the path of the type. |
/// | `python = "maths.add"` | what Python workers of a PyTorch group call it: a module and a name in it. On a block: the class. See [below](#names-in-python). |
/// | `timeout = "250ms"` | the time limit of a call that does not set its own: a number and `us`, `ms`, `s`, `m` or `h`; `"none"` for no limit |
/// | `blocking` | runs on the blocking pool. What a plain `fn` does anyway. |
/// | `task` | runs as a task. What an `async fn` does anyway; a plain `fn` must not block then. |
/// | `skip` | (inside of a block) is not remote |
/// | `trait = TableRRef` | (on a block) the name of the trait with the methods of the far reference. Of several blocks of one type in one module, all but one need it. |
///
/// # Names in Python
///
/// A worker that takes part in a PyTorch group (crate `farref-torch`) serves its functions to Python code
/// that knows nothing of Rust. Such code names a function by its module and its name there, so that is what
/// the option says; the module itself need not be anywhere.
///
/// ```ignore
/// #[farref::remote(python = "maths.add")]
/// pub async fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// #[farref::remote(python = "tables.Table")]
/// impl Table {
///     pub fn new(n: usize) -> Self { .. }                      // tables.Table
///     pub fn with_rows(rows: Vec<f32>) -> Self { .. }          // tables.Table.with_rows
///     pub fn get(&self, i: usize) -> Option<f32> { .. }        // tables.Table.get
///
///     #[remote(python = "tables.Table.__len__")]
///     pub fn len(&self) -> usize { .. }                        // tables.Table.__len__
/// }
/// ```
///
/// - On a block the option names the class. Calling a class makes an object of it, which here is what
///   `new` does: the function `new` without `self` has the name of the class. All others are the
///   class's, under their own names, unless they say otherwise.
/// - On a value, Python calls a method by the last part of its name alone: `rref.rpc_sync().get(3)`. A
///   method without a name in Python can be called so as well, by its name in Rust.
/// - Two functions under one name in Python are an error, which comes when the first worker of the
///   program starts and names both.
///
/// # Limits
///
/// Remote functions have no type parameters, no lifetimes and at most 16 arguments, and are neither
/// `const` nor `unsafe`. The type next to a function `add` is in the way of a module `add` next to it.
/// Names are unique in a program: functions of one name inside of two other functions of a module need
/// the option `name`.
#[proc_macro_attribute]
pub fn remote(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand(options.into(), item.into()).into()
}

/// What the attribute stands on.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each attribute, while compiling"
)]
enum Item {
    Function(Function),
    Block(Block),
}

fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    let parsed = match parse.parse2(item.clone()) {
        Ok(parsed) => parsed,
        Err(error) => {
            let error = error.into_compile_error();
            return quote! { #item #error };
        }
    };
    // The item itself is there even if it cannot be remote, so that its uses are no errors as well.
    let (item, generated) = match parsed {
        Item::Function(function) => (
            item,
            Options::parse(options, Place::Function)
                .and_then(|options| function::expand(&function, &options)),
        ),
        Item::Block(block) => (
            block.without_our_attributes(),
            Options::parse(options, Place::Block)
                .and_then(|options| methods::expand(&block, &options)),
        ),
    };
    let generated = generated.unwrap_or_else(syn::Error::into_compile_error);
    quote! { #item #generated }
}

fn parse(input: ParseStream<'_>) -> syn::Result<Item> {
    let ahead = input.fork();
    ahead.call(Attribute::parse_outer)?;
    if ahead.peek(Token![impl]) || ahead.peek(Token![unsafe]) && ahead.peek2(Token![impl]) {
        return input.parse().map(Item::Block);
    }
    ahead.parse::<syn::Visibility>()?;
    if [
        "struct", "enum", "union", "trait", "mod", "type", "static", "use",
    ]
    .iter()
    .any(|keyword| {
        ahead
            .cursor()
            .ident()
            .is_some_and(|(found, _)| found == keyword)
    }) {
        return Err(error(
            ahead.span(),
            "`#[farref::remote]` is for functions and for `impl` blocks: mark the `impl` block with \
             the functions to be called",
        ));
    }
    input.parse().map(Item::Function)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out, as items.
    fn items(options: TokenStream, item: &TokenStream) -> Vec<syn::Item> {
        let file: syn::File = syn::parse2(expand(options, item.clone())).expect("valid Rust");
        file.items
    }

    fn is_error(item: &syn::Item) -> bool {
        matches!(item, syn::Item::Macro(item) if item.mac.path.segments.last().unwrap().ident == "compile_error")
    }

    #[test]
    fn a_function_comes_out_unchanged_with_a_type_next_to_it() {
        let function = quote!(
            /// Adds.
            pub async fn add(a: i64, mut b: i64) -> i64 {
                b += a;
                b
            }
        );
        let items = items(quote!(timeout = "5s"), &function);
        let [first, syn::Item::Struct(next), syn::Item::Const(_)] = &items[..] else {
            panic!("{}", quote!(#(#items)*));
        };
        assert_eq!(quote!(#first).to_string(), function.to_string());
        assert_eq!(next.ident, "add");
        assert!(matches!(next.vis, syn::Visibility::Public(_)));
    }

    #[test]
    fn a_block_comes_out_unchanged_with_a_trait_next_to_it() {
        let block = quote!(
            impl Table {
                pub(crate) fn get(&self) -> u8 { 1 }
                fn private(&self) {}
            }
        );
        let items = items(quote!(), &block);
        let [
            first,
            syn::Item::Struct(_),
            syn::Item::Trait(next),
            syn::Item::Const(_),
        ] = &items[..]
        else {
            panic!("{}", quote!(#(#items)*));
        };
        assert_eq!(quote!(#first).to_string(), block.to_string());
        assert_eq!(next.ident, "TableRRef");
        let visibility = &next.vis;
        assert_eq!(quote!(#visibility).to_string(), "pub (crate)");
        assert_eq!(next.items.len(), 1, "a private method became remote");
    }

    #[test]
    fn methods_of_different_visibilities_are_in_different_traits() {
        let block = quote!(
            impl Table {
                #[remote]
                fn hidden(&self) {}
                pub fn get(&self) {}
                pub(crate) fn clear(&mut self) {}
                pub fn put(&mut self) {}
            }
        );
        for (options, names) in [
            (
                quote!(),
                ["TableRRef", "TableRRefCrate", "TableRRefPrivate"],
            ),
            (quote!(trait = Far), ["Far", "FarCrate", "FarPrivate"]),
        ] {
            let mut found = Vec::new();
            for item in items(options, &block) {
                if let syn::Item::Trait(one) = item {
                    let visibility = &one.vis;
                    let visibility = quote!(#visibility).to_string();
                    found.push((one.ident.to_string(), visibility, one.items.len()));
                }
            }
            let expected = [("pub", 2), ("pub (crate)", 1), ("", 1)];
            let expected: Vec<_> = names
                .into_iter()
                .zip(expected)
                .map(|(name, (visibility, count))| (name.to_owned(), visibility.to_owned(), count))
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_block_without_methods_has_no_trait() {
        let block = quote!(impl Table { pub fn new() -> Self { Self } });
        let items = items(quote!(), &block);
        assert!(
            matches!(&items[..], [syn::Item::Impl(_), syn::Item::Const(_)]),
            "{}",
            quote!(#(#items)*)
        );
    }

    #[test]
    fn what_is_conditional_is_so_in_all_its_parts() {
        for item in [
            quote!(
                #[cfg(unix)]
                fn add() {}
            ),
            quote!(
                #[cfg(unix)]
                impl Table {
                    pub fn get(&self) {}
                }
            ),
        ] {
            for item in items(quote!(), &item) {
                let text = quote!(#item).to_string();
                assert!(text.contains("# [cfg (unix)]"), "{text}");
            }
        }
    }

    #[test]
    fn what_cannot_be_remote_is_kept_and_all_that_is_wrong_is_said() {
        for (options, item, errors) in [
            (
                quote!(),
                quote!(
                    fn f(a: &str, b: &str) {}
                ),
                2,
            ),
            (
                quote!(blocking),
                quote!(
                    async fn f(a: &str) {}
                ),
                2,
            ),
            (
                quote!(timout = "5s", retries = 3),
                quote!(
                    fn f() {}
                ),
                2,
            ),
            (
                quote!(),
                quote!(
                    struct Table;
                ),
                1,
            ),
            (quote!(), quote!(impl Default for Table {}), 1),
            (
                quote!(),
                quote!(impl Table { pub fn a(self) {} pub const fn clone(&self) {} }),
                3,
            ),
        ] {
            let items = items(options, &item);
            let first = &items[0];
            assert_eq!(quote!(#first).to_string(), item.to_string());
            assert!(items[1..].iter().all(is_error));
            assert_eq!(items.len() - 1, errors, "{item}");
        }
    }
}
