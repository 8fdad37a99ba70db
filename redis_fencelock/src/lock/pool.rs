//! Memory for stored locks: cells of equal size side by side in pages, each found by a number of 32 bits.
//!
//! It saves 18 bytes a lock, by which a lock takes less than the two keys that it replaces. With 100,000 locks and
//! owners of 36 bytes a lock takes 151 bytes on Valkey 9.1, 168 if each is allocated alone, and the two keys take 153;
//! on Redis 8.6 it is 153, 171 and 175. (The server's allocator rounds such sizes up by a tenth, and the numbers need a
//! list of pointers.) It also lets a flush touch no lock: all cells of a page are of one generation. Invariant: a cell
//! belongs to one value at a time and does not move; an empty page goes back to the server.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

use fence::wheel::NODES_MAX;

#[cfg(feature = "poison")]
pub(in crate::lock) mod poison;

/// Bytes of a page: a size class of the server's allocator.
const PAGE: usize = 8_192;
/// Sizes are multiples of this, and so are all addresses.
const GRAIN: usize = 8;
/// What is larger has a page of its own size.
const SHARED_MAX: usize = PAGE / 8;
const CLASSES: usize = SHARED_MAX / GRAIN + 1;
/// Bits of the number of a cell that give its position in its page.
const CELL_BITS: u32 = 8;
const CELLS_MAX: usize = 1 << CELL_BITS;
const PAGES_MAX: u32 = NODES_MAX >> CELL_BITS;
const _: () = assert!(CELLS_MAX <= NO_CELL as usize && PAGES_MAX << CELL_BITS <= NODES_MAX);
/// Empty pages that are kept, so that a lock that comes and goes costs no page each time.
const IDLE_MAX: usize = 4;
/// A longer list of pages goes back to the server when the last cell is freed.
const LIST_KEPT: usize = 64;

const NIL: u32 = u32::MAX;
const NO_CELL: u16 = u16::MAX;

/// Cells in pages. A free cell holds the number of the next free one.
pub(crate) struct Pool {
    pages: Vec<Page>,
    /// The first of the page numbers that are not in use.
    unused: u32,
    /// For each size the first page with a free cell.
    open: [u32; CLASSES],
    used: usize,
    idle: usize,
    bytes: usize,
    generation: u32,
}

struct Page {
    /// `None` while the number is not in use.
    start: Option<NonNull<u8>>,
    /// Bytes of a cell.
    size: u32,
    /// That of all its cells.
    generation: u32,
    /// Among the pages with a free cell for this generation.
    is_open: bool,
    used: u16,
    /// The first free cell below `fresh`; each holds the number of the next.
    free: u16,
    /// The first cell that was never used.
    fresh: u16,
    /// Neighbours among the pages of this size with a free cell; `next` also among the numbers not in use.
    prev: u32,
    next: u32,
}

impl Page {
    fn size(&self) -> usize {
        self.size as usize
    }

    fn is_shared(&self) -> bool {
        self.size() <= SHARED_MAX
    }

    fn cells(&self) -> usize {
        if self.is_shared() { (PAGE / self.size()).min(CELLS_MAX) } else { 1 }
    }

    fn is_full(&self) -> bool {
        usize::from(self.used) == self.cells()
    }

    fn bytes(&self) -> usize {
        if self.is_shared() { PAGE } else { self.size() }
    }

    fn layout(&self) -> Layout {
        Layout::from_size_align(self.bytes(), GRAIN).unwrap_or_else(|_| unreachable!())
    }
}

