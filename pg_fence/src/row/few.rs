//! A list that mostly has one element, which then takes no memory of its own.

use std::ops::Deref;

/// As a slice, whatever holds it.
#[derive(Clone, Debug)]
pub(crate) enum Few<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Few::One(only) => std::slice::from_ref(only),
            Few::Many(all) => all,
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(given: I) -> Few<T> {
        Few::Many(given.into_iter().collect())
    }
}
