//! The key of a row: from whatever the caller wrote to one value per column of the primary key.
//!
//! Not the search. Invariants: a key is never rounded or cut to fit a column, so it never finds another row than the
//! one it names; it is compared by the operator of the primary key's own index.

use crate::errors::{KeyProblem, Refused};
use crate::row::exact;
use crate::row::few::Few;
use crate::row::literal::{is_json, literal};
use crate::row::number;
use crate::server::context;
use crate::server::json::{Document, Json, JsonKind};
use crate::server::operators;
use crate::server::text::Bytes;
use crate::server::types::{self, Input, Value};
use crate::table::fit::{Fit, Way};
use crate::table::relation::{KeyColumn, Table};
use pg_forms::{c_string, joined, text};
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CString;

/// `pg_type.typcategory` of texts.
const TEXTS: u8 = b'S';

/// One value per column of the primary key, in the key's order.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// How each value is compared.
    pub(crate) fits: Few<Fit>,
    /// The values; the guards' are never absent.
    pub(crate) values: Few<Value>,
    /// Whether a value is outside its column's type. No row has such a key; the search still runs, with all its checks
    /// of rights, and finds nothing.
    is_absent: bool,
}

/// A value on its way into a key.
struct Fitted {
    /// As it is compared; as it was given where it is absent.
    value: Value,
    is_absent: bool,
}

impl Key {
    /// Reads a key: the value for a key of one column, a row or a jsonb object of its columns for any. An untyped or
    /// text value is read as the column's type; for several columns it is the text of a JSON object. Errors: it does
    /// not fit the primary key.
    pub(crate) fn read(table: &Table, given: Value) -> Result<Key, Refused> {
        // The common case first: one column, and a type that has been seen before.
        if let [only] = table.key.as_slice()
            && let Some(fit) = only.known_fit(given.type_oid())
            && fit.way == Way::AsIs
        {
            return Ok(Key { values: Few::One(given), fits: Few::One(fit), is_absent: false });
        }
        let given = given.in_base_type();
        let given_type = given.type_oid();
        if let [only] = table.key.as_slice()
            && is_single_value(table, only, given_type)
        {
            return Key::of(table, vec![fitted(table, only, given)?]);
        }
        if let Some(document) = Document::of(given) {
            let members = document.members().map_err(|kind| refused(table, KeyProblem::NotAnObject(kind)))?;
            return Key::from_members(table, &members);
        }
        if let Some(fields) = given.fields() {
            return Key::from_fields(table, fields);
        }
        if is_text(given_type) && given.text().as_bytes().first() == Some(&b'{') {
            return Key::from_json_text(table, given);
        }
        Err(refused(table, KeyProblem::Count { given: 1, wanted: table.key.len() }))
    }

    /// Reads a key from an element of a JSON array: an object of the key's columns, or the value of the only one.
    pub(crate) fn from_json(table: &Table, json: &Json) -> Result<Key, Refused> {
        let [only] = table.key.as_slice() else {
            return match json.kind() {
                JsonKind::Object => Key::from_members(table, &json.members()),
                _ => Err(refused(table, KeyProblem::NotAnObject(json.words()))),
            };
        };
        let takes_any = is_json(table.key_column(only).base_type);
        match json.kind() {
            JsonKind::Null => Err(refused(table, KeyProblem::Null(None))),
            JsonKind::Object if !takes_any => Key::from_members(table, &json.members()),
            _ => Key::of(table, vec![from_json(table, only, json)?]),
        }
    }

    /// Reads a key from the members of a JSON object, which are exactly the key's columns.
    pub(crate) fn from_members(table: &Table, members: &[(&[u8], Json)]) -> Result<Key, Refused> {
        let is_key = |name: &[u8]| table.column(name).is_some_and(|column| column.is_key);
        if let Some((name, _)) = members.iter().find(|(name, _)| !is_key(name)) {
            return Err(refused(table, KeyProblem::NoKeyColumn(name.to_vec())));
        }
        let values = table.key.iter().map(|key| {
            let column = table.key_column(key);
            let Some((_, json)) = members.iter().find(|(name, _)| *name == column.name.as_bytes()) else {
                return Err(refused(table, KeyProblem::Missing(column.name.clone())));
            };
            from_json(table, key, json)
        });
        Key::of(table, values.collect::<Result<_, _>>()?)
    }

