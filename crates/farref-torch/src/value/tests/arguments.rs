//! The arguments of a function that Python calls: by place, by name, optional ones left out.

use super::*;
use crate::pickle::Writer;
use crate::rpc::Udf;

/// A call as Python writes it: `write` writes the tuple of arguments and the dict of keywords.
fn call(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(4);
    Udf::begin(&mut writer, "maths", "add");
    write(&mut writer);
    Udf::end(&mut writer);
    writer.finish()
}

/// `add(*given, **named)`.
fn with(given: &[i64], named: &[(&str, i64)]) -> Vec<u8> {
    call(|writer| {
        writer.mark();
        given.iter().for_each(|number| {
            writer.int(*number);
        });
        writer.tuple().empty_dict().mark();
        for (name, number) in named {
            writer.text(name.as_bytes()).int(*number);
        }
        writer.set_items();
    })
}

fn arguments<T: DeserializeOwned>(
    pickle: &[u8],
    form: Form,
    parameters: &'static [&'static str],
) -> Result<T, String> {
    let body = Body {
        form,
        pickle: pickle.to_vec(),
        ..Body::default()
    };
    let mut read = None;
    read::from_body(&body, &Arrivals::default(), parameters, |value| {
        read = Some(T::deserialize(value)?);
        Ok::<_, ValueError>(())
    })
    .map_err(|error| error.to_string())?;
    Ok(read.expect("it was read"))
}

const AB: &[&str] = &["a", "b"];

fn add(given: &[i64], named: &[(&str, i64)]) -> Result<(i64, i64), String> {
    arguments(&with(given, named), Form::Udf, AB)
}

fn optional(given: &[i64], named: &[(&str, i64)]) -> Result<(i64, Option<i64>), String> {
    arguments(&with(given, named), Form::Udf, AB)
}

#[test]
fn arguments_come_by_place_or_by_name() {
    assert_eq!(add(&[1, 2], &[]), Ok((1, 2)));
    assert_eq!(add(&[1], &[("b", 2)]), Ok((1, 2)));
    assert_eq!(add(&[], &[("b", 2), ("a", 1)]), Ok((1, 2)));
}

#[test]
fn an_optional_argument_may_be_missing_and_no_other() {
    assert_eq!(optional(&[1], &[]), Ok((1, None)));
    assert_eq!(optional(&[1, 2], &[]), Ok((1, Some(2))));
    assert_eq!(optional(&[], &[("a", 1)]), Ok((1, None)));
    assert_eq!(
        optional(&[], &[("b", 1)]),
        Err("the argument `a` is missing".to_owned())
    );
    assert_eq!(
        add(&[1], &[]),
        Err("the argument `b` is missing".to_owned())
    );
    assert_eq!(add(&[], &[]), Err("the argument `a` is missing".to_owned()));
}

#[test]
fn too_many_doubled_and_unknown_arguments_are_errors_that_say_so() {
    let too_many = "the function takes 2 arguments, 3 were given";
    assert_eq!(add(&[1, 2, 3], &[]), Err(too_many.to_owned()));
    for (given, named) in [
        (&[1, 2][..], &[("b", 3)][..]),
        (&[1], &[("a", 3)]),
        (&[1, 2], &[("c", 3)]),
    ] {
        let name = named[0].0;
        let expected = format!(
            "there is no argument `{name}`, or it is there twice; the function takes (a, b)"
        );
        assert_eq!(add(given, named), Err(expected));
    }
    let none: Result<(), _> = arguments(&with(&[1], &[("x", 2)]), Form::Udf, &[]);
    let expected = "the function takes no arguments, 2 were given";
    assert_eq!(none, Err(expected.to_owned()));
}

#[test]
fn a_function_without_arguments_is_called_without() {
    let none: Result<(), _> = arguments(&with(&[], &[]), Form::Udf, &[]);
    assert_eq!(none, Ok(()));
    let none: Result<(), _> = arguments(b"", Form::Nothing, &[]);
    assert_eq!(none, Ok(()));
    let optional: Result<(Option<i64>,), _> = arguments(b"", Form::Nothing, &["a"]);
    assert_eq!(optional, Ok((None,)));
}

#[test]
fn an_argument_of_another_type_says_what_it_is() {
    let text: Result<(String, i64), _> = arguments(&with(&[1, 2], &[]), Form::Udf, AB);
    let error = text.unwrap_err();
    assert!(error.contains("integer `1`, expected a string"), "{error}");
}

