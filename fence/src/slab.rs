//! A pool of values with stable, checked addresses.
//!
//! Not a map: addresses are given out, not chosen.
//! Invariant: an address finds its own value or nothing, also after its place was used again.

/// Where a value is, and which of the values that were there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Address {
    index: usize,
    generation: u64,
}

pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<usize>,
    next_generation: u64,
}

struct Place<T> {
    generation: u64,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub fn new() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new(), next_generation: 0 }
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn insert(&mut self, value: T) -> Address {
        let generation = self.next_generation;
        self.next_generation += 1;
        let place = Place { generation, value: Some(value) };
        let index = match self.free.pop() {
            Some(index) => {
                self.places[index] = place;
                index
            }
            None => {
                self.places.push(place);
                self.places.len() - 1
            }
        };
        Address { index, generation }
    }

    pub fn get(&self, address: Address) -> Option<&T> {
        let place = self.places.get(address.index)?;
        place.value.as_ref().filter(|_| place.generation == address.generation)
    }

    pub fn get_mut(&mut self, address: Address) -> Option<&mut T> {
        let place = self.places.get_mut(address.index)?;
        place.value.as_mut().filter(|_| place.generation == address.generation)
    }

    /// Takes a value out. The last one gives all memory back.
    pub fn remove(&mut self, address: Address) -> Option<T> {
        self.get(address)?;
        let value = self.places[address.index].value.take();
        self.free.push(address.index);
        if self.len() == 0 {
            self.places = Vec::new();
            self.free = Vec::new();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_address_does_not_find_the_next_value_in_its_place() {
        let mut slab = Slab::new();
        let keep = slab.insert('k');
        let old = slab.insert('a');
        assert_eq!(slab.remove(old), Some('a'));
        let new = slab.insert('b');
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!((slab.get(new), slab.get(keep)), (Some(&'b'), Some(&'k')));
    }

    #[test]
    fn an_address_from_before_the_pool_was_empty_finds_nothing_after() {
        let mut slab = Slab::new();
        let old = slab.insert('a');
        slab.remove(old);
        slab.insert('b');
        assert_eq!(slab.get(old), None);
    }
}