    /// The key of these values, in the key's order; none unless they are one of each column's own type without a domain.
    pub(crate) fn of_column_values(table: &Table, values: Vec<Value>) -> Result<Option<Key>, Refused> {
        let types = table.key.iter().map(|key| table.key_column(key).base_type);
        if !types.eq(values.iter().map(|value| value.type_oid())) {
            return Ok(None);
        }
        Key::of(table, values.into_iter().map(|value| Fitted { value, is_absent: false }).collect()).map(Some)
    }

    /// The values as parameters, each of the type that its [`Fit`] says.
    pub(crate) fn datums(&self) -> impl Iterator<Item = Option<Datum>> + '_ {
        // No row has null in a column of its primary key.
        self.values.iter().map(|value| (!self.is_absent).then_some(value.datum()))
    }

    /// Whether no row can have this key.
    pub(crate) fn is_absent(&self) -> bool {
        self.is_absent
    }

    /// The key as error texts show it: `(a, b)=(1, x)`.
    pub(crate) fn text(&self, table: &Table) -> Vec<u8> {
        text![table.key_names(), "=(", joined(self.values.iter().map(|value| value.short_text()), ", "), ")"]
    }

    /// The value of a key of one column that is an integer of 64 bits, of whatever type.
    pub(crate) fn integer(&self) -> Option<i64> {
        let [only] = self.values[..] else { return None };
        only.text().to_str().ok()?.parse().ok()
    }

    /// The refusal of a call with this key and this fence that found no row.
    pub(crate) fn no_row(&self, table: &Table, fence: i64) -> Refused {
        let may_be_swapped = self.integer().is_some_and(|key| fence::may_be_swapped(key, fence));
        Refused::NoRow { table: table.name.clone(), key: self.text(table), may_be_swapped }
    }

    /// The same key with each value of its column's own type. Errors: the column's type has no such value.
    pub(crate) fn in_column_types(self, table: &Table) -> Result<Key, Refused> {
        if self.is_absent {
            return Ok(self);
        }
        let values = table.key.iter().zip(&*self.values).map(|(key, &value)| in_own_type(table, key, value));
        Key::of(table, values.collect::<Result<_, _>>()?)
    }

    /// The same key as its columns store it. Errors: they would round it or cut it, or have no such value.
    pub(crate) fn to_insert(&self, table: &Table) -> Result<Key, Refused> {
        let key = self.clone().in_column_types(table)?;
        let mut values = table.key.iter().zip(&*key.values).zip(&*key.fits);
        match !key.is_absent && values.all(|((column, value), fit)| is_kept(table, column, *value, *fit)) {
            true => Ok(key),
            false => Err(refused(table, KeyProblem::NotStorable(self.text(table)))),
        }
    }

    /// A key of values that are compared so.
    pub(crate) fn of_values(fits: Vec<Fit>, values: Vec<Value>) -> Key {
        Key { fits: Few::Many(fits), values: Few::Many(values), is_absent: false }
    }

    fn of(table: &Table, fitted: Vec<Fitted>) -> Result<Key, Refused> {
        let fits = table.key.iter().zip(&fitted).map(|(key, fitted)| fit(table, key, fitted.value.type_oid()));
        let fits = fits.collect::<Result<_, _>>()?;
        let is_absent = fitted.iter().any(|fitted| fitted.is_absent);
        Ok(Key { fits, values: fitted.into_iter().map(|fitted| fitted.value).collect(), is_absent })
    }

    fn from_fields(table: &Table, fields: Vec<Option<Value>>) -> Result<Key, Refused> {
        let (given, wanted) = (fields.len(), table.key.len());
        if given != wanted {
            return Err(refused(table, KeyProblem::Count { given, wanted }));
        }
        let values = table.key.iter().zip(fields).map(|(key, field)| match field {
            Some(value) => fitted(table, key, value),
            None => Err(refused(table, KeyProblem::Null(Some(table.key_column(key).name.clone())))),
        });
        Key::of(table, values.collect::<Result<_, _>>()?)
    }

    fn from_json_text(table: &Table, given: Value) -> Result<Key, Refused> {
        match Input::of(pg_sys::JSONBOID).value(&given.text()) {
            Some(document) => Key::read(table, document),
            None => Err(refused(table, KeyProblem::Null(None))),
        }
    }
}