/// The arguments of a method are behind two others: what Python's proxy calls it on, and its name.
#[test]
fn the_arguments_of_a_method_are_inside_of_those_of_its_call() {
    let pickle = call(|writer| {
        writer.mark().none().text(b"add");
        writer.int(1).tuple_of(1);
        writer.empty_dict().mark().text(b"b").int(2).set_items();
        writer.tuple().empty_dict();
    });
    assert_eq!(arguments(&pickle, Form::Method, AB), Ok((1, 2)));
    let pickle = call(|writer| {
        writer
            .none()
            .int(1)
            .int(2)
            .tuple_of(2)
            .tuple_of(2)
            .empty_dict();
    });
    assert_eq!(arguments(&pickle, Form::RustMethod, AB), Ok((1, 2)));
    let short = with(&[1, 2], &[]);
    for form in [Form::Method, Form::RustMethod] {
        assert!(arguments::<(i64, i64)>(&short, form, AB).is_err());
    }
}

/// `functools.partial(add, *bound, **named)`, called as `(*given, b=5)`, as Python writes it.
fn partial(
    bound: &[i64],
    named: &[(&str, i64)],
    given: &[i64],
    keywords: &[(&str, i64)],
) -> Vec<u8> {
    let numbers = |writer: &mut Writer, numbers: &[i64]| {
        writer.mark();
        numbers.iter().for_each(|number| {
            writer.int(*number);
        });
        writer.tuple();
    };
    let dict = |writer: &mut Writer, items: &[(&str, i64)]| {
        writer.empty_dict().mark();
        for (name, number) in items {
            writer.text(name.as_bytes()).int(*number);
        }
        writer.set_items();
    };
    let mut writer = Writer::new(4);
    writer.global("torch.distributed.rpc.internal", "PythonUDF");
    writer.global("functools", "partial");
    writer.global("maths", "add").tuple_of(1).reduce();
    writer.mark().global("maths", "add");
    numbers(&mut writer, bound);
    dict(&mut writer, named);
    writer.none().tuple().build();
    numbers(&mut writer, given);
    dict(&mut writer, keywords);
    Udf::end(&mut writer);
    writer.finish()
}

#[test]
fn what_a_partial_has_bound_comes_before_the_arguments_of_its_call() {
    let read = |pickle: &[u8]| arguments::<(i64, i64)>(pickle, Form::Udf, AB);
    assert_eq!(read(&partial(&[1], &[], &[2], &[])), Ok((1, 2)));
    assert_eq!(read(&partial(&[1, 2], &[], &[], &[])), Ok((1, 2)));
    assert_eq!(read(&partial(&[], &[("b", 2)], &[1], &[])), Ok((1, 2)));
    // As in Python, the call's own keywords go before.
    let both = partial(&[1], &[("b", 2)], &[], &[("b", 3)]);
    assert_eq!(read(&both), Ok((1, 3)));
    assert!(read(&partial(&[1, 2], &[], &[3], &[])).is_err());
    // A method of `rref.rpc_sync()` has the reference, the function, the name and the time limit before them.
    let method = partial(&[0, 0, 0, 0, 1], &[], &[2], &[]);
    assert_eq!(arguments(&method, Form::Proxied, AB), Ok((1, 2)));
}

/// The arguments of a builtin come as a tuple, some of them with the function's defaults.
#[test]
fn the_first_so_many_of_a_tuple_are_the_arguments() {
    let mut writer = Writer::new(2);
    writer.int(1).int(2).int(3).tuple_of(3);
    let pickle = writer.finish();
    assert_eq!(arguments(&pickle, Form::Head(2), AB), Ok((1, 2)));
    assert!(arguments::<(i64, i64)>(&pickle, Form::Head(3), AB).is_err());
    let mut writer = Writer::new(2);
    writer.int(5).tuple_of(1);
    assert_eq!(arguments(&writer.finish(), Form::Only, &[]), Ok(5));
}

/// A call of this worker to itself is read as it was written.
#[test]
fn arguments_for_oneself_are_read_as_they_were_written() {
    let body = write(&(1, Some(2)));
    assert_eq!(arguments(&body.pickle, Form::Whole, AB), Ok((1, Some(2))));
    let one = write(&((1, 2),));
    let read: Result<((i64, i64),), _> = arguments(&one.pickle, Form::Whole, &["pair"]);
    assert_eq!(read, Ok(((1, 2),)));
}

