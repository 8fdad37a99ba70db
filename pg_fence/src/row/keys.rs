//! The keys of many rows: from an array to their order.
//!
//! Invariants: the values of a column are all of one type, so that they can be compared; the order is that of the primary
//! key's index, in which every call locks its rows, so that two calls never wait for each other in a circle.

use crate::errors::{KeyProblem, Refused};
use crate::row::key::Key;
use crate::server::context;
use crate::server::elements::Elements;
use crate::server::json::Document;
use crate::server::operators::Comparison;
use crate::server::session;
use crate::server::types::{self, Input, Value};
use crate::table::fit::{Fit, Way};
use crate::table::relation::Table;
use pg_forms::is_json_array;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::CStr;

/// The name of the argument.
pub(crate) const ARGUMENT: &str = "keys";
const ARGUMENT_IN_CONTEXT: &CStr = c"keys";

/// How much is asked of an array of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strictness {
    /// A key may be there twice, and the array may have several dimensions.
    Lenient,
    /// Each element is a key of its own.
    EachCounts,
}

/// Keys, by their place in the caller's array, from 0.
pub(crate) struct Keys<'t> {
    table: &'t Table,
    strictness: Strictness,
    /// How each value is compared; none before the first key.
    pub(crate) fits: Vec<Fit>,
    /// The values of the keys, one key after the other.
    values: Vec<Datum>,
    /// The keys that no row can have.
    absent: BTreeMap<usize, Key>,
    /// Whether the values are of the columns' own types, because the keys were given as values of several.
    is_of_columns: bool,
}

impl<'t> Keys<'t> {
    /// Reads the keys of an array. Errors: it is not an array of keys; one does not fit.
    pub(crate) fn read(table: &'t Table, given: Value, strictness: Strictness) -> Result<Keys<'t>, Refused> {
        let (fits, values, absent) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut keys = Keys { table, strictness, fits, values, absent, is_of_columns: false };
        keys.read_all(given)?;
        Ok(keys)
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len() / self.table.key.len()
    }

    /// The key at a place.
    pub(crate) fn key(&self, place: usize) -> Key {
        if let Some(absent) = self.absent.get(&place) {
            return absent.clone();
        }
        let values = self.fits.iter().zip(self.values_of(place));
        // SAFETY: each is of the type that is compared, and lives as long as the call.
        let values = values.map(|(fit, datum)| unsafe { Value::new(datum, fit.value_type) }).collect();
        Key::of_values(self.fits.clone(), values)
    }

    /// The values of the key at a place, of the types that are compared.
    pub(crate) fn values_of(&self, place: usize) -> impl Iterator<Item = Datum> + '_ {
        let columns = self.table.key.len();
        self.values[place * columns..(place + 1) * columns].iter().copied()
    }

