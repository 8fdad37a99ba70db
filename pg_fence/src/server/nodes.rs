//! Node trees of the catalog, read back from their text.
//!
//! Only as much as the conditions of triggers need. Invariant: a node is used as what its tag says.

use pgrx::pg_sys::{self, NodeTag, Oid};
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;

/// A tree as it was read. It lives in the memory context of the call.
pub(crate) struct Tree(*mut pg_sys::Node);

/// A node of a tree, perhaps none.
#[derive(Clone, Copy)]
pub(crate) struct Node<'t> {
    node: *mut pg_sys::Node,
    tree: PhantomData<&'t Tree>,
}

/// A column of one of the rows that a condition compares, as the parser numbers both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Variable {
    pub(crate) row: c_int,
    pub(crate) column: i16,
}

impl Tree {
    /// Reads a tree from a text of the catalog, where it is such a text.
    pub(crate) fn read(text: &CStr) -> Tree {
        // SAFETY: the server reads the text, or raises its error.
        Tree(unsafe { pg_sys::stringToNode(text.as_ptr()).cast() })
    }

    pub(crate) fn root(&self) -> Node<'_> {
        Node { node: self.0, tree: PhantomData }
    }
}

impl<'t> Node<'t> {
    /// The terms that are joined with AND.
    pub(crate) fn terms(self) -> Option<Vec<Node<'t>>> {
        // SAFETY: the tag says that it is such an expression.
        let all = unsafe { self.cast::<pg_sys::BoolExpr>(NodeTag::T_BoolExpr)?.as_ref()? };
        (all.boolop == pg_sys::BoolExprType::AND_EXPR).then(|| self.elements(all.args))
    }

    /// The function that is called, and its arguments.
    pub(crate) fn call(self) -> Option<(Oid, Vec<Node<'t>>)> {
        // SAFETY: the tag says that it is such an expression.
        let call = unsafe { self.cast::<pg_sys::FuncExpr>(NodeTag::T_FuncExpr)?.as_ref()? };
        Some((call.funcid, self.elements(call.args)))
    }

    /// The function of an operator, and its operands.
    pub(crate) fn operation(self) -> Option<(Oid, Vec<Node<'t>>)> {
        // SAFETY: the tag says that it is such an expression; the look-up reads the catalog alone.
        unsafe {
            let operation = self.cast::<pg_sys::OpExpr>(NodeTag::T_OpExpr)?.as_ref()?;
            Some((pg_sys::get_opcode(operation.opno), self.elements(operation.args)))
        }
    }

    /// A column of this query.
    pub(crate) fn variable(self) -> Option<Variable> {
        // SAFETY: the tag says that it is such a node.
        let var = unsafe { self.cast::<pg_sys::Var>(NodeTag::T_Var)?.as_ref()? };
        (var.varlevelsup == 0).then_some(Variable { row: var.varno as c_int, column: var.varattno })
    }

    pub(crate) fn is_null_constant(self) -> bool {
        self.constant().is_some_and(|value| value.constisnull)
    }

    /// Whether it is the constant whose datum is 0, such as the oid that stands for none.
    pub(crate) fn is_zero_constant(self) -> bool {
        self.constant().is_some_and(|value| !value.constisnull && value.constvalue.value() == 0)
    }

    /// The value without a change of its type's name, which changes nothing of it.
    pub(crate) fn without_relabelling(self) -> Node<'t> {
        match self.cast::<pg_sys::RelabelType>(NodeTag::T_RelabelType) {
            // SAFETY: the tag says that it is such a node.
            Some(relabelled) => Node { node: unsafe { (*relabelled).arg.cast() }, ..self },
            None => self,
        }
    }

    /// The relation that a constant names.
    pub(crate) fn relation_constant(self) -> Option<Oid> {
        let value = self.constant()?;
        let is_relation = value.consttype == pg_sys::REGCLASSOID && !value.constisnull;
        is_relation.then(|| Oid::from(value.constvalue.value() as u32))
    }

    fn constant(self) -> Option<&'t pg_sys::Const> {
        // SAFETY: the tag says that it is such a node, which lives as long as the tree.
        unsafe { self.cast::<pg_sys::Const>(NodeTag::T_Const)?.as_ref() }
    }

    fn cast<T>(self, tag: NodeTag) -> Option<*mut T> {
        // SAFETY: a node is null or begins with its tag.
        let is_one = unsafe { self.node.as_ref() }.is_some_and(|node| node.type_ == tag);
        is_one.then_some(self.node.cast())
    }

    fn elements(self, list: *mut pg_sys::List) -> Vec<Node<'t>> {
        // SAFETY: the list is one of the tree.
        unsafe { elements(list) }.map(|node| Node { node, ..self }).collect()
    }
}

/// The nodes of a list.
///
/// # Safety
///
/// The list is null or a valid list of nodes, and lives as long as it is read.
pub(crate) unsafe fn elements(list: *mut pg_sys::List) -> impl Iterator<Item = *mut pg_sys::Node> {
    // SAFETY: as the caller promises; a list has as many elements as it says.
    unsafe {
        let count = list.as_ref().map_or(0, |list| usize::try_from(list.length).unwrap_or(0));
        (0..count).map(move |n| (*(*list).elements.add(n)).ptr_value.cast())
    }
}