#[test]
fn keywords_are_texts_in_a_dict() {
    let numbers = call(|writer| {
        writer
            .tuple_of(0)
            .empty_dict()
            .mark()
            .int(1)
            .int(2)
            .set_items();
    });
    assert!(arguments::<(i64, i64)>(&numbers, Form::Udf, AB).is_err());
    let list = call(|writer| {
        writer.tuple_of(0).empty_list();
    });
    let error = arguments::<(i64, i64)>(&list, Form::Udf, AB).unwrap_err();
    assert!(error.contains("a dict of keywords"), "{error}");
}

/// PyTorch calls `function(*args, **kwargs)`: whatever Python unpacks is fine.
#[test]
fn arguments_are_whatever_python_unpacks() {
    type Write<'a> = &'a dyn Fn(&mut Writer);
    let given: [(&str, Write<'_>); 6] = [
        ("a list", &|writer| {
            writer.empty_list().mark().int(1).int(2).appends();
        }),
        ("a set", &|writer| {
            writer.empty_set().mark().int(1).int(2).add_items();
        }),
        ("the keys of a dict", &|writer| {
            writer.empty_dict().mark();
            writer.int(1).none().int(2).none().set_items();
        }),
        ("a deque", &|writer| {
            writer.global("collections", "deque").tuple_of(0).reduce();
            writer.mark().int(1).int(2).appends();
        }),
        ("a subclass of list", &|writer| {
            writer.global("shop", "Items").tuple_of(0).new_object();
            writer.mark().int(1).int(2).appends();
        }),
        ("a named tuple", &|writer| {
            writer.global("shop", "Pair");
            writer.int(1).int(2).tuple_of(2).new_object();
        }),
    ];
    for (what, write) in given {
        let pickle = call(|writer| {
            write(writer);
            writer.empty_dict();
        });
        assert_eq!(arguments(&pickle, Form::Udf, AB), Ok((1, 2)), "{what}");
    }
    let ordered = call(|writer| {
        writer.tuple_of(0);
        writer.global("collections", "OrderedDict").tuple_of(0);
        writer.reduce().mark().text(b"b").int(2);
        writer.text(b"a").int(1).set_items();
    });
    assert_eq!(arguments(&ordered, Form::Udf, AB), Ok((1, 2)));
    let unfilled = call(|writer| {
        writer.int(1).int(2).tuple_of(2);
        writer.global("collections", "OrderedDict").tuple_of(0);
        writer.reduce();
    });
    assert_eq!(arguments(&unfilled, Form::Udf, AB), Ok((1, 2)));
    let number = call(|writer| {
        writer.int(1).empty_dict();
    });
    let error = arguments::<(i64, i64)>(&number, Form::Udf, AB).unwrap_err();
    assert!(error.contains("a tuple of arguments"), "{error}");
}

/// `f(a, *args, **kwargs)`.
#[test]
fn what_is_left_of_the_arguments_is_taken_by_whoever_takes_it() {
    type Taken = (i64, Rest<i64>, Keywords<i64>);
    let all = &["a", "args", "kwargs"];
    let take = |given: &[i64], named: &[(&str, i64)]| -> Result<Taken, String> {
        arguments(&with(given, named), Form::Udf, all)
    };
    let (a, rest, keywords) = take(&[1, 2, 3], &[("x", 4), ("y", 5)]).unwrap();
    assert_eq!((a, rest.0), (1, vec![2, 3]));
    let expected = [("x".to_owned(), 4), ("y".to_owned(), 5)];
    assert_eq!(keywords.0, expected);
    let (a, rest, keywords) = take(&[], &[("a", 1)]).unwrap();
    assert_eq!((a, rest.len(), keywords.len()), (1, 0, 0));
    // What has a parameter of its own is given once.
    assert!(take(&[1], &[("a", 2)]).is_err());
    assert!(take(&[], &[("x", 2)]).is_err());
    // And they are arguments again, for another call.
    let again = write(&Rest(vec![1, 2]));
    assert_eq!(arguments(&again.pickle, Form::Whole, AB), Ok((1, 2)));
    // Of the wrong type.
    let texts: Result<(Rest<String>,), _> = arguments(&with(&[1], &[]), Form::Udf, &["args"]);
    assert!(texts.is_err());
}
