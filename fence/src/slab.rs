//! Storage for values under stable, checked addresses.
//!
//! Not a map: `insert` chooses the address.
//! Invariant: an address finds its own value or nothing, even after its cell was used again.

/// Where a value is, and which of the values that were in this cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Address {
    index: u32,
    generation: u64,
}

impl Address {
    /// The number of the cell.
    pub const fn index(self) -> u32 {
        self.index
    }
}

pub(crate) struct Slab<T> {
    cells: Vec<Cell<T>>,
    free: Vec<u32>,
    next_generation: u64,
}

/// Why a cell that is asked for by its number has a value.
const LINKED: &str = "what a wheel links is stored";

struct Cell<T> {
    generation: u64,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub fn new() -> Slab<T> {
        Slab { cells: Vec::new(), free: Vec::new(), next_generation: 0 }
    }

    pub fn len(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    /// Stores a value. `None`, and the value dropped, when there are 2^31: more than the nodes of a wheel have numbers for.
    pub fn insert(&mut self, value: T) -> Option<Address> {
        let generation = self.next_generation;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = i32::try_from(self.cells.len()).ok()?;
                self.cells.push(Cell { generation, value: None });
                index as u32
            }
        };
        self.cells[index as usize] = Cell { generation, value: Some(value) };
        self.next_generation += 1;
        Some(Address { index, generation })
    }

    pub fn get(&self, address: Address) -> Option<&T> {
        let cell = self.cells.get(address.index as usize)?;
        cell.value.as_ref().filter(|_| cell.generation == address.generation)
    }

    pub fn get_mut(&mut self, address: Address) -> Option<&mut T> {
        let cell = self.cells.get_mut(address.index as usize)?;
        cell.value.as_mut().filter(|_| cell.generation == address.generation)
    }

    /// The value in the cell of this number, and its address. There must be one.
    pub fn at(&self, index: u32) -> (Address, &T) {
        let cell = &self.cells[index as usize];
        (Address { index, generation: cell.generation }, cell.value.as_ref().expect(LINKED))
    }

    /// The value in the cell of this number. There must be one.
    pub fn at_mut(&mut self, index: u32) -> &mut T {
        self.cells[index as usize].value.as_mut().expect(LINKED)
    }

    /// Removes a value. The last one returns all memory.
    pub fn remove(&mut self, address: Address) -> Option<T> {
        self.get(address)?;
        let value = self.cells[address.index as usize].value.take();
        self.free.push(address.index);
        if self.len() == 0 {
            self.cells = Vec::new();
            self.free = Vec::new();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_address_does_not_find_the_next_value_in_its_cell() {
        let mut slab = Slab::new();
        let keep = slab.insert('k').unwrap();
        let old = slab.insert('a').unwrap();
        assert_eq!(slab.remove(old), Some('a'));
        assert_eq!(slab.get(old), None);
        let new = slab.insert('b').unwrap();
        assert_eq!(new.index(), old.index());
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.get_mut(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!((slab.get(new), slab.get(keep)), (Some(&'b'), Some(&'k')));
        assert_eq!((slab.at(0), slab.at(1)), ((keep, &'k'), (new, &'b')));
        assert_eq!(slab.get_mut(new), Some(&mut 'b'));
        assert_eq!(slab.at_mut(1), &mut 'b');
        assert_eq!(slab.len(), 2);
    }

    #[test]
    fn an_address_from_before_the_slab_was_empty_finds_nothing_after() {
        let mut slab = Slab::new();
        let old = slab.insert('a').unwrap();
        slab.remove(old);
        slab.insert('b').unwrap();
        assert_eq!(slab.get(old), None);
    }

    #[test]
    fn the_last_value_returns_all_memory_and_no_earlier_one_does() {
        let mut slab = Slab::new();
        let addresses: Vec<Address> = (0..100).map(|number| slab.insert(number).unwrap()).collect();
        for (number, address) in (0..100).zip(addresses) {
            assert!(slab.cells.capacity() >= 100);
            assert_eq!(slab.remove(address), Some(number));
        }
        assert_eq!((slab.cells.capacity(), slab.free.capacity(), slab.len()), (0, 0, 0));
    }
}