/// Whether a value of this type is the value of the only key column, and no object or row of it.
fn is_single_value(table: &Table, only: &KeyColumn, given: Oid) -> bool {
    let wanted = table.key_column(only).base_type;
    let is_row = given == pg_sys::RECORDOID || types::relation_of_type(given).is_some();
    let wants_row = types::relation_of_type(wanted).is_some();
    (given != pg_sys::JSONBOID || wanted == pg_sys::JSONBOID) && (!is_row || wants_row)
}

/// The value as the key column's operator takes it.
fn fitted(table: &Table, key: &KeyColumn, given: Value) -> Result<Fitted, Refused> {
    let given = given.in_base_type();
    let fit = fit(table, key, given.type_oid())?;
    let found = |found: Option<Value>| Ok(Fitted { value: found.unwrap_or(given), is_absent: found.is_none() });
    match fit.way {
        Way::AsIs => found(Some(given)),
        Way::Number => found(number::value_of(&number::digits(given), fit.value_type)),
        Way::Text => from_text(table, key, &plain_text(given)),
        Way::Cast { function, operator } => {
            let cast = operators::cast(given, function, fit.value_type);
            let is_whole = operators::are_equal(operator, cast, given, table.key_column(key).collation);
            found(is_whole.then_some(cast))
        }
    }
}

/// A value that fits the key column, in the column's own type.
fn in_own_type(table: &Table, key: &KeyColumn, value: Value) -> Result<Fitted, Refused> {
    let wanted = table.key_column(key).base_type;
    let found = |found: Option<Value>| Ok(Fitted { value: found.unwrap_or(value), is_absent: found.is_none() });
    if value.type_oid() == wanted {
        return found(Some(value));
    }
    if number::is_number(value.type_oid()) && number::is_number(wanted) {
        let number = number::value_of(&number::digits(value), wanted);
        // Compared as it is, a float4 is another float8 than the one with its digits.
        let operator = operators::equality_operator(key.operator_family, key.operator_type, value.type_oid());
        let are_equal = |number| are_equal(table, key, operator, number, value);
        if number.is_none_or(are_equal) {
            return found(number);
        }
    }
    match new_cast(key, wanted, value.type_oid()) {
        Some(Way::Cast { function, operator }) => {
            let cast = operators::cast(value, function, wanted);
            let is_whole = operators::are_equal(operator, cast, value, table.key_column(key).collation);
            found(is_whole.then_some(cast))
        }
        _ => from_text(table, key, &plain_text(value)),
    }
}

/// Whether the operator, where there is one between both types, says that two values of a key column are equal.
fn are_equal(table: &Table, key: &KeyColumn, operator: Option<Oid>, one: Value, other: Value) -> bool {
    operator.is_none_or(|operator| operators::are_equal(operator, one, other, table.key_column(key).collation))
}

/// Whether the column stores a value of its own type as it is: `numeric(4, 1)` would round it.
fn is_kept(table: &Table, key: &KeyColumn, value: Value, fit: Fit) -> bool {
    let column = table.key_column(key);
    if column.typmod < 0 && column.type_oid == column.base_type {
        return true;
    }
    // Not by the output function, which is free to round a float.
    let text = if number::is_number(value.type_oid()) { c_string(number::digits(value).into()) } else { value.text() };
    let stored = column.input().value_of(&text, column.typmod);
    stored.is_some_and(|stored| are_equal(table, key, Some(fit.operator), stored, value))
}

/// The text form of a value; of a char(n) without the blanks that fill it up, which are not part of it.
fn plain_text(value: Value) -> CString {
    let mut text = value.text().into_bytes();
    while value.type_oid() == pg_sys::BPCHAROID && text.ends_with(b" ") {
        text.pop();
    }
    c_string(text)
}

