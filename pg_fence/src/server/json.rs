//! Reading a jsonb value.
//!
//! Not conversion: `literal` makes values of it. Invariant: a [`Json`] does not outlive the document that it points
//! into, and strings are the bytes of the database's encoding.

use crate::errors::Refused;
use crate::server::raw;
use crate::server::session;
use crate::server::types::Value;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::pg_sys::{self, Datum, JsonbIteratorToken, JsonbValue, Oid, jbvType};
use std::ffi::CStr;
use std::marker::PhantomData;

/// A jsonb value as it came, unpacked. It lives in the memory context of the call.
pub(crate) struct Document(*mut pg_sys::Jsonb);

/// A value in a document.
#[derive(Clone, Copy)]
pub(crate) struct Json<'d> {
    value: JsonbValue,
    document: PhantomData<&'d Document>,
}

/// What a JSON value is.
pub(crate) enum JsonKind<'d> {
    Null,
    Bool(bool),
    /// A number of any size and precision.
    Number,
    String(&'d [u8]),
    Array,
    Object,
}

impl Document {
    /// Takes a jsonb value.
    ///
    /// # Safety
    ///
    /// The datum is a jsonb value that lives to the end of the call.
    pub(crate) unsafe fn from_datum(datum: Datum) -> Document {
        // SAFETY: as the caller promises.
        unsafe {
            let given = datum.cast_mut_ptr();
            // The server's function gives such a value back as it is.
            let unpacked = if pgrx::varatt_is_4b_u(given) { given } else { pg_sys::pg_detoast_datum(given) };
            Document(unpacked.cast())
        }
    }

    /// A value as a document, where it is a jsonb.
    pub(crate) fn of(value: Value) -> Option<Document> {
        // SAFETY: the value is a jsonb, and lives to the end of the call.
        (value.type_oid() == pg_sys::JSONBOID).then(|| unsafe { Document::from_datum(value.datum()) })
    }

    /// The members of the object that the document is, or the words for what it is instead.
    pub(crate) fn members(&self) -> Result<Vec<(&[u8], Json<'_>)>, &'static str> {
        match self.root() {
            Ok(root) if matches!(root.kind(), JsonKind::Object) => Ok(root.members()),
            Ok(_) => Err("a JSON array"),
            Err(scalar) => Err(scalar),
        }
    }

    /// Whether it is an array.
    pub(crate) fn is_array(&self) -> bool {
        self.root().is_ok_and(|root| matches!(root.kind(), JsonKind::Array))
    }

    /// How many elements the array has that it is.
    pub(crate) fn element_count(&self) -> usize {
        const COUNT: u32 = pg_sys::JB_CMASK;
        // SAFETY: the document was unpacked, and begins with its container.
        unsafe { ((*self.0).root.header & COUNT) as usize }
    }

    /// Does something with each element of the array that it is, one after the other. A cancel ends it.
    pub(crate) fn each_element(&self, mut act: impl FnMut(Json) -> Result<(), Refused>) -> Result<(), Refused> {
        let Ok(root) = self.root() else { return Ok(()) };
        // SAFETY: the root is a container of the document; the iterator gives values that point into it.
        unsafe {
            let mut iterator = pg_sys::JsonbIteratorInit(root.value.val.binary.data);
            let mut value = JsonbValue::default();
            loop {
                match pg_sys::JsonbIteratorNext(&mut iterator, &mut value, true) {
                    JsonbIteratorToken::WJB_DONE => return Ok(()),
                    JsonbIteratorToken::WJB_ELEM => {
                        session::check_for_interrupts();
                        act(Json { value, document: PhantomData })?;
                    }
                    _ => {}
                }
            }
        }
    }

    /// The container at the root; the words for a scalar, as one is stored as an array of one.
    fn root(&self) -> Result<Json<'_>, &'static str> {
        // SAFETY: the document was unpacked; a container of its length follows the length word.
        let (header, value) = unsafe {
            let container = &raw mut (*self.0).root;
            let mut value = JsonbValue { type_: jbvType::jbvBinary, ..Default::default() };
            value.val.binary.data = container;
            value.val.binary.len = (pgrx::varsize(self.0.cast()) - pg_sys::VARHDRSZ) as i32;
            ((*container).header, value)
        };
        let root = Json { value, document: PhantomData };
        if header & pg_sys::JB_FSCALAR == 0 {
            return Ok(root);
        }
        Err(root.elements().first().map_or("empty", Json::words))
    }
}

impl<'d> Json<'d> {
    /// What this value is.
    pub(crate) fn kind(&self) -> JsonKind<'d> {
        // SAFETY: the type of the value says which field of the union is set; strings and containers lie in the
        // document, which outlives this value.
        unsafe {
            match self.value.type_ {
                jbvType::jbvNull => JsonKind::Null,
                jbvType::jbvBool => JsonKind::Bool(self.value.val.boolean),
                jbvType::jbvNumeric => JsonKind::Number,
                jbvType::jbvString => JsonKind::String(self.string()),
                _ if (*self.value.val.binary.data).header & pg_sys::JB_FOBJECT != 0 => JsonKind::Object,
                _ => JsonKind::Array,
            }
        }
    }

