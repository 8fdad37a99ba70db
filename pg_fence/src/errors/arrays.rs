//! How it is said what is wrong with an array of keys, of fences or of patches.

use crate::server::catalog::RelationName;
use crate::server::log::Report;
use pg_forms::text;

/// What is wrong with one element, by its place from 1.
pub(crate) fn element(argument: &str, place: usize, problem: Report) -> Report {
    problem.prefixed(text!["element ", place, " of \"", argument, "\": "])
}

/// Two elements, by their places from 1, are one key.
pub(crate) fn key_twice(table: RelationName, key: Vec<u8>, (first, second): (usize, usize)) -> Report {
    Report::new("22023", text!["argument \"keys\" names a row of table \"", &table.name, "\" twice"])
        .detail(text!["Elements ", first, " and ", second, " are key ", key, "."])
        .hint(text!["Pass each key once."])
        .about(table)
}

/// An array has several dimensions.
pub(crate) fn dimensions(argument: &str) -> Report {
    Report::new("22023", text!["argument \"", argument, "\" must be an array of one dimension"])
}

/// An array has another length than that of the keys.
pub(crate) fn length(argument: &str, given: usize, keys: usize) -> Report {
    Report::new("22023", text!["argument \"", argument, "\" has ", given, " elements, argument \"keys\" has ", keys])
        .hint(text!["Pass an element for each key, in the order of the keys, or one for all."])
}