    /// The places of the keys that no row can have.
    pub(crate) fn absent(&self) -> impl Iterator<Item = usize> + '_ {
        self.absent.keys().copied()
    }

    /// The places of the other keys in the order of the key; of equal ones the first. Errors: two are equal, and each counts.
    pub(crate) fn order(&self) -> Result<Vec<u32>, Refused> {
        let places = u32::try_from(self.len()).unwrap_or(u32::MAX);
        let mut places: Vec<u32> = (0..places).filter(|&place| !self.absent.contains_key(&(place as usize))).collect();
        let order = Order::of(self);
        if !places.is_sorted_by(|&one, &other| order.compare(one, other).is_lt()) {
            places.sort_by(|&one, &other| order.compare(one, other));
            if self.strictness == Strictness::EachCounts
                && let Some(twice) = places.windows(2).find(|pair| order.compare(pair[0], pair[1]).is_eq())
            {
                return Err(self.twice(twice[0] as usize, twice[1] as usize));
            }
            places.dedup_by(|later, first| order.compare(*first, *later).is_eq());
        }
        if self.strictness == Strictness::EachCounts {
            self.refuse_absent_twice()?;
        }
        Ok(places)
    }

    fn refuse_absent_twice(&self) -> Result<(), Refused> {
        let mut known = BTreeMap::new();
        let texts = self.absent.iter().map(|(&place, key)| (key.text(self.table), place));
        for (text, place) in texts {
            if let Some(first) = known.insert(text, place) {
                return Err(self.twice(first, place));
            }
        }
        Ok(())
    }

    fn twice(&self, first: usize, second: usize) -> Refused {
        let (table, key) = (self.table.name.clone(), self.key(first).text(self.table));
        Refused::KeyTwice { table, key, places: (first + 1, second + 1) }
    }

    fn read_all(&mut self, given: Value) -> Result<(), Refused> {
        match types::base_type(given.type_oid()) {
            pg_sys::JSONBOID => self.read_json(given.in_base_type()),
            pg_sys::TEXTOID | pg_sys::UNKNOWNOID => self.read_text(&given.text()),
            _ => self.read_array(given),
        }
    }

    fn read_array(&mut self, given: Value) -> Result<(), Refused> {
        let Some(elements) = Elements::of(given) else { return Err(self.not_an_array(given)) };
        if self.strictness == Strictness::EachCounts && elements.dimensions > 1 {
            return Err(Refused::Dimensions(ARGUMENT));
        }
        self.values.reserve(elements.len() * self.table.key.len());
        for element in elements.iter() {
            session::check_for_interrupts();
            match element {
                Some(value) if self.is_alike(value) => self.values.push(value.datum()),
                Some(value) => self.add(|table| Key::read(table, value))?,
                None => self.add(|table| Err(null_key(table)))?,
            }
        }
        elements.free();
        Ok(())
    }

    /// Whether a value is read as the one before was, and that was taken as it is.
    fn is_alike(&self, value: Value) -> bool {
        let known = |fit: &Fit| fit.way == Way::AsIs && fit.value_type == value.type_oid();
        !self.is_of_columns && self.fits.len() == 1 && known(&self.fits[0])
    }

    /// An array of objects of the key's columns; of plain values where the key has one column.
    fn read_json(&mut self, given: Value) -> Result<(), Refused> {
        let Some(document) = Document::of(given).filter(Document::is_array) else {
            return Err(self.not_an_array(given));
        };
        document.each_element(|element| self.add(|table| Key::from_json(table, &element)))
    }

    /// The text form of an array of the key's type, or of a JSON array.
    fn read_text(&mut self, text: &CStr) -> Result<(), Refused> {
        let type_oid = if is_json_array(text.to_bytes()) { pg_sys::JSONBOID } else { array_of_texts() };
        match Input::of(type_oid).value(text) {
            Some(array) => self.read_all(array),
            None => Err(null_key(self.table)),
        }
    }

    /// Adds the key of the next element. An error names its place.
    fn add(&mut self, read: impl FnOnce(&Table) -> Result<Key, Refused>) -> Result<(), Refused> {
        let (place, table) = (self.len(), self.table);
        let add = || self.add_key(place, read(table)?);
        let added = context::within_element(ARGUMENT_IN_CONTEXT, place + 1, add);
        added.map_err(|refused| refused.of_element(ARGUMENT, place + 1))
    }

    fn add_key(&mut self, place: usize, key: Key) -> Result<(), Refused> {
        let key = if self.is_of_columns { key.in_column_types(self.table)? } else { key };
        if key.is_absent() {
            self.values.extend(self.table.key.iter().map(|_| Datum::null()));
            self.absent.insert(place, key);
            return Ok(());
        }
        if self.fits.is_empty() {
            self.fits = key.fits.to_vec();
        }
        let types = |fits: &[Fit]| fits.iter().map(|fit| fit.value_type).collect::<Vec<_>>();
        if !self.is_of_columns && types(&self.fits) != types(&key.fits) {
            self.take_types_of_columns()?;
            return self.add_key(place, key);
        }
        self.values.extend(key.values.iter().map(|value| value.datum()));
        Ok(())
    }

    /// Reads the keys that are there as values of the columns' own types.
    fn take_types_of_columns(&mut self) -> Result<(), Refused> {
        let known: Vec<Key> = (0..self.len()).map(|place| self.key(place)).collect();
        self.is_of_columns = true;
        (self.fits, self.values, self.absent) = (Vec::new(), Vec::new(), BTreeMap::new());
        known.into_iter().enumerate().try_for_each(|(place, key)| self.add_key(place, key))
    }

    fn not_an_array(&self, given: Value) -> Refused {
        Refused::Keys { table: self.table.name.clone(), type_name: types::type_name(given.type_oid()) }
    }
}

fn null_key(table: &Table) -> Refused {
    Refused::Key { table: table.name.clone(), columns: table.key_names(), problem: KeyProblem::Null(None) }
}

/// The order of the primary key's index.
struct Order<'k> {
    keys: &'k Keys<'k>,
    /// The function of each column; none for a key that is one integer.
    comparisons: Vec<Comparison>,
}

/// The integer in a datum of one of the types of integers.
fn integer(datum: Datum, type_oid: Oid) -> i64 {
    match type_oid {
        pg_sys::INT2OID => i64::from(datum.value() as i16),
        pg_sys::INT4OID => i64::from(datum.value() as i32),
        _ => datum.value() as i64,
    }
}

impl<'k> Order<'k> {
    fn of(keys: &'k Keys<'k>) -> Order<'k> {
        let is_integer = |fit: &Fit| [pg_sys::INT2OID, pg_sys::INT4OID, pg_sys::INT8OID].contains(&fit.value_type);
        let is_in_order = |family: Oid| family == pg_sys::INTEGER_BTREE_FAM_OID;
        let comparisons = match (keys.fits.as_slice(), keys.table.key.as_slice()) {
            ([fit], [key]) if is_integer(fit) && is_in_order(key.operator_family) => Vec::new(),
            (fits, columns) => columns
                .iter()
                .zip(fits)
                .map(|(key, fit)| Comparison::of(key.operator_family, key.operator_type, fit.value_type))
                .collect(),
        };
        Order { keys, comparisons }
    }

    fn compare(&self, one: u32, other: u32) -> Ordering {
        let (one, other) = (self.keys.values_of(one as usize), self.keys.values_of(other as usize));
        if self.comparisons.is_empty() {
            let type_oid = self.keys.fits.first().map_or(pg_sys::INT8OID, |fit| fit.value_type);
            return one.map(|datum| integer(datum, type_oid)).cmp(other.map(|datum| integer(datum, type_oid)));
        }
        session::check_for_interrupts();
        let columns = self.comparisons.iter().zip(&self.keys.table.key).zip(self.keys.fits.iter().zip(one.zip(other)));
        columns
            .map(|((comparison, key), (fit, (one, other)))| {
                // SAFETY: both are of the type that is compared, and live as long as the call.
                let values = unsafe { (Value::new(one, fit.value_type), Value::new(other, fit.value_type)) };
                comparison.compare(values.0, values.1, self.keys.table.key_column(key).collation)
            })
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

fn array_of_texts() -> Oid {
    pg_sys::TEXTARRAYOID
}