/// Which of the lists of open pages holds those for this size; 0 when none does.
fn class_of(size: usize) -> usize {
    if size <= SHARED_MAX { size / GRAIN } else { 0 }
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool { pages: Vec::new(), unused: NIL, open: [NIL; CLASSES], used: 0, idle: 0, bytes: 0, generation: 0 }
    }

    /// Begins a generation: cells of earlier ones share no page with it. Returns its number.
    pub(crate) fn begin_generation(&mut self) -> u32 {
        self.generation += 1;
        self.generation
    }

    /// Whether there was ever more than one generation.
    pub(crate) fn has_generations(&self) -> bool {
        self.generation > 0
    }

    /// Whether no cell is in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The generation of a cell in use.
    pub(crate) fn generation_of(&self, cell: u32) -> u32 {
        self.pages[(cell >> CELL_BITS) as usize].generation
    }

    /// How many bytes the pool has allocated.
    pub(crate) fn allocated(&self) -> usize {
        self.bytes + self.pages.capacity() * size_of::<Page>()
    }

    /// How many bytes a cell of `size` bytes takes.
    pub(crate) fn rounded(size: usize) -> usize {
        size.next_multiple_of(GRAIN)
    }

    /// A cell of at least `size` bytes, and its number. `None` when there are no more numbers.
    pub(crate) fn allocate(&mut self, size: usize) -> Option<(u32, NonNull<u8>)> {
        let size = Pool::rounded(size.max(GRAIN));
        let class = class_of(size);
        let number = loop {
            match self.open[class] {
                NIL => break self.add_page(size, class)?,
                number if self.is_of_this_generation(number) => break number,
                earlier => self.close(earlier, class),
            }
        };
        let generation = self.generation;
        let page = &mut self.pages[number as usize];
        page.generation = generation;
        let start = page.start?;
        if page.used == 0 {
            self.idle -= 1;
        }
        page.used += 1;
        self.used += 1;
        // SAFETY: a cell of the page is below its end. A free cell holds the number of the next one.
        let (cell, at) = unsafe {
            if page.free == NO_CELL {
                page.fresh += 1;
                (page.fresh - 1, start.add(usize::from(page.fresh - 1) * page.size()))
            } else {
                let at = start.add(usize::from(page.free) * page.size());
                (std::mem::replace(&mut page.free, at.cast().read()), at)
            }
        };
        #[cfg(feature = "poison")]
        poison::unpoison(at, page.size());
        if page.is_full() {
            self.close(number, class);
        }
        Some((number << CELL_BITS | u32::from(cell), at))
    }

    /// Where a cell in use begins.
    pub(crate) fn at(&self, cell: u32) -> NonNull<u8> {
        let page = &self.pages[(cell >> CELL_BITS) as usize];
        let start = page.start.unwrap_or_else(|| unreachable!("a cell of no page"));
        // SAFETY: the cell was given out, so the page is there and it is below its end.
        unsafe { start.add((cell as usize % CELLS_MAX) * page.size()) }
    }

    /// Frees a cell.
    pub(crate) fn release(&mut self, cell: u32) {
        let (number, at) = (cell >> CELL_BITS, self.at(cell));
        let page = &mut self.pages[number as usize];
        let class = class_of(page.size());
        // SAFETY: the cell was given out and has the size of a GRAIN at least; nobody uses it any more.
        unsafe { at.cast().write(page.free) };
        #[cfg(feature = "poison")]
        poison::poison(at, page.size());
        page.free = (cell as usize % CELLS_MAX) as u16;
        page.used -= 1;
        let (is_empty, is_open) = (page.used == 0, page.is_open);
        self.used -= 1;
        if !is_open && class != 0 && self.is_of_this_generation(number) {
            self.reopen(number, class);
        }
        if is_empty {
            self.idle += 1;
            if class == 0 || self.idle > IDLE_MAX {
                self.remove_page(number, class);
            }
        }
        if self.used == 0 && self.pages.len() > LIST_KEPT {
            self.give_all_back();
        }
    }

    /// Calls `f` with at most `most` cells, in use or freed, from the number `from` on. Returns where to go on, or
    /// `None` at the end.
    pub(crate) fn visit(&self, from: usize, most: usize, mut f: impl FnMut(NonNull<u8>)) -> Option<usize> {
        let (mut number, mut cell) = (from >> CELL_BITS, from % CELLS_MAX);
        let mut left = most;
        while let Some(page) = self.pages.get(number) {
            if let Some(start) = page.start {
                while cell < usize::from(page.fresh) {
                    if left == 0 {
                        return Some(number << CELL_BITS | cell);
                    }
                    left -= 1;
                    // SAFETY: the cell is below the end of the page.
                    f(unsafe { start.add(cell * page.size()) });
                    cell += 1;
                }
            }
            (number, cell) = (number + 1, 0);
        }
        None
    }

    fn add_page(&mut self, size: usize, class: usize) -> Option<u32> {
        let number = match self.unused {
            NIL if self.pages.len() as u32 >= PAGES_MAX => return None,
            NIL => self.pages.len() as u32,
            unused => unused,
        };
        let mut page = Page {
            start: None,
            size: u32::try_from(size).ok()?,
            generation: self.generation,
            is_open: false,
            used: 0,
            free: NO_CELL,
            fresh: 0,
            prev: NIL,
            next: NIL,
        };
        // SAFETY: the size is not 0.
        page.start = NonNull::new(unsafe { alloc::alloc(page.layout()) });
        if page.start.is_none() {
            alloc::handle_alloc_error(page.layout());
        }
        self.bytes += page.bytes();
        self.idle += 1;
        if number as usize == self.pages.len() {
            self.pages.push(page);
        } else {
            self.unused = std::mem::replace(&mut self.pages[number as usize], page).next;
        }
        if class != 0 {
            self.reopen(number, class);
        }
        Some(number)
    }

    /// Frees an empty page.
    fn remove_page(&mut self, number: u32, class: usize) {
        if class != 0 {
            self.close(number, class);
        }
        self.idle -= 1;
        let page = &mut self.pages[number as usize];
        self.bytes -= page.bytes();
        if let Some(start) = page.start.take() {
            #[cfg(feature = "poison")]
            poison::unpoison(start, page.bytes());
            // SAFETY: `add_page` allocated it with this layout, and nothing in it is used any more.
            unsafe { alloc::dealloc(start.as_ptr(), page.layout()) }
        }
        page.next = std::mem::replace(&mut self.unused, number);
    }

    fn give_all_back(&mut self) {
        for number in 0..self.pages.len() {
            let page = &self.pages[number];
            if page.start.is_some() {
                self.remove_page(number as u32, class_of(page.size()));
            }
        }
        (self.pages, self.unused) = (Vec::new(), NIL);
    }

    /// Whether a cell of the page may be used now: an empty page belongs to every generation.
    fn is_of_this_generation(&self, number: u32) -> bool {
        let page = &self.pages[number as usize];
        page.used == 0 || page.generation == self.generation
    }

    /// Puts a page in front of those with a free cell.
    fn reopen(&mut self, number: u32, class: usize) {
        let next = std::mem::replace(&mut self.open[class], number);
        let page = &mut self.pages[number as usize];
        (page.prev, page.next, page.is_open) = (NIL, next, true);
        if next != NIL {
            self.pages[next as usize].prev = number;
        }
    }

    /// Takes a page out of those with a free cell.
    fn close(&mut self, number: u32, class: usize) {
        let page = &mut self.pages[number as usize];
        if !std::mem::take(&mut page.is_open) {
            return;
        }
        let Page { prev, next, .. } = *page;
        match prev {
            NIL => self.open[class] = next,
            prev => self.pages[prev as usize].next = next,
        }
        if next != NIL {
            self.pages[next as usize].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests;
