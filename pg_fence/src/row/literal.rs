//! The text form of a JSON value for a type, from which the type's own input function makes the value.
//!
//! The text form holds every value of every type exactly, so nothing is lost on the way: not the digits of a number,
//! not a backslash, not the difference between null and "NULL". Invariant: a JSON null is SQL null.

use crate::errors::{PatchProblem, Refused};
use crate::server::json::{Json, JsonKind};
use crate::server::session;
use crate::server::types;
use pg_forms::quote_element;
use pgrx::pg_sys::{self, Oid};

/// `pg_type.typcategory` of ranges.
const RANGES: u8 = b'R';

/// The text form of a JSON value for a type that is not a domain; `None` is null.
///
/// An array makes an array, with an inner array per dimension; an object makes a composite, with null for fields that
/// it does not name. Types json and jsonb take any value, so an array of them has one dimension. Strings are taken as
/// the type's own text form. Errors: an object with a member that the composite lacks; an array for
/// a composite or a range.
pub(crate) fn literal(json: &Json, type_oid: Oid) -> Result<Option<Vec<u8>>, Refused> {
    if is_json(type_oid) {
        return Ok(match json.kind() {
            JsonKind::Null => None,
            _ => Some(json.text()),
        });
    }
    match json.kind() {
        JsonKind::Null => Ok(None),
        JsonKind::Bool(true) => Ok(Some(b"true".to_vec())),
        JsonKind::Bool(false) => Ok(Some(b"false".to_vec())),
        JsonKind::Number => Ok(Some(json.number_text())),
        JsonKind::String(bytes) => Ok(Some(bytes.to_vec())),
        JsonKind::Array | JsonKind::Object => nested(json, type_oid).map(Some),
    }
}

/// Whether a type holds JSON values as they are.
pub(crate) fn is_json(type_oid: Oid) -> bool {
    type_oid == pg_sys::JSONBOID || type_oid == pg_sys::JSONOID
}

fn nested(json: &Json, type_oid: Oid) -> Result<Vec<u8>, Refused> {
    session::check_stack_depth();
    let is_array = matches!(json.kind(), JsonKind::Array);
    if let Some(element_type) = types::element_type(type_oid)
        && is_array
    {
        return array(json, types::base_type(element_type), types::array_delimiter(element_type));
    }
    let is_composite = types::relation_of_type(type_oid).is_some();
    // `[1, 5]` is a range by chance: with both ends in it, which nobody said.
    let is_range = types::type_category(type_oid) == RANGES;
    match is_composite {
        true if !is_array => composite(json, type_oid),
        false if !is_range => Ok(json.text()),
        _ => {
            let type_name = types::type_name(type_oid);
            Err(Refused::Patch(PatchProblem::Form { type_name, kind: json.words() }))
        }
    }
}

/// `{"1","2",NULL}`, or `{{"1"},{"2"}}` for arrays in an array.
fn array(json: &Json, element_type: Oid, delimiter: u8) -> Result<Vec<u8>, Refused> {
    session::check_stack_depth();
    let mut text = vec![b'{'];
    for (n, element) in json.elements().iter().enumerate() {
        if n > 0 {
            text.push(delimiter);
        }
        if matches!(element.kind(), JsonKind::Array) && !is_json(element_type) {
            text.extend(array(element, element_type, delimiter)?);
            continue;
        }
        match literal(element, element_type)? {
            Some(value) => quote_element(&mut text, &value),
            None => text.extend_from_slice(b"NULL"),
        }
    }
    text.push(b'}');
    Ok(text)
}

/// `("1","2",)`, where nothing between two commas is null.
fn composite(json: &Json, type_oid: Oid) -> Result<Vec<u8>, Refused> {
    let fields = types::composite_fields(type_oid);
    let members = json.members();
    if let Some((unknown, _)) =
        members.iter().find(|(name, _)| !fields.iter().any(|(field, _)| field.as_bytes() == *name))
    {
        let (type_name, field) = (types::type_name(type_oid), unknown.to_vec());
        return Err(Refused::Patch(PatchProblem::NoField { type_name, field }));
    }
    let mut text = vec![b'('];
    for (n, (field, field_type)) in fields.iter().enumerate() {
        if n > 0 {
            text.push(b',');
        }
        let member = members.iter().find(|(name, _)| field.as_bytes() == *name);
        if let Some((_, value)) = member
            && let Some(value) = literal(value, types::base_type(*field_type))?
        {
            quote_element(&mut text, &value);
        }
    }
    text.push(b')');
    Ok(text)
}