fn from_json(table: &Table, key: &KeyColumn, json: &Json) -> Result<Fitted, Refused> {
    let column = table.key_column(key);
    if matches!(json.kind(), JsonKind::Number) && number::is_number(number_type(key, column.base_type)) {
        let given = number::value_of(&String::from_utf8_lossy(&json.number_text()), pg_sys::NUMERICOID);
        return given.map_or_else(|| Err(refused(table, KeyProblem::Null(None))), |given| fitted(table, key, given));
    }
    match literal(json, column.base_type)? {
        Some(literal) => from_text(table, key, &c_string(literal)),
        None => Err(refused(table, KeyProblem::Null(Some(column.name.clone())))),
    }
}

/// Reads a value as the key column's type, without the modifier of the column: `numeric(4, 1)` would round 0.05 to 0.1.
fn from_text(table: &Table, key: &KeyColumn, literal: &CString) -> Result<Fitted, Refused> {
    let column = table.key_column(key);
    match context::within(c"key column \"%s\"", &column.name, || key.base_input(column).value(literal)) {
        Some(value) if exact::is_kept(value, literal) => Ok(Fitted { value, is_absent: false }),
        Some(_) => Ok(Fitted { value: Value::of_text(Bytes::copy(literal.to_bytes())), is_absent: true }),
        None => Err(refused(table, KeyProblem::Null(Some(column.name.clone())))),
    }
}

fn fit(table: &Table, key: &KeyColumn, given: Oid) -> Result<Fit, Refused> {
    if let Some(fit) = key.known_fit(given) {
        return Ok(fit);
    }
    let column = table.key_column(key);
    let Some(fit) = new_fit(key, column.base_type, given) else {
        return Err(refused(
            table,
            KeyProblem::Type {
                column: column.name.clone(),
                column_type: types::type_name(column.type_oid),
                given: types::type_name(given),
            },
        ));
    };
    table.depends_on_operator(fit.operator, &[column.type_oid, column.base_type, key.operator_type]);
    key.fits.borrow_mut().push((given, fit));
    Ok(fit)
}

fn new_fit(key: &KeyColumn, wanted: Oid, given: Oid) -> Option<Fit> {
    let operator = |right| operators::equality_operator(key.operator_family, key.operator_type, right);
    let own = operator(key.operator_type)?;
    let made = |way| Some(Fit { operator: own, value_type: wanted, way });
    if given == wanted {
        return made(Way::AsIs);
    }
    if is_text(given) && types::type_category(wanted) != TEXTS {
        return made(Way::Text);
    }
    if types::is_polymorphic(key.operator_type) {
        return None;
    }
    if let Some(operator) = operator(given) {
        return match operators::is_immutable(operator) {
            true => Some(Fit { operator, value_type: given, way: Way::AsIs }),
            false => made(new_cast(key, wanted, given)?),
        };
    }
    // Before what is the same in memory: -1 would be the oid 4294967295.
    let number = number_type(key, wanted);
    if number::is_number(given) && number::is_number(number) {
        return Some(Fit { operator: own, value_type: number, way: Way::Number });
    }
    if types::is_binary_coercible(given, key.operator_type) {
        return Some(Fit { operator: own, value_type: given, way: Way::AsIs });
    }
    if is_text(given) || (types::type_category(given) == TEXTS && types::type_category(wanted) == TEXTS) {
        return made(Way::Text);
    }
    None
}

/// The type of the numbers in a key column: one of type regclass holds oids.
fn number_type(key: &KeyColumn, wanted: Oid) -> Oid {
    if key.operator_type == pg_sys::OIDOID { pg_sys::OIDOID } else { wanted }
}

/// How a value gets from a type to the key column's, if the operator family compares both.
fn new_cast(key: &KeyColumn, wanted: Oid, given: Oid) -> Option<Way> {
    let operator = operators::equality_operator(key.operator_family, key.operator_type, given)?;
    Some(Way::Cast { function: operators::cast_function(given, wanted)?, operator })
}

fn is_text(type_oid: Oid) -> bool {
    matches!(type_oid, pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID | pg_sys::UNKNOWNOID)
}

fn refused(table: &Table, problem: KeyProblem) -> Refused {
    Refused::Key { table: table.name.clone(), columns: table.key_names(), problem }
}