    /// The words for what it is, with the article.
    pub(crate) fn words(&self) -> &'static str {
        match self.kind() {
            JsonKind::Null => "a JSON null",
            JsonKind::Bool(_) => "a JSON boolean",
            JsonKind::Number => "a JSON number",
            JsonKind::String(_) => "a JSON string",
            JsonKind::Array => "a JSON array",
            JsonKind::Object => "a JSON object",
        }
    }

    /// The members of an object, in the order of jsonb: shorter names first, then by their bytes. Empty for others.
    pub(crate) fn members(&self) -> Vec<(&'d [u8], Json<'d>)> {
        let mut members = Vec::with_capacity(self.count_members());
        let mut name: &[u8] = &[];
        self.each(|token, item| match token {
            JsonbIteratorToken::WJB_KEY => name = item.string(),
            JsonbIteratorToken::WJB_VALUE => members.push((name, item)),
            _ => {}
        });
        members
    }

    /// The elements of an array. Empty for others.
    pub(crate) fn elements(&self) -> Vec<Json<'d>> {
        let mut elements = Vec::new();
        self.each(|token, item| {
            if token == JsonbIteratorToken::WJB_ELEM {
                elements.push(item);
            }
        });
        elements
    }

    /// A number that is written without a point and has at most 16 digits. Others have to be read from their text.
    pub(crate) fn short_integer(&self) -> Option<i64> {
        const LENGTH_WORD: usize = 4;
        const HEADER: usize = 2;
        // SAFETY: called for numbers, whose field is a numeric value: a length word, a header and digits of two bytes.
        let (header, digits) = unsafe {
            let start = self.value.val.numeric.cast::<u8>();
            let count = (pgrx::varsize(start.cast()) - LENGTH_WORD - HEADER) / 2;
            let header = start.add(LENGTH_WORD).cast::<u16>();
            (*header, std::slice::from_raw_parts(header.add(1).cast::<i16>(), count))
        };
        pg_forms::short_integer(header, digits)
    }

    /// A number in digits, with all its places.
    pub(crate) fn number_text(&self) -> Vec<u8> {
        // SAFETY: called for numbers, whose field is a numeric value; its output function gives a C string.
        unsafe {
            let datum = Datum::from(self.value.val.numeric);
            let text = pg_sys::OidOutputFunctionCall(Oid::from(pg_sys::F_NUMERIC_OUT), datum);
            CStr::from_ptr(text).to_bytes().to_vec()
        }
    }

    /// The value as JSON text.
    pub(crate) fn text(&self) -> Vec<u8> {
        // SAFETY: the server makes a document of its own from a copy of the value, and a C string from that.
        unsafe {
            let document = self.to_jsonb().cast_mut_ptr::<pg_sys::Jsonb>();
            let length = pgrx::varsize(document.cast()) as i32;
            let text = pg_sys::JsonbToCString(std::ptr::null_mut(), &raw mut (*document).root, length);
            CStr::from_ptr(text).to_bytes().to_vec()
        }
    }

    /// The value as a jsonb value of its own.
    pub(crate) fn to_jsonb(self) -> Datum {
        let mut value = self.value;
        // SAFETY: the value lies in the document or is a scalar; the server copies it.
        Datum::from(unsafe { pg_sys::JsonbValueToJsonb(&mut value) })
    }

    /// Calls `visit` for every member name, member value and element of a container, not for what these contain.
    fn each(&self, mut visit: impl FnMut(JsonbIteratorToken::Type, Json<'d>)) {
        if self.value.type_ != jbvType::jbvBinary {
            return;
        }
        // SAFETY: the container lies in the document; the iterator gives values that point into it. There is one guard
        // for all, and what the server can end by an error holds nothing to drop.
        unsafe {
            pg_guard_ffi_boundary(|| {
                let mut iterator = raw::JsonbIteratorInit(self.value.val.binary.data);
                let mut value = JsonbValue::default();
                loop {
                    match raw::JsonbIteratorNext(&mut iterator, &mut value, true) {
                        JsonbIteratorToken::WJB_DONE => return,
                        token @ (JsonbIteratorToken::WJB_KEY
                        | JsonbIteratorToken::WJB_VALUE
                        | JsonbIteratorToken::WJB_ELEM) => visit(token, Json { value, document: PhantomData }),
                        _ => {}
                    }
                }
            });
        }
    }

    /// How many members an object has; none for others.
    fn count_members(&self) -> usize {
        match self.kind() {
            // SAFETY: an object is a container in the document.
            JsonKind::Object => unsafe { ((*self.value.val.binary.data).header & pg_sys::JB_CMASK) as usize },
            _ => 0,
        }
    }

    fn string(&self) -> &'d [u8] {
        // SAFETY: called for strings and member names alone, whose field is a string in the document. An empty one
        // may have no place.
        unsafe {
            let string = self.value.val.string;
            let length = usize::try_from(string.len).unwrap_or(0);
            if length == 0 { &[] } else { std::slice::from_raw_parts(string.val.cast(), length) }
        }
    }
}
